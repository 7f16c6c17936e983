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
        on: columns that both have, under one name; the result has them once. Of others that both have, those of the right one are
            `other_<name>`.
        within: how far apart in time both may be, as `5 minutes`, either way.
        late: how long after its time a row may come.
        time: the column of both that has it; the result has the left one's under that name, and the right one's as `other_<time>`.
    """
    from pyspark.sql import functions

    shared, of_left, of_right = ([name.lower() for name in names] for names in (on, left.columns, right.columns))
    taken, names = {*of_left, *of_right}, []
    for name in right.columns:
        new = name
        while new.lower() in taken and name.lower() in of_left and name.lower() not in shared:
            new = f"other_{new}"
        taken.add(new.lower())
        names.append(new)
    other = names[of_right.index(time.lower())]
    first = left.withWatermark(time, late).alias("first")
    second = right.toDF(*names).withWatermark(other, late).alias("second")
    condition = functions.expr(f"second.`{other}` between first.`{time}` - interval {within} and first.`{time}` + interval {within}")
    for name in on:
        condition = condition & (functions.col(_of("first", name)) == functions.col(_of("second", name)))
    columns = [_of("first", name) for name in left.columns]
    columns += [_of("second", name) for name in second.columns if name.lower() not in shared]
    return first.join(second, condition).select(*columns)


def _of(frame: str, column: str) -> str:
    """A column of an aliased frame, as Spark reads names: a dot is no part of one without quotes."""
    quoted = column.replace("`", "``")
    return f"{frame}.`{quoted}`"
