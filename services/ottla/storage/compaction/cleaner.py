"""Compaction of a broker's logs: chooses the next one, has it cleaned outside the loop, and takes in what comes of it.

    choose      the filthiest log whose share of dirty bytes is large enough (`filthiest`)
    run         a process reads its files and writes cleaned ones (`clean`, `runner`)
    swap in     each cleaned segment, as it comes, in one step of the loop (`Log.swap_in`)
    note        up to where the log is clean now

    log_start_offset      cleaned_up_to          end_offset              log_end_offset
          |    clean segments   |   dirty segments   |  not to be touched yet  |

A log is cleaned up to the first segment that is active, not synced, not committed, in an open transaction, or younger than
`min.compaction.lag.ms`; it is due above `min.cleanable.dirty.ratio`, or when a dirty record has waited for `max.compaction.lag.ms`.

As many logs at a time as `log.cleaner.threads`, each in a process of its own; after `log.cleaner.backoff.ms` when there was
nothing to do. Whatever cuts a log, deletes it or takes it elsewhere ends its cleaning, which begins again later: nothing is
lost by that but work. A log that cannot be cleaned is logged once and left alone until the broker starts again or the
settings change; the others continue.

One event loop owns it. Source: Kafka's `LogCleaner` and `LogCleanerManager`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from ottla.clock import Clock
from ottla.config.cleaner import CleanerSettings
from ottla.config.settings import LONG_MAX
from ottla.errors import KafkaStorageError
from ottla.lifecycle import Offload
from ottla.metrics.cells import Histogram
from ottla.model import TopicPartition
from ottla.storage.batches import CorruptLog
from ottla.storage.compaction.job import (
    CleanedSegment,
    CleaningInterrupted,
    CleaningJob,
    CleaningResult,
    LastOfProducer,
    OffsetMapTooSmall,
    SourceSegment,
)
from ottla.storage.compaction.runner import CleaningRunner
from ottla.storage.compaction.swap import remove_cleaned
from ottla.storage.log import Log
from ottla.storage.log_checkpoints import HighWatermarks
from ottla.storage.segment import Segment
from ottla.storage.time_lookup import first_timestamp

log = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 50  # logs between two chances for other work
WATCHED_EVERY_SECONDS: Final = 0.5  # whether a log that is being cleaned is still what it was
SMALLEST_BUFFER: Final = 4096
MEGABYTE: Final = 1_000_000


@dataclass(slots=True)
class CleanerCounts:
    """What is counted of the cleaner.

    Attributes:
        read_bytes: of logs that were cleaned.
        run_seconds: of each cleaning of a log that came to its end.
        crc_errors: batches that did not match their checksum, or could not be read otherwise.
        max_dirty_ratio: as of the last look at all logs.
    """

    read_bytes: int = 0
    run_seconds: Histogram = field(default_factory=Histogram)
    crc_errors: int = 0
    max_dirty_ratio: float = 0.0


class LogCleaner:
    """The cleanings of one broker.

    Args:
        logs: all logs, as they are at the time.
        high_watermarks: of the partitions that are led or followed here; no other log is touched.
        settings: `log.cleaner.*`.
        offload: for looks at files.
        runner: runs the cleanings, and is closed with this.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, Log],
        high_watermarks: HighWatermarks,
        settings: CleanerSettings,
        clock: Clock,
        offload: Offload,
        runner: CleaningRunner,
    ) -> None:
        self._logs: Final = logs
        self._high_watermarks: Final = high_watermarks
        self._settings = settings
        self._clock: Final = clock
        self._offload: Final = offload
        self._runner: Final = runner
        self._uncleanable: dict[TopicPartition, tuple[Log, str]] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._under_way: dict[TopicPartition, asyncio.Task[bool]] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        # Corrupt ones: logs in which a batch was not sound when it was to be cleaned.
        self.counts: Final = CleanerCounts()

    def start(self) -> None:
        """Cleans from now on, if `log.cleaner.enable` says so."""
        if self._settings.log_cleaner_enable:
            self._rounds = asyncio.get_running_loop().create_task(self._clean_for_ever(), name="log cleaner")

    async def close(self) -> None:
        """Ends what is under way; it begins again after the next start."""
        rounds, self._rounds = self._rounds, None
        tasks = [*([] if rounds is None else [rounds]), *self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.close()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Continues with other settings. With more memory a log may be cleaned that could not be before."""
        self._settings = settings
        self._uncleanable = {
            key: failure for key, failure in self._uncleanable.items() if not failure[1].startswith(OffsetMapTooSmall.__name__)
        }
        self._wake.set()

    @property
    def uncleanable(self) -> Mapping[TopicPartition, str]:
        """The logs that are left alone, and why."""
        return {key: reason for key, (log, reason) in self._uncleanable.items() if self._logs.get(key) is log}

    @property
    def under_way(self) -> Sequence[TopicPartition]:
        """The logs that are being cleaned now."""
        return tuple(self._under_way)

    async def cleanable_logs(self) -> list[CleanableLog]:
        """What could be cleaned, due or not."""
        self._forget_deleted()
        found = []
        high_watermarks = self._high_watermarks()
        for index, (key, partition_log) in enumerate(list(self._logs.items())):
            if index % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            high_watermark = high_watermarks.get(key)
            if high_watermark is None or not partition_log.settings.is_compacted or partition_log.is_offline or key in self._under_way:
                continue
            if key in self.uncleanable or self._not_before.get(key, 0.0) > self._clock.monotonic():
                continue
            try:
                candidate = await self._look_at(key, partition_log, high_watermark)
            except OSError as error:
                log.warning("%s: its dirty ratio cannot be computed: %s", key, error)
                continue
            if candidate is not None:
                found.append(candidate)
        return found

    async def clean_filthiest(self) -> TopicPartition | None:
        """Cleans the log that needs it most, and gives it; None when none does, or when it could not be cleaned."""
        key = await self._begin()
        return key if key is not None and await self._under_way[key] else None

    # Choosing.

    async def _clean_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                while len(self._under_way) < self._settings.log_cleaner_threads and await self._begin() is not None:
                    pass
            except Exception:  # a look that failed must not be the last one
                log.exception("choosing a log to compact failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._settings.log_cleaner_backoff_ms, 1) / 1000):
                    await self._wake.wait()

    async def _begin(self) -> TopicPartition | None:
        """Begins to clean the filthiest log, if any is due."""
        cleanable = await self.cleanable_logs()
        self.counts.max_dirty_ratio = max((log.dirty_ratio for log in cleanable), default=0.0)
        chosen = filthiest(cleanable)
        if chosen is None:
            return None
        key = chosen.topic_partition
        each = self._logs.get(key)
        if each is None or each.is_offline:
            return None
        task = asyncio.get_running_loop().create_task(self._clean(key, each, chosen), name=f"cleaning of {key}")
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._ended(key))
        return key

    def _forget_deleted(self) -> None:
        """Nothing is remembered of logs that are not there any more."""
        if self._uncleanable:
            self._uncleanable = {key: failure for key, failure in self._uncleanable.items() if self._logs.get(key) is failure[0]}
        if self._not_before:
            now = self._clock.monotonic()
            self._not_before = {key: until for key, until in self._not_before.items() if key in self._logs and until > now}

    def _ended(self, key: TopicPartition) -> None:
        del self._under_way[key]
        self._wake.set()

    async def _look_at(self, key: TopicPartition, each: Log, high_watermark: int) -> CleanableLog | None:
        segments, settings, truncations = each.segments, each.settings, each.truncations
        if len(segments) < 2 or each.producers_unknown:
            return None
        dirty_from = first_dirty_offset(each.cleaned_up_to, each.log_start_offset, each.log_end_offset)
        lag_ms = settings.min_compaction_lag_ms
        youngest_ms = self._clock.time_ms() - lag_ms if lag_ms > 0 else None
        limit = min(_last_stable_offset(each, high_watermark), each.synced_offset)
        end = end_offset(segments, dirty_from, limit, youngest_ms)
        clean_bytes, dirty_bytes = sizes(segments, dirty_from, end)
        found = CleanableLog(key, dirty_from, end, clean_bytes, dirty_bytes, settings.min_cleanable_dirty_ratio, truncations=truncations)
        if found.is_due or not dirty_bytes or settings.max_compaction_lag_ms == LONG_MAX:
            return found
        dirty = [segment for segment, following in pairwise(segments) if dirty_from < following.base_offset <= end]
        timestamp = await self._offload(first_timestamp, [segment.path() for segment in dirty])
        is_overdue = timestamp is not None and timestamp < self._clock.time_ms() - settings.max_compaction_lag_ms
        return replace(found, is_overdue=is_overdue)

    # Cleaning.

    async def _clean(self, key: TopicPartition, each: Log, chosen: CleanableLog) -> bool:
        """Cleans a log; says whether it did."""
        began, truncations = self._clock.monotonic(), chosen.truncations
        each.is_being_cleaned = True
        try:
            if each.truncations != truncations:  # what was chosen may lie beyond what is committed now
                raise CleaningInterrupted("its log was truncated")
            # Retention comes again when this has ended, or here.
            each.delete_old_segments(self._clock.time_ms(), self._high_watermarks().get(key, 0))
            sources = [segment for segment, after in pairwise(each.segments) if after.base_offset <= chosen.end_offset]
            await each.checkpoint()
            result = await self._run(key, each, self._job_of(each, chosen), sources, truncations)
            await each.note_clean(result.end_offset)
        except (CorruptLog, OffsetMapTooSmall) as error:
            self._uncleanable[key] = each, f"{type(error).__name__}: {error}"
            self.counts.crc_errors += isinstance(error, CorruptLog)
            log.error("%s: compaction has stopped until the broker restarts: %s", key, error)
        except (CleaningInterrupted, KafkaStorageError) as error:
            self._not_before[key] = self._clock.monotonic() + self._settings.log_cleaner_backoff_ms / 1000
            log.warning("%s: this compaction failed: %s", key, error)
        except Exception:  # the next log shall have its turn
            self._not_before[key] = self._clock.monotonic() + self._settings.log_cleaner_backoff_ms / 1000
            log.exception("%s was not compacted", key)
        else:
            self._not_before.pop(key, None)
            seconds = self._clock.monotonic() - began
            self.counts.read_bytes += result.bytes_read
            self.counts.run_seconds.observe(seconds)
            _tell(key, result, seconds)
            return True
        finally:
            each.is_being_cleaned = False
            try:
                await self._offload(remove_cleaned, each.directory)
            except OSError as error:
                log.warning("%s: temporary files of its compaction cannot be removed before the next start: %s", key, error)
        return False

    async def _run(self, key: TopicPartition, each: Log, job: CleaningJob, sources: Sequence[Segment], truncations: int) -> CleaningResult:
        """Has it cleaned, and takes in what comes; ends it when the log is not any more what it was."""
        waiting = list(sources)

        def check() -> None:
            if self._logs.get(key) is not each or each.is_offline:
                raise CleaningInterrupted("its log is gone")
            if each.truncations != truncations:
                raise CleaningInterrupted("its log was truncated")
            if not each.settings.is_compacted:
                raise CleaningInterrupted("its topic is not compacted any more")

        def done(cleaned: CleanedSegment) -> None:
            check()
            replaced = waiting[: cleaned.joined]
            if len(replaced) != cleaned.joined or not replaced or replaced[0].base_offset != cleaned.base_offset:
                raise CleaningInterrupted(f"{cleaned} does not follow what came before")
            each.swap_in(replaced, cleaned.size)
            del waiting[: cleaned.joined]

        running = asyncio.ensure_future(self._runner.run(job, done))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=WATCHED_EVERY_SECONDS)
                if not running.done():
                    check()
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _job_of(self, each: Log, chosen: CleanableLog) -> CleaningJob:
        settings, topic = self._settings, each.settings
        threads = max(settings.log_cleaner_threads, 1)
        committed_offset = self._high_watermarks().get(each.topic_partition, 0)
        segments = each.segments
        ends = [*(segment.base_offset for segment in segments[1:]), each.log_end_offset]
        facts = [SourceSegment(segment.base_offset, end, segment.size) for segment, end in zip(segments, ends, strict=True)]
        return CleaningJob(
            name=str(each.topic_partition),
            directory=str(each.directory),
            sources=tuple(fact for fact in facts if fact.base_offset < chosen.end_offset),
            following=tuple(fact for fact in facts if chosen.end_offset <= fact.base_offset < committed_offset),
            first_dirty_offset=chosen.first_dirty_offset,
            committed_offset=committed_offset,
            producers=tuple(LastOfProducer(state.producer_id, state.last_offset, state.producer_epoch) for state in each.producers),
            epoch_begins=tuple(start_offset for _, start_offset in each.leader_epochs.entries[1:]),
            now_ms=self._clock.time_ms(),
            delete_retention_ms=topic.delete_retention_ms,
            segment_bytes=topic.segment_bytes,
            segment_index_bytes=topic.segment_index_bytes,
            index_interval_bytes=topic.index_interval_bytes,
            map_bytes=settings.log_cleaner_dedupe_buffer_size // threads,
            load_factor=settings.log_cleaner_io_buffer_load_factor,
            buffer_bytes=max(settings.log_cleaner_io_buffer_size // threads // 2, SMALLEST_BUFFER),
            bytes_per_second=settings.log_cleaner_io_max_bytes_per_second / threads,
        )


def _last_stable_offset(each: Log, high_watermark: int) -> int:
    """Below it every record is committed, and its transaction decided."""
    each.producers.advance_high_watermark(high_watermark)
    unstable = each.producers.first_unstable_offset
    return high_watermark if unstable is None else min(unstable, high_watermark)


def _tell(key: TopicPartition, result: CleaningResult, seconds: float) -> None:
    log.info(
        "%s is compacted up to offset %d: %d of %d records stay, %.1f of %.1f MB; %d keys, %.1f s, %.1f MB/s",
        key,
        result.end_offset,
        result.records_after,
        result.records_before,
        result.bytes_after / MEGABYTE,
        result.bytes_before / MEGABYTE,
        result.keys,
        seconds,
        result.bytes_read / MEGABYTE / max(seconds, 0.001),
    )
    if result.unopened:
        log.error("%s: %d batches are not opened and stay as they are, the first of them: %s", key, result.unopened, result.first_unopened)
    if result.records_without_key:
        log.warning("%s: %d records without a key were dropped, which came before the topic was compacted", key, result.records_without_key)


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """What could be cleaned of a log."""

    topic_partition: TopicPartition
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    # As the topic's settings have it.
    min_cleanable_dirty_ratio: float
    # A dirty record has waited for too long.
    is_overdue: bool = False
    # How often the log had been truncated when it was looked at.
    truncations: int = 0

    @property
    def dirty_ratio(self) -> float:
        """The share of bytes that were not cleaned yet."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is to be cleaned."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > self.min_cleanable_dirty_ratio)


