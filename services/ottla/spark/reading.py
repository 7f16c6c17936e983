"""Reading ranges of offsets as Arrow, and asking a cluster where they begin and end.

`read_ranges` is what a task does: fetch by `wire`, in a thread of its own so that the next batches come while Spark has the last ones,
and decode by `record.columnar`. Offsets that compaction, markers and aborted transactions left empty are no loss. What the log does
not have any more is: the exact range is named, and `failOnDataLoss` says whether that ends the query.

`ClusterReader` is what a driver asks. Both are for callers that block; neither keeps anything from one call to the next but what it
knows of the cluster, and neither imports pyspark.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ottla.clock import Clock, SystemClock
from ottla.config.settings import INT_MAX
from ottla.errors import ApiError, CorruptMessage, OffsetOutOfRange, OttlaError, UnknownTopicId, UnknownTopicOrPartition, reason_of
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.record.batch import batches, crc_of, read_header
from ottla.record.columnar import ByteColumn, Columns, Integers, read_columns
from ottla.spark.offsets import EARLIEST, LATEST, Loss, OffsetRange, Offsets
from ottla.spark.settings import Boundary, OptionRefused, SourceSettings
from ottla.spark.table import place_of
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, visible_batches
from ottla.wire.offsets import list_offsets

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS: Final = 1.0
_SLACK_SECONDS: Final = 30.0  # what a call into the loop has beyond the timeouts inside it
_LONGEST_PAUSE_SECONDS: Final = 10.0  # unless fetchOffset.retryIntervalMs is longer
_NEXT_BYTES: Final = 4 << 20  # as many as a batch has at most, but for few
_NO_END: Final = "it cannot be put into quarantine, as no one can say where it ends"
_MILLISECONDS: Final = ((1 << 63) - 1) // 1000  # of which a column has microseconds


class DataLost(OttlaError):
    """Records that a query should read are gone, and `failOnDataLoss` is true."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        super().__init__(
            "; ".join(map(str, losses))
            + ". Some data may have been lost because they are not available in Kafka any more. If you do not want the query to fail on"
            " such cases, set the source option failOnDataLoss to false"
        )
        self.losses = tuple(losses)


class ReadFailed(OttlaError):
    """A range cannot be read: damaged, refused, or nothing came of it in time."""


def report(losses: Sequence[Loss], settings: SourceSettings) -> None:
    """Logs losses, or raises DataLost for them."""
    if losses and settings.fail_on_data_loss:
        raise DataLost(losses)
    for loss in losses:
        log.warning("%s", loss)


# Arrow.


def arrow_schema(columns: Sequence[str]) -> Any:
    """The `pyarrow.Schema` of columns, equal to what Spark makes of its own schema: all may be null."""
    import pyarrow

    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    types = {
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "offset": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("us", tz="UTC"),
        "timestampType": pyarrow.int32(),
        "headers": pyarrow.list_(pyarrow.field("element", header)),
    }
    return pyarrow.schema([(name, types[name]) for name in columns])


def record_batch(columns: Columns, partition: TopicPartition, schema: Any) -> Any:
    """The `pyarrow.RecordBatch` of what was decoded; only columns of the schema are made.

    Raises:
        ReadFailed: a record has a time that no column can have, and there is a column for it.
    """
    import pyarrow

    def times() -> Any:
        if (beyond := is_beyond_time(columns.timestamps)).any():
            number = int(beyond.argmax())
            raise ReadFailed(
                f"{partition}: the record at offset {int(columns.offsets[number])} has a time that no column can have,"
                f" {int(columns.timestamps[number])} ms"
            )
        return pyarrow.array(columns.timestamps * 1000, pyarrow.timestamp("us", tz="UTC"))

    makers: dict[str, Callable[[], Any]] = {
        "key": columns.keys.to_arrow,
        "value": columns.values.to_arrow,
        "topic": lambda: pyarrow.repeat(pyarrow.scalar(partition.topic, pyarrow.string()), len(columns)),
        "partition": lambda: pyarrow.array(np.full(len(columns), partition.partition, np.int32)),
        "offset": lambda: pyarrow.array(columns.offsets),
        "timestamp": times,
        "timestampType": lambda: pyarrow.array(columns.timestamp_types.astype(np.int32)),
        "headers": lambda: _headers(columns, schema.field("headers").type),
    }
    return pyarrow.RecordBatch.from_arrays([makers[name]() for name in schema.names], schema=schema)


