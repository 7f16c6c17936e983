"""Record batches as columns, and columns as record batches: numpy and Arrow, with no Python object per record.

`read_columns` takes what a fetch brought and gives offsets, timestamps, keys and values as vectors; `build_batches` is the
way back. What costs is done a chunk of many batches at a time, because a call of numpy costs as much as thirty records:

- where a record ends is known only from its length, so the lengths are followed: of many batches one record of each at a time,
  of few batches one by one (a tight loop, and jumps over stretches of records of one size, which are guessed and checked);
- headers of batches are read one by one only for what says where the next one is and whether it is to be seen;
- all other numbers are decoded for all records at once, one varint of each at a time;
- keys and values are not moved: a column is where they lie in the fetched buffer. Arrow copies them when it is asked for them.

Every number that is decoded is checked as `records.read_records` checks it. What this way of reading does not understand goes
through that one, batch by batch: so a damaged batch raises the same errors, and what is only unusual (numbers written longer
than they need to be) is read anyway.

For clients: they hold what they fetch. Needs the extra `ottla[columns]`; pyarrow is imported where Arrow is asked for. Nothing
here trusts a count or a length, and nothing does I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from ottla.errors import CorruptMessage, InvalidRecord, UnsupportedForMessageFormat
from ottla.record.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    SMALLEST_LENGTH,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    read_header,
)
from ottla.record.codecs import MAXIMUM_DECOMPRESSED, NONE, decompress
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.record.lists import sealed
from ottla.record.records import Record, encode_headers, read_headers, read_records, seal
from ottla.record.varints import decode_varint

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

# So many records are decoded at once: vectors of 512 KiB. With a quarter of them a record costs half as much again.
CHUNK_RECORDS: Final = 65_536
CHUNK_BYTES: Final = 32 * 1024 * 1024
# A batch of more is given in parts of so many: a few hundred bytes may say that there are millions.
LARGE_BATCH_RECORDS: Final = 2 * CHUNK_RECORDS
# With a request around it, below the 1 MiB of `message.max.bytes` that brokers begin with.
BATCH_BYTES: Final = 1_000_000

_SMALLEST_RECORD: Final = 7  # length, attributes, two deltas, two lengths and a count, a byte each
_LENGTH_BYTES: Final = 5
_OF_ONE_BYTE: Final = np.array([byte >> 1 ^ -(byte & 1) for byte in range(0x80)], np.int64)
_TIMESTAMP_BYTES: Final = 9  # 63 bits, so that no shift leaves an int64
_LARGEST_BASE: Final = 1 << 62  # a delta of 63 bits less its sign can be added to it
# A guess that the records behind have the size of this one costs as much as a hundred steps of the loop. Offset deltas take
# two bytes from 64 on, so nothing is guessed before.
_FIRST_GUESS: Final = 72
_WORTH_A_GUESS: Final = 256
_LONGEST_GUESS: Final = 4096
# A step through so many batches at once costs as much as their next records one by one.
_WORTH_A_STEP: Final = 48
# Headers are read for all records at once, first headers, then second ones; what a record has beyond goes one by one.
_HEADER_ROUNDS: Final = 32


_NONE: Final = np.zeros(0, np.int64)

# What is looked at of each batch: base offset, length, magic, CRC, attributes, last offset delta and count.
_LOOKED_AT: Final = struct.Struct(">qi4xbIhi30xi")
_HEADERS: Final = np.dtype(
    {
        "names": ["base_offset", "length", "attributes", "base_timestamp", "max_timestamp", "record_count"],
        "formats": [">i8", ">i4", ">i2", ">i8", ">i8", ">i4"],
        "offsets": [0, 8, 21, 27, 35, 57],
        "itemsize": HEADER_SIZE,
    }
)


def _of_two_bytes() -> tuple[Integers, NDArray[np.int32]]:
    """What two bytes (as a little-endian number) say that begin a varint: the number, if it ends with them; and how far the next
    record is from one that begins with them, or 0 where they do not say."""
    first, second = np.tile(np.arange(256), 256), np.repeat(np.arange(256), 256)
    number = np.where(first > 0x7F, (first & 0x7F) | (second & 0x7F) << 7, first)
    is_unknown = (first & 1) | ((first > 0x7F) & (second > 0x7F))
    return number, np.where(is_unknown, 0, 1 + (first > 0x7F) + (number >> 1)).astype(np.int32)


_NUMBERS, _STEPS = _of_two_bytes()


# Attributes of batches that not everybody sees, or not as they lie there.
_OUT_OF_THE_ORDINARY: Final = CODEC_MASK | CONTROL_MASK | TRANSACTIONAL_MASK


class _UnusualError(Exception):
    """Not what producers write, sound or not: `records` has to read it."""


def _strings(data: Bytes, size: int) -> NDArray[np.void]:
    """An array of what begins at each byte of a buffer, of one size: numpy copies out of it what is wanted."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, 0, (1,))


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """Byte strings, by where they lie in `data`; a length of -1 is null. As valid as the buffer that was decoded."""

    data: Bytes
    starts: Integers
    lengths: Integers

    @property
    def is_null(self) -> NDArray[np.bool_]:
        return self.lengths < 0

    def select(self, which: NDArray[np.bool_] | Integers | slice) -> ByteColumn:
        """The column of those that a mask or a slice has, or of these by their indices; nothing is copied but where they lie."""
        return ByteColumn(self.data, self.starts[which], self.lengths[which])

    def to_list(self) -> list[bytes | None]:
        """All of them, as objects: several times as fast where they have one length."""
        size, least = int(self.lengths.max(initial=-1)), int(self.lengths.min(initial=_LARGEST_BASE))
        if size < 0:
            return [None] * len(self)
        if 0 < least == size:
            strings: list[bytes | None] = _strings(self.data, size)[self.starts].tolist()
            return strings
        begin, ends = int(self.starts.min()), self.starts + np.maximum(self.lengths, 0)
        data = self.data[begin : int(ends.max())].tobytes()
        places = map(slice, (self.starts - begin).tolist(), (ends - begin).tolist())
        if least >= 0:
            return [data[place] for place in places]
        return [None if null else data[place] for null, place in zip(self.is_null.tolist(), places, strict=True)]

    def to_arrow(self) -> Any:
        """A `pyarrow.BinaryArray`, whose buffers are validity, offsets and the bytes end to end."""
        import pyarrow

        count = len(self.lengths)
        if not count:
            return pyarrow.array([], pyarrow.binary())
        # An array of all that lies between the ends, of which every second element is one of ours: `take` copies those.
        is_null = self.is_null
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = self.starts
        bounds[1::2] = self.starts + np.maximum(self.lengths, 0)
        between = pyarrow.Array.from_buffers(
            pyarrow.binary(), 2 * count - 1, [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(self.data)]
        )
        wanted = pyarrow.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32), mask=is_null if is_null.any() else None)
        return between.take(wanted)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> bytes | None:
        start, length = int(self.starts[index]), int(self.lengths[index])
        return None if length < 0 else self.data[start : start + length].tobytes()


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one partition, in the order of their offsets.

    `timestamp_types` has `CREATE_TIME` or `LOG_APPEND_TIME` of each, `header_sections` each record's headers as they are
    encoded. `next_offset` is where to continue: behind all batches that were looked at, those that were left out too, so columns
    without a record move a reader on as well.
    """

    offsets: Integers
    timestamps: Integers
    timestamp_types: NDArray[np.int8]
    keys: ByteColumn
    values: ByteColumn
    header_sections: ByteColumn
    next_offset: int

    def headers(self, index: int) -> tuple[tuple[str, bytes | None], ...]:
        """The headers of one record."""
        return read_headers(self.header_sections[index] or b"\0", 0)[0]

    def header_values(self, name: bytes, size: int) -> tuple[Integers, Sequence[bytes]]:
        """Which records have a header of that name with a value of so many bytes, and that value; of several the last one."""
        sections = self.header_sections
        least = 3 + len(name) + size  # a count and two lengths, a byte each at least
        if int(sections.lengths.max(initial=0)) < least:
            return _NONE, ()
        some = np.flatnonzero(sections.lengths >= least)
        counts, keys, values, _ = _read_header_columns(sections.select(some))
        which = np.flatnonzero((keys.lengths == len(name)) & (values.lengths == size))
        is_named = _strings(keys.data, len(name))[keys.starts[which]] == np.void(name)
        which = which[is_named]
        records = np.repeat(some, counts)[which]
        is_last = np.append(records[1:] != records[:-1], [True])[: len(records)]
        return records[is_last], _strings(values.data, size)[values.starts[which[is_last]]].tolist()

    def headers_to_arrow(self) -> Any:
        """A `pyarrow.ListArray` of structs `key: string, value: binary`. A key that is no UTF-8 has its wrong bytes replaced."""
        import pyarrow

        counts, keys, values, _ = _read_header_columns(self.header_sections)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        names = keys.to_arrow()
        try:
            names = names.cast(pyarrow.string())
        except pyarrow.ArrowInvalid:
            names = pyarrow.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pyarrow.string())
        structs = pyarrow.StructArray.from_arrays([names, values.to_arrow()], names=["key", "value"])
        return pyarrow.ListArray.from_arrays(offsets, structs)

    def to_arrow(self) -> Any:
        """A `pyarrow.RecordBatch`: offset, timestamp (ms, UTC), timestamp_type, key, value, headers."""
        import pyarrow

        return pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array(self.offsets),
                pyarrow.array(self.timestamps, pyarrow.timestamp("ms", tz="UTC")),
                pyarrow.array(self.timestamp_types),
                self.keys.to_arrow(),
                self.values.to_arrow(),
                self.headers_to_arrow(),
            ],
            names=["offset", "timestamp", "timestamp_type", "key", "value", "headers"],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, which: NDArray[np.bool_] | slice) -> Columns:
        """As `ByteColumn.select`."""
        return Columns(
            self.offsets[which],
            self.timestamps[which],
            self.timestamp_types[which],
            self.keys.select(which),
            self.values.select(which),
            self.header_sections.select(which),
            self.next_offset,
        )

    def _between(self, start_offset: int, end_offset: int | None) -> Columns:
        """Those in [start_offset, end_offset)."""
        mask = self.offsets >= start_offset
        if end_offset is not None:
            mask &= self.offsets < end_offset
        return self if mask.all() else self.select(mask)


def read_columns(
    buffer: bytes | bytearray | memoryview,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    aborted: Iterable[tuple[int, int]] = (),
    check_crcs: bool = True,
    maximum_records: int = CHUNK_RECORDS,
    maximum_decompressed: int = MAXIMUM_DECOMPRESSED,
) -> Iterator[Columns]:
    """The records of one partition's batches, as they were fetched. Markers are left out.

    Args:
        buffer: batches end to end; a last one that is cut short is left out. It may not change while columns of it are in use.
        start_offset: what lies before it is left out: a fetch begins with the batch that its offset is in.
        end_offset: what lies at or behind it is left out; None is no end.
        aborted: producer id and first offset of each aborted transaction, as a read_committed fetch lists them; their records
            are left out.
        check_crcs: whether checksums are looked at.
        maximum_records: columns have about so many; a batch is not divided, unless it has more than `LARGE_BATCH_RECORDS`.
        maximum_decompressed: the most bytes that one compressed batch may become.

    Raises:
        CorruptMessage: a wrong checksum, or a length that no batch has.
        UnsupportedForMessageFormat: magic 0 or 1, or one that is not invented yet.
        InvalidRecord: as `records.read_records`, and deltas past 64 bits.
        UnsupportedCompressionType: no codec has that number.
    """
    view = memoryview(buffer)
    waiting = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
    open_producers: set[int] = set()
    chunk: list[int] = []  # where each batch begins
    payloads: dict[int, bytes] = {}  # of those that are compressed, by where they begin
    records = size = 0
    next_offset = start_offset
    has_moved = False
    position, stop = 0, len(view)
    while position + HEADER_SIZE <= stop:
        base_offset, length, magic, crc, attributes, last_offset_delta, record_count = _LOOKED_AT.unpack_from(view, position)
        if magic != MAGIC:
            raise UnsupportedForMessageFormat(f"magic {magic} at byte {position}: only magic 2 is read")
        end = position + LOG_OVERHEAD + length
        if length < SMALLEST_LENGTH:
            raise CorruptMessage(f"the batch at byte {position}, offset {base_offset}, says {end - position} bytes")
        if end > stop:
            break
        if check_crcs and (computed := crc32c(view[position + CRC_START : end])) != crc:
            raise CorruptMessage(f"offset {base_offset}: CRC {computed:#010x} computed, {crc:#010x} in the batch")
        if end_offset is not None and base_offset >= end_offset:
            next_offset, has_moved = end_offset, True
            break
        last_offset = base_offset + last_offset_delta
        has_moved = True
        if last_offset >= next_offset:
            next_offset = last_offset + 1
        is_seen = last_offset >= start_offset
        if attributes & _OUT_OF_THE_ORDINARY:
            while waiting and waiting[-1][0] <= last_offset:
                open_producers.add(waiting.pop()[1])
            header = read_header(view, position)
            if header.is_control:
                if header.producer_id in open_producers:  # others may be no markers, as those of a Raft log
                    marker = marker_of(view[position:end])
                    if marker is not None and marker.control_type is ControlRecordType.ABORT:
                        open_producers.discard(header.producer_id)
                is_seen = False
            elif header.is_transactional and header.producer_id in open_producers:
                is_seen = False
            elif is_seen and header.codec != NONE:
                payloads[position] = decompress(header.codec, view[position + HEADER_SIZE : end], maximum_decompressed)
                size += len(payloads[position])
        if is_seen:
            chunk.append(position)
            records += record_count
            size += length
        position = end
        if records >= maximum_records or size >= CHUNK_BYTES:
            yield from _decode(view, chunk, payloads, next_offset, start_offset, end_offset)
            chunk, payloads, records, size, has_moved = [], {}, 0, 0, False
    if end_offset is not None:
        next_offset = min(next_offset, end_offset)
    if has_moved:
        yield from _decode(view, chunk, payloads, next_offset, start_offset, end_offset)


def _decode(
    view: memoryview, batches: Sequence[int], payloads: Mapping[int, bytes], next_offset: int, start_offset: int, end_offset: int | None
) -> Iterator[Columns]:
    """The columns of some batches at once, unless there is something unusual in them; then of each batch."""
    given = 0
    try:
        for columns in _vectorised(view, batches, payloads, next_offset):
            yield columns._between(start_offset, end_offset)
            given += len(columns)
        return
    except _UnusualError:
        pass
    if len(batches) > 1:
        for position in batches[:-1]:
            yield from _decode(view, [position], payloads, read_header(view, position).last_offset + 1, start_offset, end_offset)
        yield from _decode(view, batches[-1:], payloads, next_offset, start_offset, end_offset)
    else:
        header = read_header(view, batches[0])
        batch: bytes | memoryview = view[batches[0] : batches[0] + header.size]
        if batches[0] in payloads:
            batch = seal(header._replace(attributes=header.attributes & ~CODEC_MASK), payloads[batches[0]])
        records = islice(read_records(batch), given, None)
        some = list(islice(records, LARGE_BATCH_RECORDS))
        while more := list(islice(records, LARGE_BATCH_RECORDS)):
            yield _one_by_one(some, header, some[-1].offset + 1)._between(start_offset, end_offset)
            some = more
        yield _one_by_one(some, header, next_offset)._between(start_offset, end_offset)


def _vectorised(view: memoryview, batches: Sequence[int], payloads: Mapping[int, bytes], next_offset: int) -> Iterator[Columns]:
    """All records at once; those of a large batch part by part, as each takes a hundred bytes of vectors. Raises _UnusualError."""
    positions = np.array(batches, np.int64)
    # An array of what begins at each byte of the buffer: the headers are copied out of it.
    headers = np.ndarray(max(len(view) - HEADER_SIZE + 1, 0), _HEADERS, view, 0, (1,))[positions]
    fields = _BatchFields(*(headers[name].astype(np.int64) for name in _BatchFields._fields))
    data, begins, ends = _joined(view, positions, positions + LOG_OVERHEAD + headers["length"], payloads)
    bases = np.abs(np.concatenate((fields.base_offset, fields.base_timestamp)) >> 1)  # halved, the smallest one has a positive number
    held = (ends - begins) // _SMALLEST_RECORD
    # Before anything is reserved for them.
    if (fields.record_count < 0).any() or (fields.record_count > held).any() or (bases > _LARGEST_BASE >> 1).any():
        raise _UnusualError
    if len(batches) > 1 and fields.record_count.sum() > LARGE_BATCH_RECORDS:
        raise _UnusualError  # one of them is large
    octets = np.frombuffer(data, np.uint8) if len(data) else np.zeros(1, np.uint8)
    starts = _record_starts(data, octets, begins, ends, fields.record_count)
    # A record ends where the next one begins, and the last of a batch with it.
    stops = np.append(starts[1:], 0)
    has_records = fields.record_count > 0
    stops[np.cumsum(fields.record_count)[has_records] - 1] = ends[has_records]
    if len(starts) <= LARGE_BATCH_RECORDS:
        yield _columns(octets, starts, stops, fields, next_offset)
        return
    for first in range(0, len(starts), LARGE_BATCH_RECORDS):
        part = slice(first, min(first + LARGE_BATCH_RECORDS, len(starts)))
        fields = fields._replace(record_count=np.array([part.stop - first]))
        columns = _columns(octets, starts[part], stops[part], fields, next_offset)
        is_last = part.stop == len(starts)
        yield columns if is_last else replace(columns, next_offset=int(columns.offsets[-1]) + 1)


class _BatchFields(NamedTuple):
    """What the records' columns need of each batch's header."""

    base_offset: Integers
    base_timestamp: Integers
    max_timestamp: Integers
    attributes: Integers
    record_count: Integers


def _columns(octets: Bytes, starts: Integers, stops: Integers, batches: _BatchFields, next_offset: int) -> Columns:
    """The columns of the records between `starts` and `stops`. Raises _UnusualError."""
    position = _behind_lengths(octets, starts)  # of the length, which was followed
    timestamp_deltas, position = _read_varints(octets, position + 1, _TIMESTAMP_BYTES)  # behind the attributes
    offset_deltas, position = _read_varints(octets, position, _LENGTH_BYTES)
    key_lengths, key_starts = _read_varints(octets, position, _LENGTH_BYTES)
    value_lengths, value_starts = _read_varints(octets, key_starts + np.maximum(key_lengths, 0), _LENGTH_BYTES)
    sections = value_starts + np.maximum(value_lengths, 0)
    # Each position is behind the one before, and this compares the last with the end: so all were within the record.
    if len(starts) and (key_lengths.min() < -1 or value_lengths.min() < -1 or (sections >= stops).any()):
        raise _UnusualError
    header_sections = ByteColumn(octets, sections, stops - sections)
    _check_headers(header_sections)
    is_append_time = (batches.attributes & TIMESTAMP_TYPE_MASK) != 0
    counts = batches.record_count
    timestamps = np.repeat(batches.base_timestamp, counts) + timestamp_deltas
    if is_append_time.any():
        timestamps = np.where(np.repeat(is_append_time, counts), np.repeat(batches.max_timestamp, counts), timestamps)
    return Columns(
        np.repeat(batches.base_offset, counts) + offset_deltas,
        timestamps,
        np.repeat(is_append_time.astype(np.int8), counts),
        ByteColumn(octets, key_starts, key_lengths),
        ByteColumn(octets, value_starts, value_lengths),
        header_sections,
        next_offset,
    )


def _joined(
    view: memoryview, positions: Integers, ends: Integers, payloads: Mapping[int, bytes]
) -> tuple[bytes | memoryview, Integers, Integers]:
    """A buffer with the records of all, and where those of each begin and end: the fetched one, if nothing had to be decompressed."""
    begins = positions + HEADER_SIZE
    if not len(positions):
        return b"", begins, ends
    if payloads.keys().isdisjoint(positions.tolist()):
        first = int(begins[0])
        return view[first : int(ends[-1])], begins - first, ends - first
    places = zip(positions.tolist(), begins.tolist(), ends.tolist(), strict=True)
    pieces = [payloads[position] if position in payloads else view[begin:end] for position, begin, end in places]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(sizes)
    return b"".join(pieces), ends - sizes, ends


def _record_starts(data: bytes | memoryview, octets: Bytes, begins: Integers, ends: Integers, counts: Integers) -> Integers:
    """Where each record begins, of all batches. Raises _UnusualError when the last of one does not end with the batch."""
    firsts = np.cumsum(counts) - counts
    found = array("q", bytes(8 * int(counts.sum())))
    numbers = np.frombuffer(found, np.int64)
    left = ~_guess(octets, begins, ends, firsts, counts, numbers)
    begun, position = _follow_together(octets, begins[left], firsts[left], counts[left], numbers)
    left[left] = (position != ends[left]) | (begun != counts[left])
    try:
        for begin, end, first, count in zip(*(column[left].tolist() for column in (begins, ends, firsts, counts)), strict=True):
            if _follow(data, begin, first, first + count, found, numbers) != end:
                raise _UnusualError
    except (IndexError, InvalidRecord) as error:
        raise _UnusualError from error
    return numbers


def _guess(octets: Bytes, begins: Integers, ends: Integers, firsts: Integers, counts: Integers, numbers: Integers) -> NDArray[np.bool_]:
    """Notes the starts of records where all of a batch, which is not large, have the size of its first; of which batches."""
    lengths = _pairs(octets)
    sizes = _STEPS.take(lengths[np.minimum(begins, len(lengths) - 1)]) if len(lengths) else np.zeros_like(begins)
    is_alike: NDArray[np.bool_] = (counts > 0) & (counts <= CHUNK_RECORDS) & (sizes * counts == ends - begins)
    if not is_alike.any():
        return is_alike
    some = counts[is_alike]
    before = np.cumsum(some) - some
    number = np.arange(some.sum()) - np.repeat(before, some)
    size = np.repeat(sizes[is_alike], some)  # seven bytes at least, as the batch has room for so many
    starts = np.repeat(begins[is_alike], some) + number * size
    numbers[np.repeat(firsts[is_alike], some) + number] = starts
    is_alike[is_alike] = np.logical_and.reduceat(_STEPS.take(lengths[starts]) == size, before)
    return is_alike


def _pairs(octets: Bytes) -> NDArray[np.uint16]:
    """What two bytes each byte begins, as a little-endian number."""
    return np.ndarray(max(len(octets) - 1, 0), "<u2", octets, 0, (1,))


def _follow_together(octets: Bytes, begins: Integers, firsts: Integers, counts: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """Notes the starts of records, the first of each batch, the second of each and so on, while there are batches enough that have one.

    Gives how many it has noted of each, and where it came to: not to the batch's end, where a record takes three bytes to say its length.
    """
    noted, places = np.zeros_like(counts), begins.copy()
    order = np.argsort(-counts, kind="stable")
    position, first = begins[order], firsts[order]
    # How many batches have a record of each number: they are the first in that order.
    most = int(counts[order[_WORTH_A_STEP - 1]]) if len(counts) >= _WORTH_A_STEP else 0
    active = np.searchsorted(-counts[order], -np.arange(most), side="left")
    lengths = _pairs(octets)
    last = len(lengths) - 1
    for number, many in enumerate(active.tolist()):
        here = position[:many]
        numbers[first[:many] + number] = here
        here += _STEPS.take(lengths[np.minimum(here, last)])
    noted[order], places[order] = np.minimum(counts[order], most), position
    return noted, places


def _follow(data: bytes | memoryview, position: int, index: int, last: int, starts: array[int], numbers: Integers) -> int:
    """Notes the starts of records `index` to `last`, and gives where the last ends. What lies there may be nonsense."""
    before = 0
    patience = _FIRST_GUESS
    while index < last:
        stretch = min(last, index + patience) if last - index > _WORTH_A_GUESS else last
        for number in range(index, stretch):
            starts[number] = before = position
            byte = data[position]
            if byte < 0x80:
                position += 1 + (byte >> 1)
                continue
            second = data[position + 1]
            if second < 0x80:
                position += 2 + ((byte & 0x7F) >> 1) + (second << 6)
            else:
                length, position = decode_varint(data, position)
                position += max(length, 0)
        index = stretch
        if last - index > _WORTH_A_GUESS:
            alike = _alike(data, before, position - before, min(last - index, _LONGEST_GUESS))
            numbers[index : index + alike] = position + (position - before) * np.arange(alike)
            position += (position - before) * alike
            index += alike
            patience = _FIRST_GUESS if alike >= _WORTH_A_GUESS else 2 * patience
    return position


def _alike(data: bytes | memoryview, position: int, size: int, most: int) -> int:
    """How many records behind the one at `position` begin with the same length, each where the one before it ends."""
    length_bytes = 1 if data[position] < 0x80 else 2 if data[position + 1] < 0x80 else 3
    most = min(most, (len(data) - position - length_bytes) // size)
    if most <= 0:
        return 0
    octets = np.frombuffer(data, np.uint8)
    alike = most
    for index in range(position, position + length_bytes):
        differs = octets[index + size : index + size * most + 1 : size] != octets[index]
        alike = min(alike, int(differs.argmax()) if differs.any() else most)
    # Of a length of more than three bytes only those were compared; it ends there or nothing is said.
    return alike if length_bytes < 3 or data[position + 2] < 0x80 else 0


def _behind_lengths(data: Bytes, position: Integers) -> Integers:
    """Where the length at each position ends. Raises as `_read_varints`."""
    is_longer = data.take(position, mode="clip") > 0x7F
    behind = position + 1
    for _ in range(_LENGTH_BYTES):
        if not is_longer.any():
            return behind
        is_long_too = data.take(behind, mode="clip") > 0x7F
        behind += is_longer
        is_longer &= is_long_too
    raise _UnusualError


def _read_varints(data: Bytes, position: Integers, longest: int) -> tuple[Integers, Integers]:
    """The number at each position and the position behind each. Past the end of `data` its last byte is read.

    Raises:
        _UnusualError: one has more than `longest` bytes.
    """
    first = data.take(position, mode="clip")
    behind = position + 1
    is_longer = first > 0x7F
    if not is_longer.any():
        return _OF_ONE_BYTE.take(first), behind
    second = data.take(behind, mode="clip")
    value = _NUMBERS.take(first | second.astype(np.uint16) << 8)
    behind += is_longer
    rest = np.flatnonzero(is_longer & (second > 0x7F))
    for shift in range(14, 7 * longest, 7):
        if not rest.size:
            break
        byte = data.take(behind[rest], mode="clip").astype(np.int64)
        value[rest] |= (byte & 0x7F) << shift
        behind[rest] += 1
        rest = rest[byte > 0x7F]
    if rest.size:
        raise _UnusualError
    return (value >> 1) ^ -(value & 1), behind


def _check_headers(sections: ByteColumn) -> None:
    """Raises _UnusualError, unless each section is sound and ends with its record."""
    is_empty = (sections.lengths == 1) & (sections.data.take(sections.starts, mode="clip") == 0)
    if not is_empty.all():
        some = sections.select(~is_empty)
        if (_read_header_columns(some)[3] != some.starts + some.lengths).any():
            raise _UnusualError


def _read_header_columns(sections: ByteColumn) -> tuple[Integers, ByteColumn, ByteColumn, Integers]:
    """How many headers each record has, the keys and the values of all, record by record, and where each section ends.

    Raises:
        _UnusualError: they contradict themselves or continue behind their section.
    """
    data, stops = sections.data, sections.starts + sections.lengths
    counts, position = _read_varints(data, sections.starts, _LENGTH_BYTES)
    # A header takes two bytes at least, which bounds what is reserved for them.
    if len(counts) and (counts.min() < 0 or (2 * counts > stops - position).any()):
        raise _UnusualError
    firsts = np.cumsum(counts) - counts
    places = np.zeros((4, int(counts.sum())), np.int64)  # key starts and lengths, value starts and lengths
    left = np.flatnonzero(counts)
    for number in range(_HEADER_ROUNDS):
        if not left.size:
            break
        for row in (0, 2):
            lengths, begins = _read_varints(data, position[left], _LENGTH_BYTES)
            position[left] = begins + np.maximum(lengths, 0)
            places[row, firsts[left] + number] = begins
            places[row + 1, firsts[left] + number] = lengths
        if (position[left] > stops[left]).any():
            raise _UnusualError
        left = left[counts[left] > number + 1]
    for record in left.tolist():
        _follow_headers(data, record, int(stops[record]), position, places[:, firsts[record] : firsts[record] + counts[record]])
    if places.size and (places[1].min() < 0 or places[3].min() < -1):
        raise _UnusualError
    return counts, ByteColumn(data, places[0], places[1]), ByteColumn(data, places[2], places[3]), position


def _follow_headers(data: Bytes, record: int, stop: int, position: Integers, places: NDArray[np.int64]) -> None:
    """The headers of one record from the one on that the rounds came to."""
    begin = int(position[record])
    section = data[begin:stop].tobytes()
    here = 0
    try:
        for number in range(_HEADER_ROUNDS, places.shape[1]):
            for row in (0, 2):
                length, here = decode_varint(section, here)
                places[row, number], places[row + 1, number] = begin + here, length
                here += max(length, 0)
    except (IndexError, InvalidRecord) as error:
        raise _UnusualError from error
    position[record] = begin + here


def _one_by_one(records: Sequence[Record], header: BatchHeader, next_offset: int) -> Columns:
    """Columns of what was decoded as objects."""
    data = bytearray(b"\0")
    places: list[list[tuple[int, int]]] = [[], [], []]
    for record in records:
        for column, item in zip(places, (record.key, record.value, encode_headers(record.headers)), strict=True):
            column.append((len(data), -1 if item is None else len(item)))
            data += item or b""
    octets = np.frombuffer(bytes(data), np.uint8)
    keys, values, sections = (ByteColumn(octets, *np.array(column, np.int64).reshape(-1, 2).T.copy()) for column in places)
    try:
        offsets = np.array([record.offset for record in records], np.int64)
        timestamps = np.array([record.timestamp for record in records], np.int64)
    except OverflowError as error:
        raise InvalidRecord(f"offset {header.base_offset}: an offset or a timestamp in the batch does not fit 64 bits") from error
    types = np.full(len(records), header.timestamp_type, np.int8)
    return Columns(offsets, timestamps, types, keys, values, sections, next_offset)


def build_batches(
    timestamps: Integers,
    values: Any,
    keys: Any = None,
    headers: Any = None,
    *,
    codec: int = NONE,
    level: int | None = None,
    maximum_bytes: int = BATCH_BYTES,
) -> Iterator[bytes]:
    """Whole batches of records in the order in which they are given, as a producer sends them: offsets from 0, no producer id.

    Args:
        timestamps: of each record, in ms.
        values: a `pyarrow` array of binary or string, with nulls.
        keys: likewise; None is no keys.
        headers: a list array of structs `key`, `value`, as `Columns.headers_to_arrow` gives it; None is no headers.
        codec: 0 to 4, see `codecs`.
        level: the codec's own compression level.
        maximum_bytes: the most that a batch has before it is compressed. A record that is larger gets a batch for itself.

    Raises:
        InvalidRecord: a header without a key, columns of different lengths, or timestamps that are 2^63 ms apart.
    """
    import pyarrow

    count = len(timestamps)
    columns = [None if column is None else _binary(column) for column in (keys, values)]
    sections = None if headers is None else _encode_header_lists(headers)
    for column in (*columns, sections):
        if column is not None and len(column) != count:
            raise InvalidRecord(f"{count} timestamps, and a column of {len(column)}")
    if not count:
        return
    span = int(timestamps.max()) - int(timestamps.min())
    if span >= 1 << 63:
        raise InvalidRecord(f"timestamps are {span} ms apart")
    # The most that each record can take; only deltas may turn out to be shorter.
    sizes = np.full(count, 1 + int(_varint_sizes(np.array([span]))[0] + _varint_sizes(np.array([count]))[0]), np.int64)
    for column in columns:
        lengths = _lengths(column, count)
        sizes += _varint_sizes(lengths) + np.maximum(lengths, 0)
    sizes += 1 if sections is None else _lengths(sections, count)
    sizes += _varint_sizes(sizes)
    ends = np.cumsum(sizes)
    tails = pyarrow.scalar(b"\0", pyarrow.binary()) if sections is None else sections
    first = 0
    while first < count:
        room = maximum_bytes - HEADER_SIZE + (int(ends[first - 1]) if first else 0)
        behind = max(first + 1, int(np.searchsorted(ends, room, side="right")))
        size = behind - first
        some = [None if column is None else column.slice(first, size) for column in columns]
        tail = tails if sections is None else tails.slice(first, size)
        yield _build(timestamps[first:behind], some[0], some[1], tail, codec, level)
        first = behind


def _build(timestamps: Integers, keys: Any, values: Any, tails: Any, codec: int, level: int | None) -> bytes:
    import pyarrow

    count = len(timestamps)
    deltas = timestamps - timestamps[0]
    offset_deltas = np.arange(count, dtype=np.int64)
    key_lengths, value_lengths = _lengths(keys, count), _lengths(values, count)
    sizes = np.ones(count, np.int64) if isinstance(tails, pyarrow.Scalar) else _lengths(tails, count)
    sizes += 1 + np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    for numbers in (deltas, offset_deltas, key_lengths, value_lengths):
        sizes += _varint_sizes(numbers)
    attributes = np.zeros(count, np.int64)  # whose varint is the byte 0
    parts = [_varints(sizes, attributes, deltas, offset_deltas, key_lengths), keys, _varints(value_lengths), values, tails]
    records = _concatenated([part for part in parts if part is not None])
    _, bounds, octets = records.buffers()
    payload = memoryview(octets)[: int(np.frombuffer(bounds, np.int32)[records.offset + count])]
    return sealed(payload, count, int(timestamps[0]), int(timestamps.max()), codec, level)


def _binary(column: Any) -> Any:
    import pyarrow

    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    return column.cast(pyarrow.binary())


def _encode_header_lists(headers: Any) -> Any:
    """Each record's headers as they are encoded, from their count on."""
    import pyarrow
    from pyarrow import compute

    if isinstance(headers, pyarrow.ChunkedArray):
        headers = headers.combine_chunks()
    counts = compute.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = headers.flatten()
    keys, values = (_binary(compute.struct_field(entries, index)) for index in (0, 1))
    if keys.null_count:
        raise InvalidRecord("a record header without a key")
    key_lengths, value_lengths = _lengths(keys, len(entries)), _lengths(values, len(entries))
    encoded = _concatenated([_varints(key_lengths), keys, _varints(value_lengths), values])
    bounds = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(bounds), encoded)
    return _concatenated([_varints(counts), compute.binary_join(lists, b"")])


