"""Audit records: what one process says of the messages of one partition, by windows of message time; and their Avro form.

A record is written to `__audit` with its topic as the key, so one partition has all that is said of a topic, in the order in which each
session said it. It is framed in Avro's single-object form (a two-byte mark and the schema's fingerprint), or with the id of a schema
registry: audit does not depend on one.

Every tier counts into `Tally`s and the counter adds them: `merge` is all that there is to books. Counts are of messages, sizes of bytes.
What comes from outside is checked here and nowhere else: lengths are bounded, counts are not below zero. Nothing here does I/O.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

import fastavro
import numpy as np
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ottla.errors import InvalidRecord
from ottla.record.batch import LOG_APPEND_TIME, BatchHeader
from ottla.record.columnar import Columns, Integers, read_columns
from ottla.record.digests import (
    MASK_64,
    MASK_128,
    Identities,
    Latencies,
    OffsetSums,
    Sketch,
    by_window,
    contents_of_columns,
    digest,
    placed,
)

TOPIC: Final = "__audit"
VERDICTS_TOPIC: Final = "__audit_verdicts"
# The one internal topic that is audited itself.
CANARY_TOPIC: Final = "__canary"
# Of `__audit`, where a tier that reports makes it.
TOPIC_PARTITIONS: Final = 8
TOPIC_SETTINGS: Final = {"retention.ms": str(7 * 86_400_000)}
# Of attempts that no partition is known of.
NO_PARTITION: Final = -1
NO_OFFSET: Final = -1
# With the topic's id, 32 hexadecimal digits, on what brokers say: a topic that was made again under its name has another one.
TOPIC_ID_HEADER: Final = "topic.id"
# The largest audit record that is looked at, and what may be in it.
MAXIMUM_RECORD_BYTES: Final = 1 << 20
MAXIMUM_WINDOWS: Final = 4096
MAXIMUM_TEXT: Final = 512
_MAXIMUM_COUNT: Final = 1 << 48

NO_OFFSETS: Final = OffsetSums()

_SUMS: Final = struct.Struct("<QQQ")
_COUNTS: Final = ("attempted", "acknowledged", "failed", "count", "size")
_WIDE: Final = ("offsets", "content", "placed", "sketch")
_WIDTHS: Final = (_SUMS.size, 16, 16)  # a sketch has none
_MAXIMUM_OFFSET: Final = MASK_64 >> 1
_counts_of: Final = itemgetter(*_COUNTS)
_wide_of: Final = itemgetter(*_WIDE)


class Verdict(StrEnum):
    """What is said of an edge, and of a day of a loaded table; the later, the worse."""

    COMPLETE = "COMPLETE"
    LATE = "LATE"
    IN_DOUBT = "IN_DOUBT"
    PENDING = "PENDING"
    UNAUDITED = "UNAUDITED"
    DUPLICATE = "DUPLICATE"
    COMPENSATED = "COMPENSATED"
    LOSS = "LOSS"


# What a pipeline's owner is called for; the rest is either well or not known yet.
WRONG: Final = frozenset({Verdict.LOSS, Verdict.DUPLICATE, Verdict.COMPENSATED})


@dataclass(slots=True)
class Tally:
    """What was counted of one partition in one window.

    Attributes:
        attempted: messages that a producer was handed, and `acknowledged` and `failed` of them; zero at other tiers.
        count: messages that the tier has (a producer: that were acknowledged), of `size` bytes with keys and values or as batches.
        first_offset, last_offset: the lowest and the highest of them; -1: of none.
        offsets: sums over their offsets; None where an offset was not known.
        content, placed: digests; None where the tier does not see contents. A producer's `content` is of what was attempted.
        sketch: of placed identities.
        latencies: until the tier had them: a producer since the attempt, others since the message's time.
    """

    attempted: int = 0
    acknowledged: int = 0
    failed: int = 0
    count: int = 0
    size: int = 0
    first_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    offsets: OffsetSums | None = NO_OFFSETS
    content: int | None = None
    placed: int | None = None
    sketch: Sketch | None = None
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def outstanding(self) -> int:
        """Attempts of which nothing is known."""
        return self.attempted - self.acknowledged - self.failed

    def count_range(self, first_offset: int, last_offset: int, size: int) -> None:
        """Takes in all offsets of a range, of which nothing else is known: a batch's header."""
        count = last_offset - first_offset + 1
        self.count_sums(first_offset, last_offset, count, size, OffsetSums.of_range(first_offset, last_offset))

    def count_sums(self, first_offset: int, last_offset: int, count: int, size: int, sums: OffsetSums) -> None:
        """Takes in so many offsets, the lowest, the highest and the sums of which are these."""
        self._extend(first_offset, last_offset, count, size)
        if self.offsets is not None:
            self.offsets = self.offsets.plus(sums)

    def count_offsets(self, offsets: Integers, size: int) -> None:
        """Takes in these offsets, of which nothing else is known: records of a batch with times in several windows."""
        self.count_sums(int(offsets.min()), int(offsets.max()), len(offsets), size, OffsetSums.of(offsets))

    def count_messages(self, partition: int, offsets: Integers, identities: Identities, size: int) -> None:
        """Takes in messages whose contents are known."""
        if not len(offsets):
            return
        self._extend(int(offsets.min()), int(offsets.max()), len(offsets), size)
        if self.offsets is not None:
            self.offsets = self.offsets.plus(OffsetSums.of(offsets))
        places = placed(identities, partition, offsets)
        self.placed = ((self.placed or 0) + digest(places)) & MASK_128
        self.sketch = self.sketch or Sketch()
        self.sketch.add(places)

    def count_contents(self, identities: Identities) -> None:
        """Takes contents into the digest of contents."""
        self.content = ((self.content or 0) + digest(identities)) & MASK_128

    def _extend(self, first_offset: int, last_offset: int, count: int, size: int) -> None:
        self.first_offset = first_offset if self.first_offset < 0 else min(self.first_offset, first_offset)
        self.last_offset = max(self.last_offset, last_offset)
        self.count += count
        self.size += size

    def merge(self, other: Tally) -> None:
        """Adds what another tally has. Evidence that one of them lacks, although it has messages, is evidence of the sum no more."""
        self.content = _sum_of(self.content, other.content, self.count, other.count)
        self.placed = _sum_of(self.placed, other.placed, self.count, other.count)
        if (self.count and self.sketch is None) or (other.count and other.sketch is None):
            self.sketch = None
        elif other.sketch is not None:
            if self.sketch is None:
                self.sketch = other.sketch.copy()
            else:
                self.sketch.merge(other.sketch)
        self.offsets = None if self.offsets is None or other.offsets is None else self.offsets.plus(other.offsets)
        if other.first_offset >= 0:
            self.first_offset = other.first_offset if self.first_offset < 0 else min(self.first_offset, other.first_offset)
        self.last_offset = max(self.last_offset, other.last_offset)
        self.attempted += other.attempted
        self.acknowledged += other.acknowledged
        self.failed += other.failed
        self.count += other.count
        self.size += other.size
        self.latencies.merge(other.latencies)

    def copy(self) -> Tally:
        """Another one with the same counts."""
        tally = Tally()
        tally.merge(self)
        return tally


