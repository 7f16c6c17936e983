"""Offsets of a query: Spark's JSON letter for letter, what a micro-batch takes, what is missing, and how ranges become tasks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.spark.offsets import (
    Condition,
    Loss,
    OffsetRange,
    backlog,
    divided,
    flat,
    is_to_wait,
    limited,
    narrowed,
    nested,
    packed,
    ranges_between,
    read_assignment,
    read_offsets,
    read_timestamps,
    vanished,
    write_offsets,
)

A0, A1, A10, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 10), TopicPartition("b", 0)

topic_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "topic.with-all_of"]), st.integers(0, 12))
sizes = st.dictionaries(topic_partitions, st.integers(0, 10**12), min_size=1, max_size=12)
some_ranges = st.lists(
    st.builds(
        lambda partition, start, size: OffsetRange(partition, start, start + size),
        topic_partitions,
        st.integers(0, 99),
        st.integers(1, 500),
    ),
    max_size=8,
    unique_by=lambda one: one.partition,
)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        # Spark's JsonUtilsSuite and its guide have the first two; by number, 10 comes after 1.
        ({A0: 23, A1: -1, B0: -2}, '{"a":{"0":23,"1":-1},"b":{"0":-2}}'),
        ({B0: 1, A0: 2}, '{"a":{"0":2},"b":{"0":1}}'),
        ({A10: 3, A1: 2, A0: 1}, '{"a":{"0":1,"1":2,"10":3}}'),
        ({}, "{}"),
    ],
)
def test_the_json_of_offsets_is_that_of_sparks_kafka_source(offsets: dict[TopicPartition, int], text: str) -> None:
    assert write_offsets(offsets) == text
    assert read_offsets(text) == (offsets, {})


@given(sizes)
def test_what_spark_keeps_of_offsets_comes_back_in_the_same_order(offsets: dict[TopicPartition, int]) -> None:
    """Spark compares them as text, and keeps what `json.dumps` makes of the nested value."""
    kept = json.dumps(nested(offsets))
    assert flat(json.loads(kept)) == offsets
    assert json.dumps(nested(flat(json.loads(kept)))) == kept


WRONG = [
    "",
    "[]",
    "x",
    '{"a":1}',
    '{"a":{"x":1}}',
    '{"a":{"0":"1"}}',
    '{"a":{"0":true}}',
    '{"a":{"0":1.5}}',
    '{"a":{"0":-3}}',
    "[" * 99_999,
]


@pytest.mark.parametrize("text", WRONG)
def test_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_offsets(text)


@pytest.mark.parametrize("kept", [7, [1], {"a": 1}, {"a": {"0": {"offset": 1}}}, {"a": {"x": 1}}, {"a": {"0": -1}}, {"version": 2}])
def test_offsets_of_a_checkpoint_that_are_of_something_else_are_refused(kept: Any) -> None:
    with pytest.raises(ValueError, match="the offsets of another source than of topics, or of a later release"):
        flat(kept)


def test_an_assignment_names_partitions_and_timestamps_begin_at_0() -> None:
    assert read_assignment('{"a":[1,0],"b":[0]}') == [A1, A0, B0]
    for text in ('{"a":0}', '{"a":["0"]}', '{"a":[-1]}', "{}"):
        with pytest.raises(ValueError, match=r"."):
            read_assignment(text)
    with pytest.raises(ValueError, match="-2"):
        read_timestamps('{"a":{"0":-2}}')


@given(sizes, st.integers(1, 10**6))
def test_a_limit_is_reached_exactly_and_no_partition_is_starved(ahead: dict[TopicPartition, int], at_most: int) -> None:
    start = dict.fromkeys(ahead, 7)
    end = {partition: 7 + size for partition, size in ahead.items()}
    found = limited(start, end, at_most)
    moved = {partition: found[partition] - 7 for partition in found}
    assert sum(moved.values()) == min(at_most, sum(ahead.values())) == backlog(start, found)
    assert all(0 <= moved[partition] <= ahead[partition] for partition in ahead)
    if at_most >= sum(map(bool, ahead.values())):
        assert all(moved[partition] for partition, size in ahead.items() if size)


def test_a_limit_is_shared_in_proportion_to_the_backlogs() -> None:
    """Structured Streaming's guide: proportionally split across topic partitions of different volume."""
    assert limited({A0: 0, A1: 0}, {A0: 900, A1: 100}, 100) == {A0: 90, A1: 10}