def _concatenated(parts: Sequence[Any]) -> Any:
    """The bytes of all columns, row by row, end to end. Nulls have none."""
    from pyarrow import compute

    return compute.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _lengths(column: Any, count: int) -> Integers:
    """Of each byte string; -1 where it is null."""
    from pyarrow import compute

    if column is None:
        return np.full(count, -1, np.int64)
    lengths: Integers = compute.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _zigzag(numbers: Integers) -> NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _varint_sizes(numbers: Integers) -> Integers:
    left = _zigzag(numbers) >> np.uint64(7)
    sizes = np.ones(len(numbers), np.int64)
    while left.any():
        sizes += left > 0
        left >>= np.uint64(7)
    return sizes


def _varints(*columns: Integers) -> Any:
    """A `pyarrow` array with the varints of each row, one of each column, end to end."""
    import pyarrow

    sizes = [_varint_sizes(numbers) for numbers in columns]
    bounds = np.zeros(len(columns[0]) + 1, np.int64)
    np.cumsum(sum(sizes), out=bounds[1:])
    octets = np.empty(int(bounds[-1]), np.uint8)
    position = bounds[:-1].copy()
    for numbers, size in zip(columns, sizes, strict=True):
        left = _zigzag(numbers)
        for number in range(int(size.max(initial=0))):
            has = size > number
            byte = (left & np.uint64(0x7F)) | (size > number + 1).astype(np.uint64) << np.uint64(7)
            octets[position[has] + number] = byte[has]
            left = left >> np.uint64(7)
        position += size
    buffers = [None, pyarrow.py_buffer(bounds.astype(np.int32)), pyarrow.py_buffer(octets)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), len(columns[0]), buffers)
