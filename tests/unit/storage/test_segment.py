"""A segment's files, and the list that a log keeps of them."""

from __future__ import annotations

from pathlib import Path

from ottla.storage.file_pool import FilePool
from ottla.storage.segment import Segment, SegmentList

from .logs import batch_of


def written(directory: Path, base_offset: int, *batches: bytes) -> Segment:
    segment = Segment.create(str(directory), base_offset)
    Path(segment.path()).write_bytes(b"".join(batches))
    segment.size = sum(map(len, batches))
    return segment


def test_a_segment_is_named_by_its_base_offset_in_twenty_digits(tmp_path: Path) -> None:
    """Kafka's `LogFileUtils`: a listing sorts by offset."""
    segment = Segment.create(str(tmp_path), 65_536)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000065536.log"]
    assert segment.path(".timeindex") == f"{tmp_path}/00000000000000065536.timeindex"
    assert (segment.size, segment.max_timestamp) == (0, -1)


def test_an_offset_is_located_with_and_without_an_index(tmp_path: Path) -> None:
    """The index only says where to begin."""
    batches = [batch_of(offset, 3) for offset in range(0, 60, 3)]
    segment = written(tmp_path, 0, *batches)
    pool = FilePool(10)
    starts = [sum(map(len, batches[:index])) for index in range(21)]
    for entries in ([], [(32, starts[10], 1_000, 32), (47, starts[15], 1_010, 47)]):
        segment.note_entries(entries)
        for offset in range(60):
            assert segment.locate(offset, pool) == starts[offset // 3]
        assert segment.locate(60, pool) == segment.size == starts[20]


def test_a_sealed_segment_ends_its_time_index_with_the_largest_timestamp(tmp_path: Path) -> None:
    """So that retention and look-ups by time need not read the log (Kafka's `onBecomeInactiveSegment`)."""
    segment = written(tmp_path, 10, batch_of(10))
    segment.note_max_timestamp(5_000, 12)
    segment.complete_time_index()
    segment.write_indexes()
    again = Segment(str(tmp_path), 10, segment.size)
    assert (again.max_timestamp, again.max_timestamp_offset) == (5_000, 12)
    assert again.time_index.entries() == [(5_000, 2)]


def test_a_segment_without_timestamps_has_none(tmp_path: Path) -> None:
    """-1 is Kafka's "no timestamp"."""
    segment = written(tmp_path, 0, batch_of(0, timestamp=-1))
    segment.complete_time_index()
    segment.write_indexes()
    assert Segment(str(tmp_path), 0, segment.size).max_timestamp == -1


def test_a_truncated_segment_forgets_what_its_indexes_said_of_the_rest(tmp_path: Path) -> None:
    """Entries behind the cut would point past the end."""
    batches = [batch_of(offset, timestamp=1_000 + offset) for offset in range(10)]
    segment = written(tmp_path, 0, *batches)
    size = len(batches[0])
    segment.note_entries([(offset, offset * size, 1_000 + offset, offset) for offset in range(1, 10)])
    segment.write_indexes()
    segment.truncate(4 * size, 4)
    assert (segment.size, Path(segment.path()).stat().st_size) == (4 * size, 4 * size)
    assert [entry[0] for entry in segment.offset_index.entries()] == [1, 2, 3]
    assert segment.max_timestamp == 1_003


def test_who_holds_a_list_of_segments_is_not_touched_by_changes(tmp_path: Path) -> None:
    """S5: copy on write, readers never blocked."""
    segments = [Segment(str(tmp_path), base_offset, 1) for base_offset in (0, 10, 20)]
    listed = SegmentList(segments)
    taken = listed.all
    listed.replace(segments[1:])
    assert taken == tuple(segments)
    assert (listed.active, len(listed)) == (segments[2], 2)


def test_a_segment_is_found_by_any_of_its_offsets(tmp_path: Path) -> None:
    """S4: in-memory sorted list and binary search."""
    segments = [Segment(str(tmp_path), base_offset, 1) for base_offset in (5, 10, 20)]
    listed = SegmentList(segments)
    found = {offset: listed.find(offset).base_offset for offset in (0, 5, 9, 10, 19, 20, 1_000)}
    assert found == {0: 5, 5: 5, 9: 5, 10: 10, 19: 10, 20: 20, 1_000: 20}
    assert [getattr(listed.after(segment), "base_offset", None) for segment in segments] == [10, 20, None]
    assert [segment.base_offset for segment in listed.since(12)] == [10, 20]
