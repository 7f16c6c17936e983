"""Joining the cluster: what every cluster has, and this broker's registration.

Drivers only. What is written here does not depend on which broker is the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from ottla.broker.controller.znode_reader import load_brokers
from ottla.clock import Clock
from ottla.coordination import znodes
from ottla.coordination.election import Office, Term, read_own_epochs
from ottla.coordination.errors import BadVersion, ConnectionLoss, NodeExists
from ottla.coordination.interface import Coordination, Create, SessionEvent, SetData
from ottla.coordination.retries import make_znode, retried
from ottla.errors import ConfigurationError
from ottla.model import BrokerId, BrokerRegistration

log: Final = logging.getLogger(__name__)


async def make_skeleton(coordination: Coordination) -> None:
    """Makes the znodes that every cluster has and that are missing."""
    found = await coordination.get_many(znodes.SKELETON)
    missing = [path for path, found_one in zip(znodes.SKELETON, found, strict=True) if found_one is None]
    if missing:
        try:
            await coordination.transaction([Create(path) for path in missing])
        except (NodeExists, ConnectionLoss):
            # Another broker of a new cluster was quicker with some, or the answer was lost: one by one, then.
            for path in missing:
                await make_znode(coordination, path, b"")


async def raise_controller_epoch(coordination: Coordination, known: int) -> None:
    """Has the controller's epoch go on above one that was known, where ZooKeeper was restored from an older copy.

    Brokers refuse a controller below the latest epoch that they know. None but Ottla was the controller up to that one.
    """
    path = znodes.CONTROLLER_EPOCH.path()
    data, stat = await retried(lambda: coordination.get(path))
    own, own_version = await read_own_epochs(coordination, znodes.OTTLA.path())
    found = znodes.decode_controller_epoch(path, data)
    if found < known:
        log.warning("ZooKeeper has controller epoch %d, and there was %d: the next one is above it", found, known)
        raised = SetData(path, znodes.encode_controller_epoch(known + 1), stat.version)
        epochs = znodes.encode_own_epochs(replace(own.with_epoch(found), last=known + 1))
        with contextlib.suppress(BadVersion, ConnectionLoss):  # the next look tells what came of it
            await coordination.transaction([raised, SetData(znodes.OTTLA.path(), epochs, own_version)])


async def read_or_make_cluster_id(coordination: Coordination, random: Random) -> str:
    """The cluster's id, made at its first start."""
    path = znodes.CLUSTER_ID.path()
    if await coordination.exists(path) is None:
        await make_znode(coordination, path, znodes.encode_cluster_id(znodes.encode_uuid(znodes.random_uuid(random))))
    return znodes.decode_cluster_id(path, (await coordination.get(path))[0])


async def generate_broker_id(coordination: Coordination, reserved_broker_max_id: int) -> BrokerId:
    """A broker id that is free, for a broker without one (`broker.id.generation.enable`). Made by counting writes."""
    path = znodes.BROKER_SEQUENCE.path()
    await make_skeleton(coordination)
    stat = await retried(lambda: coordination.set(path, b""))  # one that took place twice only leaves a number out
    return BrokerId(reserved_broker_max_id + stat.version)


async def wait_for_addresses(coordination: Coordination, registration: BrokerRegistration, session_timeout_seconds: float) -> None:
    """Waits until no other broker is registered at an address of this one: clients and brokers would find one of the two only.

    One that was killed is there until its session times out, so we wait that long, as for our own id.

    Raises:
        ConfigurationError: it is still there then.
    """
    deadline = asyncio.get_running_loop().time() + session_timeout_seconds
    own = {(endpoint.host, endpoint.port) for endpoint in registration.endpoints}
    while True:
        changed = asyncio.Event()
        brokers = await retried(lambda: load_brokers(coordination, lambda _: changed.set()))  # noqa: B023
        others = (broker for broker in brokers if broker.broker_id != registration.broker_id)
        taken = [(other.broker_id, at) for other in others for at in other.endpoints if (at.host, at.port) in own]
        if not taken:
            return
        broker_id, endpoint = taken[0]
        log.warning("%s of advertised.listeners is registered by broker %d; waiting for its session to end", endpoint, broker_id)
        try:
            await asyncio.wait_for(changed.wait(), deadline - asyncio.get_running_loop().time())
        except TimeoutError:
            raise ConfigurationError(f"advertised.listeners: {endpoint} is registered by broker {broker_id} already") from None


