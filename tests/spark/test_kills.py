"""Loads and streams that are killed, really: SIGKILL at steps that are drawn by a seed, and then what is in the table, or in the topic.

`make spark-kills SEED=n COUNT=m` draws others, and more. What needs no process to die (an exception that nothing catches, at each step)
is in `test_load` and in `tests/unit/spark/test_exactly_once.py`, by hundreds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from tests.spark.killing import DRIVER, DRIVERS_STEPS, JAVA, SELF, SINKS_STEPS, SINKS_TASK_STEPS, TASKS_STEPS, Killing
from tests.spark.test_load import rows_of
from tests.spark.test_load_decoded import framed, produce
from tests.unit.spark.test_reading import consumed, delete_before, fill

from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from ottla.spark.loading import inspection
from ottla.spark.loading.driver import LoadSettings, SparkExecutor, Step, TasksFailed, load
from ottla.spark.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

SEED = int(os.environ.get("OTTLA_KILLS_SEED", "19"))
# Deaths of each kind: as many as are asked for, or a few.
COUNT, FEW = int(os.environ.get("OTTLA_KILLS_COUNT", "0")), int(os.environ.get("OTTLA_KILLS_FEW", "4"))
pytestmark = pytest.mark.timeout(0 if COUNT else 1200)  # a mark wins over the command's `-o timeout=0`
STARVED = "Python worker failed to connect back"  # Spark's own limit of 10 s, see conftest
SECONDS = 1800  # for what hangs; limits are wide, see conftest
AFTER_TASKS = ("the tasks are over", "the files are checked", "the commit begins", "the commit is done", "the group knows")


def read(cluster: EmbeddedCluster, topic: str, partitions: int, isolation: str = "read_committed") -> list[tuple[Any, ...]]:
    """Partition, offset, key and value of everything that librdkafka finds in a topic."""
    return [
        (number, offset, key, value)
        for number in range(partitions)
        for offset, key, value, *_ in consumed(cluster, TopicPartition(topic, number), 1 << 60, isolation)
    ]


def loaded(table: Path) -> list[tuple[Any, ...]]:
    return rows_of(table, ("partition", "offset", "key", "value")) if (table / "_delta_log").exists() else []


def run(command: Sequence[str], killing: Killing) -> subprocess.CompletedProcess[str]:
    """A program in a process group of its own, of which nothing is left when this returns."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=killing.environment, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def load_command(cluster: EmbeddedCluster, topic: str, table: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "ottla.cli", "load", topic, "--into", str(table), "-b", cluster.bootstrap_servers, *more]


def tell(capsys: pytest.CaptureFixture[str], killing: Killing, runs: int) -> None:
    """Where deaths came, for who reads along."""
    found = ", ".join(f"{step} ({victim}) {count}" for (step, victim), count in sorted(Counter(killing.deaths).items()))
    with capsys.disabled():
        print(f"\n{len(killing.deaths)} deaths in {runs} runs: {found}")  # noqa: T201
    killing.deaths.clear()


def drawn(random: Random, steps: Sequence[str]) -> Iterator[str]:
    """All of them in an order that is drawn, again and again."""
    while True:
        yield from random.sample(steps, len(steps))


