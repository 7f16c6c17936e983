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
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import GeneratorType
from typing import Any, Final

from ottla.broker.handlers import api_versions, produce
from ottla.broker.handlers.produce import DelayedProduce, Repeat, SilentFailure
from ottla.broker.handlers.registry import APIS, Api, BrokerParts, EncodedBody, Pieces, RequestContext
from ottla.broker.handlers.waiting import begun
from ottla.broker.purgatory import Purgatory
from ottla.broker.request_meters import ApiMeter
from ottla.errors import IllegalSaslState, InvalidRequest
from ottla.lifecycle import Collections, look_at_error
from ottla.model import ANONYMOUS, INTERNAL_TOPICS, Principal, TopicPartition
from ottla.network.buffers import Resume
from ottla.network.connection import Connection
from ottla.protocol import messages
from ottla.protocol import produce as produce_codec
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.fetch import is_follower_fetch
from ottla.protocol.primitives import REQUEST_HEADER, RequestHeader, behind_header_tags, decode_request_header
from ottla.protocol.produce import RepeatedRequest
from ottla.protocol.schemas import error_codes

log = logging.getLogger(__name__)

MIN_PRODUCE: Final = produce_codec.MIN_VERSION
MAX_PRODUCE: Final = produce_codec.MAX_VERSION
# Kinds of Produce requests that a connection is recognised by; a producer has one for each partition it writes to.
MAX_REPEATS: Final = 1024
# The client's and the topic's name and few bytes more; either name may be of 32 KiB, and a thousand of them are not kept of a connection.
MAX_REPEATED_BYTES: Final = 1024
# Answers that one connection may be owed before it is read no further.
MAX_UNANSWERED: Final = 1000

# Larger requests are read, and longer answers written, by a thread: while it works the loop waits for it 5 ms at most.
READ_BESIDE_BYTES: Final = 32 * 1024
WRITE_BESIDE_ELEMENTS: Final = 1_000

_RESPONSE_HEAD: Final = struct.Struct(">ii")
MAX_SASL_HANDSHAKE: Final = 1
_NO_SASL: Final = struct.Struct(">iihi")  # size, correlation id, error, no mechanisms

# The framed response, as pieces, and how often each error code is in it, but for those that its handler has counted.
Encoded = tuple[Pieces, Mapping[int, int]]
_NO_CODES: Final[Mapping[int, int]] = {}


class InFlight:
    """How many requests are being worked on by tasks; at the bound, connections wait their turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._waiting: deque[Resume] = deque()
        self.finishing: Final = set[asyncio.Future[Any]]()  # of clients that have gone
        self.collections: Final = Collections()

    @property
    def full(self) -> bool:
        return self._count >= self._most

    @property
    def has_reserve(self) -> bool:
        """Whether there is a place left of those that followers have beside all others': replication must not wait for clients."""
        return self._count < self._most + FOLLOWER_SLOTS

    def enter(self) -> None:
        self._count += 1

    @property
    def length(self) -> int:
        return self._count + len(self._waiting)

    def leave(self) -> None:
        self._count -= 1
        # All of them: one whose connection has gone meanwhile must not swallow the turn of another.
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())

    def when_free(self, resume: Resume) -> None:
        self._waiting.append(resume)


FOLLOWER_SLOTS: Final = 64


class KafkasControl(InvalidRequest):
    """LeaderAndIsr, StopReplica, UpdateMetadata or ControlledShutdown: a broker of Kafka takes this one for a broker of its cluster.

    It sends them again and again. That it is there is logged once, as an error, by the controller and by who sees it become the controller.
    """


KAFKAS_CONTROL: Final = range(4, 8)


# When a request was received, taken on and left to others: what is known of its stages before it is answered.
_Times = tuple[float, float, float]


class _Owed:
    """An answer that is owed, in its place in the order."""

    __slots__ = ("response", "times")

    def __init__(self, times: _Times) -> None:
        self.times = times  # the same tuple for all requests of a group
        self.response: bytes | None = None


