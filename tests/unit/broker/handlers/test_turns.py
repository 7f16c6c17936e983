"""What a handler does between two turns of the loop is bounded, however much its request names.

The requests are those of the sweep (`tests/security/sweep.py`), which measures them; here nothing is judged by a clock. What counts is
how many lines of Python are executed, and the loop's time goes on by a microsecond with each, so that a slice has five thousand.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType, GeneratorType
from typing import Any
from unittest import mock

from tests.security.sweep import Filler, cases, served

from ottla.broker.handlers.registry import APIS, RequestContext
from ottla.broker.handlers.waiting import begun
from ottla.lifecycle import ThreadOffload
from ottla.model import ANONYMOUS
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.primitives import decode_request_header

# Some thousand elements. What takes more than a few lines for each, and does not give the loop back, is far over the bound.
SIZE = 24 * 1024
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


async def test_no_request_keeps_the_loop_for_more_than_some_slices(broker: Any) -> None:
    for number in range(3):
        await broker.create(f"t{number}")
    offload = ThreadOffload(1, "offload")
    parts = replace(broker.parts, offload=offload)
    over = []
    for key, _, version in served():
        for case in cases(key, version, SIZE):
            if case.kind != "unknown" or key is ApiKey.PRODUCE:
                continue
            frame = memoryview(Filler(case).frame())
            api = APIS[key]
            body = frame[decode_request_header(frame, 4, len(frame), flexible=is_flexible(key, version)).body_position :]
            request = api.decode(body, version) if api.decode else messages.request_reader(key, version, api.max_version)(body)
            context = RequestContext(key, ANONYMOUS, "test", version, 5, "PLAINTEXT", "127.0.0.1")
            with counting() as turns:
                response = api.handle(request, context, parts)
                if isinstance(response, GeneratorType):
                    response = begun(response)
                if inspect.isawaitable(response):
                    await response
            if turns.most > MOST_LINES:
                over.append(f"{case}: {turns.most} lines of {turns.lines}")
    offload.close()
    assert not over, "\n".join(over)
