"""The judge of a topic that is made again and again: made-up lives, one for each thing that can be wrong, and what is allowed."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path

import pytest
from tests.chaos.incarnations import Incarnation, PartitionLife, Wrong, check, load, save
from tests.chaos.recreating import Recreating, Worker
from tests.chaos.verdict import TOLD


def life(number: int, *partitions: PartitionLife) -> Incarnation:
    return Incarnation(number, 1_000 * number, list(partitions))


def written(number: int, count: int, first: int = 0, begin: int | None = 0, **more: int) -> PartitionLife:
    """All of it acknowledged at `first` and after, and read from `begin` on."""
    return PartitionLife(
        count,
        {number: first + number for number in range(count)},
        read=[] if begin is None else [(first + index, number, index) for index in range(count) if first + index >= begin],
        begin=begin,
        **more,
    )


def wrong(*lives: Incarnation) -> dict[str, int]:
    return {str(anomaly): count for anomaly, count in check(list(lives)).counts.items()}


def test_incarnations_that_have_their_own_records_are_sound() -> None:
    """Records that were deleted may be gone, up to what was asked for; what was not read is not judged."""
    lives = [
        life(0, written(0, 9), written(0, 5, begin=3, asked=3, answered=3)),
        life(1, written(1, 4, begin=2, asked=4, answered=0), written(1, 7, begin=None)),
        life(2, written(2, 0), PartitionLife(3, {0: 0, 2: 1}, read=[(0, 2, 0), (1, 2, 2), (2, 2, 1)], begin=0)),
    ]
    verdict = check(lives)
    assert verdict.is_sound and not verdict.findings
    assert (verdict.incarnations, verdict.partitions_read, verdict.acknowledged, verdict.deletions) == (3, 5, 9 + 5 + 4 + 7 + 2, 2)


def test_a_log_that_begins_where_the_former_one_was_cut() -> None:
    """What a checkpoint of the former topic does: the records before are out of range."""
    assert wrong(life(0, written(0, 9, begin=6, asked=6)), life(1, written(1, 8, begin=6))) == {Wrong.BEGINS_TOO_LATE: 1}


def test_deleted_records_that_are_back() -> None:
    assert wrong(life(0, written(0, 9, begin=2, asked=6, answered=6))) == {Wrong.CAME_BACK: 1}


def test_an_acknowledged_message_that_is_not_there() -> None:
    partition = written(0, 9)
    del partition.read[4]
    del partition.read[-1]
    assert wrong(life(0, partition)) == {Wrong.LOST: 2}


def test_a_message_of_the_former_topic() -> None:
    partition = written(1, 4)
    partition.read.append((4, 0, 2))
    assert wrong(life(0, written(0, 3)), life(1, partition)) == {Wrong.OF_ANOTHER_TOPIC: 1}


def test_another_message_where_one_was_acknowledged() -> None:
    partition = written(1, 4)
    partition.read[2] = (2, 0, 0)
    assert wrong(life(0, written(0, 3)), life(1, partition)) == {Wrong.INCONSISTENT_OFFSET: 1, Wrong.OF_ANOTHER_TOPIC: 1}


@pytest.mark.parametrize("message", [(0, 3), (1, 4), (2, 0), (7, 0), (-1, -1)])
def test_a_message_that_nobody_sent_or_that_is_yet_to_be_sent(message: tuple[int, int]) -> None:
    partition = written(1, 4)
    partition.read.append((4, *message))
    assert wrong(life(0, written(0, 3)), life(1, partition), life(2, written(2, 5))) == {Wrong.OF_ANOTHER_TOPIC: 1}


def test_a_message_of_unknown_end_may_come_to_the_next_topic() -> None:
    """Its request waited at a broker that was frozen."""
    former = PartitionLife(2, {0: 0}, read=[(0, 0, 0)], begin=0)
    partition = written(1, 4)
    partition.read.append((4, 0, 1))
    verdict = check([life(0, former), life(1, partition)])
    assert verdict.is_sound and verdict.late == 1


def test_a_deletion_of_unknown_end_may_come_to_the_next_topic_too() -> None:
    former = written(0, 9, begin=0, asked=6, unanswered=6)
    assert check([life(0, former), life(1, written(1, 8, begin=6))]).is_sound
    assert wrong(life(0, former), life(1, written(1, 8, begin=7))) == {Wrong.BEGINS_TOO_LATE: 1}
    assert wrong(life(0, written(0, 8, begin=6)), life(1, written(1, 9, asked=6, unanswered=6))) == {Wrong.BEGINS_TOO_LATE: 1}


def test_of_many_some_are_told_with_their_place() -> None:
    partition = written(3, 3 * TOLD)
    partition.read.clear()
    verdict = check([life(3, written(3, 1), partition)])
    assert verdict.counts[Wrong.LOST] == 3 * TOLD
    assert len(verdict.findings) == TOLD
    assert verdict.findings[0].at_ms == 3_000
    assert verdict.findings[0].explanation.startswith("partition 1 of incarnation 3: message 0 was acknowledged at 0")


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    lives = [life(0, written(0, 3, asked=1, answered=1, begin=1)), life(1, written(1, 2, begin=None))]
    save(tmp_path / "history", lives)
    assert load(tmp_path / "history") == lives


def test_what_a_replaced_leader_says_of_the_end_is_asked_again_and_a_loss_stays_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Method: a reader that is answered with an earlier end at first, and one that always is."""
    worker = Worker(Recreating("", 3, 2, "1", 0.0, str(tmp_path / "history")))
    whole = [(offset, 0, offset) for offset in range(4)]
    monkeypatch.setattr("tests.chaos.recreating._RETRY_SECONDS", 0.01)
    for answers, seconds, lost in (([whole[:2], whole[:2], whole], 60.0, {}), (repeat(whole[:3]), 0.1, {Wrong.LOST: 1})):
        came = iter(answers)
        monkeypatch.setattr(worker, "_all_of", lambda index, deadline, came=came: (0, next(came)))
        read = life(0, PartitionLife(4, {number: number for number in range(4)}))
        assert worker._read(read, seconds)
        assert wrong(read) == lost
