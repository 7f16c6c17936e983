"""A group under random events: whatever members do and in whatever order, the rules hold and no one waits for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples
from tests.unit.broker.groups.members import RANGE, ROUND_ROBIN, SESSION_MS, Coordinator

from ottla.broker.groups.classic import rebalancing
from ottla.broker.groups.classic.effects import Joined
from ottla.broker.groups.classic.group import NEVER_MS, GroupLimits
from ottla.broker.groups.classic.transitions import GroupState
from ottla.errors import NotEnoughReplicas

PROTOCOLS = [(RANGE,), (RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE), (ROUND_ROBIN,)]


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(GroupLimits(initial_rebalance_delay_ms=1_000, max_size=6))
        self.coordinator.held = []
        self.joins: set[int] = set()
        self.syncs: set[int] = set()
        self.generation = 0

    def _known(self) -> list[Joined]:
        return [answer for answer in self.coordinator.joined.values() if answer.member_id]

    @rule(protocols=st.sampled_from(PROTOCOLS), instance=st.sampled_from([None, None, "a", "b"]), requires=st.booleans())
    def newcomer(self, protocols: tuple[object, ...], instance: str | None, requires: bool) -> None:
        self.joins.add(self.coordinator.join("", protocols, instance, requires))  # type: ignore[arg-type]

    @precondition(lambda self: self._known())
    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS))
    def join_again(self, data: st.DataObject, protocols: tuple[object, ...]) -> None:
        answer = data.draw(st.sampled_from(self._known()))
        self.joins.add(self.coordinator.join(answer.member_id, protocols))  # type: ignore[arg-type]

    @precondition(lambda self: self._known())
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        answer = data.draw(st.sampled_from(self._known()))
        self.syncs.add(self.coordinator.sync(answer, {member.member_id: member.member_id.encode() for member in answer.members}))

    @precondition(lambda self: self._known())
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        answer = data.draw(st.sampled_from(self._known()))
        self.coordinator.heartbeat(answer.member_id, answer.generation_id)

    @precondition(lambda self: self._known())
    @rule(data=st.data(), instance=st.sampled_from([None, "a"]))
    def leave(self, data: st.DataObject, instance: str | None) -> None:
        self.coordinator.leave("" if instance else data.draw(st.sampled_from(self._known())).member_id, instance)

    @precondition(lambda self: self.coordinator.held)
    @rule(fails=st.booleans())
    def storing_ends(self, fails: bool) -> None:
        assert self.coordinator.held is not None
        self.coordinator.store(self.coordinator.held.pop(0), NotEnoughReplicas("") if fails else None)

    @rule(milliseconds=st.sampled_from([1, 500, 1_000, SESSION_MS // 2, SESSION_MS, 60_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.coordinator.wait(milliseconds)

    @invariant()
    def the_counts_are_right(self) -> None:
        group = self.coordinator.group
        assert group.awaiting_join_count == sum(member.is_awaiting_join for member in group.members.values())
        assert all(member_id == each.member_id for member_id, each in group.members.items())
        if group.members:
            assert group.leader_id in group.members
            group.selected_protocol()  # there is always one that all support
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        for member in group.members.values():
            if member.instance_id is not None:
                assert group.static_member(member.instance_id) == member.member_id

    @invariant()
    def generations_only_go_up(self) -> None:
        assert self.coordinator.group.generation_id >= self.generation
        self.generation = self.coordinator.group.generation_id

    @invariant()
    def no_deadline_is_missed(self) -> None:
        group = self.coordinator.group
        bound = group.next_deadline_ms
        group.find_next_deadline()
        assert bound <= group.next_deadline_ms
        assert group.next_deadline_ms >= self.coordinator.now_ms  # a rebalance that no one is left to wait for is due at once
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.join_deadline_ms < NEVER_MS

    @invariant()
    def a_stable_group_keeps_nobody_waiting(self) -> None:
        group = self.coordinator.group
        waits_for_storing = {
            effect.reason.token for effect in self.coordinator.held or [] if effect.reason is not None and hasattr(effect.reason, "token")
        }
        if group.state is GroupState.STABLE:
            assert not any(member.is_awaiting_sync or member.is_awaiting_join for member in group.members.values())
            assert self.joins - self.coordinator.joined.keys() <= waits_for_storing

    def teardown(self) -> None:
        coordinator = self.coordinator
        while coordinator.held:
            coordinator.store(coordinator.held.pop(0))
        coordinator.held = None
        coordinator.wait(3_600_000)
        assert coordinator.group.state is GroupState.EMPTY, "without heartbeats no one stays"
        coordinator.perform(rebalancing.take_down(coordinator.group, NotEnoughReplicas(""), coordinator.now_ms))
        assert self.joins <= coordinator.joined.keys(), "a JoinGroup was never answered"
        assert self.syncs <= coordinator.synced.keys(), "a SyncGroup was never answered"


GroupMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestGroupMachine = GroupMachine.TestCase
