"""Who is in sync: followers' progress, and what follows from it."""

from __future__ import annotations

import logging

import pytest

from ottla.broker.handlers.fetch_reading import preferred_read_replica
from ottla.broker.replication.follower_progress import FollowerProgress
from ottla.broker.replication.in_sync import InSyncReplicas
from ottla.broker.replication.isr import PRESENT_MS, REFUSED_MS, Outcome, lags, low_watermark, outcome_of
from ottla.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import AlteredPartition, IsrMember, PartitionAssignment
from ottla.model import BrokerId, BrokerRegistration, PartitionState, TopicPartition

from ..wired import topic_id

KEY = TopicPartition("events", 0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
REPLICAS = (TWO, ONE, THREE)
START_MS = 1_000_000


def told(*isr: BrokerId, leader_epoch: int = 4, partition_epoch: int = 9) -> PartitionAssignment:
    return PartitionAssignment("events", topic_id("events"), 0, PartitionState(ONE, leader_epoch, isr, REPLICAS), partition_epoch)


def led(*isr: BrokerId, epoch_start_offset: int = 0) -> InSyncReplicas:
    """What broker 1 knows when it begins to lead."""
    replicas = InSyncReplicas(KEY, ONE)
    replicas.adopt(told(*isr))
    replicas.lead({}, epoch_start_offset, START_MS)
    return replicas


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (0, Outcome.ALTERED),
        (IneligibleReplica.code, Outcome.REFUSED),
        (FencedLeaderEpoch.code, Outcome.OVERTAKEN),
        (InvalidUpdateVersion.code, Outcome.OVERTAKEN),
        (UnknownTopicOrPartition.code, Outcome.OVERTAKEN),
        (RequestTimedOut.code, Outcome.UNKNOWN),
        (UnknownServerError.code, Outcome.UNKNOWN),
    ],
)
def test_only_a_certain_answer_settles_a_proposal(error: int, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_a_follower_at_the_leaders_end_has_caught_up_and_one_that_was_there_a_fetch_ago_had() -> None:
    """Kafka's rule: while producers write, no one is ever at the end."""
    follower = FollowerProgress(TWO)
    follower.fetched(10, 0, 10, START_MS)
    assert follower.caught_up_ms == START_MS
    follower.fetched(10, 0, 20, START_MS + 100)
    assert follower.caught_up_ms == START_MS, "all that was there when it asked before"
    follower.fetched(15, 0, 30, START_MS + 200)
    assert follower.caught_up_ms == START_MS, "not even that"
    follower.fetched(30, 0, 40, START_MS + 300)
    assert follower.caught_up_ms == START_MS + 200
    assert not lags(follower, 40, START_MS + 1200, 1000)
    assert lags(follower, 40, START_MS + 1201, 1000)
    assert not lags(follower, 30, START_MS + 9999, 1000)


def test_the_high_watermark_waits_for_those_in_sync_until_they_have_spoken() -> None:
    replicas = led(ONE, TWO)
    assert replicas.committed_offset(10) == -1
    replicas.record_fetch(TWO, 7, 4, 0, 10, START_MS)
    assert replicas.committed_offset(10) == 4
    replicas.record_fetch(THREE, 7, 2, 0, 10, START_MS)
    assert replicas.committed_offset(10) == 4, "it is not in sync and has not caught up"


def test_the_high_watermark_waits_for_who_is_about_to_join_as_long_as_it_fetches() -> None:
    """Else no one could join while producers write: the high watermark would always be ahead."""
    replicas = led(ONE)
    replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS)
    assert (replicas.has_joining, replicas.committed_offset(20)) == (True, 10)
    replicas.forget_absent(START_MS + PRESENT_MS)
    assert replicas.committed_offset(20) == 10
    replicas.forget_absent(START_MS + PRESENT_MS + 1)
    assert (replicas.has_joining, replicas.committed_offset(20)) == (False, 20)
    assert replicas.propose_expansion(10, START_MS + PRESENT_MS + 1) is None


def test_all_who_have_caught_up_are_proposed_in_the_order_of_the_assignment() -> None:
    replicas = led(ONE)
    for each, offset in ((THREE, 10), (TWO, 9)):
        replicas.record_fetch(each, 7, offset, 0, 10, START_MS)
    change = replicas.propose_expansion(9, START_MS)
    assert change is not None
    assert change.topic_id == topic_id("events"), "the epochs of a topic made again begin at 0 as well"
    assert (change.leader_epoch, change.partition_epoch) == (4, 9)
    assert change.new_isr == (IsrMember(TWO, 7), IsrMember(ONE), IsrMember(THREE, 7))
    assert replicas.propose_expansion(9, START_MS) is None, "one at a time"
    assert replicas.propose_shrink(10, START_MS + 100_000, 1000) is None


