"""A broker without sockets, for tests that call handlers directly.

Its parts are the real ones: a controller over the embedded coordination in memory, logs in a directory. A request goes
through the codec in both directions, and kio, which knows Kafka's schemas, is on the client's side of it.
"""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from random import Random
from types import GeneratorType
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from ottla.broker.handlers.registry import APIS, BrokerParts, EncodedBody, RequestContext
from ottla.broker.handlers.waiting import begun
from ottla.broker.security.authorizer import Operation, Resource
from ottla.broker.server import Broker
from ottla.clock import SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.lifecycle import offload_nothing
from ottla.model import ANONYMOUS, Principal
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, response_header_size
from ottla.protocol.schemas import schema_fields
from ottla.record.records import Record, build_batch

# As a single broker can have them.
INTERNAL_TOPICS_OF_ONE = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Rules:
    """An authorizer that allows everything but what is named."""

    allows_all = False

    def __init__(self) -> None:
        self.denied: set[tuple[Operation, str]] = set()

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.name) not in self.denied


class BrokerWithoutSockets:
    """What a test talks to."""

    def __init__(self, parts: BrokerParts, rules: Rules) -> None:
        self.parts = parts
        self.rules = rules

    async def ask(self, key: ApiKey, version: int, /, *, listener_name: str = "PLAINTEXT", **values: Any) -> Any:
        """Sends a request made of plain values and gives the response as kio reads it.

        What the version lacks is left out, what is not given has its default or is zero.
        """
        out = io.BytesIO()
        request = _message(load_request_schema(key, version), values)
        entity_writer(type(request))(out, request)
        frame = await self.ask_bytes(key, version, out.getvalue(), listener_name)
        start = 4 + response_header_size(key, version)
        response, size = entity_reader(load_response_schema(key, version))(frame, start)
        assert start + size == len(frame)
        return response

    async def ask_bytes(self, key: ApiKey, version: int, body: bytes, listener_name: str = "PLAINTEXT") -> bytes:
        """Sends a body and gives the framed response."""
        api = APIS[key]
        assert api.min_version <= version <= api.max_version
        view = memoryview(bytearray(body)).toreadonly()
        request = api.decode(view, version) if api.decode else messages.request_reader(key, version, api.max_version)(view)
        context = RequestContext(key, ANONYMOUS, "test", version, 5, listener_name, "127.0.0.1")
        response = api.handle(request, context, self.parts)
        if isinstance(response, GeneratorType):
            response = begun(response)
        if inspect.isawaitable(response):
            response = await response
        if isinstance(response, EncodedBody):
            return b"".join(piece for piece in response.pieces if isinstance(piece, bytes))
        return messages.encode_response(key, version, 5, response)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Makes a topic; settings with `_` for `.`."""
        response = await self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
                }
            ],
        )
        assert [(topic.error_code, topic.error_message) for topic in response.topics] == [(0, None)]

    async def pause(self) -> None:
        """Lets others run."""
        await asyncio.sleep(0.001)

    def publish(self, topic: str, partition: int, *timestamps: int) -> None:
        """Appends one batch with a record for each timestamp."""
        batch = bytearray(build_batch([Record(index, each, b"key", b"value") for index, each in enumerate(timestamps)]))
        found = self.parts.replicas.get(topic, partition)
        found.append_as_leader(memoryview(batch), 0, len(batch), 1, self.parts.clock.time_ms())
        self.parts.replicas.appends.stage(found)
        self.parts.replicas.appends.complete()


def _message(schema: Any, values: Mapping[str, Any]) -> Any:
    known = {field.name: field for field in schema_fields(schema)}
    defaults = {field.name: field.default for field in fields(schema) if field.default is not MISSING}
    return schema(
        **{
            name: _value(field, values[name]) if name in values else defaults[name] if name in defaults else _zero(field)
            for name, field in known.items()
        }
    )


def _value(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return tuple(_message(field.struct, item) if field.struct else item for item in value)
    if field.struct:
        return _message(field.struct, value)
    return timedelta(milliseconds=value) if field.wire_type.startswith("timedelta") else value


def _zero(field: Any) -> Any:
    if field.nullable:
        return None
    if field.is_array:
        return ()
    if field.wire_type.startswith("timedelta"):
        return timedelta(seconds=60)
    return "" if field.wire_type == "string" else 0


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[BrokerWithoutSockets]:
    """One with settings of its own is asked for by `@pytest.mark.parametrize("broker", [{"broker.rack": "a"}], indirect=True)`."""
    return without_sockets(tmp_path, getattr(request, "param", {}))


@asynccontextmanager
async def without_sockets(directory: Path, properties: Mapping[str, str]) -> AsyncIterator[BrokerWithoutSockets]:
    settings = BrokerSettings.from_properties(
        {
            "broker.id": "1",
            "broker.rack": "rack-1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://broker.test:9092",
            "log.dirs": f"{directory / 'a'},{directory / 'b'}",
            **INTERNAL_TOPICS_OF_ONE,
            **properties,
        }
    )
    rules, zookeeper = Rules(), EmbeddedZooKeeper(None, SystemClock())
    broker = Broker(settings, zookeeper.session, random=Random(1), authorizer=rules, offload=offload_nothing)
    try:
        await broker.start()
        try:
            yield BrokerWithoutSockets(broker.parts, rules)
        finally:
            await broker.stop(handover_attempts=0)
    finally:
        await zookeeper.close()
