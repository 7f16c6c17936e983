"""A whole magic-2 batch out of lists: what a producer's thread has collected, without an object of its own for each record.

    batch = build_batch_of_lists([b"first", b"second"], [(0, 1_700_000_000_000)])

The pieces of all records are looked up and joined by functions that are written in C: a tenth of a microsecond a record, where
`records.build_batch` takes two. It needs neither numpy nor Arrow, as `columnar.build_batches` does.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Final

from ottla.model import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from ottla.record.batch import BatchHeader
from ottla.record.codecs import NONE, compress
from ottla.record.records import seal
from ottla.record.varints import encode_varint

Times = Sequence[tuple[int, int]]

NO_HEADERS: Final = b"\0"
_NULL_KEY: Final = b"\1"
# Where the varint of an offset gets longer.
_LONGER_OFFSETS: Final = (1 << 6, 1 << 13, 1 << 20, 1 << 27)
_MOST_KEPT: Final = 1 << 12


class _KeptVarints(dict[int, bytes]):
    """Varints of lengths, behind something that stands before each: kept, as most values have one of few lengths."""

    def __init__(self, before: bytes = b"") -> None:
        super().__init__()
        self._before = before

    def __missing__(self, number: int) -> bytes:
        encoded = self._before + encode_varint(number)
        if len(self) < _MOST_KEPT:
            self[number] = encoded
        return encoded


class _Heads(dict[int, bytes]):
    """What a record without key and headers begins with, by the length of its value; before it the end of the record before."""

    def __init__(self, middle: bytes, size: int) -> None:
        super().__init__()
        self._middle, self._size = middle, size

    def __missing__(self, length: int) -> bytes:
        size = self._size + len(_KEYS_AND_LENGTHS[length]) + length + len(NO_HEADERS)
        head = self[length] = NO_HEADERS + encode_varint(size) + self._middle
        return head


_LENGTHS: Final = _KeptVarints()
_KEYS_AND_LENGTHS: Final = _KeptVarints(_NULL_KEY)
_offsets: list[bytes] = []


def build_batch_of_lists(
    values: Sequence[bytes | None],
    times: Times,
    keys: Sequence[bytes | None] | None = None,
    sections: Sequence[bytes] | None = None,
    *,
    codec: int = NONE,
) -> bytes:
    """A batch of these records, as a producer sends it: offsets from 0 on, no producer id.

    Args:
        values: one at least; None is a null.
        times: from which index on records have which timestamp, in ms; the first index is 0.
        keys: of each record; None is none at all.
        sections: the headers of each, by `records.encode_headers`; None is none at all.
        codec: 0 to 4, see `codecs`.

    Raises:
        InvalidRecord: timestamps are 2^63 ms apart.
    """
    count = len(values)
    try:
        lengths = list(map(len, values))  # type: ignore[arg-type]  # a null has none
    except TypeError:
        payload = _general(values, times, keys, sections)
    else:
        payload = _plain(values, lengths, times) if keys is None and sections is None else _general(values, times, keys, sections)
    return sealed(payload, count, times[0][1], max(timestamp for _, timestamp in times), codec)


def sealed(payload: bytes | memoryview, count: int, base_timestamp: int, max_timestamp: int, codec: int, level: int | None = None) -> bytes:
    """A batch of so many records, as a producer sends it, that are encoded and not compressed yet."""
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=2,
        crc=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    return seal(header, payload if codec == NONE else compress(codec, payload, level))


def _offsets_below(count: int) -> list[bytes]:
    """The varints of these offsets, and maybe of more.

    Each producer of a program has a thread of its own: none changes a list that another may be reading.
    """
    global _offsets
    offsets = _offsets
    if len(offsets) < count:
        offsets = _offsets = [encode_varint(offset) for offset in range(max(count, 2 * len(offsets)))]
    return offsets


def _plain(values: Sequence[bytes | None], lengths: list[int], times: Times) -> bytes:
    offsets = _offsets_below(len(values))
    parts: list[bytes | None] = [b""] * (4 * len(values))
    for first, behind, middle in _runs(times, len(values)):
        run, some = slice(4 * first, 4 * behind, 4), lengths[first:behind]
        heads, between = _Heads(middle, len(middle) + len(offsets[first])), _KEYS_AND_LENGTHS
        if some.count(some[0]) == len(some):
            parts[run] = repeat(heads[some[0]], len(some))
            parts[4 * first + 2 : 4 * behind : 4] = repeat(between[some[0]], len(some))
        else:
            parts[run] = map(heads.__getitem__, some)
            parts[4 * first + 2 : 4 * behind : 4] = map(between.__getitem__, some)
    parts[1::4] = offsets[: len(values)]
    parts[3::4] = values
    parts[0] = (parts[0] or b"")[len(NO_HEADERS) :]
    parts.append(NO_HEADERS)
    return b"".join(parts)  # type: ignore[arg-type]  # none is null here


def _general(values: Sequence[bytes | None], times: Times, keys: Sequence[bytes | None] | None, sections: Sequence[bytes] | None) -> bytes:
    count = len(values)
    keys = [None] * count if keys is None else keys
    sections = [NO_HEADERS] * count if sections is None else sections
    key_lengths, value_lengths = (list(map(_LENGTHS.__getitem__, _lengths(column))) for column in (keys, values))
    columns = [
        _offsets_below(count)[:count],
        key_lengths,
        [key or b"" for key in keys],
        value_lengths,
        [value or b"" for value in values],
        sections,
    ]
    sizes = list(map(sum, zip(*(map(len, column) for column in columns), strict=True)))
    parts: list[bytes] = [b""] * (7 * count)
    for first, behind, middle in _runs(times, count):
        lengths = map(len(middle).__add__, sizes[first:behind])
        parts[7 * first : 7 * behind : 7] = [encoded + middle for encoded in map(_LENGTHS.__getitem__, lengths)]
    for number, column in enumerate(columns, start=1):
        parts[number::7] = column
    return b"".join(parts)


def _lengths(column: Iterable[bytes | None]) -> Iterator[int]:
    return (-1 if item is None else len(item) for item in column)


def _runs(times: Times, count: int) -> Iterator[tuple[int, int, bytes]]:
    """Stretches of records whose timestamp is the same, as is the size of their offset; with what stands between a record's size and its
    offset: its attributes and the time."""
    base = times[0][1]
    begins = dict.fromkeys([*(index for index, _ in times), *(index for index in _LONGER_OFFSETS if index < count)])
    given, middle = dict(times), b""
    for first, behind in pairwise([*sorted(begins), count]):
        if first in given:
            middle = b"\0" + encode_varint(given[first] - base)
        yield first, behind, middle
