"""ZooKeeper's semantics as one small interface, with two implementations behind the same contract tests.

What it promises, and what everything above relies on:
- Every write has a number (zxid) and all writes are seen in that one order. A session sees its own writes.
- A transaction takes place as a whole or not at all.
- An ephemeral znode lives as long as the session that made it.
- A watch fires once, and the session that set it gets the event before it can read what the watch is about. Between that
  and a new watch more may have changed: a watch says "read again", never what there is to read.
- After ConnectionLoss the outcome of an operation is unknown; after SessionExpired nothing can be done any more.

Everything is called on the event loop, and watches and listeners are called on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

ANY_VERSION: Final = -1


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper knows of a znode besides its data, under ZooKeeper's names."""

    czxid: int  # the write that made the znode: a broker's epoch is the czxid of its /brokers/ids/[id]
    mzxid: int  # the write that set the data last
    pzxid: int  # the write that added or removed a child last
    ctime: int  # ms since the epoch
    mtime: int
    version: int  # how often the data was set
    cversion: int  # how often a child came or went
    ephemeral_owner: int  # the session's id, 0 for a znode that stays
    data_length: int
    num_children: int


class EventType(Enum):
    """What happened to a watched znode."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class WatchedEvent:
    """The one call of a watch."""

    event_type: EventType
    path: str


class SessionEvent(Enum):
    """What happened to the session itself."""

    SUSPENDED = "suspended"  # the connection is lost; ephemerals live on until the session's timeout
    CONNECTED = "connected"  # it is back, in the same session
    EXPIRED = "expired"  # the ephemerals are gone
    CLOSED = "closed"  # by ourselves


Watch: TypeAlias = Callable[[WatchedEvent], None]
SessionListener: TypeAlias = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class Create:
    """Makes a znode. The result is its path, which for a sequential one ends with ten digits."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replaces a znode's data. The result is its Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a znode. The result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fails the transaction unless the znode has that version. The result is None."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check
Result: TypeAlias = str | Stat | None


class Coordination(Protocol):
    """One session. Its opener closes it."""

    @property
    def session_id(self) -> int:
        """What `Stat.ephemeral_owner` of this session's ephemerals is."""
        ...

    @property
    def chroot_size(self) -> int:
        """By how many bytes each path is longer in a request: what a transaction may be is counted with them."""
        ...

    @property
    def session_timeout_seconds(self) -> float:
        """How long the session lasts behind its last word, as the service granted it: not always what was asked for."""
        ...

    @property
    def silent_seconds(self) -> float:
        """For how long nothing was heard of the service. After a session's timeout it may have ended the session, and cannot say so."""
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, make_parents: bool = False
    ) -> str:
        """Makes a znode and gives its path.

        Args:
            path: where; with `sequential`, what the ten digits are appended to.
            data: at most about 1 MiB.
            ephemeral: it goes when this session ends.
            sequential: the parent's count of children ever made is appended.
            make_parents: missing parents are made as well, empty.
        """
        ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A znode's data and Stat. The watch fires when it is set or deleted. Raises NoNode, and then sets no watch."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """What `get` gives of each, and None for one that is not there. Cheaper than to ask one by one, and no snapshot of all."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replaces a znode's data, when it has that version."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Removes a znode that has no children, when it has that version."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The Stat, or None. The watch fires when the znode is made, set or deleted."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, in no order that means anything. The watch fires when one comes or goes, or at the delete."""
        ...

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        """All of the operations or none; gives a result for each.

        Raises the error of the first that failed, with its `operation_index`.
        """
        ...

    def on_session_event(self, listener: SessionListener) -> None:
        """Has the listener called with each event of the session from now on."""
        ...

    async def close(self) -> None:
        """Ends the session at once, ephemerals and all. Closing again does nothing."""
        ...
