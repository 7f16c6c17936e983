"""`ottla spark submit`, with a spark-submit that only waits: no JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from ottla.cli.spark import _package

SUBMIT = """#!/bin/sh
exec "$PYSPARK_PYTHON" -c 'import time; print("begun", flush=True); time.sleep(600)'
"""


def test_a_program_ends_with_the_command_that_runs_it(tmp_path: Path) -> None:
    """A query that was left would write beside the one that is started in its place."""
    submit = tmp_path / "pyspark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").touch()
    submit.write_text(SUBMIT, encoding="utf-8")
    submit.chmod(0o755)
    (tmp_path / "job.py").touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ottla.cli", "spark", "submit", str(tmp_path / "job.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGTERM)
        # Both have the pipe: it ends when both have.
        rest, _ = running.communicate(timeout=120)
    assert (rest, running.returncode) == ("", 128 + signal.SIGTERM)


def test_files_from_before_1980_are_packed(tmp_path: Path) -> None:
    """As images have them that are built the same each time: a zip knows no such time, and `submit` to a cluster was a traceback."""
    (tmp_path / "ottla").mkdir()
    (tmp_path / "ottla" / "__init__.py").touch()
    os.utime(tmp_path / "ottla" / "__init__.py", (1, 1))
    with ZipFile(_package(tmp_path, tmp_path)) as archive:
        assert archive.namelist() == ["ottla/__init__.py"]
