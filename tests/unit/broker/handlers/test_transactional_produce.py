"""Produce and Fetch in transactions, over sockets: who may begin one in a partition, and what readers of committed data wait for."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.broker.wired import Wired, batch, fetch, produce, values, wired

from ottla.broker.transactions.states import TransactionState
from ottla.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
)
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.batch import batches

EVENTS = TopicPartition("events", 0)
READ_COMMITTED = 1
OF_ONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Producer:
    """A transactional producer by hand, and its coordinator's side of it."""

    def __init__(self, broker: Wired, client: Any) -> None:
        self.broker = broker
        self.client = client
        self.producer_id, self.epoch, self.sequence = -1, -1, 0

    @property
    def coordinator(self) -> Any:
        return self.broker.parts.transactions.coordinator.of("t")

    async def begin(self, *partitions: TopicPartition) -> None:
        if self.producer_id < 0:
            self.producer_id, self.epoch = await self.coordinator.initialise("t", 60_000, None)
        await self.coordinator.add_partitions("t", self.producer_id, self.epoch, partitions or (EVENTS,))

    async def send(self, value: bytes, *, version: int = 9, transactional_id: str | None = "t", epoch: int | None = None) -> int:
        sent = batch(
            value,
            transactional=True,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self.sequence,
        )
        self.client.write(produce(("events", 0, sent), version=version, acks=-1, transactional_id=transactional_id))
        _, [(code, _)] = await self.client.produced(version)
        self.sequence += code == 0
        return int(code)

    async def end(self, is_commit: bool) -> None:
        await self.coordinator.end("t", self.producer_id, self.epoch, is_commit)
        await until(lambda: self.coordinator.describe("t").state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


async def producer(broker: Wired, compression_type: str = "producer", max_message_bytes: str = "1000") -> Producer:
    broker.topic("events", compression_type=compression_type, max_message_bytes=max_message_bytes)
    broker.topic("__transaction_state")
    await until(lambda: not broker.parts.transactions.coordinator.is_loading)
    return Producer(broker, await broker.connect())


async def committed(broker: Wired) -> list[bytes | None]:
    """What a client delivers of the partition."""
    client = await broker.connect()
    client.write(fetch(("events", 0, 0), isolation_level=READ_COMMITTED))
    _, response = await client.answer(ApiKey.FETCH, 12)
    (answer,) = response.responses[0].partitions
    aborted = {transaction.producer_id: transaction.first_offset for transaction in answer.aborted_transactions}
    found = []
    for position, header in batches(answer.records or b""):
        data = answer.records[position : position + header.size]
        is_aborted = aborted.get(header.producer_id, header.base_offset + 1) <= header.base_offset
        if header.is_control and is_aborted:
            del aborted[header.producer_id]
        elif not header.is_control and not is_aborted:
            found += [value for _, value in values(data)]
    return found


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    """One that clients connect to."""
    return wired(tmp_path, properties=OF_ONE)


@pytest.mark.parametrize("version", [3, 8, 9, 11])
async def test_a_transaction_is_seen_when_it_is_committed(broker: Wired, version: int) -> None:
    writer = await producer(broker)
    await writer.begin()
    assert [await writer.send(value, version=version) for value in (b"a", b"b")] == [0, 0]
    assert await committed(broker) == []
    await writer.end(True)
    assert await committed(broker) == [b"a", b"b"]
    await writer.begin()
    assert await writer.send(b"aborted", version=version) == 0
    await writer.end(False)
    await writer.begin()
    assert await writer.send(b"c", version=version) == 0
    await writer.end(True)
    assert await committed(broker) == [b"a", b"b", b"c"]


async def test_a_batch_of_a_transaction_that_the_coordinator_does_not_know_is_refused(broker: Wired) -> None:
    """KIP-890: it would be the beginning of a transaction that no one ends."""
    writer = await producer(broker)
    broker.topic("elsewhere")
    await writer.begin(TopicPartition("elsewhere", 0))
    assert await writer.send(b"a") == InvalidTransactionState.code
    assert await writer.send(b"a", version=11) == TransactionAbortable.code
    await writer.begin()
    assert await writer.send(b"a") == 0
    await writer.end(False)
    # What a producer that was thought dead had still on its way.
    assert await writer.send(b"late") == InvalidTransactionState.code
    assert broker.partition("events").last_stable_offset == 2


async def test_a_producer_that_was_fenced_is_told_so(broker: Wired) -> None:
    writer = await producer(broker)
    await writer.begin()
    assert await writer.send(b"a", epoch=5) == InvalidProducerEpoch.code
    assert await writer.send(b"a") == 0
    assert await writer.send(b"b", epoch=5) == InvalidProducerEpoch.code, "the coordinator knows better than the log"


async def test_while_the_coordinator_can_not_say_the_batch_is_sent_again(broker: Wired) -> None:
    writer = await producer(broker)
    await writer.begin()
    broker.parts.transactions.coordinator.resign(0)
    assert await writer.send(b"a") == NotEnoughReplicas.code
    broker.lead("__transaction_state", epoch=1)
    await until(lambda: not broker.parts.transactions.coordinator.is_loading)
    assert await writer.send(b"a") == 0


async def test_who_does_not_lead_says_so_whether_or_not_the_coordinator_can_say_something(broker: Wired) -> None:
    """Kafka's `ReplicaManagerTest.testTransactionVerificationWhenNotLeader`: the client looks for the leader, and not here again."""
    writer = await producer(broker)
    await writer.begin()
    broker.parts.transactions.coordinator.resign(0)
    broker.partition("events").stop_leading()
    assert await writer.send(b"a") == NotLeaderOrFollower.code


async def check_order_after_a_refusal(broker: Wired, writer: Any) -> None:
    writer.sequence = 1
    assert await writer.send(b"b") == KafkaStorageError.code
    writer.sequence = 0
    assert [await writer.send(value) for value in (b"a", b"b")] == [0, 0]
    await writer.end(True)
    assert await committed(broker) == [b"a", b"b"]


async def test_what_came_behind_a_first_batch_that_could_not_be_verified_does_not_overtake_it(broker: Wired) -> None:
    """Kafka's `ReplicaManagerTest.testTransactionVerificationBlocksOutOfOrderSequence`. Both are sent again, in their order."""
    writer = await producer(broker)
    await writer.begin()
    broker.parts.transactions.coordinator.resign(0)
    assert await writer.send(b"a") == NotEnoughReplicas.code
    broker.lead("__transaction_state", epoch=1)
    await until(lambda: not broker.parts.transactions.coordinator.is_loading)
    await check_order_after_a_refusal(broker, writer)


async def test_what_came_behind_a_first_batch_that_was_refused_does_not_overtake_it(broker: Wired) -> None:
    """Kafka's `ProducerStateManagerTest.testThrowOutOfOrderSequenceWithVerificationSequenceCheck`: a Java producer sends a batch that
    is too large again in parts, and what was on its way behind it after them.
    """
    writer = await producer(broker, max_message_bytes="100")
    await writer.begin()
    assert await writer.send(b"a" * 100) == MessageTooLarge.code
    await check_order_after_a_refusal(broker, writer)


async def test_a_transactional_batch_needs_a_transactional_id(broker: Wired) -> None:
    writer = await producer(broker)
    await writer.begin()
    assert await writer.send(b"a", transactional_id=None) == TransactionalIdAuthorizationFailed.code
    assert await writer.send(b"a") == 0
    assert await writer.send(b"b", transactional_id=None) == TransactionalIdAuthorizationFailed.code


async def test_sequences_count_in_transactions_too(broker: Wired) -> None:
    writer = await producer(broker)
    await writer.begin()
    assert await writer.send(b"a") == 0
    writer.sequence = 0
    assert await writer.send(b"a") == 0, "the same batch again"
    assert broker.partition("events").log.log_end_offset == 1
    writer.sequence = 7
    assert await writer.send(b"b") == OutOfOrderSequenceNumber.code


async def test_a_reader_of_committed_data_that_waits_is_woken_by_the_marker(broker: Wired) -> None:
    writer = await producer(broker)
    await writer.begin()
    await writer.send(b"a")
    reader = await broker.connect()
    reader.write(fetch(("events", 0, 0), isolation_level=READ_COMMITTED, max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    await writer.end(True)
    async with asyncio.timeout(120):
        _, response = await reader.answer(ApiKey.FETCH, 12)
    (answer,) = response.responses[0].partitions
    assert [value for _, value in values(answer.records)][:1] == [b"a"]
    assert (answer.last_stable_offset, answer.high_watermark) == (2, 2)


async def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    async with wired(tmp_path, properties={**OF_ONE, "transaction.partition.verification.enable": "false"}) as broker:
        writer = await producer(broker)
        writer.producer_id, writer.epoch = 5, 0
        assert await writer.send(b"a") == 0


async def test_a_topic_with_a_codec_of_its_own_takes_transactions(broker: Wired) -> None:
    writer = await producer(broker, compression_type="gzip")
    await writer.begin()
    assert await writer.send(b"a") == 0
    await writer.end(True)
    assert broker.partition("events").last_stable_offset == 2
