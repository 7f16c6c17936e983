"""All that measures one broker, each collector given what it reads. Imported where somebody may scrape, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.health import BrokerHealth
from ottla.broker.measuring.certificates import certificate_expiries
from ottla.broker.measuring.controller import ControllerCollector
from ottla.broker.measuring.coordination import CoordinationCollector
from ottla.broker.measuring.data_path import data_path_collectors
from ottla.broker.measuring.group_lags import GOOD_FOR_SECONDS, GroupLags
from ottla.broker.measuring.groups import GroupCollector
from ottla.broker.measuring.identity import IdentityCollector
from ottla.broker.measuring.logs import SPACE_SECONDS, DiskSpace, LogCollector
from ottla.broker.measuring.measured import Measured
from ottla.broker.measuring.replicas import ReplicaCollector
from ottla.broker.measuring.transactions import TransactionCollector
from ottla.clock import Clock
from ottla.metrics.family import Collector
from ottla.serving.certificates import CertificateCollector
from ottla.serving.freshness import Freshness


def measuring_of(
    measured: Measured, health: BrokerHealth, clock: Clock, started_ms: int
) -> tuple[Sequence[Collector], Sequence[Freshness]]:
    """What a broker shows beside what every service does, and what has to be looked up for it."""
    parts = measured.parts
    settings = parts.settings
    per_partition = settings.metrics_partition_enabled
    paths = settings.log_directories
    space = DiskSpace(paths, parts.logs.offline_directories, parts.offload)
    lags = GroupLags(parts.groups, parts.replicas, parts.offload, clock)

    def identity() -> tuple[str, str, str]:
        return str(settings.broker_id), settings.broker_rack or "", parts.metadata.cluster_id

    collectors: list[Collector] = [
        IdentityCollector(health, started_ms, identity),
        *data_path_collectors(parts, measured.dispatcher, measured.produces, measured.listeners),
        CertificateCollector(certificate_expiries(settings)),
        ReplicaCollector(parts.replicas, measured.fetchers, per_partition=per_partition),
        LogCollector(parts.logs, paths, space, measured.cleaner, per_partition=per_partition),
        ControllerCollector(measured.service),
        CoordinationCollector(measured.sessions, measured.service),
        GroupCollector(parts.groups, lags, per_partition=per_partition),
        TransactionCollector(parts.transactions.coordinator, clock),
    ]
    fresh = [
        Freshness(space.refresh, SPACE_SECONDS, clock.monotonic),
        Freshness(lags.refresh, GOOD_FOR_SECONDS, clock.monotonic),
    ]
    return collectors, fresh
