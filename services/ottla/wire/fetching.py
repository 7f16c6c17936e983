"""Reading whole batches: the fetch loop that every consumer stands on.

    async with Fetcher(cluster, FetchSettings(read_committed=True), out_of_range=lambda partition, offset: EARLIEST) as fetcher:
        fetcher.assign(TopicPartition("clicks", 0), 17)
        for fetched in await fetcher.poll(1.0):
            ...

Each broker that is read from has a lane: a connection of its own, a fetch session (KIP-227), one request on its way at a time. A lane
asks on while what it has brought waits to be polled, up to `max_buffered_bytes`. What it brings are views of the answer: no record
is looked at, and of a batch nothing but its header and, unless `check_crcs` is off, its checksum: that while the broker already
works on the next request.

    homeless ──(who leads it?)── in a lane ──(not leader, unknown, connection lost, …)── homeless
       └──────(no such topic any more, not allowed, damaged, out of range without a policy)── failed: `poll` raises

A partition that is assigned again is another `_Place`: what is on its way for the former one is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from ottla.errors import (
    NONE,
    ApiError,
    CorruptMessage,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OttlaError,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_of,
    reason_of,
)
from ottla.lifecycle import Tasks
from ottla.model import BrokerId, TopicPartition
from ottla.protocol import list_offsets_client
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    MAX_VERSION,
    MIN_VERSION,
    READ_COMMITTED,
    TOPIC_ID_VERSION,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    NodeEndpoint,
)
from ottla.protocol.fetch_client import (
    FetchedPartition,
    MalformedResponse,
    ResponseHead,
    encode_request,
    read_answer,
    read_head,
)
from ottla.protocol.list_offsets_client import EARLIEST, LATEST, ListedOffset
from ottla.record.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, check_crcs, check_fetched, read_header, spans
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, asks_for_metadata, is_healed_by_time
from ottla.wire.fetch_session import FetchSession, Key

log = logging.getLogger(__name__)

# As long as one that is cut off may take itself for the leader of a partition: more than a broker's session with ZooKeeper.
FORMER_LEADER_SECONDS: Final = 30.0
KIB: Final = 1024
MIB: Final = 1024 * KIB
_NUMBERS: Final = itertools.count(1)  # of fetchers, as each has connections of its own

# Where to go on with a partition whose offset its log does not have: LATEST, EARLIEST, a time in milliseconds, or None: not at all.
OutOfRange = Callable[[TopicPartition, int], int | None]


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How one reads. Names are those of Kafka's consumer.

    Attributes:
        max_wait_ms: how long a broker waits for `min_bytes` (`fetch.max.wait.ms`).
        max_bytes: of one answer; a single batch may exceed it (`fetch.max.bytes`).
        max_partition_bytes: of one partition in one answer (`max.partition.fetch.bytes`).
        read_committed: nothing of transactions that are open; those that were aborted are named (`isolation.level`).
        check_crcs: whether checksums are compared (`check.crcs`).
        max_buffered_bytes: lanes pause while more than this waits to be polled.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 * MIB
    max_partition_bytes: int = MIB
    read_committed: bool = False
    check_crcs: bool = True
    max_buffered_bytes: int = 32 * MIB


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches of one partition.

    Attributes:
        offset: that was asked for; the first batch may begin before it.
        next_offset: behind the last batch.
        records: the batches, one after the other, as the broker has them. A view; the memory of the whole answer lives as long.
        aborted: the aborted transactions that reach into them; `visible_batches` leaves them out.
        last_epoch: the leader epoch of the last batch.
    """

    partition: TopicPartition
    offset: int
    next_offset: int
    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    last_epoch: int = -1


class FetchFailed(OttlaError):
    """A partition cannot be read on; it is assigned no more. The cause is an ApiError.

    Attributes:
        partition: which.
        offset: where it stood.
    """

    def __init__(self, partition: TopicPartition, offset: int, error: ApiError) -> None:
        super().__init__(f"{partition} at offset {offset}: {reason_of(error)}")
        self.partition = partition
        self.offset = offset
        self.__cause__ = error


