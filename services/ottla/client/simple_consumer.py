"""The simple consumer of the design document: reads a partition from an offset, and keeps nothing between two calls.

    with SimpleConsumer("127.0.0.1:9092") as consumer:
        messages = consumer.fetch("clicks", 0, offset=17)
        for message in messages:
            print(message.offset, message.value)
        messages = consumer.fetch("clicks", 0, messages.next_offset)

It asks who leads the partition, over connections of its own. A batch that does not fit into the bytes that were asked for makes it ask
for twice as many. `AsyncSimpleConsumer` is the same on the caller's event loop.

One who reads an offset twice gets the same messages twice, or an error: nothing here resets an offset.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar
from uuid import UUID

from ottla.client.errors import TopicRecreated
from ottla.client.messages import MessageSet
from ottla.config.settings import INT_MAX, LONG_MAX
from ottla.errors import NONE, ApiError, MessageTooLarge, UnknownTopicOrPartition, error_of
from ottla.lifecycle import LoopThread
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    MAX_VERSION,
    MIN_VERSION,
    READ_COMMITTED,
    TOPIC_ID_VERSION,
    FetchPartition,
    FetchTopic,
)
from ottla.protocol.fetch import FetchRequest as WireFetchRequest
from ottla.protocol.fetch_client import FetchedPartition
from ottla.record.batch import check_crcs, check_fetched
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import fetch
from ottla.wire.offsets import EARLIEST, LATEST, ask_leaders, by_topic, list_offsets

T = TypeVar("T")

MIB: Final = 1024 * 1024
LARGEST_FETCH: Final = 128 * MIB  # below `ClusterSettings.max_answer_bytes`
NO_SESSION: Final = (0, -1)  # id and epoch of a Fetch that opens none (KIP-227)
CALL_SECONDS: Final = 90.0  # beyond `api_timeout_seconds`, so that its error is the one that is seen
CLOSE_SECONDS: Final = 30.0

__all__ = ["EARLIEST", "LATEST", "AsyncSimpleConsumer", "FetchRequest", "SimpleConsumer"]


class FetchRequest(NamedTuple):
    """One part of a `multi_fetch`."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = MIB


class _Damage(NamedTuple):
    """What came cannot be read. It is no answer that time heals, whatever the error's class says of brokers."""

    error: ApiError


_Taken: TypeAlias = MessageSet | _Damage


