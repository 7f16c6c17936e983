"""A group that could not be written leaves the producers' states as they were before it, on a leader and on a follower (KIP-98)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import CorruptMessage, KafkaStorageError, OutOfOrderSequenceNumber
from ottla.record.batch import PREFIX_SIZE, read_header
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch, marker_of
from ottla.storage.log import Log
from ottla.storage.producer_replay import restore_producers
from ottla.storage.producers import Duplicate, EarlierBatchNotWritten, ProducerStates

from .logs import FailingFiles, LogMaker, append, batch_of

PRODUCER = 41
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")

Appending = Callable[..., None]


def sent(base_offset: int, sequence: int, *, epoch: int = 0, count: int = 10, is_transactional: bool = False) -> bytes:
    return batch_of(base_offset, count, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence, transactional=is_transactional)


def marker(base_offset: int, *, epoch: int = 0, coordinator_epoch: int = 0, kind: ControlRecordType = ControlRecordType.ABORT) -> bytes:
    ending = EndTransactionMarker(kind, coordinator_epoch)
    return build_marker_batch(ending, base_offset=base_offset, timestamp=1_000, producer_id=PRODUCER, producer_epoch=epoch)


def lead(log: Log, *group: bytes) -> None:
    """Appends a group as a leader does: each batch is checked against what the ones before it have left, and noted."""
    for batch in group:
        header = read_header(batch)
        ending = marker_of(batch) if header.is_control else None
        if ending is not None:
            log.producers.check_marker(header.producer_id, header.producer_epoch, ending.coordinator_epoch)
        elif header.base_sequence >= 0:
            assert log.producers.check(header) is None
        log.appender.stage(batch[:PREFIX_SIZE], memoryview(batch)[PREFIX_SIZE:], header.last_offset, header.max_timestamp)
        completed = log.producers.update(header, header.base_offset, header.last_offset, header.max_timestamp, ending)
        if completed is not None:
            log.appender.transaction_ended(completed)
    log.appender.write_staged()


def lose(log: Log, files: FailingFiles, appending: Appending, *group: bytes) -> None:
    """The same while the disk is full."""
    files.fail_writev = NO_SPACE
    with pytest.raises(KafkaStorageError, match="No space left"):
        appending(log, *group)
    files.fail_writev = None


def facts(states: ProducerStates) -> dict[int, tuple[Any, ...]]:
    return {
        state.producer_id: (
            state.producer_epoch,
            state.next_sequence,
            list(state.batches),
            state.last_timestamp,
            state.coordinator_epoch,
            state.transaction_first_offset,
        )
        for state in states
    }


def by_the_log(log: Log) -> dict[int, tuple[Any, ...]]:
    """What the batches in the files say."""
    states = ProducerStates()
    restore_producers(states, log.directory, [], [segment.view() for segment in log.segments], log.log_end_offset)
    return facts(states)


both_ways = pytest.mark.parametrize("appending", [lead, append], ids=["leader", "follower"])


@both_ways
def test_a_new_epoch_that_was_not_written_does_not_fence_the_former_one(
    make_log: LogMaker, files: FailingFiles, appending: Appending
) -> None:
    log = make_log()
    appending(log, sent(0, 0), sent(10, 10))
    lose(log, files, appending, sent(20, 0, epoch=1), sent(30, 10, epoch=1))
    assert log.producers.check(read_header(sent(0, 10))) == Duplicate(10, 19, 1_009), "a batch of the former epoch, sent again"
    assert log.producers.check(read_header(sent(0, 20))) is None, "the next one of the former epoch"
    assert facts(log.producers) == by_the_log(log)
    appending(log, sent(20, 0, epoch=1), sent(30, 10, epoch=1))
    assert facts(log.producers) == by_the_log(log)
    assert log.producers.check(read_header(sent(0, 0, epoch=1))) == Duplicate(20, 29, 1_009)


@both_ways
def test_the_second_of_two_epochs_in_a_lost_group_is_taken_back_with_the_first(
    make_log: LogMaker, files: FailingFiles, appending: Appending
) -> None:
    log = make_log()
    appending(log, sent(0, 0))
    lose(log, files, appending, sent(10, 10), sent(20, 0, epoch=1), sent(30, 0, epoch=2))
    assert facts(log.producers) == by_the_log(log)


def test_what_was_sent_behind_the_lost_beginning_of_an_epoch_waits_for_it(make_log: LogMaker, files: FailingFiles) -> None:
    """As a gap it would end the new epoch too, and with it the order of what the producer has in flight."""
    log = make_log()
    lead(log, sent(0, 0))
    lose(log, files, lead, sent(10, 0, epoch=1))
    with pytest.raises(EarlierBatchNotWritten, match="sequence 0 could not be written, and has to come before 10"):
        log.producers.check(read_header(sent(0, 10, epoch=1)))
    with pytest.raises(OutOfOrderSequenceNumber, match="new epoch 2"):
        log.producers.check(read_header(sent(0, 10, epoch=2)))
    lead(log, sent(10, 0, epoch=1), sent(20, 10, epoch=1))
    assert facts(log.producers) == by_the_log(log)


def test_a_lost_marker_of_a_new_epoch_leaves_known_that_a_batch_before_it_was_lost(make_log: LogMaker, files: FailingFiles) -> None:
    log = make_log()
    lead(log, sent(0, 0, is_transactional=True))
    lose(log, files, lead, sent(10, 10, is_transactional=True))
    lose(log, files, lead, marker(10, epoch=1))
    with pytest.raises(EarlierBatchNotWritten, match="sequence 10 could not be written, and has to come before 20"):
        log.producers.check(read_header(sent(0, 20, is_transactional=True)))


def test_an_epoch_that_was_written_stays_when_a_later_group_is_lost(make_log: LogMaker, files: FailingFiles) -> None:
    log = make_log()
    lead(log, sent(0, 0))
    lead(log, sent(10, 0, epoch=1))
    lose(log, files, lead, sent(20, 10, epoch=1))
    assert facts(log.producers) == by_the_log(log)


def test_an_epoch_that_begins_behind_a_roll_is_taken_back_alone(make_log: LogMaker, files: FailingFiles) -> None:
    """The roll writes what was staged before it, and the new epoch's batch is staged only then."""
    log = make_log(segment_bytes=1_500)
    lead(log, sent(0, 0, count=3), sent(3, 3, count=3), sent(6, 6, count=3))
    writev = files.writev
    calls = 0

    def second_fails(fd: int, buffers: Any, /) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NO_SPACE
        return writev(fd, buffers)

    files.writev = second_fails  # type: ignore[method-assign]
    with pytest.raises(KafkaStorageError, match="No space left"):
        lead(log, sent(9, 9, count=1), sent(10, 0, epoch=1, count=3))
    assert (log.log_end_offset, len(log.segments)) == (10, 2)
    assert facts(log.producers) == by_the_log(log)


