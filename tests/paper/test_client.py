"""The API sections of the paper (Kreps, Narkhede, Rao: "Kafka: a Distributed Messaging System for Log Processing", NetDB 2011).

Section 3 has the sample code of producer and consumer, 3.1 the state of consumers, 3.2 the registries, 3.3 the guarantees. A consumer is
`ottla.client`, ZooKeeper is the listener of the brokers' embedded twin, and kazoo looks at what is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

import pytest
from kazoo.client import KazooClient
from tests.waiting import until

from ottla.client import BlackList, ConsumerConnector, ConsumerSettings, Message, MessageStream, Producer, ProducerSettings, SimpleConsumer
from ottla.client.partitioners import murmur2_partition
from ottla.testing.cluster import EmbeddedCluster

Join = Callable[..., tuple[ConsumerConnector, list[MessageStream]]]


@pytest.fixture
def join(zookeeper: str) -> Iterator[Join]:
    """A consumer of a group, and its streams of a topic."""
    with ExitStack() as stack:

        def joined(group: str, topic: str, streams: int = 1, **more: object) -> tuple[ConsumerConnector, list[MessageStream]]:
            settings = ConsumerSettings(
                **{  # type: ignore[arg-type]
                    "group_id": group,
                    "zookeeper_connect": zookeeper,
                    "auto_offset_reset": "smallest",
                    "rebalance_backoff_ms": 100,
                    "fetch_wait_max_ms": 20,
                    "consumer_timeout_ms": 120_000,
                    **more,
                }
            )
            connector = stack.enter_context(ConsumerConnector(settings))
            return connector, connector.create_message_streams({topic: streams})[topic]

        yield joined


def take(stream: MessageStream, count: int) -> list[Message]:
    messages = iter(stream)
    return [next(messages) for _ in range(count)]


def test_a_producer_sends_a_set_of_messages_to_a_topic_in_a_single_request(cluster: EmbeddedCluster, producer: Producer) -> None:
    """3: one publish request may carry a set of messages; one batch holds them all."""
    topic = cluster.create_topic("sets")
    producer.send(topic, [b"test message str"] * 3)
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        messages = consumer.fetch(topic, 0, 0)
    assert [message.value for message in messages] == [b"test message str"] * 3
    assert len(list(messages.batches())) == 1


def test_a_message_is_a_payload_of_bytes_and_the_user_chooses_how_it_is_encoded(cluster: EmbeddedCluster) -> None:
    """3: a message is bytes and nothing else; how they are made from data is the choice of the user."""
    topic = cluster.create_topic("payloads")
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), encoder=lambda value: json.dumps(value).encode()) as producer:
        producer.send(topic, {"user": 7})
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        (message,) = consumer.fetch(topic, 0, 0)
    assert json.loads(message.value or b"") == {"user": 7}


def test_messages_are_distributed_into_the_streams_of_a_consumer(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3 (K2): the messages of a topic are spread evenly over the streams that a consumer asks for."""
    topic = cluster.create_topic("sub-streams", partitions=4)
    for partition in range(4):
        producer.send(topic, [b"%d" % number for number in range(10)], partition=partition)
    _, streams = join("even", topic, 2)
    found = [take(stream, 20) for stream in streams]
    assert [{message.partition for message in messages} for messages in found] == [{0, 1}, {2, 3}]


