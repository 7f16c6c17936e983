"""What only a ZooKeeper in a process of its own can do: to be away, to be silent, to ask who we are.

Sources: the ZooKeeper programmer's guide ('ZooKeeper Sessions', 'ZooKeeper access control using ACLs'), Kafka's
documentation of `zookeeper.*`, traps.md.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kazoo.protocol.states import KazooState
from tests.loops import at_once_at_the_end, until

from ottla.config.connect_string import ConnectString
from ottla.coordination import zookeeper_session
from ottla.coordination.errors import ConnectionLoss, NodeExists, NotAuthorized, RequestTooLarge, SessionExpired
from ottla.coordination.interface import Create, EventType, SessionEvent, SetData, WatchedEvent
from ottla.coordination.requests import Run
from ottla.coordination.zookeeper import DigestCredentials, ZooKeeperOptions, open_session
from ottla.coordination.zookeeper_client import make_client
from ottla.coordination.zookeeper_session import MultiRead, ZooKeeperSession
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy

Events = list[WatchedEvent]


def options_for(address: str, session_timeout: float = 30.0, connection_timeout: float = 60.0, **more: object) -> ZooKeeperOptions:
    return ZooKeeperOptions(ConnectString.parse(address), session_timeout, connection_timeout, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def session_with(options: ZooKeeperOptions) -> AsyncIterator[ZooKeeperSession]:
    session = await open_session(options)
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def proxy_to(server: ZooKeeperServer) -> AsyncIterator[ZooKeeperProxy]:
    proxy = ZooKeeperProxy(server.port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def events_of(session: ZooKeeperSession) -> tuple[list[SessionEvent], Callable[[SessionEvent], Coroutine[object, object, None]]]:
    """The session's events, and how to wait for one."""
    seen: list[SessionEvent] = []
    session.on_session_event(seen.append)

    async def until(event: SessionEvent) -> None:
        while event not in seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    return seen, until


async def test_a_watch_hears_after_the_reconnection_what_it_missed(zookeeper_server: ZooKeeperServer) -> None:
    """'When a client reconnects, any previously registered watches will be reregistered and triggered if needed'.

    Each kind of change is made while the session is cut off, and the first thing that it asks afterwards is a read.
    """
    chroot = f"/{uuid4().hex}"
    async with (
        proxy_to(zookeeper_server) as proxy,
        session_with(options_for(f"127.0.0.1:{proxy.port}{chroot}")) as session,
        session_with(options_for(zookeeper_server.address + chroot)) as other,
    ):
        for path in ("/changed", "/deleted", "/parent", "/emptied", "/untouched", "/replaced"):
            await session.create(path, b"old")
        await session.create("/emptied/child")
        told: dict[str, Events] = {}
        for path in ("/changed", "/deleted", "/created", "/untouched", "/replaced"):
            await session.exists(path, told.setdefault(path, []).append)
        for path in ("/parent", "/emptied", "/untouched"):
            await session.children(path, told.setdefault(path, []).append)
        seen, until = events_of(session)
        proxy.refuses = True
        proxy.cut()
        await until(SessionEvent.SUSPENDED)
        reading = asyncio.ensure_future(session.get("/changed"))
        await other.set("/changed", b"new")
        for path in ("/deleted", "/replaced", "/emptied/child"):
            await other.delete(path)
        for path in ("/created", "/parent/child", "/replaced"):
            await other.create(path)
        proxy.refuses = False
        assert (await reading)[0] == b"new"
        assert told.pop("/changed") == [WatchedEvent(EventType.CHANGED, "/changed")]
        await session.exists("/")
        assert told == {
            "/deleted": [WatchedEvent(EventType.DELETED, "/deleted")],
            "/created": [WatchedEvent(EventType.CREATED, "/created")],
            "/replaced": [WatchedEvent(EventType.CHANGED, "/replaced")],
            "/parent": [WatchedEvent(EventType.CHILDREN, "/parent")],
            "/emptied": [WatchedEvent(EventType.CHILDREN, "/emptied")],
            "/untouched": [],
        }
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
        await other.set("/untouched", b"touched")
        await other.create("/untouched/child")
        await session.exists("/")
        assert told["/untouched"] == [WatchedEvent(EventType.CHANGED, "/untouched"), WatchedEvent(EventType.CHILDREN, "/untouched")]


