"""A ZooKeeper in memory with brokers on it that have a controller and no data, and what can go wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import cast
from uuid import UUID

import pytest
from tests.loops import until

from ottla.broker.controller.service import ControllerService
from ottla.broker.controller.settings_watch import SettingsChange
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.interface import Coordination, Operation, Result
from ottla.errors import FencedLeaderEpoch, RequestTimedOut, StaleBrokerEpoch, StaleControllerEpoch, UnknownTopicOrPartition
from ottla.interbroker.calls import (
    NO_LOG,
    AllReplicas,
    BrokerControl,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    PartitionAssignment,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from ottla.interbroker.local import LocalControl, LocalTransport
from ottla.model import BrokerId, BrokerRegistration, Endpoint, TopicDescription, TopicPartition
from ottla.testing.clock import DEFAULT_START_MS, ManualClock

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
FIRST_ID = 1_000 * DEFAULT_START_MS  # of producers
REGISTRATION = BrokerRegistration(ONE, (Endpoint("PLAINTEXT", "broker.test", 9092),))

Wrap = Callable[[EmbeddedSession], Coordination]


class FakeBroker(BrokerControl):
    """A broker that does what it is told, and keeps no data: `ottla.interbroker.calls.BrokerControl`.

    Attributes:
        service: its part in the control of the cluster.
        replicas: what it leads and follows.
        metadata: what it would answer its clients.
        brokers: those that live, as it would answer its clients.
        stopped: the replicas that it gave up, and whether with their files.
        written_epochs: the latest leader epoch of each log that has records already.
        ends: where its logs end; it has no others.
        errors: what it answers for a replica instead of doing as it is told.
        is_deaf: whether it hears nothing.
        requests: how often it was told something.
        all_replicas: what it was told to be all that it has, each time.
        all_topics: what it was told last to be all that there are.
        deleted_topics: what it was told to be gone, each time.
        heard: what it did as it was told, in order.
    """

    def __init__(self) -> None:
        self.service: ControllerService
        self.replicas: dict[TopicPartition, PartitionAssignment] = {}
        self.metadata: dict[TopicPartition, PartitionAssignment] = {}
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self.stopped: list[tuple[TopicPartition, bool]] = []
        self.errors: dict[TopicPartition, int] = {}
        self.written_epochs: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, LogEnd] = {}
        self.is_deaf = False
        self.requests = 0
        self.request_numbers: list[int] = []
        self.all_replicas: list[AllReplicas] = []
        self.all_topics: tuple[str, ...] | None = None
        self.deleted_topics: list[str] = []
        self.heard: list[str] = []
        self.controllers: list[BrokerId] = []
        self._controller_epoch = 0

    def topics(self) -> dict[str, TopicDescription]:
        """The topics as it would answer its clients."""
        found: dict[str, list[PartitionAssignment]] = {}
        for key in sorted(self.metadata):
            found.setdefault(key.topic, []).append(self.metadata[key])
        return {
            name: TopicDescription(name, partitions[0].topic_id, tuple(partition.state for partition in partitions))
            for name, partitions in found.items()
        }

    def topic_id(self, name: str) -> UUID | None:
        topics = self.topics()
        return topics[name].topic_id if name in topics else None

    def leads(self) -> list[TopicPartition]:
        """The partitions that it was told to lead."""
        own = self.service.registration
        assert own is not None
        return sorted(key for key, each in self.replicas.items() if each.state.leader == own.broker_id)

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        self._check(request)
        self.heard.append("leader_and_isr")
        self.service.learn_topic_overrides(request.topic_configs)
        refused = {
            key: epoch
            for partition in request.partitions
            if (epoch := self.written_epochs.get(key := partition.topic_partition, -1)) >= partition.state.leader_epoch
        }
        for partition in request.partitions:
            if partition.topic_partition not in self.errors and partition.topic_partition not in refused:
                self.replicas[partition.topic_partition] = partition
        if request.all_replicas is not None:
            self.all_replicas.append(request.all_replicas)
            self.replicas = {key: each for key, each in self.replicas.items() if not request.all_replicas.is_stray(key, each.topic_id)}
        errors = {partition.topic_partition: self.errors.get(partition.topic_partition, 0) for partition in request.partitions}
        return LeaderAndIsrResponse({**errors, **dict.fromkeys(refused, FencedLeaderEpoch.code)}, refused)

    async def update_metadata(self, request: UpdateMetadataRequest) -> None:
        self._check(request)
        self.heard.append("update_metadata" if request.all_topics is None else "update_metadata, all")
        self.all_topics = request.all_topics if request.all_topics is not None else self.all_topics
        self.deleted_topics += request.deleted_topics
        self.service.forget_topics(request.deleted_topics)
        if request.all_topics is not None:
            self.service.keep_topics(request.all_topics)
        self.service.learn_topic_overrides(request.topic_configs)
        if request.deleted_topics or request.all_topics is not None:
            named = {partition.topic for partition in self.metadata} if request.all_topics is None else set(request.all_topics)
            kept = named.difference(request.deleted_topics)
            self.metadata = {key: each for key, each in self.metadata.items() if key.topic in kept}
        self.metadata.update((partition.topic_partition, partition) for partition in request.partitions)
        self.brokers = {broker.broker_id: broker for broker in request.brokers}

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        self._check(request)
        for partition in request.partitions:
            if partition.topic_partition not in self.errors:
                self.replicas.pop(partition.topic_partition, None)
                self.stopped.append((partition.topic_partition, partition.delete))
        return StopReplicaResponse(
            {partition.topic_partition: self.errors.get(partition.topic_partition, 0) for partition in request.partitions}
        )

    async def log_ends(self, request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        if self.is_deaf:
            raise RequestTimedOut("it hears nothing")
        return {key: self.ends.get(key, NO_LOG) for key in request.partitions}

    async def drain(self) -> None:
        await self.service.drain()

    async def undrain(self) -> None:
        await self.service.undrain()

    def _check(self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest) -> None:
        self.requests += 1
        self.request_numbers.append(request.request_number)
        if self.is_deaf:
            raise RequestTimedOut("it hears nothing")
        own = self.service.registration
        if own is None or request.broker_epoch < own.broker_epoch:
            raise StaleBrokerEpoch(f"told in epoch {request.broker_epoch}")
        if request.controller_epoch < self._controller_epoch:
            raise StaleControllerEpoch(f"told by controller epoch {request.controller_epoch}, and {self._controller_epoch} has begun")
        self._controller_epoch = request.controller_epoch


class Cluster:
    """A ZooKeeper, by default in memory, with brokers on it. `session` and `broker` are those of the latest that was started."""

    def __init__(self, zookeeper: EmbeddedZooKeeper | None = None, **properties: str) -> None:
        self.clock = ManualClock()
        self.zookeeper = zookeeper or EmbeddedZooKeeper(None, self.clock)
        self.hub = LocalControl(timeout_seconds=60)
        self.properties = properties
        self.changes: list[SettingsChange] = []
        self.session: EmbeddedSession
        self.broker: FakeBroker
        self.sessions: dict[BrokerId, EmbeddedSession] = {}
        self.brokers: dict[BrokerId, FakeBroker] = {}
        self.services: dict[BrokerId, ControllerService] = {}
        self._all: list[ControllerService] = []

    def settings(self, broker_id: BrokerId = ONE) -> BrokerSettings:
        return BrokerSettings.from_properties({"broker.id": str(broker_id), **self.properties})

    async def make(
        self, broker_id: BrokerId = ONE, wrapped: Wrap = lambda session: session, timeout: float = 5
    ) -> tuple[ControllerService, FakeBroker]:
        """A broker in a new session, that has not started."""
        self.session = self.sessions[broker_id] = await self.zookeeper.session()
        broker = self.broker = self.brokers[broker_id] = FakeBroker()
        self.changes = []
        service = self.services[broker_id] = broker.service = ControllerService(
            wrapped(self.session),
            self.settings(broker_id),
            self.clock,
            Random(broker_id),
            self.hub.transport,
            self.changes.append,
            lambda controller_id, _: broker.controllers.append(controller_id),
            broker,
            timeout,
        )
        self._all.append(service)
        await service.transport.serve(broker_id, broker, service.served)
        return service, broker

    async def start(
        self,
        broker_id: BrokerId = ONE,
        wrapped: Wrap = lambda session: session,
        timeout: float = 5,
        previous_broker_epoch: int = -1,
        rack: str | None = None,
    ) -> ControllerService:
        """A broker in a new session."""
        service, _ = await self.make(broker_id, wrapped, timeout)
        endpoints = (Endpoint("PLAINTEXT", "broker.test", 9091 + broker_id),)
        await service.start(BrokerRegistration(broker_id, endpoints, rack, previous_broker_epoch=previous_broker_epoch))
        return service

    async def start_three(self) -> list[ControllerService]:
        """Brokers 1, 2 and 3; the first is the controller and knows of the others."""
        services = [await self.start(broker_id) for broker_id in (ONE, TWO, THREE)]
        await until(lambda: all(set(broker.brokers) == {1, 2, 3} for broker in self.brokers.values()))
        return services

    @property
    def controller(self) -> ControllerService:
        """The broker that is the controller."""
        (active,) = [service for service in self.services.values() if service.is_active]
        return active

    async def settled(self, *leaders: int) -> None:
        """Waits until every broker says of every partition that one of these leads it, and each of them knows what it leads."""

        def agrees() -> bool:
            metadata = [states(broker.metadata) for broker in self.brokers.values()]
            told = {key: broker_id for broker_id, broker in self.brokers.items() for key in broker.leads()}
            led = {key: leader for key, (leader, _) in metadata[0].items()}
            return all(known == metadata[0] for known in metadata) and led == told and set(led.values()) <= set(leaders)

        await until(agrees)

    async def kill(self, broker_id: BrokerId) -> None:
        """Ends a broker's session, as that of one that was killed ends after its timeout, and everything that it does."""
        cast("LocalTransport", self.services[broker_id].transport).abort()
        self.services[broker_id].session_lost()
        await self.zookeeper.expire(self.sessions[broker_id])
        del self.services[broker_id], self.brokers[broker_id], self.sessions[broker_id]

    async def close(self) -> None:
        for service in self._all:
            await service.close()
            await service.transport.close()
        await self.zookeeper.close()

    async def paths(self, root: str = "/") -> list[str]:
        """Every path below one, sorted."""
        session = await self.zookeeper.session()
        found: list[str] = []

        async def walk(path: str) -> None:
            for name in await session.children(path):
                child = f"{path.rstrip('/')}/{name}"
                found.append(child)
                await walk(child)

        await walk(root)
        await session.close()
        return sorted(found)

    async def gone(self, path: str) -> None:
        """Waits until there is no such znode."""
        session, gone = await self.zookeeper.session(), asyncio.Event()
        while await session.exists(path, lambda _: gone.set()) is not None:
            await gone.wait()
            gone.clear()
        await session.close()

    async def data(self, path: str) -> bytes:
        session = await self.zookeeper.session()
        try:
            return (await session.get(path))[0]
        finally:
            await session.close()


