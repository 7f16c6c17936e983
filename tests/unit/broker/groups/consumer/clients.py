"""A consumer group with members that behave as clients do, and a clock that the test turns.

What the group writes is kept as records, the last of each key, as a compacted log would: `replayed` is what another
coordinator would find.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.unit.broker.groups.known_topics import KnownTopics

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.groups import consumer_groups
from ottla.broker.groups.classic.effects import Joined
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.consumer import classic_members
from ottla.broker.groups.consumer.assignment import TopicPartitionId, assignment_of, partitions_of
from ottla.broker.groups.consumer.embedded import read_assignment
from ottla.broker.groups.consumer.group import ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer, check, heartbeat
from ottla.broker.groups.consumer.member import LEAVES, LEAVES_FOR_A_WHILE
from ottla.broker.groups.consumer.record_codec import encode_change
from ottla.broker.groups.group_records import restore_consumer_group
from ottla.broker.groups.loading import loaded_groups
from ottla.errors import FencedMemberEpoch, IllegalGeneration, RebalanceInProgress, UnknownMemberId, UnreleasedInstanceId
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch

SESSION_MS = 45_000
REBALANCE_MS = 60_000


class Refused(Exception):
    """The log takes nothing at the moment."""


class ConsumerCoordinator:
    """A group; every event is either written or undone, as its driver does it."""

    def __init__(self, topics: KnownTopics, limits: ConsumerLimits | None = None) -> None:
        self.now_ms = 1_000_000
        self.topics = topics
        self.group = ConsumerGroup("g", limits or ConsumerLimits())
        self.records: dict[bytes, bytes] = {}
        self.refuses = False
        self._unique = itertools.count(1)

    def perform(self, event: Any, *arguments: Any) -> Any:
        """Has something decided and written."""
        try:
            result = event(*arguments)
            self.group.update_state()
            if self.refuses and self.group.changes:
                raise Refused
        except BaseException:
            self.group.undo()
            raise
        for change in self.group.take_changes():
            key, value = encode_change("g", change)
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        return result

    def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        check(request, self.group.limits.assignors)
        if request.leaves:
            member = consumer_groups.leaver(self.group, request)
            if request.member_epoch == LEAVES_FOR_A_WHILE:
                answer: HeartbeatAnswer = self.perform(consumer_groups.leave_for_a_while, self.group, member)
                return answer
            self.perform(consumer_groups.remove, self.group, [member], self.topics, self.now_ms)
            return HeartbeatAnswer(member.member_id, request.member_epoch)
        told: HeartbeatAnswer = self.perform(heartbeat, self.group, request, self.topics, self.now_ms, self.unique)
        return told

    def join(self, request: Join) -> Joined:
        joined: Joined = self.perform(classic_members.join, self.group, request, 0, self.topics, self.now_ms, self.unique)
        return joined

    def leave(self, leaver: Leaver) -> None:
        member = classic_members.leavers(self.group, leaver)
        self.perform(consumer_groups.remove, self.group, [member], self.topics, self.now_ms)

    def unique(self) -> UUID:
        return UUID(int=next(self._unique))

    def wait(self, milliseconds: int) -> list[str]:
        """Lets time pass; gives who was put out."""
        end, out = self.now_ms + milliseconds, []
        while self.group.next_deadline_ms <= end:
            self.now_ms = max(self.now_ms, self.group.next_deadline_ms)
            overdue = consumer_groups.overdue(self.group, self.now_ms)
            for member, _ in overdue:
                self.perform(consumer_groups.remove, self.group, [member], self.topics, self.now_ms)
                out.append(member.member_id)
            self.group.find_next_deadline()
        self.now_ms = end
        return out

    def replayed(self) -> ConsumerGroup:
        """The group as it is loaded from what was written."""
        read = LastValues(TopicPartition("__consumer_offsets", 0))
        if self.records:
            read.feed(build_batch([Record(index, 0, *each) for index, each in enumerate(self.records.items())]))
        found = loaded_groups(TopicPartition("__consumer_offsets", 0), read).get("g")
        assert read.corrupt_records == 0
        return restore_consumer_group("g", [] if found is None else found.changes, self.group.limits, self.now_ms)


def essence(group: ConsumerGroup) -> dict[str, Any]:
    """Everything that a group is, but for deadlines."""
    targets = {member_id: target for member_id, target in group.targets.items() if target}
    held = {partition: member_id for member_id, member in group.members.items() for partition in _held(member)}
    assert group._owners == held
    return {
        "state": group.state,
        "epochs": (group.epoch, group.assignment_epoch),
        "topics": dict(group.topics),
        "members": dict(group.members),
        "targets": targets,
        "regexes": dict(group.regexes),
        "names": group.subscribed_names(),
        "assignor": group.assignor,
        "classic": group._classic_members,
        "held": held,
    }


def _held(member: Any) -> list[TopicPartitionId]:
    return list(partitions_of(member.position.held))


@dataclass
class Client:
    """A consumer that speaks the consumer protocol. `owned` is what it reads at this moment."""

    coordinator: ConsumerCoordinator
    member_id: str
    names: frozenset[str] = frozenset({"clicks"})
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: set[TopicPartitionId] = field(default_factory=set)
    has_missed: bool = False
    is_out: bool = False

    def beat(self, *, answer_is_lost: bool = False, is_full: bool = False, revokes: bool = True) -> HeartbeatAnswer | None:
        """Sends a heartbeat and does what the answer says; one that was put out begins again.

        When there was no answer it says everything in the next one, as `AbstractHeartbeatRequestManager.onFailure` of Kafka's client.

        Args:
            revokes: whether it gives up at once what it is not to have any more.
        """
        joins = self.epoch == 0
        says_all = joins or is_full or self.has_missed
        request = Heartbeat(
            self.member_id,
            self.epoch,
            "client",
            "/127.0.0.1",
            self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            names=self.names if says_all else None,
            regex=self.regex if says_all else None,
            assignor=self.assignor if says_all else None,
            owned={} if joins else assignment_of(self.owned),
        )
        try:
            answer = self.coordinator.heartbeat(request)
        except (FencedMemberEpoch, UnknownMemberId):
            self.begin_anew()
            return None
        except (Refused, UnreleasedInstanceId):
            return None  # the log or its former self is in the way; it tries again
        self.has_missed = answer_is_lost
        if answer_is_lost:
            return None
        self.take(answer, revokes=revokes)
        return answer

    def take(self, answer: HeartbeatAnswer, *, revokes: bool = True) -> None:
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = set(partitions_of(answer.assignment))
            if revokes or assigned >= self.owned:
                self.owned = assigned

    def begin_anew(self) -> None:
        self.epoch = 0
        self.owned = set()

    def leave(self, epoch: int = LEAVES) -> None:
        self.coordinator.heartbeat(Heartbeat(self.member_id, epoch, instance_id=self.instance_id))
        self.begin_anew()
        self.is_out = True


def subscription(topics: frozenset[str], owned: set[TopicPartitionId], known: KnownTopics, version: int = 1) -> bytes:
    """What a consumer writes into its JoinGroup."""

    def string(text: str) -> bytes:
        return struct.pack(">h", len(text)) + text.encode()

    by_name: dict[str, list[int]] = {}
    for topic_id, partition in sorted(owned):
        by_name.setdefault(known.names_ever[topic_id], []).append(partition)  # one that was deleted is still read, if only in vain
    data = struct.pack(">hi", version, len(topics)) + b"".join(map(string, sorted(topics))) + struct.pack(">i", -1)
    if version >= 1:
        data += struct.pack(">i", len(by_name))
        data += b"".join(string(name) + struct.pack(f">i{len(each)}i", len(each), *each) for name, each in by_name.items())
    return data


@dataclass
class ClassicClient:
    """A consumer that speaks the classic protocol, with a cooperative assignor."""

    coordinator: ConsumerCoordinator
    member_id: str
    names: frozenset[str] = frozenset({"clicks"})
    instance_id: str | None = None
    epoch: int = -1
    owned: set[TopicPartitionId] = field(default_factory=set)
    has_to_sync: bool = False
    is_out: bool = False

    def join(self) -> None:
        protocol = Protocol("cooperative-sticky", subscription(self.names, self.owned, self.coordinator.topics))
        request = Join(
            self.member_id,
            self.instance_id,
            "classic",
            "/h",
            10_000,
            REBALANCE_MS,
            "consumer",
            (protocol,),
            requires_known_member_id=False,
        )
        self.epoch = self.coordinator.join(request).generation_id
        self.has_to_sync = True

    def sync(self) -> None:
        request = Sync(self.member_id, self.instance_id, self.epoch, "consumer", "cooperative-sticky")
        coordinator = self.coordinator
        answer = classic_members.sync(coordinator.group, request, 0, coordinator.topics, coordinator.now_ms)
        self.owned = set()
        for name, partitions in read_assignment(answer.assignment).items():
            topic = coordinator.group.topics.get(name) or coordinator.topics.topic(name)
            assert topic is not None
            self.owned |= {(topic.topic_id, partition) for partition in partitions}
        self.has_to_sync = False

    def beat(self) -> None:
        """Does what a client does next: joins, syncs, or sends a heartbeat."""
        try:
            if self.epoch < 0:
                self.join()
            elif self.has_to_sync:
                self.sync()
            else:
                coordinator = self.coordinator
                coordinator.perform(classic_members.look_at_topics, coordinator.group, coordinator.topics, coordinator.now_ms)
                classic_members.heartbeat(coordinator.group, self.member_id, self.instance_id, self.epoch, coordinator.now_ms)
        except RebalanceInProgress:
            self.epoch = -1
        except (UnknownMemberId, IllegalGeneration):
            self.begin_anew()
        except Refused:
            pass

    def begin_anew(self) -> None:
        self.epoch, self.has_to_sync = -1, False
        self.owned = set()

    def leave(self) -> None:
        self.coordinator.leave(Leaver(self.member_id, self.instance_id))
        self.begin_anew()
        self.is_out = True
