"""Whether a broker still leads: asked of the members of the ISR, answered by fetches that were sent since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.replication.leadership_question import FetchPlace, LeadershipQuestion
from ottla.model import BrokerId

TWO, THREE = BrokerId(2), BrokerId(3)


def scene(test: Callable[[], Any]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def outcome(question: LeadershipQuestion) -> bool | None:
    return question.outcome.result() if question.outcome.done() else None


def test_a_leader_alone_in_the_isr_leads() -> None:
    """No one else may have been made the leader."""
    scene(lambda: _is(LeadershipQuestion([]), True))


def _is(question: LeadershipQuestion, expected: bool | None) -> None:
    assert outcome(question) is expected


def test_every_member_has_to_fetch_again_after_an_answer() -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO, THREE])
        assert question.fetched(TWO, FetchPlace(7, 4)), "it is answered at once"
        assert question.fetched(THREE, FetchPlace(9, 1))
        _is(question, None)
        assert not question.fetched(TWO, FetchPlace(7, 5)), "it may wait for records again"
        _is(question, None)
        assert not question.fetched(THREE, FetchPlace(9, 2))
        _is(question, True)

    scene(test)


@pytest.mark.parametrize("place", [FetchPlace(7, 4), FetchPlace(8, 5), FetchPlace(8, 0), FetchPlace(7, 6)])
def test_a_fetch_that_does_not_follow_the_answer_may_be_an_old_one(place: FetchPlace) -> None:
    """It may have lain in a socket since before the question: of another session, or the same one looked at again."""

    def test() -> None:
        question = LeadershipQuestion([TWO])
        assert question.fetched(TWO, FetchPlace(7, 4))
        assert question.fetched(TWO, place)
        _is(question, None)
        assert not question.fetched(TWO, FetchPlace(place.session_id, place.session_epoch + 1))
        _is(question, True)

    scene(test)


def test_without_a_session_the_second_fetch_has_to_do() -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO])
        assert question.fetched(TWO, FetchPlace(0, -1))
        assert not question.fetched(TWO, FetchPlace(0, -1))
        _is(question, True)

    scene(test)


def test_who_is_not_in_the_isr_is_not_asked() -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO])
        assert not question.fetched(THREE, FetchPlace(9, 1))
        assert not question.fetched(THREE, FetchPlace(9, 2))
        _is(question, None)

    scene(test)


def test_a_member_that_leaves_the_isr_is_not_waited_for() -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO, THREE])
        question.fetched(TWO, FetchPlace(7, 4))
        question.keep([TWO])
        _is(question, None)
        question.fetched(TWO, FetchPlace(7, 5))
        _is(question, True)

    scene(test)


def test_a_broker_that_leads_no_more_can_not_say() -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO])
        question.give_up()
        question.fetched(TWO, FetchPlace(7, 4))
        question.fetched(TWO, FetchPlace(7, 5))
        _is(question, False)

    scene(test)


@given(st.lists(st.tuples(st.sampled_from([TWO, THREE]), st.integers(1, 2), st.integers(0, 4)), max_size=30))
def test_it_is_only_certain_of_members_whose_fetch_followed_one_that_was_answered(fetches: list[tuple[BrokerId, int, int]]) -> None:
    def test() -> None:
        question = LeadershipQuestion([TWO, THREE])
        answered: dict[BrokerId, tuple[int, int]] = {}
        heard: set[BrokerId] = set()
        for broker_id, session_id, session_epoch in fetches:
            question.fetched(broker_id, FetchPlace(session_id, session_epoch))
            if answered.get(broker_id) == (session_id, session_epoch - 1):
                heard.add(broker_id)
            answered[broker_id] = (session_id, session_epoch)
        assert question.outcome.done() is (heard == {TWO, THREE})

    scene(test)
