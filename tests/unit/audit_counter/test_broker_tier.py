"""Brokers that report themselves: real brokers, real logs, `__audit`, and the counter that reads it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from tests.chaos.cluster import free_ports
from tests.unit.audit_counter.pipelines import (
    AUDITING,
    MINUTE,
    WAIT_SECONDS,
    counted,
    pipeline,
    said_by_brokers,
    until_another_topic_is_known,
    until_counted,
)
from tests.unit.wire.clusters import create_topic, servers

from ottla.audit_counter.service import TransactionIsOpen
from ottla.audit_counter.verdicts import NOT_KNOWN, EdgeVerdict
from ottla.broker.auditing import tier
from ottla.broker.auditing.counting import BLOCK, Aborted, Ranges
from ottla.client.audited_clients import audited
from ottla.model import BrokerId, TopicPartition
from ottla.record.audit_records import MAXIMUM_WINDOWS, TOPIC, TOPIC_ID_HEADER, WRONG, AuditRecord, Session, Verdict, encode
from ottla.record.records import Record, build_batch
from ottla.wire.admin import delete_records, delete_topics
from ottla.wire.fetching import FetchSettings
from ottla.wire.producing import BatchProducer

EXPECTED = ("producer", "broker")


class Tiers:
    """Those of all brokers; held, they look at no partition and report nothing."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.are_held = False
        scan, role_changed, report = tier.AuditTier._scan, tier.AuditTier.role_changed, tier.AuditTier._report

        async def report_unless_held(one: tier.AuditTier, *, is_final: bool) -> None:
            if not self.are_held:
                await report(one, is_final=is_final)

        patched.setattr(tier.AuditTier, "_scan", lambda one: None if self.are_held else scan(one))
        patched.setattr(tier.AuditTier, "role_changed", lambda one, key: None if self.are_held else role_changed(one, key))
        patched.setattr(tier.AuditTier, "_report", report_unless_held)


async def test_a_clean_run_is_complete_from_producer_to_broker_to_consumer(tmp_path: Path) -> None:
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", **AUDITING) as running:
        await running.produce(200)
        await running.consume()
        await running.say_final()
        summary = await running.summary()
        assert {said.edge: said.verdict for _, said in summary.verdicts} == {
            "producer->broker": Verdict.COMPLETE,
            "broker->consumer:billing": Verdict.COMPLETE,
        }
        assert {said.evidence for _, said in summary.verdicts} == {"placed"}, "the brokers' offsets carry the producers' contents"


async def test_what_was_acknowledged_and_never_appended_is_lost(tmp_path: Path) -> None:
    """The log ends before the offsets that were acknowledged, so that no broker ever comes there; the log was read, and tells."""
    async with pipeline(tmp_path, expected=EXPECTED, **AUDITING) as running:
        await running.produce(100, dropped=(98, 99))
        await running.consume()
        await running.say_final()
        found: dict[str, EdgeVerdict] = {}
        # Until the broker has reported, which may be after the log was read.
        while "producer->broker" not in found or {said.verdict for said in found.values()} & NOT_KNOWN:
            found = {said.edge: said for _, said in (await running.summary(0.05)).verdicts}
        assert found["producer->broker"].verdict is Verdict.LOSS
        assert found["producer->broker"].missing == 2
        assert found["broker->consumer:billing"].verdict is Verdict.COMPLETE


async def test_a_tail_that_was_acknowledged_and_cut_off_is_lost_though_the_log_never_comes_to_its_offsets(tmp_path: Path) -> None:
    """As behind a leader that acknowledged early and died. Nothing comes after it, so the log is read once brokers have spoken again."""
    async with pipeline(tmp_path, expected=EXPECTED, verify="doubt", **AUDITING) as running:
        await running.produce(100, dropped=(96, 97, 98, 99))
        await running.say_final()
        summary = await running.summary()
        said = {one.edge: one for _, one in summary.verdicts}
        assert (said["producer->broker"].verdict, said["producer->broker"].missing) == (Verdict.LOSS, 4)
        named = {(one.partition, one.offset) for one in said["producer->broker"].named}
        assert named == {(partition, offset) for partition in (0, 1) for offset in (48, 49)}


