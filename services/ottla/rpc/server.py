"""A gRPC server on the event loop of its process, with the health service and reflection next to its own services.

A server may admit known callers only; health is answered to all, as probes have no name, reflection to admitted callers.

A call that has begun runs to its end even when its caller gives up: what it does to partitions must not stop half
way. A stream of answers is the other way round: it ends when its caller goes, and when the server stops. An ApiError ends
either as that error; anything else that is raised is logged here and ends it as UnknownServerError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection

from ottla.config.rpc import RpcSettings
from ottla.errors import ApiError, BrokerNotAvailable, ConfigurationError, InvalidRequest, UnknownServerError
from ottla.lifecycle import Tasks, look_at_error
from ottla.rpc.certificate_dates import subject_name
from ottla.rpc.health import SERVICE_NAME, THE_SERVER, Health
from ottla.rpc.limits import RpcLimits
from ottla.rpc.status import abort
from ottla.rpc.tls import RpcTls, server_credentials, tls_of

log: Final = logging.getLogger(__name__)

COMPLAINT_PAUSE_SECONDS: Final = 60.0

Answer = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]
Answers = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Any]]


class CallerUnknown(Exception):
    """The caller is unknown: UNAUTHENTICATED."""


class CallerNotAllowed(Exception):
    """The caller is known, and not allowed: PERMISSION_DENIED."""


class Admission(Protocol):
    """Whom a server lets in."""

    def check(self, method: str, metadata: Mapping[str, str], certificate: Mapping[str, Iterable[bytes]]) -> None:
        """Judges a call.

        Args:
            method: its path.
            metadata: what came with it.
            certificate: what gRPC knows of the caller's, by its names of that.

        Raises:
            CallerUnknown, CallerNotAllowed: it is not to be answered.
        """
        ...


class ByName:
    """Admits who shows a certificate of one of some names, so that one which an authority of ours signed for another purpose is refused.

    A certificate's name is its common name, as gRPC does not tell the whole subject; its first alternative name where it has none.

    Args:
        setting: which says the names, for errors.
        names: without any the name of our own certificate.

    Raises:
        ConfigurationError: that has no name.
    """

    def __init__(self, setting: str, names: Sequence[str], tls: RpcTls) -> None:
        own = None if names else subject_name(tls.certificate_chain.decode(errors="replace"))
        if not names and own is None:
            raise ConfigurationError(f"{setting} is not set, and our own certificate has no name to take for it")
        self._setting = setting
        self._names = frozenset(names or (own,))

    def check(self, method: str, metadata: Mapping[str, str], certificate: Mapping[str, Iterable[bytes]]) -> None:
        """Raises CallerUnknown or CallerNotAllowed."""
        for key in ("x509_common_name", "x509_subject_alternative_name"):
            for name in certificate.get(key, ()):
                if name.decode(errors="replace") in self._names:
                    return
                raise CallerNotAllowed(f"{name.decode(errors='replace')!r} is none of {self._setting}")
        raise CallerUnknown("the caller has shown no certificate with a name")


@dataclass(frozen=True, slots=True)
class RpcService:
    """One service: its full name, and what enters its servicer in a server."""

    name: str
    register: Callable[[grpc.aio.Server], None]

    @classmethod
    def of_methods(cls, name: str, methods: Mapping[str, UnaryMethod]) -> RpcService:
        """A service without a servicer of generated code: its methods by their names."""
        handlers = {
            method_name: grpc.unary_unary_rpc_method_handler(
                method.answer, method.request_message.FromString, method.answer_message.SerializeToString
            )
            for method_name, method in methods.items()
        }
        return cls(name, lambda server: server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),)))


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One request, one answer, as messages of these classes."""

    request_message: type[Message]
    answer_message: type[Message]
    answer: Answer


class RpcServer:
    """A server of some services. To be started once and stopped once, on one event loop.

    Args:
        services: ours; health and reflection come by themselves.
        limits: how large a message may be, and how connections are kept.
        tls: who we are and who may call; None speaks plain text.
        not_yet: names that the health service has as not serving until `health.set` says otherwise.
        admission: whom to let in; by default anyone whom the connection's TLS lets in.
    """

    def __init__(
        self,
        services: Sequence[RpcService],
        limits: RpcLimits | None = None,
        tls: RpcTls | None = None,
        not_yet: Sequence[str] = (),
        *,
        admission: Admission | None = None,
    ) -> None:
        self._services = tuple(services)
        self._limits = limits or RpcLimits()
        self._tls = tls
        self._calls = _Calls(frozenset(service.name for service in services), admission)
        self._server: grpc.aio.Server | None = None
        self.health = Health((service.name for service in services), not_yet)

    @classmethod
    def for_operators(cls, service: RpcService, settings: RpcSettings) -> RpcServer:
        """The server of a service that operators ask and command: over TLS for those who may, in plain text for all who reach it.

        It is not serving, by the health service, until it says so.

        Raises:
            ConfigurationError: keys or certificates cannot be used.
        """
        if settings.rpc_security_protocol == "PLAINTEXT":
            return cls([service], not_yet=[THE_SERVER])
        tls = tls_of(settings.for_rpc())
        return cls([service], None, tls, [THE_SERVER], admission=ByName("rpc.allowed.principals", settings.rpc_allowed_principals, tls))

    async def start(self, host: str, port: int) -> int:
        """Begins to answer, and gives the port.

        Args:
            host: an address of this machine; empty for all of them.
            port: 0 for any that is free.

        Raises:
            ConfigurationError: the port is taken, or the address is not this machine's.
        """
        server = grpc.aio.server(interceptors=[self._calls], options=self._limits.server_options())
        for service in self._services:
            service.register(server)
        self.health.register(server)
        reflection.enable_server_reflection([service.name for service in self._services] + [SERVICE_NAME, reflection.SERVICE_NAME], server)
        shown = host or "::"
        address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
        try:
            if self._tls is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise ConfigurationError(f"gRPC cannot listen at {address}: the port is taken, or it is no address of this machine") from error
        await server.start()
        self._server = server
        await self.health.begin()
        return bound

    async def stop(self, grace_seconds: float) -> None:
        """Takes no more calls, waits so long for those under way, and ends the others. Safe to repeat."""
        server, self._server = self._server, None
        if server is not None:
            await self.health.end()
            self._calls.end_streams()
            await server.stop(grace_seconds)
        await self._calls.end()


