"""Registries over a real ZooKeeper: one that is away, and a leader that alone is cut from it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.loops import until
from tests.unit.schema_registry.test_server import client_of
from tests.unit.wire.clusters import brokers, servers

from ottla.config.registry import RegistrySettings
from ottla.schema_registry.server import SchemaRegistry
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy

Start = Callable[[str], Any]


@asynccontextmanager
async def starting(directory: Path) -> AsyncIterator[Start]:
    """Brokers, and what starts a registry of theirs."""
    async with asyncio.timeout(480), brokers(directory) as running, AsyncExitStack() as stack:

        async def start(connect: str) -> SchemaRegistry:
            properties = {
                "listeners": "http://127.0.0.1:0",
                "kafkastore.bootstrap.servers": servers(running),
                "kafkastore.topic.replication.factor": "1",
                "kafkastore.timeout.ms": "120000",
                "request.timeout.ms": "120000",
                "zookeeper.connect": connect,
                "zookeeper.session.timeout.ms": "8000",
                "zookeeper.connection.timeout.ms": "60000",
            }
            registry = SchemaRegistry(RegistrySettings.from_properties(properties))
            await registry.start()
            stack.push_async_callback(registry.stop)
            return registry

        yield start


async def test_while_zookeeper_is_away_reads_go_on_and_writes_as_long_as_the_session_may_live(
    own_zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    async with starting(tmp_path) as start:
        registry = await start(own_zookeeper_server.address)
        client = client_of(registry)
        assert await client.register("a", '"int"') == 1
        own_zookeeper_server.kill()
        assert await client.register("b", '"long"') == 2  # at once: the session lives
        async with asyncio.timeout(120):
            for number in itertools.count():
                reply = await client.post(f"/subjects/c-{number}/versions", {"schema": '"bytes"'})
                if reply.status != 200:
                    break
                await asyncio.sleep(0.1)
        assert reply.code == 50004
        assert (await client.get("/schemas/ids/2")).status == 200
        assert (await client.get("/subjects")).status == 200
        await asyncio.to_thread(own_zookeeper_server.restart)
        await until(lambda: registry.leadership.is_leader)
        assert await client.register("d", '"string"') > 2


async def test_a_leader_that_alone_is_cut_from_zookeeper_is_fenced_and_then_follows(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    host, _, port = zookeeper_server.address.partition(":")
    chroot = f"/{uuid4().hex}"
    async with starting(tmp_path) as start:
        proxy = ZooKeeperProxy(int(port))
        await proxy.start()
        first = await start(f"{host}:{proxy.port}{chroot}")
        second = await start(f"{zookeeper_server.address}{chroot}")
        assert await client_of(first).register("a", '"int"') == 1
        assert first.leadership.is_leader and not second.leadership.is_leader
        await proxy.close()
        await until(lambda: second.leadership.is_leader)
        assert await client_of(second).register("b", '"long"') == 2
        reply = await client_of(first).post("/subjects/c/versions", {"schema": '"bytes"'})
        assert (reply.status, reply.code) == (500, 50004)
        await second.store.wait_for(first.store.state.next_offset)
        assert second.store.state.versions("c") == () and second.store.state.conflict_count == 0
        await until(lambda: first.store.state.versions("b"))  # it reads on