async def test_a_restart_counts_nothing_twice_and_leaves_nothing_out(tmp_path: Path) -> None:
    """From its checkpoint on a broker counts again, and that takes the place of what it had said."""
    listeners = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", listeners=listeners, **AUDITING) as running:
        await running.produce(100)
        await until_counted(running, 100)
        await running.running.stop_broker(BrokerId(1))
        await running.running.start_broker(BrokerId(1))
        await running.produce(100)
        await until_counted(running, 200)
        await running.consume()
        await running.say_final()
        summary = await running.summary()
        assert {said.verdict for _, said in summary.verdicts} == {Verdict.COMPLETE}
        # Another one than before the restart; and one more where the stop came while a report was written.
        assert len({record.session for record in await said_by_brokers(running)}) >= 2


async def test_the_next_leader_counts_what_the_killed_one_had_not_said(tmp_path: Path) -> None:
    """The others note where a partition is, and count again from the block that this lies in."""
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", count=3, partitions=1, **AUDITING) as running:
        await running.produce(60, partitions=1)
        await until_counted(running, 60)
        state = (await running.cluster.topic("clicks")).partitions[0]
        leader = state.leader
        await running.running.kill(BrokerId(leader))
        await running.cluster.refresh(["clicks"])
        await running.produce(40, partitions=1)
        await until_counted(running, 100)
        ranges = {(record.host, record.first_offset) for record in await said_by_brokers(running) if record.windows}
        assert len({host for host, _ in ranges}) == 2
        assert len([first for _, first in ranges if first == 0]) == 2, "the second leader began at the block's first offset"


@pytest.mark.long
async def test_the_next_leader_begins_where_the_killed_one_has_spoken_however_long_that_was_silent(tmp_path: Path) -> None:
    """The others report on meanwhile; the silent one's messages reach far beyond the block in which it last spoke."""
    silent: set[int] = set()
    reports: Counter[int] = Counter()
    report = tier.AuditTier._report

    async def report_unless_silent(self: tier.AuditTier, *, is_final: bool) -> None:
        if self._broker_id not in silent:
            await report(self, is_final=is_final)
            reports[self._broker_id] += 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tier.AuditTier, "_report", report_unless_silent)
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", count=2, partitions=1, **AUDITING) as running:
            await running.produce(60, partitions=1)
            await until_counted(running, 60)
            leader = (await running.cluster.topic("clicks")).partitions[0].leader
            silent.add(leader)
            records = [Record(index, running.start_ms, b"", b"") for index in range(BLOCK)]
            async with BatchProducer(running.cluster) as producer:
                for _ in range(3):
                    await producer.send(TopicPartition("clicks", 0), build_batch(records))
            reports.clear()
            async with asyncio.timeout(WAIT_SECONDS):
                while reports[3 - leader] < 30:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await running.running.kill(BrokerId(leader))
            await until_counted(running, 60 + 3 * BLOCK)