def test_the_iterator_of_a_stream_never_ends_and_waits_for_messages(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3: the iterator of a stream has no end: where there is nothing to consume it waits for the next message."""
    topic = cluster.create_topic("endless")
    _, (stream,) = join("endless", topic)
    found: list[bytes | None] = []
    reader = threading.Thread(target=lambda: found.extend(message.value for message in islice(stream, 2)), daemon=True)
    reader.start()
    producer.send(topic, b"first")
    until(lambda: found)
    reader.join(0.2)
    assert reader.is_alive()
    producer.send(topic, b"second")
    reader.join(120)
    assert found == [b"first", b"second"]


def test_consumers_of_a_group_share_one_copy_and_each_group_has_its_own(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3.2: within a group one consumer gets a message, and each group gets all of them, without a word between groups."""
    topic = cluster.create_topic("shared", partitions=2)
    one, (first,) = join("shared", topic)
    two, (second,) = join("shared", topic)
    until(lambda: len(one.owned) == len(two.owned) == 1)
    _, (alone,) = join("alone", topic)
    for partition in range(2):
        producer.send(topic, [b"%d" % partition] * 5, partition=partition)
    shares = [{(message.partition, message.offset) for message in take(stream, 5)} for stream in (first, second)]
    assert not shares[0] & shares[1]
    assert len(shares[0] | shares[1]) == 10
    assert {(message.partition, message.offset) for message in take(alone, 10)} == shares[0] | shares[1]


def test_a_partition_is_chosen_at_random_or_by_a_key_and_a_function(cluster: EmbeddedCluster) -> None:
    """3.2 (P3): a message goes to a partition by chance, or to the one that its key and the partitioner say."""
    topic = cluster.create_topic("chosen", partitions=4)
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer:
        at_random = {producer.send(topic, b"x").result()[0][0].partition for _ in range(60)}
        by_key = [producer.send(topic, b"x", key=key).result()[0][0].partition for key in (b"alice", b"bob", b"alice")]
    assert len(at_random) > 1
    assert by_key == [murmur2_partition(key, 4) for key in (b"alice", b"bob", b"alice")]
    with Producer(
        ProducerSettings(broker_list=cluster.bootstrap_servers), partitioner=lambda key, count: int(key or b"0") % count
    ) as producer:
        assert [producer.send(topic, b"x", key=b"%d" % key).result()[0][0].partition for key in (5, 7)] == [1, 3]


def test_the_registries_are_znodes_and_only_offsets_stay(
    cluster: EmbeddedCluster, producer: Producer, join: Join, look: KazooClient
) -> None:
    """3.2 (K3): the consumer registry has each consumer's topics, the ownership registry the consumer of each partition, the offset
    registry the offset of the last consumed message. "The paths created in Zookeeper are ephemeral for the broker registry, the
    consumer registry and the ownership registry, and persistent for the offset registry"."""
    topic = cluster.create_topic("registered")
    producer.send(topic, [b"a", b"b"])
    connector, (stream,) = join("registry", topic)
    take(stream, 2)
    connector.commit_offsets()
    base = "/consumers/registry"
    data, consumer = look.get(f"{base}/ids/{connector.consumer_id}")
    assert json.loads(data)["subscription"] == {topic: 1}
    owner_id, owner = look.get(f"{base}/owners/{topic}/0")
    assert owner_id.decode() == f"{connector.consumer_id}-0"
    offset, stat = look.get(f"{base}/offsets/{topic}/0")
    assert offset == b"2"
    broker = look.get("/brokers/ids/1")[1]
    assert consumer.ephemeralOwner == owner.ephemeralOwner != 0 != broker.ephemeralOwner
    assert stat.ephemeralOwner == 0


PROGRAM = """
import sys
from ottla.client import ConsumerConnector, ConsumerSettings
settings = ConsumerSettings(
    group_id="failing", consumer_id="failing", zookeeper_connect=sys.argv[1], zookeeper_session_timeout_ms=4_000,
    rebalance_backoff_ms=100, auto_offset_reset="smallest",
)
with ConsumerConnector(settings) as connector:
    (stream,) = connector.create_message_streams({sys.argv[2]: 1})[sys.argv[2]]
    for message in stream:
        print(message.partition, flush=True)
"""


def test_what_a_consumer_that_fails_had_is_lost_and_others_take_over(
    cluster: EmbeddedCluster, producer: Producer, join: Join, look: KazooClient, zookeeper: str
) -> None:
    """3.2: what a failed consumer had in the registries of consumers and owners goes with it, and the others are notified and
    rebalance. It is killed by kill -9, with a message in hand; that message is read again."""
    topic = cluster.create_topic("failing", partitions=2)
    for partition in range(2):
        producer.send(topic, b"%d" % partition, partition=partition)
    failing = subprocess.Popen([sys.executable, "-c", PROGRAM, zookeeper, topic], stdout=subprocess.PIPE)
    try:
        assert failing.stdout is not None
        assert {failing.stdout.readline() for _ in range(2)} == {b"0\n", b"1\n"}
        staying, (stream,) = join("failing", topic)
        until(lambda: len(staying.owned) == 1)
        failing.kill()
        until(lambda: len(staying.owned) == 2)
    finally:
        failing.kill()
        failing.wait()
        if failing.stdout is not None:
            failing.stdout.close()
    assert look.get_children("/consumers/failing/ids") == [staying.consumer_id]
    owners = {look.get(f"/consumers/failing/owners/{topic}/{partition}")[0].decode() for partition in range(2)}
    assert owners == {f"{staying.consumer_id}-0"}
    assert take(stream, 1)


def test_a_new_group_begins_at_the_smallest_or_the_largest_offset(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3.2: without an offset a consumer begins at the smallest or the largest one, as a setting says."""
    topic = cluster.create_topic("beginnings")
    producer.send(topic, b"before")
    _, (smallest,) = join("smallest", topic)
    at_the_end, (largest,) = join("largest", topic, auto_offset_reset="largest")
    until(lambda: at_the_end.owned)
    producer.send(topic, b"after")
    assert [message.value for message in take(smallest, 2)] == [b"before", b"after"]
    assert [message.value for message in take(largest, 1)] == [b"after"]


def test_a_consumer_rewinds_to_an_old_offset(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3.1 (K4): a consumer may go back to an old offset on purpose and read from there again."""
    topic = cluster.create_topic("rewound")
    producer.send(topic, [b"a", b"b", b"c"])
    connector, (stream,) = join("rewound", topic)
    assert [message.value for message in take(stream, 3)] == [b"a", b"b", b"c"]
    connector.seek(topic, 0, 1)
    assert [message.value for message in take(stream, 2)] == [b"b", b"c"]


def test_an_acknowledged_offset_stands_for_all_messages_before_it(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3.1: an acknowledged offset stands for all messages before it, and 3.3: a consumer that crashed gets those after it again, and no
    others."""
    topic = cluster.create_topic("acknowledged")
    producer.send(topic, [b"%d" % number for number in range(6)])
    connector, (stream,) = join("acknowledged", topic, auto_commit_enable=False)
    take(stream, 3)
    connector.commit_offsets()
    take(stream, 2)
    connector.shutdown()
    _, (again,) = join("acknowledged", topic)
    assert [message.value for message in take(again, 3)] == [b"3", b"4", b"5"]


def test_messages_of_one_partition_come_in_order(cluster: EmbeddedCluster, producer: Producer, join: Join) -> None:
    """3.3: the messages of one partition come to a consumer in their order."""
    topic = cluster.create_topic("ordered", partitions=3)
    for number in range(30):
        producer.send(topic, b"%d" % number, partition=number % 3)
    _, (stream,) = join("ordered", topic)
    found = take(stream, 30)
    for partition in range(3):
        assert [message.offset for message in found if message.partition == partition] == list(range(10))


def test_a_filter_subscribes_to_all_topics_but_some(cluster: EmbeddedCluster, producer: Producer, zookeeper: str) -> None:
    """0.8's design document, "createMessageStreamsByFilter": a black list takes every topic that does not match it."""
    for name in ("wanted-1", "wanted-2", "unwanted"):
        producer.send(cluster.create_topic(f"filtered-{name}"), name.encode())
    settings = ConsumerSettings(group_id="filtered", zookeeper_connect=zookeeper, auto_offset_reset="smallest", consumer_timeout_ms=120_000)
    with ConsumerConnector(settings) as connector:
        (stream,) = connector.create_message_streams_by_filter(BlackList("(?:[^f]|f[^i]).*,filtered-un.*"))
        assert {message.value for message in take(stream, 2)} == {b"wanted-1", b"wanted-2"}
