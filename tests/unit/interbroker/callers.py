"""Brokers as their own way to others sees them, for tests that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.interbroker.calls import Caller, Outsider
from ottla.model import BrokerId, BrokerRegistration


def admit_all(caller: Caller) -> None:
    """No caller is out of date."""


@dataclass
class Known(Outsider):
    """A broker with these epochs, which lets in whom `check` lets in."""

    known: Caller
    check: Callable[[Caller], None] = admit_all
    registered: dict[BrokerId, BrokerRegistration] = field(default_factory=dict)
    read: list[BrokerId] = field(default_factory=list)

    def caller(self) -> Caller:
        return self.known

    def check_caller(self, caller: Caller) -> None:
        self.check(caller)

    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None:
        self.read.append(broker_id)
        return self.registered.get(broker_id)
