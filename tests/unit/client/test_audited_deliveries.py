"""An audited producer, however messages are given to it: it says what an audited consumer has, and calls each callback."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.serialization import StringDeserializer, StringSerializer

from ottla.client import Producer, ProducerSettings, SimpleConsumer
from ottla.client.audited_clients import _CONNECTION, audited
from ottla.client.auditing import Audit, OutgoingAudit, new_session
from ottla.client.errors import DeliveryFailed
from ottla.client.outgoing import Delivery, Outgoing
from ottla.client.producer_handlers import CallbackHandler
from ottla.clock import SystemClock
from ottla.record.audit_records import TOPIC, AuditRecord, Tally
from ottla.testing.cluster import EmbeddedCluster
from ottla.wire.producing import BaseOffset

NUMBERS = count()
MINUTE = 60_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(data_directory=tmp_path_factory.mktemp("audited")) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    return cluster.create_topic(f"topic-{next(NUMBERS)}", partitions=3)


def client(cluster: EmbeddedCluster, kind: type[Any], settings: dict[str, Any]) -> Any:
    """One that reports at its close, and when a test asks for it."""
    return audited(kind)({"bootstrap.servers": cluster.bootstrap_servers, "ottla.audit.report.interval.ms": 600_000, **settings})


def sender(cluster: EmbeddedCluster, settings: dict[str, Any] | None = None, kind: type[Any] = confluent_kafka.Producer) -> Any:
    return client(cluster, kind, settings or {})


def records_of(audited_client: Any, *, is_final: bool = False) -> list[AuditRecord]:
    return list(audited_client.audit.records(int(time.time() * 1000), is_final=is_final))


def said(audited_client: Any) -> dict[str, Tally]:
    """What it says of each topic, windows and partitions added up."""
    return said_by(audited_client.audit)


def said_by(audit: Audit, *, is_final: bool = False) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for record in audit.records(int(time.time() * 1000), is_final=is_final):
        for tally in record.windows.values():
            found.setdefault(record.topic, Tally()).merge(tally)
    return found


def counts(tally: Tally) -> tuple[int, int, int, int]:
    return tally.attempted, tally.acknowledged, tally.failed, tally.count


def had(cluster: EmbeddedCluster, topic: str, number: int, kind: type[Any] = confluent_kafka.Consumer, **settings: Any) -> Tally:
    """What a consumer says that has read so many messages, and no more come."""
    consumer = client(cluster, kind, {"group.id": topic, "auto.offset.reset": "earliest", **settings})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    try:
        while number:
            assert time.monotonic() < deadline, f"{number} messages are missing"
            number -= consumer.poll(1.0) is not None
        assert consumer.poll(0.2) is None
        return said(consumer)[topic]
    finally:
        consumer.close()


def evidence(tally: Tally) -> tuple[Any, ...]:
    return tally.count, tally.size, tally.offsets, tally.content, tally.placed, tally.sketch


def test_whatever_keys_and_values_there_are_both_ends_have_the_same(cluster: EmbeddedCluster, topic: str) -> None:
    """Null, empty and text, of two topics by turns, more than are read at once; then large ones, of which none waits."""
    other = cluster.create_topic(f"{topic}-other", partitions=3)
    producer = sender(cluster)
    data = [None, b"", b"bytes", "text", "x" * 5_000]
    for number in range(3_000):
        value = data[number % 5] if number < 2_900 else b"y" * 200_000
        producer.produce((topic, other)[number % 2], value, data[number // 5 % 5], timestamp=0 if number % 7 else MINUTE + number)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not producer.audit.deliveries.messages  # the last one was large
    sent = said(producer)
    for name in (topic, other):
        assert counts(sent[name]) == (1_500, 1_500, 0, 1_500)
        assert evidence(sent[name]) == evidence(had(cluster, name, 1_500))
    producer.close_audit()


def test_a_report_while_threads_send_and_poll_loses_no_message_and_no_callback(cluster: EmbeddedCluster, topic: str) -> None:
    """Of three windows by turns, with a callback of each message's own or one for all."""
    producer = sender(cluster)
    told: Counter[str] = Counter()
    both = told.update

    def send(name: str) -> None:
        def shared(_: Any, message: Any) -> None:
            both([message.value().decode()])

        for number in range(2_000):
            then = shared if number % 2 else partial(lambda expected, _, message: both([expected]), name)
            producer.produce(topic, name, on_delivery=then, timestamp=(1 + number % 3) * MINUTE)
            if number % 50 == 0:
                producer.poll(0)

    threads = [threading.Thread(target=send, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    total = Tally()
    while any(thread.is_alive() for thread in threads):
        total.merge(said(producer).get(topic, Tally()))
        time.sleep(0.001)
    assert producer.flush(60) == 0
    (*_, last) = records = records_of(producer, is_final=True)
    for record in records:
        for tally in record.windows.values():
            total.merge(tally)
    assert counts(total) == (8_000, 8_000, 0, 8_000)
    assert last.watermark_ms > MINUTE * 1_000  # nothing is on its way
    assert told == {str(number): 2_000 for number in range(4)}
    assert evidence(total) == evidence(had(cluster, topic, 8_000))
    producer.close_audit()


def test_what_a_transaction_had_is_on_its_way_until_it_ends(cluster: EmbeddedCluster, topic: str) -> None:
    """More than is read at once; a report comes in between. What was aborted counts for nothing."""
    producer = sender(cluster, {"transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(1_500):
            producer.produce(topic, b"%d" % number, timestamp=5 * MINUTE + number)
        assert producer.flush(60) == 0
        (waiting,) = records_of(producer)
        assert (dict(waiting.windows), waiting.watermark_ms <= 5 * MINUTE) == ({}, True)
        end(30)
    sent = said(producer)[topic]
    assert counts(sent) == (1_500, 1_500, 0, 1_500)
    assert evidence(sent) == evidence(had(cluster, topic, 1_500))
    assert [record.windows for record in records_of(producer, is_final=True)] == [{}]  # nothing is on its way
    producer.close_audit()


def test_a_window_holds_the_watermark_again_after_it_was_empty_at_a_report(cluster: EmbeddedCluster, topic: str) -> None:
    """Messages of long ago, as of a file that is read. Windows that no message follows in are forgotten."""
    producer = sender(cluster)
    for minute in range(50):
        producer.produce(topic, b"v", timestamp=minute * MINUTE)
    assert producer.flush(60) == 0
    audit = producer.audit
    assert said(producer)[topic].acknowledged == 50
    assert list(audit._topics[topic].ways) == [49 * MINUTE]
    fresh = sender(cluster, {"linger.ms": 100_000})
    fresh.produce(topic, b"v", timestamp=MINUTE)
    fresh.purge()
    assert fresh.flush(60) == 0
    for times in (1, 2):
        assert [sum(tally.failed for tally in record.windows.values()) for record in fresh.audit.records(0)] == [2 - times]
    fresh.produce(topic, b"v", timestamp=MINUTE)
    (record,) = records_of(fresh)
    assert (record.watermark_ms, fresh.audit._topics[topic].on_their_way()) == (MINUTE, {MINUTE: 1})
    for one in (producer, fresh):
        one.close_audit(0.1)


def test_a_message_that_fails_is_counted_where_it_was_attempted(cluster: EmbeddedCluster, topic: str) -> None:
    told: list[int] = []
    producer = sender(cluster, {"linger.ms": 100_000})
    producer.produce(topic, b"v", timestamp=7 * MINUTE, callback=lambda error, _: told.append(error.code()))
    producer.purge()
    producer.flush(60)
    (record,) = records_of(producer)
    assert {start: counts(tally) for start, tally in record.windows.items()} == {7 * MINUTE: (1, 0, 1, 0)}
    assert told == [confluent_kafka.KafkaError._PURGE_QUEUE]
    producer.close_audit()


def test_offsets_that_brokers_do_not_say_end_no_report(cluster: EmbeddedCluster, topic: str) -> None:
    """acks=0: confluent-kafka gives None for them. The reporter died of it, and nothing was said of any topic any more."""
    producer = sender(cluster, {"acks": 0})
    for _ in range(10):
        producer.produce(topic, b"v")
    assert producer.flush(60) == 0
    sent = said(producer)[topic]
    assert (counts(sent), sent.offsets, sent.placed, sent.content is None) == ((10, 10, 0, 10), None, None, False)
    assert sent.content == had(cluster, topic, 10).content
    producer.close_audit()


@pytest.mark.parametrize("topic", [None, "\ud800"])
def test_what_is_sent_to_no_topic_ends_no_report(cluster: EmbeddedCluster, topic: Any) -> None:
    """An application may catch what `produce` raises; the record of such a topic could not be encoded, and no other one was written."""
    producer = sender(cluster)
    for produce in (producer.produce, lambda topic, value: producer.produce_batch(topic, [{"value": value}])):
        with pytest.raises((TypeError, ValueError)):
            produce(topic, b"v")
    assert records_of(producer) == []
    producer.close_audit()


@pytest.mark.parametrize("headers", [None, {"page": b"7"}, [("page", b"7")]])
def test_a_message_says_which_host_sent_it_beside_its_own_headers(cluster: EmbeddedCluster, topic: str, headers: Any) -> None:
    settings = {"ottla.audit.host": "web-1", "ottla.audit.host.header": "server"}
    own, stamp = ([("page", b"7")] if headers else []), ("server", b"web-1")
    producer = sender(cluster, settings)
    producer.produce(topic, b"v", partition=0, headers=headers)
    with pytest.raises(ValueError, match="produce_batch"):
        producer.produce_batch(topic, [{"value": b"without a header"}])
    assert producer.close_audit() == 0
    for producer_type, handler in (("sync", None), ("async", None), ("async", CallbackHandler())):
        paper = ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type=producer_type)
        with Producer(paper, audit=settings, callback_handler=handler) as sending:
            for _ in range(2):  # what is sent most goes another way once its batch is there
                sending.send(topic, b"v", partition=0, headers=list(own))
    with SimpleConsumer(cluster.bootstrap_servers) as reader:
        assert [list(message.headers) for message in reader.fetch(topic, 0, 0)] == [[*own, stamp]] * 7


@pytest.mark.parametrize("headers", [None, {"page": b"7"}, [("page", b"7")]])
def test_each_message_gets_an_id_that_has_none_and_is_counted_by_it(cluster: EmbeddedCluster, topic: str, headers: Any) -> None:
    """A producer of one message, of a hundred by one call, and with a handler; what has an id keeps it. By one value, they would be one."""
    settings, own = {"ottla.audit.id.header": "true", "ottla.audit.host.header": "server"}, [("page", b"7")] if headers else []
    name, told = ("ottla-id", b"0123456789abcdef"), []
    total = Tally()
    producer = sender(cluster, settings)
    for number in range(9):
        producer.produce(topic, b"v", on_delivery=lambda _, message: told.append(message.headers()), headers=headers, timestamp=1)
        producer.produce(topic, b"%d" % number, headers=[*own, name], timestamp=1 + number)  # 0 is now, before which a segment ends
    with pytest.raises(ValueError, match="produce_batch"):
        producer.produce_batch(topic, [{"value": b"without a header"}])
    assert producer.flush(60) == 0
    total.merge(said(producer)[topic])
    producer.close_audit()
    assert len({dict(some)["ottla-id"] for some in told}) == 9
    for producer_type, handler in (("sync", None), ("async", None), ("async", CallbackHandler())):
        paper = ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type=producer_type, queue_buffering_max_ms=10)
        with Producer(paper, audit={**settings, "ottla.audit.report.interval.ms": 600_000}, callback_handler=handler) as sending:
            assert len(sending.send(topic, [b"v"] * 100, headers=own, timestamp_ms=1).result(60)) == 100
            sending.send(topic, b"v", headers=own, timestamp_ms=1).result(60)
            sending.send(topic, [b"v"] * 2, headers=[*own, name], timestamp_ms=1).result(60)
            total.merge(said_by(audit_of(sending))[topic])
    for consumer in (confluent_kafka.Consumer, _InBatches):
        group = {"group.id": consumer.__name__}
        assert evidence(total) == evidence(had(cluster, topic, 18 + 3 * 103, consumer, **group))
    with SimpleConsumer(cluster.bootstrap_servers) as reader:
        found = [message for partition in range(3) for message in reader.fetch(topic, partition, 0)]
    ids = [dict(message.headers)["ottla-id"] for message in found]
    assert (len(set(ids)), ids.count(name[1])) == (9 + 3 * 101 + 1, 9 + 6)
    assert all([one for one in message.headers if one[0] == "page"] == own for message in found)


def test_a_producer_that_puts_no_id_on_messages_counts_those_that_have_one_by_it(cluster: EmbeddedCluster, topic: str) -> None:
    """What a system beyond has changed is the same message: digests without places are equal."""
    producer = sender(cluster)
    changed = cluster.create_topic(f"{topic}-changed", partitions=3)
    for number in range(40):
        name = b"%016d" % number if number % 2 else f"{number:016d}"
        producer.produce(topic, b"%d" % number, headers={"ottla-id": name}, timestamp=MINUTE)
        producer.produce(changed, b"changed", b"key", headers=[("ottla-id", name)], timestamp=MINUTE + 7)
    assert producer.flush(60) == 0
    sent = said(producer)
    assert sent[topic].content == sent[changed].content
    producer.close_audit()
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), audit={"ottla.audit.report.interval.ms": 600_000}) as paper:
        third = cluster.create_topic(f"{topic}-third", partitions=3)
        for number in range(40):
            paper.send(third, b"%d" % -number, headers=[("ottla-id", b"%016d" % number)])
        assert said_by(audit_of(paper))[third].content == sent[topic].content == had(cluster, third, 40).content
    assert sent[changed].content == had(cluster, changed, 40, _InBatches).content


