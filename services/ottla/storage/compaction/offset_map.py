"""The last offset of each key in the part of a log that is being cleaned, in memory of a known size.

A slot is three 64-bit numbers in one array: two halves of the key's 16-byte hash and the offset, 24 bytes whatever the
key. Slots are found by open addressing; where one is taken the second half of the hash says how far to step, so that a
map nine tenths full is still looked up in a few steps.

The hash is BLAKE2b and not MD5: two keys with one MD5 can be made by anybody, and anyone who may write one of them could
then make the cleaner drop the other.

It is for one cleaning and lives in the process that cleans. Keys come a batch at a time: a call for each record would
cost as much as the look-up.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from math import isqrt
from typing import Final

HASH_SIZE: Final = 16
SLOT_SIZE: Final = 24
FEWEST_SLOTS: Final = 11
NOT_FOUND: Final = -1


class OffsetMap:
    """Offsets by key. It never forgets a key and never grows.

    Args:
        memory: how many bytes it may take.
        load_factor: which part of the slots may be taken.
        expected: how many keys there can be at most, when that is known: a small log gets a small map.
    """

    __slots__ = ("_slots", "_table", "capacity", "count")

    def __init__(self, memory: int, load_factor: float, expected: int | None = None) -> None:
        slots = max(memory // SLOT_SIZE, FEWEST_SLOTS)
        if expected is not None:
            wanted = max(2 * expected, FEWEST_SLOTS)  # half full at most
            while wanted < slots and int(_prime_up_to(wanted) * load_factor) < expected:
                wanted *= 2
            slots = min(slots, wanted)
        # Any step visits every slot when their number is a prime.
        self._slots: Final = _prime_up_to(slots)
        self._table: Final = array("Q", [0]) * (3 * self._slots)
        self.capacity: Final = max(min(int(self._slots * load_factor), self._slots - 1), 1)
        self.count = 0

    def put(self, keys: Sequence[bytes], offsets: Sequence[int]) -> bool:
        """Notes the offsets of keys, later ones over earlier ones; False when one did not fit, and those after it are left out."""
        table, slots = self._table, self._slots
        length = 3 * slots
        halves = iter(_halves(keys))
        for first, second, offset in zip(halves, halves, offsets, strict=False):
            place = first % slots * 3
            found = table[place]
            if found != first or table[place + 1] != second:
                step = 0
                while found:
                    if not step:
                        step = (second % (slots - 1) + 1) * 3
                    place += step
                    if place >= length:
                        place -= length
                    found = table[place]
                    if found == first and table[place + 1] == second:
                        break
                else:
                    if self.count == self.capacity:
                        return False
                    self.count += 1
                    table[place] = first
                    table[place + 1] = second
            table[place + 2] = offset
        return True

    def latest(self, keys: Sequence[bytes]) -> list[int]:
        """The last offset of each key, `NOT_FOUND` for one that was not put."""
        table, slots = self._table, self._slots
        length = 3 * slots
        halves = iter(_halves(keys))
        offsets = []
        for first, second in zip(halves, halves, strict=True):
            place = first % slots * 3
            found = table[place]
            if found == first and table[place + 1] == second:
                offsets.append(table[place + 2])
                continue
            if found:
                step = (second % (slots - 1) + 1) * 3
                while found:
                    place += step
                    if place >= length:
                        place -= length
                    found = table[place]
                    if found == first and table[place + 1] == second:
                        break
            offsets.append(table[place + 2] if found else NOT_FOUND)
        return offsets


def _halves(keys: Sequence[bytes]) -> tuple[int, ...]:
    """Both halves of each key's hash, one after the other. The first is never 0, which stands for an empty slot."""
    halves = struct.unpack(f"<{2 * len(keys)}Q", b"".join([blake2b(key, digest_size=HASH_SIZE).digest() for key in keys]))
    if 0 in halves:
        return tuple(half or 1 for half in halves)
    return halves


def _prime_up_to(number: int) -> int:
    """The largest prime that is not above a number."""
    number -= 1 - number % 2
    while any(number % divisor == 0 for divisor in range(3, isqrt(number) + 1, 2)):
        number -= 2
    return number
