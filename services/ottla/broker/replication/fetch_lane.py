"""A lane: one connection to a leader, one fetch session, one request at a time.

    gather partitions ── write what must be on the disk ── ask ── wait for the answer ── take it in ──┐
         └─────────────────────────────────────────────────────────────────────────────────────────────┘

While a request is on its way anything may change: partitions are added, removed or get another leader, the broker stops.
An answer counts only for partitions that are still the ones that were asked for.

A failed exchange ends the connection and the session; partitions stay, and all are asked for when the leader answers again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ottla.broker.replication.counts import FetchCounts
from ottla.broker.replication.fetch_queue import FetchQueue, PartitionFetchState, wait_seconds
from ottla.broker.replication.following import Connect, FetchConnection, FollowingReplica
from ottla.broker.replication.throttles import Throttle, is_throttled
from ottla.config.broker import BrokerSettings
from ottla.errors import NONE, ApiError, CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange, error_of
from ottla.model import NO_PARTITION_LEADER_EPOCH, BrokerId, BrokerRegistration, Endpoint, TopicPartition
from ottla.protocol import list_offsets_client
from ottla.protocol.fetch import FetchPartition, FetchRequest
from ottla.protocol.fetch_client import FetchedPartition, MalformedResponse, encode_request, read_head, walk
from ottla.protocol.list_offsets_client import EARLIEST, LATEST, ListedOffset
from ottla.wire.fetch_session import FetchSession, Key

log = logging.getLogger(__name__)

# The loop has other work than one large answer.
YIELD_AFTER_BYTES: Final = 1024 * 1024
YIELD_AFTER_PARTITIONS: Final = 200
# An idle connection is closed before the leader closes it (connections.max.idle.ms), which would look like a failure.
KEPT_OPEN_SECONDS: Final = 60.0
MAX_CORRELATION_ID: Final = (1 << 31) - 1

# From this one on an error is not transient, and is logged as a warning.
WORTH_A_WARNING: Final = 6


class SessionRefused(Exception):
    """The leader does not know the session (any more), or refuses the request as a whole."""


class Registered(Protocol):
    """Who has a registration, which changes with the session: `ottla.broker.controller.service.ControllerService`."""

    @property
    def broker_epoch(self) -> int: ...


class LivingBrokers(Protocol):
    """Where brokers are now, by the controller's last word: `ottla.broker.metadata.MetadataCache`."""

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerRegistration]:
        """Each by its id."""
        ...


@dataclass(slots=True)
class FetcherContext:
    """What a lane needs of the broker. All of it may change while the lane runs, so it is looked at each time.

    Attributes:
        replicas: those that are here.
        settings: set by `Fetchers` only.
    """

    broker_id: BrokerId
    registered: Registered
    settings: BrokerSettings
    connect: Connect
    replicas: Mapping[TopicPartition, FollowingReplica]
    living: LivingBrokers
    throttle: Throttle
    counts: FetchCounts = field(default_factory=FetchCounts)


