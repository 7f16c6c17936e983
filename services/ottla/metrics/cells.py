"""Where hot code counts: plain numbers in plain lists, with no lock and no object per observation.

A counter needs no class: it is an int attribute of the object that it belongs to. Anyone who owns a cell counts in it on the
broker's loop; a collector takes a snapshot when the broker is scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

# Half a millisecond to half a minute, in the steps that people know: Prometheus' own, which end at 10 s, and 30 s
# because a join of a group and a fetch of a quiet topic wait that long.
BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """What a histogram held at one moment.

    Args:
        buckets: how many were in each bucket alone, not in those below; the last is what lay beyond every bound.
        sum: seconds, of all together.
    """

    buckets: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.buckets)

    def since(self, earlier: HistogramSnapshot) -> HistogramSnapshot:
        """What was observed after an earlier snapshot of the same histogram."""
        return HistogramSnapshot(
            tuple(now - then for now, then in zip(self.buckets, earlier.buckets, strict=True)), max(0.0, self.sum - earlier.sum)
        )

    def quantile(self, q: float) -> float:
        """The value below which a share `q` of all lies: between the bounds of its bucket as if they lay evenly in it.

        Beyond the last bound nothing is known, so it is that bound, as with PromQL's `histogram_quantile`; of nothing it is 0.
        """
        rank = q * self.count
        below = 0
        for index, count in enumerate(self.buckets):
            if count and below + count >= rank:
                if index == len(BOUNDS):
                    return BOUNDS[-1]
                lower = BOUNDS[index - 1] if index else 0.0
                # Rounded, the whole width of the bucket may lie behind its end.
                return min(BOUNDS[index], lower + (BOUNDS[index] - lower) * max(0.0, rank - below) / count)
            below += count
        return 0.0


class Histogram:
    """Counts durations in seconds by bucket.

    `buckets` and `sum` may be read by anybody; only the owner observes.
    """

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def observe_many(self, seconds: float, count: int) -> None:
        """Counts `count` that took the same time each."""
        self.buckets[bisect_left(BOUNDS, seconds)] += count
        self.sum += seconds * count

    def add(self, other: Histogram) -> None:
        """Counts what another has counted."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.sum += other.sum

    def snapshot(self) -> HistogramSnapshot:
        """What it holds now."""
        return HistogramSnapshot(tuple(self.buckets), self.sum)
