"""The client beneath, kazoo, set up for an event loop: one thread, whose answers and events leave it in the order of the wire.

kazoo's own threading handler runs answers in one thread and watches in another, which loses their order; then a watch
may arrive after the value that it is about. Here both are run at once in the thread that read them, and all they
do there is to post to the event loop.

Only `zookeeper_session` uses this.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ottla.coordination.errors import (
    BadArguments,
    BadVersion,
    ConnectionLoss,
    CoordinationError,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotAuthorized,
    NotEmpty,
    SessionExpired,
)
from ottla.coordination.zookeeper import ZooKeeperOptions, ZooKeeperTls
from ottla.errors import ConfigurationError, reason_of

# The pause between two attempts to connect grows to this.
_LONGEST_PAUSE_SECONDS: Final = 1.0
# How much of a session's timeout a server has to take a connection, and again for its first word. A machine without power does not
# even refuse, and a server that has just started takes some connections without ever answering them (about one in fifty, seen
# with 3.8); kazoo would wait for all of the timeout, and the session would be over by then.
_FIRST_ANSWER_SHARE: Final = 0.25
# How much of it a server may be silent later, as for ZooKeeper's own client. kazoo looks only when it has asked nothing for a while.
_SILENCE_SHARE: Final = 2 / 3
# A session that nothing was heard of for so many of its timeouts is asked whether it is over. That keeps it, so the next time is late
# enough for its end, which ZooKeeper may have half a timeout late.
_TIMEOUTS_IN_SILENCE: Final = 2


class Unimplemented(CoordinationError):
    """The server is of a version that does not know this request."""


_ERRORS: Final[tuple[tuple[type[Exception], type[CoordinationError]], ...]] = (
    (exceptions.NodeExistsError, NodeExists),
    (exceptions.NoNodeError, NoNode),
    (exceptions.BadVersionError, BadVersion),
    (exceptions.NotEmptyError, NotEmpty),
    (exceptions.NoChildrenForEphemeralsError, NoChildrenForEphemerals),
    (exceptions.BadArgumentsError, BadArguments),
    (exceptions.NoAuthError, NotAuthorized),
    (exceptions.InvalidACLError, NotAuthorized),
    (exceptions.AuthFailedError, NotAuthorized),
    (exceptions.SessionExpiredError, SessionExpired),
    (exceptions.UnimplementedError, Unimplemented),
    (exceptions.SessionMovedError, ConnectionLoss),
    (exceptions.ConnectionLoss, ConnectionLoss),
    (exceptions.ConnectionClosedError, ConnectionLoss),
    (exceptions.OperationTimeoutError, ConnectionLoss),
)
# In the answer to a transaction that failed: what was undone, and what was not tried.
NOT_TO_BLAME: Final = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)

# As Kafka's ZkData: what lies there may hold secrets, so it is not even read by others.
_SENSITIVE: Final = ("/brokers/ids/", "/config/brokers", "/config/users", "/delegation_token")


class _AtOnce:
    """In the place of a queue with a worker behind it: runs what is put, where it is put, one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def put(self, function: Callable[[], object]) -> None:
        with self.lock:
            function()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threading handler without its two worker threads.

    Args:
        session_timeout_seconds: what is asked for.
        loop: whose time `heard_at` is in, for any thread.
    """

    def __init__(self, tls: ssl.SSLContext | None, session_timeout_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.completion_queue = self.callback_queue = _AtOnce()
        # Held from before a request is sent until its answer is linked: a quick answer, which nothing waited for yet, is then
        # given by the sender itself, and the event of a watch that it set must not pass it.
        self.in_order = self.completion_queue.lock
        self._tls = tls
        self._silent_from = 0.0  # when the connection's server is silent for too long
        self.heard_at = self._loop.time()  # when a server last said something
        self.granted_seconds = session_timeout_seconds  # the session's timeout, as the server has it

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., object], *arguments: Any, **keywords: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=arguments, kwargs=keywords, name="ottla-zookeeper", daemon=True)
        thread.start()
        return thread

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What is ready. kazoo asks four times per request, and its own makes and closes an epoll descriptor each time."""
        if readable:
            left = max(self._silent_from - self._loop.time(), 0.0)
            timeout = left if timeout is None else min(timeout, left)
        # What came in one record of TLS with what was read before; the socket tells nothing of it any more.
        decrypted = {polled.fileno() for polled in readable if isinstance(polled, ssl.SSLSocket) and polled.pending()}
        if decrypted:
            timeout = 0.0
        poll = select.poll()
        for polled in readable:
            poll.register(polled, select.POLLIN)
        for polled in writable:
            poll.register(polled, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)}
        if readable and readable[0].fileno() in ready and _has_bytes(readable[0]):
            self.heard_at = self._loop.time()
            self._silent_from = self._loop.time() + self.granted_seconds * _SILENCE_SHARE
        elif readable and not decrypted and self._loop.time() > self._silent_from:
            raise TimeoutError(errno.ETIMEDOUT, "the server is silent")
        ready |= decrypted
        return [polled for polled in readable if polled.fileno() in ready], [polled for polled in writable if polled.fileno() in ready], []

    def create_connection(self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any) -> Any:
        """Connects. kazoo's own would trust the system's authorities besides the given ones."""
        seconds = self.granted_seconds * _FIRST_ANSWER_SHARE
        plain = socket.create_connection(address, seconds if timeout is None else min(timeout, seconds))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._tls.wrap_socket(plain, server_hostname=hostname) if self._tls is not None else plain
            self._silent_from = self._loop.time() + seconds
            return connection
        except BaseException:
            plain.close()
            raise


