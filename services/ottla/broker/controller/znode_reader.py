"""Reading the cluster's state from its znodes: topics, partition states and settings.

What another tool wrote badly must not keep a broker from its good topics: a znode that cannot be read is
logged, and its topic skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final
from uuid import UUID

from ottla.broker.controller.state import KnownPartition, KnownTopic
from ottla.broker.controller.topics import Replicas
from ottla.config.broker import BrokerSettings
from ottla.config.settings import INT_MAX
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode, NoNode
from ottla.coordination.interface import Coordination, Stat, Watch
from ottla.errors import InvalidConfig
from ottla.model import MAX_TOPIC_NAME_LENGTH, BrokerId, BrokerRegistration, PartitionState

log: Final = logging.getLogger(__name__)

# Not the defaults: a topic may be kept for longer than they say, or for ever.
KEEPS_ALL: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# Znodes that are read, and then decoded, in one stretch.
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """A topic as it is in its znodes. A partition without a state was never led."""

    name: str
    assignment: znodes.TopicAssignment
    topic_version: int  # of /brokers/topics/[topic]
    states: tuple[tuple[PartitionState, int] | None, ...]  # with the version of each znode
    overrides: dict[str, str]

    def known(self, topic_id: UUID, version: int) -> KnownTopic:
        """The topic as the controller keeps it, under an id that may not be in its znode yet."""
        assignment = self.assignment
        partitions = []
        for partition, (replicas, found) in enumerate(zip(assignment.replicas, self.states, strict=True)):
            adding, removing = assignment.adding_replicas.get(partition, ()), assignment.removing_replicas.get(partition, ())
            if found is None:
                partitions.append(KnownPartition.without_state(replicas, adding, removing))
            else:
                partitions.append(KnownPartition(found[0], found[1], adding, removing))
        return KnownTopic(self.name, topic_id, version, partitions, self.overrides)


async def load_topics(coordination: Coordination, names: Sequence[str]) -> AsyncIterator[LoadedTopic]:
    """The topics of these names that can be read, in the order of the names."""
    for start in range(0, len(names), _AT_ONCE):
        for name in await _load_topics(coordination, names[start : start + _AT_ONCE]):
            yield name


async def load_topic(coordination: Coordination, name: str) -> LoadedTopic | None:
    """One topic; None when there is none of that name, or none that can be read."""
    loaded = await _load_topics(coordination, [name])
    return loaded[0] if loaded else None


async def load_topic_overrides(coordination: Coordination) -> dict[str, Mapping[str, str]]:
    """What every topic sets for itself, by topic; for one whose settings cannot be read, that nothing of it is deleted."""
    names = await coordination.children(znodes.TOPICS.path())
    loaded: dict[str, Mapping[str, str]] = {}
    for start in range(0, len(names), _AT_ONCE):
        group = names[start : start + _AT_ONCE]
        paths = [znodes.TOPIC_CONFIG.path(name) for name in group]
        for name, path, found in zip(group, paths, await coordination.get_many(paths), strict=True):
            try:
                loaded[name] = {} if found is None else znodes.decode_config(path, found[0])
            except MalformedZnode as error:
                log.error("%s; nothing of topic %s is deleted until its settings can be read", error, name)
                loaded[name] = KEEPS_ALL
    return loaded


async def load_brokers(coordination: Coordination, watch: Watch | None = None) -> list[BrokerRegistration]:
    """The brokers that live, by id. The watch fires when one comes or goes."""

    loaded = []
    for _, path, data, stat in await _children(coordination, znodes.BROKER_IDS, znodes.BROKER, watch):
        try:
            loaded.append(znodes.decode_broker(path, data, stat.czxid))
        except MalformedZnode as error:
            log.error("%s; the broker is ignored", error)
    return sorted(loaded, key=lambda broker: broker.broker_id)


async def load_config(coordination: Coordination, path: str) -> dict[str, str]:
    """The settings of a topic or broker; none when there is no such znode."""
    try:
        return znodes.decode_config(path, (await coordination.get(path))[0])
    except NoNode:
        return {}


async def load_topic_config(coordination: Coordination, name: str) -> tuple[UUID | None, dict[str, str]]:
    """The settings of a topic, and the id of the topic that has them."""
    path, config_path = znodes.TOPIC.path(name), znodes.TOPIC_CONFIG.path(name)
    topic, config = await coordination.get_many([path, config_path])
    overrides = {} if config is None else znodes.decode_config(config_path, config[0])
    return None if topic is None else znodes.decode_topic(path, topic[0]).topic_id, overrides


def acceptable_overrides(broker: BrokerSettings, topic: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """What a topic sets, without invalid settings that another tool wrote there; those are logged, and nothing is deleted by defaults."""
    acceptable: dict[str, str] = {}
    kept: dict[str, str] = {}
    for name, value in overrides.items():
        try:
            TopicSettings.of(broker, {name: value})
            acceptable[name] = value
        except InvalidConfig as error:
            log.error("topic %s: invalid config ignored: %s", topic, error)
            if name in KEEPS_ALL:
                kept |= KEEPS_ALL if name == "cleanup.policy" else {name: KEEPS_ALL[name]}
    return acceptable | kept


async def load_all_broker_configs(coordination: Coordination) -> dict[BrokerId | None, dict[str, str]]:
    """What was changed of every broker, and under None of all. What cannot be read is logged and skipped."""
    loaded: dict[BrokerId | None, dict[str, str]] = {}
    for name, path, data, _ in await _children(coordination, znodes.BROKER_CONFIGS, znodes.BROKER_CONFIG):
        try:
            if name == znodes.DEFAULT_ENTITY or name.isdecimal():
                loaded[None if name == znodes.DEFAULT_ENTITY else BrokerId(int(name))] = znodes.decode_config(path, data)
        except MalformedZnode as error:
            log.error("%s; these configs are ignored", error)
    return loaded


async def load_unclean_starts(coordination: Coordination) -> dict[BrokerId, int]:
    """The epoch of each broker's latest unclean start that a controller has dealt with."""
    loaded: dict[BrokerId, int] = {}
    for name, path, data, _ in await _children(coordination, znodes.UNCLEAN_STARTS, znodes.UNCLEAN_START):
        try:
            loaded[BrokerId(int(name))] = znodes.decode_unclean_start(path, data)
        except (MalformedZnode, ValueError) as error:
            log.error("%s: %s; counted as an unclean start", path, error)
    return loaded


