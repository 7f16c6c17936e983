"""Carries out what `topics` decides: topics are made, extended and deleted.

A topic's deletion is first written down in `/admin/delete_topics`; its replicas are stopped, and once all have confirmed
its znodes go, the note last (`decisions.follow_up`). What a crash leaves half done the next controller completes: a
deletion that was written down, and the states of partitions that a topic has and that never were led.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Final

from ottla.broker.controller import configs, decisions, topic_znodes
from ottla.broker.controller.loading import acceptable_overrides
from ottla.broker.controller.performing import Performer
from ottla.broker.controller.state import ClusterState, KnownPartition, KnownTopic
from ottla.broker.controller.topics import NewTopic, check_new_name, place_more_partitions, place_topic
from ottla.broker.controller.writes import ControllerWrites
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Create, Operation
from ottla.errors import ApiError, ReassignmentInProgress, TopicDeletionDisabled, UnknownTopicOrPartition
from ottla.model import ZERO_TOPIC_ID, BrokerId, BrokerRegistration, PartitionState, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicOperations:
    """What a controller does with topics in its term.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        performer: for decisions, and for telling the brokers.
        random: for placement and ids.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    performer: Performer
    random: Random

    async def create(self, wanted: Sequence[tuple[NewTopic, bool]]) -> list[TopicDescription | ApiError]:
        """Makes topics, as few transactions as hold them; the second of each pair says whether only to look whether it can be made."""
        state = self.state
        results: list[TopicDescription | ApiError] = []
        made: dict[str, tuple[TopicDescription, NewTopic]] = {}
        operations: list[Iterator[Operation]] = []
        configured = await self.coordination.get_many([znodes.TOPIC_CONFIG.path(new_topic.name) for new_topic, _ in wanted])
        for (new_topic, validate_only), config in zip(wanted, configured, strict=True):
            name = new_topic.name
            try:
                check_new_name(name, state.topics)
                check_new_name(name, made)
                replicas = place_topic(
                    new_topic, self._living(), state.settings.num_partitions, state.settings.default_replication_factor, self.random
                )
                configs.checked_topic_settings(state.settings, new_topic.configs)
                states = decisions.new_topic_states(state, replicas)
                description = TopicDescription(name, znodes.random_uuid(self.random), states)
                creation = topic_znodes.creation(description, new_topic.configs, config is not None)
            except ApiError as error:
                results.append(error)
                continue
            if validate_only:
                results.append(TopicDescription(name, ZERO_TOPIC_ID, states))
                continue
            results.append(description)
            operations.append(creation)
            made[name] = description, new_topic
        await self.writes.write_in_parts(chain.from_iterable(operations))
        new: list[TopicPartition] = []
        for name, (description, new_topic) in made.items():
            state.put_topic(KnownTopic(name, description.topic_id, 0, _first(description.partitions), dict(new_topic.configs)))
            log.info(
                "created topic %s with %d partitions, id %s", name, len(description.partitions), znodes.encode_uuid(description.topic_id)
            )
            new += state.topic(name).topic_partitions()
        await self.performer.announce_new(new)
        await self.performer.say_new(new)
        return results

    async def extend(
        self, name: str, total_count: int, assignments: Sequence[Sequence[BrokerId]] | None, validate_only: bool
    ) -> TopicDescription:
        """Gives a topic more partitions."""
        topic = self.state.topic(name)
        if any(each.is_being_reassigned for each in topic.partitions):
            raise ReassignmentInProgress(f"A partition reassignment is in progress for the topic '{name}'.")
        former = topic.describe()
        added = decisions.new_topic_states(
            self.state, place_more_partitions(name, former.partitions, total_count, assignments, self._living())
        )
        description = TopicDescription(name, topic.topic_id, former.partitions + added)
        operations = topic_znodes.extension(description, len(former.partitions), topic.version)
        if validate_only:
            return description
        await self.writes.write_in_parts(operations)
        self.state.put_topic(KnownTopic(name, topic.topic_id, topic.version + 1, [*topic.partitions, *_first(added)], topic.overrides))
        log.info("topic %s: %d partitions -> %d", name, len(former.partitions), total_count)
        new = list(self.state.topic(name).topic_partitions())[len(former.partitions) :]
        await self.performer.announce_new(new)
        await self.performer.say_new(new)
        return description

    async def delete(self, names: Sequence[str]) -> list[ApiError | None]:
        """Begins to delete topics."""
        results: list[ApiError | None] = []
        deleted: dict[str, None] = {}
        for name in names:
            try:
                if name in deleted:
                    raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
                self.state.topic(name)
                if not self.state.settings.delete_topic_enable:
                    raise TopicDeletionDisabled("Topic deletion is disabled.")
            except ApiError as error:
                results.append(error)
                continue
            results.append(None)
            deleted[name] = None
        paths = [znodes.DELETE_TOPIC.path(name) for name in deleted]
        noted = await self.coordination.get_many(paths)
        await self.writes.write_in_parts(Create(path) for path, found in zip(paths, noted, strict=True) if found is None)
        for name in deleted:
            await self.begin_deletion(name)
        return results

    async def begin_deletion(self, name: str) -> None:
        """Stops the replicas of a topic whose deletion is written down, and has nobody see it any more."""
        log.info("topic %s: deleting it", name)
        await self.performer.perform(decisions.delete_topic(self.state, name))
        self.performer.announce(deleted_topics=[name])

    def take_in(self, topic: KnownTopic) -> None:
        """Takes in a topic that was found, without those of its settings that nobody can use."""
        topic.overrides = acceptable_overrides(self.state.settings, topic.name, topic.overrides)
        self.state.put_topic(topic)

    def _living(self) -> list[BrokerRegistration]:
        living = self.state.living()
        return [each for broker_id, each in sorted(self.state.brokers.items()) if broker_id in living]


def _first(states: Sequence[PartitionState]) -> list[KnownPartition]:
    return [KnownPartition(each, partition_epoch=0) for each in states]
