"""The counter at work: reads `__audit`, judges what changed, looks into the log where there is doubt, and tells who watches.

One task reads and judges; one reads logs, of a window at a time, so that a doubt never keeps the audit from being read. The store is
asked in its own thread, logs are decoded in another. Who is active writes verdicts to `__audit_verdicts` and reads logs; a standby
does the rest, with a file of its own, so that it has everything when it becomes active.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

import numpy as np

from ottla.audit_counter.books import LOG, PRODUCER, Books, Moved
from ottla.audit_counter.store import Applied, Read, Store, StoreFailed, TierRow, Window
from ottla.audit_counter.verdicts import NOT_KNOWN, EdgeVerdict, judge
from ottla.audit_counter.windows import SessionStanding, watermark_of
from ottla.clock import Clock
from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidReplicationFactor,
    InvalidRequest,
    OffsetOutOfRange,
    OttlaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownProducerId,
    UnknownTopicOrPartition,
    reason_of,
)
from ottla.lifecycle import Offload
from ottla.metrics.cells import Histogram, HistogramSnapshot
from ottla.model import NO_LEADER, TopicPartition
from ottla.protocol.list_offsets_client import EARLIEST, LATEST
from ottla.record.audit_records import (
    NO_OFFSETS,
    NO_PARTITION,
    TOPIC,
    TOPIC_SETTINGS,
    VERDICTS_TOPIC,
    WRONG,
    AuditRecord,
    Tally,
    Verdict,
    decode,
    tally_columns,
)
from ottla.record.batch import LOG_APPEND_TIME, batches
from ottla.record.columnar import Columns, read_columns
from ottla.record.digests import (
    Identities,
    OffsetSums,
    Sketch,
    by_window,
    contents_of_columns,
    digest,
    find_run,
    offsets_of,
    place_of,
    placed,
)
from ottla.record.records import Record, build_batch
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetched, Fetcher, FetchSettings, visible_batches
from ottla.wire.offsets import list_offsets
from ottla.wire.producing import BatchProducer, init_producer_id

log: Final = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_POLL_SECONDS: Final = 0.5
_HOUSEKEEPING_SECONDS: Final = 1.0
_PURGE_SECONDS: Final = 60.0
# Several times as long as a broker may wait before it says that there is nothing.
_DEAF_SECONDS: Final = 2.0
_READ_SECONDS: Final = 5.0  # a counter that is not behind has long read by then what has just come
_CLOCK_SET_MS: Final = 5_000  # by more than that beside the clock that is never set
_WATCHER_EVENTS: Final = 1_000
_JUDGED_AT_ONCE: Final = 100  # windows of a topic, some tens of milliseconds
_MOST_DOUBTS: Final = 10_000
MOST_VERDICTS: Final = 100_000  # of an answer
_VERDICTS_AT_ONCE: Final = 100  # windows
_VERDICTS_BYTES: Final = 500_000
_VERDICTS_AGAIN_SECONDS: Final = 1.0
# The transactional id under which verdicts are written, without transactions.
_WRITER: Final = "ottla-audit-counter"
# What is said of the producer, and of no batch.
_OF_NO_BATCH: Final = (
    *(ProducerFenced, InvalidProducerEpoch, OutOfOrderSequenceNumber, UnknownProducerId, InvalidProducerIdMapping),
    *(ClusterAuthorizationFailed, TopicAuthorizationFailed, TransactionalIdAuthorizationFailed),
)
# A counter that stands by writes what changed since, should it become active: the other one may not have come to that any more.
_WRITTEN_BY_OTHERS_MS: Final = 600_000
# A log that no one writes to any more still has to be read to its end.
_LOG_SECONDS: Final = 120.0
_LOG_AGAIN_SECONDS: Final = 1.0
_TOPICS_AGAIN_SECONDS: Final = 1.0
# How often a broker is asked that has not heard yet of a partition of which tiers have spoken.
_MOST_LOOKS: Final = 5
_NO_BOUND: Final = 1 << 62
# What tiers reported is read again piece by piece only for windows that are not older, as all of `__audit` since then is read.
_MOST_PIECES_MS: Final = 3_600_000
_MOST_PIECES: Final = 20_000


@dataclass(frozen=True, slots=True)
class CounterSettings:
    """How the counter works.

    Attributes:
        expected: tiers whose silence is said.
        verify: `never`, on `doubt`, or `records`: whether logs are read.
        session_timeout_ms: after which a session that says nothing is taken for dead.
    """

    window_ms: int = 60_000
    expected: tuple[str, ...] = (PRODUCER, "broker")
    verify: str = "doubt"
    session_timeout_ms: int = 60_000
    partitions: int = 8
    replication_factor: int = -1
    retention_ms: int = 168 * 3_600_000


@dataclass(frozen=True, slots=True)
class Event:
    """A verdict that is new or other than it was."""

    topic: str
    start_ms: int
    verdict: EdgeVerdict


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said of a topic between two times.

    Attributes:
        folded: how long those windows are that others were folded into, by their start.
        is_read: there is nothing in `__audit` that the counter has yet to read.
    """

    windows: int
    verdicts: tuple[tuple[int, EdgeVerdict], ...]
    folded: Mapping[int, int]
    is_read: bool = True

    @property
    def verdict(self) -> Verdict:
        """The worst of them; PENDING of nothing at all, and of what is still to be read."""
        found = [said.verdict for _, said in self.verdicts] if self.windows else []
        if not found or not self.is_read:
            found.append(Verdict.PENDING)
        return max(found, key=list(Verdict).index)

    @property
    def is_known(self) -> bool:
        """Whether nothing of it is to be waited for."""
        return bool(self.windows and self.verdicts) and not {said.verdict for _, said in self.verdicts} & {
            Verdict.PENDING,
            Verdict.UNAUDITED,
        }

    @property
    def exit_code(self) -> int:
        """0 all is there, 1 something is lost, doubled or another, 3 not known."""
        found = {said.verdict for _, said in self.verdicts}
        return 1 if found & WRONG else 3 if not found or not self.windows or not self.is_read or found & NOT_KNOWN else 0


