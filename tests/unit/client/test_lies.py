"""Every way to read, from a broker whose answers are cut, changed or made up, and of batches that no one can decode.

What is handed out is what the log has, in its order; what cannot be read is said, each time that it is asked for, and never skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.fakes import connecting
from tests.unit.wire.test_fetching_lies import CLICKS, COUNT, LOG, Liar

from ottla.client.message_stream import AsyncMessageStream, Feed
from ottla.client.simple_consumer import AsyncSimpleConsumer
from ottla.errors import (
    ApiError,
    CorruptMessage,
    InvalidRecord,
    OttlaError,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from ottla.record.batch import CODEC_MASK, HEADER_SIZE, MAGIC_POSITION, read_header
from ottla.record.codecs import GZIP
from ottla.record.records import Record, build_batch, seal
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import FetchFailed, FetchSettings
from ottla.wire.offsets import EARLIEST

Seen = list[tuple[int, bytes | None]]
# Adds offsets and values to what was seen, from the offset behind them on, until there are so many; or raises on its way.
Read = Callable[[Cluster, Seen, int], Awaitable[None]]


def position_of(seen: Seen) -> int:
    return seen[-1][0] + 1 if seen else 0


async def by_messages(cluster: Cluster, seen: Seen, count: int) -> None:
    consumer = AsyncSimpleConsumer(cluster=cluster)
    while len(seen) < count:
        seen += [(message.offset, message.value) for message in await consumer.fetch(*CLICKS, position_of(seen))]


async def by_columns(cluster: Cluster, seen: Seen, count: int) -> None:
    consumer = AsyncSimpleConsumer(cluster=cluster)
    while len(seen) < count:
        for columns in (await consumer.fetch(*CLICKS, position_of(seen))).columns():
            seen += zip(columns.offsets.tolist(), columns.values.to_list(), strict=True)


async def by_stream(cluster: Cluster, seen: Seen, count: int) -> None:
    feed = Feed(cluster, FetchSettings(), EARLIEST)
    try:
        feed.assign(CLICKS, position_of(seen))
        async for message in AsyncMessageStream(feed, 5_000):
            seen.append((message.offset, message.value))
            if len(seen) == count:
                break
    except FetchFailed as failed:
        assert isinstance(failed.__cause__, ApiError)
        raise failed.__cause__ from None
    finally:
        await feed.close()


reading = pytest.mark.parametrize("read", [by_messages, by_columns, by_stream], ids=["messages", "columns", "stream"])


@asynccontextmanager
async def cluster_of(liar: Liar) -> AsyncIterator[Cluster]:
    quick = ClusterSettings(retry_backoff_seconds=0.0001, retry_backoff_max_seconds=0.0002, request_timeout_seconds=5.0)
    async with Cluster("broker:9092", quick, random=liar.random, connect=connecting(liar)) as cluster, asyncio.timeout(120):
        yield cluster


@reading
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.2, 0.6]))
def test_what_is_handed_out_is_the_log_however_the_broker_lies(read: Read, seed: int, share: float) -> None:
    async def main() -> None:
        seen: Seen = []
        async with cluster_of(Liar(Random(seed), share)) as cluster:
            while len(seen) < COUNT:
                try:
                    await read(cluster, seen, COUNT)
                except (OttlaError, OSError):
                    continue  # it was said; what is behind it is asked for again
        assert seen == [(offset, b"%d" % offset) for offset in range(COUNT)]

    asyncio.run(main())


def changed(**fields: int) -> bytes:
    """The second batch with another header, and the checksum that belongs to it."""
    return seal(read_header(LOG[1])._replace(**fields), LOG[1][HEADER_SIZE:])


def cut_short() -> bytes:
    """One whose payload ends before its compressed form does."""
    whole = build_batch([Record(1, 0, None, bytes(range(200)))], base_offset=1, codec=GZIP)
    return seal(read_header(whole), whole[HEADER_SIZE:-20])


@reading
@pytest.mark.parametrize(
    ("damaged", "error"),
    [
        (changed(attributes=5), UnsupportedCompressionType),
        (changed(attributes=CODEC_MASK), UnsupportedCompressionType),
        (changed(attributes=GZIP), InvalidRecord),
        (cut_short(), InvalidRecord),
        (changed(record_count=2), InvalidRecord),
        (changed(record_count=-1), InvalidRecord),
        (seal(read_header(LOG[1]), LOG[1][HEADER_SIZE:-1]), InvalidRecord),
        (LOG[1][:-1] + b"?", CorruptMessage),
        *((LOG[1][:MAGIC_POSITION] + magic + LOG[1][MAGIC_POSITION + 1 :], UnsupportedForMessageFormat) for magic in (b"\0", b"\1", b"\3")),
    ],
)
async def test_a_batch_that_nobody_can_read_is_said_each_time_and_not_skipped(read: Read, damaged: bytes, error: type[ApiError]) -> None:
    seen: Seen = []
    async with cluster_of(Liar(Random(0), 0.0, [LOG[0], damaged, *LOG[2:]])) as cluster:
        for _ in range(3):
            with pytest.raises(error):
                await read(cluster, seen, COUNT)
    assert seen == [(0, b"0")]