@pytest.mark.parametrize("headers", [5, [5], [("a",)], "text"])
def test_headers_that_are_none_are_refused_as_confluent_kafka_refuses_them(cluster: EmbeddedCluster, topic: str, headers: Any) -> None:
    producer, plain = sender(cluster), confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    with pytest.raises((TypeError, ValueError)) as expected:
        plain.produce(topic, b"v", headers=headers)
    with pytest.raises(type(expected.value)):
        producer.produce(topic, b"v", headers=headers)
    assert producer.close_audit() == 0


class _InBatches(confluent_kafka.Consumer):
    """Whose `poll` reads many at once."""

    def poll(self, timeout: float = -1) -> Any:
        self._some = getattr(self, "_some", []) or self.consume(1_000, timeout)
        return self._some.pop() if self._some else None


def test_a_batch_of_messages_is_counted(cluster: EmbeddedCluster, topic: str) -> None:
    """`produce_batch`: it went past the audit, and the next tier had more than was attempted."""
    told: list[str] = []
    producer = sender(cluster, {"message.max.bytes": 10_000})
    messages: list[dict[str, Any]] = [{"value": b"%d" % number, "key": "k"} for number in range(9)]
    messages[4]["callback"] = lambda _, message: told.append("own")
    messages.append({"value": bytes(20_000)})
    assert producer.produce_batch(topic, messages, on_delivery=lambda _, message: told.append("all")) == 9
    assert [index for index, message in enumerate(messages) if "_error" in message] == [9]
    with pytest.raises(TypeError):
        producer.produce_batch(topic, [{"value": 1}])
    assert producer.flush(60) == 0
    assert Counter(told) == {"all": 8, "own": 1}
    sent = said(producer)[topic]
    assert counts(sent) == (9, 9, 0, 9)
    assert evidence(sent) == evidence(had(cluster, topic, 9))
    assert [record.windows for record in records_of(producer, is_final=True)] == [{}]  # nothing is on its way
    producer.close_audit()


