"""`ottla dev --with SERVICE`: the brokers, and services beside them, in one process.

Services come after the brokers, whose topics they read, and go before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ottla.broker.in_process import InProcessBrokers
from ottla.cli.process import Served, serve_service
from ottla.config.broker import BrokerSettings
from ottla.model import BrokerId

SCHEMA_REGISTRY: Final = "schema-registry"
AUDIT_COUNTER: Final = "audit-counter"
MIRROR_MAKER: Final = "mirror-maker"
# What the line of a service is called.
LABELS: Final = {SCHEMA_REGISTRY: "schemas", AUDIT_COUNTER: "audit", MIRROR_MAKER: "mirror"}


class Service(Served, Protocol):
    """What runs beside the brokers."""

    @property
    def url(self) -> str:
        """Where it answers."""


class BrokersWithServices:
    """What is served.

    Args:
        settings: of each broker.
        directory: of the data.
        addresses: `host:port` of each service, by its name.
        mirror_from: the brokers that a mirror maker copies from.
    """

    def __init__(
        self, settings: Mapping[BrokerId, BrokerSettings], directory: Path, addresses: Mapping[str, str], mirror_from: str
    ) -> None:
        self._brokers = InProcessBrokers(settings, settings.__getitem__, directory / "coordination")
        self._directory = directory
        self._addresses = addresses
        self._makers: dict[str, Callable[[str, str, Path, str], Service]] = {
            SCHEMA_REGISTRY: _schema_registry,
            AUDIT_COUNTER: _audit_counter,
            MIRROR_MAKER: partial(_mirror_maker, mirror_from),
        }
        self._stack = AsyncExitStack()
        self.services: dict[str, Service] = {}

    @property
    def bootstrap_servers(self) -> str:
        """Where the brokers answer."""
        return ",".join(broker.bootstrap_servers for broker in self._brokers.running.values())

    async def start(self) -> None:
        """Starts the brokers, then the services."""
        async with AsyncExitStack() as stack:
            await self._brokers.start()
            stack.push_async_callback(self._brokers.stop)
            copies = str(min(3, len(self._brokers.running)))
            # The counter first: it makes the topic of the audit with these copies, which the brokers else do with one.
            for name, address in sorted(self._addresses.items(), key=lambda item: item[0] != AUDIT_COUNTER):
                service = self._makers[name](self.bootstrap_servers, address, self._directory / name, copies)
                await service.start()
                stack.push_async_callback(service.stop)
                self.services[name] = service
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stops the services, then the brokers."""
        await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until one of them cannot continue, and says why."""
        waiting = [
            asyncio.ensure_future(self._brokers.failed()),
            *(asyncio.ensure_future(service.failed()) for service in self.services.values()),
        ]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in waiting:
                task.cancel()


def _schema_registry(servers: str, address: str, directory: Path, copies: str) -> Service:
    from ottla.config.registry import RegistrySettings
    from ottla.schema_registry.server import SchemaRegistry

    properties = {
        "listeners": f"http://{address}",
        "kafkastore.bootstrap.servers": servers,
        "kafkastore.topic.replication.factor": copies,
        "kafkastore.checkpoint.dir": str(directory),
    }
    return SchemaRegistry(RegistrySettings.from_properties(properties))


def _audit_counter(servers: str, address: str, directory: Path, copies: str) -> Service:
    from ottla.audit_counter.server import AuditServer
    from ottla.config.audit import AuditSettings

    properties = {
        "rest.listener": address,
        "bootstrap.servers": servers,
        "audit.directory": str(directory),
        "audit.tiers": "producer,broker",
        "audit.topic.replication.factor": copies,
    }
    return AuditServer(AuditSettings.from_properties(properties))


def _mirror_maker(source: str, servers: str, address: str, directory: Path, copies: str) -> Service:
    from ottla.config.mirror import MirrorSettings
    from ottla.mirror_maker.server import MirrorMaker

    properties = {
        "clusters": "source,dev",
        "source.bootstrap.servers": source,
        "dev.bootstrap.servers": servers,
        "source->dev.enabled": "true",
        "replication.factor": copies,
        "slots": "4",
        "rpc.listener": address,
    }
    return MirrorMaker(MirrorSettings.from_properties(properties))


def serve_with_services(
    settings: Mapping[BrokerId, BrokerSettings],
    directory: Path,
    addresses: Mapping[str, str],
    mirror_from: str,
    when_ready: Callable[[str, Mapping[str, str]], None],
    pid_file: Path | None,
) -> None:
    """Runs them until SIGINT, SIGTERM or SIGHUP; `when_ready` is called with the addresses of brokers and of each service."""
    served = BrokersWithServices(settings, directory, addresses, mirror_from)

    def ready(servers: str) -> None:
        when_ready(servers, {LABELS[name]: service.url for name, service in served.services.items()})

    serve_service("dev", served, lambda: served.bootstrap_servers, ready, pid_file)
