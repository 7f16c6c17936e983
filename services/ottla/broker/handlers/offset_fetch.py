"""OffsetFetch (key 9), versions 1-9: what groups have committed.

v2 asks for everything with null topics, and has an error for the whole group; v5 adds leader epochs (KIP-320), v7
require_stable (KIP-447), v8 takes several groups (KIP-709), v9 the member's epoch (KIP-848). A partition without a
committed offset is answered with -1. Unlike Kafka's, a coordinator that was cut off does not answer: it asks first whether
it still leads (`leadership_question`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.handlers.authorization import check_group, topic_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, side_by_side
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, CoordinatorNotAvailable, NotCoordinator, TopicAuthorizationFailed, UnstableOffsetCommit
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OffsetFetchRequestV7
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

FIRST_WITH_GROUP_ERROR: Final = 2
FIRST_WITH_SEVERAL_GROUPS: Final = 8
NOTHING_COMMITTED: Final = CommittedOffset(-1)


@dataclass(slots=True)
class Found:
    """What one group has: for each partition its offset, or its error."""

    error_code: int = NONE
    partitions: dict[TopicPartition, tuple[CommittedOffset, int]] = field(default_factory=dict)

    def add(self, partition: TopicPartition, committed: CommittedOffset | None, error_code: int = NONE) -> None:
        self.partitions[partition] = committed or NOTHING_COMMITTED, error_code


@handles(ApiKey.OFFSET_FETCH, 1, 9, waits=True)
async def offset_fetch(request: OffsetFetchRequest, context: RequestContext, parts: BrokerParts) -> Any:
    version = context.api_version
    schema = context.response_schema()
    if version >= FIRST_WITH_SEVERAL_GROUPS:

        async def of_group(group: OffsetFetchRequestGroup) -> Any:
            member = group.member_id, group.member_epoch
            found = await _find(group.group_id, group.topics, request.require_stable, context, parts, *member)
            topics = await _topics(found, schema, "OffsetFetchResponseTopics", "OffsetFetchResponsePartitions")
            return schema("OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=found.error_code)

        groups = await side_by_side(of_group, {group.group_id: group for group in request.groups}.values())
        return schema("OffsetFetchResponse", throttle_time=0, groups=groups)
    before = cast("OffsetFetchRequestV7", request)
    found = await _find(before.group_id, before.topics, request.require_stable, context, parts)
    topics = await _topics(found, schema, "OffsetFetchResponseTopic", "OffsetFetchResponsePartition")
    return schema("OffsetFetchResponse", throttle_time=0, topics=topics, error_code=found.error_code)


async def _find(
    group_id: str,
    topics: Iterable[OffsetFetchRequestTopics | OffsetFetchRequestTopic] | None,
    require_stable: bool,
    context: RequestContext,
    parts: BrokerParts,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> Found:
    found = Found()
    try:
        check_group(parts, context, Operation.DESCRIBE, group_id)
        coordinated = parts.groups.of_any(group_id)
        await coordinated.check_still_coordinates()
        offsets = coordinated.offsets(group_id, member_id, member_epoch)
    except ApiError as error:
        if context.api_version >= FIRST_WITH_GROUP_ERROR:
            found.error_code = error.code
        # librdkafka looks for the coordinator by the group's error, and asks it only if a partition is unstable (its issue 5586).
        is_elsewhere = isinstance(error, (CoordinatorNotAvailable, NotCoordinator))
        code = UnstableOffsetCommit.code if require_stable and is_elsewhere else error.code
        async for partition in in_slices(_asked(topics or ())):
            found.add(partition, None, code)
        return found
    if topics is None:
        async for partition in in_slices(sorted(key for key, _ in offsets.items())):
            if topic_allowed(parts, context, Operation.DESCRIBE, partition.topic):
                _add(found, partition, offsets, require_stable)
        return found
    async for partition in in_slices(_asked(topics)):
        if topic_allowed(parts, context, Operation.DESCRIBE, partition.topic):
            _add(found, partition, offsets, require_stable)
        else:
            found.add(partition, None, TopicAuthorizationFailed.code)
    return found


def _add(found: Found, partition: TopicPartition, offsets: GroupOffsets, require_stable: bool) -> None:
    if require_stable and offsets.is_unstable(partition):
        found.add(partition, None, UnstableOffsetCommit.code)
    else:
        found.add(partition, offsets.get(partition))


def _asked(topics: Iterable[OffsetFetchRequestTopics | OffsetFetchRequestTopic]) -> Iterable[TopicPartition]:
    for topic in topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index)


async def _topics(found: Found, schema: MessageSchema, topic_class: str, partition_class: str) -> list[Any]:
    answers = (
        (
            partition,
            schema(
                partition_class,
                partition_index=partition.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=error_code,
            ),
        )
        for partition, (committed, error_code) in found.partitions.items()
    )
    return [schema(topic_class, name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)]
