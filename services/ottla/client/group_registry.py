"""The znodes of one group, as one of its consumers writes them: who lives, who owns what, where the group continues.

An ephemeral owner's znode says that a partition is taken. The claim is one transaction that makes it and writes the offset's znode too,
unchanged: that raises its version. A commit names the version that the claim, or the commit before it, has left. A consumer that was
owner once and does not know yet that it is no more has an older version, and is refused.

One session's: after it has expired a new registry is made. Nothing here knows what is fetched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from ottla.client.discovery import children_of, preferred_leaders
from ottla.client.errors import ConsumerIdInUse
from ottla.clock import Clock
from ottla.coordination import znodes
from ottla.coordination.errors import BadArguments, BadVersion, ConnectionLoss, MalformedZnode, NodeExists, NoNode
from ottla.coordination.interface import Coordination, Create, Operation, SetData, Stat, Watch
from ottla.lifecycle import all_to_their_end
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = 5  # against a former owner's commits, which come one at a time


class GroupRegistry:
    """A consumer of a group, towards ZooKeeper."""

    def __init__(self, session: Coordination, group: str, consumer: str, clock: Clock) -> None:
        self.session: Final = session
        self._group = group
        self._consumer = consumer
        self._clock = clock
        self._versions: dict[TopicPartition, int] = {}  # of the offsets of what was claimed
        self._uncertain: set[TopicPartition] = set()  # an answer to a claim or to a release has not come
        self._committing = asyncio.Lock()

    @property
    def claimed(self) -> set[TopicPartition]:
        """The partitions that this consumer has claimed and not released, as far as it is known."""
        return self._versions.keys() | self._uncertain

    async def register(self, registration: znodes.ConsumerRegistration) -> None:
        """Joins the group. Raises ConsumerIdInUse when another session has this consumer's id."""
        path = znodes.CONSUMER.path(self._group, self._consumer)
        data = znodes.encode_consumer(registration, self._clock.time_ms())
        for attempt in range(_ATTEMPTS):
            try:
                await self.session.create(path, data, ephemeral=True, make_parents=True)
                return
            except NodeExists:
                stat = await self.session.exists(path)
                if stat is not None and stat.ephemeral_owner == self.session.session_id:
                    return  # an answer was lost
                if stat is not None:
                    raise ConsumerIdInUse(f"group {self._group} has a consumer {self._consumer} that lives") from None
            except ConnectionLoss:
                if attempt == _ATTEMPTS - 1:
                    raise

    async def consumers(self, watch: Watch) -> dict[str, znodes.ConsumerRegistration]:
        """The consumers that live, without those whose znodes cannot be read. The watch fires when one comes or goes."""
        names = await self.session.children(znodes.CONSUMER_IDS.path(self._group), watch)
        paths = [znodes.CONSUMER.path(self._group, name) for name in names]
        found: dict[str, znodes.ConsumerRegistration] = {}
        for name, path, answer in zip(names, paths, await self.session.get_many(paths), strict=True):
            try:
                if answer is not None:
                    registration = znodes.decode_consumer(path, answer[0])
                    if registration.pattern == "static":
                        check_topics(registration.subscription)
                    found[name] = registration
            except (MalformedZnode, BadArguments) as error:
                log.warning("the consumer %s gets no partitions: %s", name, error)
        return found

    async def topics(self, watch: Watch) -> list[str]:
        """All topics. The watch fires when one comes or goes."""
        return await children_of(self.session, znodes.TOPICS.pattern, watch)

    async def preferred_leaders(self, topics: Iterable[str], watch: Watch) -> dict[str, list[int]]:
        """Of each topic's partitions, without topics that are not there. The watch fires when one changes, comes or goes."""

        names = sorted(topics)
        leaders = await asyncio.gather(*(preferred_leaders(self.session, name, watch) for name in names))
        return {name: found for name, found in zip(names, leaders, strict=True) if found}

    async def claim(self, partition: TopicPartition, stream: str, watch: Watch) -> int | None:
        """Becomes the owner of a partition.

        Args:
            stream: of this consumer, that is to read it.
            watch: fires when the owner that is in the way has gone.

        Returns:
            The group's offset, -1 before the first; or None when another owns the partition.
        """
        owner_path, offset_path = (znode.path(self._group, *partition) for znode in (znodes.PARTITION_OWNER, znodes.GROUP_OFFSET))
        for _ in range(_ATTEMPTS):
            offset, version = await self._read_offset(offset_path)
            own = await self.session.exists(owner_path)
            if own is None:
                claim: Operation = Create(owner_path, stream.encode(), ephemeral=True)
            elif own.ephemeral_owner == self.session.session_id:
                claim = SetData(owner_path, stream.encode())
            else:
                if await self.session.exists(owner_path, watch) is not None:
                    return None
                continue
            data = znodes.encode_group_offset(offset)
            written: Operation = Create(offset_path, data) if version is None else SetData(offset_path, data, version)
            self._uncertain.add(partition)
            try:
                results = await self.session.transaction([claim, written])
            except (NodeExists, BadVersion):
                continue  # someone was faster, or the former owner has committed once more
            except NoNode:
                for path in (owner_path, offset_path):
                    await self._make(path.rpartition("/")[0])
                continue
            stat = results[1]
            self._versions[partition] = stat.version if isinstance(stat, Stat) else 0
            self._uncertain.discard(partition)
            return offset
        return None

    async def release(self, partition: TopicPartition) -> None:
        """Is the owner no more. Until no call of it has raised, the partition counts as claimed."""
        self._uncertain.add(partition)
        self._versions.pop(partition, None)
        if await self._is_owner(partition):
            with suppress(NoNode):
                await self.session.delete(znodes.PARTITION_OWNER.path(self._group, *partition))
        self._uncertain.discard(partition)

    async def _is_owner(self, partition: TopicPartition) -> bool:
        stat = await self.session.exists(znodes.PARTITION_OWNER.path(self._group, *partition))
        return stat is not None and stat.ephemeral_owner == self.session.session_id

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Writes where the group continues, behind what is being written already. Who is cancelled meanwhile does not stop it.

        Raises:
            BadVersion: of the first partition that another has claimed since, or that this consumer does not own. The others are
                written.
        """
        # A commit beside it, or behind one of which no one heard the end, would not know the version.
        await asyncio.shield(self._commit_all(offsets))

    async def _commit_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        async with self._committing:
            await all_to_their_end(self._commit(*item) for item in offsets.items())

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        path, data = znodes.GROUP_OFFSET.path(self._group, *partition), znodes.encode_group_offset(offset)
        version = self._versions.get(partition)
        if version is None:
            raise BadVersion(f"{path}: this consumer does not own the partition")
        try:
            written = (await self.session.set(path, data, version)).version
        except (ConnectionLoss, BadVersion, NoNode):
            # The last commit that had no answer may have been written, or this one. The version is read first: a claim raises it.
            stat = await self.session.exists(path)
            if not await self._is_owner(partition):
                self._versions.pop(partition, None)
                raise BadVersion(f"{path}: another has claimed the partition") from None
            if stat is None:  # deleted by hand
                await self.session.create(path, data, make_parents=True)
                written = 0
            else:
                written = (await self.session.set(path, data, stat.version)).version
        if self._versions.get(partition) == version:
            self._versions[partition] = written

    async def _read_offset(self, path: str) -> tuple[int, int | None]:
        """The offset and its version; None if there is no znode."""
        try:
            data, stat = await self.session.get(path)
        except NoNode:
            return -1, None
        try:
            return znodes.decode_group_offset(path, data), stat.version
        except MalformedZnode as error:
            log.warning("the group has no offset: %s", error)
            return -1, stat.version

    async def _make(self, path: str) -> None:
        with suppress(NodeExists):
            await self.session.create(path, make_parents=True)


def check_topics(topics: Iterable[str]) -> None:
    """Raises BadArguments for a topic, as one without a name, that no znode can have: to look for it would fail every attempt."""
    for topic in topics:
        znodes.validate_path(znodes.TOPIC.path(topic))


async def read_group(session: Coordination, group: str) -> tuple[list[str], dict[TopicPartition, int]]:
    """The consumers of a group that live, and its offsets; without those that cannot be read."""

    async def children(path: str) -> list[str]:
        return sorted(await children_of(session, path))

    consumers = await children(znodes.CONSUMER_IDS.path(group))
    top = znodes.GROUP_OFFSET.path(group, "", "").rstrip("/")
    names = [(topic, number) for topic in await children(top) for number in await children(f"{top}/{topic}") if number.isdecimal()]
    partitions = [TopicPartition(topic, int(number)) for topic, number in names]
    paths = [znodes.GROUP_OFFSET.path(group, *partition) for partition in partitions]
    offsets: dict[TopicPartition, int] = {}
    for partition, path, found in zip(partitions, paths, await session.get_many(paths), strict=True):
        with suppress(MalformedZnode):
            if found is not None and (offset := znodes.decode_group_offset(path, found[0])) >= 0:
                offsets[partition] = offset
    return consumers, offsets


async def set_group_offsets(session: Coordination, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets where a group without consumers continues.

    Raises:
        ConsumerIdInUse: it has consumers.
    """
    consumers, _ = await read_group(session, group)
    if consumers:
        raise ConsumerIdInUse(f"group {group} has consumers that live: {', '.join(consumers)}")
    for partition, offset in offsets.items():
        path, data = znodes.GROUP_OFFSET.path(group, *partition), znodes.encode_group_offset(offset)
        try:
            await session.set(path, data)
        except NoNode:
            await session.create(path, data, make_parents=True)