def audit_of(producer: Producer) -> OutgoingAudit:
    assert producer._audit is not None
    return producer._audit


def paper(cluster: EmbeddedCluster, **settings: Any) -> Producer:
    """Ottla's own, which reports when a test asks for it."""
    given = ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type="async", **settings)
    return Producer(given, audit={"ottla.audit.report.interval.ms": 600_000})


def test_what_ottlas_own_producer_sends_is_counted(cluster: EmbeddedCluster, topic: str) -> None:
    """A message that is too large never was on its way, and its neighbours are; there is no room for all at once."""
    with paper(cluster, queue_size=50, queue_enqueue_timeout_ms=-1, queue_buffering_max_ms=10) as producer:
        producer.send(topic, [b"%d" % number for number in range(200)], key="k")
        with pytest.raises(DeliveryFailed, match="too large"):
            producer.send(topic, [b"before", bytes(2_000_000), b"behind"]).result()
        producer.send(topic, [b"with", None], headers=[("h", b"1")], timestamp_ms=5)
        producer.send(topic, b"one")
        producer.flush()
        sent = said_by(audit_of(producer))[topic]
        assert counts(sent) == (205, 205, 0, 205)
        assert evidence(sent) == evidence(had(cluster, topic, 205))
        assert said_by(audit_of(producer), is_final=True) == {}  # nothing is on its way