class FetchLane:
    """One lane of a fetcher.

    Args:
        name: for messages, and as the client id.
        endpoint: where the leader is at the time; raises ConnectionError when that is not known.
        queue: where partitions come from and wait in.
        second: the lane whose partitions this one takes over.
        delay_seconds: how long to leave new partitions to another lane.
        longest_wait_ms: of a fetch, below `replica.fetch.wait.max.ms`.
    """

    def __init__(
        self,
        name: str,
        context: FetcherContext,
        endpoint: Callable[[], Endpoint],
        queue: FetchQueue,
        *,
        second: FetchLane | None = None,
        delay_seconds: float = 0.0,
        longest_wait_ms: int = MAX_CORRELATION_ID,
    ) -> None:
        self._name = name
        self._context = context
        self._endpoint = endpoint
        self._queue = queue
        self._second = second
        self._delay_seconds = delay_seconds
        self._longest_wait_ms = longest_wait_ms
        self._partitions: dict[Key, PartitionFetchState] = {}
        self._changed: dict[PartitionFetchState, None] = {}  # what the leader may not know yet
        self._session = FetchSession()
        self._connection: FetchConnection | None = None
        self._connected_to: Endpoint | None = None
        self._correlation_id = 0
        self._failures = 0  # exchanges in a row
        self._is_stopped = False

    async def run(self) -> None:
        """Fetches until stopped and cancelled."""
        try:
            while not self._is_stopped:
                await self._gather()
                try:
                    await self._fetch()
                except (OSError, MalformedResponse, SessionRefused) as error:
                    await self._fail(error)
                except Exception as error:
                    # Here ends a request: whatever it met, the partitions have to be followed further.
                    log.exception("%s: a fetch failed unexpectedly", self._name)
                    await self._fail(error)
        finally:
            await self._disconnect()

    def stop(self) -> None:
        """To be called before the task is cancelled: a library may lose a cancellation that meets another event."""
        self._is_stopped = True

    def remove(self, followed: PartitionFetchState) -> None:
        """Asks for it no more; what is on the way for it is dropped."""
        if self._partitions.get(followed.key) is followed:
            del self._partitions[followed.key]
            self._changed.pop(followed, None)
            self._session.forget(followed.key)

    def release(self) -> list[PartitionFetchState]:
        """Gives all partitions away; what is on the way for them is dropped."""
        released = list(self._partitions.values())
        if released:
            self._partitions.clear()
            self._changed.clear()
            self._begin_session()
        return released

    # A round.

    async def _gather(self) -> None:
        """Takes what is ready, and waits while there is nothing."""
        if not self._partitions and not self._session.begins:
            self._begin_session()  # a session about nothing is of no use
        if self._second is not None:
            self._adopt(self._second.release())
        while not self._partitions:
            await self._until_filled()
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            self._adopt(self._queue.take())
        self._adopt(self._queue.take())

    async def _until_filled(self) -> None:
        try:
            async with asyncio.timeout(KEPT_OPEN_SECONDS):
                await self._queue.filled()
        except TimeoutError:
            await self._disconnect()
            await self._queue.filled()

    def _adopt(self, partitions: Iterable[PartitionFetchState]) -> None:
        for partition in partitions:
            self._partitions[partition.key] = partition
            self._changed[partition] = None

    async def _fetch(self) -> None:
        connection = await self._connected()
        session = self._session
        await self._checkpoint_truncations()
        wanted = await self._wanted()
        if session is not self._session or not self._partitions:
            return
        settings = self._context.settings
        asked = session.request(wanted)
        for key in asked.held_back:
            self._changed[self._partitions[key]] = None
        hurries = bool(asked.held_back) or self._queue.has_ready
        request = FetchRequest(
            replica_id=self._context.broker_id,
            replica_epoch=self._context.registered.broker_epoch,
            max_wait_ms=0 if hurries else min(settings.replica_fetch_wait_max_ms, self._longest_wait_ms),
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            isolation_level=0,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            topics=asked.topics,
            forgotten=asked.forgotten,
            rack="",
        )
        frame = encode_request(request, self._next_correlation_id(), self._name.encode())
        answer = await connection.exchange(frame, settings.replica_socket_timeout_ms / 1000)
        head = read_head(answer, self._correlation_id)
        if session is not self._session:
            if self._session.begins and head.error_code == NONE:
                self._session.session_id = head.session_id  # to be given up by the next request
            return
        if head.error_code != NONE:
            raise SessionRefused(str(error_of(head.error_code)))
        session.answered(head.session_id)
        lost = await self._take_in(session, answer, head.position)
        if lost:
            await self._find_places(connection, lost)
        if self._failures:
            log.info("%s: fetching again after %d failures", self._name, self._failures)
            self._failures = 0

    async def _checkpoint_truncations(self) -> None:
        """Brings to the disk what the next request will say that we have."""
        replicas = ((followed, self._replica(followed)) for followed in self._to_ask())
        waiting = [(followed, replica) for followed, replica in replicas if replica is not None and replica.must_checkpoint_truncation]
        if not waiting:
            return
        results = await asyncio.gather(*(replica.checkpoint_truncation() for _, replica in waiting), return_exceptions=True)
        for (truncated, _), result in zip(waiting, results, strict=True):
            if isinstance(result, ApiError):
                log.error("%s: the truncated log cannot be flushed, retrying: %s", truncated.topic_partition, result)
                self._later(truncated)
            elif isinstance(result, BaseException):
                raise result

    async def _wanted(self) -> dict[Key, FetchPartition]:
        """From where on each partition is to be asked for, of those whose place the leader may not know."""
        max_bytes = self._context.settings.replica_fetch_max_bytes
        to_ask = self._to_ask()
        self._changed.clear()
        wanted: dict[Key, FetchPartition] = {}
        for count, followed in enumerate(to_ask, 1):
            if count % YIELD_AFTER_PARTITIONS == 0:
                await asyncio.sleep(0)
            if self._partitions.get(followed.key) is not followed:
                continue
            replica = self._replica(followed)
            if replica is None:
                self._give_up(followed)
                continue
            offset, last_epoch, leader_epoch, log_start_offset = replica.fetch_position()
            if leader_epoch != followed.follow.leader_epoch:
                # Newer here: the controller that sent it will say whom to follow. Newer there: its request is on the way.
                if leader_epoch > followed.follow.leader_epoch:
                    self._give_up(followed)
                else:
                    self._later(followed)
                continue
            if offset < followed.leader_high_watermark and self._throttled(followed, replica):
                seconds = self._context.throttle.seconds_until_free()
                if seconds:
                    self._put_off(followed, seconds)
                    continue
            wanted[followed.key] = FetchPartition(followed.key[1], leader_epoch, offset, last_epoch, log_start_offset, max_bytes)
        if len(to_ask) >= YIELD_AFTER_PARTITIONS:  # some may have gone, and others come in their place, while the loop had its turns
            wanted = {
                followed.key: wanted[followed.key]
                for followed in to_ask
                if followed.key in wanted and self._partitions.get(followed.key) is followed
            }
        return wanted

    async def _take_in(self, session: FetchSession, frame: memoryview, position: int) -> list[PartitionFetchState]:
        """Takes in the answers; gives the partitions that lost their place."""
        lost = []
        size = count = 0
        for answer in walk(frame, position):
            key = (answer.topic, answer.partition)
            followed, asked = self._partitions.get(key), session.asked(key)
            replica = self._replica(followed) if followed is not None else None
            if followed is None or asked is None or replica is None:
                continue
            outcome = take_in(replica, followed, asked, answer)
            if self._throttled(followed, replica):
                self._context.throttle.record(len(answer.records))
            if outcome is Outcome.PLACE_LOST:
                lost.append(followed)
            else:
                self._follow_up(followed, outcome)
            if answer.records and session.begins and key in self._partitions:
                # Without a session the order of the next request is ours, and what goes into an answer is limited.
                self._partitions[key] = self._partitions.pop(key)
            size += len(answer.records)
            count += 1
            if size >= YIELD_AFTER_BYTES or count >= YIELD_AFTER_PARTITIONS:
                size = count = 0
                await asyncio.sleep(0)
                if session is not self._session:
                    return []
        return lost

    def _follow_up(self, followed: PartitionFetchState, outcome: Outcome) -> None:
        match outcome:
            case Outcome.TAKEN:
                self._changed[followed] = None
            case Outcome.TOO_LATE:
                self._session.forget(followed.key)  # it is sent again
                self._changed[followed] = None
            case Outcome.LATER:
                self._later(followed)
            case Outcome.DAMAGED:
                self._context.counts.crc_errors += 1
                self._later(followed)
            case Outcome.FENCED:
                self._give_up(followed)

    # Partitions that lost their place.

    async def _find_places(self, connection: FetchConnection, lost: list[PartitionFetchState]) -> None:
        """Asks where the leader's logs begin and end, and continues from there."""
        latest = await self._list_offsets(connection, lost, LATEST)
        earliest = await self._list_offsets(connection, lost, EARLIEST)
        nothing = ListedOffset(-1, -1)
        for followed in lost:
            replica = self._replica(followed)
            if self._partitions.get(followed.key) is not followed or replica is None:
                continue
            start, end = earliest.get(followed.topic_partition, nothing), latest.get(followed.topic_partition, nothing)
            if start.error_code or end.error_code or start.offset < 0 or end.offset < 0:
                self._later(followed)
            elif replica.fetch_position().current_leader_epoch == followed.follow.leader_epoch:
                self._follow_up(followed, find_place(replica, followed, start.offset, end.offset))

    async def _list_offsets(
        self, connection: FetchConnection, lost: list[PartitionFetchState], timestamp: int
    ) -> Mapping[TopicPartition, ListedOffset]:
        asked = [(followed.topic_partition, followed.follow.leader_epoch) for followed in lost]
        own = self._context.broker_id
        frame = list_offsets_client.encode_request(self._next_correlation_id(), self._name.encode(), own, timestamp, asked)
        answer = await connection.exchange(frame, self._context.settings.replica_socket_timeout_ms / 1000)
        return list_offsets_client.decode_response(answer, self._correlation_id)

    # The connection.

    async def _connected(self) -> FetchConnection:
        endpoint = self._endpoint()
        if self._connection is not None and self._connected_to != endpoint:
            await self._disconnect()
        if self._connection is None:
            self._connection = await self._context.connect(endpoint)
            self._connected_to = endpoint
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _fail(self, error: Exception) -> None:
        """Waits before the next try; logged when it begins, and when it is over."""
        self._failures += 1
        self._context.counts.failures += 1
        if not isinstance(error, SessionRefused):
            await self._disconnect()
        self._begin_session()
        if self._failures == 1:
            log.log(logging.INFO if isinstance(error, SessionRefused) else logging.WARNING, "%s: %s; retrying", self._name, error)
        await asyncio.sleep(wait_seconds(self._failures, self._context.settings.replica_fetch_backoff_ms))

    # Small ones.

    def _to_ask(self) -> list[PartitionFetchState]:
        return list(self._partitions.values() if self._session.begins else self._changed)

    def _replica(self, followed: PartitionFetchState) -> FollowingReplica | None:
        return self._context.replicas.get(followed.topic_partition)

    def _throttled(self, followed: PartitionFetchState, replica: FollowingReplica) -> bool:
        replicas = replica.settings.follower_replication_throttled_replicas
        return is_throttled(replicas, followed.topic_partition.partition, self._context.broker_id)

    def _later(self, followed: PartitionFetchState) -> None:
        followed.failures += 1
        self._put_off(followed, wait_seconds(followed.failures, self._context.settings.replica_fetch_backoff_ms))

    def _put_off(self, followed: PartitionFetchState, seconds: float) -> None:
        """Leaves it out for a while. One that is not followed any more stays out."""
        if self._partitions.get(followed.key) is followed:
            self.remove(followed)
            self._queue.put_later(followed, seconds)

    def _give_up(self, followed: PartitionFetchState) -> None:
        """Leaves it out until the controller says more."""
        self.remove(followed)
        followed.is_given_up = True

    def _begin_session(self) -> None:
        self._session = FetchSession(self._session.session_id)

    def _next_correlation_id(self) -> int:
        self._correlation_id = self._correlation_id + 1 if self._correlation_id < MAX_CORRELATION_ID else 1
        return self._correlation_id


