"""The embedded twin's tree against a plain model of ZooKeeper's rules, with random requests (Hypothesis)."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordination.embedded_tree import Draft, Node, Tree, tree_of
from ottla.coordination.errors import CoordinationError
from ottla.coordination.interface import Create, Delete, Operation, SetData
from ottla.coordination.znodes import parent_of

PATHS = st.sampled_from(["/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a", "/a/a/b"])
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, st.binary(max_size=2), st.booleans(), st.booleans()),
    st.builds(SetData, PATHS, st.binary(max_size=2), st.sampled_from([-1, 0, 1])),
    st.builds(Delete, PATHS, st.sampled_from([-1, -1, 0])),
)
REQUESTS = st.tuples(st.integers(1, 3), st.lists(OPERATIONS, min_size=1, max_size=4))
END_OF_SESSION: st.SearchStrategy[tuple[int, list[Operation]]] = st.tuples(st.integers(1, 3), st.builds(list))
GROUPS = st.lists(st.lists(st.one_of(REQUESTS, REQUESTS, REQUESTS, END_OF_SESSION), max_size=6), max_size=6)


def run(draft: Draft, session_id: int, operations: list[Operation]) -> None:
    if not operations:
        draft.end_session(session_id, 1)
        return
    with contextlib.suppress(CoordinationError):
        draft.run(session_id, operations, 1)


def consistent(tree: Tree) -> None:
    for path, node in tree.nodes.items():
        children = tree.children(path)
        assert len(children) == node.child_count == node.stat().num_children
        assert all(path.rstrip("/") + "/" + name in tree.nodes for name in children)
        assert node.stat().cversion >= node.child_count
        if path != "/":
            parent = tree.nodes[parent_of(path)]
            assert parent.ephemeral_owner == 0
            assert parent.pzxid >= node.czxid
        if node.ephemeral_owner:
            assert path in tree.ephemerals(node.ephemeral_owner)
    owned = [path for owner in tree.owners() for path in tree.ephemerals(owner)]
    assert sorted(owned) == sorted(path for path, node in tree.nodes.items() if node.ephemeral_owner)


@given(GROUPS)
def test_requests_in_groups_end_where_they_end_one_by_one(groups: list[list[tuple[int, list[Operation]]]]) -> None:
    """Group commit must not be seen in the result, and the rows that were committed must give the same tree again."""
    grouped, single = Tree(), Tree()
    rows: dict[str, Node] = {}
    for group in groups:
        draft = Draft(grouped)
        before = dict(grouped.nodes)
        for session_id, operations in group:
            run(draft, session_id, operations)
            alone = Draft(single)
            run(alone, session_id, operations)
            single.apply(alone.changes, alone.zxid)
            consistent(single)
        assert grouped.nodes == before  # nothing is visible before it is applied
        grouped.apply(draft.changes, draft.zxid)
        for path, node in draft.changes.items():
            if node is None:
                rows.pop(path, None)
            else:
                rows[path] = node
        consistent(grouped)
        assert grouped.nodes == single.nodes
        assert grouped.zxid == single.zxid
        assert tree_of(rows.items(), grouped.zxid).nodes == grouped.nodes


def test_a_request_that_fails_uses_no_zxid() -> None:
    draft = Draft(Tree())
    run(draft, 1, [Create("/a/b")])
    assert (draft.zxid, draft.changes, draft.events) == (0, {}, [])
