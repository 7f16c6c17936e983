"""Digests of multisets: additive, in any order; and sketches that subtract to the messages that differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import InvalidRecord
from ottla.record.batch import read_header
from ottla.record.columnar import Columns, _one_by_one, read_columns
from ottla.record.digests import (
    CELLS,
    MASK_128,
    Identities,
    Latencies,
    OffsetSums,
    Sketch,
    by_window,
    contents,
    contents_of_columns,
    digest,
    digest_of,
    digests_of,
    find_run,
    place_of,
    placed,
    quantiles,
)
from ottla.record.message_ids import ids_of_sections, with_id
from ottla.record.records import Record, build_batch, encode_headers, read_headers

WORDS = st.integers(0, 2**64 - 1)
PAIRS = st.lists(st.tuples(WORDS, WORDS), max_size=40)


def identities_of(pairs: list[tuple[int, int]]) -> Identities:
    columns = np.array(pairs, np.uint64).reshape(-1, 2)
    return Identities(columns[:, 0].copy(), columns[:, 1].copy())


def sketch_of(pairs: list[tuple[int, int]]) -> Sketch:
    sketch = Sketch()
    sketch.add(identities_of(pairs))
    return sketch


def columns_of(records: list[Record], codec: int = 0) -> Columns:
    (columns,) = read_columns(build_batch(records, codec=codec))
    return columns


@given(PAIRS, PAIRS, st.randoms())
def test_a_digest_is_additive_and_does_not_know_of_an_order(
    some: list[tuple[int, int]], others: list[tuple[int, int]], random: object
) -> None:
    together = [*some, *others]
    random.shuffle(together)  # type: ignore[attr-defined]
    assert digest(identities_of(together)) == (digest(identities_of(some)) + digest(identities_of(others))) & MASK_128


@given(st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=9_000)), max_size=9))
def test_many_are_hashed_as_each_is(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    digests, key_lengths, sizes = digests_of([key for key, _ in pairs], [value for _, value in pairs])
    assert digests == b"".join(digest_of(key, value) for key, value in pairs)
    assert key_lengths.tolist() == [-1 if key is None else len(key) for key, _ in pairs]
    assert sizes.tolist() == [len(key or b"") + len(value or b"") for key, value in pairs]


@given(PAIRS, st.integers(0, 39), st.integers(1, 40))
def test_a_run_is_found_by_its_digest_and_its_length(pairs: list[tuple[int, int]], start: int, count: int) -> None:
    whole, run = identities_of(pairs), pairs[start : start + count]
    found = find_run(whole, digest(identities_of(run)), count)
    # A digest knows of no order, so an earlier place with the same messages in another one is as good.
    assert (found is None) if len(run) < count else (found is not None and sorted(pairs[found : found + count]) == sorted(run))
    assert find_run(whole, digest(identities_of(run)) ^ 1 << 100, count) is None


@given(PAIRS, PAIRS, st.randoms())
def test_a_sketch_is_additive_and_does_not_know_of_an_order(
    some: list[tuple[int, int]], others: list[tuple[int, int]], random: object
) -> None:
    together = [*some, *others]
    random.shuffle(together)  # type: ignore[attr-defined]
    added = sketch_of(some)
    added.merge(sketch_of(others))
    assert sketch_of(together) == added
    assert sketch_of(together) - sketch_of(others) == sketch_of(some)
    assert Sketch.from_bytes(sketch_of(together).to_bytes()) == sketch_of(together)


def difference_of(count: int, seed: int) -> tuple[bool, bool]:
    """Whether all that was lost of a thousand messages is named, and whether what is named was lost."""
    random = np.random.default_rng(seed)
    words = random.integers(0, 2**63, (1_000, 2)).astype(np.uint64)
    everything = Identities(words[:, 0].copy(), words[:, 1].copy())
    kept = np.ones(1_000, bool)
    lost = random.choice(1_000, count, replace=False)
    kept[lost] = False
    upstream, downstream = Sketch(), Sketch()
    upstream.add(everything)
    downstream.add(everything.select(kept))
    told = (upstream - downstream).decode()
    named = {(first, second) for first, second, _ in told.missing}
    is_right = named <= {(int(words[index, 0]), int(words[index, 1])) for index in lost} and not told.surplus
    return told.is_whole, is_right and all(times == 1 for _, _, times in told.missing) and (len(named) == count or not told.is_whole)


@given(st.integers(0, 300), st.integers(0, 2**32))
@settings(max_examples=examples(30), deadline=None)
def test_what_a_sketch_names_was_lost_however_much_was(count: int, seed: int) -> None:
    _, is_right = difference_of(count, seed)
    assert is_right


def test_some_tens_of_messages_are_named_but_for_one_time_in_a_hundred() -> None:
    """Messages that share all their cells cannot be told apart; the sketch then says that it is not whole."""
    outcomes = [difference_of(50, seed)[0] for seed in range(200)]
    assert sum(outcomes) >= 198


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 7])
def test_a_message_that_comes_several_times_is_named_with_how_often(times: int) -> None:
    first, second = (9 << 44) | 1234, 77
    told = (sketch_of([(1, 2)]) - sketch_of([(1, 2), *[(first, second)] * times])).decode()
    assert told.is_whole
    assert told.surplus == ((first, second, -times),)
    assert place_of(told.surplus[0][0]) == (9, 1234)


def test_a_sketch_with_too_much_in_it_says_so() -> None:
    assert not sketch_of([(number, number + 1) for number in range(10 * CELLS)]).decode().is_whole


@given(st.binary(max_size=60), st.integers(0, 50))
def test_what_is_no_sketch_is_refused(data: bytes, cut: int) -> None:
    whole = sketch_of([(1, 2)]).to_bytes()
    with pytest.raises(InvalidRecord):
        Sketch.from_bytes(data)
    with pytest.raises(InvalidRecord):
        Sketch.from_bytes(whole[: min(cut, len(whole) - 1)])


@pytest.mark.parametrize("codec", [0, 3])
def test_contents_by_columns_are_those_of_single_messages(codec: int) -> None:
    """The counter reads columns, a client has one message: their digests must be the same. Nulls are not empty."""
    records = [
        Record(index, 1_000 + index, key, value)
        for index, (key, value) in enumerate(
            [
                (None, None),
                (None, b""),
                (b"", None),
                (b"", b""),
                (b"k", b"v" * 63),
                (b"k", b"v" * 64),
                (b"k" * 200, b"v" * 9_000),
                (b"a", b"b"),
            ]
        )
    ]
    columns = columns_of(records, codec)
    digests = b"".join(digest_of(record.key, record.value) for record in records)
    lengths = np.array([-1 if record.key is None else len(record.key) for record in records], np.int64)
    single = contents(digests, np.array([record.timestamp for record in records], np.int64), lengths)
    found = contents_of_columns(columns)
    assert (found.first == single.first).all()
    assert (found.second == single.second).all()
    assert len(set(found.first.tolist())) == len(records)


def test_contents_differ_by_key_value_and_time() -> None:
    base = columns_of([Record(0, 5, b"ab", b"c")])
    others = [columns_of([Record(0, 5, b"a", b"bc")]), columns_of([Record(0, 6, b"ab", b"c")]), columns_of([Record(0, 5, b"ab", b"d")])]
    own = digest(contents_of_columns(base))
    assert own not in {digest(contents_of_columns(other)) for other in others}
    places = placed(contents_of_columns(base), 3, base.offsets)
    assert place_of(int(places.first[0])) == (3, 0)


NAME = bytes(range(16))
ID = ("ottla-id", NAME)


def content_of(record: Record, codec: int = 0) -> list[int]:
    found = contents_of_columns(columns_of([Record(0, 1, b"", b"before"), record, Record(0, 9, b"", b"behind")], codec))
    return [int(found.first[1]), int(found.second[1])]


@pytest.mark.parametrize("codec", [0, 1])
def test_a_message_that_has_an_id_is_known_by_it_whatever_becomes_of_the_rest(codec: int) -> None:
    """Alone, and among other headers, more than are read at once; of two ids the last one counts."""
    many = tuple((f"h{number}", b"") for number in range(40))
    headers = [(ID,), (("a", b"b"), ID, ("c", None)), (("ottla-id", b"x" * 16), ID), (*many, ID), (ID, *many), (ID, ("ottla-id", b"short"))]
    messages = [Record(0, 5, b"k", b"v", some) for some in headers] + [Record(0, 6, None, None, some) for some in headers]
    named = {tuple(content_of(message, codec)) for message in messages}
    assert len(named) == 1
    assert content_of(Record(0, 5, b"k", b"v", (("ottla-id", bytes(16)),))) not in map(list, named)


def test_what_only_looks_like_an_id_is_none() -> None:
    encoded = encode_headers([ID])[1:]
    plain = content_of(Record(0, 5, b"k", b"v"))
    for headers in (
        (("ottla-id", NAME + b"x"),),
        (("ottla-id", NAME[:15]),),
        (("ottla-id", None), ("ottla-ID", NAME)),
        (("nested", encoded),),
        ((encoded.decode("latin-1"), b"long enough to be one"),),
    ):
        assert content_of(Record(0, 5, b"k", b"v", headers)) == plain
    assert content_of(Record(0, 5, b"k", encode_headers([ID]))) != content_of(Record(0, 6, b"k", encode_headers([ID])))


def test_ids_are_the_same_by_columns_one_by_one_and_by_encoded_headers() -> None:
    records = [Record(number, number, b"k", b"%d" % number, ((*(("a", b"b"),), ID) if number % 3 else ())) for number in range(200)]
    batch = build_batch(records)
    shown = contents_of_columns(columns_of(records))
    header = read_header(batch)
    unusual = contents_of_columns(_one_by_one(records, header, 200))
    keys, values = [record.key for record in records], [record.value for record in records]
    sections = [encode_headers(record.headers) for record in records]
    digests, lengths, sizes = digests_of(keys, values, ids_of_sections(sections))
    listed = contents(digests, np.arange(200), lengths)
    for other in (unusual, listed):
        assert (shown.first == other.first).all()
        assert (shown.second == other.second).all()
    assert len(set(shown.first.tolist())) == 67 + 1
    assert sizes.tolist() == [1 + len(str(number)) for number in range(200)]
    assert ids_of_sections(None) is None is ids_of_sections(sections[:1])
    assert ids_of_sections([with_id(None), with_id(sections[0])]) != [None, None]
    assert read_headers(with_id(encode_headers([("a", b"b")])), 0)[0][0] == ("a", b"b")


@given(st.integers(0, 10**12), st.integers(0, 300))
def test_the_sums_of_a_range_are_those_of_its_offsets(first: int, more: int) -> None:
    offsets = np.arange(first, first + more + 1, dtype=np.int64)
    assert OffsetSums.of_range(first, first + more) == OffsetSums.of(offsets)


def test_an_offset_lost_and_another_doubled_change_the_sums_of_offsets() -> None:
    whole = np.arange(100, 200)
    changed = whole.copy()
    changed[10] = 155
    assert OffsetSums.of(whole) != OffsetSums.of(changed)


def quantiles_of(histograms: list[Latencies], share: float) -> list[float | None]:
    rows = [(place, *pair) for place, one in enumerate(histograms) for pair in one.buckets.items()]
    places, buckets, counts = np.array(rows, np.int64).reshape(-1, 3).T
    (found,) = quantiles(places, buckets, counts, len(histograms), (share,))
    return found


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_right_to_one_percent(milliseconds: list[int], share: float) -> None:
    latencies, others = Latencies(), Latencies()
    latencies.add_all(np.array(milliseconds, np.int64))
    for value in milliseconds:
        others.add_all(np.array([value]))
    assert latencies == others
    exact = sorted(milliseconds)[int(share * (len(milliseconds) - 1) + 1e-9)]
    (found,) = quantiles_of([latencies], share)
    assert found is not None
    assert abs(found - exact) <= 0.0101 * exact + 1e-9


@given(st.lists(st.dictionaries(st.integers(0, 2048), st.integers(0, 1 << 40), max_size=6), max_size=8), st.integers(1, 3))
def test_quantiles_of_many_are_those_of_each(histograms: list[dict[int, int]], times: int) -> None:
    """Buckets in any order, of some histograms several times; and of what has no message there is none."""
    many = [Latencies(buckets) for buckets in histograms]
    each = [Latencies(dict(sorted(buckets.items()))) for buckets in histograms]
    for share in (0.0, 0.5, 0.99, 0.999, 1.0):
        found = quantiles_of(many * times, share)
        assert found[: len(many)] == [quantiles_of([one], share)[0] for one in each]
        assert [one is None for one in found[: len(many)]] == [not sum(buckets.values()) for buckets in histograms]
    added = Latencies({bucket: sum(one.get(bucket, 0) for one in histograms) for bucket in range(2049)})
    buckets = np.array([bucket for one in histograms for bucket in one], np.int64)
    counts = np.array([count for one in histograms for count in one.values()], np.int64)
    assert list(quantiles(np.zeros(len(buckets), np.int64), buckets, counts, 1, (0.5, 0.99))) == [
        quantiles_of([added], 0.5),
        quantiles_of([added], 0.99),
    ]


def test_windows_divide_times() -> None:
    times = np.array([59_999, 60_000, 119_999, 120_000], np.int64)
    assert [(start, None if mask is None else mask.tolist()) for start, mask in by_window(times, 60_000)] == [
        (0, [True, False, False, False]),
        (60_000, [False, True, True, False]),
        (120_000, [False, False, False, True]),
    ]
    assert list(by_window(times[1:3], 60_000)) == [(60_000, None)]
