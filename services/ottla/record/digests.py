"""Digests of multisets of messages: equal digests mean equal multisets, and two sketches subtract to the messages that differ.

A message is two 64-bit words. Its *content* is xxh3 of key, value and timestamp, or of its id alone (`message_ids`); *placed* is its
partition and offset with its content.
A digest is the sum modulo 2^128 of well-mixed identities, so it is additive over hosts, partitions and windows, in any order, and a message
that comes twice counts twice. A sketch is an invertible Bloom lookup table whose fields are sums rather than XORs, for the same reason:
the difference of two gives the exact words of some tens of messages (Goodrich and Mitzenmacher, 2011). Offsets alone have sums of their
powers, which a range of any length has in closed form: so a batch's header is enough.

All this stands against accident and not against a forger: nothing is keyed. Needs the extra `ottla[audit]`. Nothing here does I/O.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from ottla.errors import InvalidRecord
from ottla.record.columnar import Columns, Integers
from ottla.record.message_ids import ID_BYTES, ID_SIZE
from ottla.record.varints import encode_varint

Words = NDArray[np.uint64]

MASK_64: Final = (1 << 64) - 1
MASK_128: Final = (1 << 128) - 1
OFFSET_BITS: Final = 44  # an offset has 44 bits of a placed identity's first word, its partition the 20 above
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1

# Two messages that share their cells in every table cannot be told apart: with four tables one pair in a million.
_TABLES: Final = 4
_TABLE_CELLS: Final = 32
_CELL_MASK: Final = np.uint64(_TABLE_CELLS - 1)
CELLS: Final = _TABLES * _TABLE_CELLS
_SKETCH_BYTES: Final = 4 * 8 * CELLS
# A sketch is decoded cell by cell; a forged one must not turn in circles.
_MOST_DECODED: Final = 4 * CELLS

_A, _B, _C, _D = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93))


_A_THIRD: Final = np.uint64(0xAAAAAAAAAAAAAAAB)  # three times this is 1 modulo 2^64


def mix(words: Words) -> Words:
    """The finaliser of SplitMix64, a bijection: near words become far ones."""
    words = words + _A
    words = (words ^ (words >> np.uint64(30))) * _B
    words = (words ^ (words >> np.uint64(27))) * _C
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Identities:
    """Two words of each message."""

    first: Words
    second: Words

    def __len__(self) -> int:
        return len(self.first)

    def select(self, some: NDArray[np.bool_] | Integers | slice) -> Identities:
        """Those that a mask has, or a slice, or these by their indices."""
        return Identities(self.first[some], self.second[some])


def digest_of(key: bytes | None, value: bytes | None, message_id: bytes | None = None) -> bytes:
    """xxh3 of a key and a value, or of an id alone: sixteen bytes, of which `contents` makes identities.

    The key, the value's length as a record has it, and the value: in a batch these lie side by side, so that one call hashes them.
    """
    if message_id is not None:
        return xxh3_128_digest(message_id)
    if value is None:
        return xxh3_128_digest((key or b"") + _NULL)
    return xxh3_128_digest((key or b"") + encode_varint(len(value)) + value)


_NULL: Final = b"\1"  # in the place of a null value and its length
NAMED: Final = -2  # in the place of a key's length: the digest is of the message's id


class _Lengths(dict[int, bytes]):
    """Of values, as records have them: kept, as most values have one of few lengths."""

    def __missing__(self, length: int) -> bytes:
        encoded = encode_varint(length)
        if len(self) < _MOST_LENGTHS:
            self[length] = encoded
        return encoded


_MOST_LENGTHS: Final = 1 << 16
_LENGTHS: Final = _Lengths()


def digests_of(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], ids: Sequence[bytes | None] | None = None
) -> tuple[bytes, Integers, Integers]:
    """`digest_of` each, end to end; the lengths of keys, and of both: what `contents` needs, and what there is to count.

    Args:
        ids: that messages have in a header `ottla-id`, by which they are known then.
    """
    count = len(values)
    joined: Iterator[bytes]
    lengths: Iterable[bytes]
    data: Sequence[Any] = values
    try:
        value_lengths = list(map(len, data))
        if count and value_lengths.count(value_lengths[0]) == count:
            lengths = repeat(_LENGTHS[value_lengths[0]], count)
        else:
            lengths = map(_LENGTHS.__getitem__, value_lengths)
    except TypeError:  # some are null
        value_lengths = [0 if value is None else len(value) for value in values]
        lengths = [_NULL if value is None else _LENGTHS[len(value)] for value in values]
        data = [value or b"" for value in values]
    sizes = np.array(value_lengths, np.int64)
    if keys.count(None) == count:
        key_lengths = np.full(count, -1, np.int64)
        joined = map(add, lengths, data)
    else:
        key_lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
        joined = map(b"".join, zip([key or b"" for key in keys], lengths, data, strict=True))
        sizes += np.maximum(key_lengths, 0)
    digests = map(xxh3_128_digest, joined)
    if ids is None:
        return b"".join(digests), key_lengths, sizes
    named = [number for number, message_id in enumerate(ids) if message_id is not None]
    return _named(list(digests), key_lengths, named, [message_id for message_id in ids if message_id is not None]), key_lengths, sizes


def _named(digests: list[bytes], key_lengths: Integers, which: Sequence[int], ids: Sequence[bytes]) -> bytes:
    """Digests, end to end, of which those of messages that have an id are of that. Marks these among the lengths of keys."""
    key_lengths[list(which)] = NAMED
    for number, message_id in zip(which, ids, strict=True):
        digests[number] = xxh3_128_digest(message_id)
    return b"".join(digests)


def contents(digests: bytes, timestamps: Integers, key_lengths: Integers) -> Identities:
    """The content identities of messages.

    Args:
        digests: `digest_of` each, end to end.
        timestamps: of each, in ms.
        key_lengths: of each; -1 is null, which is another key than an empty one, and `NAMED` has an id: its time is no part of it.
    """
    if int(key_lengths.min(initial=0)) == NAMED:
        timestamps = np.where(key_lengths == NAMED, 0, timestamps)
    words = np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)
    times = mix(timestamps.astype(np.uint64))
    return Identities(mix(words[0::2] ^ times), mix(words[1::2] + times * _D + key_lengths.astype(np.uint64)))


def contents_of_columns(columns: Columns) -> Identities:
    """The content identities of records that were decoded by columns."""
    keys, values = columns.keys, columns.values
    key_ends = keys.starts + np.maximum(keys.lengths, 0)
    value_ends = values.starts + np.maximum(values.lengths, 0)
    between = values.starts - key_ends
    lengths = ((values.lengths << 1) ^ (values.lengths >> 63)).view(np.uint64)
    sizes = np.ones(len(columns), np.int64)
    for bits in (7, 14, 21, 28):
        sizes += lengths >> np.uint64(bits) > 0
    if bool((between == sizes).all()):
        view = memoryview(columns.values.data)  # type: ignore[arg-type]  # an array of bytes is a buffer
        digests = [xxh3_128_digest(view[begin:end]) for begin, end in zip(keys.starts.tolist(), value_ends.tolist(), strict=True)]
    else:  # lengths that are written longer than they need to be, or records that were decoded one by one
        digests = [digest_of(keys[index], values[index]) for index in range(len(columns))]
    named, ids = columns.header_values(ID_BYTES, ID_SIZE)
    if not ids:
        return contents(b"".join(digests), columns.timestamps, keys.lengths)
    key_lengths = keys.lengths.copy()
    return contents(_named(digests, key_lengths, named.tolist(), ids), columns.timestamps, key_lengths)


def placed(identities: Identities, partition: int, offsets: Integers) -> Identities:
    """Contents at their partition and offsets."""
    places = np.uint64((partition & 0xFFFFF) << OFFSET_BITS) | (offsets.astype(np.uint64) & np.uint64(_OFFSET_MASK))
    return Identities(places, mix(identities.first ^ (identities.second << np.uint64(1))))


def place_of(first: int) -> tuple[int, int]:
    """Partition and offset in a placed identity's first word."""
    return first >> OFFSET_BITS, first & _OFFSET_MASK


