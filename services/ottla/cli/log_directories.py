"""How many bytes each partition has on each broker's disks, asked with DescribeLogDirs (key 35)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

    asked = tuple(DescribableLogDirTopic(topic=name, partitions=tuple(partitions)) for name, partitions in topics.items())  # type: ignore[arg-type]
    answer = call(address, properties, DescribeLogDirsRequest(topics=asked), DescribeLogDirsResponse, "does not tell its sizes")
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
        if not partition.is_future_key  # a copy on its way to another directory of the same broker
    }
