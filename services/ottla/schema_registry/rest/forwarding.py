"""Sends a request to the leader as it came, and gives its answer as it is.

`X-Forward` says that a request was forwarded, so that it is not forwarded once more: two nodes that take each other for the leader answer
50003 instead of going round. A write whose answer did not come may have been carried out: it is not sent a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from typing import Final
from urllib.parse import urlsplit

import httptools

from ottla.schema_registry.rest.http import Request, Response
from ottla.schema_registry.state.errors import ForwardingFailed

IDLE_CONNECTIONS: Final = 32
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_PASSED_ON: Final = (b"content-type", b"content-encoding", b"accept", b"accept-encoding", b"authorization", b"origin")
_PASSED_BACK: Final = (b"content-type", b"content-encoding", b"x-registry-offset", b"etag", b"cache-control", b"www-authenticate")


class _Reply:
    """httptools' callbacks of one answer."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


class Forwarder:
    """Connections to the leader.

    Args:
        timeout_seconds: for an answer.
        tls: for a leader whose address begins with https.
    """

    def __init__(self, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._url = ""
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self.count = 0
        self.failures = 0

    async def forward(self, url: str, request: Request) -> Response:
        """The leader's answer.

        Raises:
            ForwardingFailed: none came.
        """
        self.count += 1
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._exchange(url, request)
        except (OSError, EOFError, TimeoutError, ValueError, httptools.HttpParserError, ssl.SSLError) as error:
            self.failures += 1
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or "the connection was closed"
            raise ForwardingFailed(f"Error while forwarding the request to the leader at {url}: {reason}") from error

    async def _exchange(self, url: str, request: Request) -> Response:
        if url != self._url:
            await self.close()
            self._url = url
        reader, writer = await self._connection(url)
        try:
            writer.write(_encoded(url, request))
            reply = _Reply()
            parser = httptools.HttpResponseParser(reply)
            while not reply.is_complete:
                data = await reader.read(256 * 1024)
                if not data:
                    raise EOFError
                parser.feed_data(data)
                if len(reply.body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"its answer is larger than {MAX_ANSWER_BYTES} bytes")
        except BaseException:
            writer.transport.abort()
            raise
        if parser.should_keep_alive() and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append((reader, writer))
        else:
            writer.close()
        headers = b"".join(name + b": " + reply.headers[name] + b"\r\n" for name in _PASSED_BACK if name in reply.headers)
        return Response(parser.get_status_code(), bytes(reply.body), headers)

    async def _connection(self, url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        tls = (self._tls or ssl.create_default_context()) if is_tls else None
        return await asyncio.open_connection(parts.hostname, parts.port or (443 if is_tls else 80), ssl=tls)

    async def close(self) -> None:
        """Ends the connections that are idle."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _encoded(url: str, request: Request) -> bytes:
    host = urlsplit(url).netloc.encode()
    passed = b"".join(name + b": " + request.headers[name] + b"\r\n" for name in _PASSED_ON if name in request.headers)
    return b"".join(
        (
            request.method + b" " + request.target + b" HTTP/1.1\r\nhost: " + host + b"\r\nx-forward: true\r\n",
            passed,
            b"content-length: %d\r\n\r\n" % len(request.body),
            request.body,
        )
    )
