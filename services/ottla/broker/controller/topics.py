"""Decisions about topics: which names, numbers and placements are allowed, and where replicas go. Pure functions.

The rules and the error texts are Kafka 3.9's, because people and client libraries know them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final

from ottla.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownServerError,
)
from ottla.interbroker.calls import BROKER_DEFAULT as BROKER_DEFAULT
from ottla.interbroker.calls import NewTopic as NewTopic
from ottla.model import MAX_TOPIC_NAME_LENGTH, BrokerId, BrokerRegistration, PartitionState

# As many as Kafka's newer controller makes at once. How many a topic can have in all its znode's size decides.
MAX_NEW_PARTITIONS: Final = 10_000

# A Kafka without ZooKeeper keeps its own state under this name, and any Kafka that finds such a directory leaves it unread.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

Replicas = tuple[BrokerId, ...]


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopic for a name that Kafka refuses: it becomes the name of a directory and of a metric."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason:
        raise InvalidTopic(f"Topic name is invalid: {reason}")


def check_new_name(name: str, existing: Collection[str]) -> None:
    """Raises TopicAlreadyExists, InvalidRequest for the one name that no topic may have, or InvalidTopic when only '.' and '_' tell
    the name from another's (metrics mix them up)."""
    validate_topic_name(name)
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidRequest(f"Creation of internal topic {name} is prohibited.")
    if name in existing:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    if "." not in name and "_" not in name:
        return
    metric_name = name.replace(".", "_")
    colliding = [other for other in existing if other.replace(".", "_") == metric_name]
    if colliding:
        raise InvalidTopic(f"Topic '{name}' collides with existing topics: {', '.join(sorted(colliding))}")


def place_topic(
    topic: NewTopic, brokers: Collection[BrokerRegistration], default_partitions: int, default_replication_factor: int, random: Random
) -> tuple[Replicas, ...]:
    """The replicas of each partition of a new topic.

    Args:
        topic: what is asked for.
        brokers: those that live.
        default_partitions: for a topic that does not say, `num.partitions`.
        default_replication_factor: for a topic that does not say, `default.replication.factor`.
        random: chooses where the first leader goes.
    """
    if not topic.assignments:
        partition_count = default_partitions if topic.partition_count == BROKER_DEFAULT else topic.partition_count
        factor = default_replication_factor if topic.replication_factor == BROKER_DEFAULT else topic.replication_factor
        return assign_replicas(brokers, partition_count, factor, start=random.randrange(max(1, len(brokers))), random=random)
    if topic.partition_count != BROKER_DEFAULT or topic.replication_factor != BROKER_DEFAULT:
        raise InvalidRequest(
            "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time."
        )
    if sorted(topic.assignments) != list(range(len(topic.assignments))):
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    _check_count(len(topic.assignments))
    replicas = tuple(tuple(topic.assignments[index]) for index in range(len(topic.assignments)))
    check_assignment(replicas, len(replicas[0]), brokers, first_partition=0)
    return replicas


def place_more_partitions(
    topic: str,
    existing: Sequence[PartitionState],
    total_count: int,
    assignments: Sequence[Sequence[BrokerId]] | None,
    brokers: Collection[BrokerRegistration],
) -> tuple[Replicas, ...]:
    """The replicas of each partition that a topic gets on top of those it has.

    Args:
        topic: its name, for what is said of it.
        existing: the partitions that it has.
        total_count: how many it is to have.
        assignments: where the new ones go; None places them as the old ones were, the round-robin going on.
        brokers: those that live.
    """
    count = len(existing)
    if total_count < count:
        raise InvalidPartitions(f"Topic currently has {count} partitions, which is higher than the requested {total_count}.")
    if total_count == count:
        raise InvalidPartitions(f"Topic already has {count} partitions.")
    if not existing:
        raise UnknownServerError(f"Unexpected existing replica assignment for topic '{topic}', partition id 0 is missing.")
    factor = len(existing[0].replicas)
    _check_count(total_count - count)
    if assignments is not None:
        if len(assignments) != total_count - count:
            raise InvalidReplicaAssignment(
                f"Increasing the number of partitions by {total_count - count} but {len(assignments)} assignments provided."
            )
        replicas = tuple(map(tuple, assignments))
        check_assignment(replicas, factor, brokers, first_partition=count)
        return replicas
    ids = sorted(registration.broker_id for registration in brokers)
    start = next((index for index, broker_id in enumerate(ids) if broker_id >= existing[0].replicas[0]), 0)
    return assign_replicas(brokers, total_count - count, factor, start=start, first_partition=count)


