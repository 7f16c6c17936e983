"""partition.metadata: Kafka's two lines."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.kafka_uuid import format_uuid
from ottla.storage.partition_metadata import PARTITION_METADATA, MalformedPartitionMetadata, read_topic_id, write_topic_id

FIXTURES = Path(__file__).parents[2] / "fixtures" / "on_disk" / "flights-3"
TOPIC_ID = UUID("c7619f63-2cd3-4776-90e6-f1b30356d793")


def test_kafkas_file_is_read_and_ours_is_the_same_bytes(tmp_path: Path) -> None:
    """Fixture built from the definition of Kafka's PartitionMetadata, version 0."""
    assert format_uuid(TOPIC_ID) == "x2GfYyzTR3aQ5vGzA1bXkw"
    assert read_topic_id(FIXTURES) == TOPIC_ID
    write_topic_id(tmp_path, TOPIC_ID)
    assert (tmp_path / PARTITION_METADATA).read_bytes() == (FIXTURES / PARTITION_METADATA).read_bytes()


def test_a_directory_from_before_topic_ids_has_none(tmp_path: Path) -> None:
    assert read_topic_id(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", 1, "ends before its version"),
        ("version: 0\n", 2, "ends before its topic_id"),
        ("version: 1\ntopic_id: x2GfYyzTR3aQ5vGzA1bXkw\n", 1, "version '1'"),
        ("version 0\ntopic_id: x2GfYyzTR3aQ5vGzA1bXkw\n", 1, "is not 'version: …'"),
        ("version: 0\nid: x2GfYyzTR3aQ5vGzA1bXkw\n", 2, "is not 'topic_id: …'"),
        ("version: 0\ntopic_id: x2GfYyzTR3aQ5vGzA1bXk\n", 2, "21 characters"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", 2, "the topic id is zero"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, content: str, line: int, reason: str) -> None:
    (tmp_path / PARTITION_METADATA).write_text(content, encoding="utf-8")
    with pytest.raises(MalformedPartitionMetadata, match=reason) as caught:
        read_topic_id(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / PARTITION_METADATA}, line {line}: ")


@given(st.binary(max_size=80))
def test_garbage_is_refused_but_never_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("garbage")
    (directory / PARTITION_METADATA).write_bytes(content)
    with pytest.raises(MalformedPartitionMetadata):
        read_topic_id(directory)
