"""Nothing that a run starts outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.mortal import mortal

STARTS_ONE = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


def runs(process: Path) -> bool:
    """Whether it is there, and no zombie that no one has waited for."""
    try:
        return (process / "stat").read_text().split()[2] != "Z"
    except OSError:  # it went, before or while it was looked at
        return False


def test_a_command_dies_with_whoever_started_it() -> None:
    command = mortal(("sleep", "60"))
    with subprocess.Popen([sys.executable, "-c", STARTS_ONE, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        deadline = time.monotonic() + 120
        while (child / "comm").read_text().strip() != "sleep":
            assert time.monotonic() < deadline, "it did not become the command"
            time.sleep(0.01)
        parent.kill()
    while runs(child):
        assert time.monotonic() < deadline, "the command outlived its parent"
        time.sleep(0.01)
