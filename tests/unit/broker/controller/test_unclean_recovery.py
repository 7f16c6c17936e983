"""Who leads when those that were in sync may have lost records: eligible replicas, and the ends of logs (KIP-966).

Kafka 3.9 lets any member of the ISR lead, also one whose disk is new.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.loops import until

from ottla.broker.controller import active, decisions
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.service import ControllerService
from ottla.coordination import znodes
from ottla.errors import NONE, KafkaStorageError, RequestTimedOut
from ottla.interbroker.calls import (
    EMPTY_LOG,
    NO_LOG,
    AlterPartitionRequest,
    ElectionType,
    IsrChange,
    IsrMember,
    LogEnd,
    LogEndsRequest,
    NewTopic,
)
from ottla.model import CLOSED_BY_KAFKA, NO_LEADER, BrokerId, BrokerRegistration, TopicPartition

from .clusters import ONE, THREE, TWO, Cluster
from .known_clusters import NONE_LEADS, KnownCluster, ids, partition_of

A0 = partition_of("a-0")


def ends(**by_broker: LogEnd | tuple[int, int]) -> dict[TopicPartition, dict[BrokerId, LogEnd]]:
    """Where the log of a-0 ends at each broker that answers: `b1=(leader epoch, offset)`."""
    return {A0: {BrokerId(int(name[1:])): end if isinstance(end, LogEnd) else LogEnd(*end) for name, end in by_broker.items()}}


def all_killed(*broker_ids: int, **overrides: str) -> KnownCluster:
    """Brokers that had a partition in sync, all of them gone at once."""
    cluster = KnownCluster(*broker_ids)
    cluster.topic("a", broker_ids, **overrides)
    cluster.leave(*broker_ids)
    cluster.state.log_ends = {}
    return cluster


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
@pytest.mark.parametrize(
    ("two", "three", "leader"), [((4, 90), (4, 80), 2), ((4, 80), (4, 90), 3), ((4, 90), (5, 10), 3), ((4, 9), (4, 9), 2)]
)
def test_when_most_are_back_the_log_that_goes_furthest_leads(
    order: tuple[int, int], two: tuple[int, int], three: tuple[int, int], leader: int
) -> None:
    """Of an ISR of three one stays away. The leader epoch counts before the offset (KIP-101)."""
    cluster = all_killed(1, 2, 3)
    cluster.join(order[0], clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS, "one of three is too few to judge by"
    cluster.state.log_ends = ends(b2=two, b3=three)
    cluster.join(order[1], clean=False)
    assert cluster.leader_and_isr("a-0") == (leader, (leader,))
    cluster.state.log_ends = ends(b1=(-1, -1), b2=two, b3=three)
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (leader, (leader,)), "a new disk is a follower's"


def test_a_new_disk_does_not_count_among_those_that_are_back() -> None:
    cluster = all_killed(1, 2, 3)
    cluster.state.log_ends = ends(b1=NO_LOG, b2=(4, 90))
    cluster.join(1, 2, clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS
    cluster.state.log_ends = ends(b1=NO_LOG, b2=(4, 90), b3=(4, 95))
    cluster.join(3, clean=False)
    assert cluster.of("a-0").leader == 3


def test_of_two_in_sync_both_have_to_be_back() -> None:
    cluster = all_killed(1, 2)
    cluster.state.log_ends = ends(b1=(3, 50))
    cluster.join(1, clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS
    cluster.fail_over()
    assert cluster.of("a-0").leader == NONE_LEADS, "the next controller knows it from ZooKeeper"
    cluster.state.log_ends = ends(b1=(3, 50))
    cluster.bounce(1)
    assert cluster.of("a-0").leader == NONE_LEADS, "what it has lost a clean stop does not bring back"
    cluster.state.log_ends = ends(b1=(3, 50), b2=(3, 51))
    cluster.join(2, clean=False)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_one_that_stopped_cleanly_leads_without_being_asked() -> None:
    cluster = all_killed(1, 2, 3)
    cluster.join(2, clean=False)
    cluster.join(3)
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def test_a_replica_that_does_not_answer_is_not_elected() -> None:
    cluster = all_killed(1, 2)
    cluster.state.log_ends = ends(b2=(3, 50))
    cluster.join(1, 2, clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS
    cluster.state.log_ends = ends(b1=(3, 60), b2=(3, 50))
    cluster.perform(decisions.log_ends_known(cluster.state, [A0]))
    assert cluster.of("a-0").leader == 1


def test_a_lagging_replica_leads_rather_than_the_last_in_sync_with_less_than_it_has() -> None:
    """The disk of the only one in sync was replaced by a copy of last week's."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.state.log_ends = ends(b1=(0, 10), b2=(0, 70), b3=(0, 60))
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


