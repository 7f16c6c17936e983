"""Looking into files: what is sound is shown whole, what is not is a value with a position and a reason."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.record.batch import read_header
from ottla.record.codecs import ZSTD, compress
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch, seal
from ottla.storage.inspect import (
    BatchDump,
    Damage,
    dump_leader_epochs,
    dump_offset_index,
    dump_segment,
    dump_snapshot,
    dump_time_index,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "on_disk" / "flights-3"
SEGMENT = "00000000000000000100.log"
POSITIONS = [0, 1433, 1607, 1781, 1971]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The fixture's partition, to be damaged."""
    for path in FIXTURES.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path / SEGMENT


def batches_of(path: Path) -> list[BatchDump]:
    dumped = list(dump_segment(path, with_records=True))
    assert all(isinstance(piece, BatchDump) for piece in dumped), dumped
    return [piece for piece in dumped if isinstance(piece, BatchDump)]


def test_a_segment_is_shown_batch_by_batch() -> None:
    """Fixture: five batches by kafka-python's builder, one a codec."""
    batches = batches_of(FIXTURES / SEGMENT)
    assert [batch.position for batch in batches] == POSITIONS
    assert [(batch.header.base_offset, batch.header.last_offset) for batch in batches] == [
        (100, 102),
        (103, 104),
        (105, 105),
        (106, 107),
        (108, 108),
    ]
    assert [batch.header.codec for batch in batches] == [0, 1, 2, 3, 4]
    assert [batch.header.leader_epoch for batch in batches] == [5, 5, 6, 6, 6]
    assert all(batch.crc_is_valid and not batch.problems for batch in batches)
    keys = [record.key for batch in batches for record in batch.records]
    assert keys == [b"N14228", b"N24211", b"N619AA", b"N804JB", b"N668DN", b"N39463", b"N516JB", b"N829AS", b"N593JB"]
    assert batches[0].records[0].headers == (("source", b"nycflights13"),)


def test_without_records_none_is_opened() -> None:
    assert all(isinstance(dumped, BatchDump) and dumped.records == () for dumped in dump_segment(FIXTURES / SEGMENT))


def test_sound_indexes_have_no_problems() -> None:
    """Fixtures: entries by the definition of Kafka's OffsetIndex and TimeIndex."""
    offsets, times = dump_offset_index(FIXTURES / SEGMENT), dump_time_index(FIXTURES / SEGMENT)
    assert offsets is not None and times is not None
    assert (offsets.entries, offsets.unused_entries, offsets.problems) == (((4, 1433), (8, 1971)), 0, ())
    assert (times.entries, times.unused_entries, times.problems) == (((1_357_034_224_000, 4), (1_357_034_228_000, 8)), 0, ())


def test_a_missing_index_is_none(tmp_path: Path) -> None:
    assert dump_offset_index(tmp_path / SEGMENT) is None
    assert dump_time_index(tmp_path / SEGMENT) is None


def test_a_marker_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    marker = EndTransactionMarker(ControlRecordType.ABORT, 4)
    path.write_bytes(build_marker_batch(marker, timestamp=1, producer_id=5, producer_epoch=0))
    assert batches_of(path)[0].marker == marker


def test_a_wrong_checksum_is_shown_and_the_batches_after_it_too(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[1500] ^= 1
    segment.write_bytes(content)
    batches = batches_of(segment)
    assert [batch.crc_is_valid for batch in batches] == [True, False, True, True, True]
    assert batches[1].problems[0].startswith("CRC 0x")


@pytest.mark.parametrize("left", [1, 11, 60, 61, 146])
def test_a_torn_tail_has_its_position_and_size(segment: Path, left: int) -> None:
    segment.write_bytes(segment.read_bytes()[: 1971 + left])
    *batches, damage = dump_segment(segment)
    assert len(batches) == 4
    assert isinstance(damage, Damage) and (damage.position, damage.size) == (1971, left)
    assert "torn" in damage.reason


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(4096), "a length of 0, less than a batch has and only zeros follow"),
        (bytes(4096) + b"x", "a length of 0, less than a batch has"),
        (b"\xff" * 100, "a length of -1"),
        (struct.pack(">qiib", 109, 49, 0, 1) + bytes(44), "magic 1"),
        (struct.pack(">qiib", 109, 2**31 - 1, 0, 2) + bytes(44), "says 2147483659 bytes and 61 are left"),
    ],
)
def test_garbage_after_the_last_batch_is_named(segment: Path, tail: bytes, reason: str) -> None:
    segment.write_bytes(segment.read_bytes() + tail)
    *batches, damage = dump_segment(segment, with_records=True)
    assert len(batches) == 5
    assert isinstance(damage, Damage) and (damage.position, damage.size) == (2118, len(tail))
    assert reason in damage.reason


def test_offsets_that_go_back_are_named(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + build_batch([Record(50, 0, None, None)], base_offset=50))
    assert batches_of(segment)[-1].problems == ("begins at offset 50, where 109 or more is due",)


def test_records_before_a_damaged_one_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    batch = build_batch([Record(index, 0, None, b"value") for index in range(3)])
    path.write_bytes(seal(read_header(batch), batch[61:-1]))
    (dumped,) = batches_of(path)
    assert len(dumped.records) == 2
    assert dumped.problems == ("record 2 says 11 bytes at 25 of 35",)


