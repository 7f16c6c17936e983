"""confluent-kafka's clients, audited: what they report is judged COMPLETE, and a message that the consumer swallows is named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pytest

from ottla.client import Producer, ProducerSettings, audited_clients
from ottla.client.audited_clients import audited
from ottla.client.auditing import ConsumerAudit, Outcomes, ProducerAudit, new_session
from ottla.clock import SystemClock
from ottla.record.audit_records import NO_PARTITION, TOPIC, AuditRecord, decode, encode
from ottla.record.digests import digest_of
from ottla.testing.cluster import EmbeddedCluster

AT_ITS_END: dict[str, Any] = {"ottla.audit.report.interval.ms": 600_000}  # and not once more on a machine that is slow


def records_on(bootstrap_servers: str, count: int, finals: int = 0) -> list[AuditRecord]:
    """What was reported, once there is so much of it, with the final words of so many topics."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[AuditRecord] = []
    deadline = time.monotonic() + 120
    try:
        while len(found) < count or len({record.topic for record in found if record.is_final}) < finals:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(decode(message.value() or b""))
    finally:
        consumer.close()
    return found


def test_an_audited_producer_and_consumer_say_the_same(tmp_path: Path) -> None:
    with EmbeddedCluster(data_directory=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic("clicks")
        cluster.create_topic(TOPIC)
        delivered: list[int | None] = []
        producer = audited(confluent_kafka.Producer)(
            {"bootstrap.servers": servers, "ottla.audit.application": "checkout", "ottla.audit.host": "web-1", **AT_ITS_END}
        )
        for number in range(100):
            producer.produce(
                "clicks", f"value-{number}", key=None if number % 3 else "k", on_delivery=lambda _, m: delivered.append(m.offset())
            )
        with pytest.raises(confluent_kafka.KafkaException):
            producer.produce("clicks", b"x" * 2_000_000)  # refused before it is sent: never attempted
        assert producer.close_audit() == 0  # type: ignore[attr-defined]
        assert set(delivered) == set(range(100))
        settings = {"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest", "ottla.audit.host": "bill-1"}
        consumer = audited(confluent_kafka.Consumer)(settings | AT_ITS_END)
        consumer.subscribe(["clicks"])
        count = 0
        deadline = time.monotonic() + 120
        while count < 100 and time.monotonic() < deadline:
            count += len(consumer.consume(50, 1.0))
        consumer.close()
        reported = records_on(servers, 2)
    sent = next(record for record in reported if record.tier == "producer")
    had = next(record for record in reported if record.tier == "consumer:billing")
    assert (sent.host, sent.application, sent.is_final, had.host) == ("web-1", "checkout", True, "bill-1")
    assert (had.first_offset, had.next_offset) == (0, 100)
    ours, theirs = list(sent.windows.values()), list(had.windows.values())
    assert sum(tally.attempted for tally in ours) == sum(tally.acknowledged for tally in ours) == 100
    assert [(tally.count, tally.placed, tally.content, tally.offsets, tally.sketch) for tally in ours] == [
        (tally.count, tally.placed, tally.content, tally.offsets, tally.sketch) for tally in theirs
    ]


def test_what_is_reported_before_there_is_a_topic_for_it_comes_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka gives it back after half a minute, here a second; the next report overtook it, and the counter took it for repeated."""
    monkeypatch.setattr(audited_clients, "_CONNECTION", (*audited_clients._CONNECTION, "topic.metadata."))
    waits = {"topic.metadata.propagation.max.ms": 1_000, "ottla.audit.report.interval.ms": 600_000}
    with EmbeddedCluster(data_directory=tmp_path, settings={"auto.create.topics.enable": "false"}) as cluster:
        cluster.create_topic("clicks")
        producer: Any = audited(confluent_kafka.Producer)({"bootstrap.servers": cluster.bootstrap_servers, **waits})
        reporter = producer.audit_reporter
        deadline = time.monotonic() + 120
        while not reporter._waiting:
            assert time.monotonic() < deadline
            producer.produce("clicks", b"value")
            producer.poll(0.1)
            reporter._report(is_final=False)
        cluster.create_topic(TOPIC)
        assert producer.close_audit() == 0
        reported = records_on(cluster.bootstrap_servers, producer.audit._session._sequences["clicks"])
    assert len(reported) > 2
    assert [record.sequence for record in reported] == list(range(len(reported)))


def test_a_record_that_is_larger_than_audit_takes_keeps_no_other_from_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some are too large together alone, one with what names its messages, and one anyway; it was sent again for ever, with all others."""
    with EmbeddedCluster(data_directory=tmp_path) as cluster:
        cluster.create_topic(TOPIC, settings={"max.message.bytes": "6000"})
        producer: Any = audited(confluent_kafka.Producer)({"bootstrap.servers": cluster.bootstrap_servers} | AT_ITS_END)
        audit, value = producer.audit, 0
        for topic, partitions, windows in (("small", 20, 1), ("named", 1, 10), ("huge", 1, 128), ("small", 1, 1)):
            for partition in range(partitions):
                for number in range(100 * windows):
                    value += 1
                    attempt = audit.attempted(topic, None, b"%d" % value, number % windows * 60_000)
                    audit.acknowledged(attempt, partition, number)
            producer.audit_reporter._report(is_final=False)
        assert producer.close_audit() == 0
        assert not producer.audit_reporter._waiting
        reported = records_on(cluster.bootstrap_servers, 20 + 3, finals=3)
    # Whatever came behind a later one of its topic would count for nothing.
    for topic in ("small", "named", "huge"):
        sequences = [record.sequence for record in reported if record.topic == topic]
        assert sequences == sorted(sequences), topic
    small = [record for record in reported if record.topic == "small" and record.windows]
    assert {record.partition for record in small} == set(range(20))
    assert all(tally.sketch is not None for record in small for tally in record.windows.values())
    named = next(record for record in reported if record.topic == "named" and record.windows)
    assert [(tally.count, tally.placed is None, tally.sketch) for tally in named.windows.values()] == [(100, False, None)] * 10
    assert not [record for record in reported if record.topic == "huge" and record.windows]
    assert sum("an audit record of huge is given up" in line for line in caplog.messages) == 1


def test_what_a_reporter_gives_up_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The runbook of AuditSessionGap sends an operator to that line. Two are with librdkafka, and two wait."""
    monkeypatch.setattr(audited_clients, "_CLOSE_SECONDS", 0.1)
    settings = {"bootstrap.servers": "localhost:1", "ottla.audit.report.interval.ms": 600_000, "ottla.audit.max.records": 2}
    producer: Any = audited(confluent_kafka.Producer)(settings)
    producer.audit.attempted("clicks", b"key", b"value", 1)
    for _ in range(6):
        producer.audit_reporter._report(is_final=False)
    producer.audit_reporter.close()
    assert sum("are given up, 1 of 3" in line for line in caplog.messages) >= 2


def test_only_clients_of_confluent_kafka_are_audited_and_only_settings_that_there_are() -> None:
    with pytest.raises(TypeError, match="neither a Producer nor a Consumer"):
        audited(dict)
    with pytest.raises(ValueError, match=r"unknown setting ottla\.audit\.aplication"):
        audited(confluent_kafka.Producer)({"bootstrap.servers": "localhost:1", "ottla.audit.aplication": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("window.ms", value) for value in (0, -1, 60, "1m", 3_600_000, 60_000.5)),
        *(("report.interval.ms", value) for value in (0, -1, "soon", 1 << 70)),
        ("max.records", 0),
        ("application", "a" * 513),
        *((name, "caf\udce9") for name in ("application", "host", "host.header")),
    ],
)
@pytest.mark.parametrize("kind", [confluent_kafka.Producer, confluent_kafka.Consumer])
def test_a_setting_that_no_counter_could_make_anything_of_is_refused(name: str, value: object, kind: Any) -> None:
    """With a window of 60 ms all that was reported was quarantined; with an interval of 0 the reporter took all of a processor.

    What is not UTF-8, as Python has a variable of the environment in Latin-1, ended the reporter, and as a header's name the process.
    """
    with pytest.raises(ValueError, match=rf"^ottla\.audit\.{name} "):
        audited(kind)({"bootstrap.servers": "localhost:1", "group.id": "g", f"ottla.audit.{name}": value})


def test_a_watermark_stays_below_what_is_on_its_way() -> None:
    audit = ProducerAudit(new_session("producer"))
    first = audit.attempted("t", b"k", b"v", 70_000)
    second = audit.attempted("t", b"k", b"v", 190_000)
    assert [record.watermark_ms for record in audit.records(500_000)] == [60_000]
    audit.acknowledged(first, 0, 0)
    assert [record.watermark_ms for record in audit.records(500_000)] == [180_000]
    audit.failed(second)
    (record,) = audit.records(500_000)
    assert (record.watermark_ms, record.partition, record.windows[180_000].failed) == (500_000, NO_PARTITION, 1)
    # A clock that goes back does not take a word back.
    assert [record.watermark_ms for record in audit.records(400_000)] == [500_000]


def test_a_message_of_a_time_that_is_to_come_takes_no_watermark_ahead_of_the_clock() -> None:
    """What a killed producer had sent since and not said was COMPLETE or a DUPLICATE then, and not in doubt."""
    audit = ProducerAudit(new_session("producer"), SystemClock())
    audit.attempted("clicks", b"k", b"v", 3_600_000)
    assert [record.watermark_ms for record in audit.records(90_000)] == [90_000]


def test_what_is_on_its_way_at_the_end_is_reported_as_attempted() -> None:
    audit = ProducerAudit(new_session("producer"))
    audit.attempted("t", b"k", b"v", 70_000)
    audit.withdrawn(audit.attempted("t", b"k", b"v", 70_001))
    (record,) = audit.records(500_000, is_final=True)
    assert (record.is_final, record.windows[60_000].attempted, record.windows[60_000].outstanding) == (True, 1, 1)


@pytest.mark.long
@pytest.mark.parametrize("is_consumer", [False, True])
def test_messages_of_thousands_of_windows_are_reported_in_records_that_can_be_sent(is_consumer: bool) -> None:
    """As of a file of last year that is sent again: one record of all of them is larger than a broker takes, or than a counter reads."""
    producer, consumer = ProducerAudit(new_session("producer")), ConsumerAudit(new_session("consumer:billing"))
    for number in range(20_000):
        key, time_ms = b"%d" % number, number % 5_000 * 60_000
        if is_consumer:
            consumer.consumed("clicks", number % 2, number, key, b"", time_ms)
        else:
            producer.acknowledged(producer.attempted("clicks", key, b"", time_ms), number % 2, number)
    found = (consumer if is_consumer else producer).records(500_000_000, is_final=True)
    assert max(len(encode(record)) for record in found) < 700_000
    assert [record.sequence for record in found] == list(range(len(found)))
    assert sum(tally.count for record in found for tally in record.windows.values()) == 20_000
    assert [record.is_final for record in found] == [False] * (len(found) - 1) + [True]
    behind = {record.partition: record.next_offset for record in found}
    assert behind == ({0: 19_999, 1: 20_000} if is_consumer else {0: -1, 1: -1})
    assert sum(record.next_offset >= 0 for record in found) == (2 if is_consumer else 0), "a position is said with the last of its windows"


@pytest.mark.parametrize("at_once", [False, True])
def test_a_header_whose_name_is_not_utf_8_keeps_no_message_from_an_audited_consumer(at_once: bool) -> None:
    """Any producer may write one, and confluent-kafka gives it as an error: a consumer that looks at no headers reads the message."""
    values = [b"%d" % number for number in range(200)]
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer:
            producer.send("clicks", values, headers=[("caf\udce9", b"1")])
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest", **AT_ITS_END}
        consumer = audited(confluent_kafka.Consumer)(settings)
        consumer.subscribe(["clicks"])
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < len(values) and time.monotonic() < deadline:
            found += consumer.consume(100, 1.0) if at_once else filter(None, [consumer.poll(1.0)])
        consumer.close()
    assert [(message.value(), message.headers()) for message in found] == [(value, []) for value in values]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_message_of_the_earliest_time_there_is_ends_no_consumers_reports(at_once: bool) -> None:
    """Any producer may write one, behind others in a batch: how long ago that was takes more than 64 bits, as its window's start does."""
    audit = ConsumerAudit(new_session("consumer:billing"))
    if at_once:
        columns = ([0, 0], [0, 1], [70_000, -(1 << 63)], [0, 0], [-1, -1], [1, 1])
        audit.consumed_many("t", Outcomes(2 * digest_of(None, b"v", None), *(np.array(column, np.int64) for column in columns)))
    else:
        for offset, time_ms in enumerate((70_000, -(1 << 63))):
            audit.consumed("t", 0, offset, None, b"v", time_ms)
    (record,) = audit.records(500_000)
    assert decode(encode(record)).windows[60_000].count == 1
    assert (record.first_offset, record.next_offset) == (0, 2)


def test_the_watermark_comes_with_the_last_record_of_a_report_alone() -> None:
    """Or a window would be known before all of it was said."""
    audit = ProducerAudit(new_session("producer"))
    for partition in range(3):
        audit.acknowledged(audit.attempted("t", b"k", b"v", 70_000), partition, 5)
    reported = audit.records(500_000, is_final=True)
    assert [(record.watermark_ms, record.is_final) for record in reported] == [(0, False), (0, False), (500_000, True)]


def test_offsets_that_nobody_knows_leave_contents_as_the_evidence() -> None:
    """acks=0."""
    audit = ProducerAudit(new_session("producer"))
    audit.acknowledged(audit.attempted("t", b"k", b"v", 70_000), 0, -1)
    (record,) = audit.records(500_000)
    tally = record.windows[60_000]
    assert (tally.count, tally.offsets, tally.placed, tally.content is not None) == (1, None, None, True)


def test_many_messages_are_added_up_on_the_way() -> None:
    audit = ConsumerAudit(new_session("consumer:g"))
    for offset in range(40_000):
        audit.consumed("t", 0, offset, None, b"v", 70_000)
    assert len(audit._topics["t"].outcomes) < 40_000
    (record,) = audit.records(500_000)
    assert (record.windows[60_000].count, record.first_offset, record.next_offset) == (40_000, 0, 40_000)


class _StandingClock(SystemClock):
    """A clock at two minutes and a bit."""

    def time_ms(self) -> int:
        return 130_000


def test_counted_by_append_a_message_of_another_time_holds_no_window_open() -> None:
    """The broker stamps it, so only the producer's clock says where it can be until then."""
    for by_append, window, watermark in ((False, 0, 0), (True, 120_000, 120_000)):
        audit = ProducerAudit(new_session("producer"), _StandingClock(), by_append=by_append)
        attempts = [audit.attempted("t", b"k", b"v", 5_000) for _ in range(3)]
        (waiting,) = audit.records(130_000)
        assert (waiting.watermark_ms, dict(waiting.windows)) == (watermark, {})
        audit.acknowledged(attempts[0], 0, 7, 130_000)
        audit.failed(attempts[1])
        unknown, known = audit.records(130_000, is_final=True)
        assert [(start, tally.attempted, tally.failed) for start, tally in unknown.windows.items()] == [(window, 2, 1)]
        assert list(known.windows) == [120_000]
        assert (0 in known.windows[120_000].latencies.buckets) is by_append
