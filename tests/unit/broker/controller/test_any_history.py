"""Whatever happens, in whatever order: what always holds of the controller's decisions, and what comes to an end.

Method: Hypothesis plays brokers that come, go and come back uncleanly, disks, leaders, administrators, and controllers
that die half way through. Brokers that stop uncleanly are remembered as having lost records, so that anyone who is in sync
or leads can be held against who has what.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from ottla.broker.controller import decisions, deletions, isr_changes, reassignments
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.request_batch import batches_of, full_batches
from ottla.broker.controller.state import KnownPartition, ReplicaPhase
from ottla.errors import NONE, KafkaStorageError
from ottla.interbroker.calls import AlterPartitionRequest, ElectionType, IsrChange, IsrMember
from ottla.model import NO_LEADER, BrokerId, TopicPartition

from .known_clusters import KnownCluster, ids

BROKERS: Final = ids(1, 2, 3, 4)
brokers = st.sampled_from(BROKERS)
some_brokers = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)
whole_numbers = st.integers(0, 1_000)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = KnownCluster(*BROKERS)
        self.topic_count = 0
        self.failed: dict[BrokerId, set[TopicPartition]] = {}  # replicas on broken disks
        self.lost: set[tuple[TopicPartition, BrokerId]] = set()  # replicas that may lack what was acknowledged
        self.before: dict[TopicPartition, KnownPartition] = {}
        self.unclean_was_asked_for = False

    # How decisions are performed: one change at a time, each held against the state before it.

    def perform(self, decided: Iterable[Decision], at_most: int | None = None) -> None:
        """Performs decisions, `at_most` so many; then the controller is dead."""
        for first in decided if at_most is None else islice(decided, at_most):
            decision = first
            while decision:
                for change in decision.changes:
                    self.check_change(change.topic_partition, change.state.leader, change.state.isr)
                self.cluster.state.take_in(decision)
                self.settle_loss()
                for broker_id, batch in batches_of(self.cluster.state, decision).items():
                    assert broker_id in self.cluster.state.brokers
                    assert all(broker_id in replica.state.replicas for replica in batch.leader_and_isr.values())
                decision = decisions.follow_up(self.cluster.state, decision)

    def check_change(self, topic_partition: TopicPartition, leader: BrokerId, isr: tuple[BrokerId, ...]) -> None:
        known = self.cluster.state.partition(topic_partition)
        if not known.has_state:
            return
        if self.allows_unclean(topic_partition):
            return
        last = {*known.state.isr, *known.state.eligible_leader_replicas, *known.state.last_known_leader_replicas}
        if leader not in (NO_LEADER, known.state.leader):
            assert leader in last, f"{topic_partition}: {leader} was not in sync: {known}"
        whole = {replica for replica in known.state.isr if (topic_partition, replica) not in self.lost}
        back = {broker_id for broker_id in last if self.cluster.state.eligible(topic_partition, broker_id)}
        if leader != NO_LEADER and not whole & back and 2 * len(back) > len(last):
            return  # who has everything is away, and more than half of them are back: the furthest log leads (docs/decisions/0019)
        if whole:
            assert leader in (NO_LEADER, *whole), f"{topic_partition}: {leader} leads and lost records, {whole} did not: {known}"
            assert whole & set(isr), f"{topic_partition}: {isr} has no one of {whole}"

    def allows_unclean(self, topic_partition: TopicPartition) -> bool:
        return self.unclean_was_asked_for or self.cluster.state.topic_settings(topic_partition.topic).unclean_leader_election_enable

    def settle_loss(self) -> None:
        """Who leads defines what was acknowledged, and who is not in sync has nothing to lose."""
        for topic_partition, broker_id in list(self.lost):
            known = self.cluster.state.find(topic_partition)
            if known is None or broker_id not in known.state.isr or known.state.leader == broker_id:
                self.lost.discard((topic_partition, broker_id))

    def partition(self, number: int) -> TopicPartition | None:
        there = [
            topic_partition
            for topic in self.cluster.state.topics.values()
            if not topic.is_deleting
            for topic_partition in topic.topic_partitions()
        ]
        return there[number % len(there)] if there else None

    # What happens.

    @initialize(unclean=st.booleans())
    def first_topic(self, unclean: bool) -> None:
        self.make_topic(unclean, [(1, 2, 3), (2, 3), (3,)])

    def make_topic(self, unclean: bool, assignments: list[tuple[int, ...]]) -> None:
        self.topic_count += 1
        name = f"topic{self.topic_count}"
        overrides = {"unclean.leader.election.enable": "true"} if unclean else {}
        self.cluster.put(name, [KnownPartition.without_state(ids(*assignment)) for assignment in assignments], overrides)
        self.perform(decisions.topics_found(self.cluster.state, [name]))

    @precondition(lambda self: len(self.cluster.state.topics) < 4)
    @rule(unclean=st.booleans(), assignments=st.lists(some_brokers, min_size=1, max_size=3))
    def another_topic(self, unclean: bool, assignments: list[tuple[int, ...]]) -> None:
        self.make_topic(unclean, assignments)

    @rule(away=some_brokers, back=st.lists(brokers, unique=True), clean=st.booleans(), at_most=st.none() | st.integers(0, 3))
    def brokers_change(self, away: tuple[BrokerId, ...], back: list[BrokerId], clean: bool, at_most: int | None) -> None:
        """Some go; some are back, of those too that have just gone. The controller may die before it has dealt with it."""
        state = self.cluster.state
        gone = [broker_id for broker_id in away if broker_id in state.brokers]
        new = [self.cluster.registration(broker_id, clean) for broker_id in back if broker_id in gone or broker_id not in state.brokers]
        for registration in new:
            self.failed.pop(registration.broker_id, None)
            if not clean:
                self.lost |= {(replica, registration.broker_id) for replica in state.replicas_of(registration.broker_id)}
                self.lost = {(each, who) for each, who in self.lost if (known := state.find(each)) and who in known.state.isr}
        for left in gone:
            self.failed.pop(left, None)
        state.brokers_came_and_went(new, gone)
        self.perform(decisions.brokers_changed(state, new, gone), at_most)
        if at_most is not None:
            self.another_controller(None)

    @rule(at_most=st.none() | st.integers(0, 3))
    def another_controller(self, at_most: int | None) -> None:
        """It has what is written, and learns of broken disks when it asks. It may die at once as well."""
        state = self.cluster.state
        self.cluster.state = type(state)(state.controller_id, state.controller_epoch + 1, state.static_settings, state.settings)
        self.cluster.state.brokers_came_and_went(state.brokers.values(), ())
        self.cluster.state.unclean_starts.update(state.unclean_starts)
        for topic in state.topics.values():
            self.cluster.state.put_topic(topic)
        self.perform(decisions.take_over(self.cluster.state), at_most)
        if at_most is not None:
            self.another_controller(None)
            return
        for broker_id, failed in self.failed.items():
            self.cluster.state.replicas_went_offline(broker_id, failed)
            self.perform(decisions.replicas_offline(self.cluster.state, broker_id, failed))

    @rule(broker_id=brokers, number=whole_numbers)
    def a_disk_fails(self, broker_id: BrokerId, number: int) -> None:
        there = list(self.cluster.state.replicas_of(broker_id))
        if broker_id in self.cluster.state.brokers and there:
            failed = there[: 1 + number % len(there)]
            self.failed.setdefault(broker_id, set()).update(failed)
            self.cluster.state.replicas_went_offline(broker_id, failed)
            self.perform(decisions.replicas_offline(self.cluster.state, broker_id, failed))

    @rule(broker_id=brokers)
    def its_disk_is_back(self, broker_id: BrokerId) -> None:
        back = sorted(self.failed.pop(broker_id, set()))
        self.cluster.state.replicas_came_online(broker_id, back)
        self.perform(decisions.replicas_online(self.cluster.state, broker_id, back))

    @rule(number=whole_numbers, members=some_brokers, stale=st.sampled_from([None, "leader", "partition", "member", "sender"]))
    def a_leader_changes_its_isr(self, number: int, members: tuple[BrokerId, ...], stale: str | None) -> None:
        """To whatever it likes; only what is up to date and possible has an effect."""
        topic_partition, state = self.partition(number), self.cluster.state
        if topic_partition is None or (known := state.partition(topic_partition)).state.leader == NO_LEADER:
            return
        leader = known.state.leader
        epochs = {each: registration.broker_epoch for each, registration in state.brokers.items()}
        asked = IsrChange(
            topic_partition,
            known.state.leader_epoch - (stale == "leader"),
            known.partition_epoch - (stale == "partition"),
            tuple(IsrMember(member, epochs.get(member, 1) - (stale == "member")) for member in members),
        )
        request = AlterPartitionRequest(leader, epochs[leader] - (stale == "sender"), (asked,))
        decision, response = isr_changes.altered(state, request)
        if stale is not None:
            assert not decision
        error = response.error or response.partitions[topic_partition].error
        self.perform([decision])
        if decision:
            assert error == NONE
            assert all(state.eligible(topic_partition, member) for member in members if member != leader)

    @rule(number=whole_numbers)
    def followers_catch_up(self, number: int) -> None:
        """All that may be in sync are let in."""
        topic_partition = self.partition(number)
        if topic_partition is not None and self.cluster.state.partition(topic_partition).state.leader != NO_LEADER:
            self.catch_up(topic_partition)

    @rule(broker_id=brokers)
    def a_broker_shuts_down(self, broker_id: BrokerId) -> None:
        state = self.cluster.state
        if broker_id not in state.brokers:
            return
        state.shutting_down.add(broker_id)
        self.perform(decisions.controlled_shutdown(state, broker_id))
        for topic_partition in decisions.remaining_leaderships(state, broker_id):
            others = [replica for replica in state.partition(topic_partition).state.isr if state.eligible(topic_partition, replica)]
            assert not others, f"{topic_partition} could be led by {others}"

    @rule(number=whole_numbers, replicas=st.none() | some_brokers)
    def an_administrator_reassigns(self, number: int, replicas: tuple[BrokerId, ...] | None) -> None:
        topic_partition = self.partition(number)
        if topic_partition is not None:
            self.perform([reassignments.altered(self.cluster.state, {topic_partition: replicas})])

    @rule(election_type=st.sampled_from(ElectionType))
    def an_administrator_elects(self, election_type: ElectionType) -> None:
        self.unclean_was_asked_for = election_type is ElectionType.UNCLEAN
        self.perform(decisions.elect_leaders(self.cluster.state, election_type, None))
        self.unclean_was_asked_for = False

    @rule()
    def leaderships_are_balanced(self) -> None:
        self.perform(decisions.rebalance(self.cluster.state))

    @rule(number=whole_numbers)
    def an_administrator_deletes(self, number: int) -> None:
        topic_partition = self.partition(number)
        if topic_partition is not None:
            self.perform(deletions.begun(self.cluster.state, self.cluster.state.topic(topic_partition.topic)))

    @rule(broker_id=brokers, error=st.sampled_from([NONE, NONE, KafkaStorageError.code]))
    def a_broker_answers_what_it_deleted(self, broker_id: BrokerId, error: int) -> None:
        found = [
            TopicPartition(name, partition)
            for name, deletion in self.cluster.state.deletions.items()
            for partition in deletion.in_phase(broker_id, ReplicaPhase.DELETION_STARTED)
        ]
        self.perform([deletions.replicas_stopped(self.cluster.state, broker_id, dict.fromkeys(found, error))])

    # What always holds.

    @invariant()
    def what_holds_of_every_partition(self) -> None:
        state = self.cluster.state
        now: dict[TopicPartition, KnownPartition] = {}
        for topic in state.topics.values():
            if topic.is_deleting:
                continue
            for topic_partition in topic.topic_partitions():
                known = now[topic_partition] = state.partition(topic_partition)
                leader, isr, replicas = known.state.leader, known.state.isr, known.state.replicas
                able = [replica for replica in replicas if state.eligible(topic_partition, replica)]
                if not known.has_state:
                    assert not able, f"{topic_partition} could be led by {able}"
                    continue
                assert isr, f"{topic_partition} has an empty ISR"
                assert set(isr) <= set(replicas) and len(set(isr)) == len(isr), known
                assert len(set(replicas)) == len(replicas), known
                if leader == NO_LEADER:
                    unclean = set(known.state.last_known_leader_replicas)
                    last = unclean | {*isr, *known.state.eligible_leader_replicas}
                    assert not set(able) & (last - unclean), f"{topic_partition} could be led by {able}: {known}"
                    assert 2 * len(unclean & set(able)) <= len(last), f"{topic_partition} could be led by {able}: {known}"
                    assert not (able and self.allows_unclean(topic_partition)), f"{topic_partition} may be led by {able}: {known}"
                else:
                    assert leader in isr, known
                    assert leader in state.brokers and topic_partition not in state.offline_replicas.get(leader, ()), known
                    present = [replica for replica in isr if replica in state.brokers]
                    assert list(isr) == present, f"{topic_partition}: {known} and only {present} are there"
                self.check_epochs(topic_partition, known)
                if known.is_being_reassigned:
                    assert set(known.adding_replicas) <= set(replicas) and set(known.removing_replicas) <= set(replicas), known
                lost = [replica for replica in isr if (topic_partition, replica) in self.lost]
                assert not lost or len(isr) == 1, f"{topic_partition}: {lost} lost records and are in sync: {known}"
        self.before = now

    def check_epochs(self, topic_partition: TopicPartition, known: KnownPartition) -> None:
        before = self.before.get(topic_partition)
        if before is None or not before.has_state:
            return
        assert known.state.leader_epoch >= before.state.leader_epoch
        assert known.partition_epoch >= before.partition_epoch
        assert known.state.controller_epoch >= before.state.controller_epoch
        if known.state.leader != before.state.leader:
            assert known.state.leader_epoch > before.state.leader_epoch, f"{topic_partition}: {before} -> {known}"
        if known.state != before.state:
            assert known.partition_epoch > before.partition_epoch, f"{topic_partition}: {before} -> {known}"

    @invariant()
    def the_index_is_what_the_partitions_say(self) -> None:
        state = self.cluster.state
        every = [partition for topic in state.topics.values() for partition in topic.topic_partitions()]
        for broker_id in BROKERS:
            assert set(state.replicas_of(broker_id)) == {
                partition for partition in every if broker_id in _known(state.find(partition)).state.replicas
            }
        assert set(state.reassigning()) == {partition for partition in every if _known(state.find(partition)).is_being_reassigned}

    def teardown(self) -> None:
        """Everybody is back and catches up: then everything has a leader, and what was begun ends."""
        self.brokers_change((), list(BROKERS), True, None)
        self.brokers_change(BROKERS, list(BROKERS), True, None)  # no one is shutting down any more, and all disks work
        for _ in range(2):
            for topic_partition in [partition for topic in self.cluster.state.topics.values() for partition in topic.topic_partitions()]:
                topic = self.cluster.state.topics[topic_partition.topic]
                if not topic.is_deleting:
                    known = self.cluster.state.partition(topic_partition)
                    assert known.state.leader != NO_LEADER or any((topic_partition, replica) in self.lost for replica in known.state.isr)
                    self.catch_up(topic_partition)
        for broker_id in BROKERS:
            self.a_broker_answers_what_it_deleted(broker_id, NONE)
        assert not self.cluster.state.reassigning()
        assert not any(topic.is_deleting for topic in self.cluster.state.topics.values())
        assert not self.cluster.state.deletions
        for batch in full_batches(self.cluster.state, BROKERS):
            assert set(batch) == set(BROKERS)
        assert not self.cluster.fail_over()

    def catch_up(self, topic_partition: TopicPartition) -> None:
        state = self.cluster.state
        known = state.partition(topic_partition)
        sender = state.brokers[known.state.leader]
        caught_up = [replica for replica in known.state.replicas if replica == sender.broker_id or state.eligible(topic_partition, replica)]
        members = tuple(IsrMember(broker_id) for broker_id in caught_up)
        asked = IsrChange(topic_partition, known.state.leader_epoch, known.partition_epoch, members)
        decision, response = isr_changes.altered(state, AlterPartitionRequest(sender.broker_id, sender.broker_epoch, (asked,)))
        assert response.partitions[topic_partition].error == NONE
        self.perform([decision])


def _known(found: KnownPartition | None) -> KnownPartition:
    assert found is not None
    return found


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
