"""Answers on their way out, over plain TCP (sendfile) and TLS (copied): order, misbehaving peers, files that change.

traps.md: `loop.sendfile` hangs on close, a file that ends early makes the length prefix lie, and a connection whose
frame was cut must die. After each test descriptors and tasks are those from before it (see `serving`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.loops import LoopClock, until

from ottla.lifecycle import Offload, ThreadOffload
from ottla.network import listener as listener_module
from ottla.network import send
from ottla.network.connection import WRITE_HIGH_MARK
from ottla.network.send import CHUNK_SIZE, is_resident
from ottla.record.region import FileRegion

from .serving import KIB, MIB, Recorder, RecordingOffload, Server, Wire, frame, numbered, region_of, rest, serving

SMALL = {"receive_buffer_bytes": 64 * KIB}


def slow_disk(answers: asyncio.Event) -> Offload:
    """Threads that do nothing until the disk answers."""

    async def slow(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        await answers.wait()
        return function(*arguments, **keywords)

    return slow


@pytest.mark.parametrize("size", [1, 8 * KIB, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE + 7])
async def test_regions_and_bytes_arrive_in_the_order_they_were_given(wire: Wire, tmp_path: Path, size: int) -> None:
    data = numbered(size)
    region = region_of(tmp_path / "segment", data)
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region, b"between", region, b"tail"])
        receiver.connection.send([b"next"])
        wanted = b"head" + data + b"between" + data + b"tail" + b"next"
        assert await peer.read(len(wanted)) == wanted


async def test_what_is_sent_while_a_region_ends_is_neither_lost_nor_early(wire: Wire, tmp_path: Path) -> None:
    """Answers that come in each turn of the loop, so also in the one in which the sending task ends."""
    data = numbered(700 * KIB)
    region = region_of(tmp_path / "segment", data)
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        for turn in range(40):
            receiver.connection.send([region])
            wanted = bytearray(data)
            received = bytearray()

            async def read(received: bytearray = received) -> None:
                while True:
                    received += await peer.reader.read(64 * KIB)

            reading = asyncio.create_task(read())
            after = 3
            while after:
                after -= not receiver.connection.congested
                answer = b"%d,%d;" % (turn, len(wanted))
                receiver.connection.send([answer])
                wanted += answer
                await asyncio.sleep(0)
            await until(lambda received=received, wanted=wanted: len(received) == len(wanted))  # type: ignore[misc]
            reading.cancel()
            assert received == wanted


async def test_a_small_region_leaves_with_one_plain_sendfile_and_no_task(tmp_path: Path) -> None:
    region = region_of(tmp_path / "segment", numbered(8 * KIB))
    async with serving(Wire()) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region, b"tail"])
        assert not receiver.connection.congested
        assert await peer.read(8 + 8 * KIB) == b"head" + numbered(8 * KIB) + b"tail"


async def test_a_position_inside_the_file_is_kept_to(wire: Wire, tmp_path: Path) -> None:
    data = numbered(3 * MIB)
    whole = region_of(tmp_path / "segment", data)
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        for position, size in ((1, MIB), (2 * MIB, MIB), (5, 2 * MIB), (len(data) - 1, 1)):
            receiver.connection.send([FileRegion(whole.file, position, size, True)])
            assert await peer.read(size) == data[position : position + size]


async def stall(server: Server, region: FileRegion) -> None:
    """A peer that asked for a region and reads nothing."""
    _, receiver = await server.connect_and_see(**SMALL)
    receiver.connection.send([b"head", region, b"tail"])
    await until(lambda: receiver.connection.congested)
    await rest()
    assert receiver.connection.congested


async def test_a_peer_that_stalls_is_cut_by_the_sweeper(wire: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    region = region_of(tmp_path / "segment", numbered(8 * MIB))
    clock = LoopClock()
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        await stall(server, region)
        while not server.receivers[0].lost:
            clock.put_forward(seconds=700)
            await rest(2)  # the sweeper's timer is due
    assert "has read nothing for" in caplog.text


async def test_a_peer_that_stalls_on_plain_bytes_is_cut_too(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_SECONDS", 0.01)
    async with serving(wire, stall_seconds=0.15, send_buffer_bytes=64 * KIB) as server:
        _, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([bytes(MIB)] * 8)
        await until(lambda: receiver.lost)


async def test_a_peer_that_reads_slowly_is_left_alone(wire: Wire, tmp_path: Path) -> None:
    """Longer than the bound in all, and never that long without a byte. Method: between two reads the loop's clock is put forward."""
    data = numbered(4 * MIB)
    region = region_of(tmp_path / "segment", data)
    clock = LoopClock()
    async with serving(wire, stall_seconds=600, idle_seconds=1e9, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region, data])
        received = bytearray()
        while len(received) < 2 * len(data):
            received += await peer.read(min(256 * KIB, 2 * len(data) - len(received)))
            clock.put_forward(seconds=60)
            await rest(2)  # the sweeper's timer is due
        assert received == data + data


