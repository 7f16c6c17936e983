"""Algorithm 1 of the paper, as a function."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.client.assignment import ASSIGNORS, assign_range
from ottla.client.partitioners import murmur2, murmur2_partition
from ottla.model import TopicPartition

STREAMS = st.lists(st.sampled_from([f"c{consumer}-{stream}" for consumer in range(6) for stream in range(3)]), unique=True)
QUESTIONS = st.dictionaries(st.sampled_from("abc"), st.tuples(st.lists(st.integers(0, 3), max_size=20), STREAMS))


def test_range_gives_stretches_and_the_first_streams_have_one_more() -> None:
    """Kafka 0.8, 'partition.assignment.strategy': ten partitions and three streams are 4, 3 and 3."""
    owners = assign_range({"t": [0] * 10}, {"t": ["c2-0", "c1-1", "c1-0"]})
    assert [owners[TopicPartition("t", number)] for number in range(10)] == ["c1-0"] * 4 + ["c1-1"] * 3 + ["c2-0"] * 3


@given(QUESTIONS, st.sampled_from(sorted(ASSIGNORS)), st.randoms(use_true_random=False))
def test_every_partition_has_one_owner_that_wants_it_whatever_the_order_of_the_question(question, name, random) -> None:  # type: ignore[no-untyped-def]
    """Paper, section 3.2: each partition is consumed by one consumer of a group; each consumer works out the same."""
    leaders = {topic: found for topic, (found, _) in question.items()}
    streams = {topic: found for topic, (_, found) in question.items()}
    owners = ASSIGNORS[name](leaders, streams)
    subscribed = {TopicPartition(topic, number) for topic, found in leaders.items() if streams[topic] for number in range(len(found))}
    assert owners.keys() == subscribed
    assert all(owner in streams[partition.topic] for partition, owner in owners.items())
    shuffled = {topic: random.sample(found, len(found)) for topic, found in random.sample(sorted(streams.items()), len(streams))}
    assert ASSIGNORS[name](dict(reversed(leaders.items())), shuffled) == owners


@given(st.integers(0, 50), STREAMS)
def test_the_shares_of_a_topic_differ_by_one_at_most(count: int, streams: list[str]) -> None:
    for assign in ASSIGNORS.values():
        shares = Counter(assign({"t": [0] * count}, {"t": streams}).values())
        sizes = [shares[stream] for stream in streams]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_keys_go_where_the_java_client_has_them() -> None:
    """The vectors of Kafka's own test of `Utils.murmur2`."""
    vectors = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: (murmur2(key) + 2**31) % 2**32 - 2**31 for key in vectors} == vectors
    assert murmur2_partition(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
