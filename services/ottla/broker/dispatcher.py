"""Frames to handlers and answers back, in request order on each connection.

Kafka mutes a connection until its request is answered. So does this, with one exception that makes pipelining pay:
a Produce may follow unanswered Produces. Everything else waits until the answers before it have left.

The batches of all Produce requests of one socket read are staged as they are decoded and written as one group per
log at the read's end, or before any other request of the same read is handled.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ottla.broker.handlers import api_versions, produce
from ottla.broker.handlers.produce import DelayedProduce, Repeat, SilentFailure
from ottla.broker.handlers.registry import APIS, Api, BrokerParts, EncodedBody, Pieces, RequestContext
from ottla.broker.purgatory import Purgatory
from ottla.errors import InvalidRequest, KafkaStorageError
from ottla.model import ANONYMOUS, INTERNAL_TOPICS, Principal, TopicPartition
from ottla.network.connection import Connection
from ottla.protocol import messages
from ottla.protocol import produce as produce_codec
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.headers import REQUEST_HEADER, RequestHeader, decode_request_header
from ottla.protocol.produce import RepeatedRequest

log = logging.getLogger(__name__)

MIN_PRODUCE: Final = produce_codec.MIN_VERSION
MAX_PRODUCE: Final = produce_codec.MAX_VERSION
# Kinds of Produce requests that a connection is recognised by; a producer has one for each partition it writes to.
MAX_REPEATS: Final = 1024
# Answers that one connection may be owed before it is read no further.
MAX_UNANSWERED: Final = 1000

_RESPONSE_HEAD: Final = struct.Struct(">ii")


class InFlight:
    """How many requests are being worked on by tasks; at the bound, connections wait their turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def full(self) -> bool:
        return self._count >= self._most

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        # All of them: one whose connection has gone meanwhile must not swallow the turn of another.
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())

    def when_free(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)


class _Owed:
    """An answer that is owed, in its place in the order."""

    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response: bytes | None = None


