"""Producer snapshots: Kafka's bytes, and every kind of damage named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.producer_snapshots import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    snapshot_offsets,
    snapshot_path,
    write_snapshot,
)
from ottla.storage.producers import ProducerSnapshotEntry, ProducerStates

from .logs import remembered

FIXTURE = Path(__file__).parents[2] / "fixtures" / "on_disk" / "flights-3" / "00000000000000000109.snapshot"

# Built from the definition in Kafka's ProducerStateManager (version 1); no public copy of a real one was found.
SNAPSHOT = (
    "0001 d0dbbd6a 00000003"  # version, CRC, count
    "0000000000000fa0 0002 00000008 000000000000006c 00000000 0000013bf58b0920 ffffffff ffffffffffffffff"
    "0000000000000fa1 0000 7fffffff 0000000000000061 00000004 0000013bf589ff80 0000000b 000000000000005d"
    "0000000000000fa2 0007 ffffffff ffffffffffffffff 00000000 0000013bf5898a50 00000003 ffffffffffffffff"
)
ENTRIES = [
    ProducerSnapshotEntry(
        producer_id=4000,
        producer_epoch=2,
        last_sequence=8,
        last_offset=108,
        offset_delta=0,
        timestamp=1_357_034_228_000,
        coordinator_epoch=-1,
        current_transaction_first_offset=-1,
    ),
    ProducerSnapshotEntry(
        producer_id=4001,
        producer_epoch=0,
        last_sequence=2**31 - 1,
        last_offset=97,
        offset_delta=4,
        timestamp=1_357_034_160_000,
        coordinator_epoch=11,
        current_transaction_first_offset=93,
    ),
    ProducerSnapshotEntry(
        producer_id=4002,
        producer_epoch=7,
        last_sequence=-1,
        last_offset=-1,
        offset_delta=0,
        timestamp=1_357_034_130_000,
        coordinator_epoch=3,
        current_transaction_first_offset=-1,
    ),
]

int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
entries = st.lists(st.builds(ProducerSnapshotEntry, int64, int16, int32, int64, int32, int64, int32, int64), max_size=10)


def test_a_snapshot_is_read_field_by_field() -> None:
    assert FIXTURE.read_bytes() == bytes.fromhex(SNAPSHOT)
    assert read_snapshot(FIXTURE) == ENTRIES


def test_ours_is_the_same_bytes(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "a", encode_snapshot(ENTRIES))
    assert (tmp_path / "a").read_bytes() == FIXTURE.read_bytes()


def test_a_snapshot_becomes_states_and_the_same_snapshot_again() -> None:
    states = ProducerStates()
    states.restore(ENTRIES)
    assert states.snapshot() == ENTRIES
    assert remembered(states, 4001) == [(2**31 - 5, 2**31 - 1, 93, 97, 1_357_034_160_000)]
    assert remembered(states, 4002) == []
    assert states.first_undecided_offset == 93
    next_sequences = {state.producer_id: state.next_sequence for state in states}
    assert next_sequences == {4000: 9, 4001: 0, 4002: 0}


@given(entries)
def test_entries_come_back(given_entries: list[ProducerSnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(given_entries), "snapshot") == given_entries


def test_every_cut_and_every_flipped_byte_is_noticed() -> None:
    whole = FIXTURE.read_bytes()
    for size in range(len(whole)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(whole[:size], "snapshot")
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(bytes(flipped), "snapshot")


def test_the_message_has_the_file_and_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000001.snapshot"
    path.write_bytes(FIXTURE.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptSnapshot, match=r"000001\.snapshot: CRC 0x[0-9a-f]{8} computed, 0xd0dbbd6a in the file"):
        read_snapshot(path)


@pytest.mark.parametrize("count", [-1, 2, 4, 2**31 - 1])
def test_a_count_that_lies_under_a_right_checksum_is_refused(count: int) -> None:
    covered = struct.pack(">i", count) + FIXTURE.read_bytes()[10:]
    with pytest.raises(CorruptSnapshot, match=f"{count} producers announced"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(covered)) + covered, "snapshot")


def test_another_version_is_refused() -> None:
    with pytest.raises(CorruptSnapshot, match="version 2"):
        decode_snapshot(b"\0\2" + FIXTURE.read_bytes()[2:], "snapshot")


@given(st.binary(max_size=150))
def test_garbage_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data, "snapshot")


def test_snapshots_of_a_directory_are_found_in_order(tmp_path: Path) -> None:
    for offset in (1_000, 20, 300):
        write_snapshot(snapshot_path(tmp_path, offset), encode_snapshot([]))
    for stranger in ("00000000000000000000.log", "x.snapshot", "00000000000000000009.snapshot.deleted"):
        (tmp_path / stranger).touch()
    assert snapshot_offsets(tmp_path) == [20, 300, 1_000]
    assert snapshot_path(tmp_path, 20).name == "00000000000000000020.snapshot"