@pytest.mark.parametrize("two", [NO_LOG, (-1, 0), (1, 0)], ids=["no log", "a log that nothing was ever in", "the same of a former leader"])
def test_the_last_in_sync_with_a_new_disk_leads_only_when_no_replica_ever_had_a_record(two: tuple[int, int]) -> None:
    """A topic may have been made just as its brokers stopped, and one of them was quick enough to make its log (seed 429306865)."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.leave(2)
    cluster.state.log_ends = ends(b1=NO_LOG)
    cluster.join(1, clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS, "broker 2 may have most of it"
    cluster.state.log_ends = ends(b1=NO_LOG, b2=two)
    cluster.join(2, clean=False)
    assert cluster.of("a-0").leader == 1


def test_an_eligible_replica_leads_for_nothing_was_committed_since_it_was_in_sync() -> None:
    """Two of three lag, and the one that is left loses power: the case that KIP-966 begins with."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.set_isr("a-0", 1, 3)
    assert cluster.of("a-0").eligible_leader_replicas == (), "two can commit"
    cluster.set_isr("a-0", 1)
    assert cluster.of("a-0").eligible_leader_replicas == (3,)
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (3, (3,))
    assert cluster.of("a-0").eligible_leader_replicas == (1,), "nor was it since"
    cluster.join(1, clean=False)
    assert cluster.of("a-0").eligible_leader_replicas == (), "it may have lost what it had"
    cluster.set_isr("a-0", 1, 3)
    assert (cluster.of("a-0").eligible_leader_replicas, cluster.of("a-0").last_known_leader_replicas) == ((), ())


def test_with_fewer_needed_in_sync_an_eligible_replica_is_one_no_more() -> None:
    """The leader commits alone from then on."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), min_insync_replicas="2")
    cluster.set_isr("a-0", 1)
    assert cluster.of("a-0").eligible_leader_replicas == (2,)
    cluster.state.topics["a"].overrides = {"min.insync.replicas": "1"}
    epoch = cluster.of("a-0").leader_epoch
    cluster.perform(decisions.topics_found(cluster.state, ["a"]))
    assert (cluster.of("a-0").eligible_leader_replicas, cluster.of("a-0").leader_epoch) == ((), epoch)
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))


def test_those_who_lost_records_while_another_led_do_not_lead_when_it_is_away() -> None:
    """A rack with two of three is lost. On new disks both still copy from the third, which has everything, when its session ends."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.leave(2, 3)
    cluster.state.log_ends = {}
    cluster.join(2, 3, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    cluster.state.log_ends = ends(b2=(-1, 0), b3=(0, 10))
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.fail_over()
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.join(1)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


@pytest.mark.parametrize("clean", [True, False])
def test_those_whom_the_last_in_sync_has_outlived_wait_for_it(clean: bool) -> None:
    """A rack with two of three loses power, and the third, which led on, is away when they are back without what they had not synced."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.leave(2, 3)
    assert (cluster.of("a-0").isr, cluster.of("a-0").eligible_leader_replicas) == ((1,), (2, 3))
    cluster.leave(1)
    for broker_id in (2, 3):
        cluster.state.log_ends = ends(b2=(0, 70), b3=(0, 80))
        cluster.join(broker_id, clean=False)
        assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.fail_over()
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.state.log_ends = ends(b1=(0, 90), b2=(0, 70), b3=(0, 80))
    cluster.join(1, clean=clean)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    assert cluster.of("a-0").eligible_leader_replicas == ()


def test_the_last_in_sync_leads_once_the_other_that_was_eligible_is_back_on_a_new_disk() -> None:
    """Nothing more is to come (simulation, seed 506445593). As long as that one does not answer it may have what the last has lost."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.leave(2)
    cluster.leave(1)
    assert (cluster.of("a-0").isr, cluster.of("a-0").eligible_leader_replicas) == ((3,), (1,))
    cluster.leave(3)
    cluster.state.log_ends = ends(b3=(1, 90))
    cluster.join(1, 3, clean=False)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (3,))
    cluster.state.log_ends = ends(b1=NO_LOG, b2=(0, 95), b3=(1, 90))
    cluster.join(2, clean=False)
    assert cluster.leader_and_isr("a-0") == (3, (3,))
    assert cluster.of("a-0").eligible_leader_replicas == ()


