"""What a coordinator does from time to time, of itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.loops import LoopClock, until

from ottla.broker.coordinator.state_partition import StatePartitions
from ottla.broker.metadata import MetadataCache
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition


async def test_what_was_not_read_while_the_loop_stood_still_goes_before_the_next_round() -> None:
    """The end of a transaction may lie in its socket that would be aborted for taking too long."""

    async def load(_: object) -> None:
        """It is read."""

    def made(key: TopicPartition, leader_epoch: int) -> Any:
        return SimpleNamespace(key=key, leader_epoch=leader_epoch, is_loaded=True, load=load, close=lambda: None, ended=lambda: load(None))

    partitions: StatePartitions[Any] = StatePartitions("state", lambda *led: _Hashable(made(*led)), offload_nothing, MetadataCache(), 1)
    partitions.lead(0, 0)
    clock, acted = LoopClock(), asyncio.Event()
    rounds = asyncio.create_task(partitions.rounds(10.0, lambda _: acted.set(), "it failed"))
    await asyncio.sleep(0)
    clock.put_forward(70)
    await asyncio.sleep(0.05)
    assert not acted.is_set()
    clock.put_forward(1)
    await until(acted.is_set)
    acted.clear()
    clock.put_forward(10)
    await until(acted.is_set)
    rounds.cancel()
    await partitions.close()


class _Hashable:
    def __init__(self, partition: SimpleNamespace) -> None:
        self.__dict__.update(partition.__dict__)
