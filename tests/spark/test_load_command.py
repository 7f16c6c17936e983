"""`ottla load` as a person runs it, without Spark: `--master none`. What it says, and what `status`, `verify` and `vacuum` do."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.unit.spark.test_reading import damage, fill, in_transaction

from ottla.cli.main import run
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster, ManualClock

pytest.importorskip("deltalake")

pytestmark = pytest.mark.timeout(1200)


def test_a_load_says_what_it_did_and_the_table_where_it_is(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create_topic("told", partitions=2)
    fill(cluster, topic, 30)
    common = ["--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]
    assert run(["load", topic, *common]) == 0
    assert "30 rows in 1 file, " in capsys.readouterr().err
    assert run(["load", "run", topic, *common]) == 0
    assert "nothing new for" in capsys.readouterr().err
    fill(cluster, topic, 20, partition=1)
    assert run(["load", "--pattern", "tol.", *common, "--max-records", "8", "--compact"]) == 0
    told = capsys.readouterr().err
    assert "4 files compacted" in told
    assert run(["load", "status", str(tmp_path), "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)
    assert (job["job"], job["commits"], job["offsets"]) == ("load", 4, {topic: {"0": 30, "1": 20}})
    assert run(["load", "status", str(tmp_path)]) == 0
    assert "load: 4 commits" in capsys.readouterr().out
    assert run(["load", "verify", str(tmp_path)]) == 0
    assert "50 rows in 1 file" in capsys.readouterr().out
    assert run(["load", "vacuum", str(tmp_path), "--older-than-hours", "0", "--delete"]) == 0
    assert "4 files deleted" in capsys.readouterr().err
    assert run(["load", "verify", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 50


def test_a_table_that_nothing_was_loaded_into_yet_has_its_whole_log(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create_topic("still-empty")
    assert run(["load", topic, "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]) == 0
    assert run(["load", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 rows in 0 files\n"


def test_a_bounded_load_ends_when_nothing_is_left_and_not_at_a_commit_without_rows(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create_topic("rowless")
    in_transaction(cluster, topic, topic, [b"aborted"] * 20, commit=False)
    fill(cluster, topic, 10)
    assert run(["load", topic, "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers, "--max-records", "8"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" row")[0] for line in told] == ["0", "0", "3", "7"]
    assert run(["load", "verify", str(tmp_path)]) == 0
    assert "10 rows in 2 files" in capsys.readouterr().out


def test_metrics_are_in_the_commit_in_a_file_and_served_while_it_runs(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps the time of the last success when a load fails; there is one before the first, or LoadStale had nothing to fire by."""
    from ottla.spark.loading import driver
    from ottla.spark.table import Table

    topic = cluster.create_topic("measured")
    fill(cluster, topic, 30)
    file, table = tmp_path / "load.prom", tmp_path / "table"
    common = [topic, "--into", str(table), "--master", "none", "-b", cluster.bootstrap_servers, "--metrics-file", str(file), "--job", "m"]
    urls: list[str] = []
    seen: list[str] = []

    def load(*arguments: Any, **more: Any) -> Any:
        urls.extend(line.split()[-1] for line in capsys.readouterr().err.splitlines() if line.startswith("metrics are at "))
        seen.append(urllib.request.urlopen(urls[0], timeout=20).read().decode())
        return whole(*arguments, **more)

    assert run(["load", "run", "is-not-there", *common[1:]]) != 0
    assert 'ottla_load_last_success_timestamp_seconds{load="m"} 0.0' in file.read_text(encoding="utf-8")
    whole = driver.load
    monkeypatch.setattr(driver, "load", load)
    assert run(["load", "run", *common, "--max-records", "20", "--http-listener", "127.0.0.1:0", "--stale-after", "2h"]) == 0
    for text, rows, left in ((seen[0], 0, None), (seen[1], 20, 10)):
        assert f'ottla_load_rows_total{{load="m"}} {rows}.0' in text
        assert left is None or f'ottla_load_lag_messages{{load="m"}} {left}.0' in text
    monkeypatch.setattr(driver, "load", whole)
    text = file.read_text(encoding="utf-8")
    for line in (
        'rows_total{load="m"} 30.0',
        'commits_total{load="m"} 2.0',
        'lag_messages{load="m"} 0.0',
        'stale_after_seconds{load="m"} 7200.0',
    ):
        assert f"ottla_load_{line}" in text
    found = [{name: commit["metrics"][name] for name in ("rows", "files", "lost", "left")} for commit in Table.open(str(table)).commits()]
    assert found == [{"rows": 10, "files": 1, "lost": 0, "left": 0}, {"rows": 20, "files": 1, "lost": 0, "left": 10}]

    (success,) = [line for line in text.splitlines() if line.startswith("ottla_load_last_success_timestamp_seconds")]
    assert run(["load", "run", *common[:-1], "m", "-X", "group.id=refused"]) != 0
    assert run(["load", "run", "is-not-there", *common[1:]]) != 0
    failed = file.read_text(encoding="utf-8")
    assert success in failed
    assert 'ottla_load_failures_total{load="m"} 1.0' in failed


