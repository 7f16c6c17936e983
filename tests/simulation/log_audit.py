"""What is wrong with a log: all that a log keeps beside its batches, compared with the batches themselves.

    consistency   indexes, time indexes, aborted transactions, leader epochs, producers' states and snapshots are what one pass over
                  the batches makes of them, in memory and on the disk; an offset that is looked up in the cold is found
    durability    what the recovery point vouches for would survive a loss of power at this moment: names, bytes, indexes, epochs
    checkpoints   the files of a log directory say nothing of a log that a start must not believe

Everything is read from the files of a log between two callbacks of its loop; nothing is changed. A finding is a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c
from tests.simulation.disk import Disk

from ottla.model import ZERO_TOPIC_ID, TopicPartition
from ottla.record.batch import CRC_START, HEADER_SIZE, BatchHeader, batches, read_header
from ottla.storage.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    MalformedCheckpoint,
    read_leader_epochs,
    read_offsets,
)
from ottla.storage.file_names import DAMAGED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log import Log
from ottla.storage.log_reader import LogReader
from ottla.storage.partition_metadata import PARTITION_METADATA, MalformedPartitionMetadata, read_topic_id
from ottla.storage.producer_replay import aborted_transaction, note_batch
from ottla.storage.producer_snapshots import CorruptSnapshot, read_snapshot, snapshot_offsets, snapshot_path
from ottla.storage.producers import ProducerState, ProducerStates
from ottla.storage.segment import Segment
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

# Of one log no more is told at a time: what follows is mostly the same again.
MOST_FINDINGS: Final = 5
_EVERYTHING: Final = 1 << 30

# Base offset, last offset, leader epoch, checksum, and where it lies.
BatchKey = tuple[int, int, int, int]


@dataclass(slots=True)
class SegmentContent:
    """A segment's file, and the batches in it by their positions."""

    segment: Segment
    content: bytes
    headers: dict[int, BatchHeader] = field(default_factory=dict)


@dataclass(slots=True)
class LogContent:
    """All batches of a log, as its files have them."""

    log: Log
    segments: list[SegmentContent]

    @property
    def headers(self) -> Iterator[BatchHeader]:
        for segment in self.segments:
            yield from segment.headers.values()

    def keys(self, start_offset: int, end_offset: int) -> list[BatchKey]:
        """The batches with anything in [start, end)."""
        return [
            (header.base_offset, header.last_offset, header.leader_epoch, header.crc)
            for header in self.headers
            if start_offset <= header.last_offset and header.base_offset < end_offset
        ]


def _cleaned_up_to(log: Log) -> int:
    """Up to where batches may be missing, or have fewer records than at first: a cleaning is seen before it is noted."""
    return log.log_end_offset if "compact" in log.settings.cleanup_policy else log.cleaned_up_to


def read_log(log: Log, from_offset: int = 0) -> LogContent:
    """Reads the segments of a log from an offset on, up to the size that the log knows. Raises OSError."""
    found = []
    for segment in log.files.segments.since(from_offset):
        content = Path(segment.path()).read_bytes()[: segment.size]
        found.append(SegmentContent(segment, content, dict(batches(content))))
    return LogContent(log, found)


def findings(log: Log, random: Random, *, looks: int, checks_bytes: bool, producers_expire: bool = False) -> Iterator[str]:
    """What is wrong with a log that is online, in memory and on the disk.

    Args:
        random: chooses the offsets that are looked up.
        looks: how many offsets are looked up.
        checks_bytes: whether the checksum of each batch is computed as well.
        producers_expire: whether a producer may be forgotten while its records are there.
    """
    try:
        content = read_log(log)
    except OSError as error:
        yield f"a segment of the list cannot be read: {error}"
        return
    broken = list(_batch_findings(content, checks_bytes))
    yield from broken
    yield from _name_findings(log)
    if broken:
        return  # whatever is derived from these batches would be told as well
    for segment in content.segments:
        yield from _offset_index_findings(segment)
        yield from _time_index_findings(log, segment)
    yield from _epoch_findings(content)
    if log.appender.next_offset == log.log_end_offset:  # else producers' states are ahead by what is staged
        yield from _producer_findings(content, producers_expire)
    yield from _look_up_findings(content, random, looks)


