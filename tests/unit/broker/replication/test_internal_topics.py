"""Reading a partition as a coordinator does that comes to lead it: all that is committed, and past what cannot be a batch."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from pathlib import Path

import pytest
from tests.unit.broker.wired import Wired

from ottla.broker.replication.internal_topics import InternalTopics
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.batch import batches
from ottla.record.key_values import read_key_values
from ottla.record.records import Record, build_batch

KEY = TopicPartition("state", 0)
RECORDS = 60


async def read_all(internal: InternalTopics, skipped: list[int], chunk_bytes: int = 500) -> list[bytes | None]:
    found: list[bytes | None] = []
    async for chunk in internal.chunks(KEY, 0, chunk_bytes, skipped.append):
        for position, header in batches(chunk):
            found += [value for _, _, value in read_key_values(chunk[position : position + header.size])]
    return found


def internal_of(broker: Wired) -> InternalTopics:
    return InternalTopics(broker.parts.replicas, broker.produces, broker.clock, offload_nothing)


def fill(broker: Wired) -> tuple[InternalTopics, list[Path]]:
    """A batch for each record, in several segments."""
    broker.topic("state", segment_bytes="1000", cleanup_policy="compact")
    internal = internal_of(broker)
    for number in range(RECORDS):
        internal.append(KEY, [(b"key", b"%d" % number)])
    paths = sorted(broker.partition("state").log.directory.glob("*.log"))
    assert len(paths) > 4
    return internal, paths


async def test_all_records_are_read_in_their_order_over_all_segments(broker: Wired) -> None:
    internal, _ = fill(broker)
    skipped: list[int] = []
    assert await read_all(internal, skipped) == [b"%d" % number for number in range(RECORDS)]
    assert skipped == []


async def test_what_lies_behind_a_high_watermark_that_a_start_found_is_read_although_compaction_left_nothing_before_it(
    broker: Wired,
) -> None:
    """A checkpoint may be older than the last compaction: nothing is left below the high watermark, and all that there is comes later."""
    broker.topic("state", cleanup_policy="compact")
    partition = broker.partition("state")
    partition.log.appender.append_as_received(memoryview(build_batch([Record(28, 1, b"key", b"kept")], base_offset=28)))
    partition.high_watermark = 18
    reading = asyncio.create_task(read_all(internal_of(broker), []))
    await asyncio.sleep(0)
    assert partition.advance_high_watermark()
    broker.produces.check(KEY)
    assert await reading == [b"kept"]


@pytest.mark.parametrize("length", [-1, 0, 1, 1_000_000_000, 0x7FFFFFFF])
@pytest.mark.parametrize("number", [0, 3])
async def test_where_no_batch_can_be_made_out_the_rest_of_the_segment_is_passed_over(
    broker: Wired, caplog: pytest.LogCaptureFixture, length: int, number: int
) -> None:
    """A length lies outside of the checksum, and without it no one knows where the next batch begins."""
    internal, paths = fill(broker)
    content = paths[1].read_bytes()
    position, header = list(batches(content))[number]
    descriptor = os.open(paths[1], os.O_WRONLY)
    os.pwrite(descriptor, struct.pack(">i", length), position + 8)
    os.close(descriptor)
    next_segment = int(paths[2].stem)
    skipped: list[int] = []
    with caplog.at_level(logging.ERROR):
        found = await read_all(internal, skipped)
    expected = [b"%d" % number for number in range(RECORDS) if not header.base_offset <= number < next_segment]
    assert found == expected
    assert skipped == [next_segment - header.base_offset]
    assert f"state-0: no valid batch at offset {header.base_offset}" in caplog.text
