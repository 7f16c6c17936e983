"""What one fetch asks for, and what can be read of it at the moment.

A consumer sees what is committed, on the leader or, if it names a rack, on any replica (KIP-392). A follower sees everything
that its leader has, as long as its own log is a part of the leader's; that it asks is how the leader learns how far it
has come. So it is written down once, when the request is first looked at, and not again while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, cast
from uuid import UUID

from ottla.broker.fetch_sessions import FetchScope, Key
from ottla.broker.handlers.authorization import cluster_allowed, topic_allowed
from ottla.broker.handlers.partition_view import CurrentLeaders
from ottla.broker.handlers.registry import BrokerParts, EncodedBody, Pieces, RequestContext
from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.follower_progress import FollowerProgress
from ottla.broker.replication.leadership_question import FetchPlace, LeadershipQuestion
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.replication.throttles import is_throttled
from ottla.broker.request_meters import FETCH_FOLLOWER
from ottla.broker.security.authorizer import Operation
from ottla.config.cluster import RACK_AWARE_SELECTOR
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from ottla.model import NO_LEADER, ZERO_TOPIC_ID, BrokerId, BrokerRegistration, TopicPartition
from ottla.protocol import fetch as codec
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchAnswer, FetchPartition, FetchRequest, NodeEndpoint
from ottla.storage.transaction_index import AbortedTransaction

# Below this, reading a region that is in memory costs less than a system call of its own (measured on loopback:
# a pread of 16 KiB into a joined answer against one sendfile).
INLINE_BELOW: Final = 16 * 1024
_NAME: Final = ApiKey.FETCH.api_name


# Beyond so many partitions a fetch is read, and answered, in slices: a few milliseconds' worth.
LARGE_SCOPE: Final = 1_000
# And of so many, one that waits for more than the first byte is not looked at whenever something is written.
PATIENT_SCOPE: Final = 20
_SLICE: Final = 500

# What a fetch has come to: bytes found, bytes that it may still take, whether it need not wait whatever it has.
_Progress = tuple[int, int, bool]

ByTopic = dict[str | UUID, list[FetchAnswer]]


def is_here(metadata: MetadataCache, replicas: ReplicaManager, key: Key) -> bool:
    """Whether this broker has a replica of the partition that a fetch names."""
    named, index = key
    name = metadata.topic_name(named) if isinstance(named, UUID) else named
    return name is not None and (name, index) in replicas.partitions


class Reading:
    """One fetch: what is asked, and what can be read of it at the moment."""

    __slots__ = (
        "_answers",
        "_context",
        "_found",
        "_given",
        "_is_recorded",
        "_leaders",
        "_most_bytes",
        "_now_ms",
        "_parts",
        "_replica",
        "_request",
        "_scope",
        "_selects_replicas",
    )

    def __init__(self, request: FetchRequest, scope: FetchScope, context: RequestContext, parts: BrokerParts) -> None:
        self._request = request
        self._scope = scope
        self._context = context
        self._parts = parts
        self._answers: list[tuple[Key, FetchAnswer]] = []
        self._given: list[tuple[Partition, int]] = []  # of which partition how many bytes are in the answers
        self._replica: BrokerId | None = BrokerId(request.replica_id) if request.replica_id >= 0 else None
        self._found: list[Partition | ApiError] = []  # of each partition asked for, what there is of it here
        self._is_recorded = False
        self._leaders: CurrentLeaders | None = None  # once there is a refusal that names one
        self._now_ms = 0 if self._replica is None else parts.replicas.now_ms()  # for the progress of followers
        # `fetch.max.bytes` protects the broker from its clients; a follower's own setting bounds what it asks for.
        self._most_bytes = request.max_bytes if self._replica is not None else min(request.max_bytes, parts.settings.fetch_max_bytes)
        self._selects_replicas = (
            self._replica is None and bool(request.rack) and parts.settings.replica_selector_class == RACK_AWARE_SELECTOR
        )

    def is_answerable(self) -> bool:
        """Reads, and says whether the result need not wait for more."""
        if self._is_recorded or not self._found:
            self._find_all()
        return self._is_enough(self._read_on(zip(self._scope.partitions, self._found, strict=True), self._begin()))

    async def is_answerable_in_slices(self) -> bool:
        """The same for a fetch of many partitions, with the loop given back again and again."""
        if self._is_recorded or not self._found:
            await self.find_in_slices()
        progress = self._begin()
        found = list(zip(self._scope.partitions, self._found, strict=True))
        for start in range(0, len(found), _SLICE):
            progress = self._read_on(found[start : start + _SLICE], progress)
            await asyncio.sleep(0)
        return self._is_enough(progress)

    @property
    def is_large(self) -> bool:
        return len(self._scope.partitions) > LARGE_SCOPE

    @property
    def is_patient(self) -> bool:
        return self._request.min_bytes > 1 and len(self._scope.partitions) > PATIENT_SCOPE

    def _begin(self) -> _Progress:
        self._answers = []
        self._given = []
        return 0, self._most_bytes, not self._scope.partitions

    def _read_on(self, those: Iterable[tuple[tuple[Key, FetchPartition], Partition | ApiError]], progress: _Progress) -> _Progress:
        total, left, immediate = progress
        answers, given = self._answers, self._given
        for (key, asked), found in those:
            if self._replica is not None:
                if not isinstance(found, ApiError) and found.in_sync.question is not None:
                    immediate |= self._tells_who_leads(found.in_sync.question, self._replica, asked, found)
                if self._is_idle(key, asked, found):
                    continue
            # The first partition with anything gives at least one batch, so that a large one cannot block (KIP-74).
            answer = self._read(key, asked, found, min(asked.max_bytes, max(left, 0)), total == 0)
            if answer is None:
                continue
            if answer.records is not None:
                size = len(answer.records)
                total += size
                left -= size
                assert isinstance(found, Partition)
                given.append((found, size))
            elif answer.error_code or answer.diverging_epoch or answer.preferred_read_replica >= 0:
                immediate = True
            answers.append((key, answer))
        return total, left, immediate

    def _is_enough(self, progress: _Progress) -> bool:
        total, _, immediate = progress
        min_bytes = min(self._request.min_bytes, self._most_bytes)
        self._is_recorded = True
        # Without any bytes nothing was held back for a limit, so there is nothing to count.
        return immediate or total >= min_bytes or (total > 0 and self._is_available(min_bytes))

    def _is_available(self, min_bytes: int) -> bool:
        """Whether so many bytes wait, though fewer could be given: a region ends with a whole batch.

        As in Kafka's `DelayedFetch`, no more counts of a partition than may be given of it, and anyone who reads a segment
        before the last is answered at once: that much could never come together in one read.
        """
        available = 0
        for (_, asked), found in zip(self._scope.partitions, self._found, strict=True):
            try:
                waiting = 0 if isinstance(found, ApiError) else self._available(found, asked.fetch_offset)
            except ApiError:
                return True  # the next fetch answers what has just happened
            if waiting is None:
                return True
            available += min(waiting, max(asked.max_bytes, 0))
            if available >= min_bytes:
                return True
        return False

    def _available(self, partition: Partition, offset: int) -> int | None:
        if self._replica is None:
            return partition.available(offset, committed_only=self._request.isolation_level == codec.READ_COMMITTED)
        return 0 if self._is_held_back(partition, self._replica) else partition.available_as_leader(offset)

    def cold(self) -> list[tuple[Partition, int]]:
        """The partitions, with offsets, whose place to read from cannot be found without waiting for the disk."""
        if not self._found:
            self._find_all()
        return [
            (found, asked.fetch_offset)
            for (_, asked), found in zip(self._scope.partitions, self._found, strict=True)
            if not isinstance(found, ApiError)
            and asked.fetch_offset != found.log.appender.log_end_offset
            and found.log.read_would_block(asked.fetch_offset)
        ]

    def watched(self) -> list[TopicPartition]:
        """The partitions whose growth can complete this fetch."""
        return [partition.topic_partition for partition in self._found if not isinstance(partition, ApiError)]

    def answer(self) -> EncodedBody:
        by_topic: ByTopic = {}
        self._group(self._scope.select(self._answers), by_topic)
        self._count_sent()
        topics = list(by_topic.items())
        version, session_id = self._context.api_version, self._scope.session_id
        pieces = codec.encode_response(version, 0, session_id, topics, INLINE_BELOW, self._endpoints())
        return EncodedBody(cast("Pieces", pieces))  # the regions among them are those that `_read` put in

    async def answer_in_slices(self) -> EncodedBody:
        """The same for a fetch of many partitions; its bytes are put together by a thread."""
        by_topic: ByTopic = {}
        for start in range(0, len(self._answers), _SLICE):
            self._group(self._scope.select(self._answers[start : start + _SLICE]), by_topic)
            await asyncio.sleep(0)
        self._count_sent()
        version, session_id = self._context.api_version, self._scope.session_id
        answered, endpoints = list(by_topic.items()), self._endpoints()
        pieces = await self._parts.offload(codec.encode_response, version, 0, session_id, answered, INLINE_BELOW, endpoints)
        return EncodedBody(cast("Pieces", pieces))

    def _group(self, selected: Iterable[tuple[Key, FetchAnswer]], by_topic: ByTopic) -> None:
        for (named, _), answer in selected:
            by_topic.setdefault(named, []).append(answer)

    def _count_sent(self) -> None:
        if self._replica is not None:
            self._parts.meters.replica_sent_bytes += sum(size for _, size in self._given)
            throttled_size = sum(size for partition, size in self._given if self._is_throttled(partition))
            if throttled_size:
                self._parts.throttles.leader.record(throttled_size)
            return
        for found in self._found:
            if not isinstance(found, ApiError):
                found.fetches += 1
        for partition, size in self._given:
            partition.sent_bytes += size

    # One partition.

    def _is_idle(self, key: Key, asked: FetchPartition, found: Partition | ApiError) -> bool:
        """Whether a follower has all there is, had it before, and was answered so.

        A follower asks for thousands of partitions twice a second, of which most are idle, so this comes before
        anything is looked at more closely.
        """
        if isinstance(found, ApiError) or found.storage_error is not None:
            return False
        log, offset = found.log, asked.fetch_offset
        return (
            offset == log.appender.log_end_offset
            and found.is_leader
            and asked.current_leader_epoch == found.leader_epoch
            and (asked.last_fetched_epoch == log.leader_epochs.latest_epoch or asked.last_fetched_epoch < 0)
            and self._scope.has_said(key, found.high_watermark, log.log_start_offset)
            and (
                self._is_recorded
                or found.in_sync.is_still_there(
                    self._request.replica_id, self._request.replica_epoch, offset, asked.log_start_offset, self._now_ms
                )
            )
        )

    def _tells_who_leads(self, question: LeadershipQuestion, follower: BrokerId, asked: FetchPartition, partition: Partition) -> bool:
        """Whether a follower takes this broker for the leader, and its next fetch is wanted at once, to be sure of it."""
        if not partition.is_leader or asked.current_leader_epoch != partition.leader_epoch:
            return False
        return question.fetched(follower, FetchPlace(self._scope.session_id, self._request.session_epoch))

    def _read(
        self, key: Key, asked: FetchPartition, partition: Partition | ApiError, max_bytes: int, at_least_one_batch: bool
    ) -> FetchAnswer | None:
        """What there is of one partition; None when it is what the session's last answer said."""
        if isinstance(partition, ApiError):
            return self._refusal(key, partition, partition)
        aborted: list[AbortedTransaction] = []
        try:
            # Who names no rack was never sent to a follower: it takes a former leader for the leader, and must learn better.
            # Kafka lets it read on from v11, and a follower that lags, or lost its disk, would move it back.
            by_leader = self._replica is not None or not self._request.rack
            if not by_leader and self._is_given_up(partition):
                raise NotLeaderOrFollower(f"{partition.topic_partition}: broker {partition.broker_id} neither leads nor follows")
            partition.check_leader_epoch(asked.current_leader_epoch, by_leader=by_leader)
            if asked.last_fetched_epoch >= 0:
                diverging = partition.divergence(asked.last_fetched_epoch, asked.fetch_offset)
                if diverging is not None:
                    return FetchAnswer(asked.partition, diverging_epoch=diverging)
            if self._replica is not None:
                records = self._read_as_follower(partition, self._replica, asked, max_bytes, at_least_one_batch)
            else:
                preferred = self._preferred(partition, asked) if self._selects_replicas else None
                if preferred is not None:
                    return self._answer(asked, partition, None)._replace(preferred_read_replica=preferred)
                records = None
                if max_bytes > 0 or at_least_one_batch:
                    records = partition.read(
                        asked.fetch_offset,
                        max_bytes,
                        committed_only=self._request.isolation_level == codec.READ_COMMITTED,
                        at_least_one_batch=at_least_one_batch,
                    )
                    if records is not None and self._request.isolation_level == codec.READ_COMMITTED:
                        aborted = partition.aborted_transactions(asked.fetch_offset, records)
        except ApiError as error:
            return self._refusal(key, partition, error)
        if records is None and self._scope.has_said(key, partition.high_watermark, partition.log.log_start_offset):
            return None
        answer = self._answer(asked, partition, records)
        if aborted:
            answer = answer._replace(aborted_transactions=[codec.AbortedTransaction(*transaction[:2]) for transaction in aborted])
        return answer

    def _refusal(self, key: Key, partition: Partition | ApiError, error: ApiError) -> FetchAnswer:
        """The answer with an error, which is counted once: what is read with one is answered with it at once."""
        self._parts.meters.failed(_NAME if self._replica is None else FETCH_FOLLOWER, error.code)
        if self._replica is None and not isinstance(partition, ApiError):
            partition.fetch_failures += 1
        named, index = key
        version, code, leader = self._context.api_version, error.code, None
        if code == KafkaStorageError.code and version < codec.STORAGE_ERROR_VERSION:
            code = NotLeaderOrFollower.code
        if version >= codec.CURRENT_LEADER_VERSION and isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            name = self._parts.metadata.topic_name(named) if isinstance(named, UUID) else named
            self._leaders = self._leaders or CurrentLeaders(self._parts, self._context.listener_name)
            leader = None if name is None else self._leaders.of(TopicPartition(name, index))
        return FetchAnswer(index, code, records=None, current_leader=leader)

    def _endpoints(self) -> list[NodeEndpoint]:
        return [] if self._leaders is None else list(self._leaders.endpoints.values())

    def _answer(self, asked: FetchPartition, partition: Partition, records: codec.Region | None) -> FetchAnswer:
        return FetchAnswer(
            asked.partition,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            [] if self._request.isolation_level == codec.READ_COMMITTED else None,
            records=records,
        )

    def _is_given_up(self, partition: Partition) -> bool:
        """Whether another broker leads and this one does not follow, as it is drained: nothing new will come here."""
        if partition.leader != NO_LEADER:
            return False
        return self._parts.metadata.leader(partition.topic_partition) not in (None, NO_LEADER, partition.broker_id)

    def _read_as_follower(
        self, partition: Partition, replica: BrokerId, asked: FetchPartition, max_bytes: int, at_least_one_batch: bool
    ) -> codec.Region | None:
        """What a follower may have; the first time it is written down how far it has come."""
        offset, log = asked.fetch_offset, partition.log
        if replica not in partition.in_sync.followers:
            error = UnknownLeaderEpoch if asked.current_leader_epoch >= 0 else NotLeaderOrFollower
            raise error(f"{partition.topic_partition}: broker {replica} is no replica that is known here")
        if not log.log_start_offset <= offset <= log.appender.log_end_offset:
            raise OffsetOutOfRange(f"{partition.topic_partition}: offset {offset} is not in [{log.log_start_offset}, {log.log_end_offset})")
        if not self._is_recorded:
            replicas, epoch = self._parts.replicas, self._request.replica_epoch
            registration = self._parts.metadata.brokers.get(replica)
            if registration is not None and registration.broker_epoch == epoch:
                partition.in_sync.confirm_epoch(replica, epoch)
            replicas.follower_fetched(partition, replica, epoch, offset, asked.log_start_offset, self._now_ms)
        if offset == log.appender.log_end_offset or (max_bytes <= 0 and not at_least_one_batch):
            return None
        if self._is_held_back(partition, replica):
            return None
        return partition.read_as_leader(offset, max_bytes, at_least_one_batch=at_least_one_batch)

    def _is_held_back(self, partition: Partition, replica: BrokerId) -> bool:
        """Who is in sync must stay so; the others have to wait when they take too much."""
        return replica not in partition.isr and self._is_throttled(partition) and self._parts.throttles.leader.is_exceeded

    def _is_throttled(self, partition: Partition) -> bool:
        throttled = partition.settings.leader_replication_throttled_replicas
        return is_throttled(throttled, partition.topic_partition.partition, partition.broker_id)

    def _preferred(self, partition: Partition, asked: FetchPartition) -> BrokerId | None:
        if not partition.is_leader:
            return None
        brokers = self._parts.metadata.brokers
        in_sync = (
            follower
            for follower in partition.in_sync.followers.values()
            if follower.broker_id in partition.isr and self._is_reachable(brokers.get(follower.broker_id))
        )
        return preferred_read_replica(self._request.rack, asked.fetch_offset, partition.broker_id, in_sync, brokers)

    def _is_reachable(self, registration: BrokerRegistration | None) -> bool:
        """Whether the client's metadata has the broker: only that of its own listener."""
        return registration is not None and registration.endpoint(self._context.listener_name) is not None

    def _find_all(self) -> None:
        self._found = []
        self._find(self._scope.partitions)

    async def find_in_slices(self) -> None:
        """Looks all partitions up, with the loop given back again and again."""
        self._found = []
        for start in range(0, len(self._scope.partitions), _SLICE):
            self._find(self._scope.partitions[start : start + _SLICE])
            await asyncio.sleep(0)

    def _find(self, asked: Iterable[tuple[Key, FetchPartition]]) -> None:
        found = self._found
        for key, _ in asked:
            try:
                found.append(self._partition(key))
            except ApiError as error:
                found.append(error.with_traceback(None))  # which would keep every frame that it came through

    def _partition(self, key: Key) -> Partition:
        named, index = key
        if isinstance(named, UUID):
            name = self._parts.metadata.topic_name(named)
            if name is None:
                raise UnknownTopicId(f"no topic has the id {named}")
        else:
            name = named
        if not self._parts.authorizer.allows_all and not self._is_allowed(name):
            raise TopicAuthorizationFailed(f"{self._context.principal} may not read {name}")
        found = self._parts.partition(name, index)
        if isinstance(named, UUID) and found.topic_id not in (named, ZERO_TOPIC_ID):
            raise InconsistentTopicId(f"{found.topic_partition}: topic id {named} is asked for, the replica here is of {found.topic_id}")
        return found

    def _is_allowed(self, name: str) -> bool:
        if self._replica is not None:
            return cluster_allowed(self._parts, self._context, Operation.CLUSTER_ACTION)
        return topic_allowed(self._parts, self._context, Operation.READ, name)


def preferred_read_replica(
    rack: str,
    fetch_offset: int,
    leader: BrokerId,
    in_sync: Iterable[FollowerProgress],
    brokers: Mapping[BrokerId, BrokerRegistration],
) -> BrokerId | None:
    """Which replica a consumer should read from: one in its own rack, if there is one (KIP-392); None when the leader is as good as any.

    Only replicas in sync are named: one that lags would keep the consumer behind for as long as it lags itself. Of several
    in the rack it is the one that has most. Pure. Source: Kafka's `RackAwareReplicaSelector`.

    Args:
        rack: where the consumer stands; empty when it does not say.
        in_sync: the followers in the ISR.
        brokers: the living.
    """
    if not rack or _rack_of(leader, brokers) == rack:
        return None
    nearby = [
        follower
        for follower in in_sync
        if _rack_of(follower.broker_id, brokers) == rack and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    best = max(nearby, key=lambda follower: (follower.log_end_offset, follower.caught_up_ms, -follower.broker_id), default=None)
    return None if best is None else best.broker_id


def _rack_of(broker_id: BrokerId, brokers: Mapping[BrokerId, BrokerRegistration]) -> str | None:
    registration = brokers.get(broker_id)
    return None if registration is None else registration.rack
