"""ConsumerGroupHeartbeat, case by case: who is let in, who is fenced, what is given up before it is given away (KIP-848)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from tests.unit.broker.groups.consumer.clients import REBALANCE_MS, SESSION_MS, ClassicClient, Client, ConsumerCoordinator, essence
from tests.unit.broker.groups.known_topics import KnownTopics

from ottla.broker.groups.commits import check_consumer_commit, check_consumer_fetch
from ottla.broker.groups.consumer.assignment import assignment_of, count
from ottla.broker.groups.consumer.group import ConsumerLimits
from ottla.broker.groups.consumer.heartbeat import Heartbeat
from ottla.broker.groups.consumer.member import LEAVES_FOR_A_WHILE
from ottla.broker.groups.consumer.states import LEGAL_MEMBER_PREDECESSORS, LEGAL_PREDECESSORS, ConsumerGroupState, MemberState
from ottla.errors import (
    ApiError,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)

JOIN = Heartbeat("m", 0, rebalance_timeout_ms=1000, names=frozenset({"clicks"}), owned={})


@pytest.fixture
def coordinator() -> ConsumerCoordinator:
    return ConsumerCoordinator(KnownTopics(clicks=4, views=2))


def two(coordinator: ConsumerCoordinator) -> tuple[Client, Client]:
    """Two members with two partitions each."""
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    for client in (a, b, a, b, a, b):
        client.beat()
    assert (len(a.owned), len(b.owned), coordinator.group.state) == (2, 2, ConsumerGroupState.STABLE)
    return a, b


def test_the_first_member_has_everything_with_its_first_answer(coordinator: ConsumerCoordinator) -> None:
    client = Client(coordinator, "a")
    answer = client.beat()
    assert answer is not None
    assert (answer.member_epoch, answer.heartbeat_interval_ms, len(client.owned)) == (1, 5_000, 4)
    again = client.beat()
    assert again is not None
    assert again.assignment is None, "nothing has changed"


def test_a_partition_is_given_only_after_it_was_given_up(coordinator: ConsumerCoordinator) -> None:
    """The heart of KIP-848: A keeps its epoch until it says that it does not read any more what it was asked for."""
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    a.beat()
    b.beat()
    assert (b.epoch, b.owned) == (2, set())
    assert coordinator.group.get("b").position.state is MemberState.UNRELEASED
    a.beat(revokes=False)
    assert (a.epoch, len(a.owned)) == (1, 4)
    assert coordinator.group.get("a").position.state is MemberState.UNREVOKED
    b.beat()
    assert b.owned == set()
    a.beat()  # still has everything, as far as it says
    b.beat()
    assert b.owned == set()
    a.owned = set(sorted(a.owned)[:2])
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert len(b.owned) == 2
    assert coordinator.group.state is ConsumerGroupState.STABLE


def test_who_does_not_give_up_in_time_is_out(coordinator: ConsumerCoordinator) -> None:
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    a.beat()
    b.beat()
    for _ in range(REBALANCE_MS // 20_000):
        assert coordinator.wait(20_000 - 1) == [], "it lives, and has a rebalance timeout to give up"
        a.beat(revokes=False)
        b.beat()
    assert coordinator.wait(20_003) == ["a"]
    b.beat()
    assert len(b.owned) == 4
    a.beat()
    assert (a.epoch, a.owned) == (0, set()), "it was fenced"


def test_who_is_not_heard_of_for_a_session_is_out(coordinator: ConsumerCoordinator) -> None:
    _, b = two(coordinator)
    assert coordinator.wait(SESSION_MS - 1) == []
    b.beat()
    assert coordinator.wait(1) == ["a"]
    assert coordinator.group.state is ConsumerGroupState.ASSIGNING
    b.beat()
    assert len(b.owned) == 4


def test_an_answer_that_was_lost_is_given_again(coordinator: ConsumerCoordinator) -> None:
    """The member still speaks of the epoch before (KIP-848: previous member epoch)."""
    a = Client(coordinator, "a")
    a.beat(answer_is_lost=True)
    a.beat()
    assert (a.epoch, len(a.owned)) == (1, 4)
    b = Client(coordinator, "b")
    b.beat()
    a.beat()
    a.beat(answer_is_lost=True)
    assert a.epoch == 1
    a.beat()
    assert (a.epoch, len(a.owned)) == (2, 2)


def test_a_member_that_missed_what_it_waited_for_is_told_it_when_it_says_everything(coordinator: ConsumerCoordinator) -> None:
    """What was free at last came at the epoch that the member was at, so only a full request shows that it does not know (KIP-848)."""
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    for client in (a, b, a, a):
        client.beat()
    b.beat(answer_is_lost=True)
    assert (b.epoch, b.owned, coordinator.group.state) == (2, set(), ConsumerGroupState.STABLE)
    assert coordinator.heartbeat(Heartbeat("b", 2, owned={})).assignment is None, "as Kafka: this one only says that it lives"
    b.beat()
    assert len(b.owned) == 2


@pytest.mark.parametrize("epoch", [3, 1])
def test_another_epoch_is_fenced(coordinator: ConsumerCoordinator, epoch: int) -> None:
    """A greater one, or the one before by someone who reads what it was not given."""
    a, _ = two(coordinator)
    foreign = assignment_of([(UUID(int=99), 0)])
    with pytest.raises(FencedMemberEpoch, match="must abandon all its partitions and rejoin"):
        coordinator.heartbeat(Heartbeat("a", epoch, owned=foreign))
    assert a.beat() is not None


def test_a_member_that_was_fenced_or_has_lost_its_leave_joins_again_at_once(coordinator: ConsumerCoordinator) -> None:
    """Epoch 0 is a member's that has abandoned its partitions, whatever epoch it was at (KIP-848, KAFKA-19233)."""
    a, b = two(coordinator)
    coordinator.topics.make("clicks", 6)
    coordinator.wait(coordinator.group.limits.topics_check_ms)
    for client in (a, b, a, b):
        client.beat()
    assert coordinator.group.get("a").position.previous_epoch > 0
    a.epoch, a.owned = 0, set()
    a.beat()
    assert (a.epoch, len(a.owned), coordinator.group.state) == (coordinator.group.epoch, 3, ConsumerGroupState.STABLE)