def is_beyond_time(timestamps: Integers) -> NDArray[np.bool_]:
    """Which milliseconds no column can have: of a client that sends nanoseconds, which brokers take, it cannot."""
    return (timestamps > _MILLISECONDS) | (timestamps < -_MILLISECONDS)


def _headers(columns: Columns, kind: Any) -> Any:
    """As Spark's Kafka source: null where a record has none."""
    import pyarrow
    from pyarrow import compute

    found = columns.headers_to_arrow()
    is_empty = compute.equal(compute.list_value_length(found), 0)
    return pyarrow.ListArray.from_arrays(found.offsets, found.values.cast(kind.value_type), type=kind, mask=is_empty)


# What a task does.


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a range, in the order of its offsets.

    Attributes:
        columns: its records.
        start, end: the offsets that it covers; what is in no record was compacted, is a marker or was aborted.
        unseen: how many of those were markers or aborted. The rest was compacted.
        quarantined: how many were in a damaged batch that is in quarantine now.
    """

    partition: TopicPartition
    columns: Columns
    start: int
    end: int
    unseen: int
    quarantined: int = 0


def read_ranges(settings: SourceSettings, ranges: Sequence[OffsetRange], clock: Clock | None = None) -> Iterator[Portion]:
    """All records of some ranges, each of another partition, as they arrive.

    Raises:
        DataLost: a part of a range is gone, and `failOnDataLoss` is true.
        ReadFailed: a batch is damaged, or nothing came for `kafkaConsumer.pollTimeoutMs`.
    """
    now = (clock or SystemClock()).monotonic
    if settings.engine == "librdkafka":
        from ottla.spark import librdkafka

        yield from librdkafka.read_ranges(settings, [one for one in ranges if one.size > 0], now)
        return
    left = {one.partition: one for one in ranges if one.size > 0}
    assert len(left) == len([one for one in ranges if one.size > 0]), "two ranges of a partition in a task"
    if not left:
        return
    timeout_seconds = settings.poll_timeout_ms / 1000
    with LoopThread("ottla-spark-read") as loop:
        fetching = loop.call(_Fetching.open(settings, left.values()), _SLACK_SECONDS)
        try:
            moved_at = now()
            while left:
                arrived = loop.call(fetching.poll(min(_POLL_SECONDS, timeout_seconds)), timeout_seconds + _SLACK_SECONDS)
                if isinstance(arrived, FetchFailed):
                    one = left.pop(arrived.partition, None)
                    if one is not None and settings.quarantine is not None and isinstance(arrived.__cause__, CorruptMessage):
                        whole, damaged = loop.call(fetching.past_damage(one, timeout_seconds), timeout_seconds + _SLACK_SECONDS)
                        if whole is not None:
                            yield from _portions(whole, one, settings.quarantine)
                            one = OffsetRange(one.partition, max(one.start, whole.next_offset), one.end)
                        if damaged is not None and one.size > 0:
                            portion = _left_out(damaged, one, settings.quarantine)
                            yield portion
                            one = OffsetRange(one.partition, portion.end, one.end)
                        if one.size > 0:
                            left[one.partition] = one
                            loop.call(fetching.go_on(one), _SLACK_SECONDS)
                        moved_at = now()
                        continue
                    if one is not None:
                        rest = loop.call(fetching.after_loss(arrived, one), timeout_seconds + _SLACK_SECONDS)
                        left.update({} if rest is None else {rest.partition: rest})
                        moved_at = now()
                    continue
                for fetched in arrived:
                    one = left.get(fetched.partition)
                    if one is None or fetched.next_offset <= one.start:
                        continue
                    yield from _portions(fetched, one, settings.quarantine)
                    if fetched.next_offset >= one.end:
                        del left[one.partition]
                        loop.call(fetching.finish(one.partition), _SLACK_SECONDS)
                    else:
                        left[one.partition] = OffsetRange(one.partition, fetched.next_offset, one.end)
                    moved_at = now()
                if now() - moved_at > timeout_seconds:
                    stuck = ", ".join(f"{one.partition} at offset {one.start} of {one.end}" for one in left.values())
                    raise ReadFailed(f"{settings.kafka['bootstrap.servers']} gave nothing for {settings.poll_timeout_ms} ms: {stuck}")
        finally:
            loop.call(fetching.close(), _SLACK_SECONDS)


def _portions(fetched: Fetched, one: OffsetRange, quarantine: str | None) -> Iterator[Portion]:
    end = min(fetched.next_offset, one.end)
    visible = {position for position, _ in visible_batches(fetched.records, fetched.aborted)}
    unseen = sum(
        max(0, min(header.last_offset + 1, end) - max(header.base_offset, one.start))
        for position, header in batches(fetched.records)
        if position not in visible
    )
    aborted = [(transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted]
    start = one.start
    try:
        found = read_columns(fetched.records, start_offset=one.start, end_offset=end, aborted=aborted, check_crcs=False)
        for columns in found:
            behind = min(max(columns.next_offset, start), end)
            yield Portion(one.partition, columns, start, behind, unseen)
            start, unseen = behind, 0
    except ApiError:
        for portion in _batch_by_batch(fetched.records, visible, OffsetRange(one.partition, start, end), quarantine):
            yield replace(portion, unseen=unseen)
            start, unseen = portion.end, 0
    if start < end:
        yield Portion(one.partition, _no_records(end), start, end, unseen)


def _batch_by_batch(records: memoryview, visible: Collection[int], left: OffsetRange, quarantine: str | None) -> Iterator[Portion]:
    """As `_portions`, where what is in a batch cannot be read although its checksum is right: brokers store it unopened."""
    for position, header in batches(records):
        if position not in visible or header.last_offset < left.start or header.base_offset >= left.end:
            continue
        octets = records[position : position + header.size]
        try:
            for columns in read_columns(octets, start_offset=left.start, end_offset=left.end, check_crcs=False):
                portion = Portion(left.partition, columns, left.start, min(max(columns.next_offset, left.start), left.end), 0)
                yield portion
                left = OffsetRange(left.partition, portion.end, left.end)
        except ApiError as error:
            if quarantine is None:
                raise ReadFailed(f"{left.partition} at offset {header.base_offset}: {reason_of(error)}") from error
            portion = _left_out(Damaged(left.partition, header.base_offset, header.last_offset + 1, bytes(octets)), left, quarantine)
            yield portion
            left = OffsetRange(left.partition, portion.end, left.end)


def _left_out(damaged: Damaged, one: OffsetRange, quarantine: str) -> Portion:
    """Puts a batch aside. What lies before it in the range was compacted, and all of it may be behind the range."""
    start, end = (min(max(bound, one.start), one.end) for bound in (damaged.start, damaged.end))
    if start < end:
        damaged.write(quarantine)
        log.error("%s: offsets [%d, %d) are damaged and in quarantine at %s", one.partition, start, end, quarantine)
    return Portion(one.partition, _no_records(end), one.start, end, 0, end - start)


def _no_records(next_offset: int) -> Columns:
    none = np.zeros(0, np.int64)
    column = ByteColumn(np.zeros(1, np.uint8), none, none)
    return Columns(none, none, np.zeros(0, np.int8), column, column, column, next_offset)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A batch whose checksum is another than it says, or that cannot be read, as the broker has it."""

    partition: TopicPartition
    start: int
    end: int
    octets: bytes

    def write(self, directory: str) -> None:
        """Puts its bytes into a file that its place names: to do so again changes nothing.

        Raises:
            OSError
        """
        put_aside(directory, f"{self.partition}-{self.start}.batch", self.octets)


