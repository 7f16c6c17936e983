"""The cluster as reassignments see it: where partitions are, which are on their way, and whom to ask.

That is the controller, by AlterPartitionReassignments and ListPartitionReassignments (keys 45 and 46), for which librdkafka has no call:
Ottla's brokers pass them on from anywhere, Kafka's do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.broker_call import TIMEOUT_SECONDS, call, error_name, security_for
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly
from ottla.cli.errors import CommandFailed
from ottla.cli.log_directories import OnDisk, alter_directories, log_directory_states, replicas_on_disk
from ottla.cli.reassignment_plan import Directories, Plan, Replicas
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from ottla.protocol.messages import Message

# The requests leave their own timeout at Kafka's 60 s; this is a little more.
CALL_SECONDS: Final = 70.0
# At the end of a move the controller has written it, and the broker that we ask hears of it a moment later.
_HEARD_SECONDS: Final = 10.0
# How long a wait continues without an answer: another controller is found well within it.
SILENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ongoing:
    """A partition on its way to other brokers."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def controller_address(metadata: ClusterMetadata) -> tuple[str, int]:
    """Where the controller answers clients.

    Raises:
        CommandFailed: there is none at the moment.
    """
    broker = metadata.brokers.get(metadata.controller_id)
    if broker is None:
        raise CommandFailed("the cluster has no controller at the moment")
    return str(broker.host), broker.port


def alter_reassignments(
    where: Connection, address: tuple[str, int], targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, str]:
    """Begins to move partitions, or takes moves back where there is None. Gives those that were refused, and why."""
    topics: dict[str, list[tuple[int, Sequence[int] | None]]] = {}
    for (topic, number), replicas in sorted(targets.items(), key=lambda item: item[0]):
        topics.setdefault(topic, []).append((number, replicas))

    def request(api: Message) -> Any:
        asked = [
            api.build(
                "ReassignableTopic",
                name=name,
                partitions=[
                    api.build("ReassignablePartition", partition_index=number, replicas=replicas) for number, replicas in partitions
                ],
            )
            for name, partitions in topics.items()
        ]
        return api.build("AlterPartitionReassignmentsRequest", topics=asked)

    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    answer = call(address, where.properties, key, 0, request, "does not reassign", CALL_SECONDS)
    _check(answer)
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_message or error_name(partition.error_code)
        for topic in answer.responses
        for partition in topic.partitions
        if partition.error_code
    }


