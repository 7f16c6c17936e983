"""Whether the audit and the judge say the same is itself judged on made-up verdicts."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.auditing import Said, counted, disagreements
from tests.chaos.checker import Anomaly
from tests.chaos.checker import Verdict as Judged

from ottla.record.audit_records import Verdict

SOUND = Judged()
LOST = Judged(counts=Counter({Anomaly.LOST_WRITE: 3}))
DOUBLED = Judged(counts=Counter({Anomaly.DUPLICATE: 1}))


def said(verdict: Verdict, missing: int = 0, surplus: int = 0) -> Said:
    return Said(10_000, "producer->broker", verdict, missing, surplus, "")


WELL = said(Verdict.COMPLETE)


@pytest.mark.parametrize("judged", [SOUND, Judged(counts=Counter({Anomaly.SKIPPED_POLL: 1}))], ids=["sound", "of one client alone"])
@pytest.mark.parametrize("verdict", [Verdict.COMPLETE, Verdict.LATE, Verdict.IN_DOUBT, Verdict.UNAUDITED])
def test_a_run_in_which_nothing_is_lost_agrees_with_all_that_accuses_of_nothing(judged: Judged, verdict: Verdict) -> None:
    assert not disagreements([WELL, said(verdict)], judged)


@pytest.mark.parametrize("judged", [LOST, DOUBLED])
@pytest.mark.parametrize("verdict", [Verdict.LOSS, Verdict.COMPENSATED, Verdict.DUPLICATE, Verdict.IN_DOUBT, Verdict.UNAUDITED])
def test_what_is_lost_or_doubled_is_not_complete_everywhere(judged: Judged, verdict: Verdict) -> None:
    assert not disagreements([WELL, said(verdict, 1, 1)], judged)
    assert "says that all is there" in disagreements([WELL, said(Verdict.LATE)], judged)[0]


@pytest.mark.parametrize(
    ("one", "judged", "words"),
    [
        (said(Verdict.LOSS, 1), SOUND, "finds no such thing"),
        (said(Verdict.COMPENSATED), SOUND, "finds no such thing"),
        (said(Verdict.DUPLICATE, 0, 2), Judged(sent_again=1), "2 messages are there twice"),
        (said(Verdict.PENDING), SOUND, "does not know"),
    ],
)
def test_a_false_alarm_and_what_is_never_known_are_told(one: Said, judged: Judged, words: str) -> None:
    (told,) = disagreements([WELL, one], judged)
    assert words in told


def test_what_a_client_sent_again_is_there_twice_and_the_audit_may_say_so() -> None:
    assert not disagreements([WELL, said(Verdict.DUPLICATE, 0, 2)], Judged(sent_again=2))
    assert disagreements([], SOUND) == ["the audit says nothing at all"]


def test_windows_are_counted_by_edge_and_verdict() -> None:
    assert counted([WELL, WELL, said(Verdict.LOSS)]) == {"producer->broker COMPLETE": 2, "producer->broker LOSS": 1}
