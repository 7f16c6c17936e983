"""Checkpoint files: Kafka's text, replaced in one step, and refused with file and line when they make no sense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.storage.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    MalformedCheckpoint,
    encode_leader_epochs,
    read_leader_epochs,
    read_offsets,
    write_atomically,
    write_offsets,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "on_disk"
FLIGHTS_0, FLIGHTS_3 = TopicPartition("flights", 0), TopicPartition("flights", 3)
EXPECTED = {
    RECOVERY_POINT_CHECKPOINT: {FLIGHTS_3: 109, FLIGHTS_0: 0, TopicPartition("__consumer_offsets", 49): 1734},
    HIGH_WATERMARK_CHECKPOINT: {FLIGHTS_3: 107, FLIGHTS_0: 0},
    LOG_START_OFFSET_CHECKPOINT: {FLIGHTS_3: 100},
}

topic_names = st.text("abcXYZ019._-", min_size=1, max_size=30)
offset_maps = st.dictionaries(st.builds(TopicPartition, topic_names, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=20)


@pytest.mark.parametrize("name", EXPECTED)
def test_kafkas_checkpoints_are_read(name: str) -> None:
    """Fixture built from the definition of Kafka's CheckpointFile: version, count, then topic, partition, offset."""
    assert read_offsets(FIXTURES / name) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_ours_have_the_same_lines_in_the_order_of_the_partitions(name: str, tmp_path: Path) -> None:
    """Kafka writes the entries of a hash map, so their order carries nothing."""
    write_offsets(tmp_path / name, EXPECTED[name])
    ours, theirs = ((folder / name).read_bytes().splitlines(keepends=True) for folder in (tmp_path, FIXTURES))
    assert ours[:2] == theirs[:2]
    assert ours[2:] == sorted(ours[2:]) and sorted(ours[2:]) == sorted(theirs[2:])


def test_leader_epochs_are_kafkas_byte_for_byte(tmp_path: Path) -> None:
    """Fixture built from the definition of Kafka's LeaderEpochCheckpointFile: version, count, then epoch and start offset."""
    fixture = FIXTURES / "flights-3" / LEADER_EPOCH_CHECKPOINT
    assert read_leader_epochs(fixture) == [(5, 100), (6, 105)]
    assert encode_leader_epochs([(5, 100), (6, 105)]) == fixture.read_bytes()


@given(offset_maps)
def test_offsets_come_back(tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]) -> None:
    path = tmp_path_factory.mktemp("checkpoints") / RECOVERY_POINT_CHECKPOINT
    write_offsets(path, offsets)
    assert read_offsets(path) == offsets


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "none") == {}
    assert read_leader_epochs(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "ends before its version"),
        (b"0\n", 2, "ends before its count"),
        (b"1\n0\n", 1, "version 1"),
        (b"zero\n0\n", 1, "'zero' is not a number"),
        (b"0\nmany\n", 2, "'many' is not a number"),
        (b"0\n2\nflights 0 1\n", 2, "2 entries are announced and 1 follow"),
        (b"0\n0\nflights 0 1\n", 2, "0 entries are announced and 1 follow"),
        (b"0\n1\nflights 0\n", 3, "2 fields"),
        (b"0\n1\nflights 0 1 2\n", 3, "4 fields"),
        (b"0\n1\n\n", 3, "0 fields"),
        (b"0\n2\nflights 0 1\nflights x 1\n", 4, "partition 'x' is not a number"),
        (b"0\n2\nflights 0 1\nflights 1 1_000\n", 4, "offset '1_000' is not a number"),
        (b"0\n2\nflights 0 1\nflights 0 2\n", 4, "flights-0 is there a second time"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, content: bytes, line: int, reason: str) -> None:
    path = tmp_path / RECOVERY_POINT_CHECKPOINT
    path.write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=reason) as caught:
        read_offsets(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / RECOVERY_POINT_CHECKPOINT
    path.write_bytes(b"0\n1\n\xff\xfe 0 1\n")
    with pytest.raises(MalformedCheckpoint, match="byte 4"):
        read_offsets(path)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read_but_never_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "file"
    path.write_bytes(content)
    for read in (read_offsets, read_leader_epochs):
        try:
            read(path)
        except MalformedCheckpoint as error:
            assert str(path) in str(error)


def test_a_replacement_is_synced_before_and_after_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that reaches the disk before the bytes would leave an empty file after a power cut: we record the order."""
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recording_fsync(descriptor: int) -> None:
        calls.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def recording_replace(self: Path, target: Path) -> Path:
        calls.append(f"rename {self.name} {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_replace)
    write_atomically(tmp_path / "checkpoint", b"content")
    assert calls == ["fsync checkpoint.tmp", "rename checkpoint.tmp checkpoint", f"fsync {tmp_path.name}"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / RECOVERY_POINT_CHECKPOINT
    write_offsets(path, {FLIGHTS_0: 1})

    def full_disk(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_offsets(path, {FLIGHTS_0: 2})
    monkeypatch.undo()
    assert read_offsets(path) == {FLIGHTS_0: 1}
    write_offsets(path, {FLIGHTS_0: 3})
    assert read_offsets(path) == {FLIGHTS_0: 3}
