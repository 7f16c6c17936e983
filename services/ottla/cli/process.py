"""Services as this process: from settings to a clean stop, with the errors that a person meets at start as sentences.

Shared by every command that runs a service. The pid file is written when the service answers, so that a program which waits for the
file waits for the service. Its first line is the process id, its second the address.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from ottla.cli.errors import CommandFailed, OutputFailed, UsageError
from ottla.cli.output import say
from ottla.errors import reason_of

if TYPE_CHECKING:
    from ottla.config.broker import BrokerSettings
    from ottla.config.reading import ServiceSettings
    from ottla.model import BrokerId

log = logging.getLogger(__name__)

S = TypeVar("S", bound="ServiceSettings")

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
        except (OSError, ValueError):
            return None

    def write(self, path: Path) -> None:
        """Replaces the file in one step: a reader sees all of it or none. Raises CommandFailed."""
        unfinished = path.parent / f"{path.name}.{self.process_id}"
        try:
            unfinished.write_text(f"{self.process_id}\n{self.bootstrap_servers}\n", encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise CommandFailed(f"--pid-file {path} cannot be written: {error.strerror}") from error

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


def announce(logger: logging.Logger, sentence: str, log_format: str) -> None:
    """Says that a service answers, and after how long: on stdout, or in its log where that is JSON and nothing else is to be seen."""
    sentence = f"{sentence} ({seconds_since_start():.2f} s)"
    if log_format == "json":
        logger.info("%s", sentence)
        return
    try:
        say(sentence)
        sys.stdout.flush()
    except OutputFailed as error:  # no reason to stop a service
        logger.warning("%s (%s)", sentence, error)


def settings_of(service: type[S], command: str, config: Path | None, environment: Mapping[str, str], overrides: Mapping[str, str]) -> S:
    """The settings of a service: those of the file, over them the environment's, over them those of the command line.

    Args:
        service: the class of its settings.
        command: which command runs it.
        config: its properties file.

    Raises:
        UsageError: nothing says what to run.
        ConfigurationError: something is wrong; names the file and line, the variable or the option.
    """
    from ottla.config.environment import PREFIX, Placed, from_environment, layered
    from ottla.config.providers import load

    file = None if config is None else load(config)
    variables = from_environment(service, environment, file)
    if config is None and not variables:
        raise UsageError(
            f"say with which properties to run `ottla {command}`: --config FILE, or variables {PREFIX}… (`ottla {command} --help` has more)"
        )
    layers = [variables, Placed(overrides, dict.fromkeys(overrides, "--override"), "--override")]
    return service.from_properties(layered(service, layers if file is None else [file, *layers]))


# Called with the address as soon as a service answers there.
WhenReady: TypeAlias = Callable[[str], None]


def serve(settings: BrokerSettings, when_ready: WhenReady, pid_file: Path | None) -> None:
    """Runs a broker until SIGINT, SIGTERM or SIGHUP; `when_ready` gets the address as soon as it answers."""
    from ottla.broker.server import Broker

    broker = Broker(settings)

    def ready(bootstrap_servers: str) -> None:
        when_ready(bootstrap_servers)
        broker.warn_of_missing_brokers()

    serve_service("broker", broker, lambda: broker.bootstrap_servers, ready, pid_file)


def serve_several(
    settings: Mapping[BrokerId, BrokerSettings], coordination_directory: Path, when_ready: WhenReady, pid_file: Path | None
) -> None:
    """Runs the brokers of one cluster, as `serve` runs one."""
    from ottla.broker.in_process import InProcessBrokers

    brokers = InProcessBrokers(settings, settings.__getitem__, coordination_directory)

    def ready(bootstrap_servers: str) -> None:
        when_ready(bootstrap_servers)
        brokers.warn_of_missing_brokers()

    serve_service("broker", brokers, lambda: ",".join(broker.bootstrap_servers for broker in brokers.running.values()), ready, pid_file)


class Served(Protocol):
    """What runs here: a service, or several brokers."""

    async def start(self) -> None:
        """Starts, or raises and leaves nothing behind."""

    async def stop(self) -> None:
        """Stops cleanly."""

    async def failed(self) -> str:
        """Waits until it cannot continue, and says why."""


# What a service writes is its own: messages, offsets, its coordination. Directories are 0700, files 0600.
PRIVATE: Final = 0o077


def serve_service(name: str, served: Served, address: Callable[[], str], when_ready: WhenReady, pid_file: Path | None = None) -> None:
    """Runs a service until SIGINT, SIGTERM or SIGHUP.

    Args:
        name: of the service, as its log lines say it.
        address: where it answers, once it has started.
        when_ready: called with the address as soon as it answers.
        pid_file: written then.

    Raises:
        CommandFailed: it could not start, or could not continue.
    """
    from ottla.lifecycle import speaking_as

    os.umask(PRIVATE)
    _open_all_that_is_allowed()
    try:
        with speaking_as(name):
            asyncio.run(_run(name, served, address, when_ready, pid_file))
    finally:
        # Not when this service could not start because another one, whose file it is, has the port.
        if pid_file is not None and (written := PidFile.read(pid_file)) is not None and written.process_id == os.getpid():
            pid_file.unlink(missing_ok=True)


def _open_all_that_is_allowed() -> None:
    """Raises the limit of open files to the hard one, as a JVM does for Kafka: the soft one, often 1,024, is for users of select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS says that there is no limit, and does not take that
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(name: str, served: Served, address: Callable[[], str], when_ready: WhenReady, pid_file: Path | None) -> None:
    from ottla.lifecycle import until_stopped

    # Before the start, which may read logs for hours: a signal gives it up.
    stopped = asyncio.ensure_future(until_stopped())
    await asyncio.sleep(0)
    starting = asyncio.ensure_future(served.start())
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("%s: stopping; it has not started completely", stopped.result())
            starting.cancel()
            await asyncio.wait([starting])
            if starting.cancelled():
                return
        starting.result()
    except OSError as error:
        raise CommandFailed(f"the {name} cannot start: {reason_of(error)}") from error
    except asyncio.CancelledError:
        _say_no_more()
        raise
    try:
        # What is there by now, mostly code, stays: no full collection looks through it again.
        gc.freeze()
        if pid_file is not None:
            PidFile(os.getpid(), address()).write(pid_file)
        when_ready(address())
        failed = asyncio.ensure_future(served.failed())
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            raise CommandFailed(f"the {name} stops: {failed.result()}")
        failed.cancel()
        log.info("%s: stopping", stopped.result())
    finally:
        try:
            await served.stop()
        except asyncio.CancelledError:
            _say_no_more()
            raise


def _say_no_more() -> None:
    """Ctrl-C again cuts a clean end short: how the tasks of the loop end then is worth no traceback."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
