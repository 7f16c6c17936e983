"""Carries out what `topics` decides: topics are made, extended and deleted, and what other tools wrote is taken in.

A topic's deletion is first written down in `/admin/delete_topics`, then told to the broker, and last its znodes go.
Whatever a crash leaves half done, the next take-over completes: a deletion that was written down, and the states of
partitions that a topic has and that never were led.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ottla.broker.controller import configs, topic_znodes
from ottla.broker.controller.changes import MetadataChange, PartitionsAdded, TopicCreated, TopicDeleted
from ottla.broker.controller.loading import LoadedTopic, acceptable_overrides, load_topic, load_topics
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.topics import NewTopic, check_new_name, first_state, place_more_partitions, place_topic
from ottla.broker.controller.writes import ControllerWrites
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, NodeExists
from ottla.coordination.interface import Coordination, Create, Watch
from ottla.errors import RequestTimedOut, TopicAlreadyExists, TopicDeletionDisabled
from ottla.model import ZERO_TOPIC_ID, BrokerId, TopicDescription

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicOperations:
    """What a controller does with topics in its time.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        controller_epoch: that epoch, which goes into partitions' states.
        random: for placement and ids.
        apply: told of each change.
        changed: the watch on the topics and on those that are to be deleted.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    controller_epoch: int
    random: Random
    apply: Callable[[MetadataChange], Awaitable[None]]
    changed: Watch

    async def create(self, new_topic: NewTopic, validate_only: bool) -> TopicDescription:
        """Makes a topic."""
        name = new_topic.name
        settings = self.state.settings
        check_new_name(name, self.state.topics)
        replicas = place_topic(new_topic, self.state.brokers, settings.num_partitions, settings.default_replication_factor, self.random)
        configs.checked_topic_settings(settings, new_topic.configs)
        states = tuple(first_state(each, self.state.living(), self.controller_epoch) for each in replicas)
        description = TopicDescription(name, znodes.random_uuid(self.random), states)
        has_config = await self.coordination.exists(znodes.TOPIC_CONFIG.path(name)) is not None
        operations = topic_znodes.creation(description, new_topic.configs, has_config)
        if validate_only:
            return TopicDescription(name, ZERO_TOPIC_ID, states)
        try:
            await self.writes.write_in_parts(operations)
        except NodeExists as error:
            # Another tool made it, or an earlier attempt of ours whose outcome never became known.
            await self.look_for_changes()
            raise TopicAlreadyExists(f"Topic '{name}' already exists.") from error
        self.state.put_topic(description, 0, dict(new_topic.configs))
        log.info("created topic %s with %d partitions, id %s", name, len(states), znodes.encode_uuid(description.topic_id))
        await self.apply(TopicCreated(description))
        return description

    async def extend(
        self, name: str, total_count: int, assignments: Sequence[Sequence[BrokerId]] | None, validate_only: bool
    ) -> TopicDescription:
        """Gives a topic more partitions."""
        topic = self.state.topic(name)
        added = place_more_partitions(name, topic.partitions, total_count, assignments, self.state.brokers)
        states = tuple(first_state(each, self.state.living(), self.controller_epoch) for each in added)
        description = TopicDescription(name, topic.topic_id, topic.partitions + states)
        version = self.state.topic_versions[name]
        operations = topic_znodes.extension(description, len(topic.partitions), version)
        if validate_only:
            return description
        try:
            await self.writes.write_in_parts(operations)
        except (BadVersion, NodeExists) as error:
            # As above: what there is now has to decide about another attempt.
            await self._take_in_by_name(name)
            raise RequestTimedOut(f"topic '{name}' was changed by somebody else meanwhile: {error}") from error
        self.state.put_topic(description, version + 1, self.state.topic_overrides[name])
        log.info("topic %s: %d partitions -> %d", name, len(topic.partitions), total_count)
        await self.apply(PartitionsAdded(description))
        return description

    async def delete(self, name: str) -> None:
        """Deletes a topic."""
        self.state.topic(name)
        if not self.state.settings.delete_topic_enable:
            raise TopicDeletionDisabled("Topic deletion is disabled.")
        with contextlib.suppress(NodeExists):  # of a deletion that was cut short
            await self.writes.write([Create(znodes.DELETE_TOPIC.path(name))])
        await self._complete_deletion(name)

    async def take_over(self) -> None:
        """Takes in every topic that there is, and completes what was left half done."""
        for topic in await load_topics(self.coordination):
            await self._take_in(topic)
        await self.look_for_changes()

    async def look_for_changes(self) -> None:
        """Makes and deletes what was written to `/brokers/topics` and `/admin/delete_topics`, and watches both again."""
        to_delete = await self.coordination.children(znodes.DELETE_TOPICS.path(), self.changed)
        names = frozenset(await self.coordination.children(znodes.TOPICS.path(), self.changed))
        for name in sorted(names - self.state.topics.keys() - frozenset(to_delete)):
            await self._take_in_by_name(name)
        for name in sorted(to_delete):
            log.info("topic %s: completing its deletion", name)
            await self._complete_deletion(name)
        for name in sorted(self.state.topics.keys() - names):
            log.warning("topic %s: its znode was removed; forgetting it", name)
            await self._forget(self.state.topics[name])

    async def _take_in_by_name(self, name: str) -> None:
        topic = await load_topic(self.coordination, name)
        if topic is not None:
            log.info("topic %s was found with %d partitions", name, len(topic.states))
            await self._take_in(topic)

    async def _take_in(self, topic: LoadedTopic) -> None:
        """Takes in a topic that was found, gives it what it lacks, and tells the broker."""
        topic_id, version = topic.assignment.topic_id, topic.topic_version
        first_states = {
            partition: first_state(topic.assignment.replicas[partition], self.state.living(), self.controller_epoch)
            for partition, state in enumerate(topic.states)
            if state is None
        }
        states = tuple(state or first_states[partition] for partition, state in enumerate(topic.states))
        description = TopicDescription(topic.name, topic_id or znodes.random_uuid(self.random), states)
        if topic_id is None:
            await self.writes.write([topic_znodes.identification(description, version)])
            version += 1
        if first_states:
            log.info("topic %s: giving %d partitions their first leaders", topic.name, len(first_states))
            await self.writes.write_in_parts(await topic_znodes.completion(self.coordination, topic.name, first_states.items()))
        self.state.put_topic(description, version, acceptable_overrides(self.state.settings, topic.name, topic.overrides))
        await self.apply(TopicCreated(description))

    async def _complete_deletion(self, name: str) -> None:
        """Tells the broker, and removes the znodes, of a topic whose deletion is written down."""
        if name in self.state.topics:
            await self._forget(self.state.topics[name])
        await self.writes.write_in_parts(await topic_znodes.removal(self.coordination, name))
        log.info("deleted topic %s", name)

    async def _forget(self, topic: TopicDescription) -> None:
        self.state.remove_topic(topic.name)
        await self.apply(TopicDeleted(topic.name, topic.topic_id, len(topic.partitions)))
