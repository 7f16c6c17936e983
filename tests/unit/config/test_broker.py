"""A broker's settings as a whole: from a file, against each other, and changed while it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from ottla.config import properties
from ottla.config.broker import PARTS, BrokerSettings
from ottla.errors import ConfigurationError


def refusal(values: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        BrokerSettings.from_properties(values)
    return str(refused.value)


def test_nothing_given_is_a_broker_with_kafkas_defaults() -> None:
    """The values are those of Kafka 3.9's broker configuration page."""
    settings = BrokerSettings.from_properties({})
    assert settings == BrokerSettings()
    expected = {
        "broker.id": "-1",
        "listeners": "PLAINTEXT://:9092",
        "num.partitions": "1",
        "log.segment.bytes": "1073741824",
        "log.retention.hours": "168",
        "log.retention.check.interval.ms": "300000",
        "message.max.bytes": "1048588",
        "socket.request.max.bytes": "104857600",
        "connections.max.idle.ms": "600000",
        "queued.max.requests": "500",
        "fetch.max.bytes": "57671680",
        "max.incremental.fetch.session.cache.slots": "1000",
        "replica.lag.time.max.ms": "30000",
        "offsets.topic.num.partitions": "50",
        "producer.id.expiration.ms": "86400000",
        "auto.create.topics.enable": "true",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "log.cleanup.policy": "delete",
    }
    assert {name: settings.text_of(name) for name in expected} == expected


def test_the_file_that_kafka_comes_with_loads(tmp_path: Path) -> None:
    """The names and values that Kafka 3.9's config/server.properties sets."""
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=0\nnum.network.threads=3\nnum.io.threads=8\nsocket.send.buffer.bytes=102400\nsocket.receive.buffer.bytes=102400\n"
        "socket.request.max.bytes=104857600\nlog.dirs=/tmp/kafka-logs\nnum.partitions=1\nnum.recovery.threads.per.data.dir=1\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "log.retention.hours=168\nlog.retention.check.interval.ms=300000\ngroup.initial.rebalance.delay.ms=0\n"
        "zookeeper.connect=localhost:2181\nzookeeper.connection.timeout.ms=18000\n"
    )
    settings = BrokerSettings.from_properties(properties.load(path))
    assert settings.broker_id == 0
    assert "num.io.threads" in settings.without_effect(settings.given)
    assert "socket.send.buffer.bytes" not in settings.without_effect(settings.given)


@pytest.mark.parametrize("name", ["log.message.format.version", "inter.broker.protocol.version"])
def test_what_is_no_release_of_kafka_is_refused(name: str) -> None:
    assert "'newest' is no release of Kafka" in refusal({name: "newest"})


def test_everything_that_is_wrong_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=0\nlog.segment.byte=1\nlog.segment.bytes=13\nzookeeper.connect=localhost:x/a\nlisteners=SSL://:1\n")
    with pytest.raises(ConfigurationError) as refused:
        BrokerSettings.from_properties(properties.load(path))
    assert str(refused.value).splitlines() == [
        f"{path}:2: unknown setting 'log.segment.byte'; did you mean 'log.segment.bytes'?",
        f"{path}:3: log.segment.bytes = '13': must be at least 14",
        f"{path}:4: zookeeper.connect = 'localhost:x/a': 'localhost:x' is not host:port",
        f"{path}: security.inter.broker.protocol: no listener speaks PLAINTEXT; set inter.broker.listener.name",
        f"{path}: SSL://:1: ssl.keystore.type is JKS, and only PEM is read",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("process.roles", "KRaft"),
        ("node.id", "broker.id is what names a broker"),
        ("controller.quorum.voters", "KRaft"),
        ("sasl.enabled.mechanisms", "no SASL"),
        ("listener.name.outside.sasl.enabled.mechanisms", "no SASL"),
        ("authorizer.class.name", "no ACLs"),
        ("remote.log.storage.system.enable", "no tiered storage"),
        ("metric.reporters", "Java"),
    ],
)
def test_what_kafka_has_and_this_release_has_not_is_refused_with_the_reason(name: str, reason: str) -> None:
    assert reason in refusal({name: "1"})


