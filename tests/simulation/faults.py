"""What goes wrong in a run, and when: drawn from the seed before anything runs, so that it can be read before it happens.

A plan is data. `cluster` performs it, and decides at the time who "the controller" or "the leader" is.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final


class Kind(StrEnum):
    """One thing that can go wrong."""

    KILL = "kill"  # the process is gone; what it wrote stays
    LOSE_POWER = "lose power"  # the machine is gone, and with it what was not synced
    STOP = "stop"  # the process is asked to stop
    PAUSE = "pause"
    ISOLATE = "isolate"  # from all other brokers
    ISOLATE_ENTIRELY = "isolate entirely"  # from everybody, ZooKeeper and clients included
    ISOLATE_FROM_ZOOKEEPER = "isolate from ZooKeeper"
    DEAFEN = "deafen"  # nothing of the others arrives, and what it sends does
    PART = "part"  # from one other broker
    CUT = "cut connections"
    EXPIRE = "expire session"
    LOSE_SESSION_CONNECTION = "lose ZooKeeper connection"
    ZOOKEEPER_AWAY = "ZooKeeper away"
    SLOW_DISK = "slow disk"
    SLOW_NETWORK = "slow network"
    STEP_CLOCK = "step clock"
    ALL_LOSE_POWER = "all lose power"
    DISK_FULL = "disk full"
    CALL_FAILS = "calls on a disk fail"  # with an error that passes
    DISK_FAILS = "disk fails"  # with one that does not
    CRASH_IN_CALL = "crash between two calls on a disk"
    PREFER_LEADERS = "elect preferred leaders"
    CREATE_TOPIC = "create topic"
    DELETE_TOPIC = "delete topic"
    MORE_PARTITIONS = "create partitions"
    REASSIGN = "reassign"
    MOVE_LOG = "move log to another directory"
    # Drawn beside the others, in some runs (`_extended`).
    EMPTY_DISK = "empty disk"  # the machine comes back under its id with nothing
    ROLL_BACK_DISK = "roll back disk"  # its volume is as it was when its broker last stopped cleanly
    STEP_CLOCK_FAR = "step clock by hours"
    # Drawn in some of the runs without scenes (`_with_outage`).
    RESTORE_STORE = "restore ZooKeeper"  # from an older copy, while all brokers are down or run
    EMPTY_STORE = "empty ZooKeeper"  # for a while, under brokers that run or are down
    OUTAGE = "outage"  # of all brokers; one of them comes back last, and with an empty disk
    STRAGGLING_CALLS = "calls arrive after their callers have given up"
    # Drawn in runs that everybody's power outlasts (`_with_twin`).
    TWIN = "two brokers of one id"  # a second process comes up under a broker's id, over a copy of its disks or empty ones
    # Drawn in some runs, by a chance of its own (`_with_damage`).
    DAMAGE = "damage to a file while its broker is down"  # `Damage` says to which
    HALF_MOVE = "move that a former version left half done"
    GARBLE = "damage on the way to a follower"


class Damage(StrEnum):
    """What a torn page, a bad sector or a restored copy does to a log directory.

    Only the last one takes what is nowhere else on that machine.
    """

    CHECKPOINT = "*-offset-checkpoint"
    LEADER_EPOCHS = "*/leader-epoch-checkpoint"
    TOPIC_ID = "*/partition.metadata"
    SNAPSHOT = "*/*.snapshot"
    ABORTED = "*/*.txnindex"
    TAIL = "garbage behind */*.log"
    CUT = "a piece cut off */*.log"


class Scene(StrEnum):
    """What clients do in a run beside writing to one topic and reading it; a module each."""

    RECREATION = "recreation"  # a topic that holds records is deleted and made again; its records are deleted
    GROUPS = "groups"  # committed offsets
    TRANSACTIONS = "transactions"
    RETENTION = "retention"  # by size and by time
    COMPACTION = "compaction"
    UNCLEAN = "unclean elections"  # of a topic that allows them
    REGISTRY = "schema registries"  # three over one topic, which fail as well
    MIRROR = "mirror"  # slots of a mirror maker; by its profile only


# Whom a fault hits, beside brokers by their number.
CONTROLLER: Final = "controller"
LEADER: Final = "leader"

# What an administrator asks for.
ADMINISTRATION: Final = frozenset({Kind.PREFER_LEADERS, Kind.CREATE_TOPIC, Kind.DELETE_TOPIC, Kind.MORE_PARTITIONS, Kind.REASSIGN})

_WEIGHTS: Final[Mapping[Kind, int]] = {
    Kind.KILL: 12,
    Kind.LOSE_POWER: 10,
    Kind.STOP: 6,
    Kind.PAUSE: 8,
    Kind.ISOLATE: 6,
    Kind.ISOLATE_ENTIRELY: 6,
    Kind.ISOLATE_FROM_ZOOKEEPER: 6,
    Kind.DEAFEN: 3,
    Kind.PART: 6,
    Kind.CUT: 6,
    Kind.EXPIRE: 6,
    Kind.LOSE_SESSION_CONNECTION: 5,
    Kind.ZOOKEEPER_AWAY: 3,
    Kind.SLOW_DISK: 5,
    Kind.SLOW_NETWORK: 4,
    Kind.STEP_CLOCK: 3,
    Kind.DISK_FULL: 3,
    Kind.PREFER_LEADERS: 4,
    Kind.CREATE_TOPIC: 5,
    Kind.DELETE_TOPIC: 3,
    Kind.MORE_PARTITIONS: 2,
    Kind.REASSIGN: 6,
}

_SCENES: Final[Mapping[Scene, int]] = {
    Scene.RECREATION: 4,
    Scene.GROUPS: 3,
    Scene.TRANSACTIONS: 4,
    Scene.RETENTION: 2,
    Scene.COMPACTION: 2,
    Scene.UNCLEAN: 1,
    Scene.REGISTRY: 2,
}

_RARE: Final[Mapping[Kind, int]] = {
    Kind.EMPTY_DISK: 3,
    Kind.ROLL_BACK_DISK: 3,
    Kind.STEP_CLOCK_FAR: 2,
    Kind.STRAGGLING_CALLS: 3,
}


@dataclass(frozen=True, slots=True)
class DiskCall:
    """Which calls on a disk fail: the fields of `disk.CallFault`."""

    call: str
    pattern: str
    error: int
    skips: int
    hits: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: from when on, for how long, to whom, and how bad."""

    at: float
    kind: Kind
    victim: str
    seconds: float
    amount: float = 0.0
    call: DiskCall | None = None
    damage: Damage | None = None

    def __str__(self) -> str:
        return f"{self.at:8.3f} s  {self.kind} {self.victim}, {self.seconds:.3f} s, {self.amount:.3f}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, before it begins."""

    seed: int
    broker_count: int
    seconds: float  # of faults; what follows heals
    partition_count: int
    producer_count: int
    consumer_count: int
    produce_every: float
    consume_every: float
    fences: bool
    has_racks: bool  # whether consumers read from the broker next to them
    session_timeout_ms: int
    lag_time_max_ms: int
    network_usual: float
    network_lost: float
    disk_usual: float
    topic_settings: Mapping[str, str]
    broker_settings: Mapping[str, str]
    faults: tuple[Fault, ...] = field(default=())
    log_directory_count: int = 1  # each on a disk of its own
    scenes: tuple[Scene, ...] = ()
    disk_stalls: float = 0.0  # the chance that something beside the loop takes seconds
    kafka_left: str = ""  # which of Kafka's clusters it begins with, on the disks and in ZooKeeper

    @property
    def loses_all_at_once(self) -> bool:
        return any(fault.kind is Kind.ALL_LOSE_POWER for fault in self.faults)


