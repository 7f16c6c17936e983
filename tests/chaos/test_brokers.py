"""A broker process through its lives, with a small program in the broker's place: it becomes ready, waits, and ends as it is told."""

from __future__ import annotations

import asyncio
import errno
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.chaos import brokers
from tests.chaos.brokers import BrokerProcess, BrokerTrouble, Ports
from tests.loops import until

Ended = asyncio.Queue[tuple[int, int]]

PROGRAM = """
import signal, sys, time
from pathlib import Path
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
config, pid_file = Path(sys.argv[3]), Path(sys.argv[5])
print("in the log", flush=True)
behaviour = dict(line.split("=") for line in config.read_text().splitlines())["behaviour"]
if behaviour == "ends":
    sys.exit(3)
if behaviour == "finds no ZooKeeper" and not Path(f"{config}.second").exists():
    Path(f"{config}.second").touch()
    sys.exit("ottla: no ZooKeeper gave a session within 30 s (zookeeper.connection.timeout.ms)")
pid_file.write_text("ready")
while not ending:
    if behaviour == "ends later":
        sys.exit(4)
    time.sleep(0.01)
sys.exit(5 if behaviour == "ends badly" else 0)
"""


@asynccontextmanager
async def broker_that(tmp_path: Path, behaviour: str) -> AsyncIterator[tuple[BrokerProcess, Ended]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended: Ended = asyncio.Queue()
    broker = BrokerProcess(
        7,
        tmp_path / "broker",
        Ports(1, 2, 3),
        {"behaviour": behaviour},
        (sys.executable, str(program)),
        ended=lambda broker_id, code: ended.put_nowait((broker_id, code)),
    )
    try:
        yield broker, ended
    finally:
        await broker.close()


async def test_it_is_killed_and_started_again_and_nobody_is_told_of_what_was_meant(tmp_path: Path) -> None:
    async with broker_that(tmp_path, "runs") as (broker, ended):
        await broker.launch()
        await broker.ready()
        first = broker.process_id
        await broker.launch()  # it runs
        assert broker.process_id == first
        await broker.kill()
        assert not broker.is_running and broker.process_id is None
        await broker.launch()
        await broker.ready()
        assert broker.process_id not in (None, first)
        await broker.terminate()
        assert ended.empty()
        log = broker.log_file.read_text()
        assert log.count("in the log") == 2
        assert f"--- process {first} ended with -9" in log


async def test_one_that_is_frozen_can_be_killed(tmp_path: Path) -> None:
    async with broker_that(tmp_path, "runs") as (broker, _):
        await broker.launch()
        await broker.ready()
        broker.freeze()
        await broker.kill()
        broker.thaw()  # of what is not there any more
        assert not broker.is_running


async def test_an_end_that_nobody_meant_is_told(tmp_path: Path) -> None:
    async with broker_that(tmp_path, "ends later") as (broker, ended):
        await broker.launch()
        assert await ended.get() == (7, 4)
        assert not broker.is_running


async def test_one_that_finds_no_zookeeper_is_started_again_as_an_orchestrator_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with an error after `zookeeper.connection.timeout.ms`, as Kafka's does: that is no trouble, and is counted."""
    monkeypatch.setattr(brokers, "_RESTART_SECONDS", 0.05)
    async with broker_that(tmp_path, "finds no ZooKeeper") as (broker, ended):
        await broker.launch()
        await broker.ready()
        assert broker.is_running
        assert (broker.restarts, ended.empty()) == (1, True)
        await broker.terminate()


async def test_one_that_does_not_start_or_does_not_stop_cleanly_is_a_trouble(tmp_path: Path) -> None:
    async with broker_that(tmp_path, "ends") as (broker, _):
        await broker.launch()
        with pytest.raises(BrokerTrouble, match="broker 7 ended while it started"):
            await broker.ready()
    async with broker_that(tmp_path, "ends badly") as (broker, _):
        await broker.launch()
        await broker.ready()
        with pytest.raises(BrokerTrouble, match="ended with 5 after SIGTERM"):
            await broker.terminate()


async def test_it_can_open_no_file_and_goes_on_with_those_that_it_has(tmp_path: Path) -> None:
    """Method: a program that writes to an open file and says what opening another one comes to."""
    says = """
import itertools, sys, time
from pathlib import Path
Path(sys.argv[5]).write_text("ready")
with open(f"{sys.argv[3]}.open", "ab", buffering=0) as opened:
    for number in itertools.count():
        opened.write(b".")
        try:
            open(f"{sys.argv[3]}.small", "wb").close()
            print("opened", flush=True)
        except OSError as error:
            print("refused", error.errno, flush=True)
        time.sleep(0.01)
"""
    program = tmp_path / "program.py"
    program.write_text(says)

    def last(broker: BrokerProcess) -> list[str]:
        return broker.log_file.read_text().splitlines()[-1].split()

    broker = BrokerProcess(7, tmp_path / "broker", Ports(1, 2, 3), {}, (sys.executable, str(program)))
    try:
        await broker.launch()
        await broker.ready()
        await until(lambda: last(broker) == ["opened"])
        await broker.refuse_files()
        await until(lambda: last(broker) == ["refused", str(errno.EMFILE)])
        written = tmp_path / "broker" / "server.properties.open"
        size = written.stat().st_size
        await until(lambda: written.stat().st_size > size)
        broker.allow_files()
        await until(lambda: last(broker) == ["opened"])
    finally:
        await broker.close()


async def test_its_disk_is_full_until_it_is_emptied(tmp_path: Path) -> None:
    async with broker_that(tmp_path, "runs") as (broker, _):
        await broker.launch()
        await broker.ready()
        process_id = broker.process_id
        assert process_id is not None
        before = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
        broker.fill_disk()
        assert resource.prlimit(process_id, resource.RLIMIT_FSIZE) == (0, before[1])
        broker.empty_disk()
        assert resource.prlimit(process_id, resource.RLIMIT_FSIZE) == (before[1], before[1])
