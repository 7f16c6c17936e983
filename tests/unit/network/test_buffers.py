"""Large receive buffers: reused, bounded, and given to those who wait in their order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.network.buffers import IDLE_BYTES, SHARED_SIZE, ReceiveBuffers, memory_of_process

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
    for buffer in taken:
        assert buffer is not None
        buffers.give_back(buffer)
    again = [buffers.take(IDLE_BYTES // 2) for _ in range(3)]
    assert sum(any(buffer is other for other in taken) for buffer in again) == 2


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


def test_reads_are_short_only_where_an_address_may_have_had_its_part() -> None:
    """Asked at each read, so it is a flag: no address can have so much unless all together have it."""
    buffers = ReceiveBuffers(4 * MIB, MIB)
    assert not buffers.is_scarce
    assert buffers.keep("10.0.0.1", MIB - SHARED_SIZE)
    assert not buffers.is_scarce
    assert buffers.keep("10.0.0.2", 1)
    assert buffers.is_scarce
    assert buffers.has_room("10.0.0.1")
    assert buffers.keep("10.0.0.2", -1)
    assert not buffers.is_scarce


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"sys/fs/cgroup/memory.max": "max"}, None),
        ({"sys/fs/cgroup/memory.max": "1048576"}, MIB),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1048576"}, MIB),
        ({"proc/self/cgroup": "0::/system.slice/ottla.service", "sys/fs/cgroup/system.slice/ottla.service/memory.max": "2097152"}, 2 * MIB),
        ({"proc/self/cgroup": "4:memory:/ottla", "sys/fs/cgroup/memory/memory.limit_in_bytes": "3145728"}, 3 * MIB),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
    ids=["no groups", "no limit", "container", "container with a namespace", "service", "version 1", "version 1, no limit"],
)
def test_what_memory_there_is_the_container_says_or_the_machine(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_of_process(tmp_path) == (machine if limit is None else limit)
