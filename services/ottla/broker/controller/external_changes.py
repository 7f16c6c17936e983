"""What the controller finds in ZooKeeper: all of it when its term begins, and from then on what others write there.

Brokers come and go, other tools make topics, give them partitions and mark them for deletion, a log directory fails. Each is
looked at when its watch fires, and sets the watch again before it reads, so that nothing is missed. Mostly it was the controller
itself, and nothing is new.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.broker.controller import decisions, topic_znodes
from ottla.broker.controller.channels import Channels
from ottla.broker.controller.effects import EPOCH_DURING_DELETE, Decision, ReplicaStop
from ottla.broker.controller.loading import LoadedTopic, load_brokers, load_topic, load_topics, load_unclean_starts
from ottla.broker.controller.log_end_questions import LogEndQuestions
from ottla.broker.controller.performing import Performer
from ottla.broker.controller.state import ClusterState, KnownTopic
from ottla.broker.controller.topic_operations import TopicOperations
from ottla.broker.controller.writes import ControllerWrites
from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode
from ottla.coordination.interface import Coordination, Delete, Watch
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, TopicPartition

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
        performer: for decisions, and for telling the brokers.
        channels: the ways to the brokers.
        topics: for deletions.
        questions: asked before a leader is chosen of those that may have lost records.
        random: for the ids of topics that have none.
        watched: told of changes.
        watched_topics: whose own znodes have a watch.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    performer: Performer
    channels: Channels
    topics: TopicOperations
    questions: LogEndQuestions
    random: Random
    watched: Watched
    watched_topics: set[str] = field(default_factory=set)

    async def take_over(self) -> None:
        """Reads everything, does what the former controller left undone, and has every broker told all."""
        state = self.state
        state.brokers_came_and_went(await load_brokers(self.coordination, self.watched.brokers), ())
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
        await self.questions.ask(decisions.log_ends_wanted(state, decisions.affected(state, state.brokers), state.brokers))
        await self.performer.perform(decisions.take_over(state), except_brokers=list(state.brokers))
        self.questions.forget()
        await self.performer.announce_everything(list(state.brokers))
        await self.look_for_failed_directories()

    async def look_for_brokers(self) -> None:
        """Takes in who registered, whose registration ended, and who is to be found elsewhere now."""
        state = self.state
        found = {each.broker_id: each for each in await load_brokers(self.coordination, self.watched.brokers)}
        gone = [
            broker_id
            for broker_id, known in state.brokers.items()
            if broker_id not in found or found[broker_id].broker_epoch != known.broker_epoch
        ]
        new = [each for broker_id, each in found.items() if broker_id not in state.brokers or broker_id in gone]
        moved = [each for each in found.values() if each != state.brokers.get(each.broker_id) and each not in new]
        state.brokers.update({each.broker_id: each for each in moved})
        for each in moved:
            log.info("broker %d is advertised at %s", each.broker_id, ", ".join(map(str, each.endpoints)))
        if not new and not gone:
            if moved:
                self.performer.announce(brokers_changed=True)
            return
        log.info(
            "brokers came: %s; and went: %s",
            ", ".join(f"{each.broker_id} (epoch {each.broker_epoch})" for each in new) or "none",
            ", ".join(map(str, gone)) or "none",
        )
        state.brokers_came_and_went(new, gone)
        self.channels.follow(state.brokers.values())
        new_ids = [each.broker_id for each in new]
        affected = decisions.affected(state, {*new_ids, *gone})
        await self.questions.ask(decisions.log_ends_wanted(state, affected, new_ids, gone))
        await self.performer.perform(decisions.brokers_changed(state, new, gone), except_brokers=new_ids)
        self.questions.forget()
        self.performer.announce(brokers_changed=True, except_brokers=new_ids)
        await self.performer.announce_everything(new_ids, metadata_first=True)

    async def look_for_topics(self) -> None:
        """Takes in what was written to `/brokers/topics` and `/admin/delete_topics`."""
        to_delete = await self.coordination.children(znodes.DELETE_TOPICS.path(), self.watched.topics)
        names = frozenset(await self.coordination.children(znodes.TOPICS.path(), self.watched.topics))
        # Before they are read, or what is written in between is seen by nobody.
        await self.watch_topics(sorted(names - self.watched_topics))
        found: list[str] = []
        async for loaded in load_topics(self.coordination, sorted(names - self.state.topics.keys())):
            log.info("topic %s was found with %d partitions", loaded.name, len(loaded.states))
            self.topics.take_in(await self._known(loaded))
            found.append(loaded.name)
        self.state.unread_topics = names.difference(self.state.topics)
        await self.performer.perform(decisions.topics_found(self.state, found))
        await self.performer.announce_new([key for name in found for key in self.state.topics[name].topic_partitions()])
        await self._begin_deletions(to_delete, are_new=True)
        for name in sorted(self.state.topics.keys() - names):
            log.warning("topic %s: its znode was removed; forgetting it", name)
            self._forget(self.state.topics[name])

    async def watch_topics(self, names: Sequence[str]) -> None:
        """Has a watch on the znodes of topics, and takes in what was written there since they were read."""
        for start in range(0, len(names), WATCHED_AT_ONCE):
            some = names[start : start + WATCHED_AT_ONCE]
            self.watched_topics.update(some)
            paths = [znodes.TOPIC.path(name) for name in some]
            watches = map(self.watched.topic, some)
            stats = await asyncio.gather(*(self.coordination.exists(*each) for each in zip(paths, watches, strict=True)))
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
            return  # nobody wrote but the controller, or it is to be read yet
        loaded = await load_topic(self.coordination, name)
        if loaded is None:
            topic.version = version  # that of what can not be read, so that the next write replaces it
            return
        known = loaded.known(topic.topic_id, loaded.topic_version)
        count = len(topic.partitions)
        if loaded.assignment.topic_id not in (None, topic.topic_id):
            log.warning("topic %s: its znode was replaced by that of another topic of this name", name)
            self._forget(topic)
            await self.look_for_topics()
            return
        if [each.state.replicas for each in known.partitions[:count]] != [each.state.replicas for each in topic.partitions]:
            log.warning("topic %s: another tool has written other replicas of its partitions; that is passed over", name)
        topic.version = loaded.topic_version
        added = [TopicPartition(name, index) for index in range(count, len(known.partitions))]
        if added and topic.is_deleting:
            log.warning("topic %s: it is being deleted, and gets no more partitions", name)
            added = []
        if added:
            log.info("topic %s: %d partitions -> %d, by another tool", name, count, len(known.partitions))
            partitions = [*topic.partitions, *known.partitions[count:]]
            topic = KnownTopic(name, topic.topic_id, topic.version, partitions, topic.overrides)
            self.state.put_topic(topic)
        if loaded.assignment.topic_id is None:
            # Whoever reads it next would give it another id, and with that take its records for another topic's.
            await self.writes.write([topic_znodes.identification(topic)])
            topic.version += 1
        await self.performer.perform(decisions.topics_found(self.state, [name]))
        await self.performer.announce_new(added)

    async def look_for_failed_directories(self) -> None:
        """Asks brokers that say that a log directory failed which replicas they still have: they answer for each that they lack."""
        parent = znodes.LOG_DIR_EVENTS.path()
        paths = [f"{parent}/{name}" for name in sorted(await self.coordination.children(parent, self.watched.log_directories))]
        brokers: dict[BrokerId, None] = {}
        for path, found in zip(paths, await self.coordination.get_many(paths), strict=True):
            try:
                if found is not None:
                    brokers[znodes.decode_log_dir_event(path, found[0])] = None
            except MalformedZnode as error:
                log.error("%s; the notice is passed over", error)
        await self.performer.announce_everything([each for each in brokers if each in self.state.brokers])
        if paths:
            await self.writes.write_in_parts([Delete(path) for path in paths])

    async def _known(self, loaded: LoadedTopic) -> KnownTopic:
        """A topic that was found, with an id: one of a time before topic ids gets one."""
        if loaded.assignment.topic_id is not None:
            return loaded.known(loaded.assignment.topic_id, loaded.topic_version)
        known = loaded.known(znodes.random_uuid(self.random), loaded.topic_version)
        await self.writes.write([topic_znodes.identification(known)])
        known.version += 1
        return known

    async def _begin_deletions(self, names: list[str], are_new: bool) -> None:
        """Deletes what is marked in `/admin/delete_topics`; a mark of what is not there, or may not be deleted, is removed."""
        obsolete = []
        for name in sorted(names):
            topic = self.state.topics.get(name)
            if topic is None or not (self.state.settings.delete_topic_enable or topic.is_deleting):
                log.info("topic %s: it is marked for deletion and %s", name, "is not there" if topic is None else "may not be deleted")
                obsolete.append(name)
            elif not are_new:
                topic.is_deleting = True  # `take_over` goes on with it
            elif not topic.is_deleting:
                await self.topics.begin_deletion(name)
        for name in obsolete:
            if name in self.state.topics:
                await self.writes.write([Delete(znodes.DELETE_TOPIC.path(name))])
            else:  # its znode went before the rest of it
                await self.writes.write_in_parts(await topic_znodes.removal(self.coordination, name))

    def _forget(self, topic: KnownTopic) -> None:
        """Has a topic disappear whose znode is no more, its logs included."""
        stops = tuple(
            ReplicaStop(broker_id, PartitionToStop(key, EPOCH_DURING_DELETE, delete=True))
            for key, known in zip(topic.topic_partitions(), topic.partitions, strict=True)
            for broker_id in known.state.replicas
            if broker_id in self.state.brokers
        )
        self.state.remove_topic(topic.name)
        self.performer.announce(Decision(stops=stops), deleted_topics=[topic.name])