def offsets_of(identities: Identities) -> Integers:
    """The offsets of placed identities."""
    return (identities.first & np.uint64(_OFFSET_MASK)).astype(np.int64)


def digest(identities: Identities) -> int:
    """The sum of them, well mixed, modulo 2^128."""
    low = mix(identities.first ^ mix(identities.second))
    high = mix(identities.second + mix(identities.first ^ _D))
    return (_sum(low) + (_sum(high) << 64)) & MASK_128


def find_run(identities: Identities, total: int, count: int) -> int | None:
    """Where so many of these, one after the other, have a digest; None if nowhere. Costs a look at each, however long the run is."""
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mix(identities.first ^ mix(identities.second)), dtype=np.uint64)))
    if not 0 < count < len(sums):
        return None
    for start in np.flatnonzero(sums[count:] - sums[:-count] == np.uint64(total & MASK_64)).tolist():
        if digest(Identities(identities.first[start : start + count], identities.second[start : start + count])) == total:
            return int(start)
    return None


def _sum(words: Words) -> int:
    """Without losing a carry: of halves, as a sum of 2^32 of those has 64 bits."""
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    return int(low.sum(dtype=np.uint64)) + (int(high.sum(dtype=np.uint64)) << 32)


class OffsetSums(NamedTuple):
    """The sums of offsets and of their squares and cubes, each modulo 2^64.

    Multisets of as many offsets that agree in all three differ in four or more, and in a pattern (Prouhet, Tarry and Escott).
    """

    first: int = 0
    second: int = 0
    third: int = 0

    def plus(self, other: OffsetSums) -> OffsetSums:
        """Of both multisets together."""
        return OffsetSums(
            (self.first + other.first) & MASK_64, (self.second + other.second) & MASK_64, (self.third + other.third) & MASK_64
        )

    def minus(self, other: OffsetSums) -> OffsetSums:
        """Of this multiset without the other."""
        return OffsetSums(*((mine - theirs) & MASK_64 for mine, theirs in zip(self, other, strict=True)))

    @classmethod
    def of_range(cls, first: int, last: int) -> OffsetSums:
        """Of all offsets in [first, last]."""
        return cls(*_power_sums(last)).minus(cls(*_power_sums(first - 1)))

    @classmethod
    def of_ranges(cls, firsts: Integers, lasts: Integers, edges: Integers) -> Iterator[OffsetSums]:
        """Of all offsets in ranges, in groups: each begins at the next of the edges."""
        below, upto = _power_sums_of_all(firsts - 1), _power_sums_of_all(lasts)
        sums = (np.add.reduceat(more - less, edges).tolist() for more, less in zip(upto, below, strict=True))
        return map(cls, *sums)

    @classmethod
    def of(cls, offsets: Integers) -> OffsetSums:
        """Of these."""
        words = offsets.astype(np.uint64)
        squares = words * words
        return cls(int(words.sum(dtype=np.uint64)), int(squares.sum(dtype=np.uint64)), int((squares * words).sum(dtype=np.uint64)))


