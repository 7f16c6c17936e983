"""Deletions that wait, and rounds in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.lifecycle import offload_nothing
from ottla.storage.delayed_deletes import DelayedDeletes, rename_to_deleted
from ottla.storage.log_manager import Periodic
from ottla.testing import ManualClock


async def test_files_and_directories_go_when_they_are_due_and_not_before(tmp_path: Path) -> None:
    """file.delete.delay.ms may differ from topic to topic."""
    clock = ManualClock()
    deletes = DelayedDeletes(clock, offload_nothing)
    (tmp_path / "late").write_text("x")
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "file").write_text("x")
    deletes.add([str(tmp_path / "late")], 2_000)
    deletes.add([str(tmp_path / "early"), str(tmp_path / "gone already")], 1_000)

    def left() -> list[str]:
        return [path.name for path in tmp_path.iterdir()]

    assert await deletes.run_due() == 0
    clock.advance(seconds=1)
    assert await deletes.run_due() == 2
    assert left() == ["late"]
    clock.advance(seconds=1)
    assert await deletes.run_due() == 1
    assert left() == []
    assert len(deletes) == 0


def test_a_name_that_still_waits_is_not_taken(tmp_path: Path) -> None:
    """A rename onto it would free its data at once, for which the loop would wait."""
    path = tmp_path / "00000000000000000000.log"
    renamed = []
    for content in ("first", "second", "third"):
        path.write_text(content)
        renamed.append(Path(rename_to_deleted(str(path))))
    assert [path.name for path in renamed] == [f"{path.name}.deleted", f"{path.name}.2.deleted", f"{path.name}.3.deleted"]
    assert [path.read_text() for path in renamed] == ["first", "second", "third"]
    with pytest.raises(FileNotFoundError):
        rename_to_deleted(str(path))


def test_a_round_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk at one retention round must not end retention."""

    async def scene() -> None:
        rounds = Periodic()
        event, third, fired = asyncio.Event(), asyncio.Event(), asyncio.Event()
        count = 0

        async def work() -> None:
            nonlocal count
            count += 1
            if count == 3:
                third.set()
            raise OSError("this time it fails")

        rounds.every(1, "the work", work)
        await third.wait()

        async def other_work() -> None:
            fired.set()
            raise OSError("so does this")

        rounds.whenever(event, "the other work", other_work)
        for _ in range(2):
            fired.clear()
            event.set()
            await fired.wait()
        await rounds.stop()
        stopped = count
        event.set()
        await asyncio.sleep(0.01)
        assert count == stopped

    asyncio.run(scene())
    assert "A round of the work failed" in caplog.text


async def test_a_round_that_is_at_work_is_waited_for_and_is_the_last_one() -> None:
    """A thread cannot be called back: a directory that is given back before it is done would see its writes later."""
    rounds = Periodic()
    begun, go_on = asyncio.Event(), asyncio.Event()
    done = []

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.append("written")

    rounds.every(1, "the work", work)
    await begun.wait()
    stopping = asyncio.ensure_future(rounds.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    go_on.set()
    await stopping
    assert done == ["written"]


async def test_the_first_round_may_come_sooner_than_those_after_it() -> None:
    """As that of retention does after a start."""
    rounds, begun, count = Periodic(), asyncio.Event(), 0

    async def work() -> None:
        nonlocal count
        count += 1
        begun.set()

    rounds.every(600_000, "the work", work, 1)
    await begun.wait()
    await asyncio.sleep(0.01)
    await rounds.stop()
    assert count == 1