class Session:
    """The requests of one connection. Made by `Dispatcher.open`; the connection calls it, it calls the connection."""

    __slots__ = (
        "_began",
        "_connection",
        "_delayed",
        "_finishes",
        "_in_flight",
        "_is_held",
        "_is_lost",
        "_meters",
        "_now_ms",
        "_owed",
        "_parts",
        "_principal",
        "_produces",
        "_repeat_size",
        "_repeats",
        "_sending",
        "_sends_soon",
        "_staged",
        "_task",
        "_time",
        "_version",
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
        self._finishes = False  # what the task does is done also when the client goes
        self._is_lost = False
        # The answers to the Produce requests of the read at hand, until their groups are written.
        self._staged: list[bytes | DelayedProduce | None] = []
        self._repeats: dict[bytes, Repeat] = {}
        self._repeat_size = 0  # bytes of the key that is tried
        self._now_ms = 0  # the broker's time at the first Produce of a read; 0 between reads
        self._version = produce_codec.MAX_VERSION  # of the Produce requests that are staged
        # What follows is for the stages of `RequestMeters`.
        self._meters = parts.meters
        self._time = asyncio.get_running_loop().time
        self._is_held = False  # a frame was not taken, so whatever comes next has waited
        self._began = 0.0  # when the request at hand was taken on; 0 between reads
        self._sending: tuple[ApiMeter, _Times, float] | None = None  # an answer that the peer has yet to take

    # What the connection calls.

    def frame_received(self, buffer: memoryview, start: int, end: int) -> bool:
        """Handles a frame, unless an answer must come first."""
        if self._task is not None:
            return self._hold()
        try:
            if end - start >= REQUEST_HEADER.size:
                api_key, version, correlation_id, _ = REQUEST_HEADER.unpack_from(buffer, start)
                if api_key == 0 and MIN_PRODUCE <= version <= MAX_PRODUCE:
                    return self._produce(buffer, start, end, version, correlation_id)
            return self._other(buffer, start, end)
        except (InvalidRequest, SilentFailure) as error:
            self._write_staged()
            self._complain(error)
        except Exception:  # a request ends here, and its connection with it
            log.exception("%s:%d: a request failed unexpectedly; connection closed", self._connection.peer.host, self._connection.peer.port)
            self._write_staged()  # what was taken of it lies in the buffer, and is of no more use once that is read into again
        self._connection.abort()
        return False  # and nothing behind it is taken any more

    def read_completed(self) -> None:
        """Writes the groups of the read and sends what they allow."""
        if self._staged:
            self._write_staged()
        self._now_ms = 0
        self._began = 0.0

    def answers_sent(self) -> None:
        """The peer has taken an answer that it was slow to take."""
        if self._sending is not None:
            meter, (received, began, left), sending = self._sending
            self._sending = None
            meter.answered(1, began - received, left - began, sending - left, self._time() - sending)

    def connection_lost(self) -> None:
        self._is_lost = True
        if self._task is not None:
            if self._finishes:
                self._in_flight.finishing.add(self._task)
                self._task.add_done_callback(self._in_flight.finishing.discard)
            else:
                self._task.cancel()
        for delayed in self._delayed:
            self._produces.forget(delayed)
        self._delayed.clear()
        self._owed.clear()
        self._sending = None

    def _complain(self, error: Exception) -> None:
        # Its frames have the request, of up to 100 MiB, and the future that has the error: a circle, which only a collection would end.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        peer = self._connection.peer
        if isinstance(error, KafkasControl):
            log.debug("%s:%d: %s; connection closed", peer.host, peer.port, error)
            return
        self._connection.complaints.warn(log, peer.host, "%s:%d: %s; connection closed", peer.host, peer.port, error)

    def _hold(self) -> bool:
        """The frame is not taken yet."""
        self._is_held = True
        return False

    def _begin(self) -> None:
        """The first request of a read, or of what was held back of one, is taken on."""
        self._began = self._time() if self._is_held else self._connection.last_active
        self._is_held = False

    # Produce.

    def _produce(self, buffer: memoryview, start: int, end: int, version: int, correlation_id: int) -> bool:
        if len(self._staged) + len(self._owed) >= MAX_UNANSWERED:
            self._write_staged()  # which answers, unless the answers wait for something; those call for more when they leave
            if len(self._owed) >= MAX_UNANSWERED:
                return self._hold()
        parts = self._parts
        now_ms = self._now_ms
        if not now_ms:
            now_ms = self._now_ms = parts.clock.time_ms()
            if self._is_held:
                self._begin()
            elif not self._began:
                self._began = self._connection.last_active
        if version != self._version:
            if self._staged:
                self._write_staged()  # a group has one version, so that it is counted as one
            self._version = version
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
                meter, times = self._meters.produce, (self._connection.last_active, self._began, self._time())
                meter.versions[version] += 1
                self._wait_for(answer, lambda staged: self._opened(staged, meter, times), size=end - start)
                return True
            self._remember(produce_codec.repeated(buffer, start, version, request))
        self._staged.append(answer)
        return True

    def _remember(self, request: RepeatedRequest | None) -> None:
        if request is None or request.topic in INTERNAL_TOPICS or len(request.key) > MAX_REPEATED_BYTES:
            return
        partition = self._parts.replicas.partitions.get(TopicPartition(request.topic, request.partition))
        if partition is None:
            return
        if len(request.key) != self._repeat_size or len(self._repeats) >= MAX_REPEATS:
            self._repeats.clear()
            self._repeat_size = len(request.key)
        self._repeats[request.key] = Repeat(request, partition, self._connection.peer.listener_name)

    def _write_staged(self) -> None:
        """Writes the groups and turns what was staged into answers."""
        answers, self._staged = self._staged, []
        meter, count = self._meters.produce, len(answers)
        if count:
            meter.versions[self._version] += count
        failed = self._parts.replicas.appends.complete()
        if failed:
            those = failed, self._version, self._parts, self._connection.peer.listener_name
            if None in answers:
                self._complain(produce.silent_failure(failed, self._parts))
                self._connection.abort()
            answers = [answer and produce.after_failures(answer, *those) for answer in answers]
        if not self._owed and (ready := _joined(answers)) is not None:
            # Nearly always: every answer is there, and all leave in one write.
            connection = self._connection
            if ready:
                connection.send([ready])
            now, began, received = self._time(), self._began, connection.last_active
            if began == received:
                meter.at_once.observe_many(now - began, count)
            else:
                meter.answered(count, began - received, now - began, 0.0, 0.0)
            self._began = now
            return
        now = self._time()
        times = self._connection.last_active, self._began, now
        self._began = now
        for outcome in answers:
            if isinstance(outcome, DelayedProduce):
                self._watch(outcome, times)
            elif outcome is not None:
                self._owe(times).response = outcome
        self._send_owed()

    def _watch(self, delayed: DelayedProduce, times: _Times) -> None:
        """The batches are written: answers when they are committed."""
        owed = self._owe(times)

        def answer(response: bytes) -> None:
            self._delayed.discard(delayed)
            owed.response = response
            self._send_owed_soon()

        delayed.answer_with(answer)
        if not delayed.try_complete():
            self._delayed.add(delayed)
            self._produces.watch(delayed, delayed.partitions(), delayed.timeout_seconds)

    def _opened(self, staged: bytes | DelayedProduce | None, meter: ApiMeter, times: _Times) -> None:
        if isinstance(staged, DelayedProduce):
            self._watch(staged, times)
            return
        if staged is not None:
            self._owe(times).response = staged  # others before it may wait for the high watermark
            self._send_owed()
            return
        received, began, left = times
        meter.answered(1, began - received, left - began, self._time() - left, 0.0)

    # Everything else.

    def _other(self, buffer: memoryview, start: int, end: int) -> bool:
        if self._staged:
            self._write_staged()
        if self._owed or self._connection.congested:
            return self._hold()
        if self._in_flight.full and not (self._in_flight.has_reserve and is_follower_fetch(buffer, start, end)):
            self._in_flight.when_free(self._connection.resume)
            return self._hold()
        if not self._began:
            self._begin()
        plain = decode_request_header(buffer, start, end, flexible=False)
        api = APIS.get(plain.api_key)
        if plain.api_key == ApiKey.PRODUCE:
            raise InvalidRequest(f"Produce version {plain.api_version} is not served, {MIN_PRODUCE} to {MAX_PRODUCE} are")
        if plain.api_key == ApiKey.SASL_HANDSHAKE and 0 <= plain.api_version <= MAX_SASL_HANDSHAKE:
            # No listener has SASL. A client that is set up for it asks in spite of what ApiVersions says, and takes a connection that
            # ends for one to open again.
            self._connection.send([_NO_SASL.pack(_NO_SASL.size - 4, plain.correlation_id, IllegalSaslState.code, 0)])
            return True
        if api is None or not api.is_served(self._parts.settings):
            raise (KafkasControl if plain.api_key in KAFKAS_CONTROL else InvalidRequest)(
                f"API key {plain.api_key} (version {plain.api_version}) is not served"
            )
        if not api.min_version <= plain.api_version <= api.max_version:
            if api.key is ApiKey.API_VERSIONS:
                self._connection.send([api_versions.refused(plain.correlation_id)])
                return True
            raise InvalidRequest(
                f"{api.key.api_name} version {plain.api_version} is not served, {api.min_version} to {api.max_version} are"
            )
        flexible = is_flexible(api.key, plain.api_version)
        position = behind_header_tags(buffer, start, plain.body_position, end) if flexible else plain.body_position
        body = buffer[position:end].toreadonly()
        context = self._context(plain)
        if len(body) > READ_BESIDE_BYTES:
            self._in_flight.collections.put_off()
            times = self._connection.last_active, self._began, self._time()
            reading = self._parts.offload(_decode, api, memoryview(bytes(body)), plain.api_version)
            self._wait_for(reading, lambda request: self._handle(api, request, context, times), works=True, size=len(body))
        else:
            self._handle(api, _decode(api, body, plain.api_version), context, None)
        return True

    def _handle(self, api: Api, request: Any, context: RequestContext, times: _Times | None) -> None:
        """Answers a request, at once or when its handler has what it waits for.

        Args:
            times: of a request that was waited for already; None for one that has just been taken on.
        """
        is_follower = api.key is ApiKey.FETCH and request.replica_id >= 0
        meter = self._meters.fetch_follower if is_follower else self._meters.of(api.key)
        meter.versions[context.api_version] += 1
        response = api.handle(request, context, self._parts)
        if type(response) is GeneratorType:
            response = begun(response)
        if type(response) is not EncodedBody and isinstance(response, Awaitable):
            waited = times or (self._connection.last_active, self._began, self._time())
            self._wait_for(response, lambda answer: self._write(api, context, answer, meter, waited, request))
        else:
            self._write(api, context, response, meter, times)

    def _write(self, api: Api, context: RequestContext, response: Any, meter: ApiMeter, times: _Times | None, request: Any = None) -> None:
        if isinstance(response, EncodedBody) or not messages.has_more_elements_than(WRITE_BESIDE_ELEMENTS, response):
            self._answer(_encode(api, context, response), meter, times)
            return
        self._in_flight.collections.put_off()
        waited = times or (self._connection.last_active, self._began, self._time())
        writing = self._parts.offload(_encode, api, context, response, request)
        self._wait_for(writing, lambda encoded: self._answer(encoded, meter, waited), works=True)

    def _answer(self, encoded: Encoded, meter: ApiMeter, times: _Times | None) -> None:
        """Sends the answer and counts the request.

        Args:
            times: of a request that was waited with; None for one that was answered at once.
        """
        pieces, codes = encoded
        for code, count in codes.items():
            self._meters.failed(meter.name, code, count)
        connection = self._connection
        connection.send(pieces)
        now, is_taken = self._time(), not connection.congested
        if times is None:
            times = connection.last_active, self._began, now
            self._began = now  # for the next one of the same read
        received, began, left = times
        if began == received and left == now and is_taken:
            meter.at_once.observe(now - began)
        elif is_taken:
            meter.answered(1, began - received, left - began, now - left, 0.0)
        else:
            self._sending = meter, times, now

    def _wait_for(self, awaitable: Awaitable[Any], then: Callable[[Any], None], *, works: bool = False, size: int = 0) -> None:
        """Takes no further frame until the awaitable has its result, and continues with it.

        Args:
            works: whether something is being done meanwhile, which counts for `queued.max.requests`. A coroutine always does;
                a future is mostly one of another's doing.
            size: bytes of the request that are kept meanwhile, which count for `queued.max.request.bytes`.

        With either of them it is also done, and counted, when the client goes: a thread cannot be called back, and a Produce that
        has come whole is written.
        """
        self._finishes = works or bool(size)
        works = works or not isinstance(awaitable, asyncio.Future)
        task = self._task = asyncio.ensure_future(awaitable)
        if works:
            self._in_flight.enter()
        if size:
            self._connection.count(size)

        def done(ended: asyncio.Future[Any]) -> None:
            self._task = None
            if works:
                self._in_flight.leave()
            if size:
                self._connection.count(-size)
            if self._is_lost:
                look_at_error(ended)
                return
            if ended.cancelled():
                self._connection.abort()  # it has gone, unless what was waited for was given up: its client is to ask again
                return
            try:
                then(ended.result())
            except (InvalidRequest, SilentFailure) as error:
                self._complain(error)
                self._connection.abort()
            except Exception:  # a request ends here, and its connection with it
                log.exception("%s:%d: a request failed; connection closed", self._connection.peer.host, self._connection.peer.port)
                self._connection.abort()
            else:
                self._connection.resume()

        task.add_done_callback(done)

    # Answers in order.

    def _owe(self, times: _Times) -> _Owed:
        owed = _Owed(times)
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
        groups: list[tuple[_Times, int]] = []
        times, first = None, 0
        while self._owed and (response := self._owed[0].response) is not None:
            owed = self._owed.popleft()
            if owed.times is not times:
                if times is not None:
                    groups.append((times, len(ready) - first))
                times, first = owed.times, len(ready)
            ready.append(response)
        if times is not None:
            groups.append((times, len(ready) - first))
            now = self._time()
            for (received, began, left), count in groups:
                self._meters.produce.answered(count, began - received, left - began, now - left, 0.0)
            self._connection.send([b"".join(ready)])
            # Frames may be held back by what was owed; offered again from the loop, not from within a read.
            asyncio.get_running_loop().call_soon(self._connection.resume)

    def _context(self, header: RequestHeader) -> RequestContext:
        peer = self._connection.peer
        return RequestContext(
            header.api_key, self._principal, header.client_id, header.api_version, header.correlation_id, peer.listener_name, peer.host
        )


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

    @property
    def queue_length(self) -> int:
        """Requests that are being worked on beside others, and connections that wait for their turn."""
        return self._in_flight.length

    def close(self) -> None:
        """When no connection is left."""
        for task in list(self._in_flight.finishing):
            task.cancel()
        self._in_flight.collections.close()

    def open(self, connection: Connection) -> Session:
        """The session of a new connection."""
        return Session(connection, self._parts, self._produces, self._in_flight)


def _decode(api: Api, body: memoryview, version: int) -> Any:
    return api.decode(body, version) if api.decode else messages.request_reader(api.key, version, api.max_version)(body)


def _joined(answers: Sequence[Any]) -> bytes | None:
    """What Produce requests are answered, in one; None where one of them waits for the high watermark."""
    try:
        return b"".join(answers)
    except TypeError:
        if DelayedProduce in map(type, answers):
            return None
        return b"".join(answer for answer in answers if answer is not None)  # acks=0 has none


def _encode(api: Api, context: RequestContext, response: Any, request: Any = None) -> Encoded:
    """Encodes a response.

    Args:
        request: what is answered, if it is large: a hundred thousand things cost the loop 20 ms also when they go, and go here instead.
    """
    if not isinstance(response, EncodedBody):
        codes = error_codes(response)
        framed = messages.encode_response(api.key, context.api_version, context.correlation_id, response)
        return [framed], Counter(codes) if codes else _NO_CODES
    pieces = response.pieces
    tags = b"\0" if is_flexible(api.key, context.api_version) else b""
    size = 4 + len(tags) + sum(len(piece) for piece in pieces)
    head = _RESPONSE_HEAD.pack(size, context.correlation_id) + tags
    first = pieces[0]
    if isinstance(first, bytes):
        return [head + first, *pieces[1:]], _NO_CODES
    return [head, *pieces], _NO_CODES
