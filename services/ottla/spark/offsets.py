"""Offsets of a query: Spark's JSON of them, and what follows from them, all without asking anybody.

    {"clicks":{"0":23,"1":-1}}        topic, partition, offset; -1 is the latest, -2 the earliest

Topics are in the order of their names and partitions in that of their numbers, as Spark's Kafka source writes them: Spark compares
offsets as text, and a checkpoint of that source is read as it stands.

Pure. Offsets are where to read on: an end is the offset behind the last one that is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any, Final, Literal

from ottla.model import TopicPartition

Offsets = Mapping[TopicPartition, int]
Nested = dict[str, dict[str, int]]

EARLIEST: Final = -2
LATEST: Final = -1
# Ranges of one leader that have no more than this together are one task's: a task costs a tenth of a second.
SMALL_RANGE: Final = 10_000
_MAXIMUM: Final = (1 << 63) - 1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """What a task reads of a partition: [start, end)."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that are gone: offsets [start, end) of a partition, and what is known of why."""

    partition: TopicPartition
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        if self.end <= self.start:
            return f"{self.partition}: {self.why}"
        return f"{self.partition}: offsets [{self.start}, {self.end}), {self.end - self.start} of them, are gone: {self.why}"


def read_assignment(text: str) -> list[TopicPartition]:
    """The partitions of `{"clicks":[0,1]}`. Raises ValueError."""
    found = _object(text, '{"topicA":[0,1]}')
    partitions = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list):
            raise ValueError(f"{topic!r} has a list of partitions, not {numbers!r}")
        partitions += [TopicPartition(topic, _whole(number, topic, 0, (1 << 31) - 1)) for number in numbers]
    if not partitions:
        raise ValueError("no partition is named")
    return partitions


def read_offsets(text: str) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """The offsets of `{"clicks":{"0":23,"1":-1},"orders":"earliest"}`, and those of whole topics (SPARK-58774). Raises ValueError."""
    found = _object(text, _EXAMPLE)
    whole = {topic: _WORDS[word.lower()] for topic, word in found.items() if isinstance(word, str) and word.lower() in _WORDS}
    return _by_partition({topic: numbers for topic, numbers in found.items() if topic not in whole}, EARLIEST), whole


def read_timestamps(text: str) -> dict[TopicPartition, int]:
    """The milliseconds of `{"clicks":{"0":1000}}`. Raises ValueError."""
    return _by_partition(_object(text, _EXAMPLE), 0)


def nested(offsets: Offsets) -> Nested:
    """As Spark is given them: in the order in which its own source has them."""
    found: Nested = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def flat(found: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """What `nested` gave, as it comes back.

    Raises:
        ValueError: it is nothing that `nested` gives.
    """
    try:
        return _by_partition(found, 0)
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{json.dumps(found)} are the offsets of another source than of topics, or of a later release: {error}") from error


def write_offsets(offsets: Offsets) -> str:
    """The JSON, letter for letter that of Spark's Kafka source."""
    return json.dumps(nested(offsets), separators=(",", ":"), ensure_ascii=False)


def _object(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"expected e.g. {example}, got {text}")
    return found


def _by_partition(found: Mapping[str, Any], at_least: int) -> dict[TopicPartition, int]:
    offsets = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, dict):
            raise ValueError(f"{topic!r} has a number for each partition, not {numbers!r}")
        for number, offset in numbers.items():
            if not (number.isascii() and number.isdecimal() and len(number) <= 10):
                raise ValueError(f"{number!r} of {topic!r} is no partition")
            offsets[TopicPartition(topic, int(number))] = _whole(offset, topic, at_least, _MAXIMUM)
    return offsets


