"""The asking side of a fetch session, against the answering side, whatever happens in between."""

from __future__ import annotations

from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.fetch_sessions import FetchSessions
from ottla.protocol.fetch import FetchPartition, FetchRequest
from ottla.testing.clock import ManualClock
from ottla.wire.fetch_session import MAX_EPOCH, FetchSession, Key, SessionRequest

TOPIC = UUID(int=1)
KEYS = [(UUID(int=topic), partition) for topic in (1, 2) for partition in (0, 1)]


def at(offset: int, partition: int = 0) -> FetchPartition:
    return FetchPartition(partition, 0, offset, -1, 0, 1000)


def as_request(sent: SessionRequest) -> FetchRequest:
    return FetchRequest(1, 1, 0, 1, 1000, 0, sent.session_id, sent.session_epoch, sent.topics, sent.forgotten, "")


def asked(sent: SessionRequest) -> dict[Key, int]:
    return {(topic, partition.partition): partition.fetch_offset for topic, partitions in sent.topics for partition in partitions}


def test_after_the_first_request_only_what_changed_is_sent() -> None:
    session = FetchSession()
    assert session.begins
    first = session.request({(TOPIC, 0): at(5), (TOPIC, 1): at(6, 1)})
    assert (first.session_id, first.session_epoch, asked(first)) == (0, 0, {(TOPIC, 0): 5, (TOPIC, 1): 6})
    session.answered(77)
    second = session.request({(TOPIC, 0): at(5), (TOPIC, 1): at(9, 1)})
    assert (second.session_id, second.session_epoch, asked(second), second.forgotten) == (77, 1, {(TOPIC, 1): 9}, [])
    session.answered(77)
    third = session.request({})
    assert (third.session_epoch, asked(third)) == (2, {})


def test_a_forgotten_partition_is_asked_for_again_one_request_later() -> None:
    """The leader takes a partition that is asked for and forgotten at once for forgotten."""
    session = FetchSession()
    session.request({(TOPIC, 0): at(5)})
    session.answered(77)
    session.forget((TOPIC, 0))
    assert session.asked((TOPIC, 0)) is None
    request = session.request({(TOPIC, 0): at(7)})
    assert (asked(request), request.forgotten, request.held_back) == ({}, [(TOPIC, [0])], ((TOPIC, 0),))
    session.answered(77)
    request = session.request({(TOPIC, 0): at(7)})
    assert (asked(request), request.forgotten, request.held_back) == ({(TOPIC, 0): 7}, [], ())


def test_forgetting_what_was_never_asked_for_says_nothing() -> None:
    session = FetchSession()
    session.request({(TOPIC, 0): at(5)})
    session.answered(77)
    session.forget((TOPIC, 9))
    assert session.request({}).forgotten == []


def test_a_leader_that_keeps_no_session_is_asked_for_everything_each_time() -> None:
    session = FetchSession()
    session.request({(TOPIC, 0): at(5)})
    session.answered(0)
    assert session.begins
    assert session.request({(TOPIC, 0): at(5)}).session_epoch == 0


def test_a_new_session_gives_up_the_former_one() -> None:
    request = FetchSession(former_id=77).request({(TOPIC, 0): at(5)})
    assert (request.session_id, request.session_epoch) == (77, 0)


def test_the_epoch_begins_again_at_one() -> None:
    session = FetchSession()
    session.request({})
    session.answered(77)
    session._epoch = MAX_EPOCH
    session.answered(77)
    assert session.request({}).session_epoch == 1


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(KEYS), st.integers(0, 5)),  # what moves to which offset
            st.sets(st.sampled_from(KEYS)),  # what is forgotten before the request
            st.booleans(),  # whether the answer is lost, so that the session begins again
        ),
        max_size=12,
    )
)
def test_the_leader_reads_what_the_follower_wants(steps: list[tuple[dict[Key, int], set[Key], bool]]) -> None:
    """Method: after each request the partitions of the leader's own session are compared with what was wanted."""
    leader = FetchSessions(10, ManualClock(), Random(1), lambda key: True)
    session = FetchSession()
    wanted: dict[Key, FetchPartition] = {}
    held_back: set[Key] = set()
    for moved, forgotten, is_lost in steps:
        for key in forgotten:
            wanted.pop(key, None)
            held_back.discard(key)
            session.forget(key)
        changed = {key: at(offset, key[1]) for key, offset in moved.items()}
        wanted |= changed
        if session.begins:
            changed = dict(wanted)
        else:
            changed |= {key: wanted[key] for key in held_back}
        request = session.request(changed)
        held_back = set(request.held_back)
        scope = leader.begin(as_request(request), True)
        assert dict(scope.partitions) == {key: each for key, each in wanted.items() if key not in held_back}
        if is_lost:
            session = FetchSession(session.session_id)
        else:
            session.answered(scope.session_id)
