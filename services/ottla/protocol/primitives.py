"""The request header and the wire's small types, read at a position: what the hand-written codecs share.

Each reader takes a buffer and a position and gives the value and the position after it. Nothing is trusted: a length
is compared with what is there before anything is built from it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

# api_key:2 api_version:2 correlation_id:4 client_id_length:2; the client id keeps the old string form in v2 too.
REQUEST_HEADER: Final = struct.Struct(">hhih")

MAX_VARINT_BYTES: Final = 5
# Kafka's generated readers refuse more in either form; what is longer fits no answer of an older version and no record.
MAX_STRING_BYTES: Final = 0x7FFF
# One section has a handful in any version of any message; Kafka's own are numbered to 9.
MAX_TAGGED_FIELDS: Final = 32


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits (KIP-482)."""
    value = buffer[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for index in range(1, MAX_VARINT_BYTES):
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise InvalidRequest(f"a varint at byte {position} is longer than {MAX_VARINT_BYTES} bytes")


def uvarint(value: int) -> bytes:
    """`value` (0 or more) as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_string(buffer: memoryview, position: int, end: int, *, compact: bool) -> tuple[str | None, int]:
    """A (nullable) string, in the old form with an INT16 length or the compact form of flexible versions."""
    if compact:
        length, position = read_uvarint(buffer, position)
        length -= 1
    else:
        length = INT16.unpack_from(buffer, position)[0]
        position += 2
    if length < 0:
        return None, position
    stop = position + length
    if length > MAX_STRING_BYTES or stop > end:
        raise InvalidRequest(f"a string of {length} bytes at byte {position} of {end}")
    try:
        return str(buffer[position:stop], "utf-8"), stop
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"a string at byte {position} is not UTF-8") from error


def read_array_length(buffer: memoryview, position: int, end: int, *, compact: bool, element_size: int) -> tuple[int, int]:
    """An array's element count; -1 for null. A count below, or one that the rest of the frame cannot hold, is refused.

    Args:
        element_size: the least bytes that one element takes.
    """
    if compact:
        count, position = read_uvarint(buffer, position)
        count -= 1
    else:
        count = INT32.unpack_from(buffer, position)[0]
        position += 4
    if count < -1 or count * element_size > end - position:
        raise InvalidRequest(f"an array of {count} elements at byte {position} of {end}")
    return count, position


def read_tagged_fields(buffer: memoryview, position: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
    """The tagged fields of a section, each as tag, position and size, and the position after them (KIP-482)."""
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidRequest(f"{count} tagged fields at byte {position}")
    fields = []
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        if position + size > end:
            raise InvalidRequest(f"tagged field {tag} has {size} bytes and {end - position} are left")
        fields.append((tag, position, size))
        position += size
    return fields, position


def skip_tagged_fields(buffer: memoryview, position: int, end: int) -> int:
    """The position after a section of tagged fields, whatever they are."""
    return position + 1 if buffer[position] == 0 else read_tagged_fields(buffer, position, end)[1]


def array_length(count: int, *, compact: bool) -> bytes:
    return uvarint(count + 1) if compact else INT32.pack(count)


def compact_string(text: str) -> bytes:
    """A string in the compact form."""
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def string(text: str) -> bytes:
    """A string in the old form."""
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(buffer: memoryview, position: int, end: int, *, flexible: bool) -> RequestHeader:
    """The header at `position` of a frame that ends at `end`.

    Args:
        flexible: whether this API's version has header version 2, with tagged fields.

    Raises:
        InvalidRequest: the frame is too short for it.
    """
    try:
        api_key, api_version, correlation_id, length = REQUEST_HEADER.unpack_from(buffer, position)
        body = position + REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            if body + length > end:
                raise InvalidRequest(f"a client id of {length} bytes in a frame of {end - position}")
            client_id = str(buffer[body : body + length], "utf-8", "replace")
            body += length
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"a frame of {end - position} bytes ends inside the request header") from error
    if flexible:
        body = behind_header_tags(buffer, position, body, end)
    elif body > end:
        raise InvalidRequest(f"a frame of {end - position} bytes ends inside the request header")
    return RequestHeader(api_key, api_version, correlation_id, client_id, body)


def behind_header_tags(buffer: memoryview, start: int, position: int, end: int) -> int:
    """Where the body begins in the frame [start, end) whose header has tagged fields at `position`.

    Raises:
        InvalidRequest: the frame is too short for them.
    """
    try:
        body = skip_tagged_fields(buffer, position, end)
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"a frame of {end - start} bytes ends inside the request header") from error
    if body > end:
        raise InvalidRequest(f"a frame of {end - start} bytes ends inside the request header")
    return body
