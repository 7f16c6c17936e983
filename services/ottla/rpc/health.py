"""The standard health service (`grpc.health.v1`): which of a server's services are to be called now.

The empty name stands for the server as a whole. A probe of an orchestrator asks for that; `grpcurl` can too. `liveness`
is no service: it is served for as long as anything is answered, for the probe that asks whether to start a process again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as SERVICE_NAME
from grpc_health.v1.health import aio as health_aio

THE_SERVER: Final = ""
LIVENESS: Final = "liveness"


class Health:
    """The health service of one server.

    Args:
        names: its services.
        not_yet: those, the server itself among them, that are not to be called before `set` says so.
    """

    def __init__(self, names: Iterable[str], not_yet: Iterable[str] = ()) -> None:
        self._servicer = health_aio.HealthServicer()
        self._names = (THE_SERVER, LIVENESS, SERVICE_NAME, *names)
        self._not_yet = frozenset(not_yet)

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not begun."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def begin(self) -> None:
        """Everything is served from now on, but for what is to wait."""
        for name in self._names:
            await self.set(name, name not in self._not_yet)

    async def set(self, name: str, is_serving: bool) -> None:
        """Says whether one service is to be called."""
        states = health_pb2.HealthCheckResponse
        await self._servicer.set(name, states.SERVING if is_serving else states.NOT_SERVING)

    async def end(self) -> None:
        """Every service is NOT_SERVING from now on; watchers get that."""
        await self._servicer.enter_graceful_shutdown()
