"""`ottla.interbroker.calls` over gRPC: serves this broker to the others, and knows the way to each of them.

Requests to the controller have their `Caller`, and `check_caller` refuses a broker that has registered again since
and one that knows of a newer controller. Requests to a broker have their epochs in their own data, and the broker
itself checks those; Drain and Undrain have nothing but their caller. Who may call at all is `admission`'s affair.

This module imports grpc, at a tenth of a second. A broker that is alone does not need it, so what makes a
`GrpcControl` imports it there, not at the top of a file.

Invariant: no method is spelled here; what can be called is the table's affair (`calls.OPERATIONS`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from google.protobuf.message import Message

from ottla.config.broker import BrokerSettings
from ottla.errors import BrokerNotAvailable, ClusterAuthorizationFailed
from ottla.interbroker import codec
from ottla.interbroker.admission import PROOF_KEY, SECRET_BYTES, BySecret, proof_of
from ottla.interbroker.calls import (
    OPERATIONS,
    BrokerControl,
    ControllerControl,
    OwnBroker,
    RemoteBroker,
    RemoteController,
    Request,
    deadline_seconds,
)
from ottla.lifecycle import Tasks
from ottla.model import BrokerId, BrokerRegistration
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import THE_SERVER
from ottla.rpc.limits import RpcLimits
from ottla.rpc.server import Admission, ByName, RpcServer, RpcService, UnaryMethod
from ottla.rpc.tls import tls_of

A = TypeVar("A")

BROKER_SERVICE: Final[str] = codec.BROKER_SERVICE.full_name
CONTROLLER_SERVICE: Final[str] = codec.CONTROLLER_SERVICE.full_name

# What the health service says is served once the broker is ready. Other brokers call before that, and do not ask.
FOLLOW_READINESS: Final = (THE_SERVER, BROKER_SERVICE)
# What calls under way are given when a broker stops.
GRACE_SECONDS: Final = 2.0


class _Secret:
    """What a broker wants to be shown: read when it is first called, and again after it was the wrong one."""

    def __init__(self, registration: BrokerRegistration, own: OwnBroker) -> None:
        self._broker_id = registration.broker_id
        self._known = registration.control_secret
        self._is_wrong = self._known is None
        self._own = own

    async def get(self) -> str | None:
        if self._is_wrong:
            registration = await self._own.registration_of(self._broker_id)
            if registration is not None:
                self._known = registration.control_secret
                self._is_wrong = self._known is None
        return self._known

    def forget(self) -> None:
        self._is_wrong = True


@dataclass(frozen=True, slots=True)
class _Way:
    """The channel to a broker, and what its registration said when it was made."""

    endpoint: str
    broker_epoch: int
    channel: RpcChannel
    secret: _Secret


class GrpcControl:
    """How the brokers of a cluster reach each other by gRPC: `ottla.interbroker.calls.ControlTransport`.

    Args:
        settings: `control.…`, and the timeout of a call, `controller.socket.timeout.ms`.
        host: this machine's name, for a listener on every interface.
        own: who this broker is when it calls, and who may call it.

    Raises:
        ConfigurationError: keys or certificates cannot be used.
    """

    def __init__(self, settings: BrokerSettings, host: str, own: OwnBroker) -> None:
        self._settings = settings
        self._host = host
        self._own = own
        self._timeout_seconds = settings.controller_socket_timeout_ms / 1000
        self._limits = RpcLimits(max_message_bytes=settings.control_message_max_bytes)
        self._tls = tls_of(settings.for_control()) if settings.control_address.is_tls else None
        # What callers have to show; over TLS it is their certificate.
        self.secret: str | None = None
        self._admission: Admission
        if self._tls is None:
            self.secret = secrets.token_hex(SECRET_BYTES)
            self._admission = BySecret(self.secret)
        else:
            self._admission = ByName("control.allowed.principals", settings.control_allowed_principals, self._tls)
        self._server: RpcServer | None = None
        self._ways: dict[BrokerId, _Way] = {}
        self._closing: Final = Tasks()

    def broker(self, registration: BrokerRegistration) -> BrokerControl:
        """A broker, by what it registered; every call fails when that names no endpoint."""
        return RemoteBroker(self._carrier_to(registration))

    def controller(self, registration: BrokerRegistration) -> ControllerControl:
        """The controller, by what its broker registered; every call fails when that names no endpoint."""
        return RemoteController(self._carrier_to(registration))

    def forget(self, broker_ids: Iterable[BrokerId]) -> None:
        """Gives up the ways to brokers that have gone; calls to them that still wait end with BrokerNotAvailable."""
        for broker_id in broker_ids:
            way = self._ways.pop(broker_id, None)
            if way is not None:
                self._closing.begin(way.channel.close())

    async def serve(self, own: BrokerId, broker_control: BrokerControl, controller_control: ControllerControl) -> str:
        """Serves this broker at `control.listener`, and gives the `host:port` to register.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        assert self._server is None, f"broker {own} is served already"
        services = [
            _service(BROKER_SERVICE, broker_control, self._own),
            _service(CONTROLLER_SERVICE, controller_control, self._own),
        ]
        server = RpcServer(services, self._limits, self._tls, FOLLOW_READINESS, admission=self._admission)
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
        await self._closing.wait()

    def _carrier_to(self, registration: BrokerRegistration) -> _Carrier | _Unreachable:
        broker_id, endpoint = registration.broker_id, registration.control_endpoint
        if endpoint is None:
            return _Unreachable(broker_id)
        way = self._ways.get(broker_id)
        # A broker that was started again gets a new channel: the old one may be in the pause after a failed attempt.
        if way is None or (way.endpoint, way.broker_epoch) != (endpoint, registration.broker_epoch):
            self.forget([broker_id])
            channel = RpcChannel(endpoint, self._limits, self._tls)
            way = self._ways[broker_id] = _Way(endpoint, registration.broker_epoch, channel, _Secret(registration, self._own))
        return _Carrier(way.channel, None if self._tls else way.secret, self._own, self._timeout_seconds)


