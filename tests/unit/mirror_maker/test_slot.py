"""A slot's copier between two clusters: each record once and in order whatever is killed, and sources that lose something."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import (
    SECONDS,
    batch,
    caught_up,
    committed,
    copier,
    create_both,
    create_map,
    ended,
    ends_of,
    in_sync,
    reached,
    running,
    same,
    settings,
    sides_with,
    two_sides,
)
from tests.unit.wire.clusters import all_ended, create_topic

from ottla.clock import SystemClock
from ottla.errors import ApiError, InvalidRequest, OutOfOrderSequenceNumber, TopicAuthorizationFailed, TransactionAbortable
from ottla.mirror_maker.merge import map_topic, slot
from ottla.mirror_maker.merge.auditing import SlotAudit, _Part
from ottla.mirror_maker.merge.slot import SlotCopier, SlotLost
from ottla.mirror_maker.partition_states import PartitionState
from ottla.model import ZERO_TOPIC_ID, BrokerId, TopicPartition
from ottla.protocol.list_offsets_client import ListedOffset
from ottla.record.audit_records import MAXIMUM_WINDOWS, Tally, decode
from ottla.record.batch import DELETE_HORIZON_MASK, read_header
from ottla.record.columnar import read_columns
from ottla.record.records import Record, build_batch
from ottla.wire.admin import ConfigResource, ResourceType, alter_configs, delete_records, delete_topics
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.offsets import EARLIEST, list_offsets
from ottla.wire.producing import BaseOffset, BatchProducer
from ottla.wire.transactions import TransactionalProducer

CLICKS = TopicPartition("clicks", 0)
MINUTE = 60_000


async def test_batches_are_copied_with_their_records_untouched_and_the_map_says_where(tmp_path: Path) -> None:
    """Open transactions wait, aborted ones and markers stay behind; a restart goes on where the map says."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        async with BatchProducer(a.cluster) as plain:
            await plain.send(CLICKS, batch(b"1", b"2", codec=3))
        async with await TransactionalProducer.open(a.cluster, "loads") as producer:
            async with producer.transaction():
                await producer.send(CLICKS, batch(b"3"))
            producer.begin()
            await producer.send(CLICKS, batch(b"aborted"))
            await producer.abort()
            one = copier(a, b)
            one.want(same(1, "clicks"))
            async with running(one):
                await caught_up(one, await ends_of(a, CLICKS))
                producer.begin()
                await (await producer.send(CLICKS, batch(b"4")))
                await producer.commit()
                await all_ended(a.cluster)
                await caught_up(one, await ends_of(a, CLICKS))
            assert one.counts.opened_batches == 0
        source, target = await committed(a, CLICKS), await committed(b, CLICKS)
        assert [record.value for record in target[CLICKS]] == [b"1", b"2", b"3", b"4"]
        assert [(r.key, r.value, r.timestamp) for r in target[CLICKS]] == [(r.key, r.value, r.timestamp) for r in source[CLICKS]]
        again = copier(a, b)
        again.want(same(1, "clicks"))
        async with running(again):
            await until(lambda: again.is_open)
            known = again.maps[CLICKS]
            for before, after in zip(source[CLICKS], target[CLICKS], strict=True):
                assert known.translate(before.offset) == after.offset
            assert known.translate(known.next_offset) == target[CLICKS][-1].offset + 1
            assert known.translate(known.next_offset + 1) is None
            async with BatchProducer(a.cluster) as plain:
                await plain.send(CLICKS, batch(b"5"))
            await caught_up(again, await ends_of(a, CLICKS))
        assert again.counts.records == 1
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"1", b"2", b"3", b"4", b"5"]


async def test_the_id_of_a_topic_is_not_forgotten_where_a_broker_does_not_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some brokers of a cluster that is being updated: without it a topic that is made again later would be copied as the former one."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        for number in range(2):
            async with BatchProducer(a.cluster) as plain:
                await plain.send(CLICKS, batch(b"%d" % number))
            one = copier(a, b)
            one.want(same(1, "clicks"))
            async with running(one):
                await caught_up(one, await ends_of(a, CLICKS))
            assert one.maps[CLICKS].topic_id not in (ZERO_TOPIC_ID, None)
            monkeypatch.setattr("ottla.wire.cluster.METADATA_VERSIONS", (1, 9))
            await a.cluster.refresh(None)
            assert a.cluster.metadata.topic("clicks").topic_id is None


