"""A topic's znodes as operations: those that make it, extend it, complete it and remove it.

They are in an order in which any cut, where one request is too small for all, leaves what a later `completion` or
`removal` can go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from ottla.broker.controller.effects import AssignmentChange
from ottla.broker.controller.state import KnownTopic
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Create, Delete, Operation, SetData
from ottla.coordination.requests import MAX_REQUEST_SIZE, operation_size
from ottla.errors import InvalidConfig, InvalidPartitions
from ottla.model import PartitionState, TopicDescription, TopicPartition

# What else is in the request that writes a topic's znode: the check of the epoch.
_ROOM: Final = 1_000
# Partitions whose znodes are looked for in one stretch of the loop.
_AT_ONCE: Final = 250


def creation(topic: TopicDescription, configs: Mapping[str, str], has_config: bool) -> Iterator[Operation]:
    """Makes a topic. Raises InvalidPartitions or InvalidConfig at once when a znode would be too large.

    Args:
        topic: all of it.
        configs: what it sets for itself.
        has_config: whether settings were left there by another tool; they are replaced.
    """
    made = _sized(Create(znodes.TOPIC.path(topic.name), _encode(topic)), topic)
    config_path, config = znodes.TOPIC_CONFIG.path(topic.name), znodes.encode_config(configs)
    configured = SetData(config_path, config) if has_config else Create(config_path, config)
    if operation_size(configured) > MAX_REQUEST_SIZE - _ROOM:
        raise InvalidConfig(f"Topic '{topic.name}' can not have these settings: their znode would have {len(config)} bytes.")
    return chain([made, configured, Create(znodes.PARTITIONS.path(topic.name))], _states(topic.name, topic.partitions, 0))


def extension(topic: TopicDescription, former_count: int, version: int) -> Iterator[Operation]:
    """Gives a topic that had `former_count` partitions the rest of them. Raises InvalidPartitions as `creation` does.

    Args:
        topic: all of it, as it is to be.
        former_count: how many partitions it has.
        version: its znode's.
    """
    made = _sized(SetData(znodes.TOPIC.path(topic.name), _encode(topic), version), topic)
    return chain([made], _states(topic.name, topic.partitions, former_count))


def identification(topic: KnownTopic) -> Operation:
    """Gives a topic of a time before topic ids its id."""
    return reassignment(topic, {})


def reassignment(topic: KnownTopic, changes: Mapping[int, AssignmentChange]) -> Operation:
    """Sets the replicas of some of a topic's partitions."""
    replicas = [each.state.replicas for each in topic.partitions]
    adding = {index: each.adding_replicas for index, each in enumerate(topic.partitions) if each.adding_replicas}
    removing = {index: each.removing_replicas for index, each in enumerate(topic.partitions) if each.removing_replicas}
    for index, change in changes.items():
        replicas[index] = change.replicas
        for ongoing, changed in ((adding, change.adding_replicas), (removing, change.removing_replicas)):
            ongoing.pop(index, None)
            if changed:
                ongoing[index] = changed
    data = znodes.encode_topic(znodes.TopicAssignment(topic.topic_id, tuple(replicas), adding, removing))
    return SetData(znodes.TOPIC.path(topic.name), data, topic.version)


async def completion(coordination: Coordination, states: Sequence[tuple[TopicPartition, PartitionState]]) -> list[Operation]:
    """Gives partitions their first states, and their topics what else is missing."""
    if not states:
        return []
    needed = dict.fromkeys(znodes.PARTITIONS.path(key.topic) for key, _ in states)
    needed.update(dict.fromkeys(znodes.PARTITION.path(*key) for key, _ in states))
    found = await coordination.get_many(list(needed))
    operations: list[Operation] = [Create(path) for path, each in zip(needed, found, strict=True) if each is None]
    operations += (Create(znodes.PARTITION_STATE.path(*key), znodes.encode_partition_state(state)) for key, state in states)
    return operations


async def removal(coordination: Coordination, topic: str) -> list[Operation]:
    """Removes all that is there of a topic, last the note that it is to be deleted."""
    operations: list[Operation] = []

    async def add(paths: Sequence[str]) -> None:
        found = await coordination.get_many(paths)
        operations.extend(Delete(path) for path, each in zip(paths, found, strict=True) if each is not None)

    partitions_path = znodes.PARTITIONS.path(topic)
    if await coordination.exists(partitions_path) is not None:
        partitions = await coordination.children(partitions_path)
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            await add([each.path(topic, partition) for partition in some for each in (znodes.PARTITION_STATE, znodes.PARTITION)])
    await add([partitions_path, znodes.TOPIC_CONFIG.path(topic), znodes.TOPIC.path(topic), znodes.DELETE_TOPIC.path(topic)])
    return operations


def _states(topic: str, partitions: Sequence[PartitionState], first: int) -> Iterator[Operation]:
    for partition in range(first, len(partitions)):
        yield Create(znodes.PARTITION.path(topic, partition))
        yield Create(znodes.PARTITION_STATE.path(topic, partition), znodes.encode_partition_state(partitions[partition]))


def _encode(topic: TopicDescription) -> bytes:
    return znodes.encode_topic(znodes.TopicAssignment(topic.topic_id, tuple(each.replicas for each in topic.partitions)))


def _sized(operation: Operation, topic: TopicDescription) -> Operation:
    size = operation_size(operation)
    if size > MAX_REQUEST_SIZE - _ROOM:
        raise InvalidPartitions(
            f"Topic '{topic.name}' can not have {len(topic.partitions)} partitions:"
            f" its znode would have {size} bytes of {MAX_REQUEST_SIZE}."
        )
    return operation
