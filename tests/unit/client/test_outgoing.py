"""What a producer has to send, without a broker: batches by partition, in the order of the calls and within their bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import DeliveryFailed, QueueFull
from ottla.client.outgoing import Delivery, Outgoing, OutgoingBatch, runs_of
from ottla.client.partitioners import murmur2_partition
from ottla.clock import SystemClock

MOST = 7
# Of a value; None is a null.
SIZES = st.none() | st.integers(0, 3) | st.sampled_from([300_000, 990_000, 1_000_000])
PUTS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["known", "found later"]),
            "sizes": st.lists(SIZES, min_size=1, max_size=20),
            "key": st.none() | st.sampled_from([b"a", b"b"]),
            "section": st.none() | st.just(b"\x02\x02h\x01"),
            "timestamp_ms": st.integers(1, 3),
            "partition": st.integers(-1, 3),
        }
    ),
    max_size=8,
)
COUNT = 3


def outgoing(queue_size: int = 1_000) -> tuple[Outgoing, list[None]]:
    woken: list[None] = []
    made = Outgoing(MOST, queue_size, 60, SystemClock(), lambda: woken.append(None))
    made.counts["known"] = COUNT
    return made, woken


def all_batches(sending: Outgoing) -> list[OutgoingBatch]:
    """Those that are ready, in order, and then those that are open."""
    with sending.lock:
        for batch in list(sending.open.values()):
            sending.close(batch)
        return sending.taken_over()[1]


@given(puts=PUTS, found_after=st.integers(0, 8))
def test_messages_are_in_batches_in_the_order_of_the_calls_and_those_that_fit_none_fail_alone(
    puts: list[dict[str, Any]], found_after: int
) -> None:
    puts = [
        {"values": [None if size is None else b"%x" % number * size for size in put.pop("sizes")], **put} for number, put in enumerate(puts)
    ]
    sending, woken = outgoing()
    deliveries = []
    for number, put in enumerate(puts):
        if number == found_after:
            sending.place("found later", COUNT)
        delivery = Delivery(sending)
        sending.put(delivery=delivery, **put)
        deliveries.append(delivery)
    sending.place("found later", COUNT)
    with sending.lock:  # a partition that is not there was looked for again
        waiting = list(sending.waiting)
    for topic in waiting:
        sending.place(topic, COUNT)
    batches = all_batches(sending)
    assert woken or not batches

    expected: dict[tuple[str, int], list[Any]] = {}
    for put in puts:
        key = put["key"]
        partition = murmur2_partition(key, COUNT) if put["partition"] < 0 and key is not None else put["partition"]
        size = len(key or b"") + len(put["section"] or b"") + 20
        fit = [value for value in put["values"] if len(value or b"") + size <= 1_000_000]
        rows = expected.setdefault((put["topic"], partition), [])
        if partition < COUNT:
            rows += [(value, key, put["section"] or b"\0", put["timestamp_ms"]) for value in fit]
    found: dict[tuple[str, int], list[Any]] = {}
    for batch in batches:
        assert 0 < batch.count <= MOST
        assert batch.size <= 1_000_000 or batch.count == 1
        assert batch.partition == (batch.slot[0], batch.slot[1] if batch.slot[1] >= 0 else batch.partition.partition)
        assert 0 <= batch.partition.partition < COUNT
        times = [timestamp for timestamp, count in runs_of(batch) for _ in range(count)]
        keys, sections = batch.keys or [None] * batch.count, batch.sections or [b"\0"] * batch.count
        found.setdefault(batch.slot, []).extend(zip(batch.values, keys, sections, times, strict=True))
    assert {slot: rows for slot, rows in expected.items() if rows} == found
    assert sending.left == sum(batch.count for batch in batches) == sum(delivery.left for delivery in deliveries)

    places = {}
    for number, batch in enumerate(batches):
        places.update({(batch.partition, 100 * number + index): value for index, value in enumerate(batch.values)})
        sending.end(batch, 100 * number)
    assert (sending.left, sending._bytes, dict(sending.outstanding)) == (0, 0, {})
    for put, delivery in zip(puts, deliveries, strict=True):
        if delivery.error is None:
            assert [places[place] for place in delivery.result(0)] == put["values"]
    assert sending.take_failures()[0] == sum(delivery.error is not None for delivery in deliveries)


def test_a_failed_batch_counts_for_each_send_that_no_one_has_heard_of() -> None:
    sending, _ = outgoing()
    deliveries = []
    for values in ([b"a"], [b"b", b"c"], [b"d", b"e", b"f", b"g", b"h"]):
        delivery = Delivery(sending)
        sending.put("known", values, delivery, partition=0)
        deliveries.append(delivery)
    first, second = all_batches(sending)
    for batch in (first, second):
        sending.end(batch, error=DeliveryFailed("no", 7))
    for _ in range(2):
        with pytest.raises(DeliveryFailed, match="no"):
            deliveries[0].result(0)
    count, error = sending.take_failures()
    assert (count, str(error)) == (3, "no")  # the last send is in both batches
    assert sending.take_failures() == (0, None)


def test_a_failure_that_each_send_has_raised_is_not_kept() -> None:
    """A program that looks at each delivery need not flush."""
    sending, _ = outgoing()
    deliveries = [Delivery(sending) for _ in range(2)]
    for delivery in deliveries:
        sending.put("known", [b"a", b"b"], delivery, partition=0)
    (batch,) = all_batches(sending)
    sending.end(batch, error=DeliveryFailed("no", 7))
    for delivery in deliveries:
        assert sending.failed
        with pytest.raises(DeliveryFailed):
            delivery.result(0)
    assert not sending.failed
    assert sending.take_failures() == (0, None)


def test_failures_that_no_one_asks_for_are_counted_and_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may send for weeks to a topic that was deleted, and look at nothing."""
    monkeypatch.setattr("ottla.client.outgoing._MOST_FAILURES", 10)
    sending, _ = outgoing()
    for number in range(1, 101):
        sending.put("deleted", [b"a"], Delivery(sending))
        sending.give_up("deleted", DeliveryFailed(f"no {number}", 3))
        sending.put("known", [b"a"] * 2, Delivery(sending), partition=0)
        for batch in all_batches(sending):
            sending.end(batch, error=DeliveryFailed("no", 7))
        assert len(sending.unseen) + len(sending.failed) <= 10
    count, error = sending.take_failures()
    assert (count, str(error)[:2]) == (200, "no")
    assert sending.take_failures() == (0, None)