@pytest.mark.parametrize("first", [1, 3])
def test_of_two_in_sync_the_one_with_a_log_leads_once_the_other_is_back_on_a_new_disk(first: int) -> None:
    """Nothing more is to come (simulation, seed 794692537), in whatever order they come. The third was not in sync, and has less."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.leave(2)
    cluster.leave(1, 3)
    assert (cluster.of("a-0").isr, cluster.of("a-0").eligible_leader_replicas) == ((1, 3), ())
    cluster.state.log_ends = ends(b2=(0, 95), **({"b1": (1, 90)} if first == 1 else {"b3": NO_LOG}))
    cluster.join(2, first, clean=False)
    assert cluster.of("a-0").leader == NONE_LEADS
    cluster.state.log_ends = ends(b1=(1, 90), b2=(0, 95), b3=NO_LOG)
    cluster.join(4 - first, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


@pytest.mark.parametrize(
    ("one", "leader"),
    [((1, 90), 3), ((1, 40), 3), ((2, 50), 1)],
    ids=["of an epoch before", "and a shorter log", "of the last epoch that one led"],
)
def test_what_one_wrote_after_it_was_deposed_counts_for_nothing_beside_a_leader_of_a_later_epoch(one: tuple[int, int], leader: int) -> None:
    """The last in sync led epoch 2 and wrote nothing in it, or lost it: by that its records of epoch 0 were committed."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (2, 1, 3))
    cluster.leave(2)
    assert cluster.leader_and_isr("a-0") == (1, (1, 3))
    cluster.leave(1)
    cluster.leave(3)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (3,))
    cluster.state.log_ends = {A0: {BrokerId(1): LogEnd(*one), BrokerId(3): LogEnd(0, 45, 2)}}
    cluster.join(1, 3, clean=False)
    assert cluster.leader_and_isr("a-0") == (leader, (leader,))


