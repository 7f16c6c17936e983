"""A marker that the network held back, and that arrives after its repetition: it must not end the producer's next transaction.

Before KIP-890's second part nothing in a marker says which of the producer's transactions it ends: producer id, epoch and
coordinator epoch are the same for the next one. Ottla's brokers number them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.loops import until
from tests.unit.broker.wired import Wired, wired
from tests.unit.storage.logs import batch_of

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.replication.partition import Partition
from ottla.errors import NONE
from ottla.interbroker.calls import TransactionMarker
from ottla.model import UNKNOWN_TRANSACTION, TopicPartition, TransactionNumber

PAYMENTS = TopicPartition("payments", 0)
PRODUCER, EPOCH, COORDINATOR_EPOCH = 44, 3, 9


class World:
    """A partition on real files, and its producer."""

    def __init__(self, broker: Wired) -> None:
        self._calls = broker.parts.transactions.calls
        self.partition: Partition = broker.partition("payments")
        self._sequence = 0

    def verify(self, number: int | None, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        """The coordinator says that the partition is part of a transaction; an older one does not say of which."""
        producers = self.partition.log.producers
        transaction = UNKNOWN_TRANSACTION if number is None else TransactionNumber(coordinator_epoch, number)
        producers.end_verification(PRODUCER, EPOCH, producers.begin_verification(PRODUCER), True, transaction)

    def write(self) -> int:
        """Appends a batch of the transaction that is open or verified."""
        batch = batch_of(0, producer_id=PRODUCER, producer_epoch=EPOCH, base_sequence=self._sequence, transactional=True)
        self._sequence += 1
        view = memoryview(bytearray(batch))
        offset = self.partition.append_as_leader(view, 0, len(batch), -1, 1_000, in_transaction=True)[0]
        self.partition.log.appender.write_staged()
        self.partition.appended()
        return offset

    async def mark(self, number: int, is_commit: bool, coordinator_epoch: int = COORDINATOR_EPOCH) -> int:
        """A marker arrives from the coordinator; gives the offset that the log has grown to."""
        marker = TransactionMarker(PRODUCER, EPOCH, is_commit, coordinator_epoch, (PAYMENTS,), number)
        assert await self._calls.write_transaction_marker(marker) == {PAYMENTS: NONE}
        return self.partition.log.log_end_offset

    def aborted(self, offset: int) -> list[int]:
        """Where the aborted transactions begin that a reader is told of who reads from an offset."""
        region = self.partition.read(offset, 1 << 20, committed_only=True, at_least_one_batch=True)
        return [] if region is None else [transaction.first_offset for transaction in self.partition.aborted_transactions(offset, region)]


@asynccontextmanager
async def world_in(directory: Path) -> AsyncIterator[World]:
    async with wired(directory) as broker:
        broker.topic("payments")
        yield World(broker)


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return world_in(tmp_path)


@pytest.mark.parametrize("is_verified", [True, False])
async def test_a_marker_that_comes_late_does_not_end_the_next_transaction(world: World, is_verified: bool) -> None:
    """Whether the partition knows of the next one from the coordinator, or only that the former one has ended."""
    world.verify(1)
    world.write()
    await world.mark(1, is_commit=True)
    world.verify(2 if is_verified else None)
    second = world.write()
    end = world.partition.log.log_end_offset
    assert await world.mark(1, is_commit=True) == end, "nothing is written"
    assert world.partition.last_stable_offset == second
    await world.mark(2, is_commit=False)
    assert world.aborted(second) == [second]


async def test_a_late_marker_does_not_take_the_word_back_that_a_transaction_may_begin(world: World) -> None:
    world.verify(1)
    world.write()
    await world.mark(1, is_commit=False)
    world.verify(2)
    await world.mark(1, is_commit=False)
    assert world.partition.log.producers.may_write_in_transaction(PRODUCER, EPOCH)


async def test_a_marker_of_a_former_coordinator_is_late_where_the_next_one_has_begun_a_transaction(world: World) -> None:
    """Its own marker, of a larger epoch, may have been written while another broker led the partition."""
    world.verify(1, coordinator_epoch=COORDINATOR_EPOCH + 1)
    second = world.write()
    await world.mark(70, is_commit=True)
    assert world.partition.last_stable_offset == second


async def test_a_former_coordinator_is_not_believed_that_an_ended_transaction_may_be_written_to(world: World) -> None:
    """One that has not heard yet that another leads: a late batch of the transaction would begin one that nothing ends."""
    world.verify(70)
    world.write()
    await world.mark(1, is_commit=False, coordinator_epoch=COORDINATOR_EPOCH + 1)
    world.verify(70)
    assert not world.partition.log.producers.may_write_in_transaction(PRODUCER, EPOCH)
    world.verify(2, coordinator_epoch=COORDINATOR_EPOCH + 1)
    assert world.partition.log.producers.may_write_in_transaction(PRODUCER, EPOCH)


async def test_the_next_coordinator_ends_the_transaction_that_the_former_one_has_numbered(world: World) -> None:
    world.verify(70)
    world.write()
    assert await world.mark(1, is_commit=True, coordinator_epoch=COORDINATOR_EPOCH + 1) == world.partition.last_stable_offset


@pytest.mark.parametrize("number", [70, 0])
async def test_a_marker_of_the_open_transaction_or_of_one_that_is_not_named_is_written(world: World, number: int) -> None:
    """Former releases name none, and so does who ends a hanging transaction by hand."""
    world.verify(70)
    first = world.write()
    assert world.partition.last_stable_offset == first
    end = await world.mark(number, is_commit=True)
    assert world.partition.last_stable_offset == end


async def test_a_second_marker_that_is_committed_later_does_not_end_the_offsets_of_the_next_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are written before one is committed: when the first is, the producer's next transaction may begin and commit offsets."""
    committed = defaultdict[int, asyncio.Event](asyncio.Event)
    ended: list[int] = []

    async def wait(topics: InternalTopics, partition: Partition, end_offset: int, timeout_seconds: float) -> None:
        await committed[end_offset].wait()

    monkeypatch.setattr(InternalTopics, "is_committed", lambda topics, partition, end_offset: False)
    monkeypatch.setattr(InternalTopics, "committed", wait)
    monkeypatch.setattr(GroupCoordinator, "transaction_ended", lambda groups, key, producer_id, is_commit: ended.append(producer_id))
    world.verify(1)
    first = world.write()
    marking = [asyncio.ensure_future(world.mark(1, is_commit=True)) for _ in range(2)]
    await until(lambda: world.partition.log.log_end_offset == first + 3)
    for marker, end_offset in zip(marking, (first + 2, first + 3), strict=True):
        committed[end_offset].set()
        await marker
    assert ended == [PRODUCER]
