"""Which partition of an internal topic a group or a transactional id belongs to. Every broker and tool computes the same."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (31 * value + (encoded[index] << 8 | encoded[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(key: str, partition_count: int) -> int:
    """The partition that has what belongs to a group id or a transactional id."""
    hashed = java_hash(key)
    # As Kafka's Utils.abs: the smallest number has no positive counterpart in 32 bits.
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partition_count