def test_what_ottlas_own_producer_has_on_its_way_holds_the_watermark_back_and_is_attempted_at_the_end(
    cluster: EmbeddedCluster, topic: str
) -> None:
    """Also of a topic whose partitions are not known, and of one that never comes to be there: that has failed."""
    with paper(cluster, queue_buffering_max_ms=60_000) as producer:
        producer.send(topic, [b"a", b"b"], timestamp_ms=70_000)
        producer.send(topic, b"c", partition=99)
        with pytest.raises(DeliveryFailed, match="none of number 99"):
            producer.flush()
        producer.send(topic, [b"d", b"e"], timestamp_ms=130_000)
        (record,) = [record for record in audit_of(producer).records(1_000_000) if record.partition >= 0]
        assert record.watermark_ms == 120_000
        final = [record for record in audit_of(producer).records(2_000_000, is_final=True) if record.windows]
        assert [(start_ms, tally.attempted) for record in final for start_ms, tally in record.windows.items()] == [(120_000, 2)]


def test_a_transaction_of_ottlas_own_producer_counts_at_its_commit(cluster: EmbeddedCluster, topic: str) -> None:
    with paper(cluster, transactional_id=topic, queue_buffering_max_ms=1) as producer:
        audit = audit_of(producer)
        with pytest.raises(RuntimeError), producer.transaction():
            producer.send(topic, [b"never", b"written"]).result(60)
            raise RuntimeError
        with producer.transaction():
            producer.send(topic, [b"a", b"b", b"c"]).result(60)
            assert said_by(audit) == {}
        assert counts(said_by(audit)[topic]) == (3, 3, 0, 3)


