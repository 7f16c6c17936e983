"""A family of ours as the JMX exporter would show it: `/metrics/kafka`.

Dashboards and rules that were made for Kafka read these. What Kafka counts in milliseconds is in milliseconds, quantiles
stand where Kafka has quantiles, and labels are spelled as Kafka's. Kafka's quantiles are of about the last five minutes,
so these are too: of what came since a snapshot that an earlier scrape took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.clock import Clock
from ottla.metrics.cells import HistogramSnapshot
from ottla.metrics.family import PAUSE, Family, Pause, Sample
from ottla.metrics.metric import KafkaName, Metric

# As the exporter's rules spell the percentiles that Kafka's histograms have.
QUANTILES: Final = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
WINDOW_SECONDS: Final = 300.0
# Between two snapshots that are kept, so that ten cover the window however frequent scrapes are.
SNAPSHOT_SECONDS: Final = 30.0


# One line of the exposition: a suffix of the family's name, labels, a value. A plain tuple: there are many of them.
Line: TypeAlias = tuple[str, dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Shown:
    """A family as it is exposed: `kind` is one of Prometheus' types."""

    name: str
    kind: str
    help: str
    lines: Iterable[Line | Pause]


class Remembered:
    """What histograms held, so that quantiles can be of the last minutes, and what counters that have gone had counted.

    Args:
        clock: for the age of histograms.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._earlier: dict[tuple[str, tuple[str, ...]], deque[tuple[float, HistogramSnapshot]]] = {}
        self._counted: dict[str, tuple[float, Mapping[tuple[str, ...], float]]] = {}  # by those that have gone, and by each

    def recent(self, name: str, labels: tuple[str, ...], snapshot: HistogramSnapshot) -> HistogramSnapshot:
        """What was observed within the window; of a histogram that is new here, all of it."""
        now = self._clock.monotonic()
        kept = self._earlier.setdefault((name, labels), deque())
        while len(kept) > 1 and now - kept[1][0] >= WINDOW_SECONDS:
            kept.popleft()
        oldest = kept[0][1] if kept else None
        if not kept or now - kept[-1][0] >= SNAPSHOT_SECONDS:
            kept.append((now, snapshot))
        # One that was observed before the first scrape has nothing to be compared with for as long as the window is.
        if oldest is None or now - kept[0][0] < SNAPSHOT_SECONDS:
            return snapshot
        return snapshot.since(oldest)

    def sum_of(self, name: str, counts: Mapping[tuple[str, ...], float]) -> float:
        """What the counters of a family have counted, those that are not there any more too: a sum that fell would seem to begin again."""
        gone, former = self._counted.get(name, (0.0, {}))
        gone += sum(count for labels, count in former.items() if counts.get(labels, -1.0) < count)
        self._counted[name] = gone, counts
        return gone + sum(counts.values())


def kafka_families(family: Family, remembered: Remembered) -> Iterator[Shown | Pause]:
    """The families that Kafka has for this one of ours; none where Kafka has no such thing."""
    names = family.metric.kafka
    if len(names) == 1:
        yield _shown(names[0], family.metric, family.samples, remembered)
        return
    if names:
        samples: list[Sample] = []
        for sample in family.samples:
            if isinstance(sample, str):
                yield PAUSE
            else:
                samples.append(sample)
        for name in names:
            yield _shown(name, family.metric, samples, remembered)


def _shown(name: KafkaName, metric: Metric, samples: Iterable[Sample | Pause], remembered: Remembered) -> Shown:
    is_histogram = metric.kind == "histogram"
    lines = _quantiles(name, metric, samples, remembered) if is_histogram else _values(name, metric, samples, remembered)
    return Shown(name.name, "summary" if is_histogram else metric.kind, metric.help, lines)


def _labels(name: KafkaName, metric: Metric, values: tuple[str, ...]) -> dict[str, str] | None:
    """Kafka's labels for a sample of ours, or None for one that Kafka's family does not have."""
    labels = dict(name.constant)
    for label, value in zip(metric.labels, values, strict=True):
        wanted = name.where.get(label)
        if wanted is not None:
            if value != wanted:
                return None
        elif label not in name.drop:
            labels[name.labels.get(label, label)] = name.values.get(value, value)
    return labels


def _twice(name: KafkaName, labels: dict[str, str]) -> Iterator[dict[str, str]]:
    yield labels
    for label, value in labels.items():
        if value in name.also_as and label not in name.constant:
            yield {**labels, label: name.also_as[value]}


def _values(name: KafkaName, metric: Metric, samples: Iterable[Sample | Pause], remembered: Remembered) -> Iterator[Line | Pause]:
    suffix = "_total" if metric.kind == "counter" else ""
    counts: dict[tuple[str, ...], float] = {}
    merged: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        if isinstance(sample, str):
            yield sample
            continue
        values, value = sample
        labels = _labels(name, metric, values)
        if labels is None:
            continue
        assert not isinstance(value, HistogramSnapshot), f"{metric.name} is no histogram"
        value = name.value(value)
        if name.with_sum:
            counts[values] = value
        if name.drop:
            key = tuple(labels.items())
            former = merged.get(key)
            merged[key] = value if former is None else max(former, value) if name.drop_by == "max" else former + value
            continue
        for spelled in _twice(name, labels):
            yield suffix, spelled, value
    for key, value in merged.items():
        yield suffix, dict(key), value
    if name.with_sum:
        yield suffix, dict(name.constant), remembered.sum_of(name.name, counts)


def _quantiles(name: KafkaName, metric: Metric, samples: Iterable[Sample | Pause], remembered: Remembered) -> Iterator[Line | Pause]:
    for sample in samples:
        if isinstance(sample, str):
            yield sample
            continue
        values, snapshot = sample
        labels = _labels(name, metric, values)
        if labels is None:
            continue
        assert isinstance(snapshot, HistogramSnapshot), f"{metric.name} is a histogram"
        recent = remembered.recent(metric.name, values, snapshot)
        for spelled in _twice(name, labels):
            for text, quantile in QUANTILES.items():
                yield "", {**spelled, "quantile": text}, 1000.0 * recent.quantile(quantile)
            yield "_count", spelled, snapshot.count
