"""What is read of log directories before they are taken: on real files, those of Kafka and some made by hand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.unit.takeover.kafka_left import CLEAN, CLUSTER_ID, KILLED, KafkaLeft

from ottla.model import TopicPartition
from ottla.takeover.directories import NOTE, read_directories, read_owners, write_note


@pytest.mark.parametrize("which", [CLEAN, KILLED])
def test_kafkas_directories_are_read_as_they_are(tmp_path: Path, which: str) -> None:
    left = KafkaLeft.unpack(which, tmp_path, "broker-1")
    (found,) = read_directories([left.log_directory(1)])
    assert (found.broker_id, found.cluster_id, found.has_directory_id, found.is_kraft) == (1, CLUSTER_ID, False, False)
    assert found.is_clean is (which == CLEAN)
    assert len(found.logs) == 17
    assert (found.damaged, found.unknown, found.set_aside, found.failure) == ({}, (), (), "")
    assert all(log.topic_id is not None and not log.old_formats for log in found.logs.values())
    size = sum(path.stat().st_size for path in left.log_directory(1).glob("rolled-0/*.log"))
    assert found.logs[TopicPartition("rolled", 0)].size == size > 100_000


def test_a_look_at_owners_reads_no_log(tmp_path: Path) -> None:
    left = KafkaLeft.unpack(CLEAN, tmp_path, "broker-1")
    (left.log_directory(1) / "plain-0" / "partition.metadata").write_text("damaged")
    (found,) = read_owners([left.log_directory(1)])
    assert (found.broker_id, len(found.logs), found.damaged) == (1, 17, {})


def test_a_log_whose_move_was_interrupted_is_there(tmp_path: Path) -> None:
    """The start gives it its name back: it was called missing, and the broker did not start (seed 17961130453)."""
    left = KafkaLeft.unpack(CLEAN, tmp_path, "broker-1")
    log, other = left.log_directory(1) / "rolled-0", tmp_path / "other"
    shutil.copytree(log, other / "rolled-0.0123456789abcdef0123456789abcdef-future")
    log.rename(log.with_name("rolled-0.fedcba9876543210fedcba9876543210-delete"))
    (source, target), (alone,) = read_directories([log.parent, other]), read_directories([log.parent])
    assert source.logs[TopicPartition("rolled", 0)].size > 100_000
    assert (len(source.logs), len(target.logs), len(alone.logs)) == (17, 0, 16)


def segment_in(tmp_path: Path, content: bytes) -> Path:
    directory = tmp_path / "clicks-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(content)
    return tmp_path


def batch(magic: int, length: int, size: int) -> bytes:
    """offset:8 length:4 four bytes magic:1, and zeros up to a size."""
    return (bytes(8) + length.to_bytes(4, "big", signed=True) + bytes(4) + bytes([magic])).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("content", "old"),
    [
        (batch(0, 30, 42), 0),
        (batch(1, 30, 100), 1),
        (batch(2, 100, 112), None),
        (b"", None),
        (bytes(4096), None),  # zeros, which a crash may leave
        (batch(1, 30, 41), None),  # a message that is torn: recovery's to cut
        (batch(0, 13, 100), None),  # less than a message has
        (batch(1, -1, 100), None),
        (batch(0, 30, 42)[:16], None),
    ],
)
def test_segments_that_begin_with_an_old_message_are_found(tmp_path: Path, content: bytes, old: int | None) -> None:
    """Source: the message sets of Kafka 0.8 to 0.10, in the protocol guide."""
    (found,) = read_directories([segment_in(tmp_path, content)])
    expected = () if old is None else (("00000000000000000000.log", old),)
    assert found.logs[TopicPartition("clicks", 0)].old_formats == expected


def test_what_is_damaged_is_named_and_ends_nothing(tmp_path: Path) -> None:
    segment_in(tmp_path, b"")
    (tmp_path / "clicks-0" / "partition.metadata").write_text("version: 9\n")
    (tmp_path / "replication-offset-checkpoint").write_text("1\n0\n")
    (tmp_path / "cleaner-offset-checkpoint").write_text("")  # empty, which Kafka reads as none
    (tmp_path / "meta.properties").write_text("version=7\n")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "clicks-1.0123456789abcdef0123456789abcdef-stray").mkdir()
    (tmp_path / "clicks-2.0123456789abcdef0123456789abcdef-future").mkdir()
    (found,) = read_directories([tmp_path])
    assert sorted(found.damaged) == [
        str(tmp_path / "clicks-0"),
        str(tmp_path / "meta.properties"),
        str(tmp_path / "replication-offset-checkpoint"),
    ]
    assert found.unknown == ("lost+found",)
    assert found.set_aside == ("clicks-1.0123456789abcdef0123456789abcdef-stray",)
    assert found.copies == ("clicks-2.0123456789abcdef0123456789abcdef-future",)


def test_kafkas_cache_of_remote_indexes_is_no_directory_of_another_kind(tmp_path: Path) -> None:
    """It stood in the way of the way back, and Kafka passes over it (`LogManager.loadLogs`, `RemoteIndexCache.DIR_NAME`)."""
    (tmp_path / "remote-log-index-cache").mkdir()
    (found,) = read_directories([tmp_path])
    assert found.unknown == ()


def test_a_directory_that_is_not_there_is_empty_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    missing, failed = read_directories([tmp_path / "missing", tmp_path / "file"])
    assert not missing.is_used
    assert missing.failure == ""
    assert failed.failure == os.strerror(20)


def test_the_note_of_a_check_is_read_again_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    write_note([tmp_path], 7, ["quotas"], 1_795_349_540_000)
    assert [owner.checked_since for owner in read_owners([tmp_path])] == [7]
    (tmp_path / NOTE).write_text('{"since_controller_epoch":"7"}')
    assert [owner.checked_since for owner in read_owners([tmp_path])] == [None]
