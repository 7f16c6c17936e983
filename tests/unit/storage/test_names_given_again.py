"""A partition's name that a former log had: what the disk still says of that one must not be believed of the next one.

Method: a topic is deleted and made again, or a log is moved away and a new one made, and the process is killed, or the power goes,
between any two calls on the disk. The checkpoints were written just before, and are not due again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.simulation.disk import Disk, recording

from ottla.storage.checkpoints import read_offsets
from ottla.storage.log_directory import NewLog, make_logs
from ottla.storage.log_manager import LogManager
from ottla.storage.partition_metadata import read_topic_id
from ottla.storage.recovery import load_log

from .brokers import CLICKS, Broker, found_in, run
from .crashes import crash_after
from .logs import PARTITION, LogMaker, fill

KEY, OTHER = CLICKS[2], CLICKS[3]
FORMER, NEXT = UUID(int=31), UUID(int=32)
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


def broker_in(*directories: Path) -> Broker:
    broker = Broker(*directories)
    numbers = itertools.count(70)
    broker.new_id = lambda: UUID(int=next(numbers))
    return broker


async def with_a_former_log(logs: LogManager) -> None:
    """Each of the four files has something of it."""
    await logs.start()
    former = logs.create(KEY, FORMER)
    fill(former, 90)
    await former.flush()
    former.advance_log_start_offset(60)
    former.cleaned_up_to = 45
    logs.high_watermarks = lambda: {KEY: 88}
    await logs.write_checkpoints()
    logs.high_watermarks = dict


def entries(directory: Path) -> dict[str, int]:
    """What each checkpoint says of the partition."""
    return {name: offsets[KEY] for name in CHECKPOINTS if KEY in (offsets := read_offsets(directory / name))}


@pytest.mark.parametrize("way", ["deleted", "stray", "deleted before a restart"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_no_checkpoint_has_anything_of_a_log_whose_name_is_given_again(tmp_path: Path, way: str, at_once: bool) -> None:
    broker = broker_in(tmp_path)
    logs = broker.manager()
    await with_a_former_log(logs)
    assert len(entries(tmp_path)) == 4
    if way == "stray":
        logs.rename_stray(KEY)
    else:
        await logs.delete(KEY)
    if way == "deleted before a restart":
        await logs.shutdown(clean=False)
        logs = broker.manager()
        await logs.start()
        assert logs.recorded_high_watermark(KEY) is None
    if at_once:
        logs.create(KEY, NEXT)
    else:
        await logs.create_all({KEY: NEXT, OTHER: NEXT})
    assert entries(tmp_path) == {}
    fill(logs.logs[KEY], 70)
    await logs.shutdown(clean=False)
    again = broker.manager()
    await again.start()
    assert (again.logs[KEY].log_start_offset, again.logs[KEY].log_end_offset, again.logs[KEY].topic_id) == (0, 70, NEXT)
    assert again.recorded_high_watermark(KEY) is None
    assert not again.damaged
    await again.shutdown()


async def test_a_checkpoint_that_is_just_being_written_is_waited_for(tmp_path: Path) -> None:
    """It was put together while the former log was there, and its thread is slow: it must not come after the new log."""
    broker = broker_in(tmp_path)
    held, entered = asyncio.Event(), asyncio.Event()
    logs = broker.manager()
    await with_a_former_log(logs)
    offload = logs._checkpoints._offload

    async def slow(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        entered.set()
        await held.wait()
        return await offload(function, *arguments, **keywords)

    logs._checkpoints._offload = slow
    logs.high_watermarks = lambda: {KEY: 89}
    round_ = asyncio.ensure_future(logs.write_high_watermarks())
    await asyncio.wait_for(entered.wait(), 120)
    await logs.delete(KEY)
    logs.high_watermarks = dict
    making = asyncio.ensure_future(logs.create_all({KEY: NEXT}))
    await asyncio.sleep(0)
    assert KEY not in logs.logs
    held.set()
    await asyncio.wait_for(asyncio.gather(round_, making), 120)
    assert KEY in logs.logs
    assert entries(tmp_path) == {}
    await logs.shutdown()


async def test_a_log_is_not_made_while_a_checkpoint_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the log is refused, and can be made later."""
    from ottla.errors import KafkaStorageError
    from ottla.storage import log_checkpoints

    broker = broker_in(tmp_path)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    logs = broker.manager()
    await with_a_former_log(logs)
    await logs.delete(KEY)
    with monkeypatch.context() as patched:
        patched.setattr(log_checkpoints, "write_offsets", full)
        await logs.create_all({KEY: NEXT})
        assert KEY not in logs.logs
        with pytest.raises(KafkaStorageError):
            logs.create(KEY, NEXT)
    assert not logs.offline_directories
    assert not (tmp_path / "clicks-2").exists()
    await logs.create_all({KEY: NEXT})
    assert KEY in logs.logs
    assert entries(tmp_path) == {}
    await logs.shutdown()