async def test_a_tombstone_that_the_sources_cleaner_has_looked_at_is_copied_without_its_time_to_go(tmp_path: Path) -> None:
    """KIP-534: the first cleaning writes a delete horizon into the batch's header, which is for brokers to set. gzip is never joined."""
    async with two_sides(tmp_path, log_cleaner_backoff_ms="50") as (a, b):
        await create_topic(a.cluster, "clicks", cleanup_policy="compact", segment_bytes="600", min_cleanable_dirty_ratio="0.01")
        await create_topic(b.cluster, "clicks", cleanup_policy="compact")
        await create_map(b)
        async with BatchProducer(a.cluster) as plain:
            await plain.send(CLICKS, build_batch([Record(0, 1_700_000_000_000, b"gone", None)], codec=1))
            for number in range(4):  # each a segment
                await plain.send(CLICKS, batch(b"%d" % number * 400))
        async with asyncio.timeout(SECONDS), Fetcher(a.cluster, FetchSettings(max_wait_ms=50)) as fetcher:
            header = None
            while header is None or not header.attributes & DELETE_HORIZON_MASK:
                fetcher.assign(CLICKS, EARLIEST)
                while not (fetched := await fetcher.poll(1.0)):
                    pass
                header = read_header(fetched[0].records)
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with running(one):
            await until(lambda: one.counts.records > 0 or one.statuses[CLICKS].state is PartitionState.FAILED, SECONDS)
            assert one.statuses[CLICKS].reason == ""
        assert (await committed(b, CLICKS))[CLICKS][0] == Record(0, 1_700_000_000_000, b"gone", None)


async def test_a_map_of_before_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced while it was cut off from ZooKeeper says where the map ended then, and nothing may be copied again."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        for value in (b"1", b"2"):
            async with BatchProducer(a.cluster) as plain:
                await plain.send(CLICKS, batch(value))
            one = copier(a, b)
            one.want(same(1, "clicks"))
            async with running(one):
                await caught_up(one, await ends_of(a, CLICKS))
            really = list_offsets

            async def of_before(*arguments: Any, really: Any = really, **named: Any) -> dict[TopicPartition, ListedOffset]:
                return {key: found._replace(offset=0) for key, found in (await really(*arguments, **named)).items()}

            monkeypatch.setattr(map_topic, "list_offsets", of_before)
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"1", b"2"]


@pytest.mark.long
async def test_each_record_is_there_once_and_in_order_whatever_is_killed(tmp_path: Path) -> None:
    """Workers lose their slot in the middle of a transaction, and a leader and coordinator is killed on both sides; to the last record."""
    partitions, records_each = 3, 5
    replicated = {
        "transaction_state_log_replication_factor": "2",
        "offsets_topic_replication_factor": "2",
        "min_insync_replicas": "1",
    }
    async with two_sides(tmp_path, 2, **replicated) as (a, b):
        await create_both(a, b, "clicks", partitions, 2)
        await create_map(b, replication_factor=2)
        wanted = same(partitions, "clicks")
        expected: dict[TopicPartition, list[bytes]] = {partition: [] for partition in wanted}
        disturbed = asyncio.Event()

        async def publish() -> None:
            """For as long as someone is disturbed."""
            number = 0
            async with BatchProducer(a.cluster) as producer:
                while not disturbed.is_set():
                    for partition, values in expected.items():
                        new = [b"%d-%d" % (partition.partition, len(values) + index) for index in range(records_each)]
                        values += new
                        producer.send(partition, batch(*new, codec=number % 5))
                    number += 1
                    await producer.room()
                    await asyncio.sleep(0.01)

        async def work(transactions: int) -> None:
            """One that is never told to stop: it writes on, with its transaction open, while the next one takes its slot."""
            one = copier(a, b)
            one.want(wanted)
            zombies.append(asyncio.create_task(one.run()))
            await until(lambda: one.counts.transactions >= transactions)

        zombies: list[asyncio.Task[None]] = []
        publishing = asyncio.create_task(publish())
        for number in range(6):
            await work(1 + number % 2)
        for one in (a, b):
            await in_sync(one, 2)
            await one.brokers.kill(BrokerId(1))
            await work(1)
            await one.brokers.start_broker(BrokerId(1))
        disturbed.set()
        await publishing
        last = copier(a, b)
        last.want(wanted)
        async with running(last):
            await caught_up(last, await ends_of(a, *wanted))
            found = await committed(b, *wanted)
            source = await committed(a, *wanted)
            for partition in wanted:
                assert [record.value for record in found[partition]] == expected[partition]
                for before, after in zip(source[partition], found[partition], strict=True):
                    assert last.maps[partition].translate(before.offset) == after.offset
        await until(lambda: any(task.done() and isinstance(task.exception(), SlotLost) for task in zombies))
        for task in zombies:
            await ended(task)


