"""A broker seen from outside: its health and its metrics, over HTTP where `http.listener` says so, and health by gRPC.

It is there before anything else of a broker is, and goes last, so that somebody who asks what keeps a broker from
starting or stopping is answered. Nothing of the broker knows of it but `server`, which hands it the parts as they come.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ottla.broker.applying import ControlApplier
from ottla.broker.controller.service import ControllerService
from ottla.broker.health import BrokerHealth, Sources
from ottla.broker.measuring.measured import Measured
from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.replicas import ReplicaManager
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.errors import OttlaError
from ottla.model import BrokerId, PartitionState, TopicPartition
from ottla.storage.log_manager import LogManager

if TYPE_CHECKING:
    from ottla.serving.surface import Surface


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
        self._facts: Callable[[], Mapping[str, Any]] = dict
        self._started_ms = clock.time_ms()

    async def start(self, stack: AsyncExitStack) -> None:
        """Answers by HTTP from now on, where it is to.

        Raises:
            OttlaError: it can not listen there.
        """
        stack.push_async_callback(self.health.close)
        address = self._settings.http_address
        if address is None:
            return
        try:
            from ottla.broker.measuring.identity import IdentityCollector
            from ottla.serving.probes import scrape_route
            from ottla.serving.surface import Surface
        except ModuleNotFoundError as error:
            raise OttlaError(f"http.listener is set, and {error.name} is not installed: pip install 'ottla[server]'") from error
        self._surface = Surface(
            self._clock,
            self._ready,
            [IdentityCollector(self.health, self._started_ms)],
            lambda scrapes: [scrape_route("/metrics/kafka", scrapes, "kafka")],
        )
        await self._surface.start(stack, address)

    @property
    def http_port(self) -> int:
        """The port that HTTP is answered at."""
        assert self._surface is not None, "http.listener is not set"
        return self._surface.port

    def watch(
        self,
        broker_id: BrokerId,
        service: ControllerService,
        applier: ControlApplier,
        replicas: ReplicaManager,
        logs: LogManager,
        metadata: MetadataCache,
        show_ready: Callable[[bool], Awaitable[None]],
    ) -> None:
        """Looks after the health of a broker that has been put together."""

        def states() -> Iterator[PartitionState]:
            # By what clients are told, and not by what is opened here: a broker that is back hears of its replicas after that.
            for topic in metadata.topics():
                for number, state in enumerate(topic.partitions):
                    if broker_id not in state.replicas:
                        continue
                    partition = replicas.partitions.get(TopicPartition(topic.name, number))
                    if partition is None or (partition.storage_error is None and broker_id not in partition.in_sync.adding_replicas):
                        yield state

        self.health.show = show_ready
        self.health.begin(
            Sources(
                broker_id,
                broker_epoch=lambda: service.registered_epoch,
                told_epoch=lambda: applier.told_epoch,
                drained_epoch=lambda: applier.drained_epoch,
                full_directories=lambda: logs.full_directories,
                replicas=states,
            )
        )
        self._facts = lambda: {
            "broker_id": broker_id,
            "controller_id": service.controller_id,
            "replicas": len(replicas.partitions),
        }

    def measure(self, stack: AsyncExitStack, measured: Measured) -> None:
        """Has the metrics of a broker that has been put together, where somebody may scrape them, until it is taken down."""
        if self._surface is None:
            return
        from ottla.broker.measuring.wiring import measuring_of

        collectors, fresh = measuring_of(measured, self.health, self._clock, self._started_ms)
        self._surface.measure(stack, measured.parts.offload, collectors, fresh)

    def _ready(self) -> tuple[bool, Mapping[str, Any]]:
        readiness = self.health.readiness
        said: dict[str, Any] = {
            "status": "ready" if readiness.is_ready else "not ready",
            "state": readiness.phase.name.lower(),
            **readiness.conditions,
            **self._facts(),
        }
        if readiness.controller_known and not readiness.replicas_in_sync:
            said["replicas_behind"] = self.health.replicas_behind
        if readiness.full_directories:
            said["full_log_directories"] = list(readiness.full_directories)
        if not readiness.is_ready:
            said["reason"] = readiness.reason
        return readiness.is_ready, said