def _sum_of(one: int | None, another: int | None, count: int, other_count: int) -> int | None:
    """Of two digests of so many messages; None if one of them has messages and no digest."""
    if one is None:
        return None if count else another
    if another is None:
        return None if other_count else one
    return (one + another) & MASK_128


def tally_columns(tallies: dict[int, Tally], columns: Columns, partition: int, window_ms: int, now_ms: int | None = None) -> None:
    """Counts records that were decoded by columns into the tally of each window, by its start.

    Args:
        now_ms: when they were had, for latencies; None takes none.
    """
    if not len(columns):
        return
    identities = contents_of_columns(columns)
    sizes = np.maximum(columns.keys.lengths, 0) + np.maximum(columns.values.lengths, 0)
    for start, mask in by_window(columns.timestamps, window_ms):
        tally = tallies.setdefault(start, Tally())
        some = identities if mask is None else identities.select(mask)
        whole = slice(None) if mask is None else mask
        tally.count_contents(some)
        tally.count_messages(partition, columns.offsets[whole], some, int(sizes[whole].sum()))
        if now_ms is not None:
            tally.latencies.add_all(np.maximum(now_ms - columns.timestamps[whole], 0))


def tally_batch(
    tallies: dict[int, Tally],
    batch: memoryview,
    header: BatchHeader,
    window_ms: int,
    *,
    first_offset: int = 0,
    base_offset: int | None = None,
) -> None:
    """Counts a batch by its header into the tally of its window, by the window's start; one with times in several is opened, as brokers do.

    Args:
        first_offset: what lies before it is left out.
        base_offset: that the batch has where it is counted; None is its own.

    Raises:
        CorruptMessage, InvalidRecord: it has to be opened and cannot be.
    """
    shift = 0 if base_offset is None else base_offset - header.base_offset
    first_ms, max_ms = header.base_timestamp, header.max_timestamp
    if header.timestamp_type == LOG_APPEND_TIME:
        first_ms = max_ms
    start_ms = first_ms - first_ms % window_ms
    if start_ms <= max_ms < start_ms + window_ms:
        first = max(header.base_offset, first_offset) + shift
        tallies.setdefault(start_ms, Tally()).count_range(first, header.last_offset + shift, header.size)
        return
    size = header.size
    for columns in read_columns(batch, start_offset=first_offset, check_crcs=False):
        for start_ms, mask in by_window(columns.timestamps, window_ms):
            offsets = columns.offsets if mask is None else columns.offsets[mask]
            tallies.setdefault(start_ms, Tally()).count_offsets(offsets + shift, size)
            size = 0


