"""The session of a process with the coordination service: which service it is, and a new session after each that expires.

A session that expires takes the ephemeral znodes of the process with it: its registration and what it was elected to. They are given up
at once; then a new session is opened, for as long as that takes, and the process joins again. Work that needs no coordination continues.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from ottla.clock import Clock
from ottla.config.connect_string import ConnectString
from ottla.config.zookeeper import ZooKeeperSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.interface import Coordination, SessionEvent
from ottla.coordination.zookeeper import DigestCredentials, ZooKeeperOptions, ZooKeeperTls, open_session
from ottla.errors import OttlaError

log: Final = logging.getLogger(__name__)

OpenSession: TypeAlias = Callable[[], Awaitable[Coordination]]


class SessionState(enum.IntEnum):
    """Where the session is. The numbers are those of `ottla_zookeeper_session_state`."""

    CLOSED = 0
    CONNECTING = 1
    CONNECTED = 2
    EXPIRED = 3


_STATES: Final = {
    SessionEvent.SUSPENDED: SessionState.CONNECTING,
    SessionEvent.CONNECTED: SessionState.CONNECTED,
    SessionEvent.EXPIRED: SessionState.EXPIRED,
}

# Between two attempts to be part of the cluster again.
_PAUSE_SECONDS: Final = 1.0
# ZooKeeper ends a session at one of its ticks, by default 2 s long, and lets none be shorter than two of them.
_EXPIRY_SLACK_SECONDS: Final = 4.0


def sessions_of(settings: ZooKeeperSettings, embedded_directory: Path, clock: Clock, stack: AsyncExitStack) -> OpenSession:
    """Where the sessions of a process come from: ZooKeeper where one is set, else an embedded twin of its own.

    Args:
        embedded_directory: where the twin keeps its state.
        stack: ends the twin.
    """
    if settings.zookeeper_connect is not None:
        return partial(open_session, zookeeper_options(settings))
    embedded = EmbeddedZooKeeper(embedded_directory, clock)
    stack.push_async_callback(embedded.close)

    listens = False

    async def session() -> Coordination:
        nonlocal listens
        if not listens:
            listens = True
            await listen(settings, embedded, stack)
        return await embedded.session()

    return session


async def listen(settings: ZooKeeperSettings, embedded: EmbeddedZooKeeper, stack: AsyncExitStack) -> str | None:
    """Has the embedded twin answer ZooKeeper's protocol at `coordination.listener`, if that is set, until the stack ends; gives where."""
    if settings.coordination_listener is None:
        return None
    from ottla.coordination.listener.server import CoordinationListener  # imported late: few brokers have one

    host, _, port = settings.coordination_listener.rpartition(":")
    listener = CoordinationListener(embedded, host.removeprefix("[").removesuffix("]"), int(port), _digest(settings))
    try:
        await listener.start()
    except OSError as error:
        # The brokers do not need it.
        log.error(
            "coordination.listener: cannot listen on %s: %s; clients of ZooKeeper cannot connect", settings.coordination_listener, error
        )
        return None
    stack.push_async_callback(listener.close)
    log.info("ZooKeeper's protocol is answered on port %d", listener.port)
    return f"{host}:{listener.port}"


def former_session_seconds(settings: ZooKeeperSettings) -> float:
    """How long the session of a process may last after the process was killed."""
    return settings.zookeeper_session_timeout_ms / 1000 + _EXPIRY_SLACK_SECONDS


def first_session_seconds(settings: ZooKeeperSettings) -> float:
    """How long a process that starts waits for ZooKeeper."""
    connection_timeout_ms = settings.zookeeper_connection_timeout_ms
    return (settings.zookeeper_session_timeout_ms if connection_timeout_ms is None else connection_timeout_ms) / 1000


def zookeeper_options(settings: ZooKeeperSettings) -> ZooKeeperOptions:
    """`zookeeper.…` as a session takes it."""
    assert settings.zookeeper_connect is not None
    return ZooKeeperOptions(
        ConnectString.parse(settings.zookeeper_connect),
        session_timeout_seconds=settings.zookeeper_session_timeout_ms / 1000,
        connection_timeout_seconds=first_session_seconds(settings),
        max_in_flight_requests=settings.zookeeper_max_in_flight_requests,
        credentials=_digest(settings),
        set_acl=settings.zookeeper_set_acl,
        tls=_tls(settings) if settings.zookeeper_ssl_client_enable else None,
    )


def _digest(settings: ZooKeeperSettings) -> DigestCredentials | None:
    username, password = settings.zookeeper_digest_username, settings.zookeeper_digest_password
    return DigestCredentials(username, password.value) if username is not None and password is not None else None


def _tls(settings: ZooKeeperSettings) -> ZooKeeperTls:
    truststore, keystore = settings.zookeeper_ssl_truststore_location, settings.zookeeper_ssl_keystore_location
    password = settings.zookeeper_ssl_keystore_password
    return ZooKeeperTls(
        truststore=Path(truststore) if truststore else None,
        keystore=Path(keystore) if keystore else None,
        key_password=password.value if password is not None else None,
        check_host_name=bool(settings.zookeeper_ssl_endpoint_identification_algorithm),
    )


class CoordinationSessions:
    """One session at a time.

    Args:
        open_session: where they come from.
        lost: called at once when a session that is kept has expired; may be called again.
        renewed: given the next one, to join the cluster with; what it raises makes for another attempt.
    """

    def __init__(self, open_session: OpenSession, lost: Callable[[], None], renewed: Callable[[Coordination], Awaitable[None]]) -> None:
        self._open_session = open_session
        self._lost = lost
        self._renewed = renewed
        self.state = SessionState.CONNECTING
        self.expirations = 0
        self.disconnections = 0
        self._session: Coordination | None = None
        self._expired = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> Coordination:
        """The first session. One that expires is not replaced before `keep`."""
        return await self._open()

    def keep(self) -> None:
        """Replaces the session from now on whenever it expires, also if it has done so already."""
        self._renewing = asyncio.ensure_future(self._renew())

    async def stop_renewing(self) -> None:
        """From now on a session that expires is not replaced."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def close(self) -> None:
        """Ends the session."""
        self.state = SessionState.CLOSED
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> Coordination:
        self.state = SessionState.CONNECTING
        session = self._session = await self._open_session()
        self.state = SessionState.CONNECTED
        session.on_session_event(partial(self._happened, session))
        return session

    def _happened(self, session: Coordination, event: SessionEvent) -> None:
        if session is self._session and event is not SessionEvent.CLOSED:
            self.state = _STATES[event]
            self.expirations += event is SessionEvent.EXPIRED
            self.disconnections += event is SessionEvent.SUSPENDED
        if event is SessionEvent.EXPIRED and session is self._session:
            log.warning(
                "session %#x has expired: its ephemeral znodes are gone, this process is not registered and leads nothing",
                session.session_id,
            )
            if self._renewing is not None:
                self._lost()
            self._expired.set()

    async def _renew(self) -> None:
        while True:
            await self._expired.wait()
            self._expired.clear()
            self._lost()
            try:
                await self.close()
                session = await self._open()
                await self._renewed(session)
                log.info("rejoined the cluster with session %#x", session.session_id)
            except Exception as error:
                # Whatever it was, a process must not stay outside of its cluster in silence.
                log.error("rejoining the cluster failed, retrying: %s", error, exc_info=not isinstance(error, OttlaError))
                self._expired.set()
                await asyncio.sleep(_PAUSE_SECONDS)
