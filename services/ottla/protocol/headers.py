"""The request header, versions 1 and 2, and which versions of an API are flexible."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.protocol.primitives import skip_tagged_fields

# api_key:2 api_version:2 correlation_id:4 client_id_length:2; the client id keeps the old string form in v2 too.
REQUEST_HEADER: Final = struct.Struct(">hhih")


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
        if flexible:
            body = skip_tagged_fields(buffer, body, end)
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"a frame of {end - position} bytes ends inside the request header") from error
    if body > end:
        raise InvalidRequest(f"a frame of {end - position} bytes ends inside the request header")
    return RequestHeader(api_key, api_version, correlation_id, client_id, body)
