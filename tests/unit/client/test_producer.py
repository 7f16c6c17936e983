"""The producer, against brokers in this process: sync and async, handlers, partitioners, transactions, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.unit.client.forks import said_in_child
from tests.unit.wire.clusters import wait_until_all_ended

from ottla.client import record_sender
from ottla.client.errors import ClientClosed, DeliveryFailed, InvalidPartition, QueueFull
from ottla.client.outgoing import Delivery
from ottla.client.partitioners import murmur2_partition
from ottla.client.producer import Producer
from ottla.client.producer_handlers import CallbackHandler, ProducerRecord
from ottla.client.simple_consumer import SimpleConsumer
from ottla.config.client import ProducerSettings
from ottla.errors import ConfigurationError, InvalidProducerEpoch
from ottla.model import TopicPartition
from ottla.testing.cluster import EmbeddedCluster
from ottla.wire import transactions
from ottla.wire.cluster import Cluster
from ottla.wire.connection import open_connection


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture(scope="module")
def reader(cluster: EmbeddedCluster) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        yield consumer


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(f"topic-{abs(hash(request.node.name))}", partitions=2)


def settings(cluster: EmbeddedCluster, kind: str = "sync", **more: Any) -> ProducerSettings:
    return ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type=kind, **more)


def written(reader: SimpleConsumer, topic: str, partition: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while (messages := reader.fetch(topic, partition, offset)).next_offset > offset:
        found += [message.value for message in messages]
        offset = messages.next_offset
    return found


def committed(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> list[bytes | None]:
    """What is written to the first partition when all transactions have ended."""
    wait_until_all_ended(cluster.bootstrap_servers)
    return written(reader, topic, 0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_synchronous_send_returns_when_its_messages_are_written(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, codec: str
) -> None:
    with Producer(settings(cluster, compression_codec=codec)) as producer:
        delivery = producer.send(topic, [b"a", b"b", None], key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=5)
        assert delivery.is_done
        partition = murmur2_partition(b"k", 2)
        assert delivery.result() == [(TopicPartition(topic, partition), offset) for offset in range(3)]
    found = list(reader.fetch(topic, partition, 0))
    assert [(m.key, m.value, m.timestamp, m.headers) for m in found] == [
        (b"k", value, 5, (("h", b"1"), ("n", None))) for value in (b"a", b"b", None)
    ]


def test_an_asynchronous_send_is_written_by_flush(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    with Producer(settings(cluster, "async")) as producer:
        delivery = producer.send(topic, [b"%d" % number for number in range(50)], partition=1)
        producer.flush()
        assert [offset for _, offset in delivery.result(0)] == list(range(50))
    assert written(reader, topic, 1) == [b"%d" % number for number in range(50)]
    with pytest.raises(ClientClosed, match="closed"):
        producer.send(topic, b"late")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("is_audited", [False, True])
def test_a_producer_that_is_closed_has_neither_threads_nor_connections_whoever_still_refers_to_it(
    cluster: EmbeddedCluster, topic: str, kind: str, is_audited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []

    async def opening(*arguments: Any, **keywords: Any) -> Any:
        connections.append(await open_connection(*arguments, **keywords))
        return connections[-1]

    monkeypatch.setattr("ottla.wire.cluster.open_connection", opening)
    before = set(threading.enumerate())
    producer = Producer(settings(cluster, kind), audit=is_audited)
    delivery = producer.send(topic, [b"a", b"b"])
    producer.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} & {"ottla-producer", "ottla-audit"} == set()
    assert connections
    assert all(connection.is_lost for connection in connections)
    assert (delivery.is_done, delivery.left) == (True, 0)
    with pytest.raises(ClientClosed):
        producer.send(topic, [b"c"])


def test_encoder_and_partitioner_are_the_program_s(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    with Producer(
        settings(cluster), encoder=lambda value: str(value).encode(), key_encoder=str.encode, partitioner=lambda key, count: len(key or b"")
    ) as producer:
        producer.send(topic, [1, 2], key="x")
        assert written(reader, topic, 1) == [b"1", b"2"]
        with pytest.raises(InvalidPartition, match="gives 3"):
            producer.send(topic, 3, key="xyz")
    with Producer(settings(cluster), partitioner=lambda key, count: murmur2_partition(key or b"", count)) as producer:
        assert producer.send(topic, b"by a str", key="d").result()[0][0].partition == 1
    for wrong, error in ((lambda key, count: -1, InvalidPartition), (lambda key, count: 1 // 0, ZeroDivisionError)):
        with Producer(settings(cluster), partitioner=wrong) as producer, pytest.raises(error):
            producer.send(topic, b"a")
    with Producer(settings(cluster), encoder=lambda value: value["nothing"]) as producer, pytest.raises(KeyError):
        producer.send(topic, {})
    assert written(reader, topic, 0) == []


def test_a_partitioner_s_first_list_asks_once_for_the_partitions(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for each message: two thousand took twenty seconds."""
    asked = []
    refresh = Cluster.refresh

    async def counted(self: Cluster, topics: Iterable[str] | None) -> None:
        asked.append(topics)
        await refresh(self, topics)

    monkeypatch.setattr(Cluster, "refresh", counted)
    with Producer(settings(cluster), partitioner=lambda key, count: count - 1) as producer:
        assert {partition.partition for partition, _ in producer.send(topic, [b"a"] * 100).result()} == {1}
    assert len(asked) < 5


