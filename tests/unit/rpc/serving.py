"""A real server on a free port with a service that does what a test says, and a channel to it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from ottla.errors import ResourceNotFound
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import THE_SERVER
from ottla.rpc.limits import RpcLimits
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.tls import RpcTls
from ottla.rpc.v1 import broker_pb2, broker_pb2_grpc

NAME: Final = "ottla.rpc.v1.Broker"
DEADLINE: Final = 120.0  # of calls that are to be answered, on however slow a machine

Behaviour = Callable[[broker_pb2.UpdateMetadataRequest], Awaitable[None]]


async def nothing(_: broker_pb2.UpdateMetadataRequest) -> None:
    """A call that is simply answered."""


class Servicer(broker_pb2_grpc.BrokerServicer):
    """One method of the broker's service, as an example of any."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def UpdateMetadata(self, request: broker_pb2.UpdateMetadataRequest, context: Any) -> broker_pb2.UpdateMetadataResponse:
        await self._behaviour(request)
        return broker_pb2.UpdateMetadataResponse()

    async def _refused(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    LeaderAndIsr = StopReplica = DescribeLogEnds = Drain = Undrain = WriteTransactionMarker = VerifyTransaction = _refused


@dataclass(frozen=True, slots=True)
class Served:
    """A server, the way to it, and where it is."""

    server: RpcServer
    channel: RpcChannel
    port: int

    async def call(self, *topics: str, timeout_seconds: float = DEADLINE) -> None:
        """Calls the method that the behaviour stands for."""
        method = broker_pb2_grpc.BrokerStub(self.channel.grpc_channel).UpdateMetadata
        await self.channel.call(method, broker_pb2.UpdateMetadataRequest(deleted_topics=topics), timeout_seconds)


async def is_serving(channel: RpcChannel, timeout_seconds: float = DEADLINE, name: str = THE_SERVER) -> bool:
    """Whether a service is to be called, as the standard health service says it; one that the server does not have is not."""
    check = health_pb2_grpc.HealthStub(channel.grpc_channel).Check
    try:
        answer = await channel.call(check, health_pb2.HealthCheckRequest(service=name), timeout_seconds)
    except ResourceNotFound:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def server_of(behaviour: Behaviour, limits: RpcLimits | None = None, tls: RpcTls | None = None) -> RpcServer:
    """A server that has not begun."""
    register = functools.partial(broker_pb2_grpc.add_BrokerServicer_to_server, Servicer(behaviour))
    return RpcServer([RpcService(NAME, register)], limits, tls)


@asynccontextmanager
async def serving(
    behaviour: Behaviour = nothing,
    *,
    limits: RpcLimits | None = None,
    tls: RpcTls | None = None,
    channel_limits: RpcLimits | None = None,
    channel_tls: RpcTls | None = None,
) -> AsyncIterator[Served]:
    """Both ends, ended together."""
    server = server_of(behaviour, limits, tls)
    port = await server.start("127.0.0.1", 0)
    channel = RpcChannel(f"127.0.0.1:{port}", channel_limits or limits, channel_tls or tls)
    try:
        yield Served(server, channel, port)
    finally:
        await channel.close()
        await server.stop(0)
