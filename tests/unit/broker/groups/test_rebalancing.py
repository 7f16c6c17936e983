"""The classic group protocol, event by event (Kafka's GroupCoordinator; KIP-345, KIP-394, KIP-814)."""

from __future__ import annotations

import pytest
from tests.unit.broker.groups.members import RANGE, REBALANCE_MS, ROUND_ROBIN, SESSION_MS, Coordinator, error_of

from ottla.broker.groups.classic import rebalancing
from ottla.broker.groups.classic.group import GroupLimits
from ottla.broker.groups.classic.transitions import LEGAL_PREDECESSORS, GroupState
from ottla.broker.groups.classic.validation import check_commit
from ottla.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    NotCoordinator,
    NotEnoughReplicas,
    RebalanceInProgress,
    UnknownMemberId,
)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def test_a_single_member_is_leader_of_the_first_generation_and_gets_what_it_assigned(coordinator: Coordinator) -> None:
    answer = coordinator.joined[coordinator.join()]
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
    assert [member.member_id for member in answer.members] == [answer.member_id]
    token = coordinator.sync(answer, {answer.member_id: b"all"})
    assert coordinator.synced[token].assignment == b"all"
    assert coordinator.group.state is GroupState.STABLE


def test_a_second_member_makes_everybody_join_again_and_only_the_leader_is_told_of_all(coordinator: Coordinator) -> None:
    first = coordinator.stable(1)[0]
    second_token = coordinator.join()
    assert second_token not in coordinator.joined
    assert coordinator.heartbeat(first.member_id, 1) is RebalanceInProgress
    again = coordinator.joined[coordinator.join(first.member_id)]
    second = coordinator.joined[second_token]
    assert again.generation_id == second.generation_id == 2
    assert {member.member_id for member in again.members} == {first.member_id, second.member_id}
    assert second.members == ()


def test_followers_wait_for_the_leaders_assignment_until_it_is_stored(coordinator: Coordinator) -> None:
    first = coordinator.stable(1)[0]
    second_token = coordinator.join()
    leader = coordinator.joined[coordinator.join(first.member_id)]
    follower = coordinator.joined[second_token]
    coordinator.held = []
    follower_sync = coordinator.sync(follower)
    leader_sync = coordinator.sync(leader, {leader.member_id: b"1", follower.member_id: b"2"})
    assert not {follower_sync, leader_sync} & coordinator.synced.keys()
    (effect,) = coordinator.held
    assert {member.member_id: member.assignment for member in effect.members} == {leader.member_id: b"1", follower.member_id: b"2"}
    coordinator.store(effect)
    assert coordinator.synced[follower_sync].assignment == b"2"
    assert coordinator.synced[leader_sync].assignment == b"1"


def test_an_assignment_that_was_not_stored_holds_for_nobody(coordinator: Coordinator) -> None:
    answer = coordinator.joined[coordinator.join()]
    coordinator.held = []
    token = coordinator.sync(answer, {answer.member_id: b"all"})
    coordinator.store(coordinator.held[0], NotEnoughReplicas("1 of 2"))
    assert error_of(coordinator.synced[token]) is NotEnoughReplicas
    assert coordinator.group.state is GroupState.PREPARING_REBALANCE
    assert coordinator.group.get(answer.member_id).assignment == b""


def test_a_member_is_given_an_id_to_join_with_first(coordinator: Coordinator) -> None:
    """KIP-394: otherwise a client that gives up waiting leaves a member behind each time."""
    answer = coordinator.joined[coordinator.join(requires_known_member_id=True)]
    assert error_of(answer) is MemberIdRequired
    assert answer.member_id.startswith("client-")
    assert len(coordinator.group) == 0
    assert coordinator.joined[coordinator.join(answer.member_id, requires_known_member_id=True)].generation_id == 1


def test_an_id_that_nobody_joins_with_is_forgotten_after_the_session_timeout(coordinator: Coordinator) -> None:
    answer = coordinator.joined[coordinator.join(requires_known_member_id=True)]
    coordinator.wait(SESSION_MS)
    assert error_of(coordinator.joined[coordinator.join(answer.member_id)]) is UnknownMemberId