def test_what_a_transaction_of_ottlas_own_producer_has_written_holds_the_watermark_back(cluster: EmbeddedCluster, topic: str) -> None:
    """Written and not counted, as it is less than is counted at once: the first report was ahead of it, and its windows judged without."""
    with paper(cluster, transactional_id=topic, queue_buffering_max_ms=1) as producer:
        audit = audit_of(producer)
        with producer.transaction():
            for time_ms in (70_000, 130_000):
                producer.send(topic, b"a", timestamp_ms=time_ms).result(60)
                (record,) = audit.records(1_000_000)
                assert (dict(record.windows), record.watermark_ms) == ({}, MINUTE)
        assert sum(len(record.windows) for record in audit.records(1_000_000)) == 2


def test_a_batch_that_is_answered_as_its_transaction_is_aborted_counts_for_nothing_and_ends_no_report() -> None:
    """Its messages were taken away as the answer waited for a report: no report could be made after it, and no batch was ever done.

    Method: the sender's thread is held where the answer is counted until the application has aborted.
    """
    outgoing = Outgoing(10, 100, 60.0, SystemClock(), lambda: None)
    audit = OutgoingAudit(new_session("producer"), outgoing)
    audit.begin_transaction()
    outgoing.counts["clicks"] = 1
    outgoing.put("clicks", [b"a", b"b"], Delivery(outgoing), partition=0)
    (batch,) = outgoing.open.values()
    outgoing.close(batch)
    with audit._lock:
        answered = threading.Thread(target=audit.written, args=(batch, BaseOffset(0)))
        answered.start()
        outgoing.discard(DeliveryFailed("the transaction is aborted", -1))
    answered.join()
    audit.end_transaction(is_committed=False)
    assert said_by(audit) == said_by(audit, is_final=True) == {}


