"""Histograms of plain integers: what is observed is in the right bucket, and nothing gets lost in adding up."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from ottla.metrics.cells import BOUNDS, Histogram

durations = st.floats(min_value=0.0, max_value=120.0)


def observed(values: list[float]) -> Histogram:
    cell = Histogram()
    for value in values:
        cell.observe(value)
    return cell


@given(st.lists(durations))
@example(list(BOUNDS))
def test_each_bucket_holds_what_is_at_most_its_bound(values: list[float]) -> None:
    """`le` is "less than or equal" (Prometheus, "Histograms and summaries"); compared with counting one by one."""
    cell = observed(values)
    below = 0
    for bound, count in zip(BOUNDS, cell.buckets, strict=False):
        below += count
        assert below == sum(1 for value in values if value <= bound)
    assert cell.snapshot().count == len(values)
    assert math.isclose(cell.sum, math.fsum(values), abs_tol=1e-9)


@given(durations, st.integers(min_value=0, max_value=10_000))
def test_many_at_once_are_as_many_one_by_one(seconds: float, count: int) -> None:
    at_once = Histogram()
    at_once.observe_many(seconds, count)
    assert at_once.buckets == observed([seconds] * count).buckets
    assert math.isclose(at_once.sum, seconds * count)


@given(st.lists(durations), st.lists(durations))
def test_adding_two_is_observing_all_in_one(some: list[float], others: list[float]) -> None:
    added = observed(some)
    added.add(observed(others))
    assert added.buckets == observed(some + others).buckets
    assert math.isclose(added.sum, math.fsum(some + others), abs_tol=1e-9)


@given(st.lists(durations), st.lists(durations))
def test_what_came_since_a_snapshot_is_what_was_observed_after_it(before: list[float], after: list[float]) -> None:
    cell = observed(before)
    earlier = cell.snapshot()
    for item in after:
        cell.observe(item)
    assert cell.snapshot().since(earlier).buckets == tuple(observed(after).buckets)
    assert earlier.buckets == tuple(observed(before).buckets), "a snapshot does not change"


@given(st.lists(durations, min_size=1), st.sampled_from([0.5, 0.75, 0.95, 0.99, 0.999]))
def test_a_quantile_lies_in_the_bucket_of_the_value_that_has_that_rank(values: list[float], q: float) -> None:
    ranked = sorted(values)[math.ceil(q * len(values)) - 1]
    above = [bound for bound in BOUNDS if ranked <= bound]
    upper = above[0] if above else BOUNDS[-1]
    lower = max([0.0, *(bound for bound in BOUNDS if bound < ranked)])
    assert lower <= observed(values).snapshot().quantile(q) <= upper or math.isclose(observed(values).snapshot().quantile(q), lower)


def test_a_quantile_of_nothing_is_nothing_and_beyond_the_last_bound_that_bound() -> None:
    assert Histogram().snapshot().quantile(0.99) == 0.0
    assert observed([1000.0]).snapshot().quantile(0.5) == BOUNDS[-1]


def test_the_bounds_are_half_a_millisecond_to_half_a_minute() -> None:
    assert BOUNDS[0] == 0.0005 and BOUNDS[-1] == 30.0
    assert list(BOUNDS) == sorted(set(BOUNDS))
