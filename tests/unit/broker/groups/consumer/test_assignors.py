"""The assignors: everything is read once, by someone who wants it; balanced; and little is moved."""

from __future__ import annotations

import random
import time
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.broker.groups.consumer.assignment import Assignment, count, partitions_of
from ottla.broker.groups.consumer.assignors import ASSIGNORS, Subscriber, range_assignor, uniform_assignor

TOPICS = [UUID(int=number) for number in range(1, 5)]
counts = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7)


def subscribers(topics: list[frozenset[UUID]], targets: dict[str, Assignment] | None = None) -> list[Subscriber]:
    names = [f"m{index}" for index in range(len(topics))]
    return [Subscriber(name, None, each, (targets or {}).get(name, {})) for name, each in zip(names, topics, strict=True)]


def sizes(assigned: dict[str, Assignment]) -> list[int]:
    return sorted(map(count, assigned.values()))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(subscriptions, counts)
@settings(max_examples=examples(60))
def test_everything_that_somebody_wants_is_read_once(name: str, topics: list[frozenset[UUID]], partition_counts: dict[UUID, int]) -> None:
    assigned = ASSIGNORS[name](subscribers(topics), partition_counts)
    found = [partition for member in assigned.values() for partition in partitions_of(member)]
    wanted = frozenset().union(*topics)
    assert sorted(found) == sorted((topic_id, number) for topic_id in wanted for number in range(partition_counts[topic_id]))
    for subscriber in subscribers(topics):
        assert assigned.get(subscriber.member_id, {}).keys() <= subscriber.topic_ids


@given(st.integers(1, 7), counts)
@settings(max_examples=examples(40))
def test_those_who_read_the_same_read_as_much(members: int, partition_counts: dict[UUID, int]) -> None:
    found = sizes(uniform_assignor(subscribers([frozenset(TOPICS)] * members), partition_counts))
    assert found[-1] - found[0] <= 1


@given(subscriptions, counts)
@settings(max_examples=examples(60))
def test_nobody_has_two_more_than_somebody_who_could_take_one(topics: list[frozenset[UUID]], partition_counts: dict[UUID, int]) -> None:
    who = subscribers(topics)
    assigned = uniform_assignor(who, partition_counts)
    for giver in who:
        for topic_id in assigned[giver.member_id]:
            for taker in who:
                if topic_id in taker.topic_ids:
                    assert count(assigned[giver.member_id]) - count(assigned[taker.member_id]) <= 1


@given(subscriptions, counts)
@settings(max_examples=examples(60))
def test_what_is_well_assigned_stays(topics: list[frozenset[UUID]], partition_counts: dict[UUID, int]) -> None:
    first = uniform_assignor(subscribers(topics), partition_counts)
    assert uniform_assignor(subscribers(topics, first), partition_counts) == first
    shuffled = subscribers(topics, first)
    random.Random(1).shuffle(shuffled)
    assert uniform_assignor(shuffled, partition_counts) == first


@given(st.integers(1, 6), counts)
@settings(max_examples=examples(40))
def test_one_more_member_takes_only_its_share(members: int, partition_counts: dict[UUID, int]) -> None:
    first = uniform_assignor(subscribers([frozenset(TOPICS)] * members), partition_counts)
    second = uniform_assignor(subscribers([frozenset(TOPICS)] * (members + 1), first), partition_counts)
    moved = sum(
        1
        for member_id, target in second.items()
        for topic_id, each in partitions_of(target)
        if each not in first.get(member_id, {}).get(topic_id, ())
    )
    assert moved == count(second[f"m{members}"])


def test_ranges_are_dealt_alike() -> None:
    """KIP-848's example: M0 has T1P0, T1P1, T2P0, T2P1, and M1 the rest."""
    a, b = TOPICS[:2]
    assigned = range_assignor(subscribers([frozenset({a, b})] * 2), {a: 3, b: 3})
    assert assigned == {"m0": {a: {0, 1}, b: {0, 1}}, "m1": {a: {2}, b: {2}}}


def test_static_members_keep_their_ranges_under_new_ids() -> None:
    a = TOPICS[0]
    first = range_assignor([Subscriber("m0", "i0", frozenset({a})), Subscriber("m1", "i1", frozenset({a}))], {a: 3})
    second = range_assignor([Subscriber("z", "i0", frozenset({a})), Subscriber("y", "i1", frozenset({a}))], {a: 3})
    assert (second["z"], second["y"]) == (first["m0"], first["m1"])


def test_a_large_group_is_assigned_in_no_time() -> None:
    """500 members over 1,000 partitions; one more comes. The loop waits for it, so it has to be milliseconds."""
    topics, partition_counts = [frozenset(TOPICS)] * 500, dict.fromkeys(TOPICS, 250)
    first = uniform_assignor(subscribers(topics), partition_counts)
    who = subscribers([*topics, frozenset(TOPICS)], first)
    began = time.process_time()
    assert sizes(uniform_assignor(who, partition_counts))[0] >= 1
    assert time.process_time() - began < 0.25
