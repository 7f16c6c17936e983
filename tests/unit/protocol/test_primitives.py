"""The wire's small types, as the protocol guide and KIP-482 define them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRequest
from ottla.protocol.primitives import compact_string, read_array_length, read_string, read_uvarint, skip_tagged_fields, string, uvarint


@pytest.mark.parametrize(("value", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")])
def test_unsigned_varints_are_those_of_protocol_buffers(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(memoryview(bytes.fromhex("ee" + encoded)), 1) == (value, 1 + len(encoded) // 2)


@given(st.integers(0, 2**32 - 1))
def test_a_varint_is_read_as_written(value: int) -> None:
    assert read_uvarint(memoryview(uvarint(value)), 0) == (value, len(uvarint(value)))


def test_a_varint_that_does_not_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="longer than 5 bytes"):
        read_uvarint(memoryview(b"\xff" * 6), 0)


@given(st.text(max_size=200))
def test_strings_of_both_forms(text: str) -> None:
    for compact, encode in ((True, compact_string), (False, string)):
        encoded = encode(text)
        assert read_string(memoryview(encoded), 0, len(encoded), compact=compact) == (text, len(encoded))


def test_null_strings_of_both_forms() -> None:
    assert read_string(memoryview(b"\0"), 0, 1, compact=True) == (None, 1)
    assert read_string(memoryview(b"\xff\xff"), 0, 2, compact=False) == (None, 2)


@pytest.mark.parametrize("encoded", [compact_string("flights"), string("flights")])
def test_a_string_does_not_go_beyond_its_frame_though_the_buffer_does(encoded: bytes) -> None:
    buffer = memoryview(encoded + b"the next frame")
    for end in range(len(encoded)):
        with pytest.raises(InvalidRequest):
            read_string(buffer, 0, end, compact=encoded[0] != 0)


def test_a_string_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read_string(memoryview(b"\x03\xff\xfe"), 0, 3, compact=True)


@pytest.mark.parametrize("count", [-1, 0, 5])
def test_counts_that_the_frame_can_hold(count: int) -> None:
    old, compact = struct.pack(">i", count) + bytes(10), uvarint(count + 1) + bytes(10)
    assert read_array_length(memoryview(old), 0, len(old), compact=False, element_size=2) == (count, 4)
    assert read_array_length(memoryview(compact), 0, len(compact), compact=True, element_size=2) == (count, 1)


@pytest.mark.parametrize("count", [6, 2**31 - 1, -2, -(2**31)])
def test_counts_that_the_frame_can_not_hold_are_refused(count: int) -> None:
    encoded = struct.pack(">i", count) + bytes(10)
    with pytest.raises(InvalidRequest):
        read_array_length(memoryview(encoded), 0, len(encoded), compact=False, element_size=2)
    if count > 0:
        encoded = uvarint(count + 1) + bytes(10)
        with pytest.raises(InvalidRequest):
            read_array_length(memoryview(encoded), 0, len(encoded), compact=True, element_size=2)


@given(st.dictionaries(st.integers(0, 2**31), st.binary(max_size=200), max_size=5))
def test_tagged_fields_are_skipped_whatever_they_are(fields: dict[int, bytes]) -> None:
    encoded = uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in fields.items())
    assert skip_tagged_fields(memoryview(encoded + b"more"), 0, len(encoded)) == len(encoded)
    if fields:
        with pytest.raises(InvalidRequest):
            skip_tagged_fields(memoryview(encoded + b"more"), 0, len(encoded) - 1)


@given(st.binary(max_size=30))
def test_random_bytes_are_tagged_fields_or_refused(encoded: bytes) -> None:
    with contextlib.suppress(InvalidRequest, IndexError):
        assert skip_tagged_fields(memoryview(encoded), 0, len(encoded)) <= len(encoded)
