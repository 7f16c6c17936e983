"""A partition of the offsets topic for tests: real batches in memory, committed at once or when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.logs_in_memory import MovingLog

from ottla.broker.groups.classic.group import GroupLimits
from ottla.broker.groups.entries import ShardSettings
from ottla.broker.groups.shard import GroupShard
from ottla.errors import ApiError, MessageTooLarge, NotLeaderOrFollower
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch
from ottla.testing.clock import ManualClock

KEY = TopicPartition("__consumer_offsets", 0)
SETTINGS = ShardSettings(
    GroupLimits(initial_rebalance_delay_ms=0),
    commit_timeout_seconds=5,
    metadata_max_bytes=10,
    retention_ms=1_000_000,
    load_buffer_bytes=1 << 20,
)
# What tests commit offsets of.
TOPICS = KnownTopics(clicks=10, views=10)


class OffsetsLog:
    """What `InternalTopics` is to a shard."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.refusal: ApiError | None = None
        self.commits = asyncio.Event()
        self.commits.set()
        self.failure: ApiError | None = None
        self.high_watermark = 0  # while `commits` is not set
        self.is_of_the_past = False
        self.max_message_bytes = 1 << 20

    def append(self, key: TopicPartition, records: Sequence[tuple[bytes | None, bytes | None]], codec: int = 0) -> tuple[int, Any]:
        if self.refusal is not None:
            raise self.refusal
        base = self.end_offset
        taken = [Record(base + index, 0, *each) for index, each in enumerate(records)]
        batch = build_batch(taken, base_offset=base, codec=codec)
        if len(batch) > self.max_message_bytes:
            raise MessageTooLarge(f"a batch of {len(batch)} bytes")
        self.batches.append(batch)
        self.end_offset += len(records)
        return base, self

    def append_in_transaction(
        self, key: TopicPartition, records: Sequence[tuple[bytes | None, bytes | None]], codec: int, producer_id: int, producer_epoch: int
    ) -> tuple[int, Any]:
        if self.refusal is not None:
            raise self.refusal
        base = self.end_offset
        taken = [Record(base + index, 0, *each) for index, each in enumerate(records)]
        batch = build_batch(
            taken, base_offset=base, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
        )
        self.batches.append(batch)
        self.end_offset += len(records)
        return base, self

    def append_marker(self, producer_id: int, producer_epoch: int, control_type: ControlRecordType) -> None:
        """As anyone who writes markers does; the shard is told by that one too."""
        marker = EndTransactionMarker(control_type, 0)
        self.batches.append(
            build_marker_batch(marker, base_offset=self.end_offset, timestamp=0, producer_id=producer_id, producer_epoch=producer_epoch)
        )
        self.end_offset += 1

    def is_committed(self, partition: Any, end_offset: int) -> bool:
        return self.failure is None and (self.commits.is_set() or end_offset <= self.high_watermark)

    async def committed(self, partition: Any, end_offset: int, timeout_seconds: float) -> None:
        await self.commits.wait()
        if self.failure is not None:
            raise self.failure

    async def check_still_led(self, key: TopicPartition, leader_epoch: int, timeout_seconds: float) -> None:
        if self.is_of_the_past:
            raise NotLeaderOrFollower(f"{key} is led elsewhere")

    async def chunks(
        self, key: TopicPartition, leader_epoch: int, chunk_bytes: int, skipped: Callable[[int], None]
    ) -> AsyncIterator[bytes]:
        for batch in list(self.batches):
            yield batch


def shard_of(
    log: OffsetsLog | MovingLog,
    clock: ManualClock | None = None,
    epoch: int = 0,
    seed: int = 1,
    topics: KnownTopics | None = None,
    settings: ShardSettings | None = None,
) -> GroupShard:
    random = Random(f"{seed} {epoch}")

    def unique() -> UUID:
        return UUID(int=random.getrandbits(128), version=4)

    return GroupShard(KEY, epoch, log, clock or ManualClock(), unique, settings or SETTINGS, topics or TOPICS)  # type: ignore[arg-type]


async def loaded(
    log: OffsetsLog | MovingLog,
    clock: ManualClock | None = None,
    epoch: int = 0,
    topics: KnownTopics | None = None,
    settings: ShardSettings | None = None,
) -> GroupShard:
    shard = shard_of(log, clock, epoch, topics=topics, settings=settings)
    shard.topics_known()
    await shard.load(offload_nothing)
    return shard
