"""One request to one broker and its answer, for what librdkafka has no call for: by `ottla.wire`, over a connection of its own.

TLS and SASL are set up from the same properties that librdkafka would use.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.errors import CommandFailed, UsageError
from ottla.errors import ConfigurationError, OttlaError, reason_of
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.wire.broker_connection import Build, Security

TIMEOUT_SECONDS: Final = 10.0
_USUAL_BYTES, _MOST_BYTES = 1 << 20, 160 << 20  # of an answer


class NoConnection(CommandFailed):
    """Nothing accepts a connection at the broker's address, or what accepts it does not answer."""


def security_for(properties: Mapping[str, str]) -> Security:
    """How these properties reach a broker.

    Raises:
        UsageError: in a way that `ottla.wire` does not speak, or with files that cannot be used.
    """
    from ottla.wire.client_security import security_of

    try:
        return security_of(properties)
    except ConfigurationError as error:
        raise UsageError(f"this command has no way to connect: {error}") from None


def call(
    address: tuple[str, int],
    properties: Mapping[str, str],
    key: ApiKey,
    version: int,
    build: Build,
    refusal: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Sends a request and gives the answer.

    Args:
        address: the broker's host and port.
        properties: the client's, of which those about TLS and SASL count.
        version: the one that is spoken.
        build: makes the request, as `ottla.wire.cluster.Cluster.ask` has it.
        refusal: how the error continues after "the broker at host:port".
        timeout_seconds: how long each step may take.

    Raises:
        CommandFailed: it was refused; NoConnection: there was no connection, or no answer in time.
        UsageError: as `security_for`.
    """
    from ottla.wire.broker_connection import introduce
    from ottla.wire.connection import open_connection

    security = security_for(properties)
    endpoint = Endpoint("", address[0], address[1], security.protocol)
    subject = f"the broker at {address[0]}:{address[1]} {refusal}"

    async def ask() -> Any:
        try:
            channel = await open_connection(
                endpoint, security.tls, usual_size=_USUAL_BYTES, limit=_MOST_BYTES, setup_seconds=timeout_seconds
            )
        except OSError as error:
            kind = CommandFailed if isinstance(error, ssl.SSLError) else NoConnection
            raise kind(f"{subject}: {reason_of(error)}") from None
        connection = await introduce(endpoint, channel, "ottla", security.credentials, asyncio.to_thread, timeout_seconds)
        try:
            api = connection.message(key, version, version)
            return await connection.ask(api, build(api), timeout_seconds)
        finally:
            await connection.close()

    try:
        return asyncio.run(ask())
    except CommandFailed:
        raise
    except (OSError, OttlaError) as error:
        kind = NoConnection if isinstance(error, TimeoutError) else CommandFailed
        raise kind(f"{subject}: {reason_of(error)}") from None


def error_name(code: Any) -> str:
    """What an error code of an answer says."""
    return str(code.name).replace("_", " ")
