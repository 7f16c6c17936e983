"""`ottla.interbroker.calls` over gRPC: serves this broker to the others, and knows the way to each of them.

Requests to the controller say who calls (`Caller`), and `check_caller` refuses a broker that has registered anew since
and one that knows of a newer controller. Requests to a broker carry their epochs in their own data, for the broker
itself to judge; only Drain has nothing but its caller.

This module imports grpc, at a tenth of a second. A broker that is alone does not need it, so whoever makes a
`GrpcControl` imports it there and then, not at the top of a file.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from ottla.config.broker import BrokerSettings
from ottla.config.control import LISTENER_NAME
from ottla.errors import BrokerNotAvailable
from ottla.interbroker.calls import BrokerControl, Caller, ControllerControl
from ottla.interbroker.clients import BrokerClient, ControllerClient
from ottla.interbroker.servicers import BrokerServicer, CheckCaller, ControllerServicer
from ottla.model import BrokerId, BrokerRegistration
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import THE_SERVER
from ottla.rpc.limits import RpcLimits
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.tls import RpcTls, read_tls
from ottla.rpc.v1 import broker_pb2, broker_pb2_grpc, controller_pb2, controller_pb2_grpc

BROKER_SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name
CONTROLLER_SERVICE: Final = controller_pb2.DESCRIPTOR.services_by_name["Controller"].full_name

# What the health service says is served once the broker is ready. Other brokers call before that, and do not ask.
FOLLOW_READINESS: Final = (THE_SERVER, BROKER_SERVICE)
# What calls under way are given when a broker stops.
GRACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Way:
    """The channel to a broker, and what its registration said when it was made."""

    endpoint: str
    broker_epoch: int
    channel: RpcChannel


class GrpcControl:
    """How the brokers of a cluster reach each other by gRPC: `ottla.interbroker.calls.ControlTransport`.

    Args:
        settings: `control.…`, and the timeout of a call, `controller.socket.timeout.ms`.
        host: this machine's name, for a listener on every interface.
        caller: who this broker is now: its registration's epoch and the controller's.
        check_caller: raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date.

    Raises:
        ConfigurationError: keys or certificates can not be used.
    """

    def __init__(self, settings: BrokerSettings, host: str, caller: Callable[[], Caller], check_caller: CheckCaller) -> None:
        self._settings = settings
        self._host = host
        self._caller = caller
        self._check_caller = check_caller
        self._timeout_seconds = settings.controller_socket_timeout_ms / 1000
        self._limits = RpcLimits(max_message_bytes=settings.control_message_max_bytes)
        self._tls = _tls_of(settings)
        self._server: RpcServer | None = None
        self._ways: dict[BrokerId, _Way] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def broker(self, registration: BrokerRegistration) -> BrokerControl:
        """A broker, by what it registered; every call fails when that names no endpoint."""
        channel = self._channel_to(registration)
        if channel is None:
            return cast("BrokerControl", _Unreachable(registration.broker_id))
        return BrokerClient(channel, self._caller, self._timeout_seconds)

    def controller(self, registration: BrokerRegistration) -> ControllerControl:
        """The controller, by what its broker registered; every call fails when that names no endpoint."""
        channel = self._channel_to(registration)
        if channel is None:
            return cast("ControllerControl", _Unreachable(registration.broker_id))
        return ControllerClient(channel, self._caller, self._timeout_seconds)

    def forget(self, broker_ids: Iterable[BrokerId]) -> None:
        """Gives up the ways to brokers that have gone; calls to them that still wait end with BrokerNotAvailable."""
        for broker_id in broker_ids:
            way = self._ways.pop(broker_id, None)
            if way is not None:
                self._close_beside(way.channel)

    async def serve(self, own: BrokerId, broker_control: BrokerControl, controller_control: ControllerControl) -> str:
        """Serves this broker at `control.listener`, and gives the `host:port` to register.

        Raises:
            ConfigurationError: it can not listen there.
        """
        assert self._server is None, f"broker {own} is served already"
        broker, controller = BrokerServicer(broker_control, self._check_caller), ControllerServicer(controller_control, self._check_caller)
        services = [
            RpcService(BROKER_SERVICE, functools.partial(broker_pb2_grpc.add_BrokerServicer_to_server, broker)),
            RpcService(CONTROLLER_SERVICE, functools.partial(controller_pb2_grpc.add_ControllerServicer_to_server, controller)),
        ]
        server = RpcServer(services, self._limits, self._tls, FOLLOW_READINESS)
        address = self._settings.control_address
        port = await server.start(address.host, address.port)
        self._server = server
        return self._settings.advertised_control_endpoint(self._host, port)

    async def show_ready(self, is_ready: bool) -> None:
        """Has the health service say whether this broker is ready, by its own name and by that of the server as a whole."""
        if self._server is not None:
            for name in FOLLOW_READINESS:
                await self._server.health.set(name, is_ready)

    async def close(self) -> None:
        """Stops serving, and ends every way to other brokers. Safe to repeat."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(GRACE_SECONDS)
        self.forget(list(self._ways))
        if self._closing:
            await asyncio.wait(self._closing)

    def _channel_to(self, registration: BrokerRegistration) -> RpcChannel | None:
        broker_id, endpoint = registration.broker_id, registration.control_endpoint
        if endpoint is None:
            return None
        way = self._ways.get(broker_id)
        # A broker that was started anew is called anew: the old channel may be in the pause after a failed attempt.
        if way is None or (way.endpoint, way.broker_epoch) != (endpoint, registration.broker_epoch):
            self.forget([broker_id])
            way = self._ways[broker_id] = _Way(endpoint, registration.broker_epoch, RpcChannel(endpoint, self._limits, self._tls))
        return way.channel

    def _close_beside(self, channel: RpcChannel) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Unreachable:
    """A broker that has registered no control endpoint: every method of both protocols fails."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id

    def __getattr__(self, method: str) -> Callable[..., Awaitable[NoReturn]]:
        async def call(*arguments: object, **keywords: object) -> NoReturn:
            raise BrokerNotAvailable(f"{method}: broker {self._broker_id} has registered no control endpoint")

        return call


def _tls_of(settings: BrokerSettings) -> RpcTls | None:
    if not settings.control_address.is_tls:
        return None
    seen = settings.for_listener(LISTENER_NAME)
    chain, key, authorities = seen.ssl_keystore_certificate_chain, seen.ssl_keystore_key, seen.ssl_truststore_certificates
    in_text = f"{key.value}\n{chain.value}" if key is not None and chain is not None else ""
    return read_tls(
        keystore=seen.ssl_keystore_location or in_text,
        keystore_is_text=not seen.ssl_keystore_location,
        truststore=seen.ssl_truststore_location or (authorities.value if authorities is not None else ""),
        truststore_is_text=not seen.ssl_truststore_location,
    )
