"""Plans of who is to have which partition: made, read and compared. Pure; the file is that of kafka-reassign-partitions.

A plan that is made here moves as little as it can: replicas on brokers that stay where they may be are kept, and only
what is uneven afterwards is moved. Evenness counts topic by topic first, then over all topics together.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.cli.errors import UsageError
from ottla.model import TopicPartition

Replicas = tuple[int, ...]
Plan = dict[TopicPartition, Replicas]
# The log directories that a plan names for single replicas, by partition and broker; those of all others their brokers choose.
Directories = dict[tuple[TopicPartition, int], str]

FORMAT_VERSION: Final = 1
ANY_DIRECTORY: Final = "any"


def plan_text(plan: Mapping[TopicPartition, Replicas], directories: Mapping[tuple[TopicPartition, int], str] | None = None) -> str:
    """The plan as a file."""
    partitions: list[dict[str, Any]] = []
    for partition, replicas in sorted(plan.items()):
        partitions.append({"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)})
        named = [(directories or {}).get((partition, replica), ANY_DIRECTORY) for replica in replicas]
        if set(named) != {ANY_DIRECTORY}:
            partitions[-1]["log_dirs"] = named
    lines = ",\n".join(f"  {json.dumps(partition)}" for partition in partitions)
    return (
        f'{{"version": {FORMAT_VERSION}, "partitions": [\n{lines}\n]}}' if lines else f'{{"version": {FORMAT_VERSION}, "partitions": []}}'
    )


def parsed_plan(text: str, source: str) -> tuple[Plan, Directories]:
    """Reads a file.

    Raises:
        UsageError: it is no plan; says what is wrong and where.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is no JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or document.get("version", FORMAT_VERSION) != FORMAT_VERSION
        or not isinstance(document.get("partitions"), list)
    ):
        raise UsageError(f'{source} is no plan: it has to be {{"version": {FORMAT_VERSION}, "partitions": [...]}}')
    plan: Plan = {}
    directories: Directories = {}
    for number, entry in enumerate(document["partitions"], start=1):
        where = f"{source}, partition {number} of the list"
        try:
            found = TopicPartition(str(entry["topic"]), _number(entry["partition"]))
            replicas = tuple(_number(replica) for replica in entry["replicas"])
            named = list(entry.get("log_dirs") or [ANY_DIRECTORY] * len(replicas))
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f'{where}: it has to be {{"topic": "…", "partition": 0, "replicas": [1, 2]}}, and is {json.dumps(entry)}'
            ) from None
        if len(named) != len(replicas) or any(name != ANY_DIRECTORY and not Path(str(name)).is_absolute() for name in named):
            raise UsageError(f"{where}: log_dirs has to be a path or 'any' for each of the replicas {list(replicas)}, and is {named}")
        if found in plan:
            raise UsageError(f"{where}: {found} is in the plan twice")
        if not replicas or len(set(replicas)) < len(replicas):
            raise UsageError(f"{where}: {found} needs one or more different brokers, and has {list(replicas)}")
        plan[found] = replicas
        directories |= {(found, replica): name for replica, name in zip(replicas, named, strict=True) if name != ANY_DIRECTORY}
    return plan, directories


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def complaints(plan: Plan, current: Mapping[TopicPartition, Replicas], living: Iterable[int]) -> list[str]:
    """Why a plan cannot be carried out; the brokers would refuse these one by one."""
    brokers = set(living)
    missing = sorted({replica for replicas in plan.values() for replica in replicas} - brokers)
    found = [f"{partition} does not exist" for partition in sorted(plan) if partition not in current]
    if missing:
        found.append(f"broker {', '.join(map(str, missing))} is not there; there are {', '.join(map(str, sorted(brokers)))}")
    return found


@dataclass(frozen=True, slots=True)
class Throttled:
    """The replicas of one topic whose copying is held back, as `partition:broker` (KIP-73)."""

    leaders: tuple[str, ...]  # who may be copied from
    followers: tuple[str, ...]  # who copies


