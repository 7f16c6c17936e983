"""Health by gRPC and by HTTP of a broker with a real ZooKeeper: what its absence changes, and what it must not."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.unit.rpc.serving import is_serving

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.config.connect_string import ConnectString
from ottla.coordination.interface import Coordination
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.interbroker.calls import Outsider
from ottla.interbroker.rpc import BROKER_SERVICE, CONTROLLER_SERVICE, GrpcControl
from ottla.model import BrokerRegistration
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import LIVENESS, THE_SERVER
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy


def settings_for(directory: Path, connect: str, **properties: str) -> BrokerSettings:
    return BrokerSettings.from_properties(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": "4000",
            "zookeeper.connection.timeout.ms": "20000",
            **properties,
        }
    )


@asynccontextmanager
async def started(settings: BrokerSettings) -> AsyncIterator[Broker]:
    broker = Broker(settings)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def health(channel: RpcChannel) -> dict[str, bool]:
    return {name: await is_serving(channel, 120, name) for name in (THE_SERVER, BROKER_SERVICE, CONTROLLER_SERVICE, LIVENESS)}


async def until_ready(channel: RpcChannel, is_ready: bool) -> None:
    async with asyncio.timeout(120):
        while await is_serving(channel, 120) != is_ready:  # noqa: ASYNC110 - someone else's state
            await asyncio.sleep(0.05)


def asked(port: int, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


async def test_by_grpc_a_broker_is_ready_unless_its_session_has_ended_or_it_was_drained(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """Without `http.listener`, and with nothing but the standard health service: what `grpc_health_probe` sees.

    That a session has ended ZooKeeper tells as soon as the broker reaches it again, and then it is back in no time: the
    turns of its readiness are noted, and the new one is held up until it was asked.
    """
    chroot = f"/{uuid4().hex}"
    proxy = ZooKeeperProxy(zookeeper_server.port)
    await proxy.start()
    try:
        async with started(settings_for(tmp_path, f"127.0.0.1:{proxy.port}{chroot}")) as broker:
            registration = broker.parts.controller.registration
            assert registration is not None and registration.control_endpoint is not None
            channel = RpcChannel(registration.control_endpoint)
            await until_ready(channel, True)
            assert await health(channel) == {THE_SERVER: True, BROKER_SERVICE: True, CONTROLLER_SERVICE: True, LIVENESS: True}

            may_rejoin, rejoin = asyncio.Event(), broker.parts.controller.rejoin

            async def held(coordination: Coordination) -> BrokerRegistration:
                await may_rejoin.wait()
                return await rejoin(coordination)

            broker.parts.controller.rejoin = held  # type: ignore[method-assign]
            tool = await open_session(ZooKeeperOptions(ConnectString.parse(zookeeper_server.address + chroot)))
            gone = asyncio.Event()
            await tool.exists("/brokers/ids/1", lambda _: gone.set())
            proxy.refuses = True
            proxy.cut()
            await asyncio.wait_for(gone.wait(), 120)
            await tool.close()
            proxy.refuses = False
            await until_ready(channel, False)
            assert await health(channel) == {THE_SERVER: False, BROKER_SERVICE: False, CONTROLLER_SERVICE: True, LIVENESS: True}
            may_rejoin.set()
            await until_ready(channel, True)

            other = GrpcControl(settings_for(tmp_path, "nowhere:1"), "", Outsider())
            assert registration.control_secret is not None
            await other.broker(replace(registration, endpoints=())).drain()
            await until_ready(channel, False)
            assert (await health(channel))[LIVENESS]
            await other.close()
            await channel.close()
    finally:
        await proxy.close()


def test_a_zookeeper_that_is_away_takes_neither_life_nor_readiness(own_zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """Issue 6: 'live never depends on ZooKeeper'. Within the session's timeout a broker needs it for nothing that continues."""

    async def scenario(server: ZooKeeperServer) -> None:
        settings = settings_for(
            tmp_path / "log", server.address, **{"zookeeper.session.timeout.ms": "40000", "http.listener": "127.0.0.1:0"}
        )
        async with started(settings) as broker:
            port = broker.http_port
            async with asyncio.timeout(120):
                while (await asyncio.to_thread(asked, port, "/readyz"))[0] != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(120):
                while broker._sessions.disconnections == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            status, said = await asyncio.to_thread(asked, port, "/readyz")
            assert (status, said["registered"], said["controller_known"]) == (200, True, True)
            assert (await asyncio.to_thread(asked, port, "/healthz"))[0] == 200
            await asyncio.to_thread(server.start)

    asyncio.run(scenario(own_zookeeper_server))