@dataclass(frozen=True, slots=True)
class _Carrier:
    """Takes requests to the broker at the other end of a channel."""

    channel: RpcChannel
    secret: _Secret | None
    own: OwnBroker
    timeout_seconds: float  # for a request that has none of its own

    async def call(self, request: Request[A]) -> A:
        """Sends the request under its method's name, and gives the answer."""
        coder, method = codec.codec_of(type(request)), codec.method_of(type(request))
        path = f"/{method.containing_service.full_name}/{method.name}"
        message, seconds = await coder.encode_request(request, self.own.caller()), deadline_seconds(request, self.timeout_seconds)
        known = None if self.secret is None else await self.secret.get()
        metadata = () if known is None else ((PROOF_KEY, proof_of(known, path)),)
        try:
            answer: A = coder.decode_answer(await self.channel.call_named(path, message, coder.answer_message, seconds, metadata))
        except ClusterAuthorizationFailed as error:
            if self.secret is None:
                raise
            # It has registered again, or not yet: the next attempt reads what it says by then.
            self.secret.forget()
            raise BrokerNotAvailable(error.message) from None
        return answer


@dataclass(frozen=True, slots=True)
class _Unreachable:
    """Stands for a broker that has registered no control endpoint."""

    broker_id: BrokerId

    async def call(self, request: Request[Any]) -> NoReturn:
        """Fails."""
        raise BrokerNotAvailable(f"{OPERATIONS[type(request)].name}: broker {self.broker_id} has registered no control endpoint")


def _service(name: str, control: BrokerControl | ControllerControl, own: OwnBroker) -> RpcService:
    """The methods of a service, answered by `control`."""
    methods = {}
    for operation in OPERATIONS.values():
        if operation.is_for_controller is (name == CONTROLLER_SERVICE):
            coder = codec.codec_of(operation.request)
            answer = partial(_answer, control, own, coder)
            methods[operation.rpc] = UnaryMethod(coder.request_message, coder.answer_message, answer)
    return RpcService.of_methods(name, methods)


async def _answer(control: BrokerControl | ControllerControl, own: OwnBroker, coder: codec.Codec, message: Message, _: object) -> Message:
    caller = coder.caller_of(message)
    if caller is not None:
        own.check_caller(caller)
    request: Any = await coder.decode_request(message)
    return coder.encode_answer(await control.call(request))
