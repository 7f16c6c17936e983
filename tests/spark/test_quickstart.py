"""`ottla quickstart --spark`, as `make spark-demo` runs it: the flights of a year, a table, a plot, and what an audit counter says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.conftest import ROOT

from ottla.cli.flights import TOTAL, data_directory, read
from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"audit.window.ms": "10000", "audit.report.interval.ms": "1000"}
    with EmbeddedCluster(services=["audit-counter"], settings=settings) as running:
        yield running


def test_the_flights_are_a_table_a_plot_and_complete(a_spark_to_start: None, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """What the command says of one carrier against plain Python over the file."""
    import polars

    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ottla.cli", "quickstart", "--spark", "--directory", str(tmp_path)),
            *("--bootstrap-server", cluster.bootstrap_servers, "--counter", str(cluster.audit_url)),
        ],
        capture_output=True,
        text=True,
        timeout=1000,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "services"), "COLUMNS": "120"},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    said = ended.stdout
    assert "COMPLETE: every event is in the table, and once." in said
    verdict = next(line for line in said.splitlines() if "says the audit counter" in line)
    assert verdict.startswith(("COMPLETE, ", "LATE, "))
    assert f"the brokers had {TOTAL:,} events, and the table has them" in verdict

    late: dict[int, list[int]] = defaultdict(list)
    for flight in read(data_directory()):
        event = json.loads(flight.value)
        if event["carrier"] == "UA" and event["dep_delay"] is not None:
            late[event["hour"]].append(event["dep_delay"])
    minutes = [delay for delays in late.values() for delay in delays]
    worst, of_it = max(late.items(), key=lambda item: sum(item[1]) / len(item[1]))
    expected = [
        *("UA", "United", "Air", "Lines", "Inc.", f"{len(minutes):,}", f"{sum(minutes) / len(minutes):.1f}"),
        *(f"{worst:02d}:00,", f"{sum(of_it) / len(of_it):.1f}"),
    ]
    assert expected in [line.split() for line in said.splitlines()]
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert polars.scan_delta(str(tmp_path / "flights")).select(polars.len()).collect().item() == TOTAL


def test_a_counter_is_asked_of_a_cluster_that_has_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.main import run

    assert run(["quickstart", "--counter", "http://127.0.0.1:1", "--directory", str(tmp_path)]) == 2
    assert "--counter is that of the cluster at --bootstrap-server" in capsys.readouterr().err