def test_a_partition_that_went_back_stays_where_its_log_ends() -> None:
    assert limited({A0: 10, A1: 0}, {A0: 4, A1: 100}, 5) == {A0: 4, A1: 5}


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    start, end = {A0: 0}, {A0: 9}
    assert is_to_wait(start, end, 10, 1.0, 900.0)
    assert not is_to_wait(start, end, 9, 1.0, 900.0)
    assert not is_to_wait(start, end, 10, 900.0, 900.0)
    assert not is_to_wait(start, end, None, 0.0, 900.0)


def test_what_is_missing_is_named_to_the_offset() -> None:
    losses = vanished({A0: 10, A1: 5, B0: 3}, {A0: 4, B0: 3, A10: 9}, {A10: 2})
    assert losses == [
        Loss(A0, 4, 10, "the partition's offset was changed from 10 to 4"),
        Loss(A1, 5, 5, "the partition is not there any more"),
        Loss(A10, 0, 2, "the partition is new and starts from 2 instead of 0"),
    ]
    assert "a-0: offsets [4, 10), 6 of them, are gone" in str(losses[0])
    assert not vanished({A0: 10}, {A0: 10, A1: 7}, {A1: 0})


def test_ranges_lie_between_a_start_and_a_later_end() -> None:
    assert ranges_between({A0: 1, A1: 4}, {A1: 4, A0: 3, B0: 9}) == [OffsetRange(A0, 1, 3)]


@given(some_ranges, st.none() | st.integers(1, 60), st.none() | st.integers(1, 300))
def test_divided_ranges_hold_every_offset_once(ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None) -> None:
    found = divided(ranges, min_partitions, max_records)
    for whole in ranges:
        parts = [part for part in found if part.partition == whole.partition]
        assert parts[0].start == whole.start
        assert parts[-1].end == whole.end
        assert all(before.end == after.start for before, after in pairwise(parts))
    assert all(part.size > 0 for part in found)
    assert max_records is None or all(part.size <= max_records for part in found)
    assert len(found) >= min(min_partitions or 0, sum(whole.size for whole in ranges))
    if max_records is None:
        assert len(found) <= max(min_partitions or 0, len(ranges))


def test_the_largest_partition_is_divided_first() -> None:
    found = divided([OffsetRange(A0, 0, 100), OffsetRange(A1, 0, 10)], 5, None)
    assert [part.partition for part in found] == [A0, A0, A0, A0, A1]


@given(some_ranges, st.integers(1, 400))
def test_small_ranges_of_one_leader_share_a_task(ranges: list[OffsetRange], at_most: int) -> None:
    tasks = packed(ranges, lambda partition: partition.partition % 3, at_most)
    assert sorted(one for task in tasks for one in task) == sorted(ranges)
    for task in tasks:
        assert len({one.partition.partition % 3 for one in task}) == 1
        assert len(task) == 1 or sum(one.size for one in task) <= at_most


@given(some_ranges, st.sampled_from(["=", ">", ">=", "<", "<="]), st.integers(0, 700))
def test_a_filter_on_offsets_leaves_no_row_out_that_it_lets_through(ranges: list[OffsetRange], operator: str, bound: int) -> None:
    condition = Condition("offset", operator, (bound,))  # type: ignore[arg-type]
    for one in ranges:
        left = narrowed(one, [condition])
        kept = set() if left is None else set(range(left.start, left.end))
        assert kept == {offset for offset in range(one.start, one.end) if condition.holds(offset)}


def test_filters_on_topic_and_partition_leave_whole_ranges_out() -> None:
    one = OffsetRange(A1, 0, 9)
    assert narrowed(one, [Condition("topic", "in", ("a", "b")), Condition("partition", ">=", (1,))]) == one
    assert narrowed(one, [Condition("topic", "=", ("b",))]) is None
    assert narrowed(one, [Condition("partition", "<", (1,))]) is None
    assert narrowed(one, [Condition("offset", "=", (None,))]) is None
    assert narrowed(one, [Condition("partition", "<", (None,))]) is None
    assert narrowed(one, [Condition("offset", "in", (3, 5))]) == OffsetRange(A1, 3, 6)
    assert narrowed(one, [Condition("value", "=", (b"x",))]) == one
