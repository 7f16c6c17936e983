"""A channel: the way to one server. Every call has a deadline, and fails with Ottla's own errors.

A channel connects when it is first used, finds the server again by itself when that was away, and fails calls at once
while it is away. Whether a call that failed was carried out is unknown; the caller knows whether to ask again.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from ottla.errors import BrokerNotAvailable
from ottla.lifecycle import is_cancelled
from ottla.rpc.limits import RpcLimits
from ottla.rpc.status import error_of_call
from ottla.rpc.tls import RpcTls, channel_credentials

Q = TypeVar("Q")
A = TypeVar("A")
M = TypeVar("M", bound=Message)
Metadata = tuple[tuple[str, str], ...]


class RpcChannel:
    """The way to one server. To be made, used and closed on one event loop.

    Args:
        target: `host:port`, an IPv6 address in brackets.
        limits: how large a message may be, and how the connection is kept.
        tls: who we are and whom we trust; None speaks plain text.
    """

    def __init__(self, target: str, limits: RpcLimits | None = None, tls: RpcTls | None = None) -> None:
        self.target = target
        options = (limits or RpcLimits()).channel_options()
        if tls is None:
            self.grpc_channel = grpc.aio.insecure_channel(target, options)
        else:
            self.grpc_channel = grpc.aio.secure_channel(target, channel_credentials(tls), options)
        self._is_closed = False

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, A], request: Q, timeout_seconds: float, metadata: Metadata = ()) -> A:
        """Calls a method of a stub that was made of `grpc_channel`.

        Raises:
            BrokerNotAvailable: no broker listens there, or the connection broke.
            RequestTimedOut: no answer came in time.
            ApiError: what the server raised.
        """
        if self._is_closed:
            raise BrokerNotAvailable(f"{self.target}: the channel is closed")
        try:
            return await method(request, timeout=timeout_seconds, metadata=metadata)
        except grpc.aio.AioRpcError as failure:
            # Without the cause: it repeats all of this in forty lines of gRPC's.
            raise error_of_call(failure, self.target) from None
        except asyncio.CancelledError:
            # gRPC ends the calls of a channel that is closed this way, which would look as if the caller were cancelled.
            if self._is_closed and not is_cancelled():
                raise BrokerNotAvailable(f"{self.target}: the channel was closed during the call") from None
            raise

    async def call_named(self, path: str, request: Message, answer_message: type[M], timeout_seconds: float, metadata: Metadata = ()) -> M:
        """Calls a method by its path, `/package.Service/Method`, without a stub. Raises what `call` does."""
        method: grpc.aio.UnaryUnaryMultiCallable[Message, M] = self.grpc_channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer_message.FromString
        )
        return await self.call(method, request, timeout_seconds, metadata)

    async def close(self) -> None:
        """Ends the connection, and the calls that are under way with BrokerNotAvailable."""
        self._is_closed = True
        await self.grpc_channel.close()