class AsyncSimpleConsumer:
    """Reads partitions of a cluster on the caller's event loop.

    Args:
        bootstrap_servers: `host:port,…`.
        settings: TLS, SASL, timeouts.
        read_committed: nothing of transactions that are open, and nothing of those that were aborted.
        check_crcs: whether checksums are compared.
        cluster: how the cluster is asked, instead of the first two; it is the caller's to close.
    """

    def __init__(
        self,
        bootstrap_servers: str = "",
        settings: ClusterSettings | None = None,
        *,
        read_committed: bool = True,
        check_crcs: bool = True,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster: Final = cluster or Cluster(bootstrap_servers, settings)
        self._is_owner: Final = cluster is None
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._topic_ids: dict[str, UUID] = {}  # of the topics that were read

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        if self._is_owner:
            await self._cluster.close()

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = MIB, max_wait_ms: int = 0) -> MessageSet:
        """The messages of a partition from an offset on; none at its end.

        Args:
            max_bytes: about how many; a batch that is larger comes whole.
            max_wait_ms: how long the broker waits for a message at the end.

        Raises:
            OffsetOutOfRange: the log has no such offset.
            CorruptMessage: a checksum is wrong.
            TopicRecreated: it is another topic of that name than before.
            ApiError, OSError: the leader refuses, or cannot be reached in time.
        """
        return (await self.multi_fetch([FetchRequest(topic, partition, offset, max_bytes)], max_wait_ms))[0]

    async def multi_fetch(self, requests: Sequence[FetchRequest], max_wait_ms: int = 0) -> list[MessageSet]:
        """As `fetch`, of several partitions at once: one request goes to each leader. One answer for each request, in their order.

        Raises:
            ValueError: a partition is asked for twice, no message can have an offset, or `max_bytes` or `max_wait_ms` cannot be that.
        """
        asked = {TopicPartition(request.topic, request.partition): request for request in requests}
        if len(asked) != len(requests):
            raise ValueError("a partition is asked for twice")
        if not 0 <= max_wait_ms <= INT_MAX:
            raise ValueError(f"max_wait_ms = {max_wait_ms}: it is from 0 to {INT_MAX}")
        for request in requests:
            if not 0 <= request.offset <= LONG_MAX or request.max_bytes <= 0:
                raise ValueError(f"{request}: an offset is at least 0 and max_bytes at least 1; offsets_before gives the ends of a log")

        async def ask(leader: BrokerId, some: Mapping[TopicPartition, FetchRequest]) -> Mapping[TopicPartition, _Taken | ApiError]:
            return await self._ask(leader, some, max_wait_ms)

        seconds = self._cluster.settings.api_timeout_seconds + max_wait_ms / 1000
        answers: dict[TopicPartition, _Taken] = await ask_leaders(self._cluster, asked, ask, seconds) if asked else {}
        sets: list[MessageSet] = []
        for partition in asked:
            answer = answers[partition]
            if isinstance(answer, _Damage):
                raise answer.error
            sets.append(answer)
        return sets

    async def offsets_before(self, topic: str, partition: int, time: int, at_most: int = 1) -> list[int]:
        """Offsets at which reading can begin, of what was written before a time: the latest first.

        The broker knows the end of the log, its start, and the first message that is not older than a time; segments are its own
        affair by now, so these are all that there can be.

        Args:
            time: milliseconds since the epoch, or LATEST (-1), or EARLIEST (-2).
            at_most: how many offsets.

        Raises:
            ValueError: no message can have that time. As `fetch` otherwise.
        """
        key = TopicPartition(topic, partition)
        first = (await list_offsets(self._cluster, {key: EARLIEST}))[key].offset
        found = [first]
        if time != EARLIEST:
            offset = end = (await list_offsets(self._cluster, {key: LATEST}, read_committed=self._read_committed))[key].offset
            if time != LATEST:  # after that: else what is written meanwhile, and is no older, would lie before the end
                offset = (await list_offsets(self._cluster, {key: time}, read_committed=self._read_committed))[key].offset
            if offset < 0:  # everything is older
                offset = end
            if offset != first:
                found.insert(0, offset)
        return found[:at_most]

    async def _ask(
        self, leader: BrokerId, asked: Mapping[TopicPartition, FetchRequest], max_wait_ms: int
    ) -> Mapping[TopicPartition, _Taken | ApiError]:
        connection = await self._cluster.connection(leader, "simple")
        topics = {name: await self._cluster.topic(name) for name in sorted({partition.topic for partition in asked})}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        for name, topic_id in ids.items():
            if topic_id is not None and self._topic_ids.setdefault(name, topic_id) != topic_id:
                raise TopicRecreated(f"topic {name} has the id {topic_id}, and had {self._topic_ids[name]} when it was read first")
        epochs = {partition: self._cluster.metadata.partition(partition).leader_epoch for partition in asked}
        has_ids = all(topic_id is not None for topic_id in ids.values())
        version = connection.version(ApiKey.FETCH, MIN_VERSION, MAX_VERSION if has_ids else TOPIC_ID_VERSION - 1)
        keys: dict[str, str | UUID] = {name: ids[name] or name if version >= TOPIC_ID_VERSION else name for name in topics}
        names = {key: name for name, key in keys.items()}
        sizes = {partition: min(request.max_bytes, LARGEST_FETCH) for partition, request in asked.items()}
        found: dict[TopicPartition, _Taken | ApiError] = {}

        def wanted(partition: TopicPartition) -> FetchPartition:
            return FetchPartition(partition.partition, epochs[partition], asked[partition].offset, -1, -1, sizes[partition])

        while sizes:
            wire_request = WireFetchRequest(
                replica_id=CONSUMER_REPLICA_ID,
                replica_epoch=-1,
                max_wait_ms=0 if found else max_wait_ms,
                min_bytes=1,
                max_bytes=min(sum(sizes.values()), LARGEST_FETCH),
                isolation_level=READ_COMMITTED if self._read_committed else 0,
                session_id=NO_SESSION[0],
                session_epoch=NO_SESSION[1],
                topics=[FetchTopic(keys[name], partitions) for name, partitions in by_topic(sizes, wanted)],
                forgotten=[],
                rack="",  # the leader itself answers, and does not name a replica nearby (KIP-392)
            )
            head, answers, _ = await fetch(connection, wire_request, version, self._cluster.settings.request_timeout_seconds)
            if head.error_code != NONE:
                raise error_of(head.error_code, f"broker {leader} answers a Fetch")
            left: dict[TopicPartition, int] = {}
            for answer in answers:
                partition = TopicPartition(names.get(answer.topic, ""), answer.partition)
                if partition not in sizes:
                    raise UnknownTopicOrPartition(f"broker {leader} answers for {answer.topic}-{answer.partition}, which no one asked for")
                taken = self._taken(partition, asked[partition].offset, answer)
                if taken is not None:
                    found[partition] = taken
                else:
                    left[partition] = sizes[partition]
            # A broker gives the first batch of the first one that has any, whatever its size (KIP-74), and to the others what room is left.
            if left.keys() == sizes.keys():
                for partition, size in left.items():
                    if size == LARGEST_FETCH:
                        found[partition] = MessageTooLarge(f"{partition}: a batch is larger than {LARGEST_FETCH:,} bytes")
                left = {partition: min(2 * size, LARGEST_FETCH) for partition, size in left.items() if size < LARGEST_FETCH}
            sizes = left
        return found

    def _taken(self, partition: TopicPartition, offset: int, answer: FetchedPartition) -> _Taken | ApiError | None:
        """What was answered for a partition; None if the first batch did not fit."""
        if answer.error_code != NONE:
            return error_of(answer.error_code, f"{partition} at offset {offset}: the leader answers")
        try:
            size, next_offset, _ = check_fetched(answer.records, offset)
            if self._check_crcs:
                check_crcs(answer.records[:size])
        except ApiError as error:
            return _Damage(error)
        end = answer.last_stable_offset if self._read_committed else answer.high_watermark
        if not size and (len(answer.records) or offset < end):  # cut in its first batch, or left out for its size
            return None
        return MessageSet(
            partition,
            offset,
            next_offset,
            answer.records[:size],
            answer.aborted_transactions,
            answer.high_watermark,
            answer.log_start_offset,
        )


