"""Names, slots and states: decisions without I/O."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.mirror_maker.mirrors import MAX_BATCH

from ottla.errors import ConfigurationError, InvalidTopic
from ottla.mirror_maker.assignment import SLOT_BYTES_PER_SECOND, slot_of, to_release, to_take
from ottla.mirror_maker.merge.map_topic import batches_of
from ottla.mirror_maker.naming import (
    INTERNAL_TOPICS,
    IdentityNaming,
    PrefixNaming,
    RegexNaming,
    name_filter,
    pattern_of,
)
from ottla.mirror_maker.partition_states import PartitionState, PartitionStatus, may_go
from ottla.mirror_maker.sync.legacy_records import Checkpoint, checkpoint, heartbeat, offset_sync
from ottla.model import TopicPartition
from ottla.record.records import read_records


def test_names_are_those_of_the_replication_policies() -> None:
    """KIP-382; DefaultReplicationPolicy does not send a topic back to where it came from."""
    policy = PrefixNaming("A", "B")
    assert policy.target_of("clicks") == "A.clicks"
    assert policy.target_of("C.clicks") == "A.C.clicks"
    assert policy.target_of("B.clicks") is None
    assert policy.target_of("AB.clicks") == "A.AB.clicks"
    assert PrefixNaming("A", "B", "_").target_of("clicks") == "A_clicks"
    assert IdentityNaming().target_of("clicks") == "clicks"
    swapped = RegexNaming(pattern_of("naming.pattern", "([a-z]+)-(.*)"), r"\2.\1")
    assert swapped.target_of("eu-clicks") == "clicks.eu"
    assert swapped.target_of("clicks") is None


def test_three_clusters_that_all_copy_each_other_have_each_topic_once_by_each_way_and_no_more() -> None:
    """Kafka's geo-replication example: `isCycle` looks at all prefixes. With the first one alone names grew for ever."""
    topics = {name: {"clicks"} for name in "ABC"}
    for _ in range(10):
        for source, target in permutations("ABC", 2):
            names = {PrefixNaming(source, target).target_of(topic) for topic in topics[source]}
            topics[target] |= {name for name in names if name is not None}
    assert topics["B"] == {"clicks", "A.clicks", "C.clicks", "A.C.clicks", "C.A.clicks"}


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    with pytest.raises(InvalidTopic, match="249"):
        PrefixNaming("A", "B").target_of("x" * 249)
    with pytest.raises(InvalidTopic):
        RegexNaming(pattern_of("naming.pattern", ".*"), "a b").target_of("clicks")
    with pytest.raises(ConfigurationError, match="topics = "):
        name_filter("topics", ["("], [])


def test_a_filter_takes_whole_names_and_leaves_internal_ones_out() -> None:
    found = name_filter("topics", [".*"], INTERNAL_TOPICS)
    assert "clicks" in found
    for name in ("__consumer_offsets", "mm2-offset-syncs.B.internal", "A.checkpoints.internal", "ottla-mirror-A->B", "connect-internal"):
        assert name not in found
    assert "clicks-2" not in name_filter("topics", ["clicks", "views"], [])
    assert "clicks" not in name_filter("topics", [], [])


def test_neighbouring_partitions_stand_in_neighbouring_slots() -> None:
    slots = [slot_of(TopicPartition("clicks", number), 8) for number in range(64)]
    assert set(Counter(slots).values()) == {8}
    assert slot_of(TopicPartition("clicks", 0), 8) == slots[0], "it never changes"


loads = st.lists(st.floats(0, 1e8), min_size=1, max_size=24)


def test_a_worker_that_joins_gets_its_share_of_many_slots_of_one_weight() -> None:
    """One of 32 slots is less than a tenth of what their only holder does, and so is each that follows."""
    holders, moved = dict.fromkeys(range(32), "a"), 0
    while (slot := to_release("a", ["a", "b"], 32, holders, dict.fromkeys(range(32), 1e6))) is not None:
        holders[slot], moved = "b", moved + 1
    assert 14 <= moved <= 16


