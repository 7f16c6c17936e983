"""One request to one broker and its answer, for what librdkafka has no call for.

The module speaks the protocol itself: one connection for each request, encoded by kio. TLS is set up from the same
properties that librdkafka would use; SASL is not spoken.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from ottla.cli.errors import CommandFailed, UsageError

_FRAME: Final = struct.Struct(">i")
_CORRELATION_ID: Final = 1
TIMEOUT_SECONDS: Final = 10.0


class NoConnection(CommandFailed):
    """Nothing accepts a connection at the broker's address."""


def can_call(properties: Mapping[str, str]) -> bool:
    """Whether the connection is one that this module can make: SASL is not."""
    return properties.get("security.protocol", "plaintext").lower() in ("plaintext", "ssl")


def call(
    address: tuple[str, int],
    properties: Mapping[str, str],
    request: Any,
    response: type[Any] | Callable[[memoryview], Any],
    refusal: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Sends a request of kio's and gives the answer.

    Args:
        address: the broker's host and port.
        properties: the client's, of which those about TLS count.
        request: what to send; its class says which API and version.
        response: kio's class of the answer, or a function that reads its frame, the header included.
        refusal: how the error continues after "the broker at host:port".
        timeout_seconds: how long each step may take.

    Raises:
        CommandFailed: there was no answer; NoConnection: there was not even a connection.
    """
    from kio.serial import entity_reader, entity_writer

    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=_CORRELATION_ID,
        client_id="ottla",
    )
    frame = io.BytesIO()
    entity_writer(type(header))(frame, header)
    entity_writer(type(request))(frame, request)
    payload = frame.getvalue()
    with ExitStack() as stack:
        try:
            connection: socket.socket = stack.enter_context(socket.create_connection(address, timeout_seconds))
        except OSError as error:
            raise NoConnection(f"the broker at {address[0]}:{address[1]} {refusal}: {error}") from None
        try:
            if properties.get("security.protocol", "").lower() == "ssl":
                connection = stack.enter_context(tls_context(properties).wrap_socket(connection, server_hostname=address[0]))
            connection.sendall(_FRAME.pack(len(payload)) + payload)
            (size,) = _FRAME.unpack(_receive(connection, _FRAME.size))
            answer = _receive(connection, size)
        except OSError as error:
            raise CommandFailed(f"the broker at {address[0]}:{address[1]} {refusal}: {error}") from None
    if not isinstance(response, type):
        return response(memoryview(answer))
    header_schema: Any = getattr(response, "__header_schema__")  # noqa: B009  # of any class of kio's
    _, after_header = entity_reader(header_schema)(answer, 0)
    return entity_reader(response)(answer, after_header)[0]


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("it closed the connection")
        received += piece
    return bytes(received)


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """TLS as librdkafka's properties ask for it.

    Raises:
        UsageError: a key or a certificate is not there, or is none.
    """
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem"))
        if certificate := properties.get("ssl.certificate.location"):
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), properties.get("ssl.key.password"))
    except (OSError, ValueError) as error:
        raise UsageError(f"ssl.ca.… or ssl.certificate.location cannot be used: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
