"""What stays of a log after a cleaning: last values, tombstones for their time, producers' sequences, offsets as they were."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from ottla.config.settings import LONG_MAX
from ottla.errors import KafkaStorageError
from ottla.record.batch import HEADER_SIZE, LOG_APPEND_TIME, batches, crc_of, read_header
from ottla.record.codecs import GZIP, LZ4, SNAPPY, ZSTD
from ottla.record.records import read_records, seal
from ottla.storage.log import Log
from ottla.storage.recovery import load_log
from ottla.testing import ManualClock

from .cleanings import (
    ABORT,
    COMMIT,
    COMPACTED,
    clean,
    cleaner_of,
    committed_records_of,
    end_transaction,
    file_names,
    has_horizon,
    headers_of,
    keyed_batch,
    put,
    records_of,
    values_of,
)
from .logs import FailingFiles, LogMaker, append, log_maker, stored

HOUR_MS = 3_600_000


async def test_of_every_key_the_last_record_stays_at_its_offset(make_log: LogMaker, clock: ManualClock) -> None:
    """'Log compaction' in Kafka's design document: the last value of each key, in order, and offsets never change."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    put(log, ("c", "1"))
    put(log, ("a", "3"), ("c", "2"))
    await clean(log, clock)
    assert values_of(log) == {1: ("b", "1"), 4: ("a", "3"), 5: ("c", "2")}
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)
    assert [(header.base_offset, header.last_offset) for header in headers_of(log)] == [(0, 2), (4, 5)]
    put(log, ("b", "2"))
    await clean(log, clock)
    assert values_of(log) == {4: ("a", "3"), 5: ("c", "2"), 6: ("b", "2")}


async def test_a_batch_of_which_all_stays_is_copied_byte_by_byte(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    for number in range(20):
        put(log, (f"once {number}", "x" * number), codec=number % 5)
    before = stored(log)
    await clean(log, clock)
    assert stored(log) == before


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
async def test_a_compressed_batch_is_opened_and_written_with_its_codec(make_log: LogMaker, clock: ManualClock, codec: int) -> None:
    log = make_log(**COMPACTED)
    put(log, *((f"key {number}", "v" * 200) for number in range(50)), codec=codec)
    put(log, *((f"key {number}", "w" * 200) for number in range(0, 50, 2)), codec=codec)
    await clean(log, clock)
    assert sorted(values_of(log)) == [*range(1, 50, 2), *range(50, 75)]
    assert [(header.codec, header.record_count) for header in headers_of(log)] == [(codec, 25), (codec, 25)]
    check_bytes(log)


async def test_what_is_left_of_a_batch_has_its_own_largest_timestamp_and_keeps_sequence_epoch_and_last_offset(
    make_log: LogMaker, clock: ManualClock
) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), producer_id=9, producer_epoch=2, base_sequence=7, timestamp=5_000)
    put(log, ("c", "2"), ("b", "2"), producer_id=9, producer_epoch=2, base_sequence=10, timestamp=6_000)
    await clean(log, clock)
    first = headers_of(log)[0]
    assert (first.base_offset, first.last_offset, first.record_count, first.max_timestamp) == (0, 2, 1, 5_000)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_offset_delta) == (9, 2, 7, 2)
    assert [record.timestamp for record in records_of(log)] == [5_000, 6_000, 6_001]


async def test_a_batch_with_the_time_of_its_append_keeps_it(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, delete_retention_ms=HOUR_MS)
    put(log, ("a", "1"), ("b", "1"), ("c", None), timestamp_type=LOG_APPEND_TIME, log_append_time=77_000)
    put(log, ("a", "2"))
    await clean(log, clock)
    assert [(record.offset, record.timestamp) for record in records_of(log)][:2] == [(1, 77_000), (2, 77_000)]
    assert headers_of(log)[0].max_timestamp == 77_000


async def test_a_tombstone_removes_its_key_and_goes_when_its_delete_horizon_has_passed(make_log: LogMaker, clock: ManualClock) -> None:
    """KIP-534: the first cleaning that keeps it writes the horizon into the batch; timestamps stay what they were."""
    log = make_log(**COMPACTED, delete_retention_ms=HOUR_MS)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"), timestamp=2_000_000)
    await clean(log, clock)
    assert values_of(log) == {1: ("b", "1"), 2: ("a", None), 3: ("c", "1")}
    kept = headers_of(log)[1]
    assert has_horizon(kept)
    assert kept.base_timestamp == clock.time_ms() + HOUR_MS
    assert kept.max_timestamp == 2_000_001
    assert [record.timestamp for record in records_of(log)][1:] == [2_000_000, 2_000_001]

    clock.advance(milliseconds=HOUR_MS - 1)
    put(log, ("d", "1"))
    await clean(log, clock)
    assert (2, ("a", None)) in values_of(log).items()
    assert headers_of(log)[1].base_timestamp == kept.base_timestamp

    clock.advance(milliseconds=1)
    put(log, ("e", "1"))
    await clean(log, clock)
    assert values_of(log) == {1: ("b", "1"), 3: ("c", "1"), 4: ("d", "1"), 5: ("e", "1")}
    check_bytes(log)