def test_a_member_that_joins_again_has_given_up_what_it_was_asked_for(coordinator: ConsumerCoordinator) -> None:
    a, b = two(coordinator)
    c = Client(coordinator, "c")
    c.beat()
    for client in (a, b):
        client.beat(revokes=False)
    slow = next(client for client in (a, b) if coordinator.group.get(client.member_id).position.state is MemberState.UNREVOKED)
    slow.epoch, slow.owned = 0, set()
    slow.beat()
    c.beat()
    assert (slow.epoch, len(slow.owned), len(c.owned)) == (3, 1, 1)
    assert coordinator.group.state is ConsumerGroupState.STABLE


def test_a_member_that_is_not_known_joins_again(coordinator: ConsumerCoordinator) -> None:
    with pytest.raises(UnknownMemberId):
        coordinator.heartbeat(Heartbeat("a", 1))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (replace(JOIN, member_id=""), InvalidRequest),
        (replace(JOIN, instance_id=""), InvalidRequest),
        (replace(JOIN, rack_id=" "), InvalidRequest),
        (replace(JOIN, member_epoch=-3), InvalidRequest),
        (replace(JOIN, member_epoch=-2), InvalidRequest),
        (replace(JOIN, rebalance_timeout_ms=-1), InvalidRequest),
        (replace(JOIN, owned=None), InvalidRequest),
        (replace(JOIN, owned={UUID(int=1): frozenset({0})}), InvalidRequest),
        (replace(JOIN, names=None), InvalidRequest),
        (replace(JOIN, assignor="sticky"), UnsupportedAssignor),
        (replace(JOIN, regex="clicks("), InvalidRegularExpression),
        (replace(JOIN, regex=r"(a)\1"), InvalidRegularExpression),
        (replace(JOIN, regex="x" * 20_000), InvalidRegularExpression),
    ],
)
def test_what_makes_no_sense_is_refused(coordinator: ConsumerCoordinator, request_: Heartbeat, error: type[ApiError]) -> None:
    """As `throwIfConsumerGroupHeartbeatRequestIsInvalid`. RE2 has no back references, as they cannot be bounded in time."""
    with pytest.raises(error):
        coordinator.heartbeat(request_)
    assert not coordinator.group.members


def test_the_coordinator_makes_ids_for_members_of_version_0(coordinator: ConsumerCoordinator) -> None:
    answer = coordinator.heartbeat(replace(JOIN, member_id="", makes_its_id=False))
    assert answer.member_id == str(UUID(int=1))