class AuditRecord(NamedTuple):
    """One record of `__audit`; a tuple, as a counter makes some ten thousand in a second.

    Attributes:
        session: of the process, a new one at each start, 32 hexadecimal digits.
        sequence: of this record among those of the session on this topic, from 0: a gap is audit data that is missing.
        is_final: the session says nothing more of the topic.
        watermark_ms: no message with an earlier time follows from this session.
        tier: `producer`, `broker`, `log`, `mirror:<link>` in its source and `mirrored:<link>` in its target, `consumer:<group>`,
            `load:<job>`.
        leader_epoch: of the broker that counted; -1 elsewhere.
        first_offset, next_offset: a range that was counted whole, whatever lies in it; -1 at a producer.
        windows: by their start.
        topic_id: of the topic of that name, where a broker speaks: not in the value, but in the header `TOPIC_ID_HEADER` of the record.
    """

    session: str
    sequence: int
    tier: str
    topic: str
    partition: int
    window_ms: int
    watermark_ms: int
    windows: Mapping[int, Tally]
    is_final: bool = False
    cluster: str = ""
    host: str = ""
    application: str = ""
    leader_epoch: int = -1
    first_offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    reported_ms: int = 0
    topic_id: str = ""


_LONGS: Final = (*_COUNTS, "first_offset", "last_offset")
_TEXTS: Final = ("session", "tier", "topic", "cluster", "host", "application")
_NUMBERS: Final = ("sequence", "partition", "window_ms", "watermark_ms", "leader_epoch", "first_offset", "next_offset", "reported_ms")
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "AuditRecord",
    "namespace": "ottla.audit",
    "fields": [
        *({"name": name, "type": "string"} for name in _TEXTS),
        *({"name": name, "type": "long"} for name in _NUMBERS),
        {"name": "is_final", "type": "boolean"},
        {
            "name": "windows",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Window",
                    "fields": [
                        {"name": "start_ms", "type": "long"},
                        *({"name": name, "type": "long"} for name in _LONGS),
                        *({"name": name, "type": ["null", "bytes"]} for name in _WIDE),
                        {
                            "name": "latencies",
                            "type": {
                                "type": "array",
                                "items": {
                                    "type": "record",
                                    "name": "Bucket",
                                    "fields": [{"name": "bucket", "type": "int"}, {"name": "count", "type": "long"}],
                                },
                            },
                        },
                    ],
                },
            },
        },
    ],
}
_PARSED: Final = fastavro.parse_schema(SCHEMA)
_MARK: Final = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))
_REGISTRY_MAGIC: Final = 0
_REGISTRY_FRAME: Final = struct.Struct(">bI")
_texts_of: Final = itemgetter(*_TEXTS)
_numbers_of: Final = itemgetter(*_NUMBERS)