@pytest.mark.parametrize(("high_watermark", "epoch_start_offset", "joins"), [(10, 0, True), (11, 0, False), (0, 10, True), (0, 11, False)])
def test_who_joins_has_all_that_is_committed_and_all_from_before_the_epoch(
    high_watermark: int, epoch_start_offset: int, joins: bool
) -> None:
    replicas = led(ONE, epoch_start_offset=epoch_start_offset)
    replicas.record_fetch(TWO, 7, 10, 0, 15, START_MS)
    assert (replicas.propose_expansion(high_watermark, START_MS) is not None) == joins


def test_both_isrs_count_while_a_change_is_on_its_way() -> None:
    replicas = led(ONE, TWO)
    replicas.record_fetch(TWO, 7, 5, 0, 10, START_MS)
    change = replicas.propose_shrink(10, START_MS + 2000, 1000)
    assert change is not None
    assert [replica.broker_id for replica in change.new_isr] == [ONE]
    assert replicas.committed_offset(10) == 5
    state = PartitionState(ONE, 4, (ONE,), REPLICAS)
    assert not replicas.altered(change, AlteredPartition(0, state, 10), START_MS)
    assert (replicas.isr, replicas.partition_epoch, replicas.committed_offset(10)) == ((ONE,), 10, 10)
    assert not replicas.altered(change, AlteredPartition(0, PartitionState(ONE, 4, (ONE, TWO), REPLICAS), 11), START_MS), "answered twice"
    assert replicas.isr == (ONE,)


def test_who_is_refused_is_not_waited_for_and_not_proposed_again_at_once() -> None:
    replicas = led(ONE)
    replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS)
    change = replicas.propose_expansion(10, START_MS)
    assert change is not None
    assert not replicas.altered(change, AlteredPartition(IneligibleReplica.code), START_MS)
    assert (replicas.isr, replicas.has_joining, replicas.committed_offset(20)) == ((ONE,), False, 20)
    for later, joins in ((1, False), (REFUSED_MS, True)):
        replicas.record_fetch(TWO, 7, 20, 0, 20, START_MS + later)
        assert (replicas.propose_expansion(20, START_MS + later) is not None) == joins


def test_who_is_refused_keeps_no_other_out() -> None:
    """A broker that shuts down fetches on for as long as it is drained (`Partition.maybeExpandIsr` asks for one follower at a time)."""
    replicas = led(ONE)
    now_ms, asked = START_MS, list[tuple[BrokerId, ...]]()
    for _ in range(4):
        for follower in (TWO, THREE):
            replicas.record_fetch(follower, 7, 10, 0, 10, now_ms)
        while (change := replicas.propose_expansion(10, now_ms)) is not None:
            isr = tuple(member.broker_id for member in change.new_isr)
            asked.append(isr)
            if TWO in isr:
                assert not replicas.altered(change, AlteredPartition(IneligibleReplica.code), now_ms)
            else:
                state = PartitionState(ONE, 4, isr, REPLICAS)
                assert not replicas.altered(change, AlteredPartition(0, state, replicas.partition_epoch + 1), now_ms)
        now_ms += REFUSED_MS
    assert replicas.isr == (ONE, THREE), asked


