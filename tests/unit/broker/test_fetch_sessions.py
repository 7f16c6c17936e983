"""Incremental fetch sessions, sentence by sentence of KIP-227, and KIP-516 for sessions by topic id."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from ottla.broker.fetch_sessions import (
    EVICTION_SECONDS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    MAX_UNKNOWN,
    FetchScope,
    FetchSessions,
    Key,
)
from ottla.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.protocol.fetch import FetchAnswer, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.testing.clock import ManualClock


def partition(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(index, -1, offset, -1, -1, 1 << 20)


def request(
    session_id: int = 0,
    epoch: int = INITIAL_EPOCH,
    *indexes: int,
    forgotten: tuple[int, ...] = (),
    topic: str | UUID = "t",
    offset: int = 0,
    replica_id: int = -1,
) -> FetchRequest:
    topics = [FetchTopic(topic, [partition(index, offset) for index in indexes])] if indexes else []
    gone = [ForgottenTopic(topic, list(forgotten))] if forgotten else []
    return FetchRequest(replica_id, -1, 500, 1, 1 << 20, 0, session_id, epoch, topics, gone, "")


def answered(scope: FetchScope, **changes: FetchAnswer) -> list[int]:
    """The partitions that an answer contains, when all say the same but those given as `p3=...`."""
    answers: list[tuple[Key, FetchAnswer]] = []
    for key, asked in scope.partitions:
        answers.append((key, changes.get(f"p{asked.partition}", FetchAnswer(asked.partition, 0, 10, 10, 0))))
    return [key[1] for key, _ in scope.select(answers)]


def indexes(scope: FetchScope) -> list[int]:
    return [asked.partition for _, asked in scope.partitions]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sessions(clock: ManualClock) -> FetchSessions:
    return FetchSessions(2, clock, Random(1), lambda key: True)


def test_a_full_fetch_begins_a_session_and_answers_every_partition(sessions: FetchSessions) -> None:
    scope = sessions.begin(request(0, INITIAL_EPOCH, 0, 1, 2), False)
    assert 0 < scope.session_id < MAX_EPOCH
    assert answered(scope) == [0, 1, 2]
    assert len(sessions) == 1


def test_a_fetch_with_the_final_epoch_has_no_session(sessions: FetchSessions) -> None:
    scope = sessions.begin(request(0, FINAL_EPOCH, 0, 1), False)
    assert scope.session_id == 0
    assert answered(scope) == [0, 1]
    assert answered(scope) == [0, 1]
    assert len(sessions) == 0


def test_an_incremental_fetch_names_nothing_and_is_told_what_changed(sessions: FetchSessions) -> None:
    full = sessions.begin(request(0, INITIAL_EPOCH, 0, 1, 2, 3, 4, 5), False)
    answered(full)
    scope = sessions.begin(request(full.session_id, 1), False)
    assert indexes(scope) == [0, 1, 2, 3, 4, 5]
    changed = {
        "p0": FetchAnswer(0, 0, 11, 10, 0),  # the high watermark
        "p1": FetchAnswer(1, 0, 10, 10, 5),  # the log's start
        "p2": FetchAnswer(2, 6, -1, -1, -1),  # an error
        "p3": FetchAnswer(3, 0, 10, 10, 0, diverging_epoch=(1, 5)),
        "p4": FetchAnswer(4, 0, 10, 10, 0, records=b"records"),
    }
    assert answered(scope, **changed) == [0, 1, 2, 3, 4]
    assert scope.session_id == full.session_id


def test_what_has_been_said_is_not_said_again_but_errors_are(sessions: FetchSessions) -> None:
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0, 1), False).session_id
    moved, error = FetchAnswer(0, 0, 11, 11, 0), FetchAnswer(1, 6)
    assert answered(sessions.begin(request(session_id, 1), False), p0=moved, p1=error) == [0, 1]
    assert answered(sessions.begin(request(session_id, 2), False), p0=moved, p1=error) == [1]
    assert answered(sessions.begin(request(session_id, 3), False), p0=moved) == [1], "once the error is gone that is news"
    assert answered(sessions.begin(request(session_id, 4), False), p0=moved) == []


def test_partitions_are_added_changed_and_forgotten(sessions: FetchSessions) -> None:
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0, 1, 2), False).session_id
    scope = sessions.begin(request(session_id, 1, 3, 1, forgotten=(0,), offset=77), False)
    assert {asked.partition: asked.fetch_offset for _, asked in scope.partitions} == {1: 77, 2: 0, 3: 77}
    scope = sessions.begin(request(session_id, 2, forgotten=(3, 9)), False)
    assert indexes(scope) == [1, 2]


def test_a_partition_that_was_forgotten_and_comes_back_is_told_everything(sessions: FetchSessions) -> None:
    full = sessions.begin(request(0, INITIAL_EPOCH, 0, 1), False)
    answered(full)
    answered(sessions.begin(request(full.session_id, 1, forgotten=(0,)), False))
    assert answered(sessions.begin(request(full.session_id, 2, 0), False)) == [0]


def test_a_partition_named_and_forgotten_in_one_request_is_forgotten(sessions: FetchSessions) -> None:
    """As in Kafka's `FetchSession.update`."""
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0, 1), False).session_id
    assert indexes(sessions.begin(request(session_id, 1, 1, forgotten=(1,)), False)) == [0]


