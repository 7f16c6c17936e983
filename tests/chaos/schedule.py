"""Which fault comes when and for how long: made from a seed and nothing else, so that a seed names a run.

Two lanes run beside each other. In the lane of the brokers at most one of the three is out at any time: killed, frozen,
stopped, cut off, or without room on its disk. The next one may follow before the last has caught up; what was
acknowledged is then in the logs of two others or of that one, and all of them come back. In the lane of coordination
ZooKeeper is away, or a broker loses it, or its session. A fault of one lane may meet one of the other.

So there is always a replica that is in sync and alive, or one that will be when its fault ends: nothing that was
acknowledged may ever be lost, and after the last fault all partitions must come back.

A target is a role where a role matters, and is found when the fault begins: whoever leads, whoever is the controller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

# Broker ids, and roles.
CONTROLLER: Final = "controller"
LEADER: Final = "leader"


class Kind(StrEnum):
    """What can be broken."""

    KILL = "kill -9"
    FREEZE = "freeze (SIGSTOP)"
    RESTART = "stop and start (SIGTERM)"
    ISOLATE = "partition: one broker from both others"
    SEPARATE = "partition: two brokers from each other"
    DEAFEN = "partition: a broker hears no other"
    MUTE = "partition: no other hears a broker"
    ALONE = "partition: a broker from all, ZooKeeper too"
    DEAF_FOR_LONG = "partition: a broker hears no other for longer than a call may take"
    MUTE_FOR_LONG = "partition: no other hears a broker for longer than a call may take"
    DISK_FULL = "disk full"
    NO_MORE_FILES = "disk full for small files"
    CLOCK_JUMP = "clock jump"
    ZOOKEEPER_CUT = "partition: a broker from ZooKeeper"
    SESSION_EXPIRY = "ZooKeeper session expiry"
    ZOOKEEPER_RESTART = "ZooKeeper restart"
    ZOOKEEPER_FREEZE = "ZooKeeper freeze"


BROKER_LANE: Final[Mapping[Kind, int]] = {
    Kind.KILL: 5,
    Kind.FREEZE: 4,
    Kind.RESTART: 3,
    Kind.ISOLATE: 3,
    Kind.SEPARATE: 2,
    Kind.DEAFEN: 1,
    Kind.MUTE: 1,
    Kind.ALONE: 3,
    Kind.DEAF_FOR_LONG: 1,
    Kind.MUTE_FOR_LONG: 1,
    Kind.DISK_FULL: 2,
    Kind.NO_MORE_FILES: 2,
    Kind.CLOCK_JUMP: 2,
}
COORDINATION_LANE: Final[Mapping[Kind, int]] = {
    Kind.ZOOKEEPER_CUT: 4,
    Kind.SESSION_EXPIRY: 4,
    Kind.ZOOKEEPER_RESTART: 2,
    Kind.ZOOKEEPER_FREEZE: 1,
}
# Shortest and longest, in seconds. The session lasts 6 s and a follower may lag for 4 s: durations lie on both sides.
DURATIONS: Final[Mapping[Kind, tuple[float, float]]] = {
    Kind.KILL: (0, 12),
    Kind.FREEZE: (0.5, 15),
    Kind.RESTART: (0, 5),
    Kind.ISOLATE: (2, 15),
    Kind.SEPARATE: (2, 15),
    Kind.DEAFEN: (2, 15),
    Kind.MUTE: (2, 15),
    Kind.ALONE: (2, 15),
    # The deadline of a call between brokers is 5 s (`controller.socket.timeout.ms`), and it is made again after that.
    Kind.DEAF_FOR_LONG: (8, 25),
    Kind.MUTE_FOR_LONG: (8, 25),
    Kind.DISK_FULL: (2, 10),
    Kind.NO_MORE_FILES: (2, 10),
    Kind.CLOCK_JUMP: (2, 20),
    Kind.ZOOKEEPER_CUT: (1, 15),
    Kind.SESSION_EXPIRY: (0, 0),
    Kind.ZOOKEEPER_RESTART: (0, 10),
    Kind.ZOOKEEPER_FREEZE: (1, 10),
}
# The pause after a fault of that lane.
PAUSES: Final = {"brokers": (0.0, 10.0), "coordination": (5.0, 25.0)}
# A larger jump than an hour would have the broker refuse the producers' timestamps, as Kafka does.
LARGEST_JUMP_SECONDS: Final = 1_800.0
WARM_UP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks.

    Attributes:
        kind: what.
        start: seconds after the run's begin.
        seconds: how long it lasts; the broker or server comes back after that.
        target: a broker's id, or the role that says which; None where there is only ZooKeeper.
        other: of two brokers, the second.
        resets: of a partition: connections end at once, instead of falling silent.
        jump_seconds: of a clock.
    """

    kind: Kind
    start: float
    seconds: float
    target: int | str | None = None
    other: int | None = None
    resets: bool = False
    jump_seconds: float = 0.0

    @property
    def end(self) -> float:
        """When it is mended."""
        return round(self.start + self.seconds, 3)


