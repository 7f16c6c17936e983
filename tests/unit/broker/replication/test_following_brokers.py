"""Following between real brokers, over their sockets: what leaves one log by sendfile arrives in the other byte by byte."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from tests.waiting import until

from ottla.testing import EmbeddedCluster
from ottla.testing.certificates import Authority

SMALL = {
    "message.max.bytes": "4000000",
    "replica.fetch.max.bytes": "2000",
    "replica.fetch.response.max.bytes": "20000",
    "log.segment.bytes": "5000000",
}


def logs(cluster: EmbeddedCluster, topic: str, partitions: int) -> list[dict[str, bytes]]:
    """What each broker has: the segments of every partition of the topic, by their names."""
    return [
        {
            f"{index}/{path.name}": path.read_bytes()
            for index in range(partitions)
            for path in (cluster.data_directory / f"broker-{broker_id}" / f"{topic}-{index}").glob("*.log")
        }
        for broker_id in cluster.running_brokers
    ]


def all_equal(cluster: EmbeddedCluster, topic: str, partitions: int) -> bool:
    first, *others = logs(cluster, topic, partitions)
    return any(first.values()) and all(other == first for other in others)


def publish(cluster: EmbeddedCluster, topic: str, partitions: int, sizes: list[int], **configuration: str) -> None:
    """Messages of these sizes to each partition, each acknowledged by all replicas."""
    failed: list[str] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "message.max.bytes": 4_000_000, "log_level": 0, **configuration}
    )
    for partition in range(partitions):
        for number, size in enumerate(sizes):
            producer.produce(
                topic,
                bytes([number]) * size,
                partition=partition,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed


@pytest.mark.long
def test_batches_of_any_size_in_many_partitions_arrive_as_they_are() -> None:
    """One batch may exceed what a follower asks for per partition and per fetch (KIP-74)."""
    with EmbeddedCluster(brokers=3, settings=SMALL) as cluster:
        cluster.create_topic("clicks", partitions=12, replication_factor=3)
        publish(cluster, "clicks", 12, [10, 1000, 3_000_000, 0, 50_000, 1, 2500])
        until(lambda: all_equal(cluster, "clicks", 12))


def test_brokers_follow_each_other_by_mutual_tls(tmp_path: Path) -> None:
    keystore, truststore = Authority("the brokers").write(tmp_path, "localhost")
    tls = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.internal.ssl.keystore.type": "PEM",
        "listener.name.internal.ssl.keystore.location": keystore,
        "listener.name.internal.ssl.truststore.type": "PEM",
        "listener.name.internal.ssl.truststore.location": truststore,
        "listener.name.internal.ssl.client.auth": "required",
    }
    with EmbeddedCluster(brokers=2, settings={**SMALL, **tls}) as cluster:
        cluster.create_topic("clicks", partitions=3, replication_factor=2)
        publish(cluster, "clicks", 3, [10, 100_000, 3_000_000, 5])
        until(lambda: all_equal(cluster, "clicks", 3))


def test_a_replica_that_was_away_catches_up_and_comes_back_into_the_isr() -> None:
    with EmbeddedCluster(brokers=3, settings={**SMALL, "num.replica.fetchers": "2"}) as cluster:
        cluster.create_topic("clicks", partitions=6, replication_factor=3)
        publish(cluster, "clicks", 6, [100] * 5)
        cluster.kill(2)
        until(lambda: all(2 not in cluster.isr("clicks", index) for index in range(6)))
        publish(cluster, "clicks", 6, [5000] * 50, **{"linger.ms": "0", "batch.num.messages": "3"})
        cluster.start_broker(2)
        until(lambda: all(cluster.isr("clicks", index) == [1, 2, 3] for index in range(6)))
        until(lambda: all_equal(cluster, "clicks", 6))
