"""Leaders and replicas for the tests of following: the wire's bytes and the leader's sessions are real, the logs are lists.

A record is an offset, the epoch it was written in, and a value; that is also what its bytes on the wire are.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, cast
from uuid import UUID, uuid5

from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.fetch_sessions import Key as SessionKey
from ottla.broker.replication.following import Follow, FollowerPosition
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import NONE, ApiError, CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch, UnknownTopicId
from ottla.model import BrokerId, BrokerRegistration, Endpoint, TopicPartition
from ottla.protocol import fetch, fetch_client, list_offsets_client, messages
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchAnswer, FetchPartition, FetchRequest
from ottla.protocol.primitives import decode_request_header
from ottla.testing.clock import ManualClock
from ottla.wire.fetch_session import Key

SETTINGS = BrokerSettings.from_properties(
    {
        "broker.id": "1",
        "log.dirs": "nowhere",
        "listeners": "PLAINTEXT://:0",
        "replica.fetch.backoff.ms": "20",
        # So long that a test which has to wait for it fails.
        "replica.fetch.wait.max.ms": "30000",
    }
)
_RECORD = struct.Struct(">qii")


class Rec(NamedTuple):
    offset: int
    epoch: int
    value: bytes


def written(records: Iterable[Rec]) -> bytes:
    return b"".join(_RECORD.pack(record.offset, record.epoch, len(record.value)) + record.value for record in records)


def read_records(data: memoryview) -> list[Rec]:
    found, position = [], 0
    while position < len(data):
        offset, epoch, size = _RECORD.unpack_from(data, position)
        position += _RECORD.size
        found.append(Rec(offset, epoch, bytes(data[position : position + size])))
        position += size
    return found


@dataclass
class LogOf:
    """A partition's log: what a leader and a follower have alike."""

    records: list[Rec] = field(default_factory=list)
    start: int = 0
    end: int = 0
    high_watermark: int = 0

    def append(self, epoch: int, *values: bytes) -> None:
        for value in values:
            self.records.append(Rec(self.end, epoch, value))
            self.end += 1

    def cut(self, offset: int) -> None:
        self.records = [record for record in self.records if record.offset < offset]
        self.end = offset
        self.high_watermark = min(self.high_watermark, offset)

    def begin_at(self, offset: int) -> None:
        self.records = [record for record in self.records if record.offset >= offset]
        self.start = offset
        if self.end < offset:
            self.end = offset

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        known = [record for record in self.records if record.epoch <= epoch]
        return (known[-1].epoch, known[-1].offset + 1) if known else (epoch, self.start)


class Replica:
    """A `FollowingReplica` over a list."""

    def __init__(self, settings: TopicSettings | None = None) -> None:
        self.log = LogOf()
        self.leader_epoch = 0
        self.settings = settings or TopicSettings()
        self.must_checkpoint_truncation = False
        self.settled: Callable[[], ApiError | None] = lambda: None
        self.before_append: Callable[[], None] = lambda: None
        self.told = 0  # times that the leader's answer was taken in

    async def checkpoint_truncation(self) -> None:
        await asyncio.sleep(0)
        error = self.settled()
        if error is not None:
            raise error
        self.must_checkpoint_truncation = False

    def fetch_position(self) -> FollowerPosition:
        log = self.log
        return FollowerPosition(log.end, log.records[-1].epoch if log.records else -1, self.leader_epoch, log.start)

    def append_as_follower(self, records: memoryview, leader_epoch: int, high_watermark: int, log_start_offset: int) -> bool:
        if leader_epoch != self.leader_epoch:
            return False
        self.before_append()
        for record in read_records(records):
            if record.offset < self.log.end:
                raise CorruptMessage(f"offset {record.offset} came, {self.log.end} is next")
            self.log.records.append(record)
            self.log.end = record.offset + 1
        self.log.high_watermark = max(self.log.high_watermark, min(high_watermark, self.log.end))
        if log_start_offset > self.log.start:
            self.log.begin_at(log_start_offset)
        self.told += 1
        return True

    def truncate_for(self, diverging_epoch: int, end_offset: int) -> bool:
        own = self.log.end_offset_for(diverging_epoch)[1] if diverging_epoch >= 0 else self.log.end
        self.log.cut(min(own, end_offset, self.log.end))
        return True

    def restart_at(self, offset: int) -> bool:
        self.log.records.clear()
        self.log.start = self.log.end = self.log.high_watermark = offset
        return True