def test_a_bomb_is_a_problem_of_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(seal(read_header(build_batch([], codec=ZSTD, last_offset_delta=0)), compress(ZSTD, bytes(20_000_000))))
    (dumped,) = dump_segment(path, with_records=True, maximum_decompressed=1_000_000)
    assert isinstance(dumped, BatchDump) and "1000000 bytes that are allowed" in dumped.problems[0]


def test_a_file_that_can_not_be_opened_is_damage(tmp_path: Path) -> None:
    assert list(dump_segment(tmp_path / "none.log")) == [Damage(0, 0, "cannot be opened: No such file or directory")]
    assert list(dump_segment(tmp_path)) == [Damage(0, 0, "cannot be opened: Is a directory")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (struct.pack(">ii", 4, 1434), "entry 0: offset 104 at position 1434, where no batch begins"),
        (struct.pack(">ii", 4, 99_999), "entry 0: offset 104 at position 99999, where no batch begins"),
        (struct.pack(">ii", 5, 1433), "entry 0: offset 105, but the batch at 1433 has 103 to 104"),
        (struct.pack(">iiii", 8, 1971, 4, 1433), "entry 1: offset 4 comes after 8"),
        (struct.pack(">ii", 4, 1433) + b"\1\2\3", "11 bytes are no multiple of an entry's 8"),
    ],
)
def test_a_wrong_offset_index_is_told_apart(segment: Path, content: bytes, problem: str) -> None:
    segment.with_suffix(".index").write_bytes(content)
    dumped = dump_offset_index(segment)
    assert dumped is not None and dumped.problems[0] == problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (struct.pack(">qi", 7, 4), "entry 0: timestamp 7, but the newest up to offset 104 is 1357034224000"),
        (struct.pack(">qi", 1_357_034_228_000, 900), "entry 0: offset 1000, but the segment ends at 108"),
        (struct.pack(">qiqi", 9, 4, 8, 8), "entry 1: timestamp 8 comes after 9"),
        (b"\1" * 13, "13 bytes are no multiple of an entry's 12"),
    ],
)
def test_a_wrong_time_index_is_told_apart(segment: Path, content: bytes, problem: str) -> None:
    segment.with_suffix(".timeindex").write_bytes(content)
    dumped = dump_time_index(segment)
    assert dumped is not None and dumped.problems[0] == problem


def test_space_that_was_allocated_ahead_is_no_problem(segment: Path) -> None:
    """Kafka makes an active segment's index segment.index.bytes large and cuts it at the roll."""
    for suffix, entry_size in ((".index", 8), (".timeindex", 12)):
        path = segment.with_suffix(suffix)
        path.write_bytes(path.read_bytes() + bytes(entry_size * 100))
    offsets, times = dump_offset_index(segment), dump_time_index(segment)
    assert offsets is not None and (len(offsets.entries), offsets.unused_entries, offsets.problems) == (2, 100, ())
    assert times is not None and (len(times.entries), times.unused_entries, times.problems) == (2, 100, ())


def test_an_index_without_its_segment_is_all_wrong(segment: Path) -> None:
    segment.unlink()
    offsets, times = dump_offset_index(segment), dump_time_index(segment)
    assert offsets is not None and len(offsets.problems) == 2
    assert times is not None and len(times.problems) == 1


def test_a_snapshot_and_leader_epochs_are_shown() -> None:
    snapshot = dump_snapshot(FIXTURES / "00000000000000000109.snapshot")
    assert [entry.producer_id for entry in snapshot.entries] == [4000, 4001, 4002] and snapshot.problem is None
    assert dump_leader_epochs(FIXTURES / "leader-epoch-checkpoint").entries == ((5, 100), (6, 105))


def test_a_damaged_snapshot_or_checkpoint_says_why(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000001.snapshot"
    assert "No such file" in (dump_snapshot(path).problem or "")
    path.write_bytes(b"\0\1")
    assert "2 bytes are fewer" in (dump_snapshot(path).problem or "")
    assert "line 2" in (dump_leader_epochs(path).problem or "")
    assert "No such file" in (dump_leader_epochs(tmp_path / "none").problem or "")
    assert "Is a directory" in (dump_leader_epochs(tmp_path).problem or "")


@given(st.data())
@settings(max_examples=examples(80), deadline=None)
def test_no_damage_is_ever_a_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The fixture's files with bytes changed, cut or put in; every offset and position of the answer lies in the file."""
    directory = tmp_path_factory.mktemp("damaged")
    for path in FIXTURES.iterdir():
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 4))):
            position = data.draw(st.integers(0, len(content)))
            content[position : position + data.draw(st.integers(0, 10))] = data.draw(st.binary(max_size=10))
        (directory / path.name).write_bytes(content)
    segment = directory / SEGMENT
    size = segment.stat().st_size
    for found in dump_segment(segment, with_records=True, maximum_decompressed=100_000):
        end = found.position + (found.size if isinstance(found, Damage) else found.header.size)
        assert 0 <= found.position <= end <= size
    assert dump_offset_index(segment) is not None
    assert dump_time_index(segment) is not None
    dump_snapshot(directory / "00000000000000000109.snapshot")
    dump_leader_epochs(directory / "leader-epoch-checkpoint")


@given(st.binary(max_size=400))
@settings(max_examples=examples(80))
def test_a_file_of_garbage_is_never_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("garbage")
    for name in (SEGMENT, "00000000000000000100.index", "00000000000000000100.timeindex"):
        (directory / name).write_bytes(content)
    list(dump_segment(directory / SEGMENT, with_records=True, maximum_decompressed=100_000))
    dump_offset_index(directory / SEGMENT)
    dump_time_index(directory / SEGMENT)
