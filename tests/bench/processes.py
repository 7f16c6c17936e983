"""Child processes of a run: started, measured and stopped by their process id.

CPU is the process's own clock (user and system time, all its threads, to the nanosecond; `/proc/PID/stat` counts in
ticks of 10 ms). Memory is VmRSS, file descriptors are counted in `/proc/PID/fd`. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_SECONDS: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class ChildFailed(Exception):
    """A child ended before its time, or did not answer within it."""


def cpu_seconds(pid: int) -> float:
    """User and system time of every thread that the process has or had: the kernel's CPU-time clock of that process."""
    # CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ChildFailed(f"process {pid} has no VmRSS: it has ended")


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def pin_to(cpu: int | None) -> None:
    """Keeps the calling process on one CPU, so that server and load do not push each other around."""
    if cpu is not None and cpu in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {cpu})


class Child:
    """One child process; it dies with this process, however this one ends."""

    def __init__(self, command: Sequence[str], *, cpu: int | None = None, log: Path | None = None, cwd: Path = REPOSITORY) -> None:
        self.command = list(command)
        parent = os.getpid()

        def before_exec() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is ours to handle: children are stopped by process id
            pin_to(cpu)

        self._log = open(log, "wb") if log else None  # noqa: SIM115 - closed by stop()
        self.log_path = log
        self.process = subprocess.Popen(
            self.command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._log or subprocess.PIPE,
            stderr=self._log or subprocess.PIPE,
            preexec_fn=before_exec,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raises when the child has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildFailed(f"{' '.join(self.command)} ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        if self.log_path is None:
            return ""
        return self.log_path.read_text(errors="replace")[-2000:]

    def stop(self, *, timeout: float = STOP_TIMEOUT_SECONDS) -> float:
        """SIGTERM, then SIGKILL after the timeout; gives the seconds it took."""
        started = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._log:
            self._log.close()
        return time.perf_counter() - started


@contextlib.contextmanager
def stopped_at_the_end(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.stop()


def run_module(module: str, arguments: Mapping[str, Any], *, cpu: int | None, timeout: float) -> dict[str, Any]:
    """Runs `python -m module JSON` to its end and gives the JSON object it printed."""
    return collect(start_module(module, arguments, cpu=cpu), timeout=timeout)


def start_module(module: str, arguments: Mapping[str, Any], *, cpu: int | None) -> Child:
    return Child([sys.executable, "-m", module, json.dumps(arguments)], cpu=cpu)


def collect(child: Child, *, timeout: float, end_now: bool = False) -> dict[str, Any]:
    """Waits for a child made by `start_module` and gives what it printed; `end_now` sends it SIGTERM first."""
    try:
        if end_now:
            child.process.terminate()
        output, errors = child.process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"{' '.join(child.command)} took over {timeout:.0f} s") from None
    finally:
        child.stop(timeout=1)
    if child.process.returncode:
        raise ChildFailed(f"{' '.join(child.command)} ended with {child.process.returncode}: {errors.decode()[-2000:]}")
    answer: dict[str, Any] = json.loads(output)
    return answer