def throttled(plan: Plan, current: Mapping[TopicPartition, Replicas]) -> dict[str, Throttled]:
    """By topic: all who have a partition that moves may be asked for it, and those who get it copy it."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (topic, number), replicas in sorted(plan.items()):
        now = current[TopicPartition(topic, number)]
        added = [replica for replica in replicas if replica not in now]
        if added:
            leaders.setdefault(topic, []).extend(f"{number}:{replica}" for replica in sorted(now))
            followers.setdefault(topic, []).extend(f"{number}:{replica}" for replica in sorted(added))
    return {topic: Throttled(tuple(leaders[topic]), tuple(followers[topic])) for topic in followers}


def moving_brokers(plan: Plan, current: Mapping[TopicPartition, Replicas]) -> list[int]:
    """Who copies and who is copied from."""
    moving = [partition for partition, replicas in plan.items() if set(replicas) - set(current[partition])]
    return sorted({broker for partition in moving for broker in (*plan[partition], *current[partition])})


def even_plan(current: Mapping[TopicPartition, Replicas], racks: Mapping[int, str | None], replication_factor: int | None = None) -> Plan:
    """Who is to have each partition, and lead it, on the brokers named.

    Args:
        current: the partitions with their replicas, the preferred leader first.
        racks: the brokers that may have them, with their racks; those count when every broker has one.
        replication_factor: how many each is to have; None leaves it.

    Raises:
        UsageError: there are not that many brokers.
    """
    return _Spreading(current, racks, replication_factor).plan()


class _Spreading:
    """Replicas being moved until they are even."""

    def __init__(self, current: Mapping[TopicPartition, Replicas], racks: Mapping[int, str | None], factor: int | None) -> None:
        self._brokers = sorted(racks)
        with_racks = all(racks.values())
        self._racks = {broker: str(racks[broker]) if with_racks else str(broker) for broker in self._brokers}
        self._current = current
        self._replicas: dict[TopicPartition, list[int]] = {}
        self._topics: dict[str, list[TopicPartition]] = {}
        self._counts: dict[str, Counter[int]] = {}
        self._totals: Counter[int] = Counter()
        for partition in sorted(current):
            wanted = factor or len(current[partition])
            if wanted > len(self._brokers):
                raise UsageError(f"{partition} is to have {wanted} replicas on {len(self._brokers)} brokers")
            self._topics.setdefault(partition.topic, []).append(partition)
            self._counts.setdefault(partition.topic, Counter())
            self._keep(partition, wanted)
        for partition in sorted(current):
            self._fill(partition, factor or len(current[partition]))

    def plan(self) -> Plan:
        # Again, because racks may allow after one move what they forbade before. It ends: no move makes a topic less
        # even, and one that leaves it as it was makes the totals more even.
        has_moved = True
        while has_moved:
            has_moved = False
            for topic in self._topics:
                has_moved |= self._even_out(topic)
            has_moved |= self._even_out_totals()
        for topic, partitions in self._topics.items():
            self._spread_leaders(topic, partitions)
        return {partition: tuple(replicas) for partition, replicas in self._replicas.items()}

    def _keep(self, partition: TopicPartition, wanted: int) -> None:
        kept: list[int] = []
        rack_count = min(wanted, len(set(self._racks.values())))
        for replica in self._current[partition]:
            if replica in self._racks and len(kept) < wanted:
                used = {self._racks[other] for other in kept}
                # A second one of a rack only where enough places are left for the racks that have none yet.
                if self._racks[replica] not in used or wanted - len(kept) - 1 >= rack_count - len(used):
                    kept.append(replica)
        self._replicas[partition] = kept
        self._counts[partition.topic].update(kept)
        self._totals.update(kept)

    def _fill(self, partition: TopicPartition, wanted: int) -> None:
        replicas, counts = self._replicas[partition], self._counts[partition.topic]
        while len(replicas) < wanted:
            used = Counter(self._racks[replica] for replica in replicas)
            candidates = [broker for broker in self._brokers if broker not in replicas]
            # Who had it before and was put back for its rack is not copied to again where another would do as well.
            chosen = min(
                candidates,
                key=lambda candidate: (
                    used[self._racks[candidate]],
                    counts[candidate],
                    self._totals[candidate],
                    candidate not in self._current[partition],
                    candidate,
                ),
            )
            replicas.append(chosen)
            counts[chosen] += 1
            self._totals[chosen] += 1

    def _even_out(self, topic: str) -> bool:
        """Until no broker has two replicas of the topic more than another, as far as racks allow; whether anything moved."""
        counts = self._counts[topic]
        has_moved = False
        while any(self._move_one(self._topics[topic], fullest, emptiest) for fullest, emptiest in self._pairs(counts, 2)):
            has_moved = True
        return has_moved

    def _even_out_totals(self) -> bool:
        """Until no broker has two replicas more than another; a topic that is even stays so. Whether anything moved."""
        has_moved = False
        while any(self._move_of_uneven_topic(fullest, emptiest) for fullest, emptiest in self._pairs(self._totals, 2)):
            has_moved = True
        return has_moved

    def _move_of_uneven_topic(self, fullest: int, emptiest: int) -> bool:
        uneven = (topic for topic, counts in self._counts.items() if counts[fullest] > counts[emptiest])
        return any(self._move_one(self._topics[topic], fullest, emptiest) for topic in uneven)

    def _pairs(self, counts: Counter[int], difference: int) -> list[tuple[int, int]]:
        """Brokers of which the first has that much more than the second, the most uneven first."""
        by_count = sorted(self._brokers, key=lambda broker: (counts[broker], broker))
        return [(a, b) for a in reversed(by_count) for b in by_count if counts[a] - counts[b] >= difference]

    def _move_one(self, partitions: Sequence[TopicPartition], source: int, target: int) -> bool:
        for partition in partitions:
            replicas = self._replicas[partition]
            if source not in replicas or target in replicas:
                continue
            others = {self._racks[replica] for replica in replicas if replica != source}
            if self._racks[target] in others and self._racks[source] not in others:
                continue  # it would have one rack less
            replicas[replicas.index(source)] = target
            counts = self._counts[partition.topic]
            counts[source] -= 1
            counts[target] += 1
            self._totals[source] -= 1
            self._totals[target] += 1
            return True
        return False

    def _spread_leaders(self, topic: str, partitions: Sequence[TopicPartition]) -> None:
        """Puts others first until no broker is to lead two partitions of the topic more than another it shares them with."""
        leading = Counter(self._replicas[partition][0] for partition in partitions)
        while True:
            for fullest, emptiest in self._pairs(leading, 2):
                path = self._way(partitions, fullest, emptiest)
                if path:
                    for partition, leader in path:
                        replicas = self._replicas[partition]
                        replicas.remove(leader)
                        replicas.insert(0, leader)
                    leading[fullest] -= 1
                    leading[emptiest] += 1
                    break
            else:
                return

    def _way(self, partitions: Sequence[TopicPartition], fullest: int, emptiest: int) -> list[tuple[TopicPartition, int]]:
        """Changes of leader that take one from the first broker and give one to the second; the shortest such chain."""
        came_by: dict[int, tuple[TopicPartition, int]] = {}
        waiting = deque([fullest])
        led: dict[int, list[TopicPartition]] = {}
        for moved in partitions:
            led.setdefault(self._replicas[moved][0], []).append(moved)
        while waiting and emptiest not in came_by:
            broker = waiting.popleft()
            for partition in led.get(broker, ()):
                for other in self._replicas[partition][1:]:
                    if other != fullest and other not in came_by:
                        came_by[other] = (partition, broker)
                        waiting.append(other)
        path = []
        broker = emptiest
        while broker in came_by:
            partition, former = came_by[broker]
            path.append((partition, broker))
            broker = former
        return path