def put_aside(directory: str, name: str, octets: bytes) -> None:
    """Writes a file of a quarantine. Where one of the name has other bytes, as of a topic that was made again, both are kept.

    Args:
        directory: a path or an address; it is made if it is not there.

    Raises:
        OSError
    """
    system, base = place_of(directory)
    system.create_dir(base, recursive=True)
    path = f"{base}/{name}"
    with suppress(FileNotFoundError), system.open_input_stream(path) as file:
        if not octets.startswith(file.readall()):  # as what a killed task has left is
            path += f".{hashlib.sha256(octets).hexdigest()[:16]}"
    with system.open_output_stream(path) as file:
        file.write(octets)


class _Fetching:
    """A cluster and a fetcher, on the loop of a thread."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.kafka["bootstrap.servers"], settings.cluster_settings())
        self.fetcher = Fetcher(self.cluster, settings.fetch_settings())

    @classmethod
    async def open(cls, settings: SourceSettings, ranges: Iterable[OffsetRange]) -> Self:
        fetching = cls(settings)
        for one in ranges:
            fetching.fetcher.assign(one.partition, one.start)
        return fetching

    async def poll(self, timeout_seconds: float) -> list[Fetched] | FetchFailed:
        try:
            return await self.fetcher.poll(timeout_seconds)
        except FetchFailed as failure:
            return failure

    async def finish(self, partition: TopicPartition) -> None:
        self.fetcher.unassign(partition)

    async def after_loss(self, failure: FetchFailed, one: OffsetRange) -> OffsetRange | None:
        """What is left to read of a range of which something is gone; None is nothing.

        Raises:
            DataLost, ReadFailed
        """
        cause = failure.__cause__
        if isinstance(cause, UnknownTopicOrPartition | UnknownTopicId):
            report([Loss(one.partition, one.start, one.end, "the topic was deleted, or made again, while it was read")], self.settings)
            return None
        if not isinstance(cause, OffsetOutOfRange):
            raise ReadFailed(str(failure)) from failure
        try:
            earliest = (await list_offsets(self.cluster, {one.partition: EARLIEST}))[one.partition].offset
            latest = (await list_offsets(self.cluster, {one.partition: LATEST}))[one.partition].offset
        except OSError as error:
            raise ReadFailed(f"{failure}; where the log begins and ends cannot be asked: {reason_of(error)}") from error
        if latest < one.start:
            report([Loss(one.partition, one.start, one.end, f"the log ends at {latest}")], self.settings)
            return None
        gone = min(max(earliest, one.start), one.end)
        if gone > one.start:
            report([Loss(one.partition, one.start, gone, f"the log begins at {earliest}")], self.settings)
        if gone == one.end:
            return None
        self.fetcher.assign(one.partition, gone)
        return OffsetRange(one.partition, gone, one.end)

    async def past_damage(self, one: OffsetRange, timeout_seconds: float) -> tuple[Fetched | None, Damaged | None]:
        """What comes before the first damaged batch of a range, and that batch. Neither: what came now is whole.

        Raises:
            ReadFailed: where the batch ends cannot be said.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._first_damage(one)
        except TimeoutError as error:
            raise ReadFailed(f"{one.partition} is damaged behind offset {one.start}, and gave nothing when it was asked again") from error

    async def _first_damage(self, one: OffsetRange) -> tuple[Fetched | None, Damaged | None]:
        fetched = await self._as_it_is(one)
        next_offset = one.start
        for position, header in batches(fetched.records):
            octets = fetched.records[position : position + header.size]
            if crc_of(octets) != header.crc:
                whole = replace(fetched, records=fetched.records[:position], next_offset=next_offset) if position else None
                end = await self._end_of(one, position, fetched)
                return whole, Damaged(one.partition, header.base_offset, end, bytes(octets))
            next_offset = header.last_offset + 1
        return None, None

    async def _end_of(self, one: OffsetRange, position: int, fetched: Fetched) -> int:
        """The offset behind a damaged batch: what it says, and what follows must not begin before; or where that begins, where it has
        more records than offsets by what it says.

        Raises:
            ReadFailed
        """
        header = read_header(fetched.records, position)
        end, behind = header.last_offset + 1, position + header.size
        following = fetched
        if behind == len(fetched.records):
            following = await self._as_it_is(one, behind + _NEXT_BYTES)
        if behind < len(following.records):  # in which offsets rise
            return end if header.record_count <= header.last_offset_delta + 1 else read_header(following.records, behind).base_offset
        # Nothing follows in its segment.
        begins = fetched.last_stable_offset if self.settings.read_committed else fetched.high_watermark
        if end < begins:
            begins = read_header((await self._as_it_is(replace(one, start=end))).records).base_offset
        if begins < end:
            raise ReadFailed(f"{one.partition} is damaged before offset {end}; {_NO_END}")
        return end

    async def _as_it_is(self, one: OffsetRange, more_bytes: int = 0) -> Fetched:
        """What a range begins with, whatever its checksums are. Raises ReadFailed."""
        settings = self.settings.fetch_settings()
        sizes = {name: min(getattr(settings, name) + more_bytes, INT_MAX) for name in ("max_bytes", "max_partition_bytes")}
        try:
            async with Fetcher(self.cluster, replace(settings, check_crcs=False, **sizes)) as fetcher:
                fetcher.assign(one.partition, one.start)
                while not (arrived := await fetcher.poll(_POLL_SECONDS)):
                    pass
        except FetchFailed as failure:
            raise ReadFailed(f"{failure}; {_NO_END}") from failure
        return arrived[0]

    async def go_on(self, one: OffsetRange) -> None:
        self.fetcher.assign(one.partition, one.start)

    async def close(self) -> None:
        await self.fetcher.close()
        await self.cluster.close()


