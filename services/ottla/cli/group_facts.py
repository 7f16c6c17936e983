"""What there is to know of consumer groups: gathered from the cluster, and how far behind each is.

A lag is given in messages (the end less what is committed) and in seconds: how old the first message is that the group has
not read. The second needs that message, so one is fetched from each partition that lags.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.cli.broker_call import call
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

OFFSETS_TOPIC: Final = "__consumer_offsets"
NO_OFFSET: Final = -1001  # librdkafka's for "nothing committed"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group in a list."""

    group_id: str
    type: str
    state: str
    is_simple: bool


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of a group, what it reads, and in a consumer group what it is to read; None where that is the same thing."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[tuple[str, int], ...]
    target: tuple[tuple[str, int], ...] | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """How far a group is in one partition; None where something is not known."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag_seconds: float | None
    member: MemberRow | None

    @property
    def lag(self) -> int | None:
        """Messages that are there and not read."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group with its members and partitions."""

    group_id: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[MemberRow, ...]
    partitions: tuple[PartitionRow, ...]


def list_groups(where: Connection) -> tuple[list[GroupRow], list[str]]:
    """All groups of the cluster, by id; and a sentence for each reason why some may be missing."""
    admin = where.admin()
    with told_plainly(where.bootstrap_server):
        found = admin.list_consumer_groups(request_timeout=ANSWER_SECONDS).result(ANSWER_SECONDS + 5)
    if found.errors and not found.valid:
        raise CommandFailed(f"the groups cannot be listed: {found.errors[0]}")
    silent = [str(error) for error in found.errors]
    silent += leaderless(cluster_metadata(admin, where.bootstrap_server), OFFSETS_TOPIC)
    states = states_of(where, admin, {group.group_id: group.state for group in found.valid})
    rows = (
        GroupRow(group.group_id, type_name(group.type), states[group.group_id], group.is_simple_consumer_group) for group in found.valid
    )
    return sorted(rows, key=lambda row: row.group_id), silent


def leaderless(metadata: ClusterMetadata, topic: str) -> list[str]:
    """A sentence for each partition of coordinators that has no leader: what it has, no broker names."""
    found = metadata.topics[topic].partitions.values() if topic in metadata.topics else ()
    return [f"{topic}-{partition.id} has no leader at the moment" for partition in found if partition.leader not in metadata.brokers]


def state_name(state: Any) -> str:
    """`PREPARING_REBALANCING` as Kafka's tools write it."""
    name = str(state.name)
    return {
        "PREPARING_REBALANCING": "PreparingRebalance",
        "COMPLETING_REBALANCING": "CompletingRebalance",
        "STABLE": "Stable",
        "EMPTY": "Empty",
        "DEAD": "Dead",
    }.get(name, name.capitalize())


def states_of(where: Connection, admin: AdminClient, states: Mapping[str, Any]) -> dict[str, str]:
    """The state of each group; in its coordinator's words where the client has none, as for one that rebalances by KIP-848."""
    names = {group_id: state_name(state) for group_id, state in states.items()}
    if "Unknown" in names.values():
        for broker in cluster_metadata(admin, where.bootstrap_server).brokers.values():
            with suppress(CommandFailed):  # one that may not be asked in this way, or has just gone, hides nothing
                answer = call(
                    (str(broker.host), broker.port),
                    where.properties,
                    ApiKey.LIST_GROUPS,
                    4,
                    lambda api: api.build("ListGroupsRequest", states_filter=()),
                    "does not list its groups",
                )
                names.update((group.group_id, group.group_state) for group in answer.groups if names.get(group.group_id) == "Unknown")
    return names


def type_name(group_type: Any) -> str:
    """`classic` or `consumer`, as Kafka's tools write it; `unknown` of a broker that does not say."""
    return str(group_type.name).lower()


def _partitions(assignment: Any) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((assigned.topic, assigned.partition) for assigned in assignment.topic_partitions))


