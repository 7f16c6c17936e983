"""Commands to a broker by whoever reaches its gRPC port: drained, forged leaders, replicas renamed for their deletion (S1, S2)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ottla.config.broker import BrokerSettings
from ottla.errors import ApiError
from ottla.interbroker.calls import Outsider, PartitionToStop, StopReplicaRequest, TransactionMarker, UpdateMetadataRequest
from ottla.interbroker.rpc import GrpcControl
from ottla.model import BrokerId, BrokerRegistration, TopicPartition
from ottla.rpc.channel import RpcChannel
from ottla.testing.certificates import Authority

from .victim import MIB, must

PLAIN: Final = {"listeners": "PLAINTEXT://127.0.0.1:0"}
ONE: Final = BrokerId(1)
MARKED: Final = TopicPartition("t", 0)
HIGHEST: Final = 2**31 - 1


class Commanded:
    """Stands for a broker behind its port, and notes each command that gets through."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def command(*_: Any) -> None:
            self.commands.append(name)
            raise ApiError("that is enough")

        return command


def _attacked(properties: dict[str, str], attack: Callable[[str], Awaitable[None]]) -> list[str]:
    """The commands that got through."""

    async def run() -> list[str]:
        commanded: Any = Commanded()
        served = GrpcControl(BrokerSettings.from_properties(properties), "127.0.0.1", Outsider())  # epochs are not what is attacked
        endpoint = await served.serve(ONE, commanded, commanded)
        try:
            await attack(endpoint)
        finally:
            await served.close()
        return list(commanded.commands)

    return asyncio.run(run())


async def _commands(properties: dict[str, str], endpoint: str) -> None:
    """What someone says who knows where the port is, and has these settings."""
    control = GrpcControl(BrokerSettings.from_properties(properties), "", Outsider())
    try:
        broker = control.broker(BrokerRegistration(ONE, (), control_endpoint=endpoint))
        forged = (
            lambda: broker.drain(),
            lambda: broker.write_transaction_marker(TransactionMarker(1, 0, False, HIGHEST, (MARKED,))),
            lambda: broker.stop_replica(StopReplicaRequest(ONE, HIGHEST, 2**63 - 1, (PartitionToStop(MARKED, -2, True),))),
            lambda: broker.update_metadata(UpdateMetadataRequest(ONE, HIGHEST, 2**63 - 1, (), ())),
        )
        for frame in forged:
            try:
                await frame()
            except ApiError:
                continue
    finally:
        await control.close()


def by_nobody() -> None:
    """Commands in plain text, by someone who is no broker."""
    through = _attacked(PLAIN, lambda endpoint: _commands(PLAIN, endpoint))
    must(not through, f"a stranger has {', '.join(through)} done")


def what_there_is_to_call() -> None:
    """Reflection tells whoever asks what can be called."""
    names: list[str] = []

    async def ask(endpoint: str) -> None:
        channel = RpcChannel(endpoint)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel.grpc_channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        try:
            async for answer in stub.ServerReflectionInfo(iter([question]), timeout=10):
                names.extend(service.name for service in answer.list_services_response.service)
        except grpc.aio.AioRpcError:
            pass
        finally:
            await channel.close()

    _attacked(PLAIN, ask)
    must(not names, f"a stranger is told of {', '.join(names)}")


def unread_by_nobody() -> None:
    """What a stranger sends is not even parsed: 64 MiB may be in each of any number of messages."""
    codes: list[grpc.StatusCode] = []

    async def send(endpoint: str) -> None:
        channel = RpcChannel(endpoint)
        call = channel.grpc_channel.unary_unary("/ottla.rpc.v1.Broker/Drain", bytes, bytes)
        try:
            await call(b"\xff" * MIB, timeout=60)
        except grpc.aio.AioRpcError as error:
            codes.append(error.code())
        finally:
            await channel.close()

    _attacked(PLAIN, send)
    must(codes == [grpc.StatusCode.UNAUTHENTICATED], f"a megabyte of garbage by a stranger is answered with {codes}")


def _tls(authority: Authority, directory: Path, name: str) -> dict[str, str]:
    keystore, truststore = authority.write(directory, name)
    pem = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    return {**pem, "ssl.keystore.location": keystore, "ssl.truststore.location": truststore}


def plain_beside_tls() -> None:
    """Brokers fetch from each other by SSL, and are commanded in plain text (S2)."""
    with tempfile.TemporaryDirectory() as directory:
        own = _tls(Authority("ours"), Path(directory), "broker")
        secured = {"listeners": "SSL://127.0.0.1:0", "security.inter.broker.protocol": "SSL", "ssl.client.auth": "required", **own}
        must(BrokerSettings.from_properties(secured).control_address.is_tls, "commands go in plain text where all else is encrypted")
        through = _attacked(secured, lambda endpoint: _commands(PLAIN, endpoint))
        must(not through, f"a stranger has {', '.join(through)} done")


def by_a_consumer() -> None:
    """A client's certificate, signed by the authority that the brokers' are signed by (S2)."""
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority("ours")
        secured = {**PLAIN, "control.security.protocol": "SSL"}
        own = {**secured, **_tls(authority, Path(directory), "broker")}
        consumer = {**secured, **_tls(authority, Path(directory), "some-consumer")}
        through = _attacked(own, lambda endpoint: _commands(consumer, endpoint))
        must(not through, f"a consumer has {', '.join(through)} done")


ATTACKS: Final = (by_nobody, unread_by_nobody, what_there_is_to_call, plain_beside_tls, by_a_consumer)
