"""A connection to a broker that has been introduced: both sides know the versions they share, and who is asking.

ApiVersions comes first (KIP-35, KIP-511), then SASL where it is configured; only then is the connection handed out. Every answer
is checked to be the one to the request that it stands for, by its correlation id.

Many callers share one connection, and each request is sent in the moment in which it is asked: their order on the wire is the
order of the calls.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.errors import NONE, UnsupportedSaslMechanism, UnsupportedVersion, error_of
from ottla.lifecycle import Offload
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.messages import Message, message
from ottla.protocol.primitives import INT16, INT32
from ottla.wire.connection import Channel, Piece
from ottla.wire.sasl import Credentials, ScramExchange, plain_message

MAX_CORRELATION_ID: Final = (1 << 31) - 1
API_VERSIONS_VERSION: Final = 3
SOFTWARE_NAME: Final = "ottla"
SOFTWARE_VERSION: Final = "0.1.0"
# A session is given up when this part of its lifetime has gone (KIP-368), as Kafka's clients do between 85 % and 95 %.
USED_LIFETIME: Final = 0.85

Build = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class Security:
    """How brokers are reached: in the clear, or by TLS; without a name, or by SASL."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol`."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.credentials is None else f"SASL_{transport}"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions of an API that a side speaks, both ends included."""

    first: int
    last: int


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """An introduced connection. `introduce` makes one.

    Attributes:
        endpoint: where the broker is.
        versions: what it serves, by the API's key.
        expires_at: the loop's time after which the broker takes no more requests from who we are; None: never.
        has_timed_out: whether it was lost because no answer came in time.
    """

    endpoint: Endpoint
    channel: Channel
    client_id: bytes
    versions: Mapping[int, VersionRange] = field(default_factory=dict)
    expires_at: float | None = None
    has_timed_out: bool = False
    _correlation_id: int = 0
    _unanswered: int = 0
    _is_retired: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        return not self.channel.is_lost and (self.expires_at is None or asyncio.get_running_loop().time() < self.expires_at)

    def message(self, key: ApiKey, first: int, last: int) -> Message:
        """The newest version within [first, last] that the broker serves, to build a request with. Raises UnsupportedVersion."""
        return message(key, self.version(key, first, last))

    def version(self, key: ApiKey, first: int, last: int) -> int:
        """The newest version within [first, last] that the broker serves.

        Raises:
            UnsupportedVersion: there is none.
        """
        served = self.versions.get(key)
        if served is None or served.last < first or served.first > last:
            has = "not at all" if served is None else f"in versions {served.first} to {served.last}"
            raise UnsupportedVersion(
                f"{self.endpoint.host}:{self.endpoint.port} serves {key.api_name} {has}; {first} to {last} are spoken here"
            )
        return min(last, served.last)

    async def ask(self, api: Message, body: Any, timeout_seconds: float) -> Any:
        """Sends a request and gives its answer, as kio has it. Error codes within are the caller's to look at.

        Raises:
            OSError: the connection was lost, or no answer came in time (TimeoutError); then the connection is lost, too.
            MalformedResponse: what came is no answer to this; the connection is closed.
        """
        number = self.next_correlation_id()
        frame = memoryview(api.encode(number, self.client_id, body))[INT32.size :]
        answer = await self.send((frame,), timeout_seconds)
        try:
            return api.decode(answer, number)
        except MalformedResponse:
            await self.channel.close()
            raise

    def send(self, frame: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        """Sends a frame that the caller has written, with a number from `next_correlation_id`; as `Channel.send`.

        The caller checks the answer's correlation id, and closes the connection when it is another.
        """
        answer = self.channel.send(frame, timeout_seconds, is_answered=is_answered)
        self._unanswered += 1
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[memoryview]) -> None:
        self._unanswered -= 1
        if not answer.cancelled() and isinstance(answer.exception(), TimeoutError):
            self.has_timed_out = True
        if self._is_retired:
            self.retire()

    def next_correlation_id(self) -> int:
        """The number of the request that is written next."""
        self._correlation_id = self._correlation_id + 1 if self._correlation_id < MAX_CORRELATION_ID else 1
        return self._correlation_id

    def retire(self) -> None:
        """Ends the connection once all that is on its way is answered. Nothing more is to be asked."""
        self._is_retired = True
        if not self._unanswered:
            self.channel.abort()

    async def close(self) -> None:
        """Ends the connection at once."""
        await self.channel.close()


async def introduce(
    endpoint: Endpoint, channel: Channel, client_id: str, credentials: Credentials | None, offload: Offload, timeout_seconds: float
) -> BrokerConnection:
    """Agrees on versions and authenticates. When that fails the channel is closed.

    Args:
        credentials: None where brokers ask for none.
        offload: for the thousands of hashes of SCRAM.
        timeout_seconds: for each answer.

    Raises:
        OSError, MalformedResponse: the connection was lost or the answers make no sense.
        UnsupportedVersion, UnsupportedSaslMechanism, SaslAuthenticationFailed.
    """
    connection = BrokerConnection(endpoint, channel, client_id.encode())
    try:
        connection.versions = await _api_versions(connection, timeout_seconds)
        if credentials is not None:
            await _authenticate(connection, credentials, offload, timeout_seconds)
    except BaseException:
        await channel.close()
        raise
    return connection


async def _api_versions(connection: BrokerConnection, timeout_seconds: float) -> dict[int, VersionRange]:
    """What the broker serves. An older one answers a version that it does not know in version 0, with what it knows."""
    version = API_VERSIONS_VERSION
    while True:
        api = message(ApiKey.API_VERSIONS, version)
        body = api.build("ApiVersionsRequest", client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        number = connection.next_correlation_id()
        frame = memoryview(api.encode(number, connection.client_id, body))[INT32.size :]
        answer = await connection.channel.send((frame,), timeout_seconds)
        if len(answer) < 6:
            raise MalformedResponse(f"ApiVersions: an answer of {len(answer)} bytes")
        if version and INT16.unpack_from(answer, 4)[0] == UnsupportedVersion.code:
            version = 0
            continue
        served = api.decode(answer, number)
        if served.error_code:
            raise error_of(int(served.error_code), "ApiVersions")
        return {int(served_api.api_key): VersionRange(served_api.min_version, served_api.max_version) for served_api in served.api_keys}


async def _authenticate(connection: BrokerConnection, credentials: Credentials, offload: Offload, timeout_seconds: float) -> None:
    shake = message(ApiKey.SASL_HANDSHAKE, connection.version(ApiKey.SASL_HANDSHAKE, 1, 1))
    answer = await connection.ask(shake, shake.build("SaslHandshakeRequest", mechanism=credentials.mechanism), timeout_seconds)
    if answer.error_code != NONE:
        raise UnsupportedSaslMechanism(f"{credentials.mechanism}; the broker has {', '.join(answer.mechanisms) or 'none'}")
    api = message(ApiKey.SASL_AUTHENTICATE, connection.version(ApiKey.SASL_AUTHENTICATE, 0, 2))

    async def say(said: bytes) -> Any:
        answer = await connection.ask(api, api.build("SaslAuthenticateRequest", auth_bytes=said), timeout_seconds)
        if answer.error_code != NONE:
            raise error_of(int(answer.error_code), message=answer.error_message)
        return answer

    began = asyncio.get_running_loop().time()
    if credentials.mechanism == "PLAIN":
        answer = await say(plain_message(credentials))
    else:
        exchange = ScramExchange(credentials, secrets.token_urlsafe(24))
        first = (await say(exchange.first_message())).auth_bytes
        salted = await offload(exchange.salted_password, first)
        answer = await say(exchange.final_message(first, salted))
        exchange.check_final(answer.auth_bytes)
    lifetime = getattr(answer, "session_lifetime", None)
    if lifetime:
        connection.expires_at = began + lifetime.total_seconds() * USED_LIFETIME