async def test_an_event_does_not_pass_the_answer_that_set_its_watch(zookeeper_server: ZooKeeperServer) -> None:
    """Not even where the loop's thread stands still between sending the read and waiting for it, as a busy machine has it."""
    async with session_with(options_for(f"{zookeeper_server.address}/{uuid4().hex}")) as session:
        await session.create("/a")
        client, told = session._client, Events()
        exists_async = client.exists_async

        def stands_still(*arguments: object) -> object:
            answer, changed = exists_async(*arguments), client.set_async(session._absolute("/a"), b"new")
            answer.get()
            changed.wait(0.5)  # the event comes before this answer, so both have to wait
            return answer

        client.exists_async = stands_still
        assert await session.exists("/a", told.append) is not None
        assert await session.get("/a")
        assert told == [WatchedEvent(EventType.CHANGED, "/a")]


async def test_what_waits_for_the_connection_waits_on_where_it_is_lost_again_at_once(zookeeper_server: ZooKeeperServer) -> None:
    """It would go into kazoo's queue before the watches are set again, and be answered before they have said what they missed."""
    async with session_with(options_for(f"{zookeeper_server.address}/{uuid4().hex}")) as session:
        sent: list[str] = []
        exists_async = session._client.exists_async

        def noted(path: str, *more: object) -> object:
            sent.append(path)
            return exists_async(path, *more)

        session._client.exists_async = noted
        session._suspend()
        asking = asyncio.ensure_future(session.exists("/"))
        await asyncio.sleep(0)
        session._connect(session.session_id)  # both are seen in one turn of the loop, as a busy machine has it
        session._suspend()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not sent
        session._connect(session.session_id)
        assert await asking is not None


async def test_an_answer_that_is_lost_with_a_connection_says_nothing_of_the_next_one(zookeeper_server: ZooKeeperServer) -> None:
    """Not even where the loop's thread stands still until there is a next one: nothing would be asked by it, for ever."""
    async with session_with(options_for(f"{zookeeper_server.address}/{uuid4().hex}", 4.0)) as session:
        client, is_back = session._client, threading.Event()
        exists_async, make_state_change = client.exists_async, client._make_state_change

        def stands_still(*arguments: object) -> object:
            client.exists_async = exists_async
            client._connection._socket.shutdown(socket.SHUT_RDWR)
            answer = exists_async(*arguments)
            answer.wait()
            is_back.wait()
            return answer

        def seen(state: str) -> None:
            make_state_change(state)
            if state == KazooState.CONNECTED:
                is_back.set()

        client.exists_async, client._make_state_change = stands_still, seen
        with pytest.raises(ConnectionLoss):
            await session.exists("/")
        assert await session.exists("/") is not None


async def test_a_session_that_is_silent_for_its_timeout_expires(zookeeper_server: ZooKeeperServer) -> None:
    chroot = f"/{uuid4().hex}"
    async with (
        proxy_to(zookeeper_server) as proxy,
        session_with(options_for(f"127.0.0.1:{proxy.port}{chroot}", 3.0)) as session,
        session_with(options_for(zookeeper_server.address + chroot)) as other,
    ):
        await session.create("/live", ephemeral=True)
        gone = asyncio.Event()
        await other.exists("/live", lambda _: gone.set())
        _, until = events_of(session)
        proxy.refuses = True
        proxy.cut()
        await until(SessionEvent.SUSPENDED)
        with pytest.raises(ConnectionLoss, match=r"/live: no answer of ZooKeeper within 3 s"):
            await session.exists("/live")
        await gone.wait()
        proxy.refuses = False
        await until(SessionEvent.EXPIRED)
        with pytest.raises(SessionExpired):
            await session.exists("/live")


