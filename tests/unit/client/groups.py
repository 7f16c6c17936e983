"""Consumers of a group on the test's own loop, in the twin of ZooKeeper that its brokers have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.unit.wire.clusters import brokers, cluster_of

from ottla.broker.in_process import InProcessBrokers
from ottla.client.consumer_connector import AsyncConsumerConnector
from ottla.client.message_stream import AsyncMessageStream
from ottla.config.client import ConsumerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.interface import Coordination
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster


def batch(*values: bytes) -> bytes:
    return build_batch([Record(index, 1_000 + index, None, value) for index, value in enumerate(values)])


@dataclass
class Group:
    """A running cluster and its coordination."""

    running: InProcessBrokers
    cluster: Cluster
    zookeeper: EmbeddedZooKeeper
    look: Coordination

    def consumer(self, name: str, sessions: list[EmbeddedSession] | None = None, **properties: str) -> AsyncConsumerConnector:
        async def open_session() -> Coordination:
            session = await self.zookeeper.session()
            if sessions is not None:
                sessions.append(session)
            return session

        settings = ConsumerSettings.from_properties(
            {
                "group.id": "g",
                "consumer.id": name,
                "auto.offset.reset": "smallest",
                "rebalance.backoff.ms": "100",
                "fetch.wait.max.ms": "20",
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )
        return AsyncConsumerConnector(settings, open_session=open_session)

    @asynccontextmanager
    async def reading(
        self, name: str, sessions: list[EmbeddedSession] | None = None, **properties: str
    ) -> AsyncIterator[tuple[AsyncConsumerConnector, AsyncMessageStream]]:
        """A consumer with one stream of clicks."""
        async with self.consumer(name, sessions, **properties) as connector:
            (stream,) = (await connector.create_message_streams({"clicks": 1}))["clicks"]
            yield connector, stream

    async def offset(self, topic: str, partition: int) -> int:
        return int((await self.look.get(f"/consumers/g/offsets/{topic}/{partition}"))[0])

    async def owners(self, topic: str) -> dict[str, str]:
        path = f"/consumers/g/owners/{topic}"
        if await self.look.exists(path) is None:
            return {}
        names = sorted(await self.look.children(path))
        found = await self.look.get_many([f"{path}/{name}" for name in names])
        return {name: answer[0].decode() for name, answer in zip(names, found, strict=True) if answer is not None}


@asynccontextmanager
async def group(directory: Path) -> AsyncIterator[Group]:
    async with brokers(directory) as running, cluster_of(running) as cluster:
        zookeeper = running._zookeeper
        assert zookeeper is not None
        yield Group(running, cluster, zookeeper, await zookeeper.session())


async def take(stream: AsyncMessageStream, count: int) -> list[bytes | None]:
    """The values of the next messages."""
    found: list[bytes | None] = []
    async with asyncio.timeout(120):
        async for message in stream:
            found.append(message.value)
            if len(found) == count:
                break
    return found
