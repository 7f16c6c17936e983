"""The embedded cluster: a broker in the test's own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ConfigurationError
from ottla.testing import EmbeddedCluster
from ottla.testing.certificates import Authority
from ottla.testing.cluster import ClusterError


def publish(cluster: EmbeddedCluster, topic: str, value: bytes, timestamp: int = 0) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, value, timestamp=timestamp)
    assert producer.flush(120) == 0


def consumer_of(cluster: EmbeddedCluster) -> Any:
    """One that commits nothing: to close it does not wait for a coordinator."""
    import confluent_kafka

    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    return closing(confluent_kafka.Consumer(settings))


def read_one(cluster: EmbeddedCluster, topic: str) -> bytes | None:
    import confluent_kafka

    with consumer_of(cluster) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(120)
        assert message is not None and message.error() is None
        value: bytes | None = message.value()
        return value


def earliest(cluster: EmbeddedCluster, topic: str) -> int:
    import confluent_kafka

    with consumer_of(cluster) as consumer:
        return int(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=120)[0])


def test_a_message_goes_in_and_comes_out() -> None:
    with EmbeddedCluster(topics={"clicks": 2}) as cluster:
        publish(cluster, "clicks-too", b"hello")  # created by being used
        assert read_one(cluster, "clicks-too") == b"hello"
        assert (cluster.data_directory / "log" / "clicks-1").is_dir()


def test_data_and_address_outlive_a_restart() -> None:
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        before = cluster.bootstrap_servers
        publish(cluster, "clicks", b"hello")
        cluster.restart()
        assert cluster.bootstrap_servers == before
        assert read_one(cluster, "clicks") == b"hello"


def test_listeners_of_ones_own_keep_their_ports_over_a_restart() -> None:
    """Each took another free one, and the clients of before found no broker."""
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0", "coordination.listener": "127.0.0.1:0"}
    settings = {**listeners, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT"}
    with EmbeddedCluster(settings=settings) as cluster:
        before = cluster.bootstrap_servers, cluster.address("SECOND"), cluster.zookeeper_address
        cluster.restart()
        assert (cluster.bootstrap_servers, cluster.address("SECOND"), cluster.zookeeper_address) == before


def test_listeners_with_a_host_of_their_own_are_reached_there() -> None:
    """As at the address of a bridge to containers. 127.0.0.1 was told, where nothing listened, and `topics` took a minute to fail."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.2:0,SECOND://127.0.0.3:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
    }
    with EmbeddedCluster(settings=settings) as cluster:
        for address in (cluster.bootstrap_servers, cluster.address("SECOND")):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 5).close()


@pytest.fixture
def tls_settings(tmp_path: Path) -> dict[str, str]:
    keystore, truststore = Authority("tests").write(tmp_path, "broker")
    kinds = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    return {**kinds, "ssl.keystore.location": keystore, "ssl.truststore.location": truststore}


def test_topics_of_brokers_whose_first_listener_has_tls_are_created_through_another(tls_settings: dict[str, str]) -> None:
    """It was tried through the first, for a minute."""
    listeners = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    with EmbeddedCluster(settings={"listeners": listeners, **tls_settings}, topics={"clicks": 1}) as cluster:
        assert cluster.leader("clicks") == 1
        assert cluster.bootstrap_servers == cluster.address("SSL")


def test_topics_of_brokers_with_nothing_but_tls_are_refused_at_once(tls_settings: dict[str, str]) -> None:
    settings = {"listeners": "SSL://127.0.0.1:0", "inter.broker.listener.name": "SSL", **tls_settings}
    with EmbeddedCluster(settings=settings) as cluster, pytest.raises(ClusterError, match=r"SSL://.* one without TLS"):
        cluster.create_topic("clicks")


def test_nothing_is_left_of_a_temporary_cluster() -> None:
    before = set(threading.enumerate())
    with EmbeddedCluster() as cluster:
        directory, address = cluster.data_directory, cluster.bootstrap_servers
        assert directory.is_dir()
    assert not directory.exists()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5)


