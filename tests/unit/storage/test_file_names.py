"""Names of files and directories, as Kafka gives them."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.model import TopicPartition
from ottla.storage.file_names import (
    deleted_directory_name,
    is_marked_directory,
    offset_in,
    partition_directory_name,
    partition_of_directory,
    segment_file_name,
)

UNIQUE = UUID("0123456789abcdef0123456789abcdef")


def test_files_are_named_by_their_offset_in_twenty_digits() -> None:
    """Kafka's `LogFileUtils.filenamePrefixFromOffset`."""
    assert segment_file_name(0, ".log") == "00000000000000000000.log"
    assert segment_file_name(2**63 - 1, ".timeindex") == "09223372036854775807.timeindex"
    assert offset_in("00000000000000000042.log.deleted") == 42
    assert offset_in("leader-epoch-checkpoint") is None
    assert offset_in("٣.log") is None


@pytest.mark.parametrize("topic", ["clicks", "my-topic-1", "a.b_c-D", "__consumer_offsets"])
def test_a_directory_s_name_leads_back_to_its_partition(topic: str) -> None:
    """A topic's name may itself end like a partition."""
    key = TopicPartition(topic, 12)
    assert partition_of_directory(partition_directory_name(key)) == key


@pytest.mark.parametrize("name", ["clicks", "clicks-", "-1", "clicks-x", "lost+found", "clicks-0.0123456789abcdef0123456789abcdef-delete"])
def test_other_directories_are_no_partitions(name: str) -> None:
    """They are left alone."""
    assert partition_of_directory(name) is None


def test_a_deleted_directory_says_what_it_was() -> None:
    """Kafka's `LocalLog.logDeleteDirName`."""
    name = deleted_directory_name(TopicPartition("clicks", 3), UNIQUE)
    assert name == "clicks-3.0123456789abcdef0123456789abcdef-delete"
    assert is_marked_directory(name)
    assert is_marked_directory(name.replace("-delete", "-stray"))
    assert not is_marked_directory("clicks-3")


def test_the_name_of_a_deleted_directory_has_at_most_255_characters() -> None:
    """What a file system takes; a topic's name of 249 is cut."""
    name = deleted_directory_name(TopicPartition("t" * 249, 123), UNIQUE)
    assert len(name) == 255
    assert name.endswith("t-123.0123456789abcdef0123456789abcdef-delete")
    assert is_marked_directory(name)
