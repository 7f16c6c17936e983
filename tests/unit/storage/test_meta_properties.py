"""meta.properties: Kafka's file is read, ours is the same, nonsense is named."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigurationError
from ottla.storage.kafka_uuid import format_uuid, parse_uuid
from ottla.storage.meta_properties import (
    META_PROPERTIES,
    MalformedMetaProperties,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "on_disk"
META = MetaProperties(broker_id=1, cluster_id="mB4pVsTdSX6XgJrN3aC1hQ", directory_id=UUID("d1d4962f-2d9d-4e5d-95f5-69e4292994d3"))


def test_kafkas_file_is_read() -> None:
    """Fixture built from the definition of Kafka's MetaProperties, version 0, with the comment lines of Java's Properties."""
    assert read_meta_properties(FIXTURES) == META


def test_ours_is_the_same_bytes(tmp_path: Path) -> None:
    written_at = datetime(2024, 11, 21, 8, 12, tzinfo=UTC)
    write_meta_properties(tmp_path, META, int(written_at.timestamp() * 1000))
    assert (tmp_path / META_PROPERTIES).read_bytes() == (FIXTURES / META_PROPERTIES).read_bytes()


def test_a_new_directory_has_none(tmp_path: Path) -> None:
    assert read_meta_properties(tmp_path) is None


def test_a_kraft_brokers_file_is_read(tmp_path: Path) -> None:
    """Version 1 says node.id; Kafka 3.9 writes both."""
    (tmp_path / META_PROPERTIES).write_text("node.id=3\nversion=1\ncluster.id=abc\n")
    assert read_meta_properties(tmp_path) == MetaProperties(3, "abc", None, version=1)


def test_an_old_file_may_lack_everything(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_text("#\n")
    assert read_meta_properties(tmp_path) == MetaProperties(None, None, None)


@given(
    st.builds(
        MetaProperties,
        st.none() | st.integers(0, 2**31 - 1),
        st.none() | st.text("abcXYZ019-_ =:#!\\", min_size=1, max_size=20).map(str.strip).filter(bool),
        st.none() | st.uuids(),
        st.sampled_from([0, 1]),
    )
)
def test_what_is_written_comes_back(tmp_path_factory: pytest.TempPathFactory, meta: MetaProperties) -> None:
    directory = tmp_path_factory.mktemp("logs")
    write_meta_properties(directory, meta, 0)
    assert read_meta_properties(directory) == meta


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("version=2\n", "version 2 is unknown"),
        ("version=one\n", "version='one' is not a number"),
        ("version=0\nbroker.id=1x\n", "broker.id='1x' is not a number"),
        ("version=0\ndirectory.id=short\n", "directory.id: 'short' has 5 characters"),
        ("version=0\ndirectory.id=!!!!!!!!!!!!!!!!!!!!!!\n", "is no base64 UUID"),
    ],
)
def test_nonsense_is_named_with_its_file(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / META_PROPERTIES).write_text(content)
    with pytest.raises(MalformedMetaProperties, match=reason) as caught:
        read_meta_properties(tmp_path)
    assert str(tmp_path / META_PROPERTIES) in str(caught.value)


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_read_but_never_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("garbage")
    (directory / META_PROPERTIES).write_bytes(content)
    try:
        read_meta_properties(directory)
    except ConfigurationError as error:
        assert str(directory) in str(error)


@given(st.uuids())
def test_kafkas_spelling_of_a_uuid_comes_back(value: UUID) -> None:
    assert len(format_uuid(value)) == 22
    assert parse_uuid(format_uuid(value)) == value


def test_kafkas_metadata_topic_id_is_spelled_as_kafka_does() -> None:
    """Kafka's Uuid.METADATA_TOPIC_ID, the UUID with the number 1, prints as AAAAAAAAAAAAAAAAAAAAAQ."""
    assert format_uuid(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
