"""Every metric there is, by the area that it belongs to. docs/metrics.md is made from this, and nothing else is exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metrics import (
    audit,
    broker,
    controller,
    coordination,
    groups,
    load,
    log,
    mirror,
    network,
    replica,
    requests,
    schema_registry,
    service,
    transactions,
)
from ottla.metrics.metric import Metric

AREAS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "Every service": service.METRICS,
    "The broker": broker.METRICS,
    "Requests": requests.METRICS,
    "The network": network.METRICS,
    "Replication": replica.METRICS,
    "Logs": log.METRICS,
    "The controller": controller.METRICS,
    "ZooKeeper": coordination.METRICS,
    "Groups": groups.METRICS,
    "Transactions": transactions.METRICS,
    "The schema registry": schema_registry.METRICS,
    "The audit counter": audit.METRICS,
    "The mirror maker": mirror.METRICS,
    "The load": load.METRICS,
    "The process": service.PROCESS_METRICS,
}

# Areas of services that are no broker.
OTHER_SERVICES: Final = frozenset({"The schema registry", "The audit counter", "The mirror maker", "The load"})

METRICS: Final[tuple[Metric, ...]] = tuple(metric for metrics in AREAS.values() for metric in metrics)
BROKER_METRICS: Final[tuple[Metric, ...]] = tuple(
    metric for area, metrics in AREAS.items() if area not in OTHER_SERVICES for metric in metrics
)
BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}

assert len(BY_NAME) == len(METRICS), "a metric is declared twice"
