"""One partition's log: appends in groups, rolls, what a failed write leaves, truncation, flushes."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest

from ottla.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange
from ottla.record.batch import read_header

from .failing_calls import failing
from .logs import FailingFiles, LogMaker, append, batch_of, fill, offsets_of, remembered, stage, stored

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def test_a_staged_group_is_in_the_log_only_once_it_is_written(make_log: LogMaker) -> None:
    """Nothing of a batch is visible before its group's writev (architecture, 'One produce request')."""
    log = make_log()
    expected = stage(log, 3) + stage(log, 2)
    assert (log.appender.next_offset, log.log_end_offset, stored(log)) == (5, 0, b"")
    log.appender.write_staged()
    assert (log.appender.next_offset, log.log_end_offset) == (5, 5)
    assert stored(log) == expected
    assert offsets_of(stored(log)) == [(0, 2), (3, 4)]
    assert read_header(stored(log)).leader_epoch == 7


def test_a_group_is_one_system_call_and_a_large_one_as_many_as_iov_max_asks_for(make_log: LogMaker, files: FailingFiles) -> None:
    """IOV_MAX is 1024 (traps, 'Storage'): two buffers a batch, so 512 batches a call."""
    log = make_log()
    expected = b"".join(stage(log) for _ in range(512))
    log.appender.write_staged()
    assert files.writevs == 1
    expected += b"".join(stage(log) for _ in range(1300))
    log.appender.write_staged()
    assert files.writevs == 1 + 3
    assert stored(log) == expected
    assert log.log_end_offset == 1812


@pytest.mark.parametrize("most_bytes", [1, 7, 100, 171, 5000])
def test_a_short_write_is_continued_where_it_stopped(make_log: LogMaker, files: FailingFiles, most_bytes: int) -> None:
    """writev may take less than it was given; the rest follows."""
    log = make_log()
    files.most_bytes = most_bytes
    expected = b"".join(stage(log) for _ in range(20))
    log.appender.write_staged()
    assert stored(log) == expected


@pytest.mark.parametrize("half_written", [0, 1, 171, 400])
def test_a_full_disk_takes_the_whole_group_back(make_log: LogMaker, files: FailingFiles, half_written: int) -> None:
    """ENOSPC leaves half a batch: the file is cut to the last whole batch, offsets and indexes untouched (traps, 'Storage')."""
    log = make_log(index_interval_bytes=100)
    kept = stage(log) + stage(log)
    log.appender.write_staged()
    entries = log.segments[0].offset_index.entries()
    files.fail_writev, files.written_before_failing = NO_SPACE, half_written
    for _ in range(5):
        stage(log)
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.appender.write_staged()
    assert (log.appender.next_offset, log.log_end_offset) == (2, 2)
    assert stored(log) == kept
    assert log.segments[0].offset_index.entries() == entries
    assert not make_log.failures, "a full disk is not a broken one"
    region = log.read(0, 1 << 20, 2, True)
    assert region is not None and region.read() == kept, "reads continue"
    files.fail_writev = None
    kept += stage(log)
    log.appender.write_staged()
    assert stored(log) == kept


def test_a_full_disk_takes_back_what_the_producers_states_had_noted(make_log: LogMaker, files: FailingFiles) -> None:
    """A batch that was not written may be sent again with the same sequence (KIP-98)."""
    log = make_log()
    append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0))
    files.fail_writev = NO_SPACE
    lost = batch_of(1, producer_id=9, producer_epoch=0, base_sequence=1)
    with pytest.raises(KafkaStorageError):
        append(log, lost)
    files.fail_writev = None
    assert log.producers.check(read_header(lost)) is None
    append(log, lost)
    assert log.producers.check(read_header(lost)) is not None


def test_what_was_not_written_leaves_no_timestamp_behind(make_log: LogMaker, files: FailingFiles) -> None:
    """And what was written keeps its own: retention and look-ups by time go by the largest one."""
    log = make_log()
    fill(log, 2, timestamp=5_000)
    files.fail_writev = NO_SPACE
    with pytest.raises(KafkaStorageError):
        append(log, batch_of(2, timestamp=9_000))
    files.fail_writev = None
    assert (log.segments[-1].max_timestamp, log.segments[-1].max_timestamp_offset) == (5_000, 0)
    fill(log, 1, timestamp=4_000)
    assert (log.segments[-1].max_timestamp, log.segments[-1].max_timestamp_offset) == (5_000, 0)
    log.update_settings(log.settings)
    fill(log, 1, timestamp=1_000)
    assert log.segments[-1].max_timestamp == 5_000
    fill(log, 2, timestamp=7_000)
    log.truncate_to(5)
    assert (log.segments[-1].max_timestamp, log.segments[-1].max_timestamp_offset) == (7_000, 4)
    log.truncate_to(4)
    assert log.segments[-1].max_timestamp == 5_000


