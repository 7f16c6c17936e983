"""Runs in the process of a broker that is attacked: how much the broker works while a question waits.

The machine that attacks run on may be busy with something else, and time on a clock says little then. So nothing here is measured by
a clock: a thread asks the event loop for its turn every few milliseconds, and counts the CPU time until it comes: of the whole
process, and of the loop's thread. On a machine with nothing else to do the former is how long a client has to wait: a loop that is
held shows, and so do threads that take the interpreter's lock from it. The latter is what the loop did itself. On a busy machine the
thread that asks may stand still before its question is there, and the loop turns meanwhile: then nothing was waited for.

`python -m tests.security.watch FILE dev …` is `ottla dev …`; FILE has the longest waits, of process and loop, and whoever reads it may
write zeros into it.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

EVERY_SECONDS: Final = 0.005
SECONDS: Final = struct.Struct("<dd")
# The thread that computes handshakes gives way to everything else, and on a busy machine sixty take longer than one may last.
HANDSHAKE_SECONDS: Final = 600.0


def map_of(path: Path) -> mmap.mmap:
    """The file, which broker and attacker see both."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), SECONDS.size)


@contextmanager
def watching(loop: asyncio.AbstractEventLoop, longest: mmap.mmap) -> Iterator[None]:
    """Notes how long the loop's turn is waited for, while it runs."""
    over = threading.Event()
    clock = time.pthread_getcpuclockid(threading.get_ident())
    turns = [0]
    run_once = loop._run_once  # type: ignore[attr-defined]

    def counted() -> None:
        turns[0] += 1
        run_once()

    loop._run_once = counted  # type: ignore[attr-defined]
    watcher = threading.Thread(target=_watch, args=(loop, clock, longest, over, turns), name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _watch(loop: asyncio.AbstractEventLoop, clock: int, longest: mmap.mmap, over: threading.Event, turns: list[int]) -> None:
    came = threading.Event()
    asked = (0.0, 0.0)
    asked_in = 0

    def turn() -> None:
        if turns[0] <= asked_in + 1:
            in_process, of_loop = SECONDS.unpack_from(longest)
            waited = time.process_time() - asked[0], time.clock_gettime(clock) - asked[1]
            SECONDS.pack_into(longest, 0, max(in_process, waited[0]), max(of_loop, waited[1]))
        came.set()

    while not over.wait(EVERY_SECONDS):
        came.clear()
        asked_in = turns[0]
        asked = time.process_time(), time.clock_gettime(clock)
        try:
            loop.call_soon_threadsafe(turn)
        except RuntimeError:  # it is closed
            return
        came.wait()


def main(file: str, arguments: list[str]) -> None:
    """Runs the command with a watch over its event loop."""
    longest = map_of(Path(file))
    run_forever = asyncio.BaseEventLoop.run_forever

    def watched(loop: Any) -> None:
        with watching(loop, longest):
            run_forever(loop)

    asyncio.BaseEventLoop.run_forever = watched  # type: ignore[method-assign, assignment]
    sys.argv[1:] = arguments
    from ottla.cli.main import main as ottla
    from ottla.network import tls

    tls.TLS_HANDSHAKE_SECONDS = HANDSHAKE_SECONDS  # type: ignore[misc]
    ottla()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