def check_assignment(assignment: Sequence[Replicas], factor: int, brokers: Collection[BrokerRegistration], first_partition: int) -> None:
    """Raises InvalidReplicaAssignment unless each partition has `factor` different living brokers."""
    living = {registration.broker_id for registration in brokers}
    for partition, replicas in enumerate(assignment, first_partition):
        shown = ", ".join(map(str, replicas))
        if not replicas:
            raise InvalidReplicaAssignment(f"Cannot have replication factor of 0 for partition id {partition}.")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"Duplicate brokers not allowed in replica assignment: {shown} for partition id {partition}.")
        unknown = [replica for replica in replicas if replica not in living]
        if unknown:
            raise InvalidReplicaAssignment(
                f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))} for partition id {partition};"
                f" available brokers: {', '.join(map(str, sorted(living)))}."
            )
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"Inconsistent replication factor between partitions: {factor} is needed"
                f" and partition id {partition} has {len(replicas)} ({shown})."
            )


def assign_replicas(
    brokers: Collection[BrokerRegistration],
    partition_count: int,
    replication_factor: int,
    *,
    start: int,
    first_partition: int = 0,
    random: Random | None = None,
) -> tuple[Replicas, ...]:
    """Spreads leaders evenly over the brokers, and each broker's followers evenly over the others.

    Leaders go round-robin. Followers come next in line, and each full round of leaders moves them on by one more, so
    that two brokers do not share all their partitions. When every broker has a rack the line alternates between racks
    and a partition uses each rack once before it uses one twice; when only some have, racks are ignored.

    Args:
        brokers: those that live.
        partition_count: how many partitions to place.
        replication_factor: how many brokers each gets, the preferred leader first.
        start: the place in line of partition 0's leader.
        first_partition: the number of the first partition to place.
        random: chooses how far the first followers are from their leader; without it as far as `start` says.
    """
    _check_count(partition_count)
    if replication_factor <= 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.")
    line, racks = _line_of(brokers)
    rack_count = len(set(racks.values()))
    shift = start if random is None else random.randrange(len(line))
    assignment = []
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % len(line) == 0:
            shift += 1
        first = (partition + start) % len(line)
        assignment.append(_replicas_of_one(line, racks, rack_count, replication_factor, first, shift))
    return tuple(assignment)


def _check_count(new_partitions: int) -> None:
    if new_partitions <= 0:
        raise InvalidPartitions("Number of partitions must be larger than 0.")
    if new_partitions > MAX_NEW_PARTITIONS:
        raise InvalidPartitions(f"{new_partitions} partitions are too many to make at once; {MAX_NEW_PARTITIONS} is the most.")


def _line_of(brokers: Collection[BrokerRegistration]) -> tuple[list[BrokerId], Mapping[BrokerId, str]]:
    """The brokers in the order of leaders, and their racks if those count."""
    ids = sorted(registration.broker_id for registration in brokers)
    racks = {registration.broker_id: registration.rack for registration in brokers if registration.rack is not None}
    if len(racks) < len(ids):
        return ids, dict.fromkeys(ids, "")
    by_rack: dict[str, list[BrokerId]] = {rack: [] for rack in sorted(racks.values())}
    for broker_id in ids:
        by_rack[racks[broker_id]].append(broker_id)
    deepest = max(map(len, by_rack.values()))
    return [members[depth] for depth in range(deepest) for members in by_rack.values() if depth < len(members)], racks


def _replicas_of_one(
    line: Sequence[BrokerId], racks: Mapping[BrokerId, str], rack_count: int, factor: int, first: int, shift: int
) -> Replicas:
    replicas = [line[first]]
    used_racks = {racks[line[first]]}
    # With racks a shift by one would leave followers in the same racks in the same order, so a shift passes all racks.
    step = shift * rack_count
    while len(replicas) < factor:
        candidate = line[(first + 1 + step % (len(line) - 1)) % len(line)]
        step += 1
        if candidate in replicas or (racks[candidate] in used_racks and len(used_racks) < rack_count):
            continue
        replicas.append(candidate)
        used_racks.add(racks[candidate])
    return tuple(replicas)


def first_state(replicas: Replicas, living: Collection[BrokerId], controller_epoch: int) -> PartitionState | None:
    """The state of a partition that never had one: led by its first living replica, all living ones in sync.

    None when none lives: an ISR is never empty, so the partition has to wait for its first state.
    """
    isr = tuple(replica for replica in replicas if replica in living)
    return PartitionState(isr[0], 0, isr, replicas, controller_epoch) if isr else None
