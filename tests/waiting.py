"""Waiting for what nothing announces, in a thread that may block. On an event loop there is `tests.loops.until`."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str = "", seconds: float = 120.0) -> None:
    """Waits until it holds.

    Args:
        what: is waited for, for the failure's text.
        seconds: after which it fails.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it never came to that: {what}"
        time.sleep(0.01)
