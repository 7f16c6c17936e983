"""DeleteRecords (key 21), versions 0-2: a partition begins at a later offset from now on (KIP-107).

Offset -1 stands for the high watermark. v2 is flexible. The answer names the low watermark: the smallest log start
offset of all living replicas. Followers take the leader's over as they fetch, so the answer waits for them, at most for
timeout_ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.by_topic import asked, grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.metadata import MetadataCache
from ottla.broker.purgatory import Delayed, Purgatory
from ottla.broker.replication.partition import Partition
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidTopic, PolicyViolation, RequestTimedOut, TopicAuthorizationFailed
from ottla.model import INTERNAL_TOPICS, NO_PARTITION_LEADER_EPOCH, TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsRequest

NO_LOW_WATERMARK: Final = -1


@handles(ApiKey.DELETE_RECORDS, 0, 2)
def delete_records(
    request: DeleteRecordsRequest, context: RequestContext, parts: BrokerParts
) -> Generator[None, None, asyncio.Future[Any]]:
    # A partition that is named twice is deleted from where it is named last, as with Kafka.
    offsets: dict[TopicPartition, int] = {}
    for name, partition in asked(request.topics):
        yield
        offsets[TopicPartition(name, partition.partition_index)] = partition.offset
    deletions = []
    for (name, index), offset in offsets.items():
        yield
        deletions.append(_deletion(name, index, offset, context, parts))
    # A task and no coroutine: what waits for followers is no work under way.
    return asyncio.ensure_future(_response(deletions, request, context, parts.replicas.deletes))


async def _response(deletions: list[Deletion], request: DeleteRecordsRequest, context: RequestContext, purgatory: Purgatory) -> Any:
    try:
        async for deletion in in_slices(deletions):
            if not deletion.try_complete():
                purgatory.watch(deletion, (deletion.topic_partition,), request.timeout.total_seconds())
        for deletion in deletions:
            await deletion.answered
    finally:
        for deletion in deletions:
            purgatory.forget(deletion)
    schema = context.response_schema()
    answers = (
        (
            deletion.topic_partition,
            schema(
                "DeleteRecordsPartitionResult",
                partition_index=deletion.topic_partition.partition,
                low_watermark=deletion.low_watermark,
                error_code=deletion.error_code,
            ),
        )
        for deletion in deletions
    )
    topics = [schema("DeleteRecordsTopicResult", name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)]
    return schema("DeleteRecordsResponse", throttle_time=0, topics=topics)


class Deletion(Delayed):
    """One partition's part of a request, whose followers have yet to follow. How it has ended stays so, whatever others wait for.

    Each part waits by itself: if a thousand were looked at whenever a follower of one of them fetches, the loop would stand still.
    """

    def __init__(
        self, topic_partition: TopicPartition, partition: Partition | None, offset: int, error_code: int, metadata: MetadataCache
    ) -> None:
        self.topic_partition = topic_partition
        self.error_code = error_code
        self.low_watermark = NO_LOW_WATERMARK
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._partition = partition  # None: nothing was deleted
        self._offset = offset  # that all replicas have to begin at
        self._metadata = metadata

    def try_complete(self) -> bool:
        if self.answered.done():
            return True
        if self._partition is not None:
            try:
                self.low_watermark = self._partition.low_watermark(self._metadata.brokers)
            except ApiError as error:
                self.error_code, self.low_watermark = error.code, NO_LOW_WATERMARK
        if self.error_code == NONE and self.low_watermark < self._offset:
            return False
        self.answered.set_result(None)
        return True

    def expire(self) -> None:
        if not self.try_complete():
            self.error_code = RequestTimedOut.code
            self.answered.set_result(None)


def _deletion(topic: str, index: int, offset: int, context: RequestContext, parts: BrokerParts) -> Deletion:
    key = TopicPartition(topic, index)
    try:
        if not topic_allowed(parts, context, Operation.DELETE, topic):
            raise TopicAuthorizationFailed(f"{context.principal} may not delete records of {topic}")
        partition = parts.partition(topic, index)
        partition.check_leader_epoch(NO_PARTITION_LEADER_EPOCH)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"Cannot delete records of internal topic {topic}")
        if not partition.settings.is_deleted_from:
            raise PolicyViolation(f"Records of partition {partition.topic_partition} cannot be deleted due to the configured policy")
        return Deletion(key, partition, partition.delete_records(offset), NONE, parts.metadata)
    except ApiError as error:
        return Deletion(key, None, offset, error.code, parts.metadata)
