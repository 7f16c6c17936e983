"""The session with ZooKeeper, or with the embedded twin that stands in for it."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.controller.service import ControllerService
from ottla.coordination.sessions import CoordinationSessions
from ottla.metrics import coordination as metrics
from ottla.metrics.family import Family, Pause, single


class CoordinationCollector:
    """`ottla.metrics.coordination`."""

    def __init__(self, sessions: CoordinationSessions, service: ControllerService) -> None:
        self._sessions = sessions
        self._service = service

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield single(metrics.SESSION_STATE, float(self._sessions.state))
        yield single(metrics.EXPIRATIONS, self._sessions.expirations)
        yield single(metrics.DISCONNECTIONS, self._sessions.disconnections)
        yield single(metrics.REQUEST_SECONDS, self._service.coordination_seconds.snapshot())
