"""A broker that starts on a disk without any room: it serves what it has, and needs no second start once there is room.

Method: every write fails, and files that a start would rebuild are missing or damaged.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

from .brokers import CLICKS, Broker, run
from .failing_calls import failing
from .logs import append, batch_of, fill

KEY = CLICKS[4]


def without_room() -> ExitStack:
    stack = ExitStack()
    for call in ("write", "pwrite", "writev"):
        stack.enter_context(failing(call, lambda path: True, errno.ENOSPC))
    return stack


def of(logs: LogManager) -> Log:
    found = logs.get(KEY)
    assert found is not None
    return found


def _facts(log: Log) -> list[Any]:
    return [
        (segment.offset_index.entries(), segment.time_index.entries(), segment.max_timestamp, list(segment.transaction_index))
        for segment in log.segments[:-1]
    ]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_indexes_that_a_start_has_no_room_for_stay_in_memory(tmp_path: Path, suffix: str, is_clean: bool) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        broker.overrides = {"segment.bytes": "9000", "index.interval.bytes": "60"}
        logs = broker.manager()
        await logs.start()
        log = logs.create(KEY, None)
        append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True, size=10))
        marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
        append(log, build_marker_batch(marker, base_offset=1, timestamp=1, producer_id=9, producer_epoch=0))
        while len(log.segments) < 4:
            fill(log, 1, size=8, timestamp=1_000 + 10 * log.log_end_offset)
        await log.flush()
        await logs.write_checkpoints()
        expected, end_offset = _facts(log), log.log_end_offset
        await logs.shutdown(clean=is_clean)
        for path in log.directory.glob("*" + suffix):
            if suffix == ".txnindex":
                path.write_bytes(b"\x00\x07" + path.read_bytes()[2:])  # of another version
            else:
                path.unlink()

        logs = broker.manager()
        with without_room():
            await logs.start()
            assert not logs.offline_directories
            assert (of(logs).log_end_offset, _facts(of(logs))) == (end_offset, expected)
            region = of(logs).read(100, 1, end_offset, at_least_one_batch=True)
            assert region is not None
        fill(of(logs), 1)
        await of(logs).flush()
        await logs.write_checkpoints()
        await logs.shutdown(clean=False)

        logs = broker.manager()
        await logs.start()
        assert (of(logs).log_end_offset, _facts(of(logs))) == (end_offset + 1, expected)
        await logs.shutdown(clean=True)

    run(scene)


def test_a_kill_while_indexes_are_rebuilt_leaves_no_part_of_one(tmp_path: Path) -> None:
    """A start believes what it finds of an index, so it finds all or nothing."""

    async def scene() -> None:
        broker = Broker(tmp_path)
        broker.overrides = {"segment.bytes": "30000", "index.interval.bytes": "60"}
        logs = broker.manager()
        await logs.start()
        log = logs.create(KEY, None)
        while len(log.segments) < 2:
            fill(log, 1, size=8, timestamp=1_000 + log.log_end_offset)
        expected = _facts(log)
        assert len(expected[0][0]) > 256
        directory = log.directory
        await logs.shutdown(clean=True)
        (directory / f"{0:020}.index").unlink()
        for after in range(4):
            with (
                failing("pwrite", lambda path: "index" in path, errno.EIO, after),
                failing("write", lambda path: "index" in path, errno.EIO, after),
            ):
                again = broker.manager()
                try:
                    await again.start()
                except Exception:
                    continue
                await again.shutdown(clean=True)
        logs = broker.manager()
        await logs.start()
        assert _facts(of(logs)) == expected
        await logs.shutdown(clean=False)

    run(scene)