@pytest.mark.parametrize("job", ['a "day"', "back\\slash", "two\nlines", "returned\r"])
def test_the_last_success_outlives_a_failure_whatever_the_job_is_called(job: str, tmp_path: Path) -> None:
    """A quote is escaped in a label, where it was not found: the last success was 0 from then on, and LoadStale fired."""
    from ottla.spark.loading.driver import LoadOutcome
    from ottla.spark.loading.statistics import LoadStatistics

    file = tmp_path / "load.prom"
    first, second = LoadStatistics(job, 3600, ManualClock()), LoadStatistics(job, 3600)
    first.took(LoadOutcome(1, 1, 0, 0, 0))
    first.write(file)
    (success,) = [line for line in file.read_bytes().split(b"\n") if line.startswith(b"ottla_load_last_success")]
    second.failed()
    second.write(file)
    assert success in file.read_bytes()


@pytest.mark.parametrize("left", [b'ottla_load_last_success_timestamp_seconds{load="m"} 1.7e.9', b"\xff"])
def test_a_metrics_file_that_cannot_be_read_is_written_again(left: bytes, tmp_path: Path) -> None:
    """One that is no longer what was written; a number that is none was a traceback, after the load's own error."""
    from ottla.spark.loading.statistics import LoadStatistics

    (tmp_path / "load.prom").write_bytes(left)
    LoadStatistics("m", 3600).write(tmp_path / "load.prom")
    assert 'ottla_load_last_success_timestamp_seconds{load="m"} 0.0' in (tmp_path / "load.prom").read_text(encoding="utf-8")


