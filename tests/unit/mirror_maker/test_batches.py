"""Which batches are opened, and what is made of those; the records are always the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.client.partitioners import murmur2
from ottla.errors import InvalidRecord, MessageTooLarge
from ottla.mirror_maker.merge.batches import PROVENANCE, SMALL_RECORDS, Copy, Rules, is_small, joined, must_be_opened, opened, unopened
from ottla.model import TopicPartition
from ottla.record.batch import DELETE_HORIZON_MASK, LOG_APPEND_TIME, check_batch, read_header
from ottla.record.records import Record, build_batch, read_records

CLICKS = TopicPartition("clicks", 3)
PLAIN = Rules(CLICKS, 8)


def records(*offsets: int, size: int = 10) -> list[Record]:
    return [Record(offset, 1_000 + offset, b"key %d" % offset, bytes([offset % 256]) * size, (("h", b"v"),)) for offset in offsets]


def built(*offsets: int, size: int = 10, **fields: object) -> bytes:
    return build_batch(records(*offsets, size=size), base_offset=offsets[0], **fields)  # type: ignore[arg-type]


def content(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, tuple(header for header in record.headers if header[0] != PROVENANCE)


def placed(copies: list[Copy]) -> dict[int, tuple[int, Record]]:
    """By the source's offset: the partition of the target and the record there."""
    found = {}
    for copy in copies:
        check_batch(memoryview(copy.batch))  # as a broker does
        there = list(read_records(copy.batch))
        assert [record.offset for record in there] == list(range(len(there)))
        for offset, index, count in copy.spans:
            found.update({offset + step: (copy.target_partition, there[index + step]) for step in range(count)})
        assert sum(count for _, _, count in copy.spans) == len(there)
    return found


@settings(deadline=None)
@given(st.data())
def test_small_batches_are_joined_with_their_records_times_and_places(data: st.DataObject) -> None:
    """Each batch begins anywhere behind the former one and has times of its own, also earlier ones; records are of any size."""
    codec = data.draw(st.sampled_from([0, 2, 3, 4]))
    run, expected, offset = [], {}, data.draw(st.integers(0, 1 << 40))
    for _ in range(data.draw(st.integers(2, 12))):
        offset += data.draw(st.integers(0, 200))
        begin, made = data.draw(st.integers(0, 1 << 42)), []
        for _ in range(data.draw(st.integers(1, 9))):
            value = data.draw(st.none() | st.binary(max_size=200))
            headers = tuple(data.draw(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=90)), max_size=2)))
            made.append(
                Record(offset, begin + data.draw(st.integers(0, 1 << 20)), data.draw(st.none() | st.binary(max_size=80)), value, headers)
            )
            expected[offset] = made[-1]
            offset += 1
        batch = memoryview(build_batch(made, base_offset=made[0].offset, codec=codec))
        run.append((batch, read_header(batch)))
    (copy,) = joined(run, PLAIN)
    found = placed([copy])
    assert {at: content(record) for at, (_, record) in found.items()} == {at: content(record) for at, record in expected.items()}
    header = read_header(copy.batch)
    assert (header.codec, header.max_timestamp) == (codec, max(record.timestamp for record in expected.values()))
    assert [count for _, _, count in copy.spans] == [len(list(group)) for group in runs_of(sorted(expected))]


def runs_of(offsets: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][-1] + 1 == offset:
            found[-1].append(offset)
        else:
            found.append([offset])
    return found


def test_what_cannot_be_joined_is_copied_as_it_is() -> None:
    """It is the target that judges what no one has looked at so far: joining refuses nothing."""
    whole = memoryview(built(5, 6))
    broken = bytearray(built(7, 8))
    broken[61] ^= 2  # the first record says another length
    run = [(given, read_header(given)) for given in (whole, memoryview(broken))]
    assert [bytes(copy.batch) for copy in joined(run, PLAIN)] == [bytes(whole), bytes(broken)]
    sound = [(given, read_header(given)) for given in (whole, memoryview(built(7, 8)))]
    assert len(joined(sound, PLAIN)) == 1
    assert len(joined(sound, Rules(CLICKS, 8, max_batch_bytes=len(whole)))) == 2
    bomb = memoryview(built(5, size=1 << 20, codec=3))
    assert is_small(read_header(bomb)) and len(joined([(bomb, read_header(bomb))] * 2, PLAIN)) == 2
    assert not is_small(read_header(built(*range(SMALL_RECORDS + 1))))
    assert not is_small(read_header(built(5, codec=1))), "gzip costs more than it saves"


def test_a_batch_is_opened_for_these_reasons_and_no_other() -> None:
    whole = read_header(built(5, 6, 7, codec=3))
    assert not must_be_opened(whole, PLAIN, 5)
    assert not must_be_opened(whole, PLAIN, 2)
    assert must_be_opened(whole, PLAIN, 6), "reading begins within it"
    assert must_be_opened(read_header(built(5, 7)), PLAIN, 5), "compacted: Produce takes no batch whose count is not its last delta + 1"
    assert must_be_opened(read_header(built(5, 6, timestamp_type=LOG_APPEND_TIME, log_append_time=9_000)), PLAIN, 5)
    assert must_be_opened(whole._replace(attributes=whole.attributes | DELETE_HORIZON_MASK), PLAIN, 5), "it is for brokers to set"
    assert must_be_opened(whole, Rules(CLICKS, 8, "key"), 5)
    assert must_be_opened(whole, Rules(CLICKS, 8, source_id="s"), 5)
    assert must_be_opened(whole, Rules(CLICKS, 8, max_batch_bytes=whole.size - 1), 5)
    assert not must_be_opened(whole, Rules(CLICKS, 8, max_batch_bytes=whole.size), 5)
    assert must_be_opened(whole, Rules(CLICKS, 8, refused_codecs=frozenset({3})), 5)
    copy = unopened(memoryview(built(5, 6, 7)), whole, PLAIN)
    assert (copy.target_partition, copy.spans) == (3, ((5, 0, 3),))


