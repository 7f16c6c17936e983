"""Asks the controller for the ISRs that leaders want, many partitions a call, until it has answered.

One call is on its way at a time; what is wanted meanwhile goes with the next. A call that fails says nothing of what
the controller has done, so the same changes are sent again, as long as their partitions still want them: the partition
epoch in each lets none be made twice.

What is wanted is decided by the partitions (`isr`); this only carries it there and back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from ottla.errors import NONE, OttlaError, error_of, reason_of
from ottla.interbroker.calls import AlteredPartition, AlterPartitionRequest, AlterPartitionResponse, IsrChange, IsrMember
from ottla.lifecycle import Backoff
from ottla.model import BrokerId, TopicPartition

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 1000  # partitions in a call, so that its message stays small
BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0)
CALL_SECONDS: Final = 30.0


class IsrController(Protocol):
    """The controller, wherever it is: `ottla.broker.controller.service.ControllerService`."""

    @property
    def broker_epoch(self) -> int:
        """Of this broker's latest registration."""
        ...

    async def alter_partition(self, request: AlterPartitionRequest, /) -> AlterPartitionResponse:
        """Changes ISRs. Raises OttlaError or OSError when no answer was to be had."""
        ...


class IsrOwner(Protocol):
    """Who wants changes: `ottla.broker.replication.isr_rounds.IsrRounds`."""

    def is_wanted(self, change: IsrChange) -> bool:
        """Whether the change has not been overtaken."""
        ...

    def altered(self, change: IsrChange, altered: AlteredPartition) -> bool:
        """Takes in a response; says whether the change has to be requested again."""
        ...


class IsrAlterations:
    """The changes that wait for the controller, by partition.

    Args:
        broker_id: this broker.
        controller: decides.
        owner: hears what it decided.
    """

    def __init__(self, broker_id: BrokerId, controller: IsrController, owner: IsrOwner) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._owner = owner
        self._waiting: dict[TopicPartition, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: IsrChange) -> None:
        """Asks for a change, in place of any other of the same partition that waits."""
        self._waiting[change.topic_partition] = change
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="ISR changes")

    async def close(self) -> None:
        """Asks no more; whether the call on its way was heard is left open."""
        task, self._task = self._task, None
        self._waiting.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_all(self) -> None:
        failures = 0
        try:
            while changes := self._next():
                if await self._send(changes):
                    failures = 0
                else:
                    await asyncio.sleep(BACKOFF.seconds(failures))
                    failures += 1
        finally:
            self._task = None

    def _next(self) -> dict[TopicPartition, IsrChange]:
        for key in [key for key, change in self._waiting.items() if not self._owner.is_wanted(change)]:
            del self._waiting[key]
        return dict(list(self._waiting.items())[:MOST_AT_ONCE])

    async def _send(self, changes: Mapping[TopicPartition, IsrChange]) -> bool:
        """One call; says whether everything in it was answered for good."""
        broker_epoch = self._controller.broker_epoch
        request = AlterPartitionRequest(
            self._broker_id, broker_epoch, tuple(self._with_own_epoch(change, broker_epoch) for change in changes.values())
        )
        try:
            response = await asyncio.wait_for(self._controller.alter_partition(request), CALL_SECONDS)
        except (OttlaError, OSError) as error:
            log.warning("AlterPartition of %d ISRs failed, retrying: %s", len(changes), reason_of(error))
            return False
        except Exception:  # of a controller in this process, whose term has ended by that; the next one is asked
            log.exception("AlterPartition of %d ISRs failed unexpectedly, retrying", len(changes))
            return False
        if response.error != NONE:
            log.warning("AlterPartition of %d ISRs was refused, retrying: %s", len(changes), error_of(response.error))
            return False
        is_done = True
        for key, change in changes.items():
            altered = response.partitions.get(key)
            if altered is None:
                log.error("%s: missing in the controller's AlterPartition response", key)
                is_done = False
            elif self._owner.altered(change, altered):
                is_done = False
            elif self._waiting.get(key) is change:
                del self._waiting[key]
        return is_done

    def _with_own_epoch(self, change: IsrChange, broker_epoch: int) -> IsrChange:
        members = tuple(
            IsrMember(replica.broker_id, broker_epoch) if replica.broker_id == self._broker_id else replica for replica in change.new_isr
        )
        return replace(change, new_isr=members)
