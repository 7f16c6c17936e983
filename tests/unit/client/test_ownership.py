"""No two consumers own a partition at once, whatever ZooKeeper it is: the owners' znodes are watched through joins, leaves and kills.

The brokers' own coordination is the twin beside them. The group meets in the service under test, where the brokers' znodes are copied to:
what a consumer needs of them is where they listen and how many partitions there are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.examples import examples
from tests.unit.client.groups import group
from tests.unit.coordination.implementations import IMPLEMENTATIONS, Implementation
from tests.unit.wire.clusters import create_topic

from ottla.client.consumer_connector import AsyncConsumerConnector
from ottla.config.client import ConsumerSettings
from ottla.coordination.errors import NoNode
from ottla.coordination.interface import Coordination, WatchedEvent
from ottla.coordination.sessions import OpenSession

PARTITIONS = 8
STEPS = 20  # ten times as many with `--hypothesis-profile thorough`
OWNERS = "/consumers/g/owners/clicks"


class Owners:
    """Who owns each partition, as its znode said last. An owner is followed by no one before it is followed by another."""

    def __init__(self, session: Coordination, look: Callable[[], None]) -> None:
        self._session = session
        self._look = look
        self.changes = 0

    def watched(self, event: WatchedEvent) -> None:
        self.changes += 1
        self._look()

    async def watch(self) -> None:
        """Reads all, and watches what it has read until something has changed."""
        while True:
            changed = asyncio.Event()

            def again(event: WatchedEvent, changed: asyncio.Event = changed) -> None:
                self.watched(event)
                changed.set()

            try:
                await self._session.children(OWNERS, again)
            except NoNode:
                await self._session.exists(OWNERS, again)
            await changed.wait()


async def is_settled(look: Coordination, consumers: Mapping[str, tuple[AsyncConsumerConnector, object]]) -> bool:
    """Whether every partition has an owner, who takes itself for it."""
    paths = [f"{OWNERS}/{number}" for number in range(PARTITIONS)]
    said = [None if found is None else found[0].decode() for found in await look.get_many(paths)]
    owned = {partition.partition: f"{name}-0" for name, (connector, _) in consumers.items() for partition in connector.owned}
    return said == [owned.get(number, "nobody") for number in range(PARTITIONS)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
async def test_no_two_consumers_own_a_partition_at_once(
    implementation: Implementation, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened = implementation.open(tmp_path, request)
    chance = random.Random(11)
    async with group(tmp_path / "brokers") as found, opened as service:
        await create_topic(found.cluster, "clicks", PARTITIONS)
        look = await service.session()
        for path in ("/brokers/ids/1", "/brokers/topics/clicks"):
            await look.create(path, (await found.look.get(path))[0], make_parents=True)
        consumers: dict[str, tuple[AsyncConsumerConnector, list[Coordination]]] = {}

        def check() -> None:
            owned = [partition for connector, _ in consumers.values() for partition in connector.owned]
            assert len(owned) == len(set(owned)), sorted(owned)

        owners = Owners(look, check)
        watching = asyncio.create_task(owners.watch())

        def opening(sessions: list[Coordination]) -> OpenSession:
            async def open_session() -> Coordination:
                sessions.append(await service.session())
                return sessions[-1]

            return open_session

        async def join(name: str) -> None:
            sessions: list[Coordination] = []
            settings = ConsumerSettings(group_id="g", consumer_id=name, rebalance_backoff_ms=100, auto_offset_reset="smallest")
            connector = AsyncConsumerConnector(settings, open_session=opening(sessions))
            consumers[name] = (connector, sessions)
            await connector.create_message_streams({"clicks": 1})

        killed: list[Coordination] = []
        await join("first")
        for step in range(examples(STEPS)):
            action = chance.choice(("join", "join", "leave", "kill"))
            if action == "join" and len(consumers) < 5:
                await join(f"c{step}")
            elif action != "join" and len(consumers) > 1:
                name = chance.choice(sorted(consumers))
                connector, sessions = consumers[name]
                if action == "leave":
                    del consumers[name]
                    await connector.shutdown()
                elif sessions[-1] not in killed:
                    killed.append(sessions[-1])
                    await service.expire(sessions[-1])
            check()
            assert not watching.done()
        async with asyncio.timeout(120):
            while not await is_settled(look, consumers):  # noqa: ASYNC110  # what is looked at tells no one
                await asyncio.sleep(0.02)
        check()
        assert owners.changes > 0
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for connector, _ in consumers.values():
            await connector.shutdown()
