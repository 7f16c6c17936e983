"""A broker that starts on a disk without any room: it serves what it has, and needs no second start once there is room.

Method: every write fails, and files that a start would rebuild are missing or damaged.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.errors import KafkaStorageError
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

from .brokers import CLICKS, Broker, found_in
from .failing_calls import failing
from .logs import append, batch_of, fill

KEY = CLICKS[4]
TOPIC = UUID(int=21)


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
async def test_indexes_that_a_start_has_no_room_for_stay_in_memory(tmp_path: Path, suffix: str, is_clean: bool) -> None:
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


async def test_aborted_transactions_before_the_recovery_point_stay_in_the_file_through_starts_without_room(tmp_path: Path) -> None:
    """Method: what the start walks again is all of the segment, as its index is missing, and at the next start only its end."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    log = logs.create(KEY, None)
    append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True, size=10))
    marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
    append(log, build_marker_batch(marker, base_offset=1, timestamp=1, producer_id=9, producer_epoch=0))
    fill(log, 80)
    await log.flush()
    await logs.write_checkpoints()
    content, expected = Path(log.segments[0].path(".txnindex")).read_bytes, list(log.segments[0].transaction_index)
    await logs.shutdown(clean=False)
    assert not found_in(log.directory, "*.index"), "a kill comes before the indexes are in their files"
    in_file = content()
    for has_room in (False, True, True):
        logs = broker.manager()
        with ExitStack() if has_room else without_room():
            await logs.start()
            assert list(of(logs).segments[0].transaction_index) == expected != []
        assert content() == in_file, "a kill comes here"
        await logs.shutdown(clean=False)


async def test_a_kill_while_indexes_are_rebuilt_leaves_no_part_of_one(tmp_path: Path) -> None:
    """A start believes what it finds of an index, so it finds all or nothing."""
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


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_log_without_a_file_waits_for_room_and_takes_nothing_offline(tmp_path: Path, number: int, is_clean: bool) -> None:
    """The stop came between the directory and its first file, and now there are no inodes."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    fill(logs.create(CLICKS[1], TOPIC), 3)
    empty = logs.create(KEY, TOPIC)
    await logs.shutdown(clean=is_clean, broker_epoch=3)
    for path in found_in(empty.directory, "0*"):
        path.unlink()

    logs = broker.manager()
    with failing("open", lambda path: path.endswith(".log") and "clicks-4" in path, number):
        await logs.start()
        other = logs.get(CLICKS[1])
        assert other is not None and other.log_end_offset == 3
        assert (dict(logs.offline_directories), list(logs.full_directories)) == ({}, [tmp_path])
        assert logs.clean_shutdown_epoch == (3 if is_clean else -1), "nothing is lost"
        await logs.create_all({KEY: TOPIC})
        assert logs.get(KEY) is None
        with pytest.raises(KafkaStorageError, match=os.strerror(number)):
            logs.create(KEY, TOPIC, is_new=False)
    assert logs.create(KEY, TOPIC, is_new=False).topic_id == TOPIC
    fill(of(logs), 2)
    await logs.shutdown(clean=True)

    logs = broker.manager()
    await logs.start()
    assert (of(logs).log_end_offset, of(logs).topic_id) == (2, TOPIC)
    await logs.shutdown(clean=True)


@pytest.mark.parametrize("refused", ["mkdir", "open"])
async def test_a_log_that_ends_before_its_start_waits_for_room_and_begins_there(tmp_path: Path, refused: str) -> None:
    """Offsets that DeleteRecords took are not given again, not after another start, and what lies before them is kept for a person."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    filled = fill(logs.create(KEY, TOPIC), 6)
    logs.high_watermarks = lambda: {KEY: 6}
    of(logs).advance_log_start_offset(5)
    await logs.shutdown(clean=True, broker_epoch=3)
    path = tmp_path / "clicks-4" / f"{0:020d}.log"
    path.write_bytes(b"".join(filled[:2]))

    for _ in range(2):
        await logs.shutdown(clean=False)
        logs = broker.manager()
        with failing(refused, lambda path: "clicks-4" in path and path.endswith(("-stray", "5.log"))):
            await logs.start()
            assert not logs.offline_directories
            assert (logs.get(KEY), logs.clean_shutdown_epoch) == (None, -1), "records are lost, and a replica that has them is to lead"
            await logs.write_checkpoints()
    log = logs.create(KEY, TOPIC, is_new=False)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    kept = [path.read_bytes() for path in found_in(tmp_path, f"clicks-4.*-stray/{0:020d}.log")]
    assert kept == [b"".join(filled[:2])]
    await logs.shutdown(clean=True)


async def test_a_log_that_waits_for_room_says_nothing_of_the_topic_that_has_its_name_now(tmp_path: Path) -> None:
    """Of the former topic offsets up to 5 were deleted. A controller that gives a broker all its partitions calls none of them new."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    fill(logs.create(KEY, TOPIC), 6)
    of(logs).advance_log_start_offset(5)
    await logs.shutdown(clean=True)
    (tmp_path / "clicks-4" / f"{0:020d}.log").unlink()

    logs = broker.manager()
    with failing("open", lambda path: path.endswith(".log") and "clicks-4" in path, errno.ENOSPC):
        await logs.start()
    await logs.create_all({KEY: UUID(int=22)})
    log = logs.get(KEY) or logs.create(KEY, UUID(int=22), is_new=False)
    assert (log.topic_id, log.log_start_offset, log.log_end_offset) == (UUID(int=22), 0, 0)
    fill(log, 3)
    await logs.shutdown(clean=False)
    logs = broker.manager()
    await logs.start()
    assert (of(logs).log_start_offset, of(logs).log_end_offset) == (0, 3)
    await logs.shutdown(clean=True)


async def test_a_disk_that_fails_where_a_log_is_to_begin_is_offline_all_the_same(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    logs = broker.manager()
    await logs.start()
    empty = logs.create(KEY, None)
    path = empty.directory.parent
    await logs.shutdown(clean=True)
    for file in found_in(empty.directory, "0*"):
        file.unlink()
    logs = broker.manager()
    with failing("open", lambda path: path.endswith(".log"), errno.EIO):
        await logs.start()
    assert list(logs.offline_directories) == [path]
    with pytest.raises(KafkaStorageError, match="may lie in a directory that is offline"):
        logs.create(KEY, None, is_new=False)
    await logs.shutdown(clean=False)
