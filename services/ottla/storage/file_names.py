"""The names of files and directories under a log directory: Kafka's, letter for letter.

`<topic>-<partition>/<20-digit base offset>.log` and its companions. Source: Kafka's `LogFileUtils` and `LocalLog`.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from ottla.model import TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DAMAGED_SUFFIX: Final = ".damaged"  # of a file that could not be read
STRAY_SUFFIX: Final = ".stray"  # not one of Kafka's, which looks at no file with another suffix than its own

DELETED_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"
FUTURE_DIRECTORY_SUFFIX: Final = "-future"

LONGEST_NAME: Final = 255  # what most file systems allow, and Kafka's own cap

_MARKED_DIRECTORY: Final = re.compile(r"\S+-\d+\.[0-9a-f]{32}-(delete|stray|future)")
_PARTITION_DIRECTORY: Final = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]*)")  # one name for each partition


def segment_file_name(base_offset: int, suffix: str) -> str:
    """`<20-digit base offset><suffix>`: the digits make a listing sort by offset."""
    return f"{base_offset:020d}{suffix}"


def is_stray_segment(name: str) -> bool:
    """Whether the file was a segment that a start could not keep in its log; only a person deletes it."""
    return name.endswith(STRAY_SUFFIX) and LOG_SUFFIX + "." in name


def offset_in(name: str) -> int | None:
    """The offset that a file's name begins with, or None when it begins with something else."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def is_segment(name: str) -> bool:
    """Whether the file is a segment's log. A copy beside it is none, whatever its name ends with."""
    offset = offset_in(name)
    return offset is not None and name == segment_file_name(offset, LOG_SUFFIX)


def partition_directory_name(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def deleted_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """What a deleted partition's directory is renamed to until its files go."""
    return _marked_directory_name(topic_partition, unique_id, DELETED_DIRECTORY_SUFFIX)


def stray_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """What a directory is renamed to when its broker is not a replica of the partition any more; its files stay."""
    return _marked_directory_name(topic_partition, unique_id, STRAY_DIRECTORY_SUFFIX)


def future_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """Where a replica's copy grows in another log directory until it takes the replica's place."""
    return _marked_directory_name(topic_partition, unique_id, FUTURE_DIRECTORY_SUFFIX)


def _marked_directory_name(topic_partition: TopicPartition, unique_id: UUID, mark: str) -> str:
    """The partition's name, an id and the mark.

    A topic's name may have 249 characters, so with the partition, an id of 32 digits and the suffix it can pass
    what a file system takes; then the topic's name is cut, as Kafka does, since the id alone makes it unique.
    """
    suffix = f"-{topic_partition.partition}.{unique_id.hex}{mark}"
    return topic_partition.topic[: LONGEST_NAME - len(suffix)] + suffix


def is_marked_directory(name: str) -> bool:
    """Whether the directory was a partition's and is renamed now: deleted, stray, or a replica on the move."""
    return _MARKED_DIRECTORY.fullmatch(name) is not None


def partition_of_marked_directory(name: str) -> TopicPartition | None:
    """The partition whose directory was renamed to that; None when the name was cut, or is none of these."""
    return partition_of_directory(name.rpartition(".")[0]) if is_marked_directory(name) and len(name) < LONGEST_NAME else None


def partition_of_directory(name: str) -> TopicPartition | None:
    """The partition whose log a directory of that name holds, or None when it is not a partition's directory."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None