def test_a_rebalance_waits_for_a_member_that_was_given_an_id(coordinator: Coordinator) -> None:
    first = coordinator.stable(1)[0]
    given = coordinator.joined[coordinator.join(requires_known_member_id=True)].member_id
    again = coordinator.join(first.member_id)
    assert again not in coordinator.joined  # the leader's rejoin begins a rebalance, and one is still expected
    coordinator.join(given)
    assert coordinator.joined[again].generation_id == 2


def test_the_first_members_of_an_empty_group_are_assigned_once() -> None:
    """group.initial.rebalance.delay.ms: each newcomer prolongs the wait, up to the rebalance timeout."""
    coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = coordinator.join()
    coordinator.wait(2_000)
    second = coordinator.join()
    coordinator.wait(1_000)
    assert first not in coordinator.joined
    coordinator.wait(3_000)
    assert coordinator.joined[first].generation_id == coordinator.joined[second].generation_id == 1


def test_newcomers_can_not_put_the_first_rebalance_off_for_ever() -> None:
    coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = coordinator.join()
    waited = 0
    while first not in coordinator.joined:
        coordinator.join()
        coordinator.wait(1_000)
        waited += 1_000
        assert waited <= REBALANCE_MS
    assert waited > 3_000


def test_a_member_that_does_not_join_again_in_time_is_out(coordinator: Coordinator) -> None:
    leader, lost = coordinator.stable(2)
    token = coordinator.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        coordinator.wait(5_000)
        coordinator.heartbeat(lost.member_id, lost.generation_id)  # it lives, but does not come
    assert token not in coordinator.joined
    coordinator.wait(5_000)
    assert [member.member_id for member in coordinator.joined[token].members] == [leader.member_id]
    assert coordinator.heartbeat(lost.member_id, 3) is UnknownMemberId


def test_a_session_that_times_out_starts_a_rebalance(coordinator: Coordinator) -> None:
    leader, lost = coordinator.stable(2)
    coordinator.wait(SESSION_MS - 1)
    assert coordinator.heartbeat(leader.member_id, leader.generation_id) is None
    coordinator.wait(1)
    assert not coordinator.group.has(lost.member_id)
    assert coordinator.heartbeat(leader.member_id, leader.generation_id) is RebalanceInProgress


def test_a_member_that_waits_for_its_answer_needs_no_heartbeat(coordinator: Coordinator) -> None:
    leader, slow = coordinator.stable(2)
    token = coordinator.join(leader.member_id)
    for _ in range(4):
        coordinator.wait(SESSION_MS // 2)
        coordinator.heartbeat(slow.member_id, slow.generation_id)
    coordinator.join(slow.member_id)
    assert coordinator.joined[token].generation_id == leader.generation_id + 1


def test_a_newcomer_whose_client_gave_up_is_not_waited_for_longer_than_five_minutes() -> None:
    coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=30_000))
    leader = coordinator.stable(1)[0]
    token = coordinator.join()
    for _ in range(6):
        coordinator.wait(5_000)
        coordinator.heartbeat(leader.member_id, 1)
    assert error_of(coordinator.joined[token]) is UnknownMemberId
    assert len(coordinator.group) == 1


