"""A channel: deadlines, peers that are away or say nothing, and finding them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.errors import BrokerNotAvailable, RequestTimedOut
from ottla.rpc.channel import RpcChannel
from ottla.rpc.limits import RpcLimits
from ottla.rpc.v1 import broker_pb2

from .serving import DEADLINE, Served, nothing, server_of, serving

QUICK = RpcLimits(reconnect_backoff_ms=10, reconnect_backoff_max_ms=20)


async def test_a_call_that_is_not_answered_ends_at_its_deadline() -> None:
    async with serving(endless(asyncio.Event())) as served:
        with pytest.raises(RequestTimedOut, match=f"127.0.0.1:{served.port}"):
            await served.call(timeout_seconds=0.1)


async def test_a_peer_that_takes_the_connection_and_says_nothing_is_given_up_at_the_deadline() -> None:
    """A process that was stopped (SIGSTOP): its kernel still takes connections."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    channel = RpcChannel(f"127.0.0.1:{port}")
    with pytest.raises((RequestTimedOut, BrokerNotAvailable)):
        await Served(server_of(nothing), channel, port).call(timeout_seconds=0.2)
    await channel.close()
    listener.close()
    await listener.wait_closed()


async def test_nobody_there_is_told_at_once() -> None:
    """Not at the deadline: a controller that waits for one dead broker is late for the others."""
    async with serving() as served:
        await served.server.stop(0)
        with pytest.raises(BrokerNotAvailable, match=f"127.0.0.1:{served.port}"):
            await served.call(timeout_seconds=3600)


async def test_a_server_that_is_back_is_found_again() -> None:
    async with serving(limits=QUICK) as served:
        await served.call()
        await served.server.stop(0)
        with pytest.raises(BrokerNotAvailable):
            await served.call()
        again = server_of(nothing)
        await again.start("127.0.0.1", served.port)
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    try:
                        await served.call()
                        break
                    except BrokerNotAvailable:
                        await asyncio.sleep(0.01)
        finally:
            await again.stop(0)


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC honours http_proxy by default, and would send the cluster's control to it."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serving() as served:
        await served.call()


def endless(begun: asyncio.Event) -> Callable[[broker_pb2.UpdateMetadataRequest], Awaitable[None]]:
    """A call that says when it has begun, and does not end."""

    async def answer(_: broker_pb2.UpdateMetadataRequest) -> None:
        begun.set()
        await asyncio.Event().wait()

    return answer


async def test_a_channel_that_is_closed_ends_its_calls_with_an_error_and_does_not_cancel_the_caller() -> None:
    """gRPC cancels such calls; a caller that sees CancelledError without having been cancelled would die of it."""
    async with serving(endless(begun := asyncio.Event())) as served:
        call = asyncio.ensure_future(served.call())
        await begun.wait()
        await served.channel.close()
        with pytest.raises(BrokerNotAvailable, match="closed"):
            await call
        with pytest.raises(BrokerNotAvailable, match="closed"):
            await served.call()


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async with serving(endless(begun := asyncio.Event())) as served:
        call = asyncio.ensure_future(served.call())
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
