"""When a leader looks for followers that lag."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.loops import LoopClock, until

from ottla.broker.purgatory import Purgatory, Waiting
from ottla.broker.replication.isr_rounds import IsrRounds
from ottla.model import BrokerId, TopicPartition

LAG_SECONDS = 30


class _LoopTime:
    """The loop's time as a `Clock`."""

    def time_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class _Led:
    """A partition with a follower in sync. Counts how often it is looked at."""

    isr = (BrokerId(1), BrokerId(2))
    looks = 0

    def propose_shrink(self, now_ms: int, lag_time_max_ms: int) -> None:
        self.looks += 1


async def test_no_isr_shrinks_by_what_was_not_read_while_the_loop_stood_still() -> None:
    """All followers have fetched nothing meanwhile, as no one answered them; they have half of the lag time to do so again."""
    led: Any = _Led()
    rounds = IsrRounds(
        BrokerId(1), {TopicPartition("clicks", 0): led}, _LoopTime(), LAG_SECONDS * 1000, Waiting(Purgatory(), Purgatory(), Purgatory())
    )
    controller: Any = None
    clock = LoopClock()
    rounds.start(controller)
    await asyncio.sleep(0)
    clock.put_forward(LAG_SECONDS + 10)
    for _ in range(LAG_SECONDS // 2 - 1):
        await asyncio.sleep(0.01)
        assert not led.looks
        clock.put_forward(1)
    for _ in range(3):
        clock.put_forward(1)
        await asyncio.sleep(0.01)
    await until(lambda: led.looks == 1)
    await rounds.close()
