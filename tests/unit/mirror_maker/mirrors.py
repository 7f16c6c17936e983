"""Two clusters on the test's own loop, a slot's copier between them, and what is in each as a reader of committed data has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.loops import until
from tests.unit.wire.clusters import all_ended, brokers, cluster_of, create_topic

from ottla.broker.in_process import InProcessBrokers
from ottla.clock import SystemClock
from ottla.errors import ApiError
from ottla.lifecycle import offload_nothing
from ottla.mirror_maker.merge.map_topic import Origins
from ottla.mirror_maker.merge.slot import Destination, MergeSettings, Pace, SlotCopier
from ottla.mirror_maker.partition_states import PartitionState
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch, read_records
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings, visible_batches
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets

SECONDS = 120.0
MAX_BATCH = 1 << 20


@dataclass
class Side:
    """One cluster."""

    brokers: InProcessBrokers
    cluster: Cluster
    cluster_id: str


@asynccontextmanager
async def side(directory: Path, count: int = 1, **properties: str) -> AsyncIterator[Side]:
    async with brokers(directory, count, **properties) as running, cluster_of(running) as cluster:
        await cluster.refresh(None)
        assert cluster.metadata.cluster_id
        yield Side(running, cluster, cluster.metadata.cluster_id)


@asynccontextmanager
async def two_sides(directory: Path, count: int = 1, **properties: str) -> AsyncIterator[tuple[Side, Side]]:
    async with side(directory / "a", count, **properties) as a, side(directory / "b", count, **properties) as b:
        yield a, b


def settings(a: Side, b: Side, link: str = "A-B", **changes: object) -> MergeSettings:
    fields: dict[str, object] = {"link": link, "map_topic": f"ottla-mirror-{link}", "source_id": a.cluster_id, "target_id": b.cluster_id}
    return MergeSettings(**{**fields, **changes})  # type: ignore[arg-type]


def copier(a: Side, b: Side, merge: MergeSettings | None = None, slot: int = 0, bytes_per_second: int = 0) -> SlotCopier:
    merge = merge or settings(a, b)
    return SlotCopier(slot, merge, a.cluster, b.cluster, Origins(a.cluster), offload_nothing, SystemClock(), Pace(bytes_per_second))


def same(partitions: int, *topics: str, max_batch_bytes: int = MAX_BATCH) -> dict[TopicPartition, Destination]:
    """All of these topics, by number, under their own names."""
    return {
        TopicPartition(topic, number): Destination(topic, partitions, max_batch_bytes) for topic in topics for number in range(partitions)
    }


async def create_both(a: Side, b: Side, topic: str, partitions: int = 1, replication_factor: int = 1, **configs: str) -> None:
    for one in (a, b):
        await create_topic(one.cluster, topic, partitions, replication_factor, **configs)


async def create_map(b: Side, link: str = "A-B", slots: int = 1, replication_factor: int = 1) -> None:
    await create_topic(b.cluster, f"ottla-mirror-{link}", slots, replication_factor, cleanup_policy="compact")


@asynccontextmanager
async def sides_with(directory: Path, topic: str, partitions: int = 1, **configs: str) -> AsyncIterator[tuple[Side, Side]]:
    """Two sides that both have a topic, and the map of a link with one slot."""
    async with two_sides(directory) as (a, b):
        await create_both(a, b, topic, partitions, 1, **configs)
        await create_map(b)
        yield a, b


@asynccontextmanager
async def running(*copiers: SlotCopier) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in copiers:
            stack.push_async_callback(ended, asyncio.create_task(one.run()))
        yield


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def caught_up(one: SlotCopier, ends: Mapping[TopicPartition, int], seconds: float = SECONDS) -> None:
    await until(lambda: all(p in one.maps and one.maps[p].next_offset >= end for p, end in ends.items()), seconds)


async def reached(one: SlotCopier, partition: TopicPartition, state: PartitionState) -> str:
    await until(lambda: one.statuses[partition].state is state)
    return one.statuses[partition].reason


async def ends_of(one: Side, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    found = await list_offsets(one.cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
    return {partition: listed.offset for partition, listed in found.items()}


async def committed(
    one: Side, *partitions: TopicPartition, leave_out: tuple[type[ApiError], ...] = ()
) -> dict[TopicPartition, list[Record]]:
    """What a reader of committed data gets, up to the last stable offset; without batches that cannot be read for such a reason."""
    await all_ended(one.cluster)
    ends = await ends_of(one, *partitions)
    begins = await list_offsets(one.cluster, dict.fromkeys(partitions, EARLIEST))
    found: dict[TopicPartition, list[Record]] = {partition: [] for partition in partitions}
    async with Fetcher(one.cluster, FetchSettings(read_committed=True, max_wait_ms=50)) as fetcher:
        left = {partition for partition in partitions if ends[partition] > begins[partition].offset}
        for partition in left:
            fetcher.assign(partition, EARLIEST)
        async with asyncio.timeout(SECONDS):
            while left:
                for fetched in await fetcher.poll(1.0):
                    for position, header in visible_batches(fetched.records, fetched.aborted):
                        with suppress(*leave_out):
                            records = list(read_records(fetched.records[position : position + header.size]))
                            found[fetched.partition] += [record for record in records if record.offset >= fetched.offset]
                    if fetched.next_offset >= ends[fetched.partition]:
                        left.discard(fetched.partition)
    return found


async def in_sync(one: Side, replicas: int) -> None:
    """Waits until each partition has so many replicas in sync: a leader that dies is to have a successor."""
    async with asyncio.timeout(SECONDS):
        while True:
            await one.cluster.refresh(None)
            topics = one.cluster.metadata.topics.values()
            if all(len(partition.isr) == replicas for topic in topics for partition in topic.partitions.values()):
                return
            await asyncio.sleep(0.05)


def batch(*values: bytes, begin: int = 0, **fields: object) -> bytes:
    records = [Record(begin + index, 1_700_000_000_000 + index, b"k%d" % index, value) for index, value in enumerate(values)]
    return build_batch(records, base_offset=begin, **fields)  # type: ignore[arg-type]
