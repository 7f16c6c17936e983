"""What a client says in a forked child of the test's process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable


def said_in_child(call: Callable[[], object]) -> str:
    """What it gives there, or the error that it raises."""

    def run() -> None:
        try:
            said.put(repr(call()))
        except Exception as error:
            said.put(repr(error))

    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=run)
    child.start()
    try:
        return str(said.get(timeout=120))
    finally:
        child.kill()
        child.join()
