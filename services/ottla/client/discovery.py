"""Which brokers and topics ZooKeeper knows, as clients look them up: once, or for as long as a producer or a mirror's link lives.

The design document has a producer register watchers for four events: a broker comes, a broker goes, a topic is new, a topic that is
there has other partitions. `BrokerWatch` watches the znodes of all four, and says what they are now. `BrokerDiscovery` follows one for a
producer; `KnownBrokers` keeps what one has found, for a mirror's link.

    watch fires, session renewed ──> read brokers and the topics in use ──> follow(found), again until the brokers say so too

A broker hears of a change from the controller, later than ZooKeeper's watchers: hence the attempts.

Nothing here writes a znode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.config.connect_string import ConnectString
from ottla.coordination import znodes
from ottla.coordination.errors import ConnectionLoss, MalformedZnode, NoNode
from ottla.coordination.interface import Coordination, SessionEvent, Watch, WatchedEvent
from ottla.coordination.sessions import CoordinationSessions, OpenSession
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.errors import BrokerNotAvailable, OttlaError
from ottla.model import BrokerRegistration

log: Final = logging.getLogger(__name__)

_OPEN_SECONDS: Final = 30.0
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.5
# Of one that keeps what it knows: how long the first question waits for ZooKeeper's answer, and the pause behind a look that failed.
_FIRST_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0


def open_client_session(
    connect: str, session_timeout_seconds: float | None = None, connection_timeout_seconds: float | None = None
) -> OpenSession:
    """Sessions of a client: unlike a broker's they do not make a chroot, which would hide that it is misspelt."""
    seconds = ZooKeeperOptions(ConnectString.parse(connect))
    options = ZooKeeperOptions(
        seconds.connect,
        session_timeout_seconds or seconds.session_timeout_seconds,
        connection_timeout_seconds or seconds.connection_timeout_seconds,
        makes_chroot=False,
    )

    async def opened() -> Coordination:
        try:
            return await open_session(options)
        except NoNode:
            raise BrokerNotAvailable(f"{connect}: there is no such chroot, so no cluster of brokers is there") from None

    return opened


async def brokers_in_zookeeper(session: Coordination, security_protocol: str, watch: Watch | None = None) -> str:
    """`bootstrap.servers` of the brokers that are registered. The watch fires when one comes, goes, or registers again.

    Raises:
        BrokerNotAvailable: there is none that listens by that protocol, or no cluster at that chroot.
    """
    found = []
    for registration in await _registered(session, watch):
        found += [end for end in registration.endpoints if end.security_protocol == security_protocol][:1]
    if not found:
        raise BrokerNotAvailable(f"{znodes.BROKER_IDS.pattern} has no broker that listens by {security_protocol}; is the chroot right?")
    return ",".join(str(end).partition("://")[2] for end in found)


async def _registered(session: Coordination, watch: Watch | None) -> list[BrokerRegistration]:
    found = []
    for name in sorted(await children_of(session, znodes.BROKER_IDS.pattern, watch)):
        path = znodes.BROKER.path(name)
        try:
            registration = znodes.decode_broker(path, (await session.get(path, watch))[0])
            if not all(isinstance(end.host, str) and end.host and 0 < end.port < 1 << 16 for end in registration.endpoints):
                raise MalformedZnode(f"{path}: no address in {registration.endpoints}")
            found.append(registration)
        except (NoNode, MalformedZnode) as error:
            log.warning("broker %s is not asked: %s", name, error)
    return found


async def children_of(session: Coordination, path: str, watch: Watch | None = None) -> list[str]:
    """The children of a znode; none if it is not there. The watch fires when one comes or goes, and when the znode is made."""
    while True:
        with suppress(NoNode):
            return await session.children(path, watch)
        if watch is None or await session.exists(path, watch) is None:
            return []


async def preferred_leaders(session: Coordination, topic: str, watch: Watch) -> list[int]:
    """The first replica of each partition of a topic, none if it is not there. The watch fires when that changes."""
    path = znodes.TOPIC.path(topic)
    while True:
        try:
            data, _ = await session.get(path, watch)
            return [replicas[0] for replicas in znodes.decode_topic(path, data).replicas]
        except NoNode:
            if await session.exists(path, watch) is None:
                return []
        except MalformedZnode as error:
            log.warning("the topic %s is not read: %s", topic, error)
            return []


@dataclass(frozen=True, slots=True)
class Discovered:
    """What ZooKeeper says at one time.

    Attributes:
        bootstrap_servers: of the brokers that are registered.
        partition_counts: of the topics in use that are there.
    """

    bootstrap_servers: str
    partition_counts: Mapping[str, int]


