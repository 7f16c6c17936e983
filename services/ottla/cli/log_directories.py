"""How many bytes each partition has on a broker's disks, and whether those are well, asked with DescribeLogDirs (key 35)."""

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
    """Each log directory of the broker at `address`, and whether it can be written to.

    Version 4 has the space that is left (KIP-827); every broker since Kafka 3.3 serves it. Raises CommandFailed.
    """
    answer = call(
        address,
        properties,
        ApiKey.DESCRIBE_LOG_DIRS,
        4,
        lambda api: api.build("DescribeLogDirsRequest", topics=[]),
        "does not tell of its disks",
    )
    return {
        result.log_dir: "offline" if result.error_code.value else "full" if result.usable_bytes == 0 and result.total_bytes > 0 else "well"
        for result in answer.results
    }
