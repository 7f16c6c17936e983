"""The load generator: a process of its own that replays encoded requests over several pipelined connections.

`python -m tests.bench.load JSON` prints one JSON line. A request is encoded once; a window of them is one buffer that
one `send` takes, answers are counted by their bytes (every answer to these requests has the same size), and what a
fetch brings is thrown away in the kernel (MSG_TRUNC on TCP), so the generator costs a fraction of what it loads.

The clock runs between two moments inside a steady stream: after the warm-up, and when time or bytes are used up. The
server's CPU clock is read at the same two moments.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.bench import wire
from tests.bench.processes import cpu_seconds

RECEIVE_SIZE: Final = 8 << 20
CHUNK_SIZE: Final = 1 << 20
STALL_SECONDS: Final = 20.0
RECEIVES_A_ROUND: Final = 64
# More than the fields before an answer's first records, less than the smallest answer with a batch in it.
SCAN_HEAD_SIZE: Final = 128


@dataclass(frozen=True, slots=True)
class Load:
    """What both kinds of load have in common."""

    port: int
    server_pid: int
    connections: int
    window: int
    warm_up_seconds: float
    seconds: float
    maximum_bytes: int
    other_pids: Sequence[int] = field(default=(), kw_only=True)
    """Further processes whose CPU clocks are read with the server's: its followers."""


@dataclass(frozen=True, slots=True)
class ProduceLoad(Load):
    topic: str
    partitions: int
    version: int
    messages_per_batch: int
    message_size: int
    answer_size: int = 0
    """0: a broker, whose first answer tells; otherwise a floor, which answers this many bytes a request."""
    acks: int = 1


@dataclass(frozen=True, slots=True)
class FetchLoad(Load):
    """Each connection walks through its own part of `regions`, again and again.

    A region is one answer: `partitions` partitions from the same offset, `max_bytes` of each. With version 0 the
    server is a floor that is asked by a region's number and answers with `region_bytes`, nothing before or after.
    """

    topic: str
    partitions: int
    version: int
    batch_size: int
    messages_per_batch: int
    max_bytes: int
    regions: int
    region_bytes: int = 0
    tls: bool = False


@dataclass(frozen=True, slots=True)
class ScanLoad:
    """One consumer that reads a partition from offset 0 to its end, as fast as it is answered, one request at a time."""

    port: int
    server_pid: int
    topic: str
    version: int
    batch_size: int
    messages_per_batch: int
    max_bytes: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DiskLoad:
    """Reads files from beginning to end and has nothing to do with a server: what the disk alone does to its neighbours."""

    paths: list[str]
    read_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured between the two moments."""

    requests: int
    bytes: int
    seconds: float
    server_cpu_seconds: float
    answer_size: int
    total_requests: int
    generator_cpu_seconds: float
    begun_at: float
    """On the machine's monotonic clock, as every process here sees it."""
    other_cpu_seconds: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """All clocks and counts at one time."""

    at: float
    server_cpu: float
    other_cpu: Sequence[float]
    own_cpu: float
    requests: int
    bytes: int


