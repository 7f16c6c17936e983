"""The process that opens batches for a broker: `python -m ottla.storage.opening_process`, a job a line and its batch behind it.

    broker                                             this process
      {"size": …, "open": {…}} and the batch  ───────►
                                              ◄───────   {"opened": {…}, "size": …} and the batch as it is to be stored
      {"size": …, "first": [timestamp, offset]} …
                                              ◄───────   {"first": [timestamp, offset] or null, "size": 0}
                                              ◄───────   {"error": …, "message": …, "size": 0}

It has bounds of memory and of CPU time, so that what a batch unpacks to is never the broker's to pay, and ends when its input does.

Only a broker starts it (`batch_opener`). It opens no file and no socket.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from dataclasses import asdict
from types import FrameType
from typing import Any, BinaryIO, Final

from ottla.errors import ApiError
from ottla.record.opening import OpeningLimits, StoredAs, first_at_or_after, opened

# Twice what a batch may unpack to, its records as objects, and Python itself.
MEMORY_BYTES: Final = 1024 * 1024 * 1024
# Of CPU time: a machine that has much else to do finds no batch too large for that. A million records take a few seconds.
CPU_SECONDS: Final = 20.0
TOO_LARGE: Final = "DecompressedTooLarge"


class TooLong(Exception):
    """A batch that has taken its time."""


def main() -> None:
    """Opens what it is given until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then ends this
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _too_long)
    serve(sys.stdin.buffer, sys.stdout.buffer)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answers each job."""
    while line := jobs.readline():
        job = json.loads(line)
        batch = jobs.read(job["size"])
        answer, data = _answer(job, batch)
        answers.write(json.dumps(answer | {"size": len(data)}).encode() + b"\n" + data)
        answers.flush()


def _answer(job: dict[str, Any], batch: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        if "first" in job:
            timestamp, start_offset = job["first"]
            return {"first": first_at_or_after(batch, timestamp, start_offset, OpeningLimits())}, b""
        result = opened(batch, StoredAs(**job["open"]), OpeningLimits())
    except ApiError as error:
        return {"error": type(error).__name__, "message": error.message}, b""
    except MemoryError:
        return {"error": TOO_LARGE, "message": f"a batch of {len(batch)} bytes takes more than {MEMORY_BYTES} bytes to open"}, b""
    except TooLong:
        return {"error": TOO_LARGE, "message": f"a batch of {len(batch)} bytes takes more than {CPU_SECONDS:.0f} s to open"}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    told = asdict(result)
    return {"opened": {name: value for name, value in told.items() if name != "batch"}}, result.batch


if __name__ == "__main__":
    main()
