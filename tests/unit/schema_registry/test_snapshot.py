"""The snapshot file: what it brings back, and every way in which it may not fit."""

from __future__ import annotations

import gc
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.schema_registry.test_records import lines
from tests.unit.schema_registry.test_replay import seen

from ottla.schema_registry.state.records import Change, PutVersion, RemoveVersion, encode
from ottla.schema_registry.state.replay import EPOCH_HEADER, State
from ottla.schema_registry.state.schemas import Schema, Version
from ottla.schema_registry.store import snapshot
from ottla.schema_registry.store.snapshot import Identity, UnfitSnapshot

IDENTITY = Identity("cluster-1", "_schemas", "id-1")


def state_of_the_fixture() -> State:
    """Confluent's topic, and a record that gives an id to another schema."""
    state = State()
    for offset, (key, value) in enumerate(lines()):
        state.apply(offset, 1_700_000_000_000 + offset, key, value, {EPOCH_HEADER: b"3"})
    conflict = encode(PutVersion(Version("conflict", 1, 1, Schema.of("AVRO", '"fixed"'), False, 0)))
    state.apply(state.next_offset, 9, conflict.key, conflict.value, {})
    assert state.conflict_count == 1
    return state


def read(path: Path, **other: Any) -> State:
    return snapshot.read(path, other.get("identity", IDENTITY), other.get("first", 0), other.get("next", 1000))


def test_a_snapshot_brings_everything_back(tmp_path: Path) -> None:
    state, path = state_of_the_fixture(), tmp_path / "kept" / "_schemas.snapshot"
    snapshot.write(path, IDENTITY, state.image())
    found = read(path)
    assert seen(found) == seen(state)
    assert (found.next_offset, found.epoch, found.conflict_count) == (state.next_offset, 3, 1)
    assert found.conflicts == state.conflicts
    assert list(path.parent.iterdir()) == [path]


def test_a_conflict_is_not_applied_although_its_id_is_free_by_now(tmp_path: Path) -> None:
    """The holder was deleted for good, and the version of the conflict was registered since: the snapshot gave it the other schema."""
    state = state_of_the_fixture()
    registered = Version("conflict", 1, 99, Schema.of("AVRO", '"null"'), False, 7)
    changes: list[Change] = [RemoveVersion(version.subject, version.version) for version in state.users_of(state.conflicts[0].version)]
    for change in (*changes, PutVersion(registered)):
        record = encode(change)
        state.apply(state.next_offset, 7, record.key, record.value, {})
    snapshot.write(tmp_path / "s", IDENTITY, state.image())
    found = read(tmp_path / "s")
    assert found.version("conflict", 1) == registered == state.version("conflict", 1)
    assert seen(found) == seen(state)


def test_a_snapshot_is_of_one_moment_although_the_state_goes_on(tmp_path: Path) -> None:
    state = state_of_the_fixture()
    image, before = state.image(), seen(state)
    for subject in ("orders-value", "new"):
        record = encode(PutVersion(Version(subject, 9, 99, Schema.of("AVRO", '"null"'), False, 0)))
        state.apply(state.next_offset, 9, record.key, record.value, {})
    snapshot.write(tmp_path / "s", IDENTITY, image)
    assert seen(read(tmp_path / "s")) == before


@pytest.mark.parametrize("value", [b"{}", b"[]", b"{", b'{"subject":"a","version":1,"id":-1,"schema":"x"}'])
def test_a_line_that_cannot_be_read_makes_a_snapshot_unfit(value: bytes, tmp_path: Path) -> None:
    """It is whole by its checksum, and so of another maker. The collector is off meanwhile, and on again."""
    path = tmp_path / "s"
    snapshot.write(path, IDENTITY, state_of_the_fixture().image())
    first, _, body = path.read_bytes().partition(b"\n")
    body = b'1\t{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}\t' + value + b"\n" + body
    path.write_bytes(json.dumps(json.loads(first) | {"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n" + body)
    with pytest.raises(UnfitSnapshot, match="cannot be read"):
        read(path)
    assert gc.isenabled()


def test_a_torn_snapshot_is_found_out_at_each_byte(tmp_path: Path) -> None:
    """Method: the file cut after every 37th byte, and a bit turned there."""
    path = tmp_path / "s"
    snapshot.write(path, IDENTITY, state_of_the_fixture().image())
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:position])
        assert snapshot.read_or_none(path, IDENTITY, 0, 1000) is None
        if position > whole.index(b"\n"):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            assert snapshot.read_or_none(path, IDENTITY, 0, 1000) is None


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"identity": Identity("cluster-2", "_schemas", "id-1")}, "it is of"),
        ({"identity": Identity("cluster-1", "_schemas", "id-2")}, "it is of"),
        ({"identity": Identity("cluster-1", "other", "id-1")}, "it is of"),
        ({"next": 3}, "goes to offset"),
        ({"first": 500}, "goes to offset"),
    ],
)
def test_a_snapshot_of_another_topic_is_not_taken(tmp_path: Path, other: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "s"
    snapshot.write(path, IDENTITY, state_of_the_fixture().image())
    with pytest.raises(UnfitSnapshot, match=complaint):
        read(path, **other)


def test_a_snapshot_of_a_later_format_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    snapshot.write(path, IDENTITY, state_of_the_fixture().image())
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(head), "format": 3}).encode() + b"\n" + body)
    with pytest.raises(UnfitSnapshot, match="format 3"):
        read(path)


def test_a_snapshot_that_cannot_be_written_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    snapshot.write(path, IDENTITY, State().image())
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        snapshot.write(path, IDENTITY, state_of_the_fixture().image())
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
