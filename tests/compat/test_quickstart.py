"""The quickstart's whole job, twice: 336,776 events there and back, then again on the same broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "ottla.cli"]


def call(directory: Path, *arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run([*COMMAND, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(1800)
def test_every_event_comes_back_and_running_it_again_works(tmp_path: Path) -> None:
    try:
        for beginning in ("Started Ottla on ", "Ottla is running on "):
            told = call(tmp_path, "quickstart")
            assert beginning in told
            assert "Everything came back" in told
            (united,) = (line for line in told.splitlines() if line.startswith("UA "))
            assert united.split() == ["UA", "United", "Air", "Lines", "Inc.", "58,665", "58,665", "yes"]
            (events,) = (line for line in told.splitlines() if line.startswith("events "))
            assert events.split() == ["events", "336,776", "336,776"]
        address = told.partition("Ottla is running on ")[2].split()[0]
        assert "336,776 messages" in call(tmp_path, "topics", "describe", "flights", "-b", address)
    finally:
        told = call(tmp_path, "quickstart", "--stop")
    assert "Stopped the broker" in told
    assert "No broker" in call(tmp_path, "quickstart", "--stop")
