"""The few Kafka requests that the benchmarks send, encoded and decoded with struct.

Independent of `ottla.protocol` on purpose: a mistake there should show here, and a load generator may not pay for
importing what it measures. Produce 7 and 9, Fetch 11 and 12 (the last versions before and the first of flexible
encoding), CreateTopics 2, Metadata 4, ListOffsets 1, ApiVersions 0.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19

CLIENT_ID: Final = b"bench"
NO_TAGS: Final = b"\0"
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FRAME_PREFIX_SIZE: Final = 4


class UnexpectedAnswer(Exception):
    """The server answered with an error, or with bytes that are no answer to the request."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch answer; the records are left where they lie in the answer."""

    partition: int
    error_code: int
    high_watermark: int
    records_position: int
    records_size: int


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """One partition of a Fetch request."""

    partition: int
    offset: int
    max_bytes: int


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint(number: int) -> bytes:
    """Zigzag, as the fields of a record are."""
    return unsigned_varint(number << 1 if number >= 0 else (-number << 1) - 1)


def string(text: bytes) -> bytes:
    return INT16.pack(len(text)) + text


def compact_string(text: bytes) -> bytes:
    return unsigned_varint(len(text) + 1) + text


def record_batch(messages: int, message_size: int) -> bytes:
    """An uncompressed magic-2 batch of `messages` values without keys, all with the time of now (retention looks at it)."""
    now_ms = time.time_ns() // 1_000_000
    value = bytes(ord("a") + index % 26 for index in range(message_size))
    records = bytearray()
    for offset_delta in range(messages):
        record = b"\0" + varint(0) + varint(offset_delta) + varint(-1) + varint(message_size) + value + varint(0)
        records += varint(len(record)) + record
    body = struct.pack(">hiqqqhii", 0, messages - 1, now_ms, now_ms, -1, -1, -1, messages) + records
    return struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body


def frame(api_key: int, api_version: int, body: bytes, *, flexible: bool = False, correlation_id: int = 1) -> bytes:
    header = struct.pack(">hhi", api_key, api_version, correlation_id) + string(CLIENT_ID) + (NO_TAGS if flexible else b"")
    return INT32.pack(len(header) + len(body)) + header + body


def produce_request(version: int, topic: str, partition: int, batch: bytes, *, acks: int = 1, timeout_ms: int = 30_000) -> bytes:
    """A whole frame with one batch for one partition; version 7 or 9."""
    name = topic.encode()
    if version == 7:
        body = INT16.pack(-1) + struct.pack(">hii", acks, timeout_ms, 1) + string(name)
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        return frame(PRODUCE, 7, body)
    if version == 9:
        body = b"\0" + struct.pack(">hi", acks, timeout_ms) + unsigned_varint(2) + compact_string(name) + unsigned_varint(2)
        body += INT32.pack(partition) + unsigned_varint(len(batch) + 1) + batch + NO_TAGS * 3
        return frame(PRODUCE, 9, body, flexible=True)
    raise ValueError(f"Produce {version} is not written here, only 7 and 9")


def produce_answer(version: int, answer: bytes) -> tuple[int, int]:
    """(error code, base offset) of the one partition in an answer; `answer` starts with the frame's length."""
    if version == 7:
        name_size = INT16.unpack_from(answer, 12)[0]
        position = 14 + name_size + 4 + 4
    else:
        # length:4 correlation_id:4 tags:1 topics:1 then a compact name shorter than 127 bytes
        position = 10
        position += answer[position] + 1 + 4
    return INT16.unpack_from(answer, position)[0], INT64.unpack_from(answer, position + 2)[0]


def fetch_request(
    version: int, topic: str, reads: Sequence[PartitionRead], *, max_bytes: int, max_wait_ms: int = 500, min_bytes: int = 1
) -> bytes:
    """A whole frame without a fetch session, as a plain consumer would send it; version 11 or 12."""
    name = topic.encode()
    head = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1)
    if version == 11:
        parts = [struct.pack(">iiqqi", read.partition, -1, read.offset, -1, read.max_bytes) for read in reads]
        body = head + INT32.pack(1) + string(name) + INT32.pack(len(parts)) + b"".join(parts) + INT32.pack(0) + string(b"")
        return frame(FETCH, 11, body)
    if version == 12:
        parts = [struct.pack(">iiqiqi", read.partition, -1, read.offset, -1, -1, read.max_bytes) + NO_TAGS for read in reads]
        topics = unsigned_varint(2) + compact_string(name) + unsigned_varint(len(parts) + 1) + b"".join(parts) + NO_TAGS
        return frame(FETCH, 12, head + topics + unsigned_varint(1) + compact_string(b"") + NO_TAGS, flexible=True)
    raise ValueError(f"Fetch {version} is not written here, only 11 and 12")