def _has_bytes(connection: socket.socket) -> bool:
    """Whether something has come, and not the end: that makes it readable too. Beneath TLS, which cannot be looked at like this."""
    try:
        return bool(socket.socket.recv(connection, 1, socket.MSG_PEEK))
    except OSError:
        return False


def make_client(options: ZooKeeperOptions, loop: asyncio.AbstractEventLoop) -> KazooClient:
    """A client that is not started. It retries to connect for ever; its owner stops it. It notes when it was answered."""
    tls = _context(options.tls) if options.tls is not None else None
    handler = _Handler(tls, options.session_timeout_seconds, loop)
    logger = logging.getLogger("ottla.coordination.kazoo")
    logger.addFilter(_is_a_warning)
    if logger.level == logging.NOTSET:
        logger.setLevel(max(logging.WARNING, logger.getEffectiveLevel()))
    client = KazooClient(
        hosts=options.connect.hosts,
        timeout=options.session_timeout_seconds,
        handler=handler,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_LONGEST_PAUSE_SECONDS, sleep_func=handler.sleep_func),
        auth_data=[("digest", f"{options.credentials.username}:{options.credentials.password}")] if options.credentials else None,
        logger=logger,
        use_ssl=options.tls is not None,
    )
    invoke = client._connection._invoke

    def introduce(seconds: float, request: Any, xid: int | None = None) -> Any:
        """Notes what the server grants, before anyone hears of the connection: kazoo keeps nothing of it.

        A server that has written less than this client has seen refuses it without a word: one that lags behind, until it has caught
        up, and one that was restored from a copy, for ever. So a session that nothing was heard of for very long asks once without
        what it has seen, to hear whether it is over. If it is not, nothing is read from there: it comes again.
        """
        asks = isinstance(request, Connect)
        is_forgetful = asks and request.session_id and loop.time() - handler.heard_at > _TIMEOUTS_IN_SILENCE * handler.granted_seconds
        answer = invoke(seconds, request._replace(last_zxid_seen=0) if is_forgetful else request, xid)
        if asks and answer[0].time_out > 0:  # or the session is over
            if is_forgetful:
                raise exceptions.ConnectionDropped("the session is not over")
            handler.granted_seconds = answer[0].time_out / 1000
        return answer

    client._connection._invoke = introduce
    return client


def _is_a_warning(record: logging.LogRecord) -> bool:
    """kazoo tells every request at DEBUG, credentials and all, so it never gets to, whatever level is set at run time."""
    return record.levelno >= logging.WARNING


def acl_of(path: str, set_acl: bool) -> list[Any]:
    """Who may do what with a new znode: as Kafka's `zookeeper.set.acl`, everybody reads and only we change."""
    if not set_acl:
        return list(OPEN_ACL_UNSAFE)
    return list(CREATOR_ALL_ACL) if path.startswith(_SENSITIVE) else [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def translated(path: str, error: BaseException) -> CoordinationError:
    """kazoo's error as ours."""
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"{path}: {reason_of(error)}")
    return CoordinationError(f"{path}: ZooKeeper answered {type(error).__name__} {error}".rstrip())


def _context(tls: ZooKeeperTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host_name
    try:
        if tls.truststore is not None:
            context.load_verify_locations(tls.truststore)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if tls.keystore is not None:
            context.load_cert_chain(tls.keystore, password=tls.key_password or "")
    except (OSError, ValueError) as error:
        files = ", ".join(str(file) for file in (tls.truststore, tls.keystore) if file is not None)
        raise ConfigurationError(f"zookeeper.ssl: {files}: {error}") from error
    return context
