"""A broker that is told what to lead and what to tell clients, by a controller that may be out of date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

import pytest

from ottla.broker.applying import ControlApplier
from ottla.broker.metadata import MetadataCache
from ottla.errors import BrokerNotAvailable, FencedLeaderEpoch, StaleBrokerEpoch, StaleControllerEpoch
from ottla.interbroker.calls import (
    AllReplicas,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    PartitionAssignment,
    PartitionToStop,
    StopReplicaRequest,
    StopReplicaResponse,
    TransactionControl,
    UpdateMetadataRequest,
)
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, PartitionState, TopicPartition

ONE, TWO = BrokerId(1), BrokerId(2)
ORDERS = TopicPartition("orders", 0)
STATE = PartitionState(ONE, 3, (ONE, TWO), (ONE, TWO), 4)
ASSIGNMENT = PartitionAssignment("orders", UUID(int=9), 0, STATE, 5)
REGISTRATIONS = tuple(BrokerRegistration(broker_id, (), broker_epoch=10 + broker_id) for broker_id in (ONE, TWO))


class Told:
    """Everything below the applier: remembers what it was told, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.during_apply: Callable[[], None] = lambda: None
        self.in_logs: dict[TopicPartition, int] = {}

    def written_epochs(self, partitions: Iterable[PartitionAssignment]) -> Mapping[TopicPartition, int]:
        return {key: self.in_logs[key] for assignment in partitions if (key := assignment.topic_partition) in self.in_logs}

    async def apply(
        self, partitions: Sequence[PartitionAssignment], live_leaders: Sequence[BrokerRegistration]
    ) -> Mapping[TopicPartition, int]:
        self.events.append(("apply", *partitions))
        await asyncio.sleep(0)
        self.during_apply()
        return {partition.topic_partition: 0 for partition in partitions}

    def log_ends(self, partitions: Mapping[TopicPartition, UUID]) -> Mapping[TopicPartition, LogEnd]:
        return dict.fromkeys(partitions, LogEnd(3, 40))

    async def stop(self, partitions: Sequence[PartitionToStop]) -> Mapping[TopicPartition, int]:
        self.events.append(("stop", *partitions))
        return {partition.topic_partition: 0 for partition in partitions}

    async def rename_stray_logs(self, all_replicas: AllReplicas) -> Sequence[TopicPartition]:
        self.events.append(("strays", all_replicas))
        return ()

    def stop_leading_all(self) -> None:
        self.events.append("stop leading")

    def learn_topic_overrides(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        self.events.append(("learn", dict(overrides)))

    def forget_topics(self, names: Sequence[str]) -> None:
        self.events.append(("forget", *names))

    def keep_topics(self, names: Sequence[str]) -> None:
        self.events.append(("keep", *names))


@dataclass
class ZooKeeper:
    """What it says of epochs."""

    controller_epoch: int
    registration: BrokerRegistration
    asked: int = 0

    async def begun_epoch(self) -> int:
        self.asked += 1
        return self.controller_epoch

    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None:
        self.asked += 1
        return self.registration


@dataclass
class World:
    """An applier and what is around it."""

    registration: BrokerRegistration | None = REGISTRATIONS[0]
    told: Told = field(default_factory=Told)
    metadata: MetadataCache = field(default_factory=MetadataCache)
    drained: int = 0
    topics: list[tuple[list[str], bool]] = field(default_factory=list)
    are_applied_first: bool = True  # leaderships, whenever groups hear of topics
    zookeeper: ZooKeeper = field(default_factory=lambda: ZooKeeper(2**31 - 1, BrokerRegistration(ONE, (), broker_epoch=2**62)))

    def __post_init__(self) -> None:
        self.learn_topic_overrides, self.forget_topics = self.told.learn_topic_overrides, self.told.forget_topics
        self.keep_topics = self.told.keep_topics
        self.begun_epoch, self.registration_of = self.zookeeper.begun_epoch, self.zookeeper.registration_of
        self.applier = ControlApplier(ONE, self, self.metadata, self.told, [self], cast("TransactionControl", None))

    def topics_changed(self, deleted: Sequence[str], all_known: bool) -> None:
        self.topics.append((sorted(deleted), all_known))
        self.are_applied_first &= ("apply", ASSIGNMENT) in self.told.events

    async def drain(self) -> None:
        self.drained += 1

    async def undrain(self) -> None:
        self.drained -= 1


def leader_and_isr(controller_epoch: int = 4, broker_epoch: int = 11) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(TWO, controller_epoch, broker_epoch, (ASSIGNMENT,), REGISTRATIONS, {"orders": {"retention.ms": "1"}})


def update_metadata(controller_epoch: int = 4, broker_epoch: int = 11, **more: Any) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(TWO, controller_epoch, broker_epoch, **{"partitions": (ASSIGNMENT,), "brokers": REGISTRATIONS, **more})


def log_ends(controller_epoch: int = 4, broker_epoch: int = 11) -> LogEndsRequest:
    return LogEndsRequest(TWO, controller_epoch, broker_epoch, {ORDERS: UUID(int=7)})


async def test_coordinators_are_told_of_topics_after_metadata_and_leaderships_and_of_all_when_all_are_known() -> None:
    world = World()
    await tell(world, leader_and_isr())
    await tell(world, replace(leader_and_isr(), all_topics_known=True))
    await tell(world, update_metadata(all_topics_known=True))
    other = replace(ASSIGNMENT, topic_id=UUID(int=10))
    await tell(world, update_metadata(partitions=(other,), deleted_topics=("gone",)))
    await tell(world, update_metadata(partitions=(), all_topics=(), all_topics_known=True))
    with pytest.raises(StaleControllerEpoch):
        await tell(world, update_metadata(controller_epoch=3, deleted_topics=("orders",), all_topics_known=True))
    assert world.are_applied_first
    assert world.topics == [([], True), ([], True), (["gone", "orders"], False), (["orders"], True)]


def stop_replica(controller_epoch: int = 4, broker_epoch: int = 11) -> StopReplicaRequest:
    return StopReplicaRequest(TWO, controller_epoch, broker_epoch, (PartitionToStop(ORDERS, 3, True),))


async def tell(world: World, request: Any) -> Any:
    match request:
        case LeaderAndIsrRequest():
            return await world.applier.leader_and_isr(request)
        case UpdateMetadataRequest():
            return await world.applier.update_metadata(request)
        case LogEndsRequest():
            return await world.applier.log_ends(request)
        case _:
            return await world.applier.stop_replica(request)


def test_what_a_topic_sets_is_known_before_its_partitions_are_led() -> None:
    world = World()
    assert asyncio.run(tell(world, leader_and_isr())) == LeaderAndIsrResponse({ORDERS: 0})
    assert world.told.events == [("learn", {"orders": {"retention.ms": "1"}}), ("apply", ASSIGNMENT)]
    assert world.metadata.controller_id == TWO


def test_a_leader_epoch_that_a_log_is_ahead_of_is_refused_and_the_others_are_applied() -> None:
    """The controller has to give one above it, or two leaders would have written in one epoch."""
    world = World()
    world.told.in_logs[ORDERS] = 8
    other = replace(ASSIGNMENT, partition=1)
    request = replace(leader_and_isr(), partitions=(ASSIGNMENT, other))
    answer = asyncio.run(tell(world, request))
    assert answer == LeaderAndIsrResponse({ORDERS: FencedLeaderEpoch.code, other.topic_partition: 0}, {ORDERS: 8})
    assert ("apply", other) in world.told.events


async def test_a_client_that_is_refused_by_a_former_leader_is_told_the_next_one() -> None:
    """It asks at once, before the controller has told what is for clients; sent back it would wait for a second or for ever."""
    world = World()
    known_at_apply = []
    follows = replace(ASSIGNMENT, state=replace(STATE, leader=TWO, leader_epoch=STATE.leader_epoch + 1), partition_epoch=6)
    await tell(world, update_metadata())
    world.told.during_apply = lambda: known_at_apply.append(world.metadata.partition("orders", 0))
    await tell(world, replace(leader_and_isr(), partitions=(follows,)))
    assert known_at_apply == [follows.state]


def test_metadata_is_what_clients_are_told() -> None:
    world = World()
    asyncio.run(tell(world, update_metadata(topic_configs={"orders": {}}, deleted_topics=("gone",))))
    assert world.metadata.partition("orders", 0) == STATE
    assert world.metadata.brokers == {registration.broker_id: registration for registration in REGISTRATIONS}
    assert world.told.events == [("forget", "gone"), ("learn", {"orders": {}})]


async def test_a_broker_that_may_have_missed_deletions_is_told_all_that_there_is() -> None:
    world = World()
    await tell(world, update_metadata(partitions=tuple(replace(ASSIGNMENT, topic=name) for name in ("orders", "missed", "gone"))))
    world.told.events.clear()
    assert not world.metadata.complete.is_set()
    await tell(world, update_metadata(deleted_topics=("gone",), all_topics=("orders", "not-told-yet")))
    assert world.metadata.complete.is_set()
    assert [topic.name for topic in world.metadata.topics()] == ["orders"]
    assert world.told.events[0] == ("forget", "gone", "missed")
    await tell(world, update_metadata())
    assert [topic.name for topic in world.metadata.topics()] == ["orders"]


ALL_REPLICAS = AllReplicas({"orders": frozenset({0})})


def test_a_broker_that_may_have_missed_stops_is_told_all_that_it_has_once_it_leads_and_follows() -> None:
    world = World()
    asyncio.run(tell(world, replace(leader_and_isr(), all_replicas=ALL_REPLICAS)))
    assert world.told.events[-2:] == [("apply", ASSIGNMENT), ("strays", ALL_REPLICAS)]


async def test_nothing_is_set_aside_on_the_word_of_a_controller_that_was_replaced_meanwhile() -> None:
    world = World()
    world.told.during_apply = lambda: world.applier.controller_changed(ONE, 6)
    with pytest.raises(StaleControllerEpoch):
        await tell(world, replace(leader_and_isr(), all_replicas=ALL_REPLICAS))
    assert world.told.events[-1] == ("apply", ASSIGNMENT)


async def test_nothing_is_set_aside_in_a_session_that_ended_meanwhile() -> None:
    world = World()
    world.told.during_apply = world.applier.session_lost
    with pytest.raises(StaleBrokerEpoch):
        await tell(world, replace(leader_and_isr(), all_replicas=ALL_REPLICAS))
    assert "strays" not in {event[0] for event in world.told.events}


def test_replicas_are_given_up() -> None:
    world = World()
    assert asyncio.run(tell(world, stop_replica())) == StopReplicaResponse({ORDERS: 0})
    assert world.told.events == [("stop", PartitionToStop(ORDERS, 3, True))]


def test_draining_is_handing_over() -> None:
    world = World()
    asyncio.run(world.applier.drain())
    assert world.drained == 1
    asyncio.run(world.applier.undrain())
    assert world.drained == 0


@pytest.mark.parametrize("request_of", [leader_and_isr, update_metadata, stop_replica])
async def test_a_former_controller_is_refused_before_anything_changes(request_of: Callable[..., Any]) -> None:
    world = World()
    await tell(world, leader_and_isr(controller_epoch=5))
    world.told.events.clear()
    with pytest.raises(StaleControllerEpoch, match="epoch 4, the current one is 5"):
        await tell(world, request_of(controller_epoch=4))
    assert world.told.events == []
    assert not world.metadata.complete.is_set()


@pytest.mark.parametrize("request_of", [leader_and_isr, update_metadata, stop_replica])
async def test_a_request_that_arrives_behind_a_later_one_is_refused_before_anything_changes(request_of: Callable[..., Any]) -> None:
    """Its topic may have been deleted and created again since: the ids of two topics of one name are in no order."""
    world = World()
    again = replace(ASSIGNMENT, topic_id=UUID(int=10), state=replace(STATE, leader_epoch=0), partition_epoch=0, is_new=True)
    await tell(world, replace(leader_and_isr(), partitions=(again,), request_number=8))
    world.told.events.clear()
    with pytest.raises(StaleControllerEpoch, match="request 5 of controller 2, epoch 4, arrived after request 8"):
        await tell(world, replace(request_of(), request_number=5))
    assert world.told.events == []
    assert world.metadata.partition("orders", 0) is None


async def test_a_request_that_waits_for_its_turn_is_judged_by_what_was_taken_before_it() -> None:
    """In the order in which they arrive, and one that is delivered twice does no harm."""
    world = World()
    numbers = (3, 5, 5, 4, 6)
    answers = await asyncio.gather(
        *(tell(world, replace(stop_replica(), request_number=number)) for number in numbers), return_exceptions=True
    )
    refused = [number for number, answer in zip(numbers, answers, strict=True) if isinstance(answer, StaleControllerEpoch)]
    assert refused == [4]
    assert len(world.told.events) == 4


@pytest.mark.parametrize(
    "later",
    [
        {"controller_epoch": 5, "controller_id": ONE},
        {"controller_id": ONE},  # its coordination service was restored, and gave the epoch a second time
        {"broker_epoch": 12},
        {"request_number": 0},  # a controller of a release that sends no numbers
    ],
)
async def test_another_controller_and_another_life_of_the_broker_have_numbers_of_their_own(later: Mapping[str, Any]) -> None:
    world = World()
    await tell(world, replace(stop_replica(), request_number=9))
    await tell(world, replace(stop_replica(), **{"request_number": 1, **later}))
    assert len(world.told.events) == 2


async def test_a_controller_that_is_known_otherwise_puts_an_end_to_the_one_before() -> None:
    world = World()
    world.applier.controller_changed(ONE, 5)
    assert world.metadata.controller_id == ONE
    with pytest.raises(StaleControllerEpoch):
        await tell(world, leader_and_isr(controller_epoch=4))
    world.applier.controller_changed(NO_LEADER, 5)
    assert world.metadata.controller_id == NO_LEADER


@pytest.mark.parametrize("request_of", [leader_and_isr, update_metadata, stop_replica])
@pytest.mark.parametrize("epoch", [-1, 10])
def test_what_is_meant_for_a_former_life_is_refused(request_of: Callable[..., Any], epoch: int) -> None:
    world = World()
    with pytest.raises(StaleBrokerEpoch, match=f"request for broker epoch {epoch}, the current one is 11"):
        asyncio.run(tell(world, request_of(broker_epoch=epoch)))
    assert world.told.events == []


def test_a_broker_that_has_not_registered_yet_is_told_nothing() -> None:
    """The request may be for a process that was killed, at the same address."""
    world = World(registration=None)
    with pytest.raises(StaleBrokerEpoch):
        asyncio.run(tell(world, leader_and_isr()))


def test_a_registration_that_the_controller_saw_sooner_than_we_did_is_ours() -> None:
    world = World()
    asyncio.run(tell(world, leader_and_isr(broker_epoch=12)))
    assert ("apply", ASSIGNMENT) in world.told.events


# The next one is greater, but where ZooKeeper was restored from a copy: an epoch is a zxid.
@pytest.mark.parametrize(("epoch", "former"), [(20, 11), (4, 11), (11, 10)])
async def test_after_its_session_has_ended_a_broker_leads_nothing_until_it_has_registered_anew(epoch: int, former: int) -> None:
    world = World()
    await tell(world, update_metadata(all_topics=frozenset({"orders"})))
    world.told.events.clear()
    world.applier.session_lost()
    assert world.told.events == ["stop leading"]
    with pytest.raises(StaleBrokerEpoch):
        await tell(world, leader_and_isr())
    world.registration = BrokerRegistration(ONE, (), broker_epoch=epoch)
    with pytest.raises(StaleBrokerEpoch):
        await tell(world, leader_and_isr(broker_epoch=former))
    await tell(world, update_metadata(broker_epoch=epoch, all_topics=frozenset({"orders"})))
    await tell(world, leader_and_isr(broker_epoch=epoch))
    assert (world.applier.metadata_epoch, world.told.events[-1]) == (epoch, ("apply", ASSIGNMENT))


async def test_a_session_that_ends_while_leaders_are_made_leaves_none_of_them() -> None:
    world = World()
    world.told.during_apply = world.applier.session_lost
    with pytest.raises(StaleBrokerEpoch):
        await tell(world, leader_and_isr())
    assert world.told.events[-2:] == ["stop leading", "stop leading"]


async def test_requests_are_taken_in_turn_and_judged_when_their_turn_has_come() -> None:
    world = World()
    world.told.during_apply = lambda: world.applier.controller_changed(ONE, 6)
    outcomes = await asyncio.gather(*(tell(world, request) for request in (leader_and_isr(), update_metadata())), return_exceptions=True)
    assert outcomes[0] == LeaderAndIsrResponse({ORDERS: 0})
    assert isinstance(outcomes[1], StaleControllerEpoch)


async def test_a_broker_that_stops_finishes_what_it_has_begun_and_begins_nothing_more() -> None:
    world = World()
    closing: list[asyncio.Task[None]] = []
    world.told.during_apply = lambda: closing.append(asyncio.ensure_future(world.applier.close()))
    assert await tell(world, leader_and_isr()) == LeaderAndIsrResponse({ORDERS: 0})
    await asyncio.wait_for(closing[0], 120)
    with pytest.raises(BrokerNotAvailable, match="broker 1 stops"):
        await tell(world, stop_replica())
    assert world.told.events[-1] == ("apply", ASSIGNMENT)


@pytest.mark.parametrize("request_of", [leader_and_isr, update_metadata, stop_replica, log_ends])
async def test_an_epoch_from_the_future_is_refused_unless_zookeeper_knows_it(request_of: Any) -> None:
    """Anyone who forged one upwards would depose the controller for good; the broker asks once for each that it has not asked for.

    Its server of ZooKeeper may be behind: a new controller that were told that it is none would begin its term again, for all brokers.
    """
    zookeeper = ZooKeeper(4, REGISTRATIONS[0])
    world = World(zookeeper=zookeeper)
    with pytest.raises(BrokerNotAvailable):
        await tell(world, request_of(controller_epoch=2**31 - 1))
    with pytest.raises(StaleBrokerEpoch):
        await tell(world, request_of(broker_epoch=2**62))
    asked = zookeeper.asked
    await tell(world, request_of())
    await tell(world, request_of())
    zookeeper.controller_epoch = 5
    await tell(world, request_of(controller_epoch=5))
    with pytest.raises(StaleControllerEpoch):
        await tell(world, request_of(controller_epoch=4))
    assert zookeeper.asked - asked <= 2
