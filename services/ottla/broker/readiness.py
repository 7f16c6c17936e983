"""Whether a broker is ready: plain facts in, a judgement with its reasons out. `health` gathers the one and tells the other.

Ready says to an orchestrator "continue with the next broker" and "send clients here", so it asks for what a broker that
starts has to come to:

- **registered**: it has a session, and the others know where it is;
- **controller_known**: a controller has sent it, since it registered, all that it leads and follows. A controller that is
  away for a while changes nothing, for nothing that needs none stops;
- **replicas_in_sync**: its replicas are in the ISR, all at the same moment, once since the start. Later a replica may lag:
  taking the broker out of service then would make an outage of a burst of load.

A full disk is said and changes nothing: its partitions refuse what is produced and are read as before, and where the disks of all
brokers are full, consumers would find none to begin with.

A replica without a leader, that has just been added by a reassignment or whose disk has failed is not waited for:
waiting would not bring it back.

Alive is another question, and none of this module's: a broker that is not ready must not be killed for it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.model import BrokerId, PartitionState
from ottla.serving.readiness import missing


class Phase(enum.IntEnum):
    """What a broker does. The numbers are those of `ottla_broker_state`."""

    STARTING = 0
    RECOVERING = 1  # reads its logs
    RUNNING = 2
    DRAINING = 3  # hands over what it leads, or has done so and is to be stopped
    STOPPING = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a broker at one moment.

    Attributes:
        phase: what it does, as far as it is up to itself.
        broker_epoch: of its registration; -1 while it has none.
        metadata_epoch: the broker epoch under which a controller has sent it all state; -1 for never.
        drained_epoch: the broker epoch under which it was asked to hand over all that it leads; -1 for never.
        were_in_sync: whether its replicas have been in sync since the start.
        full_directories: the log directories whose disks are full.
    """

    phase: Phase
    broker_epoch: int = -1
    metadata_epoch: int = -1
    drained_epoch: int = -1
    were_in_sync: bool = False
    full_directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readiness:
    """A judgement, and what it follows from."""

    phase: Phase
    registered: bool
    controller_known: bool
    replicas_in_sync: bool
    full_directories: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.RUNNING and all(self.conditions.values())

    @property
    def conditions(self) -> Mapping[str, bool]:
        """What has to hold besides that it runs."""
        return {
            "registered": self.registered,
            "controller_known": self.controller_known,
            "replicas_in_sync": self.replicas_in_sync,
        }

    @property
    def reason(self) -> str:
        """Why it is not ready, in words; nothing of one that is."""
        reasons = [f"it is {self.phase.name.lower()}"] if self.phase is not Phase.RUNNING else []
        return ", ".join([*reasons, *missing(self.conditions)])


def judge(facts: Facts) -> Readiness:
    registered = facts.broker_epoch >= 0
    phase = facts.phase
    # A broker that was drained gets nothing to lead before it registers again or is undrained, so it is not back before that.
    if phase is Phase.RUNNING and registered and facts.drained_epoch == facts.broker_epoch:
        phase = Phase.DRAINING
    return Readiness(
        phase,
        registered,
        controller_known=registered and facts.metadata_epoch == facts.broker_epoch,
        replicas_in_sync=facts.were_in_sync,
        full_directories=facts.full_directories,
    )


def is_behind(broker_id: BrokerId, state: PartitionState) -> bool:
    """Whether the broker's replica of a partition has a leader to catch up with, and has not done so."""
    return state.leader >= 0 and broker_id in state.replicas and broker_id not in state.isr
