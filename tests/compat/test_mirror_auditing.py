"""A link between two clusters that count: the audit counter of each has the mirror's edge, and proves it whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.audit_counter.pipelines import running_counter
from tests.unit.mirror_maker.mirrors import (
    SECONDS,
    Side,
    caught_up,
    committed,
    copier,
    create_both,
    create_map,
    ends_of,
    reached,
    running,
    same,
    settings,
    two_sides,
)
from tests.unit.mirror_maker.test_server import arrives, values_of, worker
from tests.unit.wire.clusters import create_topic

from ottla import lifecycle
from ottla.audit_counter.service import AuditCounter, CounterSettings
from ottla.audit_counter.verdicts import NOT_KNOWN, EdgeVerdict
from ottla.clock import SystemClock
from ottla.errors import RequestTimedOut
from ottla.mirror_maker.merge import auditing
from ottla.mirror_maker.merge.batches import SMALL_RECORDS
from ottla.mirror_maker.partition_states import PartitionState
from ottla.model import TopicPartition
from ottla.record.audit_records import Verdict
from ottla.record.records import Record, build_batch
from ottla.wire.admin import delete_records, delete_topics
from ottla.wire.producing import BaseOffset, BatchProducer

MINUTE = 60_000
CLICKS = TopicPartition("clicks", 0)
ASKED = CounterSettings(expected=("producer", "broker"), verify="never")
AUDITING: dict[str, Any] = {"audit_enable": "true", "audit_report_interval_ms": "100"}
AT_SOURCE, AT_TARGET = "broker->mirror:A-B", "mirrored:A-B->broker"


@pytest.fixture(autouse=True)
def _says_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "SAY_SECONDS", 0.05)


@asynccontextmanager
async def counters(tmp_path: Path, a: Side, b: Side, asked: CounterSettings = ASKED) -> AsyncIterator[tuple[AuditCounter, AuditCounter]]:
    async with running_counter(a.cluster, tmp_path / "a.db", asked) as one, running_counter(b.cluster, tmp_path / "b.db", asked) as other:
        await asyncio.gather(one.wait_caught_up(), other.wait_caught_up())
        await asyncio.gather(a.cluster.refresh(None), b.cluster.refresh(None))
        yield one, other


def stamped(*times: int, number: int = 0) -> bytes:
    return build_batch([Record(index, time, b"key", b"%d" % (number + index)) for index, time in enumerate(times)])


async def edge(counter: AuditCounter, name: str, topic: str = "clicks", count: int = -1) -> list[EdgeVerdict]:
    """What is said of an edge in each window, once it is known, and is of as many messages."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [said for _, said in (await counter.summary(topic, 0, 1 << 60)).verdicts if said.edge == name]
            is_whole = count < 0 or sum(said.upstream_count for said in found) == count
            if found and is_whole and not any(said.verdict in NOT_KNOWN for said in found):
                return found
            await asyncio.sleep(0.05)


async def test_each_edge_of_a_link_is_complete_and_brokers_and_mirror_agree_on_every_window(tmp_path: Path) -> None:
    """Batches that are copied as they are, joined ones, compressed ones, and some with times in several windows."""
    async with two_sides(tmp_path, 1, **AUDITING) as (a, b), counters(tmp_path, a, b) as (at_source, at_target):
        await create_both(a, b, "clicks", 2)
        start = SystemClock().time_ms() // MINUTE * MINUTE - 10 * MINUTE
        count = 0
        async with worker(a, b, audit_enable="true", naming="identity"), BatchProducer(a.cluster) as producer:
            for number in range(30):
                batches = [
                    stamped(start + number * 7_000),
                    stamped(*range(start, start + (SMALL_RECORDS + 8) * 1000, 1000)),
                    stamped(start + 5 * MINUTE - 1, start + 5 * MINUTE, start + 2 * MINUTE),
                    build_batch([Record(0, start + number, b"k", b"v" * 100), Record(1, start + 2 * MINUTE, b"k", b"v")], codec=3),
                ]
                for batch in batches:
                    producer.send(TopicPartition("clicks", number % 2), batch)
                count += 1 + SMALL_RECORDS + 8 + 3 + 2
            await producer.flush()
            await all_is_complete((at_source, at_target), count)
            for counter, name in ((at_source, AT_SOURCE), (at_target, AT_TARGET)):
                assert {one.evidence for one in await edge(counter, name)} == {"offsets"}
            # A mirrored topic has no producer that would have to report; the source has, and none of this test does.
            edges = {one.edge for _, one in (await at_target.summary("clicks", 0, 1 << 60)).verdicts}
            assert edges == {AT_TARGET}


