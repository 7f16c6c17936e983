"""Loaded by every broker that lives by libfaketime: its `time.sleep` is one that the library leaves alone.

Python 3.11 sleeps until a point of the monotonic clock, and libfaketime 0.9.10 compares that with the faked wall clock,
so that every sleep fails with EINVAL. `select` sleeps for a while instead of until a time. Only chaos loads this.
"""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex, /) -> None:
    select.select([], [], [], float(seconds))


time.sleep = _sleep