def test_a_refusal_that_lasts_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of a broker that is drained each partition that it led is refused once a second, for as long as it is drained."""
    caplog.set_level(logging.INFO)
    replicas = led(ONE)
    for later_ms in range(0, 5 * REFUSED_MS, REFUSED_MS):
        replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS + later_ms)
        change = replicas.propose_expansion(10, START_MS + later_ms)
        assert change is not None
        assert not replicas.altered(change, AlteredPartition(IneligibleReplica.code), START_MS + later_ms)
    assert [record.message for record in caplog.records] == [
        "events-0: ISR stays (1,): the controller refused the change: IneligibleReplica (error code 107)"
    ]


def test_the_high_watermark_does_not_wait_for_a_follower_that_the_controller_let_in_by_itself_and_that_left_again() -> None:
    """The answer to the proposal is lost with its controller, and the next one sends the ISR."""
    replicas = led(ONE)
    replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS)
    assert replicas.propose_expansion(10, START_MS) is not None
    former = replicas.followers
    replicas.adopt(told(ONE, TWO, partition_epoch=10))
    replicas.lead(former, 0, START_MS)
    later_ms = START_MS + 2000
    replicas.record_fetch(TWO, 7, 11, 0, 20, later_ms)
    shrunk = replicas.propose_shrink(20, later_ms, 1000)
    assert shrunk is not None
    assert not replicas.altered(shrunk, AlteredPartition(0, PartitionState(ONE, 4, (ONE,), REPLICAS), 11), later_ms)
    assert (replicas.isr, replicas.has_joining, replicas.committed_offset(20)) == ((ONE,), False, 20)


@pytest.mark.parametrize("error", [RequestTimedOut.code, InvalidUpdateVersion.code])
def test_a_proposal_of_unknown_fate_stands_until_the_controller_says_more(error: int) -> None:
    replicas = led(ONE)
    replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS)
    change = replicas.propose_expansion(10, START_MS)
    assert change is not None
    assert replicas.altered(change, AlteredPartition(error), START_MS) == (error == RequestTimedOut.code)
    assert replicas.is_proposed(change)
    replicas.adopt(told(ONE, partition_epoch=9))
    assert replicas.is_proposed(change), "the state that it was proposed for, told again"
    replicas.adopt(told(ONE, partition_epoch=10))
    assert not replicas.is_proposed(change)


def test_an_answer_of_another_leader_epoch_is_left_to_the_controllers_word() -> None:
    replicas = led(ONE)
    replicas.record_fetch(TWO, 7, 10, 0, 10, START_MS)
    change = replicas.propose_expansion(10, START_MS)
    assert change is not None
    newer = AlteredPartition(0, PartitionState(TWO, 5, (TWO,), REPLICAS), 12)
    assert not replicas.altered(change, newer, START_MS)
    assert (replicas.isr, replicas.is_proposed(change)) == ((ONE,), True)


def test_a_fetch_of_a_former_life_or_of_no_replica_says_nothing() -> None:
    """KIP-903."""
    replicas = led(ONE, TWO)
    replicas.record_fetch(TWO, 7, 5, 0, 10, START_MS)
    for broker_id, epoch in ((TWO, 6), (BrokerId(9), 7)):
        with pytest.raises(NotLeaderOrFollower):
            replicas.record_fetch(broker_id, epoch, 10, 0, 10, START_MS)
    assert replicas.committed_offset(10) == 5
    replicas.record_fetch(TWO, 8, 3, 0, 10, START_MS)
    replicas.record_fetch(TWO, -1, 4, 0, 10, START_MS)  # a version of Fetch that does not say
    assert (replicas.committed_offset(10), replicas.followers[TWO].broker_epoch) == (4, 8)


def test_a_fetch_counts_under_an_epoch_that_went_back_with_zookeeper() -> None:
    """A ZooKeeper that was restored from a copy gives registrations lower epochs than those before."""
    replicas = led(ONE, TWO)
    replicas.record_fetch(TWO, 70, 5, 0, 10, START_MS)
    replicas.confirm_epoch(TWO, 41)
    replicas.record_fetch(TWO, 41, 10, 0, 10, START_MS)
    assert (replicas.committed_offset(10), replicas.followers[TWO].broker_epoch) == (10, 41)
    assert replicas.is_still_there(TWO, 41, 10, 0, START_MS)


def test_more_in_sync_than_there_are_replicas_can_not_be_asked_for() -> None:
    """KIP-966."""
    assert [led(ONE, TWO).is_under(number) for number in (1, 2, 3, 9)] == [False, False, True, True]
    assert not led(ONE, TWO, THREE).is_under(9)


def test_the_low_watermark_is_that_of_the_living() -> None:
    """KIP-107."""
    followers = [FollowerProgress(TWO), FollowerProgress(THREE)]
    followers[0].fetched(10, 3, 10, START_MS)
    assert low_watermark(5, followers, {ONE, TWO}) == 3
    assert low_watermark(2, followers, {ONE, TWO}) == 2
    assert low_watermark(5, followers, {ONE, TWO, THREE}) == -1, "it has not said"


def registered(broker_id: BrokerId, rack: str | None) -> BrokerRegistration:
    return BrokerRegistration(broker_id, (), rack)


def test_a_consumer_is_sent_to_the_best_replica_in_its_rack() -> None:
    """KIP-392."""
    brokers = {ONE: registered(ONE, "a"), TWO: registered(TWO, "b"), THREE: registered(THREE, "b")}
    two, three = FollowerProgress(TWO), FollowerProgress(THREE)
    two.fetched(10, 2, 20, START_MS)
    three.fetched(15, 5, 20, START_MS)

    def chosen(rack: str, offset: int, *followers: FollowerProgress) -> BrokerId | None:
        return preferred_read_replica(rack, offset, ONE, followers, brokers)

    assert chosen("b", 7, two, three) == THREE
    assert chosen("b", 3, two, three) == TWO, "the other has deleted it"
    assert chosen("b", 16, two, three) is None, "no one has it"
    assert chosen("b", 7) is None
    assert chosen("a", 7, two, three) is None, "the leader is there"
    assert chosen("c", 7, two, three) is None
    assert chosen("", 7, two, three) is None
    del brokers[THREE]
    assert chosen("b", 7, two, three) == TWO
