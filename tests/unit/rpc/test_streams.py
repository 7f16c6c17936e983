"""Streams of a server: they end with their caller and with the server, and what they raise is its error.

Method: a generic handler with plain bytes, so that no message of ours needs a stream to be tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from ottla.errors import BrokerNotAvailable, InvalidRequest, UnknownServerError
from ottla.rpc.channel import RpcChannel
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.status import error_of_call

NAME = "ottla.test.Streams"


class Streams:
    def __init__(self) -> None:
        self.open = 0
        self.received: list[bytes] = []

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            for number in range(3):
                yield request + b"%d" % number
            if request == b"refused":
                raise InvalidRequest("no more of this")
            if request == b"broken":
                raise ZeroDivisionError
            if request == b"forever":
                await asyncio.Event().wait()
            while request == b"on and on":
                yield request
        finally:
            self.open -= 1

    async def send(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for request in requests:
            self.received.append(request)
        return b"%d" % len(self.received)

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request[::-1]

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, Any] = {
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
            "Send": grpc.stream_unary_rpc_method_handler(self.send),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Streams, RpcServer, RpcChannel]]:
    streams = Streams()
    server = RpcServer([RpcService(NAME, streams.register)])
    channel = RpcChannel(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    try:
        yield streams, server, channel
    finally:
        await channel.close()
        await server.stop(0)


async def watch(channel: RpcChannel, request: bytes) -> AsyncIterator[bytes]:
    method: Any = channel.grpc_channel.unary_stream(f"/{NAME}/Watch")
    call = method(request, timeout=120)
    try:
        async for answer in call:
            yield answer
    except grpc.aio.AioRpcError as failure:
        raise error_of_call(failure, channel.target) from None
    finally:
        call.cancel()


async def until_closed(streams: Streams) -> None:
    async with asyncio.timeout(120):
        while streams.open:  # noqa: ASYNC110 - state of the other end
            await asyncio.sleep(0.01)


async def test_answers_come_one_by_one_and_end() -> None:
    async with serving() as (streams, _, channel):
        assert [value async for value in watch(channel, b"news")] == [b"news0", b"news1", b"news2"]
        assert streams.open == 0


@pytest.mark.parametrize(("request_", "error"), [(b"refused", InvalidRequest), (b"broken", UnknownServerError)])
async def test_what_a_stream_raises_is_the_callers_error_after_what_came(request_: bytes, error: type[Exception]) -> None:
    async with serving() as (_, _, channel):
        received = []
        with pytest.raises(error):
            async for value in watch(channel, request_):
                received.append(value)  # noqa: PERF401 - what came before the error counts
        assert len(received) == 3


async def test_a_stream_ends_when_its_caller_goes() -> None:
    async with serving() as (streams, _, channel):
        stream = watch(channel, b"forever")
        assert await anext(stream) == b"forever0"
        assert streams.open == 1
        await stream.aclose()  # type: ignore[attr-defined]
        await until_closed(streams)


@pytest.mark.parametrize("request_", [b"forever", b"on and on"])
async def test_a_server_that_stops_ends_its_streams_at_once(request_: bytes) -> None:
    """And does not wait for them as for calls: a watch has no end of its own, whether it waits or is being sent an answer."""
    async with serving() as (streams, server, channel):
        stream = watch(channel, request_)
        for _ in range(3):
            await anext(stream)
        async with asyncio.timeout(120):
            await server.stop(300)
        with pytest.raises(BrokerNotAvailable, match="the server stops"):
            async for _ in stream:
                pass
        await until_closed(streams)


async def test_requests_can_stream_too() -> None:
    async def requests() -> AsyncIterator[bytes]:
        for value in (b"abc", b"def"):
            yield value

    async with serving() as (streams, _, channel):
        send: Any = channel.grpc_channel.stream_unary(f"/{NAME}/Send")
        assert await send(requests(), timeout=120) == b"2"
        assert streams.received == [b"abc", b"def"]
        talk: Any = channel.grpc_channel.stream_stream(f"/{NAME}/Talk")
        assert [answer async for answer in talk(requests(), timeout=120)] == [b"cba", b"fed"]
