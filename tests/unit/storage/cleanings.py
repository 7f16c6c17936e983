"""A log that is cleaned in the test's own process: what several tests of compaction need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ottla.config.broker import BrokerSettings
from ottla.lifecycle import offload_nothing
from ottla.record.batch import DELETE_HORIZON_MASK, BatchHeader, batches
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch, read_records
from ottla.storage.compaction.cleaner import LogCleaner
from ottla.storage.compaction.job import CleanedSegment, CleaningJob, CleaningResult
from ottla.storage.compaction.runner import CleaningRunner, InlineRunner
from ottla.storage.log import Log
from ottla.testing import ManualClock

from .logs import PARTITION, append

ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT

Keyed = tuple[str | None, str | None]


def keyed_batch(base_offset: int, *records: Keyed, timestamp: int = 1_000_000, **more: Any) -> bytes:
    """A batch of (key, value) records; a value of None is a tombstone."""
    made = [
        Record(base_offset + index, timestamp + index, None if key is None else key.encode(), None if value is None else value.encode())
        for index, (key, value) in enumerate(records)
    ]
    return build_batch(made, base_offset=base_offset, **{"leader_epoch": 0, **more})


def put(log: Log, *records: Keyed, **more: Any) -> int:
    """Appends a batch, and gives its first offset."""
    offset = log.log_end_offset
    append(log, keyed_batch(offset, *records, **more))
    return offset


def end_transaction(log: Log, control_type: ControlRecordType, producer_id: int, epoch: int = 0, timestamp: int = 1_000_000) -> int:
    """Appends a marker, and gives its offset."""
    offset = log.log_end_offset
    marker = EndTransactionMarker(control_type, 3)
    append(
        log,
        build_marker_batch(marker, base_offset=offset, timestamp=timestamp, producer_id=producer_id, producer_epoch=epoch, leader_epoch=0),
    )
    return offset


def cleaner_of(
    log: Log, clock: ManualClock, runner: CleaningRunner | None = None, high_watermark: int | None = None, **settings: Any
) -> LogCleaner:
    """A cleaner with only this log; everything in it is committed unless it is said."""
    broker = BrokerSettings.from_properties({"broker.id": "0", "log.dirs": str(log.directory.parent)})
    changed = replace(broker, **{"log_cleaner_dedupe_buffer_size": 1 << 20, **settings})
    return LogCleaner(
        {PARTITION: log},
        lambda: {PARTITION: log.log_end_offset if high_watermark is None else high_watermark},
        changed,
        clock,
        offload_nothing,
        runner or InlineRunner(offload_nothing),
    )


async def clean(log: Log, clock: ManualClock, *, roll: bool = True, **settings: Any) -> LogCleaner:
    """Rolls, syncs, and cleans the log once; the topic has to be one that is compacted."""
    if roll:
        log.appender.roll()
    await log.flush()
    await log.flusher.flush_sealed()
    cleaner = cleaner_of(log, clock, **settings)
    assert await cleaner.clean_filthiest() == PARTITION
    return cleaner


def headers_of(log: Log) -> list[BatchHeader]:
    """Every batch of the log."""
    return [header for segment in log.segments for _, header in batches(Path(segment.path()).read_bytes())]


def records_of(log: Log) -> list[Record]:
    """Every record that is stored, markers left out."""
    found: list[Record] = []
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        for position, header in batches(data):
            if not header.is_control:
                found += read_records(data[position : position + header.size])
    return found


def values_of(log: Log) -> dict[int, Keyed]:
    """Key and value by offset."""
    return {
        record.offset: (None if record.key is None else record.key.decode(), None if record.value is None else record.value.decode())
        for record in records_of(log)
    }


def committed_records_of(log: Log, up_to: int | None = None) -> Iterator[Record]:
    """What a reader of committed data makes of what `read` and `aborted_transactions` give, from the log's start on."""
    offset, end = log.log_start_offset, log.log_end_offset if up_to is None else up_to
    aborted_now: set[int] = set()
    while offset < end:
        region = log.read(offset, 1 << 20, end, True)
        if region is None:
            return
        aborted = sorted(log.aborted_transactions(offset, region, end), key=lambda transaction: transaction.first_offset)
        data = region.read()
        for position, header in batches(data):
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborted_now.add(aborted.pop(0).producer_id)
            if header.is_control:
                aborted_now.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted_now):
                for record in read_records(data[position : position + header.size]):
                    if record.offset >= offset:
                        yield record
            offset_behind = header.last_offset + 1
        offset = offset_behind


def has_horizon(header: BatchHeader) -> bool:
    return bool(header.attributes & DELETE_HORIZON_MASK)


class ObservedRunner:
    """Runs inline, and lets a test do something before each cleaned segment is taken in."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.before = before
        self.jobs: list[CleaningJob] = []
        self.cleaned: list[CleanedSegment] = []
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.is_closed = False

    async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
        self.jobs.append(job)

        def observed(cleaned: CleanedSegment) -> None:
            self.before()
            done(cleaned)
            self.cleaned.append(cleaned)

        try:
            return await InlineRunner(offload_nothing).run(job, observed)
        finally:
            self.ended.put_nowait(None)

    async def close(self) -> None:
        self.is_closed = True


Settings = Mapping[str, Any]
COMPACTED: Settings = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}


def file_names(directory: Path, *suffixes: str) -> Sequence[str]:
    """Those that end so, in order."""
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffixes))