def _power_sums(last: int) -> tuple[int, int, int]:
    """Of 0 to last."""
    triangle = last * (last + 1) // 2
    return triangle, triangle * (2 * last + 1) // 3, triangle * triangle


def _power_sums_of_all(lasts: Integers) -> tuple[Words, Words, Words]:
    """The same of each, modulo 2^64: what is divided is even, and to divide by three is to multiply by its inverse."""
    words, one = lasts.astype(np.uint64), np.uint64(1)
    is_odd = words & one
    triangles = (words >> (one - is_odd)) * ((words + one) >> is_odd)
    return triangles, triangles * (words + words + one) * _A_THIRD, triangles * triangles


@dataclass(frozen=True, slots=True)
class Difference:
    """What one multiset has and another has not.

    Attributes:
        items: first word, second word and how often: above zero what is missing from the other, below zero what it has more often.
        is_whole: whether these are all. False: there are more than a sketch can name.
    """

    items: tuple[tuple[int, int, int], ...]
    is_whole: bool

    @property
    def missing(self) -> tuple[tuple[int, int, int], ...]:
        """What the other lacks."""
        return tuple(item for item in self.items if item[2] > 0)

    @property
    def surplus(self) -> tuple[tuple[int, int, int], ...]:
        """What the other has beyond."""
        return tuple(item for item in self.items if item[2] < 0)


