"""One broker as a process of its own, `ottla broker --config FILE`, through all its lives on the same data and ports.

What it writes to stdout and stderr goes through a pipe into one log file, with a line where each life begins and ends.
A pipe, because a full disk is made by a limit on the size of the broker's files, and its log must not be one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tests.chaos.clocks import FakeClock
from tests.chaos.mortal import mortal

# A broker that starts waits for ZooKeeper, which may restart and be frozen meanwhile, and then for its own former session.
READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0
FREE_LOOKS, FREE_SECONDS = 10, 0.01
REPOSITORY: Final = Path(__file__).resolve().parents[2]


# What it says when it ends for want of a ZooKeeper, as Kafka's does: whoever watches over it starts it again. On a machine that
# is busy enough, ZooKeeper takes longer to start than a broker waits.
NO_ZOOKEEPER: Final = b"(zookeeper.connection.timeout.ms)"
_RESTART_SECONDS: Final = 1.0


class BrokerTrouble(Exception):
    """A broker did what no fault explains: it ended, did not start or did not stop."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a broker listens. They stay the same through all its lives."""

    client: int
    broker: int
    control: int


class BrokerProcess:
    """A broker that can be started, stopped, killed, frozen and starved of disk.

    Args:
        broker_id: its number.
        directory: its properties, its log file and its data.
        ports: where it listens.
        properties: what is not the same for all brokers ever.
        command: what runs `ottla`: `broker --config FILE …` is put after it.
        clock: its wall clock, where it has one of its own.
        ended: is told the exit code when it ends and no one meant it to.
    """

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        ports: Ports,
        properties: Mapping[str, str],
        command: tuple[str, ...] = (sys.executable, "-m", "ottla.cli"),
        clock: FakeClock | None = None,
        ended: Callable[[int, int], None] = lambda broker_id, code: None,
    ) -> None:
        self.broker_id = broker_id
        self.ports = ports
        self.clock = clock
        self.data_directory = directory / "data"
        self.log_file = directory / "broker.log"
        self.may_end = False  # a broker without a disk may give up
        self.restarts = 0  # after ends for want of a ZooKeeper
        self._pid_file = directory / "broker.pid"
        self._command = command
        self._ended = ended
        self._limits: dict[tuple[int, int], tuple[int, int]] = {}  # of a process, as they were before
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_meant_to_end = False
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.ports.client}"

    @property
    def process_id(self) -> int | None:
        """Of its present life."""
        return self._process.pid if self.is_running and self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.returncode is None

    async def launch(self) -> None:
        """Starts the process, unless there is one, and does not wait for it to be ready."""
        if self.is_running:
            return
        self._pid_file.unlink(missing_ok=True)
        self._is_meant_to_end = False
        environment = {**os.environ, **(self.clock.environment if self.clock is not None else {})}
        self._process = await asyncio.create_subprocess_exec(
            *mortal((*self._command, "broker", "--config", str(self._config), "--pid-file", str(self._pid_file))),
            cwd=REPOSITORY,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._watch = asyncio.create_task(self._until_it_ends(self._process))

    async def ready(self) -> None:
        """Waits until it serves.

        Raises:
            BrokerTrouble: it ended, or takes too long.
        """
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not self._pid_file.exists():
            if not self.is_running and (self._watch is None or self._watch.done()):
                raise BrokerTrouble(f"broker {self.broker_id} ended while it started; its log is {self.log_file}")
            if asyncio.get_running_loop().time() > deadline:
                raise BrokerTrouble(f"broker {self.broker_id} was not ready after {READY_SECONDS:g} s; its log is {self.log_file}")
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """As `kill -9`; also of one that is frozen."""
        self._signal(signal.SIGKILL)
        await self._gone()

    async def terminate(self) -> None:
        """Asks it to stop, and waits.

        Raises:
            BrokerTrouble: it takes too long, or ends with an error.
        """
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._gone()
        except TimeoutError:
            await self.kill()
            raise BrokerTrouble(
                f"broker {self.broker_id} had not stopped {STOP_SECONDS:g} s after SIGTERM; its log is {self.log_file}"
            ) from None
        if self._process is not None and self._process.returncode:
            raise BrokerTrouble(f"broker {self.broker_id} ended with {self._process.returncode} after SIGTERM; its log is {self.log_file}")

    def freeze(self) -> None:
        """Not one instruction more until `thaw`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Ends `freeze`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on the kernel lets no file of the broker grow (EFBIG, which Ottla treats as it does ENOSPC)."""
        self._limit(resource.RLIMIT_FSIZE, 0)

    def empty_disk(self) -> None:
        """Ends `fill_disk`."""
        self._limit(resource.RLIMIT_FSIZE, None)

    async def refuse_files(self) -> None:
        """From now on the broker can open nothing more (EMFILE), while the files that it has open can be written to.

        So batches go on into the segments that are open, and nothing that is written by name does: checkpoints, snapshots,
        indexes of rolled segments, the segments that follow.
        """
        free: list[int] = []
        for _ in range(FREE_LOOKS):  # a file that is open at one look alone would leave room for one at a time, for ever
            if (process_id := self.process_id) is None:
                return
            used = {int(path.name) for path in Path(f"/proc/{process_id}/fd").iterdir()}  # noqa: ASYNC240 - it is no disk
            free.append(next(number for number in count() if number not in used))
            await asyncio.sleep(FREE_SECONDS)
        self._limit(resource.RLIMIT_NOFILE, min(free))

    def allow_files(self) -> None:
        """Ends `refuse_files`."""
        self._limit(resource.RLIMIT_NOFILE, None)

    async def close(self) -> None:
        """Ends it by force, if it still runs."""
        self._is_meant_to_end = True
        if self.is_running:
            await self.kill()
        if self._watch is not None:
            await self._watch

    def _limit(self, limited: int, most: int | None) -> None:
        """Sets a limit of the running process, or with None lifts it; a process that starts has those that it was given."""
        if (process_id := self.process_id) is not None:
            before = self._limits.setdefault((process_id, limited), resource.prlimit(process_id, limited))
            resource.prlimit(process_id, limited, before if most is None else (most, before[1]))

    def _signal(self, number: signal.Signals) -> None:
        self._is_meant_to_end = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _gone(self) -> None:
        if self._watch is not None:
            await asyncio.shield(self._watch)

    async def _until_it_ends(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        last_words = b""
        with self.log_file.open("ab", buffering=0) as log:
            log.write(f"--- process {process.pid} starts\n".encode())
            while data := await process.stdout.read(65536):
                log.write(data)
                last_words = (last_words + data)[-len(NO_ZOOKEEPER) - 1 :]
            code = await process.wait()
            log.write(f"--- process {process.pid} ended with {code}\n".encode())
        if self._is_meant_to_end:
            return
        if code and NO_ZOOKEEPER in last_words:
            self.restarts += 1
            await asyncio.sleep(_RESTART_SECONDS)
            if not self._is_meant_to_end:
                await self.launch()
        elif not self.may_end:
            self._ended(self.broker_id, code)
