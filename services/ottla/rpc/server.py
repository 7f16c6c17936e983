"""A gRPC server on the event loop of its process, with the health service and reflection beside its own services.

A call that has begun runs to its end even when its caller gives up: what it does to partitions must not stop half
way. A stream of answers is the other way round: it ends when its caller goes, and when the server stops. An ApiError ends
either as that error; anything else that is raised is logged here and ends it as UnknownServerError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection

from ottla.errors import ApiError, BrokerNotAvailable, ConfigurationError, UnknownServerError
from ottla.rpc.health import SERVICE_NAME, Health
from ottla.rpc.limits import RpcLimits
from ottla.rpc.status import abort
from ottla.rpc.tls import RpcTls, server_credentials

log: Final = logging.getLogger(__name__)

Answer = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]
Answers = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Any]]


@dataclass(frozen=True, slots=True)
class RpcService:
    """One service: its full name, and what enters its servicer in a server."""

    name: str
    register: Callable[[grpc.aio.Server], None]


class RpcServer:
    """A server of some services. To be started once and stopped once, on one event loop.

    Args:
        services: ours; health and reflection come by themselves.
        limits: how large a message may be, and how connections are kept.
        tls: who we are and who may call; None speaks plain text.
        not_yet: names that the health service has as not serving until `health.set` says otherwise.
        asks_for_certificates: whether only those may call over TLS who show a certificate of the authorities.
    """

    def __init__(
        self,
        services: Sequence[RpcService],
        limits: RpcLimits | None = None,
        tls: RpcTls | None = None,
        not_yet: Sequence[str] = (),
        *,
        asks_for_certificates: bool = True,
    ) -> None:
        self._services = tuple(services)
        self._limits = limits or RpcLimits()
        self._tls = tls
        self._asks_for_certificates = asks_for_certificates
        self._calls = _Calls(frozenset(each.name for each in services))
        self._server: grpc.aio.Server | None = None
        self.health = Health((each.name for each in services), not_yet)

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
        reflection.enable_server_reflection([each.name for each in self._services] + [SERVICE_NAME, reflection.SERVICE_NAME], server)
        shown = host or "::"
        address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
        try:
            if self._tls is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, server_credentials(self._tls, self._asks_for_certificates))
        except RuntimeError as error:
            raise ConfigurationError(f"gRPC can not listen at {address}: the port is taken, or it is no address of this machine") from error
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

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._running: set[asyncio.Task[Any]] = set()
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.split("/")[1] not in self._names:
            return handler
        coders = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary), *coders)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._answering(method, handler.stream_unary), *coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream), *coders)
        return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream), *coders)

    def _answering(self, method: str, perform: Answer) -> Answer:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            task = asyncio.ensure_future(perform(request, context))
            self._running.add(task)
            task.add_done_callback(self._ended)
            try:
                return await asyncio.shield(task)
            except ApiError as error:
                await abort(context, error)
            except Exception:
                log.exception("%s failed in a way that was not foreseen", method)
                await abort(context, UnknownServerError(f"{method} failed; the server's log says why"))

        return answer

    def _streaming(self, method: str, perform: Answers) -> Answers:
        async def answers(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            try:
                async for each in perform(request, context):
                    yield each
            except ApiError as error:
                await abort(context, error)
            except asyncio.CancelledError:
                if not self._is_stopping:
                    raise  # the caller has gone
                await abort(context, BrokerNotAvailable(f"{method}: the server stops"))
            except Exception:
                log.exception("%s failed in a way that was not foreseen", method)
                await abort(context, UnknownServerError(f"{method} failed; the server's log says why"))
            finally:
                self._streams.discard(task)

        return answers

    def end_streams(self) -> None:
        """Ends the streams that are under way, as they have no end of their own."""
        self._is_stopping = True
        for task in list(self._streams):
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, as the caller may have gone

    async def end(self) -> None:
        """Ends what still runs although its caller has gone."""
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
