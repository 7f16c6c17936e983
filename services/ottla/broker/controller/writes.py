"""The controller's writes: none takes place unless this broker is still the controller.

Each is a transaction that begins with a check of `/controller_epoch`'s version. A broker that slept through the end of
its session and takes itself for the controller still, changes nothing and is told NOT_CONTROLLER.

When a connection ends before the answer comes the outcome is unknown. It is found out by reading, for a transaction
took place whole or not at all: if the znodes are as it would have left them, it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ottla.coordination.errors import BadVersion, ConnectionLoss, CoordinationError, NodeExists, NoNode, RequestTooLarge, SessionExpired
from ottla.coordination.interface import Check, Coordination, Create, Delete, Operation, SetData
from ottla.coordination.requests import Run, operation_size
from ottla.coordination.znodes import CONTROLLER_EPOCH
from ottla.errors import InvalidRequest, NotController, RequestTimedOut, UnknownServerError

log: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
# Operations that are made in one stretch of the loop.
_MADE_AT_ONCE: Final = 500


@contextlib.contextmanager
def coordination_errors_as_api_errors(what: str) -> Iterator[None]:
    """Says in Kafka's terms what went wrong at the coordination service."""
    try:
        yield
    except ConnectionLoss as error:
        raise RequestTimedOut(f"{what}: {error}; it is unknown whether it took place") from error
    except SessionExpired as error:
        raise NotController(f"{what}: {error}, and with it this broker's time as the controller") from error
    except RequestTooLarge as error:
        raise InvalidRequest(f"{what}: {error}") from error
    except CoordinationError as error:
        log.error("%s: %s", what, error)
        raise UnknownServerError(f"{what}: {error}") from error


class ControllerWrites:
    """Writes in the name of one controller epoch."""

    def __init__(self, coordination: Coordination, epoch_version: int) -> None:
        """Made by whoever took `/controller`.

        Args:
            coordination: the session that holds `/controller`.
            epoch_version: the version that `/controller_epoch` has since.
        """
        self._coordination = coordination
        self._check = Check(CONTROLLER_EPOCH.path(), epoch_version)
        self._is_over = False

    def close(self) -> None:
        """Writes nothing more in the name of this epoch."""
        self._is_over = True

    async def write(self, operations: Sequence[Operation]) -> None:
        """All of the operations in one transaction, or none.

        Raises:
            NotController: another broker has become the controller, or this one has resigned.
        """
        lost = 0
        while True:
            if self._is_over:
                raise NotController("this broker's time as the controller is over")
            try:
                await self._coordination.transaction([self._check, *operations])
                return
            except (BadVersion, NodeExists, NoNode) as error:
                if lost and await self._took_place(operations):
                    return
                if error.operation_index == 0:
                    raise NotController(f"another broker is the controller: {error}") from error
                raise
            except ConnectionLoss:
                lost += 1
                if lost == _ATTEMPTS:
                    raise
                log.warning("%s: the answer to a write was lost; looking whether it took place", operations[0].path)
                if await self._took_place(operations):
                    return

    async def write_in_parts(self, operations: Iterable[Operation]) -> None:
        """As few transactions as ZooKeeper's limit of a request's size allows, in order.

        The operations are taken as they are needed, and some at a time, so that a generator of many does not hold up the loop.
        """
        chroot_size = self._coordination.chroot_size
        run = Run(operation_size(self._check) + chroot_size, chroot_size)
        for count, operation in enumerate(operations, 1):
            if (full := run.add(operation)) is not None:
                await self.write(full)
            elif count % _MADE_AT_ONCE == 0:
                await asyncio.sleep(0)
        if run.operations:
            await self.write(run.operations)

    async def _took_place(self, operations: Sequence[Operation]) -> bool:
        lost = 0
        while True:
            try:
                return all([await self._is_done(each) for each in operations])
            except ConnectionLoss:
                lost += 1
                if lost == _ATTEMPTS:
                    raise

    async def _is_done(self, operation: Operation) -> bool:
        try:
            match operation:
                case Create(sequential=True) | Check():
                    return True  # says nothing by itself, and comes with others that do
                case Create(path, data) | SetData(path, data):
                    return (await self._coordination.get(path))[0] == data
                case Delete(path):
                    return await self._coordination.exists(path) is None
        except NoNode:
            return False
