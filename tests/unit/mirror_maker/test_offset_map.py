"""The map says of each offset of the source where its record is in the target: exactly, also behind and at the end (see KIP-1292)."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import InvalidRecord
from ottla.mirror_maker.offset_map import (
    PAGE_RANGES,
    Gap,
    MapContents,
    MapRecord,
    Page,
    PartitionMap,
    Range,
    decode_page,
    encode_page,
    gap_record,
    link_record,
    page_key,
    writer_record,
)
from ottla.model import TopicPartition

CLICKS = TopicPartition("clicks", 3)
TOPIC_ID, OTHER_ID = UUID(int=7), UUID(int=8)


def again(log: list[MapRecord]) -> PartitionMap:
    """As another worker reads it from the map topic."""
    contents = MapContents()
    for key, value in log:
        contents.take(key, value)
    return PartitionMap(CLICKS, contents.pages.get(CLICKS))


def compacted(log: list[MapRecord]) -> list[MapRecord]:
    """As the cleaner leaves it: of each key the last, and no deletions."""
    return [(key, value) for key, value in dict(log).items() if value is not None]


# Of each batch: offsets that are left out before it in the source and in the target, and its records.
batches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), max_size=200)


@settings(max_examples=examples(60), deadline=None)
@given(batches, st.integers(1, 20))
def test_each_offset_is_translated_to_the_first_copied_record_that_is_not_before_it(
    sizes: list[tuple[int, int, int]], in_a_transaction: int
) -> None:
    """Against a table with a row for each record; as written, and as read again by another worker, compacted or not."""
    own, log = PartitionMap(CLICKS), []
    table: dict[int, int] = {}
    source, target = 5, 100
    for begin in range(0, len(sizes), in_a_transaction):
        ranges = []
        for before, between, count in sizes[begin : begin + in_a_transaction]:
            source, target = source + before, target + between
            if count:
                ranges.append(Range(source, 3, target, count))
                table.update({source + index: target + index for index in range(count)})
            source, target = source + count, target + count
        log += own.stage(TOPIC_ID, ranges, source, 2)
        own.commit()
        target += 1  # the marker of the transaction
    for found in (own, again(log), again(compacted(log))):
        assert found.translate(source + 1) is None
        assert found.next_offset == (source if sizes else -1)
        for offset in range(source + 1 if sizes else 0):
            later = [copied for copied in table if copied >= offset]
            expected = table[min(later)] if later else max(table.values()) + 1 if table else None
            assert found.translate(offset) == expected
        for place in range(99, target + 2):
            later = [copied for copied, copy in table.items() if copy >= place]
            assert found.first_from(place) == min(later, default=found.next_offset)
        assert list(found.ranges()) == list(own.ranges())


def test_what_is_staged_holds_when_its_transaction_is_committed_and_not_before() -> None:
    own = PartitionMap(CLICKS)
    own.stage(TOPIC_ID, [Range(0, 3, 0, 10)], 10, 0)
    assert own.translate(4) is None
    own.discard()
    own.stage(TOPIC_ID, [Range(0, 3, 50, 10)], 10, 0)
    own.commit()
    assert (own.translate(4), own.next_offset, own.leader_epoch, own.topic_id) == (54, 10, 0, TOPIC_ID)


def test_a_page_is_written_again_until_it_is_full_and_then_left_alone() -> None:
    own = PartitionMap(CLICKS)
    keys = []
    for number in range(3 * PAGE_RANGES):
        records = own.stage(TOPIC_ID, [Range(2 * number, 3, 3 * number, 1)], 2 * number + 2, 0)
        own.commit()
        keys += [key for key, _ in records]
    assert len(keys) == 3 * PAGE_RANGES
    assert len(set(keys)) == 3


def test_a_source_that_was_cut_takes_the_ranges_behind_the_cut_with_it() -> None:
    """They would translate to records that the source does not have any more."""
    for cut in (0, 1, 4, 100, 63 * 4, 64 * 4, 64 * 4 + 1, 150 * 4):
        own, log = PartitionMap(CLICKS), []
        for number in range(150):
            log += own.stage(TOPIC_ID, [Range(4 * number, 3, 7 * number, 2)], 4 * number + 4, 5)
            own.commit()
        log += own.stage_cut(cut, 4)
        own.commit()
        for found in (own, again(log), again(compacted(log))):
            assert (found.next_offset, found.leader_epoch) == (cut, 4)
            assert all(span.source + span.record_count <= cut for span in found.ranges())
            assert sum(span.record_count for span in found.ranges()) == sum(4 * (at // 2) + at % 2 < cut for at in range(300))


@pytest.mark.long
def test_a_target_that_has_lost_its_end_or_was_made_again_takes_the_ranges_from_there_on_with_it() -> None:
    """They would translate to offsets behind records that were copied since, which a group that moves would not read."""
    for target in (0, 1, 3, 7 * 64, 7 * 64 + 1, 7 * 149 + 1):
        own, log = PartitionMap(CLICKS), []
        for number in range(150):
            log += own.stage(TOPIC_ID, [Range(4 * number, 3, 7 * number, 2)], 4 * number + 4, 5)
            own.commit()
        new = [Range(600, 3, target, 2), Range(604, 3, target + 3, 2)]
        assert own.is_behind(new) and not own.is_behind([Range(600, 3, 7 * 149 + 2, 2)])
        log += own.stage(TOPIC_ID, new, 606, 5)
        own.commit()
        for found in (own, again(log), again(compacted(log))):
            assert (found.next_offset, [found.translate(offset) for offset in (600, 601, 604, 606)]) == (
                606,
                [target, target + 1, target + 3, target + 5],
            )
            for offset in range(600):
                place = 7 * (offset // 4) + offset % 4
                assert found.translate(offset) == (place if offset % 4 < 2 and place < target else min(7 * -(-offset // 4), target))


def test_a_topic_that_was_made_again_begins_a_map_of_its_own() -> None:
    own, log = PartitionMap(CLICKS), []
    for number in range(100):
        log += own.stage(TOPIC_ID, [Range(4 * number, 3, 7 * number, 2)], 4 * number + 4, 5)
        own.commit()
    log += own.stage_other_topic(OTHER_ID, 0)
    own.commit()
    log += own.stage(OTHER_ID, [Range(0, 3, 9000, 4)], 4, 0)
    own.commit()
    for found in (own, again(log), again(compacted(log))):
        assert list(found.ranges()) == [Range(0, 3, 9000, 4)]
        assert (found.topic_id, found.next_offset, found.translate(2)) == (OTHER_ID, 4, 9002)


def test_pages_of_records_that_the_source_has_deleted_are_deleted() -> None:
    own, log = PartitionMap(CLICKS), []
    for number in range(4 * PAGE_RANGES):
        log += own.stage(TOPIC_ID, [Range(4 * number, 3, 7 * number, 2)], 4 * number + 4, 5)
        own.commit()
    begins = 4 * (2 * PAGE_RANGES + 10)
    expected = own.translate(begins)
    log += own.stage_trim(begins)
    own.commit()
    for found in (own, again(log), again(compacted(log))):
        assert len(list(found.ranges())) == 2 * PAGE_RANGES
        assert found.translate(begins) == expected
        assert found.translate(0) == 7 * 2 * PAGE_RANGES, "the first that is known"
    assert own.stage_trim(begins) == []


def test_a_week_of_small_transactions_takes_a_worker_a_few_bytes_each() -> None:
    """A range object for each took 156: a partition that always gets a little has three million transactions a day."""
    page_count = 1000
    pages = [
        Page(TOPIC_ID, 3 * (at + PAGE_RANGES), 0, tuple(Range(3 * i, 3, 4 * i, 3) for i in range(at, at + PAGE_RANGES)))
        for at in range(0, page_count * PAGE_RANGES, PAGE_RANGES)
    ]
    log = [(page_key(CLICKS, number), encode_page(page)) for number, page in enumerate(pages)]
    tracemalloc.start()
    try:
        contents = MapContents()
        for key, value in log:
            contents.take(bytes(bytearray(key)), bytes(bytearray(value)))
        found = PartitionMap(CLICKS, contents.pages.get(CLICKS))
        del contents
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 10 * page_count * PAGE_RANGES
    found.stage(TOPIC_ID, [Range(3 * 64_000, 3, 4 * 64_000, 3)], 3 * 64_001, 0)
    found.commit()
    assert [found.translate(offset) for offset in (0, 100_000, 192_000, 192_002)] == [0, 133_333, 256_000, 256_002]
    assert len(list(found.ranges())) == page_count * PAGE_RANGES + 1


def test_by_key_an_offset_is_looked_for_in_each_partition_of_the_target() -> None:
    own = PartitionMap(CLICKS)
    own.stage(TOPIC_ID, [Range(0, 0, 10, 1), Range(1, 1, 30, 2), Range(3, 0, 11, 1)], 4, 0)
    own.commit()
    assert [own.translate(offset, 0) for offset in range(5)] == [10, 11, 11, 11, 12]
    assert [own.translate(offset, 1) for offset in range(5)] == [30, 30, 31, 32, 32]
    assert own.translate(0, 2) is None


def test_the_map_says_whose_copies_a_producer_writes_and_what_is_missing() -> None:
    contents = MapContents()
    gap = Gap(5, 9, 1_700_000_000_000, "deleted before it was copied")
    for key, value in (link_record("source-id"), writer_record(4711, "source-id"), gap_record(CLICKS, gap)):
        contents.take(key, value)
    assert (contents.cluster_id, contents.writers, contents.gaps) == ("source-id", {4711: "source-id"}, {CLICKS: {5: gap}})


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_a_record_that_is_none_of_a_map_is_refused_by_name(key: bytes, value: bytes) -> None:
    contents = MapContents()
    try:
        contents.take(key, value)
    except InvalidRecord:
        pass
    else:
        assert key[0] < 4


def test_a_page_of_a_later_release_is_refused() -> None:
    page = encode_page(Page(TOPIC_ID, 4, 0, (Range(0, 0, 0, 4),)))
    assert decode_page(page).ranges == (Range(0, 0, 0, 4),)
    with pytest.raises(InvalidRecord, match="version 1"):
        decode_page(b"\x01" + page[1:])


def test_a_damaged_page_is_refused_by_whoever_reads_its_ranges() -> None:
    """The last one at once, as it is the position; another one when an offset in it is asked for, and no other is minded."""
    pages = [Page(TOPIC_ID, 400 * number + 400, 0, (Range(400 * number, 3, 400 * number, 400),)) for number in range(3)]
    for damaged in range(3):
        log: list[MapRecord] = []
        for number, page in enumerate(pages):
            log.append((page_key(CLICKS, number), encode_page(page)[: -1 if number == damaged else None]))
        if damaged == 2:
            with pytest.raises(InvalidRecord, match="ends within a range"):
                again(log)
            continue
        found = again(log)
        assert (found.next_offset, found.translate(900)) == (1200, 900)
        with pytest.raises(InvalidRecord, match="ends within a range"):
            found.translate(400 * damaged + 1)
