"""One client connection: frames in, answers out, nothing known of what they say.

A frame is INT32 size and that many bytes. Frames are handed down as positions in the receive buffer, valid until the
call returns. The receiver may refuse to take one yet; then it and everything behind it is kept, reading stops, and
the peer is held back by TCP until `resume`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.lifecycle import Offload
from ottla.network.buffers import SHARED_SIZE, ReceiveBuffers
from ottla.network.complaints import Complaints
from ottla.network.send import Piece, Sender
from ottla.network.traffic import CloseReason, Traffic
from ottla.protocol.primitives import INT32

log = logging.getLogger(__name__)

SIZE_PREFIX: Final = 4
# Frames beyond this get a buffer of their own; smaller ones are completed at the front of the shared one.
LARGE_FRAME: Final = SHARED_SIZE // 2
WRITE_HIGH_MARK: Final = 1024 * 1024
# What is allocated at first for an announced size, so that announcing costs the announcer as much as us.
FIRST_ALLOCATION: Final = 1024 * 1024
# What is read at a time while there is no room for what frames begin with.
TIGHT_READ: Final = 4 * 1024


def _never() -> float:
    return 0.0


class FrameReceiver(Protocol):
    """Who takes the frames of one connection."""

    def frame_received(self, buffer: memoryview, start: int, end: int) -> bool:
        """Takes the frame in buffer[start:end], or returns False to be asked again after `Connection.resume`."""
        ...

    def read_completed(self) -> None:
        """All frames of one read have been offered."""
        ...

    def answers_sent(self) -> None:
        """What the peer was slow to take has all been handed to the network."""
        ...

    def connection_lost(self) -> None:
        """Nothing can be sent any more."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection comes from and where it came in."""

    host: str
    port: int
    listener_name: str