# What a follower does with what its leader answered for one partition.
#
#     records, high watermark      appended and taken over; a damaged batch is asked for again
#     a diverging epoch            the log is cut where the leader's parts from it (KIP-595)
#     OFFSET_OUT_OF_RANGE          where the leader's log begins and ends has to be asked (`PlaceLost`, then `find_place`)
#     FENCED_LEADER_EPOCH          there is a newer leader; the controller will say which
#     any other error              asked again a little later: mostly the leader does not know yet that it leads
#
# Source: Kafka's `AbstractFetcherThread`.


class Outcome(enum.Enum):
    """What is to follow."""

    TAKEN = "taken"
    TOO_LATE = "too late"  # the partition has moved on since it was asked for, or writes a checkpoint first
    LATER = "later"
    DAMAGED = "damaged"  # asked again later
    FENCED = "fenced"
    PLACE_LOST = "place lost"


def take_in(replica: FollowingReplica, followed: PartitionFetchState, asked: FetchPartition, answer: FetchedPartition) -> Outcome:
    """Brings the replica to where the leader's answer allows."""
    if answer.error_code:
        return _refused(followed, answer.error_code)
    position = replica.fetch_position()
    if (position.fetch_offset, position.current_leader_epoch) != (asked.fetch_offset, asked.current_leader_epoch):
        return Outcome.TOO_LATE
    try:
        if answer.diverging_epoch is not None:
            if not replica.truncate_for(*answer.diverging_epoch):
                return Outcome.TOO_LATE
            if replica.fetch_position() == position:
                return _failed(followed, f"epoch {answer.diverging_epoch[0]} ends at {answer.diverging_epoch[1]}, and nothing is to be cut")
        else:
            epoch = asked.current_leader_epoch
            if not replica.append_as_follower(answer.records, epoch, answer.high_watermark, answer.log_start_offset):
                return Outcome.TOO_LATE
            followed.leader_high_watermark = answer.high_watermark
    except CorruptMessage as error:
        # Bytes that fail their checksum on the way, or on the leader's disk: the first may pass, the second will be seen.
        log.error(
            "%s: the records fetched from broker %d are corrupt: %s", followed.topic_partition, followed.follow.leader.broker_id, error
        )
        return Outcome.DAMAGED
    except ApiError as error:
        return _failed(followed, str(error))
    except Exception:
        # The other partitions of the answer must not pay for this one.
        log.exception("%s: processing the fetch response of broker %d failed", followed.topic_partition, followed.follow.leader.broker_id)
        return Outcome.LATER
    followed.failures = 0
    return Outcome.TAKEN


