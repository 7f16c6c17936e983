"""The pid file, by which others find a broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.main import run
from ottla.cli.process import PidFile, seconds_since_start


def test_a_pid_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ottla.pid"
    PidFile(os.getpid(), "127.0.0.1:9092").write(path)
    assert path.read_text() == f"{os.getpid()}\n127.0.0.1:9092\n"
    assert PidFile.read(path) == PidFile(os.getpid(), "127.0.0.1:9092")
    assert [path.name for path in tmp_path.iterdir()] == ["ottla.pid"]


def test_a_missing_or_foreign_file_is_no_pid_file(tmp_path: Path) -> None:
    assert PidFile.read(tmp_path / "missing") is None
    assert PidFile.read(tmp_path) is None
    for text in ("", "12", "twelve\n127.0.0.1:9092\n"):
        (tmp_path / "other").write_text(text)
        assert PidFile.read(tmp_path / "other") is None


@pytest.mark.parametrize("name", ["missing/ottla.pid", "file/ottla.pid", "."])
def test_a_pid_file_that_cannot_be_written_is_told_in_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The broker has started by then, and stops again."""
    (tmp_path / "file").touch()
    assert run(["dev", "--ephemeral", "--port", "0", "--pid-file", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(f"ottla: --pid-file {tmp_path / name} cannot be written: ")
    assert [*tmp_path.parent.glob(f"{tmp_path.name}.*")] == []


def test_a_process_that_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not PidFile(process.pid, "").is_alive()
    assert PidFile(os.getpid(), "").is_alive()


def test_the_age_of_this_process_is_positive_and_less_than_the_machines() -> None:
    assert 0 < seconds_since_start() < 24 * 3600
