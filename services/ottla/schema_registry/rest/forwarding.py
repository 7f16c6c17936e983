"""Sends a request to the leader as it came, and gives its answer as it is.

`X-Forward` says that a request was forwarded, so that it is not forwarded once more: two nodes that take each other for the leader answer
50003 instead of going round. A write whose answer did not come may have been carried out: it is not sent a second time.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

import httptools

from ottla.schema_registry.rest.http import Request, Response
from ottla.schema_registry.state.errors import ForwardingFailed

IDLE_CONNECTIONS: Final = 32
# A leader closes what is idle for long, and a write that crosses with that has no answer.
IDLE_SECONDS: Final = 5.0
# At the same time: a leader has a bound of handshakes that are under way with one address (`HANDSHAKES_OF_ONE`).
OPENING_CONNECTIONS: Final = 32
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_PASSED_ON: Final = (
    *(b"content-type", b"content-encoding", b"accept", b"accept-encoding", b"authorization", b"origin"),
    *(b"user-agent", b"confluent-accept-unknown-properties"),  # which say what the client can read
)
_PASSED_BACK: Final = (b"content-type", b"content-encoding", b"x-registry-offset", b"etag", b"cache-control", b"www-authenticate")


class _Reply:
    """httptools' callbacks of one answer."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.is_complete = self.keeps_connection = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.keeps_connection = self.parser.should_keep_alive()  # once the message is over the parser does not know any more


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
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []  # of `_url`, with when their use ended
        self._opening = asyncio.Semaphore(OPENING_CONNECTIONS)
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
            self._drop_idle()
            self._url = url
            self._opening = asyncio.Semaphore(OPENING_CONNECTIONS)  # a former leader may not answer, and has no one wait for that
        reader, writer = await self._connection(url)
        try:
            writer.write(_encoded(url, request))
            reply = _Reply()
            while not reply.is_complete:
                data = await reader.read(256 * 1024)
                if not data:
                    raise EOFError
                reply.parser.feed_data(data)
                if len(reply.body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"its answer is larger than {MAX_ANSWER_BYTES} bytes")
        except BaseException:
            writer.transport.abort()
            raise
        if reply.keeps_connection and url == self._url and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append((asyncio.get_running_loop().time(), reader, writer))
        else:
            writer.close()
        headers = b"".join(name + b": " + reply.headers[name] + b"\r\n" for name in _PASSED_BACK if name in reply.headers)
        return Response(reply.parser.get_status_code(), bytes(reply.body), headers)

    async def _connection(self, url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        async with self._opening:
            while self._idle and url == self._url:
                since, reader, writer = self._idle.pop()
                if since > oldest and not (reader.at_eof() or writer.is_closing()):
                    return reader, writer
                writer.transport.abort()
            parts = urlsplit(url)
            is_tls = parts.scheme == "https"
            tls = (self._tls or ssl.create_default_context()) if is_tls else None
            return await asyncio.open_connection(parts.hostname, parts.port or (443 if is_tls else 80), ssl=tls)

    async def close(self) -> None:
        """Ends the connections that are idle."""
        self._drop_idle()
        await asyncio.sleep(0)  # in which the loop closes them

    def _drop_idle(self) -> None:
        """Waits for no one: over TLS a leader that is gone would be waited for."""
        for _, _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()


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