# What a driver asks.


class TopicFacts(NamedTuple):
    """A topic: which of its name it is, as text, who leads each partition, where that is known, and whether brokers alone write it."""

    topic_id: str | None
    leaders: Mapping[int, int | None]
    is_internal: bool = False


class Asking(Protocol):
    """Who is asked: a cluster by `wire`, or by librdkafka. What cannot be reached is an OSError."""

    def topics(self, names: Iterable[str] | None) -> dict[str, TopicFacts]:
        """Those that are there; None: all."""
        ...

    def offsets(self, asked: Offsets) -> dict[TopicPartition, int]:
        """Of `EARLIEST`, `LATEST` or a time in ms; -1 where no record is as young."""
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


class _WireAsking:
    """By `wire`, on the loop of a thread."""

    def __init__(self, settings: SourceSettings) -> None:
        self._read_committed = settings.read_committed
        self._seconds = 2 * settings.api_timeout_seconds + _SLACK_SECONDS
        cluster_settings = settings.cluster_settings()
        self._loop = LoopThread("ottla-spark-driver")

        async def opened() -> Cluster:
            return Cluster(settings.kafka["bootstrap.servers"], cluster_settings)

        self._cluster = self._loop.call(opened(), _SLACK_SECONDS)

    def topics(self, names: Iterable[str] | None) -> dict[str, TopicFacts]:
        """As `Asking`."""
        wanted = None if names is None else set(names)
        self._loop.call(self._cluster.refresh(wanted), self._seconds)
        return {
            name: TopicFacts(
                None if topic.topic_id is None else str(topic.topic_id),
                {number: one.leader for number, one in topic.partitions.items()},
                topic.is_internal,
            )
            for name, topic in self._cluster.metadata.topics.items()
            if wanted is None or name in wanted
        }

    def offsets(self, asked: Offsets) -> dict[TopicPartition, int]:
        """As `Asking`."""
        found = self._loop.call(list_offsets(self._cluster, asked, read_committed=self._read_committed), self._seconds)
        return {partition: listed.offset for partition, listed in found.items()}

    def close(self) -> None:
        """Closes connections, and the loop."""
        try:
            self._loop.call(self._cluster.close(), _SLACK_SECONDS)
        finally:
            self._loop.close(_SLACK_SECONDS)