async def register_broker(
    coordination: Coordination, registration: BrokerRegistration, clock: Clock, session_timeout_seconds: float
) -> BrokerRegistration:
    """Says that this broker lives. Gives the registration with the broker's epoch.

    A broker that was killed and is back at once finds its own old registration, which stays until that session times
    out. So we wait that long, and no longer: then it is another broker with our id. A ZooKeeper that was away gives every
    session its whole time again, so we wait again whenever it is back.
    """
    path = znodes.BROKER.path(registration.broker_id)
    data = znodes.encode_broker(registration, clock.time_ms())
    await _FormerSelf(coordination, path, session_timeout_seconds).make_way(data)
    _, stat = await retried(lambda: coordination.get(path))
    return replace(registration, broker_epoch=stat.czxid)


async def update_registration(coordination: Coordination, registration: BrokerRegistration, clock: Clock) -> None:
    """Writes what is different now about this broker, in the session that it registered in; it keeps its epoch.

    A notice of changed settings comes with it, which has the controller read the registrations again.
    """
    broker_id = registration.broker_id
    path, notice = znodes.BROKER.path(broker_id), znodes.encode_config_change(f"brokers/{broker_id}")
    data = znodes.encode_broker(registration, clock.time_ms())
    await retried(lambda: coordination.transaction([SetData(path, data), Create(znodes.CONFIG_CHANGE.path(""), notice, sequential=True)]))


class _FormerSelf:
    """The wait for an ephemeral of the same path whose session has yet to end."""

    def __init__(self, coordination: Coordination, path: str, timeout_seconds: float) -> None:
        self._coordination = coordination
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._wait: asyncio.Timeout | None = None
        self._gone = asyncio.Event()
        self._is_connected = True

    async def make_way(self, data: bytes) -> None:
        """Creates the ephemeral.

        Raises:
            ConfigurationError: another's is still there.
            ConnectionLoss: the coordination service is away at the end of the wait.
        """
        self._coordination.on_session_event(self._happened)
        try:
            async with asyncio.timeout(self._timeout_seconds) as self._wait:
                await self._create(data)
        except TimeoutError as error:
            if not self._is_connected:
                raise ConnectionLoss(f"{self._path}: no connection while it was waited for") from error
            raise ConfigurationError(
                f"broker.id {self._path.rpartition('/')[2]} is taken: {self._path} belongs to another broker;"
                f" it was still there after {self._timeout_seconds:g} s"
            ) from error
        finally:
            self._wait = None

    async def _create(self, data: bytes) -> None:
        while True:
            try:
                await self._coordination.create(self._path, data, ephemeral=True)
                return
            except (NodeExists, ConnectionLoss):
                # After ConnectionLoss its owner shows whether it took place.
                gone = self._gone = asyncio.Event()
                stat = await retried(lambda: self._coordination.exists(self._path, lambda _: gone.set()))  # noqa: B023
                if stat is not None and stat.ephemeral_owner == self._coordination.session_id:
                    return
                if stat is not None:
                    log.warning(
                        "%s is still there, of session %#x; waiting up to %g s for that session to end",
                        self._path,
                        stat.ephemeral_owner,
                        self._timeout_seconds,
                    )
                    await gone.wait()

    def _happened(self, event: SessionEvent) -> None:
        if self._wait is None:
            return
        self._is_connected = event is SessionEvent.CONNECTED
        if self._is_connected and not self._wait.expired():
            # The service gives each session its whole time again once it is back.
            self._wait.reschedule(asyncio.get_running_loop().time() + self._timeout_seconds)
        elif event is SessionEvent.EXPIRED:
            self._gone.set()  # no watch will fire any more; the next look raises SessionExpired


CONTROLLER: Final = Office("controller", znodes.CONTROLLER.path(), znodes.CONTROLLER_EPOCH.path(), znodes.OTTLA.path())


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One broker's time as the controller. `epoch_version` is that of `/controller_epoch`, which every write checks; None: not ours."""

    broker_id: BrokerId
    epoch: int
    epoch_version: int | None

    @property
    def is_own(self) -> bool:
        return self.epoch_version is not None

    @classmethod
    def of(cls, term: Term) -> ControllerTerm:
        """As the election knows it."""
        return cls(znodes.decode_controller(CONTROLLER.path, term.holder), term.epoch, term.epoch_version)