def _batch_findings(content: LogContent, checks_bytes: bool) -> Iterator[str]:
    log = content.log
    next_offset, epoch = -1, -1
    for number, segment in enumerate(content.segments):
        base_offset = segment.segment.base_offset
        if len(segment.content) < segment.segment.size:
            yield f"the segment at {base_offset} has {len(segment.content)} bytes in its file and {segment.segment.size} in memory"
        if base_offset < next_offset:
            yield f"a segment begins at {base_offset}, where {next_offset} is next"
        if number and base_offset > max(next_offset, _cleaned_up_to(log)):
            yield f"a segment begins at {base_offset}, and offsets {next_offset} to {base_offset} are missing before it"
        next_offset, end = max(next_offset, base_offset), 0
        for position, header in segment.headers.items():
            if header.base_offset < next_offset or header.last_offset < header.base_offset:
                yield f"offsets {header.base_offset} to {header.last_offset} at position {position}, where {next_offset} is next"
            elif header.base_offset > max(next_offset, _cleaned_up_to(log)) and position:
                yield f"offset {header.base_offset} at position {position}, where {next_offset} is next and nothing is compacted"
            if 0 <= header.leader_epoch < epoch:
                yield f"leader epoch {header.leader_epoch} at offset {header.base_offset} behind epoch {epoch}"
            next_offset, epoch, end = header.last_offset + 1, header.leader_epoch, position + header.size
            if checks_bytes and crc32c(memoryview(segment.content)[position + CRC_START : end]) != header.crc:
                yield f"a wrong checksum in the batch at offset {header.base_offset}"
        if end != len(segment.content):
            yield f"the segment at {base_offset} has {len(segment.content) - end} bytes behind its last whole batch, at position {end}"
    if next_offset > log.log_end_offset or (next_offset < log.log_end_offset and content.segments[-1].headers):
        yield f"the batches end at {next_offset}, and the log at {log.log_end_offset}"
    if not log.log_start_offset <= log.log_end_offset or log.recovery_point > log.log_end_offset:
        yield f"starts at {log.log_start_offset}, ends at {log.log_end_offset}, recovery point {log.recovery_point}"


def _condemned(log: Log) -> set[str]:
    """The files that are the log's no more and still have their names."""
    return {Path(path).name for path in log.files.condemned}


def _name_findings(log: Log) -> Iterator[str]:
    listed = {Path(segment.path()).name for segment in log.files.segments.all}
    # What a full disk did not let be renamed is remembered; until it is, the stop is no clean one (decision 17).
    there = {name for name in os.listdir(log.directory) if name.endswith(LOG_SUFFIX)} - _condemned(log)  # noqa: PTH208
    if there != listed:
        yield f"the directory has the segments {sorted(there - listed)} more and {sorted(listed - there)} less than the log's list"


def _offset_index_findings(segment: SegmentContent) -> Iterator[str]:
    known, base_offset = segment.segment._offset_index, segment.segment.base_offset
    path = segment.segment.path(OFFSET_INDEX_SUFFIX)
    index = OffsetIndex(path) if known is None else known
    entries = _entries(index, path, OFFSET_ENTRY_SIZE)
    if entries is None:
        yield f"{Path(path).name} is shorter than the {index.count} entries that are known of"
        return
    former = (-1, -1)
    for relative_offset, position in entries:
        header = segment.headers.get(position)
        if relative_offset <= former[0] or position <= former[1]:
            yield f"{Path(path).name}: entry {relative_offset} at {position} comes after {former}"
        elif header is None:
            yield f"{Path(path).name}: entry {relative_offset} points at {position}, where no batch begins"
        elif header.last_offset - base_offset != relative_offset:
            ends = header.last_offset - base_offset
            yield f"{Path(path).name}: entry {relative_offset} points at {position}, where a batch ends with {ends}"
        former = (relative_offset, position)