def test_members_that_never_ask_for_their_assignment_are_out_after_the_rebalance_timeout(coordinator: Coordinator) -> None:
    first = coordinator.stable(1)[0]
    second_token = coordinator.join()
    leader = coordinator.joined[coordinator.join(first.member_id)]
    follower = coordinator.joined[second_token]
    coordinator.sync(leader, {leader.member_id: b"1"})
    for _ in range(REBALANCE_MS // 5_000):
        coordinator.wait(5_000)
        coordinator.heartbeat(leader.member_id, 2)
        coordinator.heartbeat(follower.member_id, 2)
    assert not coordinator.group.has(follower.member_id)
    assert coordinator.heartbeat(leader.member_id, 2) is RebalanceInProgress


def test_a_lost_answer_to_join_or_sync_is_given_again(coordinator: Coordinator) -> None:
    answer = coordinator.joined[coordinator.join()]
    again = coordinator.joined[coordinator.join(answer.member_id)]
    assert (again.generation_id, again.members) == (answer.generation_id, answer.members)
    first = coordinator.sync(answer, {answer.member_id: b"all"})
    second = coordinator.sync(answer)
    assert coordinator.synced[first].assignment == coordinator.synced[second].assignment == b"all"


def test_a_follower_that_joins_a_stable_group_again_unchanged_starts_no_rebalance(coordinator: Coordinator) -> None:
    _, follower = coordinator.stable(2)
    again = coordinator.joined[coordinator.join(follower.member_id)]
    assert again.generation_id == follower.generation_id
    assert coordinator.group.state is GroupState.STABLE


@pytest.mark.parametrize("who", ["the leader", "a follower with another subscription"])
def test_what_starts_a_rebalance_of_a_stable_group(coordinator: Coordinator, who: str) -> None:
    leader, follower = coordinator.stable(2)
    if who == "the leader":
        coordinator.join(leader.member_id)
    else:
        coordinator.join(follower.member_id, [RANGE._replace(metadata=b"other topics")])
    assert coordinator.group.state is GroupState.PREPARING_REBALANCE


def test_the_protocol_is_one_that_all_support_and_most_like_best(coordinator: Coordinator) -> None:
    first = coordinator.joined[coordinator.join(protocols=[RANGE, ROUND_ROBIN])]
    tokens = [coordinator.join(protocols=[ROUND_ROBIN, RANGE]), coordinator.join(protocols=[ROUND_ROBIN, RANGE])]
    coordinator.join(first.member_id, [RANGE, ROUND_ROBIN])
    assert coordinator.joined[tokens[0]].protocol_name == "roundrobin"


def test_a_member_without_a_common_protocol_is_refused(coordinator: Coordinator) -> None:
    coordinator.stable(1)
    assert error_of(coordinator.joined[coordinator.join(protocols=[ROUND_ROBIN])]) is InconsistentGroupProtocol
    assert error_of(coordinator.joined[coordinator.join(protocol_type="connect")]) is InconsistentGroupProtocol
    assert error_of(Coordinator().joined.get(0) or _joined_without_protocols()) is InconsistentGroupProtocol


def _joined_without_protocols():  # type: ignore[no-untyped-def]
    coordinator = Coordinator()
    return coordinator.joined[coordinator.join(protocols=[])]


def test_group_max_size_holds_for_newcomers_only() -> None:
    coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=0, max_size=2))
    leader, follower = coordinator.stable(2)
    assert error_of(coordinator.joined[coordinator.join()]) is GroupMaxSizeReached
    assert coordinator.joined[coordinator.join(follower.member_id)].error is None
    assert coordinator.heartbeat(leader.member_id, leader.generation_id) is None


def test_a_static_member_of_a_full_group_is_back_in_its_own_place() -> None:
    """It has a new member id, and is one of those who are there; also where all of them wait for one that has only an id (KIP-345)."""
    coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=0, max_size=2))
    one = coordinator.joined[coordinator.join(instance_id="one")].member_id
    other = coordinator.join(instance_id="two")
    leader = coordinator.joined[coordinator.join(one, instance_id="one")]
    coordinator.sync(leader, {}, instance_id="one")
    back = coordinator.joined[coordinator.join(instance_id="one")]
    assert (back.error, back.generation_id, len(coordinator.group)) == (None, leader.generation_id, 2)
    assert error_of(coordinator.joined[coordinator.join(instance_id="three")]) is GroupMaxSizeReached
    coordinator.join(back.member_id, instance_id="one", protocols=(RANGE, ROUND_ROBIN))
    coordinator.join(requires_known_member_id=True)
    coordinator.join(coordinator.joined[other].member_id, instance_id="two")
    again = coordinator.join(instance_id="one")
    assert again not in coordinator.joined
    coordinator.wait(SESSION_MS)
    assert (coordinator.joined[again].generation_id, len(coordinator.group)) == (leader.generation_id + 1, 2)


def test_a_member_that_is_one_too_many_for_group_max_size_is_not_waited_for() -> None:
    """KIP-389: a group that is larger than a lowered maximum shrinks with its next rebalance, as those over it are refused and out."""
    coordinator = Coordinator()
    first, second, third = coordinator.stable(3)
    coordinator.group.limits = GroupLimits(initial_rebalance_delay_ms=0, max_size=2)  # type: ignore[misc]
    rejoining = [coordinator.join(member.member_id) for member in (first, second, third)]
    assert error_of(coordinator.joined[rejoining[2]]) is GroupMaxSizeReached
    assert [coordinator.joined[token].generation_id for token in rejoining[:2]] == [first.generation_id + 1] * 2
    assert set(coordinator.group.members) == {first.member_id, second.member_id}


