"""Which leader epoch wrote from which offset on: what a replica compares to find where two logs part (KIP-101).

    epochs         0      3      4
    start offsets  0    120    300          offsets 120 to 299 were written by the leader of epoch 3

Both columns only grow. The batches carry their epoch too, so a lost file can be rebuilt from the log.

One event loop owns an instance; only `load` touches the disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, MalformedCheckpoint, read_leader_epochs

UNDEFINED_OFFSET: Final = -1


class LeaderEpochCache:
    """The leader epochs of one partition's log, oldest first."""

    __slots__ = ("_epochs", "_start_offsets", "is_dirty", "latest_epoch")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        self.latest_epoch = NO_PARTITION_LEADER_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.is_dirty = False

    @classmethod
    def load(cls, directory: Path) -> LeaderEpochCache:
        """From the partition's `leader-epoch-checkpoint`; empty when it has none.

        Raises:
            MalformedCheckpoint: the file cannot be read, or its numbers go down; the caller rebuilds from the log.
        """
        path = directory / LEADER_EPOCH_CHECKPOINT
        entries = read_leader_epochs(path)
        for index, (epoch, start_offset) in enumerate(entries):
            former_epoch, former_offset = entries[index - 1] if index else (-1, -1)
            if epoch <= former_epoch or start_offset <= former_offset:
                raise MalformedCheckpoint(f"{path}, line {index + 3}: {epoch} {start_offset} after {former_epoch} {former_offset}")
        return cls(entries)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) of each, oldest first."""
        return list(zip(self._epochs, self._start_offsets, strict=True))

    @property
    def latest(self) -> tuple[int, int] | None:
        """The newest (epoch, start offset)."""
        return (self._epochs[-1], self._start_offsets[-1]) if self._epochs else None

    @property
    def earliest(self) -> tuple[int, int] | None:
        """The oldest (epoch, start offset)."""
        return (self._epochs[0], self._start_offsets[0]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that `epoch` writes from `start_offset` on; returns whether that is a change.

        Entries that contradict it, a higher epoch or a later start, come from a log that was truncated and go.
        The usual case, an epoch that is the latest already, can be seen from `latest_epoch` without a call.
        """
        assert epoch >= 0, f"leader epoch {epoch}"
        assert start_offset >= 0, f"start offset {start_offset}"
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._start_offsets[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._start_offsets[-1] >= start_offset):
            self._drop_last()
        self._epochs.append(epoch)
        self._start_offsets.append(start_offset)
        self._changed()
        return True

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that wrote `offset`; None when it lies before all that is known."""
        index = bisect_right(self._start_offsets, offset) - 1
        return self._epochs[index] if index >= 0 else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is not above `epoch`, and the offset at which it ends: OffsetForLeaderEpoch.

        (-1, -1) when nothing is known, or `epoch` is newer than all that is. An epoch older than all that is known
        ends where the oldest known one starts.
        """
        if epoch == NO_PARTITION_LEADER_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_PARTITION_LEADER_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        next_index = bisect_right(self._epochs, epoch)
        found = self._epochs[next_index - 1] if next_index > 0 else epoch
        return found, self._start_offsets[next_index]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forgets the epochs that start at `end_offset` or later; says whether there were any."""
        before = len(self._epochs)
        while self._start_offsets and self._start_offsets[-1] >= end_offset:
            self._drop_last()
        if len(self._epochs) == before:
            return False
        self._changed()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forgets the epochs that end by `start_offset`; the one that wrote it then starts there."""
        kept = bisect_right(self._start_offsets, start_offset) - 1
        if kept < 0 or (kept == 0 and self._start_offsets[0] == start_offset):
            return False
        del self._epochs[:kept], self._start_offsets[:kept]
        self._start_offsets[0] = start_offset
        self._changed()
        return True

    def clear(self) -> None:
        """Forgets all: the log starts again."""
        self._epochs.clear()
        self._start_offsets.clear()
        self._changed()

    def __len__(self) -> int:
        return len(self._epochs)

    def __repr__(self) -> str:
        return f"LeaderEpochCache({self.entries})"

    def _drop_last(self) -> None:
        self._epochs.pop()
        self._start_offsets.pop()

    def _changed(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else NO_PARTITION_LEADER_EPOCH
        self.is_dirty = True