def test_a_broken_disk_fails_its_directory(make_log: LogMaker, files: FailingFiles) -> None:
    """EIO is the medium's own error: nothing more is written there, and reads are refused too (Kafka's log dir failure)."""
    log = make_log()
    stage(log)
    files.fail_writev = OSError(errno.EIO, "Input/output error")
    with pytest.raises(KafkaStorageError):
        log.appender.write_staged()
    assert len(make_log.failures) == 1
    assert log.is_offline
    with pytest.raises(KafkaStorageError, match="offline"):
        stage(log)
    with pytest.raises(KafkaStorageError, match="offline"):
        log.read(0, 100, 0, True)


def test_a_file_that_can_not_be_cut_back_fails_its_directory(make_log: LogMaker, files: FailingFiles) -> None:
    """Half a batch that stays would be served as data."""
    log = make_log()
    stage(log)
    files.fail_writev, files.written_before_failing = NO_SPACE, 50
    files.fail_ftruncate = OSError(errno.EIO, "Input/output error")
    with pytest.raises(KafkaStorageError):
        log.appender.write_staged()
    assert log.is_offline


def test_batches_lost_at_a_roll_in_the_middle_of_a_group_are_told_at_its_end(make_log: LogMaker, files: FailingFiles) -> None:
    """A roll writes what is staged; anyone who staged it asks only `write_staged` for the outcome."""
    log = make_log(segment_bytes=1000)
    for _ in range(5):
        stage(log)
    files.fail_writev = NO_SPACE
    with pytest.raises(KafkaStorageError):
        stage(log)  # the sixth needs a new segment
    files.fail_writev = None
    with pytest.raises(KafkaStorageError):
        stage(log)  # of the same group: it would be acknowledged with those that are lost
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.appender.write_staged()
    log.appender.write_staged()
    assert log.log_end_offset == 0
    stage(log)
    log.appender.write_staged()
    assert (log.log_end_offset, offsets_of(stored(log))) == (1, [(0, 0)])


def test_batches_that_were_received_keep_their_offsets_and_epochs(make_log: LogMaker) -> None:
    """A follower stores the leader's bytes, and learns the epochs from them (KIP-101)."""
    log = make_log()
    received = batch_of(0, 3, leader_epoch=2) + batch_of(3, 2, leader_epoch=2) + batch_of(5, leader_epoch=5)
    append(log, received + batch_of(6)[:50])
    assert stored(log) == received
    assert log.leader_epochs.entries == [(2, 0), (5, 5)]
    assert (log.log_end_offset, log.appender.next_offset) == (6, 6)


def test_a_received_batch_with_a_wrong_checksum_is_not_stored(make_log: LogMaker) -> None:
    """Checksums are verified by the follower (architecture, 'Durability'); what came before is kept."""
    log = make_log()
    broken = bytearray(batch_of(1))
    broken[-1] ^= 1
    with pytest.raises(CorruptMessage, match="offset 1"):
        append(log, batch_of(0), bytes(broken))
    assert log.log_end_offset == 1
    with pytest.raises(CorruptMessage, match="1 is next"):
        append(log, batch_of(0))


def test_a_received_batch_that_is_refused_leaves_no_hole(make_log: LogMaker) -> None:
    """What came before it is stored, and the log ends there, although the refused one lay further on."""
    log = make_log(segment_bytes=500)
    for received in ([batch_of(0), batch_of(10, size=400)], [batch_of(10, size=400)]):
        with failing("open", lambda path: path.endswith(f"{1:020d}.log")), pytest.raises(KafkaStorageError):
            append(log, *received)
        assert (log.log_end_offset, log.appender.next_offset) == (1, 1)


def test_what_a_leader_has_fits_into_any_segment(make_log: LogMaker) -> None:
    """Its segments may have been larger once. A follower that refused its batches would never have them all."""
    log = make_log(segment_bytes=500)
    received = [batch_of(0), batch_of(1, size=600), batch_of(2)]
    append(log, *received)
    assert stored(log) == b"".join(received)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    again = make_log(segment_bytes=500)
    assert (again.log_end_offset, stored(again)) == (3, b"".join(received))


def test_truncation_cuts_before_the_batch_that_has_the_offset(make_log: LogMaker) -> None:
    """A follower drops what its leader does not have (KIP-101); the log ends where it was told."""
    log = make_log(segment_bytes=700, index_interval_bytes=1)
    filled = fill(log, 12)
    log.truncate_to(7)
    assert (log.log_end_offset, log.appender.next_offset) == (7, 7)
    assert stored(log) == b"".join(filled[:7])
    assert all(entry[0] + segment.base_offset < 7 for segment in log.segments for entry in segment.offset_index.entries())
    again = fill(log, 5, size=50)
    assert stored(log) == b"".join(filled[:7] + again)
    region = log.read(8, 1 << 20, 12, True)
    assert region is not None and region.read().startswith(again[1])