def _time_index_findings(log: Log, segment: SegmentContent) -> Iterator[str]:
    known, base_offset = segment.segment._time_index, segment.segment.base_offset
    path = segment.segment.path(TIME_INDEX_SUFFIX)
    index = TimeIndex(path) if known is None else known
    entries = _entries(index, path, TIME_ENTRY_SIZE)
    if entries is None:
        yield f"{Path(path).name} is shorter than the {index.count} entries that are known of"
        return
    largest: dict[int, int] = {}  # by last offset of a batch: the largest timestamp up to it
    own: dict[int, int] = {}
    so_far = -1
    for header in segment.headers.values():
        so_far = max(so_far, header.max_timestamp)
        largest[header.last_offset], own[header.last_offset] = so_far, header.max_timestamp
    former = (-1, -1)
    for timestamp, relative_offset in entries:
        offset = base_offset + relative_offset
        if timestamp <= former[0] or relative_offset <= former[1]:
            yield f"{Path(path).name}: timestamp {timestamp} at {relative_offset} comes after {former}"
        elif offset not in own:
            yield f"{Path(path).name}: timestamp {timestamp} points at offset {offset}, with which no batch ends"
        elif own[offset] != timestamp or largest[offset] != timestamp:
            yield f"{Path(path).name}: timestamp {timestamp} at offset {offset}, whose batch has {own[offset]}, up to it {largest[offset]}"
        former = (timestamp, relative_offset)
    if segment.segment is not log.files.segments.active and so_far >= 0 and former[0] != so_far:
        yield f"{Path(path).name} ends with timestamp {former[0]}, and the largest of its sealed segment is {so_far}"


def _entries(index: Any, path: str, size: int) -> list[tuple[int, int]] | None:
    """All entries of an index, those that wait in memory included; None when the file has fewer than are known of."""
    if index.count and (not os.path.exists(path) or os.path.getsize(path) < index.count * size):  # noqa: PTH202
        return None
    return list(index.entries())


# Leader epochs.


def rebuilt_epochs(content: LogContent) -> LeaderEpochCache:
    """The leader epochs as the batches from the log's start on have them."""
    epochs = LeaderEpochCache()
    start = content.log.log_start_offset
    for header in content.headers:
        if header.last_offset >= start and header.leader_epoch > epochs.latest_epoch:
            epochs.assign(header.leader_epoch, max(header.base_offset, start))
    return epochs


def _epoch_findings(content: LogContent) -> Iterator[str]:
    log = content.log
    entries = log.leader_epochs.entries
    # A log start that was not recorded before a crash lies before the epochs that were.
    first_known = max(log.log_start_offset, entries[0][1]) if entries else log.log_start_offset
    rebuilt = _since(rebuilt_epochs(content).entries, first_known) if first_known < log.log_end_offset else []
    known = [entry for entry in entries if entry[1] < log.log_end_offset]  # the last one may have no batch yet
    if not _cleaned_up_to(log) and known != rebuilt:
        yield f"the leader epochs are {entries}, and the batches have {rebuilt}"
    for header in content.headers:
        offset = max(header.base_offset, first_known)
        if header.last_offset >= offset and log.leader_epochs.epoch_for_offset(offset) != header.leader_epoch:
            found = log.leader_epochs.epoch_for_offset(offset)
            yield f"offset {offset} is of leader epoch {header.leader_epoch}, and of {found} by the leader epochs {entries}"
            break
    if not log.leader_epochs.is_dirty and not log.flusher.is_flushing and not log.is_offline:
        try:
            path = log.directory / LEADER_EPOCH_CHECKPOINT
            # Kafka leaves an empty file of a log that has no epochs, which stands until the first.
            stored = read_leader_epochs(path) if entries or (path.exists() and path.stat().st_size) else []
        except MalformedCheckpoint as error:
            yield str(error)
            return
        if stored != entries:
            yield f"{LEADER_EPOCH_CHECKPOINT} has {stored}, and memory, which takes it for written, {entries}"


# Producers and transactions.