def test_the_times_that_brokers_give_are_those_that_are_counted(cluster: EmbeddedCluster) -> None:
    """`message.timestamp.type=LogAppendTime`: a content is one with its time, and each batch has its own."""
    topic = cluster.create_topic("stamped", partitions=1, settings={"message.timestamp.type": "LogAppendTime"})
    settings = ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type="async", batch_size=2, queue_buffering_max_ms=10)
    with Producer(settings, audit={"ottla.audit.report.interval.ms": 600_000, "ottla.audit.time": "append"}) as producer:
        for number in range(40):
            producer.send(topic, b"%d" % number, timestamp_ms=5)
        producer.flush()
        sent = said_by(audit_of(producer))[topic]
    assert evidence(sent) == evidence(had(cluster, topic, 40))


def test_the_callback_of_the_configuration_is_called(cluster: EmbeddedCluster, topic: str) -> None:
    """Ours was given to librdkafka in its place, for each message."""
    told: list[Any] = []
    producer = sender(cluster, {"on_delivery": lambda error, message: told.append(error)})
    producer.produce(topic, b"v")
    producer.produce(topic, b"v", on_delivery=lambda error, message: told.append("own"))
    assert producer.close_audit() == 0
    assert Counter(told) == {None: 1, "own": 1}


def test_who_wants_to_hear_of_errors_alone_is_counted_all_the_same(cluster: EmbeddedCluster, topic: str) -> None:
    """`delivery.report.only.error`: nothing was ever acknowledged."""
    told: list[Any] = []
    producer = sender(cluster, {"delivery.report.only.error": True, "linger.ms": 100_000})  # a flush does not wait for it
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(60) == 0
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    producer.purge()
    assert producer.flush(60) == 0
    assert [error.code() for error in told] == [confluent_kafka.KafkaError._PURGE_QUEUE]
    assert counts(said(producer)[topic]) == (2, 1, 1, 1)
    producer.close_audit()


def test_what_a_class_made_from_confluents_sends_is_counted_as_it_is_sent(cluster: EmbeddedCluster, topic: str) -> None:
    """Its `produce` has the key before the value: they were written the wrong way round. Its messages are read before they are decoded."""
    producer = sender(
        cluster, {"key.serializer": StringSerializer(), "value.serializer": StringSerializer()}, confluent_kafka.SerializingProducer
    )
    told: list[Any] = []
    producer.produce(topic, "key", "value", on_delivery=lambda _, message: told.append((message.key(), message.value())))
    producer.produce(topic, key="key", value="value", on_delivery=lambda _, message: told.append((message.key(), message.value())))
    assert producer.flush(60) == 0
    assert told == [(b"key", b"value")] * 2
    sent = said(producer)[topic]
    decoding: dict[str, Any] = {"key.deserializer": StringDeserializer(), "value.deserializer": StringDeserializer()}
    assert evidence(sent) == evidence(had(cluster, topic, 2, confluent_kafka.DeserializingConsumer, **decoding))
    producer.close_audit()


