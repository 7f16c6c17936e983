"""The proof: messages are dropped, doubled, swapped, delayed and corrupted at each tier in turn, and each verdict names it.

Nothing is mocked: brokers, `__audit`, the counter with its file, audited clients. Only the wrong is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.audit_counter.pipelines import AUDITING, MINUTE, WAIT_SECONDS, Message, Pipeline, Sabotage, pipeline, until_counted
from tests.unit.wire.clusters import cluster_of

from ottla.audit_counter.service import AuditCounter, Event, _LogCount
from ottla.audit_counter.verdicts import EdgeVerdict
from ottla.client.auditing import ConsumerAudit, new_session
from ottla.errors import LeaderNotAvailable, OffsetOutOfRange
from ottla.model import TopicPartition
from ottla.record.audit_records import TOPIC, WRONG, Verdict
from ottla.record.batch import crc_of
from ottla.record.records import Record, build_batch
from ottla.wire.admin import create_partitions, delete_records
from ottla.wire.fetching import Fetched
from ottla.wire.producing import BatchProducer

PRODUCED = "producer->log"
CONSUMED = "log->consumer:billing"


async def verdicts(running: Pipeline, edge: str = "", verdict: Verdict | None = None) -> dict[str, EdgeVerdict]:
    """The one window's, once they are known, or once one is what it says."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        summary = await running.summary(0.05)
        found = {said.edge: said for _, said in summary.verdicts}
        if (summary.is_known and verdict is None) or (verdict is not None and edge in found and found[edge].verdict is verdict):
            assert summary.windows == 1
            return found
        assert asyncio.get_running_loop().time() < deadline, found


def named(said: EdgeVerdict) -> set[tuple[int, int, int]]:
    return {(message.partition, message.offset, message.times) for message in said.named}


@pytest.fixture
def running(tmp_path: Path) -> AbstractAsyncContextManager[Pipeline]:
    return pipeline(tmp_path)


async def test_a_clean_run_is_complete_on_each_edge(running: Pipeline) -> None:
    await running.produce(200)
    await running.consume()
    await running.say_final()
    summary = await running.summary()
    assert summary.exit_code == 0
    assert {said.edge: said.verdict for _, said in summary.verdicts} == {PRODUCED: Verdict.COMPLETE, CONSUMED: Verdict.COMPLETE}
    assert {said.evidence for _, said in summary.verdicts} == {"placed"}


