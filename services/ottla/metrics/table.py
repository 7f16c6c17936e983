"""Every metric there is, by the area that it belongs to. docs/metrics.md is made from this, and nothing else is exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metrics import broker, controller, coordination, groups, log, network, process, replica, requests, service, transactions
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
    "The process": process.METRICS,
}

METRICS: Final[tuple[Metric, ...]] = tuple(metric for metrics in AREAS.values() for metric in metrics)
BY_NAME: Final[Mapping[str, Metric]] = {each.name: each for each in METRICS}

assert len(BY_NAME) == len(METRICS), "a metric is declared twice"