@pytest.mark.long
async def test_what_was_said_of_a_former_topic_is_not_taken_for_what_the_next_one_of_its_name_has_said(tmp_path: Path) -> None:
    """Leader epochs of both begin at 0. The broker that follows would count that much less of the new one, once it leads."""
    silent: set[int] = set()
    reports: Counter[int] = Counter()
    tiers: dict[int, tier.AuditTier] = {}
    report = tier.AuditTier._report
    former = uuid4().hex

    async def report_unless_silent(self: tier.AuditTier, *, is_final: bool) -> None:
        tiers[self._broker_id] = self
        if self._broker_id not in silent:
            await report(self, is_final=is_final)
            reports[self._broker_id] += 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tier, "_FETCH_SETTINGS", FetchSettings(max_wait_ms=50))
        patched.setattr(tier.AuditTier, "_report", report_unless_silent)
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", count=2, partitions=1, **AUDITING) as running:
            leader = (await running.cluster.topic("clicks")).partitions[0].leader
            silent.add(leader)
            records = [Record(index, running.start_ms, b"", b"") for index in range(BLOCK)]
            async with BatchProducer(running.cluster) as producer:
                await producer.send(TopicPartition("clicks", 0), build_batch(records))
            async with asyncio.timeout(WAIT_SECONDS):
                follower = 3 - leader
                while follower not in tiers or tiers[follower]._partitions[TopicPartition("clicks", 0)].high_watermark < BLOCK:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            said = Session("former", "broker", window_ms=MINUTE).record(
                "clicks", 0, {}, watermark_ms=1, reported_ms=1, offsets=(0, BLOCK), leader_epoch=7, topic_id=former
            )
            batch = build_batch([Record(0, running.now_ms, b"clicks", encode(said), ((TOPIC_ID_HEADER, former.encode()),))])
            async with BatchProducer(running.cluster) as producer:
                await producer.send(TopicPartition(TOPIC, 0), batch)
            reports.clear()
            async with asyncio.timeout(WAIT_SECONDS):
                while reports[3 - leader] < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await running.running.kill(BrokerId(leader))
            await until_counted(running, BLOCK)


async def test_a_batch_whose_times_go_back_over_a_windows_edge_is_no_loss(tmp_path: Path) -> None:
    """By its header all of it lies in the later window, where the clients do not have it all; the log that is read for it tells."""
    async with pipeline(tmp_path, expected=EXPECTED, partitions=1, **AUDITING) as running:
        await running.produce(20, partitions=1)
        edge = running.start_ms + MINUTE
        async with BatchProducer(running.cluster) as producer:
            for times in ([edge, edge - 1000, edge + 1], [edge, edge - 2 * MINUTE], [edge - 1, edge, edge - 2]):
                records = [Record(index, time, b"key", b"%d" % time) for index, time in enumerate(times)]
                attempts = [running.producer.attempted("clicks", record.key, record.value, record.timestamp) for record in records]
                offset = await producer.send(TopicPartition("clicks", 0), build_batch(records))
                for index, attempt in enumerate(attempts):
                    running.producer.acknowledged(attempt, 0, offset + index)
        await running.consume()
        await running.say_final()
        summary = await running.summary(0.05)
        consumed: list[EdgeVerdict] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while summary.exit_code or sum(said.upstream_count for said in consumed) < 28:
                summary = await running.summary(0.05)
                # Of the window before, the brokers have nothing by headers: one that is judged before they report is of the log's edge.
                consumed = [said for _, said in summary.verdicts if said.downstream == "consumer:billing"]
        assert {(said.downstream_count == said.upstream_count, said.evidence) for said in consumed} == {(True, "placed")}


async def test_a_topic_that_is_not_to_be_audited_is_not(tmp_path: Path) -> None:
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", **AUDITING) as running:
        await create_topic(running.cluster, "quiet", 1, 1, **{"ottla.audit": "false"})
        async with BatchProducer(running.cluster) as producer:
            await producer.send(TopicPartition("quiet", 0), build_batch([Record(0, running.start_ms, b"k", b"v")]))
        await running.produce(10)
        await until_counted(running, 10)
        assert {record.topic for record in await said_by_brokers(running)} == {"clicks"}


