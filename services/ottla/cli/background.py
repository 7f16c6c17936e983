"""A broker in the background: `ottla dev`, detached, with its pid file, log and data in one directory.

The quickstart starts it, uses it again the next time, and stops it when asked to.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.cli.dev import DEFAULT_PORT
from ottla.cli.errors import CommandFailed
from ottla.cli.process import PidFile

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class BackgroundBroker:
    """The broker that lives in this directory, running or not."""

    directory: Path

    @property
    def pid_path(self) -> Path:
        return self.directory / "ottla.pid"

    @property
    def log_path(self) -> Path:
        return self.directory / "ottla.log"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def running(self) -> PidFile | None:
        """What the pid file says, if that process still runs and is one of ours."""
        pid_file = PidFile.read(self.pid_path)
        if pid_file is None or not pid_file.is_alive() or not _is_ottla(pid_file.process_id):
            return None
        return pid_file

    def start(self) -> PidFile:
        """Starts it and waits until it answers; the usual port if that is free, else any."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.pid_path.unlink(missing_ok=True)
        port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else 0
        command = [sys.executable, "-m", "ottla.cli", "dev"]
        command += ["--data-dir", str(self.data_directory), "--port", str(port), "--pid-file", str(self.pid_path)]
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            pid_file = PidFile.read(self.pid_path)
            if pid_file is not None and pid_file.process_id == process.pid:
                return pid_file
            if process.poll() is not None:
                raise CommandFailed(f"the broker did not start:\n{self._end_of_log()}")
            time.sleep(POLL_SECONDS)
        process.terminate()
        raise CommandFailed(f"the broker was not ready after {START_SECONDS:.0f} s:\n{self._end_of_log()}")

    def stop(self) -> PidFile | None:
        """Asks it to stop and waits until it has; None when it did not run."""
        pid_file = self.running()
        if pid_file is None:
            return None
        os.kill(pid_file.process_id, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while pid_file.is_alive() and self.pid_path.exists():
            if time.monotonic() > deadline:
                raise CommandFailed(f"process {pid_file.process_id} was asked to stop and still runs after {STOP_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        return pid_file

    def _end_of_log(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-10:])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_ottla(process_id: int) -> bool:
    """Whether the process runs our command: after a restart of the machine the number may be somebody else's."""
    try:
        return b"ottla" in Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return True  # a system without /proc: the pid file is all there is
