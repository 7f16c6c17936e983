"""AlterPartitionReassignments and ListPartitionReassignments (keys 45 and 46), for which librdkafka has no call.

They are sent to the controller: Ottla's brokers pass them on from anywhere, Kafka's do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.broker_call import TIMEOUT_SECONDS, call
from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

    from ottla.protocol.messages import Message

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
        TopicPartition(topic.name, partition.partition_index): partition.error_message or _error_name(partition.error_code)
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
        raise CommandFailed(f"the cluster refuses: {answer.error_message or _error_name(answer.error_code)}")


def _error_name(code: Any) -> str:
    return str(code.name).replace("_", " ")
