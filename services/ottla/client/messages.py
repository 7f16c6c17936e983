"""What a fetch brings: a set of messages that is whole batches until someone looks at them.

A `MessageSet` is given on as batches (bytes as the broker has them), as messages or as columns. What lies before the offset that was
asked for, markers, and messages of aborted transactions are left out of all three; a batch that is partly before the offset stays whole
among the batches.

Pure: nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from ottla.errors import InvalidRecord
from ottla.model import TopicPartition
from ottla.protocol.fetch import AbortedTransaction
from ottla.record.batch import HEADER_SIZE, LOG_APPEND_TIME
from ottla.record.codecs import decompress
from ottla.record.records import read_headers, whole_header
from ottla.record.varints import decode_varint
from ottla.wire.fetching import Fetched, visible_spans

if TYPE_CHECKING:
    from ottla.record.columnar import Columns

# Bytes. A call of numpy costs as much as thirty records, and there are some of them.
_WORTH_COLUMNS: Final = 16 * 1024
# Messages of a stretch: their bytes fit a core's cache, and their memory is used again by the next.
_AT_ONCE: Final = 1024

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """One message. The timestamp is milliseconds since the epoch; a value of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Stretch(NamedTuple):
    """Some messages of a partition, each of which is made when it is asked for.

    What is made at once is a list, and the collector of garbage goes through it again and again; a message that is dropped before
    the next one is made costs it nothing.

    Attributes:
        offsets: of all. Emptied, by any thread, it ends `messages` at once.
        unread: its iterator, from which `messages` takes: so it is seen how far its reader is.
    """

    offsets: list[int]
    unread: Iterator[int]
    messages: Iterator[Message]

    @classmethod
    def of(
        cls,
        partition: TopicPartition,
        offsets: list[int],
        timestamps: Iterable[int],
        keys: Iterable[bytes | None],
        values: Iterable[bytes | None],
        headers: Iterable[Headers],
    ) -> Self:
        """Of columns."""
        unread = iter(offsets)
        rows = zip(repeat(partition.topic), repeat(partition.partition), unread, timestamps, keys, values, headers, strict=False)
        return cls(offsets, unread, map(tuple.__new__, repeat(Message), rows))  # as `_make`, without a call of Python for each


@dataclass(frozen=True, slots=True)
class MessageSet:
    """Whole batches of one partition, and the way to their messages: `for message in message_set`.

    Attributes:
        offset: that was asked for.
        next_offset: where to go on; behind the last batch, also when nothing of it is to be seen.
        records: the batches end to end, as the broker has them.
        aborted: the aborted transactions that reach into them.
        last_epoch: the leader epoch of the last batch; -1: not known.
    """

    partition: TopicPartition
    offset: int
    next_offset: int
    records: memoryview
    aborted: Sequence[AbortedTransaction]
    high_watermark: int
    log_start_offset: int
    last_epoch: int = -1

    @classmethod
    def of(cls, fetched: Fetched) -> Self:
        """What a fetch loop has brought."""
        rest = fetched.high_watermark, fetched.log_start_offset, fetched.last_epoch
        return cls(fetched.partition, fetched.offset, fetched.next_offset, fetched.records, fetched.aborted, *rest)

    def batches(self) -> Iterator[memoryview]:
        """Each batch that holds something to be seen, unopened."""
        for position, end in visible_spans(self.records, self.aborted):
            yield self.records[position:end]

    def __iter__(self) -> Iterator[Message]:
        # Not a generator: each message would pass through it.
        return chain.from_iterable(stretch.messages for stretch in self.stretches())

    def stretches(self) -> Iterator[Stretch]:
        """The messages, some hundreds at a time: by columns, which is much faster, where numpy is installed and there are enough."""
        if has_columns() and len(self.records) >= _WORTH_COLUMNS:
            for columns in self.columns():
                yield from stretches_of(columns, self.partition)
        else:
            for batch in self.batches():
                yield read_stretch(batch, self.partition, self.offset)

    def columns(self) -> Iterator[Columns]:
        """Offsets, timestamps, keys and values as vectors, with no object per message. Needs `ottla[columns]`."""
        from ottla.record.columnar import read_columns

        # The checksums were compared when the batches arrived.
        return read_columns(self.records, start_offset=self.offset, aborted=self.aborted, check_crcs=False)


@cache
def has_columns() -> bool:
    """Whether `ottla[columns]` is installed."""
    return find_spec("numpy") is not None


def stretches_of(columns: Columns, partition: TopicPartition) -> Iterator[Stretch]:
    """Columns as messages: of each message nothing is made but its tuple, its numbers and its bytes."""
    has_headers = bool((columns.header_sections.lengths > 1).any())
    for first in range(0, len(columns), _AT_ONCE):
        some = columns.select(slice(first, first + _AT_ONCE))
        headers: Iterable[Headers] = map(some.headers, range(len(some))) if has_headers else repeat(())
        yield Stretch.of(partition, some.offsets.tolist(), some.timestamps.tolist(), some.keys.to_list(), some.values.to_list(), headers)


def read_stretch(batch: memoryview, partition: TopicPartition, start_offset: int) -> Stretch:
    """The messages of one whole batch from an offset on, read one by one.

    As `records.read_records`, but with one tuple of each message: a stream hands out millions of them.

    Raises:
        CorruptMessage: the batch is cut short.
        InvalidRecord: the payload contradicts itself or the header's count.
        UnsupportedCompressionType: no codec has that number.
    """
    header = whole_header(batch)
    payload = bytes(decompress(header.codec, batch[HEADER_SIZE : header.size]))
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    found: list[tuple[int, int, bytes | None, bytes | None, Headers]] = []
    add = found.append
    position, size = 0, len(payload)
    try:
        for _ in range(header.record_count):
            # A number that takes one byte, as nearly all do, is decoded in line: a call costs more than the rest.
            byte = payload[position]
            if byte < 0x80:
                length, position = byte >> 1, position + 1
            else:
                length, position = decode_varint(payload, position)
            end = position + length
            position += 1  # attributes, of which none is in use
            byte = payload[position]
            if byte < 0x80:
                timestamp, position = base_timestamp + ((byte >> 1) ^ -(byte & 1)), position + 1
            else:
                delta, position = decode_varint(payload, position)
                timestamp = base_timestamp + delta
            byte = payload[position]
            if byte < 0x80:
                offset, position = base_offset + (byte >> 1), position + 1
            else:
                delta, position = decode_varint(payload, position)
                offset = base_offset + delta
            byte = payload[position]
            if byte < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = decode_varint(payload, position)
            key = None
            if length >= 0:
                key = payload[position : position + length]
                position += length
            byte = payload[position]
            if byte < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = decode_varint(payload, position)
            value = None
            if length >= 0:
                value = payload[position : position + length]
                position += length
            headers: Headers = ()
            if payload[position]:
                headers, position = read_headers(payload, position)
            else:
                position += 1
            if position != end or end > size:
                raise InvalidRecord(f"record {len(found)} says that it ends at {end} of {size} and ends at {position}")
            if offset >= start_offset:
                add((offset, timestamp if append_time is None else append_time, key, value, headers))
    except IndexError:
        raise InvalidRecord(f"the payload of {size} bytes ends within record {len(found)} of {header.record_count}") from None
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the last of {header.record_count} records")
    offsets, *others = zip(*found, strict=True) if found else ((),) * 5
    return Stretch.of(partition, list(offsets), *others)
