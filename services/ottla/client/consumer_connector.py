"""The consumer connector of the paper: streams of messages for the consumers of a group, which share the partitions out by themselves.

    with ConsumerConnector(ConsumerSettings(group_id="billing", zookeeper_connect="127.0.0.1:2181")) as connector:
        streams = connector.create_message_streams({"clicks": 2})
        for message in streams["clicks"][0]: ...

The consumers of a group meet in ZooKeeper, without a coordinator. When one comes or goes, or a topic does, each works the assignment out
for itself (`assignment`), lets go of what it is to lose, and claims what it is to have; a partition whose former owner has not let go
yet is claimed as soon as that one has.

    watch fires, session renewed ──> read consumers and topics ──> release ──> claim ──> fetch
                   └──────── again, after `rebalance.backoff.ms` or when an owner in the way has gone ───────┘

A session that has expired, or that was not heard of for its whole timeout, takes the partitions away before anything else is handed out.

`AsyncConsumerConnector` belongs to the loop that it was opened on. Only the owner of a partition fetches it or writes its offset.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Collection, Container, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, Self, TypeVar

from ottla.client.assignment import ASSIGNORS
from ottla.client.discovery import brokers_in_zookeeper, open_client_session
from ottla.client.errors import ClientClosed, RebalanceFailed
from ottla.client.group_registry import GroupRegistry, check_topics
from ottla.client.message_stream import AsyncMessageStream, Chunk, Feed, MessageStream
from ottla.client.topic_filters import BlackList, TopicFilter, WhiteList
from ottla.clock import Clock, SystemClock
from ottla.config.client import ConsumerSettings
from ottla.config.settings import LONG_MAX
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, CoordinationError, SessionExpired
from ottla.coordination.interface import Coordination, SessionEvent, WatchedEvent
from ottla.coordination.sessions import CoordinationSessions, OpenSession
from ottla.errors import ApiError, BrokerNotAvailable, ConfigurationError, OttlaError, UnsupportedVersion
from ottla.lifecycle import LoopThread, LoopThreadUnusable, all_to_their_end, is_cancelled, to_its_end
from ottla.model import TopicPartition
from ottla.wire.broker_connection import Security
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import FetchSettings
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

ZOOKEEPER, KAFKA = "zookeeper", "kafka"
_LOOKS_A_TIMEOUT: Final = 10
_LISTING_SECONDS: Final = 10.0  # for leaders to say where partitions begin or end: they are asked again
_LEASE_SHARE: Final = 0.9  # of a session's timeout: without a word of ZooKeeper for so long, partitions are given up
_FILTERS: Final[Mapping[str, type[TopicFilter]]] = {filter_type.pattern: filter_type for filter_type in (WhiteList, BlackList)}
_CALL_SECONDS: Final = 120.0
_CLOSE_SECONDS: Final = 30.0


class AsyncConsumerConnector:
    """A consumer of a group, on the caller's event loop.

    Args:
        settings: `group_id` is needed.
        security: TLS and SASL towards brokers.
        open_session: where sessions with ZooKeeper come from, instead of `zookeeper.connect`.
        clock, random: for the id that is made up when `consumer.id` is unset.

    Raises:
        ConfigurationError: settings that contradict each other.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        security: Security | None = None,
        open_session: OpenSession | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        for _, error in settings.contradictions():
            raise error
        settings.warn_without_effect(settings.given, log)
        self.settings: Final = settings
        self._clock: Final = clock or SystemClock()
        chance = (random or Random()).getrandbits(32)
        made_up = f"{settings.group_id}_{socket.gethostname()}-{self._clock.time_ms()}-{chance:08x}"
        self.consumer_id: Final = settings.consumer_id or made_up
        self._security = security or Security()
        self._sessions: Final = CoordinationSessions(open_session or _zookeeper_of(settings), self._session_lost, self._session_renewed)
        self._cluster: Cluster | None = None
        self._registry: GroupRegistry | None = None
        self._feeds: list[Feed] = []
        self._filter: TopicFilter | None = None
        self._topics: dict[str, list[int]] = {}  # by topic or, of a filter, by its expression: the feeds
        self._owned: dict[TopicPartition, int] = {}  # and the feed that reads it
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rebalancing = asyncio.Lock()
        self._committing = asyncio.Lock()  # one after the other: a coordinator takes those of former owners, too
        self._has_streams = False  # or is about to have
        self._is_closed = False
        self._leaving = asyncio.Lock()  # who shuts down while another does waits for its end
        self._losses = 0  # how often everything was taken away

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    # The paper's calls.

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[AsyncMessageStream]]:
        """Joins the group, and gives so many streams of each topic. Once for a connector.

        Raises:
            ConsumerIdInUse: the group has a consumer of that id.
            BrokerNotAvailable: ZooKeeper knows no broker.
            BadArguments: a name that no topic can have.
            CoordinationError: ZooKeeper cannot be reached.
        """
        streams: dict[str, list[AsyncMessageStream]] = {}
        await self._join(dict(topics), None)
        for topic, feeds in self._topics.items():
            streams[topic] = [AsyncMessageStream(self._feeds[index], self.settings.consumer_timeout_ms) for index in feeds]
        return streams

    async def create_message_streams_by_filter(self, topic_filter: TopicFilter, count: int = 1) -> list[AsyncMessageStream]:
        """As `create_message_streams`, of all topics that a filter allows, also of those that are made later."""
        await self._join({topic_filter.expression: count}, topic_filter)
        return [AsyncMessageStream(feed, self.settings.consumer_timeout_ms) for feed in self._feeds]

    async def commit_offsets(self) -> None:
        """Commits all that was handed out: the caller has processed it.

        Raises:
            BadVersion: a partition belongs to another consumer by now, who reads the message in hand again; the others are committed.
            CoordinationError, ApiError, OSError: they could not be written.
        """
        await self._commit([chunk for feed in self._feeds if (chunk := feed.mark_processed()) is not None])

    async def shutdown(self) -> None:
        """Leaves the group: what is processed is committed, unless `auto.commit.enable` is off, and the partitions are released."""
        async with self._leaving:
            if not self._is_closed:
                self._is_closed = True
                await self._leave()

    async def _leave(self) -> None:
        try:
            await self._sessions.stop_renewing()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._registry is not None:
                await self._release(list(self._owned))
        except (OttlaError, OSError) as error:
            log.warning("left the group %s without releasing everything: %s", self.settings.group_id, error)
        finally:
            await self._close()

    async def _close(self) -> None:
        self._session_lost()  # what a shutdown that was given up has not released
        await self._sessions.close()
        for feed in self._feeds:
            await feed.close()
        if self._cluster is not None:
            await self._cluster.close()

    # Beyond the paper.

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return sorted(self._owned)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continues at another offset.

        Raises:
            KeyError: this consumer does not own the partition.
            ValueError: no message can have that offset.
        """
        key = TopicPartition(topic, partition)
        if not 0 <= offset <= LONG_MAX:  # below 0 it would be one of the words for an end of the log
            raise ValueError(f"{key}: {offset} is no offset")
        self._feeds[self._owned[key]].assign(key, offset)

    async def seek_to_timestamp(self, time_ms: int) -> None:
        """Continues, in all partitions that this consumer owns, at the first message that is not older; at the end if all are.

        Raises:
            ValueError: no message can have that time.
        """
        if time_ms < 0:  # as an offset
            raise ValueError(f"{time_ms} is no time in ms")
        owned = dict.fromkeys(self._owned, time_ms)
        ends = await list_offsets(self._connected(), dict.fromkeys(owned, LATEST))  # first: what is written meanwhile is no older
        found = await list_offsets(self._connected(), owned)
        for partition, listed in found.items():
            if partition in self._owned:
                offset = listed.offset if listed.offset >= 0 else ends[partition].offset
                self._feeds[self._owned[partition]].assign(partition, offset)

    # Joining.

    async def _join(self, counts: Mapping[str, int], topic_filter: TopicFilter | None) -> None:
        if self._is_closed or self._has_streams:
            raise ClientClosed("streams are created once, and not after a shutdown")
        if not counts or any(not 0 < count <= znodes.MAX_STREAMS for count in counts.values()):
            raise ConfigurationError(f"a topic has 1 to {znodes.MAX_STREAMS} streams")
        if topic_filter is None:
            check_topics(counts)
        self._has_streams = True
        joining = asyncio.create_task(self._begin(counts, topic_filter))
        self._tasks.append(joining)
        try:
            await joining
        except BaseException as error:
            self._has_streams = bool(self._topics)  # it may have been done as its caller was cancelled
            if isinstance(error, asyncio.CancelledError) and self._is_closed and not is_cancelled():
                raise ClientClosed("the consumer was shut down before it had joined its group") from None
            raise

    async def _begin(self, counts: Mapping[str, int], topic_filter: TopicFilter | None) -> None:
        session = await self._sessions.open()
        try:
            await self._begin_in(session, counts, topic_filter)
        except BaseException:  # another attempt begins with nothing of this one
            await self._sessions.stop_renewing()
            await self._close()
            self._feeds, self._topics, self._owned, self._cluster, self._registry = [], {}, {}, None, None
            raise

    async def _begin_in(self, session: Coordination, counts: Mapping[str, int], topic_filter: TopicFilter | None) -> None:
        settings = self.settings
        servers = await brokers_in_zookeeper(session, self._security.protocol)
        cluster_settings = ClusterSettings(client_id=settings.client_id or settings.group_id, security=self._security)
        self._cluster = Cluster(servers, cluster_settings, clock=self._clock)
        fetch_settings = FetchSettings(
            max_wait_ms=settings.fetch_wait_max_ms,
            min_bytes=settings.fetch_min_bytes,
            max_partition_bytes=settings.fetch_message_max_bytes,
            read_committed=settings.isolation_level == "read_committed",
            max_buffered_bytes=settings.queued_max_message_chunks * settings.fetch_message_max_bytes,
        )
        self._filter = topic_filter
        for topic, count in counts.items():
            self._topics[topic] = list(range(len(self._feeds), len(self._feeds) + count))
            self._feeds += [Feed(self._cluster, fetch_settings, self._reset) for _ in range(count)]
        await self._session_renewed(session)
        self._sessions.keep()
        if not await self._rebalance_once():
            self._changed.set()
        self._tasks.append(asyncio.create_task(self._keep_balance()))
        self._tasks.append(asyncio.create_task(self._keep_watch_of_the_session()))
        if settings.auto_commit_enable:
            self._tasks.append(asyncio.create_task(self._commit_from_time_to_time()))

    async def _session_renewed(self, session: Coordination) -> None:
        registry = GroupRegistry(session, self.settings.group_id, self.consumer_id, self._clock)
        pattern = "static" if self._filter is None else self._filter.pattern
        await registry.register(znodes.ConsumerRegistration({name: len(feeds) for name, feeds in self._topics.items()}, pattern))
        session.on_session_event(partial(self._session_event, session))
        self._registry = registry
        self._changed.set()

    def _session_event(self, session: Coordination, event: SessionEvent) -> None:
        if self._registry is None or self._registry.session is not session:
            return
        if event is SessionEvent.EXPIRED:
            self._session_lost()
        elif event is SessionEvent.CONNECTED:
            self._changed.set()

    async def _keep_watch_of_the_session(self) -> None:
        """Who hears nothing for a session's timeout has none: ZooKeeper ends it without being able to say so, and others take over."""
        # ZooKeeper counts from when it was asked, and we from its answer: hence not all of it.
        is_lost = False
        while True:
            assert self._registry is not None
            session = self._registry.session
            timeout_seconds = _LEASE_SHARE * min(self.settings.zookeeper_session_timeout_ms / 1000, session.session_timeout_seconds)
            left = timeout_seconds - session.silent_seconds
            if left <= 0:
                self._session_lost()
            elif is_lost:  # the process was stopped for so long, and its connection is as it was
                self._changed.set()
            is_lost = left <= 0
            if left > timeout_seconds / 2:
                await asyncio.sleep(left - timeout_seconds / 2)
                continue
            # Nothing may have been asked: of a timeout that is too short for it ZooKeeper makes a longer one, by which its client asks.
            seconds = timeout_seconds / _LOOKS_A_TIMEOUT
            seconds = min(left, seconds) if left > 0 else seconds
            with suppress(CoordinationError, TimeoutError):
                async with asyncio.timeout(seconds / 2):
                    await session.exists(znodes.CONSUMER_IDS.path(self.settings.group_id))
            await asyncio.sleep(seconds / 2)

    def _session_lost(self) -> None:
        self._losses += 1
        if self._owned:
            log.warning("group %s: the session is over; %d partitions are given up", self.settings.group_id, len(self._owned))
        for partition, index in self._owned.items():
            self._feeds[index].revoke(partition)
        self._owned.clear()

    # Sharing out.

    def _watched(self, event: WatchedEvent) -> None:
        self._changed.set()

    async def _keep_balance(self) -> None:
        backoff_seconds = self.settings.rebalance_backoff_ms / 1000
        while True:
            await self._changed.wait()
            for _ in range(self.settings.rebalance_max_retries):
                if await self._rebalance_once():
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff_seconds):
                        await self._changed.wait()
            else:
                failed = RebalanceFailed(f"not all partitions are free after {self.settings.rebalance_max_retries} attempts")
                log.error("group %s, consumer %s: %s; trying on", self.settings.group_id, self.consumer_id, failed)
                await asyncio.sleep(backoff_seconds)
                self._changed.set()

    async def _rebalance_once(self) -> bool:
        """One attempt. Gives whether this consumer has all that it is to have."""
        self._changed.clear()
        registry = self._registry
        assert registry is not None
        try:
            async with self._rebalancing:
                return await self._rebalance(registry)
        except SessionExpired:
            return True  # a new session begins with a new attempt
        except (OttlaError, OSError) as error:
            log.warning("group %s: an attempt to share the partitions out failed: %s", self.settings.group_id, error)
            return False

    async def _rebalance(self, registry: GroupRegistry) -> bool:
        losses = self._losses
        for partition in self._owned.keys() - registry.claimed:  # a commit has found that another has it
            self._feeds[self._owned.pop(partition)].revoke(partition)
        wanted, topics = await self._wanted(registry)
        # To its end also while this consumer is shut down: what it gives up is not committed by anyone else.
        await to_its_end(self._release([partition for partition, index in self._owned.items() if wanted.get(partition) != index], topics))
        # Claims of an attempt that failed on its way.
        await all_to_their_end(map(registry.release, registry.claimed - self._owned.keys() - wanted.keys()))
        new = [partition for partition in wanted if partition not in self._owned]
        claims = await all_to_their_end(self._claim(registry, partition, wanted[partition]) for partition in new)
        claimed = {partition: offset for partition, offset in zip(new, claims, strict=True) if offset is not None}
        if claimed:
            starts = await self._starts(registry, claimed, losses)
            if losses != self._losses:
                return False  # the session ended meanwhile, and all claims with it
            for partition, start in starts.items():
                self._owned[partition] = wanted[partition]
                self._feeds[wanted[partition]].assign(partition, start.offset, start.leader_epoch)
            log.info("group %s: %s reads %d partitions more", self.settings.group_id, self.consumer_id, len(starts))
        return self._owned.keys() == wanted.keys()

    async def _wanted(self, registry: GroupRegistry) -> tuple[dict[TopicPartition, int], Container[str]]:
        """What this consumer is to read, each partition with its feed; and the group's topics that are there."""
        with suppress(BrokerNotAvailable):  # then those that are known may come back
            self._connected().begin_with(await brokers_in_zookeeper(registry.session, self._security.protocol, self._watched))
        consumers = await registry.consumers(self._watched)
        has_filters = any(registration.pattern in _FILTERS for registration in consumers.values())
        all_topics = await registry.topics(self._watched) if has_filters else []
        streams: dict[str, list[str]] = {}
        for name, registration in consumers.items():
            index = 0
            for topics, count in self._subscriptions(name, registration, all_topics):
                for topic in topics:
                    streams.setdefault(topic, []).extend(f"{name}-{number}" for number in range(index, index + count))
                index += count
        leaders = await registry.preferred_leaders(streams, self._watched)
        assignment = ASSIGNORS[self.settings.partition_assignment_strategy](leaders, streams)
        mine = {f"{self.consumer_id}-{index}": index for index in range(len(self._feeds))}
        return {partition: mine[stream] for partition, stream in assignment.items() if stream in mine}, leaders

    def _subscriptions(
        self, consumer: str, registration: znodes.ConsumerRegistration, all_topics: Iterable[str]
    ) -> list[tuple[list[str], int]]:
        """The topics of each entry of a registration, and how many streams they have."""
        kind = _FILTERS.get(registration.pattern)
        if kind is None:
            return [([topic], count) for topic, count in registration.subscription.items()]
        found = []
        for expression, count in registration.subscription.items():
            try:
                allows = kind(expression).allows
            except ConfigurationError as error:
                log.warning("the consumer %s gets no partitions: %s", consumer, error)
                continue
            found.append(([topic for topic in all_topics if allows(topic, self.settings.exclude_internal_topics)], count))
        return found

    async def _claim(self, registry: GroupRegistry, partition: TopicPartition, index: int) -> int | None:
        return await registry.claim(partition, f"{self.consumer_id}-{index}", self._watched)

    async def _release(self, partitions: Iterable[TopicPartition], topics: Container[str] | None = None) -> None:
        """Gives partitions up: nothing more is handed out, what is processed is committed, and only then others may come.

        Args:
            topics: that are there, if that is known: a coordinator is asked for some seconds to take the offsets of others.
        """
        offsets = {}
        released = []
        for partition in partitions:
            if (index := self._owned.pop(partition, None)) is None:  # the session has ended since the caller looked
                continue
            offset = self._feeds[index].revoke(partition)
            released.append(partition)
            is_there = topics is None or partition.topic in topics
            if offset is not None and offset.offset >= 0 and is_there and self.settings.auto_commit_enable:
                offsets[partition] = offset
        registry, losses = self._registry, self._losses
        if not released or registry is None:
            return
        try:
            # Also with nothing to write: what the program commits just now is said before the next owner asks.
            await self._write_unless_lost(registry, offsets, losses)
        except (OttlaError, OSError) as error:
            log.warning("offsets of %d partitions that are released were not all committed: %s", len(offsets), error)
        await all_to_their_end(map(registry.release, released))

    # Offsets.

    @property
    def _reset(self) -> int:
        return EARLIEST if self.settings.auto_offset_reset == "smallest" else LATEST

    async def _starts(
        self, registry: GroupRegistry, claimed: Mapping[TopicPartition, int], losses: int
    ) -> dict[TopicPartition, CommittedOffset]:
        """Where to begin with what was claimed when so many losses had been: the group's offset, or what `auto.offset.reset` says.

        A partition whose leader does not say where it begins or ends is left out.
        """
        settings = self.settings
        starts = {partition: CommittedOffset(offset) for partition, offset in claimed.items()}
        if settings.offsets_storage == KAFKA:
            ask = partial(committed_offsets, self._connected(), settings.group_id, claimed)
            try:  # what a transaction is committing for the group is waited for (KIP-447), as Kafka's consumers do
                committed = await ask(require_stable=settings.isolation_level == "read_committed")
            except UnsupportedVersion:  # by a broker before Kafka 2.5
                committed = await ask()
            for partition, offset in claimed.items():
                found = committed.get(partition, CommittedOffset(-1))
                if found.offset >= offset or not settings.dual_commit_enabled:
                    starts[partition] = found
        unknown = dict.fromkeys((partition for partition, start in starts.items() if start.offset < 0), self._reset)
        if unknown:
            first = {partition: CommittedOffset(offset) for partition, offset in (await self._listed(unknown)).items()}
            starts = {partition: start for partition, start in starts.items() if partition not in unknown} | first
            if settings.auto_commit_enable:
                # Else what is written between this owner and the next would be skipped by "largest".
                await self._write_unless_lost(registry, first, losses)
        return starts

    async def _listed(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets at these times, without those of partitions whose leaders do not say them: they keep no other from being read."""

        async def listed(some: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            # As it reads: what a transaction that is open has written already comes with its commit.
            is_committed = self.settings.isolation_level == "read_committed"
            found = await list_offsets(self._connected(), some, read_committed=is_committed, timeout_seconds=_LISTING_SECONDS)
            return {partition: answer.offset for partition, answer in found.items()}

        try:
            return await listed(asked)
        except (ApiError, OSError) as error:
            log.warning("group %s: not all partitions can be read now: %s", self.settings.group_id, error)
        offsets: dict[TopicPartition, int] = {}
        for answer in await asyncio.gather(*(listed({partition: time}) for partition, time in asked.items()), return_exceptions=True):
            if isinstance(answer, dict):
                offsets |= answer
            elif not isinstance(answer, ApiError | OSError):
                raise answer
        return offsets

    async def _commit(self, in_hand: Collection[Chunk] = ()) -> None:
        async with self._committing:
            lost = [chunk.partition for chunk in in_hand if chunk.is_revoked]
            offsets = {}
            for partition, index in self._owned.items():
                offset = self._feeds[index].offset(partition)
                if offset is not None and offset.offset >= 0:
                    offsets[partition] = offset
            if self._registry is None:
                raise ClientClosed("no streams have been created")
            try:
                await self._write(self._registry, offsets)
            except BadVersion:
                self._changed.set()
                raise
        if lost:
            raise BadVersion(f"{lost[0]} was given up while a message of it was in hand")

    async def _write_unless_lost(self, registry: GroupRegistry, offsets: Mapping[TopicPartition, CommittedOffset], losses: int) -> None:
        """Behind what is being written already; nothing if by then the session is over, and with it what was owned after so many losses."""
        async with self._committing:
            if losses == self._losses:
                await self._write(registry, offsets)

    async def _write(self, registry: GroupRegistry, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        settings = self.settings
        if settings.offsets_storage == KAFKA:
            await commit_offsets(self._connected(), settings.group_id, offsets)
        if settings.offsets_storage == ZOOKEEPER or settings.dual_commit_enabled:
            await registry.commit({partition: committed.offset for partition, committed in offsets.items()})

    async def _commit_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            try:
                await self._commit()
            except BadVersion as error:
                log.warning("group %s: %s", self.settings.group_id, error)
            except (CoordinationError, OttlaError, OSError) as error:
                log.warning("group %s: offsets are not committed now: %s", self.settings.group_id, error)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("no streams have been created")
        return self._cluster


def _zookeeper_of(settings: ConsumerSettings) -> OpenSession:
    return open_client_session(
        settings.zookeeper_connect, settings.zookeeper_session_timeout_ms / 1000, settings.zookeeper_connection_timeout_ms / 1000
    )


class ConsumerConnector:
    """`AsyncConsumerConnector` for callers that block: its loop runs in a thread. Each stream is read by one thread at a time.

    A connector that a forked child uses raises LoopThreadUnusable there.
    """

    def __init__(self, settings: ConsumerSettings, *, security: Security | None = None) -> None:
        self._thread: Final = LoopThread("ottla-consumer-connector")
        self._clock: Final = SystemClock()
        self._is_shut_down = False

        async def made() -> AsyncConsumerConnector:
            return AsyncConsumerConnector(settings, security=security, clock=self._clock)

        try:
            self._connector: Final = self._call(made())
        except BaseException:
            self._thread.close(_CLOSE_SECONDS)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def consumer_id(self) -> str:
        """This consumer's name in its group."""
        return self._connector.consumer_id

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""

        async def owned() -> list[TopicPartition]:
            return self._connector.owned

        return self._call(owned())

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """As `AsyncConsumerConnector.create_message_streams`."""
        return {
            topic: list(map(self._blocking, found)) for topic, found in self._call(self._connector.create_message_streams(topics)).items()
        }

    def create_message_streams_by_filter(self, topic_filter: TopicFilter, count: int = 1) -> list[MessageStream]:
        """As `AsyncConsumerConnector.create_message_streams_by_filter`."""
        return list(map(self._blocking, self._call(self._connector.create_message_streams_by_filter(topic_filter, count))))

    def commit_offsets(self) -> None:
        """As `AsyncConsumerConnector.commit_offsets`."""
        self._call(self._connector.commit_offsets())

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """As `AsyncConsumerConnector.seek`."""
        self._call(self._connector.seek(topic, partition, offset))

    def seek_to_timestamp(self, time_ms: int) -> None:
        """As `AsyncConsumerConnector.seek_to_timestamp`."""
        self._call(self._connector.seek_to_timestamp(time_ms))

    def shutdown(self) -> None:
        """As `AsyncConsumerConnector.shutdown`; may be called twice, also at once."""
        try:
            if not self._is_shut_down:
                self._call(self._connector.shutdown())
        except LoopThreadUnusable:
            if not self._is_shut_down:  # by another thread, meanwhile
                raise
        finally:
            self._is_shut_down = True
            self._thread.close(_CLOSE_SECONDS)

    def _blocking(self, stream: AsyncMessageStream) -> MessageStream:
        return MessageStream(stream.feed, self._connector.settings.consumer_timeout_ms, self._thread, self._clock.monotonic)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine, _CALL_SECONDS)
