"""What a service has to write itself when it does nothing yet, and that it then has all that a service needs."""

from __future__ import annotations

import ast
import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rpc.serving import is_serving

from ottla.clock import SystemClock
from ottla.config.mirror import MirrorSettings
from ottla.config.properties import parse
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.interface import SessionEvent
from ottla.errors import BrokerNotAvailable, ConfigurationError
from ottla.metrics.family import Family
from ottla.rpc.certificate_dates import first_expiry
from ottla.rpc.channel import RpcChannel
from ottla.serving.surface import CertificateCollector
from ottla.testing.certificates import Authority

from . import empty_service
from .empty_service import EmptyService, EmptySettings


def asked(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=120) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_has_at_most_sixty_lines_of_its_own() -> None:
    """What is not its docstring, an import or empty."""
    text = Path(empty_service.__file__).read_text(encoding="utf-8")
    body = [statement for statement in ast.parse(text).body[1:] if not isinstance(statement, (ast.Import, ast.ImportFrom))]
    assert sum(bool(line.strip()) for line in text.splitlines()[body[0].lineno - 2 :]) <= 60


def test_settings_are_read_and_refused_as_a_brokers_are() -> None:
    settings = EmptySettings.from_properties(parse("http.listener=127.0.0.1:0\nzookeeper.session.timeout.ms=9000", "empty.properties"))
    assert settings.http_address is not None and settings.zookeeper_session_timeout_ms == 9000
    with pytest.raises(ConfigurationError, match=r"empty.properties:1: unknown setting 'http.listner'; did you mean 'http.listener'\?"):
        EmptySettings.from_properties(parse("http.listner=127.0.0.1:0", "empty.properties"))
    with pytest.raises(ConfigurationError, match=r"unknown setting 'log.dirs'"):
        EmptySettings.from_properties({"log.dirs": "/data"})  # a broker's


def test_each_certificate_that_a_service_shows_has_its_end(tmp_path: Path) -> None:
    """Its own, to those who ask it, and a client's; brokers alone said that theirs ends, and after a renewal services have the former."""
    keystore, truststore = Authority("tests").write(tmp_path, "worker")
    tls = {"ssl.keystore.location": str(keystore), "ssl.truststore.location": str(truststore)}
    given = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    given |= {"A.security.protocol": "SSL", "rpc.listener": "127.0.0.1:0", "rpc.security.protocol": "SSL"}
    given |= {f"A.{name}": value for name, value in tls.items()} | {f"listener.name.rpc.{name}": value for name, value in tls.items()}
    settings = MirrorSettings.from_properties(given)
    shown: dict[str, Any] = {
        "A": settings.sides["A"],
        "B": settings.sides["B"],
        "kafkastore": str(keystore),
        "gone": str(tmp_path / "gone.pem"),
    }
    (family,) = CertificateCollector(shown, settings).collect()
    ends = first_expiry(Path(keystore).read_text(encoding="ascii"))
    assert isinstance(family, Family) and family.samples == [((name,), ends) for name in ("A", "kafkastore", "RPC")]


async def test_it_is_ready_while_it_is_registered_and_registers_again(tmp_path: Path) -> None:
    service = EmptyService(EmptySettings(http_listener="127.0.0.1:0", directory=str(tmp_path)))
    await service.start()
    channel = RpcChannel(f"127.0.0.1:{service.rpc_port}")
    address = service.surface.address
    try:
        status, said = await asyncio.to_thread(asked, address, "/readyz")
        assert (status, json.loads(said)) == (200, {"status": "ready", "registered": True})
        assert (await asyncio.to_thread(asked, address, "/healthz"))[0] == 200
        assert await is_serving(channel, 120)
        _, metrics = await asyncio.to_thread(asked, address, "/metrics")
        for name in ("ottla_ready 1.0", "ottla_build_info{", "ottla_event_loop_lag_seconds_count", "process_resident_memory_bytes"):
            assert f"\n{name}" in metrics

        session = service.sessions._session
        assert isinstance(session, EmbeddedSession)
        await session.end(SessionEvent.EXPIRED)
        async with asyncio.timeout(120):
            while service.sessions._session is session or (await asyncio.to_thread(asked, address, "/readyz"))[0] != 200:  # noqa: ASYNC110 - its state
                await asyncio.sleep(0.05)
    finally:
        await service.stop()
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(asked, address, "/healthz")
    with pytest.raises(BrokerNotAvailable):
        await is_serving(channel, 120)
    await channel.close()
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    assert await (await zookeeper.session()).exists("/empty") is None, "its registration went with it"
    await zookeeper.close()


def test_as_a_process_it_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    properties = tmp_path / "empty.properties"
    properties.write_text(f"http.listener=127.0.0.1:0\ndirectory={tmp_path}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.serving.empty_service", str(properties)],
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert asked(address, "/readyz")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
