"""The Python data source `ottla`: what Spark calls, in the order in which it calls it.

A batch query plans in a process of its own (`partitions`, and `pushFilters` before it), and executors `read`. A stream has one
long-lived process of the driver, which is asked for `latestOffset` and `partitions` batch by batch; the reader that executors get was
pickled by another one, so everything that `read` needs is in its settings and in the `InputPartition`.

Nothing here decides: settings and ranges are `settings` and `offsets`, asking and reading is `reading`.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.clock import Clock, SystemClock
from ottla.model import TopicPartition
from ottla.spark.offsets import (
    Condition,
    Loss,
    Nested,
    OffsetRange,
    Offsets,
    divided,
    flat,
    is_to_wait,
    limited,
    narrowed,
    nested,
    packed,
    ranges_between,
    vanished,
)
from ottla.spark.reading import ClusterReader, ReadFailed, arrow_schema, read_ranges, record_batch, report
from ottla.spark.settings import COLUMNS, HEADERS, OptionRefused, SourceSettings
from ottla.spark.sink import BatchWriter, SinkSettings, StreamWriter, begin

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OPERATORS: Final[dict[type[Filter], Any]] = {
    EqualTo: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
# Only Spark's planner of filters has this module, and it runs only where spark.sql.python.filterPushdown.enabled is true.
_PUSHDOWN: Final = "pyspark.sql.worker.data_source_pushdown_filters"
# Only the planner of writes has this one: a stream's batch begins there. The process that commits it asks for a writer too.
_WRITE: Final = "pyspark.sql.worker.write_into_data_source"


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(tuple(ranges))


def spark_schema(columns: Sequence[str]) -> StructType:
    """The columns as Spark's Kafka source has them; all may be null."""
    from pyspark.sql import types

    header = types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
    kinds: dict[str, types.DataType] = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(header),
    }
    assert set(kinds) == {*COLUMNS, HEADERS}
    return types.StructType([types.StructField(name, kinds[name]) for name in columns])


class OttlaDataSource(DataSource):
    """`spark.read.format("ottla")`, `spark.readStream`, and `write` and `writeStream` of a frame."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        # Which of both it is for is not said here; what the columns are depends on neither.
        names = ("includeheaders", "includevalue", "columns", "subscribe", "assign", "subscribepattern", "kafka.bootstrap.servers")
        given = {name.lower(): value for name, value in self.options.items()}
        return spark_schema(SourceSettings.of({name: given[name] for name in names if name in given}, is_stream=True).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = SourceSettings.of(dict(self.options), is_stream=False)
        return FilteringBatchReader(settings) if _is_in(_PUSHDOWN) else BatchReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._sink(schema, overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        settings = self._sink(schema, overwrite, is_stream=True)
        return StreamWriter(settings, begin(settings) if settings.transactions is not None and _is_in(_WRITE) else None)

    def _sink(self, schema: StructType, overwrite: bool, *, is_stream: bool) -> SinkSettings:
        if overwrite:
            raise OptionRefused("Save mode overwrite not allowed for Kafka. The only mode is append")
        return SinkSettings.of(dict(self.options), schema, is_stream=is_stream)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceSettings.of(dict(self.options), is_stream=True))


def _is_in(module: str) -> bool:
    """Whether this process is Spark's worker of that name."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return module in sys.modules or (main is not None and main.name == module)


def _read(settings: SourceSettings, partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, Ranges):
        return  # Spark has one task at least, and this one has nothing to do
    schema = arrow_schema(settings.columns)
    for portion in read_ranges(settings, partition.value):
        if len(portion.columns):
            yield record_batch(portion.columns, portion.partition, schema)


def _tasks(settings: SourceSettings, ranges: Sequence[OffsetRange], reader: ClusterReader) -> list[InputPartition]:
    if settings.min_partitions is None and settings.max_records_per_partition is None:
        return [Ranges(task) for task in packed(ranges, reader.leader)]
    return [Ranges([one]) for one in divided(ranges, settings.min_partitions, settings.max_records_per_partition)]


class BatchReader(DataSourceReader):
    """One read of what lies between two boundaries."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        with ClusterReader(self.settings) as reader:
            ranges = [narrowed(one, self.conditions) for one in reader.looked_at_again(lambda: self._whole(reader))]
            return _tasks(self.settings, [one for one in ranges if one is not None], reader)

    def _whole(self, reader: ClusterReader) -> list[OffsetRange]:
        partitions = _existing(self.settings, reader)
        start = reader.resolve(self.settings.starting, partitions, is_start=True)
        end = reader.resolve(self.settings.ending, partitions, is_start=False)
        for key, offset in sorted(start.items()):
            if offset > end[key]:
                raise OptionRefused(f"The resolved start offset {offset} is greater than the resolved end offset {end[key]} for {key}")
        return ranges_between(self._later(start, reader), end)

    def _later(self, start: Offsets, reader: ClusterReader) -> Offsets:
        """Where records begin that are as young as the query wants them; before that offset, all are older."""
        bounds = [
            min(value for value in condition.values if value is not None)
            for condition in self.conditions
            if condition.column == "timestamp" and condition.operator in ("=", "in", ">", ">=") and condition.values != (None,)
        ]
        # Below 0 are the question's own words, such as -1 for where the log ends.
        if not bounds or not start or max(bounds) < 0:
            return start
        found = reader.at(dict.fromkeys(start, max(bounds)))
        latest = reader.latest([partition for partition, offset in found.items() if offset < 0])
        return {partition: max(offset, latest.get(partition, found[partition])) for partition, offset in start.items()}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self.settings, partition)


class FilteringBatchReader(BatchReader):
    """A `BatchReader` that leaves out offsets which a filter leaves out. Spark looks at the rows again in any case.

    A class of its own, as Spark fails a query whose reader has `pushFilters` while pushing is switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.conditions = tuple(condition for condition in map(_condition, filters) if condition is not None)
        return filters


