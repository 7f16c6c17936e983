"""One ZooKeeper for the whole cluster, at the other end of a network: the embedded twin, and sessions that can suffer.

What ZooKeeper's client promises holds: requests of a session are done and answered in their order, and a watch is told
before any answer that could show what it is about. What it does not promise happens: a connection is lost with
requests on their way (ConnectionLoss, and whether they were done is unknown), a session that was not heard of for its
timeout expires, and whoever had it learns of that only when it can hear again.

ZooKeeper itself does not fail; `set_away` makes it unreachable for everybody, during which no session expires.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tests.simulation.loop import Callback
from tests.simulation.network import Network, Stream
from tests.simulation.nodes import NODE, Node
from tests.simulation.trace import Trace

from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, CoordinationError, SessionExpired
from ottla.coordination.interface import ANY_VERSION, Operation, Result, SessionEvent, SessionListener, Stat, Watch, WatchedEvent

NAME: Final = "zookeeper"
# The client gives a silent connection up after two thirds of the session's timeout, as ZooKeeper's clients do.
CLIENT_PATIENCE: Final = 2 / 3
RECONNECT_SECONDS: Final = 0.2


class SimulatedZooKeeper:
    """The service, and every session with it."""

    def __init__(self, network: Network, trace: Trace, zookeeper: EmbeddedZooKeeper, session_timeout_seconds: float) -> None:
        self._network: Final = network
        self._trace: Final = trace
        self._zookeeper: Final = zookeeper
        self.session_timeout_seconds: Final = session_timeout_seconds
        self.sessions: Final[list[SimulatedSession]] = []
        self._is_away = False

    @property
    def is_away(self) -> bool:
        return self._is_away

    def set_away(self, is_away: bool) -> None:
        """No one reaches ZooKeeper, or everybody does again."""
        self._is_away = is_away
        self._network.set_away(NAME, is_away)
        self.connectivity_changed()

    def opener(self) -> Callable[[], Awaitable[SimulatedSession]]:
        """What a broker opens its sessions with."""
        return self._open

    async def _open(self) -> SimulatedSession:
        node = NODE.get()
        assert node is not None, "a session belongs to a node"
        deadline = asyncio.get_running_loop().time() + self.session_timeout_seconds
        while not self.reaches(node):
            if asyncio.get_running_loop().time() > deadline:
                raise ConnectionLoss("no ZooKeeper gave a session")
            await asyncio.sleep(RECONNECT_SECONDS)
        await asyncio.sleep(self._network.delay(node.name, NAME) + self._network.delay(NAME, node.name))
        session = SimulatedSession(self, self._network, self._trace, node, await self._zookeeper.session())
        self.sessions.append(session)
        if not self.reaches(node):
            session.unreachable()
        return session

    def reaches(self, node: Node) -> bool:
        """Whether ZooKeeper and the node hear each other."""
        network = self._network
        return not (network.is_blocked(node.name, NAME) or network.is_blocked(NAME, node.name))

    def session(self, session_id: int) -> SimulatedSession | None:
        """The session of an id, if it may still be someone's."""
        return next((session for session in self.sessions if session.session_id == session_id), None)

    # Faults.

    def connectivity_changed(self) -> None:
        """The network, a node's pause or life, or ZooKeeper's own has changed: who is not heard of any more starts to expire."""
        self.sessions[:] = [session for session in self.sessions if not session.is_forgotten]
        for session in self.sessions:
            if not session.is_over and session.node.is_alive and not session.node.is_paused and self.reaches(session.node):
                session.reachable()
            else:
                session.unreachable()

    def expire(self, name: str) -> None:
        """ZooKeeper ends the session of a node, by name."""
        for session in self._of(name):
            session.expire()

    def lose_connection(self, name: str) -> None:
        """The connection of a node breaks, with whatever is on its way, and comes back."""
        for session in self._of(name):
            session.lose_connection()

    def _of(self, name: str) -> list[SimulatedSession]:
        return [session for session in self.sessions if session.node.name == name and session.node.is_alive and not session.is_over]