def schedule(seed: int, minutes: float, broker_ids: Collection[int], kinds: Collection[Kind] = tuple(Kind)) -> tuple[Fault, ...]:
    """All faults of a run, by their start. Every one is mended before the minutes are over.

    Args:
        seed: two runs with one seed, of the same kinds and minutes, have the same faults.
        minutes: how long the run is.
        broker_ids: who there is.
        kinds: what can be broken here.
    """
    faults: list[Fault] = []
    for lane, weights in (("brokers", BROKER_LANE), ("coordination", COORDINATION_LANE)):
        # A random of its own for each lane: what one draws does not move the other.
        faults += _lane(
            Random(f"{seed}/{lane}"), PAUSES[lane], {kind: each for kind, each in weights.items() if kind in kinds}, minutes, broker_ids
        )
    return tuple(sorted(faults, key=lambda each: each.start))


def _lane(
    random: Random, pause: tuple[float, float], weights: Mapping[Kind, int], minutes: float, broker_ids: Collection[int]
) -> list[Fault]:
    faults: list[Fault] = []
    now = WARM_UP_SECONDS + random.uniform(*pause)
    # Every kind comes once before any comes twice, in an order of the seed's: a short run is not all of one kind.
    queue = sorted(weights, key=lambda kind: random.random() / weights[kind])
    while weights:
        kind = queue.pop(0) if queue else random.choices(list(weights), list(weights.values()))[0]
        fault = _fault(random, kind, now, sorted(broker_ids))
        if fault.end > minutes * 60:
            break
        faults.append(fault)
        now = round(fault.end + random.uniform(*pause), 3)
    return faults


def _fault(random: Random, kind: Kind, start: float, broker_ids: list[int]) -> Fault:
    shortest, longest = DURATIONS[kind]
    seconds = round(random.uniform(shortest, longest), 3)
    start = round(start, 3)
    first, second = random.sample(broker_ids, 2)
    targets: list[int | str] = [first, LEADER, CONTROLLER]
    target = random.choices(targets, [3, 4, 2])[0]
    resets = random.random() < 0.4
    jump = round(random.choice((-1, 1)) * random.choice((random.uniform(0.1, 5), random.uniform(5, LARGEST_JUMP_SECONDS))), 3)
    match kind:
        case Kind.SEPARATE:
            return Fault(kind, start, seconds, first, other=second, resets=resets)
        case Kind.ISOLATE | Kind.ALONE | Kind.ZOOKEEPER_CUT:
            return Fault(kind, start, seconds, target, resets=resets)
        case Kind.CLOCK_JUMP:
            return Fault(kind, start, seconds, target, jump_seconds=jump)
        case Kind.ZOOKEEPER_RESTART | Kind.ZOOKEEPER_FREEZE:
            return Fault(kind, start, seconds)
        case _:
            return Fault(kind, start, seconds, target)
