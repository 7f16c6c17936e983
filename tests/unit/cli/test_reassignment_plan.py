"""Plans of who is to have which partition: even, frugal, aware of racks, and in Kafka's file format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.errors import UsageError
from ottla.cli.reassign import parsed_rate
from ottla.cli.reassignment_plan import Plan, Throttled, complaints, even_plan, moving_brokers, parsed_plan, plan_text, throttled
from ottla.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NO_RACKS = dict[int, str | None].fromkeys


@st.composite
def clusters(draw: st.DrawFn, with_racks: bool) -> tuple[Plan, dict[int, str | None]]:
    """Topics on some brokers, and other brokers, or partly others, that are to have them."""
    former_brokers = draw(st.integers(1, 5))
    brokers = draw(st.sets(st.integers(1, 7), min_size=1))
    current: Plan = {}
    for topic in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, min(former_brokers, len(brokers))))
        for partition in range(draw(st.integers(1, 6))):
            current[TopicPartition(f"t{topic}", partition)] = tuple(draw(st.permutations(range(1, former_brokers + 1)))[:factor])
    return current, {broker: draw(st.sampled_from("abc")) if with_racks else None for broker in brokers}


def spread(brokers: Iterable[int], counted: Iterable[int]) -> int:
    """How many more the fullest has than the emptiest."""
    counts = Counter(dict.fromkeys(brokers, 0))
    counts.update(counted)
    return max(counts.values()) - min(counts.values())


@settings(deadline=None)
@given(clusters(with_racks=False))
def test_every_topic_is_even_in_replicas_and_leaders_and_so_is_the_whole(cluster: tuple[Plan, dict[int, str | None]]) -> None:
    current, racks = cluster
    plan = even_plan(current, racks)
    for each, replicas in plan.items():
        assert len(set(replicas)) == len(replicas) == len(current[each])
        assert set(replicas) <= set(racks)
    for topic in {partition.topic for partition in current}:
        of_topic = [replicas for each, replicas in plan.items() if each.topic == topic]
        assert spread(racks, [broker for replicas in of_topic for broker in replicas]) <= 1
        assert spread(racks, [replicas[0] for replicas in of_topic]) <= 1
    assert spread(racks, [broker for replicas in plan.values() for broker in replicas]) <= 1


@settings(deadline=None)
@given(clusters(with_racks=True))
def test_a_partition_is_in_as_many_racks_as_it_can_be_and_a_plan_that_was_carried_out_needs_no_other(
    cluster: tuple[Plan, dict[int, str | None]],
) -> None:
    current, racks = cluster
    plan = even_plan(current, racks)
    for replicas in plan.values():
        assert len({racks[replica] for replica in replicas}) == min(len(replicas), len(set(racks.values())))
    assert even_plan(plan, racks) == plan


def test_nothing_moves_that_can_stay() -> None:
    current = {A0: (1, 2), A1: (2, 3), B0: (3, 1)}
    assert even_plan(current, NO_RACKS([1, 2, 3])) == current
    moved = even_plan({TopicPartition("t", number): (1, 2, 3) for number in range(4)}, NO_RACKS([1, 2, 3, 4]))
    assert sum(4 in replicas for replicas in moved.values()) == 3
    assert sum(len({1, 2, 3} - set(replicas)) for replicas in moved.values()) == 3


def test_topics_of_one_partition_are_spread_together() -> None:
    """Each by itself is even wherever it is; all of them on one broker are not."""
    plan = even_plan({TopicPartition(f"t{number}", 0): (1,) for number in range(6)}, NO_RACKS([1, 2, 3]))
    assert Counter(replicas[0] for replicas in plan.values()) == {1: 2, 2: 2, 3: 2}


def test_brokers_without_a_rack_make_racks_count_for_nothing() -> None:
    plan = even_plan({A0: (1, 2), A1: (2, 1)}, {1: "a", 2: "a", 3: None})
    assert spread([1, 2, 3], [broker for replicas in plan.values() for broker in replicas]) <= 1


def test_the_number_of_copies_can_be_changed() -> None:
    current = {A0: (1,), A1: (2,)}
    assert [len(replicas) for replicas in even_plan(current, NO_RACKS([1, 2, 3]), 3).values()] == [3, 3]
    assert even_plan({A0: (1, 2, 3)}, NO_RACKS([1, 2, 3]), 1) == {A0: (1,)}
    with pytest.raises(UsageError, match="a-0 is to have 2 replicas on 1 brokers"):
        even_plan(current, NO_RACKS([1]), 2)


def test_a_plan_is_read_as_it_was_written_and_as_kafka_writes_it() -> None:
    plan = {A0: (1, 2), B0: (3,)}
    assert parsed_plan(plan_text(plan), "p") == (plan, {})
    assert parsed_plan(plan_text({}), "p") == ({}, {})
    directories = {(A0, plan[A0][1]): "/disk2"}
    assert parsed_plan(plan_text(plan, directories), "p") == (plan, directories)
    kafkas = {"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}
    assert parsed_plan(json.dumps(kafkas), "p") == ({A0: (1, 2)}, {})
    del kafkas["version"]  # which Kafka's tool takes for 1
    assert parsed_plan(json.dumps(kafkas), "p") == ({A0: (1, 2)}, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "p is no JSON"),
        pytest.param("[" * 200_000, "p is no JSON", id="too deep"),
        ("[]", "p is no plan"),
        ('{"version": 2, "partitions": []}', "p is no plan"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0}]}', "partition 1 of the list: it has to be"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": -1, "replicas": [1]}]}', "it has to be"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": true, "replicas": [1]}]}', "it has to be"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "different brokers"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "different brokers"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": 7}]}', "it has to be"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["d"]}]}', "a path or 'any'"),
        ('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["/d", "any"]}]}', "for each of"),
        (
            '{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1]}'
            ', {"topic": "a", "partition": 0, "replicas": [2]}]}',
            "partition 2 of the list: a-0 is in the plan twice",
        ),
    ],
)
def test_what_is_wrong_with_a_plan_is_told_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed_plan(text, "p")
    assert complaint in str(raised.value)


def test_a_plan_for_what_is_not_there_is_refused_as_a_whole() -> None:
    assert complaints({A0: (1, 2)}, {A0: (1,)}, [1, 2]) == []
    assert complaints({A0: (1, 9), B0: (1,)}, {A0: (1,)}, [1, 2]) == ["b-0 does not exist", "broker 9 is not there; there are 1, 2"]


def test_whoever_copies_or_may_be_copied_from_is_throttled() -> None:
    """KIP-73: a leader's list has all the replicas that there were, a follower's those that are new."""
    current = {A0: (1, 2), A1: (2, 3), B0: (1, 2)}
    plan: Plan = {A0: (3, 1), A1: (3, 2), B0: (3, 4)}
    assert throttled(plan, current) == {
        "a": Throttled(("0:1", "0:2"), ("0:3",)),
        "b": Throttled(("0:1", "0:2"), ("0:3", "0:4")),
    }
    assert moving_brokers(plan, current) == [1, 2, 3, 4]
    only_led: Plan = {A1: (3, 2)}
    assert throttled(only_led, current) == {}
    assert moving_brokers(only_led, current) == []


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1", 1), ("50000000", 50_000_000), ("50MB", 50_000_000), ("50MiB", 50 * 1024**2), ("1.5 GiB/s", 3 * 1024**3 // 2), ("10k", 10_000)],
)
def test_rates_are_bytes_a_second_with_or_without_a_unit(text: str, rate: int) -> None:
    assert parsed_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "-1", "fast", "50 MBit", "", "1e6", "8589934592GiB"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--throttle"):
        parsed_rate(text)
