"""Fetch (key 1), versions 4-17.

v7 sessions (KIP-227), v9 leader epochs (KIP-320), v11 racks (KIP-392), v12 diverging epochs (KIP-595), v13 topic
ids (KIP-516). The bytes of records go from the file to the socket; this handler only says which.
Unlike Kafka: quotas are not enforced, so throttle_time_ms is always 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, cast
from uuid import UUID

from ottla.broker.fetch_sessions import FetchScope, Key
from ottla.broker.handlers.registry import BrokerParts, EncodedBody, Pieces, RequestContext, handles
from ottla.broker.replication.partition import Partition
from ottla.broker.security.authorizer import Operation, topic
from ottla.errors import ApiError, OffsetOutOfRange, TopicAuthorizationFailed, UnknownTopicId
from ottla.model import TopicPartition
from ottla.protocol import fetch as codec
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchAnswer, FetchPartition, FetchRequest

# Below this, reading a region that is in memory costs less than a system call of its own (measured on loopback:
# a pread of 16 KiB into a joined answer against one sendfile).
INLINE_BELOW: Final = 16 * 1024


@handles(ApiKey.FETCH, codec.MIN_VERSION, codec.MAX_VERSION, decode=codec.decode_request)
def fetch(request: FetchRequest, context: RequestContext, parts: BrokerParts) -> EncodedBody | Awaitable[EncodedBody]:
    """Answers with what there is once it is `min_bytes`, or after `max_wait_ms`."""
    version = context.api_version
    try:
        scope = parts.fetch_sessions.begin(request, version >= codec.TOPIC_ID_VERSION)
    except ApiError as error:
        return EncodedBody(cast("Pieces", codec.encode_response(version, error.code, 0, [])))
    reading = Reading(request, scope, context, parts)
    cold = reading.cold()
    return _after(cold, reading, request, parts) if cold else _answer_or_wait(reading, request, parts)


async def _after(cold: list[tuple[Partition, int]], reading: Reading, request: FetchRequest, parts: BrokerParts) -> EncodedBody:
    """Finds the places in old segments beside the loop, so that reading does not wait for the disk on it."""
    await asyncio.gather(*(partition.log.prepare_read(offset) for partition, offset in cold))
    answer = _answer_or_wait(reading, request, parts)
    return answer if isinstance(answer, EncodedBody) else await answer


def _answer_or_wait(reading: Reading, request: FetchRequest, parts: BrokerParts) -> EncodedBody | asyncio.Future[EncodedBody]:
    if reading.is_answerable() or request.max_wait_ms <= 0:
        return reading.answer()
    delayed = DelayedFetch(reading)
    purgatory = parts.fetch_purgatory
    purgatory.watch(delayed, reading.watched(), request.max_wait_ms / 1000)
    delayed.answered.add_done_callback(lambda _: purgatory.forget(delayed))
    return delayed.answered


class Reading:
    """One fetch: what is asked, and what can be read of it at the moment."""

    __slots__ = ("_answers", "_context", "_parts", "_request", "_scope")

    def __init__(self, request: FetchRequest, scope: FetchScope, context: RequestContext, parts: BrokerParts) -> None:
        self._request = request
        self._scope = scope
        self._context = context
        self._parts = parts
        self._answers: list[tuple[Key, FetchAnswer]] = []

    def is_answerable(self) -> bool:
        """Reads, and says whether the result need not wait for more."""
        request = self._request
        left = min(request.max_bytes, self._parts.settings.fetch_max_bytes)
        total = 0
        immediate = not self._scope.partitions
        answers = self._answers = []
        for key, asked in self._scope.partitions:
            # The first partition with anything gives at least one batch, so that a large one can not block (KIP-74).
            answer = self._read(key, asked, min(asked.max_bytes, max(left, 0)), total == 0)
            if answer.records is not None:
                size = len(answer.records)
                total += size
                left -= size
            elif answer.error_code or answer.diverging_epoch:
                immediate = True
            answers.append((key, answer))
        return immediate or total >= request.min_bytes

    def cold(self) -> list[tuple[Partition, int]]:
        """The partitions, with offsets, whose place to read from can not be found without waiting for the disk."""
        found = []
        for key, asked in self._scope.partitions:
            partition = self._find(key)
            if partition is not None and partition.log.read_would_block(asked.fetch_offset):
                found.append((partition, asked.fetch_offset))
        return found

    def _find(self, key: Key) -> Partition | None:
        try:
            return self._partition(key)
        except ApiError:
            return None  # told in its answer

    def _read(self, key: Key, asked: FetchPartition, max_bytes: int, at_least_one_batch: bool) -> FetchAnswer:
        try:
            partition = self._partition(key)
            partition.check_leader_epoch(asked.current_leader_epoch)
            if asked.last_fetched_epoch >= 0:
                diverging = _divergence(partition, asked)
                if diverging is not None:
                    return FetchAnswer(asked.partition, diverging_epoch=diverging)
            committed_only = self._request.isolation_level == codec.READ_COMMITTED
            records = None
            if max_bytes > 0 or at_least_one_batch:
                records = partition.read(
                    asked.fetch_offset, max_bytes, committed_only=committed_only, at_least_one_batch=at_least_one_batch
                )
        except ApiError as error:
            return FetchAnswer(asked.partition, error.code, records=None)
        return FetchAnswer(
            asked.partition,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            [] if committed_only else None,
            -1,
            None,
            records,
        )

    def _partition(self, key: Key) -> Partition:
        named, index = key
        if isinstance(named, UUID):
            name = self._parts.metadata.topic_name(named)
            if name is None:
                raise UnknownTopicId(f"no topic has the id {named}")
        else:
            name = named
        authorizer = self._parts.authorizer
        if not authorizer.allows_all and not authorizer.allowed(self._context.principal, Operation.READ, topic(name)):
            raise TopicAuthorizationFailed(f"{self._context.principal} may not read {name}")
        return self._parts.replicas.get(name, index)

    def watched(self) -> list[TopicPartition]:
        """The partitions whose growth can complete this fetch."""
        partitions = (self._find(key) for key, _ in self._scope.partitions)
        return [each.topic_partition for each in partitions if each is not None]

    def answer(self) -> EncodedBody:
        """The response to what was last read."""
        by_topic: dict[str | UUID, list[FetchAnswer]] = {}
        for (named, _), answer in self._scope.select(self._answers):
            by_topic.setdefault(named, []).append(answer)
        pieces = codec.encode_response(self._context.api_version, 0, self._scope.session_id, list(by_topic.items()), INLINE_BELOW)
        return EncodedBody(cast("Pieces", pieces))  # the regions among them are those that `_read` put in


def _divergence(partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's log and ours part, when its last epoch and offset do not fit ours (KIP-595)."""
    epoch, end_offset = partition.end_offset_for_epoch(asked.last_fetched_epoch)
    if epoch < 0:
        raise OffsetOutOfRange(f"{partition.topic_partition}: nothing is known of leader epoch {asked.last_fetched_epoch}")
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None


class DelayedFetch:
    """A fetch that waits for more bytes."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.answered: asyncio.Future[EncodedBody] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        if self.answered.done():
            return True
        if not self._reading.is_answerable():
            return False
        self._answer()
        return True

    def expire(self) -> None:
        if not self.answered.done():
            self._reading.is_answerable()
            self._answer()

    def _answer(self) -> None:
        try:
            self.answered.set_result(self._reading.answer())
        except Exception as error:
            # Whoever appended what this fetch waited for must not pay for its failure; its own connection does.
            self.answered.set_exception(error)
