"""What the listener of the embedded twin does with connections and sessions; the contract tests run kazoo through it."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import LoopClock, until

from ottla.clock import SystemClock
from ottla.config.connect_string import ConnectString
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.errors import CoordinationError, StoreError
from ottla.coordination.listener import server
from ottla.coordination.listener.jute import MalformedFrame, Reader, framed, string
from ottla.coordination.listener.server import LARGEST_BACKLOG, LARGEST_FRAME, SMALL_FRAME, CoordinationListener
from ottla.coordination.zookeeper import DigestCredentials, ZooKeeperOptions, open_session
from ottla.coordination.zookeeper_session import ZooKeeperSession

SESSION_MS = 60_000  # no client here says that it lives
OPEN, OPEN_FOR_A_SECOND = (struct.pack(">iqiqi", 0, 0, timeout_ms, 0, 16) + bytes(17) for timeout_ms in (SESSION_MS, 1_000))
CREATE, DELETE, EXISTS, GET_DATA, GET_CHILDREN, PING, MULTI, CREATE_2 = 1, 2, 3, 4, 8, 11, 14, 15
MULTI_READ, SET_WATCHES, CLOSE = 22, 101, -11
LARGE = 900_000  # bytes of a znode that nearly fills a request


@asynccontextmanager
async def listening(credentials: DigestCredentials | None = None) -> AsyncIterator[tuple[EmbeddedZooKeeper, CoordinationListener]]:
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    listener = CoordinationListener(zookeeper, "127.0.0.1", 0, credentials)
    await listener.start()
    try:
        yield zookeeper, listener
    finally:
        await listener.close()
        await zookeeper.close()


class Client:
    """A client's socket, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connected(cls, port: int, introduction: bytes = OPEN, local_host: str = "127.0.0.1") -> tuple[Client, int, int, bytes]:
        """And its timeout, session and password."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(local_host, 0)))
        answer = await client.ask(introduction)
        timeout_ms, session_id, size = struct.unpack_from(">iqi", answer, 4)
        return client, timeout_ms, session_id, answer[20 : 20 + size]

    async def ask(self, frame: bytes) -> bytes:
        self.writer.write(framed(frame))
        return await self.read()

    async def read(self) -> bytes:
        async with asyncio.timeout(120):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_cut(self) -> bool:
        async with asyncio.timeout(120):
            return await self.reader.read(1) == b""


def resumed(session_id: int, password: bytes) -> bytes:
    return struct.pack(">iqiqi", 0, 0, SESSION_MS, session_id, len(password)) + password + b"\0"


async def test_a_session_goes_on_over_a_new_connection_and_with_its_password_only() -> None:
    async with listening() as (_, listener):
        client, timeout_ms, session_id, password = await Client.connected(listener.port)
        assert timeout_ms == SESSION_MS
        other, refused_ms, refused_id, _ = await Client.connected(listener.port, resumed(session_id, bytes(16)))
        assert (refused_ms, refused_id) == (0, 0)
        assert await other.is_cut()
        _, _, again, _ = await Client.connected(listener.port, resumed(session_id, password))
        assert again == session_id
        assert await client.is_cut()  # the session has moved


@pytest.mark.parametrize("bound", ["MAX_SESSIONS", "MAX_CONNECTIONS"])
async def test_one_address_has_a_quarter_of_the_sessions_and_of_the_connections(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Others find room, however many one address begins; and who ends one may begin another."""
    monkeypatch.setattr(server, bound, 8)
    async with listening() as (_, listener):
        held = [(await Client.connected(listener.port))[0] for _ in range(2)]
        refused = Client(*await asyncio.open_connection("127.0.0.1", listener.port))
        with suppress(OSError, EOFError):
            answer = await refused.ask(OPEN)
            assert struct.unpack_from(">q", answer, 8) == (0,)
        _, timeout_ms, _, _ = await Client.connected(listener.port, local_host="127.0.0.2")
        assert timeout_ms == SESSION_MS

        await held[0].ask(struct.pack(">ii", 1, CLOSE))
        assert await held[0].is_cut()
        assert (await Client.connected(listener.port))[1] == SESSION_MS


