"""The process that cleans logs for a broker: `python -m ottla.storage.compaction.process PID`, a job a line, an answer a line.

It ends when its input does, and when the broker of that process id dies, so that it never writes into a log directory that
another broker has taken: on Linux at once, elsewhere within a buffer's time.

Only a broker starts it (`runner`), which has it give way to everything else: a broker answers while it cleans.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

from ottla.clock import Clock, SystemClock
from ottla.storage.batches import Progress
from ottla.storage.compaction.clean import clean
from ottla.storage.compaction.job import CleaningInterrupted, CleaningJob, StillAtWork, decode, encode, failure_of
from ottla.storage.opening_process import MEMORY_BYTES

SIGN_OF_LIFE_SECONDS: Final = 5.0
PERIOD_SECONDS: Final = 0.3
_PR_SET_PDEATHSIG: Final = 1  # of Linux's prctl


class Pace:
    """How long to wait so as not to be faster than so many bytes a second. Source: Kafka's `Throttler`.

    Counts over short periods. Seconds are those of a clock that never goes back.
    """

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate: Final = max(bytes_per_second, 1.0)
        self._begin = now
        self._bytes = 0

    def wait_seconds(self, size: int, now: float) -> float:
        """How long to wait after so many bytes more; mostly not at all."""
        self._bytes += size
        elapsed = now - self._begin
        due = self._bytes / self._rate
        if elapsed < PERIOD_SECONDS and due < PERIOD_SECONDS:
            return 0.0
        self._begin = max(now, self._begin + due)
        self._bytes = 0
        return max(due - elapsed, 0.0)


def main() -> None:
    """Cleans log by log until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then ends this
    broker_process_id = int(sys.argv[1])
    _end_with_parent()
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer, SystemClock(), broker_process_id, _limit_memory)
    except BrokenPipeError:
        os._exit(1)  # the broker has died, and no one is left to hear of it


def serve(
    jobs: BinaryIO,
    answers: BinaryIO,
    clock: Clock,
    broker_process_id: int,
    prepare: Callable[[CleaningJob], None] = lambda job: None,
) -> None:
    """Cleans a log for each line of `jobs`, each prepared for."""
    for line in jobs:
        job = decode(line)
        assert isinstance(job, CleaningJob)
        prepare(job)

        def tell(message: object) -> None:
            answers.write(encode(message))  # type: ignore[arg-type]  # one of the messages that it encodes
            answers.flush()

        try:
            result = clean(job, tell, _progress(job, tell, clock, broker_process_id))
        except Exception as error:  # this process ends with its broker, not with a log that is broken
            tell(failure_of(error))
        else:
            tell(result)


def _end_with_parent() -> None:
    """Has the system end this process with the broker, however little of a CPU it gets.

    Between two looks at its parent it could otherwise begin a file minutes later, in the place of the next broker's cleaner.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(job: CleaningJob) -> None:
    """What a batch unpacks to is this process's to pay: beside the map, as much as one that is opened may take."""
    wanted = min(MEMORY_BYTES + job.map_bytes + 4 * job.buffer_bytes, sys.maxsize)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _progress(job: CleaningJob, tell: Callable[[object], None], clock: Clock, broker_process_id: int) -> Progress:
    """What a cleaning calls for each piece that it has read or written."""
    pace = Pace(job.bytes_per_second, clock.monotonic())
    told_at, done = clock.monotonic(), 0

    def progress(size: int) -> None:
        nonlocal told_at, done
        done += size
        if os.getppid() != broker_process_id:
            raise CleaningInterrupted(f"{job.name}: the broker {broker_process_id} has died")
        wait_seconds = pace.wait_seconds(size, clock.monotonic())
        while True:
            now = clock.monotonic()
            if now - told_at >= SIGN_OF_LIFE_SECONDS:
                tell(StillAtWork(done))
                told_at = now
            if wait_seconds <= 0:
                return
            pause = min(wait_seconds, SIGN_OF_LIFE_SECONDS)
            select.select([], [], [], pause)
            wait_seconds -= pause

    return progress


if __name__ == "__main__":
    main()
