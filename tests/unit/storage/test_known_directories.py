"""Whether a replica without a log never had one: as long as the broker has the log directories in which each replica had its log."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from ottla.storage.log_directory import KNOWN_DIRECTORIES, read_known_directories

from .brokers import CLICKS, Broker, run
from .logs import fill

KEY, OTHER, THIRD = CLICKS[:3]
TOPIC = UUID(int=5)


def life(broker: Broker, *, notes: bool = False, clean: bool = False) -> list[bool]:
    """Starts, makes the first log where there is none, and says of three partitions whether they never had one."""
    answers: list[bool] = []

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        if logs.get(KEY) is None:
            fill(logs.create(KEY, TOPIC), 3)
        if notes:
            await logs.note_every_log([KEY])
        answers.extend(logs.never_had(key) for key in (KEY, OTHER, THIRD))
        logs.high_watermarks = lambda: {KEY: 3}
        await logs.shutdown(clean=clean, broker_epoch=12)

    run(scene)
    return answers


@pytest.mark.parametrize("clean", [False, True])
def test_directories_are_known_once_each_replica_had_a_log_in_them(tmp_path: Path, clean: bool) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    assert life(broker, clean=clean) == [False] * 3
    assert life(broker, clean=clean) == [False] * 3, "a start alone says nothing of what is missing"
    assert life(broker, notes=True, clean=clean)[1:] == [True, True]
    assert life(broker, clean=clean)[1:] == [True, True]


def test_a_new_disk_one_that_was_taken_out_and_one_more_are_not_known(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    assert life(Broker(a, b), notes=True)[1]
    assert not life(Broker(a))[1], "the log may be in b"
    assert life(Broker(a, b))[1], "which is back"
    assert not life(Broker(a, b, c))[1]
    shutil.rmtree(b)
    assert not life(Broker(a, b))[1], "its disk is a new one"
    assert life(Broker(a, b), notes=True)[1]
    for path in (a, b):
        shutil.rmtree(path)
    assert not life(Broker(a, b))[1], "both are"


def test_a_log_that_a_checkpoint_remembers_was_there(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a")
    life(broker, notes=True, clean=True)
    shutil.rmtree(tmp_path / "a" / str(KEY))
    answers: list[bool] = []

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        answers.extend((logs.never_had(KEY), logs.never_had(OTHER)))
        await logs.shutdown(clean=False)

    run(scene)
    assert answers == [False, True]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b'{"version":0}', b'{"version":0,"directories":["x"]}', b'{"directories":[7]}', b"\xff"]
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    broker = Broker(tmp_path / "a")
    life(broker, notes=True)
    assert len(read_known_directories(tmp_path / "a")) == 1
    (tmp_path / "a" / KNOWN_DIRECTORIES).write_bytes(content)
    assert not life(broker)[1]
    assert life(broker, notes=True)[1], "it is written again"


def test_a_full_disk_leaves_them_unknown_and_a_failed_one_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    real = os.open

    def full(path: str | Path, *arguments: int, **more: int) -> int:
        if KNOWN_DIRECTORIES in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        assert not life(broker, notes=True)[1]
    assert life(broker, notes=True)[1]

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        logs.fail_directory(tmp_path / "b", OSError(errno.EIO, os.strerror(errno.EIO)))
        assert not logs.never_had(OTHER)
        await logs.note_every_log([KEY])
        await logs.shutdown(clean=False)

    run(scene)