def test_nothing_is_left_of_a_temporary_cluster_that_is_never_stopped() -> None:
    """As in a notebook, or when a script fails. Each such run left a directory behind. A child that exits before takes it from no one."""
    code = """
import os, sys
from ottla.testing import EmbeddedCluster
cluster = EmbeddedCluster().start()
if not (child := os.fork()):
    sys.exit()
os.waitpid(child, 0)
print(cluster.data_directory, cluster.data_directory.is_dir())
raise KeyError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    directory, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(directory).exists()
    assert done.stderr.endswith("\nKeyError\n")


def test_a_given_directory_is_kept_and_used_again(tmp_path: Path) -> None:
    with EmbeddedCluster(topics={"clicks": 1}, data_directory=tmp_path) as cluster:
        publish(cluster, "clicks", b"hello")
    with EmbeddedCluster(topics={"clicks": 1}, data_directory=tmp_path) as cluster:
        assert read_one(cluster, "clicks") == b"hello"


def test_a_directory_stays_where_it_is_when_the_test_goes_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker went with it: its log directory failed, and no topic could be made."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster(data_directory="data") as cluster:
        monkeypatch.chdir(tmp_path / "elsewhere")
        publish(cluster, cluster.create_topic("clicks"), b"hello")
    assert (tmp_path / "data" / "log" / "clicks-0" / "00000000000000000000.log").stat().st_size


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_logs_lie_where_a_setting_says(tmp_path: Path, name: str) -> None:
    with EmbeddedCluster(topics={"clicks": 1}, data_directory=tmp_path / "data", settings={name: str(tmp_path / "logs")}):
        assert (tmp_path / "logs" / "clicks-0").is_dir()


def test_a_directory_whose_path_has_a_comma_is_refused(tmp_path: Path) -> None:
    """Logs lay in two others, one of them in the working directory, as `log.dirs` is a list."""
    with pytest.raises(ConfigurationError, match=r"clicks, 2: its path has a comma"):
        EmbeddedCluster(data_directory=tmp_path / "clicks, 2")


def test_settings_are_the_brokers_under_kafkas_names() -> None:
    import confluent_kafka

    refused: list[int] = []
    with EmbeddedCluster(settings={"message.max.bytes": "1000"}, topics={"small": 1}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("small", b"x" * 5000, on_delivery=lambda error, _: refused.append(error.code() if error else 0))
        producer.flush(120)
    assert refused == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_record_of_1970_stays_unless_a_test_asks_for_retention() -> None:
    settings = {"log.retention.check.interval.ms": "50"}
    with EmbeddedCluster(topics={"kept": 1}, settings=settings) as cluster:
        cluster.create_topic("retained", settings={"retention.ms": "3600000"})
        for topic in ("kept", "retained"):
            publish(cluster, topic, b"old", timestamp=1_000)
        deadline = time.monotonic() + 60
        while earliest(cluster, "retained") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert earliest(cluster, "kept") == 0


def test_a_wrong_setting_is_raised_in_the_test_and_leaves_nothing() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError, match=r"log\.segment\.bytes"):
        EmbeddedCluster(settings={"log.segment.byte": "5"}).start()
    assert set(threading.enumerate()) <= before


def test_a_setting_that_is_no_text_is_refused_by_name() -> None:
    wrong: Any = {"num.partitions": 4}
    with pytest.raises(ConfigurationError, match=r"num\.partitions = 4: a setting is a text"):
        EmbeddedCluster(settings=wrong)


def test_an_id_for_all_brokers_is_refused() -> None:
    """One broker had another address after a restart, and of two the second waited for the first to go."""
    with pytest.raises(ConfigurationError, match=r"broker\.id = 7: the brokers of an embedded cluster are 1 to 2"):
        EmbeddedCluster(brokers=2, settings={"broker.id": "7"})


def test_a_topic_of_a_cluster_whose_last_broker_was_killed_is_refused_at_once() -> None:
    """As by the fixture `ottla_topic` after a test that killed the run's broker. It took a minute, and no controller was found."""
    with EmbeddedCluster() as cluster:
        cluster.kill(1)
        with pytest.raises(ClusterError, match=r"no broker is running: start_broker\(1\)"):
            cluster.create_topic("clicks")
        cluster.start_broker(1)
        cluster.create_topic("clicks")


def test_a_listener_and_a_broker_that_the_cluster_has_not_are_refused_by_name() -> None:
    """It was a KeyError, and that the log directory is in use, by the only broker there is."""
    with EmbeddedCluster() as cluster:
        with pytest.raises(ClusterError, match="no listener SSL; there are: PLAINTEXT"):
            cluster.address("SSL")
        with pytest.raises(ClusterError, match="no broker 2: the brokers of this cluster are 1 to 1"):
            cluster.start_broker(2)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_leaves_the_block_takes_nothing_away() -> None:
    """It removed the directory of the brokers, which run in its parent."""
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        child = os.fork()
        if not child:
            try:
                cluster.stop()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        publish(cluster, "clicks", b"hello")
        assert cluster.data_directory.is_dir()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_broker_is_killed_and_started_again_whatever_forked_children_do() -> None:
    """As workers of multiprocessing, which by default are forked. They kept a copy of each socket and lock that the brokers have.

    A killed broker's clients stayed connected, and to start it again its port was taken, and its log directory in use.
    """
    with EmbeddedCluster(topics={"clicks": 1}, services=["schema-registry"]) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        client = socket.create_connection((host, int(port)), 5)
        publish(cluster, "clicks", b"hello")  # an answer that came later than the client was accepted
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        try:
            cluster.kill(1)
            with client:
                client.settimeout(5)
                assert client.recv(1) == b""
            cluster.start_broker(1)
            cluster.restart()
            assert read_one(cluster, "clicks") == b"hello"
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


def test_a_service_that_fails_when_it_is_stopped_keeps_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers ran on, without their directory, and the cluster could be neither stopped nor started again."""
    from ottla.schema_registry.server import SchemaRegistry

    stop = SchemaRegistry.stop

    async def failing(self: SchemaRegistry) -> None:
        await stop(self)
        raise RuntimeError("as any error")

    monkeypatch.setattr(SchemaRegistry, "stop", failing)
    before = set(threading.enumerate())
    cluster = EmbeddedCluster(services=["schema-registry"]).start()
    with pytest.raises(RuntimeError, match="as any error"):
        cluster.stop()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClusterError, match="not running"):
        _ = cluster.bootstrap_servers
    cluster.stop()


def test_an_address_before_the_start_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ClusterError, match="`with`"):
        _ = EmbeddedCluster().bootstrap_servers