@pytest.mark.parametrize(("asked", "granted"), [(0.1, 0.4), (2.5, 2.5), (3_600.0, 60.0)])
async def test_a_session_lasts_as_long_as_the_server_grants_it(zookeeper_server: ZooKeeperServer, asked: float, granted: float) -> None:
    """minSessionTimeout and maxSessionTimeout bound what is asked for."""
    async with session_with(options_for(zookeeper_server.address, asked)) as session:
        assert session.session_timeout_seconds == pytest.approx(granted)


async def test_a_session_outlives_a_restart_of_the_server(own_zookeeper_server: ZooKeeperServer) -> None:
    """Ephemerals, watches and what was asked meanwhile: all are there when the server is."""
    async with session_with(options_for(own_zookeeper_server.address, 60)) as session:
        await session.create("/live", b"1", ephemeral=True)
        told: Events = []
        await session.get("/live", told.append)
        seen, until = events_of(session)
        await asyncio.to_thread(own_zookeeper_server.kill)
        await until(SessionEvent.SUSPENDED)
        reading = asyncio.ensure_future(session.get("/live"))
        await asyncio.to_thread(own_zookeeper_server.start)
        data, stat = await reading
        assert (data, stat.ephemeral_owner) == (b"1", session.session_id)
        await session.set("/live", b"2")
        assert told == [WatchedEvent(EventType.CHANGED, "/live")]
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


