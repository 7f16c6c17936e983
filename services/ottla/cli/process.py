"""Brokers as this process: from settings to a clean stop, with the errors a person meets at start told as sentences.

Shared by `ottla dev` and `ottla broker`. The pid file is written when the broker answers, so that whoever waits for the
file waits for the broker. Its first line is the process id, its second the address.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.cli.errors import CommandFailed

if TYPE_CHECKING:
    from ottla.config.broker import BrokerSettings
    from ottla.model import BrokerId

log = logging.getLogger(__name__)

_IMPORTED_AT = time.monotonic()


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a pid file says."""

    process_id: int
    bootstrap_servers: str

    @classmethod
    def read(cls, path: Path) -> PidFile | None:
        """The file's two lines, or None when it is not there or not (yet) one of ours."""
        try:
            process_id, bootstrap_servers, *_ = path.read_text(encoding="utf-8").splitlines()
            return cls(int(process_id), bootstrap_servers)
        except (FileNotFoundError, ValueError):
            return None

    def write(self, path: Path) -> None:
        """Replaces the file in one step: a reader sees all of it or none."""
        unfinished = path.with_name(f"{path.name}.{self.process_id}")
        unfinished.write_text(f"{self.process_id}\n{self.bootstrap_servers}\n", encoding="utf-8")
        unfinished.replace(path)

    def is_alive(self) -> bool:
        """Whether a process of that id runs."""
        try:
            os.kill(self.process_id, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def seconds_since_start() -> float:
    """The age of this process: what a person who pressed return has waited.

    Linux tells it to a hundredth of a second; elsewhere the time since this module was imported has to do.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED_AT


def serve(settings: BrokerSettings, when_ready: Callable[[str], None], pid_file: Path | None) -> None:
    """Runs a broker until SIGINT or SIGTERM; `when_ready` is told the address as soon as it answers."""
    from ottla.broker.server import Broker

    broker = Broker(settings)
    _serve(broker, lambda: broker.bootstrap_servers, when_ready, pid_file)


def serve_several(
    settings: Mapping[BrokerId, BrokerSettings], coordination_directory: Path, when_ready: Callable[[str], None], pid_file: Path | None
) -> None:
    """Runs the brokers of one cluster, as `serve` runs one."""
    from ottla.broker.in_process import InProcessBrokers

    brokers = InProcessBrokers(settings, settings.__getitem__, coordination_directory)
    _serve(brokers, lambda: ",".join(each.bootstrap_servers for each in brokers.running.values()), when_ready, pid_file)


class Served(Protocol):
    """What runs here: a broker, or several."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def failed(self) -> str: ...
    def warn_of_missing_brokers(self) -> None: ...


def _serve(served: Served, bootstrap_servers: Callable[[], str], when_ready: Callable[[str], None], pid_file: Path | None) -> None:
    def ready() -> None:
        if pid_file is not None:
            PidFile(os.getpid(), bootstrap_servers()).write(pid_file)
        when_ready(bootstrap_servers())

    try:
        asyncio.run(_run(served, ready))
    finally:
        # Not when this broker could not start because another one, whose file it is, has the port.
        if pid_file is not None and (written := PidFile.read(pid_file)) is not None and written.process_id == os.getpid():
            pid_file.unlink(missing_ok=True)


async def _run(served: Served, ready: Callable[[], None]) -> None:
    from ottla.lifecycle import until_stopped

    # Before the start: a signal that comes while the broker starts stops it as soon as it can be stopped cleanly.
    stopped = asyncio.ensure_future(until_stopped())
    await asyncio.sleep(0)
    try:
        await served.start()
    except OSError as error:
        raise CommandFailed(f"the broker can not start: {error}") from error
    try:
        ready()
        served.warn_of_missing_brokers()
        failed = asyncio.ensure_future(served.failed())
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            raise CommandFailed(f"the broker stops, every log directory has failed: {failed.result()}")
        failed.cancel()
        log.info("%s: stopping", stopped.result())
    finally:
        await served.stop()
