"""Brokers on the test's own event loop, and a `Cluster` that asks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from ottla.broker.in_process import InProcessBrokers
from ottla.config.broker import BrokerSettings
from ottla.errors import error_of
from ottla.lifecycle import LoopThread
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.records import Record, build_batch
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.transactions import list_transactions

T = TypeVar("T")


@asynccontextmanager
async def brokers(directory: Path, count: int = 1, **properties: str) -> AsyncIterator[InProcessBrokers]:
    """Brokers 1 to `count`, on ports of their own."""

    def settings_of(broker_id: BrokerId) -> BrokerSettings:
        return BrokerSettings.from_properties(
            {
                "broker.id": str(broker_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(directory / f"broker-{broker_id}"),
                "coordination.directory": str(directory / "coordination"),
                "offsets.topic.num.partitions": "2",
                "offsets.topic.replication.factor": "1",
                "transaction.state.log.num.partitions": "2",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "group.initial.rebalance.delay.ms": "0",
                "log.retention.hours": "-1",  # records of tests may be of 1970, and would go half a minute after the start
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
        )

    running = InProcessBrokers([BrokerId(number + 1) for number in range(count)], settings_of, directory / "coordination")
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


def servers(running: InProcessBrokers) -> str:
    """`bootstrap.servers` of all of them."""
    return ",".join(broker.bootstrap_servers for broker in running.running.values())


def cluster_of(running: InProcessBrokers, **settings: object) -> Cluster:
    """A cluster that pauses little."""
    pauses: dict[str, object] = {"retry_backoff_seconds": 0.01, "retry_backoff_max_seconds": 0.05, "request_timeout_seconds": 30.0}
    return Cluster(servers(running), ClusterSettings(**{**pauses, **settings}), random=Random(1))  # type: ignore[arg-type]


@asynccontextmanager
async def one_broker(directory: Path) -> AsyncIterator[Cluster]:
    """Who asks a broker that runs."""
    async with brokers(directory) as running, cluster_of(running) as cluster:
        yield cluster


@contextmanager
def two_attempts_only(cluster: Cluster) -> Iterator[None]:
    """What the cluster asks for in vain it asks for twice, however long an answer takes, and has no time left for a third attempt."""
    pauses = iter((0.01,))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cluster, "pause_seconds", lambda failures: next(pauses, 3_600.0))
        yield


async def create_topic(cluster: Cluster, name: str, partitions: int = 1, replication_factor: int = 1, **settings: str) -> None:
    """Makes a topic, and waits until the brokers name a leader of each partition."""
    topic = NewTopic(name, partitions, replication_factor, {key.replace("_", "."): value for key, value in settings.items()})
    for error in (await create_topics(cluster, [topic])).values():
        raise error
    for number in range(partitions):
        await with_leader(cluster, TopicPartition(name, number), itself)


async def with_leader(cluster: Cluster, partition: TopicPartition, attempt: Callable[[BrokerId], Awaitable[T]]) -> T:
    """Calls it with who leads the partition, again and again until it gives something."""

    async def at_leader(_: BrokerConnection) -> T:
        await cluster.refresh((partition.topic,))
        return await attempt(await cluster.leader(partition))

    return await cluster.with_any(at_leader)


async def itself(leader: BrokerId) -> BrokerId:
    """For `with_leader`: who it is."""
    return leader


async def all_ended(cluster: Cluster) -> None:
    """Waits until the transactions have ended of which it is decided how: a producer is answered before the markers are written."""
    async with asyncio.timeout(120):
        while any([await list_transactions(cluster, state) for state in ("PrepareCommit", "PrepareAbort")]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def wait_until_all_ended(bootstrap_servers: str) -> None:
    """As `all_ended`, in a thread that may block."""

    async def ended() -> None:
        async with Cluster(bootstrap_servers) as cluster:
            await all_ended(cluster)

    with LoopThread("transactions") as loop:
        loop.call(ended(), 120)


async def produce(cluster: Cluster, partition: TopicPartition, batch: bytes) -> int:
    """Writes one batch by Produce v9 as kio has it, not by `wire.producing`; gives its base offset."""

    async def attempt(leader: BrokerId) -> int:
        answer = await cluster.ask(
            leader,
            ApiKey.PRODUCE,
            (9, 9),
            lambda api: api.build(
                "ProduceRequest",
                transactional_id=None,
                acks=-1,
                timeout=30_000,
                topic_data=[
                    api.build(
                        "TopicProduceData",
                        name=partition.topic,
                        partition_data=[api.build("PartitionProduceData", index=partition.partition, records=batch)],
                    )
                ],
            ),
        )
        (answered,) = answer.responses[0].partition_responses
        if answered.error_code:
            raise error_of(int(answered.error_code))
        return int(answered.base_offset)

    return await with_leader(cluster, partition, attempt)


async def produce_at(cluster: Cluster, partition: TopicPartition, *timestamps: int) -> int:
    """Writes a batch of one record for each timestamp, and gives its first offset."""
    records = [Record(index, timestamp, b"key", b"value") for index, timestamp in enumerate(timestamps)]
    return await produce(cluster, partition, build_batch(records))
