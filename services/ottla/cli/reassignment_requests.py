"""AlterPartitionReassignments and ListPartitionReassignments (keys 45 and 46), for which librdkafka has no call.

They are sent to the controller: Ottla's brokers pass them on from anywhere, Kafka's do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.broker_call import call, can_call
from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

# The requests leave their own timeout at Kafka's 60 s; this is a little more.
CALL_SECONDS: Final = 70.0


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


def check_can_ask(where: Connection) -> None:
    """Raises UsageError for a connection that these requests cannot be sent over."""
    if not can_call(where.properties):
        raise UsageError(f"reassignments cannot be asked for over {where.properties['security.protocol']}; use a listener without SASL")


def alter_reassignments(
    where: Connection, address: tuple[str, int], targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, str]:
    """Begins to move partitions, or takes moves back where there is None. Gives those that were refused, and why."""
    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse

    topics: dict[str, list[Any]] = {}
    for (topic, number), replicas in sorted(targets.items(), key=lambda item: item[0]):
        chosen = None if replicas is None else tuple(replicas)
        topics.setdefault(topic, []).append(ReassignablePartition(partition_index=number, replicas=chosen))  # type: ignore[arg-type]  # kio has types of its own for names and numbers
    request = AlterPartitionReassignmentsRequest(
        topics=tuple(ReassignableTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items())  # type: ignore[arg-type]  # kio has types of its own for names and numbers
    )
    answer = call(address, where.properties, request, AlterPartitionReassignmentsResponse, "does not reassign", CALL_SECONDS)
    _check(answer)
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_message or _error_name(partition.error_code)
        for topic in answer.responses
        for partition in topic.partitions
        if partition.error_code
    }


def list_reassignments(where: Connection, address: tuple[str, int]) -> dict[TopicPartition, Ongoing]:
    """All partitions that are on their way."""
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

    request = ListPartitionReassignmentsRequest(topics=None)
    refusal = "does not tell of reassignments"
    answer = call(address, where.properties, request, ListPartitionReassignmentsResponse, refusal, CALL_SECONDS)
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
        raise CommandFailed(f"the cluster refuses: {answer.error_message or _error_name(answer.error_code)}")


def _error_name(code: Any) -> str:
    return str(code.name).replace("_", " ")
