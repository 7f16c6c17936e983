"""ZooKeeper's frames: jute records, as `zookeeper.jute` of ZooKeeper 3.9 declares them.

    request: xid:4 type:4 body        answer: xid:4 zxid:8 error:4 body        string, buffer: length:4 bytes, length -1 is none

Pure; every length is checked against the frame that it is in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from ottla.coordination import errors
from ottla.coordination.interface import EventType, Stat
from ottla.errors import OttlaError

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(">iqi")
STAT: Final = struct.Struct(">qqqqiiiqiiq")
MULTI_HEADER: Final = struct.Struct(">i?i")
CONNECTED_STATE: Final = 3
WATCH_XID: Final = -1
END_OF_MULTI: Final = MULTI_HEADER.pack(-1, True, -1)


class Request(IntEnum):
    """The types of requests that are answered."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN_2 = 12
    CHECK = 13
    MULTI = 14
    CREATE_2 = 15
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    CLOSE = -11


UNIMPLEMENTED: Final = -6
AUTH_FAILED: Final = -115
NOT_TRIED: Final = -2  # RuntimeInconsistency: an operation of a transaction behind the one that failed

_CODES: Final[dict[type[errors.CoordinationError], int]] = {
    errors.BadArguments: -8,
    errors.NoNode: -101,
    errors.NotAuthorized: -102,
    errors.BadVersion: -103,
    errors.NoChildrenForEphemerals: -108,
    errors.NodeExists: -110,
    errors.NotEmpty: -111,
    errors.SessionExpired: -112,
    errors.RequestTooLarge: -8,
}
EVENT_NUMBERS: Final = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3, EventType.CHILDREN: 4}


class MalformedFrame(OttlaError):
    """A frame's lengths do not fit it."""


def code_of(error: errors.CoordinationError) -> int:
    """ZooKeeper's number of an error; -1 (SystemError) for what has none."""
    return _CODES.get(type(error), -1)


class Reader:
    """A frame, read from front to back. Everything raises MalformedFrame at its end."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._position = 0

    def read_int(self) -> int:
        return int(self._unpack(INT)[0])

    def read_long(self) -> int:
        return int(self._unpack(LONG)[0])

    def read_bool(self) -> bool:
        return self._take(1) != b"\0"

    def read_buffer(self) -> bytes | None:
        length = self.read_int()
        return None if length == -1 else self._take(length)

    def read_string(self) -> str:
        try:
            return (self.read_buffer() or b"").decode()
        except UnicodeDecodeError:
            raise MalformedFrame("a string is no UTF-8") from None

    def read_strings(self) -> list[str]:
        count = self.read_int()
        if count > (len(self._frame) - self._position) // INT.size:
            raise MalformedFrame(f"{count} strings are announced at {self._position} of {len(self._frame)} bytes")
        return [self.read_string() for _ in range(count)]

    def skip_acls(self) -> None:
        for _ in range(min(self.read_int(), len(self._frame))):
            self.read_int()
            self.read_string()
            self.read_string()

    def multi_header(self) -> tuple[int, bool]:
        """The type of the next operation, and whether there is none."""
        operation, is_done, _ = self._unpack(MULTI_HEADER)
        return operation, bool(is_done)

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return self._position == len(self._frame)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._frame):
            raise MalformedFrame(f"{size} bytes are announced at {self._position} of {len(self._frame)}")
        taken, self._position = self._frame[self._position : end], end
        return taken

    def _unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._take(layout.size))


def buffer(data: bytes | None) -> bytes:
    """A buffer or a string's bytes."""
    return INT.pack(-1) if data is None else INT.pack(len(data)) + data


def string(text: str) -> bytes:
    """A string."""
    return buffer(text.encode())


def strings(texts: Iterable[str]) -> bytes:
    """A vector of strings."""
    parts = [string(text) for text in texts]
    return INT.pack(len(parts)) + b"".join(parts)


def stat_record(stat: Stat) -> bytes:
    """A Stat; ACLs have no version here."""
    return STAT.pack(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        0,
        stat.ephemeral_owner,
        stat.data_length,
        stat.num_children,
        stat.pzxid,
    )


def framed(payload: bytes) -> bytes:
    """The payload behind its length."""
    return INT.pack(len(payload)) + payload