def test_a_group_takes_no_more_members_than_it_may(coordinator: ConsumerCoordinator) -> None:
    coordinator = ConsumerCoordinator(KnownTopics(clicks=4), ConsumerLimits(max_size=2))
    a, _ = two(coordinator)
    with pytest.raises(GroupMaxSizeReached):
        Client(coordinator, "c").beat()
    assert a.beat() is not None


def test_a_static_member_of_a_full_group_is_back_in_its_own_place() -> None:
    """It has a new member id, with either protocol, and is one of those who are there (KIP-345, KAFKA-20601)."""
    coordinator = ConsumerCoordinator(KnownTopics(clicks=4), ConsumerLimits(max_size=2))
    a, b = Client(coordinator, "a", instance_id="one"), Client(coordinator, "b")
    for client in (a, b, a, b, a, b):
        client.beat()
    a.leave(LEAVES_FOR_A_WHILE)
    again = Client(coordinator, "a2", instance_id="one")
    again.beat()
    assert (len(again.owned), set(coordinator.group.members)) == (2, {"a2", "b"})
    again.leave(LEAVES_FOR_A_WHILE)
    ClassicClient(coordinator, "", instance_id="one").join()
    assert len(coordinator.group) == 2
    with pytest.raises(GroupMaxSizeReached):
        Client(coordinator, "c", instance_id="two").beat()


def test_a_regular_expression_that_takes_for_ever_elsewhere_takes_no_time(coordinator: ConsumerCoordinator) -> None:
    """`(a+)+$` against many a's and a b is exponential where expressions are tried; RE2 is linear."""
    coordinator.topics.make("a" * 200 + "b", 1)
    client = Client(coordinator, "a", frozenset(), regex="(a+)+$|(a|a)*c|clicks")
    client.beat()
    assert len(client.owned) == 4


def test_a_regular_expression_stands_for_topics_that_come_and_go(coordinator: ConsumerCoordinator) -> None:
    client = Client(coordinator, "a", frozenset({"clicks"}), regex="view.*")
    client.beat()
    assert len(client.owned) == 6
    coordinator.topics.make("viewers", 3)
    coordinator.wait(9_999)
    client.beat()
    assert len(client.owned) == 6, "all new topics of some seconds make one rebalance"
    coordinator.wait(1)
    client.beat()
    assert len(client.owned) == 9
    coordinator.topics.delete("views")
    for _ in range(2):  # it may only not be known here yet
        coordinator.wait(10_000)
        client.beat()
    assert len(client.owned) == 7


def test_a_regular_expression_shows_only_what_the_member_may_see(coordinator: ConsumerCoordinator) -> None:
    answer = coordinator.heartbeat(replace(JOIN, names=frozenset(), regex=".*", may_see=lambda name: name != "clicks"))
    assert answer.assignment is not None
    assert count(answer.assignment) == 2


def test_a_member_of_the_classic_protocol_does_not_look_up_what_others_may_not_see(coordinator: ConsumerCoordinator) -> None:
    """It has no regular expression, and its JoinGroup looks at none (`GroupMetadataManager.classicGroupJoinToConsumerGroup`): the
    others were given topics that they may not describe, and failed on the first fetch."""
    sees_views = replace(JOIN, names=frozenset(), regex=".*", may_see=lambda name: name == "views")
    coordinator.heartbeat(sees_views)
    coordinator.wait(ConsumerLimits().regex_check_ms)
    ClassicClient(coordinator, "classic").join()
    assert coordinator.group.regexes[".*"].topics == {"views"}


def test_the_last_of_a_regular_expression_takes_it_away(coordinator: ConsumerCoordinator) -> None:
    a, b = Client(coordinator, "a", frozenset(), regex="v.*"), Client(coordinator, "b", frozenset(), regex="v.*")
    a.beat()
    b.beat()
    a.leave()
    assert set(coordinator.group.regexes) == {"v.*"}
    b.regex = ""
    b.names = frozenset({"clicks"})
    b.beat(is_full=True)
    assert not coordinator.group.regexes


def test_new_partitions_and_topics_are_assigned(coordinator: ConsumerCoordinator) -> None:
    a, b = two(coordinator)
    coordinator.topics.make("clicks", 6)
    coordinator.wait(1_000)
    for client in (a, b, a, b):
        client.beat()
    assert (len(a.owned), len(b.owned)) == (3, 3)


