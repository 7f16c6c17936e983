"""What a group has committed: the later record wins, transactions count when decided, and offsets expire (KIP-211, KIP-447)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import CommittedOffset
from ottla.model import TopicPartition

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 0)
PRODUCER = 7


def test_of_two_commits_on_their_way_the_one_later_in_the_log_wins() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(20), record_offset=2)
    offsets.commit(CLICKS, CommittedOffset(10), record_offset=1)
    assert offsets.get(CLICKS) == CommittedOffset(20)


def test_an_offset_of_a_transaction_is_seen_when_it_is_committed_and_makes_the_partition_unstable_before() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(PRODUCER, CLICKS, CommittedOffset(5), 1)
    assert offsets.get(CLICKS) is None
    assert offsets.is_unstable(CLICKS)
    offsets.complete(PRODUCER, is_commit=True)
    assert offsets.get(CLICKS) == CommittedOffset(5)
    assert not offsets.is_unstable(CLICKS)


def test_an_aborted_transaction_leaves_no_trace() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1), 1)
    offsets.add_pending(PRODUCER, CLICKS, CommittedOffset(5), 2)
    offsets.complete(PRODUCER, is_commit=False)
    assert offsets.get(CLICKS) == CommittedOffset(1)
    assert not offsets.is_unstable(CLICKS)
    offsets.complete(PRODUCER, is_commit=True)  # a marker that is written twice
    assert offsets.get(CLICKS) == CommittedOffset(1)


def test_a_commit_outside_that_is_later_in_the_log_wins_over_a_transactions() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(PRODUCER, CLICKS, CommittedOffset(5), 1)
    offsets.commit(CLICKS, CommittedOffset(9), 2)
    offsets.complete(PRODUCER, is_commit=True)
    assert offsets.get(CLICKS) == CommittedOffset(9)


def test_offsets_that_are_removed_are_not_brought_back_by_a_transaction() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1), 1)
    offsets.add_pending(PRODUCER, CLICKS, CommittedOffset(5), 2)
    offsets.add_pending(PRODUCER, VIEWS, CommittedOffset(6), 3)
    offsets.remove([CLICKS, TopicPartition("none", 0)])
    offsets.complete(PRODUCER, is_commit=True)
    assert offsets.get(CLICKS) is None
    assert offsets.get(VIEWS) == CommittedOffset(6)


def test_an_empty_groups_offsets_expire_a_while_after_it_became_empty() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1, commit_timestamp=0), 1)
    assert offsets.expired(1_999, 1_000, base_timestamp=1_000, subscribed=()) == []
    assert offsets.expired(2_000, 1_000, base_timestamp=1_000, subscribed=()) == [CLICKS]


def test_what_is_committed_after_the_group_became_empty_is_kept_as_long_from_then_on() -> None:
    """As by a consumer that assigns itself, or by a tool that resets offsets, shortly before those of the members would expire."""
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1, commit_timestamp=0), 1)
    offsets.commit(VIEWS, CommittedOffset(1, commit_timestamp=1_900), 2)
    assert offsets.expired(2_000, 1_000, base_timestamp=1_000, subscribed=()) == [CLICKS]
    assert offsets.expired(2_900, 1_000, base_timestamp=1_000, subscribed=()) == [CLICKS, VIEWS]


def test_a_live_groups_offsets_expire_only_for_topics_that_it_does_not_read() -> None:
    offsets = GroupOffsets()
    for partition in (CLICKS, VIEWS):
        offsets.commit(partition, CommittedOffset(1, commit_timestamp=0), 1)
    assert offsets.expired(5_000, 1_000, base_timestamp=None, subscribed={"clicks"}) == [VIEWS]
    assert offsets.expired(5_000, 1_000, base_timestamp=None, subscribed=None) == []


def test_an_offset_with_an_expiry_of_its_own_keeps_to_that() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1, commit_timestamp=0, expire_timestamp=9_000), 1)
    assert offsets.expired(8_999, 1, base_timestamp=0, subscribed=()) == []
    assert offsets.expired(9_000, 1, base_timestamp=0, subscribed=()) == [CLICKS]


def test_an_undecided_transaction_keeps_an_offset_from_expiring() -> None:
    offsets = GroupOffsets()
    offsets.commit(CLICKS, CommittedOffset(1, commit_timestamp=0), 1)
    offsets.add_pending(PRODUCER, CLICKS, CommittedOffset(2, commit_timestamp=0), 2)
    assert offsets.expired(10_000, 1, base_timestamp=0, subscribed=()) == []


events = st.tuples(st.sampled_from(["commit", "pending", "end"]), st.integers(1, 3), st.booleans())


@given(st.lists(events, max_size=30))
def test_loading_the_log_gives_what_was_there(history: list[tuple[str, int, bool]]) -> None:
    """What the coordinator came to event by event is what another one reads out of the same records."""

    def replay(completed_late: bool) -> CommittedOffset | None:
        offsets = GroupOffsets()
        waiting: list[tuple[CommittedOffset, int]] = []
        for record_offset, (kind, producer_id, is_commit) in enumerate(history):
            value = CommittedOffset(record_offset * 10)
            if kind == "commit" and completed_late:
                waiting.append((value, record_offset))  # its append is acknowledged after what follows
            elif kind == "commit":
                offsets.commit(CLICKS, value, record_offset)
            elif kind == "pending":
                offsets.add_pending(producer_id, CLICKS, value, record_offset)
            else:
                offsets.complete(producer_id, is_commit)
        for committed_offset in waiting:
            offsets.commit(CLICKS, *committed_offset)
        return offsets.get(CLICKS)

    assert replay(completed_late=True) == replay(completed_late=False)
