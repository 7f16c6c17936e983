"""What a broker's log directories hold, and whether they are well, asked with DescribeLogDirs (key 35)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ottla.cli.broker_call import call
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.protocol.messages import Message


def partition_sizes(
    address: tuple[str, int], properties: Mapping[str, str], topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, int]:
    """The bytes of each of these partitions that the broker at `address` has on its disks.

    Version 1 is served by every broker since Kafka 2.0.
    """

    def request(api: Message) -> Any:
        asked = [api.build("DescribableLogDirTopic", topic=name, partitions=list(partitions)) for name, partitions in topics.items()]
        return api.build("DescribeLogDirsRequest", topics=asked)

    answer = call(address, properties, ApiKey.DESCRIBE_LOG_DIRS, 1, request, "does not tell its sizes")
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
        if not partition.is_future_key  # a copy on its way to another directory of the same broker
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