def test_who_got_records_comes_last_next_time(sessions: FetchSessions) -> None:
    """So that the limit on an answer's size starves no partition."""
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0, 1, 2), False).session_id
    full = FetchAnswer(0, 0, 10, 10, 0, records=b"records")
    answered(sessions.begin(request(session_id, 1), False), p0=full)
    assert indexes(sessions.begin(request(session_id, 2), False)) == [1, 2, 0]


@pytest.mark.parametrize("epoch", [2, 5, MAX_EPOCH])
def test_an_epoch_that_is_not_the_next_one_is_refused_and_changes_nothing(sessions: FetchSessions, epoch: int) -> None:
    """A request was lost or came twice; a full fetch then begins again."""
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.begin(request(session_id, epoch, 1), False)
    assert indexes(sessions.begin(request(session_id, 1), False)) == [0]


def test_epochs_go_from_the_largest_to_1(sessions: FetchSessions) -> None:
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id
    sessions._sessions[session_id].epoch = MAX_EPOCH
    sessions.begin(request(session_id, MAX_EPOCH), False)
    sessions.begin(request(session_id, 1), False)


@pytest.mark.parametrize("epoch", [1, 7])
def test_an_unknown_session_is_refused(sessions: FetchSessions, epoch: int) -> None:
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request(12345, epoch), False)


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_fetch_with_a_session_ends_that_session(sessions: FetchSessions, epoch: int) -> None:
    former = sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id
    scope = sessions.begin(request(former, epoch, 1), False)
    assert scope.session_id != former
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request(former, 1), False)


def test_a_full_cache_gives_no_session_before_the_oldest_has_rested(sessions: FetchSessions, clock: ManualClock) -> None:
    first, second = (sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id for _ in range(2))
    refused = sessions.begin(request(0, INITIAL_EPOCH, 0), False)
    assert refused.session_id == 0
    assert answered(refused) == [0]
    clock.advance(seconds=EVICTION_SECONDS - 1)
    sessions.begin(request(first, 1), False)
    clock.advance(seconds=1)
    third = sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id
    assert third != 0
    assert sessions.begin(request(first, 2), False).session_id == first
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request(second, 1), False)
    assert len(sessions) == 2


def begun(sessions: FetchSessions, *indexes: int, replica_id: int = -1) -> int:
    """The id of a new session, or 0."""
    return sessions.begin(request(0, INITIAL_EPOCH, *indexes, replica_id=replica_id), False).session_id


def living(sessions: FetchSessions) -> set[int]:
    return set(sessions._sessions)


def test_a_follower_takes_the_place_of_the_consumer_with_the_fewest_partitions(sessions: FetchSessions) -> None:
    """KIP-227: a full cache of consumers must not make replication expensive."""
    many, few = begun(sessions, 0, 1, 2), begun(sessions, 0)
    follower = begun(sessions, 0, replica_id=2)
    assert living(sessions) == {many, follower}, f"and not {few}"
    second = begun(sessions, 0, 1, replica_id=3)
    assert living(sessions) == {follower, second}
    assert begun(sessions, *range(9)) == 0, "and no consumer the place of a follower"
    assert begun(sessions, *range(9), replica_id=4) == 0, "nor a follower that of one who has just begun"


def test_after_two_minutes_a_session_makes_room_for_a_larger_one_of_its_kind(sessions: FetchSessions, clock: ManualClock) -> None:
    """Though it is in use: `evictableByAll`."""
    larger, smaller = begun(sessions, 0, 1, 2), begun(sessions, 0, 1)
    for epoch in (1, 2, 3):
        assert begun(sessions, *range(9)) == 0
        clock.advance(seconds=EVICTION_SECONDS / 3)
        for number in (larger, smaller):
            sessions.begin(request(number, epoch), False)
    assert begun(sessions, 0, 1) == 0, "of the same size it is no better"
    newest = begun(sessions, 0, 1, 2)
    assert living(sessions) == {larger, newest}
    assert begun(sessions, 0, 1, 2, 3) != 0
    assert newest in living(sessions), "which is younger than two minutes"


def test_a_consumer_never_takes_a_followers_place_while_that_is_in_use(sessions: FetchSessions, clock: ManualClock) -> None:
    followers = [begun(sessions, 0, replica_id=number) for number in (2, 3)]
    for epoch in range(1, 5):
        clock.advance(seconds=EVICTION_SECONDS / 2)
        for follower in followers:
            sessions.begin(request(follower, epoch), False)
        assert begun(sessions, *range(9)) == 0
    assert living(sessions) == set(followers)