async def test_a_silent_session_expires_with_its_ephemerals() -> None:
    async with listening() as (zookeeper, listener):
        look = await zookeeper.session()
        gone = asyncio.Event()
        client, _, session_id, password = await Client.connected(listener.port, OPEN_FOR_A_SECOND)
        await client.ask(struct.pack(">ii", 1, 1) + string("/e") + struct.pack(">ii", 0, 0) + struct.pack(">i", 1))
        stat = await look.exists("/e", lambda event: gone.set())
        assert stat is not None
        assert stat.ephemeral_owner == session_id
        async with asyncio.timeout(120):
            await gone.wait()
        assert await client.is_cut()
        _, timeout_ms, _, _ = await Client.connected(listener.port, resumed(session_id, password))
        assert timeout_ms == 0


async def test_a_session_whose_end_is_still_being_written_takes_no_connection(tmp_path: Path) -> None:
    """SessionTrackerImpl marks it as closing first. A client that is connected takes its ephemerals for alive, and the disk is slow."""
    disk_works = asyncio.Event()
    disk_works.set()

    async def when_it_works(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        await disk_works.wait()
        return function(*arguments, **keywords)

    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock(), when_it_works)
    listener = CoordinationListener(zookeeper, "127.0.0.1", 0)
    await listener.start()
    client, _, session_id, password = await Client.connected(listener.port)
    await client.ask(struct.pack(">ii", 1, CREATE) + string("/e") + struct.pack(">iii", 0, 0, 1))
    disk_works.clear()
    client.writer.write(framed(struct.pack(">ii", 2, CLOSE)))
    await until(lambda: listener._sessions[session_id].session.is_over)
    _, timeout_ms, _, _ = await Client.connected(listener.port, resumed(session_id, password))
    assert timeout_ms == 0
    disk_works.set()
    assert struct.unpack_from(">iqi", await client.read())[::2] == (2, 0)
    await listener.close()
    await zookeeper.close()


async def test_a_transaction_that_makes_a_znode_and_removes_it_again_has_succeeded() -> None:
    """A Multi with Create2 was answered with NoNode, and had taken place. ZooKeeper 3.8 gives the path only."""
    request = struct.pack(">ii", 1, MULTI)
    request += struct.pack(">i?i", CREATE_2, False, -1) + string("/a") + struct.pack(">iii", 0, 0, 0)
    request += struct.pack(">i?i", DELETE, False, -1) + string("/a") + struct.pack(">i", -1)
    async with listening() as (_, listener):
        client, *_ = await Client.connected(listener.port)
        answer = await client.ask(request + struct.pack(">i?i", -1, True, -1))
        assert struct.unpack_from(">iqi", answer)[::2] == (1, 0)
        made = struct.pack(">i?i", CREATE, False, 0) + string("/a")
        assert answer[16:] == made + struct.pack(">i?i", DELETE, False, 0) + struct.pack(">i?i", -1, True, -1)


async def test_a_session_does_not_expire_by_what_was_not_read_while_the_loop_stood_still() -> None:
    """As a broker does at a breakpoint: what its clients have sent meanwhile lies in their sockets, and is read first."""
    async with listening() as (zookeeper, listener):
        clock = LoopClock()
        client, timeout_ms, session_id, _ = await Client.connected(listener.port, OPEN_FOR_A_SECOND)
        for _ in range(3):
            client.writer.write(framed(struct.pack(">ii", -2, PING)))
            clock.put_forward(timeout_ms / 1000 + 0.2)
            assert struct.unpack(">iqi", await client.read()) == (-2, zookeeper.zxid, 0)
        assert session_id in listener._sessions
        assert await client.is_cut(), "it says nothing any more"


