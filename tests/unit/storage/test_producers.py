"""Idempotent producers: KIP-98's rules one by one, then any history against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from ottla.errors import InvalidProducerEpoch, InvalidRecord, InvalidTransactionState, OutOfOrderSequenceNumber
from ottla.record.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader
from ottla.record.control_records import ControlRecordType, EndTransactionMarker
from ottla.storage.producers import CompletedTransaction, Duplicate, EarlierBatchNotWritten, ProducerStates

from .logs import remembered

LAST_SEQUENCE = 2**31 - 1
COMMIT = EndTransactionMarker(ControlRecordType.COMMIT, 1)
ABORT = EndTransactionMarker(ControlRecordType.ABORT, 1)


def batch(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer_id, epoch, sequence, count)


def append(states: ProducerStates, header: BatchHeader, base_offset: int, timestamp: int = 5) -> Duplicate | None:
    """As a leader does it: check, and unless the batch is stored already, note it."""
    duplicate = states.check(header)
    if duplicate is None:
        states.update(header, base_offset, base_offset + header.last_offset_delta, timestamp)
    return duplicate


def test_sequences_go_up_by_one_a_record() -> None:
    states = ProducerStates()
    assert append(states, batch(0, 10), 100) is None
    assert append(states, batch(10, 5), 110) is None
    for sequence in (16, 14, 11):
        with pytest.raises(OutOfOrderSequenceNumber, match=f"sequence {sequence} is out of order, 15 is expected"):
            states.check(batch(sequence))
    assert append(states, batch(15), 115) is None


def test_a_batch_sent_again_is_answered_with_its_offsets() -> None:
    """The last five batches are remembered: as many as a client may have in flight (KIP-98, max.in.flight 5)."""
    states = ProducerStates()
    for index in range(7):
        append(states, batch(index * 10, 10), 100 + index * 10, timestamp=1_000 + index)
    for index in range(2, 7):
        assert states.check(batch(index * 10, 10)) == Duplicate(100 + index * 10, 109 + index * 10, 1_000 + index)
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(10, 10))


def test_a_batch_that_only_overlaps_is_no_duplicate() -> None:
    """A duplicate has the same first and last sequence and the same epoch."""
    states = ProducerStates()
    append(states, batch(0, 10), 0)
    for header in (batch(0, 9), batch(0, 11), batch(1, 9), batch(5, 10)):
        with pytest.raises(OutOfOrderSequenceNumber):
            states.check(header)


def test_sequences_wrap_after_the_last_31_bit_number() -> None:
    states = ProducerStates()
    append(states, batch(LAST_SEQUENCE - 1, 2), 0)
    assert append(states, batch(0, 3), 2) is None
    assert states.check(batch(LAST_SEQUENCE - 1, 2)) == Duplicate(0, 1, 5)
    assert append(states, batch(3, 1), 5) is None


def test_a_batch_may_wrap_in_its_middle() -> None:
    states = ProducerStates()
    append(states, batch(LAST_SEQUENCE - 1, 5), 0)
    assert states.check(batch(LAST_SEQUENCE - 1, 5)) == Duplicate(0, 4, 5)
    assert append(states, batch(3), 5) is None
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(LAST_SEQUENCE))


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """Its records may be deleted or its state expired: Kafka's ProducerAppendInfo accepts any sequence without an entry."""
    states = ProducerStates()
    assert append(states, batch(12_345), 0) is None
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(0))


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    states = ProducerStates()
    append(states, batch(0, 10, epoch=3), 0)
    with pytest.raises(OutOfOrderSequenceNumber, match=r"new epoch 4 \(was 3\) starts at sequence 10"):
        states.check(batch(10, epoch=4))
    assert append(states, batch(0, 10, epoch=4), 10) is None
    with pytest.raises(InvalidProducerEpoch, match="epoch 3 is stale, the current one is 4"):
        states.check(batch(10, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, 10, epoch=3))
    assert states.check(batch(0, 10, epoch=4)) == Duplicate(10, 19, 5)