def visible_spans(records: memoryview, aborted: Sequence[AbortedTransaction]) -> Iterator[tuple[int, int]]:
    """Where the batches begin and end that a reader of committed data sees: no control batches, and nothing that was aborted (KIP-98).

    Raises:
        InvalidRecord: a control batch holds no marker.
    """
    to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    now_aborted: set[int] = set()
    for position, end, attributes in spans(records):
        if not attributes & (CONTROL_MASK | TRANSACTIONAL_MASK):
            yield position, end
            continue
        header = read_header(records, position)
        while to_come and to_come[0].first_offset <= header.last_offset:
            now_aborted.add(to_come.popleft().producer_id)
        if not header.is_control:
            if header.producer_id not in now_aborted:
                yield position, end
        elif header.producer_id in now_aborted:
            marker = marker_of(records[position:end])
            if marker is not None and marker.control_type is ControlRecordType.ABORT:
                now_aborted.discard(header.producer_id)


def visible_batches(records: memoryview, aborted: Sequence[AbortedTransaction]) -> Iterator[tuple[int, BatchHeader]]:
    """As `visible_spans`, each batch as (position, header)."""
    for position, _ in visible_spans(records, aborted):
        yield position, read_header(records, position)


@dataclass(slots=True, eq=False)
class _Place:
    """Where the reading of a partition stands."""

    partition: TopicPartition
    offset: int
    last_epoch: int  # of the batch before the offset
    look_up: int | None = None  # LATEST, EARLIEST or a time: the offset is still to be found out
    coming: Fetched | None = None  # what the loop's next turn gives to polls
    leader_epoch: int = -1
    topic_id: UUID | None = None  # of the topic that it was when it was assigned
    preferred: tuple[BrokerId, float] | None = None  # a replica to read from, and until when (KIP-392)
    ready_at: float = 0.0
    read_at: float = 0.0  # when a broker was asked last that said what there is, or that there is nothing
    is_stale: bool = False  # what is known of its leader is to be refreshed
    refusals: int = 0  # in a row
    unknown_since: float | None = None  # without another answer between
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1

    def __post_init__(self) -> None:
        self.look_up = self.offset if self.offset < 0 else None
        self.read_at = asyncio.get_running_loop().time()

    @property
    def given(self) -> int:
        """The offset up to which polls have it, or find it there."""
        return self.offset if self.coming is None else self.coming.offset


class _SessionRefused(OttlaError):
    """The broker does not know the fetch session (any more), or refuses the request as a whole."""


