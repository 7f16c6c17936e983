"""The two indexes: Kafka's bytes, look-ups against a model, and what is in memory and what on file."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.storage import indexes
from ottla.storage.indexes import OffsetIndex, TimeIndex


def test_the_files_have_kafkas_bytes(tmp_path: Path) -> None:
    """OffsetIndex: relative offset and position, 4 bytes each; TimeIndex: timestamp 8 and relative offset 4, all big-endian."""
    offset_index = OffsetIndex(str(tmp_path / "0.index"))
    offset_index.append(3, 4500)
    offset_index.append(0x01020304, 0x0A0B0C0D)
    offset_index.write_tail()
    assert (tmp_path / "0.index").read_bytes().hex(" ", 4) == "00000003 00001194 01020304 0a0b0c0d"
    time_index = TimeIndex(str(tmp_path / "0.timeindex"))
    time_index.append(1_357_034_228_000, 7)
    time_index.append(1_357_034_228_001, 9)
    time_index.write_tail()
    assert (tmp_path / "0.timeindex").read_bytes().hex(" ", 4) == "0000013b f58b0920 00000007 0000013b f58b0921 00000009"


def test_an_entry_is_found_whether_it_is_in_memory_or_on_file(tmp_path: Path) -> None:
    """The tail waits in memory; memory and file together are the index."""
    index = OffsetIndex(str(tmp_path / "0.index"))
    assert index.position_of(10) == 0
    index.append(5, 100)
    assert (index.position_of(4), index.position_of(5), index.position_of(6)) == (0, 100, 100)
    assert not (tmp_path / "0.index").exists()
    index.write_tail()
    index.append(9, 200)
    assert (index.position_of(4), index.position_of(8), index.position_of(9)) == (0, 100, 200)
    assert (index.boundary_before(99), index.boundary_before(100), index.boundary_before(1000)) == (0, 100, 200)
    assert len(index) == 2


entries_of = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 900)), max_size=80)


@settings(max_examples=examples(50), deadline=None)
@given(
    steps=entries_of,
    written=st.integers(0, 80),
    window=st.sampled_from([1, 2, 3, 7, 1024]),
    keys=st.lists(st.integers(-1, 800), max_size=30),
)
def test_offset_look_ups_agree_with_a_model(steps: list[tuple[int, int]], written: int, window: int, keys: list[int]) -> None:
    """Any entries, any split between file and memory, any size of window, any order of look-ups."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(indexes, "WINDOW", window)
        index = OffsetIndex(f"{directory}/0.index")
        offsets, positions = [-1], [0]
        for number, (more_offsets, more_bytes) in enumerate(steps):
            if number == written:
                index.write_tail()
            offsets.append(max(offsets[-1], 0) + more_offsets)
            positions.append(positions[-1] + more_bytes + 1)
            index.append(offsets[-1], positions[-1])
        for key in keys:
            assert index.position_of(key) == positions[max(bisect_right(offsets, key) - 1, 0)]
            assert index.boundary_before(key * 40) == positions[max(bisect_right(positions, key * 40) - 1, 0)]
        cut = keys[0] if keys else 5
        index.truncate(max(cut, 0))
        kept = [(offset, position) for offset, position in zip(offsets[1:], positions[1:], strict=True) if offset < max(cut, 0)]
        assert index.entries() == kept
        assert (index.last_offset, index.last_position) == (kept[-1] if kept else (-1, 0))
        index.write_tail()
        assert OffsetIndex(f"{directory}/0.index").entries() == kept


