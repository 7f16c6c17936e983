"""The declaration of one metric, and of what Kafka's JMX exporter calls it.

A metric is a constant in the module of its area; a collector names it when it gives values. Nothing is counted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "info"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


def as_it_is(value: float) -> float:
    """The value in Kafka's view is ours."""
    return value


@dataclass(frozen=True, slots=True)
class KafkaName:
    """How the JMX exporter's stock rules name what a metric of ours says, and how to get from the one to the other.

    A histogram becomes what those rules make of Kafka's histograms: quantiles, in milliseconds, and a count.

    Args:
        name: with `_total` for a counter.
        where: only samples with these label values; those labels are left out.
        labels: our label names and Kafka's for them; what is not named keeps its own.
        values: our label values and Kafka's for them, whatever the label.
        also_as: a label value, and another under which the sample is given once more.
        constant: labels that every sample has.
        drop: labels that are left out; samples that become the same are then added up, or the largest is taken.
        drop_by: how.
        with_sum: whether there is, beside each sample, their sum without any label.
        value: Kafka's value for ours.
    """

    name: str
    where: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    also_as: Mapping[str, str] = field(default_factory=dict)
    constant: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    drop_by: Literal["sum", "max"] = "sum"
    with_sum: bool = False
    value: Callable[[float], float] = as_it_is


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: as Prometheus stores it; a counter's ends in `_total`, an info's in `_info`, a unit stands last otherwise.
        kind: what it is to Prometheus.
        help: one sentence, the same for everybody who reads it.
        labels: the names of its labels, in the order in which collectors give their values.
        kafka: what the JMX exporter calls the same thing; nothing if Kafka has no such thing.
        per_partition: whether it has a series for each partition, which `metrics.partition.enabled` asks for.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    kafka: tuple[KafkaName, ...] = ()
    per_partition: bool = False

    def __post_init__(self) -> None:
        assert _NAME.match(self.name), self.name
        assert all(_NAME.match(label) for label in self.labels), self.labels
        assert (self.kind == "counter") == self.name.endswith("_total"), f"{self.name} is a {self.kind}"
        assert (self.kind == "info") == self.name.endswith("_info"), f"{self.name} is a {self.kind}"
        assert self.help.endswith("."), f"{self.name}: {self.help!r} is no sentence"