async def test_sessions_that_end_while_nothing_can_be_written_are_over_and_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind an error of the disk, after which coordination is read-only until a restart."""
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    listener = CoordinationListener(zookeeper, "127.0.0.1", 0)
    await listener.start()
    client, *_ = await Client.connected(listener.port)
    silent, *_ = await Client.connected(listener.port, OPEN_FOR_A_SECOND)
    for number, some in enumerate((client, silent)):
        await some.ask(struct.pack(">ii", 1, CREATE) + string(f"/{number}") + struct.pack(">iii", 0, 0, 1))
    monkeypatch.setattr(zookeeper._server, "_failure", "is not written any more")
    client.writer.write(framed(struct.pack(">ii", 1, CLOSE)))
    assert await client.is_cut()
    assert await silent.is_cut()
    await until(lambda: not listener._sessions and not listener._ending)
    await listener.close()
    with suppress(StoreError):
        await zookeeper.close()
    gc.collect()  # a task's error that was not looked at is logged with it
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_stop_with_clients_that_are_connected_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio of Python 3.11 logs one for each task of a connection that ends cancelled."""
    async with listening() as (_, listener):
        client, *_ = await Client.connected(listener.port)
    assert await client.is_cut()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_watches_are_set_again_and_what_changed_meanwhile_fires_at_once() -> None:
    """SetWatches (101), which a client sends behind its new connection."""
    async with listening() as (zookeeper, listener):
        look = await zookeeper.session()
        await look.create("/a")
        client, _, _, _ = await Client.connected(listener.port)
        since = zookeeper.zxid
        await look.set("/a", b"new")
        one = struct.pack(">i", 1) + string("/a")
        frame = struct.pack(">iiq", -8, SET_WATCHES, since) + one + struct.pack(">i", 1) + string("/b") + one
        client.writer.write(framed(frame))
        event = await client.read()
        assert struct.unpack_from(">iqiii", event) == (-1, -1, 0, 3, 3)  # changed, while connected
        assert struct.unpack_from(">i", await client.read())[0] == -8
        await look.create("/b")
        assert struct.unpack_from(">iqii", await client.read())[3] == 1  # created
        await look.create("/a/child")
        assert struct.unpack_from(">iqii", await client.read())[3] == 4  # children


async def test_a_watch_that_is_set_again_and_one_that_fires_at_once_leave_no_more_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads something every second with a watch, which stays one, was cut after a day."""
    monkeypatch.setattr(server, "MAX_WATCHES", 3)
    async with listening() as (zookeeper, listener):
        look = await zookeeper.session()
        await look.create("/a")
        client, _, _, _ = await Client.connected(listener.port)
        for _ in range(5):
            for kind in (EXISTS, GET_DATA, GET_CHILDREN):
                assert struct.unpack_from(">iqi", await client.ask(struct.pack(">ii", 1, kind) + string("/a") + b"\1")) == (1, 1, 0)
        await look.delete("/a")
        assert struct.unpack_from(">iqii", await client.read())[3] == 2  # deleted, once
        for number in range(5):
            one = struct.pack(">i", 1) + string(f"/{number}")
            client.writer.write(framed(struct.pack(">iiq", -8, SET_WATCHES, zookeeper.zxid) + one + struct.pack(">i", 0) + one))
            for _ in range(2):
                assert struct.unpack_from(">iqii", await client.read())[3] == 2
            assert struct.unpack_from(">i", await client.read())[0] == -8
        assert not zookeeper._server.watches.data_paths()
        for path in ("/b", "/c", "/d"):
            await client.ask(struct.pack(">ii", 1, EXISTS) + string(path) + b"\1")
        client.writer.write(framed(struct.pack(">ii", 1, EXISTS) + string("/e") + b"\1"))
        assert await client.is_cut()


async def test_a_session_that_comes_as_the_time_for_it_ends_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a client has stood still: it hears in one turn that the session is there, and that the time is over."""
    clock, loop, is_late = LoopClock(), asyncio.get_running_loop(), iter([True])

    def post(session: ZooKeeperSession, callback: Callable[..., object], *arguments: object) -> None:
        def arrive() -> None:
            clock.put_forward(20.0 if next(is_late, False) else 0.0)
            loop.call_soon(callback, *arguments)

        loop.call_soon_threadsafe(arrive)

    monkeypatch.setattr(ZooKeeperSession, "_post", post)
    async with listening() as (_, listener):
        session = await open_session(ZooKeeperOptions(ConnectString.parse(f"127.0.0.1:{listener.port}"), 60.0, 20.0))
        assert await session.create("/a") == "/a"
        await session.close()


