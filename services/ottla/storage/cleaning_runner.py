"""Where cleanings run: beside the event loop, in a process of their own or, for tests and the simulation, in an `Offload`.

A cleaning is ended by cancelling `run`: the process is killed, for nothing that it has begun is needed. Then the next cleaning
gets a new one. A process waits for the next job when it is done, and goes when the pipe to it is closed.

The process is this Python with one module (`cleaning_process`), and jobs go to it as lines: no fork of a broker with its
threads, and no second run of whatever program the broker is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import ottla
from ottla.lifecycle import Offload
from ottla.storage.cleaning import clean
from ottla.storage.cleaning_job import (
    CleanedSegment,
    CleaningFailed,
    CleaningInterrupted,
    CleaningJob,
    CleaningResult,
    StillAtWork,
    decode,
    encode,
    error_of,
)

log = logging.getLogger(__name__)

MODULE: Final = "ottla.storage.cleaning_process"
# A process that works says so every few seconds; a disk may keep it for longer.
SILENCE_SECONDS: Final = 300.0
EXIT_SECONDS: Final = 5.0
LOWEST_PRIORITY: Final = 19


class CleaningRunner(Protocol):
    """Runs cleanings, as many at a time as it is asked to."""

    async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
        """Cleans a log.

        Args:
            job: which, and how.
            done: told each cleaned segment, on the loop; what it raises ends the cleaning.

        Raises:
            OffsetMapTooSmall: not even one segment's keys fit into the map.
            CorruptLog: the log can not be cleaned.
            CleaningInterrupted: this time it did not end.
        """
        ...

    async def close(self) -> None:
        """Ends everything."""
        ...


class InlineRunner:
    """Runs cleanings by an `Offload`."""

    def __init__(self, offload: Offload) -> None:
        self._offload: Final = offload

    async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
        cleaned: list[CleanedSegment] = []
        try:
            result = await self._offload(clean, job, cleaned.append, _go_on)
        except OSError as error:
            raise CleaningInterrupted(f"{job.name}: {error}") from error
        for each in cleaned:
            done(each)
        return result

    async def close(self) -> None:
        """Nothing outlives a run."""


def _go_on(size: int) -> None:
    """Nobody is waiting for what is beside."""


class ProcessRunner:
    """Runs each cleaning in a process, which is started when there is none that waits.

    Args:
        silence_seconds: a process that says nothing for so long is taken for dead.
    """

    def __init__(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds: Final = silence_seconds
        self._waiting: list[asyncio.subprocess.Process] = []
        self._working: set[asyncio.subprocess.Process] = set()

    async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
        process = await self._take()
        self._working.add(process)
        try:
            result = await self._talk(process, job, done)
        except BaseException:
            await _kill(process)
            raise
        finally:
            self._working.discard(process)
        if isinstance(result, CleaningFailed):
            await _kill(process)
            raise error_of(result)
        self._waiting.append(process)
        return result

    @property
    def process_ids(self) -> list[int]:
        """The processes there are, at work or not."""
        return [each.pid for each in (*self._waiting, *self._working)]

    async def close(self) -> None:
        processes = [*self._waiting, *self._working]
        self._waiting.clear()
        for each in processes:
            await _kill(each)

    async def _take(self) -> asyncio.subprocess.Process:
        while self._waiting:
            process = self._waiting.pop()
            if process.returncode is None:
                return process
            log.warning("the cleaner's process %d has gone, exit code %d; another is started", process.pid, process.returncode)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=_environment()
            )
        except OSError as error:
            raise CleaningInterrupted(f"no process to clean in: {error}") from error
        _let_give_way(process.pid)
        log.info("the cleaner's process %d has started", process.pid)
        return process

    async def _talk(
        self, process: asyncio.subprocess.Process, job: CleaningJob, done: Callable[[CleanedSegment], None]
    ) -> CleaningResult | CleaningFailed:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._silence_seconds):
                process.stdin.write(encode(job))
                await process.stdin.drain()
            while True:
                async with asyncio.timeout(self._silence_seconds):
                    line = await process.stdout.readline()
                if not line:
                    raise CleaningInterrupted(f"{job.name}: the cleaner's process {process.pid} has died")
                match decode(line):
                    case CleanedSegment() as cleaned:
                        done(cleaned)
                    case CleaningResult() | CleaningFailed() as result:
                        return result
                    case StillAtWork() as sign:
                        log.debug("%s: %d bytes read so far", job.name, sign.bytes_read)
                    case other:
                        raise CleaningInterrupted(f"{job.name}: {type(other).__name__} is nothing that a cleaner says")
        except TimeoutError:
            raise CleaningInterrupted(
                f"{job.name}: the cleaner's process {process.pid} has said nothing for {self._silence_seconds:g} s"
            ) from None
        except (OSError, ValueError) as error:  # a pipe that is broken, a line that does not end
            raise CleaningInterrupted(f"{job.name}: the cleaner's process {process.pid} does not listen: {error}") from error


def _let_give_way(process_id: int) -> None:
    """Whoever else wants the CPU has it at once. Said from here, so that it holds while the process still imports its modules.

    Linux has a policy for that; a low priority alone still takes turns of milliseconds. Where neither may be said it is not.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process_id, LOWEST_PRIORITY)
        if sys.platform == "linux":
            os.sched_setscheduler(process_id, os.SCHED_IDLE, os.sched_param(0))


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a process, and waits until it has gone: until then it may write."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(EXIT_SECONDS):
            await process.wait()
    except TimeoutError:
        log.error("the cleaner's process %d was killed and has not gone", process.pid)


def _environment() -> dict[str, str]:
    """The broker's own, with the place that this package was imported from first."""
    package = str(Path(ottla.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
