"""Writes docs/metrics.md from the table: `python -m ottla.metrics.document docs/metrics.md`.

`make docs` runs it, and a test fails when the page in the tree is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ottla.metrics.cells import BOUNDS
from ottla.metrics.kafka_view import QUANTILES, WINDOW_SECONDS
from ottla.metrics.metric import KafkaName, Metric
from ottla.metrics.table import AREAS

_INTRODUCTION: Final = f"""\
# Metrics

<!-- Made from the declarations in services/ottla/metrics by `make docs`. Change those, not this page. -->

A broker with `http.listener` set answers Prometheus: `/metrics` with the names in the first column (text format 0.0.4, or
OpenMetrics for who accepts it), `/metrics/kafka` with the names that Kafka's brokers have behind the JMX exporter with its
stock rules (`kafka-2_0_0.yml`, Strimzi's `kafka-metrics.yaml`), so that dashboards which were made for those work.

Ours are in seconds and bytes, and counters end in `_total`; a histogram has the buckets
{", ".join(f"`{bound:g}`" for bound in BOUNDS)} and `+Inf`, so it can be added up over brokers, which quantiles cannot:

    histogram_quantile(0.99, sum by (le, api) (rate(ottla_request_seconds_bucket{{stage="total"}}[5m])))

In Kafka's view times are in milliseconds and a histogram is the quantiles {", ".join(f"`{quantile}`" for quantile in QUANTILES)}
of about the last {WINDOW_SECONDS / 60:g} minutes, with a `_count`. Two percentages say there how idle threads are that
Ottla does not have; both are one minus the busy ratio of the event loop.

What is marked *per partition* is there only with `metrics.partition.enabled=true`. A topic's series go with the topic.
No client can make series by what it says: client ids are no labels, and topics and groups are there because they exist.
"""


def page() -> str:
    """The whole of docs/metrics.md."""
    pieces = [_INTRODUCTION]
    for title, metrics in AREAS.items():
        pieces += [f"## {title}\n", "\n".join(_table(metrics)) + "\n"]
    return "\n".join(pieces)


def _table(metrics: tuple[Metric, ...]) -> Iterator[str]:
    yield "| name | kind | labels | what it says | in `/metrics/kafka` |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        help_text = (metric.help + " *Per partition.*") if metric.per_partition else metric.help
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {help_text} | {'<br>'.join(_kafka(name, metric) for name in metric.kafka)} |"


def _kafka(name: KafkaName, metric: Metric) -> str:
    labels = [f'{label}="{value}"' for label, value in name.constant.items()]
    labels += [name.labels.get(label, label) for label in metric.labels if label not in name.where and label not in name.drop]
    if metric.kind == "histogram":
        labels.append("quantile")
    return f"`{name.name}{'{' + ', '.join(labels) + '}' if labels else ''}`"


def main() -> None:
    """Writes the page to the path given."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
