"""Writing frames and streams into topics: each task makes whole batches of its columns and sends them by `wire`.

Columns are those of Spark's Kafka sink: `value`, and where they are there `key`, `headers`, `topic`, `partition`; the option `topic` wins
over the column. A record without a partition goes where Java's producer would send it: by its key's murmur2, and without a key to one
partition after the other, a batch of Spark at a time, from any one of them on.

A stream writes exactly once: each task in a transaction that it leaves open, and the driver decides and ends them (`commits`). A frame,
and a stream with `delivery.semantics=at-least-once`, writes at least once: a task or a query that is run again writes again.

A task returns when every batch it sent is written. Append is the only mode. No Python object is made of a record.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.clock import SystemClock
from ottla.errors import OttlaError
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.record.codecs import CODEC_NAMES, codec_number
from ottla.record.columnar import build_batches
from ottla.spark.commits import DEFAULT_TIMEOUT_MS, MARGIN_MS, Decision, Slot, check_owner, check_plan, slot_id
from ottla.spark.exactly_once import SinkCommits, Turn, open_slot
from ottla.spark.settings import OptionRefused, SourceSettings, flag
from ottla.spark.table import place_of
from ottla.wire.cluster import Cluster
from ottla.wire.producing import BaseOffset, BatchProducer
from ottla.wire.transactions import TransactionalProducer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

T = TypeVar("T")

_CALL_SECONDS: Final = 300.0
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)
_WORD: Final = 4


class WriteFailed(OttlaError):
    """A row that cannot be written: no topic, or no such partition."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """How a stream writes exactly once.

    Attributes:
        transactional_id: what the ids of its transactions begin with (`kafka.transactional.id`); None: the query's id in its checkpoint.
        timeout_ms: `kafka.transaction.timeout.ms`.
        checkpoint: `checkpointLocation`, where Spark was given one with the query.
        may_lose: `failOnDataLoss` is false: continues where a batch that was decided is lost.
    """

    transactional_id: str | None
    timeout_ms: int
    checkpoint: str | None
    may_lose: bool

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool) -> TransactionSettings | None:
        """Of options in small letters; None is at least once.

        Raises:
            OptionRefused
        """
        semantics = given.get("delivery.semantics", EXACTLY_ONCE if is_stream else AT_LEAST_ONCE)
        if semantics not in (EXACTLY_ONCE, AT_LEAST_ONCE):
            raise OptionRefused(f"delivery.semantics is {EXACTLY_ONCE} or {AT_LEAST_ONCE}, not {semantics!r}")
        if semantics == AT_LEAST_ONCE:
            return None
        if not is_stream:
            raise OptionRefused(
                f"delivery.semantics={EXACTLY_ONCE} is for streams: a batch query has no checkpoint that says what was written"
            )
        text = given.get("kafka.transaction.timeout.ms", str(DEFAULT_TIMEOUT_MS))
        if not text.isdecimal() or not MARGIN_MS < int(text) < 1 << 31:
            raise OptionRefused(f"kafka.transaction.timeout.ms is a whole number above {MARGIN_MS} that fits 32 bits, not {text!r}")
        may_lose = not flag(given, "failOnDataLoss", True)
        return cls(given.get("kafka.transactional.id") or None, int(text), given.get("checkpointlocation"), may_lose)

    def query(self) -> str | None:
        """The query's id, as its checkpoint has it; None where that cannot be read from here."""
        if self.checkpoint is None:
            return None
        try:
            return str(json.loads(self._read("metadata"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("the query's id cannot be read below %s: %s", self.checkpoint, error)
            return None

    def plan_of(self, batch: int) -> str | None:
        """A digest of what the checkpoint says of a batch, which Spark writes once, before its tasks: offsets, watermark and time.

        Empty where it cannot be read from here, or is so old that Spark has removed it; None where the checkpoint has not come so far.
        """
        from pyarrow import fs

        if self.checkpoint is None:
            return ""
        try:
            return hashlib.sha256(self._read(f"offsets/{batch}")).hexdigest()
        except FileNotFoundError:
            with suppress(OSError, ValueError):
                system, path = place_of(self.checkpoint.rstrip("/"))
                names = [file.base_name for file in system.get_file_info(fs.FileSelector(f"{path}/offsets"))]
                return "" if any(name.isdecimal() and int(name) > batch for name in names) else None
        except (OSError, ValueError) as error:
            log.info("what batch %d was cannot be read below %s: %s", batch, self.checkpoint, error)
        return ""

    def _read(self, name: str) -> bytes:
        assert self.checkpoint is not None
        system, path = place_of(self.checkpoint.rstrip("/"))
        with system.open_input_file(f"{path}/{name}") as file:
            return bytes(file.readall())


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a query that writes asked for. `source` holds what both have: `kafka.*`."""

    source: SourceSettings
    topic: str | None = None
    codec: int = 0
    transactions: TransactionSettings | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, *, is_stream: bool = False) -> SinkSettings:
        """Reads the options, and looks at the frame's columns.

        Raises:
            OptionRefused: with Spark's sentence.
        """
        given = {name.lower(): value for name, value in options.items()}
        kafka = {name: value for name, value in given.items() if name.startswith("kafka.")}
        for name in ("kafka.key.serializer", "kafka.value.serializer"):
            if name in kafka:
                raise OptionRefused(f"Kafka option '{name[6:]}' is not supported: keys and values are strings or bytes as they are")
        for name in ("kafka.partitioner.class", "kafka.partitioner.ignore.keys"):
            if kafka.get(name, "false").strip().lower() != "false":
                raise OptionRefused(f"Kafka option '{name[6:]}' is not supported: a column 'partition' says where records go")
        # A sink names no topics to read; what reads them has to be told of some.
        source = SourceSettings.of({"subscribe": "-", **kafka}, is_stream=True)
        codec = kafka.get("kafka.compression.type", "none")
        if codec not in CODEC_NAMES.values():
            raise OptionRefused(f"kafka.compression.type is one of {', '.join(CODEC_NAMES.values())}, not {codec!r}")
        found = {column.name: column.dataType.simpleString() for column in schema.fields}
        topic = given["topic"].strip() if "topic" in given else None
        if topic is None and "topic" not in found:
            raise OptionRefused("topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.")
        if "value" not in found:
            raise OptionRefused("Required attribute 'value' not found")
        for name, kinds in {
            "value": ("string", "binary"),
            "key": ("string", "binary"),
            "topic": ("string",),
            "partition": ("int",),
            "headers": ("array<struct<key:string,value:binary>>",),
        }.items():
            if name in found and found[name] not in kinds:
                raise OptionRefused(f"{name} attribute unsupported type {found[name]}: it is {' or '.join(kinds)}")
        return cls(source, topic, codec_number(codec), TransactionSettings.of(given, is_stream=is_stream))


def murmur2(keys: Any) -> NDArray[np.uint32]:
    """The hash of each key that Java's default partitioner takes, all keys at once.

    Args:
        keys: a `pyarrow.BinaryArray` without nulls.
    """
    count = len(keys)
    _, bounds, octets = keys.buffers()
    ends = np.frombuffer(bounds, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    # Three bytes more, so that the last word of a short key can be taken whole.
    data = np.concatenate([np.frombuffer(octets, np.uint8) if octets is not None else np.zeros(0, np.uint8), np.zeros(4, np.uint8)])
    found = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths // _WORD

    def word(at: NDArray[np.int64], size: int = _WORD) -> NDArray[np.uint32]:
        whole = np.zeros(len(at), np.uint32)
        for byte in range(size):
            whole |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        return whole

    for index in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > index)
        mixed = word(starts[rows] + _WORD * index) * _M
        mixed ^= mixed >> np.uint32(24)
        found[rows] = (found[rows] * _M) ^ (mixed * _M)
    for left in (1, 2, 3):
        rows = np.flatnonzero(lengths % _WORD == left)
        found[rows] = (found[rows] ^ word(starts[rows] + _WORD * words[rows], left)) * _M
    found ^= found >> np.uint32(13)
    found *= _M
    return found ^ (found >> np.uint32(15))


def partitions_of(batch: Any, keys: Any, count: int, spare: int) -> NDArray[np.int64]:
    """The partition of each row of one topic.

    Args:
        batch: whose column `partition`, if there is one, says so where it is not null.
        keys: of the rows, as binary; None is no keys.
        count: how many partitions the topic has.
        spare: where rows without a key go.

    Raises:
        WriteFailed: a row names a partition that the topic does not have.
    """
    from pyarrow import compute

    found = np.full(batch.num_rows, spare % count, np.int64)
    if keys is not None:
        has_key = ~np.asarray(keys.is_null().to_numpy(zero_copy_only=False))
        found[has_key] = (murmur2(keys.drop_null()) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    if "partition" in batch.schema.names:
        named = batch.column("partition")
        is_named = ~np.asarray(named.is_null().to_numpy(zero_copy_only=False))
        found[is_named] = compute.fill_null(named, 0).to_numpy(zero_copy_only=False)[is_named]
        wrong = found[(found < 0) | (found >= count)]
        if len(wrong):
            raise WriteFailed(f"there is no partition {int(wrong[0])}: the topic has {count}")
    return found


class _Sending:
    """A cluster and a producer, on the loop of a thread."""

    def __init__(self, settings: SinkSettings, cluster: Cluster, producer: BatchProducer | TransactionalProducer) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.cluster = cluster
        self.producer = producer
        self.written: set[asyncio.Future[BaseOffset]] = set()
        self.rows = 0
        # Where rows without a key begin. Most tasks of a stream have one batch: from 0 on all of them would go to the same partition.
        self.batches = secrets.randbelow(1 << 31)

    @classmethod
    async def open(cls, settings: SinkSettings, turn: Turn | None, transactional_id: str) -> _Sending:
        cluster = _cluster(settings.source)
        try:
            producer = BatchProducer(cluster) if turn is None else await open_slot(cluster, turn, transactional_id)
        except BaseException:
            await cluster.close()
            raise
        return cls(settings, cluster, producer)

    async def write(self, batch: Any) -> None:
        """Sends the rows of a batch of Spark; waits only while too much is on its way."""
        import pyarrow
        from pyarrow import compute

        self.batches += 1
        self.rows += batch.num_rows
        if self.settings.topic is not None:
            topics = {self.settings.topic: batch}
        else:
            names = batch.column("topic")
            if names.null_count:
                raise WriteFailed("null topic present in the data. Use the topic option for setting a topic.")
            topics = {name: batch.filter(compute.equal(names, name)) for name in compute.unique(names).to_pylist()}
        for topic, rows in topics.items():
            count = len((await self.cluster.topic(topic)).partitions)
            keys = rows.column("key").cast(pyarrow.binary()) if "key" in rows.schema.names else None
            places = partitions_of(rows, keys, count, self.batches)
            for number in np.unique(places).tolist():
                await self._send(TopicPartition(topic, number), rows.filter(pyarrow.array(places == number)))

    async def _send(self, partition: TopicPartition, rows: Any) -> None:
        columns = {name: rows.column(name) if name in rows.schema.names else None for name in ("value", "key", "headers")}
        now_ms = np.full(rows.num_rows, self.clock.time_ms(), np.int64)
        for batch in build_batches(now_ms, columns["value"], columns["key"], columns["headers"], codec=self.settings.codec):
            sent = self.producer.send(partition, batch)
            future = sent if isinstance(sent, asyncio.Future) else await sent
            self.written.add(future)
            await self.producer.room()
        for future in [future for future in self.written if future.done()]:
            future.result()
            self.written.discard(future)

    async def finish(self) -> Slot | None:
        """Waits until everything is written, or raises why it is not. Gives the transaction that it is in; None at least once."""
        if isinstance(self.producer, TransactionalProducer):
            found = await self.producer.prepare()
            assert found.transactional_id is not None
            return Slot(found.transactional_id, found.producer_id, found.producer_epoch, self.rows)
        await self.producer.flush()
        for future in self.written:
            future.result()
        return None

    async def close(self) -> None:
        if isinstance(self.producer, TransactionalProducer):
            await self.producer.close()
        else:
            await self.producer.close(wait=False)
        for future in self.written:
            if future.done() and not future.cancelled():
                future.exception()
        await self.cluster.close()


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote; in a transaction, if there is a slot, and by which driver's and query's leave."""

    rows: int
    slot: Slot | None = None
    turn: Turn | None = None
    query: str = ""


def write_rows(settings: SinkSettings, batches: Iterator[Any], turn: Turn | None = None, transactional_id: str = "") -> Written:
    """What a task does. One without rows asks no broker: of many partitions most are empty in a small batch.

    Args:
        turn: with it, all is written in one transaction, which is left open.

    Raises:
        WriteFailed: a row cannot be written. Rows before it may be, at least once.
        ProducerFenced: another attempt of the task, or another driver, has taken over.
        ApiError, OSError: the cluster refused, or did not answer in time.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(0, None, turn)
    with LoopThread("ottla-spark-write") as loop:
        sending = loop.call(_Sending.open(settings, turn, transactional_id), _CALL_SECONDS)
        try:
            for batch in chain([first], filled):
                loop.call(sending.write(batch), _CALL_SECONDS)
            slot = loop.call(sending.finish(), _CALL_SECONDS)
        finally:
            loop.call(sending.close(), _CALL_SECONDS)
    return Written(sending.rows, slot, turn)


def begin(settings: SinkSettings) -> Turn:
    """What a driver does before a batch: see `exactly_once`.

    Raises:
        OptionRefused: the query has no name to write under.
        CheckpointFenced, TransactionLost, CommitsUnreadable, ApiError, OSError
    """
    transactions = settings.transactions
    assert transactions is not None
    query = transactions.query()
    name = transactions.transactional_id or query
    if name is None:
        raise OptionRefused(
            "a stream that writes exactly once needs a name that stays: give checkpointLocation with the query, where the driver can"
            " read it, or kafka.transactional.id; or delivery.semantics=at-least-once"
        )
    may_lose = transactions.may_lose
    return _decide(settings, name, lambda commits: commits.begin(query, transactions.timeout_ms, transactions.plan_of, may_lose=may_lose))


def _decide(settings: SinkSettings, name: str, do: Callable[[SinkCommits], Coroutine[Any, Any, T]]) -> T:
    async def done() -> T:
        cluster = _cluster(settings.source)
        try:
            return await do(SinkCommits(cluster, name))
        finally:
            await cluster.close()

    with LoopThread("ottla-spark-decide") as loop:
        return loop.call(done(), _CALL_SECONDS)


def _cluster(source: SourceSettings) -> Cluster:
    return Cluster(source.kafka["bootstrap.servers"], source.cluster_settings())


class BatchWriter(DataSourceArrowWriter):
    """`frame.write.format("ottla")`."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self.settings, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`stream.writeStream.format("ottla")`: made again for each batch, in one process of the driver for `write`, in another for the rest.

    Args:
        turn: what `begin` gave; None at least once, and where nothing is written.
    """

    def __init__(self, settings: SinkSettings, turn: Turn | None) -> None:
        self.settings = settings
        self.turn = turn

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        turn = self.turn
        if turn is None:
            assert self.settings.transactions is None, (
                "Spark asked for this writer in another way than for one that writes: see source._WRITE"
            )
            return write_rows(self.settings, iterator)
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = str(context.getLocalProperty("sql.streaming.queryId")), int(str(context.getLocalProperty("streaming.sql.batchId")))
        if turn.query not in (None, query):
            check_owner(turn.name, Decision(str(turn.query), turn.done, ()), query)
        if batch < turn.done:  # no driver runs any but the last one again
            check_plan(turn.name, Decision(query, turn.done, ()), None)
        if batch == turn.done:
            log.info("%s: batch %d is committed already, and is not written again", turn.name, batch)
            return Written(0)
        written = write_rows(self.settings, iterator, turn, slot_id(turn.name, context.partitionId(), context.attemptNumber()))
        written.query = query
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = [message for message in messages if isinstance(message, Written) and message.slot is not None]
        if written:
            turn, query = written[0].turn, written[0].query
            assert turn is not None and self.settings.transactions is not None
            plan = self.settings.transactions.plan_of(batchId) or ""
            decision = Decision(query, batchId, tuple(message.slot for message in written if message.slot is not None), plan=plan)
            _decide(self.settings, turn.name, lambda commits: commits.commit(turn, decision))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        turn = next((message.turn for message in messages if isinstance(message, Written) and message.turn is not None), None)
        if turn is not None:
            try:
                _decide(self.settings, turn.name, lambda commits: commits.give_up(turn))
            except (OSError, OttlaError) as error:
                log.warning("%s: what batch %d has left open waits for the query's next start: %s", turn.name, batchId, error)
