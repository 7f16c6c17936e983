"""The controller's writes: none takes place unless this broker is still the controller.

Each is a transaction that begins with a check of `/controller_epoch`'s version. A broker that slept through the end of
its session and takes itself for the controller still, changes nothing and gets NOT_CONTROLLER.

When a connection ends before the answer comes the outcome is unknown. It is found out by reading, for a transaction
took place whole or not at all: if the znodes are as it would have left them, it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from ottla.broker.controller.effects import AssignmentChange
from ottla.broker.controller.state import KnownTopic
from ottla.coordination import znodes
from ottla.coordination.errors import (
    BadVersion,
    ConnectionLoss,
    CoordinationError,
    NodeExists,
    NoNode,
    NotEmpty,
    RequestTooLarge,
    SessionExpired,
)
from ottla.coordination.interface import Check, Coordination, Create, Delete, Operation, SetData
from ottla.coordination.requests import MAX_REQUEST_SIZE, Run, operation_size
from ottla.coordination.znodes import CONTROLLER_EPOCH
from ottla.errors import InvalidConfig, InvalidPartitions, InvalidRequest, NotController, RequestTimedOut, UnknownServerError
from ottla.model import PartitionState, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
# Operations that are made in one stretch of the loop.
_MADE_AT_ONCE: Final = 500


@contextlib.contextmanager
def coordination_errors_as_api_errors(what: str) -> Iterator[None]:
    """Says in Kafka's terms what went wrong at the coordination service."""
    try:
        yield
    except ConnectionLoss as error:
        raise RequestTimedOut(f"{what}: {error}; it is unknown whether it took place") from error
    except SessionExpired as error:
        raise NotController(f"{what}: {error}, and with it this broker's time as the controller") from error
    except RequestTooLarge as error:
        raise InvalidRequest(f"{what}: {error}") from error
    except CoordinationError as error:
        log.error("%s: %s", what, error)
        raise UnknownServerError(f"{what}: {error}") from error


class ControllerWrites:
    """Writes in the name of one controller epoch."""

    def __init__(self, coordination: Coordination, epoch_version: int) -> None:
        """Made by the broker that took `/controller`.

        Args:
            coordination: the session that holds `/controller`.
            epoch_version: the version that `/controller_epoch` has since.
        """
        self._coordination = coordination
        self._check = Check(CONTROLLER_EPOCH.path(), epoch_version)
        self._is_over = False

    def close(self) -> None:
        """Writes nothing more in the name of this epoch."""
        self._is_over = True

    async def write(self, operations: Sequence[Operation]) -> None:
        """All of the operations in one transaction, or none.

        Raises:
            NotController: another broker has become the controller, or this one has resigned.
        """
        lost = 0
        while True:
            if self._is_over:
                raise NotController("this broker's time as the controller is over")
            try:
                await self._coordination.transaction([self._check, *operations])
                return
            except (BadVersion, NodeExists, NoNode) as error:
                if lost and await self._took_place(operations):
                    return
                if error.operation_index == 0:
                    raise NotController(f"another broker is the controller: {error}") from error
                raise
            except ConnectionLoss:
                lost += 1
                if lost == _ATTEMPTS:
                    raise
                log.warning("%s: the response to a write was lost; reading whether it took place", operations[0].path)
                if await self._took_place(operations):
                    return

    async def write_in_parts(self, operations: Iterable[Operation]) -> None:
        """As few transactions as ZooKeeper's limit of a request's size allows, in order.

        The operations are taken as they are needed, and some at a time, so that a generator of many does not hold up the loop.

        Raises:
            NotController: as from `write`.
            RequestTooLarge: the first operation alone is; nothing is written.
            CoordinationError: a later one is, and those before it are written.
        """
        chroot_size = self._coordination.chroot_size
        run, is_begun = Run(operation_size(self._check) + chroot_size, chroot_size), False
        try:
            for count, operation in enumerate(operations, 1):
                if (full := run.add(operation)) is not None:
                    await self.write(full)
                    is_begun = True
                elif count % _MADE_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if run.operations:
                await self.write(run.operations)
        except RequestTooLarge as error:
            if not is_begun:
                raise
            raise CoordinationError(f"{error}; what came before it is written") from error

    async def _took_place(self, operations: Sequence[Operation]) -> bool:
        lost = 0
        while True:
            try:
                return all([await self._is_done(operation) for operation in operations])
            except ConnectionLoss:
                lost += 1
                if lost == _ATTEMPTS:
                    raise

    async def _is_done(self, operation: Operation) -> bool:
        try:
            match operation:
                case Create(sequential=True) | Check():
                    return True  # says nothing by itself, and comes with others that do
                case Create(path, data) | SetData(path, data):
                    return (await self._coordination.get(path))[0] == data
                case Delete(path):
                    return await self._coordination.exists(path) is None
        except NoNode:
            return False


# What else is in the request that writes a topic's znode: the check of the epoch.
_ROOM: Final = 1_000
# Partitions whose znodes are looked for in one stretch of the loop.
_AT_ONCE: Final = 250


def topic_creation(topic: TopicDescription, configs: Mapping[str, str], has_config: bool) -> Iterator[Operation]:
    """Makes a topic, its settings first: a request may end behind them, and without them its records would be deleted by the defaults.

    Raises InvalidPartitions or InvalidConfig at once when a znode would be too large.

    Args:
        topic: all of it.
        configs: what it sets for itself.
        has_config: whether settings were left there by another tool; they are replaced.
    """
    made = _sized(Create(znodes.TOPIC.path(topic.name), _encode(topic)), topic)
    config_path, config = znodes.TOPIC_CONFIG.path(topic.name), znodes.encode_config(configs)
    configured = SetData(config_path, config) if has_config else Create(config_path, config)
    if operation_size(configured) > MAX_REQUEST_SIZE - _ROOM:
        raise InvalidConfig(f"Topic '{topic.name}' cannot have these settings: their znode would have {len(config)} bytes.")
    return chain([configured, made, Create(znodes.PARTITIONS.path(topic.name))], _states(topic.name, topic.partitions, 0))


