"""Brokers as Prometheus sees them: what clients did, under our names and under Kafka's."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer
from tests.unit.metrics.collectors import OPENMETRICS, parsed, samples
from tests.unit.metrics.test_kafka_view import STRIMZI

from ottla.metrics.table import BROKER_METRICS
from ottla.testing import EmbeddedCluster

SETTINGS: Final = {"http.listener": "127.0.0.1:0", "metrics.partition.enabled": "true"}
# There only on a broker that has such a thing, or once there was something to be told of.
NOT_EVERYWHERE: Final = {
    "ottla_tls_certificate_expiry_timestamp_seconds",
    "ottla_broker_requests_failed_total",
    "ottla_replica_fetcher_lag_messages",
    "ottla_transactions",
    "ottla_group_lag_seconds",
    "ottla_zookeeper_session_state",
    "ottla_zookeeper_session_expirations_total",
    "ottla_zookeeper_disconnections_total",
    "ottla_zookeeper_request_seconds",
}
pytestmark = pytest.mark.usefixtures("patient")
CONSUMER: Final = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
MESSAGES: Final = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker, to which a hundred messages were written and from which a group has read them."""
    with EmbeddedCluster(settings=SETTINGS) as cluster:
        cluster.create_topic("clicks", partitions=2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(MESSAGES):
            producer.produce("clicks", b"x" * 100, partition=number % 2)
        assert producer.flush(120) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "loaders",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["clicks"])
        read = 0
        while read < MESSAGES:
            found = consumer.consume(MESSAGES - read, timeout=120)
            assert found, "nothing came for two minutes"
            read += len(found)
        consumer.commit(asynchronous=False)
        consumer.pause(consumer.assignment())  # or it fetches while a scrape is made
        yield cluster
        consumer.close()


def scrape(cluster: EmbeddedCluster, path: str = "/metrics", accept: str = "") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", cluster._broker(1).http_port, timeout=120)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


def test_what_clients_did_is_told_exactly(cluster: EmbeddedCluster) -> None:
    found = samples(scrape(cluster))

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("ottla_broker_messages_received_total", topic="clicks") == MESSAGES
    size = sum(path.stat().st_size for path in Path(cluster.data_directory).rglob("clicks-*/*.log"))
    assert value("ottla_broker_received_bytes_total", topic="clicks") == size
    assert value("ottla_broker_sent_bytes_total", topic="clicks") >= size
    assert value("ottla_log_end_offset", topic="clicks", partition="0") == MESSAGES / 2
    assert (
        value("ottla_log_size_bytes", topic="clicks", partition="0") + value("ottla_log_size_bytes", topic="clicks", partition="1") == size
    )
    for api in ("Produce", "Fetch", "Metadata", "JoinGroup", "OffsetCommit", "ApiVersions"):
        requests = [count for (name, labels), count in found.items() if name == "ottla_requests_total" and ("api", api) in labels]
        counted = sum(requests)
        assert counted > 0
        for stage in ("total", "queue", "local", "remote", "send"):
            # A request is counted when it is taken on and its time when it is answered: one may be waiting, or be answered in between.
            assert abs(counted - value("ottla_request_seconds_count", api=api, stage=stage)) <= 2
    assert value("ottla_connections", listener="PLAINTEXT") >= 2
    assert value("ottla_network_received_bytes_total", listener="PLAINTEXT") > size
    assert value("ottla_network_sent_bytes_total", listener="PLAINTEXT") > size
    assert 0 <= value("ottla_event_loop_busy_ratio") <= 1
    assert value("process_resident_memory_bytes") > 10_000_000
    assert value("python_gc_collections_total", generation="0") > 0


@pytest.mark.parametrize("path", ["/metrics", "/metrics/kafka"])
def test_both_formats_say_the_same(cluster: EmbeddedCluster, path: str) -> None:
    text, openmetrics = scrape(cluster, path), scrape(cluster, path, OPENMETRICS)
    assert openmetrics.endswith("# EOF\n") and "# EOF" not in text
    missing = {name for name, _ in samples(text)} ^ {name for name, _ in samples(openmetrics)}
    # The first scrape of all has none before it.
    assert not {name for name in missing if not name.startswith("ottla_scrape_")}


def test_no_metric_is_told_that_is_not_in_the_table_and_every_one_that_is_there_is_told(cluster: EmbeddedCluster) -> None:
    scrape(cluster)
    told = {family.removesuffix("_total") for family in parsed(scrape(cluster, accept=OPENMETRICS))}
    table = {metric.name.removesuffix("_total").removesuffix("_info") for metric in BROKER_METRICS}
    assert not told - table
    assert not table - told - {metric.removesuffix("_total") for metric in NOT_EVERYWHERE}


def test_kafkas_dashboards_find_what_they_ask_for(cluster: EmbeddedCluster) -> None:
    text = scrape(cluster, "/metrics/kafka")
    assert not STRIMZI - {name for name, _ in samples(text)}
    found = samples(text)
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert found[name, frozenset({("topic", "clicks")})] == MESSAGES
    assert found["kafka_server_replicamanager_underreplicatedpartitions", frozenset()] == 0
    assert found["kafka_controller_kafkacontroller_activecontrollercount", frozenset()] == 1
    p99 = found["kafka_network_requestmetrics_totaltimems", frozenset({("request", "Produce"), ("quantile", "0.99")})]
    assert 0 < p99 < 30_000