async def _children(
    coordination: Coordination, parent: znodes.Znode, child: znodes.Znode, watch: Watch | None = None
) -> list[tuple[str, str, bytes, Stat]]:
    """Name, path, data and Stat of each child, by name, but for those that go between the two reads. The watch is on the parent."""
    names = sorted(await coordination.children(parent.path(), watch))
    paths = [child.path(name) for name in names]
    found = await coordination.get_many(paths)
    return [(name, path, *read) for name, path, read in zip(names, paths, found, strict=True) if read is not None]


async def _load_topics(coordination: Coordination, names: Sequence[str]) -> list[LoadedTopic]:
    found = await coordination.get_many([znodes.TOPIC.path(name) for name in names])
    found_configs = await coordination.get_many([znodes.TOPIC_CONFIG.path(name) for name in names])
    loaded: list[LoadedTopic] = []
    unread: dict[str, MalformedZnode] = {}
    partitions: list[tuple[str, int, Replicas]] = []
    for name, topic, config in zip(names, found, found_configs, strict=True):
        if topic is None:
            continue  # it went since its name was read
        try:
            if len(name.encode()) > MAX_TOPIC_NAME_LENGTH:
                # No directory can be made for it, and a broker would take that for the failure of a log directory.
                raise MalformedZnode(f"{znodes.TOPIC.path(name)}: the name is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}")
            assignment = znodes.decode_topic(znodes.TOPIC.path(name), topic[0])
            ongoing = (*assignment.adding_replicas.values(), *assignment.removing_replicas.values())
            _check_numbers(znodes.TOPIC.path(name), chain(*assignment.replicas, *ongoing))
            overrides = {} if config is None else znodes.decode_config(znodes.TOPIC_CONFIG.path(name), config[0])
        except MalformedZnode as error:
            unread[name] = error
            continue
        loaded.append(LoadedTopic(name, assignment, topic[1].version, (), overrides))
        if (len(partitions) + len(assignment.replicas)) // _AT_ONCE > len(partitions) // _AT_ONCE:
            await asyncio.sleep(0)
        partitions += ((name, index, replicas) for index, replicas in enumerate(assignment.replicas))
    states: dict[str, list[tuple[PartitionState, int] | None]] = {topic.name: [] for topic in loaded}
    for start in range(0, len(partitions), _AT_ONCE):
        group = partitions[start : start + _AT_ONCE]
        paths = [znodes.PARTITION_STATE.path(name, index) for name, index, _ in group]
        for (name, _, replicas), path, state in zip(group, paths, await coordination.get_many(paths), strict=True):
            try:
                states[name].append(None if state is None else (_decode_state(path, state[0], replicas), state[1].version))
            except MalformedZnode as error:
                unread[name] = error
        await asyncio.sleep(0)  # ten thousand partitions are decoded here, and others want their turn
    for name, fault in unread.items():
        log.error("%s; topic %s is skipped", fault, name)
    return [replace(topic, states=tuple(states[topic.name])) for topic in loaded if topic.name not in unread]


def _decode_state(path: str, data: bytes, replicas: Replicas) -> PartitionState:
    state = znodes.decode_partition_state(path, data, replicas)
    members = (*state.isr, *state.eligible_leader_replicas, *state.last_known_leader_replicas)
    _check_numbers(path, (state.leader, state.leader_epoch, state.controller_epoch, *members))
    return state


def _check_numbers(path: str, numbers: Iterable[int]) -> None:
    """Raises MalformedZnode for a number that no message can have: it would keep all else from the brokers that is sent with it."""
    for number in numbers:
        if not -1 <= number <= INT_MAX:
            raise MalformedZnode(f"{path}: {number} is not between -1 and {INT_MAX}")
