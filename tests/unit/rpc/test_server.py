"""A server: health, reflection, calls that continue to their end, and a stop that leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.unit.rpc.serving import is_serving

from ottla.errors import BrokerNotAvailable, ConfigurationError, InvalidRequest, RequestTimedOut
from ottla.rpc.limits import RpcLimits
from ottla.rpc.v1 import broker_pb2

from .serving import DEADLINE, NAME, nothing, server_of, serving


async def reflected(port: int, *requests: reflection_pb2.ServerReflectionRequest) -> list[Any]:
    async def asking() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        for request in requests:
            yield request

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return [answer async for answer in stub.ServerReflectionInfo(asking(), timeout=DEADLINE)]


async def test_reflection_lists_the_services_and_describes_them() -> None:
    """What `grpcurl list` and `grpcurl describe` ask for: names, then the file of a symbol with its imports."""
    async with serving() as served:
        listed, symbol, common = await reflected(
            served.port,
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="ottla.rpc.v1.ErrorDetail"),
        )
    names = {service.name for service in listed.list_services_response.service}
    assert names == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    files = [FileDescriptorProto.FromString(file) for file in symbol.file_descriptor_response.file_descriptor_proto]
    methods = [method.name for file in files for service in file.service for method in service.method]
    assert methods == [
        "LeaderAndIsr",
        "UpdateMetadata",
        "StopReplica",
        "DescribeLogEnds",
        "Drain",
        "Undrain",
        "WriteTransactionMarker",
        "VerifyTransaction",
    ]
    assert common.file_descriptor_response.file_descriptor_proto


async def test_health_is_asked_for_the_server_and_for_each_service() -> None:
    """grpc.health.v1: the empty name is the server as a whole; a service that is not there is not served."""
    async with serving() as served:
        assert await is_serving(served.channel, DEADLINE)
        assert await is_serving(served.channel, DEADLINE, NAME)
        assert not await is_serving(served.channel, DEADLINE, "ottla.rpc.v1.Levitation")
        await served.server.health.set(NAME, False)
        assert not await is_serving(served.channel, DEADLINE, NAME)
        assert await is_serving(served.channel, DEADLINE)


async def test_a_call_goes_on_to_its_end_when_its_caller_gives_up() -> None:
    """What a LeaderAndIsr does to partitions must not stop half way because the controller's deadline passed."""
    begun, proceed, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: broker_pb2.UpdateMetadataRequest) -> None:
        begun.set()
        await proceed.wait()
        done.set()

    async with serving(slow) as served:
        timeout_seconds = 0.1
        while not begun.is_set():  # on a busy machine the deadline may pass before the call has arrived
            with pytest.raises(RequestTimedOut):
                await served.call(timeout_seconds=timeout_seconds)
            timeout_seconds *= 2
        proceed.set()
        await asyncio.wait_for(done.wait(), DEADLINE)


async def test_a_call_that_is_given_up_is_answered() -> None:
    """As when what it waits for is cancelled: without a status its caller would wait until its deadline."""

    async def given_up(_: broker_pb2.UpdateMetadataRequest) -> None:
        raise asyncio.CancelledError

    async with serving(given_up) as served:
        with pytest.raises(BrokerNotAvailable, match="UpdateMetadata was given up"):
            await served.call()


async def test_a_stop_lets_calls_end_and_takes_no_more() -> None:
    begun, proceed = asyncio.Event(), asyncio.Event()

    async def slow(_: broker_pb2.UpdateMetadataRequest) -> None:
        begun.set()
        await proceed.wait()

    async with serving(slow) as served:
        call = asyncio.ensure_future(served.call())
        await begun.wait()
        stop = asyncio.ensure_future(served.server.stop(DEADLINE))
        with pytest.raises(BrokerNotAvailable):
            while True:  # one that came before the stop is let end as well
                with suppress(RequestTimedOut):
                    await served.call(timeout_seconds=1)
        proceed.set()
        await call
        await stop


async def test_a_stop_without_grace_ends_calls_at_both_ends() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: broker_pb2.UpdateMetadataRequest) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(endless) as served:
        call = asyncio.ensure_future(served.call())
        await begun.wait()
        await served.server.stop(0)
        assert cancelled.is_set()
        with pytest.raises(BrokerNotAvailable):
            await call


async def test_nothing_is_left_of_servers_and_channels() -> None:
    """Tasks and file descriptors, after a first round in which gRPC opens what it keeps for the life of a process."""

    async def rounds(count: int) -> None:
        for _ in range(count):
            async with serving() as served:
                await served.call()
                assert await is_serving(served.channel, DEADLINE)

    await rounds(1)
    before = open_descriptors()
    await rounds(5)
    # A closed connection goes when gRPC's own threads come to it, and a call's task when its loop has heard of that.
    async with asyncio.timeout(DEADLINE):
        while open_descriptors() > before or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110  (no one tells)
            await asyncio.sleep(0.01)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_port_that_is_taken_is_refused_and_not_shared() -> None:
    """gRPC's default is SO_REUSEPORT: two brokers by mistake on one port would each get some of the calls."""
    async with serving() as served:
        second = server_of(nothing)
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{served.port}"):
            await second.start("127.0.0.1", served.port)
        await second.stop(0)


async def test_without_a_host_every_interface_is_listened_at() -> None:
    server = server_of(nothing)
    port = await server.start("", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(9)  # the server's SETTINGS frame
        writer.close()
    finally:
        await server.stop(0)


@pytest.mark.parametrize("smaller_end", ["server", "channel"])
async def test_a_message_that_is_too_large_is_refused_and_the_connection_lives_on(smaller_end: str) -> None:
    """Both ends are bounded: neither sends what it would not take."""
    small, large = RpcLimits(max_message_bytes=10_000), RpcLimits(max_message_bytes=1_000_000)
    limits, channel_limits = (small, large) if smaller_end == "server" else (large, small)
    async with serving(limits=limits, channel_limits=channel_limits) as served:
        with pytest.raises(InvalidRequest, match="RESOURCE_EXHAUSTED"):
            await served.call("x" * 20_000)
        await served.call("x" * 9_000)