# Those of Kafka's pages from 2.8 to 3.9 that a broker on ZooKeeper may have, and that no other test names.
KAFKAS: Final = [
    "advertised.host.name",
    "advertised.port",
    "alter.log.dirs.replication.quota.window.num",
    "alter.log.dirs.replication.quota.window.size.seconds",
    "connections.max.reauth.ms",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
    "early.start.listeners",
    "eligible.leader.replicas.enable",
    "group.coordinator.append.linger.ms",
    "group.coordinator.threads",
    "group.share.session.timeout.ms",
    "host.name",
    "listener.name.outside.connections.max.reauth.ms",
    "listener.name.outside.sasl.enabled.mechanisms",
    "listener.name.outside.scram-sha-512.sasl.jaas.config",
    "log.dir.failure.timeout.ms",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "max.request.partition.size.limit",
    "password.encoder.cipher.algorithm",
    "password.encoder.iterations",
    "password.encoder.key.length",
    "password.encoder.keyfactory.algorithm",
    "password.encoder.old.secret",
    "password.encoder.secret",
    "port",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "replication.quota.window.num",
    "replication.quota.window.size.seconds",
    "rlmm.config.remote.log.metadata.topic.replication.factor",
    "rsm.config.storage.root",
    "server.max.startup.time.ms",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "telemetry.max.bytes",
    "zookeeper.sync.time.ms",
]


@pytest.mark.parametrize("name", KAFKAS)
def test_no_setting_of_kafka_is_called_unknown(name: str) -> None:
    """Nor is another one proposed for it; and what has a reason can be given up by `takeover.accept`."""
    assert refusal({name: "1"}).startswith(f"{name} cannot be set: ")
    assert BrokerSettings.from_properties({name: "1", "takeover.accept": name}).ignored == {name}


def test_the_same_setting_under_two_names_is_refused() -> None:
    assert BrokerSettings.from_properties({"connections.max": "7"}).max_connections == 7
    assert "max.connections was set already" in refusal({"connections.max": "7", "max.connections": "8"})


def test_what_is_set_for_a_listener_that_there_is_not_is_refused() -> None:
    """It was ignored, as by Kafka: a listener that was to ask for certificates, misspelt, let everybody in."""
    listeners = {"listeners": "EXTERNAL://:1,PLAINTEXT://:2", "listener.security.protocol.map": "EXTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    misspelt = {**listeners, "listener.name.externl.ssl.client.auth": "required"}
    assert refusal(misspelt) == "listener.name.externl.ssl.client.auth: there is no listener 'externl'; did you mean 'external'?"
    unnamed = {**listeners, "ssl.client.auth": "required", "listener.name..ssl.client.auth": "none"}
    assert refusal(unnamed) == "listener.name..ssl.client.auth: the name of the listener is missing"
    twice = {**listeners, "listener.name.external.ssl.client.auth": "none", "listener.name.EXTERNAL.ssl.client.auth": "required"}
    assert "listener.name.EXTERNAL.ssl.client.auth: ssl.client.auth was set already" in refusal(twice)
    BrokerSettings.from_properties(
        {**listeners, "listener.name.external.ssl.client.auth": "none", "listener.name.control.ssl.client.auth": "none"}
    )


def test_log_dirs_goes_before_log_dir_and_no_directory_may_be_there_twice() -> None:
    assert BrokerSettings.from_properties({"log.dir": "/a"}).log_directories == (Path("/a"),)
    both = BrokerSettings.from_properties({"log.dir": "/a", "log.dirs": "/b, /c"})
    assert both.log_directories == (Path("/b"), Path("/c"))
    assert both.coordination_path == Path("/b/coordination")
    assert "a directory is there twice" in refusal({"log.dirs": "/a,/b/../a/,/a"})


def test_a_log_dirs_that_names_no_directory_does_not_put_the_logs_elsewhere() -> None:
    """`KafkaConfig.validateValues`. As a variable of a container that was left empty, it put them under /tmp, where they were lost."""
    assert "log.dirs names no directory" in refusal({"log.dirs": ""})


def test_a_given_broker_id_stays_below_the_generated_ones() -> None:
    """C1: ids made by the broker start after reserved.broker.max.id."""
    assert "larger than reserved.broker.max.id" in refusal({"broker.id": "1001"})
    assert BrokerSettings.from_properties({"broker.id": "1001", "broker.id.generation.enable": "false"}).broker_id == 1001
    assert "must be at least 0" in refusal({"broker.id.generation.enable": "false"})


def test_an_address_can_have_a_bound_of_its_own() -> None:
    """A connection has its address as the system writes it. No name is looked up: its bound would hold for no connection."""
    settings = BrokerSettings.from_properties({"max.connections.per.ip.overrides": "127.0.0.1:5, [::1]:6,2001:DB8:0::7:8"})
    assert settings.connections_per_address == {"127.0.0.1": 5, "::1": 6, "2001:db8::7": 8}
    assert "'host:7' has no IP address" in refusal({"max.connections.per.ip.overrides": "127.0.0.1:5,host:7"})
    assert "'127.0.0.1' is not address:count" in refusal({"max.connections.per.ip.overrides": "127.0.0.1"})
    assert "'::1:²' is not address:count" in refusal({"max.connections.per.ip.overrides": "::1:²"})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"offsets.topic.compression.codec": "9"}, "must be at most 4"),
        ({"offsets.topic.compression.codec": "-1"}, "must be at least 0"),
        ({"broker.id": "-2"}, "must be at least -1"),
        ({"log.cleaner.threads": "0"}, "must be at least 1"),
        (
            {"log.cleaner.threads": "200"},
            "log.cleaner.dedupe.buffer.size = 134217728: must be at least 1048576 for each of log.cleaner.threads",
        ),
        ({"max.connections.per.ip": "0"}, "no client could connect without max.connections.per.ip.overrides"),
        ({"log.cleaner.dedupe.buffer.size": "1048575"}, "must be at least 1048576 for each of log.cleaner.threads = 1"),
    ],
)
def test_what_kafka_refuses_at_its_start_is_refused(values: dict[str, str], complaint: str) -> None:
    """`CompressionType.forId` and `KafkaConfig.validateValues`: no offset could be committed, no log be compacted."""
    assert complaint in refusal(values)