async def test_a_peer_is_not_cut_for_a_slow_disk(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when all threads are at long work: the peer has read all that there was."""
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    data = numbered(MIB)
    region = region_of(tmp_path / "segment", data, warm=False)
    clock, disk = LoopClock(), asyncio.Event()

    async with serving(wire, offload=slow_disk(disk), stall_seconds=600, idle_seconds=1e9) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region])
        assert await peer.read(4) == b"head"
        for _ in range(5):
            clock.put_forward(seconds=700)
            await rest(5)  # the sweeper's timer is due
        assert not receiver.lost
        disk.set()
        assert await peer.read(MIB) == data


async def test_a_peer_that_reads_little_at_a_time_is_left_alone(wire: Wire, tmp_path: Path) -> None:
    """asyncio's TLS hands its socket a megabyte at a time, and says nothing until nearly all of that is out."""
    region = region_of(tmp_path / "segment", numbered(4 * MIB))
    clock = LoopClock()
    async with serving(wire, stall_seconds=600, idle_seconds=1e9, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region])
        for _ in range(30):
            await peer.read(100 * KIB)
            clock.put_forward(seconds=100)
            await rest(2)  # the sweeper's timer is due
        assert not receiver.lost


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_peer_that_goes_away_during_a_region_leaves_nothing_behind(wire: Wire, tmp_path: Path, ending: str) -> None:
    region = region_of(tmp_path / "segment", numbered(8 * MIB))
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([b"head", region])
        await peer.read(100 * KIB)
        getattr(peer, ending)()
        await until(lambda: receiver.lost)
        receiver.connection.send([b"too late", region])


async def test_the_listener_closes_in_the_middle_of_a_region(wire: Wire, tmp_path: Path) -> None:
    region = region_of(tmp_path / "segment", numbered(8 * MIB))
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        for _ in range(3):
            await stall(server, region)
        await asyncio.wait_for(server.listener.close(), 120)
        assert all(receiver.lost for receiver in server.receivers)


async def test_a_file_cut_under_a_region_closes_the_connection_and_no_other_bytes_are_sent(
    wire: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = numbered(8 * MIB)
    path = tmp_path / "segment"
    region = region_of(path, data)
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([b"head", region, b"never"])
        receiver.connection.send([b"never"])
        assert await peer.read(4) == b"head"
        os.truncate(path, 5 * MIB)
        received = await peer.read_to_the_end()
        assert received == data[: len(received)]
        assert len(received) <= 5 * MIB
    assert f"the file ends at byte {5 * MIB}" in caplog.text


async def test_a_file_shorter_than_its_region_from_the_start(wire: Wire, tmp_path: Path) -> None:
    region = region_of(tmp_path / "segment", b"short")
    region.size = 100
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region, b"never"])
        assert b"headshort".startswith(await peer.read_to_the_end())
        await until(lambda: receiver.lost)


