"""The embedded twin's file: what survives, what does not, and what is refused.

Source: traps.md, 'Coordination': opening the file ends all former sessions (ephemerals survive kill -9 otherwise).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.embedded_server import FILE_NAME
from ottla.coordination.errors import CoordinationError, NoNode, SessionExpired, StoreError

WRITES_UNTIL_KILLED = """
import asyncio, pathlib, sys
from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper

async def main():
    service = EmbeddedZooKeeper(pathlib.Path(sys.argv[1]), SystemClock())
    session = await service.session()
    await session.create("/live", ephemeral=True)
    await session.create("/n")
    while True:
        for path in await asyncio.gather(*(session.create("/n/", sequential=True) for _ in range(7))):
            print(path, flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def session_in(directory: Path) -> AsyncIterator[EmbeddedSession]:
    """Opens the file, gives a session, and closes the file."""
    service = EmbeddedZooKeeper(directory, SystemClock())
    try:
        yield await service.session()
    finally:
        await service.close()


async def opened(directory: Path) -> None:
    """Opens the file, looks into it, and closes it."""
    async with session_in(directory) as session:
        await session.exists("/")


async def test_znodes_and_their_stats_survive_a_restart(tmp_path: Path) -> None:
    stats = []

    async with session_in(tmp_path) as session:
        await session.create("/a/b", b"\x00\xff", make_parents=True)
        await session.set("/a/b", b"second")
        await session.create("/a/n-", sequential=True)
        await session.delete("/a/n-0000000001")
        await session.create("/gone")
        await session.delete("/gone")
        stats.extend([await session.exists("/a"), await session.exists("/a/b"), await session.exists("/")])
    async with session_in(tmp_path) as session:
        assert (await session.get("/a/b"))[0] == b"second"
        assert [await session.exists("/a"), await session.exists("/a/b"), await session.exists("/")] == stats
        assert await session.exists("/gone") is None
        assert await session.create("/a/n-", sequential=True) == "/a/n-0000000002"
        stat = await session.exists("/a/n-0000000002")
        assert stat is not None and stats[0] is not None and stat.czxid > stats[0].mzxid


async def test_what_was_acknowledged_before_a_kill_is_there_and_ephemerals_are_not(tmp_path: Path) -> None:
    """A child process writes until it is killed by signal 9; each path that it printed had been answered."""
    command = [sys.executable, "-c", WRITES_UNTIL_KILLED, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(100)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.wait(120)
    process.stdout.close()

    async with session_in(tmp_path) as session:
        children = {f"/n/{name}" for name in await session.children("/n")}
        assert set(acknowledged) <= children
        assert await session.exists("/live") is None
        stat = await session.exists("/n")
        assert stat is not None and stat.num_children == len(children)


async def test_a_second_one_on_the_same_file_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """One in this process, one in another; when the first is closed the next can have it."""

    first = EmbeddedZooKeeper(tmp_path, SystemClock())
    session = await first.session()
    await session.create("/a")
    second = EmbeddedZooKeeper(tmp_path, SystemClock())
    with pytest.raises(StoreError, match="another process has it open"):
        await second.session()
    await second.close()
    other_process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITES_UNTIL_KILLED, str(tmp_path), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, stderr = await asyncio.wait_for(other_process.communicate(), 120)
    assert other_process.returncode == 1
    assert f"{FILE_NAME}: another process has it open" in stderr.decode()
    await session.set("/a", b"still mine")
    await first.close()

    async with session_in(tmp_path) as session:
        assert (await session.get("/a"))[0] == b"still mine"


@pytest.mark.parametrize("content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\x00" + b"\xff" * 8192])
async def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StoreError, match=FILE_NAME):
        await opened(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


async def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE somebody_elses (x)")
    connection.close()
    with pytest.raises(StoreError, match="of something else"):
        await opened(tmp_path)


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    await opened(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="has format 99"):
        await opened(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM znodes WHERE path = '/a'",
        "UPDATE znodes SET child_count = 5 WHERE path = '/a'",
        "UPDATE znodes SET mtime = 'never' WHERE path = '/a'",
        "UPDATE last_zxid SET zxid = 'last'",
    ],
)
async def test_rows_that_do_not_make_up_a_tree_are_refused(tmp_path: Path, damage: str) -> None:
    async with session_in(tmp_path) as session:
        await session.create("/a/b", make_parents=True)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="is damaged: /"):
        await opened(tmp_path)


async def test_a_page_of_garbage_is_found(tmp_path: Path) -> None:
    async with session_in(tmp_path) as session:
        for index in range(200):
            await session.create(f"/node-{index}", b"x" * 500)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xa5" * 4096)
    with pytest.raises(StoreError, match="is damaged"):
        await opened(tmp_path)


async def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        await opened(tmp_path / "file" / "below")


async def test_a_commit_that_fails_is_told_to_all_who_wait_and_ends_all_writing(tmp_path: Path) -> None:
    """A failed fsync is never retried: no one knows what the file holds. Reads continue; a restart has what was acknowledged."""

    class FailingOffload:
        def __init__(self) -> None:
            self.fails = False

        async def __call__(self, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
            if self.fails and function.__name__ == "commit":
                raise StoreError("disk I/O error (SQLITE_IOERR_FSYNC)")
            return function(*arguments, **keywords)

    offload = FailingOffload()
    service = EmbeddedZooKeeper(tmp_path, SystemClock(), offload)
    session = await service.session()
    watch_calls: list[object] = []
    await session.create("/a", b"0")
    await session.get("/a", watch_calls.append)
    offload.fails = True
    outcomes = await asyncio.gather(session.set("/a", b"1"), session.create("/b"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError, StoreError]
    offload.fails = False
    with pytest.raises(StoreError, match="not written any more"):
        await session.set("/a", b"2")
    assert (await session.get("/a"))[0] == b"0"
    assert watch_calls == []
    with pytest.raises(NoNode):
        await session.get("/b")
    await service.close()

    async with session_in(tmp_path) as session:
        assert (await session.get("/a"))[0] == b"0"


async def test_writes_that_arrive_during_a_commit_share_the_next(tmp_path: Path) -> None:
    commits: list[int] = []

    async def counting(function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
        if function.__name__ == "commit":
            commits.append(len(arguments[0]))
        await asyncio.sleep(0)
        return function(*arguments, **keywords)

    service = EmbeddedZooKeeper(tmp_path, SystemClock(), counting)
    session = await service.session()
    await asyncio.gather(*(session.create(f"/n{index}") for index in range(100)))
    await service.close()
    assert len(commits) == 1
    assert commits == [101]  # and the root, whose children they are


async def test_closing_ends_the_sessions_and_nothing_can_be_opened_after(tmp_path: Path) -> None:
    service = EmbeddedZooKeeper(tmp_path, SystemClock())
    session = await service.session()
    await session.create("/live", ephemeral=True)
    await service.close()
    await service.close()
    with pytest.raises(SessionExpired):
        await session.exists("/")
    with pytest.raises(StoreError, match="closed"):
        await service.session()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT path FROM znodes").fetchall() == [("/",)]
    connection.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME]  # noqa: ASYNC240


def test_errors_of_the_file_are_errors_of_coordination() -> None:
    assert issubclass(StoreError, CoordinationError)
