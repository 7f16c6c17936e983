"""Joins of a stream: with a table, whose rows are as they were when a batch began, and with another stream, within a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def join_table(frame: DataFrame, table: DataFrame, on: Sequence[str], how: Literal["inner", "left"] = "left") -> DataFrame:
    """Each row of a stream with what a table has of it. No state is kept.

    Args:
        table: a frame that is no stream, small enough for every worker to hold all of it.
        on: columns that both have, under one name.
        how: `left` keeps rows of which the table has nothing; `inner` leaves them out.
    """
    from pyspark.sql import functions

    return frame.join(functions.broadcast(table), list(on), how)


def join_streams(
    left: DataFrame, right: DataFrame, on: Sequence[str], *, within: str, late: str = "10 minutes", time: str = "timestamp"
) -> DataFrame:
    """Each row of a stream with the rows of another that came at about the same time: an inner join.

    State of both is kept for as long as a row may still find its other half, which is `within` and `late` together.

    Args:
        on: columns that both have, under one name; the result has them once.
        within: how far apart in time both may be, as `5 minutes`, either way.
        late: how long after its time a row may come.
        time: the column of both that has it; the result has the left one's under that name, and the right one's as `other_<time>`.
    """
    from pyspark.sql import functions

    other = f"other_{time}"
    first = left.withWatermark(time, late).alias("first")
    second = right.withColumnRenamed(time, other).withWatermark(other, late).alias("second")
    condition = functions.expr(f"second.`{other}` between first.`{time}` - interval {within} and first.`{time}` + interval {within}")
    for name in on:
        condition = condition & (functions.col(f"first.{name}") == functions.col(f"second.{name}"))
    joined = first.join(second, condition)
    columns = [f"first.{name}" for name in left.columns]
    return joined.select(*columns, *(f"second.{name}" for name in second.columns if name not in on))
