"""A log's segments in order, copied on every change.

Retention deletes from the head while consumers read. A reader must never wait for that, nor see a list in change, so
whoever took `all` keeps what it took.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ottla.storage.segment import Segment


class SegmentList:
    """At least one segment, by ascending base offset; the last one is the active one."""

    __slots__ = ("_base_offsets", "active", "all")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.replace(segments)

    def replace(self, segments: Sequence[Segment]) -> None:
        """Puts another list in place."""
        assert segments
        self.all = tuple(segments)
        self._base_offsets = [each.base_offset for each in segments]
        self.active = self.all[-1]

    def index_of(self, offset: int) -> int:
        """The index of the segment that has `offset` if any has; 0 for one before all."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def find(self, offset: int) -> Segment:
        """The segment that has `offset` if any has."""
        return self.all[max(bisect_right(self._base_offsets, offset) - 1, 0)]

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows; None after the active one, or after one that is no longer in the list."""
        if segment is self.active:
            return None
        return self.all[bisect_left(self._base_offsets, segment.base_offset + 1)]

    def since(self, offset: int) -> tuple[Segment, ...]:
        """The segments from the one that has `offset` on."""
        return self.all[self.index_of(offset) :]

    def __len__(self) -> int:
        return len(self.all)
