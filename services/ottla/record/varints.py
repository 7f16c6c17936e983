"""Zig-zag variable-length integers, as Protocol Buffers' sint32 and sint64: the numbers inside a record.

0, -1, 1, -2 … become 0, 1, 2, 3 …, seven bits a byte, low bits first, the top bit saying that more follow.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import InvalidRecord

_LONGEST: Final = 10  # bytes of a 64-bit number
_MINIMUM: Final = -(1 << 63)
_MAXIMUM: Final = (1 << 63) - 1


def encode_varint(value: int) -> bytes:
    """The shortest encoding of a signed 64-bit number."""
    if -_SMALL <= value < _SMALL:
        return _ENCODED[value]
    if not _MINIMUM <= value <= _MAXIMUM:
        raise InvalidRecord(f"{value} does not fit 64 bits")
    return _encode(value)


def decode_varint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it.

    Raises:
        IndexError: the buffer ends within the number.
        InvalidRecord: it is longer than 64 bits.
    """
    value = 0
    for shift in range(0, _LONGEST * 7, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), position
    raise InvalidRecord(f"the variable-length number that ends at {position} is longer than 64 bits")


def _encode(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


# Deltas and lengths are mostly small: a list look-up instead of a loop. Negative numbers index from its end.
_SMALL: Final = 1024
_ENCODED: Final = [_encode(value) for value in range(_SMALL)] + [_encode(value) for value in range(-_SMALL, 0)]
