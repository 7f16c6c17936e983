"""A leader asks its followers whether it still leads, and their fetches answer: over real sockets, with the fetch handler between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import until
from tests.unit.broker.wired import BROKER, Client, Wired, fetch, topic_id

from ottla.broker.replication.internal_topics import InternalTopics
from ottla.errors import NotLeaderOrFollower
from ottla.lifecycle import offload_nothing
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey

KEY = TopicPartition("state", 0)
TWO, THREE = BrokerId(2), BrokerId(3)
LONG_MS = 60_000


class Follower:
    """One that fetches in a session."""

    def __init__(self, client: Client, broker_id: BrokerId) -> None:
        self._client = client
        self._broker_id = broker_id
        self._session_id = 0
        self._epoch = 0

    def ask(self, *, max_wait_ms: int = LONG_MS, leader_epoch: int = 0) -> None:
        partitions = [(topic_id("state"), 0, 0)] if self._epoch == 0 else []
        request = fetch(
            *partitions,
            version=17,
            replica=(self._broker_id, 70),
            max_wait_ms=max_wait_ms,
            session_id=self._session_id,
            session_epoch=self._epoch,
            current_leader_epoch=leader_epoch,
        )
        self._client.write(request)

    async def answer(self) -> Any:
        async with asyncio.timeout(120):
            _, response = await self._client.answer(ApiKey.FETCH, 17)
        self._session_id = response.session_id
        self._epoch += 1
        return response

    async def begin(self, leader_epoch: int = 0) -> None:
        """Opens a session, and then waits for records."""
        self.ask(max_wait_ms=0, leader_epoch=leader_epoch)
        await self.answer()
        self.ask()


def internal_of(broker: Wired) -> InternalTopics:
    return InternalTopics(broker.parts.replicas, broker.produces, broker.clock, offload_nothing)


async def followers_of(broker: Wired, *broker_ids: BrokerId) -> list[Follower]:
    made = [Follower(await broker.connect(), broker_id) for broker_id in broker_ids]
    for follower in made:
        await follower.begin()
    await until(lambda: len(broker.parts.fetch_purgatory) == len(made))
    return made


async def test_a_leader_alone_in_the_isr_asks_nobody(broker: Wired) -> None:
    broker.topic("state")
    await internal_of(broker).check_still_led(KEY, 0, 120)


async def test_followers_that_wait_are_answered_at_once_and_their_next_fetch_says_it(broker: Wired) -> None:
    """No one waits for `replica.fetch.wait.max.ms`."""
    broker.topic("state", isr=(BROKER, TWO, THREE))
    two, three = await followers_of(broker, TWO, THREE)
    asking = asyncio.ensure_future(internal_of(broker).check_still_led(KEY, 0, 120))
    for follower in (two, three):
        await follower.answer()
    assert not asking.done()
    two.ask()
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    assert not asking.done()
    three.ask()
    await asking
    await until(lambda: len(broker.parts.fetch_purgatory) == 2)  # and both wait for records again


async def test_several_that_ask_are_answered_together(broker: Wired) -> None:
    """A question that was asked before proves nothing of now, so those that come while it is open share the next one."""
    broker.topic("state", isr=(BROKER, TWO))
    (two,) = await followers_of(broker, TWO)
    internal = internal_of(broker)
    asking = asyncio.gather(*(internal.check_still_led(KEY, 0, 120) for _ in range(100)))
    fetches = 0
    while not asking.done():
        answered = asyncio.ensure_future(two.answer())
        await asyncio.wait([asking, answered], return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            two.ask()
            fetches += 1
        answered.cancel()
    await asking
    assert fetches <= 4


@pytest.mark.parametrize("how", ["silent", "in another epoch", "another leads"])
async def test_a_leader_of_the_past_can_not_be_sure(broker: Wired, how: str) -> None:
    broker.topic("state", isr=(BROKER, TWO))
    (two,) = await followers_of(broker, TWO)
    asking = asyncio.ensure_future(internal_of(broker).check_still_led(KEY, 0, 0.5))
    await two.answer()
    if how == "in another epoch":
        again = Follower(await broker.connect(), TWO)
        await again.begin(leader_epoch=1)  # it has been told of another leader epoch
    elif how == "another leads":
        broker.follow("state", TWO, epoch=1)
    with pytest.raises(NotLeaderOrFollower, match="state-0"):
        await asking


async def test_a_follower_that_leaves_the_isr_is_not_waited_for(broker: Wired) -> None:
    broker.topic("state", isr=(BROKER, TWO, THREE))
    (two,) = await followers_of(broker, TWO)
    asking = asyncio.ensure_future(internal_of(broker).check_still_led(KEY, 0, 120))
    await two.answer()
    two.ask()
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    assert not asking.done()
    broker.change_isr("state", (BROKER, TWO))
    await asking


async def test_who_does_not_lead_does_not_ask(broker: Wired) -> None:
    broker.topic("state", isr=(BROKER, TWO))
    broker.follow("state", TWO, epoch=1)
    with pytest.raises(NotLeaderOrFollower):
        await internal_of(broker).check_still_led(KEY, 0, 120)