def topic_extension(topic: TopicDescription, former_count: int, version: int, has_parent: bool = True) -> Iterator[Operation]:
    """Gives a topic that had `former_count` partitions the rest of them. Raises InvalidPartitions as `topic_creation` does.

    Args:
        topic: all of it, as it is to be.
        former_count: how many partitions it has.
        version: its znode's.
        has_parent: whether there is the parent of its partitions; not before one of those that another tool wrote has a state.
    """
    made = _sized(SetData(znodes.TOPIC.path(topic.name), _encode(topic), version), topic)
    parent = [] if has_parent else [Create(znodes.PARTITIONS.path(topic.name))]
    return chain([made], parent, _states(topic.name, topic.partitions, former_count))


def topic_identification(topic: KnownTopic) -> Operation:
    """Gives a topic of a time before topic ids its id."""
    return topic_reassignment(topic, {})


def topic_reassignment(topic: KnownTopic, changes: Mapping[int, AssignmentChange]) -> Operation:
    """Sets the replicas of some of a topic's partitions."""
    replicas = [partition.state.replicas for partition in topic.partitions]
    adding = {index: partition.adding_replicas for index, partition in enumerate(topic.partitions) if partition.adding_replicas}
    removing = {index: partition.removing_replicas for index, partition in enumerate(topic.partitions) if partition.removing_replicas}
    for index, change in changes.items():
        replicas[index] = change.replicas
        for ongoing, changed in ((adding, change.adding_replicas), (removing, change.removing_replicas)):
            ongoing.pop(index, None)
            if changed:
                ongoing[index] = changed
    data = znodes.encode_topic(znodes.TopicAssignment(topic.topic_id, tuple(replicas), adding, removing))
    return SetData(znodes.TOPIC.path(topic.name), data, topic.version)


async def first_states(coordination: Coordination, states: Sequence[tuple[TopicPartition, PartitionState]]) -> list[Operation]:
    """Gives partitions their first states, and their topics what else is missing."""
    if not states:
        return []
    needed = dict.fromkeys(znodes.PARTITIONS.path(key.topic) for key, _ in states)
    needed.update(dict.fromkeys(znodes.PARTITION.path(*key) for key, _ in states))
    found = await coordination.get_many(list(needed))
    operations: list[Operation] = [Create(path) for path, found_one in zip(needed, found, strict=True) if found_one is None]
    operations += (Create(znodes.PARTITION_STATE.path(*key), znodes.encode_partition_state(state)) for key, state in states)
    return operations


async def remove_topics(coordination: Coordination, writes: ControllerWrites, topics: Iterable[str]) -> None:
    """Removes all that is there of topics; as Kafka, also what another tool has left below their znodes."""
    names = list(topics)
    removals = await asyncio.gather(*(_topic_removal(coordination, name) for name in names))
    try:
        await writes.write_in_parts(chain.from_iterable(removals))
    except NotEmpty:
        for name in names:
            for znode in (znodes.TOPIC, znodes.TOPIC_CONFIG, znodes.DELETE_TOPIC):
                await writes.write_in_parts(await _tree_removal(coordination, znode.path(name)))


async def _tree_removal(coordination: Coordination, path: str) -> list[Operation]:
    """Removes a znode, if it is there, behind all below it."""
    try:
        names = await coordination.children(path)
    except NoNode:
        return []
    return [operation for name in names for operation in await _tree_removal(coordination, f"{path}/{name}")] + [Delete(path)]


async def _topic_removal(coordination: Coordination, topic: str) -> list[Operation]:
    """Removes what a topic has, last the note that it is to be deleted."""
    operations: list[Operation] = []

    async def add(paths: Sequence[str]) -> None:
        found = await coordination.get_many(paths)
        operations.extend(Delete(path) for path, znode in zip(paths, found, strict=True) if znode is not None)

    partitions_path = znodes.PARTITIONS.path(topic)
    if await coordination.exists(partitions_path) is not None:
        partitions = await coordination.children(partitions_path)
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            await add([znode.path(topic, partition) for partition in some for znode in (znodes.PARTITION_STATE, znodes.PARTITION)])
    await add([partitions_path, znodes.TOPIC_CONFIG.path(topic), znodes.TOPIC.path(topic), znodes.DELETE_TOPIC.path(topic)])
    return operations


def _states(topic: str, partitions: Sequence[PartitionState], first: int) -> Iterator[Operation]:
    for partition in range(first, len(partitions)):
        yield Create(znodes.PARTITION.path(topic, partition))
        yield Create(znodes.PARTITION_STATE.path(topic, partition), znodes.encode_partition_state(partitions[partition]))


def _encode(topic: TopicDescription) -> bytes:
    return znodes.encode_topic(znodes.TopicAssignment(topic.topic_id, tuple(partition.replicas for partition in topic.partitions)))


def _sized(operation: Operation, topic: TopicDescription) -> Operation:
    size = operation_size(operation)
    if size > MAX_REQUEST_SIZE - _ROOM:
        raise InvalidPartitions(
            f"Topic '{topic.name}' cannot have {len(topic.partitions)} partitions: its znode would have {size} bytes of {MAX_REQUEST_SIZE}."
        )
    return operation
