"""How a broker becomes the controller, whatever it finds and whichever answer is lost on the way.

Source: traps.md, 'Controller and replication'; C1 and C3 of the checklist.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from tests.loops import LoopClock, until

from ottla.broker.controller import membership
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, SessionExpired
from ottla.coordination.interface import Coordination, SessionEvent, SessionListener
from ottla.errors import ConfigurationError
from ottla.interbroker.calls import NewTopic

from .clusters import ONE, REGISTRATION, TWO, Cluster


async def test_the_first_start_makes_kafkas_znodes(cluster: Cluster) -> None:
    controller = await cluster.start()
    assert set(znodes.SKELETON) <= set(await cluster.paths())
    assert znodes.decode_cluster_id("", await cluster.data("/cluster/id")) == controller.cluster_id
    assert len(controller.cluster_id) == 22
    assert znodes.decode_controller("", await cluster.data("/controller")) == 1
    assert await cluster.data("/controller_epoch") == b"1"
    assert controller.controller_epoch == 1
    assert controller.registration is not None
    stat = await cluster.session.exists("/brokers/ids/1")
    assert stat is not None
    assert stat.ephemeral_owner == cluster.session.session_id
    assert controller.registration.broker_epoch == stat.czxid
    assert znodes.decode_broker("/brokers/ids/1", await cluster.data("/brokers/ids/1")).endpoints == REGISTRATION.endpoints
    assert cluster.changes == []
    assert cluster.broker.controllers == [1]


async def test_a_restart_keeps_the_cluster_and_its_topics_and_takes_the_next_epoch(cluster: Cluster) -> None:
    first = await cluster.start()
    topic = await first.create_topic(NewTopic("a", 2, 1, configs={"retention.ms": "7"}))
    await first.close()
    await cluster.session.close()
    second = await cluster.start()
    assert second.cluster_id == first.cluster_id
    assert second.controller_epoch == 2
    assert [partition.leader_epoch for partition in cluster.broker.topics()["a"].partitions] == [1, 1]
    assert cluster.broker.topics()["a"].topic_id == topic.topic_id
    assert second.topic_settings("a").retention_ms == 7
    assert second.topic_overrides("a") == {"retention.ms": "7"}


async def test_settings_are_known_before_the_start_for_the_logs_to_open_with(cluster: Cluster) -> None:
    first = await cluster.start()
    await first.create_topic(NewTopic("a", configs={"segment.bytes": "100"}))
    await first.alter_broker_configs(None, {"log.retention.ms": "99"})
    await first.close()
    second, _ = await cluster.make()
    await second.load()
    assert second.topic_settings("a").segment_bytes == 100
    assert second.topic_settings("a").retention_ms == 99
    assert second.topic_settings("unknown").retention_ms == 99


async def test_a_broker_that_is_back_before_its_old_session_ends_waits_for_that(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """traps.md: kill -9, back in 0.3 s, session 6 s: wait up to the session timeout, refuse if it is still there then."""
    await cluster.start()
    dead = cluster.session
    starting = asyncio.ensure_future(cluster.start(timeout=60))
    await until_it_waits(caplog)
    await cluster.zookeeper.expire(dead)
    await starting
    await until(lambda: cluster.services[ONE].controller_epoch == 2)


async def test_a_second_broker_with_the_same_id_is_refused(cluster: Cluster) -> None:
    """C1: the same id twice is an error."""
    await cluster.start()
    with pytest.raises(ConfigurationError, match=r"broker\.id 1 is taken: /brokers/ids/1 .* after 0\.02 s"):
        await cluster.start(timeout=0.02)


async def test_a_second_broker_at_the_same_address_waits_for_the_session_of_the_first_and_is_refused(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """`ServerStartupTest.testConflictBrokerStartupWithSamePort`: with a copied advertised.listeners clients found one of the two only."""
    await cluster.start()
    first = cluster.session
    copied = replace(REGISTRATION, broker_id=TWO)
    second, _ = await cluster.make(TWO, timeout=0.02)
    with pytest.raises(ConfigurationError, match=r"PLAINTEXT://broker\.test:9092 is registered by broker 1 already"):
        await second.start(copied)
    third, _ = await cluster.make(TWO, timeout=60)
    caplog.clear()
    starting = asyncio.ensure_future(third.start(copied))
    await until(lambda: "is registered by broker 1; waiting" in caplog.text)
    await cluster.zookeeper.expire(first)
    assert (await starting).broker_id == TWO


class Shaky:
    """A session whose connection breaks, and comes back, at will."""

    def __init__(self, session: EmbeddedSession, sessions: list[Shaky]) -> None:
        self._session = session
        self.listeners: list[SessionListener] = []
        sessions.append(self)

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def on_session_event(self, listener: SessionListener) -> None:
        self.listeners.append(listener)
        self._session.on_session_event(listener)

    def tell(self, event: SessionEvent) -> None:
        for listener in self.listeners:
            listener(event)


async def until_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    """A start has found its former self."""
    await until(lambda: "is still there, of session" in caplog.text)


async def test_a_zookeeper_that_was_away_is_given_the_whole_wait_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """It restarts every session's timeout when it is back, that of the former self too. Found by chaos: kill -9 beside its restart."""
    await cluster.start()
    dead = cluster.session
    sessions: list[Shaky] = []
    clock = LoopClock()
    starting = asyncio.ensure_future(cluster.start(wrapped=lambda session: cast("Coordination", Shaky(session, sessions)), timeout=10))
    await until_it_waits(caplog)
    for _ in range(6):
        clock.put_forward(seconds=5)
        await asyncio.sleep(0.001)
        sessions[-1].tell(SessionEvent.SUSPENDED)
        sessions[-1].tell(SessionEvent.CONNECTED)
    assert not starting.done()
    await cluster.zookeeper.expire(dead)
    await starting


