"""Who is the controller: taking `/controller`, or watching who has it.

Whoever takes `/controller` takes the next epoch in the same transaction, so that no two controllers ever share one. A
watch sees it go, and then everybody tries again. A create whose outcome is unknown is settled by reading whose session
owns the znode.

One elector for each session; it decides nothing but this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ottla.broker.controller.membership import make_znode, retried
from ottla.clock import Clock
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, ConnectionLoss, NodeExists, NoNode, SessionExpired
from ottla.coordination.interface import Coordination, Create, Operation, SetData, Watch
from ottla.errors import ApiError, OttlaError
from ottla.model import BrokerId

log: Final = logging.getLogger(__name__)

# Before the next attempt after two terms that failed one upon the other; it doubles with each further one.
_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 5.0
# A term that goes on for so long is no failed attempt, whatever ends it.
_SOUND_SECONDS: Final = 10.0
# The same reason is told again only after so long.
_TOLD_AGAIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One broker's time as the controller. `epoch_version` is that of `/controller_epoch`, which every write checks; None: not ours."""

    broker_id: BrokerId
    epoch: int
    epoch_version: int | None

    @property
    def is_own(self) -> bool:
        return self.epoch_version is not None


class Elector:
    """The election, as one session takes part in it.

    Args:
        coordination: the session.
        broker_id: this broker.
        clock: for the timestamp in `/controller`.
        begins: told of each term that begins, this broker's or another's. An own term that it fails to begin is begun again.
        ended: called at once when the term that began last is over.
    """

    def __init__(
        self,
        coordination: Coordination,
        broker_id: BrokerId,
        clock: Clock,
        begins: Callable[[ControllerTerm], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        self._coordination = coordination
        self._broker_id = broker_id
        self._clock = clock
        self._begins = begins
        self._ended = ended
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failures = 0  # terms, one upon the other
        self._failed_at = self._told_at = -math.inf
        self._told_why, self._untold = "", 0

    async def start(self) -> None:
        """Takes part once, and from then on whenever `/controller` changes.

        Raises:
            CoordinationError: it can not be found out who is the controller.
        """
        try:
            await self._elect()
        except ApiError as error:
            log.warning("broker %d could not begin as the controller, trying again: %s", self._broker_id, error)
            self._happened()
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Takes part no more. What is under way stops where it waits."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()

    async def wait_closed(self) -> None:
        """Waits until nothing is under way any more."""
        if self._watching is not None:
            await asyncio.wait([self._watching])

    def term_failed(self, why: str) -> None:
        """Has another look, as if `/controller` had changed: what is known of it has proved wrong.

        At once the first time, and after a pause when the attempt before failed as well: a coordination service whose disk
        is full fails each.
        """
        now = asyncio.get_running_loop().time()
        self._failures = self._failures + 1 if now - self._failed_at < _SOUND_SECONDS + self._pause() else 1
        self._failed_at = now
        if why != self._told_why or now - self._told_at >= _TOLD_AGAIN_SECONDS:
            again = f" (and {self._untold} times more since the last word of it)" if self._untold else ""
            log.warning("broker %d can not go on as the controller, trying again: %s%s", self._broker_id, why, again)
            self._told_why, self._told_at, self._untold = why, now, 0
        else:
            self._untold += 1
        self._happened()

    def _pause(self) -> float:
        return 0.0 if self._failures < 2 else min(_PAUSE_SECONDS * 2 ** min(self._failures - 2, 10), _LONGEST_PAUSE_SECONDS)

    async def _elect(self) -> None:
        self._changed = changed = asyncio.Event()
        term = await take_or_see(self._coordination, self._broker_id, self._clock, lambda _: self._happened(changed))
        if not self._is_closed:
            await self._begins(term)

    def _happened(self, changed: asyncio.Event | None = None) -> None:
        if not self._is_closed and changed in (None, self._changed):
            self._ended()
            self._changed.set()

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._failed_at + self._pause() - asyncio.get_running_loop().time())
            try:
                await self._elect()
            except SessionExpired:
                return  # the next session has an elector of its own
            except Exception as error:
                if not isinstance(error, OttlaError):
                    log.exception("the election of a controller goes on after a failure")
                self._failures = max(self._failures, 1)  # the next attempt is not the first
                self.term_failed(str(error))


async def take_or_see(coordination: Coordination, broker_id: BrokerId, clock: Clock, watch: Watch) -> ControllerTerm:
    """Becomes the controller, or says who is. The watch is on `/controller`."""
    path, epoch_path = znodes.CONTROLLER.path(), znodes.CONTROLLER_EPOCH.path()
    while True:
        with contextlib.suppress(NoNode):
            data, stat = await retried(lambda: coordination.get(path, watch))
            epoch, version = await _epoch(coordination)
            if stat.ephemeral_owner == coordination.session_id:
                log.info("broker %d is the controller, epoch %d", broker_id, epoch)
                return ControllerTerm(broker_id, epoch, version)
            return ControllerTerm(znodes.decode_controller(path, data), epoch, None)
        try:
            epoch, version = await _epoch(coordination)
        except NoNode:
            await make_znode(coordination, epoch_path, znodes.encode_controller_epoch(0))
            continue
        operations: list[Operation] = [
            Create(path, znodes.encode_controller(broker_id, clock.time_ms()), ephemeral=True),
            SetData(epoch_path, znodes.encode_controller_epoch(epoch + 1), version),
        ]
        with contextlib.suppress(NodeExists, BadVersion, ConnectionLoss):  # the next look tells what came of it
            await coordination.transaction(operations)


async def _epoch(coordination: Coordination) -> tuple[int, int]:
    path = znodes.CONTROLLER_EPOCH.path()
    data, stat = await retried(lambda: coordination.get(path))
    return znodes.decode_controller_epoch(path, data), stat.version
