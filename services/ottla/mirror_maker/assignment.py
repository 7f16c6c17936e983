"""Who copies what: partitions stand in slots, and workers hold slots.

A partition's slot never changes, so its position and its map are always written by the same transactional id, whichever worker has it.
Every worker sees the same znodes and decides by the same function; a slot that two try to take is one's, for it is one znode.

    free slots    each to the worker that has the least to do, the heaviest first
    afterwards    one slot at a time goes from the busiest worker to the idlest, while they differ by more than a tenth of the busiest's

Pure: workers, holders and bytes a second in, one worker's next step out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from zlib import crc32

from ottla.model import TopicPartition

WORTHWHILE: Final = 0.1
# By how many bytes a second the busiest has to become less busy: more than what the rounding of sums makes of nothing.
LEAST: Final = 1.0
# What a slot weighs beside its bytes, so that idle slots are spread by number.
SLOT_BYTES_PER_SECOND: Final = 1024.0


def slot_of(partition: TopicPartition, slots: int) -> int:
    """The slot of a source's partition: neighbours stand in neighbouring slots."""
    return (crc32(partition.topic.encode()) + partition.partition) % slots


def to_take(
    worker: str, workers: Collection[str], slots: int, holders: Mapping[int, str], bytes_per_second: Mapping[int, float]
) -> list[int]:
    """The free slots that this worker is to take.

    Args:
        holders: of slots; a holder that is not among the workers is on its way out, and its slots are not free.
        bytes_per_second: of slots, as far as it is known.
    """
    busy = _busy(workers, holders, bytes_per_second)
    if worker not in busy:
        return []
    taken = []
    free = sorted(set(range(slots)) - holders.keys(), key=lambda slot: (-_weight(slot, bytes_per_second), slot))
    for slot in free:
        idlest = min(busy, key=lambda name: (busy[name], name))
        busy[idlest] += _weight(slot, bytes_per_second)
        if idlest == worker:
            taken.append(slot)
    return taken


def to_release(
    worker: str, workers: Collection[str], slots: int, holders: Mapping[int, str], bytes_per_second: Mapping[int, float]
) -> int | None:
    """The slot that this worker is to give up, so that the idlest takes it; None for most of the time.

    Nothing moves while a slot is free or a holder is leaving.
    """
    if len(holders) < slots or set(holders.values()) - set(workers) or len(workers) < 2:
        return None
    busy = _busy(workers, holders, bytes_per_second)
    busiest = max(busy, key=lambda name: (busy[name], name))
    idlest = min(busy, key=lambda name: (busy[name], name))
    if worker != busiest:
        return None
    gap = busy[busiest] - busy[idlest]
    own = [slot for slot, holder in holders.items() if holder == worker]
    # The larger of the two afterwards is the smallest with the slot that is nearest to half of what they differ by.
    best = min(own, key=lambda slot: (abs(gap / 2 - _weight(slot, bytes_per_second)), slot))
    is_less = gap - _weight(best, bytes_per_second) > LEAST
    return best if is_less and gap > WORTHWHILE * busy[busiest] else None


def _busy(workers: Collection[str], holders: Mapping[int, str], bytes_per_second: Mapping[int, float]) -> dict[str, float]:
    busy = dict.fromkeys(workers, 0.0)
    for slot, holder in holders.items():
        if holder in busy:
            busy[holder] += _weight(slot, bytes_per_second)
    return busy


def _weight(slot: int, bytes_per_second: Mapping[int, float]) -> float:
    return SLOT_BYTES_PER_SECOND + max(bytes_per_second.get(slot, 0.0), 0.0)