def test_whoever_was_refused_is_not_looked_at_again_in_the_same_second(sessions: FetchSessions, clock: ManualClock) -> None:
    """A reader without a session asks for one with each of its fetches."""
    first, _ = begun(sessions, 0, 1), begun(sessions, 0, 1)
    clock.advance(seconds=EVICTION_SECONDS)
    for session in list(living(sessions)):
        sessions.begin(request(session, 1), False)
    assert begun(sessions, 0) == 0
    sessions.begin(request(first, 2, forgotten=(0, 1)), False)
    assert begun(sessions, 0) == 0
    clock.advance(seconds=1)
    assert begun(sessions, 0) != 0
    assert first not in living(sessions)


def test_a_cache_of_no_slots_never_has_a_session(clock: ManualClock) -> None:
    """max.incremental.fetch.session.cache.slots=0 turns sessions off."""
    sessions = FetchSessions(0, clock, Random(1), lambda key: True)
    assert sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id == 0


@pytest.mark.parametrize(("began_with_ids", "goes_on_with_ids"), [(True, False), (False, True)])
def test_names_and_ids_do_not_mix_in_a_session(sessions: FetchSessions, began_with_ids: bool, goes_on_with_ids: bool) -> None:
    session_id = sessions.begin(request(0, INITIAL_EPOCH, 0, topic=UUID(int=1) if began_with_ids else "t"), began_with_ids).session_id
    with pytest.raises(FetchSessionTopicIdError):
        sessions.begin(request(session_id, 1), goes_on_with_ids)


def test_session_ids_are_not_given_twice(clock: ManualClock) -> None:
    class Repeating(Random):
        def randrange(self, *_: int) -> int:  # type: ignore[override]
            return drawn.pop(0)

    drawn = [5, 5, 5, 6]
    sessions = FetchSessions(9, clock, Repeating(), lambda key: True)
    assert [sessions.begin(request(0, INITIAL_EPOCH, 0), False).session_id for _ in range(2)] == [5, 6]


def test_a_session_of_more_than_a_few_partitions_that_do_not_exist_is_not_kept(clock: ManualClock) -> None:
    """Its reader is answered, and names them with each fetch; one that adds them later has to begin again."""
    sessions = FetchSessions(9, clock, Random(1), lambda key: key[1] < 1_000)
    unknown = tuple(range(1_000, 1_001 + MAX_UNKNOWN))
    scope = sessions.begin(request(0, INITIAL_EPOCH, *unknown), False)
    assert (scope.session_id, indexes(scope)) == (0, list(unknown))
    assert sessions.begin(request(0, INITIAL_EPOCH, *unknown[1:]), False).session_id != 0
    session_id = sessions.begin(request(0, INITIAL_EPOCH, *range(900)), False).session_id
    assert len(indexes(sessions.begin(request(session_id, 1, *unknown), False))) == 900 + len(unknown)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request(session_id, 2), False)


def test_all_sessions_together_keep_so_many_partitions(clock: ManualClock) -> None:
    sessions = FetchSessions(9, clock, Random(1), lambda key: True, max_partitions=100)
    first = sessions.begin(request(0, INITIAL_EPOCH, *range(60)), False).session_id
    assert sessions.begin(request(0, INITIAL_EPOCH, *range(50)), False).session_id == 0
    assert sessions.begin(request(0, INITIAL_EPOCH, *range(40)), False).session_id != 0
    sessions.begin(request(first, FINAL_EPOCH), False)
    assert sessions.begin(request(0, INITIAL_EPOCH, *range(60)), False).session_id != 0


def test_a_session_does_not_grow_beyond_what_all_may_keep_by_a_few_partitions_at_a_time(clock: ManualClock) -> None:
    """Up to a hundred more were taken with each fetch, without an end."""
    sessions = FetchSessions(9, clock, Random(1), lambda key: False, max_partitions=100)
    session_id = sessions.begin(request(0, INITIAL_EPOCH, *range(60)), False).session_id
    assert len(sessions.begin(request(session_id, 1, *range(60, 100)), False).partitions) == 100
    # What goes does not count: as many come as are forgotten.
    sessions.begin(request(session_id, 2, 100, forgotten=(0,)), False)
    assert len(sessions) == 1
    assert len(sessions.begin(request(session_id, 3, 101), False).partitions) == 101
    assert len(sessions) == 0
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(request(session_id, 4), False)


def test_a_partition_that_is_named_twice_is_asked_for_as_it_is_named_last(sessions: FetchSessions) -> None:
    twice = request(0, INITIAL_EPOCH, 3)
    twice.topics[0].partitions.append(partition(3, 7))
    assert [asked.fetch_offset for _, asked in sessions.begin(twice, False).partitions] == [7]
