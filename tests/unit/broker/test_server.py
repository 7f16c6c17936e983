"""The broker put together: that it starts and stops whole, and what it does when it cannot continue."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest
from tests.loops import until
from tests.unit.broker.wired import batch, produce

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.errors import OttlaError
from ottla.interbroker.calls import NewTopic
from ottla.protocol.api import ApiKey


def settings_for(directory: Path, **properties: str) -> BrokerSettings:
    """A broker on a free port with two log directories."""
    return BrokerSettings.from_properties(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": f"{directory}/a,{directory}/b",
            "coordination.directory": f"{directory}/coordination",
            **properties,
        }
    )


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_stopped_broker_leaves_no_file_and_no_task(tmp_path: Path) -> None:
    """Method: start and stop once to warm up, then count descriptors and tasks around a second time."""
    for _ in range(2):
        descriptors, tasks = open_descriptors(), len(asyncio.all_tasks())
        broker = Broker(settings_for(tmp_path))
        await broker.start()
        assert broker.port() > 0
        await broker.stop()
        await broker.stop()
    assert len(asyncio.all_tasks()) == tasks
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize("what", ["start", "stop"])
async def test_a_start_or_a_stop_that_is_given_up_anywhere_leaves_nothing(what: str, tmp_path: Path) -> None:
    """As by Ctrl-C in a test with an embedded cluster; locks of directories, files and sockets stayed behind.

    Method: cancelled after more and more turns of the loop, until it is done by then; each time in the same directories.
    """
    settings = settings_for(tmp_path, **{"http.listener": "127.0.0.1:0"})
    turns, is_given_up, descriptors, tasks = 1, True, 1 << 16, len(asyncio.all_tasks())
    while is_given_up:
        broker = Broker(settings)
        if what == "stop":
            await broker.start()
        work = asyncio.ensure_future(broker.start() if what == "start" else broker.stop())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_given_up = work.cancel()
        await asyncio.wait([work])
        if what == "start" and not work.cancelled():
            await broker.stop()
        await until(lambda: len(asyncio.all_tasks()) == tasks and open_descriptors() <= descriptors)  # noqa: B023
        turns, descriptors = turns * 3 // 2 + 1, min(descriptors, open_descriptors())


async def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    first = Broker(settings_for(tmp_path / "first"))
    await first.start()
    try:
        second = Broker(settings_for(tmp_path / "second", listeners=f"PLAINTEXT://127.0.0.1:{first.port()}"))
        with pytest.raises(OttlaError, match=f"127.0.0.1:{first.port()}.*in use"):
            await second.start()
    finally:
        await first.stop()
    again = Broker(settings_for(tmp_path / "second"))
    await again.start()
    await again.stop()


async def test_two_brokers_can_not_have_one_directory(tmp_path: Path) -> None:
    """The second is refused by the lock before it touches anything (issue: two processes on one data directory)."""
    first = Broker(settings_for(tmp_path))
    await first.start()
    try:
        second = Broker(settings_for(tmp_path, **{"coordination.directory": f"{tmp_path}/other"}))
        with pytest.raises(OttlaError, match=str(tmp_path / "a")):
            await second.start()
    finally:
        await first.stop()


async def test_the_broker_goes_on_with_one_directory_and_gives_up_with_none(tmp_path: Path) -> None:
    """S12: one of several log directories may fail; when the last has, there is nothing left to serve.

    Method: the directories' disks "fail" one after the other by the call that a failed write makes.
    """
    broker = Broker(settings_for(tmp_path))
    await broker.start()
    try:
        failed = asyncio.ensure_future(broker.failed())
        broker.parts.logs.fail_directory(tmp_path / "a", OSError(errno.EIO, "Input/output error"))
        await asyncio.sleep(0)
        assert not failed.done()
        broker.parts.logs.fail_directory(tmp_path / "b", OSError(errno.EIO, "Input/output error"))
        reason = await asyncio.wait_for(failed, 120)
        assert str(tmp_path / "a") in reason
        assert str(tmp_path / "b") in reason
    finally:
        await broker.stop()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_is_changed_while_a_broker_runs_takes_effect_and_does_so_after_a_restart_too(tmp_path: Path, is_restarted: bool) -> None:
    """Kafka's `ProducerIdExpirationTest.testDynamicProducerIdExpirationMs`, and a setting that no log has."""
    broker = Broker(settings_for(tmp_path))
    await broker.start()
    try:
        controller = broker.parts.controller
        await controller.create_topic(NewTopic("events", 1, 1))
        changes = {"producer.id.expiration.ms": "1", "num.recovery.threads.per.data.dir": "2", "max.connections": "1"}
        await controller.alter_broker_configs(None, changes)
        await until(lambda: controller.settings.max_connections == 1)
        if is_restarted:
            await broker.stop()
            broker = Broker(settings_for(tmp_path))
            await broker.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port())
        idle = batch(b"a", timestamp=broker.parts.clock.time_ms(), producer_id=9, producer_epoch=0, base_sequence=0)
        writer.write(produce(("events", 0, idle)))
        assert struct.unpack(">i", await reader.readexactly(4))[0] > 0
        assert broker.parts.logs.expire_producers() == 0
        await asyncio.sleep(0.01)
        assert broker.parts.logs.expire_producers() == 1
        second, other = await asyncio.open_connection("127.0.0.1", broker.port())
        assert await second.read() == b""
        for opened in (writer, other):
            opened.close()
    finally:
        await broker.stop()