def test_one_that_was_eligible_leads_once_the_last_in_sync_is_back_on_a_new_disk() -> None:
    """Nothing was committed since it was in sync: it has what the last had, unless both have lost it."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), min_insync_replicas="2")
    cluster.leave(2)
    cluster.leave(1)
    cluster.leave(3)
    assert (cluster.of("a-0").isr, cluster.of("a-0").eligible_leader_replicas) == ((3,), (1,))
    cluster.state.log_ends = ends(b1=(1, 90))
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (3,))
    cluster.state.log_ends = ends(b1=(1, 90), b3=NO_LOG)
    cluster.join(3, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_the_only_one_in_sync_that_never_made_its_log_has_lost_nothing() -> None:
    """It was killed before it heard of the new partition, so nothing is committed; the others have what was not."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.state.log_ends = ends(b1=NO_LOG, b2=(0, 2), b3=(0, 1))
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,)), "its disk may be a new one"
    cluster.state.log_ends = ends(b1=EMPTY_LOG, b2=(0, 2), b3=(0, 1))
    cluster.perform(decisions.log_ends_known(cluster.state, [A0]))
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_after_a_full_outage_the_others_do_not_lead_before_they_are_in_sync_with_whom_the_logs_elected() -> None:
    """They have a part of what it has. Broker 2 had a new disk, and has got an empty log to copy to since."""
    cluster = all_killed(1, 2, 3, min_insync_replicas="2")
    cluster.state.log_ends = ends(b1=(0, 90), b2=NO_LOG, b3=(0, 80))
    cluster.join(1, 2, 3, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    cluster.state.log_ends = ends(b2=(-1, 0), b3=(0, 80))
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.state.log_ends = ends(b1=(0, 90), b2=(-1, 0), b3=(0, 80))
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    cluster.set_isr("a-0", 1, 3)
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def back(cluster: KnownCluster, broker_id: int, previous_broker_epoch: int) -> list[Decision]:
    """A broker registers; its disk says that it stopped cleanly in that epoch."""
    cluster.czxid += 1
    registration = BrokerRegistration(BrokerId(broker_id), (), None, cluster.czxid, None, previous_broker_epoch)
    cluster.state.brokers_came_and_went([registration], ())
    return cluster.perform(decisions.brokers_changed(cluster.state, [registration], ()))


def test_a_volume_that_was_rolled_back_to_a_clean_stop_does_not_lead() -> None:
    """KIP-966: the epoch of the clean stop has to be that of the broker's last registration."""
    cluster = KnownCluster(1, 2)
    last_week = cluster.state.brokers[BrokerId(1)].broker_epoch
    cluster.bounce(1)
    cluster.topic("a", (1, 2))
    latest = cluster.state.brokers[BrokerId(1)].broker_epoch
    cluster.leave(1, 2)
    cluster.state.log_ends = {}
    back(cluster, 1, last_week)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (2,))

    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    latest = cluster.state.brokers[BrokerId(1)].broker_epoch
    cluster.leave(1, 2)
    cluster.fail_over()
    back(cluster, 1, latest)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_a_broker_that_kafka_closed_cleanly_leads_what_it_led_and_only_once() -> None:
    """Kafka with ZooKeeper names no epoch of its clean stop; what Ottla has seen since then counts more."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    epoch = cluster.of("a-0").leader_epoch
    cluster.leave(1)
    cluster.leave(2)
    cluster.state.log_ends, cluster.state.unclean_starts = {}, {}
    back(cluster, 1, CLOSED_BY_KAFKA)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (2,))
    back(cluster, 2, CLOSED_BY_KAFKA)
    assert cluster.leader_and_isr("a-0") == (2, (2,))
    assert cluster.of("a-0").leader_epoch > epoch

    cluster.leave(2)
    back(cluster, 2, CLOSED_BY_KAFKA)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (2,)), "a copy of its disk of that time"


def test_an_unclean_election_takes_the_log_that_goes_furthest() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.state.log_ends = ends(b2=(0, 60), b3=(0, 70))
    cluster.perform(decisions.elect_leaders(cluster.state, ElectionType.UNCLEAN, [A0]))
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def test_a_preferred_leader_that_may_have_lost_records_is_not_given_its_partition_back() -> None:
    cluster = KnownCluster(1, 2, auto_leader_rebalance_enable="true")
    cluster.topic("a", (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.state.log_ends = ends(b1=NO_LOG, b2=(0, 7))
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.perform(decisions.rebalance(cluster.state))
    cluster.perform(decisions.elect_leaders(cluster.state, ElectionType.PREFERRED, [A0]))
    assert cluster.of("a-0").leader == NONE_LEADS


async def test_the_controller_asks_the_brokers_where_their_logs_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that did not answer at first. Broker 1 has an empty disk, broker 3 the most records."""
    monkeypatch.setattr(active, "_OFFLINE_SECONDS", 0.05)
    one, _, _ = await cluster.start_three()
    await one.create_topic(NewTopic("a", assignments={0: (ONE, TWO, THREE)}))
    # Broker 4 is the controller from now on, and has no replica.
    four = BrokerId(4)
    for broker_id in (THREE, TWO, ONE):
        if broker_id == ONE:
            await cluster.start(four)
        await cluster.kill(broker_id)
    await until(lambda: four in cluster.services and cluster.services[four].is_active)
    for broker_id, end in ((ONE, NO_LOG), (TWO, LogEnd(0, 40)), (THREE, LogEnd(0, 50))):
        service, broker = await cluster.make(broker_id)
        broker.ends[A0], broker.is_deaf = end, broker_id == THREE
        await service.start(BrokerRegistration(broker_id, ()))
    await until(lambda: A0 in cluster.brokers[TWO].replicas)
    assert cluster.brokers[TWO].replicas[A0].state.leader == NO_LEADER
    cluster.brokers[THREE].is_deaf = False
    await until(lambda: cluster.brokers[TWO].replicas[A0].state.leader == THREE)
    path = znodes.PARTITION_STATE.path("a", 0)
    assert znodes.decode_partition_state(path, await cluster.data(path), ids(1, 2, 3)).isr == (THREE,)


