"""Whether all replicas hold the same: their segment files, byte by byte, when every broker has stopped.

Clients read one replica at a time and may never meet the one that went its own way. Followers append batches as they
came, so the files of a partition, one after the other, must be the same everywhere; only where a segment ends may differ.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

_BATCH: Final = struct.Struct(">qi")  # base offset, length of what follows
_PRODUCER: Final = struct.Struct(">qh")  # id and epoch
_PRODUCER_POSITION: Final = 43
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two replicas of a partition part."""

    partition: int
    explanation: str


def differences(data_directories: Mapping[int, Path], topic: str, partition_count: int) -> list[Difference]:
    """Compares every partition of a topic between the log directories of the brokers, by their ids."""
    found: list[Difference] = []
    for partition in range(partition_count):
        (first_id, first), *others = ((broker_id, path / f"{topic}-{partition}") for broker_id, path in sorted(data_directories.items()))
        for other_id, other in others:
            offset = _first_difference(first, other)
            if offset is not None:
                text = f"the logs of broker {first_id} and broker {other_id} differ from the batch at offset {offset} on"
                found.append(Difference(partition, f"partition {partition}: {text}"))
    return found


class Writers:
    """Which producer wrote what is at an offset, by the headers of the batches in a replica's files.

    Args:
        data_directory: the log directory of a broker that has stopped.
        topic: the topic.
    """

    def __init__(self, data_directory: Path, topic: str) -> None:
        self._data_directory = data_directory
        self._topic = topic
        self._found: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}

    def __call__(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Producer id and epoch; None when there is nothing at that offset."""
        base_offsets, writers = self._found.get(partition) or self._read(partition)
        index = bisect_right(base_offsets, offset) - 1
        return writers[index] if index >= 0 else None

    def _read(self, partition: int) -> tuple[list[int], list[tuple[int, int]]]:
        base_offsets: list[int] = []
        writers: list[tuple[int, int]] = []
        for batch in _batches(self._data_directory / f"{self._topic}-{partition}"):
            base_offsets.append(_offset(batch))
            writers.append(_PRODUCER.unpack_from(batch, _PRODUCER_POSITION))
        self._found[partition] = base_offsets, writers
        return base_offsets, writers


def _first_difference(one: Path, other: Path) -> int | None:
    """The base offset of the first batch that is not the same in both; None when all are."""
    offset = 0
    for ours, theirs in zip_longest(_batches(one), _batches(other)):
        if ours != theirs:
            return offset if ours is None else _offset(ours)
        offset = _offset(ours)
    return None


def _offset(batch: bytes) -> int:
    return int(_BATCH.unpack_from(batch)[0])


def _batches(directory: Path) -> Iterator[bytes]:
    """Every batch of a partition's segments, whole. The names sort by their base offsets."""
    for segment in sorted(directory.glob("*.log")):
        with segment.open("rb", buffering=_CHUNK) as file:
            while head := file.read(_BATCH.size):
                yield head + (file.read(_BATCH.unpack(head)[1]) if len(head) == _BATCH.size else b"")
