"""A thread looks into files while the log is cut, and grows again in another way, under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import KafkaStorageError
from ottla.storage.log import Log

from .logs import LogMaker, append, batch_of, fill


def between(make_log: LogMaker, happens: Callable[[], object], times: int = 1, *, before: bool = True) -> None:
    """What is offloaded runs right after, or right before, something has happened to the log; so often, then undisturbed."""
    left = times

    async def offload(function: Callable[..., Any], /, *arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0 and before:
            happens()
        result = function(*arguments)
        if left >= 0 and not before:
            happens()
        return result

    object.__setattr__(make_log.context, "offload", offload)


def grown(make_log: LogMaker) -> Log:
    log = make_log(index_interval_bytes=0)
    fill(log, 50, size=50)
    return log


def cut_and_grow(log: Log) -> None:
    log.truncate_to(3)
    fill(log, 40, size=110)


def test_a_place_in_an_index_that_was_cut_meanwhile_is_none(make_log: LogMaker) -> None:
    """The entries that the look was told of are not there any more: an error of no one's."""
    log = grown(make_log)
    between(make_log, lambda: log.truncate_to(3))
    asyncio.run(log.prepare_read(40))
    assert log.log_end_offset == 3


@pytest.mark.parametrize("before", [True, False])
def test_a_place_that_was_found_in_what_has_been_cut_is_not_remembered(make_log: LogMaker, before: bool) -> None:
    """Another batch lies over it by now, so anyone who read there would get the middle of something."""
    log = grown(make_log)
    between(make_log, lambda: cut_and_grow(log), before=before)
    asyncio.run(log.prepare_read(30))
    region = log.read(30, 1 << 20, log.log_end_offset, True)
    assert region is not None
    assert int.from_bytes(region.read()[:8]) == 30


@pytest.mark.parametrize("before", [True, False])
def test_a_timestamp_is_looked_for_again_after_a_cut(make_log: LogMaker, before: bool) -> None:
    log = make_log(index_interval_bytes=0)
    append(log, *(batch_of(offset, timestamp=1_000 + offset) for offset in range(50)))

    def cut_and_go_on() -> None:
        log.truncate_to(3)
        append(log, *(batch_of(offset, timestamp=5_000 + offset) for offset in range(3, 6)))

    between(make_log, cut_and_go_on, before=before)
    found = asyncio.run(log.offset_for_timestamp(1_040))
    assert found is not None
    assert (found.offset, found.timestamp) == (3, 5_003)
    assert not log.is_offline
    largest = asyncio.run(log.offset_of_max_timestamp())
    assert largest is not None
    assert largest.offset == 5


def test_a_log_that_is_cut_at_every_look_is_given_up(make_log: LogMaker) -> None:
    """And stays online: nothing is wrong with the disk."""
    log = grown(make_log)
    between(make_log, lambda: log.truncate_to(log.log_end_offset - 1), times=1_000, before=False)
    with pytest.raises(KafkaStorageError, match="changed at each"):
        asyncio.run(log.offset_for_timestamp(0))
    assert not log.is_offline
