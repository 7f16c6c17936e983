"""What requests make of a transaction (KIP-98, KIP-360), event by event and at random."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from ottla.broker.transactions import decisions
from ottla.broker.transactions.states import LEGAL_PREDECESSORS, TransactionState
from ottla.broker.transactions.transaction import LAST_EPOCH, Transaction
from ottla.errors import ApiError, ConcurrentTransactions, InvalidProducerIdMapping, InvalidTransactionState, ProducerFenced
from ottla.model import TopicPartition

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 1)
NEW = Transaction("t", 7, -1, 60_000)


def begun(transaction: Transaction = NEW, expected: tuple[int, int] | None = None, now_ms: int = 0) -> Transaction:
    return decisions.initialised(transaction, 60_000, expected, 8, now_ms)


def ongoing() -> Transaction:
    changed = decisions.with_partitions(begun(), 7, 0, [CLICKS], 5)
    assert changed is not None
    return changed


def complete(is_commit: bool = True) -> Transaction:
    prepared = decisions.ended(ongoing(), 7, 0, is_commit, 10)
    assert prepared is not None
    return decisions.completed(prepared, 11)


def test_each_producer_that_begins_gets_the_next_epoch_and_fences_the_one_before() -> None:
    first, second = begun(), begun(begun())
    assert (first.epoch, second.epoch) == (0, 1)
    with pytest.raises(ProducerFenced):
        decisions.with_partitions(second, 7, 0, [CLICKS], 0)
    with pytest.raises(ProducerFenced):
        decisions.ended(second, 7, 0, True, 0)


def test_a_producer_that_has_lost_its_way_goes_on_with_the_next_epoch() -> None:
    """KIP-360; and asking twice, since the answer was lost, gives the same epoch again."""
    next_one = begun(begun(), expected=(7, 0))
    assert (next_one.epoch, next_one.previous_epoch) == (1, 0)
    assert begun(next_one, expected=(7, 0)).epoch == 1
    with pytest.raises(ProducerFenced):
        begun(begun(next_one), expected=(7, 0))
    with pytest.raises(ProducerFenced):
        begun(next_one, expected=(6, 1))


def test_an_exhausted_producer_id_is_replaced() -> None:
    last = Transaction("t", 7, LAST_EPOCH - 1, 60_000)
    replaced = begun(last)
    assert (replaced.producer_id, replaced.epoch) == (8, 0)
    heard = begun(last, expected=(7, LAST_EPOCH - 1))
    assert (heard.producer_id, heard.epoch, heard.previous_producer_id) == (8, 0, 7)
    assert begun(heard, expected=(7, LAST_EPOCH - 1)).producer_id == 8


@pytest.mark.parametrize(("epoch", "stale"), [(LAST_EPOCH - 1, LAST_EPOCH - 2), (LAST_EPOCH, LAST_EPOCH - 1)])
def test_a_producer_of_a_former_epoch_is_fenced_also_when_the_producer_id_has_no_epochs_left(epoch: int, stale: int) -> None:
    """Another producer has begun since, or its transaction has timed out: a new producer id for it would shut out the present one."""
    with pytest.raises(ProducerFenced):
        begun(Transaction("t", 7, epoch, 60_000), expected=(7, stale))


def test_a_producer_that_begins_while_another_ones_transaction_is_open_has_that_aborted() -> None:
    fenced = begun(ongoing())
    assert (fenced.state, fenced.epoch) == (TransactionState.PREPARE_EPOCH_FENCE, 1)
    aborting = decisions.aborted_after_fence(fenced, 20)
    assert aborting.partitions == {CLICKS}
    with pytest.raises(ConcurrentTransactions):
        begun(aborting)
    assert begun(decisions.completed(aborting, 21)).epoch == 2


@pytest.mark.parametrize("present", [begun(begun()), begun(begun(), expected=(7, 0))])
def test_a_producer_of_a_former_epoch_has_no_transaction_of_the_present_one_aborted(present: Transaction) -> None:
    """It may have been replaced, or this is a copy of its request for the present epoch that comes late."""
    transaction = decisions.with_partitions(present, 7, 1, [CLICKS], 5)
    assert transaction is not None
    with pytest.raises(ProducerFenced):
        begun(transaction, expected=(7, 0))
    assert begun(transaction, expected=(7, 1)).state is TransactionState.PREPARE_EPOCH_FENCE


def test_partitions_are_added_once_and_begin_the_transaction() -> None:
    first = ongoing()
    assert (first.state, first.start_timestamp) == (TransactionState.ONGOING, 5)
    assert decisions.with_partitions(first, 7, 0, [CLICKS], 6) is None
    more = decisions.with_partitions(first, 7, 0, [VIEWS], 6)
    assert more is not None
    assert (more.partitions, more.start_timestamp) == (frozenset({CLICKS, VIEWS}), 5)
    again = decisions.with_partitions(complete(), 7, 0, [VIEWS], 30)
    assert again is not None
    assert (again.partitions, again.start_timestamp) == (frozenset({VIEWS}), 30)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_that_is_asked_for_again_is_done_already_or_being_done(is_commit: bool) -> None:
    prepared = decisions.ended(ongoing(), 7, 0, is_commit, 10)
    assert prepared is not None
    with pytest.raises(ConcurrentTransactions):
        decisions.ended(prepared, 7, 0, is_commit, 11)
    with pytest.raises(InvalidTransactionState):
        decisions.ended(prepared, 7, 0, not is_commit, 11)
    done = decisions.completed(prepared, 12)
    assert decisions.ended(done, 7, 0, is_commit, 13) is None
    with pytest.raises(InvalidTransactionState):
        decisions.ended(done, 7, 0, not is_commit, 13)
    assert done.partitions == frozenset()


def test_a_transaction_that_was_not_begun_can_not_end() -> None:
    with pytest.raises(InvalidTransactionState):
        decisions.ended(begun(), 7, 0, True, 0)


def test_another_producer_id_is_told_so() -> None:
    with pytest.raises(InvalidProducerIdMapping):
        decisions.ended(ongoing(), 9, 0, True, 0)


def test_time_is_up_by_the_transactions_own_timeout_and_an_unused_id_expires() -> None:
    assert not ongoing().is_timed_out(60_004)
    assert ongoing().is_timed_out(60_005)
    assert not complete().is_timed_out(1 << 40)
    assert complete().is_expired(11 + 100, 100)
    assert not ongoing().is_expired(1 << 40, 100)


def test_every_state_is_in_the_table() -> None:
    assert LEGAL_PREDECESSORS.keys() == set(TransactionState)
    assert TransactionState.PREPARE_COMMIT not in LEGAL_PREDECESSORS[TransactionState.COMPLETE_ABORT]


class TransactionMachine(RuleBasedStateMachine):
    """Several producers share a transactional id; only the one that began last gets its way."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction = NEW
        self.now_ms = 0
        self.newest: tuple[int, int] | None = None
        self.producers: list[tuple[int, int]] = []
        self.epochs: set[tuple[int, int]] = set()

    @rule(data=st.data(), knows=st.booleans())
    def begin(self, data: st.DataObject, knows: bool) -> None:
        expected = data.draw(st.sampled_from(self.producers)) if knows and self.producers else None
        try:
            changed = decisions.initialised(self.transaction, 1_000, expected, 100 + self.now_ms, self.now_ms)
        except ApiError:
            return
        if changed.state is TransactionState.PREPARE_EPOCH_FENCE:
            self.transaction = decisions.aborted_after_fence(changed, self.now_ms)
            self.newest = None
            return
        self.transaction = changed
        self.newest = (changed.producer_id, changed.epoch)
        self.producers.append(self.newest)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partitions=st.sets(st.sampled_from([CLICKS, VIEWS]), min_size=1))
    def add(self, data: st.DataObject, partitions: set[TopicPartition]) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        try:
            changed = decisions.with_partitions(self.transaction, *producer, partitions, self.now_ms)
        except ApiError:
            return
        assert producer == self.newest, "a fenced producer wrote"
        self.transaction = changed or self.transaction
        assert self.transaction.partitions >= partitions

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), is_commit=st.booleans())
    def end(self, data: st.DataObject, is_commit: bool) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        try:
            changed = decisions.ended(self.transaction, *producer, is_commit, self.now_ms)
        except ApiError:
            return
        assert producer == self.newest, "a fenced producer ended the transaction"
        self.transaction = changed or self.transaction

    @precondition(lambda self: self.transaction.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
    @rule()
    def markers_are_written(self) -> None:
        self.transaction = decisions.completed(self.transaction, self.now_ms)

    @rule(milliseconds=st.integers(1, 600))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        if self.transaction.is_timed_out(self.now_ms):
            self.transaction = decisions.aborted_after_fence(decisions.fenced(self.transaction, self.now_ms), self.now_ms)
            self.newest = None

    @invariant()
    def partitions_are_there_exactly_while_they_have_to_be_marked(self) -> None:
        marked = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
        assert bool(self.transaction.partitions) == (self.transaction.state in marked)


TransactionMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestTransactionMachine = TransactionMachine.TestCase


@given(st.integers(0, LAST_EPOCH - 1))
def test_an_epoch_is_never_given_twice(epoch: int) -> None:
    before = Transaction("t", 7, epoch, 1)
    after = begun(before)
    assert (after.producer_id, after.epoch) > (before.producer_id, before.epoch)
