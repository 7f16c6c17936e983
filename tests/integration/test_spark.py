"""The profile `spark`: loads and queries by a cluster of Spark; worker and driver are killed, and each record is there once."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from tests.integration.compose import BASE, ComposeCluster
from tests.integration.containers import Containers, wait_until
from tests.integration.docker import ROOT, DockerFailed, docker
from tests.integration.prometheus import Prometheus

from ottla.cli import flights
from ottla.cli.quickstart import TOPIC, create_topic, publish

SPARK: Final = ("spark-master", "spark-worker", "spark-driver")
MASTER: Final = "spark://spark-master:7077"
BROKERS: Final = "broker-1:9092,broker-2:9092,broker-3:9092"
TABLES: Final = "/var/lib/ottla/tables"
RECORDS: Final = 50_000
OF_A_COMMIT: Final = 3_000  # so that there are enough commits for a kill between two, and in one
LOAD_SECONDS: Final = 400.0
# Of the topic and of the table what each carrier has: how many, how many kinds of key, the sum of its delays.
QUERY: Final = """
import sys
from pyspark.sql import SparkSession
from ottla.spark.table import read

spark = SparkSession.builder.appName("query").getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"}
for frame in (spark.read.format("ottla").options(**options).load(), read(spark, sys.argv[3])):
    event = "from_json(cast(value as string), 'carrier STRING, dep_delay INT') as event"
    parsed = frame.selectExpr("key", event).selectExpr("key", "event.carrier", "event.dep_delay")
    grouped = parsed.groupBy("carrier").agg({"*": "count", "dep_delay": "sum"}).toDF("carrier", "count", "delay").orderBy("carrier")
    print("ROWS", [tuple(row) for row in grouped.selectExpr("carrier", "count", "delay").collect()])
print("MASTER", spark.sparkContext.master)
"""


@pytest.fixture(scope="module")
def events() -> list[flights.Flight]:
    return flights.in_order(list(flights.read(flights.data_directory())))[:RECORDS]


@pytest.fixture(scope="module")
def with_spark(new_cluster: Callable[..., ComposeCluster], events: list[flights.Flight]) -> Iterator[Containers]:
    """The driver's own load is of the topic `pages`, which is not there yet; the flights are."""
    environment = {"COMPOSE_PROFILES": "spark", "OTTLA_LOAD_PATTERN": "pages", "OTTLA_LOAD_EVERY": "1s"}
    made = new_cluster("spark", environment, [ROOT / "tests" / "integration" / "spark.yml"])
    made.up(*BASE, "prometheus", *SPARK)
    create_topic(made.containers.addresses(), replace=False)
    publish(made.containers.addresses(), events, lambda count: None)
    yield made.containers
    made.down()


def in_the_driver(containers: Containers, *command: str, seconds: float = LOAD_SECONDS) -> str:
    return containers.execute("spark-driver", *command, seconds=seconds)


def load_command(table: str, *more: str) -> list[str]:
    return ["ottla", "load", TOPIC, "--into", f"{TABLES}/{table}", "--master", MASTER, "-b", BROKERS, *more]


