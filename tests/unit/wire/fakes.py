"""Brokers that are functions: what they are asked is read, and what they answer is written, by the broker's own codecs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from ottla.model import BrokerId, Endpoint
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.primitives import decode_request_header
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.connection import Piece

VERSIONS = {
    ApiKey.PRODUCE: (3, 11),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (1, 12),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its header, and its frame for those that are read by hand."""

    key: ApiKey
    version: int
    correlation_id: int
    frame: memoryview
    body_position: int

    @classmethod
    def of(cls, frame: memoryview) -> Asked:
        key, version = ApiKey(int.from_bytes(frame[:2], "big")), int.from_bytes(frame[2:4], "big")
        header = decode_request_header(frame, 0, len(frame), flexible=is_flexible(key, version))
        return cls(key, version, header.correlation_id, frame, header.body_position)

    def read(self) -> Any:
        return messages.request_reader(self.key, self.version)(self.frame[self.body_position :])

    def answer(self, **fields: Any) -> bytes:
        """The frame that answers it, without its length."""
        return self.encoded(self.schema(f"{self.key.api_name}Response", **fields))

    @property
    def schema(self) -> Any:
        return messages.response_schema(self.key, self.version)

    def encoded(self, response: Any) -> bytes:
        return messages.encode_response(self.key, self.version, self.correlation_id, response)[4:]


# The frame that answers, a pause in seconds before it, or what ends the connection.
Answer = Callable[[Asked], bytes | Exception | None]


class FakeChannel:
    """Answers each request by a function, in order; None leaves it without an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._error: Exception | None = None
        self._open: list[asyncio.Future[memoryview]] = []

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        if self._error is not None:
            raise self._error
        asked = Asked.of(memoryview(b"".join(pieces)))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        self._open.append(future)
        loop.call_soon(self._deliver, future, self._answer(asked))
        return future

    def _deliver(self, future: asyncio.Future[memoryview], answer: bytes | Exception | None) -> None:
        if isinstance(answer, Exception):
            self._fail(answer)
        elif answer is not None and not future.done():
            future.set_result(memoryview(answer))

    def abort(self) -> None:
        self._fail(ConnectionError("closed"))

    async def close(self) -> None:
        self.abort()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        for future in self._open:
            if not future.done():
                future.set_exception(self._error)


def api_versions(asked: Asked, versions: Mapping[ApiKey, tuple[int, int]] = VERSIONS) -> bytes:
    """ApiVersions as a broker of those versions answers it: one that it does not know in version 0, with an error (KIP-511)."""
    first, last = versions[ApiKey.API_VERSIONS]
    if first <= asked.version <= last:
        keys = [asked.schema("ApiVersion", api_key=key, min_version=low, max_version=high) for key, (low, high) in versions.items()]
        return asked.answer(error_code=0, api_keys=keys, throttle_time=0)
    schema = messages.response_schema(ApiKey.API_VERSIONS, 0)
    keys = [schema("ApiVersion", api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)]
    response = schema("ApiVersionsResponse", error_code=35, api_keys=keys)
    return messages.encode_response(ApiKey.API_VERSIONS, 0, asked.correlation_id, response)[4:]


def one_partition(asked: Asked, topic_id: UUID | None, *, error_code: int = 0, leader_epoch: int = 5) -> bytes:
    """Metadata of one broker, which leads the one partition of `clicks`."""
    schema = asked.schema
    numbers: dict[str, Any] = {"partition_index": 0, "leader_id": 1, "leader_epoch": leader_epoch, "error_code": 0}
    nodes: dict[str, Any] = {"replica_nodes": (1,), "isr_nodes": (1,), "offline_replicas": ()}
    topic = schema(
        "MetadataResponseTopic",
        error_code=error_code,
        name="clicks",
        topic_id=topic_id,
        is_internal=False,
        partitions=[schema("MetadataResponsePartition", **numbers, **nodes)],
        topic_authorized_operations=0,
    )
    broker = schema("MetadataResponseBroker", node_id=1, host="broker", port=9092, rack=None)
    return asked.answer(throttle_time=0, brokers=[broker], cluster_id="c", controller_id=1, topics=[topic])


def connecting(answer: Answer) -> Callable[[Endpoint], Any]:
    """A `Connect` to a broker that answers so."""

    async def connect(endpoint: Endpoint) -> FakeChannel:
        return FakeChannel(answer)

    return connect


class AnsweringCluster(Cluster):
    """One broker that coordinates and controls; the answers are given beforehand, in their order. `asked` counts."""

    def __init__(self, *answers: object) -> None:
        super().__init__("broker:9092", ClusterSettings(retry_backoff_seconds=0.001, retry_backoff_max_seconds=0.001))
        self._answers = list(answers)
        self.asked = 0

    async def ask(self, *_: object, **__: object) -> Any:
        self.asked += 1
        return self._answers.pop(0)

    async def connection(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(message=lambda key, first, last: messages.message(key, last), ask=self.ask)

    async def coordinator(self, *_: object, **__: object) -> BrokerId:
        return BrokerId(1)

    async def controller(self) -> BrokerId:
        return BrokerId(1)