@dataclass
class Led:
    """A partition at its leader."""

    log: LogOf
    epoch: int = 0
    error: int = NONE  # instead of anything else
    is_damaged: bool = False  # what it sends


class Leader:
    """A broker that others follow. Give it partitions, and change them: who waits for them is answered."""

    def __init__(self, broker_id: int = 2, slots: int = 100) -> None:
        self.broker_id = BrokerId(broker_id)
        self.led: dict[Key, Led] = {}
        self.names: dict[UUID, str] = {}
        self.requests: list[FetchRequest] = []
        self.listed = 0  # ListOffsets requests
        self.connections: list[Connection] = []
        self.refuses = False  # connections
        self.max_answer = 1 << 30
        self.sessions = FetchSessions(slots, ManualClock(), Random(broker_id), lambda key: True)
        self.gate = asyncio.Event()  # while it is closed, answers are held back
        self.gate.set()
        self.held_back = 0  # answers that wait for it
        self.session_error: ApiError | None = None
        self._news = asyncio.Event()

    def registration(self, port: int = 9092, epoch: int = 0) -> BrokerRegistration:
        return BrokerRegistration(self.broker_id, (Endpoint("PLAINTEXT", f"host-{self.broker_id}", port),), broker_epoch=epoch)

    def lead(self, topic_partition: TopicPartition, log: LogOf | None = None, epoch: int = 0) -> Led:
        led = self.led[topic_id(topic_partition.topic), topic_partition.partition] = Led(log or LogOf(), epoch)
        self.names[topic_id(topic_partition.topic)] = topic_partition.topic
        self.wake()
        return led

    def append(self, led: Led, *values: bytes, is_committed: bool = True) -> None:
        led.log.append(led.epoch, *values)
        if is_committed:
            led.log.high_watermark = led.log.end
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        self._news.set()
        self._news = asyncio.Event()

    @property
    def open_connections(self) -> int:
        return sum(not connection.is_closed for connection in self.connections)

    async def connect(self, endpoint: Endpoint) -> Connection:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError(f"{endpoint.host} refuses")
        connection = Connection(self, endpoint)
        self.connections.append(connection)
        return connection

    def kill_connections(self) -> None:
        for connection in self.connections:
            connection.kill(ConnectionResetError(f"broker {self.broker_id} was killed"))

    async def answer(self, frame: memoryview) -> bytes:
        header = decode_request_header(frame, 0, len(frame), flexible=True)
        body = frame[header.body_position :].toreadonly()
        if header.api_key == ApiKey.LIST_OFFSETS:
            answered = self._list(header.correlation_id, body)
        else:
            assert (header.api_key, header.api_version) == (ApiKey.FETCH, fetch_client.VERSION)
            answered = struct.pack(">ib", header.correlation_id, 0) + await self._fetch(fetch.decode_request(body, header.api_version))
        self.held_back += 1
        await self.gate.wait()
        self.held_back -= 1
        return answered

    async def _fetch(self, request: FetchRequest) -> bytes:
        self.requests.append(request)
        try:
            if self.session_error is not None:
                raise self.session_error
            scope = self.sessions.begin(request, True)
        except ApiError as error:
            return self._encoded(error.code, 0, [])
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            news = self._news
            left = min(request.max_bytes, self.max_answer)
            answers = []
            for key, asked in scope.partitions:
                answer = self._read(key, asked, left)
                left -= len(answer.records or b"")
                answers.append((key, answer))
            immediate = any(each.records or each.error_code or each.diverging_epoch for _, each in answers) or not answers
            remaining = deadline - asyncio.get_running_loop().time()
            if immediate or remaining <= 0:
                return self._encoded(NONE, scope.session_id, scope.select(answers))
            # Not `wait_for`, which until Python 3.12 loses a cancellation that comes together with the news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await news.wait()

    def _read(self, key: Key, asked: FetchPartition, left: int) -> FetchAnswer:
        led = self.led.get(key)
        if led is None:
            return FetchAnswer(asked.partition, UnknownTopicId.code)
        if led.error:
            return FetchAnswer(asked.partition, led.error)
        if asked.current_leader_epoch != led.epoch:
            error = FencedLeaderEpoch if asked.current_leader_epoch < led.epoch else UnknownLeaderEpoch
            return FetchAnswer(asked.partition, error.code)
        log = led.log
        if asked.last_fetched_epoch >= 0:
            epoch, end_offset = log.end_offset_for(asked.last_fetched_epoch)
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
                return FetchAnswer(asked.partition, diverging_epoch=(epoch, end_offset))
        if not log.start <= asked.fetch_offset <= log.end:
            return FetchAnswer(asked.partition, OffsetOutOfRange.code)
        records, size = [], 0
        for record in log.records:
            if record.offset >= asked.fetch_offset:
                size += _RECORD.size + len(record.value)
                if size > min(asked.max_bytes, left):
                    break
                records.append(record)
        data = written(records)
        if led.is_damaged and data:
            data = written([Rec(0, 0, b"damaged")]) if asked.fetch_offset else written([Rec(-5, 0, b"damaged")])
        return FetchAnswer(asked.partition, NONE, log.high_watermark, log.high_watermark, log.start, records=data or None)

    def _encoded(self, error_code: int, session_id: int, answers: list[tuple[SessionKey, FetchAnswer]]) -> bytes:
        topics: dict[str | UUID, list[FetchAnswer]] = {}
        for (topic, _), answer in answers:
            topics.setdefault(topic, []).append(answer)
        pieces = fetch.encode_response(fetch_client.VERSION, error_code, session_id, [(topic, topics[topic]) for topic in topics])
        return b"".join(cast("list[bytes]", pieces))

    def _list(self, correlation_id: int, body: memoryview) -> bytes:
        self.listed += 1
        request = messages.request_reader(ApiKey.LIST_OFFSETS, list_offsets_client.VERSION)(body)
        schema = messages.response_schema(ApiKey.LIST_OFFSETS, list_offsets_client.VERSION)
        topics = []
        for topic in request.topics:
            found = []
            for partition in topic.partitions:
                led = self.led[topic_id(topic.name), partition.partition_index]
                offset = led.log.end if partition.timestamp == list_offsets_client.LATEST else led.log.start
                found.append(
                    schema(
                        "ListOffsetsPartitionResponse",
                        partition_index=partition.partition_index,
                        error_code=led.error if led.error != OffsetOutOfRange.code else NONE,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=0,
                    )
                )
            topics.append(schema("ListOffsetsTopicResponse", name=topic.name, partitions=found))
        response = schema("ListOffsetsResponse", throttle_time=0, topics=topics)
        return messages.encode_response(ApiKey.LIST_OFFSETS, list_offsets_client.VERSION, correlation_id, response)[4:]


