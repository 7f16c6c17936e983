"""What the controller reads from ZooKeeper: everything when its term begins, and from then on what others write there.

Brokers register and unregister, other tools create topics, add partitions and mark topics for deletion, a log directory fails. Each is
read when its watch fires, and the watch is set again before the read, so that nothing is missed. Mostly the controller itself was the
writer, and nothing is new.

Other tools also ask by writing, as they did before there were APIs for it. `/admin/reassign_partitions` names partitions and their new
replicas. Each is taken out of it once it has moved, or when it is refused, and the znode goes with the last: tools wait for that.
`/admin/preferred_replica_election` names partitions for their preferred replicas to lead, and goes when that was done. As Kafka, except
that a request which cannot be read is removed: there it keeps all later ones away.

Invariant: one operation at a time; the event queue ensures that (`active`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.broker.controller import decisions, znode_writes
from ottla.broker.controller.channels import Channels
from ottla.broker.controller.effect_writer import EffectWriter
from ottla.broker.controller.operations import LogEndQueries, PartitionOperations, TopicOperations
from ottla.broker.controller.state import ClusterState, KnownTopic
from ottla.broker.controller.znode_reader import LoadedTopic, load_brokers, load_topic, load_topics, load_unclean_starts
from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, MalformedZnode, NoNode
from ottla.coordination.interface import Coordination, Delete, Operation, SetData, Stat, Watch
from ottla.errors import NONE, ElectionNotNeeded
from ottla.interbroker.calls import AlterPartitionReassignmentsRequest, ElectionType, ElectLeadersRequest, PartitionOutcome
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)

# Partitions that are taken in before others get their turn.
_TAKEN_IN_AT_ONCE: Final = 1_000
# Topics whose watches are set at once: a few milliseconds of this loop.
WATCHED_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Watched:
    """What is called when something changes."""

    brokers: Watch
    topics: Watch  # and what is to be deleted
    topic: Callable[[str], Watch]  # its own znode
    log_directories: Watch


@dataclass(frozen=True, slots=True)
class ExternalChanges:
    """What a controller takes in from ZooKeeper in its term.

    Attributes:
        state: what is known, and is changed.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        writer: for decisions, and for requests to the brokers.
        channels: to the brokers.
        topics: for deletions.
        log_ends: asked before a leader is chosen of those that may have lost records.
        random: for the ids of topics that have none.
        watched: called at changes.
        watched_topics: whose own znodes have a watch.
        foreign_brokers: those of another implementation that were logged, each with its broker epoch.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    writer: EffectWriter
    channels: Channels
    topics: TopicOperations
    log_ends: LogEndQueries
    random: Random
    watched: Watched
    watched_topics: set[str] = field(default_factory=set)
    foreign_brokers: dict[BrokerId, int] = field(default_factory=dict)

    async def take_over(self) -> None:
        """Reads everything, does what the former controller left undone, and sends every broker everything."""
        state = self.state
        state.brokers_came_and_went(await self._load_brokers(), ())
        state.unclean_starts.update(await load_unclean_starts(self.coordination))
        to_delete = await self.coordination.children(znodes.DELETE_TOPICS.path(), self.watched.topics)
        names = sorted(await self.coordination.children(znodes.TOPICS.path(), self.watched.topics))
        taken_in = 0
        async for loaded in load_topics(self.coordination, names):
            self.topics.take_in(await self._known(loaded))
            taken_in += len(loaded.states)
            if taken_in >= _TAKEN_IN_AT_ONCE:
                taken_in = 0
                await asyncio.sleep(0)
        state.unread_topics = frozenset(names).difference(state.topics)
        await self._begin_deletions(to_delete, are_new=False)
        self.channels.follow(state.brokers.values())
        await self.log_ends.ask(decisions.log_ends_wanted(state, decisions.affected(state, state.brokers), state.brokers))
        await self.writer.perform(decisions.take_over(state), except_brokers=list(state.brokers))
        self.log_ends.forget()
        await self.writer.send_everything(list(state.brokers))
        await self.look_for_failed_directories()

    async def look_for_brokers(self) -> None:
        """Takes in who registered, whose registration ended, and who is to be found elsewhere now."""
        state = self.state
        found = {registration.broker_id: registration for registration in await self._load_brokers()}
        gone = [
            broker_id
            for broker_id, known in state.brokers.items()
            if broker_id not in found or found[broker_id].broker_epoch != known.broker_epoch
        ]
        new = [found_one for broker_id, found_one in found.items() if broker_id not in state.brokers or broker_id in gone]
        moved = [found_one for found_one in found.values() if found_one != state.brokers.get(found_one.broker_id) and found_one not in new]
        state.brokers.update({registration.broker_id: registration for registration in moved})
        for registration in moved:
            log.info("broker %d: advertised at %s", registration.broker_id, ", ".join(map(str, registration.endpoints)))
        if not new and not gone:
            if moved:
                self.writer.send(brokers_changed=True)
            return
        log.info(
            "brokers registered: %s; unregistered: %s",
            ", ".join(f"{registration.broker_id} (epoch {registration.broker_epoch})" for registration in new) or "none",
            ", ".join(map(str, gone)) or "none",
        )
        state.brokers_came_and_went(new, gone)
        self.channels.follow(state.brokers.values())
        new_ids = [registration.broker_id for registration in new]
        affected = decisions.affected(state, {*new_ids, *gone})
        await self.log_ends.ask(decisions.log_ends_wanted(state, affected, new_ids, gone))
        await self.writer.perform(decisions.brokers_changed(state, new, gone), except_brokers=new_ids)
        self.log_ends.forget()
        self.writer.send(brokers_changed=True, except_brokers=new_ids)
        await self.writer.send_everything(new_ids, metadata_first=True)

    async def look_for_topics(self) -> None:
        """Takes in what was written to `/brokers/topics` and `/admin/delete_topics`."""
        to_delete = await self.coordination.children(znodes.DELETE_TOPICS.path(), self.watched.topics)
        names = frozenset(await self.coordination.children(znodes.TOPICS.path(), self.watched.topics))
        # Before they are read, or what is written in between is missed.
        await self.watch_topics(sorted(names - self.watched_topics))
        found: list[str] = []
        async for loaded in load_topics(self.coordination, sorted(names - self.state.topics.keys())):
            log.info("topic %s: found in ZooKeeper with %d partitions", loaded.name, len(loaded.states))
            self.topics.take_in(await self._known(loaded))
            found.append(loaded.name)
        unread, self.state.unread_topics = self.state.unread_topics, names.difference(self.state.topics)
        if unread - names:
            self.writer.send(deleted_topics=sorted(unread - names))
        partitions = [key for name in found for key in self.state.topics[name].topic_partitions()]
        await self.log_ends.ask(decisions.log_ends_wanted(self.state, partitions))
        await self.writer.perform(decisions.topics_found(self.state, found))
        self.log_ends.forget()
        self.writer.send_topic_configs(found)
        await self.writer.send_found(partitions)
        await self._begin_deletions(to_delete, are_new=True)
        for name in sorted(self.state.topics.keys() - names):
            log.error("topic %s: its znode was removed by another tool; the brokers rename its logs and keep them", name)
            self._forget(self.state.topics[name])

    async def watch_topics(self, names: Sequence[str]) -> None:
        """Has a watch on the znodes of topics, and takes in what was written there since they were read."""
        for start in range(0, len(names), WATCHED_AT_ONCE):
            some = names[start : start + WATCHED_AT_ONCE]
            self.watched_topics.update(some)
            paths = [znodes.TOPIC.path(name) for name in some]
            watches = map(self.watched.topic, some)
            stats = await asyncio.gather(*(self.coordination.exists(*path) for path in zip(paths, watches, strict=True)))
            for name, stat in zip(some, stats, strict=True):
                if stat is None:
                    self.watched_topics.discard(name)
                else:
                    await self._topic_written(name, stat.version)

    async def look_at_topic(self, name: str) -> None:
        """Takes in what was written to a topic's own znode."""
        if name in self.state.unread_topics:
            await self.look_for_topics()  # it may be readable by now
        if name not in self.watched_topics:
            await self.watch_topics([name])

    async def _topic_written(self, name: str, version: int) -> None:
        topic = self.state.topics.get(name)
        if topic is None or topic.version == version:
            return  # only the controller wrote, or it is to be read yet
        loaded = await load_topic(self.coordination, name)
        if loaded is None:
            topic.version = version  # that of what cannot be read, so that the next write replaces it
            return
        known = loaded.known(topic.topic_id, loaded.topic_version)
        count = len(topic.partitions)
        if loaded.assignment.topic_id not in (None, topic.topic_id):
            log.warning("topic %s: its znode was replaced by that of another topic of this name", name)
            self._forget(topic)
            await self.look_for_topics()
            return
        if [partition.state.replicas for partition in known.partitions[:count]] != [
            partition.state.replicas for partition in topic.partitions
        ]:
            log.warning("topic %s: another tool has changed the replicas of its partitions; ignored", name)
        topic.version = loaded.topic_version
        added = [TopicPartition(name, index) for index in range(count, len(known.partitions))]
        if added and topic.is_deleting:
            log.warning("topic %s: is being deleted; new partitions are ignored", name)
            added = []
        if added:
            log.info("topic %s: %d partitions -> %d, by another tool", name, count, len(known.partitions))
            partitions = [*topic.partitions, *known.partitions[count:]]
            topic = KnownTopic(name, topic.topic_id, topic.version, partitions, topic.overrides)
            self.state.put_topic(topic)
        if loaded.assignment.topic_id is None:
            # Anyone who reads it next would give it another id, and with that take its records for another topic's.
            await self.writes.write([znode_writes.topic_identification(topic)])
            topic.version += 1
        await self.writer.perform(decisions.topics_found(self.state, [name]))
        await self.writer.send_found(added)

    async def look_for_failed_directories(self) -> None:
        """Asks brokers that say that a log directory failed which replicas they still have: they answer for each that is missing."""
        parent = znodes.LOG_DIR_EVENTS.path()
        paths = [f"{parent}/{name}" for name in sorted(await self.coordination.children(parent, self.watched.log_directories))]
        brokers: dict[BrokerId, None] = {}
        for path, found in zip(paths, await self.coordination.get_many(paths), strict=True):
            try:
                if found is not None:
                    brokers[znodes.decode_log_dir_event(path, found[0])] = None
            except MalformedZnode as error:
                log.error("%s; the notice is ignored", error)
        await self.writer.send_everything([registration for registration in brokers if registration in self.state.brokers])
        if paths:
            await self.writes.write_in_parts([Delete(path) for path in paths])

    async def _load_brokers(self) -> list[BrokerRegistration]:
        """The live brokers that are Ottla's. One of Kafka is left out: it is sent nothing and leads nothing."""
        found = await load_brokers(self.coordination, self.watched.brokers)
        for registration in found:
            if registration.is_foreign and self.foreign_brokers.get(registration.broker_id) != registration.broker_epoch:
                self.foreign_brokers[registration.broker_id] = registration.broker_epoch
                log.error(
                    "broker %d at %s is Kafka's and joined this cluster: it leads nothing and is sent nothing, and its replicas count as"
                    " offline; stop it, for a cluster is never mixed (docs/coming-from-kafka.md)",
                    registration.broker_id,
                    ", ".join(map(str, registration.endpoints)) or "no address",
                )
        return [registration for registration in found if not registration.is_foreign]

    async def _known(self, loaded: LoadedTopic) -> KnownTopic:
        """A topic that was found, with an id: one of a time before topic ids gets one."""
        if loaded.assignment.topic_id is not None:
            return loaded.known(loaded.assignment.topic_id, loaded.topic_version)
        known = loaded.known(znodes.random_uuid(self.random), loaded.topic_version)
        await self.writes.write([znode_writes.topic_identification(known)])
        known.version += 1
        return known

    async def _begin_deletions(self, names: list[str], are_new: bool) -> None:
        """Deletes what is marked in `/admin/delete_topics`; a mark of what is not there, or may not be deleted, is removed."""
        obsolete: dict[str, bool] = {}
        may_delete = self.state.settings.delete_topic_enable
        for name in sorted(names):
            topic = self.state.topics.get(name)
            if topic is None or not (may_delete or topic.is_deleting):
                is_kept = not may_delete and (topic is not None or name in self.state.unread_topics)
                reason = "delete.topic.enable is false" if is_kept else "no topic of this name can be read"
                log.info("topic %s: its deletion mark is removed: %s", name, reason)
                obsolete[name] = is_kept
            elif not are_new:
                topic.is_deleting = True  # `take_over` continues it
            elif not topic.is_deleting:
                await self.topics.begin_deletion(name)
        for name, is_kept in obsolete.items():
            if is_kept:
                await self.writes.write([Delete(znodes.DELETE_TOPIC.path(name))])
            else:  # its znode went before the rest of it
                await znode_writes.remove_topics(self.coordination, self.writes, [name])

    def _forget(self, topic: KnownTopic) -> None:
        """Has a topic disappear whose znode is no more. Its logs are strays from then on: their deletion was not requested."""
        holders = {broker_id for known in topic.partitions for broker_id in known.state.replicas if broker_id in self.state.brokers}
        self.state.remove_topic(topic.name)
        self.writer.send(deleted_topics=[topic.name])
        self.writer.send_all_replicas(sorted(holders))
        self.writer.moved()


