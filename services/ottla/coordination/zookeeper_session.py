"""One session with a real ZooKeeper: `ottla.coordination.interface.Coordination` over kazoo.

kazoo's thread only posts what it reads to the event loop, in the order of the wire; everything else happens here, on
the loop. What kazoo leaves to its users is added:

- *Watches live as long as the session.* kazoo forgets them with the connection. So they are kept in a table of ours with
  the zxid that their reader saw, and after a reconnection each znode is read again before anything else is asked:
  where the zxid is another one the watch fires, elsewhere the server knows it again.
- *A session that is over is over.* kazoo would continue in a new one; here everything raises SessionExpired, and anyone who
  opened the session opens another.
- *No wait is for ever.* What has no answer within the session's timeout is ConnectionLoss, connected or not.

A request that slipped into kazoo's queue while the connection was breaking may be answered over the next one, before
the watches are set again. Such an answer counts as lost, so no caller reads what a watch has not reported yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol import serialization
from kazoo.protocol.states import KazooState

from ottla.coordination.errors import ConnectionLoss, CoordinationError, NodeExists, NoNode, NotAuthorized, SessionExpired
from ottla.coordination.interface import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    Result,
    SessionEvent,
    SessionListener,
    SetData,
    Stat,
    Watch,
    WatchedEvent,
)
from ottla.coordination.requests import validate_operations, validate_paths, validate_size
from ottla.coordination.watches import Watches
from ottla.coordination.znodes import parent_of, validate_path
from ottla.coordination.zookeeper import ZooKeeperOptions
from ottla.coordination.zookeeper_client import NOT_TO_BLAME, Unimplemented, acl_of, make_client, translated

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
Take: TypeAlias = Callable[[Any], T]  # makes the value of an answer

# The end of a session is waited for so long; with a server that does not answer it ends by its timeout.
CLOSE_SECONDS: Final = 3.0

_CHROOT_ATTEMPTS: Final = 5
# Znodes of one MultiRead: enough to make the request's own cost small, and few enough for what they hold together.
_READ_AT_ONCE: Final = 200
_MADE_AT_ONCE: Final = 500  # operations of a transaction, in one stretch of the loop
_EVENTS: Final = {
    "CREATED": EventType.CREATED,
    "DELETED": EventType.DELETED,
    "CHANGED": EventType.CHANGED,
    "CHILD": EventType.CHILDREN,
}
_NOT_THERE: Final = -1  # in the place of a zxid


class ZooKeeperSession:
    """Made by `open`, on the event loop that it is used on."""

    def __init__(self, options: ZooKeeperOptions) -> None:
        """Nothing is connected yet. Raises ConfigurationError for a PEM file that cannot be used."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._client = make_client(options, self._loop)
        self._client.add_listener(self._state_seen)
        self._chroot = ""
        self._session_id = 0
        self._listeners: list[SessionListener] = []
        self._watches = Watches()
        self._data_zxids: dict[str, int] = {}
        self._children_zxids: dict[str, int] = {}
        self._connected = asyncio.Event()
        self._connection = 0  # counts them
        self._in_flight = asyncio.Semaphore(options.max_in_flight_requests)
        self._can_read_many = True
        self._end: SessionEvent | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._stopping: threading.Thread | None = None

    @classmethod
    async def open(cls, options: ZooKeeperOptions) -> ZooKeeperSession:
        """A new session; `ottla.coordination.zookeeper.open_session` says what it raises."""
        session = cls(options)
        try:
            session._client.start_async()
            try:
                async with asyncio.timeout(options.connection_timeout_seconds):
                    await session._connected.wait()
            except TimeoutError as error:
                if not session._connected.is_set():  # it did not even come as the time ended
                    raise ConnectionLoss(
                        f"zookeeper.connect = {options.connect}: no ZooKeeper gave a session within"
                        f" {options.connection_timeout_seconds:g} s (zookeeper.connection.timeout.ms)"
                    ) from error
            session._refuse_when_over()
            await session._enter_chroot(options.connect.chroot)
        except BaseException:
            await session.close()
            raise
        log.info("session %#x with ZooKeeper at %s", session._session_id, options.connect)
        return session

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def chroot_size(self) -> int:
        return len(self._chroot.encode())

    @property
    def session_timeout_seconds(self) -> float:
        return float(self._client.handler.granted_seconds)

    @property
    def silent_seconds(self) -> float:
        return float(self._loop.time() - self._client.handler.heard_at)

    @property
    def is_over(self) -> bool:
        """Whether the session ended: everything raises SessionExpired."""
        return self._end is not None

    # Operations.

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, make_parents: bool = False
    ) -> str:
        validate_operations([Create(path, data, ephemeral, sequential)], self.chroot_size)
        acl = acl_of(path, self._options.set_acl)

        def send() -> Any:
            return self._client.create_async(self._absolute(path, sequential), data, acl=acl, ephemeral=ephemeral, sequence=sequential)

        while True:
            try:
                return await self._ask(path, send, self._relative)
            except NoNode:
                if not make_parents or path == "/":  # the chroot was removed
                    raise
            with contextlib.suppress(NodeExists):
                await self.create(parent_of(path), make_parents=True)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        validate_path(path)

        def take(answer: Any) -> tuple[bytes, Stat]:
            data, stat = answer
            if watch is not None:
                self._watch_data(path, watch, stat.mzxid)
            return data or b"", _stat(stat)

        return await self._ask(
            path, lambda: self._client.get_async(self._absolute(path), self._event_seen if watch is not None else None), take
        )

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        for path in paths:
            validate_path(path)
        parts = [paths[start : start + _READ_AT_ONCE] for start in range(0, len(paths), _READ_AT_ONCE)]
        try:
            if self._can_read_many:
                return [read for part in await asyncio.gather(*(self._read_many(part) for part in parts)) for read in part]
        except Unimplemented:
            log.info("ZooKeeper at %s is older than 3.6: znodes are read one by one", self._options.connect)
            self._can_read_many = False
            # Such a server ends the connection after it has said so.
            with contextlib.suppress(ConnectionLoss):
                return await self._get_each(paths)
        return await self._get_each(paths)

    async def _get_each(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        return list(await asyncio.gather(*(self._get_if_there(path) for path in paths)))

    async def _get_if_there(self, path: str) -> tuple[bytes, Stat] | None:
        with contextlib.suppress(NoNode):
            return await self.get(path)
        return None

    async def _read_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        def send() -> Any:
            result = self._client.handler.async_result()
            # kazoo knows the request no more than by this, which is what its own methods end with.
            self._client._call(MultiRead([self._absolute(path) for path in paths]), result)
            return result

        def take(answer: Any) -> list[tuple[bytes, Stat] | None]:
            return [None if found is None else (found[0] or b"", _stat(found[1])) for found in answer]

        return await self._ask(paths[0], send, take)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        validate_operations([SetData(path, data, version)], self.chroot_size)
        return await self._ask(path, lambda: self._client.set_async(self._absolute(path), data, version), _stat)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        validate_path(path)
        await self._ask(path, lambda: self._client.delete_async(self._absolute(path), version), lambda _: None)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        validate_path(path)

        def take(stat: Any) -> Stat | None:
            if watch is not None:
                self._watch_data(path, watch, _NOT_THERE if stat is None else stat.mzxid)
            return None if stat is None else _stat(stat)

        return await self._ask(
            path, lambda: self._client.exists_async(self._absolute(path), self._event_seen if watch is not None else None), take
        )

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        validate_path(path)

        def take(answer: Any) -> list[str]:
            names, stat = answer
            if watch is not None:
                self._watches.watch_children(self._session_id, path, watch)
                self._children_zxids[path] = stat.pzxid
            return list(names)

        return await self._ask(path, lambda: self._children_async(path, watch is not None), take)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if not operations:
            return []
        validate_size(operations, self.chroot_size)
        requests: list[Any] = []
        for start in range(0, len(operations), _MADE_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            validate_paths(operations[start : start + _MADE_AT_ONCE], start)
            requests += map(self._request, operations[start : start + _MADE_AT_ONCE])

        def send() -> Any:
            transaction = self._client.transaction()
            # Not through its methods, which drop the slash that the path of a sequential znode may end with.
            transaction.operations.extend(requests)
            return transaction.commit_async()

        return await self._ask(operations[0].path, send, lambda answer: self._results(operations, answer))

    def on_session_event(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        is_first = self._end is None
        if self._end is None:
            self._end = SessionEvent.CLOSED
            self._stop()
        assert self._stopped is not None
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(self._stopped)
        except TimeoutError:
            log.warning("session %#x: ZooKeeper does not answer; the session ends by its timeout", self._session_id)
        if is_first:
            self._tell(SessionEvent.CLOSED)

    # Asking.

    async def _ask(self, path: str, send: Callable[[], Any], take: Take[T]) -> T:
        """Sends a request in its turn and gives what `take`, called in the order of the wire, makes of its answer."""
        answer: asyncio.Future[T] = self._loop.create_future()
        try:
            async with asyncio.timeout(self._options.session_timeout_seconds), self._in_flight:
                while not self._connected.is_set():  # it may be lost again before who waits for it has a turn
                    await self._connected.wait()
                self._refuse_when_over()
                connection = self._connection
                with self._client.handler.in_order:
                    send().rawlink(lambda result: self._post(self._answered, path, connection, answer, take, result))
                return await answer
        except TimeoutError as error:
            if answer.done() and not answer.cancelled():
                return answer.result()  # it came as the time ended
            raise ConnectionLoss(f"{path}: no answer of ZooKeeper within {self._options.session_timeout_seconds:g} s") from error

    def _answered(self, path: str, connection: int, answer: asyncio.Future[T], take: Take[T], result: Any) -> None:
        error = None if result.exception is None else translated(path, result.exception)
        if isinstance(error, ConnectionLoss) and connection == self._connection:
            self._suspend()  # before anyone who waits hears of it, so that what it asks next waits for the connection
        if isinstance(error, SessionExpired):
            self._finish(SessionEvent.EXPIRED)
        if error is None and connection != self._connection:
            error = ConnectionLoss(f"{path}: the connection was lost before the answer came")
        if isinstance(error, ConnectionLoss) and self._end is not None:
            error = SessionExpired(f"{path}: session {self._session_id:#x} is over")
        if answer.done():  # the waiter gave up
            return
        if error is None:
            try:
                answer.set_result(take(result.value))
            except CoordinationError as refusal:
                answer.set_exception(refusal)
        else:
            answer.set_exception(error)

    def _refuse_when_over(self) -> None:
        if self._end is not None:
            raise SessionExpired(f"session {self._session_id:#x} is over")

    def _request(self, operation: Operation) -> Any:
        path = self._absolute(operation.path)
        match operation:
            case Create(_, data, ephemeral, sequential):
                path = self._absolute(operation.path, sequential)
                return serialization.Create(path, data, acl_of(operation.path, self._options.set_acl), ephemeral | sequential << 1)
            case SetData(_, data, version):
                return serialization.SetData(path, data, version)
            case Delete(_, version):
                return serialization.Delete(path, version)
            case Check(_, version):
                return serialization.CheckVersion(path, version)

    def _results(self, operations: Sequence[Operation], answer: Sequence[Any]) -> list[Result]:
        """What a transaction gave; raises the error of the operation that failed."""
        for index, result in enumerate(answer):
            if isinstance(result, Exception) and not isinstance(result, NOT_TO_BLAME):
                error = translated(operations[index].path, result)
                error.operation_index = index
                raise error
        results: list[Result] = []
        for operation, result in zip(operations, answer, strict=True):
            match operation:
                case Create():
                    results.append(self._relative(result))
                case SetData():
                    results.append(_stat(result))
                case _:
                    results.append(None)
        return results

    def _children_async(self, path: str, is_watched: bool) -> Any:
        return self._client.get_children_async(self._absolute(path), self._event_seen if is_watched else None, include_data=True)

    # The chroot. kazoo has one as well, but not for all of its requests.

    async def _enter_chroot(self, chroot: str) -> None:
        for attempt in range(1, _CHROOT_ATTEMPTS + 1) if chroot else ():
            try:
                # Looked at first: who may use it need not be who may make it.
                if await self.exists(chroot) is None:
                    if not self._options.makes_chroot:
                        raise NoNode(f"zookeeper.connect = {self._options.connect}: there is no znode {chroot}")
                    await self.create(chroot, make_parents=True)
                    log.info("created the chroot %s", chroot)
                break
            except NodeExists:
                break
            except NotAuthorized as error:
                raise NotAuthorized(f"zookeeper.connect = {self._options.connect}: the chroot cannot be made: {error}") from error
            except ConnectionLoss:
                if attempt == _CHROOT_ATTEMPTS:
                    raise
        self._chroot = chroot

    def _absolute(self, path: str, sequential: bool = False) -> str:
        """Where the server has it. The path of a sequential znode may be a slash that its number is appended to."""
        return (self._chroot or path) if path == "/" and not sequential else self._chroot + path

    def _relative(self, path: str) -> str:
        return path[len(self._chroot) :] or "/"

    # Watches.

    def _watch_data(self, path: str, watch: Watch, zxid: int) -> None:
        self._watches.watch_data(self._session_id, path, watch)
        self._data_zxids[path] = zxid

    def _event_seen(self, event: Any) -> None:
        """In kazoo's thread."""
        if event.path is not None:  # kazoo tells its watches, too, of every lost connection
            self._post(self._fire, _EVENTS[event.type], event.path)

    def _fire(self, event_type: EventType, absolute_path: str) -> None:
        if self._end is None:
            self._watches.fire(WatchedEvent(event_type, self._relative(absolute_path)))

    def _watch_again(self) -> None:
        """Sets every watch again and tells those that missed what they are for."""
        for path in self._watches.data_paths():
            self._read_again(path, self._client.exists_async(self._absolute(path), self._event_seen), self._data_read_again)
        for path in self._watches.children_paths():
            self._read_again(path, self._children_async(path, True), self._children_read_again)

    def _read_again(self, path: str, result: Any, take: Callable[[str, Any], EventType | None]) -> None:
        connection = self._connection

        def taken(result: Any) -> None:
            # Where the connection was lost again it is done again over the next.
            if connection == self._connection and self._end is None and (event_type := take(path, result)) is not None:
                self._watches.fire(WatchedEvent(event_type, path))

        result.rawlink(lambda result: self._post(taken, result))

    def _data_read_again(self, path: str, result: Any) -> EventType | None:
        if result.exception is not None:
            return None
        zxid = _NOT_THERE if result.value is None else result.value.mzxid
        if zxid == self._data_zxids[path]:
            return None
        if zxid == _NOT_THERE:
            return EventType.DELETED
        return EventType.CREATED if self._data_zxids[path] == _NOT_THERE else EventType.CHANGED

    def _children_read_again(self, path: str, result: Any) -> EventType | None:
        if result.exception is not None:
            return EventType.DELETED if isinstance(translated(path, result.exception), NoNode) else None
        return EventType.CHILDREN if result.value[1].pzxid != self._children_zxids[path] else None

    # The session.

    def _state_seen(self, state: str) -> None:
        """In kazoo's thread."""
        client_id = self._client.client_id
        self._post(self._state_changed, state, client_id[0] if client_id is not None else 0)

    def _state_changed(self, state: str, session_id: int) -> None:
        if self._end is not None:
            return
        if state == KazooState.CONNECTED:
            self._connect(session_id)
        elif state == KazooState.SUSPENDED:
            self._suspend()
        else:
            self._finish(SessionEvent.EXPIRED)

    def _connect(self, session_id: int) -> None:
        is_first, self._session_id = self._session_id == 0, session_id
        if not is_first:
            log.info("session %#x: connected to ZooKeeper again", session_id)
            self._watch_again()
        self._connected.set()
        if not is_first:
            self._tell(SessionEvent.CONNECTED)

    def _suspend(self) -> None:
        if self._end is None and self._connected.is_set():
            self._connected.clear()
            self._connection += 1
            log.warning("session %#x: the connection to ZooKeeper is lost", self._session_id)
            self._tell(SessionEvent.SUSPENDED)

    def _finish(self, event: SessionEvent) -> None:
        if self._end is None:
            self._end = event
            log.warning("session %#x with ZooKeeper expired", self._session_id)
            self._stop()

    def _stop(self) -> None:
        """Once: has kazoo stopped by a thread, for it waits, and tells the listeners of the end."""
        assert self._end is not None
        self._stopped = self._loop.create_future()
        self._connected.set()  # who waits for the connection is refused
        self._watches.forget(self._session_id)
        if self._end is SessionEvent.EXPIRED:
            self._tell(self._end)
        self._stopping = self._client.handler.spawn(self._stop_client)

    def _stop_client(self) -> None:
        """In a thread of its own."""
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # a thread ends here; the session has ended in any case
            log.exception("session %#x: kazoo did not stop", self._session_id)
        finally:
            self._post(self._client_stopped)

    def _client_stopped(self) -> None:
        assert self._stopped is not None and self._stopping is not None
        self._stopping.join()  # nothing is left for it to do but to end
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _tell(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # one listener's error must not keep the others from the event
                log.exception("a listener of session %#x failed at %s", self._session_id, event.value)

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Has something done on the event loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no listener is left
            self._loop.call_soon_threadsafe(callback, *arguments)


def _stat(stat: Any) -> Stat:
    return Stat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        pzxid=stat.pzxid,
        ctime=stat.ctime,
        mtime=stat.mtime,
        version=stat.version,
        cversion=stat.cversion,
        ephemeral_owner=stat.ephemeralOwner,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
    )


# The one request that kazoo does not have: ZooKeeper's MultiRead (3.6 and later), many znodes for one question.
#
# A controller that takes over reads the state of every partition. One by one, kazoo takes 0.2 ms of CPU for each.


@dataclass(frozen=True, slots=True)
class MultiRead:
    """As kazoo takes a request: `type`, `serialize` and `deserialize`. The paths are the server's."""

    type: ClassVar[int] = 22
    paths: Sequence[str]

    def serialize(self) -> bytearray:
        """The same frame as a transaction's, with reads in it."""
        header = serialization.MultiHeader(serialization.GetData.type, False, -1).serialize()
        frame = bytearray()
        for path in self.paths:
            frame += header + serialization.GetData(path, None).serialize()
        frame += serialization.MultiHeader(-1, True, -1).serialize()
        return frame

    @staticmethod
    def deserialize(answer: Any, offset: int) -> list[tuple[bytes, Any] | None]:
        """Data and stat of each, None for one that is not there. Raises kazoo's error for any other."""
        found: list[tuple[bytes, Any] | None] = []
        while True:
            header, offset = serialization.MultiHeader.deserialize(answer, offset)
            if header.done:
                return found
            if header.type == serialization.GetData.type:
                found.append(serialization.GetData.deserialize(answer, offset))
                size = serialization.int_struct.unpack_from(answer, offset)[0]
                offset += serialization.int_struct.size + max(size, 0) + serialization.stat_struct.size
            else:
                (code,) = serialization.int_struct.unpack_from(answer, offset)
                offset += serialization.int_struct.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]()
                found.append(None)
