"""All that measures one broker, each collector given what it reads. Imported where somebody may scrape, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.broker.health import BrokerHealth
from ottla.broker.measuring.certificates import CertificateCollector, certificate_expiries
from ottla.broker.measuring.controller import ControllerCollector
from ottla.broker.measuring.coordination import CoordinationCollector
from ottla.broker.measuring.data_path import data_path_collectors
from ottla.broker.measuring.freshness import Freshness
from ottla.broker.measuring.group_lags import GOOD_FOR_SECONDS, GroupLags
from ottla.broker.measuring.groups import GroupCollector
from ottla.broker.measuring.identity import IdentityCollector
from ottla.broker.measuring.logs import SPACE_SECONDS, DiskSpace, LogCollector
from ottla.broker.measuring.loop import LoopProbe
from ottla.broker.measuring.measured import Measured
from ottla.broker.measuring.process import PROCESS_SECONDS, ProcessMetrics
from ottla.broker.measuring.replicas import ReplicaCollector
from ottla.broker.measuring.transactions import TransactionCollector
from ottla.clock import Clock
from ottla.metrics.family import Collector
from ottla.metrics.registry import Registry


class Measuring:
    """What there is to be told of a broker, and what has to be looked up before it can be told.

    Args:
        registry: the collectors.
        fresh: what they need and do not fetch themselves.
    """

    def __init__(self, registry: Registry, fresh: Sequence[Freshness] = ()) -> None:
        self.registry = registry
        self._fresh = tuple(fresh)

    async def prepare(self) -> None:
        """Looks up what a scrape needs."""
        if self._fresh:
            await asyncio.gather(*(each.prepare() for each in self._fresh))

    async def close(self) -> None:
        """Ends what runs beside scrapes."""
        for each in self._fresh:
            await each.close()


def measuring_before_start(health: BrokerHealth, probe: LoopProbe, clock: Clock, started_ms: int) -> Measuring:
    """The little that is known of a broker that has yet to be put together."""
    return Measuring(Registry([IdentityCollector(health, started_ms), probe], clock.monotonic))


def measuring_of(measured: Measured, health: BrokerHealth, probe: LoopProbe, clock: Clock, started_ms: int) -> Measuring:
    """Everything that a broker tells."""
    parts = measured.parts
    settings = parts.settings
    per_partition = settings.metrics_partition_enabled
    paths = settings.log_directories
    space = DiskSpace(paths, parts.logs.offline_directories, parts.offload)
    lags = GroupLags(parts.groups, parts.replicas, parts.offload, clock)
    process = ProcessMetrics(parts.offload)

    def identity() -> tuple[str, str, str]:
        return str(settings.broker_id), settings.broker_rack or "", parts.metadata.cluster_id

    collectors: list[Collector] = [
        IdentityCollector(health, started_ms, identity),
        *data_path_collectors(parts, measured.dispatcher, measured.produces, measured.listeners, probe),
        CertificateCollector(certificate_expiries(settings)),
        ReplicaCollector(parts.replicas, measured.fetchers, per_partition=per_partition),
        LogCollector(parts.logs, paths, space, measured.cleaner, per_partition=per_partition),
        ControllerCollector(measured.service),
        CoordinationCollector(measured.sessions, measured.service),
        GroupCollector(parts.groups, lags, per_partition=per_partition),
        TransactionCollector(parts.transactions.coordinator, clock),
        process,
    ]
    fresh = [
        Freshness(space.refresh, SPACE_SECONDS, clock.monotonic),
        Freshness(lags.refresh, GOOD_FOR_SECONDS, clock.monotonic),
        Freshness(process.refresh, PROCESS_SECONDS, clock.monotonic),
    ]
    return Measuring(Registry(collectors, clock.monotonic), fresh)
