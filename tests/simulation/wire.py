"""What clients and followers say to a broker: real frames, over simulated connections.

Requests are written and answers read by `protocol.messages`, through kio's schemas: by none of what a broker reads and writes by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Mapping
from random import Random
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c
from tests.simulation.listening import ClientEnd, Connections

from ottla.broker.replication.following import Connect
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import Message, message
from ottla.record.batch import CRC_START, HEADER_SIZE, MAGIC, read_header

_CORRELATION: Final = struct.Struct(">i")


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
            self._end.send(api.encode(number, self._client_id, body))
            async with asyncio.timeout(timeout_seconds):
                return api.decode(await answer, number)
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
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError(str(error)))


class FollowerConnection:
    """A follower's connection to its leader: `ottla.broker.replication.following.FetchConnection`."""

    def __init__(self, end: ClientEnd, garbled: Mapping[str, Random]) -> None:
        self._end = end
        self._garbled = garbled

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        self._end.send(struct.pack(">i", len(request)) + bytes(request))
        async with asyncio.timeout(timeout_seconds):
            answer = bytearray(await self._end.receive())
        garbling = self._garbled.get(self._end.node_name)
        if garbling is not None and garbling.random() < 0.5:
            garble(answer, garbling)
        return memoryview(answer)

    async def close(self) -> None:
        self._end.close()


def garble(answer: bytearray, random: Random) -> None:
    """Flips a bit in one of an answer's batches, where its checksum sees it."""
    found, position, view = [], 0, memoryview(bytes(answer))
    while position + HEADER_SIZE <= len(view):
        header = read_header(view[position : position + HEADER_SIZE])
        end = position + header.size
        if (
            header.magic == MAGIC
            and header.size >= HEADER_SIZE
            and end <= len(view)
            and crc32c(view[position + CRC_START : end]) == header.crc
        ):
            found.append((position + CRC_START, end))
            position = end
        else:
            position += 1
    if found:
        answer[random.randrange(*random.choice(found))] ^= 1 << random.randrange(8)


def follower_connect(connections: Connections) -> Connect:
    """What a broker's followers reach their leaders with."""

    async def connect(endpoint: Endpoint) -> FollowerConnection:
        return FollowerConnection(await connections.connect(endpoint.host, endpoint.port), connections.garbled)

    return connect


class ClientView:
    """What a client knows of the cluster, and its connections. Everything raises OSError when no one answers.

    Args:
        brokers: host and port of each broker, as they are at the time.
    """

    def __init__(self, connections: Connections, brokers: Mapping[int, tuple[str, int]], name: str) -> None:
        self._connections = connections
        self._brokers = brokers
        self._name = name
        self._open: dict[tuple[str, int], BrokerConnection] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._refreshing = asyncio.Lock()
        self._refreshed = 0
        self.leaders: dict[tuple[str, int], int] = {}
        self.leader_epochs: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, UUID] = {}

    async def connection(self, broker_id: int) -> BrokerConnection:
        """The connection to a broker, opened when it is not. Whoever asks first, gets it first."""
        async with self._opening.setdefault(broker_id, asyncio.Lock()):
            address = self._brokers[broker_id]
            known = self._open.get(address)
            if known is None or known.is_lost:
                known = self._open[address] = await BrokerConnection.open(self._connections, *address, self._name)
            return known

    async def ask(self, broker_id: int, api: Message, body: Any, timeout_seconds: float) -> Any:
        return await (await self.connection(broker_id)).ask(api, body, timeout_seconds)

    async def refresh(self, broker_id: int, topic: str) -> None:
        """Asks one broker who leads what, unless someone has just asked. What is older than what is known is passed over."""
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
            for partition in found.partitions:
                key = (found.name, partition.partition_index)
                if partition.leader_epoch >= self.leader_epochs.get(key, -1):
                    self.leader_epochs[key] = partition.leader_epoch
                    self.leaders[key] = partition.leader_id

    def close(self) -> None:
        for broker_connection in self._open.values():
            broker_connection.close()