async def test_a_copier_that_is_killed_again_and_again_has_each_message_counted_once(tmp_path: Path) -> None:
    """The next one counts again what this one has read and not said."""
    async with two_sides(tmp_path, 1, **AUDITING) as (a, b), counters(tmp_path, a, b) as (at_source, at_target):
        await create_both(a, b, "clicks")
        await create_map(b)
        then = SystemClock().time_ms() - 10 * MINUTE
        async with BatchProducer(a.cluster) as producer:
            for number in range(200):
                await producer.room()
                producer.send(CLICKS, stamped(then, number=number))
            await producer.flush()
        merge = settings(a, b, audit_window_ms=MINUTE)
        for milliseconds in (20, 40, 60, 80, 120):  # wherever that is
            one = copier(a, b, merge)
            one.want(same(1, "clicks"))
            async with running(one):
                await asyncio.sleep(milliseconds / 1000)
        one = copier(a, b, merge)
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, await ends_of(a, CLICKS))
            for counter, name in ((at_source, AT_SOURCE), (at_target, AT_TARGET)):
                (said,) = await edge(counter, name, count=200)
                assert said.verdict in (Verdict.COMPLETE, Verdict.LATE) and said.downstream_count == 200, said


async def test_records_that_the_source_has_deleted_before_they_were_copied_are_a_loss_of_the_mirrors_edge(tmp_path: Path) -> None:
    async with two_sides(tmp_path, 1, **AUDITING) as (a, b), counters(tmp_path, a, b) as (at_source, at_target):
        await create_both(a, b, "clicks")
        await create_map(b)
        then = SystemClock().time_ms() - 10 * MINUTE
        merge = settings(a, b, audit_window_ms=MINUTE, on_truncation="gap")
        async with BatchProducer(a.cluster) as producer:
            await producer.send(CLICKS, stamped(then, then))
            one = copier(a, b, merge)
            one.want(same(1, "clicks"))
            async with running(one):
                await caught_up(one, {CLICKS: 2})
                await edge(at_source, AT_SOURCE, count=2)
                one.want(same(1, "clicks"), [CLICKS])
                await reached(one, CLICKS, PartitionState.PAUSED)
                await producer.send(CLICKS, stamped(then, then, then))
                await edge_counts(at_source, 5)
                await delete_records(a.cluster, {CLICKS: 4})
                one.want(same(1, "clicks"))
                await caught_up(one, {CLICKS: 5})
                (said,) = [one for one in await edge(at_source, AT_SOURCE, count=5) if one.downstream_count]
                assert (said.verdict, said.missing) == (Verdict.LOSS, 2), said
                (said,) = await edge(at_target, AT_TARGET, count=3)
                assert said.verdict in (Verdict.COMPLETE, Verdict.LATE), said