@settings(max_examples=examples(80), deadline=None)
@given(
    st.sets(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(0, 4),
    st.sampled_from(["number", "key"]),
    st.booleans(),
    st.integers(400, 3_000),
    st.frozensets(st.integers(1, 4)),
    st.integers(0, 30),
)
def test_whatever_a_batch_is_opened_for_its_records_are_all_there_and_the_spans_say_where(
    offsets: set[int], codec: int, partition_by: str, has_provenance: bool, max_batch_bytes: int, refused: frozenset[int], first: int
) -> None:
    batch = built(*sorted(offsets), codec=codec)
    rules = Rules(CLICKS, 8, partition_by, max_batch_bytes, refused, "s" if has_provenance else "", "t")  # type: ignore[arg-type]
    copies = opened(batch, rules, first)
    found = placed(copies)
    expected = {record.offset: record for record in read_records(batch) if record.offset >= first}
    assert found.keys() == expected.keys()
    for offset, (partition, record) in found.items():
        assert content(record) == content(expected[offset])
        assert partition == (3 if partition_by == "number" else (murmur2(record.key or b"") & 0x7FFFFFFF) % 8)
        origin = [(PROVENANCE, b"s/clicks/3/%d" % offset)] if has_provenance else []
        assert [header for header in record.headers if header[0] == PROVENANCE] == origin
    for copy in copies:
        assert len(copy.batch) <= max_batch_bytes
        assert read_header(copy.batch).codec not in refused
        for (former, _, count), (later, _, _) in pairwise(copy.spans):
            assert former + count < later


def test_times_that_the_source_gave_are_the_records_own_in_the_target() -> None:
    (copy,) = opened(built(5, 6, timestamp_type=LOG_APPEND_TIME, log_append_time=9_000), PLAIN, 5)
    assert [record.timestamp for record in read_records(copy.batch)] == [9_000, 9_000]
    assert read_header(copy.batch).timestamp_type != LOG_APPEND_TIME


def test_a_record_that_no_batch_can_take_is_named() -> None:
    with pytest.raises(MessageTooLarge, match="the record at offset 6 of clicks-3 takes"):
        opened(build_batch([*records(5), *records(6, size=900)], base_offset=5), Rules(CLICKS, 8, max_batch_bytes=300), 5)


def test_a_record_that_was_in_the_target_before_is_left_behind() -> None:
    marked = [
        Record(5, 1, None, b"ours", ((PROVENANCE, b"t/clicks/0/9"),)),
        Record(6, 1, None, b"theirs", ((PROVENANCE, b"tt/clicks/0/9"),)),
    ]
    found = placed(opened(build_batch(marked, base_offset=5), Rules(CLICKS, 8, target_id="t"), 5))
    assert {offset: record.value for offset, (_, record) in found.items()} == {6: b"theirs"}


def test_the_hash_of_keys_is_kafkas() -> None:
    """The values of Kafka's own test, UtilsTest.testMurmur2."""
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in expected} == {key: value & 0xFFFFFFFF for key, value in expected.items()}


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-5_000, 1 << 40),
            st.none() | st.binary(max_size=80),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
        ),
        min_size=1,
        max_size=70,
    ),
    st.sampled_from([0, 3]),
    st.integers(1_000, 20_000),
)
def test_a_record_is_marked_as_it_lies_whatever_is_in_it(
    contents: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], codec: int, max_batch_bytes: int
) -> None:
    whole = [Record(95 + index, time, key, value, tuple(headers)) for index, (time, key, value, headers) in enumerate(contents)]
    copies = opened(build_batch(whole, base_offset=95, codec=codec), Rules(CLICKS, 8, "number", max_batch_bytes, source_id="s"), 97)
    found = placed(copies)
    assert {offset: (3, *content(record)) for offset, (_, record) in found.items()} == {
        record.offset: (3, *content(record)) for record in whole if record.offset >= 97
    }
    for offset, (_, record) in found.items():
        assert record.headers[-1] == (PROVENANCE, b"s/clicks/3/%d" % offset)
    for copy in copies:
        there = list(read_records(copy.batch))
        header = read_header(copy.batch)
        assert header.max_timestamp == max(record.timestamp for record in there)
        assert (header.record_count, header.codec, len(copy.batch) <= max_batch_bytes) == (len(there), codec, True)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_batch_whose_records_contradict_it_is_refused_or_read_as_by_everyone_else(position: int, value: int) -> None:
    damaged = bytearray(built(*range(5, 25)))
    damaged[61 + position % (len(damaged) - 61)] = value
    try:
        expected = [content(record) for record in read_records(bytes(damaged))]
    except InvalidRecord:
        with pytest.raises(InvalidRecord):
            opened(bytes(damaged), Rules(CLICKS, 8, source_id="s"), 5)
    else:
        try:
            copies = opened(bytes(damaged), Rules(CLICKS, 8, source_id="s"), 0)
        except InvalidRecord:
            return
        assert [content(record) for copy in copies for record in read_records(copy.batch)] == expected
