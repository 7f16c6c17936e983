"""Whose code runs. A node is one life of one process: what it started stops with it.

Every callback of the loop carries a context, and the context says which node it belongs to; tasks and timers that a
node's code makes inherit it. So a process is killed by never running its callbacks again (no `finally`, no farewell,
as with kill -9), and paused by holding them back.
"""

from __future__ import annotations

from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

NODE: Final[ContextVar[Node | None]] = ContextVar("node", default=None)


class Node:
    """One life of a process, by the name that the next life will have too."""

    __slots__ = ("context", "held", "is_alive", "is_paused", "name", "paused_seconds", "paused_since")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_alive = True
        self.is_paused = False
        self.paused_since = 0.0
        self.paused_seconds = 0.0  # in all the pauses that have ended
        self.held: deque[Any] = deque()  # callbacks of the loop, in their order
        self.context: Final = self._own_context()

    def _own_context(self) -> Context:
        context = copy_context()
        context.run(NODE.set, self)
        return context

    def __repr__(self) -> str:
        return f"Node({self.name!r}{'' if self.is_alive else ', dead'}{', paused' if self.is_paused else ''})"


def current_name() -> str:
    """The name of the node that runs; `-` for the simulation itself."""
    node = NODE.get()
    return "-" if node is None else node.name
