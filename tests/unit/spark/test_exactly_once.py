"""A stream's sink over a real broker, with a Spark of a few lines: the order in which it journals, calls and runs again is Spark's."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from tests.unit.spark.test_reading import KEPT, consumed
from tests.unit.wire.clusters import wait_until_all_ended

from ottla.errors import InvalidTransactionTimeout, ProducerFenced
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.list_offsets_client import ListedOffset
from ottla.record.records import Record, build_batch
from ottla.spark import exactly_once
from ottla.spark.commits import TOPIC, CheckpointFenced, Decision, Slot, Step, TransactionLost, partition_of, slot_id
from ottla.spark.exactly_once import SinkCommits, Turn, open_slot
from ottla.spark.settings import SourceSettings
from ottla.testing import EmbeddedCluster
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import Fetcher
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.transactions import describe_transaction, end_transaction, list_transactions

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=KEPT) as running:
        yield running


class Killed(BaseException):
    """As a kill: nothing catches it."""


def run(cluster: EmbeddedCluster, main: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with connected(cluster) as connections:
            await main(connections)

    asyncio.run(opened())


@asynccontextmanager
async def connected(cluster: EmbeddedCluster) -> AsyncIterator[Cluster]:
    connections = Cluster(cluster.bootstrap_servers, ClusterSettings(api_timeout_seconds=20.0))
    try:
        yield connections
    finally:
        await connections.close()


def committed(cluster: EmbeddedCluster, topic: str, partitions: int = 1) -> list[bytes]:
    wait_until_all_ended(cluster.bootstrap_servers)
    return sorted(
        row[2] for number in range(partitions) for row in consumed(cluster, TopicPartition(topic, number), 1 << 60, "read_committed")
    )


async def task(connections: Cluster, turn: Turn, topic: str, number: int, rows: list[bytes], attempt: int = 0) -> Slot:
    producer = await open_slot(connections, turn, slot_id(turn.name, number, attempt))
    await producer.send(TopicPartition(topic, number), build_batch([Record(at, 1000, None, row) for at, row in enumerate(rows)]))
    found = await producer.prepare()
    await producer.close()
    assert found.transactional_id is not None
    return Slot(found.transactional_id, found.producer_id, found.producer_epoch, len(rows))


def test_a_batch_is_seen_when_it_is_committed_and_is_not_written_twice(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("once", partitions=2)

    async def main(connections: Cluster) -> None:
        commits = SinkCommits(connections, "once")
        turn = await commits.begin("q", TIMEOUT_MS)
        assert (turn.query, turn.done) == ("q", -1)
        slots = tuple([await task(connections, turn, topic, number, [b"%d" % number]) for number in range(2)])
        assert committed(cluster, topic, 2) == []
        await commits.commit(turn, Decision("q", 0, slots))
        assert committed(cluster, topic, 2) == [b"0", b"1"]
        assert await commits.last() == Decision("q", 0, slots, is_ended=True)
        assert (await commits.begin("q", TIMEOUT_MS)).done == 0

    run(cluster, main)


def test_another_checkpoint_is_refused_and_disturbs_nobody(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("owned")

    async def main(connections: Cluster) -> None:
        commits = SinkCommits(connections, "owned")
        turn = await commits.begin("q", TIMEOUT_MS)
        await commits.commit(turn, Decision("q", 0, (await task(connections, turn, topic, 0, [b"a"]),)))
        turn = await commits.begin("q", TIMEOUT_MS)
        slot = await task(connections, turn, topic, 0, [b"b"])
        with pytest.raises(CheckpointFenced, match="belongs to the checkpoint of query q"):
            await SinkCommits(connections, "owned").begin("another", TIMEOUT_MS)
        await commits.commit(turn, Decision("q", 1, (slot,)))

    run(cluster, main)
    assert committed(cluster, topic) == [b"a", b"b"]


def test_decisions_of_before_are_not_believed(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced while it was cut off from ZooKeeper says where the decisions ended then."""
    topic = cluster.create_topic("stale")
    really = list_offsets

    async def of_before(*arguments: Any, **named: Any) -> dict[TopicPartition, ListedOffset]:
        return {key: found._replace(offset=0) for key, found in (await really(*arguments, **named)).items()}

    def die(step: Step) -> None:
        if step is Step.DECIDED:
            raise Killed

    async def main(connections: Cluster) -> None:
        turn = await SinkCommits(connections, "stale").begin("q", TIMEOUT_MS)
        slots = (await task(connections, turn, topic, 0, [b"a"]),)
        with pytest.raises(Killed):
            await SinkCommits(connections, "stale", die).commit(turn, Decision("q", 0, slots))
        monkeypatch.setattr(exactly_once, "list_offsets", of_before)
        assert (await SinkCommits(connections, "stale").begin("q", TIMEOUT_MS)).done == 0
        with pytest.raises(CheckpointFenced, match="belongs to the checkpoint of query q"):
            await SinkCommits(connections, "stale").begin("another", TIMEOUT_MS)

    run(cluster, main)
    assert committed(cluster, topic) == [b"a"]


