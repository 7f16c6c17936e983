"""Kafka's design document, "Distribution" and "API design", and the paper's section 3: a test for each statement about clients.

The statements are told in our own words, with the heading that they stand under. As in `test_client`, a client is `ottla.client`,
ZooKeeper is the listener of the embedded twin, and kazoo looks at what is there.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle

import pytest
from kazoo.client import KazooClient
from tests.waiting import until

from ottla.client import (
    ConsumerConnector,
    ConsumerSettings,
    FetchRequest,
    Message,
    MessageStream,
    Producer,
    ProducerSettings,
    SimpleConsumer,
    WhiteList,
)
from ottla.client.assignment import assign_range
from ottla.client.errors import DeliveryFailed
from ottla.client.producer_handlers import CallbackHandler, ProducerRecord
from ottla.errors import OffsetOutOfRange
from ottla.model import TopicPartition
from ottla.testing.cluster import EmbeddedCluster


@pytest.fixture(scope="module")
def reader(cluster: EmbeddedCluster) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(cluster.bootstrap_servers) as reading:
        yield reading


Connect = Callable[..., ConsumerConnector]


@pytest.fixture
def connect(zookeeper: str) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connected(group: str, **more: object) -> ConsumerConnector:
            settings: dict[str, object] = {
                "group_id": group,
                "zookeeper_connect": zookeeper,
                "auto_offset_reset": "smallest",
                "rebalance_backoff_ms": 100,
                "fetch_wait_max_ms": 20,
                "consumer_timeout_ms": 120_000,
            }
            return stack.enter_context(ConsumerConnector(ConsumerSettings(**{**settings, **more})))  # type: ignore[arg-type]

        yield connected


def asynchronous(cluster: EmbeddedCluster, **more: int) -> ProducerSettings:
    return ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type="async", **more)  # type: ignore[arg-type]


def values(reader: SimpleConsumer, topic: str, partition: int = 0) -> list[bytes | None]:
    return [message.value for message in reader.fetch(topic, partition, 0)]


def take(stream: MessageStream, count: int) -> list[Message]:
    messages = iter(stream)
    return [next(messages) for _ in range(count)]


# "Producer APIs" (P1, P2, P3).


def test_one_producer_stands_before_the_synchronous_and_the_asynchronous_one(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """`send` takes one message or a list of them in both; a synchronous one has written them when it returns."""
    topic = cluster.create_topic("one-producer")
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as sync:
        assert sync.send(topic, b"one").is_done
        assert sync.send(topic, [b"two", b"three"]).is_done
    with Producer(asynchronous(cluster)) as later:
        later.send(topic, b"four")
        later.send(topic, [b"five", b"six"])
    assert values(reader, topic) == [b"one", b"two", b"three", b"four", b"five", b"six"]


def test_messages_wait_until_the_batch_is_full(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """With `batch.size` messages a batch leaves, though `queue.time` is not over by far."""
    topic = cluster.create_topic("full-batch")
    with Producer(asynchronous(cluster, batch_size=5, queue_buffering_max_ms=600_000)) as producer:
        first = producer.send(topic, [b"%d" % number for number in range(4)])
        assert not first.is_done
        last = producer.send(topic, b"4")
        assert len(first.result(120)) == 4
        assert last.result(120)
    assert len(list(reader.fetch(topic, 0, 0).batches())) == 1


def test_messages_wait_no_longer_than_the_queue_time(cluster: EmbeddedCluster) -> None:
    """After `queue.time` a batch leaves, though there is room in it."""
    topic = cluster.create_topic("queue-time")
    with Producer(asynchronous(cluster, batch_size=1_000, queue_buffering_max_ms=50)) as producer:
        assert producer.send(topic, b"alone").result(120)


def test_a_background_thread_gives_batches_to_the_event_handler(cluster: EmbeddedCluster) -> None:
    """A handler of one's own may stand in the place of the one that sends to brokers."""
    seen: list[tuple[str, list[bytes | None]]] = []

    class Handler:
        def handle(self, records: Sequence[ProducerRecord]) -> None:
            seen.append((threading.current_thread().name, [record.value for record in records]))

    with Producer(asynchronous(cluster, batch_size=2), event_handler=Handler()) as producer:
        producer.send("handled", [b"a", b"b", b"c"])
    assert [found for _, found in seen] == [[b"a", b"b"], [b"c"]]
    assert threading.current_thread().name not in {name for name, _ in seen}


