"""A stretch of a topic written once more: whole batches, as they are, into another topic or to the end of the same.

A partition's batches go to the partition of the same number, so what had one order keeps it. The stretch ends where the topic ended
when the replay began. With a speed, a batch is written so long after the first one as it was then, divided by the speed.

Nothing is decompressed but batches that no producer may write as they are: compaction has left gaps in them, or a broker has set their
times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from ottla.errors import ConfigurationError, TopicAlreadyExists
from ottla.lifecycle import look_at_error
from ottla.model import TopicPartition
from ottla.record.batch import BatchHeader
from ottla.record.records import build_batch, read_records
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings, visible_batches
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BaseOffset, BatchProducer
from ottla.wire.transactions import TransactionalProducer

_POLL_SECONDS: Final = 5.0
_TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000  # what brokers allow (`transaction.max.timeout.ms`)

_Send = Callable[[TopicPartition, bytes | memoryview], Awaitable["asyncio.Future[BaseOffset]"]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was written."""

    batches: int = 0
    records: int = 0
    size: int = 0

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(self.batches + other.batches, self.records + other.records, self.size + other.size)


async def replay(
    cluster: Cluster,
    source: str,
    target: str,
    from_ms: int,
    to_ms: int | None = None,
    *,
    speed: float | None = None,
    transactional_id: str | None = None,
) -> Replayed:
    """Writes a stretch of a topic once more. A target that is not there is made, with as many partitions.

    Args:
        from_ms: the first message that is not older, and what is in one batch with it.
        to_ms: up to the first batch that begins no earlier; None for the end.
        speed: 1 for the pace at which it was written, 10 for ten times that; None for as fast as it goes.
        transactional_id: all of it is one transaction of that id, so that readers of committed data see it as a whole.

    Raises:
        ApiError, OSError: it cannot be read or written; what is written stays, unless it is a transaction.
        FetchFailed: a partition cannot be read on.
        ConfigurationError: the target has fewer partitions; nothing is written.
    """
    partitions = [TopicPartition(source, number) for number in sorted((await cluster.topic(source)).partitions)]
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
    ends = {partition: latest[partition].offset for partition in partitions}
    starts = await list_offsets(cluster, dict.fromkeys(partitions, from_ms))
    if to_ms is not None:
        for partition, until in (await list_offsets(cluster, dict.fromkeys(partitions, to_ms))).items():
            if until.offset >= 0:  # what is behind an open transaction would be waited for
                ends[partition] = min(until.offset, ends[partition])
    wanted = [partition for partition in partitions if 0 <= starts[partition].offset < ends[partition]]
    if target != source:
        refused = await create_topics(cluster, [NewTopic(target, partitions=len(partitions))])
        if target in refused and not isinstance(refused[target], TopicAlreadyExists):
            raise refused[target]
        if refused and (missing := {partition.partition for partition in partitions} - set((await cluster.topic(target)).partitions)):
            raise ConfigurationError(f"{target} has {len(partitions) - len(missing)} of the {len(partitions)} partitions of {source}")
    if not wanted:
        return Replayed()
    first_ms = min(starts[partition].timestamp for partition in wanted)
    began = asyncio.get_running_loop().time()

    async def wait_for(header: BatchHeader) -> None:
        if speed is not None:
            await asyncio.sleep(began + (header.max_timestamp - first_ms) / 1000 / speed - asyncio.get_running_loop().time())

    async with AsyncExitStack() as stack:
        send = await _sender(cluster, transactional_id, stack)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_copy(cluster, partition, target, starts[partition].offset, ends[partition], wait_for, send))
                for partition in wanted
            ]
    return sum((task.result() for task in tasks), Replayed())


async def _sender(cluster: Cluster, transactional_id: str | None, stack: AsyncExitStack) -> _Send:
    if transactional_id is None:
        producer = await stack.enter_async_context(BatchProducer(cluster))

        async def send(partition: TopicPartition, batch: bytes | memoryview) -> asyncio.Future[BaseOffset]:
            await producer.room()
            return producer.send(partition, batch)

        return send
    opened = await TransactionalProducer.open(cluster, transactional_id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
    transactional = await stack.enter_async_context(opened)
    await stack.enter_async_context(transactional.transaction())

    async def send_in_transaction(partition: TopicPartition, batch: bytes | memoryview) -> asyncio.Future[BaseOffset]:
        await transactional.room()
        return await transactional.send(partition, batch)

    return send_in_transaction


async def _copy(
    cluster: Cluster,
    partition: TopicPartition,
    target: str,
    start: int,
    end: int,
    wait_for: Callable[[BatchHeader], Awaitable[None]],
    send: _Send,
) -> Replayed:
    """One partition's batches that begin before `end`."""
    into = TopicPartition(target, partition.partition)
    done = Replayed()
    written: deque[asyncio.Future[BaseOffset]] = deque()
    position = start
    async with Fetcher(cluster, FetchSettings(read_committed=True)) as fetcher:
        fetcher.assign(partition, start)
        while position < end:
            for fetched in await fetcher.poll(_POLL_SECONDS):
                position = fetched.next_offset
                for at, header in visible_batches(fetched.records, fetched.aborted):
                    if header.base_offset >= end:
                        break
                    if not header.record_count:  # compaction has left it for its producer, and no one may write such a batch
                        continue
                    batch = fetched.records[at : at + header.size]
                    await wait_for(header)
                    written.append(await send(into, _writable(batch, header)))
                    written[-1].add_done_callback(look_at_error)  # one that fails after another has ended the replay
                    while written[0].done():  # each is looked at: one that is refused does not keep those behind it from being written
                        written.popleft().result()
                    done += Replayed(1, header.record_count, header.size)
        await asyncio.gather(*written)
    return done


def _writable(batch: memoryview, header: BatchHeader) -> bytes | memoryview:
    """A batch as a producer may write it: the batch itself, unless compaction has removed some of its records or a broker has set times."""
    if not header.is_changed:
        return batch
    records = [replace(record, offset=index) for index, record in enumerate(read_records(batch))]
    return build_batch(records, codec=header.codec)