def test_a_topic_that_is_made_anew_is_another_one(coordinator: ConsumerCoordinator) -> None:
    a, b = two(coordinator)
    coordinator.topics.delete("clicks")
    new_id = coordinator.topics.make("clicks", 2)
    coordinator.wait(1_000)
    for client in (a, b, a, b):
        client.beat()
    assert a.owned | b.owned == {(new_id, 0), (new_id, 1)}


def test_a_topic_that_is_not_known_for_a_moment_is_not_taken_for_deleted(coordinator: ConsumerCoordinator) -> None:
    """A broker that has just started is told of topics in slices, and may be asked in between."""
    coordinator.topics = KnownTopics(clicks=4)
    client = Client(coordinator, "a", regex="c.*")
    client.beat()
    whole, coordinator.topics = coordinator.topics, KnownTopics(other=1)
    coordinator.wait(1_000)
    client.beat(is_full=True)
    coordinator.topics = KnownTopics(clicks=2)
    coordinator.wait(1_000)
    client.beat()
    coordinator.topics = whole
    coordinator.wait(10_000)
    client.beat()
    assert (len(client.owned), coordinator.group.epoch) == (4, 1)
    whole.delete("clicks")
    for _ in range(4):
        coordinator.wait(1_000)
        client.beat()
    assert not client.owned


def test_a_topic_of_which_nothing_but_the_name_is_known_is_not_taken_for_deleted(coordinator: ConsumerCoordinator) -> None:
    """Its znode cannot be read, and this broker has started since: its members read it as before, from brokers that know it."""
    named, pattern = Client(coordinator, "a"), Client(coordinator, "b", frozenset(), regex="v.*")
    for client in (named, pattern, named, pattern):
        client.beat()
    assert (len(named.owned), len(pattern.owned)) == (4, 2)
    for name in ("clicks", "views"):
        coordinator.topics.delete(name)
        coordinator.topics.unread.add(name)
    for _ in range(4):
        coordinator.wait(10_000)
        named.beat()
        pattern.beat()
    assert (len(named.owned), len(pattern.owned)) == (4, 2)


def test_what_a_classic_member_reads_is_not_given_away_while_its_topic_is_not_known(coordinator: ConsumerCoordinator) -> None:
    """It says names, and a name that this broker does not know for a moment is no sign that anything was given up."""
    new, old, late = Client(coordinator, "a"), ClassicClient(coordinator, "b"), Client(coordinator, "c")
    for _ in range(5):
        new.beat()
        old.beat()
    assert (len(new.owned), len(old.owned)) == (2, 2)
    late.beat()
    coordinator.topics.delete("clicks")
    for _ in range(2):
        old.beat()  # it is told to join, and joins, with all that it reads
    late.beat()
    assert (len(old.owned), late.owned) == (2, set())
    old.beat()
    assert len(old.owned) == 1, "it syncs, and is told what it keeps, and so what to give up"
    coordinator.topics = KnownTopics(clicks=4)
    for _ in range(3):
        old.beat()
    late.beat()
    assert (len(new.owned), len(old.owned), len(late.owned)) == (2, 1, 1)


def test_another_assignor_assigns_at_once_when_most_ask_for_it(coordinator: ConsumerCoordinator) -> None:
    """Members that are there already, as static ones that are back, change nothing else by it (KAFKA-20434)."""
    a, b = Client(coordinator, "a", instance_id="one", assignor="uniform"), Client(coordinator, "b", instance_id="two", assignor="uniform")
    for client in (a, b, a, b, a, b):
        client.beat()
    before = coordinator.group.epoch
    for client in (a, b):
        client.leave(LEAVES_FOR_A_WHILE)
        Client(coordinator, f"{client.member_id}2", instance_id=client.instance_id, assignor="range").beat()
    assert (coordinator.group.assignor, coordinator.group.epoch) == ("range", before + 1)
    assert coordinator.group.assignment_epoch == before + 1


def test_the_assignor_that_most_ask_for_assigns(coordinator: ConsumerCoordinator) -> None:
    a, b = Client(coordinator, "a", assignor="range"), Client(coordinator, "b")
    for client in (a, b, a, b, a, b):
        client.beat()
    assert coordinator.group.assignor == "range"
    assert {partition for _, partition in a.owned} == {0, 1}


# Static members (KIP-345 in KIP-848).


