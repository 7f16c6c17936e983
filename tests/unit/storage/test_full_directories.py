"""A full disk is told when it begins and when it ends, once each, and to those who ask meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.errors import KafkaStorageError
from ottla.storage.log_directory import CALM_SECONDS, TRIAL
from ottla.storage.log_manager import LogManager

from .brokers import CLICKS, Broker, run
from .failing_calls import failing
from .logs import fill

QUOTA, SPACE, FILES = (OSError(number, os.strerror(number)) for number in (errno.EDQUOT, errno.ENOSPC, errno.EMFILE))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "ottla.storage.log_directory"]


async def started(path: Path) -> tuple[Broker, LogManager]:
    broker = Broker(path / "a", path / "b")
    logs = broker.manager()
    await logs.start()
    for key in CLICKS[:2]:
        fill(logs.create(key, None), 1)
    return broker, logs


@pytest.mark.parametrize("error", [SPACE, QUOTA])
async def test_a_full_disk_is_told_once_and_once_more_when_there_is_space(
    tmp_path: Path, error: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    broker, logs = await started(tmp_path)
    log = logs.logs[CLICKS[1]]
    path = log.directory.parent
    broker.files.fail_writev = error
    for _ in range(3):
        with pytest.raises(KafkaStorageError):
            fill(log, 1)
    assert dict(logs.full_directories) == {path: error.strerror}
    assert [(directory.path == path, directory.usable_bytes == 0, directory.error) for directory in logs.describe_directories()] == [
        (directory == path, directory == path, None) for directory in broker.directories
    ]
    await logs._full.look()
    assert logs.full_directories, "the last refusal is not long ago"
    broker.files.fail_writev = None
    fill(log, 1)
    broker.clock.advance(seconds=CALM_SECONDS)
    await logs._full.look()
    assert not logs.full_directories
    assert not (path / TRIAL).exists()
    began, ended = lines(caplog)
    assert began[0] == "ERROR" and str(path) in began[1] and str(error.strerror) in began[1]
    assert ended == ("WARNING", f"The disk of the log directory {path} has space again, after 5 s")
    await logs.shutdown()


async def test_it_is_not_over_while_no_file_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No one writes any more: only a trial can say that there is space."""
    broker, logs = await started(tmp_path)
    broker.files.fail_writev = SPACE
    with pytest.raises(KafkaStorageError):
        fill(logs.logs[CLICKS[0]], 1)
    write = os.write
    room = 4096

    def bounded(fd: int, data: Any, /) -> int:
        if room == 4096 and len(data) > room:
            raise SPACE
        return write(fd, data)

    monkeypatch.setattr(os, "write", bounded)
    for _ in range(5):
        broker.clock.advance(seconds=CALM_SECONDS)
        await logs._full.look()
    assert len(logs.full_directories) == 1
    room = 1 << 30
    broker.clock.advance(seconds=CALM_SECONDS)
    await logs._full.look()
    assert not logs.full_directories
    assert [level for level, _ in lines(caplog)] == ["ERROR", "WARNING"]
    await logs.shutdown(clean=False)


def test_a_checkpoint_and_a_new_log_see_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(broken: str) -> None:
        _, logs = await started(tmp_path / broken)

        def full(*arguments: object) -> None:
            raise SPACE

        with monkeypatch.context() as patched:
            if broken == "checkpoint":
                patched.setattr("ottla.storage.log_checkpoints.write_offsets", full)
                await logs.write_checkpoints()
            else:
                patched.setattr("ottla.storage.log_manager.make_logs", full)
                with pytest.raises(KafkaStorageError):
                    logs.create(CLICKS[5], None)
        assert set(logs.full_directories) == {tmp_path / broken / name for name in "ab"}
        assert not logs.offline_directories
        await logs.shutdown()

    for broken in ("checkpoint", "log"):
        run(lambda broken=broken: scene(broken))  # type: ignore[misc]


async def test_what_is_not_for_want_of_space_is_not_told_as_such_and_an_offline_directory_is_not_full(tmp_path: Path) -> None:
    broker, logs = await started(tmp_path)
    log = logs.logs[CLICKS[0]]
    for error in (FILES, SPACE):
        broker.files.fail_writev = error
        with pytest.raises(KafkaStorageError):
            fill(log, 1)
        assert len(logs.full_directories) == (error is SPACE)
    logs.fail_directory(log.directory.parent, OSError(errno.EIO, "broken"))
    assert not logs.full_directories
    await logs.shutdown()


async def test_logs_that_a_full_directory_does_not_take_are_logged_once_a_minute_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every try may fail at another file. Each raises the same, so that it can be told that it is known."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()

    async def tries(reason: int, suffixes: tuple[str, ...]) -> set[str]:
        raised = set()
        for suffix in suffixes:
            with failing("open", lambda path, suffix=suffix: path.endswith(suffix), reason):  # type: ignore[misc]
                await logs.create_all(dict.fromkeys(CLICKS[:3], UUID(int=5)))
                with pytest.raises(KafkaStorageError) as error:
                    logs.create(CLICKS[0], UUID(int=5))
                raised.add(error.value.message)
        return raised

    def logged() -> int:
        return sum("could not be created in" in record.getMessage() for record in caplog.records)

    files = (".metadata.tmp", ".log", ".log")
    assert len(await tries(errno.ENOSPC, files)) == 1
    assert logged() == 1
    broker.clock.advance(seconds=59)
    await tries(errno.ENOSPC, files)
    assert logged() == 1
    await tries(errno.EDQUOT, files)
    assert logged() == 2
    broker.clock.advance(seconds=1)
    await tries(errno.ENOSPC, files)
    assert logged() == 3
    await logs.shutdown(clean=True)


@pytest.mark.parametrize("gives_up", ["delete", "rename_stray"])
async def test_a_directory_for_whose_new_name_there_is_no_room_gets_it_later_and_nobody_has_the_old_one_before(
    tmp_path: Path, gives_up: str
) -> None:
    """A full disk is no broken disk: the other logs of the directory continue."""
    _, logs = await started(tmp_path)
    given_up, other = CLICKS[0], CLICKS[1]
    directory = logs.logs[given_up].directory
    with failing("rename", lambda path: path == str(directory)):
        if gives_up == "delete":
            await logs.delete(given_up)
        else:
            logs.rename_stray(given_up)
        await logs.rename_what_waits()
        assert (logs.get(given_up), directory.exists(), dict(logs.offline_directories)) == (None, True, {})
        assert directory.parent in logs.full_directories
        fill(logs.logs[other], 1)
        again = logs.create(given_up, UUID(int=5))
        assert (again.log_end_offset, again.directory.parent) == (0, next(path for path in logs._paths if path != directory.parent))
    await logs.rename_what_waits()
    assert not directory.exists()
    suffix = "-delete" if gives_up == "delete" else "-stray"
    assert [path.name.endswith(suffix) for path in directory.parent.glob(f"{given_up}.*")] == [True]
    await logs.shutdown()


async def test_a_stop_with_a_directory_that_still_waits_for_its_name_is_no_clean_one(tmp_path: Path) -> None:
    """A start finds a log there that no one has closed."""
    broker, logs = await started(tmp_path)
    directory = logs.logs[CLICKS[0]].directory
    with failing("rename", lambda path: path == str(directory)):
        await logs.delete(CLICKS[0])
        await logs.shutdown()
    again = broker.manager()
    await again.start()
    assert [directory.is_clean for directory in again._directories.values()] == [path != directory.parent for path in broker.directories]
    assert CLICKS[0] in again.logs
    await again.shutdown()
