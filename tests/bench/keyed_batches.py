"""Batches of records with keys, made fast: a template whose keys, offset and checksum are set again for each."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from ottla.record.records import Record, build_batch

KEY: Final = struct.Struct(">Q")
_INT64: Final = struct.Struct(">q")
_UINT32: Final = struct.Struct(">I")
_CRC: Final = 17
_COVERED: Final = 21
# The template's own keys: found in it by these bytes, which nothing else of it has.
_MARK: Final = 0xA55A_F00D_0000_0000


class KeyedBatches:
    """Batches of so many records of one size.

    Args:
        records: in each batch.
        value_size: of each value, which are all the same.
        timestamp: of all records, in milliseconds.
    """

    def __init__(self, records: int, value_size: int, timestamp: int) -> None:
        value = bytes(value_size)
        self.records = records
        self._batch = bytearray(build_batch([Record(number, timestamp, KEY.pack(_MARK + number), value) for number in range(records)]))
        self._places = [self._batch.index(KEY.pack(_MARK + number)) for number in range(records)]

    @property
    def size(self) -> int:
        return len(self._batch)

    def made(self, keys: Iterable[int], base_offset: int = 0) -> bytes:
        """A batch with these keys."""
        batch = self._batch
        pack_into = KEY.pack_into
        for place, key in zip(self._places, keys, strict=True):
            pack_into(batch, place, key)
        _INT64.pack_into(batch, 0, base_offset)
        _UINT32.pack_into(batch, _CRC, crc32c(memoryview(batch)[_COVERED:]))
        return bytes(batch)


def every_key_twice(keys: int, records: int) -> Iterator[list[int]]:
    """For batches of `records`: each key in order, and then each again in another order. `keys` is a multiple of `records`."""
    for first in range(0, keys, records):
        yield list(range(first, first + records))
    step = 7_919
    while keys % step == 0:
        step += 2
    for first in range(0, keys, records):
        yield [number * step % keys for number in range(first, first + records)]
