"""Looks after the ISRs of what this broker leads: sees what should change, has it asked for, and takes the answers in.

    a follower has fetched      it may have caught up: asked at once
    every half of the lag time  some may have lagged for too long
    every second                some that were about to join may be gone

What is right is decided by the partitions (`in_sync`), the asking is done by `isr_alterations`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from ottla.broker.purgatory import Waiting
from ottla.broker.replication.counts import IsrCounts
from ottla.broker.replication.isr_alterations import IsrAlterations, IsrController
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock, monotonic_ms
from ottla.errors import NONE
from ottla.interbroker.calls import AlteredPartition, IsrChange
from ottla.model import BrokerId, TopicPartition

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 1.0
LOOKED_AT_ONCE: Final = 500


class IsrRounds:
    """Looks after the ISRs.

    Args:
        broker_id: this broker.
        partitions: what it holds, for looking only.
        clock: what followers' progress is measured by.
        lag_time_max_ms: `replica.lag.time.max.ms`.
        waiting: what waits for high watermarks, which may move with an ISR.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        partitions: Mapping[TopicPartition, Partition],
        clock: Clock,
        lag_time_max_ms: int,
        waiting: Waiting,
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._clock = clock
        self._lag_time_max_ms = lag_time_max_ms
        self._waiting = waiting
        self.counts: Final = IsrCounts()
        self._joining: dict[TopicPartition, Partition] = {}
        self._alterations: IsrAlterations | None = None
        self._rounds: asyncio.Task[None] | None = None

    def start(self, controller: IsrController) -> None:
        """Begins; before, no ISR changes."""
        self._alterations = IsrAlterations(self._broker_id, controller, self)
        self._rounds = asyncio.get_running_loop().create_task(self._run(), name="ISR rounds")

    async def close(self) -> None:
        """Asks for nothing more."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.cancel()
            await asyncio.gather(rounds, return_exceptions=True)
        alterations, self._alterations = self._alterations, None
        if alterations is not None:
            await alterations.close()

    def now_ms(self) -> int:
        """Milliseconds of the clock that never goes back."""
        return monotonic_ms(self._clock)

    def fetched(self, partition: Partition, now_ms: int) -> None:
        """A follower that is not in the ISR has fetched, and may have caught up."""
        self._expand(partition, now_ms)
        if partition.in_sync.has_joining:
            self._joining[partition.topic_partition] = partition

    async def shrink(self) -> None:
        """Asks for ISRs without the followers that have lagged for too long."""
        alterations = self._alterations
        if alterations is None:
            return
        for index, partition in enumerate(list(self._partitions.values())):
            if index % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if len(partition.isr) > 1:
                change = partition.propose_shrink(self.now_ms(), self._lag_time_max_ms)
                if change is not None:
                    alterations.submit(change)

    def forget_absent(self) -> None:
        """Stops waiting for followers that were about to join and fetch no more."""
        for key, partition in list(self._joining.items()):
            if partition.forget_absent(self.now_ms()):
                self._waiting.check(key)
            if not partition.in_sync.has_joining:
                del self._joining[key]

    async def _run(self) -> None:
        interval_ms = self._lag_time_max_ms // 2
        time, looked_ms = asyncio.get_running_loop().time, self.now_ms()
        while True:
            began = time()
            await asyncio.sleep(min(ROUND_SECONDS, max(interval_ms, 1) / 1000))
            if time() - began > ROUND_SECONDS + interval_ms / 1000:  # the loop stood still, and no follower was answered meanwhile
                looked_ms = self.now_ms()
            self.forget_absent()
            if self.now_ms() - looked_ms >= interval_ms:
                looked_ms = self.now_ms()
                await self.shrink()

    def _expand(self, partition: Partition, now_ms: int) -> None:
        if self._alterations is not None:
            change = partition.propose_expansion(now_ms)
            if change is not None:
                self._alterations.submit(change)

    def is_wanted(self, change: IsrChange) -> bool:
        """Whether the partition still asks for the change."""
        partition = self._partitions.get(change.topic_partition)
        return partition is not None and partition.in_sync.is_proposed(change)

    def altered(self, change: IsrChange, altered: AlteredPartition) -> bool:
        """What the controller answered; says whether it has to be asked again."""
        partition = self._partitions.get(change.topic_partition)
        if partition is None:
            return False
        now_ms = self.now_ms()
        former = partition.isr
        if partition.isr_altered(change, altered, now_ms):
            return True
        self.counts.expansions += len(partition.isr) > len(former)
        self.counts.shrinks += len(partition.isr) < len(former)
        self.counts.refused += altered.error != NONE
        self._waiting.check(change.topic_partition)
        self._expand(partition, now_ms)  # others may have caught up meanwhile
        return False