@settings(max_examples=examples(40), deadline=None)
@given(steps=entries_of, written=st.integers(0, 80), keys=st.lists(st.integers(-1, 800), max_size=30))
def test_time_look_ups_agree_with_a_model(steps: list[tuple[int, int]], written: int, keys: list[int]) -> None:
    """As above, for timestamps; one that is not larger than the last one says nothing new and is left out."""
    with TemporaryDirectory() as directory:
        index = TimeIndex(f"{directory}/0.timeindex")
        model: list[tuple[int, int]] = []
        timestamp, offset = 0, 0
        for number, (more_offsets, more_time) in enumerate(steps):
            if number == written:
                index.write_tail()
            timestamp, offset = timestamp + more_time // 100 - 2, offset + more_offsets
            index.append(timestamp, offset)
            if timestamp > (model[-1][0] if model else -1):
                model.append((timestamp, offset))
        assert index.entries() == model
        for key in keys:
            assert index.offset_before(key) == next((at for time, at in reversed(model) if time <= key), 0)
        cut = keys[0] if keys else 5
        index.truncate(max(cut, 0))
        assert index.entries() == [entry for entry in model if entry[1] < max(cut, 0)]


def test_a_reader_that_goes_on_opens_the_file_once_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequential consumer's look-ups stay in memory."""
    index = OffsetIndex(str(tmp_path / "0.index"))
    for entry in range(1, 5001):
        index.append(entry * 10, entry * 4096)
    index.write_tail()
    opened: list[Any] = []
    original = os.open

    def counting(*arguments: Any) -> int:
        opened.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(os, "open", counting)
    for entry in range(1, 5001):
        assert index.position_of(entry * 10 + 5) == entry * 4096
    assert len(opened) <= 2 * (5000 // indexes.WINDOW + 1)


def test_entries_that_could_not_be_written_stay_in_memory(tmp_path: Path) -> None:
    """A full disk: look-ups continue, the next write takes them along, and half-written bytes are written over."""
    directory = tmp_path / "not there yet"
    index = OffsetIndex(str(directory / "0.index"))
    index.append(1, 10)
    with pytest.raises(OSError, match=r"0\.index"):
        index.write_tail()
    assert index.position_of(1) == 10
    directory.mkdir()
    (directory / "0.index").write_bytes(b"\xff" * 13)
    index.append(2, 20)
    index.write_tail()
    assert OffsetIndex(index.path).entries() == [(1, 10), (2, 20)]


def test_an_index_that_is_withdrawn_answers_from_memory_and_leaves_no_file(tmp_path: Path) -> None:
    """A start rebuilds a missing index; one that has a part of its entries would be believed."""
    offsets, times = OffsetIndex(str(tmp_path / "0.index")), TimeIndex(str(tmp_path / "0.timeindex"))
    for entry in range(1, 6):
        offsets.append(entry * 3, entry * 50)
        times.append(1_000 + entry, entry * 3)
        if entry == 3:
            offsets.write_tail()
            times.write_tail()
    before = offsets.entries(), times.entries()
    offsets.withdraw()
    times.withdraw()
    assert list(tmp_path.iterdir()) == []
    assert (offsets.entries(), times.entries()) == before
    assert [offsets.position_of(offset) for offset in (2, 3, 9, 14, 99)] == [0, 50, 150, 200, 250]
    assert [times.offset_before(timestamp) for timestamp in (1_000, 1_001, 1_003, 2_000)] == [0, 3, 9, 15]
    offsets.write_tail()
    times.write_tail()
    assert (OffsetIndex(offsets.path).entries(), TimeIndex(times.path).entries()) == before


def test_entries_out_of_order_are_a_broken_invariant(tmp_path: Path) -> None:
    """A search in what is not sorted finds anything."""
    index = OffsetIndex(str(tmp_path / "0.index"))
    index.append(5, 100)
    with pytest.raises(AssertionError):
        index.append(5, 200)
    with pytest.raises(AssertionError):
        index.append(6, 99)


def test_no_file_stays_open(tmp_path: Path) -> None:
    """Ten thousand partitions have twenty thousand indexes (traps, 'Storage')."""
    index = OffsetIndex(str(tmp_path / "0.index"))
    for entry in range(1, 3000):
        index.append(entry, entry)
    index.write_tail()
    for key in range(0, 3000, 100):
        index.position_of(key)
    assert not [path for path in Path("/proc/self/fd").iterdir() if path.resolve().is_relative_to(tmp_path)]
