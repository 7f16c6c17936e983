"""Asking the coordinator before the first batch of a transaction (KIP-890), and what may happen meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.unit.broker.wired import BROKER, NOW, Unchanging, wired

from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.partition import Partition
from ottla.broker.transactions.coordinator import TransactionVerification
from ottla.config.broker import BrokerSettings
from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTransactionState,
    ProducerFenced,
)
from ottla.interbroker.calls import TransactionAnswer, TransactionQuestion
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker

EVENTS = TopicPartition("events", 0)


class Coordinator:
    """The coordinator of every id, and the way to it: what is asked, and what it says to that when `gate` lets it."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.failure: ApiError | None = None
        self.metadata = MetadataCache()
        self.current = Unchanging(BrokerSettings.from_properties({"log.dirs": "logs"}))
        self.asked: list[tuple[BrokerId, TransactionQuestion]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        everyone: Any = self
        self.verification = TransactionVerification(self.metadata, everyone, everyone, everyone, self.current)
        self.led_by(BROKER)

    def led_by(self, leader: BrokerId) -> None:
        self.metadata.put_partitions("__transaction_state", uuid4(), {0: PartitionState(leader, 0, (), ())})

    def partition_of(self, name: str) -> int:
        return 0

    def at(self, broker_id: BrokerId, own: object) -> Coordinator:
        assert broker_id == BROKER
        return self

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        self.asked.append((BROKER, question))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return TransactionAnswer(dict.fromkeys(question.partitions, self.code))

    async def refusal(self, partition: Partition, epoch: int = 0) -> ApiError | None:
        return (await self.verification.refusals("t", 7, epoch, [partition])).get(EVENTS)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@asynccontextmanager
async def partition_in(directory: Path) -> AsyncIterator[Partition]:
    async with wired(directory) as broker:
        broker.topic("events")
        yield broker.partition("events")


@pytest.fixture
def partition(tmp_path: Path) -> AbstractAsyncContextManager[Partition]:
    return partition_in(tmp_path)


def mark(partition: Partition) -> None:
    partition.append_marker(7, 0, EndTransactionMarker(ControlRecordType.ABORT, 1), NOW)
    partition.log.appender.write_staged()


async def test_the_coordinator_is_asked_once_until_a_marker_comes(partition: Partition, coordinator: Coordinator) -> None:
    assert await coordinator.refusal(partition) is None
    assert await coordinator.refusal(partition) is None
    assert coordinator.asked == [(BROKER, TransactionQuestion("t", 7, 0, (EVENTS,)))]
    assert partition.log.producers.may_write_in_transaction(7, 0)
    mark(partition)
    assert not partition.log.producers.may_write_in_transaction(7, 0)
    assert await coordinator.refusal(partition) is None
    assert len(coordinator.asked) == 2


async def test_an_answer_from_before_a_marker_is_worth_nothing(partition: Partition, coordinator: Coordinator) -> None:
    """The batch of a producer that was thought dead: verified, and then its transaction was aborted before it was appended."""
    coordinator.gate.clear()
    asking = asyncio.ensure_future(coordinator.refusal(partition))
    await asyncio.sleep(0)
    mark(partition)
    coordinator.gate.set()
    assert isinstance(await asking, InvalidTransactionState)
    assert not partition.log.producers.may_write_in_transaction(7, 0)


async def test_another_epoch_is_asked_for_anew(partition: Partition, coordinator: Coordinator) -> None:
    assert await coordinator.refusal(partition, epoch=0) is None
    coordinator.code = ProducerFenced.code
    assert isinstance(await coordinator.refusal(partition, epoch=1), InvalidProducerEpoch)


@pytest.mark.parametrize("code", [InvalidTransactionState.code, 49, 51, 14, 16])
async def test_what_the_coordinator_says_is_told_and_not_remembered(partition: Partition, coordinator: Coordinator, code: int) -> None:
    coordinator.code = code
    refusal = await coordinator.refusal(partition)
    assert refusal is not None
    assert refusal.code == code
    coordinator.code = 0
    assert await coordinator.refusal(partition) is None


async def test_two_who_ask_at_the_same_time_are_both_answered(partition: Partition, coordinator: Coordinator) -> None:
    coordinator.gate.clear()
    asking = [asyncio.ensure_future(coordinator.refusal(partition)) for _ in range(2)]
    await asyncio.sleep(0)
    coordinator.gate.set()
    assert await asyncio.gather(*asking) == [None, None]


async def test_without_a_coordinator_nothing_is_believed(partition: Partition, coordinator: Coordinator) -> None:
    coordinator.failure = BrokerNotAvailable("gone")
    assert isinstance(await coordinator.refusal(partition), CoordinatorNotAvailable)
    coordinator.failure = None
    coordinator.led_by(NO_LEADER)
    assert isinstance(await coordinator.refusal(partition), CoordinatorNotAvailable)
    assert len(coordinator.asked) == 1


async def test_without_verification_whatever_comes_is_believed(partition: Partition, coordinator: Coordinator) -> None:
    coordinator.current.settings = BrokerSettings.from_properties(
        {"log.dirs": "logs", "transaction.partition.verification.enable": "false"}
    )
    assert await coordinator.refusal(partition) is None
    assert coordinator.asked == []
