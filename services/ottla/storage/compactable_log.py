"""What a log lets its cleaner do: put a cleaned segment in the place of others, and remember up to where it is clean.

    plan        `segments`, `synced_offset`, `cleaned_up_to`: what may be cleaned (decided in `clean_points`)
    swap_in     a cleaned segment takes the place of those that it was made of, if all of them are still there
    note_clean  when all of them have: the new files are on the disk, and then the checkpoint says so

The bytes are cleaned by a process of its own, from the files; here only names and the list of segments change, in one step of
the loop. Readers on their way keep the files that they have open.

One event loop owns a log. `Log` is made of this; nobody else derives from it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ottla.config.topic import TopicSettings
from ottla.model import TopicPartition
from ottla.storage.appending import AppendingLog
from ottla.storage.checkpoints import sync_directory
from ottla.storage.cleaning_job import CleaningInterrupted
from ottla.storage.file_names import CLEANED_SUFFIX
from ottla.storage.log_context import LogContext
from ottla.storage.recovery import LoadedLog
from ottla.storage.segment import Segment
from ottla.storage.swaps import SwapNotBegun, swap

log = logging.getLogger(__name__)


class CompactableLog(AppendingLog):
    """A log as its cleaner sees it."""

    __slots__ = ("cleaned_up_to",)

    def __init__(
        self, topic_partition: TopicPartition, directory: Path, settings: TopicSettings, loaded: LoadedLog, context: LogContext
    ) -> None:
        super().__init__(topic_partition, directory, settings, loaded, context)
        # What lies before has been cleaned; `cleaner-offset-checkpoint` has it.
        self.cleaned_up_to = loaded.cleaned_up_to

    @property
    def synced_offset(self) -> int:
        """Segments that end by it are on the disk, with their indexes and the producers' states at their end."""
        return min(
            [self.recovery_point, *(segment.base_offset for segment in self._sealed), *(offset - 1 for offset, _ in self._snapshots)]
        )

    async def checkpoint(self) -> None:
        """Waits until the disk has the recovery point, before which a start looks for no holes: a cleaning makes some.

        Raises:
            KafkaStorageError: it could not be brought there.
        """
        self._check_online()
        try:
            await self._context.checkpoint()
        except OSError as error:
            raise self._storage_error("writing the recovery point", error) from error

    def swap_in(self, replaced: Sequence[Segment], size: int) -> None:
        """Puts the cleaned segment whose files lie there in the place of those that it was made of.

        Args:
            replaced: those, which had the places of the first and those that follow it.
            size: of the new one.

        Raises:
            CleaningInterrupted: they are not the log's any more, or the new one is not there.
            KafkaStorageError: there is no room for its names now, and the log is as it was; or the directory has failed, or does so now.
        """
        self._check_online()
        segments = self._segments.all
        base_offset = replaced[0].base_offset
        first = self._segments.index_of(base_offset)
        behind = first + len(replaced)
        if segments[first:behind] != tuple(replaced) or behind >= len(segments):
            raise CleaningInterrupted(f"{self.topic_partition}: segments from {base_offset} on were cut or deleted while they were cleaned")
        path = Path(replaced[0].path() + CLEANED_SUFFIX)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise CleaningInterrupted(f"{path} is gone: {error}") from error
        if found != size:
            raise CleaningInterrupted(f"{path} has {found} bytes, not {size}")
        for each in replaced:
            self._context.file_pool.forget(each)
        try:
            deleted = swap(str(self.directory), base_offset, [each.base_offset for each in replaced])
        except SwapNotBegun as error:
            raise self._storage_error(f"taking in the cleaned segment at {base_offset}", error) from error
        except OSError as error:
            # Some names are new and some are not, and only a start sets that right.
            raise self._storage_error(f"taking in the cleaned segment at {base_offset}", error, passing=frozenset()) from error
        new = Segment(str(self.directory), base_offset, size)
        self._segments.replace([*segments[:first], new, *segments[behind:]])
        self._reader.forget()
        self._directory_changed = True
        self._context.delete_later(deleted, self.settings.file_delete_delay_ms)

    async def note_clean(self, end_offset: int) -> None:
        """Remembers that everything before an offset has been cleaned, once that is on the disk.

        Raises:
            KafkaStorageError: it could not be brought there.
        """
        truncations = self._truncations
        try:
            # Otherwise the power could go, and what was replaced come back and be taken for clean.
            await self._context.offload(sync_directory, self.directory)
            if truncations != self._truncations:
                return
            self.cleaned_up_to = end_offset
            await self._context.checkpoint()
        except OSError as error:
            raise self._storage_error(f"writing that it is clean up to {end_offset}", error) from error
