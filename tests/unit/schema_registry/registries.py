"""Registries for tests: the service's own code over a topic in memory, and a client that shows each answer as it came."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools

from ottla.errors import InvalidProducerEpoch
from ottla.schema_registry.formats import Formats
from ottla.schema_registry.leadership import Address, Leadership
from ottla.schema_registry.rest.api import Api, Bounds, Identity
from ottla.schema_registry.rest.application import Application
from ottla.schema_registry.rest.document import openapi
from ottla.schema_registry.rest.forwarding import Forwarder
from ottla.schema_registry.rest.http import HttpLimits, HttpListener
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.records import Record
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.store.replaying import Appended, Fetched, Store, TopicChanged, TopicRecord

_times = itertools.count(1_700_000_000_000)
TIMEOUT_SECONDS = 120.0  # of what is to be answered, on however slow a machine


@dataclass
class MemoryLog:
    """What the brokers have: records, and the epoch of the producer that may write."""

    records: list[TopicRecord] = field(default_factory=list)
    epoch: int = 0
    topic_id: str = "topic-1"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Called before records are written; what it raises is what the writer sees.
    before_append: Callable[[Sequence[Record]], None] = lambda _: None
    after_append: Callable[[Sequence[Record]], None] = lambda _: None

    def put(self, records: Sequence[Record], *headers: tuple[str, bytes]) -> Appended:
        offset, timestamp_ms = len(self.records), next(_times)
        for index, record in enumerate(records):
            self.records.append(TopicRecord(offset + index, timestamp_ms, record.key, record.value, dict((*record.headers, *headers))))
        self.changed.set()
        self.changed = asyncio.Event()
        return Appended(offset, timestamp_ms)

    def compacted(self) -> list[TopicRecord]:
        """What is left of it once only the last record of each key is."""
        last = {record.key: record.offset for record in self.records}
        return [record for record in self.records if last[record.key] == record.offset]


class MemoryTopic:
    """One client of the log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.fetch_count = self.append_count = 0
        self._epoch = -1

    async def fetch(self, offset: int) -> Fetched:
        if offset > len(self.log.records):
            raise TopicChanged(f"the topic ends at {len(self.log.records)}, before offset {offset}")
        if offset == len(self.log.records):
            await self.log.changed.wait()
        await self.may_read.wait()
        self.fetch_count += 1
        found = self.log.records[offset : offset + 100]
        return Fetched(found, offset + len(found))

    async def begin(self) -> int:
        self.log.epoch += 1
        self._epoch = self.log.epoch
        return len(self.log.records)

    async def end(self) -> int:
        return len(self.log.records)

    async def append(self, records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
        await asyncio.sleep(0)
        self.append_count += 1
        await self.may_write.wait()
        if self._epoch != self.log.epoch:
            raise InvalidProducerEpoch(f"epoch {self._epoch}, and {self.log.epoch} is known")
        self.log.before_append(records)
        appended = self.log.put(records, header)
        self.log.after_append(records)
        return appended


@dataclass(frozen=True)
class Reply:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> int | None:
        """The error's code, if it is one."""
        return self.json["error_code"] if self.status >= 400 else None


class Client:
    """Asks over real sockets, one connection for each request."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls

    async def raw(self, data: bytes) -> bytes:
        """All that comes back for some bytes until the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        try:
            writer.write(data)
            async with asyncio.timeout(120):
                return await reader.read()
        finally:
            writer.close()

    async def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": "test", "Connection": "close", "Content-Length": str(len(content)), **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        return parsed(await self.raw(head.encode("latin-1") + content))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    async def post(self, path: str, body: object, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", path, body, {"Content-Type": "application/vnd.schemaregistry.v1+json", **named})

    async def put(self, path: str, body: object) -> Reply:
        return await self.ask("PUT", path, body, {"Content-Type": "application/json"})

    async def delete(self, path: str) -> Reply:
        return await self.ask("DELETE", path)

    async def register(self, subject: str, schema: object, **more: object) -> int:
        """Registers a schema, and gives its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        reply = await self.post(f"/subjects/{subject}/versions", {"schema": text, **more})
        assert reply.status == 200, reply
        found: int = reply.json["id"]
        return found


class _Parsing:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body


def parsed(data: bytes) -> Reply:
    """An answer's bytes, taken apart; of several the first."""
    parsing = _Parsing()
    parser = httptools.HttpResponseParser(parsing)
    parser.feed_data(data)
    return Reply(parser.get_status_code(), parsing.headers, parsing.body)


@dataclass
class Node:
    """One registry."""

    store: Store
    leadership: Leadership
    application: Application
    listener: HttpListener
    client: Client
    topic: MemoryTopic

    @property
    def state(self) -> State:
        return self.store.state


@asynccontextmanager
async def node(
    log: MemoryLog,
    *,
    leads: bool = True,
    limits: HttpLimits | None = None,
    bounds: Bounds | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    address: Callable[[], Address] | None = None,
    may_change_mode: bool = True,
    may_be_empty: bool = True,
    **options: Any,
) -> AsyncIterator[Node]:
    """A registry that runs.

    Args:
        timeout_seconds: of its store, once it runs.
        options: of the application.
    """
    async with AsyncExitStack() as stack:
        formats = Formats()
        stack.push_async_callback(formats.close)
        topic = MemoryTopic(log)
        store = Store(topic, Drafts(formats), State(), TIMEOUT_SECONDS)
        leadership = Leadership(store, address or (lambda: Address(f"http://127.0.0.1:{listener.port}")), changed=lambda: None)
        api = Api(
            store,
            bounds,
            Identity("cluster-1", "group-1", "1.0"),
            may_change_mode=may_change_mode,
            may_be_empty=may_be_empty,
            document=openapi("1.0"),
        )
        forwarder = Forwarder(TIMEOUT_SECONDS)
        stack.push_async_callback(forwarder.close)
        application = Application(api, leadership, forwarder, **options)
        listener = HttpListener(application.handle, limits)
        await listener.start("127.0.0.1", 0)
        stack.push_async_callback(listener.close)
        store.start()
        stack.push_async_callback(store.close)
        await store.wait_for(len(log.records))
        if leads:
            await leadership.lead_alone()
        store._timeout_seconds = timeout_seconds
        yield Node(store, leadership, application, listener, Client(listener.port), topic)


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[Client]:
    """Who asks a registry that runs, with these options of `node`, on a log of its own."""
    async with node(MemoryLog(), **options) as registry:
        yield registry.client


def record(name: str, *fields: str, default: bool = False) -> dict[str, Any]:
    """An Avro record whose fields are texts."""
    described = [{"name": name, "type": "string", **({"default": ""} if default else {})} for name in fields]
    return {"type": "record", "name": name, "fields": described}