async def test_a_deleted_file_is_sent_whole(wire: Wire, tmp_path: Path) -> None:
    """Retention may delete a segment while consumers read it (design document): a region keeps its file open."""
    data = numbered(4 * MIB)
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region_of(tmp_path / "segment", data)])
        (tmp_path / "segment").unlink()
        (tmp_path / "another").write_bytes(bytes(len(data)))
        assert await peer.read(len(data)) == data


def is_reading(receiver: Recorder) -> bool:
    transport = receiver.connection._transport
    assert transport is not None
    return transport.is_reading()


async def test_answers_behind_a_stalled_region_stop_the_reading_before_they_fill_the_memory(wire: Wire, tmp_path: Path) -> None:
    """Produce is taken while a region is under way, so a peer could otherwise pile up answers without end."""
    data = numbered(4 * MIB)
    region = region_of(tmp_path / "segment", data)
    answer = numbered(10 * KIB, 3)
    async with serving(wire, send_buffer_bytes=64 * KIB, answer=lambda connection, _: connection.send([answer])) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region])
        body = bytes(30 * KIB)
        count = 400
        sending = asyncio.create_task(peer.send(frame(body) * count))
        await until(lambda: not is_reading(receiver))
        await rest()
        assert len(receiver.frames) < 2 * WRITE_HIGH_MARK // len(answer)
        assert await peer.read(len(data)) == data
        assert await peer.read(count * len(answer)) == answer * count
        await sending


