"""ListOffsets (key 2), versions 0-9: where a partition begins, ends, or reaches a time.

v0 gives several offsets (see `list_offsets_v0`); v1 one, with its timestamp; v2 adds the isolation level, v4 leader
epochs (KIP-320), v5 OFFSET_NOT_AVAILABLE, v7 the largest timestamp (-3), v8 the earliest local offset (-4), v9 the
latest tiered one (-5).
Unlike Kafka: nothing is tiered, so -4 is the log's start and -5 is always unknown (offset -1).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.by_topic import asked
from ottla.broker.handlers.registry import BrokerParts, EncodedBody, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.replication.partition import Partition
from ottla.broker.security.authorizer import Operation
from ottla.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.model import NO_PARTITION_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition
from ottla.protocol import list_offsets_v0, messages
from ottla.protocol.api import ApiKey
from ottla.protocol.list_offsets_v0 import ListOffsetsRequestV0, PartitionOffsetsV0, PartitionV0

if TYPE_CHECKING:
    from kio.schema.list_offsets.v9.request import ListOffsetsPartition, ListOffsetsRequest

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
# The first version that may ask for each.
_FIRST_VERSION: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

# Of the replica ids: an ordinary client, to which only what is committed exists; and a debugging consumer, which
# may ask any replica.
CONSUMER: Final = -1
DEBUGGER: Final = -2
READ_COMMITTED: Final = 1
UNKNOWN_OFFSET: Final = -1
FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5
MAX_VERSION: Final = 9


class FoundOffset(NamedTuple):
    timestamp: int = NO_TIMESTAMP
    offset: int = UNKNOWN_OFFSET
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH


def decode(body: memoryview, version: int) -> Any:
    """The request, of which version 0 has a form of its own."""
    if version == 0:
        return list_offsets_v0.decode_request(body)
    return messages.request_reader(ApiKey.LIST_OFFSETS, version, MAX_VERSION)(body)


@handles(ApiKey.LIST_OFFSETS, 0, MAX_VERSION, decode=decode)
async def list_offsets(request: ListOffsetsRequest | ListOffsetsRequestV0, context: RequestContext, parts: BrokerParts) -> Any:
    if isinstance(request, ListOffsetsRequestV0):
        return EncodedBody([list_offsets_v0.encode_response(await _offsets_before(request, context, parts))])
    schema = context.response_schema()
    times_named: Counter[TopicPartition] = Counter()
    async for name, requested in in_slices(asked(request.topics)):
        times_named[TopicPartition(name, requested.partition_index)] += 1
    answers: dict[str, list[Any]] = {}
    async for name, requested in in_slices(asked(request.topics)):
        key = TopicPartition(name, requested.partition_index)
        times = times_named.pop(key, 0)
        if not times:
            continue  # it is answered
        error_code, found = NONE, FoundOffset()
        try:
            _check(name, context, parts)
            if times > 1:
                raise InvalidRequest(f"{key} is asked for more than once")
            found = await _find(name, requested, request, context, parts)
        except ApiError as error:
            error_code = error.code
        answer = schema(
            "ListOffsetsPartitionResponse",
            partition_index=requested.partition_index,
            error_code=error_code,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )
        answers.setdefault(name, []).append(answer)
    topics = [schema("ListOffsetsTopicResponse", name=name, partitions=partitions) async for name, partitions in in_slices(answers.items())]
    return schema("ListOffsetsResponse", throttle_time=0, topics=topics)


def _check(topic: str, context: RequestContext, parts: BrokerParts) -> None:
    if not topic_allowed(parts, context, Operation.DESCRIBE, topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not describe {topic}")


async def _find(
    topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, context: RequestContext, parts: BrokerParts
) -> FoundOffset:
    version = context.api_version
    timestamp = asked.timestamp
    if timestamp < 0 and version < _FIRST_VERSION.get(timestamp, version + 1):
        raise UnsupportedVersion(f"ListOffsets v{version} has no timestamp {timestamp}")
    partition = parts.partition(topic, asked.partition_index)
    current_leader_epoch = asked.current_leader_epoch
    partition.check_leader_epoch(current_leader_epoch, by_leader=request.replica_id != DEBUGGER)
    end = last_fetchable_offset(partition, request.replica_id, request.isolation_level)
    if timestamp == LATEST:
        _check_high_watermark_is_known(partition, version, request.replica_id)
        return FoundOffset(NO_TIMESTAMP, end, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log.log_start_offset
        return FoundOffset(NO_TIMESTAMP, start, _epoch_of(partition, start))
    if timestamp == LATEST_TIERED:
        return FoundOffset()
    if timestamp == MAX_TIMESTAMP:
        found = await partition.log.offset_of_max_timestamp()
    else:
        found = await partition.log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        _check_high_watermark_is_known(partition, version, request.replica_id)
        return FoundOffset()
    return FoundOffset(*found)


def last_fetchable_offset(partition: Partition, replica_id: int, isolation_level: int) -> int:
    """The end of the log as the asker may see it: a replica sees all, a consumer what is committed."""
    if replica_id != CONSUMER:
        return partition.log.log_end_offset
    return partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.log.leader_epochs.epoch_for_offset(offset)
    return NO_PARTITION_LEADER_EPOCH if epoch is None else epoch


def _check_high_watermark_is_known(partition: Partition, version: int, replica_id: int) -> None:
    """A new leader knows what is committed once its high watermark has reached the start of its own epoch (KIP-207)."""
    start_offset = partition.in_sync.epoch_start_offset
    if replica_id == CONSUMER and partition.high_watermark < start_offset:
        error = OffsetNotAvailable if version >= FIRST_WITH_OFFSET_NOT_AVAILABLE else LeaderNotAvailable
        raise error(
            f"{partition.topic_partition}: high watermark {partition.high_watermark}, "
            f"leader epoch {partition.leader_epoch} began at {start_offset}"
        )


async def _offsets_before(
    request: ListOffsetsRequestV0, context: RequestContext, parts: BrokerParts
) -> list[tuple[str, list[PartitionOffsetsV0]]]:
    answers: dict[str, list[PartitionOffsetsV0]] = {}
    answered: set[TopicPartition] = set()
    async for name, requested in in_slices(asked(request.topics)):
        key = TopicPartition(name, requested.partition_index)
        if key in answered:
            continue
        answered.add(key)
        error_code, offsets = NONE, list[int]()
        try:
            _check(name, context, parts)
            partition = parts.partition(*key)
            offsets = await _several_offsets(requested, request.replica_id, partition, parts)
        except ApiError as error:
            error_code = error.code
        answers.setdefault(name, []).append(PartitionOffsetsV0(requested.partition_index, error_code, offsets))
    return list(answers.items())


async def _several_offsets(asked: PartitionV0, replica_id: int, partition: Partition, parts: BrokerParts) -> list[int]:
    partition.check_leader_epoch(NO_PARTITION_LEADER_EPOCH)
    if asked.max_num_offsets < 0:
        raise InvalidRequest(f"{asked.max_num_offsets} offsets are asked for")
    if asked.timestamp < EARLIEST:
        raise UnsupportedVersion(f"ListOffsets v0 has no timestamp {asked.timestamp}")
    end = last_fetchable_offset(partition, replica_id, 0)
    segments = [(segment.base_offset, segment.path()) for segment in partition.log.segments]
    starts = await parts.offload(_last_written, segments)
    timestamp = LATEST if asked.timestamp >= parts.clock.time_ms() else asked.timestamp
    return offsets_before(starts, partition.log.log_start_offset, end, timestamp)[: asked.max_num_offsets]


def _last_written(segments: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """Each segment's base offset and the time of its file; retention may have taken the file meanwhile."""
    found = []
    for base_offset, path in segments:
        with contextlib.suppress(FileNotFoundError):
            found.append((base_offset, Path(path).stat().st_mtime_ns // 1_000_000))
    return found


def offsets_before(segment_starts: Sequence[tuple[int, int]], log_start_offset: int, end: int, timestamp: int) -> list[int]:
    """Kafka 0.8's rule: where segments begin that were last written to at or before `timestamp`, newest first.

    Args:
        segment_starts: of each segment, in order, its base offset and when it was last written to.
        log_start_offset: nothing before it exists.
        end: nothing from it on may be seen; it is itself the latest offset.
        timestamp: milliseconds, or LATEST or EARLIEST.
    """
    starts = [(max(base_offset, log_start_offset), written_ms) for base_offset, written_ms in segment_starts if base_offset < end]
    if timestamp == LATEST:
        return [end, *(offset for offset, _ in reversed(starts))]
    if timestamp == EARLIEST:
        return [starts[0][0] if starts else log_start_offset]
    return [offset for offset, written_ms in reversed(starts) if written_ms <= timestamp]