class Reader:
    """Walks through an answer."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def int16(self) -> int:
        return self._fixed(INT16)

    def int32(self) -> int:
        return self._fixed(INT32)

    def int64(self) -> int:
        return self._fixed(INT64)

    def _fixed(self, layout: struct.Struct) -> int:
        number: int = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return number

    def unsigned_varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def string(self) -> bytes:
        return self.take(max(self.int16(), 0))

    def compact_string(self) -> bytes:
        return self.take(max(self.unsigned_varint() - 1, 0))

    def take(self, size: int) -> bytes:
        taken = self.data[self.position : self.position + size]
        self.position += size
        return taken

    def skip_tags(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())


def fetch_answer(version: int, answer: bytes, *, head_only: bool = False) -> list[FetchedPartition]:
    """Every partition of an answer about one topic; `answer` starts with the frame's length.

    With `head_only` the answer may be cut after the first partition's fields, and only that one is given.
    """
    flexible = version >= 12
    reader = Reader(answer, 8)
    if flexible:
        reader.skip_tags()
    reader.int32()  # throttle_time_ms
    error_code = reader.int16()
    if error_code:
        raise UnexpectedAnswer(f"Fetch answered with error {error_code}")
    reader.int32()  # session_id
    fetched = []
    for _ in range(reader.unsigned_varint() - 1 if flexible else reader.int32()):
        reader.compact_string() if flexible else reader.string()
        for _ in range(reader.unsigned_varint() - 1 if flexible else reader.int32()):
            partition, partition_error, high_watermark = reader.int32(), reader.int16(), reader.int64()
            reader.int64(), reader.int64()  # last_stable_offset, log_start_offset
            for _ in range(max(0, reader.unsigned_varint() - 1 if flexible else reader.int32())):
                reader.int64(), reader.int64()
                if flexible:
                    reader.skip_tags()
            reader.int32()  # preferred_read_replica
            size = max(0, reader.unsigned_varint() - 1 if flexible else reader.int32())
            fetched.append(FetchedPartition(partition, partition_error, high_watermark, reader.position, size))
            if head_only:
                return fetched
            reader.position += size
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    return fetched


def api_versions_request() -> bytes:
    return frame(API_VERSIONS, 0, b"")


def api_versions_answer(answer: bytes) -> dict[int, tuple[int, int]]:
    """API key -> (lowest version, highest version)."""
    reader = Reader(answer, 8)
    error_code = reader.int16()
    if error_code:
        raise UnexpectedAnswer(f"ApiVersions answered with error {error_code}")
    return {reader.int16(): (reader.int16(), reader.int16()) for _ in range(reader.int32())}


def create_topic_request(topic: str, partitions: int, configs: Mapping[str, str], *, replication_factor: int = 1) -> bytes:
    body = INT32.pack(1) + string(topic.encode()) + struct.pack(">ihi", partitions, replication_factor, 0) + INT32.pack(len(configs))
    for name, value in configs.items():
        body += string(name.encode()) + string(value.encode())
    return frame(CREATE_TOPICS, 2, body + struct.pack(">ib", 60_000, 0))


def create_topic_answer(answer: bytes) -> tuple[int, str]:
    """(error code, message) of the one topic asked for."""
    reader = Reader(answer, 8)
    reader.int32()
    reader.int32()
    reader.string()
    return reader.int16(), reader.string().decode()


def metadata_request(topics: Iterable[str]) -> bytes:
    names = [string(topic.encode()) for topic in topics]
    return frame(METADATA, 4, INT32.pack(len(names)) + b"".join(names) + b"\1")


def metadata_answer(answer: bytes) -> dict[str, list[int]]:
    """Topic -> the partitions that have a leader."""
    reader = Reader(answer, 12)
    for _ in range(reader.int32()):
        reader.int32(), reader.string(), reader.int32(), reader.string()
    reader.string()
    reader.int32()
    led: dict[str, list[int]] = {}
    for _ in range(reader.int32()):
        reader.int16()
        partitions = led.setdefault(reader.string().decode(), [])
        reader.position += 1
        for _ in range(reader.int32()):
            error_code, partition, leader = reader.int16(), reader.int32(), reader.int32()
            for _ in range(2):
                reader.take(4 * reader.int32())
            if not error_code and leader >= 0:
                partitions.append(partition)
    return led


def latest_offset_request(topic: str, partitions: Sequence[int]) -> bytes:
    body = struct.pack(">ii", -1, 1) + string(topic.encode()) + INT32.pack(len(partitions))
    return frame(LIST_OFFSETS, 1, body + b"".join(struct.pack(">iq", partition, -1) for partition in partitions))


def latest_offset_answer(answer: bytes) -> dict[int, int]:
    """Partition -> its latest offset."""
    reader = Reader(answer, 8)
    reader.int32()
    reader.string()
    latest = {}
    for _ in range(reader.int32()):
        partition, error_code, _, offset = reader.int32(), reader.int16(), reader.int64(), reader.int64()
        if error_code:
            raise UnexpectedAnswer(f"ListOffsets answered with error {error_code} for partition {partition}")
        latest[partition] = offset
    return latest
