"""With deploy/tls.yml clients outside come by TLS, and by nothing else; inside everything stays as it was."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from tests.compat.quiet import quiet
from tests.integration.compose import ComposeCluster
from tests.integration.containers import BROKERS, broker
from tests.integration.docker import ROOT

from ottla.testing.certificates import Authority

MESSAGES = 300


def test_clients_outside_come_by_tls(new_cluster: Callable[..., ComposeCluster], tmp_path: Path) -> None:
    authority = Authority("Integration")
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    tmp_path.chmod(0o755)
    for broker_id in BROKERS:
        (tmp_path / f"broker-{broker_id}.pem").write_bytes(authority.issue("127.0.0.1"))
        (tmp_path / f"broker-{broker_id}.pem").chmod(0o644)
    made = new_cluster("tls", environment={"OTTLA_CERTIFICATES": str(tmp_path)}, more_files=[ROOT / "deploy" / "tls.yml"])
    made.up("zookeeper", *map(broker, BROKERS))
    containers = made.containers

    containers.ottla("topics", "create", "secret", "--partitions", "3", "--bootstrap-server", "broker-1:9092")
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "authority.pem"), "ssl.endpoint.identification.algorithm": "https"}
    outside = {"bootstrap.servers": containers.addresses(), **tls, **quiet()}
    producer = confluent_kafka.Producer({**outside, "enable.idempotence": True})
    for number in range(MESSAGES):
        producer.produce("secret", b"%d" % number)
    assert producer.flush(60) == 0
    inside = containers.ottla("consume", "secret", "--bootstrap-server", "broker-2:9092")
    assert sorted(map(int, inside.split())) == list(range(MESSAGES))

    host, _, port = containers.addresses().split(",")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")  # ApiVersions, in the clear
        plain.settimeout(10)
        assert not plain.recv(100).startswith(b"\x00\x00"), "answered in the clear"
    made.down()