class Noting(CallbackHandler):
    """Writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def init(self, settings: ProducerSettings) -> None:
        self.calls.append("init")

    def before_enqueue(self, record: ProducerRecord) -> ProducerRecord | None:
        self.calls.append("before_enqueue")
        return None if record.value == b"drop" else record._replace(partition=0)

    def after_enqueue(self, record: ProducerRecord, is_added: bool) -> None:
        self.calls.append("after_enqueue")

    def after_dequeuing(self, record: ProducerRecord) -> Sequence[ProducerRecord]:
        self.calls.append("after_dequeuing")
        return (record, record._replace(value=b"twice")) if record.value == b"b" else (record,)

    def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
        self.calls.append(f"before_sending {len(records)}")
        return [record for record in records if record.value != b"c"]

    def last_batch_before_close(self) -> Sequence[ProducerRecord]:
        self.calls.append("last_batch_before_close")
        return [ProducerRecord(self.topic, None, b"last", partition=0)]

    def close(self) -> None:
        self.calls.append("close")

    topic = ""


def test_a_callback_handler_may_change_drop_and_add(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    """Design document of 0.7, 'Async producer': the hooks and their order."""
    handler = Noting()
    handler.topic = topic
    with Producer(settings(cluster, "async", batch_size=3), callback_handler=handler) as producer:
        delivery = producer.send(topic, [b"a", b"drop", b"b", b"c"])
        producer.flush()
        assert len(delivery.result(5)) == 3
    assert written(reader, topic, 0) == [b"a", b"b", b"twice", b"last"]
    assert handler.calls[0] == "init"
    assert handler.calls[-5:] == ["after_dequeuing"] * 2 + ["before_sending 4", "last_batch_before_close", "close"]
    assert (handler.calls.count("before_enqueue"), handler.calls.count("after_enqueue")) == (4, 3)


def test_a_handler_that_raises_fails_its_batch_and_not_the_next(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    class Raising(CallbackHandler):
        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            if records[0].value == b"bad":
                raise RuntimeError("no")
            return records

    with Producer(settings(cluster, "async"), callback_handler=Raising()) as producer:
        bad = producer.send(topic, [b"bad", b"bad too"], partition=0)
        with pytest.raises(DeliveryFailed, match="RuntimeError: no"):
            producer.flush()
        with pytest.raises(DeliveryFailed):
            bad.result(0)
        producer.send(topic, b"good", partition=0)
    assert written(reader, topic, 0) == [b"good"]


def test_an_event_handler_whose_own_work_was_cancelled_fails_its_batch_and_not_the_next(cluster: EmbeddedCluster, topic: str) -> None:
    """What is no `Exception`, as a CancelledError out of `asyncio.run`, ended the thread: no one was told of what came behind."""
    handled: list[bytes | None] = []

    class Cancelled:
        def handle(self, records: Sequence[ProducerRecord]) -> None:
            if records[0].value == b"bad":
                raise asyncio.CancelledError
            handled.extend(record.value for record in records)

    with Producer(settings(cluster, "async"), event_handler=Cancelled()) as producer:
        bad = producer.send(topic, b"bad")
        with pytest.raises(DeliveryFailed, match="CancelledError"):
            producer.flush(10)
        assert bad.left == 0
        producer.send(topic, b"good")
    assert handled == [b"good"]


@pytest.mark.parametrize("headers", [(), (("name", b"value"),)])
@pytest.mark.parametrize(("kind", "handler"), [("async", CallbackHandler()), ("async", None), ("sync", None)])
def test_a_message_that_is_too_large_fails_alone(
    cluster: EmbeddedCluster,
    reader: SimpleConsumer,
    topic: str,
    kind: str,
    handler: CallbackHandler | None,
    headers: tuple[tuple[str, bytes], ...],
) -> None:
    """Those of its batch that stand before it are on their way by then: to call them failed too has them sent twice.

    It is said as of any message: a RecordTooLargeException is in the future that Kafka's producer gives, and not raised by its `send`.
    """
    with Producer(settings(cluster, kind), callback_handler=handler) as producer:
        for messages in ([b"a", bytes(2_000_000), b"b"], bytes(2_000_000)):
            with pytest.raises(DeliveryFailed, match="too large") as raised:
                delivery = producer.send(topic, messages, partition=0, headers=headers)
                producer.flush()
                assert delivery.left == 0
            assert raised.value.code == 10
    assert written(reader, topic, 0) == [b"a", b"b"]


def test_what_a_handler_gives_that_is_no_record_fails_alone(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    """Those before it are on their way by then: counted as failed too, they left a delivery that was waited for without end."""

    class Adding(CallbackHandler):
        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            return [*records, ("no", "record")]  # type: ignore[list-item]  # as a program may

    with Producer(settings(cluster, "async"), callback_handler=Adding()) as producer:
        delivery = producer.send(topic, [b"a", b"b"], partition=0)
        with pytest.raises(DeliveryFailed, match="ValueError"):
            producer.flush()
        assert len(delivery.result(0)) == 2
    assert written(reader, topic, 0) == [b"a", b"b"]


def test_a_handler_that_raises_behind_one_message_that_became_two_leaves_none_that_is_waited_for(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    class Raising(CallbackHandler):
        def after_dequeuing(self, record: ProducerRecord) -> Sequence[ProducerRecord]:
            if record.value == b"bad":
                raise RuntimeError("no")
            return (record, record)

    with Producer(settings(cluster, "async"), callback_handler=Raising()) as producer:
        delivery = producer.send(topic, [b"good", b"bad"], partition=0)
        with pytest.raises(DeliveryFailed, match="RuntimeError: no"):
            producer.flush()
        assert delivery.left == 0
    assert written(reader, topic, 0) == []


@pytest.mark.parametrize("has_event_handler", [False, True])
def test_a_handler_may_give_what_can_be_gone_through_only_once(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, has_event_handler: bool
) -> None:
    """Of a generator nothing was sent, deliveries were waited for without end, and with an event handler it was all called sent."""
    handled: list[bytes | None] = []

    class Dropping(CallbackHandler):
        def before_sending(self, records: Sequence[ProducerRecord]) -> Any:
            return (record for record in records if record.value != b"drop")

        def last_batch_before_close(self) -> Any:
            return (ProducerRecord(topic, None, b"last", partition=0) for _ in range(1))

    class Handling:
        def handle(self, records: Sequence[ProducerRecord]) -> None:
            handled.extend(record.value for record in records)

    events = Handling() if has_event_handler else None
    with Producer(settings(cluster, "async"), callback_handler=Dropping(), event_handler=events) as producer:
        deliveries = [producer.send(topic, value, partition=0) for value in (b"a", b"drop", b"b")]
        producer.flush()
        assert [len(delivery.result(0)) for delivery in deliveries] == ([0, 0, 0] if has_event_handler else [1, 0, 1])
    assert (handled if has_event_handler else written(reader, topic, 0)) == [b"a", b"b", b"last"]


def test_a_flush_waits_for_what_was_sent_before_it_and_not_for_what_other_threads_send_meanwhile(
    cluster: EmbeddedCluster, topic: str
) -> None:
    """As Kafka's does. It waited until a queue with handlers was empty, and so until no other thread had anything to send."""
    is_over = threading.Event()

    def send() -> None:
        with suppress(ClientClosed):
            producer.send(topic, b"more")

    class Refilling:
        def handle(self, records: Sequence[ProducerRecord]) -> None:
            if not is_over.is_set():
                sending = threading.Thread(target=send)
                sending.start()
                sending.join()

    with Producer(settings(cluster, "async", queue_buffering_max_ms=1), event_handler=Refilling()) as producer:
        delivery = producer.send(topic, b"a")
        try:
            producer.flush(10)
            assert delivery.is_done
        finally:
            is_over.set()


