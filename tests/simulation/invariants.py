"""What must hold inside the cluster at every moment, and at the end: what no client could tell.

At every look: one leader for an epoch; a replica that is in sync has every message that was acknowledged before. At
the end: everybody is in sync, and all logs are the same, byte for byte, up to the high watermark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from ottla.model import TopicPartition
from ottla.record.batch import batches


class Replica(Protocol):
    """What is looked at of a partition of a broker."""

    is_leader: bool
    leader_epoch: int
    high_watermark: int
    topic_id: UUID
    log: Any


@dataclass(frozen=True, slots=True)
class PartitionZnode:
    """A partition's state as ZooKeeper has it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    is_moving: bool  # to other brokers


def parse_state(data: bytes, topic: bytes, partition: int) -> PartitionZnode:
    """From the partition's znode and its topic's."""
    state, assignment = json.loads(data), json.loads(topic)
    moving = [assignment.get(name, {}).get(str(partition)) for name in ("adding_replicas", "removing_replicas")]
    replicas = assignment["partitions"].get(str(partition), ())
    return PartitionZnode(state["leader"], state["leader_epoch"], tuple(state["isr"]), tuple(replicas), any(moving))


@dataclass(slots=True)
class Invariants:
    """What was seen so far, and what was wrong with it."""

    violated: Callable[[str], None]
    # By ZooKeeper's content, topic id, partition and epoch. A restored copy may give an epoch a second time when no log has records of it;
    # that there are none is judged by what the logs hold.
    leaders: dict[tuple[int, UUID, int, int], str] = field(default_factory=dict)
    acknowledged: dict[TopicPartition, int] = field(default_factory=dict)  # the end of what was acknowledged

    def acknowledge(self, key: TopicPartition, offset: int) -> None:
        """A producer was told that its message is at this offset."""
        self.acknowledged[key] = max(self.acknowledged.get(key, 0), offset + 1)

    def look(
        self,
        processes: Mapping[str, Mapping[TopicPartition, Replica]],
        replicas: Mapping[int, Mapping[TopicPartition, Replica]],
        states: Mapping[TopicPartition, PartitionZnode],
        forgetful: Iterable[int],
        store: int,
    ) -> None:
        """Looks at all brokers that run.

        Args:
            processes: what each has, by its machine's name. Of two with one id the one that lost it may lead for a while, as it was.
            replicas: of the brokers that are registered, by id.
            states: as ZooKeeper has them.
            forgetful: brokers whose disk has lost something that they have not fetched again yet.
            store: the number of ZooKeeper's content; a restored copy is another.
        """
        for name, partitions in processes.items():
            for key, replica in partitions.items():
                if replica.is_leader:
                    leader = self.leaders.setdefault((store, replica.topic_id, key.partition, replica.leader_epoch), name)
                    if leader != name:
                        self.violated(f"{key}: {leader} and {name} both lead in epoch {replica.leader_epoch}")
        forgetful = set(forgetful)
        for key, state in states.items():
            end = self.acknowledged.get(key, 0)
            for broker_id in state.isr:
                member = replicas.get(broker_id, {}).get(key)
                if member is not None and broker_id not in forgetful and member.log.log_end_offset < end:
                    self.violated(
                        f"{key}: broker {broker_id} is in the ISR {state.isr} and its log ends at {member.log.log_end_offset},"
                        f" while everything before {end} is acknowledged"
                    )

    def compare(self, key: TopicPartition, replicas: Mapping[int, Replica]) -> None:
        """At the end: every replica's log is the same up to the high watermark, and that is not below what was acknowledged."""
        leading = [replica for replica in replicas.values() if replica.is_leader]
        if len(leading) != 1:
            self.violated(f"{key}: {len(leading)} leaders at the end")
            return
        high_watermark = leading[0].high_watermark
        if high_watermark < self.acknowledged.get(key, 0):
            self.violated(f"{key}: the high watermark is {high_watermark}, {self.acknowledged[key]} was acknowledged")
        # A follower deletes up to where its leader's log starts, and a moment later.
        start = max(replica.log.log_start_offset for replica in replicas.values())
        logs = {broker_id: log_batches(each.log.directory, start, high_watermark) for broker_id, each in replicas.items()}
        first_id, first = next(iter(logs.items()))
        for broker_id, each in logs.items():
            if each != first:
                at = next((index for index, (a, b) in enumerate(zip(first, each, strict=False)) if a != b), min(len(first), len(each)))
                self.violated(
                    f"{key}: the logs of brokers {first_id} and {broker_id} differ below the high watermark {high_watermark},"
                    f" batch {at}: {first[at : at + 1]} and {each[at : at + 1]}"
                )


def log_batches(directory: Path, start_offset: int, end_offset: int) -> list[tuple[int, int, int, int]]:
    """Base offset, last offset, leader epoch and checksum of each batch of a log, in order."""
    found = []
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        for _, header in batches(content):
            if start_offset <= header.last_offset and header.base_offset < end_offset:
                found.append((header.base_offset, header.last_offset, header.leader_epoch, header.crc))
    return found