def encode(record: AuditRecord, schema_id: int | None = None) -> bytes:
    """The record's value on `__audit`.

    Args:
        schema_id: the id of `SCHEMA` in a schema registry; None frames it without one.
    """
    fields = {name: getattr(record, name) for name in (*_TEXTS, *_NUMBERS, "is_final")}
    fields["windows"] = [{"start_ms": start, **fields_of(tally)} for start, tally in record.windows.items()]
    sink = io.BytesIO()
    sink.write(_MARK if schema_id is None else _REGISTRY_FRAME.pack(_REGISTRY_MAGIC, schema_id))
    fastavro.schemaless_writer(sink, _PARSED, fields)
    return sink.getvalue()


def fields_of(tally: Tally) -> dict[str, Any]:
    """A tally as plain values, bytes for what is wide: in a record, and in a row of the counter's file."""
    return {
        **{name: getattr(tally, name) for name in _LONGS},
        "offsets": None if tally.offsets is None else _SUMS.pack(*tally.offsets),
        "content": None if tally.content is None else tally.content.to_bytes(16, "little"),
        "placed": None if tally.placed is None else tally.placed.to_bytes(16, "little"),
        "sketch": None if tally.sketch is None else tally.sketch.to_bytes(),
        "latencies": [{"bucket": bucket, "count": count} for bucket, count in tally.latencies.buckets.items()],
    }


def tally_of(fields: Mapping[str, Any]) -> Tally:
    """The tally of `fields_of`.

    Raises:
        InvalidRecord: a count below zero, or a digest or a sketch of another size.
    """
    counts = _counts_of(fields)
    if min(counts) < 0:
        name = next(name for name in _COUNTS if fields[name] < 0)
        raise InvalidRecord(f"{name} = {fields[name]} is below zero")
    attempted, acknowledged, failed, count, size = counts
    if acknowledged + failed > attempted:
        raise InvalidRecord("more was acknowledged or failed than was attempted")
    for name in ("first_offset", "last_offset"):
        if not NO_OFFSET <= fields[name] <= _MAXIMUM_OFFSET:
            raise InvalidRecord(f"{name} = {fields[name]} is no offset")
    offsets, content, placed_, sketch = wide = _wide_of(fields)
    for name, value, length in zip(_WIDE, wide, _WIDTHS, strict=False):
        if value is not None and len(value) != length:
            raise InvalidRecord(f"{name} has {len(value)} bytes and not {length}")
    return Tally(
        attempted,
        acknowledged,
        failed,
        count,
        size,
        fields["first_offset"],
        fields["last_offset"],
        None if offsets is None else OffsetSums._make(_SUMS.unpack(offsets)),
        None if content is None else int.from_bytes(content, "little"),
        None if placed_ is None else int.from_bytes(placed_, "little"),
        None if sketch is None else Sketch.from_bytes(sketch),
        Latencies.of_pairs([(pair["bucket"], pair["count"]) for pair in fields["latencies"]]),
    )


def decode(data: bytes | memoryview, headers: Iterable[tuple[str, bytes | None]] = ()) -> AuditRecord:
    """The record of a value of `__audit`.

    Args:
        headers: of the record that has the value.

    Raises:
        InvalidRecord: it is none; says why.
    """
    if len(data) > MAXIMUM_RECORD_BYTES:
        raise InvalidRecord(f"an audit record of {len(data)} bytes; {MAXIMUM_RECORD_BYTES} are allowed")
    source = io.BytesIO(data)
    mark = source.read(len(_MARK))
    if mark != _MARK:
        if len(data) <= _REGISTRY_FRAME.size or mark[0] != _REGISTRY_MAGIC:
            raise InvalidRecord("no audit record: neither the mark of the schema nor the id of a registry stands before it")
        source.seek(_REGISTRY_FRAME.size)
    try:
        fields: Any = fastavro.schemaless_reader(source, _PARSED, None)
    except Exception as error:  # fastavro raises whatever a wrong byte leads to
        raise InvalidRecord(f"an audit record that cannot be read: {type(error).__name__}: {error}") from error
    if source.tell() != len(data):
        raise InvalidRecord(f"{len(data) - source.tell()} bytes behind an audit record")
    topic_id = dict(headers).get(TOPIC_ID_HEADER)
    return _checked(fields) if topic_id is None else _checked(fields)._replace(topic_id=_hexadecimal(topic_id))


