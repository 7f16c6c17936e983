"""The scripts that run in pods: what they ask the API server for, and what they say when something is missing."""

from __future__ import annotations

import asyncio
import http.server
import ipaddress
import json
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.helm.charting import CHART
from tests.helm.pod_script import script

from ottla.config.registry import RegistrySettings
from ottla.schema_registry.server import SchemaRegistry
from ottla.testing.certificates import Authority
from ottla.testing.cluster import EmbeddedCluster

configure = script("configure")
listener_check = script("listener_check")
scale_down_check = script("scale_down_check")
registry_check = script("registry_check")
registry_prepare = script("registry_prepare")

NODE: Final = {"metadata": {"name": "node-a", "labels": {}}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}}


class ApiServer(http.server.BaseHTTPRequestHandler):
    """Answers what it was told to, one after another, over TLS; keeps what it was asked."""

    answers: list[tuple[int, Any]]
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        status, body = self.answers.pop(0)
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Not to stderr."""


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """What Kubernetes mounts into a pod: a token, and the authority of the API server's certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - timedelta(hours=1), now + timedelta(hours=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    (tmp_path / "token").write_text("the-token\n", encoding="ascii")
    (tmp_path / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return tmp_path


@pytest.fixture
def api_server(account: Path) -> Iterator[tuple[type[ApiServer], dict[str, str]]]:
    """A server, and the environment that leads a pod to it."""

    class Handler(ApiServer):
        answers: list[tuple[int, Any]] = []  # noqa: RUF012
        asked: list[tuple[str, str]] = []  # noqa: RUF012

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield Handler, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
    server.shutdown()
    server.server_close()


def test_the_api_server_is_asked_with_the_token_and_its_certificate_checked(
    api_server: tuple[type[ApiServer], dict[str, str]], account: Path
) -> None:
    handler, environment = api_server
    handler.answers.append((200, NODE))
    assert configure.ask_api_server("/api/v1/nodes/node-a", environment, account) == NODE
    assert handler.asked == [("/api/v1/nodes/node-a", "Bearer the-token")]


def test_a_refusal_is_believed_and_a_server_in_trouble_asked_again(
    api_server: tuple[type[ApiServer], dict[str, str]], account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, environment = api_server
    monkeypatch.setattr(configure, "PAUSE_SECONDS", 0.0)
    handler.answers += [(403, {})]
    with pytest.raises(configure.Problem, match="/api/v1/nodes/node-a: 403"):
        configure.ask_api_server("/api/v1/nodes/node-a", environment, account)
    handler.answers += [(503, {}), (500, {}), (200, NODE)]
    assert configure.ask_api_server("/api/v1/nodes/node-a", environment, account) == NODE
    handler.answers += [(503, {})] * configure.TRIES
    with pytest.raises(configure.Problem, match="503"):
        configure.ask_api_server("/api/v1/nodes/node-a", environment, account)


def test_a_node_without_the_label_or_the_address_is_told_with_what_to_set() -> None:
    with pytest.raises(configure.Problem, match=r"no label topology.kubernetes.io/zone; set broker.rack.values"):
        configure.rack({"rack": {"node_label": "topology.kubernetes.io/zone", "values": []}}, 0, lambda: NODE)
    with pytest.raises(configure.Problem, match=r"no ExternalIP; set externalAccess.hosts"):
        configure.node_address(NODE, "ExternalIP")


def test_a_load_balancer_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configure, "PAUSE_SECONDS", 0.0)
    answers: list[dict[str, Any]] = [
        {"status": {}},
        {"status": {"loadBalancer": {"ingress": [{"hostname": "b0.example.org"}]}}},
    ]
    assert configure.load_balancer_host("b-0", "/x", lambda _: answers.pop(0), 60.0) == "b0.example.org"
    with pytest.raises(configure.Problem, match="no address within 0 s"):
        configure.load_balancer_host("b-0", "/x", lambda _: {"status": {}}, 0.0)


def test_a_secret_that_lacks_a_key_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_text("key", encoding="ascii")
    with pytest.raises(configure.Problem, match=r"no tls\.crt"):
        configure.stores({"certificate": "tls.crt", "private_key": "tls.key", "authorities": "ca.crt"}, tmp_path)


def test_authorities_with_names_in_their_comments_are_taken(tmp_path: Path) -> None:
    """As Mozilla's are, as curl and certifi have them: a line of text above each certificate, which OpenSSL does not read."""
    for key in ("tls.key", "tls.crt"):
        (tmp_path / key).write_text(f"-----BEGIN {key}-----", encoding="ascii")
    (tmp_path / "ca.crt").write_bytes("# Főtanúsítvány\n".encode() + "# Zürich\n".encode("latin-1") + b"-----BEGIN CERTIFICATE-----\n")
    files = configure.stores({"certificate": "tls.crt", "private_key": "tls.key", "authorities": "ca.crt"}, tmp_path)
    assert files["truststore.pem"].splitlines()[2:] == ["-----BEGIN CERTIFICATE-----"]


def test_addresses_of_version_6_stand_in_brackets() -> None:
    external = {"type": "NodePort", "service": "b", "hosts": [], "node_ports": [30092], "node_external_address": False}
    environment = {"POD_NAMESPACE": "streams", "HOST_IP": "2001:db8::7"}
    assert configure.external_address(external, 0, environment, lambda _: {}, lambda: NODE) == "[2001:db8::7]:30092"


CLUSTER: Final = {
    "brokers": [{"broker_id": 0, "replica_count": 9}, {"broker_id": 2, "replica_count": 4}, {"broker_id": 3, "replica_count": 0}],
    "missing_brokers": [{"broker_id": 4, "replica_count": 2}, {"broker_id": 1001, "replica_count": 5}],
}


def test_brokers_that_would_go_may_hold_nothing_whether_they_live_or_not() -> None:
    assert scale_down_check.holding(CLUSTER, 2, 5) == {2: 4, 4: 2}
    assert scale_down_check.holding(CLUSTER, 3, 4) == {}
    assert scale_down_check.verdict({}, 3) == ""
    said = scale_down_check.verdict({2: 4, 4: 2}, 2)
    assert "broker 2 holds 4, broker 4 holds 2 replicas" in said
    assert "ottla reassign execute" in said


def test_nothing_is_taken_away_when_nobody_can_say_who_holds_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that does not answer is no reason to believe that its last brokers are empty."""

    def no_answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-2:] == ["--property", "security.protocol=ssl"]
        return subprocess.CompletedProcess(command, 1, "", "ottla: no broker answers at b:9092")

    monkeypatch.setattr(subprocess, "run", no_answer)
    monkeypatch.setenv("CLIENT_PROPERTIES", '{"security.protocol": "ssl"}')
    monkeypatch.setattr(sys, "argv", ["-c", "b:9092", "3", "4", "-1"])
    with pytest.raises(SystemExit, match=r"no broker answers at b:9092.*scaleDownCheck\.enabled=false"):
        scale_down_check.main()


def test_the_drain_script_ends_well_whatever_the_drain_does(tmp_path: Path) -> None:
    """A hook that fails is an event that frightens people; and what nobody else can lead is no reason to hold up a pod."""
    text = (CHART / "files" / "scripts" / "drain.sh").read_text(encoding="utf-8")
    properties = tmp_path / "server.properties"
    properties.write_text(
        "broker.id=7\ncontrol.advertised.listener=b-7.example:9095\nlistener.security.protocol.map=INTERNAL:PLAINTEXT\n", encoding="ascii"
    )
    ottla = tmp_path / "ottla"
    ottla.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\nexit 1\n', encoding="ascii")
    ottla.chmod(0o755)
    here = text.replace("/run/ottla/server.properties", str(properties)).replace("/proc/1/fd/1", str(tmp_path / "said"))
    ended = subprocess.run(["sh", "-c", here, "drain.sh", "40"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=120, check=False)
    assert ended.returncode == 0
    called = (tmp_path / "called").read_text(encoding="ascii").split()
    assert called[:3] == ["broker", "drain", "7"]
    assert called[called.index("--control") + 1] == "b-7.example:9095"
    assert called[-2:] == ["--timeout", "5"]
    properties.write_text(properties.read_text(encoding="ascii").replace("INTERNAL:PLAINTEXT", "INTERNAL:SSL"), encoding="ascii")
    subprocess.run(["sh", "-c", here, "drain.sh", "40"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=120, check=False)
    assert "--bootstrap-server" not in (tmp_path / "called").read_text(encoding="ascii")


class FourLetterWords(socketserver.BaseRequestHandler):
    """ZooKeeper's answer to `srvr`, with one connection less each time it is asked."""

    connections: list[int]

    def handle(self) -> None:
        assert self.request.recv(4) == b"srvr"
        self.request.sendall(f"Zookeeper version: 3.8.0\nConnections: {self.connections.pop(0)}\nMode: standalone\n".encode())


def test_zookeeper_stays_until_no_broker_is_connected() -> None:
    """Its own question is one connection. With somebody who stays it gives up in time; with nobody listening it is over at once."""

    class Answers(FourLetterWords):
        connections = [3, 2, 1, 9, 9, 9]  # noqa: RUF012

    with socketserver.TCPServer(("127.0.0.1", 0), Answers) as server:
        text = (CHART / "files" / "scripts" / "wait_for_brokers.sh").read_text(encoding="utf-8")
        here = text.replace("127.0.0.1/2181", f"127.0.0.1/{server.server_address[1]}").replace("sleep 1", "sleep 0.01")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        subprocess.run(["bash", "-c", here, "wait", "30"], timeout=120, check=True)
        assert Answers.connections == [9, 9, 9]
        subprocess.run(["bash", "-c", here, "wait", "2"], timeout=120, check=True)
        assert Answers.connections == [9]
        server.shutdown()
        thread.join(10)
    subprocess.run(["bash", "-c", here, "wait", "30"], timeout=120, check=True, capture_output=True)


def test_a_registry_s_key_and_certificate_become_one_file_that_nobody_else_reads(tmp_path: Path) -> None:
    for name in ("key", "certificate"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\n", encoding="ascii")
    registry_prepare.write_keystore(tmp_path, [tmp_path / "key", tmp_path / "certificate"])
    made = tmp_path / "keystore.pem"
    assert made.read_text(encoding="ascii") == "-----BEGIN key-----\n-----BEGIN certificate-----\n"
    assert made.stat().st_mode & 0o777 == 0o600


def test_a_registry_waits_for_brokers_unless_its_topic_is_there_and_is_checked_there_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedCluster(services=["schema-registry"]) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        assert registry_prepare.what_is_missing(admin, "none", 1) == ""
        assert registry_prepare.what_is_missing(admin, "none", 3) == "1 of 3 brokers are there"
        assert registry_prepare.what_is_missing(admin, "_schemas", 3) == ""
        url = cluster.schema_registry_url
        registry_check.check(url, 30.0, [url, url])
        assert capsys.readouterr().out.count(f"{url} has it") == 2
        assert registry_check.ask("GET", f"{url}/subjects?deleted=true")[0] == []
        with pytest.raises(SystemExit, match="Not Found"):
            registry_check.check(f"{url}/none", 30.0, [url])


async def test_a_registry_that_asks_for_a_password_is_well_where_each_node_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`helm test` has none, and failed for good with `authentication.method=BASIC`."""
    (tmp_path / "users").write_text("ada: secret, writer\n", encoding="ascii")
    with EmbeddedCluster() as cluster:
        settings = {
            "listeners": "http://127.0.0.1:0",
            "kafkastore.bootstrap.servers": cluster.bootstrap_servers,
            "kafkastore.topic.replication.factor": "1",
            "authentication.method": "BASIC",
            "authentication.file": str(tmp_path / "users"),
        }
        registry = SchemaRegistry(RegistrySettings.from_properties(settings))
        await registry.start()
        try:
            await asyncio.to_thread(registry_check.check, registry.url, 30.0, [registry.url])
            assert f"{registry.url} asks for a password" in capsys.readouterr().out
            with pytest.raises(SystemExit, match="1:1/subjects"):
                await asyncio.to_thread(registry_check.check, registry.url, 0.0, ["http://127.0.0.1:1"])
        finally:
            await registry.stop()


def test_a_certificate_for_clients_outside_alone_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has not the pod's own name (here 127.0.0.2), at which the check began and failed; the names that brokers give are looked at."""
    keystore, authorities = Authority("outside").write(tmp_path, "broker")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,EXTERNAL://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
    }
    monkeypatch.setenv("CLIENT_PROPERTIES", json.dumps({"security.protocol": "ssl", "ssl.ca.location": authorities}))
    with EmbeddedCluster(settings=settings) as cluster:
        port = cluster.address("EXTERNAL").rpartition(":")[2]
        monkeypatch.setattr(sys, "argv", ["listener_check.py", f"127.0.0.2:{port}", "1", "60", "outside"])
        listener_check.main()
        assert f"127.0.0.1:{port} knows of 127.0.0.1:{port}" in capsys.readouterr().out
        strangers = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "ca.crt"), "log_level": "0"}
        monkeypatch.setenv("CLIENT_PROPERTIES", json.dumps(strangers))
        monkeypatch.setattr(listener_check, "ANSWER_SECONDS", 1.0)
        with pytest.raises(SystemExit, match=r"brokers are down|Broker transport failure|timed out"):
            listener_check.main()  # without a ca.crt those are trusted whom the machine trusts, and no file is missed
