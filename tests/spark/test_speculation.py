"""Tasks that run twice at a time: a standalone cluster, whose two workers have names of their own, as Spark gives no host two attempts.

A task is held in the middle of what it writes until the other attempt of it is done, and all of the job or the batch with it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.spark.conftest import SETTINGS
from tests.spark.killing import HELD, Killing
from tests.spark.test_kills import SECONDS, contents, loaded, read, start
from tests.unit.spark.test_exactly_once import connected
from tests.unit.spark.test_reading import fill

from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from ottla.spark.loading.driver import LoadSettings, SparkExecutor, load
from ottla.spark.table import Table
from ottla.wire.transactions import list_transactions

pytestmark = pytest.mark.timeout(2 * SECONDS)

EAGER = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.executor.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
    "spark.executor.memory": "768m",
    "spark.driver.host": "127.0.0.1",
}


@pytest.fixture
def killing(tmp_path: Path) -> Killing:
    return Killing(tmp_path / "killing")


@pytest.fixture
def master(a_spark_to_start: None, killing: Killing, tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of a core each, at 127.0.0.2 and 127.0.0.3."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    classes = {"Master": ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]}
    for host in ("127.0.0.2", "127.0.0.3"):
        options = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / host)]
        classes[host] = ["org.apache.spark.deploy.worker.Worker", *options, address]
    environment = {**killing.environment, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:
        for name, words in classes.items():
            log = stack.enter_context((tmp_path / f"{name}.txt").open("wb"))
            process = subprocess.Popen([str(home / "bin" / "spark-class"), *words], stdout=log, stderr=log, env=environment)
            stack.callback(process.wait, SECONDS)
            stack.callback(process.terminate)
        yield address


@pytest.mark.long
def test_a_load_and_a_streams_batch_whose_task_is_run_twice_at_a_time_have_every_row_once(
    master: str, killing: Killing, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """The held attempt of a load leaves a file that no snapshot has, that of a sink rows in a transaction that is aborted."""
    topic, table = cluster.create_topic("loaded-twice", partitions=3), tmp_path / "table"
    sink = cluster.create_topic("sunk-twice", partitions=2)
    for number in range(3):
        fill(cluster, topic, 60, "zstd", number)
    killing.next("rows are written", victim=HELD)
    arguments = [master, cluster.bootstrap_servers, topic, str(table), sink, str(tmp_path / "checkpoint")]
    command = [sys.executable, "-m", "tests.spark.test_speculation", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=killing.environment) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "done\n"
            assert killing.struck()
            killing.next("a transaction is prepared", victim=HELD)
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "done\n"
            assert killing.struck()
            program.communicate("\n", SECONDS)
        finally:
            program.kill()
    assert program.returncode == 0
    assert loaded(table) == read(cluster, topic, 3)
    known = {file["path"] for file in Table.open(str(table)).files()}
    assert len({path.relative_to(table).as_posix() for path in table.rglob("*.parquet")} - known) == 1
    assert contents(read(cluster, sink, 2)) == contents(read(cluster, topic, 3))
    assert len(read(cluster, sink, 2, "read_uncommitted")) > 180
    # Under one id the second attempt would abort what the first has prepared, whose word Spark may have taken.
    assert any(one.endswith(".1") for one in asyncio.run(transactional_ids(cluster)))


async def transactional_ids(cluster: EmbeddedCluster) -> list[str]:
    async with connected(cluster) as connections:
        return list(await list_transactions(connections, "CompleteCommit"))


if __name__ == "__main__":
    from ottla.spark.session import session

    where, servers, origin, into, other, checkpoint = sys.argv[1:]
    with session("twice", where, {**SETTINGS, **EAGER}) as spark:
        options = {"kafka.bootstrap.servers": servers, "subscribe": origin}
        load(LoadSettings.of(options, into, "job", max_records_per_file=30), SparkExecutor(lambda: spark))
        print("done", flush=True)  # noqa: T201
        sys.stdin.readline()
        query = start(spark, servers, origin, other, checkpoint, minPartitions="3", maxOffsetsPerTrigger="1000")
        assert query.awaitTermination(SECONDS)
        print("done", flush=True)  # noqa: T201
        sys.stdin.readline()
