"""Readiness as named conditions: a service is ready while all of them hold, and says which do not.

Ready says to an orchestrator "send clients here". Alive is another question, and none of this module's: a service that is not ready
must not be killed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

# What /readyz answers: whether the service is ready, and what to say of it.
Status: TypeAlias = tuple[bool, Mapping[str, Any]]


class Readiness(Protocol):
    """What knows whether a service is ready."""

    def status(self) -> Status:
        """As /readyz says it, at any time and at once."""
        ...


def missing(conditions: Mapping[str, bool]) -> list[str]:
    """The conditions that do not hold, in words."""
    return [f"not {name.replace('_', ' ')}" for name, holds in conditions.items() if not holds]


class Conditions:
    """The conditions of one service; none of them holds before `set` says so."""

    def __init__(self, *names: str) -> None:
        self._holding = dict.fromkeys(names, False)

    def set(self, name: str, holds: bool = True) -> None:
        """Says whether one holds. KeyError: the service has no such condition."""
        if name not in self._holding:
            raise KeyError(name)
        self._holding[name] = holds

    @property
    def is_ready(self) -> bool:
        return all(self._holding.values())

    def status(self) -> Status:
        said: dict[str, Any] = {"status": "ready" if self.is_ready else "not ready", **self._holding}
        if not self.is_ready:
            said["reason"] = ", ".join(missing(self._holding))
        return self.is_ready, said
