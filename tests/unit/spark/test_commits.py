"""What a sink decides, without a cluster: names, records, owners, times."""

from __future__ import annotations

import pytest

from ottla.spark.commits import (
    MARGIN_MS,
    PARTITIONS,
    CheckpointFenced,
    CommitsUnreadable,
    Decision,
    Slot,
    TransactionLost,
    check_owner,
    check_prepared,
    check_time,
    driver_id,
    partition_of,
    slot_id,
    slots_of,
)

DECISION = Decision("q", 7, (Slot("a-0", 4000, 3, 10), Slot("a-1.2", 4001, 0, 1)))


def test_a_decision_is_read_as_it_was_written_and_anything_else_is_refused() -> None:
    assert Decision.decode(DECISION.encode(), "here") == DECISION
    for value, sentence in (
        (b"{", "offset 3 is no decision of a sink"),
        (b"[]", "no decision"),
        (b'{"release":1}', "no decision"),
        (DECISION.encode().replace(b'"batch":7', b'"batch":7,"more":1'), "no decision"),
        (DECISION.encode().replace(b'"release":1', b'"release":2'), "of release 2 of the sink's records, and 1 is read here"),
    ):
        with pytest.raises(CommitsUnreadable, match=sentence):
            Decision.decode(value, "offset 3")


def test_a_name_knows_its_transactions_and_no_others() -> None:
    """A name that another one begins with is not taken for it."""
    mine = [slot_id("a", 0, 0), slot_id("a", 17, 2)]
    assert mine == ["a-0", "a-17.2"]
    mine += ["a-0.1", "a-17.2.1"]  # of a stage that was run again
    others = [slot_id("a-1", 0, 0), slot_id("a-1", 3, 1), driver_id("a"), driver_id("a-1"), "a-", "a-1x", "b-1", "a"]
    assert slots_of("a", [*mine, *others]) == mine
    assert slots_of("a-1", [*mine, *others]) == ["a-1-0", "a-1-3.1"]
    assert {partition_of(f"query {number}") for number in range(500)} == set(range(PARTITIONS))


def test_a_name_belongs_to_one_checkpoint() -> None:
    check_owner("a", None, "q")
    check_owner("a", DECISION, "q")
    check_owner("a", DECISION, None)
    with pytest.raises(CheckpointFenced, match="a belongs to the checkpoint of query q, which has written batch 7"):
        check_owner("a", DECISION, "other")


def test_a_batch_that_took_too_long_or_lost_a_transaction_is_not_committed() -> None:
    check_time(1000, 1000 + 60_000 - MARGIN_MS, 60_000)
    with pytest.raises(TransactionLost, match=r"the batch took 50001 ms.*kafka\.transaction\.timeout\.ms is 60000"):
        check_time(1000, 1001 + 60_000 - MARGIN_MS, 60_000)
    check_prepared(DECISION.slots, [(4000, 3), (4001, 0)])
    for found in ([(4000, 4), (4001, 0)], [None, (4001, 0)], [(4002, 3), (4001, 0)]):
        with pytest.raises(TransactionLost, match="a-0: nothing of the batch was committed"):
            check_prepared(DECISION.slots, found)
