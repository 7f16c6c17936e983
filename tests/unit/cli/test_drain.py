"""`ottla broker drain` against a real gRPC server, and what it says where there is none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import drain
from ottla.cli.main import run
from ottla.config.broker import BrokerSettings
from ottla.coordination import znodes
from ottla.coordination.interface import Create
from ottla.errors import RequestTimedOut
from ottla.interbroker.calls import BrokerControl, Caller, Outsider
from ottla.interbroker.rpc import GrpcControl
from ottla.model import BrokerId, BrokerRegistration, Endpoint
from ottla.testing.zookeeper import ZooKeeperServer

TWO = BrokerId(2)


class Drained(BrokerControl):
    """A broker that notes that it was drained, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.times = 0
        self.ends = 0
        self._error = error

    async def drain(self) -> None:
        self.times += 1
        if self._error is not None:
            raise self._error

    async def undrain(self) -> None:
        self.ends += 1
        await self.drain()


@dataclass
class Served(Outsider):
    """A broker that lets every caller in, and notes them."""

    callers: list[Caller]

    def check_caller(self, caller: Caller) -> None:
        self.callers.append(caller)


@contextmanager
def control_endpoint(broker: Any, *, from_zookeeper: bool = False) -> Iterator[BrokerRegistration]:
    """Where the broker is told, and what it would register; the server has a loop of its own, in a thread."""
    callers: list[Caller] = []
    settings = BrokerSettings.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0"})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[GrpcControl, str | None]:
        control = GrpcControl(settings, "localhost", Served(callers))
        return control, await control.serve(TWO, broker, broker)

    try:
        control, endpoint = asyncio.run_coroutine_threadsafe(start(), loop).result(120)
        assert endpoint is not None
        registered = BrokerRegistration(TWO, (), control_endpoint="elsewhere:1", control_secret=control.secret)

        async def read(settings: BrokerSettings, broker_id: BrokerId) -> BrokerRegistration:
            return registered

        with pytest.MonkeyPatch.context() as patch:
            if not from_zookeeper:
                patch.setattr(drain, "_registered", read)
            yield replace(registered, control_endpoint=endpoint)
        asyncio.run_coroutine_threadsafe(control.close(), loop).result(120)
        assert callers == [Caller(BrokerId(-1), -1, -1)] * broker.times  # an operator's tool knows no epochs
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)
        loop.close()


@pytest.mark.parametrize(
    ("command", "done", "not_done"),
    [("drain", "hands over what it leads", "was not drained"), ("undrain", "takes part again", "does not take part again")],
)
def test_a_broker_is_asked_at_its_endpoint_and_quoted(command: str, done: str, not_done: str, capsys: pytest.CaptureFixture[str]) -> None:
    broker, refusing = Drained(), Drained(RequestTimedOut("3 partitions are still led"))
    for asked, code in ((broker, 0), (refusing, 1)):
        with control_endpoint(asked) as registered:
            endpoint = registered.control_endpoint or ""
            assert run(["broker", command, "2", "--zookeeper", "nowhere:1", "--control", endpoint]) == code
    assert (broker.times, broker.ends) == ((1, 0) if command == "drain" else (1, 1))
    said = capsys.readouterr()
    assert said.out == f"Broker 2 {done}.\n"
    assert said.err == f"ottla: broker 2 at {endpoint} {not_done}: 3 partitions are still led\n"


def test_the_endpoint_is_found_in_zookeeper(zookeeper_server: ZooKeeperServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By --zookeeper, or by the properties of any broker; one that runs alone, or not at all, is said to."""
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    config = tmp_path / "server.properties"
    config.write_text(f"zookeeper.connect={connect}\nlog.dirs=/somewhere\n")
    broker = Drained()
    with control_endpoint(broker, from_zookeeper=True) as told:
        endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
        registrations = [replace(told, endpoints=endpoints), BrokerRegistration(BrokerId(3), endpoints)]
        asyncio.run(_register(connect, registrations))
        assert run(["broker", "drain", "2", "--zookeeper", connect]) == 0
        assert run(["broker", "drain", "2", "--config", str(config)]) == 0
        assert run(["broker", "drain", "3", "--zookeeper", connect]) == 1
        assert run(["broker", "drain", "4", "--zookeeper", connect]) == 1
    assert broker.times == 2
    alone, absent = capsys.readouterr().err.splitlines()
    assert "broker 3 has registered no control endpoint" in alone
    assert "broker 4 is not registered in ZooKeeper" in absent


async def _register(connect: str, registrations: list[BrokerRegistration]) -> None:
    from ottla.config.connect_string import ConnectString
    from ottla.coordination.zookeeper import ZooKeeperOptions, open_session

    session = await open_session(ZooKeeperOptions(ConnectString.parse(connect)))
    try:
        znodes_to_be = [
            Create(znodes.BROKER.path(registration.broker_id), znodes.encode_broker(registration, 0)) for registration in registrations
        ]
        await session.transaction([Create("/brokers", b""), Create("/brokers/ids", b""), *znodes_to_be])
    finally:
        await session.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["drain", "2"], "--zookeeper"),
        (["drain", "two", "--control", "x:1"], "integer"),
        (["drain", "--control", "x:1"], "ID"),
        (["nonsense"], "nonsense"),
        (["drain", "2", "--zookeeper", ""], "ottla: --zookeeper: zookeeper.connect = ''"),
        (["drain", "2", "--zookeeper", "x:1", "-X", "broker.id=two"], "ottla: --override: broker.id = 'two'"),
    ],
)
def test_without_knowing_whom_or_where_nothing_is_tried(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_properties_without_zookeeper_and_a_config_in_the_wrong_place_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.properties"
    config.write_text("broker.id=1\n")
    assert run(["broker", "drain", "2", "--config", str(config)]) == 2
    assert run(["broker", "--config", str(config), "drain", "2"]) == 2
    nowhere, before = capsys.readouterr().err.splitlines()
    assert f"{config} has no zookeeper.connect" in nowhere and "`ottla dev`" in nowhere
    assert "it comes after" in before


def test_a_brokers_file_is_read_as_the_broker_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With config.providers, and with the line of what is wrong."""
    config, secret = tmp_path / "server.properties", tmp_path / "secret.properties"
    secret.write_text("where=127.0.0.1:1\n")
    provider = "config.providers=file\nconfig.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
    config.write_text(f"{provider}zookeeper.connect=${{file:{secret}:where}}\n")
    drained = ["broker", "drain", "2", "--config", str(config), "--override", "zookeeper.connection.timeout.ms=200"]
    assert run(drained) == 1
    assert capsys.readouterr().err.startswith("ottla: ZooKeeper at 127.0.0.1:1: ")
    config.write_text("broker.id=two\n")
    assert run(drained) == 2
    assert capsys.readouterr().err.startswith(f"ottla: {config}:1: broker.id = 'two'")
