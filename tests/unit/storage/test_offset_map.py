"""The offset map against a dictionary: full, nearly full, and with hashes that are made to collide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.compaction import offset_map
from ottla.storage.compaction.offset_map import NOT_FOUND, SLOT_SIZE, OffsetMap


@given(st.lists(st.lists(st.binary(max_size=3), max_size=8), max_size=40))
def test_it_gives_what_a_dictionary_gives(batches: list[list[bytes]]) -> None:
    model: dict[bytes, int] = {}
    offsets = OffsetMap(1 << 16, 0.9)
    offset = 0
    for batch in batches:
        numbers = list(range(offset, offset + len(batch)))
        assert offsets.put(batch, numbers)
        model.update(zip(batch, numbers, strict=True))
        offset += len(batch)
    keys = [*model, b"never put"]
    assert offsets.latest(keys) == [*model.values(), NOT_FOUND]
    assert offsets.count == len(model)


@given(st.integers(1, 400))
def test_what_does_not_fit_is_refused_and_what_is_in_it_can_still_be_changed(slots: int) -> None:
    offsets = OffsetMap(slots * SLOT_SIZE, 0.9)
    keys = [b"%d" % number for number in range(offsets.capacity + 1)]
    assert not offsets.put(keys, range(len(keys)))
    assert offsets.count == offsets.capacity
    assert offsets.latest(keys) == [*range(offsets.capacity), NOT_FOUND]
    assert offsets.put(keys[:-1], range(100, 100 + offsets.capacity))
    assert offsets.latest(keys) == [*range(100, 100 + offsets.capacity), NOT_FOUND]


def test_a_key_takes_24_bytes_and_no_more_than_the_memory_given() -> None:
    offsets = OffsetMap(24_000, 0.9)
    assert 0.9 * 990 <= offsets.capacity <= 900
    assert offsets._table.itemsize * len(offsets._table) <= 24_000


def test_a_few_keys_get_a_small_map() -> None:
    offsets = OffsetMap(1 << 30, 0.9, expected=100)
    assert len(offsets._table) <= 3 * 200
    assert offsets.capacity >= 100
    assert OffsetMap(1 << 30, 0.01, expected=0).capacity == 1


@given(st.integers(1, 2_000), st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.75, 0.9, 1.0]))
def test_all_keys_that_there_can_be_fit_however_empty_a_map_has_to_stay(expected: int, load_factor: float) -> None:
    """Where there is memory. A map that was too small would end the compaction of its log until the broker starts again."""
    offsets = OffsetMap(1 << 24, load_factor, expected)
    assert offsets.capacity >= expected
    assert offsets.capacity <= load_factor * len(offsets._table) / 3
    assert OffsetMap(SLOT_SIZE * expected, load_factor, expected).capacity <= max(expected, 11)


def test_keys_whose_hashes_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: every key gets the same slot to begin with, so all of them step."""

    def halves(keys: list[bytes]) -> tuple[int, ...]:
        return tuple(number for key in keys for number in (7, int.from_bytes(key, "big")))

    monkeypatch.setattr(offset_map, "_halves", halves)
    offsets = OffsetMap(24 * 101, 1.0)
    keys = [bytes([number]) for number in range(100)]
    assert offsets.put(keys, range(100))
    assert offsets.latest(keys) == list(range(100))
    assert offsets.latest([bytes([200])]) == [NOT_FOUND]


def test_a_hash_of_zeros_is_no_empty_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def __init__(self, key: bytes, digest_size: int) -> None:
            self.digest_size = digest_size

        def digest(self) -> bytes:
            return bytes(self.digest_size)

    monkeypatch.setattr(offset_map, "blake2b", Zeros)
    offsets = OffsetMap(24 * 11, 0.5)
    assert offsets.put([b"x", b"y"], [3, 4])  # two keys of one hash are one key
    assert offsets.count == 1
    assert offsets.latest([b"x"]) == [4]
