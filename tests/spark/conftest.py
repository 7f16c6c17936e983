"""The Spark session of these tests, and what they need where the machine has it.

Limits of time here are wide: on a machine with nothing left for it a JVM was seen to take ten minutes to start. One is Spark's own and
cannot be set: its Python processes have to connect within 10 seconds (`PythonWorkerFactory`), or a task is tried again, and a format
that is looked for by its name is not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.killing import Killing

from ottla.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent


def submit(*words: str, directory: Path) -> str:
    """What `ottla spark submit` prints, by a session of its own; it must succeed."""
    ended = subprocess.run(
        [sys.executable, "-m", "ottla.cli", "spark", "submit", "--master", "local[2]", "--conf", "spark.log.level=ERROR", *words],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "services")},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def why_unavailable() -> str | None:
    """What there is to install, as a sentence; None where everything is there."""
    if find_spec("pyspark") is None or find_spec("deltalake") is None:
        return "pyspark or deltalake is not installed: make spark-test"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    return None if java else "Spark needs a Java: apt-get install openjdk-17-jre-headless"


@pytest.fixture(scope="session")
def a_spark_to_start() -> None:
    """Skips on a machine without Spark or Java. With CI=true that is a failure."""
    reason = why_unavailable()
    if reason is not None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"with CI=true the tests over Spark must run: {reason}")
        pytest.skip(reason)


# One for all: with each session its Python processes start again and the JVM compiles once more. Of the checkpoint's files each that is
# renamed by Hadoop's FileContext, the default, starts a `readlink`, twice; what is in them is the same.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # code that runs once is not worth a better compiler
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Killing:
    """Plans of deaths in the Python processes of `spark`."""
    return Killing(tmp_path_factory.mktemp("killing"))


@pytest.fixture(scope="session")
def spark(a_spark_to_start: None, tmp_path_factory: pytest.TempPathFactory, killing: Killing) -> Iterator[SparkSession]:
    """`local[2]`, with this Python for its workers, which find the source by its package's name."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(killing.environment)
    from ottla.spark.session import session

    directory = tmp_path_factory.mktemp("spark")
    places = {"spark.local.dir": str(directory), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    with session("ottla tests", "local[2]", {**SETTINGS, **places}) as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        settings={
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
    ) as running:
        yield running
