"""Which segments a log no longer has to keep.

Decisions only: a policy looks at facts and says how many segments, counted from the oldest, may go. Whole segments go,
in order, so a log never has a hole. The log acts on it (`Log.delete_old_segments`).

Sources: Kafka's `UnifiedLog.deleteOldSegments`; the design document, 'Log retention'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from ottla.config.topic import TopicSettings


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a policy may know of a segment."""

    base_offset: int
    next_base_offset: int  # of the segment that follows; the log's end for the last one
    size: int
    largest_timestamp: int  # of its records; when the file was last written to, if they have none


class RetentionPolicy(Protocol):
    """Says how many segments may go."""

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        """How many of the segments, from the first on, are no longer to be kept."""
        ...

    def reason(self) -> str:
        """For the log line: why they go."""
        ...


@dataclass(frozen=True, slots=True)
class TimeRetention:
    """A segment goes when its newest record is older than this."""

    retention_ms: int

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        return sum(1 for _ in takewhile(lambda segment: now_ms - segment.largest_timestamp > self.retention_ms, segments))

    def reason(self) -> str:
        return f"the newest record is older than retention.ms = {self.retention_ms}"


@dataclass(frozen=True, slots=True)
class SizeRetention:
    """A segment goes when the log without it is still at least this large.

    Attributes:
        kept_bytes: of what the log has beside the segments that are judged.
    """

    retention_bytes: int
    kept_bytes: int = 0

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        excess = self.kept_bytes + sum(segment.size for segment in segments) - self.retention_bytes
        count = 0
        for segment in segments:
            if excess < segment.size:
                break
            excess -= segment.size
            count += 1
        return count

    def reason(self) -> str:
        return f"the log is larger than retention.bytes = {self.retention_bytes}"


@dataclass(frozen=True, slots=True)
class StartOffsetRetention:
    """A segment goes when all of it lies before the log start offset, which DeleteRecords moves.

    Attributes:
        log_start_offset: or where the active segment begins, which is not judged by this, if that is earlier.
    """

    log_start_offset: int

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        return sum(1 for _ in takewhile(lambda segment: segment.next_base_offset <= self.log_start_offset, segments))

    def reason(self) -> str:
        return f"all of it lies before the log start offset {self.log_start_offset}"


def policies_of(settings: TopicSettings, log_start_offset: int, kept_bytes: int) -> list[RetentionPolicy]:
    """The policies that a topic's settings ask for; `log_start_offset` as of `StartOffsetRetention`, `kept_bytes` as of `SizeRetention`."""
    policies: list[RetentionPolicy] = [StartOffsetRetention(log_start_offset)]
    if "delete" in settings.cleanup_policy:
        if settings.retention_ms >= 0:
            policies.append(TimeRetention(settings.retention_ms))
        if settings.retention_bytes >= 0:
            policies.append(SizeRetention(settings.retention_bytes, kept_bytes))
    return policies