class BrokerWatch:
    """A cluster's brokers, and the topics in use, in ZooKeeper, on the caller's event loop.

    Args:
        open_session: where sessions with ZooKeeper come from.
        security_protocol: of the listeners that are looked for.
    """

    def __init__(self, open_session: OpenSession, security_protocol: str) -> None:
        self._security_protocol = security_protocol
        self._topics: set[str] = set()
        self._changed = asyncio.Event()
        self._sessions = CoordinationSessions(open_session, lambda: None, self._renewed)
        self._session: Coordination | None = None

    @property
    def has_changed(self) -> bool:
        """Whether there may be something that no look has seen."""
        return self._changed.is_set()

    def uses(self, topic: str) -> None:
        """Watches the topic too."""
        if topic not in self._topics:
            self._topics.add(topic)
            self._changed.set()

    async def look(self) -> Discovered:
        """Waits until something may be other than at the last look, and gives what there is. The first look opens a session.

        Raises:
            BrokerNotAvailable: no broker is registered.
            CoordinationError: ZooKeeper cannot be reached, or does not let us read. When it can be again, there is something to see.
        """
        if self._session is None:
            await self._renewed(await self._sessions.open())
            self._sessions.keep()
        await self._changed.wait()
        self._changed.clear()
        session = self._session
        assert session is not None
        try:
            servers = await brokers_in_zookeeper(session, self._security_protocol, self._watched)
            counts = {topic: len(await preferred_leaders(session, topic, self._watched)) for topic in sorted(self._topics)}
        except ConnectionLoss:
            self._changed.set()  # the connection may live on, and nothing says then when there is an answer
            raise
        return Discovered(servers, {topic: count for topic, count in counts.items() if count})

    async def close(self) -> None:
        """Ends the session. May be called twice."""
        await self._sessions.stop_renewing()
        await self._sessions.close()

    async def _renewed(self, session: Coordination) -> None:
        self._session = session
        session.on_session_event(self._happened)
        self._changed.set()

    def _happened(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._changed.set()

    def _watched(self, event: WatchedEvent) -> None:
        self._changed.set()


class BrokerDiscovery:
    """Watches a cluster's brokers, and the topics that a producer uses, on the caller's event loop: `ottla.wire.cluster.Bootstrap`.

    Args:
        open_session: where sessions with ZooKeeper come from.
        security_protocol: of the listeners that are looked for.
    """

    def __init__(self, open_session: OpenSession, security_protocol: str = "PLAINTEXT") -> None:
        self._watch: Final = BrokerWatch(open_session, security_protocol)
        self._servers = ""

    async def begin(self) -> None:
        """Looks for the brokers.

        Raises:
            BrokerNotAvailable: none is registered.
            CoordinationError, TimeoutError: ZooKeeper cannot be reached.
        """
        async with asyncio.timeout(_OPEN_SECONDS):
            self._servers = (await self._watch.look()).bootstrap_servers

    async def bootstrap_servers(self) -> str:
        """As they were found last."""
        return self._servers

    def uses(self, topic: str) -> None:
        """Watches the topic too."""
        self._watch.uses(topic)

    async def keep_following(self, follow: Callable[[Discovered], Awaitable[bool]]) -> None:
        """Calls with what there is whenever it has changed, and again, after a pause, if that gives False; until cancelled."""
        while True:
            try:
                found = await self._watch.look()
                self._servers = found.bootstrap_servers
                for _ in range(_ATTEMPTS):
                    if await follow(found) or self._watch.has_changed:
                        break
                    await asyncio.sleep(_PAUSE_SECONDS)
            except (OttlaError, OSError) as error:
                # No broker, no ZooKeeper: what is known stays, and the next watch or the next session says more.
                log.warning("brokers and topics in ZooKeeper: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        """Ends the session."""
        await self._watch.close()


class KnownBrokers:
    """The brokers of a cluster in ZooKeeper as they were found last: `ottla.wire.cluster.Bootstrap`.

    They are looked for, on the caller's event loop, from now on until it is closed. Where ZooKeeper cannot be reached, or has no broker,
    those that are known stay.

    Args:
        name: the cluster's.
        open_session, security_protocol: as `BrokerWatch`.
    """

    def __init__(self, name: str, open_session: OpenSession, security_protocol: str) -> None:
        self._name = name
        self._watch = BrokerWatch(open_session, security_protocol)
        self._servers = ""
        self._trouble = "ZooKeeper has not answered yet"
        self._found = asyncio.Event()
        self._looking = asyncio.ensure_future(self._keep_looking())

    async def bootstrap_servers(self) -> str:
        """As they are known now; waits a moment for the first.

        Raises:
            ConnectionError: none is, and why.
        """
        if not self._servers:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_SECONDS):
                    await self._found.wait()
        if not self._servers:
            raise ConnectionError(f"no broker of {self._name} is known: {self._trouble}")
        return self._servers

    async def close(self) -> None:
        """Looks no more."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
        await self._watch.close()

    async def _keep_looking(self) -> None:
        while True:
            try:
                servers = (await self._watch.look()).bootstrap_servers
            except (OttlaError, OSError) as error:
                if self._servers and str(error) != self._trouble:  # before there are any, who asks says it
                    log.warning("%s: the brokers that are known stay: %s", self._name, error)
                self._trouble = str(error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if servers != self._servers:
                log.info("%s: the brokers in ZooKeeper are %s", self._name, servers)
            self._servers, self._trouble = servers, ""
            self._found.set()
