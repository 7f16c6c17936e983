"""Algorithm 1 of the paper: who of a group owns which partition, as each consumer works it out for itself.

    For each topic T in S_i: P_T is the partitions of T; C_T is the streams of all consumers that have subscribed to T; sort both;
    let j be the index of this stream in C_T and N = |P_T| / |C_T|; assign partitions j * N to (j + 1) * N - 1 to it.

With a remainder the first streams have one more each (Kafka 0.8's `RangeAssignor`). `round_robin` deals the partitions of all topics
out one by one (its `RoundRobinAssignor`, and streams that have not subscribed to a topic are skipped). `brokers` sorts P_T as Kafka 0.7
did, by broker first, so that a consumer connects to few of them: by the preferred leader, as leaders themselves move.

Every consumer of a group gives the same answer to the same question, whatever the order of its arguments. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from ottla.client.partitioners import murmur2
from ottla.model import TopicPartition

# For each partition the stream that owns it.
Assignment: TypeAlias = dict[TopicPartition, str]
# The preferred leader of each partition of each topic.
Leaders: TypeAlias = Mapping[str, Sequence[int]]


def assign_range(leaders: Leaders, streams: Mapping[str, Collection[str]]) -> Assignment:
    """Stretches of each topic's partitions.

    Args:
        streams: the streams that have subscribed to each topic.
    """
    return _stretches({topic: range(len(found)) for topic, found in leaders.items()}, streams)


def assign_by_broker(leaders: Leaders, streams: Mapping[str, Collection[str]]) -> Assignment:
    """As `assign_range`, of partitions in the order of their preferred leaders."""
    return _stretches({topic: sorted(range(len(found)), key=found.__getitem__) for topic, found in leaders.items()}, streams)


def _stretches(partitions: Mapping[str, Sequence[int]], streams: Mapping[str, Collection[str]]) -> Assignment:
    assignment: Assignment = {}
    for topic, numbers in partitions.items():
        subscribed = sorted(set(streams.get(topic, ())))
        if not subscribed:
            continue
        share, remainder = divmod(len(numbers), len(subscribed))
        first = 0
        for index, stream in enumerate(subscribed):
            behind = first + share + (index < remainder)
            assignment.update((TopicPartition(topic, partition), stream) for partition in numbers[first:behind])
            first = behind
    return assignment


def assign_round_robin(leaders: Leaders, streams: Mapping[str, Collection[str]]) -> Assignment:
    """One partition after the other to one stream after the other. The arguments are those of `assign_range`."""
    everybody = sorted({stream for topic in leaders for stream in streams.get(topic, ())})
    if not everybody:
        return {}
    # By their hash, so that the partitions of one topic do not all follow each other and fall to one consumer with many streams.
    every_partition = sorted(
        (TopicPartition(topic, partition) for topic, found in leaders.items() for partition in range(len(found))),
        key=lambda partition: (murmur2(str(partition).encode()), partition),
    )
    subscribed = {topic: set(found) for topic, found in streams.items()}
    assignment: Assignment = {}
    next_stream = 0
    for partition in every_partition:
        for step in range(len(everybody)):
            stream = everybody[(next_stream + step) % len(everybody)]
            if stream in subscribed.get(partition.topic, ()):
                assignment[partition] = stream
                next_stream += step + 1
                break
    return assignment


ASSIGNORS: Final[Mapping[str, Callable[[Leaders, Mapping[str, Collection[str]]], Assignment]]] = {
    "range": assign_range,
    "brokers": assign_by_broker,
    "roundrobin": assign_round_robin,
}
