"""The pid file, by which others find a broker."""

import asyncio
import errno
import io
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.errors import OutputFailed
from ottla.cli.main import run
from ottla.cli.process import PidFile, announce, seconds_since_start, serve_service


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


def test_an_empty_name_of_a_pid_file_is_told_as_one_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """As a script's variable may be."""
    assert run(["dev", "--ephemeral", "--port", "0", "--pid-file", ""]) == 1
    assert capsys.readouterr().err.startswith("ottla: --pid-file . cannot be written: ")


def test_a_service_that_cannot_say_on_stdout_that_it_is_ready_says_so_in_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OutputFailed(OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(sys, "stdout", Full())
    announce(logging.getLogger("ottla"), "Ottla broker 1 is ready", "text")
    assert caplog.messages[0].startswith("Ottla broker 1 is ready")
    assert caplog.messages[0].endswith("(standard output: No space left on device)")


class Service:
    """One whose start or stop does not end by itself."""

    def __init__(self, slow: str) -> None:
        self.slow, self.seen = slow, list[str]()

    async def start(self) -> None:
        await self._do("start")

    async def stop(self) -> None:
        await self._do("stop")

    async def failed(self) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(3600)
        return ""

    async def _do(self, what: str) -> None:
        try:
            if self.slow == what:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(3600 if what == "start" else 0.05)
            self.seen.append(what)
        except asyncio.CancelledError:
            self.seen.append(f"{what} given up")
            raise


@pytest.mark.parametrize(("slow", "seen"), [("start", ["start given up"]), ("stop", ["start", "ready", "stop"])])
def test_sigterm_gives_a_start_up_and_cuts_no_stop_short(slow: str, seen: list[str]) -> None:
    """A start was waited for, however long it read logs; a supervisor that repeated SIGTERM killed a broker that was about to stop."""
    former = signal.getsignal(signal.SIGTERM)
    service = Service(slow)
    serve_service("test", service, lambda: "here", lambda _: service.seen.append("ready"))
    assert service.seen == seen
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.mark.parametrize(("ignored", "expected"), [(False, "stopped"), (True, "runs")])
def test_a_terminal_that_is_closed_stops_a_service_cleanly_unless_nohup_started_it(ignored: bool, expected: str) -> None:
    """As Java does with Kafka. The process was ended at once: an unclean stop, and of `ottla dev --ephemeral` the directory stayed."""
    seen: list[str] = []

    class Idle:
        async def start(self) -> None:
            os.kill(os.getpid(), signal.SIGHUP)

        async def failed(self) -> str:
            await asyncio.sleep(0.05)
            seen.append("runs")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(3600)
            return ""

        async def stop(self) -> None:
            seen.append("stopped")

    former = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        serve_service("test", Idle(), lambda: "here", lambda _: None)
    finally:
        signal.signal(signal.SIGHUP, former)
    assert seen[0] == expected


def test_a_service_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    """As a JVM does for Kafka (MaxFDLimit): containers have 1,024 of 524,288 from containerd 2 on, and no pod can ask for more."""

    class Opening(Service):
        async def start(self) -> None:
            self.seen.append(str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))

    former, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    service = Opening("")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        serve_service("test", service, lambda: "here", lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (former, hard))
    assert service.seen == [str(hard), "stop"]


def test_a_process_that_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not PidFile(process.pid, "").is_alive()
    assert PidFile(os.getpid(), "").is_alive()


def test_the_age_of_this_process_is_positive_and_less_than_the_machines() -> None:
    assert 0 < seconds_since_start() < 24 * 3600