def check_bytes(log: Log) -> None:
    """Every batch has the right checksum, and its records can be read."""
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        for position, header in batches(data):
            batch = data[position : position + header.size]
            assert crc_of(batch) == header.crc
            assert len(list(read_records(batch))) == header.record_count


async def test_tombstones_and_markers_that_are_kept_for_ever_get_no_delete_horizon(make_log: LogMaker, clock: ManualClock) -> None:
    """KIP-534, `MemoryRecords.filterTo`: the largest `delete.retention.ms` leads behind the last time that a batch can say."""
    log = make_log(**COMPACTED, delete_retention_ms=LONG_MAX)
    put(log, ("a", "1"))
    put(log, ("a", None), ("c", "1"))
    marker = end_transaction(log, COMMIT, 1)
    for key in ("d", "e"):
        put(log, (key, "1"), producer_id=1, producer_epoch=0, base_sequence=0)
        await clean(log, clock)
        clock.advance(milliseconds=1000 * HOUR_MS)
    assert {1: ("a", None), 2: ("c", "1")}.items() <= values_of(log).items()
    assert [header.base_offset for header in headers_of(log) if header.is_control] == [marker]
    assert not any(map(has_horizon, headers_of(log)))


async def test_a_tombstone_that_a_later_record_follows_goes_at_once(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, delete_retention_ms=HOUR_MS)
    put(log, ("a", None))
    put(log, ("a", "2"))
    await clean(log, clock)
    assert values_of(log) == {1: ("a", "2")}
    assert not has_horizon(headers_of(log)[0])