def test_heartbeats_of_strangers_and_of_other_generations_are_refused(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable(1)
    assert coordinator.heartbeat("stranger", 1) is UnknownMemberId
    assert coordinator.heartbeat(member.member_id, 0) is IllegalGeneration
    assert coordinator.heartbeat(member.member_id, 1) is None


def test_the_last_member_that_leaves_makes_the_group_empty_and_that_is_stored(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable(1)
    assert coordinator.leave(member.member_id) is None
    assert coordinator.group.state is GroupState.EMPTY
    assert coordinator.stored[-1].members == ()
    assert coordinator.leave(member.member_id) is UnknownMemberId


def test_the_next_member_leads_when_the_leader_has_left(coordinator: Coordinator) -> None:
    leader, follower = coordinator.stable(2)
    coordinator.leave(leader.member_id)
    assert coordinator.joined[coordinator.join(follower.member_id)].leader == follower.member_id


def test_sync_in_a_rebalance_or_by_a_stranger_is_refused(coordinator: Coordinator) -> None:
    leader, follower = coordinator.stable(2)
    assert error_of(coordinator.synced[coordinator.sync(follower, generation=7)]) is IllegalGeneration
    coordinator.join(leader.member_id)
    assert error_of(coordinator.synced[coordinator.sync(follower)]) is RebalanceInProgress


def test_whoever_waits_for_an_assignment_is_told_when_another_rebalance_begins(coordinator: Coordinator) -> None:
    first = coordinator.stable(1)[0]
    second_token = coordinator.join()
    coordinator.join(first.member_id)
    waiting = coordinator.sync(coordinator.joined[second_token])
    coordinator.join()
    assert error_of(coordinator.synced[waiting]) is RebalanceInProgress


def test_a_static_member_that_is_back_keeps_its_assignment_without_a_rebalance(coordinator: Coordinator) -> None:
    """KIP-345."""
    (leader,) = coordinator.stable(1)
    coordinator.join(instance_id="printer")
    # The static member waits for the leader, who joins again.
    again = coordinator.joined[coordinator.join(leader.member_id)]
    static = next(answer for answer in coordinator.joined.values() if answer.member_id.startswith("printer") and answer.error is None)
    coordinator.sync(again, {again.member_id: b"1", static.member_id: b"2"})
    coordinator.sync(static, instance_id="printer")
    back = coordinator.joined[coordinator.join(instance_id="printer")]
    assert back.generation_id == static.generation_id
    assert back.member_id != static.member_id
    token = coordinator.sync(back, instance_id="printer")
    assert coordinator.synced[token].assignment == b"2"
    assert coordinator.stored[-1].members[-1].member_id == back.member_id
    assert coordinator.heartbeat(static.member_id, static.generation_id, "printer") is FencedInstanceId
    assert coordinator.heartbeat(back.member_id, back.generation_id, "printer") is None


@pytest.mark.parametrize("skipping", [True, False])
def test_a_static_leader_that_is_back_does_not_assign_anew(coordinator: Coordinator, skipping: bool) -> None:
    """KIP-814: it leads and leaves the assignment out, or, when it does not know how to, is told of another leader."""
    static = coordinator.joined[coordinator.join(instance_id="i")]
    coordinator.sync(static, {static.member_id: b"all"}, "i")
    back = coordinator.joined[coordinator.join(instance_id="i", supports_skipping_assignment=skipping)]
    assert back.skip_assignment is skipping
    assert (back.leader == back.member_id) is skipping
    assert coordinator.group.leader_id == back.member_id


def test_a_static_member_that_is_not_back_stays_until_its_session_ends(coordinator: Coordinator) -> None:
    static = coordinator.joined[coordinator.join(instance_id="i")]
    coordinator.sync(static, {static.member_id: b"all"}, "i")
    coordinator.wait(SESSION_MS - 1)
    assert coordinator.group.has(static.member_id)
    coordinator.wait(1)
    assert coordinator.group.state is GroupState.EMPTY


def test_a_group_without_a_rebalance_timeout_does_not_keep_the_loop_busy(coordinator: Coordinator) -> None:
    """Only a static member is left, which has not joined again: the group waits, and looks again once in a while."""
    (static,) = coordinator.stable(1, instance_id="i")
    coordinator.group.get(static.member_id).rebalance_timeout_ms = 0
    coordinator.join()
    coordinator.leave(next(member for member in coordinator.group.members if member != static.member_id))
    coordinator.group.join_deadline_ms = coordinator.now_ms
    coordinator.perform(rebalancing.tick(coordinator.group, coordinator.now_ms))
    assert coordinator.group.state is GroupState.PREPARING_REBALANCE
    assert coordinator.group.next_deadline_ms > coordinator.now_ms


def test_a_new_static_member_that_restarts_while_it_waits_for_the_others_is_kept_as_any_new_member(coordinator: Coordinator) -> None:
    """It sends no heartbeats before its JoinGroup is answered, which may take a rebalance timeout; that is more than a session."""
    (slow,) = coordinator.stable(1)
    coordinator.join(instance_id="i")
    again = coordinator.join(instance_id="i")
    for _ in range(REBALANCE_MS // SESSION_MS - 1):
        coordinator.wait(SESSION_MS - 1)
        assert coordinator.heartbeat(slow.member_id, slow.generation_id) is RebalanceInProgress
    assert again not in coordinator.joined
    coordinator.join(slow.member_id)
    assert coordinator.joined[again].generation_id == slow.generation_id + 1


def test_an_operator_takes_a_static_member_out_by_its_instance_id(coordinator: Coordinator) -> None:
    static = coordinator.joined[coordinator.join(instance_id="i")]
    coordinator.sync(static, {static.member_id: b"all"}, "i")
    assert coordinator.leave("", "unknown") is UnknownMemberId
    assert coordinator.leave("other", "i") is FencedInstanceId
    assert coordinator.leave("", "i") is None
    assert len(coordinator.group) == 0


def test_offsets_are_committed_by_members_or_for_a_group_without_any(coordinator: Coordinator) -> None:
    check_commit(coordinator.group, -1, "", None)
    (member,) = coordinator.stable(1)
    check_commit(coordinator.group, 1, member.member_id, None)
    for generation_id, member_id, expected in [
        (-1, "", UnknownMemberId),
        (0, member.member_id, IllegalGeneration),
        (1, "x", UnknownMemberId),
    ]:
        with pytest.raises(expected):
            check_commit(coordinator.group, generation_id, member_id, None)
    check_commit(coordinator.group, -1, "", None, transactional=True)
    coordinator.joined[coordinator.join(member.member_id)]
    with pytest.raises(RebalanceInProgress):
        check_commit(coordinator.group, 2, member.member_id, None)


def test_without_a_generation_a_group_without_members_takes_commits_whoever_speaks(coordinator: Coordinator) -> None:
    """As `validateOffsetCommit` in Kafka: a consumer of KIP-848 that assigns itself its partitions says the member id that it made."""
    for member_id, instance_id in [("made-by-the-client", None), ("", "i"), ("made-by-the-client", "i")]:
        for transactional in (False, True):
            check_commit(coordinator.group, -1, member_id, instance_id, transactional=transactional)
        with pytest.raises((UnknownMemberId, FencedInstanceId)):
            check_commit(coordinator.group, 0, member_id, instance_id)
    coordinator.stable(1)
    with pytest.raises(UnknownMemberId):
        check_commit(coordinator.group, -1, "made-by-the-client", None)


def test_everybody_who_waits_is_told_when_the_group_moves_to_another_coordinator(coordinator: Coordinator) -> None:
    coordinator.stable(1)
    token = coordinator.join()
    coordinator.perform(rebalancing.take_down(coordinator.group, NotCoordinator("broker 2 leads now"), coordinator.now_ms))
    assert error_of(coordinator.joined[token]) is NotCoordinator
    assert error_of(coordinator.joined[coordinator.join()]) is CoordinatorNotAvailable


def test_every_state_is_in_the_table_of_transitions() -> None:
    assert LEGAL_PREDECESSORS.keys() == set(GroupState)
