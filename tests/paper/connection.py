"""Requests as the guide describes them: a header, a body, and answers in the order of the requests, over one socket."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

from ottla.protocol.api import ApiKey
from ottla.protocol.messages import Message, message
from ottla.record.records import Record, build_batch

CLIENT_ID = b"paper"


class Connection:
    """A connection to one broker. `fields` of a request are Kafka's own, as kio spells them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._answers = self._socket.makefile("rb")
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._answers.close()
        self._socket.close()

    def send(self, api: Message, **fields: Any) -> int:
        """Sends a request and gives its correlation id."""
        self._sent += 1
        self.send_bytes(api.encode(self._sent, CLIENT_ID, api.build(f"{api.key.api_name}Request", **fields)))
        return self._sent

    def send_bytes(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """The next answer, whatever it answers."""
        return self._answers.read(*struct.unpack(">i", self._answers.read(4)))

    def ask(self, api: Message, **fields: Any) -> Any:
        sent = self.send(api, **fields)
        return api.decode(self.receive(), sent)


METADATA, CREATE_TOPICS = message(ApiKey.METADATA, 1), message(ApiKey.CREATE_TOPICS, 2)
PRODUCE, FETCH = message(ApiKey.PRODUCE, 7), message(ApiKey.FETCH, 4)


def produce_fields(topic: str, *values: bytes, acks: int) -> dict[str, Any]:
    """Of a Produce request: the values in one batch for partition 0."""
    records = build_batch([Record(index, 1_300_000_000_000, None, value) for index, value in enumerate(values)])
    data = PRODUCE.build("TopicProduceData", name=topic, partition_data=[PRODUCE.build("PartitionProduceData", index=0, records=records)])
    return {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": [data]}


def fetch_fields(
    topic: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 0, partition_max_bytes: int = 1 << 20
) -> dict[str, Any]:
    """Of a Fetch request, for partition 0."""
    partition = FETCH.build("FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [FETCH.build("FetchTopic", topic=topic, partitions=[partition])],
    }