def test_a_driver_that_was_replaced_decides_nothing_and_its_tasks_begin_nothing(cluster: EmbeddedCluster) -> None:
    """Two drivers with copies of one checkpoint: the second one's batch is the one that is there."""
    topic = cluster.create_topic("two")

    async def main(connections: Cluster) -> None:
        first, second = SinkCommits(connections, "two"), SinkCommits(connections, "two")
        old = await first.begin("q", TIMEOUT_MS)
        slot = await task(connections, old, topic, 0, [b"old"])
        new = await second.begin("q", TIMEOUT_MS)
        assert await describe_transaction(connections, slot.transactional_id) is not None
        with pytest.raises(TransactionLost, match="nothing of the batch was committed"):
            await first.commit(old, Decision("q", 0, (slot,)))
        with pytest.raises(ProducerFenced):
            await task(connections, old, topic, 0, [b"late"])
        with pytest.raises(ProducerFenced):
            await first.give_up(old)
        prepared = await task(connections, new, topic, 0, [b"new"])
        # Even with transactions that are open: its decision is refused by the coordinator.
        with pytest.raises(ProducerFenced):
            await first.commit(old, Decision("q", 0, (prepared,)))
        await second.commit(new, Decision("q", 0, (prepared,)))

    run(cluster, main)
    assert committed(cluster, topic) == [b"new"]


@pytest.mark.parametrize(("name", "attempts", "taken"), [("attempts", [0, 1, 2], 1), ("stages", [0, 1, 0, 1], 0)])
def test_each_run_of_a_task_writes_beside_the_others_and_what_is_left_is_aborted(
    cluster: EmbeddedCluster, name: str, attempts: list[int], taken: int
) -> None:
    """After a FetchFailed attempts count from 0 again, while former tasks run to their end and are taken (DAGScheduler, ResultTask)."""
    topic = cluster.create_topic(name)

    async def main(connections: Cluster) -> None:
        commits = SinkCommits(connections, name)
        turn = await commits.begin("q", TIMEOUT_MS)
        slots = [await task(connections, turn, topic, 0, [b"%d" % number], attempt) for number, attempt in enumerate(attempts)]
        await commits.commit(turn, Decision("q", 0, (slots[taken],)))
        assert await list_transactions(connections) == []

    run(cluster, main)
    assert committed(cluster, topic) == [b"%d" % taken]


