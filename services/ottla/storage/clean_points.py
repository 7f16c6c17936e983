"""Which part of a log is clean, which is dirty, and which log is to be cleaned next. Decisions only.

    log_start_offset      cleaned_up_to          end_offset              log_end_offset
          |    clean segments   |   dirty segments   |  not to be touched yet  |

A log is cleaned up to the first segment that is active, not synced, not committed, in a transaction that is open, or younger
than `min.compaction.lag.ms`. The one with the largest share of dirty bytes comes first, if that share is above
`min.cleanable.dirty.ratio`, or if a dirty record has waited for `max.compaction.lag.ms`.

Source: Kafka's `LogCleanerManager.cleanableOffsets` and `grabFilthiestCompactedLog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ottla.model import TopicPartition
from ottla.storage.segment import Segment


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
    """
    for segment, following in pairwise(segments):
        if following.base_offset > limit:
            return segment.base_offset
        if youngest_ms is not None and following.base_offset > first_dirty and segment.max_timestamp > youngest_ms:
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
    return max((each for each in logs if each.is_due), key=lambda each: each.dirty_ratio, default=None)