async def test_a_digest_that_is_asked_for_has_to_be_given() -> None:
    async with listening(DigestCredentials("me", "secret")) as (_, listener):
        for credentials in (None, DigestCredentials("me", "guessed")):
            with pytest.raises(CoordinationError):
                session = await open_session(
                    ZooKeeperOptions(ConnectString.parse(f"127.0.0.1:{listener.port}"), 4.0, 1.0, credentials=credentials)
                )
                try:
                    await session.create("/a")
                finally:
                    await session.close()
        options = ZooKeeperOptions(
            ConnectString.parse(f"127.0.0.1:{listener.port}"), 4.0, 4.0, credentials=DigestCredentials("me", "secret")
        )
        session = await open_session(options)
        assert await session.create("/a") == "/a"
        await session.close()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", LARGEST_FRAME + 1),
        struct.pack(">i", -1),
        framed(b"short"),
        framed(OPEN) + framed(b"x"),
        framed(OPEN) + framed(struct.pack(">iii", 1, GET_CHILDREN, 1 << 30)),
        framed(OPEN) + framed(struct.pack(">iiqi", 1, SET_WATCHES, 0, 1 << 30)),
    ],
)
async def test_frames_that_lie_end_their_connection_and_no_other(sent: bytes) -> None:
    async with listening() as (_, listener):
        good, _, _, _ = await Client.connected(listener.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(sent)
        async with asyncio.timeout(120):
            await reader.read()
        assert struct.unpack_from(">iqi", await good.ask(struct.pack(">ii", -2, 11)))[2] == 0
        unknown = await good.ask(struct.pack(">ii", 7, 9999))
        assert struct.unpack_from(">iqi", unknown)[2] == -6


async def test_one_znode_read_again_and_again_in_one_request_is_not_answered() -> None:
    """Fourteen bytes for each time: 75,000 fit into a frame, and would be 67 GB."""
    read = struct.pack(">i?i", GET_DATA, False, -1) + string("/large") + b"\0"
    times = LARGEST_BACKLOG // LARGE + 1
    async with listening() as (zookeeper, listener):
        await (await zookeeper.session()).create("/large", bytes(LARGE))
        client, *_ = await Client.connected(listener.port)
        client.writer.write(framed(struct.pack(">ii", 1, MULTI_READ) + read * times + struct.pack(">i?i", -1, True, -1)))
        assert await client.is_cut()


async def test_a_client_that_has_not_said_who_it_is_sends_small_frames_only() -> None:
    async with listening(DigestCredentials("me", "secret")) as (_, listener):
        stranger = Client(*await asyncio.open_connection("127.0.0.1", listener.port))
        stranger.writer.write(framed(OPEN + bytes(SMALL_FRAME)))
        assert await stranger.is_cut()
        unauthorized, *_ = await Client.connected(listener.port)
        unauthorized.writer.write(framed(struct.pack(">ii", -2, 11) + bytes(SMALL_FRAME)))
        assert await unauthorized.is_cut()


async def test_a_client_that_takes_no_answers_is_cut_with_its_session() -> None:
    """Of its connection nothing is left, also what it had not taken."""
    async with listening() as (zookeeper, listener):
        await (await zookeeper.session()).create("/large", bytes(LARGE))
        client, *_ = await Client.connected(listener.port, OPEN_FOR_A_SECOND)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads
        ask = framed(struct.pack(">ii", 1, GET_DATA) + string("/large") + b"\0")
        client.writer.write(ask * 20)
        async with asyncio.timeout(120):
            while listener._connections:  # noqa: ASYNC110  (no one tells)
                await asyncio.sleep(0.05)


@given(st.binary(max_size=60))
def test_reading_any_bytes_ends_in_a_value_or_a_malformed_frame(data: bytes) -> None:
    for read in (Reader.read_string, Reader.read_strings, Reader.read_buffer, Reader.multi_header, Reader.skip_acls, Reader.read_long):
        with suppress(MalformedFrame):
            read(Reader(data))