class Fetcher:
    """Reads any number of partitions, each from the offset that is given, until closed.

    Args:
        cluster: is the caller's to close, after the fetcher.
        out_of_range: asked when a log has no such offset; None fails the partition with OffsetOutOfRange.
    """

    def __init__(
        self, cluster: Cluster, settings: FetchSettings | None = None, out_of_range: OutOfRange = lambda partition, offset: None
    ) -> None:
        self.cluster: Final = cluster
        self.settings: Final = settings or FetchSettings()
        self.lane_name: Final = f"fetch-{next(_NUMBERS)}"
        self.out_of_range: Final = out_of_range
        self._places: dict[TopicPartition, _Place] = {}
        self._homeless: dict[TopicPartition, _Place] = {}
        self._lanes: dict[BrokerId, _Lane] = {}
        self._tasks: Final = Tasks()
        self._placing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._arrived: deque[Fetched | Exception] = deque()
        self._arrival = asyncio.Event()
        self._buffered = 0
        self.coming = 0  # bytes that lanes hand over in the loop's next turn
        self._room = asyncio.Event()
        self._room.set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Reads no more. What has arrived and was not polled is dropped."""
        self._is_closed = True
        self._tasks.cancel()
        await self._tasks.wait()
        await self.cluster.end_lane(self.lane_name)
        self._arrived.clear()

    # What is read.

    @property
    def assigned(self) -> Mapping[TopicPartition, int]:
        """The partitions and the offset up to which each has come; below 0 while that is still looked up."""
        return {partition: place.given for partition, place in self._places.items()}

    def assign(self, partition: TopicPartition, offset: int, *, last_epoch: int = -1) -> None:
        """Reads the partition from there on, whether it was read already or not. What waits to be polled of it is dropped.

        Args:
            offset: or LATEST, or EARLIEST.
            last_epoch: the leader epoch of the record before it, if known: then a log that was cut since is noticed (KIP-595).
        """
        self.unassign(partition)
        place = _Place(partition, offset, last_epoch)
        self._places[partition] = place
        self._seek_home(place)
        if self._following is None:
            self._following = self._begin(self.cluster.keep_current(self._places, self._follow_leaders))

    def unassign(self, partition: TopicPartition) -> None:
        """Reads the partition no more, and drops what waits to be polled of it."""
        place = self._places.pop(partition, None)
        if place is not None:
            self._leave_home(place)
        kept = [arrived for arrived in self._arrived if not isinstance(arrived, Fetched | FetchFailed) or arrived.partition != partition]
        self._arrived = deque(kept)
        self._buffered = sum(len(arrived.records) for arrived in kept if isinstance(arrived, Fetched))
        self._has_changed()

    def watermarks(self, partition: TopicPartition) -> tuple[int, int, int]:
        """Log start offset, last stable offset and high watermark as last heard; -1 before that. Raises KeyError if not assigned."""
        place = self._places[partition]
        return place.log_start_offset, place.last_stable_offset, place.high_watermark

    @property
    def unread_seconds(self) -> float:
        """For how long there is a partition of which no broker has said what there is; 0 without partitions."""
        now = asyncio.get_running_loop().time()
        return now - min((place.read_at for place in self._places.values()), default=now)

    async def poll(self, timeout_seconds: float) -> list[Fetched]:
        """What has arrived since, in each partition's order; waits for something up to the timeout.

        Raises:
            FetchFailed: a partition cannot be read on. What arrived before that is given first.
        """
        if not self._arrived:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._arrival.wait()
        taken: list[Fetched] = []
        while self._arrived:
            first = self._arrived[0]
            if isinstance(first, Exception):
                if not taken:
                    self._arrived.popleft()
                    self._has_changed()
                    raise first
                break
            taken.append(first)
            self._arrived.popleft()
            self._buffered -= len(first.records)
        self._has_changed()
        return taken

    # For lanes.

    async def room(self) -> None:
        """Waits while too much waits to be polled."""
        if self._buffered + self.coming >= self.settings.max_buffered_bytes:
            await asyncio.sleep(0)
        await self._room.wait()

    def deliver(self, arrived: Fetched | Exception) -> None:
        """Gives it to the next poll."""
        self._arrived.append(arrived)
        if isinstance(arrived, Fetched):
            self._buffered += len(arrived.records)
        self._has_changed()

    def is_current(self, place: _Place) -> bool:
        """Whether the partition is still read from this place on."""
        return self._places.get(place.partition) is place

    def fail(self, place: _Place, error: ApiError) -> None:
        """Reads the partition no more, and says so to the next poll."""
        if self.is_current(place):
            del self._places[place.partition]
            self._leave_home(place)
            self.deliver(FetchFailed(place.partition, place.given, error))

    def rehome(self, place: _Place, *, is_stale: bool) -> None:
        """Looks up again who is to be asked for the partition."""
        self._leave_home(place)
        place.is_stale = place.is_stale or is_stale
        if self.is_current(place):
            self._seek_home(place)

    def ended(self, lane: _Lane) -> None:
        """The lane has nothing to ask for any more."""
        if self._lanes.get(lane.broker_id) is lane:
            del self._lanes[lane.broker_id]

    # Homes.

    def _leave_home(self, place: _Place) -> None:
        if self._homeless.get(place.partition) is place:
            del self._homeless[place.partition]
        for lane in self._lanes.values():
            lane.remove(place)

    def _seek_home(self, place: _Place) -> None:
        self._homeless[place.partition] = place
        if not self._is_unknown(place) and self._find_home(place):
            return  # without waiting for an answer about others
        if self._placing is None or self._placing.done():
            self._placing = self._begin(self._find_homes())

    async def _find_homes(self) -> None:
        cluster = self.cluster
        failures = 0
        while self._homeless:
            places = list(self._homeless.values())
            unknown = {place.partition.topic for place in places if self._is_unknown(place)}
            try:
                if unknown:
                    await cluster.refresh(unknown)
            except (OSError, OttlaError) as error:
                if isinstance(error, ApiError) and not error.retriable:
                    for place in places:
                        self.fail(place, error)
                    continue
                if not failures:
                    log.warning("metadata of %d topics could not be had, trying again: %s", len(unknown), error)
                failures += 1
                await asyncio.sleep(cluster.pause_seconds(failures))
                continue
            waiting = [place for place in places if self._homeless.get(place.partition) is place and not self._find_home(place)]
            failures = failures + 1 if waiting else 0
            if waiting:
                await asyncio.sleep(cluster.pause_seconds(failures))

    def _follow_leaders(self) -> None:
        """Moves what is led in a later epoch by now."""
        for partition, place in list(self._places.items()):
            topic = self.cluster.metadata.topics.get(partition.topic)
            known = topic.partitions.get(partition.partition) if topic is not None else None
            if partition not in self._homeless and known is not None and known.leader_epoch > place.leader_epoch:
                self.rehome(place, is_stale=False)

    def _is_unknown(self, place: _Place) -> bool:
        return place.is_stale or place.partition.topic not in self.cluster.metadata.topics

    def _find_home(self, place: _Place) -> bool:
        """Gives the partition to the lane of who is to be asked for it; False if that is to be tried again."""
        metadata = self.cluster.metadata
        now = asyncio.get_running_loop().time()
        try:
            topic = metadata.topic(place.partition.topic)
            if place.topic_id is not None and topic.topic_id is not None and topic.topic_id != place.topic_id:
                raise UnknownTopicId(f"{place.partition.topic} was made again: its id was {place.topic_id} and is {topic.topic_id}")
            leader = metadata.leader(place.partition)
        except ApiError as error:
            if isinstance(error, UnknownTopicId) or not error.retriable or self.is_refused_for_long(place, now, error):
                self.fail(place, error)
                return True
            place.is_stale = True
            return False
        place.topic_id = topic.topic_id or place.topic_id  # some brokers of a cluster that is being updated do not say it
        place.leader_epoch = metadata.partition(place.partition).leader_epoch
        place.is_stale = False
        home = leader
        if place.preferred is not None:
            replica, until = place.preferred
            if now < until and replica in metadata.brokers and place.look_up is None:
                home = replica
            else:
                place.preferred = None
        del self._homeless[place.partition]
        lane = self._lanes.get(home)
        if lane is None:
            lane = self._lanes[home] = _Lane(self, home)
            lane.add(place)
            self._begin(lane.run())
        else:
            lane.add(place)
        return True

    def is_refused_for_long(self, place: _Place, now: float, error: ApiError) -> bool:
        """Counts a refusal; True when the topic has been unknown, and nothing else, for as long as one waits for an answer."""
        is_unknown = isinstance(error, UnknownTopicOrPartition)
        if not place.refusals or not is_unknown:
            place.unknown_since = None
        place.refusals += 1
        if not is_unknown:
            return False
        if place.unknown_since is None:
            place.unknown_since = now
        return now - place.unknown_since > self.cluster.settings.api_timeout_seconds

    def _has_changed(self) -> None:
        if self._arrived:
            self._arrival.set()
        else:
            self._arrival.clear()
        if self._buffered < self.settings.max_buffered_bytes:
            self._room.set()
        else:
            self._room.clear()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks.begin(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._is_closed:
            # Nothing is read on by this task, so the next poll has to fail.
            self.deliver(error if isinstance(error, Exception) else RuntimeError(f"reading ended: {error!r}"))


class _Lane:
    """One broker that is read from."""

    def __init__(self, fetcher: Fetcher, broker_id: BrokerId) -> None:
        self.broker_id: Final = broker_id
        self._fetcher = fetcher
        self._cluster = fetcher.cluster
        self._places: dict[TopicPartition, _Place] = {}
        self._session = FetchSession()
        self._speaks_ids: bool | None = None  # in this session
        self._connection: BrokerConnection | None = None
        self._failures = 0
        self._changed = asyncio.Event()

    def add(self, place: _Place) -> None:
        self._places[place.partition] = place
        self._changed.set()

    def remove(self, place: _Place) -> None:
        if self._places.get(place.partition) is place:
            del self._places[place.partition]
            # By whichever of the two the session knows it.
            self._session.forget((place.partition.topic, place.partition.partition))
            if place.topic_id is not None:
                self._session.forget((place.topic_id, place.partition.partition))

    async def run(self) -> None:
        """Asks until there is nothing to ask for."""
        try:
            while self._places:
                await self._fetcher.room()
                try:
                    await self._round()
                    self._failures = 0
                except (OSError, MalformedResponse, _SessionRefused) as error:
                    await self._failed(error)
                except ApiError as error:  # of the connection: versions, credentials
                    if is_healed_by_time(error):
                        await self._failed(error)
                        continue
                    for place in list(self._places.values()):
                        self._fetcher.fail(place, error)
        finally:
            self._fetcher.ended(self)
            if self._connection is not None:
                await self._connection.close()

    async def _failed(self, error: Exception) -> None:
        self._session = FetchSession(self._session.session_id)
        if self._failures == 0:
            # A broker that has restarted, or has too many sessions, forgets them.
            level = logging.DEBUG if isinstance(error.__cause__, _FORGOTTEN) else logging.WARNING
            log.log(level, "fetching from broker %d, trying again: %s", self.broker_id, error)
        self._failures += 1
        if not isinstance(error, _SessionRefused):
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()
            for place in list(self._places.values()):
                place.preferred = None
                self._fetcher.rehome(place, is_stale=True)
        await asyncio.sleep(self._cluster.pause_seconds(self._failures - 1))

    async def _round(self) -> None:
        connection = await self._cluster.connection(self.broker_id, self._fetcher.lane_name)
        if connection is not self._connection:
            self._connection = connection
            self._session = FetchSession()
        unplaced = [place for place in self._places.values() if place.look_up is not None]
        if unplaced:
            await self._look_up(connection, unplaced)
        now = asyncio.get_running_loop().time()
        for place in list(self._places.values()):
            if place.preferred is not None and place.preferred[1] <= now:
                self._fetcher.rehome(place, is_stale=False)  # the leader says again which replica is near and has everything
        asked = {place.partition: place for place in self._places.values() if place.ready_at <= now and place.look_up is None}
        if not asked:
            await self._until_ready(now)
            return
        speaks_ids = all(place.topic_id is not None for place in asked.values())
        version = connection.version(ApiKey.FETCH, MIN_VERSION, MAX_VERSION if speaks_ids else TOPIC_ID_VERSION - 1)
        speaks_ids = version >= TOPIC_ID_VERSION
        if speaks_ids is not self._speaks_ids:
            self._session, self._speaks_ids = FetchSession(self._session.session_id), speaks_ids
        for place in self._places.values():
            if place.partition not in asked and (place.topic_id is not None or not speaks_ids):
                self._session.forget(_key(place, speaks_ids))
        wanted = {_key(place, speaks_ids): place for place in asked.values()}
        offsets = {partition: place.offset for partition, place in asked.items()}
        _, answers, endpoints = await self._exchange(connection, version, wanted)
        nodes = {endpoint.node_id: endpoint for endpoint in endpoints}
        for answer in answers:
            known = wanted.get((answer.topic, answer.partition))
            if known is not None and self._places.get(known.partition) is known and known.offset == offsets[known.partition]:
                self._take(known, answer, nodes)
        for place in asked.values():  # a session answers with the partitions that changed only
            if not place.refusals and self._places.get(place.partition) is place:
                place.read_at = now  # as of the question: the answer may have lain in its socket

    async def _exchange(
        self, connection: BrokerConnection, version: int, wanted: Mapping[Key, _Place]
    ) -> tuple[ResponseHead, list[FetchedPartition], list[NodeEndpoint]]:
        settings = self._fetcher.settings
        session = self._session
        most = settings.max_partition_bytes
        sent = session.request(
            {
                key: FetchPartition(place.partition.partition, place.leader_epoch, place.offset, place.last_epoch, -1, most)
                for key, place in wanted.items()
            }
        )
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            replica_epoch=-1,
            max_wait_ms=0 if sent.held_back else settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=READ_COMMITTED if settings.read_committed else 0,
            session_id=sent.session_id,
            session_epoch=sent.session_epoch,
            topics=sent.topics,
            forgotten=sent.forgotten,
            rack=self._cluster.settings.rack,
        )
        answer = await fetch(connection, request, version, self._cluster.settings.request_timeout_seconds)
        if answer[0].error_code != NONE:
            error = error_of(answer[0].error_code)
            raise _SessionRefused(str(error)) from error
        session.answered(answer[0].session_id)
        return answer

    async def _until_ready(self, now: float) -> None:
        """Waits until a partition may be asked for again, or there is another one."""
        self._changed.clear()
        first = min((place.ready_at for place in self._places.values()), default=now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(first - now, 0.0)):
                await self._changed.wait()

    def _take(self, place: _Place, answer: FetchedPartition, nodes: Mapping[int, NodeEndpoint]) -> None:
        if answer.error_code != NONE:
            self._refused(place, answer, nodes)
            return
        place.refusals = 0
        if answer.preferred_read_replica >= 0 and answer.preferred_read_replica != self.broker_id:
            now = asyncio.get_running_loop().time()
            replica = BrokerId(answer.preferred_read_replica)
            place.preferred = (replica, now + self._cluster.settings.metadata_max_age_seconds)
            is_known = replica in self._cluster.metadata.brokers
            if not is_known:  # and where no one else has heard of it either, the leader names it again at once
                place.ready_at = now + self._cluster.pause_seconds(0)
            self._fetcher.rehome(place, is_stale=not is_known)
            return
        if answer.diverging_epoch is not None:
            if not self._leaves_replica(place) and not self._leaves_former_leader(place):
                self._was_cut(place, *answer.diverging_epoch)
            return
        place.high_watermark, place.last_stable_offset = answer.high_watermark, answer.last_stable_offset
        place.log_start_offset = answer.log_start_offset
        if answer.records:
            try:
                fetched = self._fetched(place, answer)
            except ApiError as error:
                self._fetcher.fail(place, error)
                return
            # In the loop's next turn: what this one still does is to ask for more.
            asyncio.get_running_loop().call_soon(self._hand_over, place, fetched)
            place.coming = fetched
            self._fetcher.coming += len(fetched.records)
            self._places[place.partition] = self._places.pop(place.partition)  # a broker that keeps no session takes us by our order

    def _fetched(self, place: _Place, answer: FetchedPartition) -> Fetched:
        """What has come, after a look at each header; checksums are looked at when it is handed over.

        Raises:
            CorruptMessage, UnsupportedForMessageFormat: it cannot be handed on.
        """
        records = answer.records
        end, next_offset, leader_epoch = check_fetched(records, place.offset)
        if not end:
            raise CorruptMessage(f"{len(records)} bytes came, and no whole batch is in them")
        fetched = Fetched(
            place.partition,
            place.offset,
            next_offset,
            records[:end],
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            answer.aborted_transactions,
            leader_epoch,
        )
        place.offset, place.last_epoch = next_offset, leader_epoch
        return fetched

    def _hand_over(self, place: _Place, fetched: Fetched) -> None:
        """Gives what came to the next poll, unless it is not wanted any more, or damaged."""
        self._fetcher.coming -= len(fetched.records)
        if not self._fetcher.is_current(place):
            return
        if self._fetcher.settings.check_crcs:
            try:
                check_crcs(fetched.records)
            except CorruptMessage as error:
                self._fetcher.fail(place, error)
                return
        place.coming = None
        self._fetcher.deliver(fetched)

    def _refused(self, place: _Place, answer: FetchedPartition, nodes: Mapping[int, NodeEndpoint]) -> None:
        now = asyncio.get_running_loop().time()
        error = error_of(answer.error_code, f"broker {self.broker_id} answers")
        if isinstance(error, OffsetOutOfRange):
            if not self._leaves_replica(place) and not self._leaves_former_leader(place):
                self._is_out_of_range(place, error)
            return
        is_unexplained = answer.error_code == UnknownServerError.code  # it may be answered the next time, as Kafka's consumers have it
        is_final = not error.retriable and not is_unexplained
        if is_final or isinstance(error, CorruptMessage) or self._fetcher.is_refused_for_long(place, now, error):
            self._fetcher.fail(place, error)
            return
        if is_unexplained and place.refusals == 1:
            log.warning("%s at offset %d, asking again: %s", place.partition, place.offset, reason_of(error))
        place.ready_at = now + self._cluster.pause_seconds(place.refusals - 1)
        if asks_for_metadata(error) or isinstance(error, OffsetNotAvailable):  # the latter of a replica that is behind, too
            place.preferred = None
            hinted = self._cluster.metadata.hint(place.partition, answer.current_leader, nodes)
            if hinted:
                place.ready_at = now
            self._fetcher.rehome(place, is_stale=not hinted)

    def _leaves_replica(self, place: _Place) -> bool:
        """Turns from a replica, which may be behind (KIP-392), to the leader, which knows what the log has; False at the leader."""
        if place.preferred is None:
            return False
        place.preferred = None
        self._fetcher.rehome(place, is_stale=False)
        return True

    def _leaves_former_leader(self, place: _Place) -> bool:
        """Looks the leader up again where what is known of it is older than what was read; False if it is not, or as no newer one is found.

        The position is of another member of the group, say, which read it at the next leader: one that is cut off may have less.
        """
        now = asyncio.get_running_loop().time()
        is_former = 0 <= place.leader_epoch < place.last_epoch
        if not is_former or now - place.read_at > FORMER_LEADER_SECONDS:  # or the topic was made again
            return False
        place.refusals += 1
        place.ready_at = now + self._cluster.pause_seconds(place.refusals - 1)
        self._fetcher.rehome(place, is_stale=True)
        return True

    # Partitions that have lost their place.

    def _is_out_of_range(self, place: _Place, error: ApiError) -> None:
        restart = self._fetcher.out_of_range(place.partition, place.offset)
        if restart is None:
            self._fetcher.fail(place, OffsetOutOfRange(f"the log does not have offset {place.offset}, and no policy says where to go on"))
            return
        log.info("%s: offset %d is out of range; continuing at %s", place.partition, place.offset, _NAMES.get(restart, f"{restart} ms"))
        place.look_up, place.last_epoch = restart, -1

    async def _look_up(self, connection: BrokerConnection, places: Sequence[_Place]) -> None:
        """Asks for the offsets that are still to be found out. What is refused is treated as an answer to Fetch would be."""
        loop = asyncio.get_running_loop()
        ready = [place for place in places if place.ready_at <= loop.time()]
        by_time: dict[int, list[_Place]] = {}
        for place in ready:
            assert place.look_up is not None
            by_time.setdefault(place.look_up, []).append(place)
        for timestamp, asked in by_time.items():
            found = await ask_offsets(
                connection,
                timestamp,
                [(place.partition, place.leader_epoch) for place in asked],
                read_committed=self._fetcher.settings.read_committed,
                timeout_seconds=self._cluster.settings.request_timeout_seconds,
            )
            for place in asked:
                listed = found.get(place.partition)
                # A log has an end always, and no offset was named that could be out of range: to ask again at once would be without end.
                if listed is None or listed.error_code == OffsetOutOfRange.code or (timestamp, *listed[:2]) == (LATEST, NONE, -1):
                    listed = ListedOffset(UnknownServerError.code, -1)
                if self._places.get(place.partition) is not place or place.look_up != timestamp:
                    continue
                if listed.error_code != NONE:
                    self._refused(place, FetchedPartition("", 0, listed.error_code, -1, -1, None, memoryview(b"")), {})
                elif listed.offset < 0:
                    place.look_up = LATEST  # nothing is as young as that
                else:
                    place.offset, place.look_up, place.refusals = listed.offset, None, 0

    def _was_cut(self, place: _Place, epoch: int, end_offset: int) -> None:
        """The log has other records than were read: it ended, in the epoch that we read last, before our offset (KIP-320, KIP-595)."""
        restart = self._fetcher.out_of_range(place.partition, place.offset)
        message = f"the log was cut to offset {end_offset} of leader epoch {epoch}; not all up to {place.offset} is in it any more"
        if restart is None:
            self._fetcher.fail(place, OffsetOutOfRange(message))
            return
        log.warning("%s: %s; going on from there", place.partition, message)
        place.offset, place.last_epoch = min(end_offset, place.offset), epoch


_FORGOTTEN: Final = (FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch)
_NAMES: Final = {EARLIEST: "its beginning", LATEST: "its end"}


def _key(place: _Place, speaks_ids: bool) -> Key:
    """What a fetch session calls the partition."""
    topic: UUID | str | None = place.topic_id if speaks_ids else place.partition.topic
    assert topic is not None
    return topic, place.partition.partition


async def fetch(
    connection: BrokerConnection, request: FetchRequest, version: int, timeout_seconds: float
) -> tuple[ResponseHead, list[FetchedPartition], list[NodeEndpoint]]:
    """One Fetch, without a loop: for a caller with a connection of its own.

    Args:
        request: topics by id from version 13 on, by name below.
        timeout_seconds: beyond the request's own `max_wait_ms`.

    Raises:
        As `BrokerConnection.ask`.
    """
    number = connection.next_correlation_id()
    frame = encode_request(request, number, connection.client_id, version)
    answer = await connection.send((frame,), timeout_seconds + request.max_wait_ms / 1000)
    try:
        head = read_head(answer, number, version)
        partitions, endpoints = read_answer(answer, head.position, version)
    except MalformedResponse:
        await connection.close()
        raise
    return head, partitions, endpoints


async def ask_offsets(
    connection: BrokerConnection,
    timestamp: int,
    partitions: Iterable[tuple[TopicPartition, int]],
    *,
    read_committed: bool,
    timeout_seconds: float,
) -> Mapping[TopicPartition, ListedOffset]:
    """One ListOffsets, without a loop. As `offsets.list_offsets`; -1 of a time that no record is as young as.

    Args:
        partitions: each with the leader epoch that is known, or -1.

    Raises:
        As `BrokerConnection.ask`.
    """
    client = list_offsets_client
    version = connection.version(ApiKey.LIST_OFFSETS, client.MIN_VERSION, client.MAX_VERSION)
    number = connection.next_correlation_id()
    isolation_level = READ_COMMITTED if read_committed else 0
    frame = client.encode_request(
        number, connection.client_id, CONSUMER_REPLICA_ID, timestamp, partitions, version=version, isolation_level=isolation_level
    )
    answer = await connection.send((frame,), timeout_seconds)
    try:
        return client.decode_response(answer, number, version)
    except MalformedResponse:
        await connection.close()
        raise
