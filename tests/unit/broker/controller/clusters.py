"""A ZooKeeper in memory with controllers on it, one after the other, and what can go wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from ottla.broker.controller.changes import (
    MetadataChange,
)
from ottla.broker.controller.controller import Controller
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.interface import Coordination, Operation, Result
from ottla.errors import (
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, BrokerRegistration, Endpoint
from ottla.testing.clock import ManualClock

ONE = BrokerId(1)
REGISTRATION = BrokerRegistration(ONE, (Endpoint("PLAINTEXT", "broker.test", 9092),))


class Cluster:
    """A ZooKeeper with controllers on it, one after the other."""

    def __init__(self, **properties: str) -> None:
        self.clock = ManualClock()
        self.zookeeper = EmbeddedZooKeeper(None, self.clock)
        self.settings = BrokerSettings.from_properties({"broker.id": "1", **properties})
        self.changes: list[MetadataChange] = []
        self.session: EmbeddedSession
        self.controller: Controller

    async def start(self, wrapped: Callable[[EmbeddedSession], Coordination] = lambda session: session, timeout: float = 5) -> Controller:
        """A controller in a new session."""
        self.session = await self.zookeeper.session()
        self.changes = []
        self.controller = Controller(wrapped(self.session), self.settings, self.clock, Random(1), self.apply, timeout)
        await self.controller.start(REGISTRATION)
        return self.controller

    async def apply(self, change: MetadataChange) -> None:
        self.changes.append(change)

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

    async def data(self, path: str) -> bytes:
        session = await self.zookeeper.session()
        try:
            return (await session.get(path))[0]
        finally:
            await session.close()


def run(scenario: Callable[[Cluster], Awaitable[None]], **properties: str) -> None:
    async def main() -> None:
        cluster = Cluster(**{name.replace("_", "."): value for name, value in properties.items()})
        try:
            async with asyncio.timeout(20):
                await scenario(cluster)
        finally:
            await cluster.zookeeper.close()

    asyncio.run(main())


async def looked_again(controller: Controller) -> None:
    """Waits until what a watch set off is done: another operation comes after it."""
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(UnknownTopicOrPartition):
        await controller.delete_topic("no-such-topic")


class Dies(Exception):
    """The broker is gone at this point."""


class MortalSession:
    """A session whose process dies at a transaction that matches: nothing of it, or all of it, takes place."""

    def __init__(self, session: EmbeddedSession, dies_at: str, takes_place: bool) -> None:
        self._session = session
        self._dies_at = dies_at
        self._takes_place = takes_place
        self._is_dead = False

    def __getattr__(self, name: str) -> object:
        if self._is_dead:
            raise Dies
        return getattr(self._session, name)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if any(self._dies_at in repr(each) for each in operations):
            self._is_dead = True
            if self._takes_place:
                await self._session.transaction(operations)
        if self._is_dead:
            raise Dies
        return await self._session.transaction(operations)
