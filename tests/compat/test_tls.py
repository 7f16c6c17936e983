"""A TLS listener beside a plain one: encrypted, checked against a certificate authority, mutual where it is asked for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.cli.main import run
from ottla.testing import EmbeddedCluster
from ottla.testing.certificates import Authority


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority, and what it signed for the broker and for a client (key and certificate in one file)."""

    authority: Path
    broker: Path
    client: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("certificates")
    made = Certificates(directory / "authority.pem", directory / "broker.pem", directory / "client.pem")
    authority = Authority("Test Authority")
    made.authority.write_bytes(authority.pem)
    made.broker.write_bytes(authority.issue("localhost"))
    made.client.write_bytes(authority.issue("a client"))
    return made


def tls_settings(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        **more,
    }


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=tls_settings(certificates), topics={"secret": 1}) as running:
        yield running


def client_options(certificates: Certificates) -> list[str]:
    return ["-X", "security.protocol=ssl", "-X", f"ssl.ca.location={certificates.authority}"]


@pytest.mark.parametrize(
    ("listener", "options", "reason"),
    [
        ("SSL", ["-X", "security.protocol=ssl"], "certificate verify failed.*ssl.ca.location"),
        ("SSL", [], "closed at once; where the listener speaks TLS, set -X security.protocol=ssl"),
        ("PLAINTEXT", ["-X", "security.protocol=ssl"], "SSL connection closed by peer"),
    ],
)
def test_the_reason_why_there_is_no_connection_is_told(
    listener: str,
    options: list[str],
    reason: str,
    cluster: EmbeddedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is librdkafka's last error, and not that no broker answers."""
    for seconds in (2.0, 30.0):  # the second where the machine is so busy that librdkafka has heard nothing in the first
        monkeypatch.setattr("ottla.cli.connection.ANSWER_SECONDS", seconds)
        assert run(["topics", "list", "-b", cluster.address(listener), *options]) == 1
        told = capsys.readouterr().err
        if re.search(reason, told):
            break
    assert re.search(reason, told), told
    assert "ottla dev" not in told


def test_a_stretch_is_replayed_over_tls(cluster: EmbeddedCluster, certificates: Certificates, capsys: pytest.CaptureFixture[str]) -> None:
    """With the options that the other commands have."""
    import confluent_kafka

    topic = cluster.create_topic("replayed")
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"once")
    assert producer.flush(120) == 0
    assert run(["replay", topic, "--from", "0", "-b", cluster.address("SSL"), *client_options(certificates)]) == 0
    assert "1 message " in capsys.readouterr().out


def test_large_messages_come_back_over_tls(cluster: EmbeddedCluster, certificates: Certificates) -> None:
    import confluent_kafka

    configuration = {
        "bootstrap.servers": cluster.address("SSL"),
        "security.protocol": "ssl",
        "ssl.ca.location": str(certificates.authority),
    }
    values = [bytes([number]) * (number * 3001) for number in range(200)]
    producer = confluent_kafka.Producer({**configuration, "enable.idempotence": True})
    for value in values:
        producer.produce("secret", value)
    assert producer.flush(120) == 0
    consumer = confluent_kafka.Consumer({**configuration, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition("secret", 0, 0)])
        read: list[bytes | None] = []
        while len(read) < len(values):
            messages = consumer.consume(200, 120.0)
            assert messages, f"only {len(read)} of {len(values)} came back"
            read += [message.value() for message in messages]
        assert read == values
    finally:
        consumer.close()


def test_kafka_python_speaks_tls_with_it(cluster: EmbeddedCluster, certificates: Certificates) -> None:
    import kafka

    secure = {"bootstrap_servers": cluster.address("SSL"), "security_protocol": "SSL", "ssl_cafile": str(certificates.authority)}
    producer = kafka.KafkaProducer(**secure)
    assert producer.send("by-kafka-python", b"hello").get(120).offset == 0
    producer.close()


def test_the_command_line_reaches_it_with_properties(
    cluster: EmbeddedCluster, certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    messages = tmp_path / "messages"
    messages.write_text("one\ntwo\n")
    address = ["-b", cluster.address("SSL")]
    assert run(["produce", "by-command", str(messages), *address, *client_options(certificates)]) == 0
    properties = tmp_path / "client.properties"
    properties.write_text(f"security.protocol=ssl\nssl.ca.location={certificates.authority}\n")
    assert run(["consume", "by-command", *address, "--command-config", str(properties)]) == 0
    assert capfd.readouterr().out == "one\ntwo\n"
    assert run(["topics", "describe", "by-command", *address, "--command-config", str(properties)]) == 0
    assert "2 messages" in capfd.readouterr().out


def test_kcat_speaks_tls_with_it(kcat: str, cluster: EmbeddedCluster, certificates: Certificates) -> None:
    options = [kcat, "-b", cluster.address("SSL"), *client_options(certificates)]
    subprocess.run([*options, "-P", "-t", "by-kcat", "-p", "0"], input=b"hello\n", check=True, timeout=300)
    done = subprocess.run(
        [*options, "-C", "-t", "by-kcat", "-p", "0", "-o", "beginning", "-e", "-q"], capture_output=True, check=True, timeout=300
    )
    assert done.stdout == b"hello\n"


def test_a_plain_client_at_the_tls_listener_gets_nowhere_and_the_others_do_not_notice(
    cluster: EmbeddedCluster, certificates: Certificates
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": cluster.address("SSL"), "log_level": 0}).list_topics(timeout=3)
    secure = {"security.protocol": "ssl", "ssl.ca.location": str(certificates.authority)}
    assert "secret" in AdminClient({"bootstrap.servers": cluster.address("SSL"), **secure}).list_topics(timeout=60).topics


def test_client_auth_required_keeps_out_who_has_no_certificate(certificates: Certificates) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with EmbeddedCluster(settings=tls_settings(certificates, **{"ssl.client.auth": "required"})) as cluster:
        stranger = {"bootstrap.servers": cluster.address("SSL"), "security.protocol": "ssl", "ssl.ca.location": str(certificates.authority)}
        with pytest.raises(KafkaException):
            AdminClient({**stranger, "log_level": 0}).list_topics(timeout=3)
        certificate = {"ssl.certificate.location": str(certificates.client), "ssl.key.location": str(certificates.client)}
        assert AdminClient({**stranger, **certificate}).list_topics(timeout=60).brokers