@pytest.mark.parametrize("on_truncation", [pytest.param("fail", marks=pytest.mark.long), "gap"])
async def test_records_that_were_deleted_before_they_were_copied_fail_the_partition_or_leave_a_gap_that_the_map_has(
    tmp_path: Path, on_truncation: str
) -> None:
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        wanted = same(2, "clicks")
        other = TopicPartition("clicks", 1)
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"0", b"1"))
        one = copier(a, b)
        one.want(wanted)
        async with running(one):
            await caught_up(one, {CLICKS: 2})
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"2", b"3", b"4", b"5"))
            plain.send(other, batch(b"other"))
        await delete_records(a.cluster, {CLICKS: 4})
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(wanted)
        async with running(one):
            if on_truncation == "fail":
                assert "OffsetOutOfRange" in await reached(one, CLICKS, PartitionState.FAILED)
                await caught_up(one, {other: 1})
                assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1"]
                one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 6, other: 1})
            assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1", b"4", b"5"]
            ((partition, gap),) = one.gaps
            assert (partition, gap.offset, gap.next_offset, gap.cause) == (CLICKS, 2, 4, "deleted before it was copied")
            assert [one.maps[CLICKS].translate(offset) for offset in (1, 2, 3, 4)] == [1, 3, 3, 3]
        again = copier(a, b)
        again.want(wanted)
        async with running(again):
            await until(lambda: again.is_open)
            assert again.gaps == one.gaps, "the gap is in the map for good"


async def test_groups_are_not_translated_to_copies_that_went_with_the_targets_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offset 1 was at 1 in the former topic: in the one that was made again a group would begin behind a record that it has not read."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with BatchProducer(a.cluster) as plain, running(one):
            plain.send(CLICKS, batch(b"0", b"1", b"2"))
            await caught_up(one, {CLICKS: 3})
            assert not await delete_topics(b.cluster, ["clicks"])
            await create_topic(b.cluster, "clicks")
            plain.send(CLICKS, batch(b"3", b"4"))
            await caught_up(one, {CLICKS: 5})
            await b.cluster.refresh(["clicks"])
            assert [(record.offset, record.value) for record in (await committed(b, CLICKS))[CLICKS]] == [(0, b"3"), (1, b"4")]
            assert [one.maps[CLICKS].translate(offset) for offset in range(6)] == [0, 0, 0, 0, 1, 2]
            assert "clicks-0: the target has lost what was copied from" in caplog.text


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_a_topic_that_was_made_again_is_not_taken_for_the_former_one(tmp_path: Path, on_truncation: str) -> None:
    """KAFKA-1194 of mirrors: the offsets fit, the records are others."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"0", b"1"))
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 2})
            assert not await delete_topics(a.cluster, ["clicks"])
            await create_topic(a.cluster, "clicks")
            async with BatchProducer(a.cluster) as plain:
                plain.send(CLICKS, batch(b"new 0", b"new 1", b"new 2"))
            if on_truncation == "fail":
                assert "made again" in await reached(one, CLICKS, PartitionState.FAILED)
                one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 3})
            values = [record.value for record in (await committed(b, CLICKS))[CLICKS]]
            assert values == [b"0", b"1", b"new 0", b"new 1", b"new 2"]
            ((_, gap),) = one.gaps
            assert "made again" in gap.cause
            where = (await committed(b, CLICKS))[CLICKS]
            assert one.maps[CLICKS].translate(0) == where[2].offset


@pytest.mark.long
async def test_a_batch_that_the_target_does_not_take_is_split_and_a_record_that_is_too_large_fails_its_partition_only(
    tmp_path: Path,
) -> None:
    """The topic's bound is found out by the refusal, as when it was lowered after the link had asked."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 2)
        await create_topic(b.cluster, "clicks", 2, max_message_bytes="3000")
        await create_map(b)
        other = TopicPartition("clicks", 1)
        values = [bytes([number]) * 700 for number in range(20)]
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(*values))
            plain.send(CLICKS, batch(b"after"))
            plain.send(other, batch(b"before", bytes(5000), b"behind"))
        one = copier(a, b)
        one.want(same(2, "clicks"))
        async with running(one):
            assert "MessageTooLarge" in await reached(one, other, PartitionState.FAILED)
            await caught_up(one, {CLICKS: 21})
            found = await committed(b, CLICKS, other)
            assert [record.value for record in found[CLICKS]] == [*values, b"after"]
            assert found[other] == []
            for offset in range(21):
                assert one.maps[CLICKS].translate(offset) == found[CLICKS][offset].offset
            async with BatchProducer(a.cluster) as plain:
                plain.send(CLICKS, batch(b"goes on"))
            await caught_up(one, {CLICKS: 22})