def first_dirty_offset(cleaned_up_to: int, log_start_offset: int, log_end_offset: int) -> int:
    """Where the dirty part begins; a log that does not reach as far as was cleaned is dirty from its start."""
    return log_start_offset if cleaned_up_to > log_end_offset else max(cleaned_up_to, log_start_offset)


def end_offset(segments: Sequence[Segment], first_dirty: int, limit: int, youngest_ms: int | None) -> int:
    """Up to which segment's begin a log may be cleaned.

    Args:
        segments: the log's, the active one at the end.
        first_dirty: where the dirty part begins.
        limit: no segment that ends behind this offset is touched.
        youngest_ms: nor a dirty one with a later timestamp; None: whatever its time is.

    Raises:
        OSError: the time of one without timestamps cannot be looked up.
    """
    for segment, following in pairwise(segments):
        if following.base_offset > limit:
            return segment.base_offset
        if youngest_ms is not None and following.base_offset > first_dirty and segment.largest_timestamp > youngest_ms:
            return segment.base_offset
    return segments[-1].base_offset


def sizes(segments: Sequence[Segment], first_dirty: int, end: int) -> tuple[int, int]:
    """The bytes of the clean segments and of the dirty ones, as far as they may be cleaned."""
    clean = dirty = 0
    for segment, following in pairwise(segments):
        if following.base_offset > end:
            break
        if following.base_offset > first_dirty:
            dirty += segment.size
        else:
            clean += segment.size
    return clean, dirty


def filthiest(logs: Iterable[CleanableLog]) -> CleanableLog | None:
    """The one to clean next; None when none is due."""
    return max(
        (partition_log for partition_log in logs if partition_log.is_due), key=lambda partition_log: partition_log.dirty_ratio, default=None
    )
