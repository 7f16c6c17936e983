"""The process that cleans logs for a broker: `python -m ottla.storage.cleaning_process`, a job a line, an answer a line.

It ends when its input does, and within a buffer's time when its broker has died, so that it never writes into a log directory
that another broker has taken.

Only a broker starts it (`cleaning_runner`), which has it give way to everything else: a broker answers while it cleans.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

from ottla.clock import Clock, SystemClock
from ottla.storage.cleaning import clean
from ottla.storage.cleaning_job import CleaningInterrupted, CleaningJob, StillAtWork, decode, encode, failure_of
from ottla.storage.pace import Pace

SIGN_OF_LIFE_SECONDS: Final = 5.0


def main() -> None:
    """Cleans what it is told to until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then ends this
    serve(sys.stdin.buffer, sys.stdout.buffer, SystemClock(), os.getppid())


def serve(jobs: BinaryIO, answers: BinaryIO, clock: Clock, broker_process_id: int) -> None:
    """Cleans a log for each line of `jobs`."""
    for line in jobs:
        job = decode(line)
        assert isinstance(job, CleaningJob)

        def tell(message: object) -> None:
            answers.write(encode(message))  # type: ignore[arg-type]
            answers.flush()

        try:
            result = clean(job, tell, _progress(job, tell, clock, broker_process_id))
        except Exception as error:  # this process ends with its broker, not with a log that is broken
            tell(failure_of(error))
        else:
            tell(result)


def _progress(job: CleaningJob, tell: Callable[[object], None], clock: Clock, broker_process_id: int) -> Callable[[int], None]:
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
