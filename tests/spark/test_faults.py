"""Loads and sinks while something else fails: disks, a second driver, retention, new partitions, leaders, ZooKeeper, a network."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.chaos.network import Cut, Proxy, Wires
from tests.spark.killing import DISK, HELD, Killing
from tests.spark.test_kills import COUNT, SECONDS, SEED, contents, finish, load_command, loaded, read, run, start
from tests.spark.test_load import all_of, rows_of, settings_for
from tests.unit.spark.test_exactly_once import committed, connected, task
from tests.unit.spark.test_reading import KEPT, delete_before, fill
from tests.waiting import until

from ottla.errors import ApiError, OttlaError
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster
from ottla.testing.zookeeper import ZooKeeperServer

pytest.importorskip("deltalake")

from ottla.spark import commits
from ottla.spark.exactly_once import SinkCommits
from ottla.spark.loading.driver import LoadSettings, LocalExecutor, Step, load
from ottla.spark.loading.ranges import LoadIncomplete
from ottla.spark.reading import ClusterReader, DataLost, ReadFailed
from ottla.spark.table import NewFile, ParquetFile, Table, TableUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(0 if COUNT else 1200)

ZOOKEEPER = "ZooKeeper"


def when(step: Step, do: Callable[[], object]) -> Callable[[Step], None]:
    def at(reached: Step) -> None:
        if reached is step:
            do()

    return at


@pytest.mark.parametrize("step", ["rows are written", "the commit begins"])
def test_a_disk_that_fills_is_one_sentence_and_the_next_load_has_every_row(cluster: EmbeddedCluster, tmp_path: Path, step: str) -> None:
    """Method: at the step the kernel lets no file of the process grow any more (RLIMIT_FSIZE)."""
    killing = Killing(tmp_path / "killing")
    topic, table = cluster.create_topic("fills." + step.replace(" ", "-"), partitions=2), tmp_path / "table"
    for number in range(2):
        fill(cluster, topic, 50, "zstd", number)
    command = load_command(cluster, topic, table, "--master", "none")
    killing.next(step, victim=DISK)
    ended = run(command, killing)
    assert killing.struck()
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"ottla: {table}: ")
    assert "File too large" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert loaded(table) == []
    assert run(command, killing).returncode == 0
    assert loaded(table) == read(cluster, topic, 2)


FULL = """
import resource, sys
from ottla.spark.table import Table
table = Table.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
print(table.commit([], "full", table.version + 1))
"""


def test_a_disk_that_fills_after_the_commit_is_no_other_driver(tmp_path: Path) -> None:
    """Every hundredth commit writes a checkpoint after it. Without room for that the log fails, and the commit is there."""
    table = Table.open(str(tmp_path), pyarrow.schema([("n", pyarrow.int64())]))
    while table.version < 98:
        table.commit([], "others", table.version + 1)
    ended = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "99\n"), ended.stderr
    assert "version 99 of full is committed, and what the log does after it failed" in ended.stderr
    found = Table.open(str(tmp_path))
    assert found.application_version("full") == 99
    found.commit([], "full", 100)
    assert Table.open(str(tmp_path)).application_version("full") == 100


def test_a_table_that_several_make_at_the_same_moment_is_made_once(tmp_path: Path) -> None:
    """Method: eight threads, thirty times; with two of them the log was seen to refuse one in sixteen."""
    failed: list[BaseException] = []
    for number in range(30):
        barrier = threading.Barrier(8)

        def make(path: str, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(60)
            try:
                assert Table.open(path, pyarrow.schema([("n", pyarrow.int64())])).version == 0
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=make, args=[str(tmp_path / str(number))]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failed == []


def test_a_table_takes_no_column_of_another_type_under_the_same_name(tmp_path: Path) -> None:
    """A file that has one would make the whole table unreadable. What may be null within a column makes no other type."""
    amount = pyarrow.decimal128(20, 2)

    def schema(number: pyarrow.DataType, amount: pyarrow.Field) -> pyarrow.Schema:
        items = pyarrow.list_(pyarrow.struct([("k", pyarrow.string()), amount]))
        return pyarrow.schema([("n", number), ("items", items), ("at", pyarrow.timestamp("us", tz="UTC"))])

    path, never_null = str(tmp_path), pyarrow.field("v", amount, nullable=False)
    Table.open(path, schema(pyarrow.int64(), never_null))
    assert Table.open(path, schema(pyarrow.int64(), pyarrow.field("v", amount))).version == 0
    with pytest.raises(TableUnusable, match=r"the column n of .* is long, not string"):
        Table.open(path, schema(pyarrow.string(), never_null))
    with pytest.raises(TableUnusable, match="the column items of"):
        Table.open(path, schema(pyarrow.int64(), pyarrow.field("v", pyarrow.decimal128(20, 3))))


def test_a_column_that_is_never_null_in_the_first_frame_may_be_in_a_later_one(tmp_path: Path) -> None:
    """Spark's frames say so column by column, as of a literal or a count; as a column of the table it made the next frame unreadable."""
    path = str(tmp_path)
    kinds = {"n": pyarrow.int64(), "of": pyarrow.struct([pyarrow.field("k", pyarrow.int32(), nullable=False)])}
    first = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in kinds.items()])
    later = pyarrow.schema([("n", pyarrow.int64()), ("of", pyarrow.struct([("k", pyarrow.int32())]))])
    rows: list[dict[str, object]] = [{"n": 1, "of": {"k": 1}}, {"n": None, "of": None}, {"n": 2, "of": {"k": None}}]
    for version, (schema, some) in enumerate([(first, rows[:1]), (later, rows[1:])]):
        table = Table.open(path, schema)
        with ParquetFile(path, f"part-{version}.parquet", schema) as file:
            file.write(pyarrow.RecordBatch.from_pylist(some, schema))
        table.commit([NewFile(f"part-{version}.parquet", file.size, file.rows)], "frames", version)
    found = Table.open(path)
    assert found.compact() == 2
    assert sorted(found.delta.to_pyarrow_table().to_pylist(), key=str) == sorted(rows, key=str)