class SimpleConsumer:
    """`AsyncSimpleConsumer` for callers that block. Any thread may call."""

    def __init__(
        self, bootstrap_servers: str, settings: ClusterSettings | None = None, *, read_committed: bool = True, check_crcs: bool = True
    ) -> None:
        self._thread: Final = LoopThread("ottla-simple-consumer")
        self._is_closed = False
        try:
            self._consumer: Final = self._call(_made(bootstrap_servers, settings, read_committed, check_crcs))
        except BaseException:
            self._thread.close(CLOSE_SECONDS)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._call(self._consumer.close())
        finally:
            self._thread.close(CLOSE_SECONDS)

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = MIB, max_wait_ms: int = 0) -> MessageSet:
        """As `AsyncSimpleConsumer.fetch`. In a forked child LoopThreadUnusable says so."""
        return self._call(self._consumer.fetch(topic, partition, offset, max_bytes, max_wait_ms), max_wait_ms)

    def multi_fetch(self, requests: Sequence[FetchRequest], max_wait_ms: int = 0) -> list[MessageSet]:
        """As `AsyncSimpleConsumer.multi_fetch`."""
        return self._call(self._consumer.multi_fetch(requests, max_wait_ms), max_wait_ms)

    def offsets_before(self, topic: str, partition: int, time: int, at_most: int = 1) -> list[int]:
        """As `AsyncSimpleConsumer.offsets_before`."""
        return self._call(self._consumer.offsets_before(topic, partition, time, at_most))

    def _call(self, coroutine: Coroutine[Any, Any, T], max_wait_ms: int = 0) -> T:
        return self._thread.call(coroutine, CALL_SECONDS + max_wait_ms / 1000)


async def _made(bootstrap_servers: str, settings: ClusterSettings | None, read_committed: bool, check_crcs: bool) -> AsyncSimpleConsumer:
    return AsyncSimpleConsumer(bootstrap_servers, settings, read_committed=read_committed, check_crcs=check_crcs)
