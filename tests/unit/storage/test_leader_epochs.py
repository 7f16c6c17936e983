"""Leader epochs against a naive model: for each offset, which epoch wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples

from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, MalformedCheckpoint, encode_leader_epochs
from ottla.storage.leader_epochs import LeaderEpochCache


def test_the_epochs_of_a_file_answer_what_kafka_answers() -> None:
    """OffsetForLeaderEpoch (KIP-101, KIP-279): the largest epoch not above the one asked for, and where it ends."""
    epochs = LeaderEpochCache([(0, 0), (3, 120), (4, 300)])
    asked = {epoch: epochs.end_offset_for(epoch, 450) for epoch in (-1, 0, 1, 2, 3, 4, 5)}
    assert asked == {-1: (-1, -1), 0: (0, 120), 1: (0, 120), 2: (0, 120), 3: (3, 300), 4: (4, 450), 5: (-1, -1)}


def test_an_epoch_older_than_all_that_is_known_ends_where_the_oldest_starts() -> None:
    assert LeaderEpochCache([(5, 100), (6, 105)]).end_offset_for(2, 200) == (2, 100)


def test_nothing_is_known_of_an_empty_log() -> None:
    epochs = LeaderEpochCache()
    assert epochs.end_offset_for(0, 0) == (-1, -1)
    assert epochs.epoch_for_offset(0) is None
    assert (epochs.latest, epochs.earliest, epochs.latest_epoch, len(epochs)) == (None, None, -1, 0)


def test_the_epoch_of_an_offset_is_that_of_the_last_start_before_it() -> None:
    epochs = LeaderEpochCache([(1, 10), (4, 20)])
    assert [epochs.epoch_for_offset(offset) for offset in (9, 10, 19, 20, 999)] == [None, 1, 1, 4, 4]


def test_an_epoch_that_is_the_latest_already_is_no_news() -> None:
    epochs = LeaderEpochCache([(1, 10)])
    assert not epochs.is_dirty
    assert epochs.assign(1, 50) is False
    assert not epochs.is_dirty
    assert epochs.assign(2, 50) is True
    assert epochs.is_dirty
    assert (epochs.latest_epoch, epochs.latest) == (2, (2, 50))


def test_entries_that_contradict_a_new_one_go() -> None:
    """As Kafka's truncation of non-monotonic entries: they come from a tail that was cut off."""
    epochs = LeaderEpochCache([(1, 10), (5, 50), (6, 60)])
    assert epochs.assign(4, 55)
    assert epochs.entries == [(1, 10), (4, 55)]
    assert epochs.assign(7, 10)
    assert epochs.entries == [(7, 10)]


def test_truncation_at_either_end() -> None:
    epochs = LeaderEpochCache([(1, 10), (5, 50), (6, 60)])
    assert not epochs.truncate_from_end(61)
    assert epochs.truncate_from_end(60)
    assert epochs.entries == [(1, 10), (5, 50)]
    assert not epochs.truncate_from_start(9)
    assert epochs.truncate_from_start(30)
    assert epochs.entries == [(1, 30), (5, 50)]
    assert epochs.truncate_from_start(70)
    assert epochs.entries == [(5, 70)]
    assert not epochs.truncate_from_start(70)
    epochs.clear()
    assert epochs.entries == []


def test_what_is_encoded_is_loaded(tmp_path: Path) -> None:
    (tmp_path / LEADER_EPOCH_CHECKPOINT).write_bytes(encode_leader_epochs(LeaderEpochCache([(1, 10), (5, 50)]).entries))
    assert (tmp_path / LEADER_EPOCH_CHECKPOINT).read_bytes() == b"0\n2\n1 10\n5 50\n"
    loaded = LeaderEpochCache.load(tmp_path)
    assert loaded.entries == [(1, 10), (5, 50)]
    assert not loaded.is_dirty


def test_a_partition_without_a_file_has_no_epochs(tmp_path: Path) -> None:
    assert LeaderEpochCache.load(tmp_path).entries == []


@pytest.mark.parametrize("content", [b"0\n1\n-1 5\n", b"0\n1\n3 -5\n", b"0\n2\n4 10\n3 20\n", b"0\n2\n3 20\n4 10\n"])
def test_a_file_whose_epochs_can_not_be_is_refused(tmp_path: Path, content: bytes) -> None:
    """Negative numbers, or a column that goes down: the caller rebuilds from the log."""
    (tmp_path / LEADER_EPOCH_CHECKPOINT).write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=r"line [34]"):
        LeaderEpochCache.load(tmp_path)


class LeaderEpochsAgainstALog(RuleBasedStateMachine):
    """The model is the log itself: a list with the epoch of each offset, and where it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochCache()
        self.start = 0
        self.log: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    @rule(step=st.integers(0, 3), count=st.integers(1, 10))
    def append(self, step: int, count: int) -> None:
        epoch = max(0, self.epochs.latest_epoch) + step
        self.epochs.assign(epoch, self.end)
        self.log += [epoch] * count

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        keep = int(len(self.log) * share)
        self.log = self.log[:keep]
        self.epochs.truncate_from_end(self.end)

    @rule(share=st.floats(0, 0.99))
    def delete_head(self, share: float) -> None:
        drop = int(len(self.log) * share)
        self.log = self.log[drop:]
        self.start += drop
        self.epochs.truncate_from_start(self.start)

    @invariant()
    def each_offset_has_its_epoch(self) -> None:
        assert [self.epochs.epoch_for_offset(offset) for offset in range(self.start, self.end)] == self.log

    @invariant()
    def each_epoch_ends_where_the_log_says(self) -> None:
        for epoch in set(self.log):
            later = [offset for offset, each in enumerate(self.log, self.start) if each > epoch]
            assert self.epochs.end_offset_for(epoch, self.end) == (epoch, later[0] if later else self.end)

    @invariant()
    def both_columns_grow(self) -> None:
        entries = self.epochs.entries
        assert entries == sorted(set(entries))
        assert len({start for _, start in entries}) == len(entries)


LeaderEpochsAgainstALog.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25)
TestLeaderEpochsAgainstALog = LeaderEpochsAgainstALog.TestCase