def test_two_commands_of_one_job_at_a_time_have_every_row_once_and_who_comes_second_says_who_was_first(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = cluster.create_topic("two-commands", partitions=2)
    command = load_command(cluster, topic, tmp_path / "table", "--master", "none", "--max-records", "10")
    killing = Killing(tmp_path / "killing")
    for step in ("the ranges are planned", "the commit begins"):  # where the one that comes first is held until the other is done
        for number in range(2):
            fill(cluster, topic, 40, "zstd", number)
        killing.next(step, victim=HELD)
        both = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=killing.environment) for _ in range(2)
        ]
        until(lambda: any(process.poll() is not None for process in both), "one is done", SECONDS)  # noqa: B023
        assert killing.struck()
        codes = []
        for process in both:
            _, errors = process.communicate(timeout=SECONDS)
            codes.append(process.returncode)
            if process.returncode == 1:
                assert "ottla-load/load has reached" in errors.splitlines()[-1]
                assert f"process {both[0].pid}" in errors or f"process {both[1].pid}" in errors
        assert sorted(codes) == [0, 1]
    load(settings_for(cluster, tmp_path / "table", topic, "load"), LocalExecutor())
    assert loaded(tmp_path / "table") == read(cluster, topic, 2)


@pytest.mark.parametrize("may_lose", [False, True])
def test_what_retention_takes_while_a_load_runs_is_named_or_counted(cluster: EmbeddedCluster, tmp_path: Path, may_lose: bool) -> None:
    topic = cluster.create_topic(f"taken-meanwhile.{may_lose}")
    fill(cluster, topic, 60)
    settings = settings_for(cluster, tmp_path, topic, options={"failOnDataLoss": str(not may_lose).lower()}, max_records_per_file=20)
    partition = TopicPartition(topic, 0)
    delete = when(Step.PLANNED, lambda: delete_before(cluster, partition, 30))
    if may_lose:
        assert load(settings, LocalExecutor(), at=delete).lost == 30
    else:
        with pytest.raises(DataLost, match=r"offsets \[0, 20\), 20 of them, are gone"):
            load(settings, LocalExecutor(), at=delete)
        assert rows_of(tmp_path) == []
        load(settings, LocalExecutor())  # as the job has never been anywhere, it begins where the log does
    assert rows_of(tmp_path) == [(topic, 0, offset) for offset in range(30, 60)]


