"""Request headers 1 and 2 against kio's."""

from __future__ import annotations

import contextlib
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from ottla.errors import InvalidRequest
from ottla.protocol.primitives import RequestHeader, decode_request_header, uvarint

SHORT = st.integers(-(2**15), 2**15 - 1)
INT = st.integers(-(2**31), 2**31 - 1)


@given(SHORT, SHORT, INT, st.none() | st.text(max_size=50), st.booleans(), st.binary(max_size=20))
def test_headers_are_read_as_kio_writes_them(
    key: int, version: int, correlation: int, client: str | None, flexible: bool, body: bytes
) -> None:
    out = io.BytesIO()
    schema = HeaderV2 if flexible else HeaderV1
    header = schema(request_api_key=i16(key), request_api_version=i16(version), correlation_id=i32(correlation), client_id=client)
    entity_writer(schema)(out, header)
    encoded = out.getvalue()
    frame = b"before" + encoded + body + b"the next frame"
    end = 6 + len(encoded) + len(body)
    assert decode_request_header(memoryview(frame), 6, end, flexible=flexible) == RequestHeader(
        key, version, correlation, client, 6 + len(encoded)
    )
    for cut in range(6, 6 + len(encoded)):
        with pytest.raises(InvalidRequest):
            decode_request_header(memoryview(frame), 6, cut, flexible=flexible)
        with pytest.raises(InvalidRequest):
            decode_request_header(memoryview(frame[:cut]), 6, cut, flexible=flexible)


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    encoded = struct.pack(">hhih", 18, 4, 7, 2) + b"me" + b"\2" + uvarint(5) + b"\1x" + uvarint(1000) + b"\3abc"
    assert decode_request_header(memoryview(encoded), 0, len(encoded), flexible=True) == RequestHeader(18, 4, 7, "me", len(encoded))


def test_a_client_id_that_is_not_utf_8_still_names_somebody() -> None:
    encoded = struct.pack(">hhih", 18, 0, 7, 2) + b"\xff!"
    assert decode_request_header(memoryview(encoded), 0, len(encoded), flexible=False).client_id == "�!"


@given(st.binary(max_size=40), st.booleans())
def test_random_bytes_are_a_header_or_an_invalid_request(frame: bytes, flexible: bool) -> None:
    with contextlib.suppress(InvalidRequest):
        assert decode_request_header(memoryview(frame), 0, len(frame), flexible=flexible).body_position <= len(frame)
