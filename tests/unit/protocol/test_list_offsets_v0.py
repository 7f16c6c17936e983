"""ListOffsets version 0, against bytes built from Kafka 0.8's definition of OffsetRequest and OffsetResponse."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRequest
from ottla.protocol.list_offsets_v0 import ListOffsetsRequestV0, PartitionOffsetsV0, PartitionV0, TopicV0, decode_request, encode_response

REQUEST = struct.pack(">iih7siiqiiqi", -1, 1, 7, b"flights", 2, 0, -1, 1, 3, 1700000000000, 10)


def test_a_request_is_read() -> None:
    """replica_id, then topics of (partition, time, max offsets)."""
    assert decode_request(memoryview(REQUEST)) == ListOffsetsRequestV0(
        -1, [TopicV0("flights", [PartitionV0(0, -1, 1), PartitionV0(3, 1700000000000, 10)])]
    )


def test_a_response_lists_the_offsets_of_each_partition() -> None:
    """No throttle time, no timestamps: those came with later versions."""
    expected = struct.pack(">ih7siihiqqihi", 1, 7, b"flights", 2, 0, 0, 2, 120, 0, 3, 3, 0)
    assert encode_response([("flights", [PartitionOffsetsV0(0, 0, [120, 0]), PartitionOffsetsV0(3, 3, [])])]) == expected


def test_a_body_cut_at_any_byte_is_refused() -> None:
    for body in [REQUEST[:size] for size in range(len(REQUEST))]:
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body))


@given(st.binary(max_size=60))
def test_random_bytes_are_a_request_or_an_invalid_request(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_request(memoryview(body))
