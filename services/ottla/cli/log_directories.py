"""What a broker's log directories hold, whether they are well (DescribeLogDirs), and moves between them (AlterReplicaLogDirs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ottla.cli.broker_call import call, error_name
from ottla.errors import NONE, ReplicaNotAvailable
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A replica on its broker's disks."""

    size: int  # bytes
    directory: str
    moving_to: str | None  # another log directory, to which it is being copied


def replicas_on_disk(
    address: tuple[str, int], properties: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OnDisk]:
    """Those of these partitions that the broker at `address` has on its disks.

    Version 1 is served by every broker since Kafka 2.0.
    """
    from ottla.wire.offsets import by_topic

    def request(api: Message) -> Any:
        topics = by_topic(partitions, lambda replica: replica.partition)
        asked = [api.build("DescribableLogDirTopic", topic=name, partitions=numbers) for name, numbers in topics]
        return api.build("DescribeLogDirsRequest", topics=asked)

    answer = call(address, properties, ApiKey.DESCRIBE_LOG_DIRS, 1, request, "does not tell what its disks hold")
    found = [
        (TopicPartition(topic.name, partition.partition_index), directory.log_dir, partition)
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
    ]
    moving = {replica: directory for replica, directory, partition in found if partition.is_future_key}
    return {
        replica: OnDisk(partition.partition_size, directory, moving.get(replica))
        for replica, directory, partition in found
        if not partition.is_future_key
    }


def alter_directories(
    address: tuple[str, int], properties: Mapping[str, str], directories: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Begins to move replicas of the broker at `address` to these log directories of its own.

    One that it is yet to get will be there when it gets it. Gives those that were refused, and why.
    """
    from ottla.wire.offsets import by_topic

    by_directory: dict[str, list[TopicPartition]] = {}
    for replica, directory in directories.items():
        by_directory.setdefault(directory, []).append(replica)

    def request(api: Message) -> Any:
        asked = [
            api.build(
                "AlterReplicaLogDir",
                path=path,
                topics=[
                    api.build("AlterReplicaLogDirTopic", name=name, partitions=numbers)
                    for name, numbers in by_topic(replicas, lambda replica: replica.partition)
                ],
            )
            for path, replicas in by_directory.items()
        ]
        return api.build("AlterReplicaLogDirsRequest", dirs=asked)

    answer = call(address, properties, ApiKey.ALTER_REPLICA_LOG_DIRS, 1, request, "does not move replicas to other log directories")
    return {
        TopicPartition(topic.topic_name, partition.partition_index): error_name(partition.error_code)
        for topic in answer.results
        for partition in topic.partitions
        if partition.error_code.value not in (NONE, ReplicaNotAvailable.code)
    }


def log_directory_states(address: tuple[str, int], properties: Mapping[str, str]) -> dict[str, Literal["well", "full", "offline"]]:
    """Each log directory of the broker at `address`, and whether it can be written to. Raises CommandFailed."""
    return {result.log_dir: state_of(result) for result in log_directories(address, properties, replicas=False)}


def state_of(result: Any) -> Literal["well", "full", "offline"]:
    """Of a log directory as it is answered."""
    return "offline" if result.error_code.value else "full" if result.usable_bytes == 0 and result.total_bytes > 0 else "well"


def log_directories(address: tuple[str, int], properties: Mapping[str, str], *, replicas: bool) -> Any:
    """The log directories of the broker at `address`, with all that they hold if that is asked for.

    Version 4 has the space that is left (KIP-827); every broker since Kafka 3.3 serves it. Raises CommandFailed.
    """
    answer = call(
        address,
        properties,
        ApiKey.DESCRIBE_LOG_DIRS,
        4,
        lambda api: api.build("DescribeLogDirsRequest", topics=None if replicas else []),
        "does not tell of its disks",
    )
    return answer.results