@both_ways
def test_a_marker_of_newer_epochs_that_was_not_written_fences_neither_producer_nor_coordinator(
    make_log: LogMaker, files: FailingFiles, appending: Appending
) -> None:
    """A coordinator that aborts for a producer that went away writes under an epoch above the producer's own."""
    log = make_log()
    appending(log, sent(0, 0), marker(10, coordinator_epoch=3), sent(11, 10, is_transactional=True))
    lose(log, files, appending, marker(21, epoch=1, coordinator_epoch=4))
    assert log.producers.first_undecided_offset == 11
    assert log.producers.check(read_header(sent(0, 10, is_transactional=True))) == Duplicate(11, 20, 1_009)
    log.producers.check_marker(PRODUCER, 0, 3)
    assert facts(log.producers) == by_the_log(log)
    appending(log, marker(21, coordinator_epoch=3))
    assert facts(log.producers) == by_the_log(log)
    assert log.producers.first_undecided_offset is None


@both_ways
def test_a_transaction_that_began_behind_a_lost_marker_is_open_no_more(
    make_log: LogMaker, files: FailingFiles, appending: Appending
) -> None:
    """Else readers of committed data would wait at its first offset for ever."""
    log = make_log()
    appending(log, sent(0, 0, is_transactional=True))
    lose(log, files, appending, marker(10), sent(11, 10, is_transactional=True))
    assert log.producers.first_undecided_offset == 0
    assert facts(log.producers) == by_the_log(log)
    appending(log, marker(10, kind=ControlRecordType.COMMIT))
    assert log.producers.first_undecided_offset is None


@both_ways
def test_what_a_coordinator_writes_without_sequences_leaves_none(make_log: LogMaker, files: FailingFiles, appending: Appending) -> None:
    log = make_log()
    appending(log, sent(0, -1, count=1, is_transactional=True))
    lose(log, files, appending, sent(1, -1, count=1, is_transactional=True), sent(2, -1, count=1, is_transactional=True))
    assert facts(log.producers) == by_the_log(log)


def test_a_follower_that_lost_more_batches_than_are_remembered_knows_those_before(make_log: LogMaker, files: FailingFiles) -> None:
    """One fetch brings as many as fit; a leader has no more of a producer than its requests in flight."""
    log = make_log()
    append(log, sent(0, 0), sent(10, 10))
    lose(log, files, append, *(sent(offset, offset) for offset in range(20, 90, 10)))
    assert log.producers.check(read_header(sent(0, 10))) == Duplicate(10, 19, 1_009)
    assert log.producers.check(read_header(sent(0, 20))) is None
    assert facts(log.producers) == by_the_log(log)


def test_what_was_written_before_a_received_batch_was_refused_is_noted(make_log: LogMaker) -> None:
    log = make_log()
    with pytest.raises(CorruptMessage, match="wrong CRC"):
        append(log, sent(0, 0), sent(10, 10)[:-1] + b"\xff")
    assert log.log_end_offset == 10
    assert facts(log.producers) == by_the_log(log)
    assert log.producers.check(read_header(sent(0, 0))) == Duplicate(0, 9, 1_009)
