"""The map topics of a cluster: reading what a slot has written, and whose copies a producer writes.

A slot's records are in the map's partition of its number. They are read up to the last stable offset: the new holder has fenced
the former one by then, and what that left open is aborted.

A link that reads from this link's target finds our copies by their producers. A producer is named in the map before it copies
anything, in a transaction of its own, so a reader that sees a batch of it can find it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

from ottla.errors import ApiError, InvalidRecord
from ottla.mirror_maker.naming import MAP_PREFIX
from ottla.mirror_maker.offset_map import MapContents, MapRecord
from ottla.model import TopicPartition
from ottla.record.key_values import read_key_values
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings, visible_batches
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets

log: Final = logging.getLogger(__name__)

# Answers to "whose is this producer?" that are kept. Transactional producers keep their ids.
MAX_KNOWN_PRODUCERS: Final = 100_000
# How long a broker may take to say which leaders of maps it knows.
ASK_SECONDS: Final = 2.0
# Of a batch of records that are made here: less than any broker's `message.max.bytes`.
BATCH_BYTES: Final = 256 * 1024


async def read_map(
    cluster: Cluster, partition: TopicPartition, contents: MapContents | None = None, begin: int = EARLIEST, up_to: int = 0
) -> tuple[MapContents, int]:
    """What a partition of a map topic says, and where the next read of it begins.

    Args:
        contents: what was read of it before `begin`, to which is added.
        up_to: an offset that was committed; what has less of the partition is waited for.

    Raises:
        ApiError, OSError: it cannot be read in time, or so far.
        InvalidRecord: it holds something else.
    """
    contents = contents or MapContents()
    positions = {partition: begin}
    async for _, batch, first_offset in _committed(cluster, {partition: begin}, positions, up_to):
        for key, value in _records(batch, first_offset):
            contents.take(key, value)
    return contents, positions[partition]


class Origins:
    """Which transactional producers of a cluster write copies, and from where.

    Args:
        cluster: that is read from.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._contents = MapContents()
        self._ordinary: set[int] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._reading = asyncio.Lock()

    async def origin_of(self, producer_id: int) -> str | None:
        """The id of the cluster whose records this producer copies; None for one that copies nothing.

        Raises:
            ApiError, OSError: the maps cannot be read.
        """
        if producer_id not in self._contents.writers and producer_id not in self._ordinary:
            async with self._reading:
                await self._read_on()
            if producer_id not in self._contents.writers:
                if len(self._ordinary) >= MAX_KNOWN_PRODUCERS:
                    self._ordinary.clear()
                self._ordinary.add(producer_id)
        return self._contents.writers.get(producer_id)

    async def _read_on(self) -> None:
        await self._cluster.refresh(None)
        maps = [name for name in self._cluster.metadata.topics if name.startswith(MAP_PREFIX)]
        # A leader that was replaced while it was cut off shows a map of before, and whose records it does not name are copied back.
        await self._cluster.refresh_from_all(maps, ASK_SECONDS)
        partitions = {
            TopicPartition(name, number): self._positions.get(TopicPartition(name, number), EARLIEST)
            for name in maps
            for number in self._cluster.metadata.topic(name).partitions
        }
        contents = MapContents(writers=self._contents.writers)
        async for partition, batch, first_offset in _committed(self._cluster, partitions, self._positions):
            try:
                records = _records(batch, first_offset)
            except ApiError as error:  # what others have written into a topic of such a name
                log.warning("%s has a batch that is none of a map: %s", partition, error)
                continue
            for key, value in records:
                try:
                    contents.take(key, value)
                except InvalidRecord as error:
                    log.warning("%s: %s", partition, error)
            contents.pages.clear()  # where each record is is not asked here, and it may be a lot


def batches_of(records: Sequence[MapRecord], time_ms: int) -> Iterator[bytes]:
    """The records in batches that any broker takes."""
    waiting: list[Record] = []
    size = 0
    for index, (key, value) in enumerate(records):
        waiting.append(Record(len(waiting), time_ms, key, value))
        size += len(key) + len(value or b"")
        if size >= BATCH_BYTES or index == len(records) - 1:
            yield build_batch(waiting)
            waiting, size = [], 0


def _records(batch: memoryview, first_offset: int) -> list[MapRecord]:
    """Those from an offset on."""
    return [(key, value) for offset, key, value in read_key_values(batch) if offset >= first_offset and key is not None]


async def _committed(
    cluster: Cluster, partitions: Mapping[TopicPartition, int], positions: dict[TopicPartition, int], up_to: int = 0
) -> AsyncIterator[tuple[TopicPartition, memoryview, int]]:
    """The batches from there on up to the end as it is now, or further, and the first offset that counts.

    `positions` says where each ended.
    """
    if not partitions:
        return
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
    begins = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    # What ends before is another topic of the name, or was cut.
    starts = {partition: offset if offset <= ends[partition].offset else EARLIEST for partition, offset in partitions.items()}
    left = {
        partition: max(ends[partition].offset, up_to)
        for partition, offset in starts.items()
        if max(offset, begins[partition].offset) < max(ends[partition].offset, up_to)
    }
    settings = FetchSettings(read_committed=True, max_wait_ms=100)
    async with Fetcher(cluster, settings, out_of_range=lambda partition, offset: EARLIEST) as fetcher:
        for partition in left:
            fetcher.assign(partition, starts[partition])
        while left:
            fetched = await fetcher.poll(cluster.settings.api_timeout_seconds)
            if not fetched:
                raise TimeoutError(f"{min(left)} cannot be read up to offset {left[min(left)]}")
            for found in fetched:
                for position, header in visible_batches(found.records, found.aborted):
                    yield found.partition, found.records[position : position + header.size], found.offset
                positions[found.partition] = found.next_offset
                if found.next_offset >= left.get(found.partition, 0):
                    left.pop(found.partition, None)
                    fetcher.unassign(found.partition)
