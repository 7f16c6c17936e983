"""The files of one log, and what of them is not on the disk yet: what its appender, its flusher and the log itself share.

Which segments there are, which files have to lose their names, what waits for a flush, and whether the directory has failed. It
decides nothing: anyone who changes the list of segments says here what follows for the files.

One event loop owns it. Only a log's own parts write to it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.config.topic import TopicSettings
from ottla.errors import KafkaStorageError
from ottla.model import TopicPartition
from ottla.storage.delayed_deletes import rename_to_deleted
from ottla.storage.log_context import LogContext
from ottla.storage.log_reader import LogReader
from ottla.storage.log_sync import PASSING
from ottla.storage.producer_snapshots import snapshot_offsets, snapshot_path
from ottla.storage.recovery import SEGMENT_SUFFIXES, LoadedLog
from ottla.storage.segment import Segment, SegmentList

log = logging.getLogger(__name__)

# The file of a segment that was deleted meanwhile is gone, too.
HARMLESS: Final = PASSING | {errno.ENOENT}
UNKNOWN: Final = -1  # for `roll_at`: the active segment has not been looked at


class LogFiles:
    """The files of one log. Made from what `recovery.load_log` found on the disk."""

    __slots__ = (
        "condemned",
        "context",
        "directory",
        "directory_changed",
        "failure",
        "reader",
        "roll_at",
        "sealed",
        "segments",
        "settings",
        "snapshot_offset",
        "snapshots",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self, topic_partition: TopicPartition, directory: Path, settings: TopicSettings, loaded: LoadedLog, context: LogContext
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.directory: Final = directory
        self.settings = settings
        self.context: Final = context
        self.segments: Final = SegmentList(loaded.segments)
        self.reader: Final = LogReader(self.segments, context.file_pool)
        self.failure: str | None = None
        self.truncations = 0  # how often the end went back
        # Segments that take no appends and whose indexes are not on the disk yet: those that rolled, or that a start has recovered.
        # It begins with the one that has the last offset before the recovery point (`first_to_recover`).
        self.sealed: list[Segment] = list(self.segments.since(loaded.recovery_point - 1)[:-1])
        self.condemned: list[str] = []  # files that are the log's no more and still have their names
        self.snapshots: list[tuple[int, bytes]] = []  # of the producers, taken at rolls, on their way to the disk
        self.snapshot_offset = loaded.snapshot_offset  # of the newest one
        # After an unclean stop it is unknown whether the names of what was recovered have lasted.
        self.directory_changed = loaded.is_new or loaded.recovery_point < loaded.log_end_offset
        # Up to where the active segment takes appends without a look at anything else. Nothing is known of it before the first
        # append: an idle log costs no look at its files.
        self.roll_at = UNKNOWN

    def end_at(self, offset: int, snapshots: Sequence[int]) -> None:
        """The segments end at an earlier offset now. `snapshots` of the producers have files."""
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot[0] <= offset]
        self.sealed = [segment for segment in self.sealed if segment in self.segments.all[:-1]]
        self.snapshot_offset = min(self.snapshot_offset, offset)
        self.roll_at = UNKNOWN
        self.truncations += 1
        # A late snapshot would be taken for the truth once the log has grown past it again.
        self.condemned += [str(snapshot_path(self.directory, late)) for late in snapshots if late > offset]
        self.directory_changed = True
        self.reader.forget()

    def forget_snapshots(self, snapshots: Sequence[int]) -> None:
        """The log begins again: not even a snapshot of its new start says anything of it. `snapshots` have files."""
        self.snapshots = []
        self.condemned += [path for offset in snapshots if (path := str(snapshot_path(self.directory, offset))) not in self.condemned]

    def snapshot_offsets(self) -> list[int]:
        """The offsets of the producers' snapshots in files, ascending; without those that a truncation has left their names for now.

        Raises:
            OSError: the directory cannot be read.
        """
        return [offset for offset in snapshot_offsets(self.directory) if str(snapshot_path(self.directory, offset)) not in self.condemned]

    def release(self) -> None:
        """Drops every open file, as at close and when the partition is deleted; regions on their way keep theirs."""
        for segment in self.segments.all:
            self.context.file_pool.forget(segment)
        self.reader.forget()

    def fail(self, reason: str) -> None:
        """Takes the log offline: from now on it raises KafkaStorageError. Its directory has failed."""
        self.failure = reason
        self.roll_at = UNKNOWN
        self.release()

    def discard(self, segments: Sequence[Segment]) -> None:
        """Takes the files of segments that are no longer in the list out of the log, in this order.

        Raises:
            KafkaStorageError: the directory has failed.
        """
        for segment in segments:
            self.context.file_pool.forget(segment)
            self.condemned += [segment.path(suffix) for suffix in SEGMENT_SUFFIXES]
        self.try_to_rename_condemned()

    def try_to_rename_condemned(self) -> None:
        """What cannot be renamed now is before the recovery point moves: a start would take it for the log's."""
        try:
            self.rename_condemned()
        except KafkaStorageError as error:
            if self.failure is not None:
                raise
            log.warning("%s: %d deleted files cannot be renamed yet: %s", self.topic_partition, len(self.condemned), error)

    def rename_condemned(self) -> None:
        """Renames files that are the log's no more, and has them deleted later.

        Raises:
            KafkaStorageError: one of them still has its name.
        """
        if not self.condemned:
            return
        renamed = []
        try:
            while self.condemned:
                with contextlib.suppress(FileNotFoundError):
                    renamed.append(rename_to_deleted(self.condemned[0]))
                del self.condemned[0]
        except OSError as error:
            raise self.storage_error(f"renaming {self.condemned[0]}, which is the log's no more", error) from error
        finally:
            if renamed:
                self.directory_changed = True
                self.context.owner.delete_later(renamed, self.settings.file_delete_delay_ms)

    def write_indexes(self, segment: Segment) -> None:
        """Brings what a segment's indexes have in memory to their files, as far as that is possible now."""
        try:
            segment.write_indexes()
        except OSError as error:
            # Look-ups find the entries in memory, and the next time they are written with the others.
            log.warning(
                "%s: offset and time index entries of the segment at %d are delayed: %s", self.topic_partition, segment.base_offset, error
            )

    def check_online(self) -> None:
        """Raises KafkaStorageError when the directory has failed."""
        if self.failure is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self.failure}")

    def storage_error(self, doing: str, error: OSError, passing: frozenset[int] = HARMLESS) -> KafkaStorageError:
        """The error to raise for one of the system's; the directory fails with it unless it is one that passes."""
        self.context.owner.refused(self.directory.parent, error)
        if error.errno not in passing:
            self.fail_directory(error)
        return KafkaStorageError(f"{self.topic_partition}: {doing}: {error}")

    def fail_directory(self, error: OSError) -> None:
        """Takes the log offline, and says so of its directory."""
        if self.failure is None:
            self.fail(str(error))
            self.context.owner.fail_directory(self.directory.parent, error)