async def test_a_leader_counts_from_its_first_append_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended before it does is read from the log, at many times the cost: a second of a new topic, and of each new leader."""
    ends: list[int] = []
    count_batches = Ranges.count_batches

    def noting(self: Ranges, data: bytes, aborted: Iterable[Aborted]) -> int:
        ends.append(self._end)
        return count_batches(self, data, aborted)

    async def append(count: int) -> None:
        async with BatchProducer(running.cluster) as producer:
            for _ in range(count):
                await producer.send(TopicPartition("orders", 0), build_batch([Record(0, running.start_ms, b"", b"")]))

    async def until_all(count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while await counted(running, "orders") != count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    monkeypatch.setattr(Ranges, "count_batches", noting)
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", count=2, **AUDITING) as running:
        await create_topic(running.cluster, "orders", 1, 2)
        await append(20)
        await until_all(20)
        assert ends == []
        leader = (await running.cluster.topic("orders")).partitions[0].leader
        await running.running.kill(BrokerId(leader))
        await running.cluster.refresh(["orders"])
        await append(30)
        await until_all(50)
        assert set(ends) == {20}, "what was there when it began to lead"


@pytest.mark.parametrize("windows", [2, pytest.param(MAXIMUM_WINDOWS + 500, marks=pytest.mark.long)])
async def test_what_a_broker_cannot_count_any_more_or_cannot_say_is_no_loss(tmp_path: Path, windows: int) -> None:
    """A batch of several windows is read from the log, whose head was deleted before that; or it has more of them than a record takes."""
    with pytest.MonkeyPatch.context() as patched:
        tiers = Tiers(patched)
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", partitions=1, **AUDITING) as running:
            await running.produce(10, partitions=1)
            await until_counted(running, 10)
            tiers.are_held = windows == 2
            records = [Record(index, running.start_ms - (windows - 1 - index) * MINUTE, b"", b"%d" % index) for index in range(windows)]
            async with BatchProducer(running.cluster) as producer:
                attempts = [running.producer.attempted("clicks", one.key, one.value, one.timestamp) for one in records]
                for batch in (build_batch(records), build_batch([Record(0, running.start_ms, b"", b"last")])):
                    await producer.send(TopicPartition("clicks", 0), batch)
            for index, attempt in enumerate(attempts):
                running.producer.acknowledged(attempt, 0, 10 + index)
                if index % 500 == 499:
                    await running.report(running.producer.records(running.now_ms))
            attempt = running.producer.attempted("clicks", b"", b"last", running.start_ms)
            running.producer.acknowledged(attempt, 0, 10 + windows)
            if tiers.are_held:
                await delete_records(running.cluster, {TopicPartition("clicks", 0): 12})
                tiers.are_held = False
            await running.say_final()
            summary = await running.summary(0.05)
            async with asyncio.timeout(WAIT_SECONDS):
                while Verdict.PENDING in {said.verdict for _, said in summary.verdicts}:
                    summary = await running.summary(0.05)
            found = Counter(said.verdict for _, said in summary.verdicts)
            assert found[Verdict.UNAUDITED] and not found.keys() & WRONG, found


async def test_a_stop_in_the_middle_of_a_report_leaves_no_audit_data_out(tmp_path: Path) -> None:
    """What was on its way was given up with its numbers, and the session ended as if it had said all: nothing could be lost any more."""
    listeners = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
    sends, is_stuck = tier.AuditTier._send, asyncio.Event()

    async def stuck(one: tier.AuditTier, records: list[AuditRecord]) -> None:
        if not is_stuck.is_set() and any(record.windows for record in records):
            is_stuck.set()
            await asyncio.Event().wait()
        await sends(one, records)

    with pytest.MonkeyPatch.context() as patched:
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", listeners=listeners, partitions=1, **AUDITING) as running:
            patched.setattr(tier.AuditTier, "_send", stuck)
            await running.produce(60, partitions=1)
            await is_stuck.wait()
            await running.running.stop_broker(BrokerId(1))
            await running.running.start_broker(BrokerId(1))
            await running.produce(40, partitions=1)
            await until_counted(running, 100)
            await running.say_final()
            assert {said.verdict for _, said in (await running.summary()).verdicts} == {Verdict.COMPLETE}
            assert [session.gaps for session in await running.counter.sessions() if session.gaps] == []


async def test_ranges_are_said_once_and_end_where_the_log_does(tmp_path: Path) -> None:
    async with pipeline(tmp_path, expected=EXPECTED, verify="never", partitions=1, **AUDITING) as running:
        for _ in range(3):
            await running.produce(20, partitions=1)
            await until_counted(running, len(running.sent))
        ranges = [(record.first_offset, record.next_offset) for record in await said_by_brokers(running) if record.windows]
        assert [first for first, _ in ranges] == [0, *(until for _, until in ranges[:-1])]
        assert ranges[-1][1] == 60


@pytest.mark.long
async def test_a_topic_made_again_is_counted_from_its_first_offset_however_soon_it_grows(tmp_path: Path) -> None:
    """It has passed the block that the former one ended in before the broker looks again. Its messages are of another minute."""
    count = BLOCK + 5_000

    async def append(time_ms: int) -> None:
        async with BatchProducer(running.cluster) as producer:
            await producer.send(TopicPartition("clicks", 0), build_batch([Record(index, time_ms, b"", b"") for index in range(count)]))

    async def until_said(time_ms: int) -> int:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                said = await running.counter.tiers("clicks", time_ms, time_ms + MINUTE, "broker")
                if said:
                    return said[0]["count"]
                await asyncio.sleep(0.05)

    with pytest.MonkeyPatch.context() as patched:
        tiers = Tiers(patched)
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", partitions=1, **AUDITING) as running:
            await append(running.start_ms)
            assert await until_said(running.start_ms) == count
            tiers.are_held = True
            assert not await delete_topics(running.cluster, ["clicks"])
            await create_topic(running.cluster, "clicks", 1)
            await append(running.start_ms + MINUTE)
            tiers.are_held = False
            assert await until_said(running.start_ms + MINUTE) == count


async def test_a_new_topic_is_spoken_of_long_before_the_first_report(tmp_path: Path) -> None:
    """So that a counter knows that it is another one than the former of its name before clients report."""
    async with pipeline(tmp_path, **{**AUDITING, "audit_report_interval_ms": "60000"}) as running:
        for _ in range(2):
            await running.cluster.refresh(["clicks"])
            topic_id = running.cluster.metadata.topic("clicks").topic_id
            assert topic_id is not None
            async with asyncio.timeout(WAIT_SECONDS):
                while topic_id.hex not in {record.topic_id for record in await said_by_brokers(running)}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert not await delete_topics(running.cluster, ["clicks"])
            await create_topic(running.cluster, "clicks", 2)


@pytest.mark.long
async def test_what_is_said_of_a_topic_stays_when_the_next_one_of_its_name_is_audited_and_nobody_is_accused(tmp_path: Path) -> None:
    """Of the next one's clients some report before a broker has: in the former one's minute, and in one of their own. The log tells."""
    edges = {"producer->broker", "broker->consumer:billing"}
    complete, unknown = {Verdict.COMPLETE, Verdict.LATE}, {Verdict.UNAUDITED}
    seen: set[Verdict] = set()

    async def until(start_ms: int, wanted: set[Verdict]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                verdicts = (await running.summary(0.0)).verdicts
                seen.update(one.verdict for _, one in verdicts)
                if {one.edge for window, one in verdicts if window == start_ms and one.verdict in wanted} >= edges:
                    return
                await asyncio.sleep(0.02)

    async def run(start_ms: int, spacing_ms: int = 100) -> None:
        running.begin(start_ms)
        await running.produce(100, spacing_ms=spacing_ms)
        await running.consume(lambda found: [message for message in found if message[4] >= start_ms])
        await running.say_final()

    with pytest.MonkeyPatch.context() as patched:
        tiers = Tiers(patched)
        async with pipeline(tmp_path, expected=EXPECTED, verify="doubt", **AUDITING) as running:
            known, mixed, early, later = (running.start_ms + number * MINUTE for number in range(-2, 2))
            await run(known, spacing_ms=2 * MINUTE // 100)
            await until(known, complete)
            await until(mixed, complete)

            tiers.are_held = True
            assert not await delete_topics(running.cluster, ["clicks"])
            await create_topic(running.cluster, "clicks", 2)
            await running.cluster.refresh(["clicks"])
            await run(mixed)
            await run(early)
            await until(mixed, unknown)
            tiers.are_held = False
            await until_another_topic_is_known(running)
            await run(later)
            await until(later, complete)
            await until(early, complete | unknown)
            await until(mixed, unknown)
            await until(known, complete)
    assert not seen & WRONG


async def test_a_log_that_is_read_while_its_topic_is_made_again_is_no_loss(tmp_path: Path) -> None:
    """No one has spoken of the next topic yet, and its log has none of the messages that the former one had."""
    with pytest.MonkeyPatch.context() as patched:
        tiers = Tiers(patched)
        async with pipeline(tmp_path, expected=EXPECTED, verify="never", **AUDITING) as running:
            await running.produce()
            await running.consume()
            await running.say_final()
            before = await running.summary()
            assert {said.verdict for _, said in before.verdicts} <= {Verdict.COMPLETE, Verdict.LATE}
            tiers.are_held = True
            count_log = running.counter._count_log

            async def count_another(topic: str, *arguments: Any) -> Any:
                if running.counter._count_log is not count_log:
                    patched.setattr(running.counter, "_count_log", count_log)
                    assert not await delete_topics(running.cluster, [topic])
                    await create_topic(running.cluster, topic, 2)
                return await count_log(topic, *arguments)

            patched.setattr(running.counter, "_count_log", count_another)
            await running.counter.read_log("clicks", running.start_ms)
            assert (await running.summary(0.0)).verdicts == before.verdicts


def produced_in_transactions(servers: str, start_ms: int) -> None:
    """Fifty messages that are committed, and fifty that are aborted."""
    producer = audited(confluent_kafka.Producer)(
        {"bootstrap.servers": servers, "transactional.id": "t", "ottla.audit.report.interval.ms": 200}
    )
    producer.init_transactions(120)
    for is_commit in (False, True):
        producer.begin_transaction()
        for number in range(50):
            producer.produce("clicks", b"%d" % number, b"key", partition=0, timestamp=start_ms + number)
        producer.flush(120)
        if is_commit:
            producer.commit_transaction(120)
        else:
            producer.abort_transaction(120)
    producer.close_audit()  # type: ignore[attr-defined]


@pytest.mark.parametrize("audits", [True, False], ids=["counted by the broker", "read from the log"])
async def test_aborted_messages_count_for_nothing_anywhere(tmp_path: Path, audits: bool) -> None:
    tiers, properties = (EXPECTED, AUDITING) if audits else (("producer", "log"), {})
    async with pipeline(tmp_path, expected=tiers, verify="never" if audits else "records", **properties) as running:
        await asyncio.to_thread(produced_in_transactions, servers(running.running), running.start_ms)
        summary = await running.summary()
        assert {said.edge: (said.verdict, said.downstream_count) for _, said in summary.verdicts} == {
            f"producer->{tiers[1]}": (Verdict.COMPLETE, 50)
        }


def in_an_open_transaction(servers: str) -> confluent_kafka.Producer:
    """One message, and what is to end it."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "open"})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce("clicks", b"value", partition=0)
    producer.flush(120)
    return producer