def _whole(number: object, topic: str, at_least: int, at_most: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not at_least <= number <= at_most:
        raise ValueError(f"{number!r} of {topic!r} is no whole number from {at_least} on")
    return number


# What a micro-batch takes.


def backlog(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between them; a partition without a start begins at 0."""
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def limited(start: Offsets, end: Offsets, at_most: int) -> dict[TopicPartition, int]:
    """Ends that are `at_most` offsets ahead of the starts together, in proportion to what each partition has (maxOffsetsPerTrigger).

    Never more than asked for, and all of it where there is as much. As long as there is one for each, every partition that has
    something moves, so that a large one starves no small one; if there is not, those that have the most do.
    """
    sizes = {partition: max(0, offset - start.get(partition, offset)) for partition, offset in end.items()}
    total = sum(sizes.values())
    if total <= at_most:
        return dict(end)
    moving = sorted((partition for partition, size in sizes.items() if size), key=lambda partition: (-sizes[partition], partition))
    if len(moving) >= at_most:
        shares = dict.fromkeys(moving[:at_most], 1)
    else:
        # One for each, and of the rest in proportion; what rounding leaves goes to the largest ones.
        left, rest = at_most - len(moving), total - len(moving)
        shares = {partition: 1 + (sizes[partition] - 1) * left // rest for partition in moving}
        over = at_most - sum(shares.values())
        for partition in moving:
            if over and shares[partition] < sizes[partition]:
                shares[partition] += 1
                over -= 1
    return {partition: start[partition] + shares.get(partition, 0) if sizes[partition] else offset for partition, offset in end.items()}


def is_to_wait(start: Offsets, end: Offsets, at_least: int | None, waited_seconds: float, at_most_seconds: float) -> bool:
    """Whether a micro-batch is to wait for more (minOffsetsPerTrigger, maxTriggerDelay)."""
    return at_least is not None and backlog(start, end) < at_least and waited_seconds < at_most_seconds


# What is missing.


def vanished(start: Offsets, end: Offsets, earliest: Offsets) -> list[Loss]:
    """What a micro-batch from `start` to `end` cannot read.

    Args:
        earliest: where the logs begin, of partitions that `start` does not have.
    """
    losses = []
    for partition, offset in sorted(start.items()):
        if partition not in end:
            losses.append(Loss(partition, offset, offset, "the partition is not there any more"))
        elif end[partition] < offset:
            losses.append(Loss(partition, end[partition], offset, f"the partition's offset was changed from {offset} to {end[partition]}"))
    for partition, first in sorted(earliest.items()):
        if partition not in start and first > 0:
            losses.append(Loss(partition, 0, first, f"the partition is new and starts from {first} instead of 0"))
    return losses


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What there is to read, partition by partition; nothing of those that end where they start, or before."""
    return [
        OffsetRange(partition, start[partition], offset)
        for partition, offset in sorted(end.items())
        if partition in start and offset > start[partition]
    ]


# Filters.


@dataclass(frozen=True, slots=True)
class Condition:
    """What a query's filter asks of a column: `offset >= 17`. Of `in` any of the values does."""

    column: str
    operator: Literal["=", "in", ">", ">=", "<", "<="]
    values: tuple[Any, ...]

    def holds(self, found: Any) -> bool:
        """Whether a value of the column does. False where they cannot be compared, as a comparison with null is in SQL."""
        if self.operator in ("=", "in"):
            return found in self.values
        (bound,) = self.values
        if bound is None:
            return False
        return bool({">": found > bound, ">=": found >= bound, "<": found < bound, "<=": found <= bound}[self.operator])


def narrowed(one: OffsetRange, conditions: Iterable[Condition]) -> OffsetRange | None:
    """What is left of a range under conditions on topic, partition and offset; None if that is nothing.

    Conditions on other columns are left to the reader of the rows.
    """
    start, end = one.start, one.end
    for condition in conditions:
        if condition.column == "topic" and not condition.holds(one.partition.topic):
            return None
        if condition.column == "partition" and not condition.holds(one.partition.partition):
            return None
        if condition.column == "offset":
            bounds = [value for value in condition.values if value is not None]
            if not bounds:
                return None
            if condition.operator in ("=", "in", ">", ">="):
                start = max(start, min(bounds) + (condition.operator == ">"))
            if condition.operator in ("=", "in", "<", "<="):
                end = min(end, max(bounds) + (condition.operator != "<"))
    return OffsetRange(one.partition, start, end) if start < end else None


# Tasks.


def divided(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Ranges of at most `max_records` offsets, and at least `min_partitions` of them where there are as many offsets."""
    found = list(ranges)
    if max_records is not None:
        found = [part for whole in found for part in _parts(whole, -(-whole.size // max_records))]
    if min_partitions is not None and len(found) < min_partitions:
        counts = [1] * len(found)
        # The largest part gets smaller, one cut at a time.
        by_size = [(-float(whole.size), index) for index, whole in enumerate(found)]
        heapify(by_size)
        for _ in range(min(min_partitions, sum(whole.size for whole in found)) - len(found)):
            index = by_size[0][1]
            counts[index] += 1
            heapreplace(by_size, (-found[index].size / counts[index], index))
        found = [part for whole, count in zip(found, counts, strict=True) for part in _parts(whole, count)]
    return found


def _parts(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    """So many parts of a range, whose sizes differ by 1 at most."""
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [OffsetRange(whole.partition, first, end) for first, end in pairwise(bounds)]


def packed(
    ranges: Sequence[OffsetRange], leader_of: Callable[[TopicPartition], int | None], at_most: int = SMALL_RANGE
) -> list[tuple[OffsetRange, ...]]:
    """Tasks: a large range is one, and small ones of a leader share one, so that one fetch brings them all."""
    tasks: list[tuple[OffsetRange, ...]] = []
    shared: dict[int | None, list[OffsetRange]] = {}
    for one in ranges:
        if one.size >= at_most:
            tasks.append((one,))
            continue
        leader = leader_of(one.partition)
        together = shared.setdefault(leader, [])
        if sum(other.size for other in together) + one.size > at_most:
            tasks.append(tuple(together))
            together = shared[leader] = []
        together.append(one)
    return sorted([*tasks, *(tuple(together) for together in shared.values())])
