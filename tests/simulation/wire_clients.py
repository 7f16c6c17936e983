"""Producers and a consumer that are `ottla.wire`'s: the services' own client, under the same judges as the simulation's.

They write down what they were told. When a batch fails no one knows what became of it, and whether what is behind it will be there
twice: the producer goes on as another process then, because nothing promises an order across that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from tests.chaos.history import DAMAGED, NO_OFFSET, Polls, Sends, sender_of
from tests.simulation.listening import ClientEnd, Connections
from tests.simulation.producing import VALUE

from ottla.client.outgoing import Delivery, Outgoing
from ottla.client.record_sender import RecordSender, SendSettings
from ottla.clock import Clock
from ottla.errors import ApiError, NetworkException, OutOfOrderSequenceNumber, RequestTimedOut
from ottla.model import Endpoint, TopicPartition
from ottla.protocol.primitives import INT32
from ottla.record.batch import batches
from ottla.record.codecs import CODEC_NAMES
from ottla.record.records import Record, build_batch, read_records
from ottla.testing.clock import DEFAULT_START_MS
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.connection import Channel, Connect, Piece
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, FetchSettings
from ottla.wire.producing import BatchProducer, ProduceSettings

# What a batch may fail with in a cluster that keeps its promises: time, and what its leader does not remember after a crash.
_EXPECTED: Final = (RequestTimedOut, OutOfOrderSequenceNumber, NetworkException)


class SimulatedChannel:
    """`ottla.wire.connection.Channel` over a simulated connection."""

    def __init__(self, end: ClientEnd) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[memoryview], asyncio.TimerHandle]] = deque()
        self._reading = self._loop.create_task(self._read())

    @property
    def is_lost(self) -> bool:
        return self._end.is_lost

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        frame = b"".join(pieces)
        self._end.send(INT32.pack(len(frame)) + frame)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting.append((answer, self._loop.call_later(timeout_seconds, self._fail, TimeoutError("no answer in time"))))
        return answer

    def abort(self) -> None:
        self._fail(ConnectionResetError("the connection was given up"))

    async def close(self) -> None:
        self.abort()

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._end.receive()
                if not self._waiting:
                    return  # it was given up, with answers that had come and were not read yet
                answer, timer = self._waiting.popleft()
                timer.cancel()
                if not answer.done():
                    answer.set_result(memoryview(frame))
        except ConnectionError as error:
            self._fail(ConnectionResetError(str(error)))

    def _fail(self, error: OSError) -> None:
        self._end.close()
        while self._waiting:
            answer, timer = self._waiting.popleft()
            timer.cancel()
            if not answer.done():
                answer.set_exception(error)


def wire_connect(connections: Connections) -> Connect:
    """What `ottla.wire` reaches brokers with."""

    async def connect(endpoint: Endpoint) -> Channel:
        return SimulatedChannel(await connections.connect(endpoint.host, endpoint.port))

    return connect


class WireProducer:
    """As `tests.simulation.producing.Producer`, by `ottla.wire`.

    Args:
        brokers: host and port of each.
        clock: the client's.
    """

    def __init__(
        self,
        connections: Connections,
        brokers: Sequence[tuple[str, int]],
        clock: Clock,
        topic: str,
        partition_count: int,
        random: Random,
        time_ms: Callable[[], int],
        new_sends: Callable[[], Sends],
        unexpected: Callable[[str], None],
        delivery_seconds: float,
        acknowledged: Callable[[int, int], None],
        note: Callable[[str], None],
    ) -> None:
        self._connections = connections
        self._bootstrap = ",".join(f"{host}:{port}" for host, port in brokers)
        self._clock = clock
        self._topic = topic
        self._partition_count = partition_count
        self._random = random
        self._time_ms = time_ms
        self._new_sends = new_sends
        self._unexpected = unexpected
        self._settings = ProduceSettings(delivery_timeout_seconds=delivery_seconds)
        self._acknowledged = acknowledged
        self._note = note
        self._sends = new_sends()
        self._has_failed = False
        self._is_stopping = False
        self._deliveries: list[tuple[Delivery, Sends, int, list[int]]] = []  # of records

    async def run(self, every_seconds: float) -> None:
        """Produces a batch now and then, until `stop`; ends when all that was sent is acknowledged or given up."""
        settings = ClusterSettings(client_id="wire", request_timeout_seconds=6.0)
        connect = wire_connect(self._connections)
        async with Cluster(self._bootstrap, settings, clock=self._clock, random=self._random, connect=connect) as cluster:
            while not self._is_stopping:
                producer = BatchProducer(cluster, self._settings)
                self._has_failed = False
                while not self._is_stopping and not self._has_failed:
                    await asyncio.sleep(self._random.expovariate(1 / every_seconds))
                    if not self._has_failed:
                        self._send(producer)
                if not self._has_failed:
                    await producer.flush()
                await producer.close(wait=False)
                await asyncio.sleep(0)  # in which the last of its batches are given up
                self._sends = self._new_sends()

    def stop(self) -> None:
        """Nothing new is produced."""
        self._is_stopping = True

    def _send(self, producer: BatchProducer) -> None:
        partition = self._random.randrange(self._partition_count)
        now_ms = self._time_ms()
        values = [self._sends.begin(partition, now_ms) for _ in range(self._random.choice((1, 1, 2, 5)))]
        padding = bytes(self._random.choice((0, 0, 100, 700)))
        records = [Record(index, DEFAULT_START_MS + now_ms, None, VALUE.pack(value) + padding) for index, value in enumerate(values)]
        try:
            result = producer.send(TopicPartition(self._topic, partition), build_batch(records))
        except ApiError as error:  # what ended the producer a moment ago
            result = asyncio.get_running_loop().create_future()
            result.set_exception(error)
        result.add_done_callback(partial(self._answered, self._sends, partition, values))

    def _answered(self, sends: Sends, partition: int, values: list[int], result: asyncio.Future[int]) -> None:
        now_ms = self._time_ms()
        error = result.exception()
        self._note(f"wire producer: partition {partition}, {len(values)} messages: {error or result.result()}")
        if error is not None:
            if not isinstance(error, _EXPECTED):
                self._unexpected(f"partition {partition}: a batch of wire's producer is refused: {error!r}")
            self._has_failed = True
            for value in values:
                sends.give_up(sender_of(value)[1], now_ms)
            return
        offset = result.result()
        if offset >= 0:
            self._acknowledged(partition, offset + len(values) - 1)
        for index, value in enumerate(values):
            sends.acknowledge(sender_of(value)[1], NO_OFFSET if offset < 0 else offset + index, now_ms)


class RecordProducer(WireProducer):
    """The same by what `ottla.client.Producer` stands on: messages in batches that fill up, or wait for others."""

    async def run(self, every_seconds: float) -> None:
        settings = ClusterSettings(client_id="wire", request_timeout_seconds=6.0)
        connect, loop = wire_connect(self._connections), asyncio.get_running_loop()
        seconds = self._settings.delivery_timeout_seconds

        def wake() -> None:
            loop.call_soon(lambda: sender.look())  # the one that there is by then

        while not self._is_stopping:
            cluster = Cluster(self._bootstrap, settings, clock=self._clock, random=self._random, connect=connect)
            outgoing = Outgoing(4, 1_000, seconds, self._clock, wake, self._random)
            linger, codec = self._random.choice((0.0, 0.02, 2 * every_seconds)), self._random.choice(sorted(CODEC_NAMES))
            sender = RecordSender(outgoing, cluster, SendSettings(linger, seconds, -1, True, codec, None, 0), None, lambda servers: None)
            await sender.begin()
            self._has_failed = False
            while not self._is_stopping and not self._has_failed:
                await asyncio.sleep(self._random.expovariate(1 / every_seconds))
                if not self._has_failed:
                    self._put(outgoing)
                self._hear()
            while self._deliveries and not self._has_failed:
                await asyncio.sleep(0.05)
                self._hear()
            await sender.close()
            self._hear()
            self._sends = self._new_sends()

    def _put(self, outgoing: Outgoing) -> None:
        partition, now_ms = self._random.randrange(self._partition_count), self._time_ms()
        values = [self._sends.begin(partition, now_ms) for _ in range(self._random.choice((1, 1, 2, 5)))]
        padding, delivery = bytes(self._random.choice((0, 0, 100, 700))), Delivery(outgoing)
        octets = [VALUE.pack(value) + padding for value in values]
        outgoing.put(self._topic, octets, delivery, timestamp_ms=DEFAULT_START_MS + now_ms, partition=partition)
        self._deliveries.append((delivery, self._sends, partition, values))

    def _hear(self) -> None:
        """What came of messages since."""
        now_ms, left = self._time_ms(), []
        for delivery, sends, partition, values in self._deliveries:
            if not delivery.is_done:
                left.append((delivery, sends, partition, values))
                continue
            error = delivery.error
            offsets = [] if error is not None else [offset for _, offset in delivery.result(0)]
            self._note(f"record producer: partition {partition}, {len(values)} messages: {error or offsets}")
            if error is not None:
                if not isinstance(error.__cause__, _EXPECTED) and error.code != NetworkException.code:
                    self._unexpected(f"partition {partition}: messages of a record sender are refused: {error!r}")
                self._has_failed = True
                for value in values:
                    sends.give_up(sender_of(value)[1], now_ms)
            for value, offset in zip(values, offsets, strict=False):
                if offset >= 0:
                    self._acknowledged(partition, offset)
                sends.acknowledge(sender_of(value)[1], offset, now_ms)
        self._deliveries = left


class WireConsumer:
    """As `tests.simulation.consuming.Consumer`, by `ottla.wire`.

    Args:
        brokers: host and port of each.
        clock: the client's.
        rack: where the client stands; the broker there is read from once its leader says so (KIP-392).
    """

    def __init__(
        self,
        connections: Connections,
        brokers: Sequence[tuple[str, int]],
        clock: Clock,
        topic: str,
        partition_count: int,
        random: Random,
        time_ms: Callable[[], int],
        polls: Polls,
        rack: str,
    ) -> None:
        self._connections = connections
        self._bootstrap = ",".join(f"{host}:{port}" for host, port in brokers)
        self._clock = clock
        self._topic = topic
        self._random = random
        self._time_ms = time_ms
        self._polls = polls
        self._rack = rack
        self._positions = [0] * partition_count
        self._is_stopping = False

    async def run(self, every_seconds: float) -> None:
        """Reads until `stop`."""
        settings = ClusterSettings(client_id="wire", request_timeout_seconds=6.0, rack=self._rack)
        connect = wire_connect(self._connections)
        async with (
            Cluster(self._bootstrap, settings, clock=self._clock, random=self._random, connect=connect) as cluster,
            Fetcher(cluster, FetchSettings(max_partition_bytes=1 << 16)) as fetcher,
        ):
            for partition in range(len(self._positions)):
                self._polls.assign(partition, 0, self._time_ms())
                fetcher.assign(TopicPartition(self._topic, partition), 0)
            while not self._is_stopping:
                try:
                    for fetched in await fetcher.poll(0.5):
                        self._take(fetched)
                except FetchFailed as failed:
                    # A leader whose session has ended, and that does not know it, takes the new leader's offsets for wrong ones.
                    fetcher.assign(failed.partition, self._positions[failed.partition.partition])
                await asyncio.sleep(self._random.uniform(0.5, 1.5) * every_seconds)

    def stop(self) -> None:
        """Nothing more is read."""
        self._is_stopping = True

    def _take(self, fetched: Fetched) -> None:
        number, now_ms = fetched.partition.partition, self._time_ms()
        for position, header in batches(fetched.records):
            for record in read_records(fetched.records[position : position + header.size]):
                if record.offset >= self._positions[number]:
                    value = DAMAGED if record.value is None else VALUE.unpack_from(record.value)[0]
                    self._polls.poll(number, record.offset, value, now_ms)
                    self._positions[number] = record.offset + 1