def test_producers_do_not_disturb_each_other() -> None:
    states = ProducerStates()
    append(states, batch(0, 10, producer_id=1), 0)
    append(states, batch(0, 10, producer_id=2), 10)
    assert append(states, batch(10, producer_id=1), 20) is None
    assert states.check(batch(0, 10, producer_id=2)) == Duplicate(10, 19, 5)
    assert [state.producer_id for state in states] == [1, 2]


@pytest.mark.parametrize("header", [batch(-1), batch(0, epoch=-1)])
def test_a_producer_id_without_epoch_or_sequence_is_refused(header: BatchHeader) -> None:
    states = ProducerStates()
    with pytest.raises(InvalidRecord):
        states.check(header)
    append(states, batch(0), 0)
    with pytest.raises(InvalidRecord):
        states.check(header)


def test_what_others_checked_is_taken_as_it_is() -> None:
    """A follower, and recovery after compaction, see gaps; the log is the truth."""
    states = ProducerStates()
    states.update(batch(0, 10), 0, 9, 1)
    states.update(batch(50, 10), 50, 59, 2)
    assert append(states, batch(60), 60) is None


def test_idle_producers_expire_by_when_they_wrote_and_not_by_their_records_time() -> None:
    """Unlike Kafka's: events of 2013 (timestamp 5 here) would expire their producer at once."""
    states = ProducerStates()
    append(states, batch(0, producer_id=1), 0, timestamp=5)
    append(states, batch(0, producer_id=2), 1, timestamp=5)
    day = 86_400_000
    now = 1_700_000_000_000
    assert states.expire(now, day) == 0
    append(states, batch(1, producer_id=2), 2, timestamp=5)
    assert states.expire(now + day - 1, day) == 0
    assert states.expire(now + day, day) == 1
    assert not states.get(1) and states.get(2)
    assert states.expire(now + 2 * day, day) == 1
    assert append(states, batch(900, producer_id=1), 3) is None


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    states = ProducerStates()
    append(states, batch(0, attributes=TRANSACTIONAL_MASK), 0)
    for now in (0, 10, 20):
        assert states.expire(now, 1) == 0
    states.update(batch(-1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK), 1, 1, 5, COMMIT)
    states.expire(30, 1)
    assert states.expire(31, 1) == 1


def test_open_transactions_hold_the_first_undecided_offset() -> None:
    """The offset moves when the marker is written, the unstable one when the high watermark has passed the marker."""
    states = ProducerStates()
    append(states, batch(0, 5, producer_id=1, attributes=TRANSACTIONAL_MASK), 10)
    append(states, batch(0, 5, producer_id=2, attributes=TRANSACTIONAL_MASK), 15)
    append(states, batch(5, 5, producer_id=1, attributes=TRANSACTIONAL_MASK), 20)
    assert (states.first_undecided_offset, states.first_unstable_offset) == (10, 10)
    marker = batch(-1, producer_id=1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK)
    assert states.update(marker, 25, 25, 5, ABORT) == CompletedTransaction(1, 10, 25, is_aborted=True)
    assert (states.first_undecided_offset, states.first_unstable_offset) == (15, 10)
    states.advance_high_watermark(25)
    assert states.first_unstable_offset == 10
    states.advance_high_watermark(26)
    assert states.first_unstable_offset == 15
    marker = batch(-1, producer_id=2, attributes=TRANSACTIONAL_MASK | CONTROL_MASK)
    assert states.update(marker, 26, 26, 5, COMMIT) == CompletedTransaction(2, 15, 26, is_aborted=False)
    states.advance_high_watermark(27)
    assert states.first_undecided_offset is None
    assert states.first_unstable_offset is None


@pytest.mark.parametrize("was_refused", [False, True])
def test_a_marker_of_a_transaction_that_wrote_nothing_here_completes_nothing(was_refused: bool) -> None:
    """Kafka's `ProducerStateManagerTest.testAppendTxnMarkerWithNoProducerState`. What was refused before the marker comes no more."""
    states = ProducerStates()
    if was_refused:
        states.note_refused(batch(0, epoch=4))
    marker = batch(-1, epoch=4, attributes=TRANSACTIONAL_MASK | CONTROL_MASK)
    assert states.update(marker, 0, 0, 5, EndTransactionMarker(ControlRecordType.ABORT, 8)) is None
    state = states.get(7)
    assert state is not None and (state.producer_epoch, state.coordinator_epoch) == (4, 8)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, epoch=3))
    with pytest.raises(OutOfOrderSequenceNumber):
        states.check(batch(1, epoch=4))
    assert states.check(batch(0, epoch=4)) is None