async def is_alone(leader: ControllerService, *partitions: TopicPartition) -> None:
    """The others leave the ISRs."""
    own = leader.registration
    assert own is not None
    alone = tuple(IsrChange(key, 0, 0, (IsrMember(own.broker_id),)) for key in partitions or (A0,))
    await leader.alter_partition(AlterPartitionRequest(own.broker_id, own.broker_epoch, alone))


async def test_an_administrators_unclean_election_asks_first(cluster: Cluster) -> None:
    one, _, three = await cluster.start_three()
    await one.create_topic(NewTopic("a", assignments={0: (THREE, ONE, TWO)}))
    await is_alone(three)
    cluster.brokers[ONE].ends[A0], cluster.brokers[TWO].ends[A0] = LogEnd(0, 1), LogEnd(0, 2)
    await cluster.kill(THREE)
    await until(lambda: cluster.brokers[ONE].replicas[A0].state.leader == NO_LEADER)
    assert (await one.elect_leaders(ElectionType.UNCLEAN, [A0]))[A0].error == NONE
    assert cluster.brokers[ONE].replicas[A0].state.isr == (TWO,)


async def test_when_a_disk_has_failed_and_an_unclean_leader_is_allowed_the_log_that_goes_furthest_leads(cluster: Cluster) -> None:
    """As when the broker is gone. The first of the assignment led, and the others cut off what they had more."""
    controller, two, _ = await cluster.start_three()
    configs = {"unclean.leader.election.enable": "true"}
    await controller.create_topic(NewTopic("a", assignments={0: (TWO, ONE, THREE)}, configs=configs))
    await is_alone(two)
    cluster.brokers[ONE].ends[A0], cluster.brokers[THREE].ends[A0] = LogEnd(0, 10), LogEnd(0, 50)
    cluster.brokers[TWO].errors[A0] = KafkaStorageError.code
    await two.log_directory_failed()
    await until(lambda: cluster.brokers[ONE].replicas[A0].state.leader != TWO)
    assert cluster.brokers[ONE].replicas[A0].state.isr == (THREE,)


async def test_a_topic_that_can_be_read_again_without_a_leader_is_led_by_the_log_that_goes_furthest(cluster: Cluster) -> None:
    controller, two, _ = await cluster.start_three()
    configs = {"unclean.leader.election.enable": "true"}
    await controller.create_topic(NewTopic("a", assignments={0: (TWO, ONE, THREE)}, configs=configs))
    await is_alone(two)
    path, tool = "/config/topics/a", await cluster.zookeeper.session()
    good = await cluster.data(path)
    await tool.set(path, b"{")
    await cluster.kill(TWO)
    await cluster.kill(ONE)
    await until(lambda: cluster.services[THREE].is_active and bool(cluster.brokers[THREE].all_topics))
    await cluster.start(ONE)
    await until(lambda: bool(cluster.brokers[ONE].all_replicas))
    cluster.brokers[ONE].ends[A0], cluster.brokers[THREE].ends[A0] = LogEnd(0, 10), LogEnd(0, 50)
    await tool.set(path, good)
    await tool.set("/brokers/topics/a", await cluster.data("/brokers/topics/a"))
    await until(lambda: A0 in cluster.brokers[ONE].replicas)
    assert cluster.brokers[ONE].replicas[A0].state.isr == (THREE,)


async def test_a_broker_that_does_not_answer_is_waited_for_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller does nothing else meanwhile. It waited again for each 500 partitions: a minute with ten thousand."""
    monkeypatch.setattr(decisions, "SLICE", 2)
    one, _, three = await cluster.start_three()
    await one.create_topic(NewTopic("a", assignments=dict.fromkeys(range(5), (THREE, TWO))))
    keys = [TopicPartition("a", index) for index in range(5)]
    await is_alone(three, *keys)
    await cluster.kill(THREE)
    await until(lambda: all(cluster.brokers[ONE].metadata[key].state.leader == NO_LEADER for key in keys))
    questions: list[LogEndsRequest] = []

    async def silent(request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        questions.append(request)
        raise RequestTimedOut("it hears nothing")

    monkeypatch.setattr(cluster.brokers[TWO], "log_ends", silent)
    outcomes = await one.elect_leaders(ElectionType.UNCLEAN, keys)
    assert {outcome.error for outcome in outcomes.values()} == {NONE}
    assert len(questions) == 1
