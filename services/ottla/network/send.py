"""Answers on their way out: bytes through the transport, file regions by sendfile.

This module alone knows sendfile. The first attempt is one plain non-blocking `os.sendfile` on the socket, which
costs a fraction of any machinery around it. What the socket does not take at once follows from a callback whenever it
takes more; only what has to be read from the disk first, or be encrypted, is worth a task.

Invariants: while a region is in flight, its sender owns every write of its connection. A region that cannot be sent whole has cut a
frame, so the connection dies. Nothing that may lie on the disk is touched on the loop: it is brought in by a thread
first, at most `CHUNK_SIZE` at a time.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ottla.lifecycle import Offload
from ottla.network.traffic import Traffic
from ottla.record.region import FileRegion, OpenFile

log = logging.getLogger(__name__)

Piece = bytes | FileRegion

# On TLS each byte is copied anyway; this is how much is read at a time.
TLS_CHUNK_SIZE: Final = 256 * 1024

# Linux reads ahead 128 KiB by default, so pages arrive and mostly leave in such stretches.
PROBE_STRIDE: Final = 128 * 1024
CHUNK_SIZE: Final = 1024 * 1024
_probe = [bytearray(1)]
_INT: Final = struct.Struct("i")


class CutFrame(ConnectionError):
    """A file ended before the bytes that were promised: the peer would take the next answer for the rest of them."""


class Sender:
    """The outgoing side of one connection.

    Args:
        transport: what bytes are written to.
        offload: runs disk reads outside the loop.
        encrypted: whether the transport encrypts, so that sendfile cannot be used.
        now: the loop's time.
        idle: called when everything queued has been sent.
        traffic: counts what is sent.
    """

    __slots__ = (
        "_dup",
        "_encrypted",
        "_fd",
        "_idle",
        "_offload",
        "_probed_file",
        "_probed_from",
        "_probed_to",
        "_queue",
        "_region",
        "_task",
        "_time",
        "_traffic",
        "_transport",
        "_writable",
        "last_progress",
        "waiting_bytes",
    )

    def __init__(
        self, transport: asyncio.Transport, offload: Offload, encrypted: bool, now: float, idle: Callable[[], None], traffic: Traffic
    ) -> None:
        self._transport = transport
        self._offload = offload
        self._encrypted = encrypted
        self._idle = idle
        self._traffic = traffic
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._region: FileRegion | None = None  # being sent by `_pump`
        # The stretch of a file that was last found to be in memory.
        self._probed_file: OpenFile | None = None
        self._probed_from = self._probed_to = 0
        self._dup = -1
        self._queue: deque[Piece] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._time = asyncio.get_running_loop().time
        self.last_progress = now
        self.waiting_bytes = 0  # memory that waits behind a region

    @property
    def busy(self) -> bool:
        return self._task is not None or self._region is not None

    def unsent_bytes(self) -> int:
        """What the peer has yet to take, as the transport and the kernel say. asyncio's TLS does not say what it has with its socket."""
        with suppress(OSError):  # it is being closed
            in_kernel: int = _INT.unpack(fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(_INT.size)))[0]
            return self._transport.get_write_buffer_size() + in_kernel
        return self._transport.get_write_buffer_size()

    def send(self, pieces: Sequence[Piece]) -> None:
        """Sends the pieces in order, after everything sent before. Never waits."""
        if self.busy:
            self._enqueue(pieces)
            return
        for index, piece in enumerate(pieces):
            if isinstance(piece, bytes):
                self._transport.write(piece)
                continue
            sent = self._send_at_once(piece)
            if sent < piece.size:
                rest = FileRegion(piece.file, piece.position + sent, piece.size - sent, piece.warm)
                self._enqueue(pieces[index + 1 :])
                self._begin(rest)
                return
        self._sent_all()

    def _enqueue(self, pieces: Sequence[Piece]) -> None:
        self._queue.extend(pieces)
        self.waiting_bytes += sum(len(piece) for piece in pieces if isinstance(piece, bytes))

    def _drop_queue(self) -> None:
        self._queue.clear()
        self.waiting_bytes = 0

    def _begin(self, region: FileRegion) -> None:
        """Sends the rest of a region, and what is queued behind it, as the peer takes it."""
        loop = asyncio.get_running_loop()
        self.last_progress = loop.time()
        if not self._encrypted:
            # The transport watches the socket's own descriptor and asyncio allows no other watcher, and it closes it
            # when it likes, after which the number may mean another connection. So we work on a duplicate.
            try:
                self._dup = os.dup(self._fd)
            except OSError as error:
                log.error("no file descriptor to send with, connection closed: %s", error)
                self._drop_queue()
                self._transport.abort()
                return
            if self._at_hand(region):
                self._region = region
                loop.add_writer(self._dup, self._pump)
                return
        self._start(region)

    def _start(self, region: FileRegion) -> None:
        """The way through a task: for what has to be read from the disk first, and for TLS."""
        self._queue.appendleft(region)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _at_hand(self, region: FileRegion) -> int:
        """How much of the next chunk of a region is known to be in memory: all of it, or nothing.

        A chunk is probed once, however often the socket interrupts it.
        """
        if region.warm:
            return min(region.size, CHUNK_SIZE)
        if self._probed_file is not region.file or not self._probed_from <= region.position < self._probed_to:
            size = min(region.size, CHUNK_SIZE)
            if not is_resident(region.file.fd, region.position, size):
                return 0
            self._probed_file, self._probed_from, self._probed_to = region.file, region.position, region.position + size
        return min(self._probed_to - region.position, region.size)

    def _pump(self) -> None:
        """The socket takes more: sends one chunk, so that others have their turn, and continues at the next call."""
        region = self._region
        assert region is not None
        if self._transport.get_write_buffer_size():
            return  # bytes before the region are still with the transport, which is called for the same event
        if self._transport.is_closing():
            self._fail(ConnectionAbortedError())  # it has dropped them, and the region would take their place
            return
        size = self._at_hand(region)
        if not size:
            self._stop_pump()
            self._start(region)
            return
        try:
            sent = os.sendfile(self._dup, region.file.fd, region.position, size)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if sent == 0:
            self._fail(CutFrame(f"{region!r}: the file ends at byte {region.position}"))
            return
        region.position += sent
        region.size -= sent
        self._traffic.sendfile_bytes += sent
        self.last_progress = self._time()
        if not region.size:
            self._next_piece()

    def _sent_all(self) -> None:
        """Nothing is left to send: no file is kept open for it."""
        self._probed_file = None

    def _next_piece(self) -> None:
        """A region is out: what stands behind it, up to the next one."""
        while self._queue:
            piece = self._queue.popleft()
            if isinstance(piece, FileRegion):
                self._region = FileRegion(piece.file, piece.position, piece.size, piece.warm)
                return
            self.waiting_bytes -= len(piece)
            self._transport.write(piece)
        self._stop_pump()
        self._close_dup()
        self._sent_all()
        self._idle()

    def _stop_pump(self) -> None:
        if self._region is not None:
            self._region = None
            asyncio.get_running_loop().remove_writer(self._dup)

    def _close_dup(self) -> None:
        if self._dup >= 0:
            os.close(self._dup)
            self._dup = -1

    def _fail(self, error: Exception) -> None:
        """A frame was cut (or the peer is gone): nothing more can be said on this connection."""
        if isinstance(error, CutFrame) or not isinstance(error, ConnectionError):
            log.error("a response was cut off, connection closed: %s", error)
        self._drop_queue()
        self._stop_pump()
        self._close_dup()
        self._transport.abort()

    def _send_at_once(self, region: FileRegion) -> int:
        """What the socket takes of a region right now, without waiting for socket or disk."""
        if self._encrypted or self._transport.get_write_buffer_size() or self._transport.is_closing():
            return 0
        size = self._at_hand(region)
        if not size:
            return 0
        try:
            sent = os.sendfile(self._fd, region.file.fd, region.position, size)
        except BlockingIOError:
            return 0
        except OSError:
            return 0  # the peer is gone: the task meets the same error, and connection_lost follows
        self._traffic.sendfile_bytes += sent
        return sent

    async def _run(self) -> None:
        # More may come while the last bytes are on their way out; what comes after the end, `_ended` sees to.
        while self._queue:
            piece = self._queue.popleft()
            if isinstance(piece, bytes):
                self.waiting_bytes -= len(piece)
                self._transport.write(piece)
            elif self._encrypted:
                await self._copy(piece)
            else:
                await self._drained()
                await self._sendfile(piece)
            if not self._queue and not self._encrypted:
                await self._drained()

    async def _drained(self) -> None:
        """Waits until the transport has handed everything to the socket."""
        while self._transport.get_write_buffer_size():
            await self._until_writable()

    async def _sendfile(self, region: FileRegion) -> None:
        position, end = region.position, region.position + region.size
        source = region.file.fd
        while position < end:
            size = min(end - position, CHUNK_SIZE)
            if not region.warm and not is_resident(source, position, size):
                self._traffic.cold_reads += 1
                await self._offload(bring_in, source, position, size)
            chunk_end = position + size
            while position < chunk_end:
                if self._transport.is_closing():
                    raise ConnectionAbortedError  # as in `_pump`
                try:
                    sent = os.sendfile(self._dup, source, position, chunk_end - position)
                except BlockingIOError:
                    await self._until_writable()
                    continue
                if sent == 0:
                    raise CutFrame(f"{region!r}: the file ends at byte {position}")
                position += sent
                self._traffic.sendfile_bytes += sent
                self.last_progress = self._time()
            # A reader on the same machine may never let the socket fill up; others get their turn here.
            await asyncio.sleep(0)

    async def _copy(self, region: FileRegion) -> None:
        position, end = region.position, region.position + region.size
        source = region.file.fd
        while position < end:
            size = min(end - position, TLS_CHUNK_SIZE)
            if region.warm or is_resident(source, position, size):
                data = os.pread(source, size, position)
            else:
                self._traffic.cold_reads += 1
                data = await self._offload(os.pread, source, size, position)
            if not data:
                raise CutFrame(f"{region!r}: the file ends at byte {position}")
            position += len(data)
            self._transport.write(data)
            await self._until_resumed()
            self.last_progress = self._time()

    async def _until_resumed(self) -> None:
        """On TLS the socket is the transport's own affair: waits while its buffer is above the high mark."""
        high = self._transport.get_write_buffer_limits()[1]
        if self._transport.get_write_buffer_size() > high:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
        else:
            await asyncio.sleep(0)

    def writing_resumed(self) -> None:
        """The transport's buffer is below its low mark again (from `resume_writing`)."""
        if self._encrypted:
            self._wake()

    async def _until_writable(self) -> None:
        """Waits until the socket takes more. Unlike `loop.sendfile` this can be cancelled at any moment."""
        loop = asyncio.get_running_loop()
        self._writable = loop.create_future()
        loop.add_writer(self._dup, self._wake)
        try:
            await self._writable
        finally:
            loop.remove_writer(self._dup)
        self.last_progress = loop.time()

    def _wake(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._close_dup()
        if task.cancelled():
            self._drop_queue()
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._fail(error)
            return
        self._sent_all()
        if self._queue:
            # Given between the task's end and now.
            pieces = list(self._queue)
            self._drop_queue()
            self.send(pieces)
        if not self.busy:
            self._idle()

    async def close(self) -> None:
        """Stops what is being sent, whatever it waits for, and returns when it has ended."""
        task = self._task
        self.cancel()
        if task is not None:
            await asyncio.wait([task])

    def cancel(self) -> None:
        """As `close`, without waiting: the connection is lost."""
        self._probed_file = None
        self._drop_queue()
        self._stop_pump()
        if self._task is not None:
            self._task.cancel()
        else:
            self._close_dup()


# Is a range of a file in the page cache? And bringing it there, in a thread.
#
# sendfile of a page that lies on disk stalls the whole event loop, so nothing is sent before it is known to be in
# memory. The probe is `preadv` with RWF_NOWAIT of single bytes: it fails where it would have to wait for the disk.
# It proves only its own page, so probes stand as close as the kernel's read-ahead window.


def is_resident(fd: int, position: int, size: int) -> bool:
    """Whether each probed byte of the range can be read without waiting for the disk.

    A file system that does not know RWF_NOWAIT answers EOPNOTSUPP, and then the range counts as absent: reading it
    in a thread costs a little where it was in memory and nothing worse. So does one that fails: the thread finds that out too.
    """
    last = position + size - 1
    at = position
    try:
        while at < last:
            if os.preadv(fd, _probe, at, os.RWF_NOWAIT) != 1:
                return False
            at += PROBE_STRIDE
        return os.preadv(fd, _probe, last, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def bring_in(fd: int, position: int, size: int) -> None:
    """Reads the range once, so that it is in the page cache. Blocks; runs in a thread."""
    scratch = memoryview(bytearray(min(size, CHUNK_SIZE)))
    end = position + size
    while position < end:
        count = os.preadv(fd, [scratch[: min(len(scratch), end - position)]], position)
        if count == 0:
            return
        position += count
