"""A coordinator's partition of `__transaction_state`: every step is written first, and another coordinator continues from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest
from tests.loops import until
from tests.unit.broker.groups.offsets_log import OffsetsLog

from ottla.broker.transactions import shard as module
from ottla.broker.transactions.shard import TransactionLimits, TransactionPartition
from ottla.broker.transactions.states import PREPARED, TransactionState
from ottla.broker.transactions.transaction import LAST_EPOCH
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProducerFenced,
    RequestTimedOut,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import TransactionMarker
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.batch import HEADER_SIZE
from ottla.storage.producers import ProducerStates
from ottla.testing.clock import ManualClock

KEY = TopicPartition("__transaction_state", 3)
CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 0)
LIMITS = TransactionLimits(max_timeout_ms=900_000, id_expiration_ms=10_000_000, load_buffer_bytes=1 << 20)
MINUTE_MS = 60_000


class World:
    """A log, a clock, and the markers that were sent; `gate` holds them back."""

    def __init__(self) -> None:
        self.log = OffsetsLog()
        self.clock = ManualClock()
        self.sent: list[TransactionMarker] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: ApiError | None = None
        self._ids = count(1000)
        self.ids_are_there = asyncio.Event()
        self.ids_are_there.set()

    async def send(self, marker: TransactionMarker, topics_known: asyncio.Event) -> None:
        self.sent.append(marker)
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal

    async def next_id(self) -> int:
        await self.ids_are_there.wait()
        return next(self._ids)

    async def coordinator(self, epoch: int = 0) -> TransactionPartition:
        made = TransactionPartition(KEY, epoch, self.log, self.clock, self, self, LIMITS)  # type: ignore[arg-type]
        await made.load(offload_nothing)
        return made


@pytest.fixture
def world() -> World:
    return World()


async def settled(shard: TransactionPartition, transactional_id: str = "t") -> TransactionState:
    """The state when nothing is under way any more."""
    await until(lambda: shard.describe(transactional_id).state not in PREPARED)
    return shard.describe(transactional_id).state


async def ongoing(shard: TransactionPartition, *partitions: TopicPartition) -> tuple[int, int]:
    """Id and epoch of a producer with a transaction."""
    producer_id, epoch = await shard.initialise("t", MINUTE_MS, None)
    await shard.add_partitions("t", producer_id, epoch, partitions or (CLICKS,))
    return producer_id, epoch


async def begun() -> tuple[World, TransactionPartition, int, int]:
    """A coordinator, and id and epoch of a producer with a transaction."""
    world = World()
    shard = await world.coordinator()
    return world, shard, *await ongoing(shard)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_is_answered_when_it_is_written_and_then_every_partition_is_told(world: World, is_commit: bool) -> None:
    shard = await world.coordinator(epoch=5)
    producer_id, epoch = await ongoing(shard, CLICKS, VIEWS)
    world.gate.clear()
    await shard.end("t", producer_id, epoch, is_commit)
    await asyncio.sleep(0)
    assert world.sent == [TransactionMarker(producer_id, epoch, is_commit, 5, (CLICKS, VIEWS), 3)]
    with pytest.raises(ConcurrentTransactions):
        await shard.add_partitions("t", producer_id, epoch, [CLICKS])
    world.gate.set()
    assert await settled(shard) is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    await shard.end("t", producer_id, epoch, is_commit)  # again, since an answer may be lost
    assert len(world.sent) == 1
    with pytest.raises(InvalidTransactionState):
        await shard.end("t", producer_id, epoch, not is_commit)


async def test_a_producer_whose_next_epoch_was_given_by_a_coordinator_that_died_gets_it_from_the_next_one(world: World) -> None:
    """The answer was lost, and it asks again as who it was (KIP-360); its id too, when that had no epochs left (KAFKA-20357)."""
    first = await world.coordinator(epoch=1)
    producer_id, epoch = await first.initialise("t", MINUTE_MS, None)
    assert await first.initialise("t", MINUTE_MS, (producer_id, epoch)) == (producer_id, 1)
    second = await world.coordinator(epoch=2)
    assert await second.initialise("t", MINUTE_MS, (producer_id, epoch)) == (producer_id, 1)
    second._entries["t"].transaction = replace(second.describe("t"), epoch=LAST_EPOCH - 1)
    replaced = await second.initialise("t", MINUTE_MS, (producer_id, LAST_EPOCH - 1))
    third = await world.coordinator(epoch=3)
    assert await third.initialise("t", MINUTE_MS, (producer_id, LAST_EPOCH - 1)) == replaced == (1001, 0)
    await third.initialise("t", MINUTE_MS, None)
    with pytest.raises(ProducerFenced):
        await (await world.coordinator(epoch=4)).initialise("t", MINUTE_MS, replaced)


async def test_a_new_coordinator_completes_what_was_decided_and_leaves_what_was_not(world: World) -> None:
    first = await world.coordinator(epoch=1)
    producer_id, epoch = await ongoing(first)
    other_id, _ = await first.initialise("other", MINUTE_MS, None)
    await first.add_partitions("other", other_id, 0, [VIEWS])
    world.gate.clear()
    await first.end("t", producer_id, epoch, True)
    await asyncio.sleep(0)
    first.close()
    await first.ended()
    world.gate.set()
    second = await world.coordinator(epoch=2)
    assert await settled(second) is TransactionState.COMPLETE_COMMIT
    assert [(marker.producer_id, marker.coordinator_epoch) for marker in world.sent] == [(producer_id, 1), (producer_id, 2)]
    assert second.describe("other").state is TransactionState.ONGOING
    assert second.describe("other").partitions == frozenset({VIEWS})


async def test_a_coordinator_that_leads_again_in_the_same_epoch_numbers_on_from_where_it_was(world: World) -> None:
    """A broker whose session has expired, and who is back before a controller has seen that, leads in the epoch of before.

    What the partitions know of its former numbers must not make them take the markers of its next transactions for late ones.
    """
    known = ProducerStates()
    shard = await world.coordinator(epoch=4)
    producer_id, epoch = await shard.initialise("t", MINUTE_MS, None)

    async def transact() -> None:
        await shard.add_partitions("t", producer_id, epoch, [CLICKS])
        known.end_verification(producer_id, epoch, known.begin_verification(producer_id), True, shard.transaction("t"))
        await shard.end("t", producer_id, epoch, True)
        await settled(shard)

    for _ in range(3):
        await transact()
        assert not known.has_ended(producer_id, world.sent[-1].transaction)
        known.note_ended(producer_id, world.sent[-1].transaction)
    for _ in range(2):
        shard.close()
        await shard.ended()
        shard = await world.coordinator(epoch=4)
        await transact()
        assert not known.has_ended(producer_id, world.sent[-1].transaction), "this is the first marker of the transaction"
        known.note_ended(producer_id, world.sent[-1].transaction)
        assert known.has_ended(producer_id, world.sent[-2].transaction)


@pytest.mark.parametrize("is_decided", [True, False])
async def test_a_transaction_that_is_found_again_in_the_same_epoch_is_still_to_be_ended(world: World, is_decided: bool) -> None:
    """Open or decided: the partitions have heard of it, by the number that it had then."""
    known = ProducerStates()
    first = await world.coordinator(epoch=4)
    for other in ("a", "b", "c"):
        await first.initialise(other, MINUTE_MS, None)
    producer_id, epoch = await ongoing(first)
    known.end_verification(producer_id, epoch, known.begin_verification(producer_id), True, first.transaction("t"))
    world.gate.clear()
    if is_decided:
        await first.end("t", producer_id, epoch, True)
        await asyncio.sleep(0)
    first.close()
    await first.ended()
    world.gate.set()
    second = await world.coordinator(epoch=4)
    if not is_decided:
        await second.end("t", producer_id, epoch, True)
    await settled(second)
    assert len({marker.transaction for marker in world.sent}) == 1, "both coordinators mean the same"
    assert not known.has_ended(producer_id, world.sent[-1].transaction)
    known.note_ended(producer_id, world.sent[0].transaction)
    assert known.has_ended(producer_id, world.sent[-1].transaction)


async def test_a_producer_that_begins_anew_has_the_transaction_of_the_former_one_aborted_first() -> None:
    world, shard, producer_id, epoch = await begun()
    with pytest.raises(ConcurrentTransactions):
        await shard.initialise("t", MINUTE_MS, None)
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_ABORT)
    # The markers' epoch shuts the former producer out of the partitions too.
    assert [(marker.is_commit, marker.producer_epoch) for marker in world.sent] == [(False, epoch + 1)]
    assert await shard.initialise("t", MINUTE_MS, None) == (producer_id, epoch + 2)
    with pytest.raises(ProducerFenced):
        await shard.end("t", producer_id, epoch, True)
    with pytest.raises(InvalidProducerIdMapping):
        await shard.add_partitions("t", producer_id + 1, epoch, [CLICKS])
    with pytest.raises(InvalidProducerIdMapping):
        await shard.add_partitions("unknown", producer_id, epoch, [CLICKS])


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_shut_out() -> None:
    world, shard, producer_id, epoch = await begun()
    world.clock.advance(milliseconds=MINUTE_MS - 1)
    shard.abort_timed_out()
    assert shard.describe("t").state is TransactionState.ONGOING
    world.clock.advance(milliseconds=1)
    shard.abort_timed_out()
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_ABORT)
    assert [(marker.is_commit, marker.producer_epoch) for marker in world.sent] == [(False, epoch + 1)]
    with pytest.raises(ProducerFenced):
        await shard.end("t", producer_id, epoch, True)


async def test_an_abort_that_could_not_be_written_is_tried_again(world: World) -> None:
    shard = await world.coordinator()
    await ongoing(shard)
    world.clock.advance(milliseconds=MINUTE_MS)
    world.log.refusal = NotEnoughReplicas("one is left")
    shard.abort_timed_out()
    await asyncio.sleep(0)
    assert (shard.describe("t").state, world.sent) == (TransactionState.ONGOING, [])
    world.log.refusal = None
    shard.abort_timed_out()
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_ABORT)


async def test_ids_that_nobody_uses_are_forgotten_here_and_in_the_log(world: World) -> None:
    shard = await world.coordinator()
    await shard.initialise("idle", MINUTE_MS, None)
    await ongoing(shard)
    world.clock.advance(milliseconds=LIMITS.id_expiration_ms)
    await shard.expire()
    assert [transaction.transactional_id for transaction in shard.transactions()] == ["t"], "one with a transaction is kept"
    with pytest.raises(TransactionalIdNotFound):
        shard.describe("idle")
    assert [transaction.transactional_id for transaction in (await world.coordinator(1)).transactions()] == ["t"]


async def test_expiry_that_cannot_be_written_waits_for_the_next_round(world: World) -> None:
    """Each further id would wait as long for the replicas, and the ids of other partitions with it."""
    shard = await world.coordinator()
    for idle in ("a", "b", "c"):
        await shard.initialise(idle, MINUTE_MS, None)
    world.clock.advance(milliseconds=LIMITS.id_expiration_ms)
    world.log.failure = RequestTimedOut("slow")
    before = len(world.log.batches)
    await shard.expire()
    assert len(world.log.batches) == before + 1
    world.log.failure = None
    await shard.expire()
    assert list(shard.transactions()) == []


async def test_an_id_that_expires_while_a_producer_id_is_fetched_for_it_is_known_with_that(world: World) -> None:
    """The other brokers may take their time for a block of producer ids."""
    shard = await world.coordinator()
    await shard.initialise("t", MINUTE_MS, None)
    shard._entries["t"].transaction = replace(shard.describe("t"), epoch=LAST_EPOCH - 1)
    world.clock.advance(milliseconds=LIMITS.id_expiration_ms)
    world.ids_are_there.clear()
    waiting = asyncio.ensure_future(shard.initialise("t", MINUTE_MS, None))
    await asyncio.sleep(0)
    await shard.expire()
    world.ids_are_there.set()
    producer_id, epoch = await waiting
    for coordinator in (shard, await world.coordinator(1)):
        await coordinator.add_partitions("t", producer_id, epoch, [CLICKS])


async def test_a_coordinator_of_a_former_epoch_expires_no_further_ids(world: World) -> None:
    """The same broker may lead in the next epoch, and its log takes the tombstone of an id that a producer uses again there."""
    former = await world.coordinator(epoch=1)
    for idle in ("a", "b"):
        await former.initialise(idle, MINUTE_MS, None)
    world.clock.advance(milliseconds=LIMITS.id_expiration_ms)
    world.log.commits.clear()
    expiring = asyncio.ensure_future(former.expire())
    await asyncio.sleep(0)
    former.close()
    world.log.commits.set()
    present = await world.coordinator(epoch=2)
    producer_id, epoch = await present.initialise("b", MINUTE_MS, None)
    await present.add_partitions("b", producer_id, epoch, [CLICKS])
    await expiring
    assert (await world.coordinator(epoch=3)).describe("b").state is TransactionState.ONGOING


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (NotEnoughReplicas, CoordinatorNotAvailable),
        (UnknownTopicOrPartition, CoordinatorNotAvailable),
        (NotLeaderOrFollower, NotCoordinator),
    ],
)
async def test_a_step_that_is_not_written_is_not_taken(refusal: type[ApiError], told: type[ApiError]) -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.refusal = refusal("no")
    with pytest.raises(told):
        await shard.end("t", producer_id, epoch, True)
    assert (shard.describe("t").state, world.sent) == (TransactionState.ONGOING, [])
    world.log.refusal = None
    await shard.end("t", producer_id, epoch, True)
    assert await settled(shard) is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("refusal", [KafkaStorageError, NotEnoughReplicas])
async def test_a_completion_that_could_not_be_written_is_written_later(
    refusal: type[ApiError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full for now leaves the lead where it is, so no other coordinator would ever complete the transaction."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    world, shard, producer_id, epoch = await begun()
    world.gate.clear()
    await shard.end("t", producer_id, epoch, True)
    world.log.refusal = refusal("no room")
    world.gate.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert shard.describe("t").state is TransactionState.PREPARE_COMMIT
    assert len([record for record in caplog.records if "retrying" in record.message]) == 1, "not once for each attempt"
    world.log.refusal = None
    assert await settled(shard) is TransactionState.COMPLETE_COMMIT


async def test_a_step_that_waits_for_replicas_is_in_the_log_of_the_broker_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    world, shard, producer_id, epoch = await begun()
    world.log.failure = RequestTimedOut("the in-sync replicas were too slow")
    with pytest.raises(CoordinatorNotAvailable):
        await shard.end("t", producer_id, epoch, True)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(caplog.messages) == 1, "not once for each attempt"
    world.log.failure = None
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_COMMIT)


async def test_an_abort_that_cannot_be_written_is_in_the_log_of_the_broker_once(caplog: pytest.LogCaptureFixture) -> None:
    """A producer that begins again asks some ten times a second until the transaction of its former self is aborted."""
    world, shard, _, epoch = await begun()
    world.log.refusal = NotEnoughReplicas("1 of 2")
    for _ in range(3):
        with pytest.raises(ConcurrentTransactions):
            await shard.initialise("t", MINUTE_MS, None)
        await asyncio.sleep(0)
    assert len(caplog.messages) == 1, "not once for each attempt"
    world.log.refusal = None
    with pytest.raises(ConcurrentTransactions):
        await shard.initialise("t", MINUTE_MS, None)
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_ABORT)
    assert (await shard.initialise("t", MINUTE_MS, None))[1] == epoch + 2


async def test_a_decision_stands_though_the_connection_that_asked_for_it_was_lost() -> None:
    """PREPARE_COMMIT is in the log: a time-out must not abort what was decided."""
    world, shard, producer_id, epoch = await begun()
    world.log.commits.clear()
    ending = asyncio.ensure_future(shard.end("t", producer_id, epoch, True))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    world.clock.advance(milliseconds=MINUTE_MS + 1)
    shard.abort_timed_out()
    with pytest.raises(ConcurrentTransactions):
        await shard.end("t", producer_id, epoch, False)
    world.log.commits.set()
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_COMMIT)
    assert [marker.is_commit for marker in world.sent] == [True]
    await shard.end("t", producer_id, epoch, True)  # asked again, and told


async def test_a_decision_stands_though_its_answer_was_that_it_took_too_long() -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.failure = RequestTimedOut("the in-sync replicas were too slow")
    with pytest.raises(CoordinatorNotAvailable):
        await shard.end("t", producer_id, epoch, True)
    assert shard.describe("t").state is TransactionState.ONGOING
    world.clock.advance(milliseconds=MINUTE_MS + 1)
    shard.abort_timed_out()
    with pytest.raises(ConcurrentTransactions):
        await shard.end("t", producer_id, epoch, True)
    world.log.failure = None
    await until(lambda: shard.describe("t").state is TransactionState.COMPLETE_COMMIT)
    assert [marker.is_commit for marker in world.sent] == [True]


async def test_what_is_written_and_not_committed_is_the_next_coordinators() -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.failure = NotLeaderOrFollower("another leads")
    with pytest.raises(NotCoordinator):
        await shard.end("t", producer_id, epoch, True)
    assert (shard.describe("t").state, world.sent) == (TransactionState.ONGOING, [])


async def test_a_request_that_waits_is_told_when_the_leadership_goes() -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.commits.clear()
    ending = asyncio.ensure_future(shard.end("t", producer_id, epoch, True))
    await asyncio.sleep(0)
    shard.close()
    with pytest.raises(NotCoordinator):
        await ending


async def test_while_a_step_is_being_written_no_other_is_taken() -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.commits.clear()
    ending = asyncio.ensure_future(shard.end("t", producer_id, epoch, True))
    await asyncio.sleep(0)
    for request in (shard.end("t", producer_id, epoch, False), shard.add_partitions("t", producer_id, epoch, [VIEWS])):
        with pytest.raises(ConcurrentTransactions):
            await request
    with pytest.raises(ConcurrentTransactions):
        await shard.initialise("t", MINUTE_MS, None)
    world.log.commits.set()
    await ending
    assert await settled(shard) is TransactionState.COMPLETE_COMMIT


async def test_a_coordinator_that_was_replaced_meanwhile_says_so_and_writes_no_more() -> None:
    world, shard, producer_id, epoch = await begun()
    world.log.commits.clear()
    ending = asyncio.ensure_future(shard.end("t", producer_id, epoch, True))
    await asyncio.sleep(0)
    shard.close()
    world.log.commits.set()
    with pytest.raises(NotCoordinator):
        await ending
    assert world.sent == [], "its successor sends the markers"
    with pytest.raises(NotCoordinator):
        await shard.initialise("t", MINUTE_MS, None)


async def test_markers_that_only_a_newer_coordinator_may_write_are_left_to_it() -> None:
    world, shard, producer_id, epoch = await begun()
    world.refusal = TransactionCoordinatorFenced("older than the one that wrote last")
    written = len(world.log.batches)
    await shard.end("t", producer_id, epoch, True)
    await shard.ended()
    assert shard.describe("t").state is TransactionState.PREPARE_COMMIT
    assert len(world.log.batches) == written + 1


async def test_what_a_leader_asks_before_the_first_batch() -> None:
    """KIP-890."""
    world, shard, producer_id, epoch = await begun()
    outcomes = shard.verify("t", producer_id, epoch, [CLICKS, VIEWS])
    assert outcomes[CLICKS] is None
    assert isinstance(outcomes[VIEWS], InvalidTransactionState)
    with pytest.raises(ProducerFenced):
        shard.verify("t", producer_id, epoch + 1, [CLICKS])
    with pytest.raises(InvalidProducerIdMapping):
        shard.verify("other", producer_id, epoch, [CLICKS])
    world.gate.clear()
    await shard.end("t", producer_id, epoch, True)
    with pytest.raises(ConcurrentTransactions):
        shard.verify("t", producer_id, epoch, [CLICKS])
    world.gate.set()
    await settled(shard)
    assert isinstance(shard.verify("t", producer_id, epoch, [CLICKS])[CLICKS], InvalidTransactionState)


async def test_a_timeout_has_bounds(world: World) -> None:
    shard = await world.coordinator()
    for timeout_ms in (0, -1, LIMITS.max_timeout_ms + 1):
        with pytest.raises(InvalidTransactionTimeout):
            await shard.initialise("t", timeout_ms, None)
    await shard.initialise("t", LIMITS.max_timeout_ms, None)


async def test_nothing_is_served_before_the_partition_is_read(world: World) -> None:
    shard = TransactionPartition(KEY, 0, world.log, world.clock, world, world, LIMITS)  # type: ignore[arg-type]
    with pytest.raises(CoordinatorLoadInProgress):
        await shard.initialise("t", MINUTE_MS, None)
    with pytest.raises(CoordinatorLoadInProgress):
        shard.verify("t", 1, 0, [CLICKS])


async def test_a_record_that_can_not_be_read_is_passed_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await ongoing(await world.coordinator())
    world.log.append(KEY, [(b"\0\0\0\3bad", b"\0\0short"), (b"\0\7", b"newer")])
    shard = await world.coordinator(1)
    assert [transaction.transactional_id for transaction in shard.transactions()] == ["t"]
    assert shard.corrupt_records == 1
    assert "skipped" in caplog.text


@pytest.mark.parametrize("place", [17, 21, 23, 57, HEADER_SIZE + 1, -1])
async def test_a_batch_with_a_wrong_checksum_is_passed_over_and_counted_and_the_others_are_served(
    world: World, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    """A bit that has turned makes up no state: not in the checksum, the attributes, the count, a record or its end."""
    first = await world.coordinator()
    await ongoing(first)
    other_id, epoch = await first.initialise("other", MINUTE_MS, None)
    *before, last = world.log.batches
    damaged = bytearray(last)
    damaged[place] ^= 0x10
    world.log.batches = [*before, bytes(damaged)]
    second = await world.coordinator(1)
    assert [transaction.transactional_id for transaction in second.transactions()] == ["t"]
    assert second.corrupt_records == 1
    assert "__transaction_state-3: the record at offset" in caplog.text
    # The id whose record is gone begins again, with another producer.
    again_id, again = await second.initialise("other", MINUTE_MS, None)
    assert (again_id, again) != (other_id, epoch)


async def test_a_coordinator_of_the_past_calls_nothing_done_that_it_only_remembers(world: World) -> None:
    """Found by `make chaos SEED=41`: one that was cut off had a former commit in its memory, and answered the next one with it."""
    former = await world.coordinator(epoch=5)
    producer_id, epoch = await ongoing(former)
    await former.end("t", producer_id, epoch, is_commit=True)
    await settled(former)
    present = await world.coordinator(epoch=6)
    await present.add_partitions("t", producer_id, epoch, [VIEWS])
    world.log.is_of_the_past = True
    with pytest.raises(NotCoordinator):
        await former.end("t", producer_id, epoch, is_commit=True)
    world.log.is_of_the_past = False
    await present.end("t", producer_id, epoch, is_commit=True)
    assert await settled(present) is TransactionState.COMPLETE_COMMIT


async def test_a_coordinator_of_the_past_does_not_stop_a_producer_for_what_it_does_not_know(world: World) -> None:
    """An invalid state, an epoch that is over and an unknown id end a producer's life: only who coordinates may say so."""
    former = await world.coordinator(epoch=5)
    producer_id, epoch = await former.initialise("t", MINUTE_MS, None)
    world.log.is_of_the_past = True
    with pytest.raises(NotCoordinator):
        await former.end("t", producer_id, epoch, is_commit=False)
    with pytest.raises(NotCoordinator):
        await former.add_partitions("t", producer_id, epoch + 1, [CLICKS])
    with pytest.raises(NotCoordinator):
        await former.end("unknown", producer_id, epoch, is_commit=True)
    world.log.is_of_the_past = False
    with pytest.raises(InvalidTransactionState):
        await former.end("t", producer_id, epoch, is_commit=False)
    with pytest.raises(ProducerFenced):
        await former.add_partitions("t", producer_id, epoch + 1, [CLICKS])
    with pytest.raises(InvalidProducerIdMapping):
        await former.end("unknown", producer_id, epoch, is_commit=True)


async def test_a_producer_that_goes_on_is_not_fenced_by_a_coordinator_of_the_past(world: World) -> None:
    """It has its epoch from the coordinator of today, of which one that was replaced knows nothing. Fenced it would give up."""
    shard = await world.coordinator()
    producer_id, epoch = await shard.initialise("t", MINUTE_MS, None)
    world.log.is_of_the_past = True
    with pytest.raises(NotCoordinator):
        await shard.initialise("t", MINUTE_MS, (producer_id, epoch + 3))
    world.log.is_of_the_past = False
    with pytest.raises(ProducerFenced):
        await shard.initialise("t", MINUTE_MS, (producer_id, epoch + 3))