def members_of(where: Connection, admin: AdminClient, group_id: str) -> tuple[int, str]:
    """How many members a group has, and its state; none for a group that does not exist."""
    with told_plainly(where.bootstrap_server, f"group {group_id!r}"):
        described = admin.describe_consumer_groups([group_id], request_timeout=ANSWER_SECONDS)[group_id].result(ANSWER_SECONDS + 5)
    return len(described.members), states_of(where, admin, {group_id: described.state})[group_id]


def describe_group(where: Connection, group_id: str, *, with_seconds: bool = True) -> GroupFacts:
    """Everything about one group.

    Raises:
        CommandFailed: there is no such group, or no coordinator for it.
    """
    admin = where.admin()
    with told_of_group(admin, where, group_id):
        described = admin.describe_consumer_groups([group_id], request_timeout=ANSWER_SECONDS)[group_id].result(ANSWER_SECONDS + 5)
    if state_name(described.state) == "Dead":
        raise CommandFailed(f"group {group_id!r} does not exist on {where.bootstrap_server}")
    committed = committed_offsets(admin, where, group_id)
    members = tuple(
        MemberRow(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host,
            _partitions(member.assignment),
            None if member.target_assignment is None else _partitions(member.target_assignment),
        )
        for member in described.members
    )
    owners = {partition: member for member in members for partition in member.partitions}
    keys = sorted(committed.keys() | owners.keys())
    ends = latest_offsets(admin, where, keys)
    behind = {key: offset for key, offset in committed.items() if offset < (ends.get(key) or 0)}
    ages = first_unread_ages(where, behind) if with_seconds else {}
    rows = tuple(
        PartitionRow(
            *key,
            committed.get(key),
            ends.get(key),
            ages.get(key, 0.0 if key in committed and key in ends and key not in behind else None),
            owners.get(key),
        )
        for key in keys
    )
    coordinator = -1 if described.coordinator is None else described.coordinator.id
    state, assignor = states_of(where, admin, {group_id: described.state})[group_id], described.partition_assignor or ""
    return GroupFacts(group_id, type_name(described.type), state, assignor, coordinator, members, rows)


@contextmanager
def told_of_group(admin: AdminClient, where: Connection, group_id: str) -> Iterator[None]:
    """As `told_plainly`; says why where no broker can coordinate groups, which the client only takes for a broker that is slow."""
    from confluent_kafka import KafkaError, KafkaException

    with told_plainly(where.bootstrap_server, f"group {group_id!r}"):
        try:
            yield
        except KafkaException as exception:
            if exception.args[0].code() == KafkaError._TIMED_OUT:
                cluster = admin.list_topics(timeout=ANSWER_SECONDS)
                if OFFSETS_TOPIC not in cluster.topics:
                    raise CommandFailed(
                        f"group {group_id!r} has no coordinator: {OFFSETS_TOPIC} is not made, and {where.bootstrap_server} has "
                        f"{count_of(len(cluster.brokers), 'broker')}; is offsets.topic.replication.factor larger than that?"
                    ) from None
            raise


