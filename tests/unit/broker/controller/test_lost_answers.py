"""A controller that is one no longer, and answers that never came.

Source: traps.md, 'Controller and replication' and 'Coordination'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.loops import until

from ottla.broker.controller.active import ActiveController
from ottla.broker.controller.event_queue import ControllerCounts
from ottla.broker.controller.membership import ControllerTerm
from ottla.broker.controller.service import ControllerService
from ottla.broker.measuring.collectors import ControllerCollector
from ottla.coordination.election import Election
from ottla.coordination.embedded import EmbeddedSession
from ottla.coordination.errors import ConnectionLoss, NoNode
from ottla.coordination.interface import Coordination, Create, Operation, Result, Watch
from ottla.errors import (
    BrokerNotAvailable,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
)
from ottla.interbroker.calls import AllocateProducerIdsRequest, NewTopic
from ottla.metrics.controller import ACTIVE, ALIVE_BROKERS, OFFLINE_PARTITIONS, TOPICS
from ottla.metrics.family import Family
from ottla.model import NO_LEADER

from .clusters import ONE, THREE, TWO, Cluster, clustered, looked_again


async def test_a_controller_that_has_not_read_the_cluster_yet_measures_nothing_of_it(cluster: Cluster) -> None:
    """It would be no brokers and no topics, and an alarm at each take-over."""
    service = await cluster.start()
    await service.create_topic(NewTopic("a"))
    _, stat = await cluster.session.get("/controller_epoch")
    election = cast("Election", SimpleNamespace())
    transport, term = cluster.hub.transport(service), ControllerTerm(ONE, 1, stat.version)
    taking_over = ActiveController(term, cluster.session, cluster.settings(), cluster.clock, Random(1), transport, election)
    seen = SimpleNamespace(active=taking_over, counts=ControllerCounts(), controller_epoch=1)
    collector = ControllerCollector(cast("ControllerService", seen))

    def measured() -> set[str]:
        return {family.metric.name for family in collector.collect() if isinstance(family, Family)}

    of_the_cluster = {ALIVE_BROKERS.name, TOPICS.name, OFFLINE_PARTITIONS.name}
    assert not measured() & of_the_cluster
    assert ACTIVE.name in measured()
    await taking_over.start()
    assert measured() >= of_the_cluster
    taking_over.resign()
    await taking_over.wait_closed(1)


async def test_one_who_is_no_longer_the_controller_can_not_write(cluster: Cluster) -> None:
    """traps.md: every controller write is a multi with a check of /controller_epoch's version: a zombie cannot write."""
    service = await cluster.start()
    await service.create_topic(NewTopic("a"))
    session, failures = await cluster.zookeeper.session(), list[str]()
    _, stat = await session.get("/controller_epoch")
    transport = cluster.hub.transport(service)
    term = ControllerTerm(ONE, 1, stat.version)
    election = cast("Election", SimpleNamespace(term_failed=failures.append))
    zombie = ActiveController(term, session, cluster.settings(), cluster.clock, Random(1), transport, election)
    await zombie.start()
    assert await zombie.wait_acknowledged()
    # It sleeps; another takes the next epoch; it wakes and its session, oddly, lives.
    await session.set("/controller_epoch", b"2")
    before, told = await cluster.paths(), cluster.broker.requests
    for attempt in (
        zombie.create_topic(NewTopic("b")),
        zombie.create_partitions("a", 5),
        zombie.delete_topic("a"),
        zombie.alter_topic_configs("a", {}),
        zombie.alter_broker_configs(None, {}),
        zombie.call(AllocateProducerIdsRequest(ONE, -1)),
        zombie.leave(),
    ):
        with pytest.raises(NotController, match="another broker is the controller"):
            await attempt
    assert failures and all("another broker is the controller" in failure for failure in failures)
    assert await cluster.paths() == before
    assert cluster.broker.requests == told
    zombie.resign()
    await zombie.wait_closed(1)
    with pytest.raises(NotController, match="not the controller any more"):
        await zombie.create_topic(NewTopic("b"))


