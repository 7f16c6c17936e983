"""Section 4 of the paper, how Kafka is used: the mirror, the audit, messages with schemas, and brokers that are taken out for a while.

The load into Hadoop, Spark here, is shown in `tests/spark`: it needs a Java.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator

import fastavro
import pytest
from tests.waiting import until

from ottla.client import Producer, ProducerSettings, SimpleConsumer
from ottla.config.mirror import MirrorSettings
from ottla.lifecycle import LoopThread
from ottla.mirror_maker.server import MirrorMaker
from ottla.record.audit_records import decode
from ottla.testing.cluster import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"audit.enable": "true", "audit.report.interval.ms": "200"}
    with EmbeddedCluster(settings=settings, services=["audit-counter", "schema-registry"]) as running:
        yield running


@pytest.fixture(scope="module")
def reader(cluster: EmbeddedCluster) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(cluster.bootstrap_servers) as reading:
        yield reading


def values(reader: SimpleConsumer, topic: str, partition: int = 0) -> list[bytes | None]:
    return [message.value for message in reader.fetch(topic, partition, 0)]


def test_a_cluster_beside_the_warehouse_pulls_from_those_beside_the_services(cluster: EmbeddedCluster) -> None:
    """4 (V1): embedded consumers in that cluster read one of each datacenter; what is a message there is the same message here."""
    with EmbeddedCluster() as second, EmbeddedCluster() as warehouse, SimpleConsumer(warehouse.bootstrap_servers) as offline:
        sources, topic = {"east": cluster, "west": second}, "page-views"
        settings = {
            "clusters": "east, west, offline",
            "offline.bootstrap.servers": warehouse.bootstrap_servers,
            "replication.factor": "1",
            "rpc.listener": "127.0.0.1:0",
        }
        for name, source in sources.items():
            source.create_topic(topic)
            with Producer(ProducerSettings(broker_list=source.bootstrap_servers)) as producer:
                producer.send(topic, [name.encode(), b"second"], key=b"alice", timestamp_ms=1_300_000_000_000)
            settings |= {f"{name}.bootstrap.servers": source.bootstrap_servers}
            settings |= {f"{name}->offline.enabled": "true", f"{name}->offline.topics": topic}
        mirror, thread = MirrorMaker(MirrorSettings.from_properties(settings)), LoopThread("mirror")
        try:
            thread.call(mirror.start(), 120)
            for name in sources:
                until(lambda: warehouse.leader(f"{name}.{topic}") > 0, "the mirror makes the topic")  # noqa: B023
                until(lambda: len(values(offline, f"{name}.{topic}")) == 2, "and copies its messages")  # noqa: B023
                found = [message[3:6] for message in offline.fetch(f"{name}.{topic}", 0, 0)]
                assert found == [(1_300_000_000_000, b"alice", value) for value in (name.encode(), b"second")]
        finally:
            thread.call(mirror.stop(), 120)
            thread.close(120)


def test_a_producer_publishes_how_many_messages_it_sent_in_each_window_of_time(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """4 (V2): to a separate topic, with the host that it runs on; messages carry the time at which they were made."""
    topic = cluster.create_topic("counted")
    minute_ms = time.time_ns() // 60_000_000_000 * 60_000
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), audit=True) as producer:
        for window, count in ((minute_ms - 60_000, 3), (minute_ms, 2)):
            producer.send(topic, [b"message"] * count, timestamp_ms=window + 1_000)

    def counts() -> Counter[int]:
        events = [decode(message.value or b"") for partition in range(8) for message in reader.fetch("__audit", partition, 0)]
        ours = [event for event in events if event.topic == topic and event.tier == "producer"]
        assert all(event.host == socket.gethostname() for event in ours)
        found: Counter[int] = Counter()
        for event in ours:
            found += {start: tally.acknowledged for start, tally in event.windows.items()}
        return found

    assert counts() == {minute_ms - 60_000: 3, minute_ms: 2}


def test_a_message_carries_its_time_and_the_server_that_made_it(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """4 (V2): as it is generated."""
    topic = cluster.create_topic("stamped")
    before_ms = time.time_ns() // 1_000_000
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), audit={"ottla.audit.host.header": "server"}) as producer:
        producer.send(topic, b"message")
    (message,) = reader.fetch(topic, 0, 0)
    assert before_ms <= message.timestamp <= time.time_ns() // 1_000_000
    assert message.headers == (("server", socket.gethostname().encode()),)
    until(lambda: verdict(cluster, topic) == "COMPLETE", "it is counted as any other")


def test_the_counts_of_producers_and_of_what_came_are_compared(cluster: EmbeddedCluster) -> None:
    """4 (V2): so it is seen what got lost on the way. 5: a producer that waits for no acknowledgement cannot know.

    The broker refuses a message that is too large for its topic, and gives no answer to one who wanted none.
    """
    whole, torn = (cluster.create_topic(name, settings={"max.message.bytes": "1000"}) for name in ("whole", "torn"))
    settings = ProducerSettings(broker_list=cluster.bootstrap_servers, request_required_acks=0, enable_idempotence=False)
    with Producer(settings, audit=True) as producer:
        for topic, size in ((whole, 100), (torn, 2_000)):
            producer.send(topic, b"small", timestamp_ms=time.time_ns() // 1_000_000)
            producer.send(topic, bytes(size), timestamp_ms=time.time_ns() // 1_000_000)
    until(lambda: (verdict(cluster, whole), verdict(cluster, torn)) == ("COMPLETE", "LOSS"), "both are judged")


def verdict(cluster: EmbeddedCluster, topic: str) -> str:
    now_ms = time.time_ns() // 1_000_000
    url = f"{cluster.audit_url}/v1/topics/{topic}/verify?from={now_ms - 3_600_000}&to={now_ms + 3_600_000}&tiers=producer,broker"
    with urllib.request.urlopen(url, timeout=120) as answer:
        found: str = json.load(answer)["verdict"]
    return found


CLICK = {"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]}


def asked(cluster: EmbeddedCluster, path: str, schema: object = None) -> dict[str, object]:
    body = None if schema is None else json.dumps({"schema": json.dumps(schema)}).encode()
    request = urllib.request.Request(cluster.schema_registry_url + path, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_a_message_is_the_id_of_its_schema_and_bytes(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """4 (V4): Avro, and a registry from which a consumer gets the schema of an id. It asks once: what an id stands for never changes.

    Not even when the schema was deleted for good: another one gets another id. The answer says so, for caches between the two.
    """
    topic = cluster.create_topic("clicks")
    schema_id = asked(cluster, f"/subjects/{topic}-value/versions", CLICK)["id"]
    body = io.BytesIO()
    fastavro.schemaless_writer(body, CLICK, {"page": "/jobs"})
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer:
        producer.send(topic, struct.pack(">bi", 0, schema_id) + body.getvalue())
    (value,) = values(reader, topic)
    _, found = struct.unpack_from(">bi", value or b"")
    schema = json.loads(str(asked(cluster, f"/schemas/ids/{found}")["schema"]))
    assert fastavro.schemaless_reader(io.BytesIO((value or b"")[5:]), schema, None) == {"page": "/jobs"}
    assert asked(cluster, f"/subjects/{topic}-value/versions", CLICK)["id"] == schema_id, "the same schema has the same id"
    with urllib.request.urlopen(f"{cluster.schema_registry_url}/schemas/ids/{found}/schema", timeout=120) as answer:
        assert "immutable" in answer.headers["Cache-Control"]
    for query in ("", "?permanent=true"):
        request = urllib.request.Request(f"{cluster.schema_registry_url}/subjects/{topic}-value{query}", method="DELETE")
        urllib.request.urlopen(request, timeout=120).close()
    assert asked(cluster, f"/subjects/{topic}-value/versions", {**CLICK, "name": "Visit"})["id"] != schema_id


def test_a_schema_that_readers_could_not_follow_is_refused(cluster: EmbeddedCluster) -> None:
    """4 (V4): the schema is a contract between producers and consumers, and the registry sees to it."""
    path = "/subjects/contract-value/versions"
    asked(cluster, path, CLICK)
    with_default = {"name": "referrer", "type": "string", "default": ""}
    asked(cluster, path, {**CLICK, "fields": [*CLICK["fields"], with_default]})
    without = {"name": "user", "type": "long"}
    with pytest.raises(urllib.error.HTTPError, match="409"):
        asked(cluster, path, {**CLICK, "fields": [*CLICK["fields"], without]})


def test_consumption_moves_when_brokers_are_stopped_and_started_for_maintenance() -> None:
    """4: operators take one broker after the other out; consumers are redirected by themselves, and what is replicated stays there."""
    with EmbeddedCluster(brokers=3) as cluster:
        topic = cluster.create_topic("maintained", partitions=3, replication_factor=3)
        settings = ProducerSettings(broker_list=cluster.bootstrap_servers)
        with Producer(settings) as producer, SimpleConsumer(cluster.bootstrap_servers) as reader:
            for broker in (1, 2, 3):
                until(lambda: all(len(cluster.isr(topic, partition)) == 3 for partition in range(3)), "all are in sync")
                cluster.stop_broker(broker)
                for partition in range(3):
                    producer.send(topic, b"while broker %d is away" % broker, partition=partition)
                    assert values(reader, topic, partition)[-1] == b"while broker %d is away" % broker
                cluster.start_broker(broker)