class Session:
    """The requests of one connection. Made by `Dispatcher.open`; the connection calls it, it calls the connection."""

    __slots__ = (
        "_buffer",
        "_connection",
        "_delayed",
        "_in_flight",
        "_now_ms",
        "_owed",
        "_parts",
        "_principal",
        "_produces",
        "_repeat_size",
        "_repeats",
        "_sends_soon",
        "_staged",
        "_task",
    )

    def __init__(self, connection: Connection, parts: BrokerParts, produces: Purgatory, in_flight: InFlight) -> None:
        self._connection = connection
        self._parts = parts
        self._produces = produces
        self._in_flight = in_flight
        self._principal: Principal = ANONYMOUS
        self._owed: deque[_Owed] = deque()
        self._delayed: set[DelayedProduce] = set()
        self._sends_soon = False
        self._task: asyncio.Future[Any] | None = None
        # The Produce requests of the read at hand, until their groups are written: where the frame lies, and the answer.
        self._staged: list[tuple[int, int, bytes | DelayedProduce | None]] = []
        self._repeats: dict[bytes, Repeat] = {}
        self._repeat_size = 0  # bytes of the key that is tried
        self._buffer: memoryview | None = None
        self._now_ms = 0  # the broker's time at the first Produce of a read; 0 between reads

    # What the connection calls.

    def frame_received(self, buffer: memoryview, start: int, end: int) -> bool:
        """Handles a frame, unless an answer must come first."""
        if self._task is not None:
            return False
        try:
            if end - start >= REQUEST_HEADER.size:
                api_key, version, correlation_id, _ = REQUEST_HEADER.unpack_from(buffer, start)
                if api_key == 0 and MIN_PRODUCE <= version <= MAX_PRODUCE:
                    return self._produce(buffer, start, end, version, correlation_id)
            return self._other(buffer, start, end)
        except (InvalidRequest, SilentFailure) as error:
            self._write_staged()
            log.warning("%s:%d: %s; connection closed", self._connection.peer.host, self._connection.peer.port, error)
        except Exception:
            log.exception("%s:%d: a request failed unexpectedly; connection closed", self._connection.peer.host, self._connection.peer.port)
        self._connection.abort()
        return False  # and nothing behind it is taken any more

    def read_completed(self) -> None:
        """Writes the groups of the read and sends what they allow."""
        self._now_ms = 0
        if self._staged:
            self._write_staged()

    def connection_lost(self) -> None:
        """Nobody waits for the answers any more."""
        if self._task is not None:
            self._task.cancel()
        for each in self._delayed:
            self._produces.forget(each)
        self._delayed.clear()
        self._owed.clear()

    # Produce.

    def _produce(self, buffer: memoryview, start: int, end: int, version: int, correlation_id: int) -> bool:
        if len(self._owed) + len(self._staged) >= MAX_UNANSWERED:
            self._write_staged()  # which answers, unless the answers wait for something; those call for more when they leave
            if len(self._owed) >= MAX_UNANSWERED:
                return False
        parts = self._parts
        now_ms = self._now_ms = self._now_ms or parts.clock.time_ms()
        answer: Any = None
        body = start + 8 + self._repeat_size
        repeat = self._repeats.get(bytes(buffer[start + 8 : body]))
        if repeat is not None and repeat.request.version == version:
            answer = produce.stage_repeated(repeat, buffer, body, end, correlation_id, parts, now_ms)
        if answer is None:
            header = decode_request_header(buffer, start, end, flexible=version >= produce_codec.FLEXIBLE_VERSION)
            request = produce_codec.decode_request(buffer, header.body_position, end, version)
            answer = produce.stage(request, buffer, self._context(header), parts, now_ms)
            if not (answer is None or isinstance(answer, (bytes, DelayedProduce))):
                self._write_staged()
                self._wait_for(answer, self._opened)
                return True
            self._remember(produce_codec.repeated(buffer, start, version, request))
        self._buffer = buffer
        self._staged.append((start, end, answer))
        return True

    def _remember(self, request: RepeatedRequest | None) -> None:
        if request is None or request.topic in INTERNAL_TOPICS:
            return
        partition = self._parts.replicas.partitions.get(TopicPartition(request.topic, request.partition))
        if partition is None:
            return
        if len(request.key) != self._repeat_size or len(self._repeats) >= MAX_REPEATS:
            self._repeats.clear()
            self._repeat_size = len(request.key)
        self._repeats[request.key] = Repeat(request, partition)

    def _write_staged(self) -> None:
        """Writes the groups and turns what was staged into answers."""
        staged, self._staged = self._staged, []
        failed = self._parts.replicas.appends.complete()
        answers = [answer for _, _, answer in staged]
        if failed:
            answers = [self._unless_failed(failed, *each) for each in staged]
        if not self._owed and DelayedProduce not in map(type, answers):
            # Nearly always: every answer is there, and all leave in one write.
            ready = [each for each in answers if isinstance(each, bytes)]
            if ready:
                self._connection.send([b"".join(ready)])
            return
        for each in answers:
            if isinstance(each, DelayedProduce):
                self._watch(each)
            elif each is not None:
                self._owe().response = each
        self._send_owed()

    def _unless_failed(
        self, failed: dict[TopicPartition, KafkaStorageError], start: int, end: int, answer: bytes | DelayedProduce | None
    ) -> bytes | DelayedProduce | None:
        """The answer, or the storage error in its place when a group that the request belongs to was not written."""
        assert self._buffer is not None
        _, version, _, _ = REQUEST_HEADER.unpack_from(self._buffer, start)
        header = decode_request_header(self._buffer, start, end, flexible=version >= produce_codec.FLEXIBLE_VERSION)
        request = produce_codec.decode_request(self._buffer, header.body_position, end, version)
        return produce.refuse(request, self._context(header), failed) if produce.concerns(request, failed) else answer

    def _watch(self, delayed: DelayedProduce) -> None:
        """The batches are written: answers when they are committed."""
        owed = self._owe()

        def answer(response: bytes) -> None:
            self._delayed.discard(delayed)
            owed.response = response
            self._send_owed_soon()

        delayed.answer_with(answer)
        if not delayed.try_complete():
            self._delayed.add(delayed)
            self._produces.watch(delayed, delayed.partitions(), delayed.timeout_seconds)

    def _opened(self, staged: bytes | DelayedProduce | None) -> None:
        if isinstance(staged, DelayedProduce):
            self._watch(staged)
        elif staged is not None:
            self._connection.send([staged])

    # Everything else.

    def _other(self, buffer: memoryview, start: int, end: int) -> bool:
        if self._staged:
            self._write_staged()
        if self._owed or self._connection.congested:
            return False
        if self._in_flight.full:
            self._in_flight.when_free(self._connection.resume)
            return False
        plain = decode_request_header(buffer, start, end, flexible=False)
        api = APIS.get(plain.api_key)
        if plain.api_key == ApiKey.PRODUCE:
            raise InvalidRequest(f"Produce version {plain.api_version} is not served, {MIN_PRODUCE} to {MAX_PRODUCE} are")
        if api is None:
            raise InvalidRequest(f"API key {plain.api_key} (version {plain.api_version}) is not served")
        if not api.min_version <= plain.api_version <= api.max_version:
            if api.key is ApiKey.API_VERSIONS:
                self._connection.send([api_versions.refused(plain.correlation_id)])
                return True
            raise InvalidRequest(
                f"{api.key.api_name} version {plain.api_version} is not served, {api.min_version} to {api.max_version} are"
            )
        flexible = is_flexible(api.key, plain.api_version)
        header = decode_request_header(buffer, start, end, flexible=True) if flexible else plain
        body = buffer[header.body_position : end].toreadonly()
        decode = api.decode
        request = decode(body, header.api_version) if decode else messages.request_reader(api.key, header.api_version)(body)
        context = self._context(header)
        response = api.handle(request, context, self._parts)
        if isinstance(response, Awaitable):
            self._wait_for(response, lambda answer: self._connection.send(_encode(api, context, answer)))
        else:
            self._connection.send(_encode(api, context, response))
        return True

    def _wait_for(self, awaitable: Awaitable[Any], then: Callable[[Any], None]) -> None:
        """Takes no further frame until the awaitable has its result, and answers with it."""
        works = not isinstance(awaitable, asyncio.Future)
        task = self._task = asyncio.ensure_future(awaitable)
        if works:
            self._in_flight.enter()

        def done(ended: asyncio.Future[Any]) -> None:
            self._task = None
            if works:
                self._in_flight.leave()
            if ended.cancelled():
                return
            try:
                then(ended.result())
            except (InvalidRequest, SilentFailure) as error:
                log.warning("%s:%d: %s; connection closed", self._connection.peer.host, self._connection.peer.port, error)
                self._connection.abort()
            except Exception:
                log.exception("%s:%d: a request failed; connection closed", self._connection.peer.host, self._connection.peer.port)
                self._connection.abort()
            else:
                self._connection.resume()

        task.add_done_callback(done)

    # Answers in order.

    def _owe(self) -> _Owed:
        owed = _Owed()
        self._owed.append(owed)
        return owed

    def _send_owed_soon(self) -> None:
        """Once the loop comes round: what moves the high watermark answers many requests, and they leave in one write."""
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send_owed)

    def _send_owed(self) -> None:
        """Sends the answers at the front of the order that are there."""
        self._sends_soon = False
        ready: list[bytes] = []
        while self._owed and (response := self._owed[0].response) is not None:
            self._owed.popleft()
            ready.append(response)
        if ready:
            self._connection.send([b"".join(ready)])
            # Frames may be held back by what was owed; offered again from the loop, not from within a read.
            asyncio.get_running_loop().call_soon(self._connection.resume)

    def _context(self, header: RequestHeader) -> RequestContext:
        peer = self._connection.peer
        return RequestContext(self._principal, header.client_id, header.api_version, header.correlation_id, peer.listener_name, peer.host)


class Dispatcher:
    """Opens a session for each connection.

    Args:
        parts: what handlers may call.
        produces: where Produce requests wait for the high watermark.
        most_in_flight: `queued.max.requests`.
    """

    def __init__(self, parts: BrokerParts, produces: Purgatory, most_in_flight: int) -> None:
        self._parts = parts
        self._produces = produces
        self._in_flight = InFlight(most_in_flight)

    def open(self, connection: Connection) -> Session:
        """The session of a new connection."""
        return Session(connection, self._parts, self._produces, self._in_flight)


def _encode(api: Api, context: RequestContext, response: Any) -> Pieces:
    """The framed response, as pieces."""
    if not isinstance(response, EncodedBody):
        return [messages.encode_response(api.key, context.api_version, context.correlation_id, response)]
    pieces = response.pieces
    tags = b"\0" if is_flexible(api.key, context.api_version) else b""
    size = 4 + len(tags) + sum(len(each) for each in pieces)
    head = _RESPONSE_HEAD.pack(size, context.correlation_id) + tags
    first = pieces[0]
    if isinstance(first, bytes):
        return [head + first, *pieces[1:]]
    return [head, *pieces]