async def test_one_that_resigns_while_it_reads_the_brokers_sends_them_nothing(cluster: Cluster) -> None:
    """Its successor may be a new term of this broker, in the same epoch: brokers would take what it knew for the latest."""
    reading, answered, has_three = asyncio.Event(), asyncio.Event(), False

    class SlowReads:
        def __init__(self, session: EmbeddedSession) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        async def children(self, path: str, watch: Watch | None = None) -> list[str]:
            names = await self._session.children(path, watch)
            if path == "/brokers/ids" and has_three and "3" not in names:
                reading.set()
                await answered.wait()
            return names

    one = await cluster.start(wrapped=lambda session: cast("Coordination", SlowReads(session)))
    former = one.active
    assert former is not None
    for broker_id in (TWO, THREE):
        await cluster.start(broker_id)
    has_three = True
    await until(lambda: set(cluster.brokers[TWO].brokers) == {ONE, TWO, THREE} and former.waiting_count == 0)
    await former.wait_acknowledged()
    sent = cluster.brokers[TWO].requests
    await cluster.kill(THREE)
    await reading.wait()
    former.resign()
    answered.set()
    await former.wait_closed(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert cluster.brokers[TWO].requests == sent


async def test_a_term_that_is_over_before_it_began_ends_as_another_begins(cluster: Cluster) -> None:
    """`/controller` is removed while a term waits for the end of the one before. It would live on, and each of its writes end another."""
    writing, answered, is_slow = asyncio.Event(), asyncio.Event(), False

    class SlowWrites:
        def __init__(self, session: EmbeddedSession) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
            if is_slow:
                writing.set()
                await answered.wait()
            return await self._session.transaction(operations)

    one = await cluster.start(wrapped=lambda session: cast("Coordination", SlowWrites(session)))
    former, tool = one.active, await cluster.zookeeper.session()
    assert former is not None
    is_slow = True
    creating = asyncio.ensure_future(one.create_topic(NewTopic("a")))
    await writing.wait()
    former.fenced("an answer was lost")
    await until(lambda: one.controller_id == NO_LEADER)
    for _ in range(20):
        await asyncio.sleep(0)  # it has seen that it has `/controller` still
    await tool.delete("/controller")
    is_slow = False
    answered.set()
    await creating
    await until(lambda: one.is_active and one.controller_epoch == 2)
    await looked_again(one)
    latest = one.active
    await cluster.start(TWO)
    await until(lambda: latest is not None and TWO in latest.state.brokers)
    await asyncio.sleep(0.05)
    assert one.active is latest


async def test_after_the_end_of_its_session_it_is_not_the_controller(cluster: Cluster) -> None:
    controller = await cluster.start()
    await cluster.zookeeper.expire(cluster.session)
    with pytest.raises(NotController, match="is over"):
        await controller.create_topic(NewTopic("a"), timeout_seconds=0)
    await controller.close()
    with pytest.raises(NotController):
        await controller.create_topic(NewTopic("a"))


OPERATIONS: Mapping[str, Callable[[ControllerService], Awaitable[object]]] = {
    "create": lambda controller: controller.create_topic(NewTopic("new", 2)),
    "extend": lambda controller: controller.create_partitions("old", 3),
    "delete": lambda controller: controller.delete_topic("old"),
    "alter": lambda controller: controller.alter_topic_configs("old", {"retention.ms": "5"}),
    "producer ids": lambda controller: controller.allocate_producer_ids(),
}


@pytest.mark.parametrize("request_arrives", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_write_whose_answer_is_lost_takes_place_once(operation: str, request_arrives: bool) -> None:
    """The outcome is found by reading: the same changes are told, and the same znodes left, as without the loss."""

    async def outcome(cluster: Cluster, lose: bool) -> tuple[object, ...]:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("old", 1))
        transaction = cluster.session.transaction

        async def losing(operations: Sequence[Operation]) -> list[Result]:
            if lose:
                cluster.zookeeper.break_connection(cluster.session, request_arrives=request_arrives)
            cluster.session.transaction = transaction  # type: ignore[method-assign]
            return await transaction(operations)

        cluster.session.transaction = losing  # type: ignore[method-assign]
        result = await OPERATIONS[operation](controller)
        await looked_again(controller)
        data = {path: await cluster.data(path) for path in await cluster.paths() if path not in ("/controller", "/brokers/ids/1")}
        return result, cluster.changes, cluster.broker.topics(), controller.controller_epoch, data

    async with clustered() as undisturbed, clustered() as losing_one:
        assert await outcome(undisturbed, False) == await outcome(losing_one, True)


async def test_a_service_that_never_answers_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    """Anyone who asked is told that the outcome is unknown; when the connection is back the controller finds out."""

    class Unreachable:
        def __init__(self, session: EmbeddedSession) -> None:
            self._session = session
            self.is_unreachable = False

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
            if self.is_unreachable:
                if any(isinstance(operation, Create) for operation in operations):
                    await self._session.transaction(operations)  # it takes place, and no answer comes
                raise ConnectionLoss("no answer within 10 s")
            return await self._session.transaction(operations)

        async def get(self, path: str, watch: object = None) -> object:
            if self.is_unreachable:
                raise ConnectionLoss("no answer within 10 s")
            return await self._session.get(path)

    wrapped: list[Unreachable] = []

    def wrap(session: EmbeddedSession) -> Coordination:
        wrapped.append(Unreachable(session))
        return wrapped[0]  # type: ignore[return-value]

    controller = await cluster.start(wrapped=wrap)
    wrapped[0].is_unreachable = True
    with pytest.raises((RequestTimedOut, BrokerNotAvailable)):
        await controller.create_topic(NewTopic("a"), timeout_seconds=0.2)
    wrapped[0].is_unreachable = False
    await until(lambda: controller.is_active and list(cluster.broker.topics()) == ["a"])
    with pytest.raises(TopicAlreadyExists):
        await controller.create_topic(NewTopic("a"))


async def test_closing_takes_the_broker_out_of_the_cluster(cluster: Cluster) -> None:
    controller = await cluster.start()
    creating = asyncio.ensure_future(controller.create_topic(NewTopic("a")))
    await asyncio.sleep(0)
    await controller.close()
    await controller.close()
    assert (await creating).name == "a"
    for path in ("/controller", "/brokers/ids/1"):
        with pytest.raises(NoNode):
            await cluster.data(path)
    assert await cluster.data("/controller_epoch") == b"1"
