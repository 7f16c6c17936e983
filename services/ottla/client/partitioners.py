"""Which partition a message goes to.

    producer = Producer(settings, partitioner=lambda key, count: 0 if key is None else key[0] % count)

`murmur2_partition` is what Kafka's Java client does with a key, and what a producer here does that has no partitioner of its own: data of
two topics with the same keys and the same number of partitions stays together, no matter who wrote it.

Pure.
"""

from __future__ import annotations

from typing import Final, Protocol

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


class Partitioner(Protocol):
    """Called for each message: its key, encoded, and the number of partitions. Gives the partition, from 0 on."""

    def __call__(self, key: bytes | None, partition_count: int, /) -> int: ...


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key (`Utils.murmur2`), as 32 bits without a sign."""
    length = len(data)
    value = _SEED ^ length
    for position in range(0, length - length % 4, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    rest = data[length - length % 4 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key as the Java client has it."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