async def test_a_repair_forgets_what_the_target_has_refused_before_it_was_set_to_take_larger_batches(tmp_path: Path) -> None:
    """As `MirrorSourceTask` does, which fails with the producer's RecordTooLargeException and copies on after a restart."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await create_topic(b.cluster, "clicks", max_message_bytes="3000")
        await create_map(b)
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with BatchProducer(a.cluster) as plain, running(one):
            plain.send(CLICKS, batch(bytes(2000), bytes(2000)))
            await caught_up(one, {CLICKS: 2})
            plain.send(CLICKS, batch(bytes(5000)))
            assert "MessageTooLarge" in await reached(one, CLICKS, PartitionState.FAILED)
            await alter_configs(b.cluster, {ConfigResource(ResourceType.TOPIC, "clicks"): {"max.message.bytes": "1000000"}})
            one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 3})
            assert [len(record.value or b"") for record in (await committed(b, CLICKS))[CLICKS]] == [2000, 2000, 5000]


async def test_active_active_with_the_same_names_copies_no_copy_back(tmp_path: Path) -> None:
    """By the producers that the links' maps name; no batch is opened for it."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks")
        await create_map(b, "A-B")
        await create_map(a, "B-A")
        there, back = copier(a, b, settings(a, b, "A-B")), copier(b, a, settings(b, a, "B-A"))
        for one in (there, back):
            one.want(same(1, "clicks"))
        async with running(there, back), BatchProducer(a.cluster) as at_a, BatchProducer(b.cluster) as at_b:
            for number in range(20):
                at_a.send(CLICKS, batch(b"a%d" % number))
                at_b.send(CLICKS, batch(b"b%d" % number))
                if number % 5 == 0:
                    await asyncio.sleep(0.05)
            await at_a.flush()
            await at_b.flush()
            async with asyncio.timeout(120):
                # No one announces that both have all.
                while min([len(found[CLICKS]) for found in (await committed(a, CLICKS), await committed(b, CLICKS))]) < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            before = there.counts.transactions + back.counts.transactions
            await caught_up(there, await ends_of(a, CLICKS))
            await caught_up(back, await ends_of(b, CLICKS))
        for side_ in (a, b):
            values = [record.value for record in (await committed(side_, CLICKS))[CLICKS]]
            assert len(values) == 40
            assert [value for value in values if (value or b"").startswith(b"a")] == [b"a%d" % number for number in range(20)]
            assert [value for value in values if (value or b"").startswith(b"b")] == [b"b%d" % number for number in range(20)]
        assert there.counts.cut_batches > 0 and back.counts.cut_batches > 0
        assert there.counts.opened_batches == back.counts.opened_batches == 0
        assert before


