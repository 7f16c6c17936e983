"""What a broker knows of its own health, looked at again and again: what it does, and whether it is ready.

The looking is made to cost nothing once a broker is ready: its replicas are walked over only until all of them were in sync,
a few hundred at a time. Whoever asks gets what was found last. Owned by `observing`; one per life of a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.broker.readiness import Facts, Phase, Readiness, is_behind, judge
from ottla.model import BrokerId, PartitionState

log: Final = logging.getLogger(__name__)

# Between two looks: while it is not ready somebody waits for it.
SOON_SECONDS: Final = 0.1
LATER_SECONDS: Final = 0.5
# Times as long as a look took is waited until the next one.
SHARE: Final = 30
# Replicas looked at before others get a turn: a fifth of a millisecond.
AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the facts are. Each is asked at any time, and answers at once.

    Attributes:
        broker_epoch: of the registration that stands; -1 while there is none.
        told_epoch: the broker epoch under which a controller has told everything.
        drained_epoch: the broker epoch under which a handing over was asked for.
        replicas: the partitions that this broker has usable replicas of and that none is being added to here.
        full_directories: the log directories whose disks are full.
    """

    broker_id: BrokerId
    broker_epoch: Callable[[], int]
    told_epoch: Callable[[], int]
    drained_epoch: Callable[[], int]
    replicas: Callable[[], Iterable[PartitionState]]
    full_directories: Callable[[], Iterable[Path]] = tuple


class BrokerHealth:
    """The health of one broker, from before its start until after its end.

    Args:
        show: told whenever the broker has become ready or is so no more.
    """

    def __init__(self, show: Callable[[bool], Awaitable[None]] | None = None) -> None:
        self.phase = Phase.STARTING  # as `enter` set it
        self.show = show
        self.replicas_behind = 0  # as of the last look; of no meaning once they were in sync
        self._sources: Sources | None = None
        self._were_in_sync = False
        self._shown = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, sources: Sources) -> None:
        """Looks at these from now on, in a task."""
        self._sources = sources
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
        self._sources = None

    @property
    def readiness(self) -> Readiness:
        """The judgement as of now."""
        sources = self._sources
        if sources is None:
            return judge(Facts(self.phase))
        return judge(
            Facts(
                self.phase,
                sources.broker_epoch(),
                sources.told_epoch(),
                sources.drained_epoch(),
                were_in_sync=self._were_in_sync,
                full_directories=tuple(map(str, sources.full_directories())),
            )
        )

    async def look(self) -> Readiness:
        """Looks now, and tells what has changed."""
        readiness = self.readiness
        if readiness.controller_known and not self._were_in_sync and self._sources is not None:
            await self._look_at_replicas(self._sources)
        return await self._tell()

    async def _look_on(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            readiness = await self.look()
            # Replicas may take hours to catch up, and looking at many of them must not slow that down.
            soon = max(SOON_SECONDS, SHARE * (time() - began))
            await asyncio.sleep(LATER_SECONDS if readiness.is_ready else soon)

    async def _look_at_replicas(self, sources: Sources) -> None:
        behind = 0
        for index, state in enumerate(list(sources.replicas()), start=1):
            behind += is_behind(sources.broker_id, state)
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
                log.info("the broker is not ready any more: %s", readiness.reason)
            if self.show is not None:
                await self.show(readiness.is_ready)
        return readiness
