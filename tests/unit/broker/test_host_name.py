"""What a broker on every interface tells clients to connect to (InetAddress.getLocalHost().getCanonicalHostName())."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.broker import server
from ottla.broker.identity import canonical_host_name
from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"listeners": "PLAINTEXT://:0"}, "broker.test"),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "broker.test"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "127.0.0.1"),
        ({"listeners": "PLAINTEXT://localhost:0"}, "localhost"),
        ({"listeners": "PLAINTEXT://:0", "advertised.listeners": "PLAINTEXT://kafka.example:9092"}, "kafka.example"),
    ],
)
async def test_a_listener_on_every_interface_is_advertised_by_the_machines_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], expected: str
) -> None:
    """A client, or a broker on another machine, that is told `localhost` connects to itself."""
    monkeypatch.setattr(server, "canonical_host_name", lambda: "broker.test")
    settings = BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(tmp_path), **properties})
    broker = Broker(settings)
    await broker.start()
    try:
        assert broker.bootstrap_servers.rpartition(":")[0] == expected
        assert [known.endpoints[0].host for known in broker.metadata.brokers.values()] == [expected]
    finally:
        await broker.stop()


def test_the_name_is_the_one_with_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "broker-1.kafka.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [name])
    assert canonical_host_name() == "broker-1.kafka.example"


def test_a_name_that_leads_nowhere_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(name: str, port: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getfqdn", lambda: "no-such-machine")
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert canonical_host_name() == "localhost"
    assert "the host name no-such-machine cannot be resolved" in caplog.text