class ClusterReader:
    """Which partitions there are, and where they begin and end. For one thread; opens nothing before it is asked.

    A topic that is made again under its name is noticed as long as this lives, as offsets in Spark's JSON do not say whose they are.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self._asking: Asking | None = None
        self.topic_ids: dict[str, str] = {}  # of the topics that were asked for, where brokers say them
        self._leaders: dict[TopicPartition, int | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections; it may be asked again."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def partitions(self) -> set[TopicPartition]:
        """The partitions that the query speaks of, and that are there.

        Raises:
            DataLost: a topic is another one than when it was asked for last.
        """
        settings = self.settings
        if settings.subscribe_pattern is not None:
            matches = re.compile(settings.subscribe_pattern).fullmatch
            everything = self._call(lambda asking: asking.topics(None))
            topics = {name: facts for name, facts in everything.items() if matches(name) and not facts.is_internal}
        else:
            names = set(settings.subscribe) or {partition.topic for partition in settings.assign}
            topics = self._call(lambda asking: asking.topics(names))
        # Some brokers of a cluster that is being updated say ids, and others do not.
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
        again = [name for name, topic_id in ids.items() if self.topic_ids.get(name, topic_id) != topic_id]
        self.topic_ids.update(ids)
        report([Loss(TopicPartition(name, 0), 0, 0, "the topic was deleted and made again") for name in sorted(again)], settings)
        self._leaders = {TopicPartition(name, number): leader for name, topic in topics.items() for number, leader in topic.leaders.items()}
        return set(self._leaders) & set(settings.assign) if settings.assign else set(self._leaders)

    def leader(self, partition: TopicPartition) -> int | None:
        """Who led the partition when it was asked for last."""
        return self._leaders.get(partition)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where their logs begin."""
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where their logs end: for a reader of committed records, before the first open transaction."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def ends(self, known: Offsets) -> dict[TopicPartition, int]:
        """Where the logs of all partitions end.

        A leader that was replaced and has not heard of it says where its log ended then, and a broker may not have heard of a partition
        yet. So where one ends before what is known of it, or is missing, all are asked again (fetchOffset.numRetries), as Spark's own
        source does.
        """
        for attempt in range(self.settings.fetch_offset_retries + 1):
            if attempt:
                self._pause(attempt)
            found = self.latest(self.partitions())
            if all(found.get(partition, -1) >= offset for partition, offset in known.items()):
                break
        return found

    def looked_at_again(self, ask: Callable[[], T]) -> T:
        """What is found by asking which partitions there are, and then something of them: from the first question on, again, where one was
        deleted between the two (fetchOffset.numRetries).
        """
        for attempt in range(1, self.settings.fetch_offset_retries + 1):
            try:
                return ask()
            except UnknownTopicOrPartition as error:
                log.info("it is looked again which partitions there are: %s", reason_of(error))
                self._pause(attempt)
        return ask()

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first record that is not older; -1 where all are."""
        return self._list(times)

    def resolve(self, boundary: Boundary, partitions: Iterable[TopicPartition], *, is_start: bool) -> dict[TopicPartition, int]:
        """The offsets that a boundary stands for.

        Raises:
            OptionRefused: it does not speak of exactly these partitions, or no record is as young and the strategy is `error`.
        """
        wanted = sorted(partitions)
        side = "starting" if is_start else "ending"
        if boundary.timestamp_ms is not None or boundary.timestamps_ms:
            asked: Offsets = boundary.timestamps_ms
            if boundary.timestamp_ms is not None:
                asked = dict.fromkeys(wanted, boundary.timestamp_ms)
            else:
                _check_named(asked, wanted, f"{side}OffsetsByTimestamp")
            latest = self.latest(wanted)  # first: what is written meanwhile is no older
            found = self.at(asked)
            without = [partition for partition in wanted if found[partition] < 0]
            if without and is_start and self.settings.strategy == "error":
                what = f"{without[0]} has no record at or after {asked[without[0]]} ms"
                raise OptionRefused(f"{what}: see startingOffsetsByTimestampStrategy")
            return {**found, **{partition: latest[partition] for partition in without}}
        if boundary.offsets or boundary.topic_offsets:
            if strangers := boundary.topic_offsets.keys() - {partition.topic for partition in wanted}:
                raise OptionRefused(f"{side}Offsets names {', '.join(sorted(strangers))}, of which no partition is read")
            whole = {one: boundary.topic_offsets[one.topic] for one in wanted if one.topic in boundary.topic_offsets}
            named = {**boundary.offsets, **whole}
            _check_named(named, wanted, f"{side}Offsets")
            return {**named, **self._list({partition: offset for partition, offset in named.items() if offset < 0})}
        return self.earliest(wanted) if boundary.default == "earliest" else self.latest(wanted)

    def _list(self, asked: Offsets) -> dict[TopicPartition, int]:
        return self._call(lambda asking: asking.offsets(asked)) if asked else {}

    def _call(self, ask: Callable[[Asking], T]) -> T:
        """Asks, and again when that failed (fetchOffset.numRetries), each time after twice the pause."""
        if self._asking is None:
            self._asking = _asking(self.settings)
        for attempt in range(1, self.settings.fetch_offset_retries + 2):
            try:
                return ask(self._asking)
            except OSError as error:
                if attempt > self.settings.fetch_offset_retries:
                    raise ReadFailed(f"{self.settings.kafka['bootstrap.servers']} cannot be asked: {reason_of(error)}") from error
                log.info("%s is asked again: %s", self.settings.kafka["bootstrap.servers"], reason_of(error))
                self._pause(attempt)
        raise AssertionError

    def _pause(self, attempt: int) -> None:
        first = self.settings.fetch_offset_retry_interval_ms / 1000
        threading.Event().wait(min(first * 2.0 ** min(attempt - 1, 30), max(first, _LONGEST_PAUSE_SECONDS)))


def _asking(settings: SourceSettings) -> Asking:
    if settings.engine == "librdkafka":
        from ottla.spark import librdkafka

        return librdkafka.Asking(settings)
    return _WireAsking(settings)


def _check_named(named: Offsets, there: Sequence[TopicPartition], option: str) -> None:
    if set(named) != set(there):
        raise OptionRefused(
            f"If {option} contains specific offsets, you must specify all TopicPartitions. Use -1 for latest, -2 for earliest."
            f" Specified: {', '.join(map(str, sorted(named)))}; assigned: {', '.join(map(str, there))}"
        )