def test_what_fits_into_the_queue_is_taken_before_it_is_said_to_be_full() -> None:
    sending, _ = outgoing(queue_size=5)
    delivery = Delivery(sending)
    with pytest.raises(QueueFull, match="5 messages, for 10 ms"):
        sending.put("known", [b"%d" % number for number in range(9)], delivery, partition=0, patience_ms=10)
    assert delivery.left == sending.left == 5
    (batch,) = all_batches(sending)
    sending.end(batch, 40)
    assert [offset for _, offset in delivery.result(0)] == [40, 41, 42, 43, 44]


def test_a_thousand_single_messages_are_where_their_deliveries_say() -> None:
    sending, _ = outgoing(queue_size=2_000)
    sending.put("known", [b"first"], Delivery(sending), partition=1)
    deliveries = []
    for number in range(1_000):
        with sending.lock:
            batch = sending.open.get(("known", 1))
            delivery = None if batch is None else sending.add(batch, b"%d" % number, 1 + number // 10)
        if delivery is None:
            delivery = Delivery(sending)
            sending.put("known", [b"%d" % number], delivery, partition=1, timestamp_ms=1 + number // 10)
        deliveries.append(delivery)
    batches = all_batches(sending)
    values = [value for batch in batches for value in batch.values]
    offset = 0
    for batch in batches:
        sending.end(batch, offset)
        offset += batch.count
    assert [values[delivery.result(0)[0][1]] for delivery in deliveries] == [b"%d" % number for number in range(1_000)]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_list_may_be_thousands_of_batches_long(is_known: bool) -> None:
    """It ended in a RecursionError, and the room of what was left was never given back."""
    sending, _ = outgoing(queue_size=100_000)
    topic = "known" if is_known else "found later"
    sending.put(topic, [b"first"], Delivery(sending), partition=0)
    delivery = Delivery(sending)
    values = [b"%d" % number for number in range(10_000 * MOST)]
    sending.put(topic, values, delivery, partition=0)
    sending.place("found later", COUNT)
    batches = all_batches(sending)
    assert [value for batch in batches for value in batch.values] == [b"first", *values]
    for batch in batches:
        sending.end(batch, 0)
    assert (sending.left, delivery.left) == (0, 0)
