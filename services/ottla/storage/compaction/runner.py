"""Where cleanings run: outside the event loop, in a process of their own or, for tests and the simulation, in an `Offload`.

A cleaning is ended by cancelling `run`: the process is killed, for nothing that it has begun is needed. Then the next cleaning
gets a new one. A process waits for the next job when it is done, and goes when the pipe to it is closed.

The process is a `ChildProcess` with the module `process`, and jobs go to it as lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final, Protocol

from ottla.lifecycle import LOWEST_PRIORITY, ChildProcess, Offload
from ottla.storage.compaction.clean import SegmentCleaned, clean
from ottla.storage.compaction.job import (
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

MODULE: Final = "ottla.storage.compaction.process"
# A process that works says so every few seconds; a disk may keep it for longer.
SILENCE_SECONDS: Final = 300.0


class CleaningRunner(Protocol):
    """Runs cleanings, as many at a time as it is asked to."""

    async def run(self, job: CleaningJob, done: SegmentCleaned) -> CleaningResult:
        """Cleans a log.

        Args:
            job: which, and how.
            done: called with each cleaned segment, on the loop; what it raises ends the cleaning.

        Raises:
            OffsetMapTooSmall: not even one batch's keys fit into the map.
            CorruptLog: the log cannot be cleaned.
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

    async def run(self, job: CleaningJob, done: SegmentCleaned) -> CleaningResult:
        cleaned: list[CleanedSegment] = []
        try:
            result = await self._offload(clean, job, cleaned.append, lambda size: None)
        except OSError as error:
            raise CleaningInterrupted(f"{job.name}: {error}") from error
        for segment in cleaned:
            done(segment)
        return result

    async def close(self) -> None:
        """Nothing outlives a run."""


class ProcessRunner:
    """Runs each cleaning in a process, which is started when there is none that waits.

    Args:
        silence_seconds: a process that says nothing for so long is taken for dead. The next ones have the lowest priority, and do
            not give way altogether.
    """

    def __init__(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds: Final = silence_seconds
        self._was_silent = False
        self._waiting: list[ChildProcess] = []
        self._working: set[ChildProcess] = set()

    async def run(self, job: CleaningJob, done: SegmentCleaned) -> CleaningResult:
        process = await self._take()
        self._working.add(process)
        try:
            result = await self._talk(process, job, done)
        except BaseException:
            await process.kill()
            raise
        finally:
            self._working.discard(process)
        if isinstance(result, CleaningFailed):
            await process.kill()
            raise error_of(result)
        self._waiting.append(process)
        return result

    @property
    def process_ids(self) -> list[int]:
        """The processes there are, at work or not."""
        return [worker.process_id for worker in (*self._waiting, *self._working)]

    async def close(self) -> None:
        processes = [*self._waiting, *self._working]
        self._waiting.clear()
        for process in processes:
            await process.kill()

    async def _take(self) -> ChildProcess:
        while self._waiting:
            process = self._waiting.pop()
            if process.exit_code is None:
                return process
            log.warning("cleaner process %d ended with exit code %d, starting another", process.process_id, process.exit_code)
        try:
            # To the one that said nothing a full machine may have left nothing of its CPUs, and would leave nothing to the next.
            gives_way = not self._was_silent
            process = await ChildProcess.start(MODULE, str(os.getpid()), gives_way=gives_way, niceness=LOWEST_PRIORITY)
        except OSError as error:
            raise CleaningInterrupted(f"no process to clean in: {error}") from error
        log.info("cleaner process %d has started", process.process_id)
        return process

    async def _talk(self, process: ChildProcess, job: CleaningJob, done: SegmentCleaned) -> CleaningResult | CleaningFailed:
        try:
            async with asyncio.timeout(self._silence_seconds):
                await process.write(encode(job))
            while True:
                async with asyncio.timeout(self._silence_seconds):
                    line = await process.read()
                if not line:
                    raise CleaningInterrupted(f"{job.name}: the cleaner's process {process.process_id} has died")
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
            self._was_silent = True
            raise CleaningInterrupted(
                f"{job.name}: the cleaner's process {process.process_id} has said nothing for {self._silence_seconds:g} s"
            ) from None
        except (OSError, ValueError) as error:  # a pipe that is broken, a line that does not end
            raise CleaningInterrupted(f"{job.name}: the cleaner's process {process.process_id} does not listen: {error}") from error
