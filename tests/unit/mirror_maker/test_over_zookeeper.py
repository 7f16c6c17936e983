"""Workers that share a real ZooKeeper, over wires that are cut: from one worker alone, and from all, for longer than a session lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import SECONDS, Side, two_sides
from tests.unit.mirror_maker.test_server import arrives, publish, worker
from tests.unit.wire.clusters import create_topic

from ottla.mirror_maker.server import MirrorMaker
from ottla.model import TopicPartition
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy

PARTITIONS = 4
SLOTS = 4
SESSION_MS = "3000"


def held(one: MirrorMaker) -> int:
    return len(one.links["A-B"].slots)


class Copied:
    """What was written to each partition of the source, and is to be in the target."""

    def __init__(self, a: Side, b: Side) -> None:
        self._sides = a, b
        self._values: list[bytes] = []

    async def write(self) -> None:
        self._values.append(b"%d" % len(self._values))
        for number in range(PARTITIONS):
            await publish(self._sides[0], TopicPartition("clicks", number), self._values[-1])

    async def arrive(self) -> None:
        for number in range(PARTITIONS):
            await arrives(self._sides[1], TopicPartition("A.clicks", number), *self._values)


async def while_writing(copied: Copied, what: Callable[[], bool]) -> None:
    """Writes on until something is so."""
    async with asyncio.timeout(SECONDS):
        while not what():
            await copied.write()
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
async def test_a_worker_that_alone_is_cut_from_zookeeper_is_replaced_and_takes_part_again(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, times: int
) -> None:
    """It still reaches both clusters, so it copies on until its session is over, and whoever has its slots by then fences it."""
    async with AsyncExitStack() as stack:
        a, b = await stack.enter_async_context(two_sides(tmp_path))
        await create_topic(a.cluster, "clicks", PARTITIONS)
        proxy = ZooKeeperProxy(zookeeper_server.port)
        await proxy.start()
        stack.push_async_callback(proxy.close)
        given = {"slots": str(SLOTS), "zookeeper_session_timeout_ms": SESSION_MS}
        chroot = f"/{uuid4().hex}"
        one = await stack.enter_async_context(worker(a, b, None, zookeeper_connect=f"127.0.0.1:{proxy.port}{chroot}", **given))
        other = await stack.enter_async_context(worker(a, b, None, zookeeper_connect=f"{zookeeper_server.address}{chroot}", **given))
        copied = Copied(a, b)
        await until(lambda: (held(one), held(other)) == (2, 2))
        for _ in range(times):
            proxy.refuses = True
            proxy.cut()
            await while_writing(copied, lambda: (held(one), held(other)) == (0, SLOTS))
            await until(lambda: one.status()[1].get("reason") == "A-B has slots without a worker")  # as far as it knows
            await until(lambda: other.status()[0])
            await copied.arrive()
            proxy.refuses = False
            await while_writing(copied, lambda: (held(one), held(other)) == (2, 2))
            await copied.arrive()
            await until(lambda: one.status()[0])


async def test_a_zookeeper_that_is_away_for_longer_than_a_session_is_waited_for_and_nothing_is_copied_twice(
    own_zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """It is stopped, so connections stay open and nothing answers: both workers give their slots up by their own clocks."""
    async with AsyncExitStack() as stack:
        a, b = await stack.enter_async_context(two_sides(tmp_path))
        await create_topic(a.cluster, "clicks", PARTITIONS)
        given = {"slots": str(SLOTS), "zookeeper_session_timeout_ms": SESSION_MS}
        address = f"{own_zookeeper_server.address}/{uuid4().hex}"
        one, other = [await stack.enter_async_context(worker(a, b, None, zookeeper_connect=address, **given)) for _ in range(2)]
        copied = Copied(a, b)
        await until(lambda: (held(one), held(other)) == (2, 2))
        await while_writing(copied, lambda: True)
        own_zookeeper_server.pause()
        try:
            await while_writing(copied, lambda: (held(one), held(other)) == (0, 0))
            await copied.write()
            await until(lambda: not one.status()[0] and not other.status()[0])
        finally:
            own_zookeeper_server.resume()
        await while_writing(copied, lambda: (held(one), held(other)) == (2, 2))
        await copied.arrive()
