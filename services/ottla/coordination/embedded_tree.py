"""The embedded twin's znodes and the rules for changing them. No I/O, no clock, no event loop.

Writes go in two steps, because a reader must never see what a power cut could still take back. A `Draft` runs
requests against the tree without touching it and collects what would change; once that is on disk, `Tree.apply` makes
it visible and gives the events for the watches. Several requests can share a draft, and so one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from ottla.coordination.errors import BadArguments, BadVersion, CoordinationError, NoChildrenForEphemerals, NodeExists, NoNode, NotEmpty
from ottla.coordination.interface import ANY_VERSION, Check, Create, Delete, EventType, Operation, Result, SetData, Stat, WatchedEvent
from ottla.coordination.znodes import name_of, parent_of

NO_OWNER: Final = 0


class Node(NamedTuple):
    """One znode, as a row of the file has it. `children_made` never falls: a sequential child is named by it."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    children_made: int
    child_count: int
    ephemeral_owner: int

    def stat(self) -> Stat:
        """The Stat as ZooKeeper gives it."""
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            pzxid=self.pzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            # ZooKeeper counts creates and derives the changes from it: creates + deletes = 2 * creates - living children.
            cversion=2 * self.children_made - self.child_count,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.data),
            num_children=self.child_count,
        )

    def with_data(self, data: bytes, zxid: int, now_ms: int) -> Node:
        return self._replace(data=data, mzxid=zxid, mtime=now_ms, version=self.version + 1)

    def with_children(self, made: int, count: int, zxid: int) -> Node:
        return self._replace(children_made=made, child_count=count, pzxid=zxid)


ROOT: Final = Node(b"", 0, 0, 0, 0, 0, 0, 0, 0, NO_OWNER)


class Tree:
    """The znodes that are committed: what readers see."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Node] = {"/": ROOT}
        self._children: dict[str, dict[str, None]] = {}
        self._ephemerals: dict[int, set[str]] = {}

    def children(self, path: str) -> list[str]:
        """The names of a znode's children."""
        return list(self._children.get(path, ()))

    def ephemerals(self, session_id: int) -> frozenset[str]:
        """The paths that go when that session ends."""
        return frozenset(self._ephemerals.get(session_id, ()))

    def owners(self) -> list[int]:
        """The sessions that have ephemerals."""
        return list(self._ephemerals)

    def apply(self, changes: Mapping[str, Node | None], zxid: int) -> None:
        """Makes the changes of a draft visible. None is a znode that is gone."""
        for path, node in changes.items():
            former = self.nodes.get(path)
            if node is None:
                if former is not None:
                    del self.nodes[path]
                    # The parent may be among the changes too, and may have gone before.
                    self._children.get(parent_of(path), {}).pop(name_of(path), None)
                    self._children.pop(path, None)
            else:
                self.nodes[path] = node
                if former is None and path != "/":
                    self._children.setdefault(parent_of(path), {})[name_of(path)] = None
            former_owner = former.ephemeral_owner if former is not None else NO_OWNER
            owner = node.ephemeral_owner if node is not None else NO_OWNER
            if former_owner != owner:
                self._move_ephemeral(path, former_owner, owner)
        self.zxid = zxid

    def _move_ephemeral(self, path: str, former_owner: int, owner: int) -> None:
        if former_owner != NO_OWNER:
            paths = self._ephemerals[former_owner]
            paths.discard(path)
            if not paths:
                del self._ephemerals[former_owner]
        if owner != NO_OWNER:
            self._ephemerals.setdefault(owner, set()).add(path)


@dataclass(slots=True)
class _Attempt:
    """One request under way: dropped whole when one of its operations fails."""

    zxid: int
    now_ms: int
    changes: dict[str, Node | None] = field(default_factory=dict)
    events: list[WatchedEvent] = field(default_factory=list)