class Sums(NamedTuple):
    """Of all windows that are kept.

    Attributes:
        totals: topic, tier, messages.
        verdicts: topic, both ends, verdict, windows, missing, too much, where the first begins.
    """

    totals: Sequence[tuple[str, str, int]]
    verdicts: Sequence[tuple[str, str, str, str, int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the counter stands.

    Attributes:
        sessions: that report, by the kind of tier.
        counters: of audit records since the start.
        latencies: of what they counted, by the kind of tier.
    """

    epoch: int
    topics: tuple[str, ...]
    sessions: Mapping[str, int]
    counters: Mapping[str, int]
    latencies: Mapping[str, HistogramSnapshot] = field(default_factory=dict)


class TransactionIsOpen(OttlaError):
    """A log cannot be read yet as far as a window goes: who reads committed data comes to where the first open transaction begins."""


@dataclass(slots=True)
class Progress:
    """What there is to measure."""

    judged: int = 0
    logs_read: int = 0
    log_records: int = 0
    log_failures: int = 0
    verdict_seconds: Histogram = field(default_factory=Histogram)
    lag: int = 0


class AuditCounter:
    """The counter.

    Args:
        cluster: whose topics are audited; closed by its maker.
        in_store: runs what asks the store, in its one thread.
        beside: runs what decodes logs.
    """

    def __init__(self, cluster: Cluster, store: Store, settings: CounterSettings, clock: Clock, in_store: Offload, beside: Offload) -> None:
        self._cluster = cluster
        self._store = store
        self.settings = settings
        self._clock = clock
        self._store_thread = in_store
        self._beside = beside
        self._epoch = store.epoch
        self.is_active = False
        self.is_other_active = False  # so that it writes what there is to write
        self._activation: object | None = None  # the last one, unless the counter was told to stand by since
        self.is_caught_up = False
        self._caught_up = asyncio.Event()
        self.progress = Progress()
        self._open: dict[str, set[int]] = {}
        self._reporting: dict[str, frozenset[str]] = {}
        self._doubts: OrderedDict[Window, None] = OrderedDict()
        self._has_more_doubts = False  # than were kept
        self._unreadable: set[str] = set()  # topics whose log could not be read the last time
        self._doubted = asyncio.Event()
        self._watchers: set[asyncio.Queue[Event | None]] = set()
        self._changed = asyncio.Condition()
        self._fenced: Callable[[str], None] | None = None
        self._fenced_activation: object | None = None  # in which another counter has begun to write
        self._has_unwritten = True  # verdicts that the topic of them does not have
        self._read_to: dict[int, int] = {}
        self._steady = clock.monotonic(), float(clock.time_ms())
        store.newest_ms = store.newest_ms or clock.time_ms()  # of a new file: what `__audit` still has of windows before is not all

    async def _in_store(self, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Asks the store, in its thread. Raises StoreFailed: the file cannot be read or written."""
        try:
            return await self._store_thread(function, *arguments, **keywords)
        except sqlite3.Error as error:
            raise StoreFailed(f"the audit counter's file fails: {error}") from error

    async def run(self) -> None:
        """Works until it is cancelled.

        Raises:
            StoreFailed: the file fails.
            OttlaError, OSError: `__audit` cannot be had.
        """
        next_offsets = await self._prepare()
        self._read_to.update(next_offsets)
        async with AsyncExitStack() as stack:
            fetcher = await stack.enter_async_context(
                Fetcher(self._cluster, FetchSettings(read_committed=True), out_of_range=lambda partition, offset: EARLIEST)
            )
            await self._assign(fetcher, next_offsets)
            tasks = [asyncio.ensure_future(work) for work in (self._read(fetcher), self._look_into_logs(), self._write_verdicts())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                for watcher in self._watchers:
                    _offer(watcher, None)

    async def _prepare(self) -> Mapping[int, int]:
        settings = self.settings
        # Each window has keys of its own: without a retention they were kept for ever.
        verdicts_settings = {"cleanup.policy": "compact,delete", "retention.ms": str(settings.retention_ms)}
        wanted = [
            NewTopic(TOPIC, settings.partitions, settings.replication_factor, TOPIC_SETTINGS),
            NewTopic(VERDICTS_TOPIC, 1, settings.replication_factor, verdicts_settings),
        ]
        said = ""
        while wanted:
            refused = await create_topics(self._cluster, wanted)
            for name, error in refused.items():
                if not isinstance(error, (TopicAlreadyExists, InvalidReplicationFactor)):
                    raise type(error)(f"{name}: {error}")
            wanted = [topic for topic in wanted if isinstance(refused.get(topic.name), InvalidReplicationFactor)]
            if wanted:  # a broker is away that may come back; with fewer copies a topic would stay so
                text = "; ".join(f"{topic.name}: {refused[topic.name]}" for topic in wanted)
                if text != said:
                    log.warning("the counter waits for brokers, as topics cannot be made: %s", text)
                said = text
                await asyncio.sleep(_TOPICS_AGAIN_SECONDS)
        while True:
            with suppress(UnknownTopicOrPartition):
                topic = await self._cluster.topic(TOPIC)
                break
        found = await self._in_store(self._store.next_offsets, str(topic.topic_id or ""))
        await self._in_store(self._store.heard_all, self._clock.time_ms())
        for topic_name, start_ms in await self._in_store(self._store.windows_with, NOT_KNOWN):
            self._open.setdefault(topic_name, set()).add(start_ms)
        return found

    # Reading.

    async def _read(self, fetcher: Fetcher) -> None:
        # A stop may have come between what was said and its verdict, or before a log that was to be read.
        left = await self._in_store(self._store.unjudged)
        wrong = await self._in_store(self._store.windows_with, WRONG)
        await self._judge(left | wrong | {(topic, -1) for topic in self._open})
        looked_at = purged_at = self._clock.monotonic()
        looked_at_ms = self._clock.time_ms()
        is_deaf = False  # a partition of `__audit` cannot be read, so that no silence is the sessions'
        while True:
            fetched = await fetcher.poll(_POLL_SECONDS)
            # Before more is read ahead: by now all that was is had.
            reached = {partition: offset for partition, offset in fetcher.assigned.items() if offset >= 0}
            ends = {partition: fetcher.watermarks(partition)[2] for partition in fetcher.assigned}
            began = self._clock.monotonic()
            changed: set[Window] = set()
            if fetched:
                self.is_caught_up = False
                next_offsets = {one.partition.partition: one.next_offset for one in fetched}
                await self._in_store(self._store.read_from, [(one.partition.partition, one.offset) for one in fetched])
                while True:
                    now_ms = self._clock.time_ms()
                    changed, is_whole = await self._in_store(self._take_in, fetched, next_offsets, now_ms, self._past_ms())
                    if is_whole:
                        break
                    await self._judge(changed)  # what follows is of another topic of a name
            self.progress.lag = sum(max(0, ends[partition] - offset) for partition, offset in reached.items())
            if fetcher.unread_seconds > max(_DEAF_SECONDS, self.settings.session_timeout_ms / 2000):
                is_deaf = True
            elif is_deaf and not self.progress.lag:  # what sessions said meanwhile is still to come
                is_deaf = False
                await self._in_store(self._store.heard_all, self._clock.time_ms())
            if began - looked_at >= _HOUSEKEEPING_SECONDS and not self.progress.lag and not is_deaf:
                now_ms, passed_ms = self._clock.time_ms(), round(1000 * (self._clock.monotonic() - looked_at))
                if abs(now_ms - looked_at_ms - passed_ms) > _CLOCK_SET_MS:  # by which sessions were not silent so long
                    await self._in_store(self._store.heard_all, now_ms)
                looked_at, looked_at_ms = looked_at + passed_ms / 1000, now_ms
                with suppress(OttlaError, OSError):
                    await self._assign(fetcher, {})
                heard_before = now_ms - self.settings.session_timeout_ms
                await self._wait_for_leaders(await self._in_store(self._store.silent_brokers, heard_before))
                changed |= {(topic, -1) for topic, _ in await self._in_store(self._store.silent_sessions, heard_before, now_ms)}
                await self._in_store(self._store.fold, self._steady_ms())
            if changed:
                await self._judge(changed)
            read_to = {key.partition: offset for key, offset in reached.items()}
            if self._read_to != read_to:  # also by what was deleted before it was read
                self._read_to = read_to
                async with self._changed:
                    self._changed.notify_all()
            if changed:
                self.progress.verdict_seconds.observe(self._clock.monotonic() - began)
            self.is_caught_up = not self.progress.lag and not is_deaf and reached.keys() == ends.keys() and min(ends.values()) >= 0
            if self.is_caught_up:
                self._caught_up.set()
            if began - purged_at >= _PURGE_SECONDS:
                purged_at = began
                await self._in_store(self._purge, self._past_ms())

    def _steady_ms(self) -> int:
        """The time for what cannot be taken back: a clock that was set ahead, and may be set back, is followed at twice its pace."""
        passed_at, steady_ms = self._steady
        now = self._clock.monotonic()
        self._steady = now, min(self._clock.time_ms(), steady_ms + 2_000 * (now - passed_at))
        return int(self._steady[1])

    def _past_ms(self) -> int:
        """The time from which the retention counts: as a log's, not before someone has spoken since."""
        return min(self._steady_ms(), self._store.newest_ms)

    async def _assign(self, fetcher: Fetcher, next_offsets: Mapping[int, int]) -> None:
        """Has all partitions of `__audit` read, of which there may be more than before."""
        for number in (await self._cluster.topic(TOPIC)).partitions:
            if (key := TopicPartition(TOPIC, number)) not in fetcher.assigned:
                fetcher.assign(key, next_offsets.get(number, EARLIEST))

    async def _wait_for_leaders(self, topics: list[str]) -> None:
        """A broker is not given up while a partition has no leader: the next one counts again what that had not said."""
        if not topics:
            return
        waiting = topics
        with suppress(OttlaError, OSError):
            await self._cluster.refresh(topics)
            known = self._cluster.metadata.topics
            waiting = [
                topic for topic in topics if topic in known and any(one.leader == NO_LEADER for one in known[topic].partitions.values())
            ]
        await self._in_store(self._store.heard_brokers, waiting, self._clock.time_ms())

    def _take_in(self, fetched: list[Fetched], next_offsets: Mapping[int, int], now_ms: int, past_ms: int) -> Applied:
        if self._store.is_purge_due(past_ms):  # or a window would have what one tier said of it, and not what others say now
            self._purge(past_ms)
        return self._store.apply(_records_of(fetched), next_offsets, now_ms, past_ms)

    def _purge(self, now_ms: int) -> None:
        """In the store's thread, as the log's reader may have a window judged there meanwhile."""
        self._store.purge(now_ms)
        if self.is_other_active:
            self._store.leave_unwritten(now_ms - _WRITTEN_BY_OTHERS_MS)
        oldest = now_ms - self.settings.retention_ms - self.settings.window_ms
        for starts in self._open.values():
            starts -= {start_ms for start_ms in starts if start_ms < oldest}
        self._store.drop_sketches(now_ms - 10 * self.settings.window_ms)

    async def _judge(self, changed: Iterable[Window], of_log: _LogCount | None = None) -> None:
        """Judges windows again, and those of the same topics that were not known yet; a start of -1 is no window.

        Args:
            of_log: what was just read of one, which makes no other one known.
        """
        topics: dict[str, set[int]] = {}
        for topic, start_ms in changed:
            wanted = topics.setdefault(topic, set())
            if start_ms >= 0:
                wanted.add(start_ms)
        for topic, starts in topics.items():
            starts |= self._open.get(topic, set()) if of_log is None else set()
            unread: list[int] = []
            # Some at a time: who asks the store meanwhile waits for these, and not for a day of windows that are open.
            ordered = sorted(starts)
            for first in range(0, len(ordered), _JUDGED_AT_ONCE):
                some = ordered[first : first + _JUDGED_AT_ONCE]
                events, doubtful = await self._in_store(self._judge_in_store, topic, some, of_log)
                unread += doubtful
                for event in events:  # while the next are judged, as no watcher has room for those of a day
                    for watcher in list(self._watchers):
                        _offer(watcher, event)
                self._has_unwritten |= bool(events)
            for start_ms in unread:
                if len(self._doubts) >= _MOST_DOUBTS:
                    self._has_more_doubts = True
                    others = () if topic in self._unreadable else reversed(self._doubts)
                    spare = next((window for window in others if window[0] in self._unreadable), None)
                    if spare is None:
                        continue
                    del self._doubts[spare]
                self._doubts[topic, start_ms] = None
        if self._doubts:
            self._doubted.set()
        async with self._changed:
            self._changed.notify_all()

    def _judge_in_store(self, topic: str, starts: list[int], of_log: _LogCount | None) -> tuple[list[Event], list[int]]:
        """What is new, and the windows whose logs should be read."""
        store, events, unread = self._store, [], []
        standing = store.standing(topic, min(starts), max(starts) + store.fold_ms)
        open_windows = self._open.setdefault(topic, set())
        known: dict[int, dict[str, EdgeVerdict]] = {}
        for _, start_ms, verdict in store.verdicts(topic, starts=starts):
            known.setdefault(start_ms, {})[verdict.edge] = verdict
        for start_ms in starts:
            books = store.books(topic, start_ms, standing)
            former_tiers, self._reporting[topic] = self._reporting.get(topic, frozenset()), books.reporting
            if books.reporting - former_tiers:
                # A tier that begins to report makes verdicts of silence old.
                silent = store.verdicts(topic, kinds=(Verdict.UNAUDITED,))
                open_windows |= {window for _, window, _ in silent}
            former = known.get(start_ms, {})
            just_read = of_log if of_log is not None and of_log.start_ms == start_ms else None
            said = judge(books, self.settings.expected, former, just_read, reads_logs=self.settings.verify != "never")
            self.progress.judged += 1
            new = [verdict for verdict in said if former.get(verdict.edge) != verdict]
            if new or not known or former.keys() - {verdict.edge for verdict in said}:  # of a group that is gone
                store.put_verdicts(topic, start_ms, said, books.window_ms // self.settings.window_ms, self._clock.time_ms())
                events += [Event(topic, start_ms, verdict) for verdict in new]
            if any(verdict.is_open for verdict in said) or self._waits_for_producers(books):
                open_windows.add(start_ms)
            else:
                open_windows.discard(start_ms)
            if not books.is_log_gone and self._is_log_wanted(books, said, new, is_read=just_read is not None):
                unread.append(start_ms)
        store.judged([(topic, start_ms) for start_ms in (-1, *starts)])  # before anything else is said of them
        return events, unread

    def _waits_for_producers(self, books: Books) -> bool:
        """Whether the log will be read once all producers are through with the window, or dead: until then it may not report at all."""
        sessions = books.sessions.get(PRODUCER, ())
        is_to_be_read = self.settings.verify == "records" and books.repeated is None and not books.is_former
        return is_to_be_read and bool(sessions) and watermark_of(sessions) < books.end_ms

    def _is_log_wanted(self, books: Books, said: list[EdgeVerdict], new: list[EdgeVerdict], *, is_read: bool) -> bool:
        if any(verdict.waits_for_log for verdict in said):
            return True
        if books.repeated is not None:  # once more for what tiers have said since that no sketch can name
            return not is_read and any(verdict.is_unnamed for verdict in new)
        sessions = books.sessions.get(PRODUCER, ())
        return self.settings.verify == "records" and bool(sessions) and watermark_of(sessions) >= books.end_ms

    # The log.

    async def _look_into_logs(self) -> None:
        while True:
            await self._doubted.wait()
            if self._has_more_doubts and not self._doubts:
                self._has_more_doubts = False
                await self._judge([(topic, -1) for topic in list(self._open)])  # to which the thread of the store adds
            if not self.is_active or not self._doubts:
                self._doubted.clear()
                continue
            topic, start_ms = self._doubts.popitem(last=False)[0]
            self._unreadable.discard(topic)
            try:
                await self.read_log(topic, start_ms)
            except (UnknownTopicOrPartition, OffsetOutOfRange) as error:
                if await self._in_store(self._store.without_log, topic, start_ms):
                    log.warning("%s, window %d: its log is gone: %s", topic, start_ms, error)
                    await self._judge({(topic, start_ms)})
                else:
                    self._doubts.setdefault((topic, start_ms))
            except StoreFailed:
                raise
            except (OttlaError, OSError) as error:
                is_failure = not isinstance(error, TransactionIsOpen)
                self.progress.log_failures += is_failure
                log.log(
                    logging.WARNING if is_failure else logging.DEBUG, "%s, window %d: its log cannot be read: %s", topic, start_ms, error
                )
                self._unreadable.add(topic)  # and goes behind all others, as the cause may be its alone
                for window in [window for window in self._doubts if window[0] == topic]:
                    self._doubts.move_to_end(window)
                self._doubts.setdefault((topic, start_ms))
                await asyncio.sleep(_LOG_AGAIN_SECONDS)

    async def read_log(self, topic: str, start_ms: int) -> None:
        """Counts the log's records of a window and judges it again; not of one of a former topic of the name, or that is kept no more.

        Raises:
            UnknownTopicOrPartition, OffsetOutOfRange: it is gone, or a part of it.
            OttlaError, OSError: it cannot be read.
        """
        await self._in_store(self._store.begin_log, topic, [start_ms])
        books = await self._in_store(self._store.books, topic, start_ms)
        if books.is_log_gone or not books.tallies:  # of a former topic, or folded or forgotten since it was to be read
            return
        topic_id = await self._topic_id(topic)
        if await self._is_made_again(topic, topic_id):
            return
        bounds: dict[int, list[int]] = {}
        for tier in books.tallies.keys() - {LOG}:
            for partition, tally in books.by_partition(tier).items():
                if partition != NO_PARTITION:
                    first_offset = tally.first_offset if tally.first_offset >= 0 else _NO_BOUND  # acks=0
                    known = bounds.setdefault(partition, [first_offset, tally.last_offset + 1])
                    known[:] = min(known[0], first_offset), max(known[1], tally.last_offset + 1)
        counts, ends = await self._count_log(topic, start_ms, bounds)
        if await self._topic_id(topic) != topic_id:  # what was counted may be of either
            self._doubts.setdefault((topic, start_ms))
            return
        repeated = await self._beside(counts.repeated)
        await self._in_store(self._store.put_log, topic, {start_ms: counts.tallies}, ends, {start_ms: repeated}, {start_ms: counts.moved})
        self.progress.logs_read += 1
        tiers = await self._in_store(self._unexplained, topic, start_ms, counts)
        if tiers and self._clock.time_ms() - start_ms < _MOST_PIECES_MS:
            counts.found = await self._pieces(topic, start_ms, tiers)
        await self._judge({(topic, start_ms)}, counts)

    async def _topic_id(self, topic: str) -> UUID | None:
        await self._cluster.refresh((topic,))
        return self._cluster.metadata.topic(topic).topic_id

    async def _is_made_again(self, topic: str, topic_id: UUID | None) -> bool:
        """Whether that is another topic of the name than brokers spoke of last; then its former windows are judged as such."""
        known = await self._in_store(self._store.topic_id, topic)
        if topic_id is None or known in ("", topic_id.hex):
            return False
        await self._judge(await self._in_store(self._store.begin_topic, topic, topic_id.hex))
        return True

    def _unexplained(self, topic: str, start_ms: int, counts: _LogCount) -> set[str]:
        """The tiers of edges of which it is not known which messages differ, though the log was read."""
        said = judge(self._store.books(topic, start_ms), self.settings.expected, None, counts)
        unexplained = [verdict for verdict in said if verdict.is_unnamed and (not verdict.reason or verdict.verdict is Verdict.COMPENSATED)]
        return {tier for verdict in unexplained for tier in (verdict.upstream, verdict.downstream)}

    async def _count_log(self, topic: str, start_ms: int, bounds: Mapping[int, list[int]]) -> tuple[_LogCount, dict[int, int]]:
        cluster = self._cluster
        for look in range(_MOST_LOOKS):  # a partition may be newer than what the broker that is asked knows, and would be lost
            await asyncio.sleep(_LOG_AGAIN_SECONDS if look else 0)
            await cluster.refresh((topic,))
            if bounds.keys() <= cluster.metadata.topic(topic).partitions.keys():
                break
        partitions = [TopicPartition(topic, number) for number in cluster.metadata.topic(topic).partitions]
        written = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
        begins = await list_offsets(cluster, dict.fromkeys(partitions, start_ms))
        behind = await list_offsets(cluster, dict.fromkeys(partitions, start_ms + self.settings.window_ms))
        earliest = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
        counts = _LogCount(start_ms, self.settings.window_ms)
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for key in partitions:
            end = ends[key].offset
            first, last = bounds.get(key.partition, (end, 0))
            if first < min(earliest[key].offset, end):
                raise OffsetOutOfRange(f"{key}: offset {first} was deleted, the log begins at {earliest[key].offset}")
            stop = max(last, behind[key].offset if behind[key].offset >= 0 else written[key].offset)
            if end < min(stop, written[key].offset) and key.partition in bounds:  # what lies between would be taken for a loss
                raise TransactionIsOpen(f"{key}: a transaction is open since offset {end}, and the window goes to {stop}")
            begin = max(earliest[key].offset, min(first, begins[key].offset if begins[key].offset >= 0 else end))
            spans[key] = begin, min(end, stop)
        async for fetched, stop in self._between(spans):
            self.progress.log_records += await self._beside(counts.take, fetched, stop)
        return counts, {key.partition: end.offset for key, end in ends.items()}

    async def _between(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> AsyncIterator[tuple[Fetched, int]]:
        """What partitions have between two offsets each, with the second one."""
        async with Fetcher(self._cluster, FetchSettings(read_committed=True)) as fetcher:
            stops = {key: stop for key, (begin, stop) in spans.items() if begin < stop}
            for key in stops:
                fetcher.assign(key, spans[key][0])
            deadline = self._clock.monotonic() + _LOG_SECONDS
            while stops:
                for fetched in await fetcher.poll(_POLL_SECONDS):
                    if (stop := stops.get(fetched.partition)) is None:
                        continue
                    yield fetched, stop
                    if fetched.next_offset >= stop:
                        del stops[fetched.partition]
                        fetcher.unassign(fetched.partition)
                    deadline = self._clock.monotonic() + _LOG_SECONDS
                if self._clock.monotonic() > deadline:
                    raise TimeoutError(f"nothing came of {sorted(stops)} for {_LOG_SECONDS:.0f} s")

    async def _pieces(self, topic: str, start_ms: int, tiers: set[str]) -> dict[tuple[str, int], list[tuple[str, Tally]]]:
        """What tiers have reported of a window, each record of `__audit` by itself: by tier and partition, with the host."""
        partitions = [TopicPartition(TOPIC, number) for number in (await self._cluster.topic(TOPIC)).partitions]
        ends = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
        begins = await list_offsets(self._cluster, dict.fromkeys(partitions, start_ms))
        spans = {key: (begins[key].offset if begins[key].offset >= 0 else ends[key].offset, ends[key].offset) for key in partitions}
        found: dict[tuple[str, int], list[tuple[str, Tally]]] = {}
        seen: set[tuple[str, int]] = set()
        async for fetched, _ in self._between(spans):
            for record in await self._beside(_records_on, fetched, topic):
                if record.tier not in tiers or start_ms not in record.windows or (record.session, record.sequence) in seen:
                    continue
                seen.add((record.session, record.sequence))
                found.setdefault((record.tier, record.partition), []).append((record.host, record.windows[start_ms]))
                if len(seen) > _MOST_PIECES:
                    return {}
        return found

    # What is asked.

    async def standing(self) -> Standing:
        """Where the counter stands."""
        return await self._in_store(self._standing)

    def _standing(self) -> Standing:
        store = self._store
        sessions: collections.Counter[str] = collections.Counter()
        for tier, count in store.open_sessions().items():
            sessions[tier.partition(":")[0]] += count
        latencies = {}
        for kind, found in store.latencies.items():
            histogram = Histogram()
            for milliseconds, count in found.lengths():
                histogram.observe_many(milliseconds / 1000, count)
            latencies[kind] = histogram.snapshot()
        return Standing(store.epoch, tuple(store.topics()), dict(sessions), dataclasses.asdict(store.counters), latencies)

    async def sums(self) -> Sums:
        """Of all windows; each is looked at, while others wait for the store."""
        return await self._in_store(lambda: Sums(self._store.totals(), self._store.verdict_counts()))

    async def tiers(self, topic: str, from_ms: int, to_ms: int, tier: str | None = None) -> list[TierRow]:
        """What tiers had of windows that begin in [from_ms, to_ms)."""
        return await self._in_store(self._store.tiers, topic, from_ms, to_ms, tier)

    async def partitions(self, topic: str, from_ms: int, to_ms: int) -> list[tuple[str, int, Tally]]:
        """What tiers had of each partition, all windows that begin in [from_ms, to_ms) added up: tier, partition, counts."""
        return await self._in_store(self._store.partitions, topic, from_ms, to_ms)

    async def has_topic(self, topic: str) -> bool:
        """Whether anything was said of a topic."""
        return await self._in_store(self._store.has_topic, topic)

    async def sessions(self) -> list[SessionStanding]:
        """What every session has said."""
        return await self._in_store(self._store.sessions)

    async def summary(self, topic: str, from_ms: int, to_ms: int, tiers: tuple[str, ...] = (), wait_seconds: float = 0.0) -> Summary:
        """What is said of windows that begin in [from_ms, to_ms), once it is known or the time is up; of a folded hour as a whole.

        Args:
            tiers: only edges between these; none are all.
        """
        deadline = self._clock.monotonic() + wait_seconds
        while True:
            found = await self._in_store(self._summary, topic, from_ms, to_ms, tiers)
            left = deadline - self._clock.monotonic()
            if left <= 0 or (found.is_known and self.is_caught_up):
                return found
            async with self._changed:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(left, 1.0))

    async def verify(self, topic: str, from_ms: int, to_ms: int, tiers: tuple[str, ...], wait_seconds: float) -> Summary:
        """As `summary`, once all was read that is in `__audit` by now: a counter that is behind has yet to hear of some windows."""
        began = self._clock.monotonic()
        is_read = await self.has_read(max(wait_seconds, _READ_SECONDS))
        found = await self.summary(topic, from_ms, to_ms, tiers, began + wait_seconds - self._clock.monotonic())
        return dataclasses.replace(found, is_read=is_read)

    def _summary(self, topic: str, from_ms: int, to_ms: int, tiers: tuple[str, ...]) -> Summary:
        from_ms = self._store.begin_of(topic, from_ms)
        found = self._store.verdicts(topic, from_ms, to_ms, limit=MOST_VERDICTS + 1, tiers=tiers)
        if len(found) > MOST_VERDICTS:
            raise InvalidRequest(f"{topic}: there are more than {MOST_VERDICTS:,} verdicts; ask for a shorter time, or for fewer tiers")
        verdicts = tuple((start_ms, said) for _, start_ms, said in found)
        return Summary(len(self._store.windows_of(topic, from_ms, to_ms)), verdicts, self._store.folded(topic, from_ms, to_ms))

    async def wait_caught_up(self) -> None:
        """Waits until all of `__audit` was read once."""
        await self._caught_up.wait()

    async def wait_read(self, timeout_seconds: float) -> None:
        """Waits until all that is in `__audit` by now was read and judged.

        Raises:
            TimeoutError: it was not by then.
        """
        async with asyncio.timeout(timeout_seconds):
            await self._caught_up.wait()
            partitions = [TopicPartition(TOPIC, number) for number in (await self._cluster.topic(TOPIC)).partitions]
            ends = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST), read_committed=True)
            async with self._changed:
                await self._changed.wait_for(lambda: all(self._read_to.get(key.partition, 0) >= end.offset for key, end in ends.items()))

    async def has_read(self, timeout_seconds: float) -> bool:
        """Whether all that is in `__audit` by now was read and judged in time."""
        try:
            await self.wait_read(timeout_seconds)
        except (TimeoutError, OttlaError, OSError) as error:
            log.info("__audit was not read to its end within %s s: %s", timeout_seconds, reason_of(error))
            return False
        return True

    async def watch(self) -> AsyncIterator[Event]:
        """Verdicts as they change; ends with the counter, and with a reader that is too slow."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(_WATCHER_EVENTS)
        self._watchers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.discard(queue)

    # The topic of verdicts.

    @property
    def epoch(self) -> int:
        """The last term of an active counter that this one has heard of."""
        return self._epoch

    async def activate(self, epoch: int, fenced: Callable[[str], None] | None = None) -> bool:
        """This counter writes from now on; False when it was told to stand by before its file knew of the term.

        Args:
            fenced: called with the reason when another counter has begun to write since.

        Raises:
            StoreFailed: its file knows of a later term.
        """
        self._activation = activation = object()
        self.is_other_active = False
        await self._in_store(self._store.raise_epoch, epoch)
        self._epoch, self._fenced = epoch, fenced
        if self._activation is not activation:
            return False
        self.is_active = True
        self._doubted.set()
        self._has_unwritten = True
        async with self._changed:
            self._changed.notify_all()
        return True

    def stand_by(self) -> None:
        """This counter writes no more; another one may, or none."""
        self.is_other_active = False
        self._activation = None
        self.is_active = False

    async def _write_verdicts(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self.is_active and self._has_unwritten and self._activation is not self._fenced_activation
                )
            activation = self._activation
            try:
                # As the schema registry's leader does: what a former active counter sends late has a lower epoch, and is refused.
                identity = await init_producer_id(self._cluster, _WRITER)
                async with BatchProducer(self._cluster, identity=identity) as producer:
                    await self._write_for(activation, producer)
            except StoreFailed:
                raise
            except (ProducerFenced, InvalidProducerEpoch) as error:
                self._fenced_activation = activation
                if self._activation is activation:
                    log.error("another counter writes to %s, so this one stops: %s", VERDICTS_TOPIC, reason_of(error))
                    if self._fenced is not None:
                        self._fenced("another counter writes verdicts")
            except (OttlaError, OSError) as error:
                log.warning("verdicts cannot be written to %s: %s", VERDICTS_TOPIC, reason_of(error))
                self._has_unwritten = True
                await asyncio.sleep(_VERDICTS_AGAIN_SECONDS)

    async def _write_for(self, activation: object | None, producer: BatchProducer) -> None:
        while self._activation is activation:
            self._has_unwritten = False
            while self._activation is activation and (some := await self._in_store(self._store.unwritten, _VERDICTS_AT_ONCE)):
                events = [Event(topic, start_ms, said) for topic, start_ms, _, verdicts in some for said in verdicts]
                for batch in _batches_of(events):
                    await self._write_batch(producer, batch)
                await self._in_store(self._store.written, [found[:3] for found in some])
            async with self._changed:
                await self._changed.wait_for(lambda: self._has_unwritten or self._activation is not activation)

    async def _write_batch(self, producer: BatchProducer, events: list[Event]) -> None:
        """Writes verdicts; of a batch that is refused for good each by itself, and one that is refused alone without what it names."""
        now_ms = self._clock.time_ms()
        try:
            await producer.room()
            rows = [Record(index, now_ms, _verdict_key(event), _verdict_value(event)) for index, event in enumerate(events)]
            await producer.send(TopicPartition(VERDICTS_TOPIC, 0), build_batch(rows))
        except ApiError as error:
            if error.retriable or isinstance(error, _OF_NO_BATCH):
                raise
            short = dataclasses.replace(events[0].verdict, named=(), hosts=())
            if len(events) == 1 and events[0].verdict == short:
                log.warning("the verdict %s is not written to %s: %s", _verdict_key(events[0]).decode(), VERDICTS_TOPIC, reason_of(error))
                return
            for event in events if len(events) > 1 else [dataclasses.replace(events[0], verdict=short)]:
                await self._write_batch(producer, [event])


def _batches_of(events: Iterable[Event]) -> Iterator[list[Event]]:
    some: list[Event] = []
    size = 0
    for event in events:
        length = len(_verdict_value(event))
        if some and size + length > _VERDICTS_BYTES:
            yield some
            some, size = [], 0
        some.append(event)
        size += length
    if some:
        yield some


def _verdict_key(event: Event) -> bytes:
    return f"{event.topic}|{event.start_ms}|{event.verdict.edge}".encode()


def _verdict_value(event: Event) -> bytes:
    return json.dumps({"topic": event.topic, "window": event.start_ms, **fields_of_verdict(event.verdict)}).encode()


def fields_of_verdict(said: EdgeVerdict) -> dict[str, object]:
    """As JSON has it, at every place where a verdict is shown."""
    return {
        "edge": said.edge,
        "verdict": str(said.verdict),
        "reason": said.reason,
        "evidence": said.evidence,
        "upstream_count": said.upstream_count,
        "downstream_count": said.downstream_count,
        "missing": said.missing,
        "surplus": said.surplus,
        "in_doubt": said.in_doubt,
        "partition": said.partition,
        "hosts": list(said.hosts),
        "named": [{"partition": named.partition, "offset": named.offset, "times": named.times} for named in said.named],
        "revision": said.revision,
    }


def _offer(queue: asyncio.Queue[Event | None], event: Event | None) -> None:
    """Gives a watcher an event; one that is too slow is ended, as it would not know what it has missed."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


def _columns_of(fetched: Fetched) -> Iterator[Columns | Read]:
    """What was fetched of `__audit`, by columns; of a batch that cannot be read, as no broker opens it, why."""
    offset = fetched.offset
    aborted = [(transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted]
    try:
        for columns in read_columns(fetched.records, start_offset=offset, aborted=aborted):
            yield columns
            offset = int(columns.offsets[-1]) + 1 if len(columns) else offset
    except ApiError:
        for position, header in visible_batches(fetched.records, fetched.aborted):
            batch = fetched.records[position : position + header.size]
            try:
                yield from read_columns(batch, start_offset=offset)
            except ApiError as error:
                yield Read(fetched.partition.partition, header.last_offset, None, str(error))


def _records_of(fetched: list[Fetched]) -> Iterator[Read]:
    """The audit records of what was fetched; what is none with the reason."""
    for one in fetched:
        number = one.partition.partition
        for columns in _columns_of(one):
            if isinstance(columns, Read):
                yield columns
                continue
            sections = columns.header_sections
            for index, offset in enumerate(columns.offsets.tolist()):
                try:
                    of_brokers = columns.headers(index) if len(sections[index] or b"") > 1 else ()
                    yield Read(number, offset, decode(columns.values[index] or b"", of_brokers))
                except InvalidRecord as error:
                    yield Read(number, offset, None, str(error))


def _records_on(fetched: Fetched, topic: str) -> list[AuditRecord]:
    """The audit records of a topic, by their key: others are not decoded."""
    found = []
    for columns in _columns_of(fetched):
        if isinstance(columns, Read):
            continue
        for index, key in enumerate(columns.keys.to_list()):
            if key == topic.encode():
                with suppress(InvalidRecord):
                    found.append(decode(columns.values[index] or b""))
    return found


class _LogCount:
    """What a log has of a window: a `Log`, once all of it was taken."""

    def __init__(self, start_ms: int, window_ms: int) -> None:
        self.start_ms = start_ms
        self._window_ms = window_ms
        self.tallies: dict[int, Tally] = {}
        self.moved: dict[int, Moved] = {}
        self.found: Mapping[tuple[str, int], list[tuple[str, Tally]]] = {}  # pieces
        self._placed: dict[int, list[Identities]] = {}
        self._next_offsets: dict[int, int] = {}

    def take(self, fetched: Fetched, stop: int) -> int:
        """Counts what was fetched below an offset, and gives how many records that are.

        Raises:
            OffsetOutOfRange: records between were compacted away.
        """
        count = 0
        goes_back = False
        partition = fetched.partition.partition
        self._check_whole(fetched)
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted]
        for columns in read_columns(fetched.records, start_offset=fetched.offset, end_offset=stop, aborted=aborted):
            count += len(columns)
            starts = columns.timestamps - columns.timestamps % self._window_ms
            goes_back = goes_back or bool((starts[1:] < starts[:-1]).any())
            tallies: dict[int, Tally] = {}
            tally_columns(tallies, columns, partition, self._window_ms)
            if (tally := tallies.get(self.start_ms)) is not None:
                self.tallies.setdefault(partition, Tally()).merge(tally)
                identities = placed(contents_of_columns(columns), partition, columns.offsets)
                self._placed.setdefault(partition, []).append(identities.select(starts == self.start_ms))
        if goes_back:
            self._note_moved(fetched, stop)
        return count

    def _check_whole(self, fetched: Fetched) -> None:
        expected = self._next_offsets.get(fetched.partition.partition, fetched.offset)
        for _, header in batches(fetched.records):
            if header.base_offset > expected or header.record_count <= header.last_offset_delta:
                raise OffsetOutOfRange(f"{fetched.partition}: records were compacted away at offset {expected} or behind it")
            expected = header.last_offset + 1
        self._next_offsets[fetched.partition.partition] = expected

    def _note_moved(self, fetched: Fetched, stop: int) -> None:
        """Looks for records in windows that their batch's header, by its first and its highest time, does not say."""
        for position, header in visible_batches(fetched.records, fetched.aborted):
            said = header.base_timestamp - header.base_timestamp % self._window_ms
            if header.timestamp_type == LOG_APPEND_TIME or not said <= header.max_timestamp < said + self._window_ms:
                continue
            batch = fetched.records[position : position + header.size]
            for columns in read_columns(batch, start_offset=fetched.offset, end_offset=stop, check_crcs=False):
                for start_ms, mask in by_window(columns.timestamps, self._window_ms):
                    if start_ms != said:
                        offsets = columns.offsets if mask is None else columns.offsets[mask]
                        self._move(said, fetched.partition.partition, len(offsets), OffsetSums.of(offsets))
                        self._move(start_ms, fetched.partition.partition, -len(offsets), NO_OFFSETS.minus(OffsetSums.of(offsets)))

    def _move(self, start_ms: int, partition: int, count: int, offsets: OffsetSums) -> None:
        if start_ms == self.start_ms:
            known = self.moved.get(partition, Moved())
            self.moved[partition] = Moved(known.messages + count, known.offsets.plus(offsets))

    def repeated(self) -> int:
        """How many records have the content of one that was there already."""
        words = [some.second for parts in self._placed.values() for some in parts]  # of contents alone
        return sum(map(len, words)) - len(np.unique(np.concatenate(words))) if words else 0

    def _of(self, partition: int) -> Identities:
        parts = self._placed.setdefault(partition, [])
        if len(parts) != 1:
            none = np.zeros(0, np.uint64)
            columns = [none, *(some.first for some in parts)], [none, *(some.second for some in parts)]
            parts[:] = [Identities(*map(np.concatenate, columns))]
        return parts[0]

    def part(self, partition: int, first: int, last: int) -> Tally:
        """As `Log` has it."""
        whole = self._of(partition)
        places = offsets_of(whole)
        mask = (places >= first) & (places <= last)
        some, offsets, tally = whole.select(mask), places[mask], Tally()
        if len(some):
            tally = Tally(count=len(some), first_offset=int(offsets[0]), last_offset=int(offsets[-1]), offsets=OffsetSums.of(offsets))
            tally.placed, tally.sketch = digest(some), Sketch()
            tally.sketch.add(some)
        return tally

    def find(self, partition: int, total: int, count: int) -> tuple[int, int] | None:
        """As `Log` has it."""
        whole = self._of(partition)
        start = find_run(whole, total, count)
        return None if start is None else (place_of(int(whole.first[start]))[1], place_of(int(whole.first[start + count - 1]))[1])

    def pieces(self, tier: str, partition: int) -> list[tuple[str, Tally]]:
        """As `Log` has it."""
        return self.found.get((tier, partition), [])