def adding_replicas(where: Connection, metadata: ClusterMetadata) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that partitions on their way are yet to get; none where the controller may not be asked, or does not answer."""
    with suppress(CommandFailed):
        ongoing = list_reassignments(where, controller_address(metadata), TIMEOUT_SECONDS)
        return {partition: found.adding for partition, found in ongoing.items()}
    return {}


def list_reassignments(where: Connection, address: tuple[str, int], timeout_seconds: float = CALL_SECONDS) -> dict[TopicPartition, Ongoing]:
    """All partitions that are on their way."""
    answer = call(
        address,
        where.properties,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda api: api.build("ListPartitionReassignmentsRequest", topics=None),
        "does not tell of reassignments",
        timeout_seconds,
    )
    _check(answer)
    return {
        TopicPartition(topic.name, partition.partition_index): Ongoing(
            tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
        )
        for topic in sorted(answer.topics, key=lambda topic: str(topic.name))
        for partition in sorted(topic.partitions, key=lambda listed: int(listed.partition_index))
    }


def _check(answer: Any) -> None:
    if answer.error_code:
        raise CommandFailed(f"the cluster refuses: {answer.error_message or error_name(answer.error_code)}")


class ReassigningCluster:
    """What `ottla reassign` knows of the cluster, and how it asks for more."""

    def __init__(self, where: Connection) -> None:
        security_for(where.properties)  # before anything is asked
        self.where = where
        self.admin: AdminClient = where.admin()
        self.refresh()

    def refresh(self) -> None:
        """Asks again, also who the controller is."""
        metadata = cluster_metadata(self.admin, self.where.bootstrap_server)
        self.address = controller_address(metadata)
        self.metadata: ClusterMetadata = metadata
        self.broker_ids = sorted(metadata.brokers)
        self.replicas: dict[TopicPartition, Replicas] = {
            TopicPartition(name, number): tuple(found.replicas)
            for name, topic in sorted(metadata.topics.items())
            for number, found in sorted(topic.partitions.items())
        }

    def racks(self, broker_ids: Sequence[int]) -> dict[int, str | None]:
        """The racks of these brokers."""
        with told_plainly(self.where.bootstrap_server):
            nodes = self.admin.describe_cluster(request_timeout=ANSWER_SECONDS).result(ANSWER_SECONDS + 5).nodes
        known = {node.id: node.rack for node in nodes}
        return {broker_id: known.get(broker_id) for broker_id in broker_ids}

    def complaints_of_directories(self, directories: Directories) -> list[str]:
        """Why these log directories cannot be had."""
        complaints = []
        for broker, wanted in _by_broker(directories).items():
            states = log_directory_states(self._address_of(broker), self.where.properties)
            unusable = [path for path in sorted(set(wanted.values())) if states.get(path, "offline") == "offline"]
            if unusable:
                there = ", ".join(path for path, state in states.items() if state != "offline")
                complaints.append(f"broker {broker} has no log directory {', '.join(unusable)}; it has {there}")
        return complaints

    def alter_directories(self, directories: Directories) -> dict[TopicPartition, str]:
        """Begins to move replicas to these log directories. Gives those that were refused, and why."""
        refused: dict[TopicPartition, str] = {}
        for broker, wanted in _by_broker(directories).items():
            refused |= alter_directories(self._address_of(broker), self.where.properties, wanted)
        return refused

    def on_disk(self, directories: Directories) -> dict[tuple[TopicPartition, int], OnDisk]:
        """Those of the replicas that their brokers have by now."""
        return {
            (partition, broker): found
            for broker, wanted in _by_broker(directories).items()
            for partition, found in replicas_on_disk(self._address_of(broker), self.where.properties, wanted).items()
        }

    def in_other_directories(self, directories: Directories) -> dict[tuple[TopicPartition, int], OnDisk]:
        """Those of them that are not where they are to be."""
        return {key: found for key, found in self.on_disk(directories).items() if found.directory != directories[key]}

    def moving(self, directories: Directories) -> set[TopicPartition]:
        """Partitions of which one of these replicas is being copied to another log directory."""
        return {partition for (partition, _), found in self.on_disk(directories).items() if found.moving_to}

    def _address_of(self, broker_id: int) -> tuple[str, int]:
        broker = self.metadata.brokers.get(broker_id)
        if broker is None:
            raise CommandFailed(f"broker {broker_id} is not there")
        return str(broker.host), broker.port

    def ongoing(self) -> dict[TopicPartition, Ongoing]:
        """All partitions that are on their way."""
        return list_reassignments(self.where, self.address)

    def ongoing_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ongoing]:
        """Those of these partitions that are on their way; patient with a cluster that is just changing its controller."""
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            try:
                ongoing = self.ongoing()
                break
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            try:
                self.refresh()
            except CommandFailed:
                continue  # the next attempt tells
        wanted = set(partitions)
        return {partition: found for partition, found in ongoing.items() if partition in wanted}

    def misplaced(self, plan: Plan) -> dict[TopicPartition, Replicas | None]:
        """Partitions that are not where the plan wants them, after the brokers had time to hear of it; with where they are."""
        deadline = time.monotonic() + _HEARD_SECONDS
        while True:
            self.refresh()
            differing = elsewhere(plan, self.replicas)
            if not differing or time.monotonic() > deadline:
                return differing
            time.sleep(_PAUSE_SECONDS)


def _by_broker(directories: Directories) -> dict[int, dict[TopicPartition, str]]:
    found: dict[int, dict[TopicPartition, str]] = {}
    for (partition, broker), directory in directories.items():
        found.setdefault(broker, {})[partition] = directory
    return found


def elsewhere(plan: Plan, current: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, Replicas | None]:
    """Partitions that are not where the plan wants them, with where they are; None for one that is not there at all."""
    return {partition: current.get(partition) for partition, wanted in sorted(plan.items()) if current.get(partition) != wanted}
