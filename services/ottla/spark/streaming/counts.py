"""Counts over time: windows that stand side by side or overlap, and sessions that end when nothing comes for a while.

A window is given once, when the watermark has passed its end: what comes later than `late` is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def windowed_counts(
    frame: DataFrame, by: Sequence[str] = (), *, width: str, slide: str | None = None, late: str = "10 minutes", time: str = "timestamp"
) -> DataFrame:
    """How many rows each window has, by some columns: `start`, `end`, those columns, `count`.

    Args:
        by: columns; without any, all rows of a window are counted together.
        width: of a window, as `1 hour`. Windows begin at multiples of it since 1970, in UTC.
        slide: how far apart windows begin: less than `width`, and they overlap. None: `width`, so they stand side by side.
        late: how long after its time a row may come.
        time: the column that has it.
    """
    from pyspark.sql import functions

    return _counts(frame, functions.window(time, width, slide), by, late, time)


def session_counts(frame: DataFrame, by: Sequence[str], *, gap: str, late: str = "10 minutes", time: str = "timestamp") -> DataFrame:
    """How many rows each session has, by some columns: `start`, `end`, those columns, `count`.

    Args:
        by: whose session it is; one column at least.
        gap: a session ends when nothing comes for so long; `end` is that long after its last row.
        late, time: as `windowed_counts`.
    """
    from pyspark.sql import functions

    return _counts(frame, functions.session_window(time, gap), by, late, time)


def _counts(frame: DataFrame, window: Column, by: Sequence[str], late: str, time: str) -> DataFrame:
    counted = frame.withWatermark(time, late).groupBy(window.alias("window"), *by).count()
    return counted.select("window.start", "window.end", *by, "count")
