"""A broker as a process of its own (`ottla dev`), which a test may kill."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS = 120.0


class BrokerProcess:
    """`ottla dev` on a directory; it can be killed and started again on the same data and port."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._port = 0
        self.log = directory / "dev.log"
        self.start()

    def start(self) -> None:
        pid_file = self._directory / "dev.pid"
        pid_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command("--port", str(self._port)), "--pid-file", str(pid_file)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + START_SECONDS
        while not pid_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"not ready after {START_SECONDS} s: {self.log.read_text()}"
            time.sleep(0.01)
        self.address = pid_file.read_text().splitlines()[1]
        # Of several brokers each has a free port of its own, and another one after a restart.
        self._port = 0 if "," in self.address else int(self.address.rpartition(":")[2])

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "ottla.cli", "dev", "--data-dir", str(self._directory / "data"), *self._options, *more]

    @property
    def log_directory(self) -> Path:
        return self._directory / "data" / "log"

    def kill(self) -> None:
        """As kill -9: nothing is flushed, closed or told to anybody."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(120)

    def terminate(self) -> int:
        """Asks it to stop, and gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(120)