async def test_records_that_say_where_they_were_copied_from_are_cut_too(tmp_path: Path) -> None:
    """Also behind a cluster in between, which has other producers."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"0"))
            came = [("ottla.mirror", f"{b.cluster_id}/clicks/0/17".encode())]
            plain.send(CLICKS, build_batch([Record(0, 1, b"k", b"from B", tuple(came)), Record(1, 2, b"k", b"1", (("h", b"v"),))]))
        one = copier(a, b, settings(a, b, provenance=True))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 3})
            records = (await committed(b, CLICKS))[CLICKS]
            assert [(record.value, record.headers) for record in records] == [
                (b"0", (("ottla.mirror", f"{a.cluster_id}/clicks/0/0".encode()),)),
                (b"1", (("h", b"v"), ("ottla.mirror", f"{a.cluster_id}/clicks/0/2".encode()))),
            ]
            assert one.counts.opened_batches == 2


async def test_a_source_that_is_another_cluster_than_before_is_refused(tmp_path: Path) -> None:
    """Its offsets mean nothing here."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with running(one):
            await until(lambda: one.is_open)
        other = copier(a, b, settings(a, b, source_id="another"))
        with pytest.raises(Exception, match=f"has copied from cluster {a.cluster_id}, and its source is another now"):
            async with asyncio.timeout(120):
                await other.run()


async def test_batches_of_one_record_are_joined_and_the_map_is_as_exact(tmp_path: Path) -> None:
    """Where the producer writes transactions of one record between them, each has a marker behind it, which stays behind."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        async with BatchProducer(a.cluster) as plain, await TransactionalProducer.open(a.cluster, "loads") as producer:
            for number in range(60):
                if number % 10:
                    await plain.send(CLICKS, batch(b"%d" % number, codec=3 if number < 30 else 0))
                else:
                    async with producer.transaction():
                        await producer.send(CLICKS, batch(b"%d" % number))
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, await ends_of(a, CLICKS))
            source, target = (await committed(a, CLICKS))[CLICKS], (await committed(b, CLICKS))[CLICKS]
            assert [record.value for record in target] == [b"%d" % number for number in range(60)]
            assert [(r.key, r.value, r.timestamp) for r in target] == [(r.key, r.value, r.timestamp) for r in source]
            for before, after in zip(source, target, strict=True):
                assert one.maps[CLICKS].translate(before.offset) == after.offset
            assert one.counts.records == 60
            assert one.counts.batches + one.counts.joined_batches == 60 and one.counts.batches < 20


@pytest.mark.long
async def test_a_partition_that_begins_again_is_copied_once_more_and_groups_are_translated_to_the_new_copies(tmp_path: Path) -> None:
    """Behind the former copies, or in their place; never while it is paused, nor where the target's topic may not be emptied."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks")
        await create_topic(a.cluster, "kept")
        await create_topic(b.cluster, "kept", cleanup_policy="compact")
        await create_map(b)
        kept = TopicPartition("kept", 0)
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"0", b"1"))
            plain.send(kept, batch(b"2"))
        one = copier(a, b)
        one.want(same(1, "clicks", "kept"))
        async with running(one):
            await caught_up(one, {CLICKS: 2, kept: 1})
            one.repair(CLICKS, "restart")
            await until(lambda: len(one.gaps) == 1)
            await caught_up(one, {CLICKS: 2})
            again = (await committed(b, CLICKS))[CLICKS]
            assert [record.value for record in again] == [b"0", b"1", b"0", b"1"]
            assert [one.maps[CLICKS].translate(offset) for offset in (0, 1)] == [again[2].offset, again[3].offset]
            one.repair(CLICKS, "truncate")
            one.repair(kept, "truncate")
            await until(lambda: len(one.gaps) == 2)
            await caught_up(one, {CLICKS: 2})
            there = (await committed(b, CLICKS))[CLICKS]
            assert [record.value for record in there] == [b"0", b"1"] and there[0].offset > again[-1].offset
            assert "PolicyViolation" in await reached(one, kept, PartitionState.FAILED)
            one.repair(kept, "accept gap")
            await reached(one, kept, PartitionState.RUNNING)
            assert [record.value for record in (await committed(b, kept))[kept]] == [b"2"]
            one.want(same(1, "clicks"), [CLICKS])
            await reached(one, CLICKS, PartitionState.PAUSED)
            with pytest.raises(InvalidRequest, match="resume it first"):
                one.repair(CLICKS, "restart")
        after = copier(a, b)
        after.want(same(1, "clicks"))
        async with running(after):
            await until(lambda: after.is_open)
            assert [gap.cause for _, gap in after.gaps] == ["begun again by an operator; the copies before were deleted"]
            assert after.maps[CLICKS].translate(0) == there[0].offset


