"""A service that does nothing: settings, health, metrics, gRPC, its registration and a clean stop, and how much of that is its own."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ottla.cli.process import serve_service, settings_of
from ottla.clock import SystemClock
from ottla.config.http import HttpSettings
from ottla.config.reading import ServiceSettings
from ottla.config.settings import setting
from ottla.config.zookeeper import ZooKeeperSettings
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import CoordinationSessions, sessions_of
from ottla.lifecycle import ThreadOffload
from ottla.rpc.health import THE_SERVER
from ottla.rpc.server import RpcServer
from ottla.serving.readiness import Conditions
from ottla.serving.surface import Surface


@dataclass(frozen=True, kw_only=True)
class EmptySettings(HttpSettings, ZooKeeperSettings, ServiceSettings):
    directory: str = setting("directory", "string", default="", doc="Where the embedded coordination is, without zookeeper.connect.")


class EmptyService:
    def __init__(self, settings: EmptySettings) -> None:
        self._settings = settings
        self._conditions = Conditions("registered")
        self.surface = Surface(SystemClock(), self._conditions)
        self.server = RpcServer([], not_yet=[THE_SERVER])

    async def start(self) -> None:
        async with AsyncExitStack() as stack:
            assert self._settings.http_address is not None
            await self.surface.start(stack, self._settings.http_address)
            offload = ThreadOffload(2, "empty")
            stack.callback(offload.close)
            self.surface.measure(stack, offload)
            self.rpc_port = await self.server.start("127.0.0.1", 0)
            stack.push_async_callback(self.server.stop, 5)
            open_session = sessions_of(self._settings, Path(self._settings.directory), SystemClock(), stack)
            self.sessions = CoordinationSessions(open_session, lambda: self._conditions.set("registered", False), self._register)
            stack.push_async_callback(self.sessions.close)
            await self._register(await self.sessions.open())
            self.sessions.keep()
            stack.push_async_callback(self.sessions.stop_renewing)
            self._stack = stack.pop_all()

    async def _register(self, coordination: Coordination) -> None:
        await coordination.create("/empty", self.surface.address.encode(), ephemeral=True)
        self._conditions.set("registered")
        await self.server.health.set(THE_SERVER, True)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def failed(self) -> str:
        await asyncio.Event().wait()
        return "it has nothing that could fail"


def main() -> None:
    service = EmptyService(settings_of(EmptySettings, "empty", Path(sys.argv[1]), os.environ, {}))
    serve_service("empty", service, lambda: service.surface.address, lambda address: print(address, flush=True))  # noqa: T201


if __name__ == "__main__":
    main()