def test_a_load_that_is_killed_at_any_step_is_run_again_and_has_every_row_once(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NetDB'11 4 (V3): data and offsets are saved when the job is done, so one that is run again loses and doubles nothing.

    The command in one process, without Spark, of some commits a run; records come in between. A third dies between two steps.
    """
    random = Random(SEED)
    killing = Killing(tmp_path / "killing")
    topic, table = cluster.create_topic("killed-commands", partitions=3), tmp_path / "table"
    command = load_command(cluster, topic, table, "--master", "none", "--max-records", "30", "--group", "killed-commands")
    runs = 0
    for step in drawn(random, [*DRIVERS_STEPS, *TASKS_STEPS]):
        for number in range(3):
            fill(cluster, topic, random.randrange(30), "zstd", number)
        delay = random.random() * 0.03 if random.random() < 0.33 else 0.0
        killing.next(step, random.choice((1, 1, 2, 4)), delay=delay)
        runs += 1
        ended = run(command, killing)
        assert ended.returncode in ((-signal.SIGKILL, -signal.SIGALRM, 0) if killing.struck() else (0,)), ended.stderr
        there = [row[:2] for row in loaded(table)]
        assert there == [(number, offset) for number, count in sorted(Counter(row[0] for row in there).items()) for offset in range(count)]
        if len(killing.deaths) >= (COUNT or FEW):
            break
    assert run(command, killing).returncode == 0
    assert loaded(table) == read(cluster, topic, 3)
    assert not inspection.verify(Table.open(str(table))).wrong
    tell(capsys, killing, runs)


def test_a_load_whose_tasks_are_killed_commits_nothing_until_all_are_there(
    spark: SparkSession, killing: Killing, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One session: what dies is a Python process of Spark's, in the middle of a file and after it; a task is not tried again there."""
    random = Random(SEED)
    topic = cluster.create_topic("killed-tasks", partitions=2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    settings = LoadSettings.of(options, str(tmp_path), "job", max_records_per_file=20)
    runs = 0
    for step in drawn(random, TASKS_STEPS):
        fill(cluster, topic, random.randrange(50), "lz4", random.randrange(2))
        before = len(loaded(tmp_path))
        killing.next(step, random.choice((1, 2)))
        runs += 1
        try:
            load(settings, SparkExecutor(lambda: spark))
        except TasksFailed as error:
            assert killing.struck() or STARVED in str(error)
            assert STARVED in str(error) or "Python worker exited unexpectedly" in str(error)
            assert len(loaded(tmp_path)) == before
        else:  # unless it was a task that the run before had left behind
            killing.struck()
        if len(killing.deaths) >= (COUNT or FEW):
            break
    load(settings, SparkExecutor(lambda: spark))
    assert loaded(tmp_path) == read(cluster, topic, 2)
    tell(capsys, killing, runs)

    # What a task says of its failure is what the load says.
    fill(cluster, topic, 30)
    end = len([row for row in loaded(tmp_path) if row[0] == 0]) + 30

    def delete(step: Step) -> None:
        if step is Step.PLANNED:
            delete_before(cluster, TopicPartition(topic, 0), end - 10)

    with pytest.raises(TasksFailed, match=rf"nothing was committed: ottla\.spark\.reading\.DataLost: {topic}-0: offsets .* are gone"):
        load(settings, SparkExecutor(lambda: spark), at=delete)


def start(spark: SparkSession, servers: str, source: str, sink: str, checkpoint: str, **more: str) -> StreamingQuery:
    """A query that copies what a topic has, some records a batch, exactly once."""
    options = {"kafka.bootstrap.servers": servers, **{name: value for name, value in more.items() if name.startswith("kafka.")}}
    reading = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "25", **more}
    stream = spark.readStream.format("ottla").options(**{**options, **reading})
    writer = stream.load().select("key", "value").writeStream.format("ottla").options(**options, topic=sink)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def finish(begin: Callable[[], StreamingQuery]) -> None:
    """Runs a query to its end. One that Spark itself gave up, as the machine had nothing left for its Python, is started again."""
    from pyspark.errors import StreamingQueryException

    while True:
        try:
            assert begin().awaitTermination(SECONDS)
        except StreamingQueryException as error:
            if STARVED not in str(error):
                raise
        else:
            return


def contents(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(row[2:] for row in rows)


def test_a_stream_that_is_killed_at_any_step_has_every_row_once_for_readers_of_committed_records(
    spark: SparkSession, killing: Killing, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One session: what dies is a Python process that writes, or that decides; the query fails, and is started from its checkpoint."""
    from pyspark.errors import StreamingQueryException

    random = Random(SEED)
    source, sink = cluster.create_topic("killed-from", partitions=3), cluster.create_topic("killed-to", partitions=2)
    runs = 0
    for step in drawn(random, [*SINKS_STEPS, *SINKS_TASK_STEPS]):
        for number in range(3):
            fill(cluster, source, random.randrange(20), "zstd", number)
        killing.next(step, random.choice((1, 1, 2)))
        runs += 1
        try:
            assert start(spark, cluster.bootstrap_servers, source, sink, str(tmp_path)).awaitTermination(SECONDS)
        except StreamingQueryException as error:
            assert killing.struck() or STARVED in str(error)
        else:
            killing.struck()
        assert not contents(read(cluster, sink, 2)) - contents(read(cluster, source, 3))
        if len(killing.deaths) >= (COUNT or FEW):
            break
    finish(lambda: start(spark, cluster.bootstrap_servers, source, sink, str(tmp_path)))
    assert contents(read(cluster, sink, 2)) == contents(read(cluster, source, 3))
    tell(capsys, killing, runs)


def test_a_load_of_which_driver_machine_or_task_is_killed_has_every_row_once(
    a_spark_to_start: None, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command with a Spark of its own, which tries a task again."""
    random = Random(SEED)
    killing = Killing(tmp_path / "killing")
    topic, table = cluster.create_topic("killed-spark", partitions=2), tmp_path / "table"
    more = ["--master", "local[2,3]", "--group", "killed-spark"]
    for number in range(2):
        fill(cluster, topic, 500, "zstd", number)
    wanted = [(random.choice(TASKS_STEPS), DRIVER), (random.choice(TASKS_STEPS), JAVA), (random.choice(TASKS_STEPS), SELF)]
    wanted += [(random.choice([*TASKS_STEPS, *AFTER_TASKS]), random.choice((SELF, JAVA))) for _ in range(COUNT - len(wanted))]
    for step, victim in wanted:
        killing.next(step, victim=victim)
        ended = run(load_command(cluster, topic, table, *more), killing)
        assert killing.struck(), ended.stderr
        is_over = victim == SELF or step in AFTER_TASKS
        assert ended.returncode == (-signal.SIGKILL if victim == DRIVER or (victim, step in AFTER_TASKS) == (SELF, True) else not is_over)
        if victim != DRIVER and not is_over:
            assert "ottla: the tasks of a load failed, and nothing was committed: " in ended.stderr.splitlines()[-1]
        fill(cluster, topic, 5)
    assert run(load_command(cluster, topic, table, "--master", "none"), killing).returncode == 0
    assert loaded(table) == read(cluster, topic, 2)
    tell(capsys, killing, len(wanted) + 1)


@pytest.mark.long
def test_a_stream_of_which_driver_or_machine_is_killed_has_every_row_once(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with a Spark of its own; the last start from its checkpoint is here."""
    random = Random(SEED)
    killing = Killing(tmp_path / "killing")
    source, sink = cluster.create_topic("killed-program", partitions=2), cluster.create_topic("killed-program-to", partitions=2)
    wanted = [("decided", JAVA), ("a transaction is prepared", DRIVER)]
    wanted += [(random.choice([*SINKS_STEPS, *SINKS_TASK_STEPS]), random.choice((DRIVER, JAVA))) for _ in range(COUNT - len(wanted))]
    arguments = [cluster.bootstrap_servers, source, sink, str(tmp_path / "checkpoint")]
    for step, victim in wanted:
        for number in range(2):
            fill(cluster, source, 40, "zstd", number)
        killing.next(step, victim=victim)
        ended = run([sys.executable, "-m", "tests.spark.test_kills", *arguments], killing)
        assert killing.struck(), ended.stderr
        assert not contents(read(cluster, sink, 2)) - contents(read(cluster, source, 2))
    finish(lambda: start(spark, *arguments))
    assert contents(read(cluster, sink, 2)) == contents(read(cluster, source, 2))
    tell(capsys, killing, len(wanted) + 1)


class Registry:
    """A registry as a process, at a port of its own for as long as this lives: `start` again after its death."""

    def __init__(self, cluster: EmbeddedCluster, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._ready = directory / "registry.pid"
        config = directory / "registry.properties"
        settings = {
            "listeners": self.url,
            "kafkastore.bootstrap.servers": cluster.bootstrap_servers,
            "kafkastore.topic.replication.factor": "1",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._command = [sys.executable, "-m", "ottla.cli", "schema-registry", "-c", str(config), "--pid-file", str(self._ready)]
        self.start()

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + SECONDS
        while not self._ready.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)


# A registry that is killed then has not been asked yet.
BEFORE_SCHEMAS = ("the table is open", "the bounds are known", "the ranges are planned", "a task begins")


def _decoded(table: Path) -> list[tuple[Any, ...]]:
    """Of a table that may have been made, and killed before its first columns were added: then it has no rows."""
    if "id" in {field.name for field in Table.open(str(table)).delta.schema().fields}:
        return rows_of(table, ("partition", "offset", "id"))
    assert not rows_of(table)
    return []


def test_a_load_that_decodes_has_every_row_once_whether_it_is_killed_or_its_registry(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command in one process. Each run meets a schema with one field more, which becomes a column."""
    random = Random(SEED)
    killing = Killing(tmp_path / "killing")
    topic, table = cluster.create_topic("killed-decoded", partitions=2), tmp_path / "table"
    schema: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    ids: list[list[int]] = [[], []]
    refused = runs = 0
    with ExitStack() as stack:
        registry = Registry(cluster, tmp_path)
        stack.callback(registry.close)
        client = SchemaRegistryClient({"url": registry.url})
        command = load_command(cluster, topic, table, "--master", "none", "--registry", registry.url, "--on-schema-change", "merge")
        for step in drawn(random, [*DRIVERS_STEPS, "columns are added", *TASKS_STEPS]):
            schema["fields"].append({"name": f"f{runs}", "type": "long", "default": 0})
            number = client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
            more = range(len(ids[0]) + len(ids[1]), len(ids[0]) + len(ids[1]) + random.randrange(1, 20))
            partition = random.randrange(2)
            ids[partition] += more
            records = [{"id": one, **{field["name"]: one for field in schema["fields"][1:]}} for one in more]
            produce(cluster, topic, framed(number, schema, *records), partition)
            victim = random.choice((SELF, str(registry.process.pid)))
            killing.next(step, victim=victim)
            runs += 1
            ended = run(command, killing)
            is_struck = killing.struck()
            if victim == SELF or not is_struck:
                assert ended.returncode == (-signal.SIGKILL if is_struck else 0), ended.stderr
            else:
                assert ended.returncode in ((1,) if step in BEFORE_SCHEMAS else (0, 1)), ended.stderr
                assert ended.returncode == 0 or registry.url in ended.stderr.splitlines()[-1]
                refused += ended.returncode
                registry.close()
                registry.start()
            there = _decoded(table) if (table / "_delta_log").exists() else []
            assert there == sorted((one, offset, ids[one][offset]) for one, offset, _ in there)
            if len(killing.deaths) >= (COUNT or FEW):
                break
        assert run(command, killing).returncode == 0
    assert rows_of(table, ("partition", "offset", "id")) == [(one, *row) for one in range(2) for row in enumerate(ids[one])]
    assert not inspection.verify(Table.open(str(table))).wrong
    killing.deaths[:] = [(step, victim if victim == SELF else "registry") for step, victim in killing.deaths]
    with capsys.disabled():
        print(f"\n{refused} loads ended as their registry was gone", end="")  # noqa: T201
    tell(capsys, killing, runs)


if __name__ == "__main__":
    from tests.spark.conftest import SETTINGS

    from ottla.spark.session import session

    with session("killed", "local[2]", SETTINGS) as started:
        start(started, *sys.argv[1:]).awaitTermination(SECONDS)