@pytest.mark.parametrize("may_lose", [False, True])
def test_a_topic_that_is_made_again_while_a_load_runs_is_not_taken_for_the_former_one(
    cluster: EmbeddedCluster, tmp_path: Path, may_lose: bool
) -> None:
    """Tasks, which Spark may run again later, read by name; the new topic has more records than were planned."""
    topic = cluster.create_topic(f"again-meanwhile.{may_lose}")
    fill(cluster, topic, 20)
    settings = settings_for(cluster, tmp_path, topic, options={"failOnDataLoss": str(not may_lose).lower()})

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def make_again() -> None:
        admin.delete_topics([topic])[topic].result(120)
        cluster.create_topic(topic)
        fill(cluster, topic, 30)

    with pytest.raises(LoadIncomplete if may_lose else DataLost, match="was deleted and made again"):
        load(settings, LocalExecutor(), at=when(Step.PLANNED, make_again))
    assert rows_of(tmp_path) == []


@pytest.mark.parametrize(("answers_of_before", "is_refused"), [(2, False), (3, True)])
def test_an_end_that_went_back_is_asked_for_again_before_a_topic_is_taken_for_another(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers_of_before: int, is_refused: bool
) -> None:
    """Method: the first answers are those of a leader that was replaced and has not heard of it."""
    topic = cluster.create_topic(f"went-back-meanwhile.{is_refused}")
    fill(cluster, topic, 5)
    settings = settings_for(cluster, tmp_path, topic, options={"fetchOffset.numRetries": "2"})
    load(settings, LocalExecutor())
    fill(cluster, topic, 2)
    really, asked = ClusterReader.latest, 0

    def latest(reader: ClusterReader, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        nonlocal asked
        asked += 1
        return {partition: offset - 4 * (asked <= answers_of_before) for partition, offset in really(reader, partitions).items()}

    monkeypatch.setattr(ClusterReader, "latest", latest)
    if is_refused:
        with pytest.raises(ReadFailed, match="ends at 3, and the table is at 5, of this very topic"):
            load(settings, LocalExecutor())
    else:
        assert load(settings, LocalExecutor()).rows == 2
    assert asked == 3


@pytest.mark.parametrize("step", [Step.PLANNED, Step.CHECKED, Step.COMMITTED])
def test_partitions_that_are_added_while_a_load_runs_are_read_by_the_next(cluster: EmbeddedCluster, tmp_path: Path, step: Step) -> None:
    topic = cluster.create_topic(f"added-meanwhile.{step.value}")
    fill(cluster, topic, 30)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def add() -> None:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
        fill(cluster, topic, 20, partition=2)

    settings = settings_for(cluster, tmp_path, topic, group=topic)
    assert load(settings, LocalExecutor(), at=when(step, add)).rows == 30
    assert load(settings, LocalExecutor()).rows == 20
    assert rows_of(tmp_path) == all_of(topic, [30, 0, 20])


@pytest.fixture(scope="module")
def three(a_zookeeper_to_start: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        one = dict.fromkeys(("offsets.topic.num.partitions", "transaction.state.log.num.partitions"), "1")
        settings = {"zookeeper.connect": f"{zookeeper.address}/faults", "min.insync.replicas": "2", **one}
        with EmbeddedCluster(brokers=3, settings=settings) as cluster:
            cluster.make_internal_topics()
            yield Three(cluster, zookeeper)


class Three:
    """Three brokers and a real ZooKeeper, of which one at a time dies. `EmbeddedCluster.kill` leaves of a broker what `kill -9` does."""

    def __init__(self, cluster: EmbeddedCluster, zookeeper: ZooKeeperServer) -> None:
        self.cluster, self.zookeeper = cluster, zookeeper
        self.deaths: Counter[str] = Counter()

    def strike(self, victim: str, partition: int = 0) -> None:
        """Kills ZooKeeper, or the leader of a partition."""
        self.deaths["ZooKeeper" if victim == ZOOKEEPER else f"leader of {victim}"] += 1
        if victim == ZOOKEEPER:
            self.zookeeper.kill()
        else:
            self.cluster.kill(self.cluster.leader(victim, partition))

    def mend(self, victim: str) -> None:
        if victim == ZOOKEEPER:
            self.zookeeper.start()
        for dead in {1, 2, 3} - set(self.cluster.running_brokers):
            self.cluster.start_broker(dead)


def test_loads_have_every_row_once_while_a_leader_the_groups_coordinator_and_zookeeper_are_killed(three: Three, tmp_path: Path) -> None:
    """One dies at a step that is drawn, and comes back after the load; a load that failed is run again."""
    random = Random(SEED)
    topic = three.cluster.create_topic("led", partitions=2, replication_factor=3)
    settings = settings_for(three.cluster, tmp_path, topic, max_records_per_file=40, group="led")
    count, failed = COUNT or 6, 0
    for number in range(count):
        for partition in range(2):
            fill(three.cluster, topic, 100, "zstd", partition)
        victim = (topic, "__consumer_offsets", ZOOKEEPER)[number % 3]
        step = random.choice([Step.PLANNED, Step.WRITTEN, Step.CHECKED, Step.COMMITTED])
        try:
            load(settings, LocalExecutor(), at=when(step, functools.partial(three.strike, victim)))
        except (OSError, ApiError, OttlaError) as error:
            failed += 1
            print(f"{victim} at {step.value}: {error!r}")  # noqa: T201
        three.mend(victim)
    fill(three.cluster, topic, 1)
    load(settings, LocalExecutor())
    assert loaded(tmp_path) == read(three.cluster, topic, 2)
    consumer = Consumer({"bootstrap.servers": three.cluster.bootstrap_servers, "group.id": "led"})
    reached = [place.offset for place in consumer.committed([Place(topic, number) for number in range(2)], 60)]
    consumer.close()
    assert reached == [100 * count + 1, 100 * count]
    assert sum(three.deaths.values()) >= count
    assert failed <= count // 2


def test_a_sinks_batches_are_whole_and_there_once_while_coordinators_leaders_and_zookeeper_are_killed(three: Three) -> None:
    """One dies at each step of a batch in turn; the batch is begun again until it is over, as Spark does it."""
    topic = three.cluster.create_topic("sunk", partitions=2, replication_factor=3)
    victims = ("__transaction_state", commits.TOPIC, topic, ZOOKEEPER)
    steps = [step for step in commits.Step if step is not commits.Step.RESUMED]
    rows: list[bytes] = []
    tries = 0

    async def once(batch: int, at: Callable[[commits.Step], None]) -> None:
        async with connected(three.cluster) as connections:
            sink = SinkCommits(connections, "sunk", at)
            turn = await sink.begin("q", 60_000)
            if turn.done < batch:
                slots = tuple([await task(connections, turn, topic, number, [b"%d-%d" % (batch, number)]) for number in range(2)])
                at(commits.Step.PREPARED)
                await sink.commit(turn, commits.Decision("q", batch, slots))

    asyncio.run(once(0, lambda _: None))  # which makes the topic of decisions
    rows += [b"0-0", b"0-1"]
    for batch in range(1, (COUNT or 8) + 1):
        victim, step = victims[batch % 4], steps[batch % len(steps)]
        struck: list[commits.Step] = []

        def at(reached: commits.Step, victim: str = victim, step: commits.Step = step, struck: list[commits.Step] = struck) -> None:
            if reached is step and not struck:
                struck.append(step)
                three.strike(victim, commits.partition_of("sunk") if victim == commits.TOPIC else 0)

        for _ in range(10):
            tries += 1
            try:
                asyncio.run(once(batch, at))
                break
            except (OSError, ApiError, OttlaError) as error:
                print(f"{victim} at {step.value}: {error!r}")  # noqa: T201
        else:
            pytest.fail(f"batch {batch} did not come to its end")
        assert struck
        three.mend(victim)
        rows += [b"%d-%d" % (batch, number) for number in range(2)]
    assert committed(three.cluster, topic, 2) == sorted(rows)
    assert tries <= 3 * batch


CUT_SECONDS = 60.0 if COUNT else 6.0  # with half of that as the request's timeout: 30 s is the default


class Behind:
    """A broker that clients reach through a proxy alone."""

    def __init__(self, stack: ExitStack) -> None:
        self._loop = stack.enter_context(LoopThread("proxy"))
        self._wires = Wires()
        proxy = Proxy(self._wires, 1, 0, lambda peer, port: 2)
        self._loop.call(proxy.start(), 60)
        stack.callback(lambda: self._loop.call(proxy.close(), 60))
        self.servers = f"127.0.0.1:{proxy.port}"
        self.healed = threading.Event()
        settings = {**KEPT, "advertised.listeners": f"PLAINTEXT://{self.servers}"}
        self.cluster = stack.enter_context(EmbeddedCluster(settings=settings))
        proxy.target_port = int(self.cluster.address("PLAINTEXT").rpartition(":")[2])

    def cut(self, how: Cut) -> None:
        """For as long as the issue says; returns at once."""

        def heal() -> None:
            self._wires.heal({(1, 2), (2, 1)}, how)
            self.healed.set()

        async def cut() -> None:
            self._wires.cut({(1, 2), (2, 1)}, how)
            asyncio.get_running_loop().call_later(CUT_SECONDS, heal)

        self.healed.clear()
        self._loop.call(cut(), 60)


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    with ExitStack() as stack:
        yield Behind(stack)


@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize("step", [Step.PLANNED, Step.WRITTEN])
def test_a_load_outlives_a_broker_that_is_cut_off(behind: Behind, tmp_path: Path, step: Step, how: Cut) -> None:
    topic = behind.cluster.create_topic(f"loaded.{step.value}.{how.value}", partitions=2)
    for number in range(2):
        fill(behind.cluster, topic, 100, "zstd", number)
    options = {
        "kafka.bootstrap.servers": behind.servers,
        "kafka.request.timeout.ms": str(round(500 * CUT_SECONDS)),
        "subscribe": topic,
    }
    settings = LoadSettings.of(options, str(tmp_path), "job", group=topic, max_records_per_file=20)
    assert load(settings, LocalExecutor(), at=when(step, lambda: behind.cut(how))).rows == 200
    assert behind.healed.wait(SECONDS)
    assert loaded(tmp_path) == read(behind.cluster, topic, 2)


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.long if how is Cut.DROPPED else ()) for how in Cut])
def test_a_stream_whose_broker_is_cut_off_goes_on_or_fails_with_its_name_and_has_every_row_once(
    spark: SparkSession, killing: Killing, behind: Behind, tmp_path: Path, how: Cut
) -> None:
    """In the middle of a batch that a task writes: source and sink are behind the cut. What failed is started from its checkpoint."""
    from pyspark.errors import StreamingQueryException

    source, sink = (behind.cluster.create_topic(f"{name}.{how.value}", partitions=2) for name in ("streamed", "streamed-to"))
    for number in range(2):
        fill(behind.cluster, source, 30, "zstd", number)
    limit = {"kafka.request.timeout.ms": str(round(500 * CUT_SECONDS))}
    killing.next("rows are sent", nth=2, victim=HELD)
    query = start(spark, behind.servers, source, sink, str(tmp_path), **limit)
    killing.wait(SECONDS)
    behind.cut(how)
    assert killing.struck()
    try:
        assert query.awaitTermination(SECONDS)
    except StreamingQueryException as error:
        assert behind.servers in str(error)
    assert behind.healed.wait(SECONDS)
    finish(lambda: start(spark, behind.servers, source, sink, str(tmp_path), **limit))
    assert contents(read(behind.cluster, sink, 2)) == contents(read(behind.cluster, source, 2))
