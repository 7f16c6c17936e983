"""The clients of a run: starting them, hearing how they fare, ending them and collecting what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.chaos.brokers import REPOSITORY
from tests.chaos.cluster import BROKER_IDS, PARTITIONS, TOPIC
from tests.chaos.connecting import Connecting, gaps
from tests.chaos.consuming import Consuming
from tests.chaos.history import History
from tests.chaos.mortal import mortal
from tests.chaos.producing import Producing
from tests.chaos.recreating import Recreating
from tests.chaos.transactional_clients import Transacting

PRODUCERS: Final = 2
CONSUMERS: Final = 2
CONNECTORS: Final = 2  # of one group
# Java's default: faults end before that. With less, messages time out, which is a case of its own and the first producer's.
_MESSAGE_TIMEOUTS_MS: Final = (120_000, 30_000)
# A producer waits for its last message, as long as one may take, and writes its history.
_STOP_SECONDS: Final = 180.0
_TO_THE_END_SECONDS: Final = 400.0
_FINAL_READER: Final = 99
_FIRST_CONNECTOR: Final = 50  # workers have numbers of their own


class WorkloadFailed(Exception):
    """A client ended early, would not end, or could not read everything; says which and where its log is."""


class Client:
    """One client process."""

    def __init__(
        self, name: str, module: str, told: Producing | Consuming | Connecting | Transacting | Recreating, directory: Path
    ) -> None:
        self.name = name
        self.history_file = Path(told.history_file)
        self.report: dict[str, Any] = {}
        self._module = module
        self._told = told
        self._log_file = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it; librdkafka's own words go to a file."""
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *mortal((sys.executable, "-m", self._module, json.dumps(asdict(self._told)))),
                cwd=REPOSITORY,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._reports = asyncio.create_task(self._listen(self._process))

    def check(self) -> None:
        """Raises when it has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise WorkloadFailed(f"{self.name} ended with {self._process.returncode}; its log is {self._log_file}")

    async def end(self, seconds: float = _STOP_SECONDS, by_itself: bool = False) -> None:
        """Waits until it has written its history; asks it to end, unless it does so by itself."""
        assert self._process is not None
        if not by_itself:
            self.check()
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._reports)  # `close` waits for it too
                code = await self._process.wait()
        except TimeoutError:
            raise WorkloadFailed(f"{self.name} did not end within {seconds:g} s; its log is {self._log_file}") from None
        if code:
            raise WorkloadFailed(f"{self.name} ended with {code}: {self.report}; its log is {self._log_file}")

    async def close(self) -> None:
        """Ends it by force, if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            await self._reports

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.report = json.loads(line)


class Workload:
    """All clients of a run.

    Args:
        bootstrap_servers: where the cluster is.
        zookeeper: where it meets, with its chroot.
        directory: for histories and logs.
        seed: the run's.
        messages_per_second: of all producers together.
        began_at: the run's begin, by the monotonic clock.
        messages_per_batch: at most so many.
        is_audited: producers report to the audit, and the reader that reads all in the end.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        zookeeper: str,
        directory: Path,
        seed: int,
        messages_per_second: float,
        began_at: float,
        messages_per_batch: int = 10_000,
        is_audited: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._producers: list[Client] = []
        self._consumers: list[Client] = []
        for worker in range(1, PRODUCERS + 1):
            file = str(directory / f"producer-{worker}.history")
            seed_here = f"{seed}/producer/{worker}"
            rate = messages_per_second / PRODUCERS
            producing = Producing(
                worker,
                bootstrap_servers,
                TOPIC,
                PARTITIONS,
                rate,
                seed_here,
                began_at,
                file,
                messages_per_batch,
                _MESSAGE_TIMEOUTS_MS[worker % len(_MESSAGE_TIMEOUTS_MS)],
                is_audited,
            )
            self._producers.append(Client(f"producer-{worker}", "tests.chaos.producing", producing, directory))
        for worker in range(1, CONSUMERS + 1):
            file = str(directory / f"consumer-{worker}.history")
            # All but the first read from a replica near them, where brokers choose one.
            rack = f"rack-{BROKER_IDS[worker % len(BROKER_IDS)]}" if worker > 1 else ""
            seed_here = f"{seed}/consumer/{worker}"
            consuming = Consuming(worker, bootstrap_servers, TOPIC, PARTITIONS, seed_here, began_at, file, rack=rack)
            self._consumers.append(Client(f"consumer-{worker}", "tests.chaos.consuming", consuming, directory))
        self._connectors = []
        for worker in range(_FIRST_CONNECTOR, _FIRST_CONNECTOR + CONNECTORS):
            name = f"connector-{worker}"
            connecting = Connecting(worker, zookeeper, TOPIC, f"{seed}/{name}", began_at, str(directory / f"{name}.history"))
            self._connectors.append(Client(name, "tests.chaos.connecting", connecting, directory))
        file = str(directory / "final.history")
        final = Consuming(
            _FINAL_READER, bootstrap_servers, TOPIC, PARTITIONS, "", began_at, file, reads_to_the_end=True, is_audited=is_audited
        )
        self._final = Client("final-reader", "tests.chaos.consuming", final, directory)

    async def start(self) -> None:
        """Starts producers and consumers."""
        for client in (*self._producers, *self._consumers, *self._connectors):
            await client.start()

    def check(self) -> None:
        """Raises when one has ended early."""
        for client in (*self._producers, *self._consumers, *self._connectors):
            client.check()

    @property
    def acknowledged(self) -> int:
        """Messages that were acknowledged until a second ago."""
        return sum(producer.report.get("acknowledged", 0) for producer in self._producers)

    @property
    def reports(self) -> dict[str, dict[str, Any]]:
        """What each client last said of itself."""
        return {client.name: client.report for client in (*self._producers, *self._consumers, *self._connectors, self._final)}

    async def finish(self) -> tuple[History, list[str]]:
        """Ends the producers, then the consumers, reads everything once more, and gives what all of them saw, and what the group lost.

        Raises:
            WorkloadFailed: one of them could not do its part.
        """
        async with asyncio.TaskGroup() as group:
            for producer in self._producers:
                group.create_task(producer.end())
        for client in (*self._consumers, *self._connectors):
            await client.end()
        await self._final.start()
        await self._final.end(_TO_THE_END_SECONDS, by_itself=True)
        history, of_the_group, final = History(), History(), History()
        for client in (*self._producers, *self._consumers, *self._connectors, self._final):
            await asyncio.to_thread(history.load, client.history_file)
        for connector in self._connectors:
            await asyncio.to_thread(of_the_group.load, connector.history_file)
        await asyncio.to_thread(final.load, self._final.history_file)
        return history, await asyncio.to_thread(gaps, of_the_group.polls, final.polls)

    async def close(self) -> None:
        """Ends by force whatever still runs."""
        for client in (*self._producers, *self._consumers, *self._connectors, self._final):
            await client.close()