def _condition(one: Filter) -> Condition | None:
    operator = _OPERATORS.get(type(one))
    if operator is None or len(one.attribute) != 1:  # type: ignore[attr-defined]
        return None
    column = str(one.attribute[0])  # type: ignore[attr-defined]
    value = one.value  # type: ignore[attr-defined]
    values = tuple(value) if isinstance(one, In) else (value,)
    if column == "timestamp":
        # Without its time zone, so to say, it would be the planner's: such a filter is Spark's alone.
        if not all(isinstance(value, datetime.datetime) and value.tzinfo is not None for value in values):
            return None
        values = tuple(int(value.timestamp() * 1000) for value in values)
    return Condition(column, operator, values)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches; both limits of a batch are looked at here, as Spark's API has no limit made of two."""

    def __init__(self, settings: SourceSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._reader: ClusterReader | None = None
        self._initial: Nested | None = None
        self._is_available_now = False  # Trigger.AvailableNow, and where all of its batches end
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._triggered_at: float | None = None

    @property
    def cluster(self) -> ClusterReader:
        if self._reader is None:
            self._reader = ClusterReader(self.settings)
        return self._reader

    def initialOffset(self) -> Nested:
        if self._initial is None:
            self._initial = nested(self.cluster.looked_at_again(self._begins))
        return self._initial

    def _begins(self) -> Offsets:
        return self.cluster.resolve(self.settings.starting, _existing(self.settings, self.cluster), is_start=True)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.settings.max_offsets_per_trigger)
        if self.settings.min_offsets_per_trigger is not None:
            return ReadMinRows(self.settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        # Where that ends is asked with the first batch: a new query may begin at the latest, which Spark asks for after this.
        self._is_available_now = True

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        return self.cluster.looked_at_again(lambda: self._ends(start, limit))

    def _ends(self, start: Nested, limit: ReadLimit) -> Nested:
        from_here = flat(start)
        latest = self._latest = self._target if self._target is not None else self.cluster.ends(from_here)
        self._target = latest if self._is_available_now else None
        if self.settings.fail_on_data_loss:
            # Spark keeps this end before it asks what is to be read up to there: with one of a broker that was behind in the checkpoint
            # the query would fail at each start.
            report(vanished(from_here, latest, {}), self.settings)
        elif gone := [partition for partition in sorted(from_here.keys() - latest.keys()) if self._is_named(partition)]:
            raise ReadFailed(f"{gone[0]} is not there, and is asked for by its name: left out, it would be read again when it is back")
        new = self.cluster.earliest(latest.keys() - from_here.keys())
        if isinstance(limit, ReadAllAvailable):
            return nested(latest)
        begins = {**new, **from_here}
        if not self._is_available_now and isinstance(limit, ReadMaxRows | ReadMinRows):
            now = self._clock.monotonic()
            delay = self.settings.max_trigger_delay_seconds
            waited = delay if self._triggered_at is None else now - self._triggered_at
            if is_to_wait(begins, latest, self.settings.min_offsets_per_trigger, waited, delay):
                return start
            self._triggered_at = now
        return nested(limited(begins, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest)

    def _is_named(self, partition: TopicPartition) -> bool:
        return partition.topic in self.settings.subscribe or partition in self.settings.assign

    def reportLatestOffset(self) -> Nested | None:
        return None if self._latest is None else nested(self._latest)

    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        begins, ends = flat(start), flat(end)
        if self._latest is None and start == self._initial:
            # The first batch again: Spark has kept where it ends, and asks again where it begins. What has come since is not lost.
            begins = {partition: min(offset, ends[partition]) for partition, offset in begins.items() if partition in ends}
        added = ends.keys() - begins.keys()
        # Which are there is asked for each batch: those of AvailableNow have their end from before the first.
        new = self.cluster.looked_at_again(lambda: self.cluster.earliest(added & self.cluster.partitions()))
        gone = [Loss(partition, 0, ends[partition], "the partition is not there any more") for partition in sorted(added - new.keys())]
        report([*vanished(begins, ends, new), *gone], self.settings)
        return _tasks(self.settings, ranges_between({**new, **begins}, ends), self.cluster)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self.settings, partition)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _existing(settings: SourceSettings, reader: ClusterReader) -> set[TopicPartition]:
    """The partitions that a query begins with. What is named and is not there is a mistake, or is lost."""
    partitions = reader.partitions()
    missing = set(settings.assign) - partitions
    topics = set(settings.subscribe) - {partition.topic for partition in partitions}
    if topics:
        raise OptionRefused(f"there is no topic {', '.join(sorted(topics))}")
    report([Loss(partition, 0, 0, "there is no such partition") for partition in sorted(missing)], settings)
    return partitions