async def test_while_zookeeper_is_away_nobody_is_told_that_the_id_is_taken(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start()
    sessions: list[Shaky] = []
    clock = LoopClock()
    starting = asyncio.ensure_future(cluster.start(wrapped=lambda session: cast("Coordination", Shaky(session, sessions)), timeout=10))
    await until_it_waits(caplog)
    sessions[-1].tell(SessionEvent.SUSPENDED)
    clock.put_forward(seconds=10)
    with pytest.raises(ConnectionLoss, match="/brokers/ids/1: no connection"):
        await starting


async def test_a_session_that_ends_while_it_waits_for_the_former_one_is_noticed(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Its watch never fires, and the former self may be gone for long."""
    await cluster.start()
    starting = asyncio.ensure_future(cluster.start(timeout=30))
    await until_it_waits(caplog)
    await cluster.zookeeper.expire(cluster.session)
    with pytest.raises(SessionExpired):
        await starting


@pytest.mark.parametrize("request_arrives", [True, False])
@pytest.mark.parametrize("step", range(1, 20))
async def test_a_connection_lost_at_any_step_of_the_start_does_no_harm(cluster: Cluster, step: int, request_arrives: bool) -> None:
    """A create whose outcome is unknown is settled by reading ephemeralOwner. We lose the answer at each step in turn."""

    class LosesOneAnswer:
        def __init__(self, session: EmbeddedSession, zookeeper: EmbeddedZooKeeper) -> None:
            self._session = session
            self._zookeeper = zookeeper
            self._calls = 0

        def __getattr__(self, name: str) -> object:
            if name in ("create", "get", "get_many", "set", "delete", "exists", "children", "transaction"):
                self._calls += 1
                if self._calls == step:
                    self._zookeeper.break_connection(self._session, request_arrives=request_arrives)
            return getattr(self._session, name)

    try:
        controller = await cluster.start(wrapped=lambda session: LosesOneAnswer(session, cluster.zookeeper))  # type: ignore[arg-type,return-value]
    except ConnectionLoss:
        # A read of the state was lost: the broker does not start, and its next attempt finds nothing odd.
        await cluster.session.close()
        controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    assert znodes.decode_controller("", await cluster.data("/controller")) == 1
    assert await cluster.data("/controller_epoch") == b"%d" % controller.controller_epoch
    stat = await cluster.session.exists("/brokers/ids/1")
    assert stat is not None and stat.ephemeral_owner == cluster.session.session_id


async def test_generated_broker_ids_are_above_the_reserved_ones_and_given_once(cluster: Cluster) -> None:
    """C1: /brokers/seqid, whose version is the sequence."""
    session = await cluster.zookeeper.session()
    assert [await membership.generate_broker_id(session, 1_000) for _ in range(3)] == [1_001, 1_002, 1_003]