def committed_offsets(admin: AdminClient, where: Connection, group_id: str) -> dict[tuple[str, int], int]:
    """What a group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    if not group_id:  # brokers take commits for it, as of a consumer without group.id
        raise CommandFailed("group '' has an empty id, for which the client has no way to ask")
    with told_of_group(admin, where, group_id):
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)], request_timeout=ANSWER_SECONDS)
        found = answer[group_id].result(ANSWER_SECONDS + 5).topic_partitions
    return {(committed.topic, committed.partition): committed.offset for committed in found or () if committed.offset >= 0}


Keys: TypeAlias = Iterable[tuple[str, int]]


def latest_offsets(admin: AdminClient, where: Connection, keys: Keys) -> dict[tuple[str, int], int]:
    """Where partitions end; one that is gone is left out."""
    from confluent_kafka.admin import OffsetSpec

    return _offsets(admin, where, keys, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # its package has no types for it


def earliest_offsets(admin: AdminClient, where: Connection, keys: Keys) -> dict[tuple[str, int], int]:
    """Where partitions begin; one that is gone is left out."""
    from confluent_kafka.admin import OffsetSpec

    return _offsets(admin, where, keys, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # its package has no types for it


def offsets_since(admin: AdminClient, where: Connection, keys: Keys, timestamp_ms: int) -> dict[tuple[str, int], int]:
    """The first offset of each partition that is as young; -1 where none is, and nothing for a partition that is gone."""
    from confluent_kafka.admin import OffsetSpec

    return _offsets(admin, where, keys, OffsetSpec.for_timestamp(timestamp_ms))


def _offsets(admin: AdminClient, where: Connection, keys: Keys, spec: OffsetSpec) -> dict[tuple[str, int], int]:
    from confluent_kafka import KafkaException, TopicPartition

    specs = {TopicPartition(*key): spec for key in keys}
    if not specs:
        return {}
    with told_plainly(where.bootstrap_server):
        answers = admin.list_offsets(specs, request_timeout=ANSWER_SECONDS)
    found: dict[tuple[str, int], int] = {}
    for partition, answer in answers.items():
        try:
            found[partition.topic, partition.partition] = answer.result(ANSWER_SECONDS + 5).offset
        except KafkaException:
            continue  # the topic was deleted, or the partition has lost its leader
    return found


def first_unread_ages(where: Connection, behind: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], float | None]:
    """How old the message at each offset is, in seconds; None for one without a time, nothing for one that could not be had."""
    from confluent_kafka import Consumer, TopicPartition

    if not behind:
        return {}
    own = {"group.id": "ottla-lag", "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.message.max.bytes": 1024}
    consumer = where.client(Consumer, **own)
    ages: dict[tuple[str, int], float | None] = {}
    try:
        consumer.assign([TopicPartition(*key, offset) for key, offset in behind.items()])
        end = time.monotonic() + ANSWER_SECONDS / 2
        while len(ages) < len(behind) and time.monotonic() < end:
            for message in consumer.consume(100, 0.2):
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None or message.error() is not None:
                    continue
                key = (topic, partition)
                if key not in ages:
                    timestamp = message.timestamp()[1]
                    ages[key] = None if timestamp < 0 else max(0.0, time.time() - timestamp / 1000)  # -1: it has none
                    consumer.pause([TopicPartition(*key)])
    finally:
        consumer.close()
    return ages


def topic_partitions(partitions: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
    """As the client takes offsets to be set."""
    from confluent_kafka import TopicPartition

    return [TopicPartition(*key, offset) for key, offset in sorted(partitions.items())]


def partitions_of(where: Connection, admin: AdminClient, topics: Sequence[str]) -> list[tuple[str, int]]:
    """`clicks` as all its partitions, `clicks:0,2` as those two.

    Raises:
        CommandFailed: there is no such topic or partition.
        UsageError: one is of another form.
    """
    metadata = cluster_metadata(admin, where.bootstrap_server)
    found: list[tuple[str, int]] = []
    for topic in topics:
        name, colon, numbers = topic.partition(":")
        if name not in metadata.topics:
            raise CommandFailed(f"topic {name!r} does not exist on {where.bootstrap_server}")
        there = sorted(metadata.topics[name].partitions)
        try:
            chosen = [int(number) for number in numbers.split(",")] if colon else there
        except ValueError:
            raise UsageError(f"{topic!r} is neither NAME nor NAME:0,1,2") from None
        missing = [number for number in chosen if number not in there]
        if missing:
            raise CommandFailed(f"topic {name!r} has no partition {missing[0]}, only 0 to {there[-1]}")
        found += [(name, number) for number in chosen]
    return list(dict.fromkeys(found))
