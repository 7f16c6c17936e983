"""Large receive buffers: reused, bounded, and given to those who wait in their order."""

from __future__ import annotations

from collections.abc import Callable

from ottla.network.buffers import IDLE_BYTES, ReceiveBuffers

MIB = 1024 * 1024


def taker(buffers: ReceiveBuffers, size: int, taken: list[str], name: str) -> Callable[[], None]:
    def take() -> None:
        if buffers.take(size) is not None:
            taken.append(name)

    return take


def test_a_buffer_given_back_is_reused_for_as_much_or_less() -> None:
    buffers = ReceiveBuffers()
    small, large = buffers.take(MIB), buffers.take(2 * MIB)
    assert small is not None
    assert large is not None
    buffers.give_back(large)
    buffers.give_back(small)
    assert buffers.take(MIB - 1) is small, "the smallest that is large enough"
    assert buffers.take(MIB) is large
    assert buffers.take(MIB) is not large


def test_no_more_than_some_is_kept_for_reuse() -> None:
    buffers = ReceiveBuffers()
    taken = [buffers.take(IDLE_BYTES // 2) for _ in range(3)]
    for each in taken:
        assert each is not None
        buffers.give_back(each)
    again = [buffers.take(IDLE_BYTES // 2) for _ in range(3)]
    assert sum(any(each is other for other in taken) for each in again) == 2


def test_the_bound_refuses_and_one_frame_alone_may_be_larger() -> None:
    buffers = ReceiveBuffers(3 * MIB)
    alone = buffers.take(10 * MIB)
    assert alone is not None
    assert buffers.take(1) is None
    buffers.give_back(alone)
    first = buffers.take(2 * MIB)
    assert first is not None
    assert buffers.take(2 * MIB) is None
    assert buffers.take(MIB) is not None


def test_a_growing_frame_is_not_in_its_own_way() -> None:
    """What it has does not count beside what it wants, so a single large frame can always continue."""
    buffers = ReceiveBuffers(3 * MIB)
    first = buffers.take(MIB)
    assert first is not None
    larger = buffers.take(4 * MIB, first)
    assert larger is not None
    buffers.give_back(first)
    assert buffers.take(1) is None
    assert buffers.take(16 * MIB, larger) is not None


def test_whoever_waits_is_told_in_order_as_far_as_there_is_room() -> None:
    buffers = ReceiveBuffers(4 * MIB)
    held = buffers.take(4 * MIB)
    assert held is not None
    taken: list[str] = []
    for name in "abc":
        buffers.when_available(2 * MIB, taker(buffers, 2 * MIB, taken, name))
    buffers.give_back(held)
    assert taken == ["a", "b"]


def test_one_that_has_gone_or_takes_nothing_swallows_nobodys_turn() -> None:
    buffers = ReceiveBuffers(2 * MIB)
    held = buffers.take(2 * MIB)
    assert held is not None
    taken: list[str] = []
    gone = taker(buffers, MIB, taken, "gone")
    buffers.when_available(MIB, gone)
    buffers.when_available(MIB, lambda: None)
    buffers.when_available(MIB, taker(buffers, MIB, taken, "waiting"))
    buffers.stop_waiting(gone)
    buffers.stop_waiting(gone)
    buffers.give_back(held)
    assert taken == ["waiting"]


def test_who_waits_twice_waits_once() -> None:
    buffers = ReceiveBuffers(2 * MIB)
    held = buffers.take(2 * MIB)
    assert held is not None
    taken: list[str] = []
    again = taker(buffers, MIB, taken, "again")
    for _ in range(3):
        buffers.when_available(MIB, again)
    buffers.give_back(held)
    assert taken == ["again"]
