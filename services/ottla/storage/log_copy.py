"""A log's files, copied to another directory while the log continues being written to.

    plan        on the loop: what is missing from the copy of the log as it is now, and what it has too much
    carry_out   in a thread: copies that, and syncs it
    LogCopy     remembers how far the copy is, from one round to the next

Batches are copied as bytes in a file: sealed segments once, the active one as it grows. What became of the head
(retention) or of segments (a cleaner) meanwhile is seen by the segments themselves; a truncation makes all of it void,
because other bytes may lie at the same places, and the copier begins again.

Nothing here knows who reads or writes the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, path_aside, sync_directory
from ottla.storage.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from ottla.storage.log import Log
from ottla.storage.partition_metadata import PARTITION_METADATA
from ottla.storage.segment import Segment

# In one round; a round cannot be interrupted, and a stop waits for it.
BYTES_AT_ONCE: Final = 64 * 1024 * 1024
READ_SIZE: Final = 1024 * 1024
# What may be missing when a log and its copy change places: copied in well under a millisecond.
LAST_BYTES: Final = 256 * 1024


class SourceChanged(Exception):
    """A file that was to be copied is shorter now, or gone: its log was truncated, or retention took it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file that are appended to its copy."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One round. `pieces` are parts of logs; `small` are files that are copied whole; `gone` are removed."""

    pieces: tuple[Piece, ...] = ()
    small: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes of logs it copies."""
        return sum(piece.end - piece.begin for piece in self.pieces)

    @property
    def takes_out(self) -> bool:
        """Whether segments go, for which others may come: until it is carried out the copy has neither."""
        return any(name.endswith(LOG_SUFFIX) for name in self.gone)


def carry_out(plan: CopyPlan, source: Path, target: Path, *, synced: bool) -> None:
    """Makes the copy in `target` what the plan says. It blocks.

    Args:
        plan: of the copy as it is.
        source: the log's directory.
        target: the copy's.
        synced: whether it has to be on the disk at the end.

    Raises:
        SourceChanged: a log is not what the plan says any more. Whatever was done of it, another plan sets it right.
        OSError: a file could not be read or written.
    """
    for name in plan.gone:
        (target / name).unlink(missing_ok=True)
    for piece in plan.pieces:
        _append(piece, source, target, synced)
    for name in plan.small:
        try:
            content = (source / name).read_bytes()
        except FileNotFoundError:
            (target / name).unlink(missing_ok=True)
            continue
        with open(target / name, "wb", buffering=0) as file:
            file.write(content)
            if synced:
                os.fsync(file.fileno())
    if synced:
        sync_directory(target)


def _append(piece: Piece, source: Path, target: Path, synced: bool) -> None:
    path = source / piece.name
    try:
        with open(path, "rb", buffering=0) as read, open(target / piece.name, "ab", buffering=0) as written:
            os.ftruncate(written.fileno(), piece.begin)  # what an earlier round left behind when it failed
            position = read.seek(piece.begin)
            while position < piece.end:
                content = read.read(min(piece.end - position, READ_SIZE))
                if not content:
                    raise SourceChanged(f"{path} ends at {position}, before {piece.end}")
                position += written.write(content)
            if synced:
                os.fsync(written.fileno())
    except FileNotFoundError as error:
        if error.filename != str(path):
            raise
        raise SourceChanged(f"{path} is gone") from error


class LogCopy:
    """How far the copy of one log is. For each round: `plan`, `carry_out`, and if that did not fail, `done`."""

    def __init__(self, log: Log) -> None:
        self._log: Final = log
        self._truncations = log.truncations
        self._sizes: dict[Segment, int] = {}
        self._begun: dict[Segment, None] = {}  # may have files in the copy: a round that was not carried out has left some, too
        self._indexed: set[Segment] = set()  # sealed ones whose indexes are copied in full
        self._in_memory: set[Segment] = set()  # of these, those that had no files to copy, and may get them
        self._snapshots: set[int] = set()
        self._vouched_for = 0  # up to where the log's small files were on its disk when they were copied last
        # What the five but `_begun` will be when the plan is carried out, and which segments have no files in the copy then.
        self._planned: tuple[dict[Segment, int], set[Segment], set[Segment], set[int], int] = {}, set(), set(), set(), 0
        self._former: list[Segment] = []

    @property
    def is_void(self) -> bool:
        """Whether the log was truncated, so that the copy has to begin again, in an empty directory."""
        return self._log.truncations != self._truncations

    @property
    def size(self) -> int:
        """The bytes of logs that are copied."""
        return sum(self._sizes.values())

    @property
    def end_offset(self) -> int:
        """Up to which offset everything is copied, indexes of sealed segments included; it errs to the low side inside a segment."""
        for segment in self._log.segments:
            if self._sizes.get(segment, -1) < segment.size or not (segment.is_active or segment in self._indexed):
                return segment.base_offset
        return self._log.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Up to which offset the copy can be relied on, as far as its rounds were synced.

        The log's own may have moved since, with leader epochs and aborted transactions that were not in its files before.
        """
        return min(self._vouched_for, self.end_offset)

    def plan(self, limit: int = BYTES_AT_ONCE) -> CopyPlan:
        """What is still to be copied, up to so many bytes of logs. Index entries in memory are written for it.

        Raises:
            OSError: they could not be.
        """
        segments = self._log.segments
        former = self._former = [segment for segment in self._begun if segment not in segments]
        sizes = {segment: size for segment, size in self._sizes.items() if segment not in former}
        indexed, in_memory = self._indexed.difference(former), self._in_memory.difference(former)
        pieces = []
        # The epochs that wait for a flush come first: it gives their file the other's name, which then has them.
        small = [PARTITION_METADATA, path_aside(Path(LEADER_EPOCH_CHECKPOINT)).name, LEADER_EPOCH_CHECKPOINT]
        for segment in segments:
            begin = sizes.get(segment, 0)
            end = min(segment.size, begin + limit)
            limit -= end - begin
            if begin < end or segment not in sizes:
                pieces.append(Piece(_names_of(segment)[0], begin, end))
            sizes[segment] = end
            self._begun[segment] = None
            if end < segment.size:
                break
            if segment not in indexed or (segment in in_memory and not segment.has_no_index_files):
                segment.write_indexes()
                small += _names_of(segment)[1:]
                in_memory.discard(segment)
                if not segment.is_active:
                    indexed.add(segment)
                    in_memory.update([segment] if segment.has_no_index_files else [])
        snapshots = set(self._log.files.snapshot_offsets())
        small += [_snapshot_name(offset) for offset in snapshots - self._snapshots]
        gone = [name for segment in former for name in _names_of(segment)] + [
            _snapshot_name(snapshot) for snapshot in self._snapshots - snapshots
        ]
        self._planned = sizes, indexed, in_memory, snapshots, self._log.recovery_point
        return CopyPlan(tuple(pieces), tuple(small), tuple(gone))

    def done(self) -> None:
        """The last plan was carried out."""
        self._sizes, self._indexed, self._in_memory, self._snapshots, self._vouched_for = self._planned
        for segment in self._former:
            self._begun.pop(segment, None)

    def segments_in(self, directory: Path) -> list[Segment]:
        """The copied segments; of a complete copy they are the log's."""
        copied = [segment.copy_in(str(directory), self._sizes[segment]) for segment in self._log.segments]
        copied[-1].is_active = True
        return copied

    def newest_snapshot(self) -> int:
        """The offset of the newest producer snapshot that is copied; the log's first offset without any."""
        return max(self._snapshots, default=self._log.segments[0].base_offset)


def _names_of(segment: Segment) -> Sequence[str]:
    suffixes = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
    return [segment_file_name(segment.base_offset, suffix) for suffix in suffixes]


def _snapshot_name(offset: int) -> str:
    return segment_file_name(offset, SNAPSHOT_SUFFIX)