@pytest.mark.parametrize("error", [TransactionAbortable, OutOfOrderSequenceNumber])
async def test_what_a_target_says_of_the_transaction_fails_no_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[ApiError]
) -> None:
    """A transaction that its coordinator has given up meanwhile (KIP-890): it is aborted, and the slot is opened again."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        async with BatchProducer(a.cluster) as plain:
            plain.send(CLICKS, batch(b"0"))
        sealed = BatchProducer.send
        refused: list[ApiError] = []

        def send(self: BatchProducer, partition: TopicPartition, data: bytes) -> asyncio.Future[BaseOffset]:
            if partition == CLICKS and not refused:
                refused.append(error("given up"))
                written: asyncio.Future[BaseOffset] = asyncio.get_running_loop().create_future()
                written.set_exception(refused[0])
                return written
            return sealed(self, partition, data)

        monkeypatch.setattr(BatchProducer, "send", send)
        one = copier(a, b)
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 1})
            assert refused and one.counts.failed_transactions == 1
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0"]


async def test_a_paused_partition_waits_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        other = TopicPartition("clicks", 1)
        wanted = same(2, "clicks")
        one = copier(a, b)
        one.want(wanted, [CLICKS])
        async with running(one):
            await reached(one, CLICKS, PartitionState.PAUSED)
            async with BatchProducer(a.cluster) as plain:
                plain.send(CLICKS, batch(b"0"))
                plain.send(other, batch(b"1"))
            await caught_up(one, {other: 1})
            assert (await committed(b, CLICKS))[CLICKS] == []
            one.want(wanted)
            await caught_up(one, {CLICKS: 1})
            one.want({other: wanted[other]})
            await until(lambda: CLICKS not in one.statuses)


async def test_a_partition_whose_topic_was_made_again_in_a_pause_fails_alone_when_it_is_resumed(tmp_path: Path) -> None:
    """Its slot had ended there, again and again, and no partition of it was copied any more."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks")
        await create_both(a, b, "views")
        await create_map(b)
        views = TopicPartition("views", 0)
        wanted = {**same(1, "clicks"), **same(1, "views")}
        async with BatchProducer(a.cluster) as plain:
            await plain.send(CLICKS, batch(b"0"))
        one = copier(a, b)
        one.want(wanted)
        async with running(one):
            await caught_up(one, {CLICKS: 1})
            one.want(wanted, [CLICKS])
            await reached(one, CLICKS, PartitionState.PAUSED)
            assert not await delete_topics(a.cluster, ["clicks"])
            await create_topic(a.cluster, "clicks")
            one.want(wanted)
            assert "made again" in await reached(one, CLICKS, PartitionState.FAILED)
            async with BatchProducer(a.cluster) as plain:
                await plain.send(views, batch(b"1"))
            await caught_up(one, {views: 1})


async def test_a_topic_that_goes_while_its_partition_is_started_ends_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for, and is not wanted any more when the answer comes: the slot had ended there, and the others waited ten seconds."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks", 2)
        await create_both(a, b, "views")
        await create_map(b)
        views = TopicPartition("views", 0)
        async with BatchProducer(a.cluster) as plain:
            await plain.send(views, batch(b"1"))
        one, really = copier(a, b), a.cluster.topic
        one.want({**same(2, "clicks"), **same(1, "views")})

        async def goes(name: str) -> object:
            one.want(same(1, "views"))
            return await really(name)

        monkeypatch.setattr(a.cluster, "topic", goes)
        running_one = asyncio.ensure_future(one.run())
        try:
            await until(lambda: running_one.done() or one.counts.records == 1)
            assert not running_one.done(), running_one.exception()
        finally:
            await ended(running_one)