def test_a_marker_keeps_the_sequences_of_its_epoch() -> None:
    states = ProducerStates()
    append(states, batch(0, 5, attributes=TRANSACTIONAL_MASK), 0)
    states.update(batch(-1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK), 5, 5, 5, COMMIT)
    assert states.check(batch(0, 5, attributes=TRANSACTIONAL_MASK)) == Duplicate(0, 4, 5)
    assert append(states, batch(5, 5, attributes=TRANSACTIONAL_MASK), 6) is None
    assert states.first_undecided_offset == 6


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    states = ProducerStates()
    append(states, batch(0, 5, attributes=TRANSACTIONAL_MASK), 10)
    with pytest.raises(InvalidTransactionState, match="from offset 10"):
        states.check(batch(5))
    assert states.check(batch(5, attributes=TRANSACTIONAL_MASK)) is None


def test_an_emptied_control_batch_changes_nothing() -> None:
    states = ProducerStates()
    append(states, batch(0, 5), 0)
    assert states.update(batch(-1, attributes=CONTROL_MASK), 5, 5, 5, None) is None
    assert append(states, batch(5), 6) is None


def test_clearing_forgets_all() -> None:
    states = ProducerStates()
    append(states, batch(0, attributes=TRANSACTIONAL_MASK), 0)
    states.clear()
    assert (len(states), states.first_undecided_offset, list(states)) == (0, None, [])


def test_after_a_failed_write_the_snapshot_and_the_log_bring_the_state_back() -> None:
    """An append is noted when it is staged. When the write fails, the log restores the snapshot and goes over the batches after it."""
    states = ProducerStates()
    append(states, batch(0, 10), 0)
    snapshot = states.snapshot()
    written = batch(10, 10)
    append(states, written, 10)
    append(states, batch(20, 10), 20)  # this one will not reach the disk
    states.restore(snapshot)
    states.update(written, 10, 19, 5)
    assert states.check(written) == Duplicate(10, 19, 5)
    assert append(states, batch(20, 10), 20) is None


def test_batches_that_could_not_be_written_are_taken_back() -> None:
    """Offsets 20 and on did not reach the disk: what lies before is still a duplicate, what was lost may come again, in order."""
    states = ProducerStates()
    for sequence in (0, 10, 20, 30):
        append(states, batch(sequence, 10), sequence)
    append(states, batch(5, 10, producer_id=8), 40)
    states.forget_from(20)
    assert states.check(batch(10, 10)) == Duplicate(10, 19, 5)
    with pytest.raises(EarlierBatchNotWritten, match="sequence 20 could not be written, and has to come before 30"):
        states.check(batch(30, 10))
    assert append(states, batch(20, 10), 20) is None
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence 40 is out of order, 30 is expected"):
        states.check(batch(40, 10))
    with pytest.raises(EarlierBatchNotWritten, match="sequence 5 could not be written, and has to come before 15"):
        states.check(batch(15, producer_id=8))
    assert append(states, batch(5, 10, producer_id=8), 30) is None


def test_a_producer_whose_only_batch_was_taken_back_still_waits_for_it_after_a_restart() -> None:
    states = ProducerStates()
    append(states, batch(50, 10), 0)
    states.forget_from(0)
    restarted = ProducerStates()
    restarted.restore(states.snapshot())
    with pytest.raises(EarlierBatchNotWritten, match="sequence 50 could not be written, and has to come before 60"):
        restarted.check(batch(60))
    assert append(restarted, batch(50, 10), 0) is None


