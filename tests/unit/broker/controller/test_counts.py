"""What the controller counts: a bounded number of kinds, whatever the topics are called."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from ottla.broker.controller import active
from ottla.broker.controller.counts import ControllerCounts, event_of
from ottla.broker.controller.turns import Turns


def test_every_operation_of_the_controller_has_a_kind() -> None:
    """Method: the sentences that `active` takes turns with. One that is added must get a kind, or it is counted as 'other'."""
    source = Path(active.__file__).read_text(encoding="utf-8")
    sentences = re.findall(r'(?:take|take_beside)\(\s*f?"([^"]+)"', source) + re.findall(r'what = f"([^"]+)"', source)
    sentences += [f"looking for {each}" for each in ("brokers", "topics", "log directories")]
    sentences.remove("looking for {what}")
    assert len(sentences) > 12
    assert not [each for each in sentences if event_of(each) == "other"]
    assert event_of("dancing") == "other"


def test_the_name_of_a_topic_makes_no_kind_of_its_own() -> None:
    async def run() -> None:
        counts = ControllerCounts()
        turns = Turns(lambda _: None, counts)

        async def nothing() -> None:
            assert turns.length

        for name in ("clicks", "orders"):
            await turns.take(f"creating topic {name}", nothing)
        await asyncio.sleep(0)
        assert counts.events == {"create_topic": 2}
        assert turns.length == 0

    asyncio.run(run())