async def test_a_session_ends_when_its_server_knows_less_than_it_has_seen(own_zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """ZooKeeper was restored from a copy: it refuses a client that has seen more, without a word and for ever (ZooKeeperServer.java).

    Brokers that ran meanwhile stayed away until they were restarted.
    """
    async with session_with(options_for(own_zookeeper_server.address, 2)) as session:
        for _ in range(10):
            await session.create("/before", sequential=True)
        _, until = events_of(session)
        await asyncio.to_thread(own_zookeeper_server.kill)
        shutil.rmtree(tmp_path / "zookeeper" / "data" / "version-2")
        await asyncio.to_thread(own_zookeeper_server.start)
        await until(SessionEvent.EXPIRED)


async def test_a_session_outlives_servers_that_are_away_for_longer_than_its_timeout(own_zookeeper_server: ZooKeeperServer) -> None:
    """Without servers no time passes for it. Asked whether it is over, they say that it is not."""
    async with session_with(options_for(own_zookeeper_server.address, 2)) as session:
        await session.create("/live", ephemeral=True)
        seen, until_event = events_of(session)
        await asyncio.to_thread(own_zookeeper_server.kill)
        await until(lambda: session.silent_seconds > 3 * session.session_timeout_seconds)
        await asyncio.to_thread(own_zookeeper_server.start)
        await until_event(SessionEvent.CONNECTED)
        stat = await session.exists("/live")
        assert stat is not None and stat.ephemeral_owner == session.session_id
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


async def test_a_session_outlives_a_connection_that_is_taken_and_never_answered(zookeeper_server: ZooKeeperServer) -> None:
    """A ZooKeeper that has just started leaves about one connection in fifty like that; the next one is answered."""
    async with proxy_to(zookeeper_server) as proxy, session_with(options_for(f"127.0.0.1:{proxy.port}", 10)) as session:
        seen, until = events_of(session)
        proxy.silent_connections = 1
        proxy.cut()
        await until(SessionEvent.CONNECTED)
        assert proxy.silent_connections == 0
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


async def test_a_session_moves_on_from_a_server_that_is_silent_however_much_it_is_asked(zookeeper_server: ZooKeeperServer) -> None:
    """ClientCnxn of ZooKeeper looks at when it heard something, not at when it asked last: what is asked must not put that off.

    Requests of a busy broker did, and its session expired though the other servers lived.
    """
    async with (
        proxy_to(zookeeper_server) as one,
        proxy_to(zookeeper_server) as other,
        session_with(options_for(f"127.0.0.1:{one.port},127.0.0.1:{other.port}", 6)) as session,
    ):
        seen, _ = events_of(session)
        used = one if one._connections else other
        used.is_silent = True  # also to those who come again
        asked = []
        while not {SessionEvent.CONNECTED, SessionEvent.EXPIRED} & set(seen):
            asked.append(asyncio.ensure_future(session.exists("/")))
            await asyncio.sleep(0.5)
        await asyncio.gather(*asked, return_exceptions=True)
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


async def test_a_server_that_is_gone_without_a_word_leaves_time_for_the_others(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ClientCnxn, which divides the session's timeout by the servers. A machine without power refuses no connection, it says nothing."""
    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", lambda hosts: None)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as gone, socket.create_connection(gone.getsockname()):
        address = f"127.0.0.1:{gone.getsockname()[1]},{zookeeper_server.address}"
        async with session_with(options_for(address, 8.0, 8.0)) as session:
            assert await session.exists("/") is not None


async def test_a_frozen_server_holds_nobody_up_for_longer_than_the_timeout(
    own_zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the end of the session: that goes without an answer."""
    monkeypatch.setattr(zookeeper_session, "CLOSE_SECONDS", 0.2)
    session = await open_session(options_for(own_zookeeper_server.address, 4))
    await session.create("/a", b"0")
    own_zookeeper_server.pause()
    writing = asyncio.ensure_future(session.set("/a", b"1"))
    with pytest.raises(ConnectionLoss):
        await writing
    closed, until = events_of(session)
    await session.close()
    await until(SessionEvent.CLOSED)
    assert closed[-1] is SessionEvent.CLOSED
    own_zookeeper_server.resume()


async def test_nobody_there_is_told_with_the_address_and_the_timeout() -> None:
    with pytest.raises(ConnectionLoss, match=r"zookeeper\.connect = 127\.0\.0\.1:1/x: no ZooKeeper gave a session within 0\.2 s"):
        await open_session(options_for("127.0.0.1:1/x", 5, 0.2))


async def test_the_chroot_is_made_and_shared(zookeeper_server: ZooKeeperServer) -> None:
    chroot = f"/{uuid4().hex}/kafka"
    async with session_with(options_for(zookeeper_server.address + chroot)) as first:
        assert await first.children("/") == []
        async with session_with(options_for(zookeeper_server.address + chroot)) as second:
            path = await second.create("/", sequential=True)
            assert path == "/0000000000"
            assert await first.transaction([Create("/", sequential=True)]) == ["/0000000001"]
        async with session_with(options_for(zookeeper_server.address)) as outside:
            assert sorted(await outside.children(chroot)) == ["0000000000", "0000000001"]


@pytest.mark.parametrize("set_acl", [False, True])
async def test_a_transaction_of_the_largest_size_is_taken_below_a_chroot(zookeeper_server: ZooKeeperServer, set_acl: bool) -> None:
    """ZooKeeper drops the connection at a larger one, without a word: each path has the chroot before it, and each znode an ACL.

    Found with a topic of 10,000 partitions.
    """
    ours = DigestCredentials("ottla", "secret")
    chroot = f"/{uuid4().hex}/a-cluster-with-a-long-name"
    async with session_with(options_for(zookeeper_server.address + chroot, credentials=ours, set_acl=set_acl)) as session:
        assert session.chroot_size == len(chroot)
        operations = (Create(f"/n{index:05d}") for index in range(20_000))
        run_of_largest_size = Run(chroot_size=session.chroot_size)
        largest = next(full for operation in operations if (full := run_of_largest_size.add(operation)))
        assert len(await session.transaction(largest)) == len(largest) > 5_000
        with pytest.raises(RequestTooLarge):
            await session.transaction([Create(f"/m{index:05d}") for index in range(len(largest) + 1)])


async def test_with_set_acl_others_only_read_and_not_the_brokers_settings(zookeeper_server: ZooKeeperServer) -> None:
    """Kafka's ZkData: creator all and world read, but nothing for others below /config/brokers."""
    address = f"{zookeeper_server.address}/{uuid4().hex}"
    ours = DigestCredentials("ottla", "secret")
    async with (
        session_with(options_for(address, credentials=ours, set_acl=True)) as owner,
        session_with(options_for(address, credentials=ours)) as same,
        session_with(options_for(address, credentials=DigestCredentials("ottla", "wrong"))) as other,
    ):
        await owner.create("/config/brokers/1", b"settings", make_parents=True)
        await owner.transaction([Create("/topic", b"0")])
        assert (await other.get("/topic"))[0] == b"0"
        for refused in (
            lambda: other.set("/topic", b"1"),
            lambda: other.create("/topic/child"),
            lambda: other.get("/config/brokers/1"),
            lambda: other.transaction([SetData("/topic", b"1")]),
        ):
            with pytest.raises(NotAuthorized):
                await refused()
        await same.set("/topic", b"1")
        assert (await same.get("/config/brokers/1"))[0] == b"settings"


async def test_many_requests_in_flight_keep_their_order(zookeeper_server: ZooKeeperServer) -> None:
    """zookeeper.max.in.flight.requests bounds what is sent, and changes no order."""
    async with session_with(options_for(f"{zookeeper_server.address}/{uuid4().hex}", max_in_flight_requests=2)) as session:
        await session.create("/a")
        stats = await asyncio.gather(*(session.set("/a", b"%d" % index) for index in range(50)))
        assert [stat.version for stat in stats] == list(range(1, 51))
        results = await asyncio.gather(*(session.create("/a") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, NodeExists) for result in results)


async def test_a_server_that_knows_no_multi_read_is_asked_one_by_one(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper before 3.6 answers a request of a type that it does not know so, and ends the connection; so does this one."""
    monkeypatch.setattr(MultiRead, "type", 77)
    async with session_with(options_for(f"{zookeeper_server.address}/{uuid4().hex}")) as session:
        await session.create("/a", b"0")
        found = await session.get_many(["/a", "/missing"])
        assert found == [await session.get("/a"), None]


def test_no_log_level_that_is_set_while_a_broker_runs_shows_the_requests_with_their_credentials(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("ottla.coordination.kazoo")
    before, loop = logger.level, asyncio.new_event_loop()
    try:
        client = make_client(options_for("localhost:1"), loop)
        with caplog.at_level(logging.DEBUG, logger="ottla.coordination.kazoo"):
            client.logger.debug("Sending request: Auth(auth='ann:secret')")
            client.logger.warning("Connection dropped")
            make_client(options_for("localhost:1"), loop)
            assert logger.level == logging.DEBUG
        assert caplog.messages == ["Connection dropped"]
    finally:
        loop.close()
        logger.setLevel(before)


def test_without_kazoo_it_is_said_what_to_install_and_without_zookeeper_it_is_not_missed() -> None:
    """Method: a process in which kazoo cannot be imported."""
    program = (
        "import sys, asyncio; sys.modules['kazoo'] = None\n"
        "import ottla.broker.server\n"
        "from ottla.config.connect_string import ConnectString\n"
        "from ottla.coordination.zookeeper import ZooKeeperOptions, open_session\n"
        "try:\n    asyncio.run(open_session(ZooKeeperOptions(ConnectString.parse('a'))))\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "ConfigurationError zookeeper.connect is set, and kazoo is not installed: pip install 'ottla[server]'\n"


async def test_an_answer_that_is_there_as_its_time_ends_is_given() -> None:
    """As after a loop that stood still, while kazoo's thread went on: what came meanwhile is no lost connection."""
    session = ZooKeeperSession(options_for("127.0.0.1:1", 0.05))
    session._connected.set()
    linked: list[Callable[[Any], None]] = []
    asking = asyncio.create_task(session._ask("/a", lambda: SimpleNamespace(rawlink=linked.append), lambda found: found))
    await asyncio.sleep(0)
    at_once_at_the_end(0.05, list)
    linked[0](SimpleNamespace(exception=None, value=7))
    assert await asking == 7