async def edge_counts(counter: AuditCounter, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while sum(row["count"] for row in await counter.tiers("clicks", 0, 1 << 60, "broker")) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_what_the_sources_audit_topic_does_not_take_holds_nothing_up_and_is_said_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = BatchProducer.send
    refused: list[TopicPartition] = []

    def refusing(producer: BatchProducer, to: TopicPartition, batch: bytes) -> asyncio.Future[BaseOffset]:
        if to.topic != "__audit" or producer.in_transaction or len(refused) >= 3:
            return send(producer, to, batch)
        refused.append(to)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(RequestTimedOut("no leader"))
        return answer

    monkeypatch.setattr(BatchProducer, "send", refusing)
    async with two_sides(tmp_path) as (a, b), counters(tmp_path, a, b) as (at_source, _):
        await create_both(a, b, "clicks")
        await create_map(b)
        then = SystemClock().time_ms() - 10 * MINUTE
        one = copier(a, b, settings(a, b, audit_window_ms=MINUTE))
        one.want(same(1, "clicks"))
        async with running(one), BatchProducer(a.cluster) as producer:
            for number in range(20):
                await producer.send(CLICKS, stamped(then, number=number))
                await asyncio.sleep(0.01)
            await caught_up(one, {CLICKS: 20})
            async with asyncio.timeout(SECONDS):
                while sum(row["count"] for row in await at_source.tiers("clicks", 0, 1 << 60, "mirror:A-B")) != 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert len(refused) == 3
            assert one.counts.failed_transactions == 0


async def test_an_audit_topic_of_the_target_that_is_deleted_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each transaction writes there: without the topic nothing was copied until someone made it."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        async with worker(a, b, audit_enable="true", naming="identity"), BatchProducer(a.cluster) as producer:
            await producer.send(CLICKS, stamped(1, number=0))
            await arrives(b, CLICKS, b"0")
            assert not await delete_topics(b.cluster, ["__audit"])
            await producer.send(CLICKS, stamped(2, number=1))
            await arrives(b, CLICKS, b"0", b"1")
        assert [text for text in caplog.messages if "__audit" in text and "made again" in text]


async def test_by_key_what_two_slots_write_into_one_partition_is_counted_once(tmp_path: Path) -> None:
    """Each source partition has records for all partitions of the target, so ranges of offsets there lie in each other."""
    async with two_sides(tmp_path, 1, **AUDITING) as (a, b), counters(tmp_path, a, b) as (at_source, at_target):
        await create_topic(a.cluster, "clicks", 3)
        await create_topic(b.cluster, "clicks", 2)
        then = SystemClock().time_ms() - 10 * MINUTE
        count = 0
        async with worker(a, b, audit_enable="true", naming="identity", partition_by="key"), BatchProducer(a.cluster) as producer:
            for number in range(40):
                for partition in range(3):
                    records = [Record(index, then + number * 3000, b"key %d" % (number + index), b"value") for index in range(5)]
                    producer.send(TopicPartition("clicks", partition), build_batch(records))
                    count += len(records)
                await asyncio.sleep(0.01)
            await producer.flush()
            await all_is_complete((at_source, at_target), count)
            ends = await ends_of(b, *(TopicPartition("clicks", number) for number in range(2)))
            assert all(end > count // 4 for end in ends.values()), "both have some"


async def all_is_complete(counters: tuple[AuditCounter, AuditCounter], count: int) -> None:
    for counter, name in zip(counters, (AT_SOURCE, AT_TARGET), strict=True):
        said = await edge(counter, name, count=count)
        assert {one.verdict for one in said} <= {Verdict.COMPLETE, Verdict.LATE}, said
        assert sum(one.downstream_count for one in said) == count


async def test_a_source_that_stamps_records_itself_is_counted_by_its_clock_on_both_sides(tmp_path: Path) -> None:
    """Records of long ago, in a topic with `LogAppendTime`: in the target they have the times that the source gave them, as their own."""
    window_ms = 10_000
    auditing = {**AUDITING, "audit_window_ms": str(window_ms)}
    asked = CounterSettings(window_ms, expected=("producer", "broker"), verify="never")
    async with two_sides(tmp_path, 1, **auditing) as (a, b), counters(tmp_path, a, b, asked) as (at_source, at_target):
        await create_topic(a.cluster, "clicks", message_timestamp_type="LogAppendTime")
        given = {"audit_enable": "true", "audit_window_ms": str(window_ms), "naming": "identity"}
        async with worker(a, b, None, **given), BatchProducer(a.cluster) as producer:
            for number in range(40):
                await producer.send(CLICKS, stamped(1_000_000, 2_000_000, number=number))
                await asyncio.sleep(1.2 * window_ms / 1000 / 40)
            await all_is_complete((at_source, at_target), 80)
            assert {one.evidence for one in await edge(at_target, AT_TARGET)} == {"offsets"}
            values = (await committed(b, CLICKS))[CLICKS]
            assert len(values) == 80 and all(record.timestamp > 2_000_000 for record in values)


@pytest.mark.timeout(600)
async def test_what_a_compacted_source_does_not_have_any_more_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its brokers have counted it when it was written, so the mirror says nothing of it there; in the target each copy is counted."""
    # The cleaner runs when nothing else wants to; here it does not wait for others of the machine.
    monkeypatch.setattr(lifecycle, "_let_give_way", lambda process_id: None)
    cleaning = {"log_cleaner_backoff_ms": "50", **AUDITING}
    async with two_sides(tmp_path, 1, **cleaning) as (a, b), counters(tmp_path, a, b) as (at_source, at_target):
        compacted = {"cleanup_policy": "compact", "segment_bytes": "1000", "min_cleanable_dirty_ratio": "0.01"}
        await create_topic(a.cluster, "clicks", 1, 1, **compacted)
        await create_topic(a.cluster, "views", 1, ottla_audit="false")
        then = SystemClock().time_ms() - 10 * MINUTE
        async with BatchProducer(a.cluster) as producer:
            for number in range(100):
                await producer.send(CLICKS, stamped(then, number=number))
            await producer.send(TopicPartition("views", 0), stamped(then))
            await edge_counts(at_source, 100)
            async with asyncio.timeout(2 * SECONDS):
                while len((await committed(a, CLICKS))[CLICKS]) > 30:  # noqa: ASYNC110 - its last segments stay
                    await asyncio.sleep(0.1)
            async with worker(a, b, audit_enable="true", naming="identity") as one:
                await arrives(b, TopicPartition("views", 0), b"0")
                # A fetch has one segment, so a transaction may have a part of them.
                (end,) = (await ends_of(a, CLICKS)).values()
                await until(lambda: CLICKS in one.links["A-B"].maps and one.links["A-B"].maps[CLICKS].next_offset >= end)
                copies = len(await values_of(b, CLICKS))
                assert 0 < copies <= 30
                said = await edge(at_target, AT_TARGET, count=copies)
                assert {one.verdict for one in said} <= {Verdict.COMPLETE, Verdict.LATE}, said
                await asyncio.sleep(0.5)  # in which what is read would have been said ten times
            for topic in ("clicks", "views"):
                for counter in (at_source, at_target):
                    tiers = {row["tier"] for row in await counter.tiers(topic, 0, 1 << 60)}
                    assert tiers <= ({"broker", "mirrored:A-B"} if topic == "clicks" else set()), (topic, tiers)
