"""What a broker knows of its own health, looked at again and again: what it does, and whether it is ready.

The looking is made to cost nothing once a broker is ready: its replicas are walked over only until all of them were in sync,
a few hundred at a time. Anyone who asks gets what was found last. Owned by `observing`; one per life of a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final, Protocol

from ottla.broker.readiness import Facts, Phase, Readiness, is_behind, judge
from ottla.model import BrokerId, PartitionState

log: Final = logging.getLogger(__name__)

# Between two looks: while it is not ready a probe waits for it.
SOON_SECONDS: Final = 0.1
LATER_SECONDS: Final = 0.5
# Times as long as a look took is waited until the next one.
SHARE: Final = 30
# Replicas looked at before others get a turn: a fifth of a millisecond.
AT_ONCE: Final = 500


class HealthSource(Protocol):
    """A broker that has been put together. Each method is called at any time, and answers at once."""

    @property
    def broker_id(self) -> BrokerId:
        """Its id."""

    def facts(self, phase: Phase, were_in_sync: bool) -> Facts:
        """What is known of it now, given its phase, and whether its replicas have been in sync."""

    def replicas(self) -> Iterator[PartitionState]:
        """The partitions that it has usable replicas of, and that none is being added to here."""

    async def show_ready(self, is_ready: bool) -> None:
        """It has become ready, or is not any longer."""


class BrokerHealth:
    """The health of one broker, from before its start until after its end."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING  # as `enter` set it
        self.replicas_behind = 0  # as of the last look; of no meaning once they were in sync
        self._source: HealthSource | None = None
        self._were_in_sync = False
        self._shown = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, source: HealthSource) -> None:
        """Looks at it from now on, in a task."""
        self._source = source
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_on())

    async def enter(self, phase: Phase) -> None:
        """Does something else from now on."""
        self.phase = phase
        await self.look()

    async def close(self) -> None:
        """Looks no more. What was ready is not any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._tell()
        self._source = None

    @property
    def readiness(self) -> Readiness:
        return judge(Facts(self.phase) if self._source is None else self._source.facts(self.phase, self._were_in_sync))

    async def look(self) -> Readiness:
        readiness = self.readiness
        if readiness.controller_known and not self._were_in_sync and self._source is not None:
            await self._look_at_replicas(self._source)
        return await self._tell()

    async def _look_on(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            readiness = await self.look()
            # Replicas may take hours to catch up, and looking at many of them must not slow that down.
            soon = max(SOON_SECONDS, SHARE * (time() - began))
            await asyncio.sleep(LATER_SECONDS if readiness.is_ready else soon)

    async def _look_at_replicas(self, source: HealthSource) -> None:
        behind = 0
        for index, state in enumerate(list(source.replicas()), start=1):
            behind += is_behind(source.broker_id, state)
            if index % AT_ONCE == 0:
                await asyncio.sleep(0)
        self.replicas_behind = behind
        self._were_in_sync = behind == 0

    async def _tell(self) -> Readiness:
        readiness = self.readiness
        if readiness.is_ready != self._shown:
            self._shown = readiness.is_ready
            if readiness.is_ready:
                log.info("the broker is ready")
            else:
                log.info("the broker is no longer ready: %s", readiness.reason)
            if self._source is not None:
                await self._source.show_ready(readiness.is_ready)
        return readiness
