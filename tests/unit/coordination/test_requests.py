"""How big a request may be, how many operations are cut to fit, and how long an answer is waited for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, RequestTooLarge
from ottla.coordination.interface import Check, Create, Operation, Result
from ottla.coordination.requests import MAX_REQUEST_SIZE, Run, operation_size, validate_operations
from ottla.coordination.retries import BoundedCoordination


def test_a_request_of_exactly_the_limit_is_accepted() -> None:
    empty = Create("/a")
    fits = Create("/a", b"x" * (MAX_REQUEST_SIZE - operation_size(empty)))
    validate_operations([fits])
    with pytest.raises(RequestTooLarge, match="/a: a request of 1048576 bytes is over ZooKeeper's limit of 1048575"):
        validate_operations([Create("/a", fits.data + b"x")])


@given(st.lists(st.integers(0, MAX_REQUEST_SIZE // 3), max_size=12), st.integers(0, 1_000), st.integers(0, 1_000))
def test_operations_are_cut_into_requests_that_fit_and_none_is_lost(sizes: list[int], reserved: int, chroot_size: int) -> None:
    def size_of(part: Sequence[Operation]) -> int:
        return sum(map(operation_size, part)) + chroot_size * len(part)

    operations = [Create(f"/n{index}", bytes(size)) for index, size in enumerate(sizes)]
    run = Run(reserved, chroot_size)
    parts = [full for operation in operations if (full := run.add(operation))] + [run.operations] * bool(operations)
    assert [operation for part in parts for operation in part] == operations
    for part in parts:
        validate_operations(part, chroot_size)
        assert size_of(part) <= MAX_REQUEST_SIZE - reserved
    for one, following in itertools.pairwise(parts):
        assert size_of([*one, following[0]]) > MAX_REQUEST_SIZE - reserved


async def test_an_answer_that_does_not_come_counts_as_lost() -> None:
    class Silent:
        def __init__(self, session: EmbeddedSession) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
            await asyncio.Event().wait()
            raise AssertionError("no one sets it")

    service = EmbeddedZooKeeper(None, SystemClock())
    session = await service.session()
    bounded = BoundedCoordination(Silent(session), 0.01)  # type: ignore[arg-type]
    with pytest.raises(ConnectionLoss, match=r"/a: no answer within 0\.01 s"):
        await bounded.transaction([Check("/a", 0)])
    bounded = BoundedCoordination(session, 60)
    assert await bounded.create("/a/b", b"1", make_parents=True) == "/a/b"
    assert (await bounded.get("/a/b"))[0] == b"1"
    assert (await bounded.set("/a/b", b"2")).version == 1
    assert await bounded.children("/a") == ["b"]
    await bounded.delete("/a/b")
    assert await bounded.exists("/a/b") is None
    assert bounded.session_id == session.session_id
    await bounded.close()
    await service.close()
