"""Records by their keys: a topic made from another one by a new key, and each key once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming import DataStreamWriter


def repartition_by_key(frame: DataFrame, key: Column | str, *, topic: str, options: Mapping[str, str]) -> DataStreamWriter:
    """Writes records into another topic by a new key, so that all of one key are in one of its partitions, in their order of offsets.

    Records of one partition of the source keep their order; those of several are written as they come. Exactly once, unless
    `options` say otherwise.

    Args:
        frame: a stream of the source `ottla`, with its columns; headers go along where they are there.
        key: of a record, as string or binary.
        topic: which has as many partitions as it has been made with.
        options: of the sink, `kafka.bootstrap.servers` at least.

    Returns:
        A writer, to be given a checkpoint and a trigger and to be started.
    """
    from pyspark.sql import functions

    wanted = functions.expr(key) if isinstance(key, str) else key
    columns = [name for name in ("value", "headers") if name in frame.columns]
    return frame.select(wanted.alias("key"), *columns).writeStream.format("ottla").options(**{**options, "topic": topic})


def deduplicate(frame: DataFrame, by: Sequence[str], *, within: str, time: str = "timestamp") -> DataFrame:
    """Each combination of some columns once, as long as its duplicates come within a time of each other.

    Args:
        within: for how long a row is remembered, by the watermark; a duplicate that comes later may be given again.
        time: the column that has a row's time.
    """
    return frame.withWatermark(time, within).dropDuplicatesWithinWatermark(list(by))
