"""What a follower does with one partition's answer, and how long it waits after an error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.broker.replication.fetch_lane import WORTH_A_WARNING, Outcome, find_place, take_in
from ottla.broker.replication.fetch_queue import FetchQueue, PartitionFetchState, wait_seconds
from ottla.errors import CorruptMessage, FencedLeaderEpoch, KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange
from ottla.model import TopicPartition
from ottla.protocol.fetch import FetchPartition
from ottla.protocol.fetch_client import FetchedPartition

from .leaders import Leader, Rec, Replica, follow_of, topic_id, written

P0 = TopicPartition("flights", 0)


def followed(epoch: int = 0) -> PartitionFetchState:
    return PartitionFetchState(P0, follow_of(Leader(), P0, epoch))


def asked(replica: Replica) -> FetchPartition:
    position = replica.fetch_position()
    return FetchPartition(
        0, position.current_leader_epoch, position.fetch_offset, position.last_fetched_epoch, position.log_start_offset, 1
    )


def answer(
    *records: Rec, error: int = 0, high_watermark: int = 0, start: int = 0, diverging: tuple[int, int] | None = None
) -> FetchedPartition:
    return FetchedPartition(topic_id("flights"), 0, error, high_watermark, start, diverging, memoryview(written(records)))


def with_records(count: int, epoch: int = 0) -> Replica:
    replica = Replica()
    replica.log.append(epoch, *(b"%d" % number for number in range(count)))
    return replica


def test_records_the_high_watermark_and_the_logs_start_are_taken_over() -> None:
    replica, each = with_records(3), followed()
    each.failures = 4
    taken = take_in(replica, each, asked(replica), answer(Rec(3, 0, b"3"), Rec(4, 0, b"4"), high_watermark=4, start=1))
    assert taken is Outcome.TAKEN
    assert (replica.log.end, replica.log.high_watermark, replica.log.start) == (5, 4, 1)
    assert (each.failures, each.leader_high_watermark) == (0, 4)


@pytest.mark.parametrize("moved", ["end", "epoch"])
@pytest.mark.parametrize("what", ["records", "diverging epoch"])
def test_an_answer_to_another_position_or_epoch_is_not_taken(moved: str, what: str) -> None:
    """Records that lie further on would leave a gap; none that are asked for again are lost."""
    replica = with_records(5)
    before = asked(replica)
    if moved == "end":
        replica.log.cut(3)
    else:
        replica.leader_epoch = 1
    end = replica.log.end
    given = answer(Rec(5, 0, b"5")) if what == "records" else answer(diverging=(0, 1))
    assert take_in(replica, followed(), before, given) is Outcome.TOO_LATE
    assert replica.log.end == end


def test_a_replica_that_follows_no_more_takes_nothing() -> None:
    replica = with_records(1)
    replica.append_as_follower = lambda *_: False  # type: ignore[method-assign]
    assert take_in(replica, followed(), asked(replica), answer(Rec(1, 0, b"1"))) is Outcome.TOO_LATE


def test_a_diverging_epoch_cuts_the_log() -> None:
    replica = with_records(2, epoch=1)
    replica.log.append(3, b"x", b"y")
    assert take_in(replica, followed(), asked(replica), answer(diverging=(2, 3))) is Outcome.TAKEN
    assert replica.log.end == 2


def test_a_diverging_epoch_that_cuts_nothing_is_not_asked_about_without_a_pause() -> None:
    replica = with_records(2, epoch=1)
    assert take_in(replica, followed(), asked(replica), answer(diverging=(1, 9))) is Outcome.LATER


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FencedLeaderEpoch.code, Outcome.FENCED),
        (OffsetOutOfRange.code, Outcome.PLACE_LOST),
        (NotLeaderOrFollower.code, Outcome.LATER),
        (-1, Outcome.LATER),
        (9999, Outcome.LATER),
    ],
)
def test_an_error_takes_nothing(error: int, outcome: Outcome) -> None:
    replica = with_records(2)
    assert take_in(replica, followed(), asked(replica), answer(Rec(2, 0, b"2"), error=error, high_watermark=2)) is outcome
    assert (replica.log.end, replica.told) == (2, 0)


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (CorruptMessage("damaged"), Outcome.DAMAGED),
        (KafkaStorageError("full"), Outcome.LATER),
        (ZeroDivisionError("a mistake of ours"), Outcome.LATER),
    ],
)
def test_what_can_not_be_appended_is_asked_for_again_later(failure: Exception, outcome: Outcome) -> None:
    replica = with_records(1)

    def fail() -> None:
        raise failure

    replica.before_append = fail
    assert take_in(replica, followed(), asked(replica), answer(Rec(1, 0, b"1"))) is outcome


def test_an_error_that_lasts_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    replica, each = with_records(1), followed()
    with caplog.at_level(logging.INFO):
        for _ in range(WORTH_A_WARNING + 10):
            take_in(replica, each, asked(replica), answer(error=NotLeaderOrFollower.code))
            each.failures += 1
    assert [record.getMessage() for record in caplog.records] == [
        "flights-0: cannot follow broker 2 in leader epoch 0: NotLeaderOrFollower (error code 6)"
    ]


@pytest.mark.parametrize(
    ("earliest", "latest", "outcome", "start", "end"),
    [
        (0, 3, Outcome.TAKEN, 0, 3),  # an unclean leader: cut to its end
        (7, 9, Outcome.TAKEN, 7, 7),  # all that is here is gone there: begin where it begins
        (0, 9, Outcome.LATER, 0, 5),
        (5, 5, Outcome.LATER, 0, 5),
    ],
)
def test_a_lost_place_is_found_between_the_leaders_start_and_end(
    earliest: int, latest: int, outcome: Outcome, start: int, end: int
) -> None:
    """Kafka's `fetchOffsetAndTruncate`."""
    replica = with_records(5)
    assert find_place(replica, followed(), earliest, latest) is outcome
    assert (replica.log.start, replica.log.end) == (start, end)


def test_a_log_that_begins_behind_the_leaders_end_begins_again_where_the_leader_does() -> None:
    """Records that an unclean leader has had acknowledged would be missing from a replica in the ISR that begins at that leader's end."""
    replica, each = Replica(), followed()
    replica.log.begin_at(500)
    assert find_place(replica, each, 0, 2) is Outcome.TAKEN
    assert take_in(replica, each, asked(replica), answer(Rec(0, 0, b"0"), Rec(1, 0, b"1"))) is Outcome.TAKEN
    assert (replica.log.start, replica.log.records) == (0, [Rec(0, 0, b"0"), Rec(1, 0, b"1")])


def test_waits_grow_up_to_the_setting() -> None:
    assert [wait_seconds(failures, 3200) for failures in (1, 2, 3, 4, 5, 6, 7, 100)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2]


async def test_what_waits_becomes_ready_and_what_was_discarded_does_not() -> None:
    queue, one, two, three = FetchQueue(), followed(), followed(), followed()
    queue.put_later(one, 0.001)
    queue.put_later(two, 0.001)
    queue.put(three)
    queue.discard(one)
    queue.discard(three)
    assert queue.take() == []
    async with asyncio.timeout(120):
        await queue.filled()
    assert queue.take() == [two]
    await asyncio.sleep(0.005)
    assert not queue.has_ready
    queue.put_later(one, 0.001)
    queue.put(one)  # sooner than it would have been
    queue.put_later(two, 0.001)
    queue.close()
    await asyncio.sleep(0.005)
    assert not queue.has_ready
