"""Families as text that Prometheus reads, in slices: between two of them the event loop does what it is there for.

A slice ends when a third of a millisecond has passed, whether in the midst of a family or not: 25,000 samples are a third of
a second of work, and a Produce that comes meanwhile should not notice. prometheus-client writes the text, and what it writes
above the samples is kept of a family's first piece only. A collector that fails costs its own metrics.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric as ExposedMetric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Sample as ExposedSample

from ottla.clock import Clock
from ottla.metrics.cells import BOUNDS, HistogramSnapshot
from ottla.metrics.family import Collector, Family, Pause
from ottla.metrics.kafka_view import Line, Remembered, Shown, kafka_families
from ottla.metrics.metric import Metric

log = logging.getLogger(__name__)

Names = Literal["native", "kafka"]

BREATH_SECONDS: Final = 0.0003
# Lines that are rendered at once: about half of the breath.
LINES_AT_ONCE: Final = 16
# What the library appends to the name of a family by itself.
_ENDINGS: Final = {"counter": "_total", "info": "_info"}
_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
_BOUND_TEXTS: Final = (*(repr(bound) for bound in BOUNDS), "+Inf")


@dataclass(slots=True)
class Took:
    """How long a scrape took.

    Args:
        seconds: in all, with what others did meanwhile.
        longest_slice: seconds for which it kept the event loop at most.
    """

    seconds: float = 0.0
    longest_slice: float = 0.0


class Format:
    """One of the two formats that Prometheus asks for."""

    def __init__(self, *, is_openmetrics: bool) -> None:
        self._is_openmetrics = is_openmetrics
        self.content_type: str = openmetrics.CONTENT_TYPE_LATEST if is_openmetrics else exposition.CONTENT_TYPE_PLAIN_0_0_4
        self.end = b"# EOF\n" if is_openmetrics else b""

    def text(self, metric: ExposedMetric, *, is_first: bool) -> bytes:
        """The lines of a family, the first time below what it is."""
        # Our names have nothing to be escaped; the library looks at each character of them otherwise.
        write = openmetrics.generate_latest if self._is_openmetrics else exposition.generate_latest
        text: bytes = write(_Alone(metric), escaping=openmetrics.ALLOWUTF8)
        if self._is_openmetrics:
            text = text[: -len(self.end)]
        return text if is_first else text.split(b"\n", 2)[2]


class _Alone:
    """A registry, to the library, with one metric in it."""

    def __init__(self, metric: ExposedMetric) -> None:
        self._metric = metric

    def collect(self) -> list[ExposedMetric]:
        return [self._metric]


def format_for(accept: str) -> Format:
    """OpenMetrics for who takes it as well as text, as every Prometheus since 2.5 does; otherwise the text format 0.0.4."""
    openmetrics_weight, text_weight = _weight(accept, "application/openmetrics-text"), _weight(accept, "text/plain")
    return Format(is_openmetrics=0.0 < openmetrics_weight >= text_weight)


def _weight(accept: str, kind: str) -> float:
    """The largest `q` that a kind has in an Accept header (RFC 9110, 12.5.1), 0 where it is not there or one is no number."""
    weights = [0.0]
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name == kind:
            given = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
            weights.append(float(given) if _WEIGHT.fullmatch(given) else 0.0)
    return max(weights)


async def render(
    collectors: Sequence[Collector], names: Names, form: Format, remembered: Remembered, clock: Clock, took: Took
) -> AsyncIterator[bytes]:
    """The exposition of all collectors, slice by slice.

    Args:
        clock: to find out when a slice has taken long enough.
        took: receives how long it all takes.
    """
    now = clock.monotonic
    began = slice_began = now()
    ready: list[bytes] = []
    for piece in _pieces(collectors, names, form, remembered):
        if piece:
            ready.append(piece)
        elapsed = now() - slice_began
        if elapsed >= BREATH_SECONDS:
            took.longest_slice = max(took.longest_slice, elapsed)
            if ready:
                yield b"".join(ready)
                ready.clear()
            await asyncio.sleep(0)
            slice_began = now()
    took.seconds, took.longest_slice = now() - began, max(took.longest_slice, now() - slice_began)
    ready.append(form.end)
    yield b"".join(ready)


def _pieces(collectors: Sequence[Collector], names: Names, form: Format, remembered: Remembered) -> Iterator[bytes]:
    """Small pieces of the exposition; an empty one where there was work and nothing came of it yet."""
    seen: set[str] = set()
    for collector in collectors:
        try:
            for shown in _shown(collector, names, remembered):
                if isinstance(shown, str):
                    yield b""
                    continue
                assert shown.name not in seen, f"{shown.name} is given twice"
                seen.add(shown.name)
                yield from _family(shown, form)
        except Exception:
            # Where a scrape ends: the other collectors have something to say, now more than ever.
            log.exception("metrics of %s are left out of this scrape: they cannot be collected", type(collector).__name__)


def _shown(collector: Collector, names: Names, remembered: Remembered) -> Iterator[Shown | Pause]:
    for family in collector.collect():
        if isinstance(family, str):
            yield family
        elif names == "kafka":
            yield from kafka_families(family, remembered)
        else:
            metric = family.metric
            yield Shown(metric.name, metric.kind, metric.help, _native(metric, family))


def _native(metric: Metric, family: Family) -> Iterator[Line | Pause]:
    suffix = _ENDINGS.get(metric.kind, "")
    for sample in family.samples:
        if isinstance(sample, str):
            yield sample
            continue
        values, value = sample
        labels = dict(zip(metric.labels, values, strict=True))
        if isinstance(value, HistogramSnapshot):
            yield from _buckets(labels, value)
        else:
            yield suffix, labels, value


def _buckets(labels: dict[str, str], snapshot: HistogramSnapshot) -> Iterator[Line]:
    below = 0
    for bound, count in zip(_BOUND_TEXTS, snapshot.buckets, strict=True):
        below += count
        yield "_bucket", {**labels, "le": bound}, below
    yield "_count", labels, below
    yield "_sum", labels, snapshot.sum


def _family(shown: Shown, form: Format) -> Iterator[bytes]:
    name = shown.name.removesuffix(_ENDINGS.get(shown.kind, ""))
    is_first = True
    for lines in _portions(shown.lines):
        if not lines:
            yield b""
            continue
        metric = ExposedMetric(name, shown.help, shown.kind)
        metric.samples = [ExposedSample(name + suffix, labels, value) for suffix, labels, value in lines]
        yield form.text(metric, is_first=is_first)
        is_first = False


def _portions(lines: Iterable[Line | Pause]) -> Iterator[list[Line]]:
    portion: list[Line] = []
    for line in lines:
        if isinstance(line, str):
            yield []
            continue
        portion.append(line)
        if len(portion) >= LINES_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