class SimulatedSession:
    """`ottla.coordination.interface.Coordination`, over a network."""

    def __init__(self, zookeeper: SimulatedZooKeeper, network: Network, trace: Trace, node: Node, server: EmbeddedSession) -> None:
        self.node: Final = node
        self._zookeeper: Final = zookeeper
        self._network: Final = network
        self._trace: Final = trace
        self._server: Final = server
        self._listeners: list[SessionListener] = []
        self._connected = asyncio.Event()  # or over
        self._connected.set()
        self._end: SessionEvent | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._to_server = self._to_client = Stream(network, NAME, node)
        self._undelivered: dict[int, tuple[Watch, WatchedEvent]] = {}
        self._tells: dict[Watch, Watch] = {}
        self._busy: asyncio.Task[None] | None = None
        self._is_unreachable = False
        self._expiry: Callback | None = None
        self._patience: Callback | None = None
        self._connect()

    @property
    def chroot_size(self) -> int:
        return 0

    @property
    def session_timeout_seconds(self) -> float:
        return self._zookeeper.session_timeout_seconds

    @property
    def silent_seconds(self) -> float:
        return 0.0

    @property
    def session_id(self) -> int:
        return self._server.session_id

    @property
    def is_over(self) -> bool:
        return self._end is not None

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing can come of it any more."""
        return self._server.is_over and (self.is_over or not self.node.is_alive)

    # Operations.

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, make_parents: bool = False
    ) -> str:
        work = partial(self._server.create, path, data, ephemeral=ephemeral, sequential=sequential, make_parents=make_parents)
        created: str = await self._ask(f"create {path}", work)
        return created

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        found: tuple[bytes, Stat] = await self._ask(f"get {path}", partial(self._server.get, path, self._told(watch)))
        return found

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        found: list[tuple[bytes, Stat] | None] = await self._ask(f"get {len(paths)}", partial(self._server.get_many, list(paths)))
        return found

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat: Stat = await self._ask(f"set {path}", partial(self._server.set, path, data, version))
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask(f"delete {path}", partial(self._server.delete, path, version))

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        stat: Stat | None = await self._ask(f"exists {path}", partial(self._server.exists, path, self._told(watch)))
        return stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names: list[str] = await self._ask(f"children {path}", partial(self._server.children, path, self._told(watch)))
        return names

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        listed = " ".join(f"{type(operation).__name__}:{operation.path}" for operation in operations[:4])
        results: list[Result] = await self._ask(f"multi {listed}", partial(self._server.transaction, list(operations)))
        return results

    def on_session_event(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        """Says goodbye; a ZooKeeper that does not answer finds out by the timeout."""
        if self._end is not None:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._ask("close", self._server.close)
        except (TimeoutError, CoordinationError):
            self._unheard_of()
        self._finish(SessionEvent.CLOSED)

    # Asking.

    async def _ask(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Has `work` done at the server, in the order of asking, and gives what came of it."""
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        try:
            async with asyncio.timeout(self._zookeeper.session_timeout_seconds):
                await self._connected.wait()
                if self._end is not None:
                    raise SessionExpired(f"session {self.session_id:#x} is over")
                answer = self._waiting[number] = loop.create_future()
                self._trace.note(f"zookeeper <- {what}")
                self._to_server.send(self._arrived, self._to_client, number, what, work)
                return await answer
        except TimeoutError as error:
            raise ConnectionLoss(f"{what}: no answer of ZooKeeper") from error
        finally:
            self._waiting.pop(number, None)

    def _arrived(self, answers: Stream, number: int, what: str, work: Callable[[], Awaitable[Any]]) -> None:
        """At the server: does it after what arrived before, which takes no time."""
        before = self._busy
        self._busy = asyncio.get_running_loop().create_task(self._perform(before, answers, number, what, work))

    async def _perform(
        self, before: asyncio.Task[None] | None, answers: Stream, number: int, what: str, work: Callable[[], Awaitable[Any]]
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        result: Any = None
        error: CoordinationError | None = None
        try:
            result = await work()
        except CoordinationError as raised:
            error = raised
        self._trace.note(f"zookeeper: {what} for {self.node.name}: {'done' if error is None else type(error).__name__}")
        answers.send(self._answered, number, result, error)

    def _answered(self, number: int, result: Any, error: CoordinationError | None) -> None:
        if isinstance(error, SessionExpired):
            self._finish(SessionEvent.EXPIRED)
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _told(self, watch: Watch | None) -> Watch | None:
        """The watch as the server calls it: it goes to the client in line with the answers. One that is set again is the same."""
        if watch is None:
            return None
        known = self._tells.get(watch)
        if known is not None:
            return known

        def tell(event: WatchedEvent) -> None:
            number = next(self._numbers)
            self._undelivered[number] = watch, event
            self._to_client.send(self._watch_fired, number)

        self._tells[watch] = tell
        return tell

    def _watch_fired(self, number: int) -> None:
        watch, event = self._undelivered.pop(number)
        if self._end is None:
            watch(event)

    # The connection.

    def _connect(self) -> None:
        self._to_server = Stream(self._network, self.node.name, NAME)
        self._to_client = Stream(self._network, NAME, self.node)
        for number in self._undelivered:  # whose connection was lost: a client that is back hears of what it missed
            self._to_client.send(self._watch_fired, number)

    def lose_connection(self) -> None:
        """At once, for both sides; the client hears of it in its own node."""
        if self._connected.is_set() and self._end is None:
            # What was on its way to the server may arrive, the answers do not.
            self._to_client.cut()
            self._at_client(self._suspend)

    def unreachable(self) -> None:
        """From now on the server does not hear of the client, nor the client of the server."""
        self._is_unreachable = True
        timeout, loop = self._zookeeper.session_timeout_seconds, self._network.loop
        if self._expiry is None and not self._server.is_over:
            # ZooKeeper ends sessions at its ticks. One that is away ends none.
            self._expiry = loop.call_later(timeout * 1.1, self._unheard_of, context=self._network.outside.copy())
        if self._patience is None and self._end is None:
            self._patience = loop.call_later(timeout * CLIENT_PATIENCE, self._gave_up_waiting, context=self.node.context.copy())

    def reachable(self) -> None:
        """Both hear of each other again."""
        for callback in (self._expiry, self._patience):
            if callback is not None:
                callback.cancel()
        self._expiry = self._patience = None
        if self._is_unreachable:
            self._is_unreachable = False
            self._at_client(self._try_to_connect)

    def expire(self) -> None:
        """The server ends the session, and the client hears of it soon."""
        if not self._server.is_over:
            self._trace.tell(f"session {self.session_id:#x} of {self.node.name} expires")
            self._network.loop.create_task(self._end_at_server(), context=self._network.outside.copy())
            if self._zookeeper.reaches(self.node):
                self._at_client(partial(self._finish, SessionEvent.EXPIRED))

    async def _end_at_server(self) -> None:
        with suppress(SessionExpired):  # of a ZooKeeper that has come back and does not know it
            await self._server.end(SessionEvent.EXPIRED)

    def _unheard_of(self) -> None:
        self._expiry = None
        if self._zookeeper.is_away:
            return  # `connectivity_changed` comes again when it is back
        if not self._server.is_over:
            self._trace.tell(f"session {self.session_id:#x} of {self.node.name} was not heard of and expires")
            self._network.loop.create_task(self._end_at_server(), context=self._network.outside.copy())

    def _at_client(self, callback: Callable[[], None]) -> None:
        delay = self._network.delay(NAME, self.node.name)
        self._network.loop.call_later(delay, callback, context=self.node.context.copy())

    def _gave_up_waiting(self) -> None:
        self._patience = None
        self._to_server.cut()
        self._suspend(reconnect=False)

    def _suspend(self, reconnect: bool = True) -> None:
        if not self._connected.is_set() or self._end is not None:
            return
        self._connected.clear()
        self._to_client.cut()
        self._tell(SessionEvent.SUSPENDED)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLoss(f"session {self.session_id:#x}: the connection ended before the answer came"))
        if reconnect:
            self._network.loop.call_later(RECONNECT_SECONDS, self._try_to_connect, context=self.node.context.copy())

    def _try_to_connect(self) -> None:
        if self._end is not None or not self._zookeeper.reaches(self.node):
            return
        if self._server.is_over:
            self._finish(SessionEvent.EXPIRED)
        elif not self._connected.is_set():
            self._connect()
            self._connected.set()
            self._tell(SessionEvent.CONNECTED)

    def _finish(self, event: SessionEvent) -> None:
        if self._end is not None:
            return
        self._end = event
        self._connected.set()
        self._to_client.cut()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SessionExpired(f"session {self.session_id:#x} is over"))
        self._tell(event)

    def _tell(self, event: SessionEvent) -> None:
        self._trace.note(f"session {self.session_id:#x}: {event.value}")
        for listener in list(self._listeners):
            listener(event)