async def test_a_log_that_cannot_be_read_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a partition whose leader is away."""
    read_log, fails = AuditCounter.read_log, iter((True, True))

    async def read_in_the_end(counter: AuditCounter, *window: Any) -> None:
        if next(fails, False):
            raise LeaderNotAvailable("clicks-0")
        await read_log(counter, *window)

    monkeypatch.setattr(AuditCounter, "read_log", read_in_the_end)
    async with pipeline(tmp_path) as running:
        await running.produce()
        await running.consume()
        await running.say_final()
        assert {str(said.verdict) for said in (await verdicts(running)).values()} == {"COMPLETE"}
        assert running.counter.progress.log_failures == 2


async def test_messages_that_never_reach_the_log_are_lost_and_named(running: Pipeline) -> None:
    """The last of a partition, so that no other message has their offsets."""
    await running.produce(100, dropped=(98, 99))
    await running.consume()
    await running.say_final()
    found = await verdicts(running)
    assert found[PRODUCED].verdict is Verdict.LOSS
    assert named(found[PRODUCED]) == {(0, 49, 1), (1, 49, 1)}
    assert found[CONSUMED].verdict is Verdict.COMPLETE


async def test_messages_that_reach_the_log_twice_are_duplicates_and_named(running: Pipeline) -> None:
    await running.produce(100, doubled=(97,))
    await running.consume()
    await running.say_final()
    found = await verdicts(running)
    assert (found[PRODUCED].verdict, found[PRODUCED].surplus, found[PRODUCED].partition) == (Verdict.DUPLICATE, 1, 1)
    assert named(found[PRODUCED]) == {(1, 49, -1)}
    assert found[CONSUMED].verdict is Verdict.COMPLETE


async def test_messages_that_change_on_the_way_are_compensated_and_named(running: Pipeline) -> None:
    await running.produce(100, corrupted=(10,))
    await running.consume()
    await running.say_final()
    found = await verdicts(running)
    assert found[PRODUCED].verdict is Verdict.COMPENSATED
    assert named(found[PRODUCED]) == {(0, 5, 1), (0, 5, -1)}
    assert found[CONSUMED].verdict is Verdict.COMPLETE


async def test_messages_that_have_an_id_may_change_on_the_way_and_a_lost_one_is_named_all_the_same(running: Pipeline) -> None:
    await running.produce(100, corrupted=(10, 11), dropped=(98,), ids=True)
    await running.consume(corrupting)
    await running.say_final()
    found = await verdicts(running)
    assert (found[PRODUCED].verdict, named(found[PRODUCED])) == (Verdict.LOSS, {(0, 49, 1)})
    assert (found[CONSUMED].verdict, found[CONSUMED].evidence) == (Verdict.COMPLETE, "placed")


async def test_a_partition_that_is_newer_than_what_the_counter_knows_of_the_topic_is_read_with_the_others(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as running, cluster_of(running.running) as cluster:
        assert len((await running.cluster.topic("clicks")).partitions) == 2, "the counter knows these, and asks once in minutes"
        running.cluster = cluster
        assert not await create_partitions(cluster, {"clicks": 3})
        while "clicks" not in cluster.metadata.topics or len(cluster.metadata.topic("clicks").partitions) < 3:
            await cluster.refresh(["clicks"])
        await running.produce(99, partitions=3)
        await running.consume()
        await running.say_final()
        found = await verdicts(running)
        assert {edge: said.verdict for edge, said in found.items()} == {PRODUCED: Verdict.COMPLETE, CONSUMED: Verdict.COMPLETE}


async def test_a_message_that_comes_to_a_log_that_was_read_is_no_duplicate_at_the_consumer(running: Pipeline) -> None:
    """A producer gave it up and ended, and the broker wrote it all the same."""
    await running.produce(101, unanswered=(100,))
    await running.say_final()
    assert (await verdicts(running))[PRODUCED].verdict is Verdict.IN_DOUBT
    async with BatchProducer(running.cluster) as producer:
        await producer.send(TopicPartition("clicks", 0), build_batch([Record(0, running.start_ms + 10_000, b"key-100", b"value-100")]))
    await running.consume()
    await running.counter.wait_read(WAIT_SECONDS)
    found = await verdicts(running)
    assert found[CONSUMED].verdict is Verdict.COMPLETE
    assert (found[CONSUMED].upstream_count, found[CONSUMED].downstream_count) == (101, 101)
    assert found[PRODUCED].verdict is Verdict.IN_DOUBT


def dropping(messages: list[Message]) -> Iterable[Message]:
    return [message for message in messages if message[:2] != (1, 7)]


def doubling(messages: list[Message]) -> Iterable[Message]:
    return [*messages, *(message for message in messages if message[:2] == (1, 7))]


def swapping(messages: list[Message]) -> Iterable[Message]:
    """One is lost and another read twice: equal counts."""
    return [*dropping(messages), *(message for message in messages if message[:2] == (1, 8))]


def corrupting(messages: list[Message]) -> Iterable[Message]:
    return [(*message[:3], b"other", message[4]) if message[:2] == (1, 7) else message for message in messages]


def shuffling(messages: list[Message]) -> Iterable[Message]:
    return reversed(messages)


@pytest.mark.parametrize(
    ("sabotage", "verdict", "names"),
    [
        (dropping, Verdict.LOSS, {(1, 7, 1)}),
        (doubling, Verdict.DUPLICATE, {(1, 7, -1)}),
        (swapping, Verdict.COMPENSATED, {(1, 7, 1), (1, 8, -1)}),
        (corrupting, Verdict.COMPENSATED, {(1, 7, 1), (1, 7, -1)}),
        (shuffling, Verdict.COMPLETE, set()),
    ],
)
async def test_what_a_consumer_does_wrong_is_told_of_its_edge_alone(
    running: Pipeline, sabotage: Sabotage, verdict: Verdict, names: set[tuple[int, int, int]]
) -> None:
    await running.produce(100)
    await running.consume(sabotage)
    await running.say_final()
    found = await verdicts(running)
    assert found[PRODUCED].verdict is Verdict.COMPLETE
    assert (found[CONSUMED].verdict, named(found[CONSUMED])) == (verdict, names)
    assert found[CONSUMED].partition == (1 if names else -1)
    assert found[CONSUMED].hosts == (("bill-1",) if names else ())


async def test_attempts_without_an_answer_are_in_doubt(running: Pipeline) -> None:
    await running.produce(100, unanswered=(50, 51, 52))
    await running.say_final()
    found = await verdicts(running)
    assert (found[PRODUCED].verdict, found[PRODUCED].in_doubt) == (Verdict.IN_DOUBT, 3)
    assert (await running.summary(0.0)).exit_code == 3


async def test_nothing_is_complete_while_a_producer_or_a_consumer_may_still_have_something(running: Pipeline) -> None:
    await running.produce(100, unanswered=(99,))
    await running.report(running.producer.records(running.now_ms))
    assert (await running.summary(0.5)).exit_code == 3
    await running.consume(lambda messages: [message for message in messages if message[1] < 30], final=False)
    await running.say_final()
    await running.counter.wait_read(WAIT_SECONDS)
    found = await verdicts(running, PRODUCED, Verdict.IN_DOUBT)
    assert found[CONSUMED].verdict is Verdict.PENDING
    await running.consume(lambda messages: [message for message in messages if message[1] >= 30])
    assert (await verdicts(running))[CONSUMED].verdict is Verdict.COMPLETE


async def test_messages_that_come_when_their_window_was_known_revise_it(running: Pipeline) -> None:
    """Delayed at the producer: its watermark had passed the window."""
    await running.produce(50)
    await running.report(running.producer.records(running.now_ms))
    found = await verdicts(running)
    assert (found[PRODUCED].verdict, found[PRODUCED].revision) == (Verdict.COMPLETE, 0)
    await running.produce(50)
    await running.say_final()
    found = await verdicts(running, PRODUCED, Verdict.LATE)
    assert (found[PRODUCED].revision, found[PRODUCED].downstream_count) == (1, 100)


async def test_audit_data_that_is_missing_is_never_called_loss(running: Pipeline) -> None:
    await running.produce(50)
    await running.consume()
    first = running.producer.records(running.now_ms)
    await running.produce(50)
    await running.consume(final=False)
    lost = running.producer.records(running.now_ms)
    assert first
    assert lost
    await running.report(first)
    await running.say_final()
    found = await verdicts(running, PRODUCED, Verdict.UNAUDITED)
    while "audit data is missing" not in found[PRODUCED].reason:
        assert found[PRODUCED].verdict is Verdict.UNAUDITED
        await running.summary(0.05)
        found = await verdicts(running, PRODUCED, Verdict.UNAUDITED)


async def test_records_that_are_none_are_counted_and_change_nothing(running: Pipeline) -> None:
    await running.produce(20)
    await running.report([b"", b"\xc3\x01 and then nonsense", bytes(900_000)])
    await running.consume()
    await running.say_final()
    assert (await running.summary()).exit_code == 0


async def test_a_batch_of_audit_records_that_cannot_be_read_is_counted_and_ends_no_counter(running: Pipeline) -> None:
    """It says that it is compressed and is not; brokers store batches as they came. A counter that failed at it failed again for ever."""
    torn = bytearray(build_batch([Record(0, 1, b"clicks", b"no frame of lz4")]))
    torn[22] = 3
    torn[17:21] = crc_of(torn).to_bytes(4, "big")
    await running.produce(20)
    async with BatchProducer(running.cluster) as producer:
        await producer.send(TopicPartition(TOPIC, 3), bytes(torn))
    await running.consume()
    await running.say_final()
    assert (await running.summary()).exit_code == 0
    assert (await running.counter.standing()).counters["quarantined"] == 1


async def test_a_run_that_is_too_long_for_a_sketch_is_told_by_its_ends(running: Pipeline) -> None:
    """The consumer reports when the log was read for the producer long ago, so it is read again."""
    await running.produce(400, spacing_ms=10)
    await running.say_final()
    assert (await verdicts(running))[PRODUCED].verdict is Verdict.COMPLETE
    skipped = range(20, 180)
    await running.consume(lambda messages: [message for message in messages if message[0] or message[1] not in skipped])
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := (await verdicts(running)).get(CONSUMED)) is None or not found.reason:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (found.verdict, found.missing, found.named) == (Verdict.LOSS, 160, ())
    assert found.reason == "offsets 20 to 179 of partition 0 are missing"


async def test_more_losses_than_a_sketch_can_name_are_still_counted(running: Pipeline) -> None:
    """149 of each partition: more than a sketch has cells. At about a hundred it depends on the contents whether they can be named."""
    await running.produce(400, spacing_ms=10)
    await running.consume(lambda messages: [message for message in messages if message[1] == 199 or message[1] % 4 == 0])
    await running.say_final()
    found = await verdicts(running)
    assert (found[CONSUMED].verdict, found[CONSUMED].missing, found[CONSUMED].named) == (Verdict.LOSS, 298, ())


async def test_more_losses_than_a_sketch_can_name_are_named_by_what_was_reported_piece_by_piece(running: Pipeline) -> None:
    """Two consumers report every 25 messages of a partition. The records are in `__audit`, and the log is read beside them."""
    await running.produce(400, spacing_ms=10)
    hosts = [ConsumerAudit(new_session("consumer:billing", host=host)) for host in ("bill-1", "bill-2")]
    messages: list[Message] = []

    def take(found: list[Message]) -> Iterable[Message]:
        messages.extend(found)
        return ()

    await running.consume(take, final=False)
    lost = {(partition, offset) for partition, offset, *_ in messages if offset % 4 == 1}
    for first in range(0, 200, 25):
        audit = hosts[first // 100]
        for partition, offset, key, value, stamped in sorted(messages):
            if first <= offset < first + 25 and (partition, offset) not in lost:
                audit.consumed("clicks", partition, offset, key, value, stamped)
        await running.report(audit.records(running.now_ms, is_final=first in (75, 175)))
    await running.say_final()
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := (await verdicts(running)).get(CONSUMED)) is None or not found.named:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (found.verdict, found.missing, found.surplus) == (Verdict.LOSS, 100, 0)
    assert named(found) == {(*place, 1) for place in lost}
    assert found.hosts == ("bill-1", "bill-2")


async def test_what_differs_by_headers_alone_is_never_said_to_be_lost(tmp_path: Path) -> None:
    """A batch's times go back over a window's edge. The log tells that nothing is lost, and nobody was told otherwise meanwhile."""
    async with pipeline(tmp_path, verify="doubt", expected=("producer", "broker"), partitions=1, **AUDITING) as running:
        events: list[Event] = []

        async def listen() -> None:
            async for event in running.counter.watch():
                events.append(event)  # noqa: PERF401 - as they come

        listening = asyncio.ensure_future(listen())
        edge = running.start_ms + MINUTE
        records = [Record(index, time, b"key", b"%d" % time) for index, time in enumerate([edge, edge - 1000, edge + 1])]
        attempts = [running.producer.attempted("clicks", record.key, record.value, record.timestamp) for record in records]
        async with BatchProducer(running.cluster) as producer:
            offset = await producer.send(TopicPartition("clicks", 0), build_batch(records))
        for index, attempt in enumerate(attempts):
            running.producer.acknowledged(attempt, 0, offset + index)
        await running.consume()
        await running.say_final()
        async with asyncio.timeout(WAIT_SECONDS):
            while (summary := await running.summary(0.05)).exit_code or summary.windows < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await until(lambda: {event.verdict.verdict for event in events} >= {Verdict.PENDING, Verdict.COMPLETE})
        listening.cancel()
        assert not [event for event in events if event.verdict.verdict in WRONG]


async def test_a_log_whose_head_was_deleted_has_lost_nothing(tmp_path: Path) -> None:
    """It is read in doubt, and cannot tell any more; what the tiers say of each other stands."""
    async with pipeline(tmp_path, verify="doubt", expected=("producer", "broker"), **AUDITING) as running:
        await running.produce(100)
        await running.consume(dropping)
        await until_counted(running, 100)
        await delete_records(running.cluster, {TopicPartition("clicks", 0): 50})
        await running.say_final()
        edge = "broker->consumer:billing"
        await verdicts(running, "producer->broker", Verdict.COMPLETE)
        found = await verdicts(running, edge, Verdict.LOSS)
        assert {name: (said.verdict, said.missing) for name, said in found.items()} == {
            "producer->broker": (Verdict.COMPLETE, 0),
            edge: (Verdict.LOSS, 1),
        }


@pytest.mark.parametrize("compacted", ["a batch", "records of a batch"])
def test_a_log_that_was_compacted_has_lost_nothing(compacted: str) -> None:
    """It cannot tell any more what there was: that is no answer, and never one that something is missing."""

    def fetched(*sizes: tuple[int, int, int]) -> Fetched:
        data = b""
        for base_offset, delta, count in sizes:  # of a batch that was cleaned the last records are there
            records = [Record(base_offset + index, 1_000 + index, b"key", b"value") for index in range(delta + 1)]
            data += build_batch(records[-count:], base_offset=base_offset)
        last = sizes[-1][0] + sizes[-1][1]
        return Fetched(TopicPartition("clicks", 0), sizes[0][0], last + 1, memoryview(data), last + 1, last + 1, 0)

    whole = _LogCount(0, MINUTE)
    assert [whole.take(one, 100) for one in (fetched((5, 4, 5), (10, 0, 1)), fetched((11, 2, 3)))] == [6, 3]
    with pytest.raises(OffsetOutOfRange, match="compacted"):
        whole.take(fetched((20, 0, 1)) if compacted == "a batch" else fetched((14, 4, 1)), 100)