async def test_clients_that_have_all_connections_do_not_lock_brokers_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-402, as Kafka's `ConnectionQuotasTest.testMaxBrokerWideConnectionLimit`: followers are let in, and a client's connection goes.

    Which one: that which has sent nothing for the longest time (`SelectorTest.testLowestPriorityChannel`).
    """
    monkeypatch.setattr("ottla.network.listener.SWEEP_SECONDS", 0.01)
    names = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT", "inter.broker.listener.name": "BROKERS"}
    names |= {"listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0", "max.connections": "2"}
    asks = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, 0)

    async def is_served(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
        reader, writer = connection
        writer.write(asks)
        return await reader.read(1) != b""

    broker = Broker(settings_for(tmp_path, **names))
    await broker.start()
    try:
        clients, brokers = (broker._listeners[name].port for name in ("CLIENTS", "BROKERS"))
        opened = [await asyncio.open_connection("127.0.0.1", port) for port in (clients, clients)]
        assert [await is_served(client) for client in reversed(opened)] == [True, True]  # the second one is silent for longer
        opened.append(await asyncio.open_connection("127.0.0.1", brokers))
        assert await is_served(opened[2])
        while await opened[1][0].read(1000):
            pass
        assert await is_served(opened[0])
        opened.append(await asyncio.open_connection("127.0.0.1", clients))
        assert not await opened[3][0].read()
        # As with Kafka, those that are one too many go also when the bound is lowered.
        await broker.parts.controller.alter_broker_configs(None, {"max.connections": "1"})
        while await opened[0][0].read(1000):
            pass
        assert await is_served(opened[2])
        for _, writer in opened:
            writer.close()
    finally:
        await broker.stop()


async def test_by_default_half_requests_of_one_address_take_a_part_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 MiB requests have 4 and those of one address 1: who has that much half sent keeps its next large one waiting, and no small one.

    Three thousand half requests of 130 KB took 390 MiB, and nothing bounded them but the number of connections (a08 of the review).
    """
    monkeypatch.setattr("ottla.broker.server.memory_of_process", lambda: 16 * 1024 * 1024)

    def framed(key: ApiKey, version: int, body: bytes = b"") -> bytes:
        head = struct.pack(">hhih", key, version, 1, 0)
        return struct.pack(">i", len(head) + len(body)) + head + body

    async def answer(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])

    broker = Broker(settings_for(tmp_path))
    await broker.start()
    try:
        opened = [await asyncio.open_connection("127.0.0.1", broker.port()) for _ in range(3)]
        (_, half), (large_reader, large), (small_reader, small) = opened
        half.write(struct.pack(">i", 3_000_000) + bytes(1_500_000))
        await half.drain()

        async def others_are_answered() -> None:
            for _ in range(50):
                small.write(framed(ApiKey.API_VERSIONS, 0))
                await answer(small_reader)

        await others_are_answered()
        to_no_topic = struct.pack(">hhii", -1, 1, 1000, 1) + b"\0\1t" + struct.pack(">iii", 1, 0, 300_000) + bytes(300_000)
        large.write(framed(ApiKey.PRODUCE, 3, to_no_topic))
        answered = asyncio.ensure_future(answer(large_reader))
        await others_are_answered()
        assert not answered.done()
        half.transport.abort()
        assert b"t" in await asyncio.wait_for(answered, 120)
        for _, writer in opened:
            writer.close()
    finally:
        await broker.stop()