@pytest.mark.parametrize("other", ["replica.socket.timeout.ms", "replica.lag.time.max.ms"])
def test_a_fetch_may_not_wait_longer_than_its_answer_is_waited_for_or_the_isr_allows(other: str) -> None:
    """Kafka refuses both: such a follower would never be in sync for long."""
    assert BrokerSettings.from_properties({other: "700", "replica.fetch.wait.max.ms": "700"})
    assert f"replica.fetch.wait.max.ms = 701: over {other} = 700" in refusal({other: "700", "replica.fetch.wait.max.ms": "701"})


@pytest.mark.parametrize("url", ["http://[::1:8081", "http://registry:99999", "http://registry:http", "http://:8081", "registry:8081", ""])
def test_a_registry_at_no_address_is_refused_with_its_line(url: str) -> None:
    """A bracket that was not closed ended in a traceback; a port beyond 65535 did when the registry was asked, at a produce."""
    with pytest.raises(ConfigurationError, match=r"^a\.properties:1: .*'" + re.escape(url) + "' is not http://host:port"):
        BrokerSettings.from_properties(properties.parse(f"confluent.schema.registry.url=http://registry:8081,{url}", "a.properties"))


def test_the_algorithm_that_compares_names_is_taken_as_java_calls_it() -> None:
    """Kafka hands it to Java, whose own name is HTTPS and which takes it in any letters."""
    assert BrokerSettings.from_properties({"ssl.endpoint.identification.algorithm": "HTTPS"}).ssl_endpoint_identification_algorithm


def test_what_is_dynamic_changes_in_a_new_object_and_the_rest_is_refused() -> None:
    """KIP-226: a cluster-wide setting can be changed for one broker as well, a read-only one for none."""
    before = BrokerSettings.from_properties({"log.segment.bytes": "1000"})
    after = before.with_changes({"log.segment.bytes": "2000"}, cluster_wide=True)
    assert (before.log_segment_bytes, after.log_segment_bytes) == (1000, 2000)
    assert after.given == before.given
    rate = "follower.replication.throttled.rate"  # Kafka's DynamicConfigChangeTest sets it for all
    assert before.with_changes({rate: "5"}, cluster_wide=True).follower_replication_throttled_rate == 5
    with pytest.raises(ConfigurationError, match=r"broker\.id is read-only"):
        before.with_changes({"broker.id": "3"})
    with pytest.raises(ConfigurationError, match="must be at least 14"):
        before.with_changes({"log.segment.bytes": "1"})
    with pytest.raises(ConfigurationError, match="is not address:count"):
        before.with_changes({"max.connections.per.ip.overrides": "x"})


def test_every_setting_stands_in_one_part_of_the_page() -> None:
    names = [name for part in PARTS.values() for name in part.definitions()]
    assert sorted(names) == sorted(BrokerSettings.definitions())
    assert len(names) == len(set(names))
