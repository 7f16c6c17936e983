"""A cluster that is found by `A.zookeeper.connect`: by whom its ZooKeeper says that it is served, now and when that changes."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import Side, side, two_sides
from tests.unit.mirror_maker.test_server import CLICKS, COPIED, arrives, command, publish, values_of, worker
from tests.unit.wire.clusters import cluster_of, create_topic, servers

from ottla.client import discovery
from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.listener.server import CoordinationListener
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_FIRST_SECONDS", discovery._FIRST_SECONDS / 10)
    monkeypatch.setattr(discovery, "_RETRY_SECONDS", discovery._RETRY_SECONDS / 50)


async def move(one: Side) -> None:
    """Its brokers stop, all of them, and are somewhere else."""
    before = servers(one.brokers)
    running = list(one.brokers.running)
    for broker_id in running:
        await one.brokers.stop_broker(broker_id)
    with ExitStack() as taken:
        for address in before.split(","):  # else the system may give one of them again
            taken.enter_context(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))))
        for broker_id in running:
            await one.brokers.start_broker(broker_id)
    assert not set(before.split(",")) & set(servers(one.brokers).split(","))


async def publish_again(one: Side, value: bytes) -> None:
    """To where its brokers are now."""
    async with cluster_of(one.brokers) as cluster:
        await cluster.refresh(None)
        await publish(Side(one.brokers, cluster, one.cluster_id), CLICKS, value)


async def test_brokers_that_all_have_moved_are_found_again_and_those_that_are_known_stay(tmp_path: Path) -> None:
    """Source and target at once. When ZooKeeper has gone, the link copies on."""
    async with two_sides(tmp_path, 2, coordination_listener="127.0.0.1:0") as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        found = {f"{name}_zookeeper_connect": str(one.brokers.zookeeper_address) for name, one in (("A", a), ("B", b))}
        async with worker(a, b, None, A_bootstrap_servers="", B_bootstrap_servers="", **found) as one:
            await arrives(b, COPIED, b"0")
            for moved in (a, b):
                await move(moved)
            await publish_again(a, b"1")
            async with cluster_of(b.brokers) as cluster:
                there = Side(b.brokers, cluster, b.cluster_id)
                await arrives(there, COPIED, b"0", b"1")
                await a.brokers._listening.aclose()
                await publish_again(a, b"2")
                await arrives(there, COPIED, b"0", b"1", b"2")
            assert one.status()[0]


async def test_brokers_that_moved_while_zookeeper_was_away_for_longer_than_a_session_are_found_in_the_next(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """With a real ZooKeeper, whose watches went with the session."""
    async with AsyncExitStack() as stack:
        connect = f"{zookeeper_server.address}/{uuid4().hex}"
        a = await stack.enter_async_context(side(tmp_path / "a", 2, zookeeper_connect=connect))
        b = await stack.enter_async_context(side(tmp_path / "b"))
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        proxy = ZooKeeperProxy(zookeeper_server.port)
        await proxy.start()
        stack.push_async_callback(proxy.close)
        seen = connect.replace(zookeeper_server.address, f"127.0.0.1:{proxy.port}")
        given = {"A_bootstrap_servers": "", "A_zookeeper_connect": seen, "A_zookeeper_session_timeout_ms": "4000"}
        one = await stack.enter_async_context(worker(a, b, None, **given))
        await arrives(b, COPIED, b"0")
        await move(a)
        await publish_again(a, b"1")
        await arrives(b, COPIED, b"0", b"1")
        proxy.refuses = True
        proxy.cut()
        await move(a)
        await publish_again(a, b"2")
        await asyncio.sleep(6.0)  # the session's timeout, in ticks of the server
        assert await values_of(b, COPIED) == [b"0", b"1"]
        proxy.refuses = False
        await arrives(b, COPIED, b"0", b"1", b"2")
        assert one.status()[0]


def registration(address: str, protocol: str = "PLAINTEXT") -> bytes:
    host, _, port = address.rpartition(":")
    fields = {"version": 5, "host": host, "port": int(port), "endpoints": [f"X://{address}"], "jmx_port": -1, "timestamp": "1"}
    return json.dumps(fields | {"listener_security_protocol_map": {"X": protocol}, "features": {}}).encode()


async def test_what_keeps_brokers_from_being_found_is_said_and_waited_for_and_no_other_link_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper is away, then without the chroot, without a broker, with one that no one can read, and at last as it should be."""
    async with AsyncExitStack() as stack:
        a, b = await stack.enter_async_context(two_sides(tmp_path))
        await create_topic(a.cluster, "clicks")
        zookeeper = EmbeddedZooKeeper(None, SystemClock())
        stack.push_async_callback(zookeeper.close)
        listener = CoordinationListener(zookeeper, "127.0.0.1", 0, None)
        await listener.start()
        port = listener.port
        await listener.close()
        given = {
            "clusters": "A,B,C",
            "C_zookeeper_connect": f"127.0.0.1:{port}/far",
            "C_zookeeper_connection_timeout_ms": "2000",
            "C->B_enabled": "true",
            "slots": "1",
        }
        one = await stack.enter_async_context(worker(a, b, None, **given))

        async def says(reason: str) -> None:
            await until(lambda: reason in one.status()[1].get("reason", ""))
            assert not one.status()[0]
            code, text = await command(one, "describe", "C->B")
            assert code == 1 and reason in text

        await says(f"no broker of C is known: zookeeper.connect = 127.0.0.1:{port}/far: no ZooKeeper gave a session within 2 s")
        await publish(a, CLICKS, b"0")
        await arrives(b, COPIED, b"0")
        listener = CoordinationListener(zookeeper, "127.0.0.1", port, None)
        await listener.start()
        stack.push_async_callback(listener.close)
        await says(f"no broker of C is known: 127.0.0.1:{port}/far: there is no such chroot")
        session = await zookeeper.session()
        assert await session.exists("/far") is None
        await session.create("/far")
        await says("/brokers/ids has no broker that listens by PLAINTEXT")
        wrong = [b"no JSON", b"[]", *(b'{"version":1,"host":%b,"port":1}' % host for host in (b"null", b"5", b'""'))]
        wrong += [registration(f"127.0.0.1:{number}") for number in (0, 99_999)]
        for broker_id, data in enumerate(wrong):
            await session.create(f"/far/brokers/ids/{broker_id}", data, ephemeral=True, make_parents=True)
        await until(lambda: all(f"broker {broker_id} is not asked" in caplog.text for broker_id in range(len(wrong))))
        await session.create("/far/brokers/ids/17", registration(servers(a.brokers), "SSL"), ephemeral=True)
        await says("/brokers/ids has no broker that listens by PLAINTEXT")
        await session.create("/far/brokers/ids/18", registration(servers(a.brokers)), ephemeral=True)
        await arrives(b, COPIED._replace(topic="C.clicks"), b"0")
        await until(lambda: one.status()[0])
        assert sum("no such chroot" in record.message for record in caplog.records) == 1
        await session.delete("/far/brokers/ids/18")
        await until(lambda: "C: the brokers that are known stay" in caplog.text)
        await publish(a, CLICKS, b"1")
        await arrives(b, COPIED._replace(topic="C.clicks"), b"0", b"1")