def _producer_findings(content: LogContent, producers_expire: bool) -> Iterator[str]:
    log = content.log
    first_offset = log.files.segments.all[0].base_offset
    # Before it, batches may be gone that a state remembers.
    known_from = max(first_offset, _cleaned_up_to(log))
    snapshots = [offset for offset in snapshot_offsets(log.directory) if snapshot_path(log.directory, offset).name not in _condemned(log)]
    for offset in snapshots:
        if offset > log.log_end_offset:
            yield f"there is a snapshot of the producers at {offset}, and the log ends at {log.log_end_offset}"
    waiting = [offset for offset in snapshots if first_offset <= offset <= log.log_end_offset]
    replayed = ProducerStates()
    for segment in content.segments:
        aborted: list[AbortedTransaction] = []
        for position, header in segment.headers.items():
            while waiting and header.base_offset >= waiting[0]:
                yield from _snapshot_findings(log, waiting.pop(0), replayed, known_from, producers_expire)
            if header.producer_id >= 0:
                completed = note_batch(replayed, header, segment.content[position : position + header.size] if header.is_control else b"")
                if completed is not None and completed.is_aborted:
                    aborted.append(aborted_transaction(completed, replayed))
        yield from _transaction_index_findings(log, segment, aborted, first_offset)
    for offset in waiting:
        yield from _snapshot_findings(log, offset, replayed, known_from, producers_expire)
    for state in replayed:
        remembered = log.producers.get(state.producer_id)
        if remembered is None:
            if not producers_expire:
                yield f"producer {state.producer_id} has batches up to offset {state.last_offset} in the log, and is not known"
        elif remembered.batches or remembered.unwritten_epoch is None or not producers_expire:
            # Else it had expired, and the first batch that came again could not be written.
            yield from _state_findings(state, remembered, first_offset, known_from)
    for remembered in log.producers:
        state_or_none = replayed.get(remembered.producer_id)
        # By last sequence and offset: a snapshot keeps no more of a batch, and of its timestamp the last one of the producer.
        stored = set() if state_or_none is None else {(batch[1], batch[3]) for batch in state_or_none.batches}
        for batch in remembered.batches:
            if batch[2] >= known_from and (batch[1], batch[3]) not in stored:
                yield f"producer {remembered.producer_id} is remembered with a batch that is not in the log: {batch}"


def _state_findings(state: ProducerState, remembered: ProducerState, first_offset: int, known_from: int) -> Iterator[str]:
    found = (remembered.producer_epoch, remembered.next_sequence, remembered.last_offset)
    expected = (state.producer_epoch, state.next_sequence, state.last_offset)
    # Only its marker may be left of what it wrote.
    is_deleted = state.last_offset < 0 and remembered.last_offset < known_from and found[0] == expected[0]
    if found != expected and not is_deleted:
        yield f"producer {state.producer_id} has (epoch, next sequence, last offset) {found} in memory, and {expected} in the log"
    open_from, first = remembered.transaction_first_offset, state.transaction_first_offset
    # A cleaning may have taken its first batches when it was complete, and a loss of power its marker since.
    lost_its_first = 0 <= open_from < min(first, known_from)
    if open_from != first and not 0 <= open_from < first_offset and not lost_its_first:
        yield f"producer {state.producer_id} has a transaction from {open_from} in memory, and from {first} in the log"


def _snapshot_findings(log: Log, offset: int, replayed: ProducerStates, known_from: int, producers_expire: bool) -> Iterator[str]:
    path = snapshot_path(log.directory, offset)
    try:
        entries = {entry.producer_id: entry for entry in read_snapshot(path)}
    except CorruptSnapshot:
        return  # a start sees it too, and takes another
    for producer_id, entry in entries.items():
        state = replayed.get(producer_id)
        if entry.last_offset >= known_from and (state is None or entry.last_offset != state.last_offset):
            last = "nothing" if state is None else f"offset {state.last_offset}"
            yield f"{path.name}: producer {producer_id} has written offset {entry.last_offset} last, and {last} in the log"
        first = entry.current_transaction_first_offset
        if first >= known_from and (state is None or state.transaction_first_offset != first):
            yield f"{path.name}: producer {producer_id} has a transaction open from {first}, and none in the log"
    for state in replayed:
        if state.producer_id not in entries and not producers_expire:
            yield f"{path.name} lacks producer {state.producer_id}, which has written offset {state.last_offset}"


def _transaction_index_findings(
    log: Log, segment: SegmentContent, aborted: Sequence[AbortedTransaction], first_offset: int
) -> Iterator[str]:
    if _cleaned_up_to(log) > segment.segment.base_offset and segment.segment is not log.files.segments.active:
        return  # markers may have gone with what they end
    path = segment.segment.path(TRANSACTION_INDEX_SUFFIX)
    known = segment.segment.used_transaction_index
    for index, where in ((known, "memory"), (TransactionIndex(path), "the file")):
        if index is None or (where == "the file" and known is not None and known._written < len(known._entries)):
            continue
        expected = [tuple(entry)[:3] for entry in aborted]
        # Of a transaction that began in a segment that is deleted there may be later batches, or no more than its marker.
        ends = {entry[0::2] for entry in expected}
        entries = [tuple(entry)[:3] for entry in index]
        found = [entry for entry in entries if entry[1] >= first_offset or entry[0::2] in ends]
        # A compaction may have taken the first batch of a transaction whose marker lies behind what it cleaned.
        gone = max(_cleaned_up_to(log), first_offset)
        is_same = [
            entry == wanted or (entry[0::2] == wanted[0::2] and entry[1] < min(wanted[1], gone))
            for entry, wanted in zip(found, expected, strict=False)
        ]
        if len(found) != len(expected) or not all(is_same):
            yield f"{Path(path).name}, {where}: aborted transactions {found}, and {expected} by the batches"


