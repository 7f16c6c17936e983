"""A broker that follows leaders of `leaders`, for tests: the fetchers are real, the replicas are lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.loops import until

from ottla.broker.replication.fetchers import Fetchers
from ottla.broker.replication.throttles import Throttle
from ottla.config.broker import BrokerSettings
from ottla.model import BrokerId, BrokerRegistration, Endpoint, TopicPartition
from ottla.protocol.fetch import FetchRequest
from ottla.testing.clock import ManualClock

from .leaders import SETTINGS, Connection, Leader, Led, Replica, follow_of

P0, P1, P2 = (TopicPartition("flights", index) for index in range(3))


class Follower:
    """A broker that follows, and its leaders."""

    def __init__(self, settings: BrokerSettings, throttle: Throttle | None) -> None:
        self.leaders: dict[str, Leader] = {}
        self.replicas: dict[TopicPartition, Replica] = {}
        self.broker_epoch = 70
        self.brokers: dict[BrokerId, BrokerRegistration] = {}  # as the controller told of them last
        self.fetchers = Fetchers(BrokerId(1), self, settings, ManualClock(), self._connect, self.replicas, self, throttle)

    def leader(self, broker_id: int = 2, **options: int) -> Leader:
        leader = Leader(broker_id, **options)
        self.leaders[f"host-{broker_id}"] = leader
        return leader

    def follow(self, leader: Leader, *partitions: TopicPartition, epoch: int = 0) -> list[Replica]:
        """Follows, as the replica manager does it: first each replica is told, then the fetchers."""
        for partition in partitions:
            self.replicas.setdefault(partition, Replica()).leader_epoch = epoch
        self.fetchers.follow({partition: follow_of(leader, partition, epoch) for partition in partitions})
        return [self.replicas[partition] for partition in partitions]

    async def _connect(self, endpoint: Endpoint) -> Connection:
        return await self.leaders[endpoint.host].connect(endpoint)


@asynccontextmanager
async def following(settings: BrokerSettings = SETTINGS, throttle: Throttle | None = None) -> AsyncIterator[Follower]:
    follower = Follower(settings, throttle)
    before = asyncio.all_tasks()
    try:
        yield follower
    finally:
        for leader in follower.leaders.values():
            leader.gate.set()
        await asyncio.wait_for(follower.fetchers.close(), 120)
    assert not any(leader.open_connections for leader in follower.leaders.values())
    await until(lambda: asyncio.all_tasks() <= before)


async def until_equal(replica: Replica, led: Led) -> None:
    await until(lambda: replica.log == led.log)


def named(request: FetchRequest) -> list[int]:
    return [partition.partition for topic in request.topics for partition in topic.partitions]


def waits(leader: Leader) -> bool:
    """Whether the leader has been asked for everything it has, and has nothing to answer."""
    return bool(leader.requests) and leader.requests[-1].max_wait_ms > 0
