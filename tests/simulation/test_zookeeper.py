"""Sessions with the simulated ZooKeeper: what its client promises holds, and what it does not promise happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import SkewedClock
from tests.simulation.network import Network
from tests.simulation.nodes import Node
from tests.simulation.test_loop import run
from tests.simulation.trace import Trace
from tests.simulation.zookeeper import NAME, SimulatedSession, SimulatedZooKeeper

from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, NoNode, SessionExpired
from ottla.coordination.interface import EventType, SessionEvent, WatchedEvent
from ottla.lifecycle import offload_nothing

TIMEOUT = 6.0


class World:
    """A ZooKeeper and two nodes, `a` and `b`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        trace = Trace(loop.time)
        self.network = Network(loop, Random(7), trace)
        self.zookeeper = SimulatedZooKeeper(
            self.network, trace, EmbeddedZooKeeper(None, SkewedClock(loop, 0), offload_nothing), session_timeout_seconds=TIMEOUT
        )
        self.a, self.b = Node("a"), Node("b")

    async def session(self, node: Node) -> SimulatedSession:
        return await self.loop.spawn(node, self.zookeeper._open())

    async def at(self, node: Node, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.loop.spawn(node, work)

    def block(self, name: str) -> None:
        self.network.block(name, NAME)
        self.network.block(NAME, name)
        self.zookeeper.connectivity_changed()

    def unblock(self, name: str) -> None:
        self.network.unblock(name, NAME)
        self.network.unblock(NAME, name)
        self.zookeeper.connectivity_changed()


def simulated(story: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Makes a test of a story: it runs on a virtual loop, in a world of its own."""

    def test() -> None:
        run(lambda loop: story(World(loop)))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


@simulated
async def test_operations_take_time_and_sessions_see_each_other(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    before = world.loop.time()
    await world.at(world.a, a.create("/x", b"1"))
    assert world.loop.time() > before
    assert (await world.at(world.b, b.get("/x")))[0] == b"1"
    with pytest.raises(NoNode):
        await world.at(world.b, b.get("/y"))


@simulated
async def test_a_watch_that_is_set_again_and_again_fires_once(world: World) -> None:
    """As a real client's. Otherwise each change of one of two paths that are always looked at together adds a look at the next change."""
    session = await world.session(world.a)
    for path in ("/x", "/y"):
        await world.at(world.a, session.create(path))
    told: list[WatchedEvent] = []

    def watch(event: WatchedEvent) -> None:
        told.append(event)

    for number in range(4):
        for path in ("/x", "/y"):
            await world.at(world.a, session.children(path, watch))
        await world.at(world.a, session.create(f"/x/{number}"))
        await asyncio.sleep(5.0)
    await world.at(world.a, session.create("/y/0"))
    await asyncio.sleep(5.0)
    assert told == [WatchedEvent(EventType.CHILDREN, "/x")] * 4 + [WatchedEvent(EventType.CHILDREN, "/y")]


@simulated
async def test_a_watch_is_told_before_an_answer_that_shows_what_it_is_about(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    await world.at(world.a, a.create("/x", b"0"))
    for number in range(1, 50):
        told: list[WatchedEvent] = []
        await world.at(world.b, b.get("/x", told.append))
        writing = world.loop.spawn(world.a, a.set("/x", str(number).encode()))
        while (await world.at(world.b, b.get("/x")))[0] != str(number).encode():
            pass
        assert [watched_event.event_type for watched_event in told] == [EventType.CHANGED]
        await writing


@simulated
async def test_requests_of_one_session_are_done_in_their_order(world: World) -> None:
    a = await world.session(world.a)
    await world.at(world.a, a.create("/x"))
    await asyncio.gather(*(world.at(world.a, a.set("/x", str(number).encode())) for number in range(20)))
    assert (await world.at(world.a, a.get("/x")))[0] == b"19"


@simulated
async def test_a_node_that_is_not_heard_of_loses_its_ephemerals_and_learns_of_it_when_it_hears_again(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    events: list[SessionEvent] = []
    a.on_session_event(events.append)
    await world.at(world.a, a.create("/me", ephemeral=True))
    world.block("a")
    await asyncio.sleep(TIMEOUT * 0.9)
    assert await world.at(world.b, b.exists("/me")) is not None
    assert events == [SessionEvent.SUSPENDED]
    await asyncio.sleep(TIMEOUT)
    assert await world.at(world.b, b.exists("/me")) is None
    assert events == [SessionEvent.SUSPENDED], "a zombie does not know yet"
    with pytest.raises(ConnectionLoss):
        await world.at(world.a, a.create("/written-by-a-zombie"))
    world.unblock("a")
    await asyncio.sleep(2)
    assert events == [SessionEvent.SUSPENDED, SessionEvent.EXPIRED]
    with pytest.raises(SessionExpired):
        await world.at(world.a, a.get("/me"))
    assert await world.at(world.b, b.exists("/written-by-a-zombie")) is None


@simulated
async def test_a_short_silence_is_survived_with_the_watches_that_fired_meanwhile(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    told: list[WatchedEvent] = []
    await world.at(world.a, a.create("/x"))
    await world.at(world.a, a.get("/x", told.append))
    await world.at(world.a, a.create("/me", ephemeral=True))
    world.block("a")
    await asyncio.sleep(TIMEOUT * 0.8)
    await world.at(world.b, b.set("/x", b"new"))
    assert told == []
    world.unblock("a")
    await asyncio.sleep(2)
    assert len(told) == 1
    assert await world.at(world.a, a.exists("/me")) is not None


@simulated
async def test_a_watch_that_fired_on_a_connection_that_was_lost_is_told_on_the_next(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    for number in range(20):
        told: list[WatchedEvent] = []
        await world.at(world.a, a.create(f"/{number}"))
        await world.at(world.a, a.get(f"/{number}", told.append))
        writing = world.loop.spawn(world.b, b.set(f"/{number}", b"new"))
        await asyncio.sleep(number / 10_000)
        world.zookeeper.lose_connection("a")
        await writing
        await asyncio.sleep(2)
        assert len(told) == 1


@simulated
async def test_a_connection_that_a_client_gives_up_brings_it_nothing_any_more(world: World) -> None:
    """It hears of the second loss only on the connection after, and what was on its way on that one comes again on the next."""
    a, b = await world.session(world.a), await world.session(world.b)
    told: list[WatchedEvent] = []
    await world.at(world.a, a.create("/x"))
    await world.at(world.a, a.get("/x", told.append))
    world.zookeeper.lose_connection("a")
    world.network.weather.shortest = 0.5
    writing = world.loop.spawn(world.b, b.set("/x", b"new"))
    await asyncio.sleep(0)
    world.network.weather.shortest = 1.0
    world.zookeeper.lose_connection("a")
    await writing
    await asyncio.sleep(5)
    assert len(told) == 1


@simulated
async def test_the_outcome_of_what_was_on_its_way_at_a_lost_connection_is_unknown(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    await world.at(world.b, b.create("/x"))
    creating = world.loop.spawn(world.a, a.create("/x/y"))
    await asyncio.sleep(0)
    world.zookeeper.lose_connection("a")
    with pytest.raises(ConnectionLoss):
        await creating
    assert await world.at(world.a, a.exists("/x")) is not None, "the session goes on"


@simulated
async def test_the_session_of_a_killed_node_lasts_until_its_timeout(world: World) -> None:
    a, b = await world.session(world.a), await world.session(world.b)
    await world.at(world.a, a.create("/me", ephemeral=True))
    world.loop.kill(world.a)
    world.zookeeper.connectivity_changed()
    await asyncio.sleep(TIMEOUT * 0.9)
    assert await world.at(world.b, b.exists("/me")) is not None
    await asyncio.sleep(TIMEOUT)
    assert await world.at(world.b, b.exists("/me")) is None


@simulated
async def test_a_paused_node_wakes_up_without_its_session(world: World) -> None:
    a = await world.session(world.a)
    events: list[SessionEvent] = []
    a.on_session_event(events.append)
    world.loop.pause(world.a)
    world.zookeeper.connectivity_changed()
    await asyncio.sleep(TIMEOUT * 2)
    assert events == []
    world.loop.resume(world.a)
    world.zookeeper.connectivity_changed()
    await asyncio.sleep(2)
    assert events[-1] is SessionEvent.EXPIRED


@simulated
async def test_a_zookeeper_that_is_away_ends_no_session(world: World) -> None:
    a = await world.session(world.a)
    await world.at(world.a, a.create("/me", ephemeral=True))
    world.zookeeper.set_away(True)
    with pytest.raises(ConnectionLoss):
        await world.at(world.a, a.get("/me"))
    await asyncio.sleep(TIMEOUT * 3)
    world.zookeeper.set_away(False)
    await asyncio.sleep(1)
    assert await world.at(world.a, a.exists("/me")) is not None


@simulated
async def test_a_session_that_was_closed_while_zookeeper_was_away_ends_by_its_timeout(world: World) -> None:
    a = await world.session(world.a)
    await world.at(world.a, a.create("/me", ephemeral=True))
    world.zookeeper.set_away(True)
    await world.at(world.a, a.close())
    await asyncio.sleep(TIMEOUT * 3)
    world.zookeeper.set_away(False)
    await asyncio.sleep(TIMEOUT * 3)
    b = await world.session(world.b)
    assert await world.at(world.b, b.exists("/me")) is None


@simulated
async def test_an_expired_session_is_told_so_and_another_can_be_opened(world: World) -> None:
    a = await world.session(world.a)
    events: list[SessionEvent] = []
    a.on_session_event(events.append)
    world.zookeeper.expire("a")
    await asyncio.sleep(1)
    assert events == [SessionEvent.EXPIRED]
    again = await world.session(world.a)
    assert again.session_id != a.session_id
    await world.at(world.a, again.create("/me", ephemeral=True))
    await world.at(world.a, again.close())
    b = await world.session(world.b)
    assert await world.at(world.b, b.exists("/me")) is None
