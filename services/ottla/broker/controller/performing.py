"""Performs what `decisions` decide: first the znodes, then the state, then the brokers are told.

Written in parts, each a transaction; what a part says is taken in and told as soon as it is written. When a write fails
the parts before it have been told, those after it have not happened, and the error goes to whoever wanted the decision:
the state is then doubtful, and the term begins anew.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from ottla.broker.controller import announcing, decisions, topic_znodes
from ottla.broker.controller.announcing import Announcement
from ottla.broker.controller.channels import Channels
from ottla.broker.controller.counts import ControllerCounts
from ottla.broker.controller.effects import AssignmentChange, Decision, IsrsLeft, PartitionChange, TopicGone
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.writes import ControllerWrites
from ottla.broker.state_changes import state_changes
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Create, Operation, SetData
from ottla.model import BrokerId, PartitionState, TopicPartition

log: Final = logging.getLogger(__name__)

# Znodes in one transaction: as many as the coordination service and this loop handle in a few milliseconds.
_AT_ONCE: Final = 500
# Lines of the log between two chances for others.
_SAID_AT_ONCE: Final = 50


class Performer:
    """Carries out decisions in one term.

    Args:
        state: what decisions are made on.
        coordination: for reading.
        writes: for writing, in the name of the term's epoch.
        channels: the ways to the brokers.
        moved: called when assignments are others than before, or topics gone.
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
        self._moved = moved
        self._counts = counts or ControllerCounts()

    async def perform(self, decided: Iterable[Decision], except_brokers: Collection[BrokerId] = ()) -> None:
        """Performs decisions, one before the next is made, and all that follows from them.

        Args:
            decided: what was, or is being, decided.
            except_brokers: those that are told everything anyway.
        """
        time, elections_before = asyncio.get_running_loop().time, self._counts.elections
        began = last_written = time()
        for decision in decided:
            while decision:
                await self._perform(decision, except_brokers)
                last_written = time()
                decision = decisions.follow_up(self._state, decision)
            await asyncio.sleep(0)  # a decision may be about a thousand partitions, and others want their turn
        if self._counts.elections > elections_before:
            self._counts.election_seconds.observe(last_written - began)

    def announce(
        self,
        done: Decision = Decision(),  # noqa: B008 - frozen, and nothing in it
        *,
        brokers_changed: bool = False,
        deleted_topics: Collection[str] = (),
        new_partitions: Collection[TopicPartition] = (),
        except_brokers: Collection[BrokerId] = (),
    ) -> None:
        """Has the brokers told of what is in the state. The arguments are those of `announced`."""
        self._tell(
            announcing.announced(
                self._state,
                done,
                brokers_changed=brokers_changed,
                deleted_topics=deleted_topics,
                new_partitions=new_partitions,
                except_brokers=except_brokers,
            )
        )

    async def announce_new(self, partitions: Sequence[TopicPartition]) -> None:
        """Has the brokers told of partitions that the driver itself took into the state, however many."""
        for start in range(0, len(partitions), _AT_ONCE):
            if start:
                await asyncio.sleep(0)
            self.announce(new_partitions=partitions[start : start + _AT_ONCE])

    async def announce_everything(self, broker_ids: Collection[BrokerId], *, metadata_first: bool = False) -> None:
        """Has some brokers told all that there is; with `metadata_first` what is for clients before what is for their replicas."""
        if metadata_first:
            for broker_id in broker_ids:
                self._channels.add(broker_id, metadata_first=True)
        for announcements in announcing.everything(self._state, broker_ids):
            self._tell(announcements)
            await asyncio.sleep(0)
        for broker_id in broker_ids:
            self._channels.add(broker_id, all_topics=True, all_replicas=True)

    async def announce_again(self, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> None:
        """Sends a broker LeaderAndIsr for some of its replicas, whatever it answered before."""
        for announcements in announcing.announced_again(self._state, broker_id, partitions):
            self._tell(announcements)
            await asyncio.sleep(0)

    def announce_topic_configs(self, names: Collection[str]) -> None:
        """Has all brokers told what topics set for themselves."""
        for broker_id in self._state.brokers:
            self._channels.add(broker_id, topic_configs=names)

    def _tell(self, announcements: Mapping[BrokerId, Announcement]) -> None:
        for broker_id, each in announcements.items():
            self._channels.add(
                broker_id,
                stops=each.stops,
                leader_and_isr=each.partitions,
                metadata=each.metadata,
                deleted_topics=each.deleted_topics,
                brokers_changed=each.updates_metadata,
            )

    async def _perform(self, decision: Decision, except_brokers: Collection[BrokerId]) -> None:
        for part in _parts(decision):
            await self._write(part)
            before = [self._state.topics[each.topic_partition.topic].partitions[each.topic_partition.partition] for each in part.changes]
            gone = [each.name for each in part.gone]
            self._state.take_in(part)
            self.announce(part, except_brokers=except_brokers)
            self._count(part.changes, [each.state for each in before])
            await self._say(part, [each.state for each in before])
            for name in gone:
                log.info("deleted topic %s", name)
            if part.assignments or gone:
                self._moved()

    def _count(self, changes: Sequence[PartitionChange], before: Sequence[PartitionState]) -> None:
        for change, old in zip(changes, before, strict=True):
            leader = change.state.leader
            if leader >= 0 and leader != old.leader:
                self._counts.elections += 1
                may_have_everything = (*old.isr, *old.eligible_leader_replicas, *old.last_known_leader_replicas)
                if not change.is_new and leader not in may_have_everything:
                    self._counts.unclean_elections += 1

    async def _say(self, part: Decision, before: Sequence[PartitionState]) -> None:
        """Says each change, once the brokers are about to hear of it."""
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
            if index % _SAID_AT_ONCE == 0:
                await asyncio.sleep(0)
        for index, each in enumerate(part.assignments, start=1):
            state_changes.info(
                "%s: replicas are now %s, of which %s are being added and %s removed",
                each.topic_partition,
                list(each.replicas),
                list(each.adding_replicas),
                list(each.removing_replicas),
            )
            if index % _SAID_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def say_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Says the first states of partitions that were made with their topic."""
        for index, key in enumerate(partitions, start=1):
            state = self._state.topics[key.topic].partitions[key.partition].state
            state_changes.info("%s: led by %d, ISR %s, leader epoch %d: it is new", key, state.leader, list(state.isr), state.leader_epoch)
            if index % _SAID_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _write(self, part: Decision) -> None:
        operations = await self._changing(part.changes)
        operations += self._assigning(part.assignments)
        operations += [await self._leaving(each) for each in part.isrs_left]
        if operations:
            await self._writes.write_in_parts(operations)
        if part.gone:
            await self._remove(part.gone)

    async def _changing(self, changes: Sequence[PartitionChange]) -> list[Operation]:
        """Sets the states of partitions, or gives them their first."""
        new = [each for each in changes if each.is_new]
        operations = await topic_znodes.completion(self._coordination, [(each.topic_partition, each.state) for each in new])
        for change in changes:
            if not change.is_new:
                known = self._state.topics[change.topic_partition.topic].partitions[change.topic_partition.partition]
                path = znodes.PARTITION_STATE.path(*change.topic_partition)
                operations.append(SetData(path, znodes.encode_partition_state(change.state), known.partition_epoch))
        return operations

    def _assigning(self, assignments: Sequence[AssignmentChange]) -> list[Operation]:
        """Sets the topics' znodes, one operation for all changes of a topic."""
        changed: dict[str, dict[int, AssignmentChange]] = {}
        for each in assignments:
            changed.setdefault(each.topic_partition.topic, {})[each.topic_partition.partition] = each
        return [topic_znodes.reassignment(self._state.topics[name], of_topic) for name, of_topic in changed.items()]

    async def _leaving(self, left: IsrsLeft) -> Operation:
        path, data = znodes.UNCLEAN_START.path(left.broker_id), znodes.encode_unclean_start(left.broker_epoch)
        return Create(path, data) if await self._coordination.exists(path) is None else SetData(path, data)

    async def _remove(self, topics: Sequence[TopicGone]) -> None:
        removals = await asyncio.gather(*(topic_znodes.removal(self._coordination, topic.name) for topic in topics))
        await self._writes.write_in_parts(chain.from_iterable(removals))


def _parts(decision: Decision) -> Iterator[Decision]:
    """A decision cut into what is written at once: changes, then assignments, then the rest. A small one stays whole."""
    if len(decision.changes) + len(decision.assignments) <= _AT_ONCE:
        yield decision
        return
    for start in range(0, len(decision.changes), _AT_ONCE):
        yield Decision(changes=decision.changes[start : start + _AT_ONCE])
    by_topic: dict[str, list[AssignmentChange]] = {}
    for each in decision.assignments:
        by_topic.setdefault(each.topic_partition.topic, []).append(each)
    for assignments in by_topic.values():
        yield Decision(assignments=tuple(assignments))
    yield replace(decision, changes=(), assignments=())