async def test_what_is_not_in_memory_is_brought_in_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sendfile before its megabyte has been read by a thread; what is in memory is not read again.

    The first answers are given here: a kernel that is asked starts to read, and a quick disk is ready before it is asked again.
    """
    data = numbered(3 * MIB + 100)
    region = region_of(tmp_path / "segment", data, warm=False)
    offload = RecordingOffload()
    monkeypatch.setattr(send, "is_resident", lambda *place: bool(offload.calls) and is_resident(*place))
    async with serving(Wire(), offload=offload) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region, b"tail"])
        assert receiver.connection.congested
        assert await peer.read(len(data) + 8) == b"head" + data + b"tail"
    # Where the file system cannot say what is in memory, each of the four ranges is brought in.
    assert len(offload.calls) in (1, 4)
    assert offload.calls[0][0] == "bring_in"
    assert offload.calls[0][1][1:] == (0, MIB)


async def test_a_region_of_which_nothing_is_in_memory_comes_by_the_megabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    data = numbered(3 * MIB + 100)
    region = region_of(tmp_path / "segment", data, warm=False)
    offload = RecordingOffload()
    async with serving(Wire(), offload=offload) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([region])
        assert await peer.read(len(data)) == data
    assert {name for name, _ in offload.calls} == {"bring_in"}
    assert [arguments[1:] for _, arguments in offload.calls] == [
        (0, MIB),
        (MIB, MIB),
        (2 * MIB, MIB),
        (3 * MIB, 100),
    ]


async def test_a_cold_region_is_copied_by_a_thread_on_tls(tls: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    data = numbered(600 * KIB)
    offload = RecordingOffload()
    async with serving(tls, offload=offload) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([region_of(tmp_path / "segment", data, warm=False)])
        assert await peer.read(len(data)) == data
    assert [name for name, _ in offload.calls] == ["pread"] * 3


@pytest.mark.parametrize("resident", [True, False])
async def test_cold_and_resident_regions_from_real_threads(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    monkeypatch.setattr(send, "is_resident", lambda *_: resident)
    data = numbered(3 * MIB)
    region = region_of(tmp_path / "segment", data, warm=False)
    threads = ThreadOffload(2, "test")
    async with serving(wire, offload=threads) as server:
        peers = [await server.connect_and_see() for _ in range(4)]
        for _, receiver in peers:
            receiver.connection.send([region])
        for peer, _ in peers:
            assert await peer.read(len(data)) == data
    threads.close()


async def test_a_connection_that_ends_while_its_region_is_brought_in(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    region = region_of(tmp_path / "segment", numbered(MIB), warm=False)
    disk = asyncio.Event()

    async with serving(wire, offload=slow_disk(disk)) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([region])
        await rest()
        peer.reset()
        await until(lambda: receiver.lost)
        disk.set()


async def test_a_disk_that_fails_under_a_region_closes_the_connection_and_is_told(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    region = region_of(tmp_path / "segment", numbered(MIB), warm=False)

    async def broken(function: Callable[..., object], /, *arguments: object) -> object:
        raise OSError(5, "Input/output error")

    async with serving(wire, offload=broken) as server:  # type: ignore[arg-type]
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region, b"never"])
        assert b"head".startswith(await peer.read_to_the_end())
        await until(lambda: receiver.lost)
    assert "Input/output error" in caplog.text


async def test_a_disk_that_fails_in_the_middle_of_a_region_closes_the_connection_and_is_told_once(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that was shut down fails each call. Method: of 4 MiB the first two can be read."""
    preadv, pread = os.preadv, os.pread
    region = region_of(tmp_path / "segment", numbered(4 * MIB), warm=False)

    def fails_behind(position: int) -> None:
        if position >= 2 * MIB:
            raise OSError(errno.EIO, "Input/output error")

    def broken_preadv(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        fails_behind(position)
        return preadv(fd, buffers, position)

    def broken_pread(fd: int, size: int, position: int) -> bytes:
        fails_behind(position)
        return pread(fd, size, position)

    monkeypatch.setattr(os, "preadv", broken_preadv)
    monkeypatch.setattr(os, "pread", broken_pread)
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region])
        assert len(await peer.read_to_the_end()) <= 2 * MIB
        await until(lambda: receiver.lost)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_nothing_follows_a_region_that_the_end_of_its_connection_cut(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Produce that is answered while the connection is closed. Method: an answer at each turn of the loop."""
    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    region = region_of(tmp_path / "segment", numbered(MIB), warm=False)

    async with serving(wire, offload=slow_disk(asyncio.Event())) as server:
        peer, receiver = await server.connect_and_see()
        receiver.connection.send([b"head", region])
        await rest()
        closing = asyncio.create_task(receiver.connection.close())
        while not closing.done():
            receiver.connection.send([b"behind"])
            await asyncio.sleep(0)
        assert await peer.read_to_the_end() == b"head"


async def test_a_peer_that_half_closes_during_a_region_gets_no_more_of_it(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's TLS takes what is sent after that, drops it, and logs that: the region was read to its end, with a line for each chunk."""
    read = []
    pread = os.pread

    def counted(fd: int, size: int, position: int) -> bytes:
        read.append(size)
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", counted)
    region = region_of(tmp_path / "segment", numbered(16 * MIB))
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        receiver.connection.send([region])
        await rest()
        peer.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        await peer.read_to_the_end()
        await until(lambda: receiver.lost)
    assert sum(read) < 8 * MIB
    assert not caplog.records


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_region_does_not_take_the_place_of_bytes_that_went_with_their_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    """Cut while the transport still has bytes before the region, which it drops at once; the region was sent in the same turn of the loop.

    Method: the socket is found writable, and the connection is cut in that turn: before the callback, or before the task that it wakes.
    """
    monkeypatch.setattr(send, "is_resident", lambda *_: not is_cold)
    region = region_of(tmp_path / "segment", bytes(MIB), warm=False)
    before = b"\1" * (4 * MIB)
    async with serving(Wire(), send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(**SMALL)
        connection = receiver.connection
        connection.send([before, region])
        await rest()
        reading = asyncio.create_task(peer.read_to_the_end())
        sender = connection._sender
        assert sender is not None
        steps = [sender._wake, connection.abort] if is_cold else [connection.abort, sender._pump]

        def cut() -> None:
            asyncio.get_running_loop().remove_writer(sender._dup)
            for step in steps:
                step()

        asyncio.get_running_loop().add_writer(sender._dup, cut)
        assert set(await reading) == {1}
        await until(lambda: receiver.lost)