def test_what_cannot_be_committed_is_said_before_or_after_it_was_decided(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("late", partitions=2)

    async def main(connections: Cluster) -> None:
        with pytest.raises(InvalidTransactionTimeout):
            await task(connections, await SinkCommits(connections, "late").begin("q", 900_001), topic, 0, [b"x"])
        turn = await SinkCommits(connections, "late").begin("q", TIMEOUT_MS)
        slots = tuple([await task(connections, turn, topic, number, [b"%d" % number]) for number in range(2)])

        async def lose(slot: Slot) -> None:
            found = await describe_transaction(connections, slot.transactional_id)
            assert found is not None
            await end_transaction(connections, found.identity, commit=False)

        def die(step: Step) -> None:
            if step is Step.DECIDED:
                raise Killed

        with pytest.raises(Killed):
            await SinkCommits(connections, "late", die).commit(turn, Decision("q", 0, slots))
        await lose(slots[1])
        for _ in range(2):
            with pytest.raises(TransactionLost, match="batch 0 was decided, and 1 of its rows are lost: transactions late-1 had ended"):
                await SinkCommits(connections, "late").begin("q", TIMEOUT_MS)
        assert (await SinkCommits(connections, "late").begin("q", TIMEOUT_MS, may_lose=True)).done == 0
        turn = await SinkCommits(connections, "late").begin("q", TIMEOUT_MS)
        await SinkCommits(connections, "late").commit(turn, Decision("q", 1, (await task(connections, turn, topic, 1, [b"next"]),)))

    run(cluster, main)
    assert committed(cluster, topic, 2) == [b"0", b"next"]


def test_what_was_read_of_the_decisions_is_not_read_again_before_the_same_batch(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read before the query is taken over and after it; a partition may have a megabyte of them."""
    topic = cluster.create_topic("read-once")
    really, starts = Fetcher.assign, list[int]()

    def assign(fetcher: Fetcher, partition: TopicPartition, offset: int) -> None:
        starts.append(offset)
        really(fetcher, partition, offset)

    async def main(connections: Cluster) -> None:
        turn = await SinkCommits(connections, "read-once").begin("q", TIMEOUT_MS)
        await SinkCommits(connections, "read-once").commit(turn, Decision("q", 0, (await task(connections, turn, topic, 0, [b"a"]),)))
        place = TopicPartition(TOPIC, partition_of("read-once"))
        end = (await list_offsets(connections, {place: LATEST}))[place].offset
        monkeypatch.setattr(Fetcher, "assign", assign)
        assert (await SinkCommits(connections, "read-once").begin("q", TIMEOUT_MS)).done == 0
        assert starts == [0, end]

    run(cluster, main)


def test_a_task_without_rows_opens_no_transaction(cluster: EmbeddedCluster) -> None:
    """Each that is opened is a record of the coordinator's log, and a query may have many more tasks than a batch has rows."""
    pytest.importorskip("pyspark")
    from ottla.spark.sink import SinkSettings, write_rows

    topic = cluster.create_topic("rowless")
    turns: list[Turn] = []

    async def begin(connections: Cluster) -> None:
        turns.append(await SinkCommits(connections, "rowless").begin("q", TIMEOUT_MS))

    run(cluster, begin)
    given = SinkSettings(SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "-"}, is_stream=True), topic)
    rows = pyarrow.record_batch({"value": pyarrow.array([b"a"], pyarrow.binary())})
    empty = write_rows(given, iter([rows.slice(0, 0)]), turns[0], slot_id("rowless", 0, 0))
    filled = write_rows(given, iter([rows.slice(0, 0), rows]), turns[0], slot_id("rowless", 1, 0))
    assert (empty.rows, empty.slot, empty.turn) == (0, None, turns[0])
    assert (filled.rows, filled.slot is None) == (1, False)

    async def look(connections: Cluster) -> None:
        assert await describe_transaction(connections, "rowless-0") is None
        assert filled.slot is not None
        await SinkCommits(connections, "rowless").commit(turns[0], Decision("q", 0, (filled.slot,)))

    run(cluster, look)
    assert committed(cluster, topic) == [b"a"]


def test_rows_without_a_key_of_many_small_tasks_go_to_every_partition(cluster: EmbeddedCluster) -> None:
    """Most tasks of a stream have one batch. By chance, one of two partitions has nothing once in 2^39 runs."""
    pytest.importorskip("pyspark")
    from ottla.spark.sink import SinkSettings, write_rows

    topic = cluster.create_topic("keyless", partitions=2)
    given = SinkSettings(SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "-"}, is_stream=True), topic)
    rows = pyarrow.record_batch({"value": pyarrow.array([b"a"], pyarrow.binary())})
    for _ in range(40):
        write_rows(given, iter([rows]))
    counts = [len(consumed(cluster, TopicPartition(topic, number), 1 << 60)) for number in range(2)]
    assert sum(counts) == 40
    assert all(counts)