@contextmanager
def loading(containers: Containers, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A load that runs while a test does something to it."""
    words = ["docker", "exec", containers.container("spark-driver"), *command]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def commits(containers: Containers, table: str) -> int:
    """How many a load has made; none where there is no table yet."""
    try:
        jobs = json.loads(in_the_driver(containers, "ottla", "load", "status", f"{TABLES}/{table}", "--json", seconds=60))
    except DockerFailed:
        return 0
    return int(jobs[0]["commits"]) if jobs else 0


def verified(containers: Containers, table: str) -> dict[str, Any]:
    """Every row's offset was read: each once, none behind its job; exit code 1 otherwise, which is an error here."""
    found = json.loads(in_the_driver(containers, "ottla", "load", "verify", f"{TABLES}/{table}", "--json"))
    assert isinstance(found, dict)
    return found


def test_prometheus_hears_of_the_profile(with_spark: Containers) -> None:
    prometheus = Prometheus(f"http://{with_spark.address('prometheus', 9090)}")
    for component, service in (("spark-master", SPARK[0]), ("spark-worker", SPARK[1]), ("load", SPARK[2])):
        asked = f'up{{component="{component}", instance="{service}"}}'
        wait_until(f"{asked} is 1", partial(lambda each: prometheus.value(each) == 1.0, asked), 180.0, prometheus.targets)
    wait_until("the master has its worker", lambda: prometheus.value("metrics_master_aliveWorkers_Value") == 1.0, 60.0)


@pytest.mark.parametrize("service", SPARK)
def test_spark_may_do_as_little_as_the_others(service: str, with_spark: Containers) -> None:
    status = dict(line.split(":", 1) for line in with_spark.execute(service, "cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == ["10001"] * 4
    assert int(status["CapBnd"], 16) == 0
    with pytest.raises(DockerFailed, match="Read-only file system"):
        with_spark.execute(service, "touch", "/written")


def test_the_driver_loads_what_comes(with_spark: Containers) -> None:
    """The topic is created when the load has been looking for it for a while."""
    with_spark.ottla("topics", "create", "pages", "--partitions", "3", "-b", BROKERS)
    with_spark.ottla("produce", "pages", "-b", BROKERS, given=b"".join(b"%d\n" % number for number in range(1000)))

    wait_until("it is loaded", lambda: commits(with_spark, "topics"), LOAD_SECONDS, lambda: with_spark.logs("spark-driver"))
    found = partial(verified, with_spark, "topics")
    wait_until("all is in the table", lambda: found()["rows"] == 1000, LOAD_SECONDS, lambda: (found(), with_spark.logs("spark-driver")))


@pytest.mark.long
def test_worker_and_driver_are_killed_and_nothing_is_lost_or_there_twice(with_spark: Containers) -> None:
    """A load without its worker waits, and ends when that is back; of one whose driver is killed the next does the rest."""
    small = ("--max-records", str(OF_A_COMMIT))
    with loading(with_spark, *load_command("flights", *small, "--until", "2013-02-01")) as load:
        reached = wait_until("the load has begun", lambda: commits(with_spark, "flights"), LOAD_SECONDS, lambda: load.poll())
        with_spark.kill("spark-worker")
        with_spark.start("spark-worker")
        _, said = load.communicate(timeout=LOAD_SECONDS)
        assert load.returncode == 0, said.decode()
    survived = commits(with_spark, "flights")
    assert survived > reached + 1, "the kill was not in the middle"
    with_spark.wait_healthy(["spark-worker"])

    with loading(with_spark, *load_command("flights", *small)):
        wait_until("the next one has begun", lambda: commits(with_spark, "flights") > survived, LOAD_SECONDS)
        with_spark.kill("spark-driver")
        with_spark.kill("spark-worker")
    with_spark.start("spark-worker", "spark-driver")
    with_spark.wait_healthy(SPARK)
    assert verified(with_spark, "flights")["rows"] < RECORDS, "the kill was not in the middle"
    in_the_driver(with_spark, *load_command("flights"))
    found = verified(with_spark, "flights")
    assert (found["rows"], found["wrong"], found["countedAgainstCommits"]) == (RECORDS, [], True)


@pytest.mark.long
def test_a_query_gives_the_same_in_a_cluster_as_in_one_process(with_spark: Containers, events: list[flights.Flight]) -> None:
    """Over the topic and over the table; and the same as without Spark."""
    in_the_driver(with_spark, *load_command("flights"))
    docker("exec", "-i", with_spark.container("spark-driver"), "sh", "-c", "cat >/tmp/query.py", given=QUERY.encode())
    said = {}
    for master in (MASTER, "local[2]"):
        program = ("/tmp/query.py", BROKERS, TOPIC, f"{TABLES}/flights")
        lines = in_the_driver(with_spark, "ottla", "spark", "submit", "--master", master, *program).splitlines()
        assert f"MASTER {master}" in lines
        said[master] = [line for line in lines if line.startswith("ROWS ")]
    counts: Counter[str] = Counter()
    delays: Counter[str] = Counter()
    for event in events:
        counts[event.carrier] += 1
        delays[event.carrier] += json.loads(event.value)["dep_delay"] or 0
    expected = f"ROWS {[(carrier, counts[carrier], delays[carrier]) for carrier in sorted(counts)]}"
    assert said[MASTER] == said["local[2]"] == [expected, expected]
