"""What a request makes of a transaction: plain functions of the transaction, the request and the time.

Each gives the transaction as it is to be written, or raises what the producer is answered. None where nothing has to be
written, since it is so already: requests are repeated when their answers get lost.

Source: Kafka's `TransactionCoordinator` and `TransactionMetadata` (3.9, transaction version 0).
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.broker.transactions.states import PREPARED, TransactionState
from ottla.broker.transactions.transaction import LAST_EPOCH, NO_TIMESTAMP, Transaction
from ottla.errors import ConcurrentTransactions, InvalidProducerIdMapping, InvalidTransactionState, ProducerFenced
from ottla.model import NO_PRODUCER_EPOCH, TopicPartition

_S = TransactionState


def initialised(
    transaction: Transaction, timeout_ms: int, expected: tuple[int, int] | None, new_producer_id: int | None, now_ms: int
) -> Transaction:
    """A producer begins, or begins again, with the transactional id: it gets the next epoch, and former ones are fenced.

    Args:
        expected: the producer id and epoch that the producer believes to have (KIP-360); None from a new one.
        new_producer_id: replaces the present id when that has no epochs left; needed only then.

    Returns:
        In state EMPTY with the producer's id and epoch; or in PREPARE_EPOCH_FENCE, when the former producer left a
        transaction open: that has to be aborted first, and the producer asks again.

    Raises:
        ProducerFenced: another producer has begun with the id since.
        ConcurrentTransactions: the last transaction's markers are still being written.
    """
    if expected is not None and not _may_go_on(transaction, *expected):
        raise ProducerFenced(
            f"{transaction.transactional_id} has producer id {transaction.producer_id} and epoch {transaction.epoch}, not {expected}"
        )
    if transaction.state in PREPARED:
        raise ConcurrentTransactions(f"{transaction.transactional_id} is being completed: {transaction.state.title}")
    if transaction.state is _S.ONGOING:
        if expected not in (None, (transaction.producer_id, transaction.epoch)):
            # Kafka fences the present producer here, for one of a former epoch that is refused in the end.
            raise ProducerFenced(f"{transaction.transactional_id} has a transaction of epoch {transaction.epoch} open, and {expected} came")
        return fenced(transaction, now_ms)
    expected_epoch = None if expected is None else expected[1]
    if transaction.is_exhausted and expected_epoch in (None, transaction.epoch):
        assert new_producer_id is not None, "the producer id has no epochs left"
        return _cleared(
            transaction,
            timeout_ms,
            now_ms,
            producer_id=new_producer_id,
            epoch=0,
            previous_producer_id=transaction.producer_id,
            previous_epoch=transaction.epoch if expected is not None else NO_PRODUCER_EPOCH,
        )
    epoch, previous_epoch = _next_epoch(transaction, expected_epoch)
    return _cleared(transaction, timeout_ms, now_ms, epoch=epoch, previous_epoch=previous_epoch)


def _may_go_on(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    if transaction.epoch == NO_PRODUCER_EPOCH or producer_id == transaction.producer_id:
        return True
    # It was given a new id, and never heard of that.
    return producer_id == transaction.previous_producer_id and epoch >= LAST_EPOCH - 1


def _next_epoch(transaction: Transaction, expected_epoch: int | None) -> tuple[int, int]:
    next_epoch = 0 if transaction.epoch == NO_PRODUCER_EPOCH else transaction.epoch + 1
    if expected_epoch is None:
        return next_epoch, NO_PRODUCER_EPOCH
    if transaction.epoch in (NO_PRODUCER_EPOCH, expected_epoch):
        return next_epoch, transaction.epoch
    if expected_epoch == transaction.previous_epoch:
        return transaction.epoch, transaction.previous_epoch  # it has the next one already: the answer was lost
    raise ProducerFenced(f"{transaction.transactional_id} is at epoch {transaction.epoch}, and {expected_epoch} came")


def _cleared(transaction: Transaction, timeout_ms: int, now_ms: int, **changes: object) -> Transaction:
    return transaction.to(_S.EMPTY, now_ms, timeout_ms=timeout_ms, partitions=frozenset(), start_timestamp=NO_TIMESTAMP, **changes)


def fenced(transaction: Transaction, now_ms: int) -> Transaction:
    """The producer of an ongoing transaction is fenced, by an epoch that no producer has; the transaction is to be aborted next."""
    epoch = min(transaction.epoch + 1, LAST_EPOCH)
    return transaction.to(_S.PREPARE_EPOCH_FENCE, now_ms, epoch=epoch, previous_epoch=NO_PRODUCER_EPOCH)


def with_partitions(
    transaction: Transaction, producer_id: int, epoch: int, partitions: Collection[TopicPartition], now_ms: int
) -> Transaction | None:
    """The producer is about to write to partitions.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as `check_producer`, and while markers are written.
    """
    check_producer(transaction, producer_id, epoch)
    if transaction.state in PREPARED:
        raise ConcurrentTransactions(f"{transaction.transactional_id} is being completed: {transaction.state.title}")
    if transaction.state is _S.ONGOING and transaction.partitions.issuperset(partitions):
        return None
    start = transaction.start_timestamp if transaction.state is _S.ONGOING else now_ms
    before = transaction.partitions if transaction.state is _S.ONGOING else frozenset()
    return transaction.to(_S.ONGOING, now_ms, partitions=before | frozenset(partitions), start_timestamp=start)


def check_producer(transaction: Transaction, producer_id: int, epoch: int) -> None:
    """Whether a request is of the producer that has the transactional id now.

    Raises:
        InvalidProducerIdMapping: it has another producer id.
        ProducerFenced: it has another epoch.
    """
    if producer_id != transaction.producer_id:
        raise InvalidProducerIdMapping(f"{transaction.transactional_id} has producer id {transaction.producer_id}, not {producer_id}")
    if epoch != transaction.epoch:
        raise ProducerFenced(f"{transaction.transactional_id} is at epoch {transaction.epoch}, and {epoch} came")


def ended(transaction: Transaction, producer_id: int, epoch: int, is_commit: bool, now_ms: int) -> Transaction | None:
    """The producer commits or aborts. None when that has been done already.

    Raises:
        InvalidProducerIdMapping, ProducerFenced: as `check_producer`.
        ConcurrentTransactions: it was asked for before and is being done.
        InvalidTransactionState: there is nothing to end, or it ended otherwise.
    """
    check_producer(transaction, producer_id, epoch)
    match transaction.state:
        case _S.ONGOING:
            return transaction.to(_S.PREPARE_COMMIT if is_commit else _S.PREPARE_ABORT, now_ms)
        case _S.COMPLETE_COMMIT if is_commit:
            return None
        case _S.COMPLETE_ABORT if not is_commit:
            return None
        case _S.PREPARE_COMMIT if is_commit:
            raise ConcurrentTransactions(f"{transaction.transactional_id} is being committed")
        case _S.PREPARE_ABORT if not is_commit:
            raise ConcurrentTransactions(f"{transaction.transactional_id} is being aborted")
    what = "commit" if is_commit else "abort"
    raise InvalidTransactionState(f"{transaction.transactional_id} is {transaction.state.title}: there is nothing to {what}")


def aborted_after_fence(transaction: Transaction, now_ms: int) -> Transaction:
    """The abort that a fence is followed by."""
    return transaction.to(_S.PREPARE_ABORT, now_ms)


def completed(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written. When the transaction began is kept for DescribeTransactions."""
    target = _S.COMPLETE_COMMIT if transaction.state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT
    return transaction.to(target, now_ms, partitions=frozenset())