def test_a_stream_that_is_to_write_exactly_once_writes_nothing_without_a_drivers_leave(cluster: EmbeddedCluster) -> None:
    """The driver gives it in the process that Spark's planner of writes is known by; with another Spark that may be another one."""
    pytest.importorskip("pyspark")
    from ottla.spark.sink import SinkSettings, StreamWriter, TransactionSettings

    topic = cluster.create_topic("without-leave")
    source = SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "-"}, is_stream=True)
    given = SinkSettings(source, topic, transactions=TransactionSettings.of({}, is_stream=True))
    rows = pyarrow.record_batch({"value": pyarrow.array([b"a"], pyarrow.binary())})
    with pytest.raises(AssertionError, match="in another way than for one that writes"):
        StreamWriter(given, None).write(iter([rows]))
    assert consumed(cluster, TopicPartition(topic, 0), 1 << 60) == []


def test_a_checkpoint_that_was_restored_or_copied_is_refused_and_disturbs_nobody(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches have the numbers of others that are committed. They were taken for those, and their rows were lost.

    Method: checkpoints as Spark writes them, a batch's offsets before its tasks.
    """
    pytest.importorskip("pyspark")
    from pyspark import TaskContext

    from ottla.spark.sink import SinkSettings, StreamWriter, TransactionSettings, begin, write_rows

    topic = cluster.create_topic("restored")
    source = SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "-"}, is_stream=True)
    mine, copied = tmp_path / "check point", tmp_path / "copied"

    def sink(checkpoint: Path) -> SinkSettings:
        return SinkSettings(
            source, topic, transactions=TransactionSettings.of({"checkpointlocation": f"file://{checkpoint}"}, is_stream=True)
        )

    def plan(checkpoint: Path, batch: int, end: int) -> None:
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text('{"id":"restored"}')
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":{end}}}\n{{"clicks":{{"0":{end}}}}}')

    def write(batch: int) -> None:
        rows = pyarrow.record_batch({"value": pyarrow.array([b"%d" % batch], pyarrow.binary())})
        turn = begin(sink(mine))
        assert turn.done == batch - 1
        written = write_rows(sink(mine), iter([rows]), turn, slot_id(turn.name, 0, 0))
        written.query = "restored"
        StreamWriter(sink(mine), None).commit([written], batch)

    plan(mine, 0, 10)
    write(0)
    shutil.copytree(mine, copied)
    assert begin(sink(copied)).done == 0  # nothing has come since: as good as the other
    plan(mine, 1, 20)
    plan(copied, 1, 30)
    write(1)
    with pytest.raises(CheckpointFenced, match="batch 1 of restored is committed, and this checkpoint has other offsets of it"):
        begin(sink(copied))
    plan(mine, 2, 40)
    write(2)
    with pytest.raises(CheckpointFenced, match="batch 2 of restored is committed, and this checkpoint ends before it"):
        begin(sink(copied))
    assert begin(sink(mine)).done == 2
    plan(mine, 103, 40)
    (mine / "offsets" / "2").unlink()  # Spark keeps a hundred, and batches without rows are not recorded
    assert begin(sink(mine)).done == 2
    assert committed(cluster, topic) == [b"0", b"1", b"2"]

    # Where only the tasks know the number of their batch, as with a checkpoint that the driver cannot read.
    properties = {"sql.streaming.queryId": "restored", "streaming.sql.batchId": "1"}
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=properties.get))
    with pytest.raises(CheckpointFenced, match="batch 2 of restored is committed, and this checkpoint ends before it"):
        StreamWriter(sink(mine), begin(sink(mine))).write(iter([]))


def test_a_broker_that_does_not_answer_for_a_moment_ends_no_batch(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has died is one of the cluster until its session has ended, and all brokers are asked for transactions."""
    topic = cluster.create_topic("moment")
    really = Cluster.ask
    asked: Counter[ApiKey] = Counter()

    async def ask(connections: Cluster, broker_id: BrokerId, key: ApiKey, *arguments: Any, **named: Any) -> Any:
        asked[key] += 1
        if key is ApiKey.LIST_TRANSACTIONS and asked[key] % 2:
            raise ConnectionRefusedError(f"broker {broker_id} does not answer")
        return await really(connections, broker_id, key, *arguments, **named)

    async def main(connections: Cluster) -> None:
        commits = SinkCommits(connections, "moment")
        turn = await commits.begin("q", TIMEOUT_MS)
        await commits.commit(turn, Decision("q", 0, (await task(connections, turn, topic, 0, [b"a"]),)))

    monkeypatch.setattr(Cluster, "ask", ask)
    run(cluster, main)
    assert asked[ApiKey.LIST_TRANSACTIONS] == 4
    assert committed(cluster, topic) == [b"a"]


@pytest.mark.long
def test_decisions_of_many_batches_are_read_from_a_partition_that_others_write_to(cluster: EmbeddedCluster) -> None:
    names = [name for name in map(str, range(200)) if partition_of(name) == partition_of("0")][:3]
    topic = cluster.create_topic("many")

    async def main(connections: Cluster) -> None:
        for batch in range(5):
            for name in names:
                commits = SinkCommits(connections, name)
                turn = await commits.begin(f"q{name}", TIMEOUT_MS)
                assert turn.done == batch - 1
                await commits.commit(turn, Decision(f"q{name}", batch, (await task(connections, turn, topic, 0, [b"x"]),)))

    run(cluster, main)
    assert len(committed(cluster, topic)) == 15
    assert consumed(cluster, TopicPartition(TOPIC, partition_of("0")), 1 << 60)


@pytest.mark.long
def test_a_stream_that_dies_anywhere_writes_every_row_once(cluster: EmbeddedCluster) -> None:
    """Method: 60 seeded deaths of a driver, at a step or between tasks, with attempts that die, run twice or come late.

    Spark journals a batch's rows before its tasks, and that it is over after `commit`; at its start it runs the last one again that is
    journaled and not over.
    """
    topic = cluster.create_topic("dies", partitions=3)
    random = Random(19)
    offsets: list[list[list[bytes]]] = []  # of each batch the rows of each task
    over = made = deaths = 0
    late: list[tuple[Turn, int]] = []  # tasks of drivers that are dead, which nobody has stopped yet

    async def driver(connections: Cluster, dies_at: Step | None, dies_after: int | None) -> None:
        nonlocal over, made

        def at(step: Step) -> None:
            if step is dies_at and random.random() < 0.7:
                raise Killed

        for _ in range(2):
            if len(offsets) == over:
                parts = random.randrange(1, 4)
                offsets.append([[b"%d" % (made + number * 2 + more) for more in range(2)] for number in range(parts)])
                made += 2 * parts
            batch = over
            commits = SinkCommits(connections, "dies", at)
            turn = await commits.begin("q", TIMEOUT_MS)
            slots = []
            for number, rows in enumerate(offsets[batch]):
                if batch <= turn.done:
                    continue
                attempt = 0
                while random.random() < 0.2:  # an attempt that is lost with what it wrote
                    await task(connections, turn, topic, number, [b"lost"], attempt)
                    attempt += 1
                slots.append(await task(connections, turn, topic, number, rows, attempt))
                if random.random() < 0.1:  # speculation, of which Spark does not want the second
                    await task(connections, turn, topic, number, rows, attempt + 1)
                if late and random.random() < 0.3:
                    old, of = late.pop()
                    with pytest.raises(ProducerFenced):
                        await task(connections, old, topic, of, [b"late"])
                if number == dies_after:
                    late.append((turn, number))
                    raise Killed
            at(Step.PREPARED)
            if slots:
                await commits.commit(turn, Decision("q", batch, tuple(slots)))
            over += 1

    async def main(connections: Cluster) -> None:
        nonlocal deaths
        steps = [*Step]
        while deaths < 60:
            try:
                await driver(connections, random.choice(steps), random.choice([None, None, 0, 1]))
            except Killed:
                deaths += 1
        await driver(connections, None, None)
        await SinkCommits(connections, "dies").begin("q", TIMEOUT_MS)
        assert await list_transactions(connections) == []

    run(cluster, main)
    assert committed(cluster, topic, 3) == sorted(row for batch in offsets for rows in batch for row in rows)
    assert over > 15
