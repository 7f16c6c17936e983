"""Joining the cluster: what every cluster has, this broker's registration, and becoming the controller.

Drivers only. What is written here is written before there is a controller, or makes one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from ottla.clock import Clock
from ottla.coordination import znodes
from ottla.coordination.errors import BadVersion, ConnectionLoss, NodeExists
from ottla.coordination.interface import Coordination, Create, SetData
from ottla.errors import ConfigurationError
from ottla.model import BrokerId, BrokerRegistration

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One broker's time as the controller."""

    epoch: int
    epoch_version: int  # of /controller_epoch, which every write checks


async def make_skeleton(coordination: Coordination) -> None:
    """Makes the znodes that every cluster has and that are missing."""
    missing = [path for path in znodes.SKELETON if await coordination.exists(path) is None]
    if missing:
        try:
            await coordination.transaction([Create(path) for path in missing])
        except (NodeExists, ConnectionLoss):
            # Another broker of a new cluster was quicker with some, or the answer was lost: one by one, then.
            for path in missing:
                await _make(coordination, path, b"")


async def read_or_make_cluster_id(coordination: Coordination, random: Random) -> str:
    """The cluster's id, made at its first start."""
    path = znodes.CLUSTER_ID.path()
    if await coordination.exists(path) is None:
        await _make(coordination, path, znodes.encode_cluster_id(znodes.encode_uuid(znodes.random_uuid(random))))
    return znodes.decode_cluster_id(path, (await coordination.get(path))[0])


async def generate_broker_id(coordination: Coordination, reserved_broker_max_id: int) -> BrokerId:
    """A broker id that nobody has, for a broker without one (`broker.id.generation.enable`). Made by counting writes."""
    path = znodes.BROKER_SEQUENCE.path()
    await make_skeleton(coordination)
    stat = await _retried(lambda: coordination.set(path, b""))  # one that took place twice only leaves a number out
    return BrokerId(reserved_broker_max_id + stat.version)


async def register_broker(
    coordination: Coordination, registration: BrokerRegistration, clock: Clock, session_timeout_seconds: float
) -> BrokerRegistration:
    """Says that this broker lives. Gives the registration with the broker's epoch.

    A broker that was killed and is back at once finds its own old registration, which stays until that session times
    out. So we wait that long, and no longer: then it is another broker with our id.
    """
    path = znodes.BROKER.path(registration.broker_id)
    data = znodes.encode_broker(registration, clock.time_ms())
    await _create_ephemeral(
        coordination,
        path,
        lambda: coordination.create(path, data, ephemeral=True),
        session_timeout_seconds,
        f"broker.id {registration.broker_id} is taken: {path} belongs to another broker",
    )
    _, stat = await _retried(lambda: coordination.get(path))
    return BrokerRegistration(registration.broker_id, registration.endpoints, registration.rack, stat.czxid)


async def become_controller(
    coordination: Coordination, broker_id: BrokerId, clock: Clock, session_timeout_seconds: float
) -> ControllerTerm:
    """Takes `/controller` and the next epoch in one transaction, so that no two controllers ever share one."""
    path, epoch_path = znodes.CONTROLLER.path(), znodes.CONTROLLER_EPOCH.path()
    if await _retried(lambda: coordination.exists(epoch_path)) is None:
        await _make(coordination, epoch_path, znodes.encode_controller_epoch(0))
    data = znodes.encode_controller(broker_id, clock.time_ms())

    async def take() -> None:
        while True:
            epoch_data, stat = await coordination.get(epoch_path)
            epoch = znodes.decode_controller_epoch(epoch_path, epoch_data) + 1
            try:
                await coordination.transaction(
                    [Create(path, data, ephemeral=True), SetData(epoch_path, znodes.encode_controller_epoch(epoch), stat.version)]
                )
                return
            except BadVersion:
                continue  # another broker was the controller since we read the epoch

    await _create_ephemeral(
        coordination, path, take, session_timeout_seconds, f"another broker is the controller and {broker_id} can not be"
    )
    epoch_data, stat = await _retried(lambda: coordination.get(epoch_path))
    epoch = znodes.decode_controller_epoch(epoch_path, epoch_data)
    log.info("broker %d is the controller, epoch %d", broker_id, epoch)
    return ControllerTerm(epoch, stat.version)


async def _create_ephemeral(
    coordination: Coordination, path: str, create: Callable[[], Awaitable[object]], session_timeout_seconds: float, refusal: str
) -> None:
    """Creates an ephemeral of ours, waiting for a former owner's session to end."""
    try:
        async with asyncio.timeout(session_timeout_seconds):
            while True:
                try:
                    await create()
                    return
                except (NodeExists, ConnectionLoss):
                    # After ConnectionLoss whose it is tells whether it took place.
                    gone = asyncio.Event()
                    stat = await _retried(lambda: coordination.exists(path, lambda _: gone.set()))  # noqa: B023
                    if stat is not None and stat.ephemeral_owner == coordination.session_id:
                        return
                    if stat is not None:
                        log.warning(
                            "%s is still there, of session %#x; waiting up to %g s for that to end",
                            path,
                            stat.ephemeral_owner,
                            session_timeout_seconds,
                        )
                        await gone.wait()
    except TimeoutError as error:
        raise ConfigurationError(f"{refusal}; it was still there after {session_timeout_seconds:g} s") from error


async def _make(coordination: Coordination, path: str, data: bytes) -> None:
    """Creates a znode unless it is there."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await coordination.create(path, data)
        except NodeExists:
            return
        except ConnectionLoss:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


async def _retried(action: Callable[[], Awaitable[T]]) -> T:
    """The result of something that does no harm when it is done again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await action()
        except ConnectionLoss:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")
