"""The controller's terms: `coordination.election` for `/controller` and `/controller_epoch`, in Kafka's shapes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ottla.clock import Clock
from ottla.coordination import znodes
from ottla.coordination.election import Election, Office, Term
from ottla.coordination.interface import Coordination
from ottla.model import BrokerId


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One broker's time as the controller. `epoch_version` is that of `/controller_epoch`, which every write checks; None: not ours."""

    broker_id: BrokerId
    epoch: int
    epoch_version: int | None

    @property
    def is_own(self) -> bool:
        return self.epoch_version is not None


def controller_election(
    coordination: Coordination,
    broker_id: BrokerId,
    clock: Clock,
    begins: Callable[[ControllerTerm], Awaitable[None]],
    ended: Callable[[], None],
) -> Election:
    """The election of a controller, as the session of one broker takes part in it.

    Args:
        clock: for the timestamp in `/controller`.
        begins: called with each term that begins, of this broker or another.
        ended: called at once when the term that began last is over.
    """
    path = znodes.CONTROLLER.path()

    async def term_begins(term: Term) -> None:
        await begins(ControllerTerm(znodes.decode_controller(path, term.holder), term.epoch, term.epoch_version))

    office = Office("controller", path, znodes.CONTROLLER_EPOCH.path())
    holder = f"broker {broker_id}"
    return Election(coordination, office, holder, lambda: znodes.encode_controller(broker_id, clock.time_ms()), term_begins, ended)
