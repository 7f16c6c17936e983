"""Requests to the controller, through whatever keeps them from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import LoopClock

from ottla.errors import RequestTimedOut
from ottla.interbroker.calls import CreateTopicRequest, NewTopic
from ottla.interbroker.forwarding import Forwarder


class _Silent:
    """A locator that ZooKeeper does not answer until it is back."""

    def __init__(self) -> None:
        self.is_back = asyncio.Event()
        self.searches = 0

    async def find(self) -> Any:
        self.searches += 1
        await asyncio.Event().wait()

    async def wait_for_another(self) -> None:
        await asyncio.Event().wait()

    async def describe_topic(self, name: str) -> Any:
        await self.is_back.wait()


async def test_a_request_that_is_late_before_it_was_sent_is_not_sent_any_more() -> None:
    """Its client was told that its time is up, and may want something else by now."""
    locator, clock = _Silent(), LoopClock()
    creating = asyncio.create_task(Forwarder(locator).call(CreateTopicRequest(NewTopic("clicks", 1, 1), timeout_seconds=0.05)))
    await asyncio.sleep(0)
    clock.put_forward(2)
    await asyncio.wait([creating], timeout=0.5)
    locator.is_back.set()
    await asyncio.wait([creating], timeout=0.5)
    assert not locator.searches
    with pytest.raises(RequestTimedOut, match="ZooKeeper gave no answer"):
        await creating