def test_a_handler_that_flushes_is_told_at_once_that_it_cannot(cluster: EmbeddedCluster, topic: str) -> None:
    """It waited for its own batch until its time was over."""

    class Flushing:
        def handle(self, records: Sequence[ProducerRecord]) -> None:
            producer.flush(3_600)

    flushing = Producer(settings(cluster, "async", queue_buffering_max_ms=1), event_handler=Flushing())
    with flushing as producer, pytest.raises(DeliveryFailed, match="a handler cannot flush"):
        producer.send(topic, b"a").result(30)


def test_a_handler_that_sends_while_the_queue_is_full_is_told_so_and_does_not_wait_for_itself(cluster: EmbeddedCluster, topic: str) -> None:
    is_full = threading.Event()

    class Copying(CallbackHandler):
        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            assert is_full.wait(60)
            if records[0].value == b"0":
                producer.send(topic, b"a copy")
            return records

    producer = Producer(settings(cluster, "async", queue_size=1, batch_size=1), callback_handler=Copying())
    deliveries = [producer.send(topic, b"%d" % number) for number in range(2)]
    is_full.set()
    with pytest.raises(DeliveryFailed, match="QueueFull"):
        deliveries[0].result(20)
    assert deliveries[1].result(20)
    producer.close()


def test_an_event_handler_sends_instead_of_the_producer(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    class Keeping:
        def __init__(self) -> None:
            self.batches: list[list[bytes | None]] = []

        def handle(self, records: Sequence[ProducerRecord]) -> None:
            self.batches.append([record.value for record in records])

    handler = Keeping()
    with Producer(settings(cluster, "async", batch_size=2), event_handler=handler) as producer:
        producer.send(topic, [b"a", b"b", b"c"])
    assert handler.batches == [[b"a", b"b"], [b"c"]]
    assert written(reader, topic, 0) + written(reader, topic, 1) == []
    with pytest.raises(ConfigurationError, match=r"producer\.type=async"):
        Producer(settings(cluster), event_handler=handler)


class FailingOnce:
    """An event handler whose first batch fails."""

    def __init__(self) -> None:
        self.batches: list[list[bytes | None]] = []

    def handle(self, records: Sequence[ProducerRecord]) -> None:
        self.batches.append([record.value for record in records])
        if len(self.batches) == 1:
            raise RuntimeError("no")


def test_an_event_handler_that_raises_for_a_part_of_a_send_leaves_none_that_is_waited_for(cluster: EmbeddedCluster, topic: str) -> None:
    class Shortening(CallbackHandler):
        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            return records[1:]

    handlers: Any = {"callback_handler": Shortening(), "event_handler": FailingOnce()}
    with Producer(settings(cluster, "async", batch_size=2), **handlers) as producer:
        delivery = producer.send(topic, [b"a", b"b", b"c", b"d"])
        with pytest.raises(DeliveryFailed, match="RuntimeError: no"):
            producer.flush()
        assert delivery.left == 0
    assert handlers["event_handler"].batches == [[b"b"], [b"d"]]


def test_a_last_batch_that_an_event_handler_does_not_send_is_said_by_close(cluster: EmbeddedCluster, topic: str) -> None:
    class Last(CallbackHandler):
        is_closed = False

        def last_batch_before_close(self) -> Sequence[ProducerRecord]:
            return [ProducerRecord(topic, None, b"last")]

        def close(self) -> None:
            self.is_closed = True

    handler = Last()
    producer = Producer(settings(cluster, "async"), callback_handler=handler, event_handler=FailingOnce())
    with pytest.raises(DeliveryFailed, match="RuntimeError: no"):
        producer.close()
    assert handler.is_closed


def test_a_handler_may_give_the_same_record_for_several_messages(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    record = ProducerRecord(topic, None, b"beat", partition=0)

    class Beating(CallbackHandler):
        def before_enqueue(self, _: ProducerRecord) -> ProducerRecord:
            return record

        def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
            return [*records, record]

    with Producer(settings(cluster, "async"), callback_handler=Beating()) as producer:
        delivery = producer.send(topic, [b"a", b"b"])
        producer.flush()
        assert delivery.left == 0
    assert written(reader, topic, 0) == [b"beat"] * 3


def test_a_send_while_the_producer_is_closed_says_so(cluster: EmbeddedCluster, topic: str) -> None:
    """Behind the end of the queue's thread nothing would send it, and who waited for its delivery would do so for ever."""

    class Meanwhile(CallbackHandler):
        def before_enqueue(self, record: ProducerRecord) -> ProducerRecord:
            producer.close()  # as another thread may
            return record

    producer = Producer(settings(cluster, "async"), callback_handler=Meanwhile())
    with pytest.raises(ClientClosed):
        producer.send(topic, b"a")


def test_a_close_while_another_thread_goes_on_sending_refuses_that_and_delivers_what_was_sent(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    """It waited for as long as messages came, and what came as it ended was lost."""
    producer, sent, has_begun = Producer(settings(cluster, "async", queue_buffering_max_ms=5)), 0, threading.Event()

    def go_on() -> None:
        nonlocal sent
        with suppress(ClientClosed):
            while True:
                producer.send(topic, b"x", partition=0)
                sent += 1
                has_begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert has_begun.wait(60)
    producer.close(30)
    thread.join(60)
    assert len(written(reader, topic, 0)) == sent


def test_a_send_that_waits_for_room_while_the_producer_is_closed_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`BufferPoolTest.testCloseNotifyWaiters`. It heard of it when `close` had delivered everything, or had given up."""
    producer = Producer(ProducerSettings(broker_list="127.0.0.1:1", producer_type="async", queue_size=1))
    producer.send("clicks", b"a")
    is_sending, said = threading.Event(), threading.Event()

    def send() -> None:
        is_sending.set()
        with pytest.raises(ClientClosed):
            producer.send("clicks", b"b")
        said.set()

    monkeypatch.setattr(producer._outgoing, "flush", lambda timeout_seconds: said.wait(60))
    sending = threading.Thread(target=send)
    sending.start()
    assert is_sending.wait(60)
    producer.close()
    assert said.is_set()
    sending.join(60)


def test_a_send_that_waits_for_the_partitions_while_the_producer_is_closed_says_so() -> None:
    """`KafkaProducerTest.testCloseWhenWaitingForMetadataUpdate`; of a partitioner's own, as others do not wait for that."""
    producer = Producer(ProducerSettings(broker_list="127.0.0.1:1", producer_type="async"), partitioner=lambda key, count: 0)
    is_sending = threading.Event()

    def send() -> None:
        is_sending.set()
        with pytest.raises(ClientClosed):
            producer.send("clicks", b"a")
        is_sending.clear()

    sending = threading.Thread(target=send)
    sending.start()
    assert is_sending.wait(60)
    producer.close()
    sending.join(60)
    assert not is_sending.is_set()


def test_a_transaction_is_written_as_a_whole_or_not_at_all(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    with Producer(settings(cluster, "async", transactional_id="loader")) as producer:
        # An OSError too is the application's own.
        for error in (RuntimeError("changed my mind"), FileNotFoundError("changed my mind")):
            with pytest.raises(type(error), match="changed my mind"), producer.transaction():
                producer.send(topic, [b"never"], partition=0)
                raise error
        for messages in (b"outside", [b"outside", b"of it"]):
            with pytest.raises(DeliveryFailed, match="state"):
                producer.send(topic, messages)
        with producer.transaction():
            producer.send(topic, [b"a", b"b"], partition=0)
    assert committed(cluster, reader, topic) == [b"a", b"b"]


@pytest.mark.parametrize(("kind", "handler"), [("async", CallbackHandler()), ("async", None), ("sync", None)])
def test_a_transaction_is_not_committed_without_a_message_that_was_found_to_fail(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, kind: str, handler: CallbackHandler | None
) -> None:
    """`KafkaProducerTest.testCommitTransactionWithRecordTooLargeException`: a failure that was looked at fails the commit too."""
    named = settings(cluster, kind, transactional_id=f"partly-{kind}-{handler is None}", queue_buffering_max_ms=1)
    with Producer(named, callback_handler=handler) as producer:
        with pytest.raises(DeliveryFailed, match=r"not all of the transaction is written: .*too large"), producer.transaction():
            producer.send(topic, b"never", partition=0)
            with pytest.raises(DeliveryFailed, match="too large"):
                producer.send(topic, bytes(2_000_000), partition=0).result(60)
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
    assert committed(cluster, reader, topic) == [b"a"]


def test_a_producer_that_is_closed_within_its_transaction_says_so_and_aborts_it(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    producer = Producer(settings(cluster, "async", transactional_id="closed-within"))
    with pytest.raises(ClientClosed), producer.transaction():
        producer.send(topic, b"never", partition=0)
        producer.close()
    assert committed(cluster, reader, topic) == []


def test_a_close_within_a_transaction_ends_in_its_time_also_if_no_coordinator_answers() -> None:
    """`KafkaProducerTest.testCloseIsForcedOnPendingAddOffsetRequest`. It took half a minute more."""
    with EmbeddedCluster(topics={"away": 1}) as alone:
        producer = Producer(settings(alone, "async", transactional_id="away", queue_buffering_max_ms=1))
        with pytest.raises(TimeoutError), producer.transaction():
            producer.send("away", b"a").result(60)
            alone.stop_broker(1)
            delivery = producer.send("away", b"b")
            begin = time.monotonic()
            producer.close(0.5)
        assert time.monotonic() < begin + 15
        with pytest.raises(DeliveryFailed, match="closed"):
            delivery.result(0)


def test_what_another_thread_sends_during_a_commit_is_refused_and_not_in_the_next_transaction(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(settings(cluster, "async", transactional_id="during", queue_buffering_max_ms=1)) as producer:
        flush = producer._outgoing.flush
        refused: list[str] = []

        def send() -> None:
            try:
                producer.send(topic, b"late", partition=0)
            except DeliveryFailed as error:
                refused.append(str(error))

        def flushed(timeout_seconds: float) -> bool:
            is_flushed = flush(timeout_seconds)
            sending = threading.Thread(target=send)
            sending.start()
            sending.join()
            return is_flushed

        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            monkeypatch.setattr(producer._outgoing, "flush", flushed)
        monkeypatch.undo()
        with producer.transaction():
            producer.send(topic, b"b", partition=0)
    assert len(refused) == 1
    assert committed(cluster, reader, topic) == [b"a", b"b"]


def test_what_waits_in_a_handled_producer_s_queue_is_not_sent_when_its_transaction_is_aborted(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    with Producer(settings(cluster, "async", transactional_id="handled"), callback_handler=CallbackHandler()) as producer:
        with pytest.raises(RuntimeError, match="changed my mind"), producer.transaction():
            delivery = producer.send(topic, [b"never"], partition=0)
            raise RuntimeError("changed my mind")
        with producer.transaction():
            producer.send(topic, [b"a", b"b"], partition=0)
    assert committed(cluster, reader, topic) == [b"a", b"b"]
    with pytest.raises(DeliveryFailed, match="aborted"):
        delivery.result(0)


def unanswered(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many ends of transactions are done, and their answers do not come."""
    end_transaction, left = transactions.end_transaction, [TimeoutError("late")] * times

    async def ended(*arguments: Any, **keywords: Any) -> None:
        await end_transaction(*arguments, **keywords)
        if left:
            raise left.pop()

    monkeypatch.setattr(transactions, "end_transaction", ended)


def test_a_commit_that_is_not_answered_in_time_is_asked_again_and_not_called_failed(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears that it failed would send everything once more."""
    unanswered(monkeypatch, 2)
    with Producer(settings(cluster, "async", transactional_id="impatient")) as producer:
        for value in (b"a", b"b"):
            with producer.transaction():
                producer.send(topic, value, partition=0)
    assert committed(cluster, reader, topic) == [b"a", b"b"]


def test_an_abort_that_is_not_answered_in_time_is_asked_again_by_the_next_transaction(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered(monkeypatch, 1)
    with Producer(settings(cluster, "async", transactional_id="unanswered", queue_buffering_max_ms=10)) as producer:
        with pytest.raises(DeliveryFailed, match="late"), producer.transaction():
            producer.send(topic, b"never", partition=0).result(120)
            raise RuntimeError("changed my mind")
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
    assert committed(cluster, reader, topic) == [b"a"]


def test_an_interrupt_in_a_transaction_is_raised_though_its_abort_is_not_answered(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that tries again after a DeliveryFailed would not have ended by Ctrl-C."""
    unanswered(monkeypatch, 1)
    with Producer(settings(cluster, "async", transactional_id="interrupted", queue_buffering_max_ms=10)) as producer:
        with pytest.raises(KeyboardInterrupt) as raised, producer.transaction():
            producer.send(topic, b"never", partition=0).result(120)
            raise KeyboardInterrupt
        assert "late" in "".join(raised.value.__notes__)
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
    assert committed(cluster, reader, topic) == [b"a"]


@pytest.mark.parametrize("step", ["commit", "abort"])
def test_an_interrupt_as_a_transaction_has_just_ended_is_not_in_the_way_of_the_next(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook whose cell is run again. The end that was answered was asked for again, and refused, for good."""
    with Producer(settings(cluster, "async", transactional_id=f"just-{step}", queue_buffering_max_ms=10)) as producer:
        call = producer._thread.call

        def interrupted(coroutine: Any, timeout_seconds: float) -> None:
            call(coroutine, timeout_seconds)
            assert coroutine.__name__ == step
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), producer.transaction():
            producer.send(topic, b"a", partition=0).result(120)
            monkeypatch.setattr(producer._thread, "call", interrupted)
            if step == "abort":
                raise RuntimeError
        monkeypatch.undo()
        with producer.transaction():
            producer.send(topic, b"b", partition=0)
    assert committed(cluster, reader, topic) == [b"a"] * (step == "commit") + [b"b"]


def test_a_commit_that_no_one_knows_of_is_asked_for_again_by_the_next_transaction(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered(monkeypatch, 1)
    monkeypatch.setattr("ottla.client.producer._CLOSE_SECONDS", 0.0)
    with Producer(settings(cluster, "async", transactional_id="in-doubt", queue_buffering_max_ms=10)) as producer:
        with pytest.raises(DeliveryFailed, match="late"), producer.transaction():
            producer.send(topic, b"a", partition=0).result(120)
        with producer.transaction():
            producer.send(topic, b"b", partition=0).result(120)
    assert committed(cluster, reader, topic) == [b"a", b"b"]


def test_a_producer_whose_transactional_id_another_has_taken_over_writes_nothing_more(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    """KIP-98: the former one is fenced, at its first message or at the commit, and so for good."""
    more = {"transactional_id": "taken-over", "queue_buffering_max_ms": 1}
    with Producer(settings(cluster, "async", **more)) as former, Producer(settings(cluster, "async", **more)) as latter:
        for _ in range(2):
            with pytest.raises(DeliveryFailed), former.transaction():
                former.send(topic, b"never", partition=0)
        with latter.transaction():
            latter.send(topic, b"a", partition=0)
    assert committed(cluster, reader, topic) == [b"a"]


def test_a_failed_delivery_surfaces_at_result_or_at_flush(cluster: EmbeddedCluster) -> None:
    nowhere = ProducerSettings(broker_list="127.0.0.1:1", producer_type="async", message_timeout_ms=50, queue_buffering_max_ms=1)
    producer = Producer(nowhere)
    with pytest.raises(DeliveryFailed, match="timed out"):
        producer.send("clicks", b"a").result(120)
    producer.flush()
    producer.send("clicks", b"a")
    with pytest.raises(DeliveryFailed, match="1 sends have failed"):
        producer.close()


def test_a_failure_of_another_thread_s_send_during_a_flush_is_said_by_the_next() -> None:
    class Meanwhile(Delivery):
        @property
        def error(self) -> DeliveryFailed | None:
            Delivery(producer._outgoing).failed(DeliveryFailed("late", -1), 0)  # as another thread may have it
            return super().error

    with Producer(ProducerSettings(broker_list="127.0.0.1:1", producer_type="async")) as producer:
        Meanwhile(producer._outgoing).failed(DeliveryFailed("first", -1), 0)
        for message in ("first", "late"):
            with pytest.raises(DeliveryFailed, match=message):
                producer.flush()


def test_a_delivery_is_done_without_another_call(cluster: EmbeddedCluster, topic: str) -> None:
    """Deliveries are asked for every fifty messages only, and by whoever wants to know."""
    with Producer(settings(cluster, "async", queue_buffering_max_ms=1)) as producer:
        delivery = producer.send(topic, b"a")
        end = time.monotonic() + 60
        while not delivery.is_done:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("handler", [None, CallbackHandler()])
def test_what_comes_before_a_message_that_cannot_be_encoded_is_sent(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, handler: CallbackHandler | None
) -> None:
    with Producer(settings(cluster, "async"), encoder=str.encode, callback_handler=handler) as producer:
        with pytest.raises(TypeError):
            producer.send(topic, ["a", b"no text", "b"], partition=0)
        producer.flush()
    assert written(reader, topic, 0) == [b"a"]


@pytest.mark.parametrize("handler", [None, CallbackHandler()])
def test_an_encoder_that_ends_by_stop_iteration_has_failed(cluster: EmbeddedCluster, topic: str, handler: CallbackHandler | None) -> None:
    """As `next` does that finds nothing: by that an iterator over the encoded values would end, as if there were no more of them."""

    def code_of(value: bytes) -> bytes:
        return next(code for name, code in ((b"a", b"1"),) if name == value)

    with Producer(settings(cluster, "async"), encoder=code_of, callback_handler=handler) as producer:
        with pytest.raises(RuntimeError, match="StopIteration"):
            producer.send(topic, [b"a", b"b", b"a"], partition=0)
        producer.flush()


def test_a_full_queue_waits_as_long_as_it_is_told() -> None:
    nowhere = ProducerSettings(
        broker_list="127.0.0.1:1", producer_type="async", queue_size=2, queue_enqueue_timeout_ms=30, message_timeout_ms=5_000
    )
    for handler in (None, CallbackHandler()):
        producer = Producer(nowhere, callback_handler=handler)
        with pytest.raises(QueueFull, match="2 messages"):
            producer.send("clicks", [b"a"] * 10)
        with pytest.raises((TimeoutError, DeliveryFailed)):
            producer.close(0.1)


@pytest.mark.parametrize("handler", [None, CallbackHandler()])
def test_what_fills_the_queue_does_not_wait_for_more_to_go_with(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, handler: CallbackHandler | None
) -> None:
    """No more can come, so each `queue.size` messages waited for `queue.time`. As of Kafka's accumulator when its memory is exhausted."""
    small = settings(cluster, "async", queue_size=4, queue_buffering_max_ms=60_000, queue_enqueue_timeout_ms=30_000)
    with Producer(small, callback_handler=handler) as producer:
        for number in range(11):
            producer.send(topic, b"%d" % number, partition=0)
    assert written(reader, topic, 0) == [b"%d" % number for number in range(11)]


def test_properties_of_07_and_08_are_read_and_unknown_ones_refused(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    with Producer.from_properties(
        {
            "broker.list": f"0:{cluster.bootstrap_servers}, 1:127.0.0.1:1",  # as 0.7 has it, with the brokers' ids
            "producer.type": "async",
            "queue.time": "10",
            "queue.size": "100",
            "batch.size": "20",
            "compression.codec": "1",
            "serializer.class": "os:fsencode",
            "request.required.acks": "-1",
        }
    ) as producer:
        producer.send(topic, ["a"], partition=0)
    assert written(reader, topic, 0) == [b"a"]
    defaults = ProducerSettings(broker_list="a:1")
    assert (defaults.queue_buffering_max_ms, defaults.queue_size, defaults.batch_size) == (5000, 10000, 200)
    for wrong, message in (
        ({"broker.list": "a:1", "queue.tim": "1"}, r"did you mean 'queue\.time'"),
        ({}, "one of the two is needed"),
        ({"broker.list": "a:1", "request.required.acks": "0"}, "idempotence and transactions need -1"),
        ({"broker.list": "a:1", "serializer.class": "nowhere"}, "serializer.class"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Producer.from_properties(wrong)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("producer_type", "Sync", r"producer\.type = 'Sync': must be one of sync, async; did you mean 'sync'"),
        ("enable_idempotence", "false", "not of the type bool"),
        ("request_required_acks", "all", "not of the type int"),
        ("request_required_acks", 2, "must be at most 1"),
        ("broker_list", ["127.0.0.1:1"], r"broker\.list = .*: not of the type str"),
        ("compression_codec", "lzo", "must be one of none, gzip, snappy"),
        ("compression_codec", None, "not of the type str"),
        ("queue_size", 0, "must be at least 1"),
    ],
)
def test_what_a_program_sets_is_judged_as_what_a_file_says(name: str, value: object, complaint: str) -> None:
    """Taken as it was, "Sync" made a producer asynchronous."""
    given: dict[str, Any] = {"broker_list": "127.0.0.1:1", name: value}
    with pytest.raises(ConfigurationError, match=complaint):
        Producer(ProducerSettings(**given))


def test_what_a_file_of_07_or_08_tunes_in_vain_is_said_and_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    names = [
        "message.send.max.retries",
        "topic.metadata.refresh.interval.ms",
        "send.buffer.bytes",
        "connect.timeout.ms",
        "socket.timeout.ms",
        "reconnect.interval",
        "max.message.size",
        "zk.read.num.retries",
    ]
    given = {"broker.list": "127.0.0.1:1", "compressed.topics": "clicks", "key.serializer.class": "os:fsencode"}
    with Producer.from_properties(given | dict.fromkeys(names, "1")) as producer:
        assert producer._key_encoder is os.fsencode
    assert {record.args[0] for record in caplog.records if "has no effect" in record.msg} == {*names, "compressed.topics"}  # type: ignore[index]


def test_a_forked_child_is_refused(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer(settings(cluster)) as producer:
        said = said_in_child(lambda: producer.send(topic, b"a"))
    assert re.match(f"ClientClosed.*process {os.getpid()}, of which this is a forked child", said)


def test_a_forked_child_does_not_wait_for_what_its_parent_has_sent() -> None:
    producer = Producer(ProducerSettings(broker_list="127.0.0.1:1", producer_type="async"))
    delivery = producer.send("clicks", b"a")
    assert said_in_child(lambda: delivery.result(1)).startswith("ClientClosed")
    with pytest.raises(TimeoutError):
        producer.close(0)


@pytest.mark.parametrize("handler", ["None", "CallbackHandler()"])
def test_a_program_that_ends_without_a_close_is_told_what_that_costs(handler: str) -> None:
    program = f"""
from ottla.client import Producer, ProducerSettings
from ottla.client.producer_handlers import CallbackHandler
settings = ProducerSettings(broker_list="127.0.0.1:1", producer_type="async")
closed = Producer(settings)
closed.close()
Producer(settings, callback_handler={handler}).send("clicks", [b"a", b"b", b"c"])
producer = Producer(settings, callback_handler={handler})
producer.send("clicks", [b"a", b"b"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    lost = re.findall(r"^ottla: (?:[23] messages are lost: the producer was not closed|1 sends have failed)", ended.stderr, re.MULTILINE)
    assert len(lost) == 2


def test_bytes_text_and_nothing_are_messages_and_anything_else_is_refused(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    with Producer(settings(cluster)) as producer:
        producer.send(topic, ["text", b"bytes", bytearray(b"array"), memoryview(b"view"), None], partition=0, headers=[("h", "text")])
        for messages in (1, [b"taken", 1, b"not"]):
            with pytest.raises(TypeError, match="and not int"):
                producer.send(topic, messages, partition=0)
        with pytest.raises(TypeError, match="and not float"):
            producer.send(topic, b"a", key=1.5)
        with pytest.raises(TypeError, match="and not bytes"):
            producer.send(topic.encode(), b"a")  # type: ignore[arg-type]  # as a program may
        producer.flush()
    assert written(reader, topic, 0) == [b"text", b"bytes", b"array", b"view", None, b"taken"]
    assert next(iter(reader.fetch(topic, 0, 0))).headers == (("h", b"text"),)


@pytest.mark.parametrize("headers", [{"id": b"1"}, {"name": b"1"}, ["id"], "id", [(b"id", b"1")], [("id",)], [("id", b"1", b"2")]])
def test_headers_that_are_no_pairs_are_refused(cluster: EmbeddedCluster, topic: str, headers: Any) -> None:
    """A mapping's names of two letters were taken apart: {"id": b"1"} was written as ("i", b"d")."""
    with Producer(settings(cluster)) as producer, pytest.raises(TypeError, match="a header is a pair of a str and a value, and not "):
        producer.send(topic, b"a", headers=headers)


def test_a_topic_and_a_partition_that_are_not_there_are_said_and_cost_no_other_message(
    reader: SimpleConsumer, topic: str, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sender, "_TOPIC_SECONDS", 0.2)
    with (
        EmbeddedCluster(settings={"auto.create.topics.enable": "false"}, topics={"there": 2}) as strict,
        Producer(settings(strict, "async", queue_buffering_max_ms=5)) as producer,
    ):
        nowhere, beyond = producer.send("nowhere", [b"a", b"b"]), producer.send("there", b"c", partition=2)
        there = producer.send("there", b"d")
        for delivery, said in ((nowhere, "nowhere"), (beyond, "there has 2 partitions, and none of number 2")):
            with pytest.raises(DeliveryFailed, match=said) as raised:
                delivery.result(60)
            assert raised.value.code == 3
        assert len(there.result(60)) == 1
        with pytest.raises(DeliveryFailed):
            producer.send("nowhere", b"asked for once more").result(60)
    with Producer(settings(cluster)) as producer:  # where brokers make topics
        assert producer.send("made-for-it", b"a").result()[0][1] == 0


@pytest.mark.parametrize("handler", [None, CallbackHandler()])
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"partition": "1"}, TypeError),
        ({"partition": -2}, InvalidPartition),
        ({"timestamp_ms": 1_700_000_000_000.5}, TypeError),
        ({"timestamp_ms": 1 << 63}, ValueError),
        ({"timestamp_ms": -(1 << 63)}, ValueError),
    ],
)
def test_a_number_that_is_no_partition_and_no_timestamp_costs_no_other_message(
    cluster: EmbeddedCluster,
    reader: SimpleConsumer,
    topic: str,
    wrong: dict[str, Any],
    error: type[Exception],
    handler: CallbackHandler | None,
) -> None:
    """Whole batches failed, and what waited for the topic's partitions was lost without a word."""
    with Producer(settings(cluster, "async"), callback_handler=handler) as producer:
        for _ in range(2):  # before and after the partitions are known
            good = [producer.send(topic, b"a", partition=1)]
            if handler is None:
                with pytest.raises(error):
                    producer.send(topic, b"wrong", **{"partition": 1, **wrong})
            else:
                bad = producer.send(topic, b"wrong", **{"partition": 1, **wrong})
            good.append(producer.send(topic, b"b", partition=1))
            with suppress(DeliveryFailed):
                producer.flush()
            assert [len(delivery.result(0)) for delivery in good] == [1, 1]
            if handler is not None:
                with pytest.raises(DeliveryFailed, match=error.__name__):
                    bad.result(0)
        assert producer._outgoing.left == 0
    assert written(reader, topic, 1) == [b"a", b"b"] * 2


def test_messages_stay_in_order_behind_one_whose_partition_is_not_there(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str
) -> None:
    """What is sent while the partitions are looked for again waits for that; what came later went into a batch that was still open."""
    with Producer(settings(cluster, "async")) as producer:
        producer.send(topic, b"0", partition=0)
        producer.flush()
        producer.send(topic, b"1", partition=0)
        beyond = producer.send(topic, b"x", partition=99)
        producer.send(topic, [b"2", b"3"], partition=0)
        producer.send(topic, b"4", partition=0)
        with pytest.raises(DeliveryFailed, match="none of number 99"):
            beyond.result(60)
    assert written(reader, topic, 0) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_may_go_while_a_message_of_it_is_put_into_a_batch(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`send` raised a KeyError then, and the message's room in the queue was never given back."""
    with Producer(settings(cluster, "async")) as producer:
        producer.send(topic, b"a")
        producer.flush()
        sender = producer._sender
        assert sender is not None

        class Going(dict[str, int]):
            def get(self, name: str, default: Any = None) -> Any:
                found = super().get(name, default)
                assert sender is not None
                sender._cluster.metadata.forget(name)
                hearing = threading.Thread(target=sender._count, args=((name,),))
                hearing.start()
                hearing.join(0.2)  # it waits for the `put`
                return found

        monkeypatch.setattr(producer._outgoing, "counts", Going(producer._outgoing.counts))
        delivery = producer.send(topic, b"b")
        monkeypatch.setattr(producer._outgoing, "counts", dict(producer._outgoing.counts))
        producer.flush()
        assert len(delivery.result(0)) == 1


def test_a_name_that_no_topic_can_have_fails_its_own_messages(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer(settings(cluster, "async", queue_buffering_max_ms=1)) as producer:
        for name in ("no such name!", "n" * 40_000):
            with pytest.raises(DeliveryFailed) as raised:
                producer.send(name, b"a").result(60)
            assert (raised.value.code, len(str(raised.value)) < 1_000) == (17, True)
        assert producer.send(topic, b"a").result(60)


def test_a_name_that_no_topic_can_have_fails_no_message_of_a_topic_that_is_looked_for_at_once(cluster: EmbeddedCluster, topic: str) -> None:
    """One request asks for both."""
    with Producer(settings(cluster, "async", queue_buffering_max_ms=1)) as producer:
        with producer._outgoing.lock:
            named, unnamed = producer.send(topic, b"a"), producer.send("no-utf-8-\udcff", b"a")
        with pytest.raises(DeliveryFailed, match="InvalidTopic"):
            unnamed.result(60)
        assert named.result(60)


def test_a_list_may_be_changed_behind_its_send(cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str) -> None:
    """Also the first one to a topic, which waits until its partitions are known."""
    with Producer(settings(cluster, "async")) as producer:
        for number in range(2):
            messages = [b"a", b"%d" % number]
            producer.send(topic, messages, partition=0)
            messages.clear()
            producer.flush()
    assert written(reader, topic, 0) == [b"a", b"0", b"a", b"1"]


def test_threads_that_send_at_once_each_keep_their_order(cluster: EmbeddedCluster, reader: SimpleConsumer) -> None:
    topic = cluster.create_topic("threads", partitions=4)
    with Producer(settings(cluster, "async", batch_size=7, queue_size=100, queue_buffering_max_ms=1)) as producer:

        def send(partition: int) -> None:
            for number in range(500):
                producer.send(topic, [b"%d" % number] if number % 3 else b"%d" % number, partition=partition)

        threads = [threading.Thread(target=send, args=(partition,)) for partition in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for partition in range(4):
        assert written(reader, topic, partition) == [b"%d" % number for number in range(500)]


def test_a_broker_that_is_silent_is_asked_again_after_the_time_of_a_request() -> None:
    """`request.timeout.ms`, of which a broker that takes connections and answers nothing is given one attempt each."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as taken:
        nowhere = ProducerSettings(
            broker_list=f"127.0.0.1:{silent.getsockname()[1]}", producer_type="async", request_timeout_ms=100, message_timeout_ms=3_000
        )
        silent.settimeout(60)
        with Producer(nowhere) as producer:
            delivery = producer.send("clicks", b"a")
            for _ in range(3):
                taken.enter_context(silent.accept()[0])
            with pytest.raises(DeliveryFailed, match="timed out after 3 s"):
                delivery.result(60)


@pytest.mark.parametrize("acks", [-1, 1])
def test_what_is_sent_while_a_broker_is_away_is_written_once_and_in_order_when_it_is_back(acks: int) -> None:
    with EmbeddedCluster(topics={"away": 1}) as alone:
        more = {"request_required_acks": acks, "enable_idempotence": acks == -1, "queue_buffering_max_ms": 1, "batch_size": 10}
        with Producer(settings(alone, "async", **more)) as producer:
            producer.send("away", b"0").result(60)
            alone.stop_broker(1)
            for number in range(1, 200):
                producer.send("away", b"%d" % number)
            alone.start_broker(1)
        with SimpleConsumer(alone.bootstrap_servers) as consumer:
            assert written(consumer, "away", 0) == [b"%d" % number for number in range(200)]


def test_messages_without_a_key_go_to_partitions_that_have_a_leader() -> None:
    """As of Kafka's clients: those of a partition whose only replica is away would fail when their time is over."""
    with EmbeddedCluster(brokers=2) as both:
        topic = both.create_topic("half", partitions=4)
        led = [number for number in range(4) if both.leader(topic, number) == 1]
        more = {"message_timeout_ms": 3_000, "queue_buffering_max_ms": 1}
        with Producer(settings(both, "async", **more)) as producer:
            for number in range(4):
                producer.send(topic, b"a", partition=number).result(60)
            both.stop_broker(2)
            for number in range(4):
                if number not in led:
                    with pytest.raises(DeliveryFailed):
                        producer.send(topic, b"b", partition=number).result(60)
            producer.send(topic, b"c", partition=led[0]).result(60)
            for _ in range(20):
                ((partition, _),) = producer.send(topic, b"d").result(60)
                assert partition.partition in led
        with Producer(settings(both, "async", **more)) as producer:  # which knows nothing yet
            for _ in range(20):
                producer.send(topic, b"e").result(60)


def test_a_batch_that_is_full_at_once_is_tried_for_all_of_its_time() -> None:
    """It failed earlier by the time that it could have waited for other messages, with which its time begins."""
    with (
        EmbeddedCluster(topics={"away": 1}) as alone,
        Producer(settings(alone, "async", message_timeout_ms=2_000, batch_size=1)) as producer,
    ):
        producer.send("away", b"0").result(60)
        alone.stop_broker(1)
        begin = time.monotonic()
        with pytest.raises(DeliveryFailed, match="timed out after 2 s"):
            producer.send("away", b"1").result(60)
        assert time.monotonic() >= begin + 2


def test_a_producer_whose_id_is_refused_continues_with_another(
    cluster: EmbeddedCluster, reader: SimpleConsumer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that was on its way has failed; a program that continues to send need not open another producer."""
    with Producer(settings(cluster)) as producer:
        producer.send(topic, b"a", partition=0)
        sender = producer._sender
        assert sender is not None
        assert sender._producer is not None
        sender._loop.call_soon_threadsafe(sender._producer.end, InvalidProducerEpoch("no epoch is left"))
        producer.send(topic, b"b", partition=0)
    assert written(reader, topic, 0) == [b"a", b"b"]
    assert "continuing with another producer id" in caplog.text