class Connection:
    """A `FetchConnection` without a socket; a new answer overwrites the one before it."""

    def __init__(self, leader: Leader, endpoint: Endpoint) -> None:
        self.leader = leader
        self.endpoint = endpoint
        self.is_closed = False
        self._error: Exception | None = None
        self._exchange: asyncio.Task[bytes] | None = None
        self._buffer = bytearray(64)

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        assert not self.is_closed, "asked after it was closed"
        assert self._exchange is None, "one request at a time"
        if self._error is not None:
            raise self._error
        self._buffer[:] = b"\xff" * len(self._buffer)
        exchange = self._exchange = asyncio.ensure_future(self.leader.answer(memoryview(request)))
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await exchange
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            exchange.cancel()
            self._exchange = None
        if len(answer) > len(self._buffer):
            self._buffer = bytearray(len(answer))
        self._buffer[: len(answer)] = answer
        return memoryview(self._buffer)[: len(answer)]

    async def close(self) -> None:
        self.is_closed = True

    def kill(self, error: Exception) -> None:
        self._error = error
        if self._exchange is not None:
            self._exchange.cancel()


def topic_id(topic: str) -> UUID:
    return uuid5(UUID(int=7), topic)


def follow_of(leader: Leader, topic_partition: TopicPartition, epoch: int = 0, port: int = 9092, broker_epoch: int = 0) -> Follow:
    return Follow(leader.registration(port, broker_epoch), epoch, topic_id(topic_partition.topic))
