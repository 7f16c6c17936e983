"""Ending a broker's ZooKeeper session under it: the session is taken over with its password, and closed.

That is what ZooKeeper's own documentation recommends for testing an expiry: the server forgets the session at once, and
its ephemerals go, while the broker believes in it until its next word is refused.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Final

_TIMEOUT_SECONDS: Final = 10.0
# length, protocol version, timeout, session id, length of the password: how a server's first answer begins
_ANSWER: Final = struct.Struct("!iiiqi")
_CLOSE: Final = struct.pack("!iii", 8, 1, -11)  # length, xid, closeSession


@dataclass(frozen=True, slots=True)
class Session:
    """What a client needs to go on with a session."""

    session_id: int
    password: bytes

    @classmethod
    def of_answer(cls, answer: bytes) -> Session | None:
        """The session that a server's first answer gives; None when it gives none (an expired one has the id 0)."""
        if len(answer) < _ANSWER.size:
            return None
        _, _, _, session_id, size = _ANSWER.unpack_from(answer)
        password = answer[_ANSWER.size : _ANSWER.size + size]
        return cls(session_id, password) if session_id and len(password) == size else None


async def end(session: Session, zookeeper_port: int) -> None:
    """Ends it.

    Raises:
        OSError: ZooKeeper cannot be reached, or does not answer in time.
    """
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", zookeeper_port)
        try:
            # protocol version, last zxid seen, timeout in ms, session id, password, read-only
            request = struct.pack("!iqiqi", 0, 0, 6_000, session.session_id, len(session.password)) + session.password + b"\0"
            writer.write(struct.pack("!i", len(request)) + request)
            (size,) = struct.unpack("!i", await reader.readexactly(4))
            await reader.readexactly(size)
            writer.write(_CLOSE)
            await reader.read()  # the server hangs up when it is done
        except asyncio.IncompleteReadError:
            pass  # it had ended already
        finally:
            writer.transport.abort()