class Connection(asyncio.BufferedProtocol):
    """One accepted socket.

    Args:
        peer: as it was when the connection was accepted. A peer may be gone by the time that it is asked for.
        max_frame_size: bytes of a frame above which the connection is closed (`socket.request.max.bytes`).
        buffers: shared by all connections of the broker.
        open_receiver: makes the receiver once the peer is known, or returns None to refuse the connection.
        closed: called when the connection has ended.
        traffic: counts what passes; the listener's.
        complaints: the broker's log lines about its peers.
    """

    __slots__ = (
        "_buffers",
        "_closed",
        "_expects_large",
        "_filled",
        "_held",
        "_kept",
        "_large",
        "_max_frame_size",
        "_needed",
        "_offload",
        "_open_receiver",
        "_receiver",
        "_sender",
        "_tail",
        "_time",
        "_traffic",
        "_transport",
        "_unsent",
        "_unsent_changed",
        "_write_paused",
        "close_reason",
        "complaints",
        "frame_began",
        "is_made",
        "last_active",
        "last_sent",
        "peer",
        "read_pauses",
    )

    def __init__(
        self,
        peer: Peer,
        max_frame_size: int,
        buffers: ReceiveBuffers,
        offload: Offload,
        open_receiver: Callable[[Connection], FrameReceiver | None],
        closed: Callable[[Connection], None],
        traffic: Traffic,
        complaints: Complaints,
    ) -> None:
        self._max_frame_size = max_frame_size
        self._buffers = buffers
        self._offload = offload
        self._open_receiver = open_receiver
        self._closed = closed
        self._traffic = traffic
        self._receiver: FrameReceiver | None = None
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self._tail = b""  # the beginning of a small frame, between two reads
        self._large: memoryview | None = None  # a buffer of our own, while a large frame arrives
        self._filled = 0
        self._needed = 0  # bytes that the frame in `_large` takes with its prefix
        self._expects_large = 0
        self._held: bytes | None = None  # frames the receiver did not take yet, or that wait for memory
        self._write_paused = False
        self._unsent = 0  # bytes that the peer had yet to take at the last look, and when they were last seen to change
        self._unsent_changed = 0.0
        self._time: Callable[[], float] = _never  # the loop's; kept, because asking for the loop costs a system call
        self.peer: Final = peer
        self._kept = 0  # bytes of `_tail` that count for the bound
        self.complaints = complaints
        self.last_active = 0.0  # when something was last received
        self.last_sent = 0.0  # when an answer was last begun, or all of it handed to the network
        self.frame_began = 0.0  # when the first byte of a frame came whose last is still to come; 0 for none
        self.read_pauses = 0
        self.close_reason: CloseReason = "client"  # unless we end it
        self.is_made = False  # whether it is one, or was: a handshake that fails leaves it unmade

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_made = True
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=WRITE_HIGH_MARK)
        self._time = asyncio.get_running_loop().time
        self.last_active = self._time()
        encrypted = transport.get_extra_info("sslcontext") is not None
        self._sender = Sender(transport, self._offload, encrypted, self.last_active, self._sender_idle, self._traffic)
        self._receiver = self._open_receiver(self)
        if self._receiver is None:
            self.abort("refused")

    def eof_received(self) -> None:
        """The transport closes itself; by TLS it takes what is still sent, to no end."""
        if self._sender is not None:
            self._sender.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        # These know the connection too: all of it, with a buffer by TLS, would be left to the garbage collector.
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel()
        self._buffers.stop_waiting(self.resume)
        self._release_large()
        self._keep_small(b"")
        self._release_held()
        self._buffers.call_back()
        if self._receiver is not None:
            self._receiver.connection_lost()
            self._receiver = None
        self._closed(self)
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is None and self._expects_large and sizehint < 0:  # asyncio's TLS asks also when nothing is there yet
            self._large = self._buffers.take(self._expects_large, host=self.peer.host)
            self._filled = len(self._tail)
            self._needed = 0
            if self._large is not None:
                self._large[: self._filled] = self._tail
                self._keep_small(b"")
        if self._large is not None:
            # Not beyond the frame, so that the next one starts at the front of a buffer again; `_grow` follows when
            # the buffer is still shorter than the frame.
            return self._large[self._filled : self._needed] if self._needed else self._large[self._filled :]
        tail, buffers = self._tail, self._buffers
        shared = buffers.shared
        if tail:
            shared[: len(tail)] = tail
            shared = shared[len(tail) :]
        return shared[:TIGHT_READ] if buffers.is_scarce and not buffers.has_room(self.peer.host) else shared

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._time()
        self._traffic.received_bytes += nbytes
        if self._large is None:
            self._consume(self._buffers.shared, len(self._tail) + nbytes)
        else:
            self._filled += nbytes
            if self._filled >= self._needed:
                self._consume(self._large, self._filled)
            elif self._filled == len(self._large):
                self._grow()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unsent_changed = self._time()
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._sender is not None:
            self._sender.writing_resumed()
        self._tell_sent()
        self.resume()
        self._update_reading()

    # Frames.

    def _consume(self, buffer: memoryview, filled: int) -> None:
        """Hands down the whole frames in buffer[:filled] and keeps what is left."""
        receiver = self._receiver
        if receiver is None:
            return
        position = 0
        needed = 0
        taken = True
        limit = self._max_frame_size
        while filled - position >= SIZE_PREFIX:
            size = INT32.unpack_from(buffer, position)[0]
            end = position + SIZE_PREFIX + size
            if end > filled or size < 0 or size > limit:
                if not 0 <= size <= limit:
                    # What was taken before it may still point into the buffer, so the read is completed first.
                    receiver.read_completed()
                    self._refuse(size)
                    return
                needed = SIZE_PREFIX + size
                break
            taken = receiver.frame_received(buffer, position + SIZE_PREFIX, end)
            if not taken:
                break
            position = end
        receiver.read_completed()
        self._keep(buffer, position, filled, needed, taken)

    def _keep(self, buffer: memoryview, position: int, filled: int, needed: int, taken: bool) -> None:
        left = filled - position
        if position or not left:
            # What is left has just begun.
            self.frame_began = self.last_active if left and taken else 0.0
        elif not self.frame_began and taken:
            self.frame_began = self.last_active
        if not taken:
            self._keep_small(b"")
            self.frame_began = 0.0
            self._hold(bytes(buffer[position:filled]))
        elif needed > LARGE_FRAME:
            self._expects_large = needed
            self._begin_large(buffer, position, left, needed)
            return
        else:
            if not self._keep_small(bytes(buffer[position:filled]) if left else b""):
                self._wait_for_memory(buffer[position:filled], left)
                return
            if needed or self._large is None or filled < LARGE_FRAME:
                self._expects_large = 0
        self._release_large()

    def _begin_large(self, buffer: memoryview, position: int, left: int, needed: int) -> None:
        """Moves the beginning of a large frame to the front of a buffer that grows with what really arrives."""
        if self._large is not None and len(self._large) >= needed:
            self._large[:left] = self._large[position : position + left]
        else:
            former = self._large
            size = min(needed, max(FIRST_ALLOCATION, 4 * left))
            larger = self._buffers.take(size, former, self.peer.host)
            if larger is None:
                self._wait_for_memory(buffer[position : position + left], size)
                return
            larger[:left] = buffer[position : position + left]
            if former is not None:
                self._buffers.give_back(former, self.peer.host)
            self._large = larger
        self._keep_small(b"")
        self._filled = left
        self._needed = needed

    def _keep_small(self, tail: bytes) -> bool:
        """Keeps the beginning of a small frame between two reads, or nothing; says whether there was room for it."""
        if self._buffers.is_bounded and len(tail) != self._kept:
            former, self._kept = self._kept, len(tail)
            if not self._buffers.keep(self.peer.host, len(tail) - former, former):
                self._kept = former
                return False
        self._tail = tail
        return True

    def _wait_for_memory(self, begun: memoryview, size: int) -> None:
        """Reads no further before there is room for `size` bytes, of which these are the first."""
        self._hold(bytes(begun))
        self.frame_began = 0.0  # it waits for us
        self._keep_small(b"")
        self._release_large()
        self._buffers.when_available(size, self.resume, self.peer.host, len(begun))
        self._buffers.call_back()  # what it had itself may have been in its way

    def _grow(self) -> None:
        """The buffer is full and its frame is not: on to a larger one."""
        assert self._large is not None
        self._begin_large(self._large, 0, self._filled, self._needed)

    def _release_large(self) -> None:
        large, self._large = self._large, None
        self._filled = self._needed = 0
        if large is not None:
            self._buffers.give_back(large, self.peer.host)

    def _release_held(self) -> None:
        if self._held is not None:
            self._buffers.hold(self.peer.host, -len(self._held))
            self._held = None

    def _hold(self, frames: bytes) -> None:
        self._held = frames
        self._buffers.hold(self.peer.host, len(frames))
        self.read_pauses += 1
        self._update_reading()

    def _refuse(self, size: int) -> None:
        self.complain(log, "announced a frame of %d bytes, socket.request.max.bytes is %d: connection closed", size, self._max_frame_size)
        self.abort()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        waiting = 0 if self._sender is None else self._sender.waiting_bytes
        wanted = self._held is None and not self._write_paused and waiting <= WRITE_HIGH_MARK
        if wanted and not transport.is_reading():
            transport.resume_reading()
            self.frame_began = self._time() if self._tail or self._large is not None else 0.0
        elif not wanted and transport.is_reading():
            transport.pause_reading()
            self.frame_began = 0.0  # while we do not read, its time does not run
            self._traffic.paused_reads += 1

    def complain(self, logger: logging.Logger, message: str, *arguments: object) -> None:
        """Says what the peer does wrong, unless something was said of it just now."""
        peer = self.peer
        self.complaints.warn(logger, peer.host, "%s:%d on %s " + message, peer.host, peer.port, peer.listener_name, *arguments)

    # What the receiver calls.

    @property
    def congested(self) -> bool:
        """Whether the peer has yet to read what was sent; frames not taken for that reason are offered again after."""
        return self._write_paused or (self._sender is not None and self._sender.busy)

    def resume(self) -> None:
        """Offers the frames again that were not taken."""
        held = self._held
        if held is None or self._transport is None or self._transport.is_closing():
            return
        self._buffers.stop_waiting(self.resume)
        self._release_held()
        self._consume(memoryview(held), len(held))
        self._buffers.call_back()
        self._update_reading()

    def count(self, more: int) -> None:
        """Counts what is kept of requests that are worked on, or less of it, among the bytes of frames."""
        self._buffers.hold(self.peer.host, more)
        if more < 0:
            self._buffers.call_back()

    def send(self, pieces: Sequence[Piece]) -> None:
        """Sends bytes and file regions after everything sent before."""
        if self._sender is not None and self._transport is not None and not self._transport.is_closing():
            self.last_sent = self._time()
            for piece in pieces:
                self._traffic.sent_bytes += len(piece)
            self._sender.send(pieces)
            if self._sender.waiting_bytes > WRITE_HIGH_MARK:
                self._update_reading()

    def _sender_idle(self) -> None:
        self._tell_sent()
        self.resume()
        self._update_reading()

    def _tell_sent(self) -> None:
        self.last_sent = self._time()
        if self._receiver is not None and not self.congested:
            self._receiver.answers_sent()

    def abort(self, reason: CloseReason = "error") -> None:
        """Ends the connection at once; what was not sent is dropped.

        Args:
            reason: why, for those who count; the first one stays.
        """
        if self.close_reason == "client":
            self.close_reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Lets nothing more be sent, waits for the sender to end, and closes."""
        self.close_reason = "stopped"
        sender, self._sender = self._sender, None  # what is answered from now on would follow a region that was cut
        if sender is not None:
            await sender.close()
        if self._transport is not None:
            self._transport.close()

    def stalled_since(self) -> float | None:
        """Since when the peer has taken nothing of what is to be sent, or None when nothing waits. Asked now and then."""
        if self._sender is None or self._transport is None or not self.congested:
            return None
        unsent = self._sender.unsent_bytes()
        if not unsent:
            return None  # the peer has taken all that there is: the rest has to be read from the disk
        if unsent != self._unsent:
            self._unsent, self._unsent_changed = unsent, self._time()
        return max(self._unsent_changed, self._sender.last_progress if self._sender.busy else 0.0)