@settings(max_examples=examples(80), deadline=None)
@given(loads, st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12))
@example([15054698.688777097, 52052117.9608383, 52052117.9608383], ["a", "b"])  # the first would go to and fro, by rounding
def test_workers_that_come_and_go_share_the_slots_and_move_them_one_at_a_time(weights: list[float], membership: list[str]) -> None:
    """Each step is one worker's own; a slot of a worker that stays moves only if that makes the busiest less busy."""
    slots, load = len(weights), dict(enumerate(weights))
    workers: set[str] = set()
    holders: dict[int, str] = {}
    for name in membership:
        workers ^= {name}
        holders = {slot: holder for slot, holder in holders.items() if holder in workers}
        if not workers:
            continue
        for _ in range(20 * slots):
            taken = {slot: worker for worker in sorted(workers) for slot in to_take(worker, workers, slots, holders, load)}
            assert not set(taken) & set(holders)
            holders |= taken
            assert len(holders) == slots
            released = {worker: slot for worker in workers if (slot := to_release(worker, workers, slots, holders, load)) is not None}
            if not released:
                break
            ((worker, slot),) = released.items()
            assert holders.pop(slot) == worker
        else:
            pytest.fail("the slots are never at rest")
        busy = {worker: sum(load[slot] + SLOT_BYTES_PER_SECOND for slot in holders if holders[slot] == worker) for worker in workers}
        heaviest = max(weights) + SLOT_BYTES_PER_SECOND
        assert max(busy.values()) - min(busy.values()) <= max(2 * heaviest, 0.2 * max(busy.values()) + heaviest)


def test_nothing_moves_while_a_slot_is_free_or_a_holder_is_leaving() -> None:
    assert to_release("a", ["a", "b"], 4, {0: "a", 1: "a", 2: "a"}, {}) is None
    assert to_release("a", ["a", "b"], 4, {0: "a", 1: "a", 2: "a", 3: "c"}, {}) is None
    assert to_take("c", ["a", "b"], 4, {}, {}) == []
    assert to_release("a", ["a", "b"], 4, dict.fromkeys(range(4), "a"), {}) is not None


def test_a_state_follows_the_arrows() -> None:
    states = PartitionState
    for state in states:
        assert may_go(state, states.STOPPED) and may_go(state, state)
    assert not may_go(states.STOPPED, states.RUNNING)
    assert not may_go(states.FAILED, states.RUNNING), "someone has to repair it"
    assert not may_go(states.PAUSED, states.RUNNING)
    assert may_go(states.FAILED, states.PENDING) and may_go(states.LAGGING, states.RUNNING)


def test_lag_is_nothing_at_the_end_and_the_age_of_the_last_copied_record_before_it() -> None:
    status = PartitionStatus(PartitionState.RUNNING, next_offset=7, end_offset=10, timestamp=1_000)
    assert (status.lag, status.lag_seconds(3_500)) == (3, 2.5)
    assert PartitionStatus(PartitionState.RUNNING, next_offset=10, end_offset=10, timestamp=1_000).lag_seconds(3_500) == 0
    nothing_yet = PartitionStatus(PartitionState.STARTING, next_offset=0, end_offset=10, waiting_since_ms=3_000)
    assert nothing_yet.lag_seconds(3_500) == 0.5
    assert PartitionStatus().lag == 0


def test_the_records_of_mirror_maker_2_are_its_own_byte_for_byte() -> None:
    """Kafka's schemas of Heartbeat, Checkpoint and OffsetSync, written out by hand."""
    assert heartbeat("A", "BC", 0x0102) == (b"\0\1A\0\2BC", b"\0\0" + b"\0\0\0\0\0\0\1\2")
    key, value = checkpoint(Checkpoint("g", TopicPartition("A.t", 5), 3, 4, "m"))
    assert key == b"\0\1g\0\3A.t\0\0\0\5"
    assert value == b"\0\0" + bytes(7) + b"\3" + bytes(7) + b"\4" + b"\0\1m"
    assert offset_sync(TopicPartition("t", 5), 3, 4) == (b"\0\1t\0\0\0\5", bytes(7) + b"\3" + bytes(7) + b"\4")


def test_checkpoints_of_many_groups_are_in_batches_that_any_broker_takes() -> None:
    """One batch of all had been more than `max.message.bytes`, and no checkpoint was written."""
    groups = [f"a-group-of-consumers-{number}" for number in range(200)]
    records = [checkpoint(Checkpoint(group, TopicPartition("A.clicks", number), 7, 9)) for group in groups for number in range(100)]
    batches = list(batches_of(records, 1_700_000_000_000))
    assert max(map(len, batches)) < MAX_BATCH // 2 and len(batches) > 4
    assert [(record.key, record.value) for batch in batches for record in read_records(batch)] == records
