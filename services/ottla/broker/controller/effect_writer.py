"""Carries out decisions: first the znodes, then the state, then the requests to brokers.

Written in parts, each a transaction; a part is taken into the state and sent as soon as it is written. When a write fails
the parts before it have been sent, those after it have not happened, and the error goes to the caller:
the state is then doubtful, and the term begins again.

Invariant: brokers are sent nothing that is not in ZooKeeper. One operation at a time; the event queue ensures that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.broker.controller import decisions, request_batch, znode_writes
from ottla.broker.controller.channels import Channels
from ottla.broker.controller.effects import AssignmentChange, Decision, IsrsLeft, PartitionChange
from ottla.broker.controller.event_queue import ControllerCounts
from ottla.broker.controller.request_batch import BrokerRequestBatch
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.broker.state_changes import state_changes
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Create, Operation, SetData
from ottla.model import BrokerId, PartitionState, TopicPartition

log: Final = logging.getLogger(__name__)

# Znodes in one transaction: as many as the coordination service and this loop handle in a few milliseconds.
_AT_ONCE: Final = 500
# Lines of the log before the event loop runs others.
_LOGGED_AT_ONCE: Final = 50


class EffectWriter:
    """Carries out decisions in one term.

    Args:
        state: what decisions are made on.
        coordination: for reading.
        writes: for writing, in the name of the term's epoch.
        channels: to the brokers.
        moved: called when assignments changed, deletions have progressed or topics are gone.
        counts: where elections are counted.
    """

    def __init__(
        self,
        state: ClusterState,
        coordination: Coordination,
        writes: ControllerWrites,
        channels: Channels,
        moved: Callable[[], None] = lambda: None,
        counts: ControllerCounts | None = None,
    ) -> None:
        self._state = state
        self._coordination = coordination
        self._writes = writes
        self._channels = channels
        self.moved = moved
        self._counts = counts or ControllerCounts()

    async def perform(self, decided: Iterable[Decision], except_brokers: Collection[BrokerId] = ()) -> None:
        """Performs decisions, one before the next is made, and all that follows from them.

        Args:
            decided: what was, or is being, decided.
            except_brokers: those that get everything anyway.
        """
        time, elections_before = asyncio.get_running_loop().time, self._counts.elections
        began = last_written = time()
        for decision in decided:
            while decision:
                await self._perform(decision, except_brokers)
                last_written = time()
                decision = decisions.follow_up(self._state, decision)
            await asyncio.sleep(0)  # a decision may be about a thousand partitions, and the event loop has to run others
        if self._counts.elections > elections_before:
            self._counts.election_seconds.observe(last_written - began)

    def send(
        self,
        done: Decision = Decision(),  # noqa: B008 - frozen, and nothing in it
        *,
        brokers_changed: bool = False,
        deleted_topics: Collection[str] = (),
        new_partitions: Collection[TopicPartition] = (),
        found_partitions: Collection[TopicPartition] = (),
        except_brokers: Collection[BrokerId] = (),
    ) -> None:
        """Sends the brokers what is in the state. The arguments are those of `batches_of`."""
        self._add(
            request_batch.batches_of(
                self._state,
                done,
                brokers_changed=brokers_changed,
                deleted_topics=deleted_topics,
                new_partitions=new_partitions,
                found_partitions=found_partitions,
                except_brokers=except_brokers,
            )
        )

    async def send_new(self, partitions: Sequence[TopicPartition]) -> None:
        """Sends partitions that the driver itself took into the state, however many."""
        for part in request_batch.whole_topics(partitions, request_batch.AT_ONCE):
            self.send(new_partitions=part)
            await asyncio.sleep(0)

    async def send_found(self, partitions: Sequence[TopicPartition]) -> None:
        """Sends partitions that another wrote, or that can be read again, however many: brokers may have records of them."""
        for part in request_batch.whole_topics(partitions, request_batch.AT_ONCE):
            self.send(found_partitions=part)
            await asyncio.sleep(0)

    async def send_everything(self, broker_ids: Collection[BrokerId], *, metadata_first: bool = False) -> None:
        """Sends some brokers everything; with `metadata_first` what is for clients before what is for their replicas."""
        if metadata_first:
            self._add(dict.fromkeys(broker_ids, BrokerRequestBatch(metadata_first=True)))
        for batches in request_batch.full_batches(self._state, broker_ids):
            self._add(batches)
            await asyncio.sleep(0)
        self._add(dict.fromkeys(broker_ids, BrokerRequestBatch(all_topics=True, all_replicas=True)))

    async def send_again(self, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
        """Sends a broker LeaderAndIsr for some of its replicas, whatever it answered before."""
        for batches in request_batch.repeated_batches(self._state, broker_id, partitions):
            self._add(batches)
            await asyncio.sleep(0)

    def send_all_replicas(self, broker_ids: Iterable[BrokerId]) -> None:
        """Sends brokers the list of all replicas that are theirs, so that they find those which are not."""
        self._add(dict.fromkeys(broker_ids, BrokerRequestBatch(all_replicas=True)))

    def send_topic_configs(self, names: Collection[str]) -> None:
        """Sends all brokers the overrides of topics."""
        self._add(dict.fromkeys(self._state.brokers, BrokerRequestBatch(topic_configs=dict.fromkeys(names))))

    def _add(self, batches: Mapping[BrokerId, BrokerRequestBatch]) -> None:
        for broker_id, batch in batches.items():
            self._channels.add(broker_id, batch)

    async def _perform(self, decision: Decision, except_brokers: Collection[BrokerId]) -> None:
        for part in _parts(decision):
            await self._write(part)
            before = [
                self._state.topics[change.topic_partition.topic].partitions[change.topic_partition.partition] for change in part.changes
            ]
            gone = [topic.name for topic in part.gone]
            self._state.take_in(part)
            self.send(part, except_brokers=except_brokers)
            self._count(part.changes, [known.state for known in before])
            await self._log_changes(part, [known.state for known in before])
            for name in gone:
                log.info("topic %s: deleted", name)
            if part.assignments or part.deletions or gone:
                self.moved()

    def _count(self, changes: Sequence[PartitionChange], before: Sequence[PartitionState]) -> None:
        for change, old in zip(changes, before, strict=True):
            leader = change.state.leader
            if leader >= 0 and leader != old.leader:
                self._counts.elections += 1
                may_have_everything = (*old.isr, *old.eligible_leader_replicas, *old.last_known_leader_replicas)
                if not change.is_new and leader not in may_have_everything:
                    self._counts.unclean_elections += 1

    async def _log_changes(self, part: Decision, before: Sequence[PartitionState]) -> None:
        """Logs each change, after its requests were queued."""
        for index, (change, old) in enumerate(zip(part.changes, before, strict=True), start=1):
            new = change.state
            state_changes.info(
                "%s: leader %d -> %d, ISR %s -> %s, leader epoch %d: %s",
                change.topic_partition,
                old.leader,
                new.leader,
                list(old.isr),
                list(new.isr),
                new.leader_epoch,
                change.reason,
            )
            if index % _LOGGED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for index, assignment in enumerate(part.assignments, start=1):
            state_changes.info(
                "%s: replicas %s, adding %s, removing %s",
                assignment.topic_partition,
                list(assignment.replicas),
                list(assignment.adding_replicas),
                list(assignment.removing_replicas),
            )
            if index % _LOGGED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def log_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Logs the first states of partitions that were created with their topic."""
        for index, key in enumerate(partitions, start=1):
            state = self._state.topics[key.topic].partitions[key.partition].state
            state_changes.info("%s: new, leader %d, ISR %s, leader epoch %d", key, state.leader, list(state.isr), state.leader_epoch)
            if index % _LOGGED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _write(self, part: Decision) -> None:
        operations = await self._changing(part.changes)
        operations += self._assigning(part.assignments)
        operations += [await self._leaving(left) for left in part.isrs_left]
        if operations:
            await self._writes.write_in_parts(operations)
        if part.gone:
            await znode_writes.remove_topics(self._coordination, self._writes, [topic.name for topic in part.gone])

    async def _changing(self, changes: Sequence[PartitionChange]) -> list[Operation]:
        """Sets the states of partitions, or gives them their first."""
        new = [change for change in changes if change.is_new]
        operations = await znode_writes.first_states(self._coordination, [(change.topic_partition, change.state) for change in new])
        for change in changes:
            if not change.is_new:
                known = self._state.topics[change.topic_partition.topic].partitions[change.topic_partition.partition]
                path = znodes.PARTITION_STATE.path(*change.topic_partition)
                operations.append(SetData(path, znodes.encode_partition_state(change.state), known.partition_epoch))
        return operations

    def _assigning(self, assignments: Sequence[AssignmentChange]) -> list[Operation]:
        """Sets the topics' znodes, one operation for all changes of a topic."""
        changed: dict[str, dict[int, AssignmentChange]] = {}
        for assignment in assignments:
            changed.setdefault(assignment.topic_partition.topic, {})[assignment.topic_partition.partition] = assignment
        return [znode_writes.topic_reassignment(self._state.topics[name], of_topic) for name, of_topic in changed.items()]

    async def _leaving(self, left: IsrsLeft) -> Operation:
        path, data = znodes.UNCLEAN_START.path(left.broker_id), znodes.encode_unclean_start(left.broker_epoch)
        return Create(path, data) if await self._coordination.exists(path) is None else SetData(path, data)


def _parts(decision: Decision) -> Iterator[Decision]:
    """A decision cut into what is written at once: changes, then assignments, then the rest. A small one stays whole."""
    if len(decision.changes) + len(decision.assignments) <= _AT_ONCE:
        yield decision
        return
    for start in range(0, len(decision.changes), _AT_ONCE):
        yield Decision(changes=decision.changes[start : start + _AT_ONCE])
    by_topic: dict[str, list[AssignmentChange]] = {}
    for assignment in decision.assignments:
        by_topic.setdefault(assignment.topic_partition.topic, []).append(assignment)
    for assignments in by_topic.values():
        yield Decision(assignments=tuple(assignments))
    yield replace(decision, changes=(), assignments=())
