"""What a handler does between two turns of the loop is bounded, however much its request names.

The requests are those of the sweep (`tests/security/sweep.py`), which measures them; here nothing is judged by a clock. What counts is
how many lines of Python are executed, and the loop's time goes on by a microsecond with each, so that a slice has five thousand.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType, GeneratorType
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from tests.loops import until
from tests.security.sweep import Filler, cases, served
from tests.security.victim import array, request

from ottla.broker.handlers.registry import APIS, BrokerParts, RequestContext
from ottla.broker.handlers.waiting import begun
from ottla.lifecycle import ThreadOffload
from ottla.model import ANONYMOUS, BrokerId, PartitionState, TopicDescription
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.primitives import compact_string, decode_request_header, string

# Some thousand elements. What takes more than a few lines for each, and does not give the loop back, is far over the bound.
SIZE = 16 * 1024
MOST_LINES = 40_000


class Turns:
    """The turns of the loop, and the most lines that were executed between two of them."""

    def __init__(self) -> None:
        self.lines = 0
        self.most = 0
        self.is_over = False
        self._last = 0

    def turn(self) -> None:
        self.most = max(self.most, self.lines - self._last)
        self._last = self.lines
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self.turn)


@contextmanager
def counting() -> Iterator[Turns]:
    """Counts lines of this thread, and makes them the loop's time."""
    turns, before = Turns(), sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            turns.lines += 1
        return trace

    with mock.patch.object(asyncio.get_running_loop(), "time", lambda: turns.lines * 1e-6):
        turns.turn()
        sys.settrace(trace)
        try:
            yield turns
        finally:
            sys.settrace(before)
            turns.turn()
            turns.is_over = True


async def turns_of(request: bytes, key: ApiKey, version: int, parts: BrokerParts) -> tuple[Turns, Any]:
    """Has a request answered; gives the turns that it took, and the answer."""
    api, frame = APIS[key], memoryview(request)
    body = frame[decode_request_header(frame, 4, len(frame), flexible=is_flexible(key, version)).body_position :]
    asked = api.decode(body, version) if api.decode else messages.request_reader(key, version, api.max_version)(body)
    context = RequestContext(key, ANONYMOUS, "test", version, 5, "PLAINTEXT", "127.0.0.1")
    with counting() as turns:
        response = api.handle(asked, context, parts)
        if isinstance(response, GeneratorType):
            response = begun(response)
        if inspect.isawaitable(response):
            response = await response
    return turns, response


@pytest.fixture
def offload() -> Iterator[ThreadOffload]:
    """Lines of another thread do not count."""
    found = ThreadOffload(1, "offload")
    yield found
    found.close()


@pytest.mark.long  # four seconds of a core; `make attack` shows the same by the clock
async def test_no_request_keeps_the_loop_for_more_than_some_slices(broker: Any, offload: ThreadOffload) -> None:
    for number in range(3):
        await broker.create(f"t{number}")
    parts = replace(broker.parts, offload=offload)
    over = []
    for key, _, version in served():
        for case in cases(key, version, SIZE):
            if case.kind != "unknown" or key is ApiKey.PRODUCE:
                continue
            turns, _ = await turns_of(Filler(case).frame(), key, version, parts)
            if turns.most > MOST_LINES:
                over.append(f"{case}: {turns.most} lines of {turns.lines}")
    assert not over, "\n".join(over)


@pytest.mark.long
async def test_partitions_that_exist_are_answered_committed_and_forgotten_in_slices(broker: Any, offload: ThreadOffload) -> None:
    """A topic of 6,000 partitions, as metadata know it; none of them has a log here. A group without members commits for all of them."""
    await broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("g",))
    await until(lambda: not broker.parts.groups.is_loading)
    count = 6_000
    state = PartitionState(BrokerId(1), 0, (BrokerId(1),), (BrokerId(1),))
    broker.parts.metadata.put_topic(TopicDescription("wide", uuid4(), (state,) * count))
    parts = replace(broker.parts, offload=offload)
    numbers = range(count)
    offsets = array(struct.pack(">iqi", number, 1, -1) + b"\1\0" for number in numbers)
    commit = compact_string("g") + struct.pack(">i", -1) + b"\1\0" + array([compact_string("wide") + offsets + b"\0"]) + b"\0"
    delete = string("g") + struct.pack(">i", 1) + string("wide") + struct.pack(f">i{count}i", count, *numbers)
    for key, version, body in (
        (ApiKey.METADATA, 12, b"\0\0\0\0"),
        (ApiKey.OFFSET_COMMIT, 8, commit),
        (ApiKey.OFFSET_DELETE, 0, delete),
    ):
        turns, response = await turns_of(request(key, version, body), key, version, parts)
        codes = [int(partition.error_code) for topic in response.topics for partition in topic.partitions if partition.error_code]
        assert not codes, (key, len(codes), codes[:1])
        assert turns.most <= 2 * MOST_LINES, f"{key.api_name}: {turns.most} lines of {turns.lines}"