class Meter:
    """Decides when the measured stretch begins and ends, and holds the clocks of both moments."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._started = time.perf_counter()
        self._begun: Moment | None = None
        self._ended: Moment | None = None

    @property
    def finished(self) -> bool:
        return self._ended is not None

    def _moment(self, requests: int, size: int) -> Moment:
        others = [cpu_seconds(pid) for pid in self._load.other_pids]
        return Moment(time.perf_counter(), cpu_seconds(self._load.server_pid), others, time.process_time(), requests, size)

    def answered(self, requests: int, size: int) -> None:
        """Told after each round of reading how many requests were answered so far, and the bytes that they moved."""
        now = time.perf_counter()
        if self._begun is None:
            if now - self._started >= self._load.warm_up_seconds or size >= self._load.maximum_bytes // 4:
                self._begun = self._moment(requests, size)
        elif self._ended is None and (now - self._begun.at >= self._load.seconds or size - self._begun.bytes >= self._load.maximum_bytes):
            self._ended = self._moment(requests, size)

    def outcome(self, answer_size: int, total_requests: int) -> Outcome:
        begun, ended = self._begun, self._ended
        assert begun and ended
        return Outcome(
            requests=ended.requests - begun.requests,
            bytes=ended.bytes - begun.bytes,
            seconds=ended.at - begun.at,
            server_cpu_seconds=ended.server_cpu - begun.server_cpu,
            answer_size=answer_size,
            total_requests=total_requests,
            generator_cpu_seconds=ended.own_cpu - begun.own_cpu,
            begun_at=begun.at,
            other_cpu_seconds=[after - before for before, after in zip(begun.other_cpu, ended.other_cpu, strict=True)],
        )


class Stream:
    """One connection: what it still has to send, and what it has been answered."""

    def __init__(self, port: int, tls: bool = False) -> None:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = plain
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.socket = context.wrap_socket(plain)
        self.unsent = memoryview(b"")
        self.sent_requests = 0
        self.received_bytes = 0

    def ask(self, request: bytes) -> bytes:
        """One request and its whole answer, before the stream begins."""
        self.socket.sendall(request)
        answer = bytearray()
        while len(answer) < 4 or len(answer) < 4 + wire.INT32.unpack_from(answer)[0]:
            more = self.socket.recv(1 << 20)
            if not more:
                raise wire.UnexpectedAnswer("the server closed the connection")
            answer += more
        return bytes(answer)

    def send_some(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return


class Selector:
    """epoll over streams: always for reading, for writing only where something waits to be sent."""

    def __init__(self, streams: list[Stream]) -> None:
        self._epoll = select.epoll()
        self._streams = {stream.socket.fileno(): stream for stream in streams}
        self._writing: set[int] = set()
        for stream in streams:
            stream.socket.setblocking(False)
            self._epoll.register(stream.socket.fileno(), select.EPOLLIN)

    def want(self, stream: Stream) -> None:
        """Notes whether the stream has something to send."""
        number = stream.socket.fileno()
        if bool(stream.unsent) != (number in self._writing):
            self._writing ^= {number}
            self._epoll.modify(number, select.EPOLLIN | (select.EPOLLOUT if stream.unsent else 0))

    def ready(self) -> list[tuple[Stream, bool, bool]]:
        """(stream, readable, writable); raises when nothing moves."""
        events = self._epoll.poll(STALL_SECONDS)
        if not events:
            raise wire.UnexpectedAnswer(f"no answer for {STALL_SECONDS:.0f} s")
        return [(self._streams[number], bool(event & ~select.EPOLLOUT), bool(event & select.EPOLLOUT)) for number, event in events]


def receive(stream: Stream, buffer: bytearray | memoryview, *, keep: bool = False) -> int:
    """Bytes that came, 0 when there is nothing now; those of a plain socket are dropped in the kernel, unless kept."""
    flags = 0 if keep or isinstance(stream.socket, ssl.SSLSocket) else socket.MSG_TRUNC
    try:
        count = stream.socket.recv_into(buffer, 0, flags)
    except (BlockingIOError, ssl.SSLWantReadError):
        return 0
    if not count:
        raise wire.UnexpectedAnswer("the server closed the connection")
    return count


def produce(load: ProduceLoad) -> Outcome:
    batch = wire.record_batch(load.messages_per_batch, load.message_size)
    frames = [wire.produce_request(load.version, load.topic, partition, batch, acks=load.acks) for partition in range(load.partitions)]
    streams = [Stream(load.port) for _ in range(load.connections)]
    answer_size = load.answer_size
    if not answer_size:
        answer = streams[0].ask(frames[0])
        error_code, _ = wire.produce_answer(load.version, answer)
        if error_code:
            raise wire.UnexpectedAnswer(f"Produce answered with error {error_code}")
        answer_size = len(answer)
    requests_per_chunk = max(1, min(load.window // 2, CHUNK_SIZE // len(frames[0])))
    chunks = [memoryview(frame * requests_per_chunk) for frame in frames]
    chunk_of = {id(stream): chunks[index % load.partitions] for index, stream in enumerate(streams)}
    selector = Selector(streams)
    meter = Meter(load)
    buffer = bytearray(RECEIVE_SIZE)

    def refill(stream: Stream) -> None:
        while not meter.finished and not stream.unsent:
            if stream.sent_requests - stream.received_bytes // answer_size + requests_per_chunk > load.window:
                break
            stream.unsent = chunk_of[id(stream)]
            stream.sent_requests += requests_per_chunk
            stream.send_some()
        selector.want(stream)

    for stream in streams:
        refill(stream)
    answered = 0
    while not meter.finished or any(stream.sent_requests * answer_size > stream.received_bytes for stream in streams):
        for stream, readable, writable in selector.ready():
            if readable:
                before = stream.received_bytes // answer_size
                stream.received_bytes += receive(stream, buffer)
                answered += stream.received_bytes // answer_size - before
            if writable:
                stream.send_some()
            refill(stream)
        meter.answered(answered, answered * len(frames[0]))
    if any(stream.received_bytes != stream.sent_requests * answer_size for stream in streams):
        raise wire.UnexpectedAnswer("the answers were not all of one size")
    return meter.outcome(answer_size, answered + (0 if load.answer_size else 1))


class Answers:
    """Counts the answers of one connection, whatever their sizes, without looking into them.

    Args:
        smallest: the fewest bytes that an answer with records has; fewer are an error.
        unframed_size: the size of an answer that has no length in front, as the floor's; 0 for a broker.
    """

    def __init__(self, stream: Stream, smallest: int, unframed_size: int) -> None:
        self._stream = stream
        self._smallest = smallest
        self._unframed_size = unframed_size
        self._prefix = bytearray(wire.FRAME_PREFIX_SIZE)
        self._filled = 0
        self._left = unframed_size
        self.count = 0
        self.bytes = 0

    def read_some(self, buffer: memoryview) -> bool:
        """One receive; says whether anything came."""
        if not self._left:
            received = receive(self._stream, memoryview(self._prefix)[self._filled :], keep=True)
            self._filled += received
            if self._filled == wire.FRAME_PREFIX_SIZE:
                self._filled, self._left = 0, wire.INT32.unpack(self._prefix)[0]
                if self._left < self._smallest:
                    raise wire.UnexpectedAnswer(f"a Fetch answer of {self._left} bytes, {self._smallest} were expected at least")
        else:
            received = receive(self._stream, buffer[: self._left])
            self._left -= received
            if not self._left:
                self.count += 1
                self._left = self._unframed_size
        self.bytes += received
        return received > 0


def fetch(load: FetchLoad) -> Outcome:
    messages_per_region = load.max_bytes // load.batch_size * load.messages_per_batch

    def request(region: int) -> bytes:
        if not load.version:
            return wire.INT32.pack(region % load.regions)
        offset = region % load.regions * messages_per_region
        reads = [wire.PartitionRead(partition, offset, load.max_bytes) for partition in range(load.partitions)]
        return wire.fetch_request(load.version, load.topic, reads, max_bytes=0x7FFFFFFF)

    streams = [Stream(load.port, load.tls) for _ in range(load.connections)]
    if load.version:
        fetched = wire.fetch_answer(load.version, streams[0].ask(request(0)))
        if any(part.error_code or part.records_size < load.batch_size for part in fetched) or len(fetched) != load.partitions:
            raise wire.UnexpectedAnswer(f"Fetch answered {fetched}")
    smallest = load.partitions * (load.max_bytes // load.batch_size) * load.batch_size
    answers = {id(stream): Answers(stream, smallest, load.region_bytes) for stream in streams}
    next_region = {id(stream): index * load.regions // load.connections for index, stream in enumerate(streams)}
    selector = Selector(streams)
    meter = Meter(load)
    buffer = memoryview(bytearray(RECEIVE_SIZE))

    def refill(stream: Stream) -> None:
        while not meter.finished and not stream.unsent:
            if stream.sent_requests - answers[id(stream)].count >= load.window:
                break
            stream.unsent = memoryview(request(next_region[id(stream)]))
            next_region[id(stream)] += 1
            stream.sent_requests += 1
            stream.send_some()
        selector.want(stream)

    for stream in streams:
        refill(stream)
    while not meter.finished or any(stream.sent_requests > answers[id(stream)].count for stream in streams):
        for stream, readable, writable in selector.ready():
            if readable:
                # A TLS socket gives one record (16 KiB) at a time, and an answer's length is read by itself.
                for _ in range(RECEIVES_A_ROUND):
                    if not answers[id(stream)].read_some(buffer):
                        break
            if writable:
                stream.send_some()
            refill(stream)
        meter.answered(sum(answer.count for answer in answers.values()), sum(answer.bytes for answer in answers.values()))
    return meter.outcome(0, sum(answer.count for answer in answers.values()))


def scan(load: ScanLoad) -> Outcome:
    """Gives way to everything else on its CPU: what is measured beside it shall not wait for it."""
    os.nice(10)
    stream = Stream(load.port)
    stream.socket.settimeout(STALL_SECONDS)
    head, sink = bytearray(SCAN_HEAD_SIZE), bytearray(RECEIVE_SIZE)
    offset = requests = received = 0
    begun_at, server_cpu, own_cpu = time.perf_counter(), cpu_seconds(load.server_pid), time.process_time()
    while offset < load.end_offset:
        read = wire.PartitionRead(0, offset, load.max_bytes)
        stream.socket.sendall(wire.fetch_request(load.version, load.topic, [read], max_bytes=0x7FFFFFFF))
        filled = 0
        while filled < SCAN_HEAD_SIZE:
            filled += receive(stream, memoryview(head)[filled:], keep=True)
        part = wire.fetch_answer(load.version, bytes(head), head_only=True)[0]
        batches = part.records_size // load.batch_size
        if part.error_code or not batches:
            raise wire.UnexpectedAnswer(f"Fetch of {load.topic}-0 from {offset}: {part}")
        left = wire.FRAME_PREFIX_SIZE + wire.INT32.unpack_from(head)[0] - SCAN_HEAD_SIZE
        while left:
            left -= receive(stream, memoryview(sink)[:left])
        offset += batches * load.messages_per_batch
        received += part.records_size
        requests += 1
    return Outcome(
        requests=requests,
        bytes=received,
        seconds=time.perf_counter() - begun_at,
        server_cpu_seconds=cpu_seconds(load.server_pid) - server_cpu,
        answer_size=0,
        total_requests=requests,
        generator_cpu_seconds=time.process_time() - own_cpu,
        begun_at=begun_at,
    )


def read_disk(load: DiskLoad) -> Outcome:
    os.nice(10)
    buffer = bytearray(load.read_size)
    requests = received = 0
    begun_at, own_cpu = time.perf_counter(), time.process_time()
    for path in load.paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                received += count
                requests += 1
    seconds = time.perf_counter() - begun_at
    return Outcome(requests, received, seconds, 0.0, 0, requests, time.process_time() - own_cpu, begun_at)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if "message_size" in arguments:
        outcome = produce(ProduceLoad(**arguments))
    elif "paths" in arguments:
        outcome = read_disk(DiskLoad(**arguments))
    elif "end_offset" in arguments:
        outcome = scan(ScanLoad(**arguments))
    else:
        outcome = fetch(FetchLoad(**arguments))
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()
