"""Rows of a history come back from its file as they were, and consecutive polls take a run and not a row each."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.history import NO_OFFSET, History, Outcome, Polls, Sends, sender_of, value_of


@given(st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_a_value_says_who_sent_it(process: int, sequence: int) -> None:
    assert sender_of(value_of(process, sequence)) == (process, sequence)


def test_what_is_saved_is_loaded_with_the_processes_of_every_file(tmp_path: Path) -> None:
    sends = Sends(3)
    for partition in (0, 5, 0):
        sends.begin(partition, 10)
    sends.acknowledge(0, 1_000_000_000_000, 12)
    sends.fail(2, 13)
    polls = Polls(7)
    polls.assign(5, 2, 20)
    polls.poll(5, 2, value_of(3, 1), 21)
    History([sends], []).save(tmp_path / "producer.history")
    History([], [polls]).save(tmp_path / "consumer.history")

    loaded = History()
    loaded.load(tmp_path / "producer.history")
    loaded.load(tmp_path / "consumer.history")

    assert [send.process for send in loaded.sends] == [3]
    assert list(loaded.sends[0].partitions) == [0, 5, 0]
    assert list(loaded.sends[0].offsets) == [1_000_000_000_000, NO_OFFSET, NO_OFFSET]
    assert list(loaded.sends[0].outcomes) == [Outcome.ACKNOWLEDGED, Outcome.UNKNOWN, Outcome.FAILED]
    assert list(loaded.sends[0].done_at) == [12, 0, 13]
    assert list(loaded.polls[0].runs()) == [(5, 2, 0, 20, 0), (5, 2, 1, 21, 0)]
    assert list(loaded.polls[0].values) == [value_of(3, 1)]


def test_consecutive_offsets_of_one_poll_are_one_run() -> None:
    polls = Polls(1)
    for offset in (4, 5, 6):
        polls.poll(0, offset, offset, 100)
    polls.poll(1, 7, 7, 100)  # another partition
    polls.poll(1, 8, 8, 101)  # another poll
    polls.poll(1, 10, 10, 101)  # not the next offset
    assert [run[:4] for run in polls.runs()] == [(0, 4, 3, 100), (1, 7, 1, 100), (1, 8, 1, 101), (1, 10, 1, 101)]
    assert [run[4] for run in polls.runs()] == [0, 3, 4, 5]
    assert len(polls) == 6
