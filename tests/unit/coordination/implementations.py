"""The implementations of the coordination interface that the contract is held against.

A further one joins by one entry in IMPLEMENTATIONS: how to open it, and how to give a session a bad day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.interface import Coordination
from ottla.coordination.listener.server import CoordinationListener
from ottla.testing.zookeeper import ZooKeeperServer

from .zookeeper_service import zookeeper_service


class Service(Protocol):
    """A coordination service whose faults can be asked for."""

    async def session(self) -> Coordination: ...

    async def expire(self, session: Any) -> None:
        """Returns when the session is over for everybody."""
        ...

    def break_connection(self, session: Any, *, request_arrives: bool) -> None:
        """The session's next operation raises ConnectionLoss; whether it takes place is `request_arrives`."""
        ...


@dataclass(frozen=True)
class Implementation:
    name: str
    open: Callable[[Path, pytest.FixtureRequest], AbstractAsyncContextManager[Service]]

    def __str__(self) -> str:
        return self.name


@asynccontextmanager
async def embedded_in_memory(directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    service = EmbeddedZooKeeper(None, SystemClock())
    try:
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def embedded_on_disk(directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    service = EmbeddedZooKeeper(directory / "coordination", SystemClock())
    try:
        yield service
    finally:
        await service.close()


def real_zookeeper(directory: Path, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Service]:
    server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    return zookeeper_service(server.port)


@asynccontextmanager
async def listener(directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """kazoo, through the twin's listener."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    listening = CoordinationListener(zookeeper, "127.0.0.1", 0)
    await listening.start()
    try:
        async with zookeeper_service(listening.port) as service:
            yield service
    finally:
        await listening.close()
        await zookeeper.close()


IMPLEMENTATIONS = [
    Implementation("embedded-in-memory", embedded_in_memory),
    Implementation("embedded-on-disk", embedded_on_disk),
    Implementation("listener", listener),
    Implementation("zookeeper", real_zookeeper),
]
