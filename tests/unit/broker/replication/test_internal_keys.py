"""Which partition of an internal topic a group or a transactional id belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.coordinator.state_partition import java_hash, partition_of


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("hello", 99162322), ("é", 233), ("polygenelubricants", -(1 << 31))])
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text())
def test_the_hash_is_over_utf_16_units(text: str) -> None:
    """String.hashCode by its definition: s[0]*31^(n-1) + … + s[n-1], in 32 bits."""
    encoded = text.encode("utf-16-be")
    units = [int.from_bytes(encoded[index : index + 2], "big") for index in range(0, len(encoded), 2)]
    by_definition = sum(unit * 31 ** (len(units) - 1 - index) for index, unit in enumerate(units))
    assert (java_hash(text) - by_definition) % (1 << 32) == 0
    assert -(1 << 31) <= java_hash(text) < 1 << 31


@given(st.text(), st.integers(1, 100))
def test_every_group_has_a_partition(group_id: str, count: int) -> None:
    assert 0 <= partition_of(group_id, count) < count


def test_the_smallest_hash_belongs_to_partition_0() -> None:
    """Kafka's Utils.abs: Math.abs of the smallest int would be negative."""
    assert partition_of("polygenelubricants", 50) == 0