def draw(seed: int, profile: str | None = None) -> Plan:
    """The plan of a seed.

    Args:
        profile: one of PROFILES, for runs that have more of one kind of faults.
    """
    assert profile is None or profile in PROFILES, profile
    plan = _with_twin(_with_disk_faults(_with_outage(_profiled(_extended(_drawn(seed)), profile), profile), profile), profile)
    plan = _with_damage(plan, profile)
    return _after_kafka(plan) if profile == KAFKA else plan


def _drawn(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    # One run in eight is of the profile in which everybody loses power at once, which nothing but an fsync survives.
    all_at_once = random.random() < 0.125
    seconds = random.uniform(40.0, 90.0)
    broker_count = random.choice((3, 3, 3, 4))
    topic_settings = {
        "min.insync.replicas": "2",
        "segment.bytes": str(random.choice((1 << 12, 1 << 14, 1 << 16, 1 << 20))),
        "index.interval.bytes": str(random.choice((64, 512, 4096))),
    }
    if all_at_once or random.random() < 0.15:
        topic_settings["flush.messages"] = "1"
    elif random.random() < 0.3:
        topic_settings["flush.ms"] = str(random.choice((1000, 5000)))
    broker_settings = {
        "num.replica.fetchers": str(random.choice((1, 1, 2))),
        "auto.leader.rebalance.enable": random.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": str(random.choice((5, 20, 300))),
        "replica.fetch.wait.max.ms": str(random.choice((500, 500, 2000))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((1000, 5000, 20000))),
    }
    return Plan(
        seed=seed,
        broker_count=broker_count,
        seconds=seconds,
        partition_count=random.choice((1, 2, 3)),
        producer_count=random.choice((1, 2, 2, 3)),
        consumer_count=random.choice((1, 1, 2)),
        produce_every=random.choice((0.2, 0.5, 1.0)),
        consume_every=random.choice((0.2, 1.0)),
        fences=random.random() < 0.5,
        has_racks=random.random() < 0.3,
        session_timeout_ms=random.choice((4000, 6000)),
        lag_time_max_ms=random.choice((3000, 6000, 10000)),
        network_usual=random.choice((0.0005, 0.002, 0.01)),
        network_lost=random.choice((0.0, 0.001, 0.01)),
        disk_usual=random.choice((0.0, 0.001, 0.02)),
        topic_settings=topic_settings,
        broker_settings=broker_settings,
        faults=tuple(_faults(random, seconds, broker_count, all_at_once)),
    )


def _faults(random: Random, seconds: float, broker_count: int, all_at_once: bool) -> list[Fault]:
    # Some runs have many faults of one kind, which brings out what a mixture hides.
    kinds = list(_WEIGHTS)
    weights = [_WEIGHTS[kind] for kind in kinds]
    if random.random() < 0.4:
        chosen = random.sample(kinds, random.randint(1, 4))
        weights = [_WEIGHTS[kind] if kind in chosen else 0 for kind in kinds]
    pause = random.choice((2.0, 5.0, 10.0))
    at, faults = random.uniform(3.0, 6.0), []
    while at < seconds:
        kind = random.choices(kinds, weights)[0]
        victim = random.choices((CONTROLLER, LEADER, str(random.randint(1, broker_count))), (2, 3, 5))[0]
        lasts = random.choice((random.uniform(0.05, 1.0), random.uniform(1.0, 8.0), random.uniform(5.0, 20.0)))
        faults.append(Fault(round(at, 3), kind, victim, round(lasts, 3), round(random.random(), 3)))
        # Now and then two at nearly the same time.
        at += random.uniform(0.0, 0.3) if random.random() < 0.2 else random.expovariate(1 / pause)
    if all_at_once:
        faults.extend(
            Fault(round(random.uniform(5.0, seconds), 3), Kind.ALL_LOSE_POWER, "all", round(random.uniform(0.1, 5.0), 3))
            for _ in range(random.randint(1, 3))
        )
    return sorted(faults, key=lambda each: each.at)


def _extended(plan: Plan) -> Plan:
    """With what some runs have beside: scenes, and the faults that come with them.

    It comes from a chance of its own, so that two runs in five stay as they were drawn before there were scenes. A run with
    scenes has more to do, and is shorter for it.
    """
    random = Random(f"scenes {plan.seed}")
    if random.random() < 0.4:
        return plan
    plan = replace(plan, seconds=max(30.0, 0.55 * plan.seconds))
    scenes = tuple(random.sample(list(_SCENES), random.choice((1, 1, 2)), counts=list(_SCENES.values())))
    scenes = tuple(scene for scene in Scene if scene in scenes)
    broker_settings = {
        **plan.broker_settings,
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((3000, 10000, 60000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(random.choice((3000, 10000, 60000))),
        "log.retention.check.interval.ms": str(random.choice((2000, 8000))),
        "offsets.topic.num.partitions": str(random.choice((1, 2))),
        "offsets.topic.segment.bytes": str(random.choice((1 << 12, 1 << 20))),
        "offsets.retention.minutes": random.choice(("1", "10080")),
        "offsets.retention.check.interval.ms": str(random.choice((300, 1000, 5000))),
        "transaction.state.log.num.partitions": str(random.choice((1, 2))),
        "transaction.state.log.segment.bytes": str(random.choice((1 << 12, 1 << 20))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
        "log.cleaner.backoff.ms": str(random.choice((1000, 4000))),
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.dedupe.buffer.size": str(1 << 21),
    }
    if plan.loses_all_at_once:
        broker_settings["log.flush.interval.messages"] = "1"
    faults = tuple(fault for fault in plan.faults if fault.at < plan.seconds)
    if random.random() < 0.5:
        kinds = random.choices(list(_RARE), list(_RARE.values()), k=random.choice((1, 1, 2)))
        faults = tuple(sorted([*faults, *(_rare(random, plan, kind) for kind in kinds)], key=lambda fault: fault.at))
    return replace(
        plan,
        broker_settings=broker_settings,
        faults=faults,
        scenes=scenes,
        disk_stalls=random.choice((0.0, 0.0, 0.02, 0.1)),
        partition_count=1,
        producer_count=1,
        consumer_count=1,
        produce_every=max(plan.produce_every, 0.5),
        consume_every=1.0,
    )


_MAKING_TOPICS: Final = ADMINISTRATION - {Kind.PREFER_LEADERS}
_OUTAGES: Final[Mapping[Kind, int]] = {Kind.RESTORE_STORE: 3, Kind.EMPTY_STORE: 3, Kind.OUTAGE: 4}


def _with_outage(plan: Plan, profile: str | None) -> Plan:
    """With something that befalls all brokers at once, in some of the runs without scenes."""
    random = Random(f"outage {plan.seed}")
    if profile != OUTAGES and (plan.scenes or profile is not None or random.random() >= 0.15):
        return plan
    plan = replace(plan, scenes=())
    kind = random.choices(list(_OUTAGES), list(_OUTAGES.values()))[0]
    # A store that goes back in time knows nothing of what an administrator did since.
    # It begins when everything is well, for which there have to be fewer of the others.
    faults = [fault for fault in plan.faults if fault.kind not in _MAKING_TOPICS and random.random() < 0.4]
    faults.append(_rare(random, plan, kind))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _rare(random: Random, plan: Plan, kind: Kind) -> Fault:
    victim = random.choices((CONTROLLER, LEADER, str(random.randint(1, plan.broker_count))), (2, 3, 5))[0]
    seconds = random.choice((random.uniform(0.05, 1.0), random.uniform(1.0, 8.0), random.uniform(5.0, 20.0)))
    return Fault(round(random.uniform(5.0, plan.seconds), 3), kind, victim, round(seconds, 3), round(random.random(), 3))


# Runs that have more of something, for what is looked for there: `--profile`.
DISKS: Final = "disks"  # calls that fail, in every run and often
RECREATION: Final = "recreation"  # topics with records are deleted and made again over slow disks
TRUNCATION: Final = "truncation"  # leaders change over slow disks and small segments
MOVES: Final = "moves"  # logs move between the directories of brokers that crash and lose power
OUTAGES: Final = "outages"  # of all brokers, or of what ZooKeeper knows
GROUPS: Final = "groups"  # groups commit while their offsets expire
TWINS: Final = "twins"  # two brokers of one id, several times a run
KAFKA: Final = "kafka"  # the history begins with what Kafka 3.9.1 left, stopped in order or killed
REGISTRY: Final = "registry"  # schema registries lead, fail and come back
MIRROR: Final = "mirror"  # a mirror maker's workers copy one topic into another, and are killed and paused
DAMAGE: Final = "damage"  # files of brokers that are down are damaged, and what followers are sent
PROFILES: Final = (DISKS, RECREATION, TRUNCATION, MOVES, OUTAGES, GROUPS, TWINS, KAFKA, REGISTRY, MIRROR, DAMAGE)


def _profiled(plan: Plan, profile: str | None) -> Plan:
    random = Random(f"profile {plan.seed}")
    if profile in (RECREATION, GROUPS, REGISTRY, MIRROR) and plan.loses_all_at_once:
        # What the scene's topics acknowledge is to be kept then, as in `_extended`.
        plan = replace(plan, broker_settings={**plan.broker_settings, "log.flush.interval.messages": "1"})
    if profile == RECREATION:
        return replace(
            plan,
            scenes=(Scene.RECREATION,),
            disk_stalls=0.1,
            broker_settings={**plan.broker_settings, "log.flush.offset.checkpoint.interval.ms": "60000"},
        )
    if profile == GROUPS:
        settings = {"offsets.retention.check.interval.ms": "100", "offsets.retention.minutes": "1", "offsets.topic.num.partitions": "1"}
        return replace(plan, scenes=(Scene.GROUPS,), broker_settings={**plan.broker_settings, **settings})
    if profile == REGISTRY:
        cleaning = {"log.cleaner.backoff.ms": "1000", "log.cleaner.min.cleanable.ratio": "0.01"}
        settings = {**plan.broker_settings, **cleaning, "log.cleaner.dedupe.buffer.size": str(1 << 21)}
        return replace(plan, scenes=(Scene.REGISTRY,), broker_settings=settings, partition_count=1, producer_count=1, consumer_count=1)
    if profile == MIRROR:
        cleaning = {"log.cleaner.backoff.ms": "1000", "log.cleaner.dedupe.buffer.size": str(1 << 21)}
        settings = {**plan.broker_settings, **cleaning, "transaction.state.log.num.partitions": "2"}
        return replace(plan, scenes=(Scene.MIRROR,), broker_settings=settings)
    if profile == TRUNCATION:
        kinds = (Kind.KILL, Kind.PAUSE, Kind.ISOLATE, Kind.ISOLATE_ENTIRELY, Kind.DEAFEN, Kind.EXPIRE)
        faults = [
            Fault(round(random.uniform(3.0, plan.seconds), 3), random.choice(kinds), LEADER, round(random.uniform(0.5, 9.0), 3), 0.5)
            for _ in range(12)
        ]
        return replace(
            plan,
            disk_stalls=0.3,
            produce_every=0.2,
            producer_count=2,
            consumer_count=1,
            partition_count=1,
            topic_settings={**plan.topic_settings, "segment.bytes": "4096", "index.interval.bytes": "64"},
            faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        )
    return plan


def _after_kafka(plan: Plan) -> Plan:
    """Its three brokers, and none of what would take its topics away: a ZooKeeper of another day, topics that are made and deleted."""
    random = Random(f"kafka {plan.seed}")
    faults = tuple(fault for fault in plan.faults if fault.kind not in _OUTAGES and fault.kind not in _MAKING_TOPICS)
    return replace(plan, kafka_left=random.choice(("clean", "killed")), broker_count=3, scenes=(), faults=faults)


# Faults of disks.

# Files of a log directory by what depends on them. A directory itself is opened, and synced, under its own name.
DATA: Final = "*.log"
SMALL: Final = "*|!*.log"
_FILES: Final = (
    "*",
    SMALL,
    SMALL,
    DATA,
    "*.index*|*.timeindex*",
    "*.txnindex*",
    "*.snapshot*",
    "*leader-epoch-checkpoint*",
    "*recovery-point-offset-checkpoint*|*log-start-offset-checkpoint*|*replication-offset-checkpoint*",
    "*partition.metadata*",
    "logs/*-[0-9]",
    "*.deleted|*-delete|*-stray|*-future",
)
_PASSING_ERRORS: Final[Mapping[str, tuple[int, ...]]] = {
    "open": (errno.EMFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT),
    "write": (errno.ENOSPC, errno.EDQUOT),
    "rename": (errno.ENOSPC, errno.EDQUOT),
    "any": (errno.ENOSPC, errno.EMFILE, errno.EDQUOT),
}
_FAILING_CALLS: Final = ("open", "write", "fsync", "fsync", "rename", "unlink", "truncate", "any")
_DISK_WEIGHTS: Final[Mapping[Kind, int]] = {Kind.CALL_FAILS: 5, Kind.DISK_FAILS: 2, Kind.CRASH_IN_CALL: 4, Kind.DISK_FULL: 2}


def _with_disk_faults(plan: Plan, profile: str | None) -> Plan:
    """With several log directories and faults of single calls in some runs, by a chance of its own."""
    random = Random(f"disks {plan.seed}")
    plan = replace(plan, log_directory_count=2 if profile == MOVES else random.choice((1, 1, 2)))
    if plan.log_directory_count > 1:
        plan = replace(
            plan, faults=_sorted(plan, [*plan.faults, *_moves(random, plan, 8 if profile == MOVES else random.choice((0, 1, 3)))])
        )
    if profile != DISKS and random.random() < 0.5:
        return plan
    faults = list(plan.faults)
    for _ in range(random.choice((1, 2, 4, 8)) if profile is None else 10):
        kind = random.choices(list(_DISK_WEIGHTS), list(_DISK_WEIGHTS.values()))[0]
        victim = str(random.randint(1, plan.broker_count))
        at, seconds = random.uniform(2.0, plan.seconds), random.uniform(0.5, 15.0)
        faults.append(Fault(round(at, 3), kind, victim, round(seconds, 3), round(random.random(), 3), _disk_call(random, kind)))
        if random.random() < 0.4:
            # A disk that is full, or refuses some calls, and then loses power.
            at += random.uniform(0.0, 1.5) * seconds
            faults.append(Fault(round(at, 3), Kind.LOSE_POWER, victim, round(random.uniform(0.1, 4.0), 3)))
    return replace(plan, faults=_sorted(plan, faults))


_OF_ALL: Final = frozenset({*_OUTAGES, Kind.ALL_LOSE_POWER})


def _with_twin(plan: Plan, profile: str | None) -> Plan:
    """With a second process under the id of a broker, in some of the runs in which nothing befalls all brokers."""
    random = Random(f"twin {plan.seed}")
    if profile == TWINS:
        plan = replace(plan, faults=tuple(fault for fault in plan.faults if fault.kind not in _OF_ALL))
    elif profile is not None or random.random() >= 0.1 or any(fault.kind in _OF_ALL for fault in plan.faults):
        return plan
    twins = [_rare(random, plan, Kind.TWIN) for _ in range(3 if profile == TWINS else 1)]
    return replace(plan, faults=_sorted(plan, [*plan.faults, *twins]))


_DAMAGE: Final[Mapping[Damage, int]] = {
    Damage.CHECKPOINT: 4,
    Damage.LEADER_EPOCHS: 3,
    Damage.TOPIC_ID: 2,
    Damage.SNAPSHOT: 3,
    Damage.ABORTED: 2,
    Damage.TAIL: 2,
    Damage.CUT: 2,
}
# Calls after which a deleted file stays, or one of a segment that has no log any more.
_ON_DELETED_FILES: Final = (
    Fault(0.0, Kind.DISK_FAILS, "", 0.0, call=DiskCall("unlink", "*.deleted|*-delete/*", errno.EIO, 0, 1000)),
    Fault(0.0, Kind.CRASH_IN_CALL, "", 0.0, call=DiskCall("rename", "*.index.deleted|*.timeindex.deleted", 0, 0, 1)),
)


def _with_damage(plan: Plan, profile: str | None) -> Plan:
    """With damage to files and to what is fetched, and faults in the middle of a deletion or a move, in one run in five."""
    random = Random(f"damage {plan.seed}")
    if profile != DAMAGE and (profile is not None or random.random() >= 0.2):
        return plan
    weights = {**_DAMAGE, Damage.ABORTED: 12} if Scene.TRANSACTIONS in plan.scenes else _DAMAGE
    faults = list(plan.faults)
    for _ in range(8 if profile == DAMAGE else random.choice((1, 2, 3))):
        kind = random.choices((Kind.DAMAGE, Kind.HALF_MOVE, Kind.GARBLE), (8, 1, 2))[0]
        fault = replace(_rare(random, plan, kind), victim=str(random.randint(1, plan.broker_count)))
        if kind is Kind.DAMAGE:
            fault = replace(fault, damage=random.choices(list(weights), list(weights.values()))[0])
        elif kind is Kind.HALF_MOVE:
            plan = replace(plan, log_directory_count=2)
        faults.append(fault)
    for deleted in _ON_DELETED_FILES:
        if random.random() < 0.6:
            at, seconds = random.uniform(5.0, plan.seconds), random.uniform(10.0, 30.0)
            victim, amount = str(random.randint(1, plan.broker_count)), round(random.random(), 3)
            faults.append(replace(deleted, at=round(at, 3), victim=victim, seconds=round(seconds, 3), amount=amount))
    settings = {**plan.broker_settings, "log.segment.delete.delay.ms": str(random.choice((500, 3000, 60000)))}
    return replace(plan, faults=_sorted(plan, faults), broker_settings=settings)


def _sorted(plan: Plan, faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted((fault for fault in faults if fault.at < plan.seconds), key=lambda fault: fault.at))


def _moves(random: Random, plan: Plan, count: int) -> Iterator[Fault]:
    """Logs that move to another directory, mostly with something that happens to the broker soon after."""
    for _ in range(count):
        victim, at = str(random.randint(1, plan.broker_count)), random.uniform(5.0, plan.seconds)
        yield Fault(round(at, 3), Kind.MOVE_LOG, victim, 0.0, round(random.random(), 3))
        seconds, amount = round(random.uniform(0.5, 4.0), 3), round(random.random(), 3)
        match random.choice((None, Kind.KILL, Kind.LOSE_POWER, Kind.LOSE_POWER, Kind.CRASH_IN_CALL, Kind.CRASH_IN_CALL)):
            case Kind.CRASH_IN_CALL:
                call = DiskCall(random.choice(("rename", "fsync", "any")), "*", 0, random.randint(0, 4), 1)
                yield Fault(round(at, 3), Kind.CRASH_IN_CALL, victim, seconds, amount, call)
            case Kind.KILL | Kind.LOSE_POWER as kind:
                soon = random.choice((random.uniform(0.0, 0.2), random.uniform(0.0, 2.0)))
                yield Fault(round(at + soon, 3), kind, victim, seconds, amount)
            case _:
                pass


def _disk_call(random: Random, kind: Kind) -> DiskCall | None:
    pattern = random.choice(_FILES)
    many = random.choice((1, 1, 3, 1000))
    match kind:
        case Kind.CALL_FAILS:
            call = random.choice(list(_PASSING_ERRORS))
            return DiskCall(call, pattern, random.choice(_PASSING_ERRORS[call]), random.choice((0, 0, 0, random.randint(0, 5))), many)
        case Kind.DISK_FAILS:
            return DiskCall(random.choice(_FAILING_CALLS), pattern, errno.EIO, random.choice((0, 0, random.randint(0, 5))), many)
        case Kind.CRASH_IN_CALL:
            return DiskCall(
                random.choice((*_FAILING_CALLS, "any", "any")),
                pattern,
                0,
                random.choice((0, random.randint(0, 5), random.randint(0, 20))),
                1,
            )
        case _:
            return None