@asynccontextmanager
async def clustered(zookeeper: EmbeddedZooKeeper | None = None, **properties: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(zookeeper, **{name.replace("_", "."): value for name, value in properties.items()})
    try:
        async with asyncio.timeout(120):
            yield cluster
    finally:
        await cluster.close()


async def looked_again(service: ControllerService) -> None:
    """Waits until what a watch set off is done: another operation comes after it."""
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(UnknownTopicOrPartition):
        await service.delete_topic("no-such-topic")


class Dies(Exception):
    """The broker is gone at this point."""


class MortalSession:
    """A session whose process dies at a transaction that matches: nothing of it, or all of it, takes place."""

    def __init__(self, session: EmbeddedSession, dies_at: str, takes_place: bool) -> None:
        self._session = session
        self._dies_at = dies_at
        self._takes_place = takes_place
        self._is_dead = False
        self.has_died = False  # and what was to take place has

    def __getattr__(self, name: str) -> object:
        if self._is_dead:
            raise Dies
        return getattr(self._session, name)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if any(self._dies_at in repr(operation) for operation in operations):
            self._is_dead = True
            if self._takes_place:
                await self._session.transaction(operations)
            self.has_died = True
        if self._is_dead:
            raise Dies
        return await self._session.transaction(operations)


def states(described: Mapping[TopicPartition, PartitionAssignment]) -> dict[TopicPartition, tuple[int, tuple[int, ...]]]:
    """Leader and ISR of each partition."""
    return {key: (each.state.leader, each.state.isr) for key, each in described.items()}