class _Calls(grpc.aio.ServerInterceptor):
    """Runs each call of our services to its end, ends streams, and turns what they raise into a status.

    A method that streams its answers is an async generator.
    """

    def __init__(self, names: frozenset[str], admission: Admission | None) -> None:
        self._names = names
        self._admission = admission
        self._running: Final = Tasks()
        self._streams: Final = Tasks()
        self._is_stopping = False
        self._complained_at = float("-inf")

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.split("/")[1] == SERVICE_NAME:
            return handler
        coders = handler.request_deserializer, handler.response_serializer
        if method.split("/")[1] not in self._names:
            return grpc.stream_stream_rpc_method_handler(self._admitting(method, handler.stream_stream), *coders)  # reflection
        if handler.unary_unary is not None and self._admission is not None:
            return grpc.stream_unary_rpc_method_handler(self._answering(method, _of_one(handler.unary_unary)), *coders)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary), *coders)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._answering(method, handler.stream_unary), *coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream), *coders)
        return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream), *coders)

    def _answering(self, method: str, perform: Answer) -> Answer:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self._admit(method, context)
            task = self._running.begin(perform(request, context))
            task.add_done_callback(look_at_error)  # the caller may have gone
            try:
                return await asyncio.shield(task)
            except ApiError as error:
                await abort(context, error)
            except asyncio.CancelledError:
                if not task.cancelled():
                    raise  # the caller has gone
                # Without a status the caller would wait until its deadline.
                await abort(context, BrokerNotAvailable(f"{method} was given up"))
            except Exception:  # a call ends here; the caller is given an error without details
                log.exception("%s failed unexpectedly", method)
                await abort(context, UnknownServerError(f"{method} failed; the server's log says why"))

        return answer

    def _streaming(self, method: str, perform: Answers) -> Answers:
        async def answers(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await self._admit(method, context)
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            try:
                async for answer in perform(request, context):
                    self._streams.discard(task)  # cancelled while gRPC sends it, the call would be left open until the grace is over
                    yield answer
                    if self._is_stopping:
                        raise asyncio.CancelledError
                    self._streams.add(task)
            except ApiError as error:
                await abort(context, error)
            except asyncio.CancelledError:
                if not self._is_stopping:
                    raise  # the caller has gone
                await abort(context, BrokerNotAvailable(f"{method}: the server stops"))
            except Exception:  # a stream ends here, likewise
                log.exception("%s failed unexpectedly", method)
                await abort(context, UnknownServerError(f"{method} failed; the server's log says why"))
            finally:
                self._streams.discard(task)

        return answers

    def _admitting(self, method: str, perform: Answers) -> Answers:
        async def answers(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await self._admit(method, context)
            async for answer in perform(request, context):
                yield answer

        return answers

    async def _admit(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._admission is None:
            return
        metadata = {str(key): value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        try:
            self._admission.check(method, metadata, context.auth_context())
        except (CallerUnknown, CallerNotAllowed) as error:
            code = grpc.StatusCode.UNAUTHENTICATED if isinstance(error, CallerUnknown) else grpc.StatusCode.PERMISSION_DENIED
            self._complain(method, context.peer(), error)
            await context.abort(code, str(error))

    def _complain(self, method: str, peer: str, error: Exception) -> None:
        """One line a minute: anybody may call."""
        now = asyncio.get_running_loop().time()
        if now - self._complained_at >= COMPLAINT_PAUSE_SECONDS:
            self._complained_at = now
            log.warning("%s from %s is refused: %s", method, peer, error)

    def end_streams(self) -> None:
        """Ends the streams that are under way, as they have no end of their own."""
        self._is_stopping = True
        self._streams.cancel()

    async def end(self) -> None:
        """Ends what still runs although its caller has gone."""
        self._running.cancel()
        await self._running.wait()


def _of_one(perform: Answer) -> Answer:
    """A unary method as one of a stream of requests, of which nothing is read and parsed before its caller is let in."""

    async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        async for request in requests:
            return await perform(request, context)
        raise InvalidRequest("a call without a request")

    return answer