async def test_a_partition_that_fails_while_its_source_is_asked_about_its_end_is_not_copied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source has ended before the next offset for long, and refuses to say more: it was FAILED, and its records came all the same."""
    watermarks = Fetcher.watermarks
    ends: list[int] = []

    async def refused(*_: object) -> bool:
        raise slot._Unanswered(TopicAuthorizationFailed("clicks"))

    monkeypatch.setattr(Fetcher, "watermarks", lambda *given: (0, ends[-1], ends[-1]) if ends else watermarks(*given))
    monkeypatch.setattr(SlotCopier, "_refuses_offsets", refused)
    monkeypatch.setattr(slot, "SHORT_SECONDS", 0.2)
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        other = TopicPartition("clicks", 1)
        one = copier(a, b)
        one.want(same(2, "clicks"))
        async with BatchProducer(a.cluster) as producer, running(one):
            await producer.send(CLICKS, batch(b"0", b"1"))
            await caught_up(one, {CLICKS: 2})
            ends.append(1)
            assert "TopicAuthorizationFailed" in await reached(one, CLICKS, PartitionState.FAILED)
            ends.clear()
            await producer.send(CLICKS, batch(b"2"))
            await producer.send(other, batch(b"other"))
            await caught_up(one, {other: 1})
            assert one.maps[CLICKS].next_offset == 2
            one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 3})


async def test_a_throttle_has_what_comes_next_wait_for_what_was_copied(tmp_path: Path) -> None:
    """`throttle.bytes.per.second`: 300 kB at 500 kB a second."""
    async with sides_with(tmp_path, "clicks") as (a, b):
        loop = asyncio.get_running_loop()
        one = copier(a, b, bytes_per_second=500_000)
        one.want(same(1, "clicks"))
        async with BatchProducer(a.cluster) as producer:
            await producer.send(CLICKS, batch(bytes(300_000)))
            began = loop.time()
            async with running(one):
                await caught_up(one, {CLICKS: 1})
                await producer.send(CLICKS, batch(b"next"))
                await caught_up(one, {CLICKS: 2})
                assert loop.time() - began > 300_000 / 500_000
                assert one.record_ages.snapshot().buckets[-1] == 2, "their records are of 2023"


async def test_a_pause_holds_at_once_while_a_throttle_has_the_next_records_wait(tmp_path: Path) -> None:
    """8 MiB at 10 kB a second are a quarter of an hour, in which no partition was paused, begun or repaired."""
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        one = copier(a, b, bytes_per_second=1000)
        one.want(same(1, "clicks"))
        async with BatchProducer(a.cluster) as producer, running(one):
            await producer.send(CLICKS, batch(bytes(300_000)))
            await caught_up(one, {CLICKS: 1})
            await producer.send(CLICKS, batch(b"next"))
            one.want(same(2, "clicks"), [CLICKS])
            await reached(one, CLICKS, PartitionState.PAUSED)
            await reached(one, TopicPartition("clicks", 1), PartitionState.RUNNING)
            assert one.counts.records == 1


def test_messages_of_more_windows_than_an_audit_record_takes_are_missing_audit_data_and_no_loss() -> None:
    """The earliest windows are left out, and with them a number, as by a broker."""
    audit = SlotAudit("a-b", cast(Any, None), cast(Any, None), ("a", "b"), MINUTE, SystemClock())
    sequences = []
    for count in (MAXIMUM_WINDOWS, MAXIMUM_WINDOWS + 1, MAXIMUM_WINDOWS):
        part = _Part(0, count, {number * MINUTE: Tally(count=1) for number in range(count)})
        ((_, batch),) = audit._batches(8, audit._read, {CLICKS: part})
        (columns,) = read_columns(batch)
        sequences.append(decode(columns.values[0] or b"").sequence)
    assert sequences == [0, 2, 3]
