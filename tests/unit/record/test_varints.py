"""Variable-length integers, against the vectors of Protocol Buffers' encoding guide and by round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRecord
from ottla.record.varints import decode_varint, encode_varint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_numbers_have_their_known_bytes(value: int, encoded: str) -> None:
    """Computed by hand from the definition of sint32 and sint64: zig-zag, then seven bits a byte, low bits first."""
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_every_64_bit_number_survives_wherever_it_stands(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_that_is_cut_short_is_an_index_error(value: int) -> None:
    encoded = encode_varint(value)
    for size in range(len(encoded)):
        with pytest.raises(IndexError):
            decode_varint(encoded[:size], 0)


@pytest.mark.parametrize("encoded", [b"\xff" * 10, b"\x80" * 11, b"\xff" * 9 + b"\x02"])
def test_a_number_longer_than_64_bits_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        decode_varint(encoded, 0)


def test_a_number_that_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        encode_varint(2**63)
