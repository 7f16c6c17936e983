"""Runs in the process of a broker that is attacked: how much the broker works while a question waits.

The machine that attacks run on may be busy with something else, and time on a clock says little then. So nothing here is measured by
a clock: a thread asks the event loop for its turn every few milliseconds, and counts the CPU time of the whole process until it
comes. On a machine with nothing else to do that is how long a client has to wait. A loop that is held shows, and so do threads that
take the interpreter's lock from it.

`python -m tests.security.watch FILE dev …` is `ottla dev …`; FILE has the longest wait, as eight bytes, and whoever reads it may write
zero into it.
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
SECONDS: Final = struct.Struct("<d")


def map_of(path: Path) -> mmap.mmap:
    """The file, which broker and attacker see both."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), SECONDS.size)


@contextmanager
def watching(loop: asyncio.AbstractEventLoop, longest: mmap.mmap) -> Iterator[None]:
    """Notes how long the loop's turn is waited for, while it runs."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(loop, longest, over), name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()


def _watch(loop: asyncio.AbstractEventLoop, longest: mmap.mmap, over: threading.Event) -> None:
    came = threading.Event()
    asked = 0.0

    def turn() -> None:
        waited = time.process_time() - asked
        if waited > SECONDS.unpack_from(longest)[0]:
            SECONDS.pack_into(longest, 0, waited)
        came.set()

    while not over.wait(EVERY_SECONDS):
        came.clear()
        asked = time.process_time()
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

    ottla()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
