"""A broker seen from outside: its health and its metrics, over HTTP where `http.listener` says so, and health by gRPC.

It is there before anything else of a broker is, and goes last, so that an operator who asks what keeps a broker from
starting or stopping is answered. Nothing of the broker knows of it but `server`, which hands it the parts as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.broker.applying import ControlApplier
from ottla.broker.controller.service import ControllerService
from ottla.broker.health import BrokerHealth
from ottla.broker.measuring.measured import Measured
from ottla.broker.metadata import MetadataCache
from ottla.broker.readiness import Facts, Phase
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.errors import OttlaError
from ottla.interbroker.calls import ControlTransport
from ottla.model import BrokerId, PartitionState, TopicPartition
from ottla.storage.log_manager import LogManager

if TYPE_CHECKING:
    from ottla.serving.surface import Surface


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """The parts of a broker that its health is looked up in: an `ottla.broker.health.HealthSource`."""

    broker_id: BrokerId
    service: ControllerService
    applier: ControlApplier
    partitions: Mapping[TopicPartition, Partition]
    logs: LogManager
    metadata: MetadataCache
    transport: ControlTransport

    def facts(self, phase: Phase, were_in_sync: bool) -> Facts:
        return Facts(
            phase,
            self.service.registered_epoch,
            self.applier.metadata_epoch,
            self.applier.drained_epoch,
            were_in_sync=were_in_sync,
            full_directories=tuple(map(str, self.logs.full_directories)),
        )

    def replicas(self) -> Iterator[PartitionState]:
        """By what clients see, and not by what is opened here: a broker that is back hears of its replicas after that."""
        for topic in self.metadata.topics():
            for number, state in enumerate(topic.partitions):
                if self.broker_id not in state.replicas:
                    continue
                partition = self.partitions.get(TopicPartition(topic.name, number))
                if partition is None or (partition.storage_error is None and self.broker_id not in partition.in_sync.adding_replicas):
                    yield state

    async def show_ready(self, is_ready: bool) -> None:
        """Has the health service of gRPC say so."""
        await self.transport.show_ready(is_ready)


class Observation:
    """What can be seen of one broker.

    Args:
        settings: `http.listener` and `metrics.…`.
        clock: for how long things take.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.health = BrokerHealth()
        self._settings = settings
        self._clock = clock
        self._surface: Surface | None = None
        self._running: RunningBroker | None = None
        self._started_ms = clock.time_ms()

    async def start(self, stack: AsyncExitStack) -> None:
        """Answers by HTTP from now on, where it is to.

        Raises:
            OttlaError: it cannot listen there.
        """
        stack.push_async_callback(self.health.close)
        address = self._settings.http_address
        if address is None:
            return
        try:
            from ottla.broker.measuring.collectors import IdentityCollector
            from ottla.serving.probes import scrape_route
            from ottla.serving.surface import Surface
        except ModuleNotFoundError as error:
            raise OttlaError(f"http.listener is set, and {error.name} is not installed: pip install 'ottla[server]'") from error
        self._surface = Surface(
            self._clock,
            self,
            [IdentityCollector(self.health, self._started_ms)],
            lambda scrapes: [scrape_route("/metrics/kafka", scrapes, "kafka")],
        )
        await self._surface.start(stack, address)

    @property
    def http_port(self) -> int:
        assert self._surface is not None, "http.listener is not set"
        return self._surface.port

    def watch(self, running: RunningBroker) -> None:
        """Looks after the health of a broker that has been put together."""
        self._running = running
        self.health.begin(running)

    def measure(self, stack: AsyncExitStack, measured: Measured) -> None:
        """Has the metrics of a broker that has been put together, where they may be scraped, until it is taken down."""
        if self._surface is None:
            return
        from ottla.broker.measuring.collectors import measuring_of

        collectors, fresh = measuring_of(measured, self.health, self._clock, self._started_ms)
        self._surface.measure(stack, measured.parts.offload, collectors, fresh)

    def status(self) -> tuple[bool, Mapping[str, Any]]:
        readiness = self.health.readiness
        said: dict[str, Any] = {
            "status": "ready" if readiness.is_ready else "not ready",
            "state": readiness.phase.name.lower(),
            **readiness.conditions,
        }
        if self._running is not None:
            said["broker_id"] = self._running.broker_id
            said["controller_id"] = self._running.service.controller_id
            said["replicas"] = len(self._running.partitions)
        if readiness.controller_known and not readiness.replicas_in_sync:
            said["replicas_behind"] = self.health.replicas_behind
        if readiness.full_directories:
            said["full_log_directories"] = list(readiness.full_directories)
        if not readiness.is_ready:
            said["reason"] = readiness.reason
        return readiness.is_ready, said