def test_metrics_that_cannot_be_written_are_no_reason_to_fail(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was loaded is committed by then; it was a traceback."""
    topic = cluster.create_topic("unmeasured")
    fill(cluster, topic, 10)
    table = str(tmp_path / "table")
    assert run(["load", topic, "--into", table, "--master", "none", "-b", cluster.bootstrap_servers, "--metrics-file", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert f"WARNING ottla.cli.load: --metrics-file {tmp_path} cannot be written: " in told and "10 rows in 1 file" in told


def test_a_damaged_batch_stops_a_load_or_is_put_into_quarantine_counted_and_logged(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the format and from the level on that were asked for, as every service's lines: a collector of JSON had none."""
    topic = cluster.create_topic("broken")
    for _ in range(3):
        fill(cluster, topic, 10)
    start, end = damage(cluster, TopicPartition(topic, 0), 1)
    text = str(tmp_path / "text")
    common = ["load", topic, "--master", "none", "-b", cluster.bootstrap_servers]
    assert run([*common, "--into", text]) == 1
    assert "CorruptMessage: the batch at offset" in capsys.readouterr().err
    assert run([*common, "--into", text, "--quarantine"]) == 0
    line, told = capsys.readouterr().err.splitlines()
    where = f"{topic}-0: offsets [{start}, {end}) are damaged and in quarantine at {text}/_quarantine"
    assert line.endswith(f" ERROR ottla.spark.reading: {where}") and f"{end - start} records in quarantine" in told
    assert run(["load", "verify", text]) == 0
    assert f"{30 - (end - start)} rows" in capsys.readouterr().out
    run(["load", "vacuum", text, "--older-than-hours", "0", "--delete"])
    assert (tmp_path / "text" / "_quarantine" / f"{topic}-0-{start}.batch").exists()
    capsys.readouterr()
    assert run([*common, "--into", str(tmp_path / "json"), "--quarantine", "--log-format", "json", "--log-level", "info"]) == 0
    assert run([*common, "--into", str(tmp_path / "failed"), "--log-format", "json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines if line["logger"].startswith(("ottla.spark", "ottla.cli"))] == ["ERROR", "INFO", "CRITICAL"]
    assert "20 rows in 1 file" in lines[-2]["message"]


def test_verify_finds_a_row_that_is_there_twice_and_a_file_that_is_gone(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla.spark.table import Table

    topic = cluster.create_topic("spoilt")
    fill(cluster, topic, 10)
    run(["load", topic, "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers])
    table = Table.open(str(tmp_path))
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path), table.delta.to_pyarrow_table(), mode="append")
    capsys.readouterr()
    assert run(["load", "verify", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "spoilt-0: 10 offsets are there more than once" in told
    assert "spoilt-0: 20 rows are there, and 10 were committed" in told
    next((tmp_path / f"topic={topic}").rglob("*.parquet")).unlink()
    assert run(["load", "verify", str(tmp_path)]) == 1
    assert "has None bytes" in capsys.readouterr().out


def test_one_topic_of_several_that_is_not_there_is_a_mistake_and_nothing_is_loaded(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's Kafka source fails too (`describeTopics`). The load left the mistyped one out in silence and ended with exit code 0."""
    topic = cluster.create_topic("typed-well")
    fill(cluster, topic, 10)
    common = ["--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]
    assert run(["load", "typed-bad", topic, "typed-ill", *common]) == 2
    assert capsys.readouterr().err == "ottla: there is no topic typed-bad, typed-ill\n"
    assert run(["load", "status", str(tmp_path)]) == 0
    assert "no job has loaded anything" in capsys.readouterr().out


def test_a_topic_of_a_pattern_that_was_made_again_is_left_out_and_the_others_are_loaded(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the whole job, for good. Nothing of the new topic may be taken for the former one's, by this load or a later one."""
    again, kept = cluster.create_topic("made.again"), cluster.create_topic("made.once")
    fill(cluster, again, 5)
    fill(cluster, kept, 5)
    pattern = ["load", "--pattern", r"made\..*", "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]
    assert run(pattern) == 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([again])[again].result(90)
    cluster.create_topic(again)
    capsys.readouterr()
    for count in (7, 8):
        fill(cluster, again, count)
        fill(cluster, kept, count)
        assert run(pattern) == 1
        told = capsys.readouterr().err
        assert f"{count} rows in 1 file" in told
        assert "ottla: made.again has the id" in told
        assert told.endswith("another topic than the one that was loaded; load it as another job, and this one without it\n")
    assert sum("made.again has the id" in line.getMessage() for line in caplog.records) == 1
    assert run(["load", "status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["offsets"] == {again: {"0": 5}, kept: {"0": 20}}
    assert run(["load", again, "--job", "another", *pattern[3:]]) == 0
    assert run(["load", "--pattern", r"made\.o.*", *pattern[3:]]) == 0
    assert run(["load", "verify", str(tmp_path)]) == 0
    assert "40 rows" in capsys.readouterr().out


def test_a_spark_that_does_not_start_is_one_sentence(a_spark_to_start: None, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("not-started")
    fill(cluster, topic, 10)
    command = ["load", topic, "--into", str(tmp_path), "-b", cluster.bootstrap_servers, "--master", "local[x]"]
    ended = subprocess.run([sys.executable, "-m", "ottla.cli", *command], capture_output=True, text=True, timeout=900, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert "nothing was committed: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'" in ended.stderr


def test_a_day_that_cannot_be_read_is_not_a_lost_one(a_spark_to_start: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 says that messages are lost or doubled. What Spark raised was a traceback besides."""
    command = ["load", "reconcile", str(tmp_path), "--counter", "http://127.0.0.1:1", "--master"]
    assert run([*command, "none"]) == 3
    assert capsys.readouterr().err == f"ottla: there is no Delta table at {tmp_path}\n"
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("{no json")
    assert run([*command, "none"]) == 3
    assert capsys.readouterr().err.startswith(f"ottla: {tmp_path}: Kernel error: Json error")
    ended = subprocess.run(
        [sys.executable, "-m", "ottla.cli", *command, "local[x]"], capture_output=True, text=True, timeout=900, check=False
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (3, False), ended.stderr
    assert "the rows cannot be read: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'" in ended.stderr


def test_what_is_wrong_with_a_table_is_one_line(cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `deltalake` and pyarrow raise; it was a traceback, a load's after its commit too."""
    topic = cluster.create_topic("to-be-spoilt")
    load = ["load", topic, "--into", str(tmp_path), "--master", "none", "-b", cluster.bootstrap_servers]
    for _ in range(2):
        fill(cluster, topic, 10)
        assert run(load) == 0
    next(tmp_path.rglob("*.parquet")).write_bytes(b"")
    capsys.readouterr()
    assert run([*load, "--compact"]) == 1
    (_, told) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"ottla: {tmp_path}: all is loaded, and no file compacted: ")
    assert ".parquet" in told
    assert run(["load", "verify", str(tmp_path)]) == 1
    capsys.readouterr()
    max((tmp_path / "_delta_log").glob("*.json")).write_text("{no json")
    for command in (load, *(["load", name, str(tmp_path)] for name in ("status", "verify", "vacuum"))):
        assert run(command) == 1
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"ottla: {tmp_path}: Kernel error: Json error")
        assert "<unknown>" not in told
    assert run(["load", "vacuum", str(tmp_path), "--older-than-hours", "inf"]) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a"], "--into TABLE says where to"),
        (["--into", "x"], "name topics, or give a --pattern"),
        (["a", "--pattern", "b", "--into", "x"], "name topics, or give a --pattern"),
        (["a", "--into", "x", "--until", "soon"], "--until takes a time"),
        (["a", "--into", "x", "--until", "9" * 20], "--until takes a time"),
        (["a", "--into", "x", "--every", "now"], "--every takes a time"),
        (["a", "--into", "x", "--every", f"{10**15}h"], "--every takes a time"),
        (["a", "--into", "x", "--stale-after", "never"], "--stale-after takes a time"),
        (["a", "--into", "x", "--stale-after", f"{10**400}s"], "--stale-after takes a time"),
        (["a", "--into", "x", "--audit-window", "0s"], "the audit's windows are 1 ms long at least"),
        (["a", "--into", "x", "--http-listener", "nowhere"], "http.listener = 'nowhere'"),
        (["a", "--into", "x", "-X", "group.id=g"], "Kafka option 'group.id' is not supported"),
        (["a", "--into", "x", "--metrics-file", "nowhere/load.prom"], "--metrics-file nowhere/load.prom: there is no directory nowhere"),
        (["status", "nowhere"], "there is no Delta table at nowhere"),
        (["verify", "{another}"], "is no table that loads write to: it is not partitioned by topic and day"),
        (["reconcile", "{another}", "--master", "none"], "is no table that loads write to: it is not partitioned by topic and day"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow
    from deltalake import write_deltalake

    write_deltalake(tmp_path, pyarrow.table({"a": [1]}))
    assert run(["load", *(word.replace("{another}", str(tmp_path)) for word in arguments)]) != 0
    assert sentence in capsys.readouterr().err


def test_submit_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    assert run(["spark", "submit", str(tmp_path / "none.py")]) == 2
    assert "there is no program" in capsys.readouterr().err
