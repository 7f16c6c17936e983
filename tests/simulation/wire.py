"""What clients and followers say to a broker: real frames, over simulated connections.

Requests are written and answers read by kio's schemas, which know nothing of how a broker reads and writes them.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from tests.simulation.listening import ClientEnd, Connections

from ottla.broker.replication.following import Connect
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey, is_flexible, response_header_size
from ottla.protocol.messages import response_schema
from ottla.protocol.primitives import read_array_length, read_string
from ottla.protocol.schema_reader import message_reader
from ottla.protocol.schema_writer import struct_writer

_HEAD: Final = struct.Struct(">ihhih")
_CORRELATION: Final = struct.Struct(">i")
_PRODUCED: Final = struct.Struct(">ihq")


class Produced(NamedTuple):
    """What a Produce request for one partition is answered with."""

    error: int
    base_offset: int


def _read_produced(frame: memoryview, position: int) -> tuple[Produced, int]:
    """Of the answer to one partition, v9: what comes before the times, which no reader of ours knows."""
    _, position = read_array_length(frame, position, len(frame), compact=True, element_size=1)
    _, position = read_string(frame, position, len(frame), compact=True)
    _, position = read_array_length(frame, position, len(frame), compact=True, element_size=1)
    _, error, base_offset = _PRODUCED.unpack_from(frame, position)
    return Produced(error, base_offset), position


_READERS: Final[Mapping[tuple[ApiKey, int], Callable[[memoryview, int], tuple[Any, int]]]] = {(ApiKey.PRODUCE, 9): _read_produced}


class Message:
    """One version of one API, as a client has it."""

    def __init__(self, key: ApiKey, version: int) -> None:
        response_schema(key, version)  # which imports kio without all that it would like to have
        name = f"kio.schema.{key.name.lower()}.v{version}"
        self.key: Final = key
        self.version: Final = version
        self.request: Final[Any] = importlib.import_module(f"{name}.request")
        self._write = struct_writer(getattr(self.request, f"{key.api_name}Request"))
        self._read = _READERS.get((key, version)) or message_reader(
            getattr(importlib.import_module(f"{name}.response"), f"{key.api_name}Response")
        )
        self._tags = b"\0" if is_flexible(key, version) else b""
        self._answer_header = response_header_size(key, version)

    def framed(self, correlation_id: int, client_id: bytes, body: Any) -> bytes:
        """A whole request, with its size in front."""
        out = bytearray(_HEAD.size)
        out += client_id
        out += self._tags
        self._write(out, body)
        _HEAD.pack_into(out, 0, len(out) - 4, self.key, self.version, correlation_id, len(client_id))
        return bytes(out)

    def answer(self, frame: bytes) -> Any:
        """What a frame without its size says."""
        return self._read(memoryview(frame), self._answer_header)[0]


@functools.cache
def message(key: ApiKey, version: int) -> Message:
    return Message(key, version)


class BrokerConnection:
    """A client's connection to one broker. Requests may follow each other before they are answered."""

    def __init__(self, end: ClientEnd, client_id: str) -> None:
        self._end = end
        self._client_id = client_id.encode()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, connections: Connections, host: str, port: int, client_id: str) -> BrokerConnection:
        """Raises OSError."""
        return cls(await connections.connect(host, port), client_id)

    @property
    def is_lost(self) -> bool:
        return self._end.is_lost

    async def ask(self, api: Message, body: Any, timeout_seconds: float) -> Any:
        """Sends a request and gives its answer.

        Raises:
            OSError: the connection was lost, or no answer came in time; then it is given up.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._end.send(api.framed(number, self._client_id, body))
            async with asyncio.timeout(timeout_seconds):
                return api.answer(await answer)
        except TimeoutError:
            self.close()
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Gives the connection up; whoever waits gets an error."""
        self._end.close()

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._end.receive()
                waiting = self._waiting.get(_CORRELATION.unpack_from(frame)[0])
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
        except ConnectionError as error:
            for each in self._waiting.values():
                if not each.done():
                    each.set_exception(ConnectionResetError(str(error)))


class FollowerConnection:
    """A follower's connection to its leader: `ottla.broker.replication.following.FetchConnection`."""

    def __init__(self, end: ClientEnd) -> None:
        self._end = end

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        self._end.send(struct.pack(">i", len(request)) + bytes(request))
        async with asyncio.timeout(timeout_seconds):
            return memoryview(bytearray(await self._end.receive()))

    async def close(self) -> None:
        self._end.close()


def follower_connect(connections: Connections) -> Connect:
    """What a broker's followers reach their leaders with."""

    async def connect(endpoint: Endpoint) -> FollowerConnection:
        return FollowerConnection(await connections.connect(endpoint.host, endpoint.port))

    return connect


class ClientView:
    """What a client knows of the cluster, and its connections. Everything raises OSError when nobody answers.

    Args:
        brokers: host and port of each broker; they never change here.
    """

    def __init__(self, connections: Connections, brokers: Mapping[int, tuple[str, int]], name: str) -> None:
        self._connections = connections
        self._brokers = brokers
        self._name = name
        self._open: dict[int, BrokerConnection] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._refreshing = asyncio.Lock()
        self._refreshed = 0
        self.leaders: dict[tuple[str, int], int] = {}
        self.leader_epochs: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, UUID] = {}

    async def connection(self, broker_id: int) -> BrokerConnection:
        """The connection to a broker, opened when it is not. Whoever asks first, gets it first."""
        async with self._opening.setdefault(broker_id, asyncio.Lock()):
            known = self._open.get(broker_id)
            if known is None or known.is_lost:
                host, port = self._brokers[broker_id]
                known = self._open[broker_id] = await BrokerConnection.open(self._connections, host, port, self._name)
            return known

    async def ask(self, broker_id: int, api: Message, body: Any, timeout_seconds: float) -> Any:
        return await (await self.connection(broker_id)).ask(api, body, timeout_seconds)

    async def refresh(self, broker_id: int, topic: str) -> None:
        """Asks one broker who leads what, unless somebody has just asked. What is older than what is known is passed over."""
        refreshed = self._refreshed
        async with self._refreshing:
            if refreshed == self._refreshed:
                await self._refresh(broker_id, topic)
                self._refreshed += 1

    async def _refresh(self, broker_id: int, topic: str) -> None:
        api = message(ApiKey.METADATA, 12)
        kinds = api.request
        body = kinds.MetadataRequest(
            topics=(kinds.MetadataRequestTopic(topic_id=None, name=topic),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await self.ask(broker_id, api, body, 5.0)
        for found in answer.topics:
            if found.topic_id is not None and found.topic_id != self.topic_ids.get(found.name):
                # Made again, so that its epochs begin again.
                self.topic_ids[found.name] = found.topic_id
                for key in [key for key in self.leaders if key[0] == found.name]:
                    del self.leaders[key], self.leader_epochs[key]
            for each in found.partitions:
                key = (found.name, each.partition_index)
                if each.leader_epoch >= self.leader_epochs.get(key, -1):
                    self.leader_epochs[key] = each.leader_epoch
                    self.leaders[key] = each.leader_id

    def close(self) -> None:
        for each in self._open.values():
            each.close()
