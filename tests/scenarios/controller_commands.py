"""The commands of the controller's scenarios: a cluster in the controller's eyes, and what it decides and tells.

start 1 2 3                   brokers register for the first time
topic a 1,2,3 2,3,1 [k=v]     a topic is made, with the replicas of each partition and settings
found a 1,2,3 [k=v]           another tool wrote a topic
set a k=v                     its settings change
gone 1 2                      registrations end
back 1 [uncleanly]            a broker registers again
anew 1 [uncleanly]            a broker registers again before its absence was noticed
isr a-0 1,2 [k=v]             the leader asks for an ISR; sender, leader_epoch, partition_epoch, or the epoch that it
                              knows broker 2 by (`2=107`)
shutdown 1                    a broker wants to stop
elect preferred|unclean [a-0] an administrator wants leaders
rebalance                     the periodic look at the balance
reassign a-0 4,5              an administrator moves a partition
cancel a-0                    and changes their mind
reassignments                 what is under way
delete a                      a topic is deleted
deleted 1 a-0 [error=56]      a broker answers what it was asked to delete
disk-fails 1 a-0              a broker has lost a log directory
disk-works 1 a-0              it has it back
fail-over                     another controller takes over
show                          what the controller knows
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from ottla.broker.controller import decisions, deletions, isr_changes, reassignments
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.request_batch import BrokerRequestBatch, batches_of, full_batches
from ottla.broker.controller.state import ClusterState, KnownPartition, KnownTopic
from ottla.config.broker import BrokerSettings
from ottla.errors import NONE, error_of
from ottla.interbroker.calls import AlterPartitionRequest, ElectionType, IsrChange, IsrMember, PartitionAssignment
from ottla.model import BrokerId, BrokerRegistration, PartitionState, TopicPartition


class ControllerCommands:
    """One cluster. Each command gives the lines that it prints."""

    def __init__(self) -> None:
        settings = BrokerSettings.from_properties({"broker.id": "1"})
        self._state = ClusterState(BrokerId(1), 1, settings, settings)
        self._broker_epoch = 100

    def execute(self, line: str) -> Iterator[str]:
        """Executes a command."""
        name, *words = line.split()
        yield from getattr(self, "_do_" + name.replace("-", "_"))(*words)

    # Brokers.

    def _do_start(self, *broker_ids: str) -> Iterator[str]:
        yield from self._brokers_changed([self._registration(broker_id, False) for broker_id in broker_ids], [])

    def _do_gone(self, *broker_ids: str) -> Iterator[str]:
        yield from self._brokers_changed([], _ids(broker_ids))

    def _do_back(self, broker_id: str, how: str = "cleanly") -> Iterator[str]:
        yield from self._brokers_changed([self._registration(broker_id, how == "cleanly")], [])

    def _do_anew(self, broker_id: str, how: str = "cleanly") -> Iterator[str]:
        yield from self._brokers_changed([self._registration(broker_id, how == "cleanly")], _ids([broker_id]))

    def _registration(self, broker_id: str, is_clean: bool) -> BrokerRegistration:
        self._broker_epoch += 1
        former = self._state.unclean_starts.get(BrokerId(int(broker_id)), -1)
        return BrokerRegistration(BrokerId(int(broker_id)), (), None, self._broker_epoch, None, former if is_clean else -1)

    def _brokers_changed(self, new: list[BrokerRegistration], gone: Iterable[BrokerId]) -> Iterator[str]:
        self._state.brokers_came_and_went(new, gone)
        ids = [registration.broker_id for registration in new]
        yield from self._performed(decisions.brokers_changed(self._state, new, gone), except_brokers=ids)
        yield from self._told(batches_of(self._state, Decision(), brokers_changed=True, except_brokers=ids))
        for batches in full_batches(self._state, ids):
            yield from self._told(batches)

    def _do_shutdown(self, broker_id: str) -> Iterator[str]:
        broker = BrokerId(int(broker_id))
        self._state.shutting_down.add(broker)
        yield from self._performed(decisions.controlled_shutdown(self._state, broker))
        yield f"still leads: {_listed(decisions.remaining_leaderships(self._state, broker)) or 'nothing'}"

    def _do_disk_fails(self, broker_id: str, *names: str) -> Iterator[str]:
        broker, partitions = BrokerId(int(broker_id)), [_partition(name) for name in names]
        self._state.replicas_went_offline(broker, partitions)
        yield from self._performed(decisions.replicas_offline(self._state, broker, partitions))

    def _do_disk_works(self, broker_id: str, *names: str) -> Iterator[str]:
        broker, partitions = BrokerId(int(broker_id)), [_partition(name) for name in names]
        self._state.replicas_came_online(broker, partitions)
        yield from self._performed(decisions.replicas_online(self._state, broker, partitions))

    # Topics.

    def _do_topic(self, name: str, *words: str) -> Iterator[str]:
        assignments, overrides = _assignments(words)
        states = decisions.new_topic_states(self._state, assignments)
        self._put(name, [KnownPartition(state, 0) for state in states], overrides)
        partitions = list(self._state.topic(name).topic_partitions())
        yield from self._told(batches_of(self._state, Decision(), new_partitions=partitions))

    def _do_found(self, name: str, *words: str) -> Iterator[str]:
        assignments, overrides = _assignments(words)
        self._put(name, [KnownPartition.without_state(assignment) for assignment in assignments], overrides)
        yield from self._performed(decisions.topics_found(self._state, [name]))

    def _put(self, name: str, partitions: list[KnownPartition], overrides: dict[str, str]) -> None:
        self._state.put_topic(KnownTopic(name, UUID(int=len(self._state.topics) + 1), 0, partitions, overrides))

    def _do_set(self, name: str, *words: str) -> Iterator[str]:
        self._state.topics[name].overrides = _assignments(words)[1]
        yield from self._performed(decisions.topics_found(self._state, [name]))

    def _do_delete(self, name: str) -> Iterator[str]:
        yield from self._performed(deletions.begun(self._state, self._state.topic(name)))
        yield from self._told(batches_of(self._state, Decision(), deleted_topics=[name]))

    def _do_deleted(self, broker_id: str, *words: str) -> Iterator[str]:
        error = next((int(word.partition("=")[2]) for word in words if "=" in word), NONE)
        answers = {_partition(word): error for word in words if "=" not in word}
        yield from self._performed([deletions.replicas_stopped(self._state, BrokerId(int(broker_id)), answers)])

    # Leaders.

    def _do_isr(self, name: str, isr: str, *words: str) -> Iterator[str]:
        topic_partition = _partition(name)
        known = self._state.partition(topic_partition)
        wrong = dict(word.split("=") for word in words)
        sender = BrokerId(int(wrong.get("sender", known.state.leader)))
        brokers = self._state.brokers
        epochs = {each: registration.broker_epoch for each, registration in brokers.items()}
        members = tuple(
            IsrMember(broker_id, int(wrong.get(str(broker_id), epochs.get(broker_id, -1)))) for broker_id in _ids(isr.split(","))
        )
        asked = IsrChange(
            topic_partition,
            int(wrong.get("leader_epoch", known.state.leader_epoch)),
            int(wrong.get("partition_epoch", known.partition_epoch)),
            members,
        )
        request = AlterPartitionRequest(sender, brokers[sender].broker_epoch, (asked,))
        decision, response = isr_changes.altered(self._state, request)
        yield from self._performed([decision])
        outcome = response.partitions[topic_partition]
        if outcome.error != NONE:
            yield f"answer: {type(error_of(outcome.error)).__name__}"
        else:
            assert outcome.state is not None
            yield f"answer: {_state(outcome.state)}, partition epoch {outcome.partition_epoch}"

    def _do_elect(self, election_type: str, *names: str) -> Iterator[str]:
        wanted = ElectionType[election_type.upper()]
        yield from self._performed(decisions.elect_leaders(self._state, wanted, [_partition(name) for name in names] or None))

    def _do_rebalance(self) -> Iterator[str]:
        yield from self._performed(decisions.rebalance(self._state))

    def _do_reassign(self, name: str, replicas: str) -> Iterator[str]:
        yield from self._performed([reassignments.altered(self._state, {_partition(name): _ids(replicas.split(","))})])

    def _do_cancel(self, name: str) -> Iterator[str]:
        yield from self._performed([reassignments.altered(self._state, {_partition(name): None})])

    def _do_reassignments(self) -> Iterator[str]:
        for key, each in reassignments.ongoing(self._state, None).items():
            yield f"{key}: replicas {_list(each.replicas)}, adding {_list(each.adding_replicas)}, removing {_list(each.removing_replicas)}"

    # The controller.

    def _do_fail_over(self) -> Iterator[str]:
        former = self._state
        self._state = ClusterState(former.controller_id, former.controller_epoch + 1, former.static_settings, former.settings)
        self._state.brokers_came_and_went(former.brokers.values(), ())
        self._state.unclean_starts.update(former.unclean_starts)
        for topic in former.topics.values():
            self._state.put_topic(topic)
        yield from self._performed(decisions.take_over(self._state), except_brokers=list(self._state.brokers))

    def _do_show(self) -> Iterator[str]:
        shown = [
            f"{broker} (shutting down)" if broker in self._state.shutting_down else str(broker) for broker in sorted(self._state.brokers)
        ]
        yield f"brokers: {', '.join(shown) or 'none'}"
        for topic in self._state.topics.values():
            if topic.is_deleting:
                yield f"{topic.name}: being deleted, {self._state.deletions[topic.name].remaining} replicas remain"
                continue
            for partition, known in enumerate(topic.partitions):
                yield f"{topic.name}-{partition}: {_state(known.state)}, replicas {_list(known.state.replicas)}"

    # What comes of it.

    def _performed(self, decided: Iterable[Decision], except_brokers: Iterable[BrokerId] = ()) -> Iterator[str]:
        for first in decided:
            decision = first
            for key, error in decision.refused.items():
                yield f"{key}: {type(error).__name__}: {error.message}"
            while decision:
                yield from self._written(decision)
                self._state.take_in(decision)
                yield from self._told(batches_of(self._state, decision, except_brokers=list(except_brokers)))
                decision = decisions.follow_up(self._state, decision)

    def _written(self, decision: Decision) -> Iterator[str]:
        for change in decision.changes:
            known = self._state.find(change.topic_partition)
            assert known is not None
            before = "new" if change.is_new else _state(known.state)
            yield f"{change.topic_partition}: {before} -> {_state(change.state)}; {change.reason}"
        for assignment in decision.assignments:
            yield (
                f"{assignment.topic_partition}: assigned to {_list(assignment.replicas)},"
                f" adding {_list(assignment.adding_replicas)}, removing {_list(assignment.removing_replicas)}"
            )
        for progress in decision.deletions:
            phases = {"ineligible": progress.ineligible, "started": progress.started, "deleted": progress.deleted}
            found = [f"{phase} {_list(partitions)}" for phase, partitions in phases.items() if partitions]
            yield f"{progress.topic} at broker {progress.broker_id}: {' '.join(found)}"
        for gone in decision.gone:
            yield f"{gone.name}: gone"
        for left in decision.isrs_left:
            yield f"broker {left.broker_id}, epoch {left.broker_epoch}: its start is dealt with"

    def _told(self, batches: dict[BrokerId, BrokerRequestBatch]) -> Iterator[str]:
        for broker_id, each in batches.items():
            parts = []
            if each.stops:
                deleted = [stop.topic_partition for stop in each.stops.values() if stop.delete]
                stopped = [stop.topic_partition for stop in each.stops.values() if not stop.delete]
                parts += [f"stop {_listed(stopped)}"] * bool(stopped) + [f"delete {_listed(deleted)}"] * bool(deleted)
            if each.leader_and_isr:
                parts += self._roles(broker_id, each.leader_and_isr.values())
            if each.updates_metadata:
                told = [_listed(each.metadata)] if each.metadata else []
                told += [f"no more {', '.join(each.deleted_topics)}"] if each.deleted_topics else []
                parts.append(f"metadata {'; '.join(told) or 'of brokers'}")
            yield f"  to {broker_id}: {', '.join(parts)}"

    def _roles(self, broker_id: BrokerId, partitions: Iterable[PartitionAssignment]) -> list[str]:
        leads = [partition for partition in partitions if partition.state.leader == broker_id]
        follows = [partition for partition in partitions if partition.state.leader != broker_id]
        return [
            f"{role} {_listed((one.topic_partition for one in named), {one.topic_partition for one in named if one.is_new})}"
            for role, named in (("lead", leads), ("follow", follows))
            if named
        ]


def _ids(texts: Iterable[str]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(text)) for text in texts)


def _partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def _assignments(words: Iterable[str]) -> tuple[list[tuple[BrokerId, ...]], dict[str, str]]:
    words = list(words)
    return [_ids(word.split(",")) for word in words if "=" not in word], dict(word.split("=") for word in words if "=" in word)


def _list(values: Iterable[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def _listed(partitions: Iterable[TopicPartition], new: Iterable[TopicPartition] = ()) -> str:
    return " ".join(f"{partition} (new)" if partition in new else str(partition) for partition in partitions)


def _state(state: PartitionState) -> str:
    leader = "no leader" if state.leader < 0 else f"leader {state.leader}"
    return f"{leader}, epoch {state.leader_epoch}, ISR {_list(state.isr)}"
