"""The parts of a broker that are measured, handed over by the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.broker.controller.service import ControllerService
from ottla.broker.dispatcher import Dispatcher
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.fetchers import Fetchers
from ottla.coordination.sessions import CoordinationSessions
from ottla.network.listener import AnyListener
from ottla.storage.compaction.cleaner import LogCleaner


@dataclass(frozen=True, slots=True)
class Measured:
    """What the collectors read.

    Attributes:
        parts: what handlers work with.
        produces: the Produce requests that wait.
        listeners: by name; they may still be on their way.
    """

    parts: BrokerParts
    dispatcher: Dispatcher
    produces: Purgatory
    listeners: Mapping[str, AnyListener]
    service: ControllerService
    sessions: CoordinationSessions
    fetchers: Fetchers
    cleaner: LogCleaner