class Draft:
    """Requests that ran, one after the other, on top of a tree that does not know of them yet."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.zxid = tree.zxid
        self.changes: dict[str, Node | None] = {}
        self.events: list[WatchedEvent] = []

    def run(self, session_id: int, operations: Sequence[Operation], now_ms: int, make_parents: bool = False) -> list[Result]:
        """Runs one request, whole or not at all, and gives a result for each operation.

        Args:
            session_id: who owns the ephemerals that it makes.
            operations: what to do, in order.
            now_ms: what becomes ctime and mtime.
            make_parents: creates make the parents that are missing.
        """
        attempt = _Attempt(self.zxid + 1, now_ms)
        results: list[Result] = []
        for index, operation in enumerate(operations):
            try:
                if make_parents and isinstance(operation, Create):
                    self._make_parents(attempt, operation.path)
                results.append(self._run_one(attempt, session_id, operation))
            except CoordinationError as error:
                error.operation_index = index
                raise
        self._accept(attempt)
        return results

    def end_session(self, session_id: int, now_ms: int) -> None:
        """Removes the ephemerals of a session, in one write as ZooKeeper does."""
        paths = {path for path, node in self.changes.items() if node is not None and node.ephemeral_owner == session_id}
        paths.update(path for path in self._tree.ephemerals(session_id) if path not in self.changes)
        if not paths:
            return
        attempt = _Attempt(self.zxid + 1, now_ms)
        for path in sorted(paths):
            self._run_one(attempt, session_id, Delete(path))
        self._accept(attempt)

    def _accept(self, attempt: _Attempt) -> None:
        self.zxid = attempt.zxid
        self.changes.update(attempt.changes)
        self.events.extend(attempt.events)

    def _find(self, attempt: _Attempt, path: str) -> Node | None:
        if path in attempt.changes:
            return attempt.changes[path]
        if path in self.changes:
            return self.changes[path]
        return self._tree.nodes.get(path)

    def _get(self, attempt: _Attempt, path: str, version: int) -> Node:
        node = self._find(attempt, path)
        if node is None:
            raise NoNode(f"{path}: there is no such znode")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path}: has version {node.version}, not {version}")
        return node

    def _run_one(self, attempt: _Attempt, session_id: int, operation: Operation) -> Result:
        match operation:
            case Create():
                return self._create(attempt, session_id, operation)
            case SetData(path, data, version):
                node = self._get(attempt, path, version).with_data(data, attempt.zxid, attempt.now_ms)
                attempt.changes[path] = node
                attempt.events.append(WatchedEvent(EventType.CHANGED, path))
                return node.stat()
            case Delete(path, version):
                self._delete(attempt, path, version)
                return None
            case Check(path, version):
                self._get(attempt, path, version)
                return None
            case _:
                assert_never(operation)

    def _create(self, attempt: _Attempt, session_id: int, operation: Create) -> str:
        path = operation.path
        parent_path = parent_of(path)
        parent = self._find(attempt, parent_path)
        if parent is None:
            raise NoNode(f"{path}: its parent {parent_path} does not exist")
        if operation.sequential:
            path = f"{path}{parent.children_made:010d}"
        if self._find(attempt, path) is not None:
            raise NodeExists(f"{path}: exists already")
        if parent.ephemeral_owner != NO_OWNER:
            raise NoChildrenForEphemerals(f"{path}: its parent {parent_path} is ephemeral (session {parent.ephemeral_owner:#x})")
        owner = session_id if operation.ephemeral else NO_OWNER
        zxid, now_ms = attempt.zxid, attempt.now_ms
        attempt.changes[path] = Node(operation.data, zxid, zxid, zxid, now_ms, now_ms, 0, 0, 0, owner)
        attempt.changes[parent_path] = parent.with_children(parent.children_made + 1, parent.child_count + 1, zxid)
        attempt.events.append(WatchedEvent(EventType.CREATED, path))
        attempt.events.append(WatchedEvent(EventType.CHILDREN, parent_path))
        return path

    def _make_parents(self, attempt: _Attempt, path: str) -> None:
        missing: list[str] = []
        parent = parent_of(path)
        while self._find(attempt, parent) is None:
            missing.append(parent)
            parent = parent_of(parent)
        for ancestor in reversed(missing):
            self._create(attempt, NO_OWNER, Create(ancestor))

    def _delete(self, attempt: _Attempt, path: str, version: int) -> None:
        if path == "/":
            raise BadArguments("the root cannot be deleted")
        node = self._get(attempt, path, version)
        if node.child_count:
            raise NotEmpty(f"{path}: has {node.child_count} children")
        parent_path = parent_of(path)
        parent = self._get(attempt, parent_path, ANY_VERSION)
        attempt.changes[path] = None
        attempt.changes[parent_path] = parent.with_children(parent.children_made, parent.child_count - 1, attempt.zxid)
        attempt.events.append(WatchedEvent(EventType.DELETED, path))
        attempt.events.append(WatchedEvent(EventType.CHILDREN, parent_path))


def tree_of(nodes: Iterable[tuple[str, Node]], zxid: int) -> Tree:
    """The tree of znodes as they were stored. Raises NoNode when they do not make up a tree."""
    tree = Tree()
    stored = dict(nodes)
    tree.apply(stored, zxid)
    for path, node in stored.items():
        if parent_of(path) not in tree.nodes:
            raise NoNode(f"{path}: its parent {parent_of(path)} is missing")
        if len(tree.children(path)) != node.child_count:
            raise NoNode(f"{path}: should have {node.child_count} children and has {len(tree.children(path))}")
    return tree
