"""The chart's CronJob of loads, started by hand: Spark in one pod, its table on a claim, and every record is a row once."""

# ruff: noqa: T201  (figures, for anyone who runs it with -s)
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes.cluster import FULLNAME, WAIT_SECONDS, Cluster, Failed, namespaced, until

pytestmark = pytest.mark.timeout(6 * WAIT_SECONDS)

TOPIC = "numbers"
TABLE = f"/var/lib/ottla/tables/{TOPIC}"
FEW, RECORDS = 1_000, 20_000
OF_A_COMMIT = 200  # so that a kill after the second commit has many more to come between
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "tables"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
# What the table says of itself; and by Spark: rows of its own, and of topic and table the rows, the values and their sum.
LOOK = """
import json, subprocess, sys
from ottla.spark.session import session
from ottla.spark.table import read

topic, table, bootstrap_server = sys.argv[1:]
found = {
    about: json.loads(subprocess.run(["ottla", "load", about, table, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    for about in ("status", "verify")
}
with session("look", "local[1]", {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}) as spark:
    found["range"] = spark.range(1000).count()
    options = {"kafka.bootstrap.servers": bootstrap_server, "subscribe": topic}
    for name, frame in (("topic", spark.read.format("ottla").options(**options).load()), ("table", read(spark, table))):
        numbers = frame.selectExpr("cast(cast(value as string) as long) as number")
        found[name] = list(numbers.selectExpr("count(number)", "count(distinct number)", "sum(number)").first())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loading() -> Iterator[Cluster]:
    """One broker, and loads that start only when they are asked to: on the 29th of February."""
    with namespaced() as cluster:
        cluster.kubectl("apply", "--filename=-", given=json.dumps(CLAIM))
        cluster.deploy(
            "install",
            broker__replicas=1,
            broker__maxUnavailable=0,
            externalAccess__enabled=False,
            load__enabled=True,
            load__schedule="0 0 29 2 *",
            load__topics=[TOPIC],
            load__into=TABLE,
            load__existingClaim="tables",
            load__maxRecords=OF_A_COMMIT,
        )
        cluster.ottla("topics", "create", TOPIC, "--partitions", "3")
        yield cluster


def produce(cluster: Cluster, numbers: range) -> None:
    command = ("exec", "--stdin", f"{FULLNAME}-broker-0", "--container=broker", "--", "ottla", "produce", TOPIC, "--acks", "all")
    cluster.kubectl(*command, given="".join(f"{number}\n" for number in numbers))


def start(cluster: Cluster, job: str, *command: str) -> None:
    """What `kubectl create job --from=cronjob/…` makes, which in new releases does not know batch/v1beta1; or with another command."""
    template = cluster.get("cronjob", f"{FULLNAME}-load")["spec"]["jobTemplate"]
    if command:
        template["spec"]["template"]["spec"]["containers"][0] |= {"command": ["tini", "--"], "args": command}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job}, "spec": template["spec"]}
    cluster.kubectl("create", "--filename=-", given=json.dumps(manifest))


def ending(cluster: Cluster, job: str) -> str:
    """Complete or Failed; empty while it runs."""
    conditions = cluster.get("job", job)["status"].get("conditions", [])
    return next((found["type"] for found in conditions if found["type"] in ("Complete", "Failed") and found["status"] == "True"), "")


def log_of(cluster: Cluster, job: str, expected: str = "Complete") -> str:
    """What it said, once it has ended as expected."""
    took = until(f"{job} ends", lambda: bool(ending(cluster, job)), 2 * WAIT_SECONDS)
    said = cluster.kubectl("logs", f"job/{job}")
    assert ending(cluster, job) == expected, said[-3000:]
    print(f"\n{job}: {expected} after {took:.0f} s")
    return said


def look(cluster: Cluster, job: str) -> dict[str, Any]:
    """What LOOK finds, in a pod that differs from a load's by its command alone."""
    start(cluster, job, "python", "-c", LOOK, TOPIC, TABLE, f"{FULLNAME}.{cluster.namespace}.svc.cluster.local:9092")
    found: dict[str, Any] = json.loads(log_of(cluster, job).splitlines()[-1])
    print(found)
    assert found["verify"]["wrong"] == []
    assert found["verify"]["countedAgainstCommits"]
    assert found["range"] == 1000
    return found


def numbers(count: int) -> list[int]:
    """What is to be found of the first so many: their count, that of different ones, their sum."""
    return [count, count, sum(range(count))]


def test_every_record_is_a_row_and_where_nothing_is_new_nothing_is_committed(loading: Cluster) -> None:
    produce(loading, range(FEW))
    start(loading, "first")
    log_of(loading, "first")
    found = look(loading, "look-1")
    assert found["verify"]["rows"] == FEW
    assert found["topic"] == found["table"] == numbers(FEW)

    start(loading, "second")
    assert "nothing new" in log_of(loading, "second")
    assert look(loading, "look-2")["status"] == found["status"]


def test_what_a_killed_load_left_the_next_one_loads(loading: Cluster) -> None:
    """SIGKILL to the driver between two commits or in one: it is not tried again in its job, and its table is whole."""
    produce(loading, range(FEW, RECORDS))
    start(loading, "killed")
    until("its pod runs", lambda: commits_in(loading, "killed") > 0)
    before = commits_in(loading, "killed")
    until("the load commits", lambda: commits_in(loading, "killed") >= before + 2, 2 * WAIT_SECONDS)
    loading.kubectl("exec", "job/killed", "--", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
    log_of(loading, "killed", "Failed")
    found = look(loading, "look-3")
    assert FEW < found["verify"]["rows"] < RECORDS, "the kill was not in the middle"
    assert found["verify"]["rows"] == found["table"][1]

    start(loading, "next")
    log_of(loading, "next")
    found = look(loading, "look-4")
    assert found["verify"]["rows"] == RECORDS
    assert found["topic"] == found["table"] == numbers(RECORDS)


def commits_in(cluster: Cluster, job: str) -> int:
    """How many the table has, asked for in the job's own pod; 0 while that does not run."""
    try:
        said = cluster.kubectl("exec", f"job/{job}", "--", "ottla", "load", "status", TABLE, "--json", seconds=180)
    except Failed:
        assert not ending(cluster, job), cluster.kubectl("logs", f"job/{job}")[-3000:]
        return 0
    return int(json.loads(said)[0]["commits"])