def test_transactions_that_began_or_ended_in_what_was_lost_are_taken_back() -> None:
    states = ProducerStates()
    append(states, batch(0, 5, producer_id=1, attributes=TRANSACTIONAL_MASK), 0)
    states.update(batch(-1, producer_id=1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK), 5, 5, 5, COMMIT)
    append(states, batch(0, 5, producer_id=2, attributes=TRANSACTIONAL_MASK), 6)
    states.forget_from(5)
    assert (states.first_undecided_offset, states.first_unstable_offset) == (0, 0)
    assert [state.transaction_first_offset for state in states] == [0, -1]


class Producers(RuleBasedStateMachine):
    """Three producers that send, repeat, skip, restart and are forgotten.

    The model is a list of everything ever stored, per producer and epoch, searched from its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.epochs: dict[int, int] = {}
        self.stored: dict[int, list[tuple[int, int, int, int]]] = {}  # (first sequence, count, base offset, timestamp)
        self.next_offset = 0

    def expected_sequence(self, producer_id: int) -> int:
        stored = self.stored[producer_id]
        return (stored[-1][0] + stored[-1][1]) % 2**31 if stored else 0

    def send(self, producer_id: int, sequence: int, count: int) -> None:
        header = batch(sequence, count, producer_id=producer_id, epoch=self.epochs[producer_id])
        assert append(self.states, header, self.next_offset, timestamp=self.next_offset) is None
        self.stored[producer_id].append((sequence, count, self.next_offset, self.next_offset))
        self.next_offset += count

    @rule(producer_id=st.integers(1, 3), sequence=st.sampled_from([0, 1, LAST_SEQUENCE - 3, LAST_SEQUENCE]), count=st.integers(1, 5))
    def begin_or_go_on(self, producer_id: int, sequence: int, count: int) -> None:
        if producer_id not in self.epochs:
            self.epochs[producer_id], self.stored[producer_id] = 0, []
            self.send(producer_id, sequence, count)
        else:
            self.send(producer_id, self.expected_sequence(producer_id), count)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), back=st.integers(1, 8))
    def send_again(self, data: st.DataObject, back: int) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.epochs)))
        stored = self.stored[producer_id]
        if back > len(stored):
            return
        sequence, count, base_offset, timestamp = stored[-back]
        header = batch(sequence, count, producer_id=producer_id, epoch=self.epochs[producer_id])
        if back <= 5:
            assert self.states.check(header) == Duplicate(base_offset, base_offset + count - 1, timestamp)
        else:
            with pytest.raises(OutOfOrderSequenceNumber):
                self.states.check(header)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), gap=st.integers(1, 1000), count=st.integers(1, 5))
    def skip(self, data: st.DataObject, gap: int, count: int) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.epochs)))
        sequence = (self.expected_sequence(producer_id) + gap) % 2**31
        with pytest.raises(OutOfOrderSequenceNumber):
            self.states.check(batch(sequence, count, producer_id=producer_id, epoch=self.epochs[producer_id]))

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), count=st.integers(1, 5))
    def bump_the_epoch(self, data: st.DataObject, count: int) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.epochs)))
        self.epochs[producer_id] += 1
        self.stored[producer_id] = []
        self.send(producer_id, 0, count)
        with pytest.raises(InvalidProducerEpoch):
            self.states.check(batch(count, producer_id=producer_id, epoch=self.epochs[producer_id] - 1))

    @rule()
    def restart_from_a_snapshot(self) -> None:
        """A snapshot keeps one batch of each producer, so a restart forgets the four before it."""
        restored = ProducerStates()
        restored.restore(self.states.snapshot())
        self.states = restored
        for producer_id, stored in self.stored.items():
            del stored[:-1]
            assert len(remembered(self.states, producer_id)) == 1

    @invariant()
    def what_is_remembered_is_the_tail_of_what_was_stored(self) -> None:
        for producer_id, stored in self.stored.items():
            kept = remembered(self.states, producer_id)
            assert [(batch[0], batch[2], batch[4]) for batch in kept] == [
                (sequence, base_offset, timestamp) for sequence, _, base_offset, timestamp in stored[-5:]
            ]


Producers.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestProducers = Producers.TestCase