# Look-ups.


def _look_up_findings(content: LogContent, random: Random, looks: int) -> Iterator[str]:
    log = content.log
    size = log.log_end_offset - log.log_start_offset
    if size <= 0 or not looks:
        return
    ends = [header.last_offset for header in content.headers]
    offsets = {log.log_start_offset, log.log_end_offset - 1}
    offsets.update(log.log_start_offset + random.randrange(size) for _ in range(looks))
    by_end = {header.last_offset: header for header in content.headers}
    for offset in sorted(offsets):
        expected = next((last for last in ends if last >= offset), None)
        reader = LogReader(log.files.segments, log.files.context.file_pool)
        try:
            region = reader.read(offset, _EVERYTHING, log.log_end_offset, log.log_end_offset, True)
        except Exception as error:
            yield f"offset {offset} cannot be looked up: {error!r}"
            continue
        if region is None:
            if expected is not None:
                yield f"offset {offset} is not found, and lies in the batch that ends with {expected}"
            continue
        data = os.pread(region.file.fd, HEADER_SIZE, region.position)
        found = read_header(data) if len(data) == HEADER_SIZE else None
        if expected is None or found != by_end[expected]:
            yield f"offset {offset} is answered with {found}, and lies in the batch that ends with {expected}"


# Topics.


def topic_findings(log: Log, topic_id: UUID) -> Iterator[str]:
    """Whether the log's directory says whose it is.

    Args:
        topic_id: of the partition that it is opened for.
    """
    if topic_id == ZERO_TOPIC_ID:
        return
    try:
        stored = read_topic_id(log.directory)
    except MalformedPartitionMetadata as error:
        yield str(error)
        return
    if stored is None and log.topic_id is None and any(log.directory.glob(f"{PARTITION_METADATA}*{DAMAGED_SUFFIX}")):
        return  # it was, until the file was damaged; as long as the partition has no leader it is kept as it is
    if stored is None:
        yield f"it is the log of topic {topic_id}, and its directory does not say so: whoever comes next with this name may take it"
    elif stored != topic_id:
        yield f"it is the log of topic {topic_id}, and its directory is that of topic {stored}"


# Checkpoints.


def checkpoint_findings(
    directory: Path, logs: Mapping[TopicPartition, Log], high_watermarks: Mapping[TopicPartition, int]
) -> Iterator[str]:
    """What a start would believe of a log directory's logs, and must not.

    Args:
        logs: those of this directory.
        high_watermarks: of those that have kept everything.
    """
    try:
        recovery_points = read_offsets(directory / RECOVERY_POINT_CHECKPOINT)
        log_starts = read_offsets(directory / LOG_START_OFFSET_CHECKPOINT)
        recorded = read_offsets(directory / HIGH_WATERMARK_CHECKPOINT)
    except MalformedCheckpoint as error:
        yield str(error)
        return
    for key, log in logs.items():
        if not log.must_checkpoint_truncation and recovery_points.get(key, 0) > log.recovery_point:
            yield f"{key}: {RECOVERY_POINT_CHECKPOINT} has {recovery_points[key]}, and the recovery point is {log.recovery_point}"
        if not log.must_checkpoint_truncation and log_starts.get(key, 0) > log.log_start_offset:
            yield f"{key}: {LOG_START_OFFSET_CHECKPOINT} has {log_starts[key]}, and the log starts at {log.log_start_offset}"
        if key in high_watermarks and recorded.get(key, 0) > high_watermarks[key]:
            yield f"{key}: {HIGH_WATERMARK_CHECKPOINT} has {recorded[key]}, and the high watermark is {high_watermarks[key]}"


# What would survive.