class Sketch:
    """Cells of sums: how many, their first words, their second words, and a check of both."""

    __slots__ = ("cells",)

    def __init__(self, cells: NDArray[np.uint64] | None = None) -> None:
        self.cells: NDArray[np.uint64] = np.zeros((4, CELLS), np.uint64) if cells is None else cells

    def add(self, identities: Identities) -> None:
        """Takes these in."""
        if not self.cells.flags.writeable:  # as they were read
            self.cells = self.cells.copy()
        indices, checks = _places(identities)
        ones = np.uint64(1)
        for index in indices:
            for cells, words in zip(self.cells, (ones, identities.first, identities.second, checks), strict=True):
                np.add.at(cells, index, words)  # type: ignore[arg-type]  # numpy has no overload for it

    def merge(self, other: Sketch) -> None:
        """Takes in what another one has."""
        if self.cells.flags.writeable:
            self.cells += other.cells
        else:
            self.cells = self.cells + other.cells

    def copy(self) -> Sketch:
        """Another one with the same cells."""
        return Sketch(self.cells.copy())

    def __sub__(self, other: Sketch) -> Sketch:
        return Sketch(self.cells - other.cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and bool((self.cells == other.cells).all())

    __hash__ = None  # type: ignore[assignment]  # as Python says that a class cannot be hashed

    def decode(self) -> Difference:
        """What is in it, as far as it can be named."""
        cells = [list(cell) for cell in zip(*(row.tolist() for row in self.cells), strict=True)]
        found: list[tuple[int, int, int]] = []
        waiting = list(range(CELLS))
        while waiting and len(found) < _MOST_DECODED:
            item = _pure(cells, waiting.pop())
            if item is None:
                continue
            first, second, times = item
            found.append(item)
            indices, check = _place_of_one(first, second)
            for index in indices:
                cells[index] = [(had - word * times) & MASK_64 for had, word in zip(cells[index], (1, first, second, check), strict=True)]
            waiting += indices
        return Difference(tuple(sorted(found)), not any(map(any, cells)))

    def to_bytes(self) -> bytes:
        """Small where there is little in it; else the cells as they are, as sums are noise, and the counter reads many."""
        cells = self.cells.astype("<u8", copy=False).tobytes()
        return zlib.compress(cells, 1) if 2 * np.count_nonzero(self.cells[0]) < CELLS else cells

    @classmethod
    def from_bytes(cls, data: bytes) -> Sketch:
        """The sketch of `to_bytes`.

        Raises:
            InvalidRecord: it is none, or one of another size.
        """
        cells = data if len(data) == _SKETCH_BYTES else _inflated(data)
        return cls(np.frombuffer(cells, "<u8").astype(np.uint64, copy=False).reshape(4, CELLS))


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        cells = inflater.decompress(data, _SKETCH_BYTES + 1)
    except zlib.error as error:
        raise InvalidRecord(f"a sketch that cannot be read: {error}") from error
    if len(cells) != _SKETCH_BYTES or not inflater.eof:
        raise InvalidRecord(f"a sketch of another size than {CELLS} cells")
    return cells


def _places(identities: Identities) -> tuple[list[NDArray[np.int64]], Words]:
    """A cell in each table, and the check."""
    spread = mix(identities.first + mix(identities.second ^ _C))
    indices = [(spread >> np.uint64(16 * table) & _CELL_MASK).astype(np.int64) + table * _TABLE_CELLS for table in range(_TABLES)]
    return indices, mix(spread ^ identities.second)


def _place_of_one(first: int, second: int) -> tuple[list[int], int]:
    """As `_places`, of one message: a sketch is decoded message by message, for which numpy is slow."""
    spread = _mix_one(first + _mix_one(second ^ int(_C)))
    indices = [(spread >> 16 * table) % _TABLE_CELLS + table * _TABLE_CELLS for table in range(_TABLES)]
    return indices, _mix_one(spread ^ second)


def _mix_one(word: int) -> int:
    word = (word + int(_A)) & MASK_64
    word = (word ^ (word >> 30)) * int(_B) & MASK_64
    word = (word ^ (word >> 27)) * int(_C) & MASK_64
    return word ^ (word >> 31)


def _pure(cells: list[list[int]], index: int) -> tuple[int, int, int] | None:
    """The one item of a cell, however often it is in it; None if it is empty or has several."""
    count, first, second, check = cells[index]
    times = count - (1 << 64) if count >> 63 else count
    if not times:
        return None
    for one in _divided(first, times):
        for another in _divided(second, times):
            indices, found = _place_of_one(one, another)
            if found * times & MASK_64 == check and index in indices:
                return one, another, times
    return None


def _divided(total: int, times: int) -> tuple[int, ...]:
    """The words that, so many times, have this sum modulo 2^64: one for an odd number, 2^k for a multiple of 2^k, up to four."""
    twos = (times & -times).bit_length() - 1
    if twos > 2 or total & ((1 << twos) - 1):
        return ()
    modulus = 1 << (64 - twos)
    word = (total >> twos) * pow(times >> twos, -1, modulus) % modulus
    return tuple(word + modulus * number for number in range(1 << twos))


_GROWTH: Final = 1.01 / 0.99
_LOG_GROWTH: Final = math.log(_GROWTH)
_MOST_BUCKETS: Final = 2048


@dataclass(slots=True)
class Latencies:
    """How many took how long, to 1 %: buckets whose bounds grow by 2 %, so that histograms add (Masson and others, DDSketch, 2019)."""

    buckets: dict[int, int] = field(default_factory=dict)

    def add_all(self, milliseconds: Integers) -> None:
        """All of these."""
        if not len(milliseconds):
            return
        logs = np.log(np.maximum(milliseconds, 1)) / _LOG_GROWTH
        found = np.where(milliseconds < 1, 0, np.minimum(1 + np.floor(logs), _MOST_BUCKETS)).astype(np.int64)
        counts = np.bincount(found)
        for bucket in np.flatnonzero(counts).tolist():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + int(counts[bucket])

    def merge(self, other: Latencies) -> None:
        """Those of another one too."""
        buckets = self.buckets
        for bucket, count in other.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count

    def lengths(self) -> Iterator[tuple[float, int]]:
        """How long, in milliseconds, and how many took that."""
        return ((float(_LENGTHS_OF_BUCKETS[bucket]), count) for bucket, count in self.buckets.items())

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Latencies:
        """From buckets and counts.

        Raises:
            InvalidRecord: a bucket that there is not, or a count below zero.
        """
        buckets = dict(pairs)
        if buckets and (min(buckets) < 0 or max(buckets) > _MOST_BUCKETS or min(buckets.values()) < 0):
            raise InvalidRecord("latencies with a bucket out of bounds or a count below zero")
        return cls(buckets)


_LENGTHS_OF_BUCKETS: Final = np.array(
    [0.0, *(_GROWTH ** (bucket - 1) * 2 * _GROWTH / (_GROWTH + 1) for bucket in range(1, _MOST_BUCKETS + 1))]
)


def quantiles(
    histograms: Integers, buckets: Integers, counts: Integers, number: int, shares: Iterable[float]
) -> Iterator[list[float | None]]:
    """Of so many `Latencies`, for each share a list in milliseconds; None of nothing.

    Args:
        histograms: of which one each bucket is; they may have a bucket several times.
    """
    keys = histograms * (_MOST_BUCKETS + 1) + buckets
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        histograms, buckets, counts = histograms[order], buckets[order], counts[order]
    seen = np.append(0, np.cumsum(counts))
    bounds = np.searchsorted(histograms, np.arange(number + 1))
    before, totals = seen[bounds[:-1]], np.diff(seen[bounds])
    for share in shares:
        wanted = before + (share * (totals - 1)).astype(np.int64)
        places = np.minimum(np.searchsorted(seen[1:], wanted, side="right"), max(len(buckets) - 1, 0))
        lengths = _LENGTHS_OF_BUCKETS[buckets[places]].tolist() if len(buckets) else [0.0] * number
        yield [length if total else None for length, total in zip(lengths, totals.tolist(), strict=True)]


def by_window(timestamps: Integers, window_ms: int) -> Iterator[tuple[int, NDArray[np.bool_] | None]]:
    """The windows that these times lie in, each with the mask of those that do; None: all of them. Times before 1970 lie in one."""
    if not len(timestamps):
        return
    timestamps = np.maximum(timestamps, -1)  # the start of a window far below takes more bits than there are
    starts = timestamps - timestamps % window_ms
    if int(starts.min()) == int(starts.max()):
        yield int(starts[0]), None
        return
    for start in np.unique(starts).tolist():
        yield start, starts == start
