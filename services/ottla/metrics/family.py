"""What a collector gives: metrics with their samples, made while they are asked for.

A collector is asked in turns with everything else that the broker's loop does. Between two of its `yield`s as much as
`rendering.BREATH_SECONDS` should not pass, and whatever it walks over may have changed after each: it walks over a copy
(`list(partitions.values())`), and gives `PAUSE` now and then where it counts long without having anything to give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ottla.metrics.cells import HistogramSnapshot
from ottla.metrics.metric import Metric

# "Nothing yet; see whether others are waiting."
Pause: TypeAlias = Literal["pause"]
PAUSE: Final[Pause] = "pause"

Value: TypeAlias = float | HistogramSnapshot
# The values of the labels, in the order of the declaration, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], Value]


class Family(NamedTuple):
    """One metric with all its samples. One without samples is not shown."""

    metric: Metric
    samples: Iterable[Sample | Pause]


class Collector(Protocol):
    """Knows where the values of some metrics are. No two collectors of a registry give the same metric."""

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        ...


def single(metric: Metric, value: Value) -> Family:
    """A metric without labels."""
    return Family(metric, [((), value)])
