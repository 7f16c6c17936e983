"""Elections that someone wants: KIP-460, and KafkaController.checkAndTriggerAutoLeaderRebalance."""

from __future__ import annotations

import pytest

from ottla.broker.controller import decisions, deletions, reassignments
from ottla.broker.controller.state import KnownPartition
from ottla.errors import ElectionNotNeeded, EligibleLeadersNotAvailable, InvalidTopic, PreferredLeaderNotAvailable, UnknownTopicOrPartition
from ottla.interbroker.calls import ElectionType
from ottla.model import BrokerId, PartitionState, TopicPartition

from .known_clusters import NONE_LEADS, KnownCluster, ids, partition_of

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def elect(cluster: KnownCluster, election_type: ElectionType, *names: str) -> dict[str, type[Exception]]:
    """Those that were refused, of those named or of all."""
    cluster.refused = {}
    cluster.perform(decisions.elect_leaders(cluster.state, election_type, [partition_of(name) for name in names] or None))
    return {str(partition): type(error) for partition, error in cluster.refused.items()}


@pytest.fixture
def cluster() -> KnownCluster:
    """a-0 could be led by its preferred replica 1 and is led by 2; a-1 is led by its preferred replica 2."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    cluster.bounce(1)
    cluster.set_isr("a-0", 2, 1)
    cluster.set_isr("a-1", 2, 1)
    return cluster


def test_the_preferred_replica_leads_again_with_the_same_isr_in_a_new_epoch(cluster: KnownCluster) -> None:
    assert elect(cluster, PREFERRED, "a-0") == {}
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 2, ids(2, 1), ids(1, 2), 1)


def test_what_needs_no_election_says_so_when_it_is_named_and_is_passed_over_otherwise(cluster: KnownCluster) -> None:
    assert elect(cluster, PREFERRED, "a-0", "a-1") == {"a-1": ElectionNotNeeded}
    assert elect(cluster, PREFERRED) == {}
    assert elect(cluster, UNCLEAN, "a-0") == {"a-0": ElectionNotNeeded}


def test_a_preferred_replica_that_is_out_of_sync_or_away_or_shutting_down_is_not_available(cluster: KnownCluster) -> None:
    cluster.set_isr("a-0", 2)
    assert elect(cluster, PREFERRED) == {"a-0": PreferredLeaderNotAvailable}
    cluster.set_isr("a-0", 2, 1)
    cluster.state.shutting_down.add(BrokerId(1))
    assert elect(cluster, PREFERRED, "a-0") == {"a-0": PreferredLeaderNotAvailable}
    assert cluster.of("a-0").leader == 2


def test_an_unclean_election_that_is_asked_for_needs_no_setting(cluster: KnownCluster) -> None:
    cluster.set_isr("a-0", 2)
    cluster.leave(2)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (2,))
    assert elect(cluster, UNCLEAN, "a-0") == {}
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_where_nobody_lives_nobody_is_elected(cluster: KnownCluster) -> None:
    cluster.found("b", (8, 9))
    cluster.leave(1, 2)
    assert elect(cluster, UNCLEAN, "a-0", "b-0") == {"a-0": EligibleLeadersNotAvailable, "b-0": EligibleLeadersNotAvailable}
    assert elect(cluster, PREFERRED, "b-0") == {"b-0": PreferredLeaderNotAvailable}


def test_partitions_that_are_not_there_or_on_their_way_out_are_refused(cluster: KnownCluster) -> None:
    cluster.topic("gone", (1,))
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("gone")))
    assert elect(cluster, PREFERRED, "b-0", "a-2", "gone-0") == {
        "b-0": UnknownTopicOrPartition,
        "a-2": UnknownTopicOrPartition,
        "gone-0": InvalidTopic,
    }
    assert elect(cluster, UNCLEAN) == {}


def test_another_isr_member_that_is_back_is_preferred_to_an_unclean_one() -> None:
    """An unclean election is clean where it can be."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.state.brokers_came_and_went([], ids(1))
    elect(cluster, UNCLEAN, "a-0")
    assert cluster.leader_and_isr("a-0") == (2, (2, 3))


# The balance.


def off_balance(lacking: int, total: int, **properties: str) -> KnownCluster:
    """A topic of which broker 1 should lead all partitions and lacks some."""
    cluster = KnownCluster(1, 2, **properties)
    cluster.topic("a", *[(1, 2)] * total)
    for partition in range(lacking):
        topic_partition = TopicPartition("a", partition)
        cluster.state.put_partition(
            topic_partition,
            KnownPartition(PartitionState(BrokerId(2), 1, ids(1, 2), ids(1, 2), 1), 1),
        )
    return cluster


def led_by_one(cluster: KnownCluster) -> int:
    return sum(partition.state.leader == 1 for partition in cluster.state.topics["a"].partitions)


@pytest.mark.parametrize(("lacking", "are_led_after"), [(0, 20), (1, 19), (2, 18), (3, 20), (20, 20)])
def test_a_broker_gets_its_leaderships_back_once_it_lacks_more_than_the_percentage(lacking: int, are_led_after: int) -> None:
    """10 % of 20: two are not more than that, three are."""
    cluster = off_balance(lacking, 20)
    cluster.perform(decisions.rebalance(cluster.state))
    assert led_by_one(cluster) == are_led_after


def test_the_percentage_is_the_setting() -> None:
    cluster = off_balance(10, 20, leader_imbalance_per_broker_percentage="50")
    assert cluster.perform(decisions.rebalance(cluster.state)) == []
    cluster = off_balance(11, 20, leader_imbalance_per_broker_percentage="50")
    cluster.perform(decisions.rebalance(cluster.state))
    assert led_by_one(cluster) == 20


def test_only_what_the_preferred_replica_can_lead_is_moved() -> None:
    cluster = off_balance(4, 4)
    cluster.set_isr("a-0", 2)
    cluster.perform(decisions.rebalance(cluster.state))
    assert (cluster.of("a-0").leader, led_by_one(cluster)) == (2, 3)
    assert cluster.perform(decisions.rebalance(cluster.state)) == []


def test_a_reassignment_that_takes_long_holds_up_no_balance() -> None:
    """KAFKA-10149: a broker that is away can hold up a reassignment for days."""
    cluster = off_balance(4, 4)
    cluster.topic("b", (1, 2))
    cluster.join(3)
    cluster.perform([reassignments.altered(cluster.state, {partition_of("b-0"): ids(3)})])
    cluster.leave(3)
    cluster.perform(decisions.rebalance(cluster.state))
    assert led_by_one(cluster) == 4
    assert list(cluster.state.reassigning()) == [partition_of("b-0")]


def test_a_partition_on_its_way_is_led_by_the_first_of_its_target_as_soon_as_that_can() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2))
    cluster.perform([reassignments.altered(cluster.state, {partition_of("a-0"): ids(2, 1, 3)})])
    cluster.leave(3)
    cluster.perform(decisions.rebalance(cluster.state))
    assert cluster.leader_and_isr("a-0") == (2, (1, 2))
    cluster.join(3)
    cluster.set_isr("a-0", 1, 2, 3)
    cluster.perform([reassignments.ready(cluster.state, [partition_of("a-0")])])
    assert (cluster.of("a-0").leader, cluster.of("a-0").replicas, list(cluster.state.reassigning())) == (2, ids(2, 1, 3), [])
