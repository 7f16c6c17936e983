"""The broker put together: that it starts and stops whole, and what it does when it cannot continue."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.errors import OttlaError


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