@pytest.mark.parametrize("power", [False, True])
def test_a_topic_made_again_has_its_own_records_wherever_the_crash_comes(tmp_path: Path, power: bool) -> None:
    crashes = 0
    for operations in itertools.count():
        disk = Disk(tmp_path / f"machine-{operations}")
        outcome: dict[str, bool] = {}

        async def before(disk: Disk = disk, operations: int = operations, outcome: dict[str, bool] = outcome) -> bool:
            logs = broker_in(Path(disk.root) / "logs").manager()
            await with_a_former_log(logs)
            with crash_after(operations) as countdown:
                await logs.delete(KEY)
                await logs.create_all({KEY: NEXT})
                fill(logs.logs[KEY], 20)
                await logs.logs[KEY].flush()
                outcome["flushed"] = True
            await logs.shutdown(clean=False)
            return countdown.crashed

        async def after(disk: Disk = disk, outcome: dict[str, bool] = outcome) -> None:
            logs = broker_in(Path(disk.root) / "logs").manager()
            await logs.start()
            found = logs.get(KEY)
            if found is not None and found.topic_id == NEXT:
                assert found.log_start_offset == 0
                assert found.log_end_offset == 20 or "flushed" not in outcome
                assert logs.recorded_high_watermark(KEY) is None
                assert logs.counts.recovered_bytes == found.size
            else:
                assert "flushed" not in outcome
                assert found is None or (found.topic_id, found.log_start_offset, found.log_end_offset) in ((FORMER, 60, 90), (None, 0, 0))
            assert not logs.damaged
            await logs.shutdown()

        with recording([disk], os.urandom):
            crashed = asyncio.run(before())
            if power:
                disk.lose_power(Random(operations))
            else:
                disk.release()
            asyncio.run(after())
        crashes += crashed
        if not crashed:
            break
    assert crashes > 15


@pytest.mark.parametrize("seed", range(20))
def test_of_a_log_that_is_being_deleted_a_loss_of_power_brings_back_all_or_nothing(tmp_path: Path, seed: int) -> None:
    """A replica that is given up and wanted again later is the same topic's: half of it would be taken for all."""
    disk = Disk(tmp_path / "machine")

    async def before() -> None:
        broker = broker_in(Path(disk.root) / "logs")
        logs = broker.manager()
        await logs.start()
        log = logs.create(KEY, FORMER)
        for _ in range(4):
            fill(log, 5)
            log.appender.roll()
        await log.flush()
        await logs.delete(KEY)
        broker.clock.advance(seconds=120)
        with crash_after(3 + seed % 12):
            await logs._deletes.run_due()
        await logs.shutdown(clean=False)

    async def after() -> None:
        logs = broker_in(Path(disk.root) / "logs").manager()
        await logs.start()
        assert [(partition_log.log_start_offset, partition_log.log_end_offset) for partition_log in logs.logs.values()] in ([], [(0, 20)])
        await logs.shutdown(clean=False)

    with recording([disk], Random(seed).randbytes):
        run(before)
        disk.lose_power(Random(seed))
        run(after)


