"""Brokers, sessions, connections and requests in any order: afterwards all agree with ZooKeeper, and no answer was a lie.

Method: a seeded schedule does what can happen to three brokers of which the data is made up; then everything is whole
again, and within the time of the test every broker must say the same, every partition must be led if a replica in sync
lives, and each topic must be there or not as the last answer about it said.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import pytest

from ottla.coordination import znodes
from ottla.errors import ApiError, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition
from ottla.interbroker.calls import NewTopic
from ottla.model import BrokerId

from .clusters import ONE, THREE, TWO, Cluster, states

ALL = (ONE, TWO, THREE)


@pytest.fixture(autouse=True)
def _answers_are_heard_by_all() -> None:
    """Not here, where brokers that hear nothing are a part of what happens."""


class Schedule:
    """What happens to a cluster, by a seed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.expected: dict[str, bool] = {}  # whether a topic is there; missing while no one knows
        self.history: list[str] = []
        self._made = 0

    async def step(self) -> None:
        events: list[tuple[int, Callable[[], Awaitable[str]]]] = [
            (6, self.create),
            (3, self.delete),
            (2, self.kill),
            (4, self.start),
            (2, self.renew_session),
            (4, self.break_connection),
            (1, self.force_election),
            (2, self.cut),
            (2, self.turn_deaf),
            (3, self.pause),
        ]
        event = self.random.choices([each for _, each in events], [weight for weight, _ in events])[0]
        self.history.append(f"{event.__name__}: {await event()}")

    def any_broker(self) -> BrokerId | None:
        return self.random.choice(sorted(self.cluster.services)) if self.cluster.services else None

    async def create(self) -> str:
        broker_id = self.any_broker()
        if broker_id is None:
            return "nobody"
        self._made += 1
        name = f"topic-{self._made}"
        factor = self.random.randint(1, 3)
        try:
            await self.cluster.services[broker_id].create_topic(NewTopic(name, self.random.randint(1, 4), factor), timeout_seconds=0.1)
            self.expected[name] = True
        except (ApiError, TimeoutError) as error:
            assert not isinstance(error, TopicAlreadyExists), name
            return f"{name}, {error!r}"
        return name

    async def delete(self) -> str:
        broker_id, names = self.any_broker(), sorted(name for name, is_there in self.expected.items() if is_there)
        if broker_id is None or not names:
            return "nothing"
        name = self.random.choice(names)
        try:
            await self.cluster.services[broker_id].delete_topic(name, timeout_seconds=0.1)
            self.expected[name] = False
        except RequestTimedOut as error:
            del self.expected[name]
            return f"{name}, {error!r}"
        except ApiError as error:
            assert not isinstance(error, UnknownTopicOrPartition), name
            del self.expected[name]  # part of it may have taken place
            return f"{name}, {error!r}"
        return name

    async def kill(self) -> str:
        broker_id = self.any_broker()
        if broker_id is not None:
            await self.cluster.kill(broker_id)
        return str(broker_id)

    async def start(self) -> str:
        away = [broker_id for broker_id in ALL if broker_id not in self.cluster.services]
        if not away:
            return "all are there"
        broker_id = self.random.choice(away)
        await self.cluster.start(broker_id, previous_broker_epoch=self.random.choice([-1, 1]))
        return str(broker_id)

    async def renew_session(self) -> str:
        broker_id = self.any_broker()
        if broker_id is not None:
            service, session = self.cluster.services[broker_id], self.cluster.sessions[broker_id]
            if self.random.random() < 0.5:
                service.session_lost()
            await self.cluster.zookeeper.expire(session)
            service.session_lost()
            self.cluster.sessions[broker_id] = await self.cluster.zookeeper.session()
            await service.rejoin(self.cluster.sessions[broker_id])
        return str(broker_id)

    async def break_connection(self) -> str:
        broker_id = self.any_broker()
        if broker_id is not None:
            self.cluster.zookeeper.break_connection(self.cluster.sessions[broker_id], request_arrives=self.random.random() < 0.5)
        return str(broker_id)

    async def force_election(self) -> str:
        session = await self.cluster.zookeeper.session()
        with contextlib.suppress(Exception):
            await session.delete("/controller")
        await session.close()
        return ""

    async def cut(self) -> str:
        self.cluster.hub.heal()
        one, other = self.random.sample(ALL, 2)
        self.cluster.hub.partition(one, other)
        return f"{one} from {other}"

    async def turn_deaf(self) -> str:
        broker_id = self.any_broker()
        if broker_id is not None:
            broker = self.cluster.brokers[broker_id]
            broker.is_deaf = not broker.is_deaf
        return str(broker_id)

    async def pause(self) -> str:
        for _ in range(self.random.randrange(20)):
            await asyncio.sleep(0)
        return ""

    async def make_whole(self) -> None:
        self.cluster.hub.heal()
        for broker in self.cluster.brokers.values():
            broker.is_deaf = False
        while set(self.cluster.services) != set(ALL):
            await self.start()


async def disagreement(cluster: Cluster, expected: Mapping[str, bool]) -> str:
    """What is not as it has to be once everything is whole; nothing when all is."""
    told = {broker_id: states(each.metadata) for broker_id, each in cluster.brokers.items()}
    metadata = cluster.brokers[ONE].metadata
    topics = {key.topic for key in metadata}
    if any(metadata != told[ONE] for metadata in told.values()):
        return f"brokers do not say the same: {told}"
    for name, is_there in expected.items():
        if (name in topics) != is_there:
            return f"topic {name} is {'not ' * is_there}there"
    for key, assignment in metadata.items():
        state = assignment.state
        path = znodes.PARTITION_STATE.path(*key)
        written = znodes.decode_partition_state(path, await cluster.data(path), state.replicas)
        if written != state:
            return f"{key}: {state} was told and {written} is written"
        if state.leader not in state.isr:  # all brokers live, so whoever is in sync can lead
            return f"{key}: {state} has no leader"
        if [broker_id for broker_id, each in cluster.brokers.items() if key in each.leads()] != [state.leader]:
            return f"{key}: {state.leader} does not know that it leads"
    for broker_id, broker in cluster.brokers.items():
        if {key for key, each in metadata.items() if broker_id in each.state.replicas} != set(broker.replicas):
            return f"broker {broker_id} has replicas of {sorted(broker.replicas)}"
    return ""


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
async def test_whatever_happened_all_agree_in_the_end(cluster: Cluster, seed: int) -> None:
    await cluster.start_three()
    schedule = Schedule(cluster, seed)
    for _ in range(30):
        await schedule.step()
    await schedule.make_whole()
    wrong = "not looked at yet"
    try:
        async with asyncio.timeout(90):
            while wrong:
                wrong = await disagreement(cluster, schedule.expected)
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError("\n".join([*schedule.history, wrong])) from None
    await cluster.services[ONE].create_topic(NewTopic("the-last", 3, 3))
