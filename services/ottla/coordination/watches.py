"""Who waits for which znode: a table of one-shot watches, of all sessions of the twin or of one with a real ZooKeeper.

As in ZooKeeper there are two kinds, on data and existence and on children, a callback that is registered twice fires
once, and a delete fires both kinds with one call.
"""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

from ottla.coordination.interface import EventType, Watch, WatchedEvent

log: Final = logging.getLogger(__name__)

# The values are sets in the order of registration.
_Table: TypeAlias = dict[str, dict[tuple[int, Watch], None]]

_OF_CHILDREN: Final = (EventType.CHILDREN, EventType.DELETED)


class Watches:
    """All watches of all sessions."""

    def __init__(self) -> None:
        self._data: _Table = {}
        self._children: _Table = {}

    def watch_data(self, session_id: int, path: str, watch: Watch) -> None:
        """The watch fires when the znode is made, set or deleted."""
        self._data.setdefault(path, {})[session_id, watch] = None

    def watch_children(self, session_id: int, path: str, watch: Watch) -> None:
        """The watch fires when a child comes or goes, or the znode is deleted."""
        self._children.setdefault(path, {})[session_id, watch] = None

    def fire(self, event: WatchedEvent) -> None:
        """Calls and forgets every watch that the event is for."""
        due: dict[tuple[int, Watch], None] = {}
        # Most znodes are not watched, and a topic of a thousand partitions is four thousand events.
        if event.event_type is not EventType.CHILDREN and event.path in self._data:
            due.update(self._data.pop(event.path))
        if event.event_type in _OF_CHILDREN and event.path in self._children:
            due.update(self._children.pop(event.path))
        for _, watch in due:
            try:
                watch(event)
            except Exception:
                # One session's fault must not keep the others from hearing, nor undo what is committed.
                log.exception("the watch of %s failed at %s", event.path, event.event_type.value)

    def data_paths(self) -> list[str]:
        """Where watches on data and existence are waiting."""
        return list(self._data)

    def children_paths(self) -> list[str]:
        """Where watches on children are waiting."""
        return list(self._children)

    def forget(self, session_id: int) -> None:
        """Drops the watches of a session that is over."""
        for table in (self._data, self._children):
            for path in list(table):
                for key in [watch for watch in table[path] if watch[0] == session_id]:
                    del table[path][key]
                if not table[path]:
                    del table[path]