def test_a_static_member_that_leaves_for_a_while_keeps_its_partitions(coordinator: ConsumerCoordinator) -> None:
    a, b = Client(coordinator, "a", instance_id="i"), Client(coordinator, "b")
    for client in (a, b, a, b, a, b):
        client.beat()
    mine, epoch = set(a.owned), coordinator.group.epoch
    coordinator.heartbeat(Heartbeat("a", LEAVES_FOR_A_WHILE, instance_id="i"))
    b.beat()
    assert len(b.owned) == 2
    back = Client(coordinator, "a2", instance_id="i")
    back.beat()
    assert (back.owned, coordinator.group.epoch) == (mine, epoch), "and no one has noticed"
    with pytest.raises(FencedInstanceId):
        coordinator.heartbeat(Heartbeat("a", 2, instance_id="i", owned={}))


def test_a_static_member_that_does_not_come_back_is_out(coordinator: ConsumerCoordinator) -> None:
    a = Client(coordinator, "a", instance_id="i")
    a.beat()
    coordinator.heartbeat(Heartbeat("a", LEAVES_FOR_A_WHILE, instance_id="i"))
    assert coordinator.wait(SESSION_MS) == ["a"]


def test_an_instance_id_that_is_in_use_is_not_given_away(coordinator: ConsumerCoordinator) -> None:
    a = Client(coordinator, "a", instance_id="i")
    a.beat()
    with pytest.raises(UnreleasedInstanceId):
        coordinator.heartbeat(replace(JOIN, member_id="b", instance_id="i"))
    with pytest.raises(UnknownMemberId):
        coordinator.heartbeat(Heartbeat("b", 1, instance_id="j"))


def test_a_static_member_whose_first_answer_was_lost_asks_again(coordinator: ConsumerCoordinator) -> None:
    """Kafka answers UNRELEASED_INSTANCE_ID to the member itself, which is fatal to its client."""
    a = Client(coordinator, "a", instance_id="i")
    a.beat(answer_is_lost=True)
    a.beat()
    assert (a.epoch, len(a.owned)) == (1, 4)


# Offsets.


def test_commits_and_fetches_say_the_epoch(coordinator: ConsumerCoordinator) -> None:
    group = coordinator.group
    check_consumer_commit(group, -1, "")
    a, _ = two(coordinator)
    check_consumer_commit(group, a.epoch, "a")
    check_consumer_fetch(group, "a", a.epoch)
    check_consumer_fetch(group, None, -1)
    check_consumer_commit(group, -1, "", transactional=True)
    for epoch in (a.epoch - 1, a.epoch + 1):
        with pytest.raises(StaleMemberEpoch):
            check_consumer_commit(group, epoch, "a")
        with pytest.raises(StaleMemberEpoch):
            check_consumer_fetch(group, "a", epoch)
    for member_id in ("", "z"):
        with pytest.raises(UnknownMemberId):
            check_consumer_commit(group, -1, member_id)
    with pytest.raises(UnknownMemberId):
        check_consumer_fetch(group, None, 1)
    with pytest.raises(UnsupportedVersion):
        check_consumer_commit(group, a.epoch, "a", knows_epochs=False)
    classic = ClassicClient(coordinator, "c")
    classic.join()
    with pytest.raises(IllegalGeneration):
        check_consumer_commit(group, classic.epoch + 1, "c", knows_epochs=False)


# What is written.


def test_what_could_not_be_written_has_not_happened(coordinator: ConsumerCoordinator) -> None:
    a, _ = two(coordinator)
    before = essence(coordinator.group)
    coordinator.refuses = True
    Client(coordinator, "c", regex=".*").beat()
    assert essence(coordinator.group) == before
    coordinator.refuses = False
    assert a.beat() is not None


def test_a_heartbeat_that_changes_nothing_writes_nothing(coordinator: ConsumerCoordinator) -> None:
    a, _ = two(coordinator)
    before = dict(coordinator.records)
    a.beat()
    a.beat(is_full=True)
    assert coordinator.records == before


def test_the_tables_have_every_state() -> None:
    assert set(LEGAL_PREDECESSORS) == set(ConsumerGroupState)
    assert set(LEGAL_MEMBER_PREDECESSORS) == set(MemberState)
    assert ConsumerGroupState.EMPTY not in LEGAL_PREDECESSORS[ConsumerGroupState.ASSIGNING]
