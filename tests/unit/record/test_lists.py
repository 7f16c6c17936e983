"""Batches out of lists are, byte for byte, what the same records make one by one."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record import lists as lists_of_record
from ottla.record.codecs import CODEC_NAMES
from ottla.record.lists import build_batch_of_lists
from ottla.record.records import Record, build_batch, encode_headers, read_records

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
OCTETS = st.binary(max_size=70) | st.integers(0, 20_000).map(bytes)


@st.composite
def lists(draw: st.DrawFn) -> tuple[list[Record], list[tuple[int, int]], bool, bool]:
    """Records, from where on they have which time, and whether any of them has a key and headers."""
    count = draw(st.sampled_from([1, 2, 3, 63, 64, 65, 130]))
    with_keys, with_headers, with_nulls = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    few = draw(st.lists(st.none() | OCTETS if with_nulls else OCTETS, min_size=1, max_size=4))
    starts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=4))})
    times = [(start, draw(st.integers(-(1 << 40), 1 << 41))) for start in starts]
    stamps = [time for (first, time), (behind, _) in pairwise([*times, (count, 0)]) for _ in range(behind - first)]
    keys = draw(st.lists(st.none() | st.binary(max_size=100), min_size=1, max_size=4)) if with_keys else [None]
    headers = draw(st.lists(HEADERS, min_size=1, max_size=4)) if with_headers else [()]
    records = [
        Record(number, stamps[number], keys[number % len(keys)], few[number % len(few)], headers[number % len(headers)])
        for number in range(count)
    ]
    return records, times, with_keys, with_headers


@given(drawn=lists(), codec=st.sampled_from(sorted(CODEC_NAMES)))
def test_a_batch_of_lists_is_the_batch_of_the_same_records(
    drawn: tuple[list[Record], list[tuple[int, int]], bool, bool], codec: int
) -> None:
    records, times, with_keys, with_headers = drawn
    batch = build_batch_of_lists(
        [record.value for record in records],
        times,
        [record.key for record in records] if with_keys else None,
        [encode_headers(record.headers) for record in records] if with_headers else None,
        codec=codec,
    )
    assert batch == build_batch(records, codec=codec)
    assert list(read_records(batch)) == records


def test_offsets_of_three_bytes_and_values_of_many_lengths_are_written() -> None:
    """Where the varint of an offset gets longer a record's size does too; more lengths than are kept for the next batch."""
    records = [Record(offset, 5 + offset // 1000, None, bytes(offset % 5_000)) for offset in range(8_200)]
    batch = build_batch_of_lists([record.value for record in records], [(0, 5), *((1000 * n, 5 + n) for n in range(1, 9))])
    assert batch == build_batch(records)


def test_threads_that_build_their_first_batches_at_once_number_their_records_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each producer of a program has a thread of its own. Method: the interpreter changes threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    expected = {count: build_batch([Record(offset, 5, None, b"value") for offset in range(count)]) for count in (3_000, 2_000, 1_000)}
    try:
        for _ in range(10):
            monkeypatch.setattr(lists_of_record, "_offsets", [])
            at_once = threading.Barrier(6)

            def build(count: int, at_once: threading.Barrier = at_once) -> bytes:
                at_once.wait(120)
                return build_batch_of_lists([b"value"] * count, [(0, 5)])

            with ThreadPoolExecutor(6) as threads:
                built = list(threads.map(build, [3_000, 2_000, 1_000] * 2))
            assert built == list(expected.values()) * 2
    finally:
        sys.setswitchinterval(interval)