def _hexadecimal(topic_id: bytes) -> str:
    try:
        return UUID(topic_id.decode("ascii")).hex
    except ValueError:
        raise InvalidRecord(f"{TOPIC_ID_HEADER} is no topic's id: {topic_id[:64]!r}") from None


def _checked(fields: Mapping[str, Any]) -> AuditRecord:
    texts, numbers = _texts_of(fields), _numbers_of(fields)
    if max(map(len, texts)) > MAXIMUM_TEXT:
        name = next(name for name in _TEXTS if len(fields[name]) > MAXIMUM_TEXT)
        raise InvalidRecord(f"{name} has {len(fields[name])} characters; {MAXIMUM_TEXT} are allowed")
    session, tier, topic, cluster, host, application = texts
    if not topic or not tier or not session:
        raise InvalidRecord("an audit record without a topic, a tier or a session")
    if len(fields["windows"]) > MAXIMUM_WINDOWS:
        raise InvalidRecord(f"{len(fields['windows'])} windows in a record; {MAXIMUM_WINDOWS} are allowed")
    sequence, partition, window_ms, watermark_ms, leader_epoch, first_offset, next_offset, reported_ms = numbers
    if not 0 <= sequence < _MAXIMUM_OFFSET or not 1_000 <= window_ms <= 3_600_000 or not NO_PARTITION <= partition < 1 << 20:
        raise InvalidRecord("a sequence, a window or a partition out of bounds")
    if not NO_OFFSET <= first_offset <= next_offset:
        raise InvalidRecord(f"the range [{first_offset}, {next_offset}) is none")
    windows: dict[int, Tally] = {}
    for window in fields["windows"]:
        start = window["start_ms"]
        if start % window_ms or start in windows:
            raise InvalidRecord(f"{start} is the start of no window, or of one that was there already")
        windows[start] = tally = tally_of(window)
        # Here and not in `tally_of`, which reads sums of many records too.
        if (most := max(*_counts_of(window), *tally.latencies.buckets.values())) > _MAXIMUM_COUNT:
            raise InvalidRecord(f"a count of {most}; {_MAXIMUM_COUNT} are allowed")
    return AuditRecord(
        session,
        sequence,
        tier,
        topic,
        partition,
        window_ms,
        watermark_ms,
        windows,
        fields["is_final"],
        cluster,
        host,
        application,
        leader_epoch,
        first_offset,
        next_offset,
        reported_ms,
    )


class Session:
    """The sequences of one process: a record's number on its topic.

    A record that was numbered is written until it is acknowledged, or given up and counted; its number is not used again.
    """

    def __init__(
        self, session: str, tier: str, *, cluster: str = "", host: str = "", application: str = "", window_ms: int = 60_000
    ) -> None:
        self.session = session
        self.tier = tier
        self.window_ms = window_ms
        self._names = {"cluster": cluster, "host": host, "application": application}
        self._sequences: dict[str, int] = {}

    @property
    def topics(self) -> Iterator[str]:
        """Of which something was said."""
        return iter(list(self._sequences))

    def leave_out(self, topic: str) -> None:
        """Leaves a number out: audit data of the topic is missing before the next record."""
        self._sequences[topic] = self._sequences.get(topic, 0) + 1

    def record(
        self,
        topic: str,
        partition: int,
        windows: Mapping[int, Tally],
        *,
        watermark_ms: int,
        reported_ms: int,
        is_final: bool = False,
        offsets: tuple[int, int] = (NO_OFFSET, NO_OFFSET),
        leader_epoch: int = -1,
        topic_id: str = "",
    ) -> AuditRecord:
        """The next record on a topic."""
        sequence = self._sequences.get(topic, 0)
        self._sequences[topic] = sequence + 1
        return AuditRecord(
            self.session,
            sequence,
            self.tier,
            topic,
            partition,
            self.window_ms,
            watermark_ms,
            windows,
            is_final,
            leader_epoch=leader_epoch,
            first_offset=offsets[0],
            next_offset=offsets[1],
            reported_ms=reported_ms,
            topic_id=topic_id,
            **self._names,
        )