def test_callbacks_can_be_put_into_every_stage_of_the_queue(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    """For logging, tracing and monitoring of one's own."""
    topic = cluster.create_topic("stages")
    stages: list[str] = []

    class Stages(CallbackHandler):
        def init(self, settings: ProducerSettings) -> None:
            stages.append("init")

        def before_enqueue(self, record: ProducerRecord) -> ProducerRecord:
            stages.append("before_enqueue")
            return record

        def after_enqueue(self, record: ProducerRecord, is_added: bool) -> None:
            stages.append("after_enqueue")

        def after_dequeuing(self, record: ProducerRecord) -> Sequence[ProducerRecord]:
            stages.append("after_dequeuing")
            return (record,)

        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            stages.append("before_sending")
            return records

        def last_batch_before_close(self) -> Sequence[ProducerRecord]:
            stages.append("last_batch_before_close")
            return [ProducerRecord(topic, None, b"last")]

        def close(self) -> None:
            stages.append("close")

    with Producer(asynchronous(cluster), callback_handler=Stages()) as producer:
        producer.send(topic, b"first")
    sent = ["before_enqueue", "after_enqueue", "after_dequeuing", "before_sending"]
    assert stages == ["init", *sent, "last_batch_before_close", "close"]
    assert values(reader, topic) == [b"first", b"last"]


def test_the_default_encoder_does_nothing(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    topic = cluster.create_topic("not-encoded")
    producer.send(topic, bytes(range(256)))
    assert values(reader, topic) == [bytes(range(256))]


def test_brokers_are_discovered_in_zookeeper(cluster: EmbeddedCluster, reader: SimpleConsumer, zookeeper: str) -> None:
    """With `zk.connect` no broker is named."""
    topic = cluster.create_topic("discovered")
    with Producer.from_properties({"zk.connect": zookeeper}) as producer:
        producer.send(topic, b"found")
    assert values(reader, topic) == [b"found"]


def test_with_a_static_list_a_request_fails_when_its_broker_is_down() -> None:
    settings = ProducerSettings(broker_list="127.0.0.1:1", message_timeout_ms=100)
    with Producer(settings) as producer, pytest.raises(DeliveryFailed):
        producer.send("nowhere", b"lost")


def test_a_load_balancer_before_the_brokers_may_be_all_that_a_producer_knows() -> None:
    """Paper, 4 (P2): it gives each connection to another broker. Messages go to their leaders all the same, also when a broker is gone."""
    with EmbeddedCluster(brokers=2) as cluster, ExitStack() as stack:
        topic = cluster.create_topic("balanced", partitions=2, replication_factor=2)
        addresses = cycle(cluster.bootstrap_servers.split(","))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        given: set[str] = set()

        def copy(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while octets := source.recv(65_536):
                    target.sendall(octets)
                target.shutdown(socket.SHUT_WR)

        def balance() -> None:
            with suppress(OSError):
                while True:
                    client, address = stack.enter_context(listener.accept()[0]), next(addresses)
                    host, _, port = address.partition(":")
                    with suppress(ConnectionRefusedError):
                        broker = stack.enter_context(socket.create_connection((host, int(port))))
                        given.add(address)
                        for ends in ((client, broker), (broker, client)):
                            threading.Thread(target=copy, args=ends, daemon=True).start()
                        continue
                    client.close()

        threading.Thread(target=balance, daemon=True).start()
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        balancer = "{}:{}".format(*listener.getsockname())
        for value in (b"first", b"second", b"of one broker"):
            if value == b"of one broker":
                cluster.kill(2)
            with Producer(ProducerSettings(broker_list=balancer)) as producer:
                for partition in range(2):
                    producer.send(topic, value, partition=partition)
        with SimpleConsumer(balancer) as behind:
            assert [values(behind, topic, partition) for partition in range(2)] == [[b"first", b"second", b"of one broker"]] * 2
        assert len(given) == 2


def test_a_partitioner_gets_the_key_and_the_number_of_partitions(cluster: EmbeddedCluster) -> None:
    """What it gives is the partition; all messages of a member go to one, so that one consumer has them."""
    topic = cluster.create_topic("members", partitions=3)
    asked: list[tuple[bytes | None, int]] = []

    def by_member(key: bytes | None, count: int) -> int:
        asked.append((key, count))
        return int(key or b"0") % count

    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), partitioner=by_member) as producer:
        for member in (7, 8, 7):
            ((place, _),) = producer.send(topic, b"visit", key=b"%d" % member).result()
            assert place.partition == member % 3
    assert asked == [(b"7", 3), (b"8", 3), (b"7", 3)]


# "Consumer APIs": the low level (K1).


def test_the_simple_consumer_keeps_no_state(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """Every request has its offset, so one may read in any order, and as often as one likes."""
    topic = cluster.create_topic("stateless")
    for number in range(4):
        producer.send(topic, b"%d" % number)
    for offset in (2, 0, 3, 0):
        assert [message.value for message in reader.fetch(topic, 0, offset)] == [b"%d" % number for number in range(offset, 4)]


def test_a_list_of_fetches_gets_a_set_of_answers(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    topic = cluster.create_topic("many-fetches", partitions=3)
    for partition in range(3):
        producer.send(topic, b"%d" % partition, partition=partition)
    found = reader.multi_fetch([FetchRequest(topic, partition, 0) for partition in (2, 0, 1)])
    assert [[message.value for message in messages] for messages in found] == [[b"2"], [b"0"], [b"1"]]


def test_offsets_before_a_time_come_in_descending_order(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """-1 is the end, -2 the beginning, and there are no more than are asked for."""
    topic = cluster.create_topic("offsets-before")
    for number in range(3):
        producer.send(topic, b"x", timestamp_ms=1_000 * (number + 1))
    assert reader.offsets_before(topic, 0, time=-1, at_most=10) == [3, 0]
    assert reader.offsets_before(topic, 0, time=-1) == [3]
    assert reader.offsets_before(topic, 0, time=-2, at_most=10) == [0]
    assert reader.offsets_before(topic, 0, time=2_000, at_most=10) == [1, 0]


def test_a_message_that_does_not_fit_is_read_with_a_doubled_buffer(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer
) -> None:
    """ "Reads" (S10): for messages of unusual size the buffer is doubled until they fit."""
    topic = cluster.create_topic("large")
    producer.send(topic, bytes(300_000))
    (message,) = reader.fetch(topic, 0, 0, max_bytes=1)
    assert message.value == bytes(300_000)


def test_the_server_may_refuse_messages_over_a_size(cluster: EmbeddedCluster) -> None:
    """ "Reads": so that a client's buffer has a bound."""
    topic = cluster.create_topic("bounded", settings={"max.message.bytes": "1000"})
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer:
        with pytest.raises(DeliveryFailed, match=r"max\.message\.bytes is 1000"):
            producer.send(topic, bytes(2_000))
        producer.send(topic, bytes(500))


def test_an_offset_that_does_not_exist_is_out_of_range_and_the_consumer_may_reset_itself(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer
) -> None:
    """ "Reads" (S9): it starts again where it can, or fails."""
    topic = cluster.create_topic("out-of-range")
    producer.send(topic, b"there")
    with pytest.raises(OffsetOutOfRange, match="17"):
        reader.fetch(topic, 0, 17)
    (start,) = reader.offsets_before(topic, 0, time=-2)
    assert [message.value for message in reader.fetch(topic, 0, start)] == [b"there"]


# "Consumer APIs": the high level (K2).


def test_a_stream_merges_partitions_and_a_partition_feeds_one_stream(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect
) -> None:
    topic = cluster.create_topic("merged", partitions=5)
    for partition in range(5):
        producer.send(topic, [b"x"] * 3, partition=partition)
    streams = connect("merged").create_message_streams({topic: 2})[topic]
    found = [{message.partition for message in take(stream, count)} for stream, count in zip(streams, (9, 6), strict=True)]
    assert found == [{0, 1, 2}, {3, 4}]


def test_streams_of_many_topics_are_made_in_one_call_with_one_rebalance(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The API encourages it, because each call would share everything out again."""
    topics = {cluster.create_topic(f"together-{number}"): number for number in (1, 2)}
    connector = connect("together")
    with caplog.at_level("INFO", logger="ottla.client"):
        streams = connector.create_message_streams(topics)
    assert {topic: len(found) for topic, found in streams.items()} == topics
    assert sum("reads 2 partitions more" in message for message in caplog.messages) == 1
    for topic in topics:
        producer.send(topic, b"x")
        assert take(streams[topic][0], 1)[0].topic == topic


def test_one_stream_of_a_filter_may_iterate_over_many_topics(cluster: EmbeddedCluster, producer: Producer, connect: Connect) -> None:
    """And a topic that matches and is made later joins it."""
    producer.send(cluster.create_topic("matching-1"), b"1")
    (stream,) = connect("matching").create_message_streams_by_filter(WhiteList("matching-.*"))
    assert [message.topic for message in take(stream, 1)] == ["matching-1"]
    producer.send(cluster.create_topic("matching-2"), b"2")
    assert [message.topic for message in take(stream, 1)] == ["matching-2"]


def test_commit_offsets_commits_all_messages_consumed_so_far(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect, look: KazooClient
) -> None:
    """Of all streams."""
    topic = cluster.create_topic("committed", partitions=2)
    for partition in range(2):
        producer.send(topic, [b"x"] * 4, partition=partition)
    connector = connect("committed", auto_commit_enable=False)
    for stream, count in zip(connector.create_message_streams({topic: 2})[topic], (3, 1), strict=True):
        take(stream, count)
    connector.commit_offsets()
    assert [look.get(f"/consumers/committed/offsets/{topic}/{partition}")[0] for partition in range(2)] == [b"3", b"1"]


def test_a_shutdown_ends_the_streams(cluster: EmbeddedCluster, producer: Producer, connect: Connect) -> None:
    topic = cluster.create_topic("ended")
    producer.send(topic, b"last")
    connector = connect("ended")
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    messages = iter(stream)
    assert next(messages).value == b"last"
    connector.shutdown()
    assert list(messages) == []


# "Directories in ZooKeeper" and the rebalance (K3, K4).


def test_a_broker_s_registration_says_where_it_listens(cluster: EmbeddedCluster, look: KazooClient) -> None:
    registration = json.loads(look.get("/brokers/ids/1")[0])
    assert f"{registration['host']}:{registration['port']}" == cluster.bootstrap_servers


def test_a_topic_s_partitions_are_registered(cluster: EmbeddedCluster, look: KazooClient) -> None:
    topic = cluster.create_topic("registered-partitions", partitions=3)
    assert set(json.loads(look.get(f"/brokers/topics/{topic}")[0])["partitions"]) == {"0", "1", "2"}


def test_a_consumer_s_id_is_unique_and_made_of_its_host(cluster: EmbeddedCluster, connect: Connect) -> None:
    """All consumers of a group share the group's id, and have one of their own."""
    one, two = connect("named"), connect("named")
    assert one.consumer_id != two.consumer_id
    assert one.consumer_id.startswith(f"named_{socket.gethostname()}-")


def test_a_consumer_s_registration_goes_when_its_process_does(cluster: EmbeddedCluster, connect: Connect, look: KazooClient) -> None:
    topic = cluster.create_topic("registered-consumer")
    connector = connect("registered-consumer")
    connector.create_message_streams({topic: 3})
    path = f"/consumers/registered-consumer/ids/{connector.consumer_id}"
    assert json.loads(look.get(path)[0])["subscription"] == {topic: 3}
    connector.shutdown()
    assert look.exists(path) is None


def test_a_change_among_the_consumers_has_all_of_the_group_share_out_anew(cluster: EmbeddedCluster, connect: Connect) -> None:
    """Whoever joins or leaves: each of the others hears of it by its watcher. The shares are fair, and each partition has one owner."""
    topic = cluster.create_topic("shared-out", partitions=6)
    consumers = [connect("shared-out") for _ in range(3)]
    for number, consumer in enumerate(consumers, 1):
        consumer.create_message_streams({topic: 1})
        until(lambda: sorted(len(consumer.owned) for consumer in consumers if consumer.owned) == [6 // number] * number)  # noqa: B023
        assert len({partition for reader in consumers for partition in reader.owned}) == 6
    consumers.pop().shutdown()
    until(lambda: [len(consumer.owned) for consumer in consumers] == [3, 3])


def test_consumers_that_are_more_than_the_partitions_get_nothing(cluster: EmbeddedCluster, producer: Producer, connect: Connect) -> None:
    topic = cluster.create_topic("too-many")
    consumers = [connect("too-many") for _ in range(3)]
    for consumer in consumers:
        consumer.create_message_streams({topic: 1})
    until(lambda: sorted(len(reader.owned) for reader in consumers) == [0, 0, 1])


def test_a_consumer_may_read_from_few_brokers(connect: Connect) -> None:
    """Partitions are shared out so that each has to connect to few (K3). Their preferred leaders say which, as leaders move."""
    with EmbeddedCluster(brokers=3, settings={"coordination.listener": "127.0.0.1:0"}) as cluster:
        topic = cluster.create_topic("few-brokers", partitions=9)
        settings = {"zookeeper_connect": cluster.zookeeper_address, "partition_assignment_strategy": "brokers"}
        consumers = [connect("few-brokers", **settings) for _ in range(3)]
        for consumer in consumers:
            consumer.create_message_streams({topic: 1})
        until(lambda: [len(consumer.owned) for consumer in consumers] == [3, 3, 3])
        brokers = [{cluster.leader(*partition) for partition in consumer.owned} for consumer in consumers]
        assert sorted(map(sorted, brokers)) == [[1], [2], [3]]
        for consumer in consumers:  # while there is a ZooKeeper to leave the group in
            consumer.shutdown()


@pytest.mark.parametrize(("partitions", "consumers"), [(6, 3), (7, 3), (2, 3), (1, 1)])
def test_algorithm_1_divides_the_sorted_partitions_into_ranges(partitions: int, consumers: int) -> None:
    """Consumer i has the partitions from i*N to (i+1)*N - 1. Where it does not come out even, as in Kafka 0.8, the first have one more."""
    streams = [f"c{index}" for index in range(consumers)]
    found = assign_range({"t": [0] * partitions}, {"t": streams[::-1]})
    shares = [[number for number in range(partitions) if found[TopicPartition("t", number)] == stream] for stream in streams]
    assert [number for share in shares for number in share] == list(range(partitions))
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_offsets_are_written_from_time_to_time_while_messages_are_pulled(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect, look: KazooClient
) -> None:
    """Paper, 3.2: the latest consumed offset goes to the offset registry periodically. The message in hand is not consumed yet."""
    topic = cluster.create_topic("periodic")
    producer.send(topic, [b"x"] * 5)
    (stream,) = connect("periodic", auto_commit_interval_ms=50).create_message_streams({topic: 1})[topic]
    take(stream, 4)
    until(lambda: look.get(f"/consumers/periodic/offsets/{topic}/0")[0] == b"3")


def test_a_consumer_with_an_error_in_its_logic_replays_messages_after_the_repair(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect
) -> None:
    """Paper, 3.1: rewinding, here to a time."""
    topic = cluster.create_topic("repaired")
    for number in range(4):
        producer.send(topic, b"%d" % number, timestamp_ms=1_000 * (number + 1))
    connector = connect("repaired")
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    assert len(take(stream, 4)) == 4
    connector.seek_to_timestamp(3_000)
    assert [message.value for message in take(stream, 2)] == [b"2", b"3"]


def test_deduplication_by_the_offsets_that_a_consumer_gets_makes_it_exactly_once(
    cluster: EmbeddedCluster, producer: Producer, connect: Connect
) -> None:
    """Paper, 3.3: who cares for duplicates uses the offsets that come with the messages. The first consumer goes without a commit."""
    topic = cluster.create_topic("deduplicated")
    producer.send(topic, [b"%d" % number for number in range(6)])
    results: dict[tuple[int, int], bytes | None] = {}
    count = 0
    for size in (4, 6):
        connector = connect("deduplicated", auto_commit_enable=False)
        for message in take(connector.create_message_streams({topic: 1})[topic][0], size):
            results.setdefault((message.partition, message.offset), message.value)
            count += 1
        connector.shutdown()
    assert count == 10
    assert list(results.values()) == [b"%d" % number for number in range(6)]