def durability_findings(log: Log, disk: Disk, deleted_up_to: int = 0) -> Iterator[str]:
    """What is vouched for, and a loss of power at this moment would take away.

    Answers and the high watermark rely on the recovery point in memory: bytes and names. A start relies on the one in the checkpoint:
    of what lies before it nothing is made again, so indexes and leader epochs have to be there as well.

    Args:
        deleted_up_to: up to where a former life had deleted records. Some may be back, for a log start is written down periodically;
            their leader epochs went with them.
    """
    point = log.recovery_point
    segments = log.files.segments.all
    if point <= segments[0].base_offset or log.flusher.is_retired:
        return
    for number, segment in enumerate(segments):
        if segment.base_offset >= point:
            break
        if segment is not segments[-1] and _cleaned_up_to(log):
            continue  # a cleaning changes names in several steps, which a start completes
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        content = Path(segment.path()).read_bytes()[: segment.size]
        covered = len(content)
        if following is None or following > point:
            covered = next((at for at, header in batches(content) if header.last_offset >= point), covered)
        for survivor in disk.survivors(segment.path()):
            if survivor is None:
                yield f"recovery point {point}: the segment at {segment.base_offset} would have no name after a loss of power"
            elif survivor[:covered] != content[:covered]:
                yield f"recovery point {point}: the segment at {segment.base_offset} would lose some of its first {covered} bytes"
            # Of one that ends at the recovery point a start looks at what lies behind it.
            elif following is not None and following < point and len(survivor) > len(content):
                yield f"recovery point {point}: what was cut off the sealed segment at {segment.base_offset} would be back"
    metadata = log.directory / PARTITION_METADATA
    if metadata.exists():
        for survivor in disk.survivors(str(metadata)):
            if survivor != metadata.read_bytes():
                yield f"recovery point {point}: a loss of power would take {PARTITION_METADATA}"
    try:
        recorded = read_offsets(log.directory.parent / RECOVERY_POINT_CHECKPOINT).get(log.topic_partition, 0)
    except MalformedCheckpoint:
        recorded = 0
    point = min(point, recorded)
    for number, segment in enumerate(segments[:-1]):
        # The one that ends there is looked at by a start: it may have rolled after it was flushed.
        if segments[number + 1].base_offset < point and not _cleaned_up_to(log):
            yield from _index_durability(log, segment, disk, point)
    start = max(log.log_start_offset, deleted_up_to)
    if point > start:
        expected = [entry for entry in _since(log.leader_epochs.entries, start) if entry[1] < point]
        for survivor in disk.survivors(str(log.directory / LEADER_EPOCH_CHECKPOINT)):
            stored = _epochs_after_a_start(log, survivor)
            if [entry for entry in _since(stored, start) if entry[1] < point] != expected:
                yield f"recorded recovery point {point}: a loss of power would leave the leader epochs {stored}, and they are {expected}"


def _since(entries: Iterable[tuple[int, int]], start_offset: int) -> list[tuple[int, int]]:
    """The leader epochs of what lies at an offset and behind it."""
    epochs = LeaderEpochCache(entries)
    epochs.truncate_from_start(start_offset)
    return epochs.entries


def _index_durability(log: Log, segment: Segment, disk: Disk, point: int) -> Iterator[str]:
    """Nothing makes the indexes of a segment before the recorded recovery point again, unless they look damaged."""
    if segment in log.files.sealed:
        # A flush before the roll has gone as far. Files that are empty or not there are made again; a piece of one is believed.
        paths = [segment.path(suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        if not any(os.path.exists(path) and os.path.getsize(path) for path in paths):  # noqa: PTH202
            return
        yield f"recorded recovery point {point}: the indexes of the sealed segment at {segment.base_offset} are not on the disk"
        return
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        path = Path(segment.path(suffix))
        if not path.exists():
            continue
        content = path.read_bytes()
        for survivor in disk.survivors(str(path)):
            if survivor is None and suffix != TRANSACTION_INDEX_SUFFIX:
                continue  # a missing one is made again
            if survivor != content:
                yield f"recorded recovery point {point}: a loss of power would leave another {path.name}"


def _epochs_after_a_start(log: Log, content: bytes | None) -> list[tuple[int, int]]:
    """What a start makes of the file: where it is damaged or not there, what the batches say."""
    try:
        _, count, *lines = (content or b"").decode(errors="replace").splitlines()
        entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
        if len(entries) == int(count):
            return entries
    except ValueError:
        pass
    epochs = LeaderEpochCache()
    for segment in read_log(log).segments:
        for header in segment.headers.values():
            if header.leader_epoch > epochs.latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)
    return epochs.entries