def test_a_log_that_a_checkpoint_has_beginning_beyond_its_end_is_kept_aside(tmp_path: Path, make_log: LogMaker) -> None:
    """Its records may be those of another topic, made again under a name of which a checkpoint spoke."""
    log = make_log(segment_bytes=1500)
    filled = b"".join(fill(log, 30))
    segments = [segment.base_offset for segment in log.segments]
    assert len(segments) > 2
    directory = log.directory
    loaded = load_log(directory, index_interval_bytes=4096, log_start_offset=100)
    assert (loaded.log_start_offset, loaded.log_end_offset) == (100, 100)
    (aside,) = directory.parent.glob("*-stray")
    kept = sorted(aside.glob("*.log"))
    assert [int(path.stem) for path in kept] == segments
    assert b"".join(path.read_bytes() for path in kept) == filled
    assert [path.name for path in directory.glob("*.log")] == [f"{100:020d}.log"]
    assert PARTITION.topic in aside.name


def test_a_directory_that_has_only_segments_taken_out_of_a_log_is_kept_when_its_name_is_given_again(tmp_path: Path) -> None:
    directory = tmp_path / "clicks-2"
    directory.mkdir()
    (directory / f"{40:020d}.log.2.stray").write_bytes(b"records")
    make_logs(tmp_path, [NewLog(CLICKS[2], None, 4096)])
    (kept,) = found_in(tmp_path, "clicks-2.*-stray/*")
    assert kept.read_bytes() == b"records"
    assert found_in(directory, "*.log*") == [directory / f"{0:020d}.log"]


def test_a_crash_while_such_a_log_is_put_aside_loses_nothing(tmp_path: Path, make_log: LogMaker) -> None:
    for operations in itertools.count():
        log = make_log(segment_bytes=1500)
        filled = b"".join(fill(log, 12))
        directory = log.directory
        with crash_after(operations) as countdown:
            load_log(directory, index_interval_bytes=4096, log_start_offset=100)
        loaded = load_log(directory, index_interval_bytes=4096, log_start_offset=100)
        assert (loaded.log_start_offset, loaded.log_end_offset) == (100, 100)
        asides = list(directory.parent.glob("*-stray"))
        kept = sorted((path for aside in asides for path in aside.glob("*.log")), key=lambda path: path.name)
        assert b"".join(path.read_bytes() for path in kept) == filled
        for place in (directory, *asides):
            place.rename(tmp_path / f"{place.name}-{operations}")
        if not countdown.crashed:
            break
    assert operations > 3


async def test_a_new_log_has_nothing_of_what_lies_under_its_name(tmp_path: Path) -> None:
    """A directory that could not be renamed when its log was given up, or that someone put there while the broker ran."""
    broker = broker_in(tmp_path)
    logs = broker.manager()
    await logs.start()
    left = tmp_path / "clicks-2"
    left.mkdir()
    (left / "00000000000000000040.log").write_bytes(b"of another topic")
    made = logs.create(KEY, NEXT)
    assert (made.log_start_offset, made.log_end_offset) == (0, 0)
    (aside,) = found_in(tmp_path, "clicks-2.*-stray")
    assert (aside / "00000000000000000040.log").read_bytes() == b"of another topic"
    # And what was not finished when the last attempt failed is begun again.
    (tmp_path / "clicks-3").mkdir()
    (tmp_path / "clicks-3" / "00000000000000000040.log").touch()
    await logs.create_all({OTHER: NEXT})
    assert logs.logs[OTHER].log_end_offset == 0
    assert read_topic_id(tmp_path / "clicks-3") == NEXT
    await logs.shutdown()


async def test_many_logs_are_spread_as_they_would_be_one_by_one(tmp_path: Path) -> None:
    broker = broker_in(tmp_path / "a", tmp_path / "b")
    logs = broker.manager()
    await logs.start()
    logs.create(CLICKS[0], FORMER)
    logs.wanted_directories[CLICKS[1]] = tmp_path / "a"
    await logs.create_all(dict.fromkeys(CLICKS[1:], NEXT))
    homes = [log.directory.parent.name for log in logs.logs.values()]
    assert (homes.count("a"), homes.count("b")) == (4, 4)
    assert logs.logs[CLICKS[1]].directory.parent.name == "a"
    assert not logs.wanted_directories
    assert {read_topic_id(logs.logs[key].directory) for key in CLICKS[1:]} == {NEXT}
    await logs.shutdown()
