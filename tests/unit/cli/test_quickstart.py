"""The broker that the quickstart leaves running in the background."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.errors import CommandFailed
from ottla.cli.process import PidFile
from ottla.cli.quickstart import BackgroundBroker


def test_a_process_that_has_the_number_of_a_broker_that_died_is_left_alone(tmp_path: Path) -> None:
    """After a restart of the machine. One of a checkout called ottla, as its tests are, was taken for the broker, used and stopped."""
    background = BackgroundBroker(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()", "/srv/ottla/tests"], stdin=subprocess.PIPE) as other:
        PidFile(other.pid, "127.0.0.1:9092").write(background.pid_path)
        assert background.running() is None
        assert background.stop() is None
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


def test_a_directory_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    """As one of another user's quickstart, in a container or with sudo. It ended in a traceback."""
    (tmp_path / "ottla.log").mkdir()
    with pytest.raises(CommandFailed, match=r"ottla\.log cannot be made: Is a directory; say where data may go: --directory"):
        BackgroundBroker(tmp_path).start()