async def test_the_last_batch_of_an_active_producer_stays_without_records(make_log: LogMaker, clock: ManualClock) -> None:
    """So that its sequence is known to anyone who reads only the log, as after the loss of all snapshots."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("a", "2"), ("b", "2"), producer_id=1, producer_epoch=0, base_sequence=1, codec=ZSTD)
    put(log, ("a", "3"), ("b", "3"))
    await clean(log, clock)
    assert [(header.producer_id, header.record_count, header.base_offset, header.last_offset) for header in headers_of(log)] == [
        (1, 0, 1, 2),
        (-1, 2, 3, 4),
    ]
    put(log, ("c", "3"))
    await clean(log, clock)  # an empty one stays as it is
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    loaded = load_log(log.directory, index_interval_bytes=4096)
    state = loaded.producers.get(1)
    assert state is not None
    assert (state.producer_epoch, state.next_sequence, state.last_offset) == (0, 3, 2)

    put(log, ("d", "1"), producer_id=1, producer_epoch=0, base_sequence=3)
    await clean(log, clock)
    assert [header.base_offset for header in headers_of(log)] == [3, 5, 6]


async def test_aborted_records_go_and_do_not_hide_older_ones(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    put(log, ("a", "old"))
    put(log, ("a", "aborted"), ("b", "aborted"), base_sequence=0, **transaction)
    end_transaction(log, ABORT, 5)
    put(log, ("b", "new"), base_sequence=2, **transaction)
    end_transaction(log, COMMIT, 5)
    before = [(record.offset, record.key, record.value) for record in committed_records_of(log)]
    await clean(log, clock)
    assert values_of(log) == {0: ("a", "old"), 4: ("b", "new")}
    assert [(record.offset, record.key, record.value) for record in committed_records_of(log)] == before


async def test_a_transaction_whose_marker_lies_behind_what_is_cleaned_is_known_as_aborted(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "old"))
    put(log, ("a", "aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.appender.roll()
    end_transaction(log, ABORT, 5)
    put(log, ("b", "1"))
    await clean(log, clock, roll=False)
    assert values_of(log) == {0: ("a", "old"), 3: ("b", "1")}
    assert [record.value for record in committed_records_of(log)] == [b"old", b"1"]
    assert log.segments[-1].base_offset == 2


async def test_an_open_transaction_and_one_not_committed_yet_stop_the_cleaning_before_them(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"))
    log.appender.roll()
    put(log, ("a", "2"))
    put(log, ("a", "open"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.appender.roll()
    put(log, ("a", "3"))
    await clean(log, clock)
    assert log.cleaned_up_to == 1
    marker = end_transaction(log, COMMIT, 5)
    log.appender.roll()
    await log.flush()
    assert await cleaner_of(log, clock, high_watermark=marker).clean_filthiest() is None
    assert await cleaner_of(log, clock, high_watermark=marker + 1).clean_filthiest() is not None
    assert values_of(log) == {3: ("a", "3")}


async def test_where_a_leader_epoch_began_is_seen_in_a_cleaned_log_and_in_a_copy_of_it(
    make_log: LogMaker, clock: ManualClock, files: FailingFiles, tmp_path: Path
) -> None:
    """A replica with more records of the former epoch cuts them off (KIP-101), whichever leader it asks."""
    log = make_log(**COMPACTED)
    for key, epoch in (("a", 0), ("b", 0), ("a", 2), ("c", 2), ("a", 3), ("a", 3), ("b", 3)):
        put(log, (key, "1"), leader_epoch=epoch)
    begins = [(0, 0), (2, 2), (3, 4)]
    for number in range(2):
        put(log, (f"x {number}", "1"), leader_epoch=3)
        await clean(log, clock)
        assert log.leader_epochs.entries == begins
        copy = log_maker(tmp_path / f"copy-{number}", clock, files)(**COMPACTED)
        append(copy, *(path.read_bytes() for path in sorted(log.directory.glob("*.log"))))
        assert copy.leader_epochs.entries == begins[1:], "all of epoch 0 was written again"
    assert [header.base_offset for header in headers_of(log)][:4] == [2, 3, 4, 5]


async def test_a_marker_goes_when_its_records_have_gone_and_its_horizon_has_passed(make_log: LogMaker, clock: ManualClock) -> None:
    """Three cleanings: the records go; the marker, which has nothing to mark now, gets a horizon; it goes."""
    log = make_log(**COMPACTED, delete_retention_ms=HOUR_MS)
    put(log, ("a", "1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    marker = end_transaction(log, ABORT, 5)
    put(log, ("x", "1"), producer_id=5, producer_epoch=0, base_sequence=1)
    await clean(log, clock)
    assert [header.base_offset for header in headers_of(log)] == [marker, 2]
    assert not has_horizon(headers_of(log)[0])
    assert len(log.segments[0].transaction_index) == 1

    put(log, ("y", "1"))
    await clean(log, clock)
    assert headers_of(log)[0].base_offset == marker
    assert has_horizon(headers_of(log)[0])
    assert headers_of(log)[0].max_timestamp == 1_000_000

    clock.advance(milliseconds=HOUR_MS)
    put(log, ("z", "1"))
    await clean(log, clock)
    assert [header.base_offset for header in headers_of(log)] == [2, 3, 4]
    assert len(log.segments[0].transaction_index) == 0
    assert not file_names(log.directory, ".txnindex")


async def test_the_marker_of_a_producer_that_was_fenced_stays_for_its_epoch(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, delete_retention_ms=0)
    put(log, ("a", "1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    marker = end_transaction(log, ABORT, 5, epoch=1)
    for number in range(3):
        put(log, (f"x {number}", "1"))
        await clean(log, clock)
    assert marker in [header.base_offset for header in headers_of(log) if header.is_control and header.record_count]
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    state = load_log(log.directory, index_interval_bytes=4096).producers.get(5)
    assert state is not None
    assert state.producer_epoch == 1


@pytest.mark.parametrize("is_torn", [False, True], ids=["the segment before it is recovered", "its snapshot is torn"])
async def test_a_transaction_that_was_cleaned_away_is_not_open_after_a_crash(
    make_log: LogMaker, clock: ManualClock, files: FailingFiles, is_torn: bool
) -> None:
    """An older producer snapshot has it as open, and nothing behind it ends it: readers of committed data would wait for ever.

    A start takes an older one when the newest is torn, and when the recovery point is where the active segment begins: then
    it recovers the segment before that, too. A full disk leaves it there, at a roll that has room and a batch that has none.
    """
    settings = {**COMPACTED, "delete_retention_ms": 1_000, "segment_bytes": 2_000, "index_interval_bytes": 200}
    log = make_log(**settings)
    put(log, ("large", "x" * 1_600))
    put(log, ("a", "1"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, ("b", "1"))
    log.appender.roll()
    put(log, ("middle", "x" * 300))
    end_transaction(log, COMMIT, 8)
    put(log, ("a", "2"))
    assert [log.producers.expire(now_ms, 10) for now_ms in (0, 10)] == [0, 1]
    for number in range(4):
        await clean(log, clock)
        put(log, ("c", str(number)))
        clock.advance(seconds=10)
    if is_torn:
        await log.flush()
    else:
        files.fail_writev = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(KafkaStorageError):
            put(log, ("large", "x" * 2_000))
        files.fail_writev = None
        await clean(log, clock, roll=False)
    assert not any(header.producer_id == 8 for header in headers_of(log))
    assert log.producers.first_undecided_offset is None
    recovery_point, cleaned_up_to = log.recovery_point, log.cleaned_up_to
    log.files.release()
    if is_torn:
        newest = log.directory / file_names(log.directory, ".snapshot")[-1]
        newest.write_bytes(newest.read_bytes()[:-1])
    again = make_log(recovery_point=recovery_point, cleaned_up_to=cleaned_up_to, **settings)
    assert again.producers.first_undecided_offset is None


async def test_records_without_a_key_go(make_log: LogMaker, clock: ManualClock) -> None:
    """A topic that becomes compacted has some; the broker lets no new ones in."""
    log = make_log(**COMPACTED)
    put(log, (None, "1"), ("a", "1"), (None, None))
    put(log, (None, "2"))
    await clean(log, clock)
    assert values_of(log) == {1: ("a", "1")}


def test_small_cleaned_segments_are_joined(make_log: LogMaker, clock: ManualClock) -> None:
    async def scene() -> None:
        log = make_log(**COMPACTED, segment_bytes=2_000, index_interval_bytes=100)
        for number in range(200):
            put(log, (f"key {number % 20}", "x" * 80))
        before = len(log.segments)
        assert before > 10
        await clean(log, clock)
        await clean_again(log, clock)
        assert len(log.segments) <= 4
        assert sorted(values_of(log)) == [*range(180, 201)]
        assert log.segments[0].base_offset == 0
        for segment in log.segments[:-1]:
            assert segment.size <= 2_000
        # The indexes are those that recovery would make.
        indexes = {name: (log.directory / name).read_bytes() for name in file_names(log.directory, ".index", ".timeindex")}
        for name in indexes:
            if not name.startswith(f"{log.segments[-1].base_offset:020d}"):
                (log.directory / name).unlink()
        load_log(log.directory, index_interval_bytes=100, clean=True)
        assert indexes == {name: (log.directory / name).read_bytes() for name in file_names(log.directory, ".index", ".timeindex")}

    async def clean_again(log: Log, clock: ManualClock) -> None:
        put(log, ("last", "1"))
        await clean(log, clock)

    asyncio.run(scene())


async def test_segments_are_not_joined_beyond_what_an_index_can_say_or_hold(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, segment_index_bytes=64, index_interval_bytes=1)
    for number in range(24):
        put(log, (f"key {number}", "x" * 80))
    before = [segment.base_offset for segment in log.segments]
    await clean(log, clock)
    assert [segment.base_offset for segment in log.segments][:-1] == before


async def test_a_gap_of_two_thousand_million_offsets_is_not_joined(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"))
    for base_offset in (1 << 31, 1 << 32):
        log.appender.next_offset = log.appender.log_end_offset = base_offset
        log.appender.roll()
        put(log, (f"b {base_offset}", "1"))
    log.appender.next_offset = log.appender.log_end_offset = (1 << 32) + 1
    await clean(log, clock)
    assert [segment.base_offset for segment in log.segments][:3] == [0, 1 << 31, 1 << 32]


async def test_a_log_is_read_through_its_gaps(make_log: LogMaker, clock: ManualClock) -> None:
    """Whatever offset a reader comes with, it gets the batch that has it, or the next one that there is."""
    log = make_log(**COMPACTED, segment_bytes=600, index_interval_bytes=100)
    for number in range(60):
        put(log, (f"key {number % 7}", "x" * 50))
    await clean(log, clock)
    offsets = [record.offset for record in records_of(log)]
    for offset in range(log.log_end_offset):
        region = log.read(offset, 1 << 20, log.log_end_offset, True)
        expected = next((kept for kept in offsets if kept >= offset), None)
        if expected is None:
            assert region is None
        else:
            assert region is not None
            data = region.read()
            found = [record.offset for position, _ in batches(data) for record in read_records(data[position:]) if record.offset >= offset]
            assert found[:1] in ([expected], [])  # an empty batch may be all that a segment has
            assert read_header(data).last_offset >= offset
    for up_to in range(log.log_end_offset):
        region = log.read(0, 1 << 20, up_to, True)
        if region is not None:
            assert read_header(region.read()).base_offset < up_to


async def test_a_consumer_gets_records_where_cleanings_have_emptied_segments(make_log: LogMaker, clock: ManualClock) -> None:
    """librdkafka doubles its limit for each answer of empty batches alone, and ends with an error that a message is too large."""
    log = make_log(**COMPACTED, segment_bytes=100)
    for number in range(60):
        put(log, ("the same key" if number % 20 else f"key {number}", "x" * 20))
    await clean(log, clock)
    end = log.log_end_offset
    kept = [record.offset for record in records_of(log)]
    assert kept == [0, 20, 40, 59]
    for offset in range(end):
        region = log.read_records(offset, 1 << 20, end, True)
        assert region is not None
        data = region.read()
        assert [record.offset for record in read_records(data) if record.offset >= offset][:1] == [
            found for found in kept if found >= offset
        ][:1]
    # Up to where nothing but emptied segments is, a consumer comes all the same.
    region = log.read_records(1, 1 << 20, 20, True)
    assert region is not None
    assert read_header(region.read()).last_offset == 19
    # A record that does not fit hides behind them, and is given by the next read.
    region = log.read_records(1, HEADER_SIZE, end, False)
    assert region is not None
    assert read_header(region.read()).last_offset == 19


async def test_times_are_looked_up_in_a_cleaned_log(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, segment_bytes=600, index_interval_bytes=100)
    for number in range(40):
        producer = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3}
        put(log, (f"key {number % 5}", "x" * 50), timestamp=10 * number, **producer)
    await clean(log, clock)
    stored_records = records_of(log)
    for timestamp in range(0, 400, 7):
        expected = next(((record.offset, record.timestamp) for record in stored_records if record.timestamp >= timestamp), None)
        found = await log.offset_for_timestamp(timestamp)
        assert (None if found is None else (found.offset, found.timestamp)) == expected
    newest = await log.offset_of_max_timestamp()
    assert newest is not None
    assert newest.offset == 39


async def test_a_follower_takes_what_a_cleaned_leader_has(make_log: LogMaker, clock: ManualClock, tmp_path: Path) -> None:
    log = make_log(**COMPACTED)
    for number in range(30):
        put(log, (f"key {number % 4}", str(number)))
    await clean(log, clock)
    make_log.directory = tmp_path / "clicks-1"
    follower = make_log()
    while follower.log_end_offset < log.log_end_offset:
        region = log.read(follower.log_end_offset, 1 << 20, log.log_end_offset, True)
        assert region is not None
        append(follower, region.read())
    assert values_of(follower) == values_of(log)


async def test_a_batch_that_cannot_be_opened_stays_and_the_rest_is_cleaned(
    make_log: LogMaker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right, so it is what came; a topic may be made compacted after it has."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), ("b", "1"))
    garbage = seal(read_header(keyed_batch(2, ("c", "1")))._replace(attributes=ZSTD), b"this is no zstd")
    many = seal(read_header(keyed_batch(3, ("c", "1")))._replace(record_count=2_000_000), b"")
    append(log, garbage, many)
    put(log, ("a", "2"))
    before = stored(log)
    await clean(log, clock)
    assert garbage in stored(log) and many in stored(log)
    assert len(stored(log)) < len(before)
    assert "2 batches are not opened and stay as they are, the first of them: the batch at offset 2" in caplog.text


@pytest.mark.parametrize("is_tombstone", [True, False], ids=["gets a horizon", "loses a record"])
async def test_a_batch_with_times_that_cannot_be_stays_and_the_rest_is_cleaned(
    make_log: LogMaker, clock: ManualClock, is_tombstone: bool
) -> None:
    """A producer writes them as it likes, and no broker looks at them: they may not stop the compaction of a log."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), ("b", "1"))
    batch = keyed_batch(2, ("c", None if is_tombstone else "1"), ("d", "1"), timestamp=0)
    odd = seal(read_header(batch)._replace(base_timestamp=-LONG_MAX - 1), batch[HEADER_SIZE:].replace(b"\x02\x02\x02d", b"\x01\x02\x02d"))
    append(log, odd)
    put(log, ("a", "2"), ("c" if not is_tombstone else "e", "2"))
    await clean(log, clock)
    assert odd in stored(log)
    assert {1: ("b", "1"), 4: ("a", "2")}.items() <= values_of(log).items()
    assert 0 not in values_of(log)