@pytest.mark.parametrize("audits", [True, False], ids=["counted by the broker", "read from the log"])
async def test_what_lies_behind_an_open_transaction_is_pending_and_no_loss(tmp_path: Path, audits: bool) -> None:
    """Who reads committed data does not come to it, and nor did the counter: LOSS, for ever where the log stands for brokers."""
    tiers, properties = (EXPECTED, AUDITING) if audits else (("producer", "log"), {})
    async with pipeline(tmp_path, partitions=1, expected=tiers, **properties) as running:
        transaction = await asyncio.to_thread(in_an_open_transaction, servers(running.running))
        begun, looked = asyncio.Event(), running.counter._count_log

        async def looking(*arguments: Any) -> Any:
            try:
                return await looked(*arguments)
            except TransactionIsOpen:
                begun.set()
                raise

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(running.counter, "_count_log", looking)
            await running.produce(20, partitions=1)
            await running.say_final()
            async with asyncio.timeout(WAIT_SECONDS):
                await begun.wait()
        assert {said.verdict for _, said in (await running.summary(0.0)).verdicts} <= NOT_KNOWN
        await asyncio.to_thread(transaction.abort_transaction, 120)
        summary = await running.summary(tiers=tiers)
        assert {said.edge: (said.verdict, said.downstream_count) for _, said in summary.verdicts} == {
            f"producer->{tiers[1]}": (Verdict.COMPLETE, 20)
        }