class ToolRequests:
    """What is asked for in ZooKeeper, in one term.

    Args:
        state: what is known.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        partitions: does what is asked for.
        reassignment_changed: called when there may be another request to move partitions.
        election_changed: called when there may be another request for elections.
    """

    def __init__(
        self,
        state: ClusterState,
        coordination: Coordination,
        writes: ControllerWrites,
        partitions: PartitionOperations,
        reassignment_changed: Watch,
        election_changed: Watch,
    ) -> None:
        self._state = state
        self._coordination = coordination
        self._writes = writes
        self._partitions = partitions
        self._reassignment_changed = reassignment_changed
        self._election_changed = election_changed
        self._moving: dict[TopicPartition, tuple[BrokerId, ...]] = {}  # what `/admin/reassign_partitions` says
        self._version = 0

    @property
    def is_moving(self) -> bool:
        """Whether partitions are on their way because a tool wrote so."""
        return bool(self._moving)

    async def look_for_reassignment(self) -> None:
        """Takes in which partitions a tool wants to be elsewhere."""
        path = znodes.REASSIGNMENT.path()
        found = await self._read(path, self._reassignment_changed)
        if found is None:
            self._moving = {}
            return
        data, stat = found
        try:
            wanted = znodes.decode_reassignment(path, data)
        except MalformedZnode as error:
            log.error("%s; the request is removed", error)
            self._moving = {}
            await self._write(Delete(path, stat.version))
            return
        new = {key: target for key, target in wanted.items() if self._moving.get(key) != target}
        self._moving, self._version = wanted, stat.version
        if new:
            log.info("%s: reassigning %d partitions", path, len(new))
            _log_refused("not moved", await self._partitions.alter_reassignments(AlterPartitionReassignmentsRequest(new)))
        await self.reassignments_went_on()

    async def reassignments_went_on(self) -> None:
        """Takes out of the request what is done, or will not be."""
        left = {key: target for key, target in self._moving.items() if key in self._state.reassigning()}
        if len(left) == len(self._moving) and left:
            return
        path = znodes.REASSIGNMENT.path()
        is_written = await self._write(
            SetData(path, znodes.encode_reassignment(left), self._version) if left else Delete(path, self._version)
        )
        if is_written:
            self._moving = left
            self._version += 1

    async def look_for_election(self) -> None:
        """Has preferred replicas lead as a tool wants it."""
        path = znodes.PREFERRED_ELECTION.path()
        found = await self._read(path, self._election_changed)
        if found is None:
            return
        data, stat = found
        try:
            wanted = znodes.decode_partitions(path, data)
        except MalformedZnode as error:
            log.error("%s; the request is removed", error)
        else:
            log.info("%s: electing preferred leaders of %d partitions", path, len(wanted))
            _log_refused("not elected", await self._partitions.elect_leaders(ElectLeadersRequest(ElectionType.PREFERRED, wanted)))
        await self._write(Delete(path, stat.version))

    async def _read(self, path: str, watch: Watch) -> tuple[bytes, Stat] | None:
        with contextlib.suppress(NoNode):
            if await self._coordination.exists(path, watch) is not None:
                return await self._coordination.get(path)
        return None

    async def _write(self, operation: Operation) -> bool:
        """False when the tool was quicker: the watch fires for it."""
        try:
            await self._writes.write([operation])
        except (BadVersion, NoNode):
            return False
        return True


def _log_refused(what: str, outcomes: Mapping[TopicPartition, PartitionOutcome]) -> None:
    for key, outcome in outcomes.items():
        if outcome.error not in (NONE, ElectionNotNeeded.code):
            log.warning("%s: %s as requested in ZooKeeper: %s", key, what, outcome.message)