def find_place(replica: FollowingReplica, followed: PartitionFetchState, earliest: int, latest: int) -> Outcome:
    """Continues from where the leader's log still is: `latest` is its end, `earliest` its beginning.

    An end before ours is that of an unclean leader; where it is before our beginning, too, nothing here is the leader's. A beginning after
    our end means that all we have is gone there.
    """
    position = replica.fetch_position()
    try:
        if latest < position.log_start_offset:
            is_cut = replica.restart_at(earliest)
        elif latest < position.fetch_offset:
            is_cut = replica.truncate_for(NO_PARTITION_LEADER_EPOCH, latest)
        elif earliest > position.fetch_offset:
            is_cut = replica.restart_at(earliest)
        else:
            return _failed(followed, f"offset {position.fetch_offset} is out of range, and in [{earliest}, {latest}]")
    except ApiError as error:
        return _failed(followed, str(error))
    followed.failures = 0
    return Outcome.TAKEN if is_cut else Outcome.TOO_LATE


def _refused(followed: PartitionFetchState, code: int) -> Outcome:
    error = error_of(code)
    match error:
        case OffsetOutOfRange():
            return Outcome.PLACE_LOST
        case FencedLeaderEpoch():
            log.info(
                "%s: broker %d knows a newer leader epoch than %d; waiting for the controller",
                followed.topic_partition,
                followed.follow.leader.broker_id,
                followed.follow.leader_epoch,
            )
            return Outcome.FENCED
    return _failed(followed, str(error))


def _failed(followed: PartitionFetchState, reason: str) -> Outcome:
    """Logged once when it lasts; the first times it is what a change of leaders looks like."""
    log.log(
        logging.WARNING if followed.failures + 1 == WORTH_A_WARNING else logging.DEBUG,
        "%s: cannot follow broker %d in leader epoch %d: %s",
        followed.topic_partition,
        followed.follow.leader.broker_id,
        followed.follow.leader_epoch,
        reason,
    )
    return Outcome.LATER