def test_truncation_inside_a_batch_leaves_no_hole(make_log: LogMaker) -> None:
    """The leader sends whole batches, so what comes next begins where this one began."""
    log = make_log()
    filled = fill(log, 3, count=4)
    log.truncate_to(6)
    assert (log.log_end_offset, stored(log)) == (4, filled[0])
    append(log, filled[1])
    assert log.log_end_offset == 8


def test_a_log_that_is_damaged_where_it_is_to_be_cut_says_so_of_itself(make_log: LogMaker) -> None:
    """A follower takes damage in what it is given for its leader's, and would name that in its log."""
    log = make_log()
    filled = fill(log, 5)
    path = Path(log.segments[0].path())
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, len(filled[0]) + 8, 0)  # the second batch's length
    path.write_bytes(content)
    with pytest.raises(
        KafkaStorageError, match=rf"clicks-0: truncating to offset 3: {path}: a batch of length 0 at position {len(filled[0])}$"
    ):
        log.truncate_to(3)
    assert not log.is_offline
    assert log.log_end_offset == 5


def test_truncation_forgets_an_epoch_that_has_only_begun(make_log: LogMaker) -> None:
    """A leader that was replaced before it could append anything; it would ask for its epoch for ever."""
    log = make_log()
    fill(log, 2)
    log.leader_epochs.assign(5, 2)
    log.truncate_to(2)
    assert (log.log_end_offset, log.leader_epochs.entries) == (2, [(0, 0)])


def test_truncation_forgets_epochs_and_producers_behind_it(make_log: LogMaker) -> None:
    """What is cut off was never said."""
    log = make_log()
    for sequence in range(4):
        append(log, batch_of(sequence, leader_epoch=sequence, producer_id=9, producer_epoch=0, base_sequence=sequence))
    log.truncate_to(2)
    assert log.leader_epochs.entries == [(0, 0), (1, 1)]
    assert [batch[0] for batch in remembered(log.producers, 9)] == [0, 1]


def test_truncation_beyond_the_end_does_nothing_and_before_the_start_starts_anew(make_log: LogMaker) -> None:
    """Kafka's `truncateTo`."""
    log = make_log(log_start_offset=10)
    fill(log, 3)
    log.truncate_to(13)
    assert log.log_end_offset == 13
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (4, 4, 0)
    assert [segment.base_offset for segment in log.segments] == [4]
    fill(log, 1)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    fill(log, 1)
    assert offsets_of(stored(log)) == [(100, 100)]


def test_a_snapshot_from_before_a_truncation_is_not_believed_later(make_log: LogMaker) -> None:
    """It says what producers had written at an offset where other batches lie now."""
    log = make_log()
    for sequence in range(4):
        append(log, batch_of(sequence, producer_id=9, producer_epoch=0, base_sequence=sequence))
    asyncio.run(log.close())
    log = make_log(clean=True)
    log.truncate_to(1)
    for offset in range(1, 6):
        append(log, batch_of(offset, producer_id=8, producer_epoch=0, base_sequence=offset))
    log.truncate_to(5)  # beyond it: the file may have its name until the next flush
    asyncio.run(log.checkpoint_truncation())
    for opened in (log, make_log()):
        assert [batch[0] for batch in remembered(opened.producers, 9)] == [0]
        assert [batch[0] for batch in remembered(opened.producers, 8)] == [1, 2, 3, 4]


@pytest.mark.parametrize("starts", [(1,), (200, 1)])
def test_a_log_that_begins_again_knows_no_producer_not_even_by_a_snapshot_of_its_new_start(
    make_log: LogMaker, starts: tuple[int, ...]
) -> None:
    log = make_log()
    append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0))
    asyncio.run(log.close())
    log = make_log(clean=True)
    for start in starts:
        log.truncate_fully_and_start_at(start)
    log.reload_producers()
    asyncio.run(log.close())
    for opened in (log, make_log(clean=True)):
        assert not remembered(opened.producers, 9)


def test_the_log_start_offset_moves_forward_only_and_not_past_the_end(make_log: LogMaker) -> None:
    """DeleteRecords (KIP-107)."""
    log = make_log()
    fill(log, 5)
    log.advance_log_start_offset(3)
    log.advance_log_start_offset(1)
    assert log.log_start_offset == 3
    with pytest.raises(OffsetOutOfRange, match="beyond the end 5"):
        log.advance_log_start_offset(6)
    with pytest.raises(OffsetOutOfRange, match=r"offset 2 is not in \[3, 5\)"):
        log.read(2, 100, 5, True)