def test_messages_that_are_read_many_at_a_time_are_what_they_are_one_by_one(cluster: EmbeddedCluster, topic: str) -> None:
    """Of two topics, in the order in which they were given; few and many at once."""
    other = cluster.create_topic(f"{topic}-other", partitions=3)
    producer = sender(cluster)
    for number in range(900):
        producer.produce(
            (topic, other)[number % 2], None if number % 5 == 0 else b"%d" % number, key=None if number % 3 else b"%d" % number
        )
    assert producer.flush(60) == 0
    reports: list[list[AuditRecord]] = []
    for size in (1, 7, 500):
        consumer = client(cluster, confluent_kafka.Consumer, {"group.id": f"{topic}-{size}", "auto.offset.reset": "earliest"})
        consumer.subscribe([topic, other])
        given: dict[tuple[str, int], list[int]] = {}
        deadline = time.monotonic() + 60
        while sum(map(len, given.values())) < 900:
            assert time.monotonic() < deadline
            for message in consumer.consume(size, 0.5):
                given.setdefault((message.topic(), message.partition()), []).append(message.offset())
        assert all(offsets == list(range(len(offsets))) for offsets in given.values())
        reports.append(sorted(records_of(consumer), key=lambda record: (record.topic, record.partition)))
        consumer.close()
    for one, few, many in zip(*reports, strict=True):
        for more in (few, many):
            assert (more.topic, more.partition, more.first_offset, more.next_offset) == (
                one.topic,
                one.partition,
                one.first_offset,
                one.next_offset,
            )
            assert {start: evidence(tally) for start, tally in more.windows.items()} == {
                start: evidence(tally) for start, tally in one.windows.items()
            }
            assert sum(sum(tally.latencies.buckets.values()) for tally in more.windows.values()) == one.next_offset
    producer.close_audit()


def test_the_final_word_is_said_at_the_end_of_a_with(cluster: EmbeddedCluster, topic: str) -> None:
    with sender(cluster) as producer:
        producer.produce(topic, b"v")
    with client(cluster, confluent_kafka.Consumer, {"group.id": topic}) as consumer:
        pass
    for ended in (producer, consumer):
        assert not ended.audit_reporter._thread.is_alive()


@pytest.mark.parametrize("handler", [None, CallbackHandler()])
def test_a_producer_that_cannot_be_made_leaves_no_reporter_behind(monkeypatch: pytest.MonkeyPatch, handler: CallbackHandler | None) -> None:
    """Who tries again until there is a broker would have as many threads and connections as attempts."""
    monkeypatch.setattr("ottla.client.producer._ASKING_SECONDS", 0.1)
    settings = ProducerSettings(broker_list="127.0.0.1:1", producer_type="async", transactional_id=None if handler else "t")

    def refuse(settings: ProducerSettings) -> None:
        raise PermissionError

    if handler is not None:
        monkeypatch.setattr(handler, "init", refuse)
    before = set(threading.enumerate())
    with pytest.raises(PermissionError if handler else DeliveryFailed):
        Producer(settings, audit=True, callback_handler=handler)
    assert "ottla-audit" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_reports_reach_the_cluster_as_the_client_does(cluster: EmbeddedCluster, topic: str) -> None:
    """`metadata.broker.list` is librdkafka's other name for `bootstrap.servers`, and not all of TLS begins with `ssl.`."""
    ways = {"metadata.broker.list": cluster.bootstrap_servers, "enable.ssl.certificate.verification": False}
    producer: Any = audited(confluent_kafka.Producer)({**ways, "ottla.audit.report.interval.ms": 600_000})
    producer.produce(topic, b"value")
    assert producer.close_audit() == 0
    reporter = producer.audit_reporter
    assert (len(reporter._producer), len(reporter._waiting)) == (0, 0)
    assert reporter._connection == ways
    assert "oauth_cb".startswith(_CONNECTION)
