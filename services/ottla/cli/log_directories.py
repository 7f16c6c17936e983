"""How many bytes each partition has on a broker's disks, and whether those are well, asked with DescribeLogDirs (key 35)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ottla.cli.broker_call import call
from ottla.model import TopicPartition


def partition_sizes(
    address: tuple[str, int], properties: Mapping[str, str], topics: Mapping[str, Iterable[int]]
) -> dict[TopicPartition, int]:
    """The bytes of each of these partitions that the broker at `address` has on its disks.

    Version 1 is not flexible, and served by every broker since Kafka 2.0.
    """
    from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse

    asked = tuple(DescribableLogDirTopic(topic=name, partitions=tuple(partitions)) for name, partitions in topics.items())  # type: ignore[arg-type]  # kio has types of its own for names and numbers
    answer = call(address, properties, DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse, "does not tell its sizes")
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
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse

    answer = call(address, properties, DescribeLogDirsRequest(topics=()), DescribeLogDirsResponse, "does not tell of its disks")
    return {
        result.log_dir: "offline" if result.error_code.value else "full" if result.usable_bytes == 0 and result.total_bytes > 0 else "well"
        for result in answer.results
    }
