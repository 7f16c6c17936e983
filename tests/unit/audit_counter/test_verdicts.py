"""What is said of an edge: the table of verdicts, each row with the messages that make it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.audit_counter.books import BROKER, LOG, PRODUCER, Books
from ottla.audit_counter.verdicts import EdgeVerdict, Named, judge, revised
from ottla.audit_counter.windows import Gap, SessionStanding
from ottla.record.audit_records import NO_PARTITION, Tally, Verdict
from ottla.record.digests import Identities, OffsetSums

CONSUMER: Final = "consumer:billing"
MINUTE: Final = 60_000


def tally(offsets: list[int], partition: int = 0, corrupted: int | None = None) -> Tally:
    """Of messages at these offsets, as somebody sees them who sees contents."""
    found = Tally()
    numbers = np.array(offsets, np.int64)
    words = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    if corrupted is not None:
        words[numbers == corrupted] ^= np.uint64(4)
    identities = Identities(words, words ^ np.uint64(0xFF))
    found.count_contents(identities)
    found.count_messages(partition, numbers, identities, 10 * len(offsets))
    return found


def headers(offsets: list[int]) -> Tally:
    """Of the same, as a broker sees them."""
    found = Tally(count=len(offsets), size=len(offsets), first_offset=min(offsets, default=-1), last_offset=max(offsets, default=-1))
    found.offsets = OffsetSums.of(np.array(offsets, np.int64))
    return found


def session(tier: str, watermark_ms: int = 10 * MINUTE, **changes: object) -> SessionStanding:
    facts: dict[str, object] = {
        "session": "s", "topic": "clicks", "host": "h", "application": "", "next_sequence": 9,
        "is_final": False, "is_dead": False, "reported_ms": 0, "gaps": (), **changes,
    }  # fmt: skip
    return SessionStanding(tier=tier, watermark_ms=watermark_ms, **facts)  # type: ignore[arg-type]


def books_of(tallies: dict[str, dict[int, Tally]], attempted: int | None = None, **changes: object) -> Books:
    """Books in which every tier reports and has come past everything."""
    tiers = frozenset(tallies)
    books = Books(
        0,
        MINUTE,
        sessions={tier: (session(tier),) for tier in tiers},
        positions={tier: dict.fromkeys(range(10), 1_000_000) for tier in tiers},
        reporting=tiers,
        repeated=0 if LOG in tiers else None,
    )
    for name, value in changes.items():
        setattr(books, name, value)
    for tier, partitions in tallies.items():
        for partition, found in partitions.items():
            books.add(tier, partition, f"{tier}-host", found)
            if tier == PRODUCER:
                books.tallies[tier][partition, f"{tier}-host"].acknowledged = found.count
    if PRODUCER in tallies:
        acknowledged = sum(found.count for found in tallies[PRODUCER].values())
        books.add(PRODUCER, NO_PARTITION, "producer-host", Tally(attempted=acknowledged if attempted is None else attempted))
    return books


def verdicts(books: Books, *expected: str) -> dict[str, EdgeVerdict]:
    return {said.edge: said for said in judge(books, expected or (PRODUCER, BROKER))}


ALL: Final = list(range(100))


def test_the_same_messages_at_each_tier_are_complete_on_each_edge() -> None:
    found = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, LOG: {0: tally(ALL)}, CONSUMER: {0: tally(ALL)}}))
    assert {edge: said.verdict for edge, said in found.items()} == dict.fromkeys(
        ("producer->broker", "broker->log", f"broker->{CONSUMER}"), Verdict.COMPLETE
    )
    # What the producer knows of the contents holds for the broker, which has the same offsets.
    assert found[f"broker->{CONSUMER}"].evidence == "placed"
    assert found["producer->broker"].evidence == "placed"


def test_a_lost_message_is_named_with_partition_and_offset() -> None:
    kept = [offset for offset in ALL if offset not in (7, 42)]
    said = verdicts(books_of({PRODUCER: {3: tally(ALL, 3)}, BROKER: {3: headers(ALL)}, CONSUMER: {3: tally(kept, 3)}}))[
        f"broker->{CONSUMER}"
    ]
    assert (said.verdict, said.missing, said.surplus, said.partition) == (Verdict.LOSS, 2, 0, 3)
    assert said.named == (Named(3, 7, 1), Named(3, 42, 1))
    assert said.hosts == (f"{CONSUMER}-host",)


def test_loss_at_the_broker_is_found_by_counts_and_named_by_the_log() -> None:
    kept = ALL[1:]
    found = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(kept)}}))["producer->broker"]
    assert (found.verdict, found.missing, found.named) == (Verdict.LOSS, 1, ())
    found = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(kept)}, LOG: {0: tally(kept)}}))["producer->broker"]
    assert (found.verdict, found.named) == (Verdict.LOSS, (Named(0, 0, 1),))


def test_a_message_read_twice_is_a_duplicate() -> None:
    said = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally([*ALL, 5])}}))[
        f"broker->{CONSUMER}"
    ]
    assert (said.verdict, said.missing, said.surplus, said.named) == (Verdict.DUPLICATE, 0, 1, (Named(0, 5, -1),))


def test_loss_and_doubling_that_balance_are_compensated_and_not_complete() -> None:
    """What counts alone cannot see (KAFKA-260's and Chaperone's do not)."""
    swapped = [*(offset for offset in ALL if offset != 9), 5]
    said = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally(swapped)}}))[f"broker->{CONSUMER}"]
    assert said.verdict is Verdict.COMPENSATED
    assert set(said.named) == {Named(0, 9, 1), Named(0, 5, -1)}
    by_headers = verdicts(books_of({BROKER: {0: headers(ALL)}, CONSUMER: {0: headers(swapped)}}))[f"broker->{CONSUMER}"]
    assert (by_headers.verdict, by_headers.evidence) == (Verdict.COMPENSATED, "offsets")


def test_corrupted_contents_are_compensated() -> None:
    said = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, LOG: {0: tally(ALL, corrupted=8)}}))
    assert said["producer->broker"].verdict is Verdict.COMPLETE
    assert said["broker->log"].verdict is Verdict.COMPENSATED
    assert {named.offset for named in said["broker->log"].named} == {8}


def test_an_attempt_without_an_answer_is_in_doubt_whether_it_arrived_or_not() -> None:
    for arrived in (ALL, [*ALL, 100]):
        said = verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(arrived)}}, attempted=101))["producer->broker"]
        assert (said.verdict, said.in_doubt) == (Verdict.IN_DOUBT, 1)
    assert verdicts(books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers([*ALL, 100, 101])}}, attempted=101))[
        "producer->broker"
    ].verdict is Verdict.DUPLICATE  # fmt: skip


def test_a_loss_is_not_hidden_by_attempts_in_doubt() -> None:
    arrived = [*ALL[1:], 100, 101]
    books = books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(arrived)}, LOG: {0: tally(arrived)}}, attempted=102)
    assert verdicts(books)["producer->broker"].verdict is Verdict.LOSS


def test_silence_is_never_complete() -> None:
    found = verdicts(books_of({BROKER: {0: headers(ALL)}}))
    assert found["producer->broker"].verdict is Verdict.UNAUDITED
    found = verdicts(books_of({PRODUCER: {0: tally(ALL)}, CONSUMER: {0: tally(ALL)}}))
    assert {said.verdict for said in found.values()} == {Verdict.UNAUDITED}


def test_a_consumer_that_began_behind_a_window_has_not_lost_it() -> None:
    """A new group with auto.offset.reset=latest."""
    books = books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally(ALL[60:])}}, beginnings={CONSUMER: {0: 60}})
    said = verdicts(books)[f"broker->{CONSUMER}"]
    assert (said.verdict, said.reason) == (Verdict.UNAUDITED, f"{CONSUMER} began at offset 60 of partition 0")


def test_a_window_is_pending_until_watermark_and_positions_have_passed_it() -> None:
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally(ALL[:50])}}
    behind = {PRODUCER: (session(PRODUCER, MINUTE - 1),), BROKER: (session(BROKER),)}
    assert verdicts(books_of(tallies, sessions=behind))["producer->broker"].verdict is Verdict.PENDING
    positions = {BROKER: {0: 100}, CONSUMER: {0: 50}}
    assert verdicts(books_of(tallies, positions=positions))[f"broker->{CONSUMER}"].verdict is Verdict.PENDING
    positions = {BROKER: {0: 100}, CONSUMER: {0: 100}}
    assert verdicts(books_of(tallies, positions=positions))[f"broker->{CONSUMER}"].verdict is Verdict.LOSS
    # A broker that died before it could report: its consumers were faster than the next leader.
    positions = {BROKER: {0: 40}, CONSUMER: {0: 50}}
    tallies[BROKER] = {0: headers(ALL[:40])}
    assert verdicts(books_of(tallies, positions=positions))[f"broker->{CONSUMER}"].verdict is Verdict.PENDING


def test_missing_audit_data_is_never_called_loss() -> None:
    lossy = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL[1:])}}
    gap = Gap(3, 4, since_ms=30_000, until_ms=90_000)
    sessions = {PRODUCER: (session(PRODUCER),), BROKER: (session(BROKER, gaps=(gap,)),)}
    said = verdicts(books_of(lossy, sessions=sessions))["producer->broker"]
    assert said.verdict is Verdict.UNAUDITED
    assert "audit data is missing" in said.reason
    # What a broker has said and __audit has lost is not waited for; it is known all the same once a leader has counted it again.
    behind = {BROKER: {0: 99}}
    said = verdicts(books_of(lossy, sessions=sessions, positions=behind))["producer->broker"]
    assert (said.verdict, said.is_open) == (Verdict.UNAUDITED, True)
    assert said.reason == "audit data is missing, and broker has not come so far"
    again = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}}
    assert verdicts(books_of(again, sessions=sessions, positions={BROKER: {0: 100}}))["producer->broker"].verdict is Verdict.COMPLETE
    elsewhere = {PRODUCER: (session(PRODUCER),), BROKER: (session(BROKER, gaps=(Gap(3, 4, MINUTE, 2 * MINUTE),)),)}
    assert verdicts(books_of(lossy, sessions=elsewhere))["producer->broker"].verdict is Verdict.LOSS


def test_a_producer_that_ended_without_a_final_word_leaves_its_last_windows_in_doubt() -> None:
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}}
    dead = {PRODUCER: (session(PRODUCER, 30_000, is_dead=True),), BROKER: (session(BROKER),)}
    assert verdicts(books_of(tallies, sessions=dead))["producer->broker"].verdict is Verdict.IN_DOUBT
    ended = {PRODUCER: (session(PRODUCER, 30_000, is_final=True),), BROKER: (session(BROKER),)}
    assert verdicts(books_of(tallies, sessions=ended))["producer->broker"].verdict is Verdict.COMPLETE


@pytest.mark.parametrize("has_read", [True, False])
def test_what_a_killed_producer_may_have_sent_is_in_doubt_and_no_duplicate(has_read: bool) -> None:
    """It sent more than it had said, some of it twice the same within a millisecond, so the log has contents more often than once."""
    arrived = [*ALL, 100, 101]
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(arrived)}, **({LOG: {0: tally(arrived)}} if has_read else {})}
    for is_dead, verdict in ((True, Verdict.IN_DOUBT), (False, Verdict.DUPLICATE)):
        sessions = {PRODUCER: (session(PRODUCER, MINUTE - is_dead, is_dead=is_dead),), BROKER: (session(BROKER),)}
        books = books_of(tallies, sessions=sessions, repeated=2 if has_read else None)
        assert verdicts(books)["producer->broker"].verdict is verdict


def test_what_brokers_may_have_had_that_all_died_before_they_said_it_is_not_complete_behind_them() -> None:
    """A consumer may lack what they had appended since their last report. The next report of any broker has it judged again."""
    edge, tallies = f"broker->{CONSUMER}", {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally(ALL)}}
    dead = session(BROKER, 30_000, is_dead=True)
    for brokers, verdict in (
        ((dead, dead), Verdict.IN_DOUBT),
        ((session(BROKER, MINUTE, is_dead=True),), Verdict.COMPLETE),
        ((dead, session(BROKER)), Verdict.COMPLETE),
        ((dead, session(BROKER, 40_000, is_final=True)), Verdict.COMPLETE),
        ((dead, session(BROKER, 40_000)), Verdict.PENDING),
    ):  # fmt: skip
        found = verdicts(books_of(tallies, sessions={PRODUCER: (session(PRODUCER),), BROKER: brokers}))
        assert (found[edge].verdict, found[edge].is_open) == (verdict, verdict is not Verdict.COMPLETE)
        assert found["producer->broker"].verdict is Verdict.COMPLETE


def test_what_a_killed_consumer_may_have_had_is_in_doubt_and_not_lost() -> None:
    """It had committed offsets of messages that it had not said yet. What it was through with is known, and so is what came twice."""
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, CONSUMER: {0: tally(ALL[:60])}}
    edge, living = f"broker->{CONSUMER}", {PRODUCER: (session(PRODUCER),), BROKER: (session(BROKER),)}
    for watermark_ms, has_died, verdict in (
        (30_000, True, Verdict.IN_DOUBT), (MINUTE, True, Verdict.LOSS), (30_000, False, Verdict.LOSS),
    ):  # fmt: skip
        sessions = {**living, CONSUMER: (session(CONSUMER, watermark_ms, is_dead=has_died), session(CONSUMER))}
        assert verdicts(books_of(tallies, sessions=sessions))[edge].verdict is verdict
    tallies[CONSUMER] = {0: tally([*ALL, 5])}
    sessions = {**living, CONSUMER: (session(CONSUMER, 30_000, is_dead=True),)}
    assert verdicts(books_of(tallies, sessions=sessions))[edge].verdict is Verdict.DUPLICATE


def test_what_a_consumer_has_had_that_a_partition_was_taken_from_is_no_loss_before_it_has_spoken_again() -> None:
    """The next one of the group reads on behind it, and reports first. What is missing then is said once, and stays so."""
    edge, living = f"broker->{CONSUMER}", {PRODUCER: (session(PRODUCER),), BROKER: (session(BROKER),)}
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, LOG: {0: tally(ALL)}}
    known: dict[str, EdgeVerdict] = {}

    def told(had: list[int], former: int, latter: int, **changes: object) -> Verdict:
        sessions = {
            **living,
            CONSUMER: (
                session(CONSUMER, 30_000, session="1", next_sequence=former, **changes),
                session(CONSUMER, session="2", next_sequence=latter),
            ),
        }  # fmt: skip
        books = books_of({**tallies, CONSUMER: {0: tally(had)}}, sessions=sessions)
        known.update({said.edge: said for said in judge(books, (PRODUCER, BROKER), known)})
        return known[edge].verdict

    had = [*ALL[:40], *ALL[60:]]
    assert told(had, 4, 1) is Verdict.PENDING
    assert told(had, 4, 2) is Verdict.PENDING
    before = dict(known)
    assert told(ALL, 5, 2) is Verdict.COMPLETE
    known.update(before)
    assert told(had, 4, 2, is_dead=True) is Verdict.IN_DOUBT
    known.update(before)
    assert told(had, 4, 2, is_final=True) is Verdict.LOSS
    known.update(before)
    assert told(had, 5, 2) is Verdict.LOSS
    assert told(had, 5, 2) is Verdict.LOSS
    assert known[edge].missing == 20
    assert told(ALL, 6, 2) is Verdict.LATE
    assert told([*ALL, 5], 7, 3) is Verdict.DUPLICATE


def test_messages_of_producers_that_do_not_report_are_no_duplicates_once_the_log_was_read() -> None:
    arrived = [*ALL, 100, 101]
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(arrived)}, LOG: {0: tally(arrived)}}
    assert verdicts(books_of(tallies, repeated=0))["producer->broker"].verdict is Verdict.UNAUDITED
    assert verdicts(books_of(tallies, repeated=2))["producer->broker"].verdict is Verdict.DUPLICATE


def test_what_a_tier_has_too_much_beside_a_log_is_pending_until_the_log_was_read_again() -> None:
    """It may have come to the log since that was read; once the log was read for it, it is said, and said again without another look."""
    edge = f"log->{CONSUMER}"
    books = books_of({LOG: {0: tally(ALL[:99])}, CONSUMER: {0: tally(ALL)}})
    (first,) = judge(books, (LOG,))
    assert (first.verdict, first.waits_for_log) == (Verdict.PENDING, True)
    (read,) = judge(books, (LOG,), {edge: first}, _Log())
    assert (read.verdict, read.surplus, read.waits_for_log) == (Verdict.DUPLICATE, 1, False)
    assert judge(books, (LOG,), {edge: read}) == [read]
    more = books_of({LOG: {0: tally(ALL[:99])}, CONSUMER: {0: tally([*ALL, 100])}})
    assert judge(more, (LOG,), {edge: read})[0].waits_for_log
    # A log that was never read is not known at all, and what a consumer lacks cannot have come to it since.
    assert not judge(books_of({LOG: {0: tally(ALL)}, CONSUMER: {0: tally(ALL[:99])}}), (LOG,))[0].waits_for_log
    books.repeated = None
    assert judge(books, (LOG,))[0].reason == "the log was not read"


@pytest.mark.parametrize("reads_logs", [True, False])
def test_a_broker_that_has_yet_to_speak_has_lost_nothing_of_producers_that_wanted_no_answer(reads_logs: bool) -> None:
    """acks=0: no one told the producer where its messages are, so the log tells how far the broker has to come, or the time does.

    A sound topic had a LOSS, and was LATE for ever once the broker had spoken.
    """
    sent = Tally(count=2, size=20, offsets=None, content=0)
    writing, log = session(PRODUCER, reported_ms=5 * MINUTE, is_final=True), _Log() if reads_logs else None

    def books(has: list[int], in_log: list[int], broker_watermark_ms: int) -> Books:
        found = books_of({PRODUCER: {0: sent}, BROKER: {0: headers(has)} if has else {}, LOG: {0: tally(in_log)}})
        found.sessions = {PRODUCER: (writing,), BROKER: (session(BROKER, broker_watermark_ms),)}
        found.positions = {BROKER: {0: len(has)}, LOG: {0: len(in_log)}}
        found.repeated = 0 if reads_logs else None
        return found

    (said, *_) = judge(books([], [0, 1], 5 * MINUTE - 1), (PRODUCER, BROKER), None, log, reads_logs=reads_logs)
    assert (said.verdict, said.reason, said.known) == (Verdict.PENDING, "broker has not come so far", None)
    (whole, *_) = judge(books([0, 1], [0, 1], 5 * MINUTE - 1), (PRODUCER, BROKER), {said.edge: said}, reads_logs=reads_logs)
    assert whole.verdict is Verdict.COMPLETE
    # What is not there once brokers have spoken is lost.
    (lost, *_) = judge(books([0], [0], 5 * MINUTE + 1), (PRODUCER, BROKER), None, log, reads_logs=reads_logs)
    assert (lost.verdict, lost.missing) == (Verdict.LOSS, 1)


class _Log:
    """A log with a thousand messages, of which all that is asked for was found at one place."""

    def __init__(self, pieces: Mapping[tuple[str, int], list[tuple[str, Tally]]] | None = None) -> None:
        self._pieces = pieces or {}

    def part(self, partition: int, first: int, last: int) -> Tally:
        return tally([number for number in range(1_000) if first <= number <= last], partition)

    def pieces(self, tier: str, partition: int) -> list[tuple[str, Tally]]:
        return self._pieces.get((tier, partition), [])

    def find(self, partition: int, total: int, count: int) -> tuple[int, int] | None:
        whole = tally(list(range(1_000)), partition).placed or 0
        rest = tally([number for number in range(1_000) if not 300 <= number < 700], partition).placed or 0
        return (300, 699) if (total, count) == ((whole - rest) % 2**128, 400) else None


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_of_offsets_that_no_sketch_can_name_is_named_by_the_log(is_lost: bool) -> None:
    whole, rest = tally(list(range(1_000))), tally([number for number in range(1_000) if not 300 <= number < 700])
    books = books_of({LOG: {0: whole if is_lost else rest}, CONSUMER: {0: rest if is_lost else whole}})
    (told,) = judge(books, (LOG,), None, _Log())
    assert told.is_unnamed
    assert told.reason == f"offsets 300 to 699 of partition 0 {'are missing' if is_lost else 'came twice'}"
    # It stays when the same is said again without the log, and goes with what it was said of.
    assert judge(books, (LOG,), {told.edge: told}) == [told]
    other = replace(told, missing=told.missing + 1)
    assert judge(books, (LOG,), {told.edge: other})[0].reason != told.reason


@pytest.mark.long
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_what_no_sketch_of_a_window_can_name_is_named_piece_by_piece(data: st.DataObject) -> None:
    """A consumer's hosts have reported a window in pieces of a hundred, each of which lacks some and has some twice; one was never read."""
    pieces, missing, doubled = [], set[int](), set[int]()
    for first in (0, 100, 200, 400, 500, 600, 700, 800, 900):
        there = st.integers(first + 1, first + 98)
        lost, twice = data.draw(st.sets(there, min_size=12, max_size=25)), data.draw(st.sets(there, max_size=15))
        missing |= lost
        doubled |= twice - lost
        had = [number for number in range(first, first + 100) if number not in lost]
        pieces.append(("ab"[first // 500], tally(had + sorted(twice - lost))))
    books = books_of({LOG: {0: tally(list(range(1_000)))}, CONSUMER: {}})
    for host, piece in pieces:
        books.add(CONSUMER, 0, host, piece)
    (whole,) = judge(books, (LOG,), None, _Log())
    assert whole.is_unnamed
    (told,) = judge(books, (LOG,), None, _Log({(CONSUMER, 0): pieces[::-1]}))
    assert (told.missing, told.surplus, told.hosts) == (len(missing) + 100, len(doubled), ("a", "b"))
    assert {named.offset for named in told.named if named.times > 0} == missing
    assert {named.offset for named in told.named if named.times < 0} == doubled
    assert "300 to 399 of partition 0 are missing" in told.reason
    # Said again without the log it is the same; and pieces that are not all that was said prove nothing.
    assert judge(books, (LOG,), {told.edge: told}) == [told]
    assert judge(books, (LOG,), None, _Log({(CONSUMER, 0): pieces[1:]})) == [whole]


def test_nothing_is_said_to_differ_before_the_log_was_read_where_logs_are_read() -> None:
    """The log may tell that nothing does. Once it is gone there is nothing to wait for."""
    tallies = {PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL[1:])}}
    (said,) = judge(books_of(tallies), (PRODUCER, BROKER), reads_logs=True)
    assert (said.verdict, said.waits_for_log, said.missing) == (Verdict.PENDING, True, 0)
    (said,) = judge(books_of({**tallies, LOG: {0: tally(ALL[1:])}}, repeated=0), (PRODUCER, BROKER), reads_logs=True)[:1]
    assert (said.verdict, said.missing) == (Verdict.LOSS, 1)
    (said,) = judge(books_of(tallies, is_log_gone=True), (PRODUCER, BROKER), reads_logs=True)
    assert (said.verdict, said.missing) == (Verdict.LOSS, 1)
    (said,) = judge(books_of({PRODUCER: {0: tally(ALL)}}, is_log_gone=True), (PRODUCER, LOG), reads_logs=True)
    assert said.verdict is Verdict.UNAUDITED


def test_what_a_log_has_lost_is_not_forgotten_when_a_message_comes_late() -> None:
    """With the late one the log is old, and in doubt nothing but this asks for it again."""
    read = books_of({PRODUCER: {0: tally(ALL[:99])}, BROKER: {0: headers(ALL[:99])}, LOG: {0: tally(ALL[1:99])}}, repeated=0)
    known = {said.edge: said for said in judge(read, (PRODUCER, BROKER), {}, _Log(), reads_logs=True)}
    assert {edge: said.verdict for edge, said in known.items()} == {"producer->broker": Verdict.COMPLETE, "broker->log": Verdict.LOSS}
    late = books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL)}, LOG: {0: tally(ALL[1:99])}}, repeated=None)
    for _ in range(2):
        known = {said.edge: said for said in judge(late, (PRODUCER, BROKER), known, reads_logs=True)}
        assert (known["producer->broker"].verdict, known["broker->log"].waits_for_log) == (Verdict.LATE, True)
    late.is_log_gone = True
    known = {said.edge: said for said in judge(late, (PRODUCER, BROKER), known, reads_logs=True)}
    assert known["broker->log"].verdict is Verdict.UNAUDITED


def test_what_was_well_by_the_log_and_differs_now_waits_for_the_log_once_more() -> None:
    """A client may speak of the next topic of the name, and no broker yet: only the log tells that it is another one."""
    read = {LOG: {0: headers(ALL[1:])}}
    (known, _) = judge(books_of({PRODUCER: {0: tally(ALL[1:])}, BROKER: {0: headers(ALL[1:])}, **read}, repeated=0), (PRODUCER, BROKER))
    assert known.verdict is Verdict.COMPLETE
    books = books_of({PRODUCER: {0: tally(ALL)}, BROKER: {0: headers(ALL[1:])}, **read}, repeated=0)
    for _ in range(2):
        known = judge(books, (PRODUCER, BROKER), {known.edge: known}, reads_logs=True)[0]
        assert (known.verdict, known.waits_for_log) == (Verdict.PENDING, True)
    known = judge(books, (PRODUCER, BROKER), {known.edge: known}, _Log({}), reads_logs=True)[0]
    assert known.verdict is Verdict.LOSS
    assert judge(books, (PRODUCER, BROKER), {known.edge: known}, reads_logs=True)[0] == known


def test_what_comes_after_the_window_was_known_is_late_with_a_revision() -> None:
    first = verdicts(books_of({BROKER: {0: headers(ALL[:90])}, PRODUCER: {0: tally(ALL[:90])}}))["producer->broker"]
    second = verdicts(books_of({BROKER: {0: headers(ALL)}, PRODUCER: {0: tally(ALL)}}))["producer->broker"]
    known = revised(None, first)
    assert (known.verdict, known.revision) == (Verdict.COMPLETE, 0)
    late = revised(known, second)
    assert (late.verdict, late.revision) == (Verdict.LATE, 1)
    assert revised(late, second) == late
    pending = replace(second, verdict=Verdict.PENDING)
    assert revised(revised(known, pending), second).verdict is Verdict.LATE
    lost = verdicts(books_of({BROKER: {0: headers(ALL[:90])}, PRODUCER: {0: tally(ALL)}}))["producer->broker"]
    assert revised(late, lost).verdict is Verdict.LOSS
    assert revised(late, lost).revision == 2


@given(st.sets(st.integers(0, 200), max_size=12), st.lists(st.integers(0, 200), max_size=12, unique=True), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_a_verdict_is_complete_exactly_if_the_multisets_are_the_same(lost: set[int], doubled: list[int], parts: int) -> None:
    """Whatever is dropped and doubled, and however hosts and partitions divide it."""
    sent = list(range(201))
    had = [offset for offset in sent if offset not in lost] + [offset for offset in doubled if offset not in lost]
    extra = len(had) - (201 - len(lost))
    tallies: dict[str, dict[int, Tally]] = {PRODUCER: {}, BROKER: {}, CONSUMER: {}}
    for part in range(parts):
        own = [offset for offset in sent if offset % parts == part]
        tallies[PRODUCER][part] = tally(own, part)
        tallies[BROKER][part] = headers(own)
        tallies[CONSUMER][part] = tally([offset for offset in had if offset % parts == part], part)
    said = verdicts(books_of(tallies))[f"broker->{CONSUMER}"]
    assert (said.missing, said.surplus) == (len(lost), extra)
    expected = (
        Verdict.COMPENSATED if lost and len(lost) == extra else Verdict.LOSS if lost else Verdict.DUPLICATE if extra else Verdict.COMPLETE
    )
    assert said.verdict is expected


def test_mirrors_that_write_one_topic_are_its_producers_together() -> None:
    """No broker can tell whose a message is. A producer that reports beside them counts with them; one that does not is not expected."""
    parts = {"mirrored:A-B": {0: headers(ALL[:40])}, "mirrored:C-B": {0: headers(ALL[40:])}}
    found = verdicts(books_of({**parts, BROKER: {0: headers(ALL)}}))
    assert {edge: said.verdict for edge, said in found.items()} == dict.fromkeys((f"{tier}->broker" for tier in parts), Verdict.COMPLETE)
    found = verdicts(books_of({**parts, PRODUCER: {0: tally([100, 101])}, BROKER: {0: headers([*ALL, 100, 101])}}))
    assert {said.verdict for said in found.values()} == {Verdict.COMPLETE} and len(found) == 3
    lost = verdicts(books_of({**parts, BROKER: {0: headers(ALL[:-1])}}))["mirrored:A-B->broker"]
    assert (lost.verdict, lost.missing) == (Verdict.LOSS, 1)


def test_a_mirror_that_writes_is_waited_for_by_its_positions() -> None:
    tallies = {"mirrored:A-B": {0: headers(ALL[:90])}, BROKER: {0: headers(ALL)}}
    behind = {"mirrored:A-B": {0: 90}, BROKER: {0: 100}}
    said = verdicts(books_of(tallies, positions=behind))["mirrored:A-B->broker"]
    assert (said.verdict, said.reason) == (Verdict.PENDING, "mirrored:A-B has not come so far")
    said = verdicts(books_of(tallies))["mirrored:A-B->broker"]
    assert (said.verdict, said.surplus) == (Verdict.DUPLICATE, 10)
    # Once the log was read, and none of it is there twice: somebody else writes there too.
    said = verdicts(books_of(tallies, repeated=0))["mirrored:A-B->broker"]
    assert said.verdict is Verdict.UNAUDITED


@pytest.mark.parametrize("expected", [(PRODUCER,), (PRODUCER, BROKER)])
def test_edges_follow_the_way_of_a_message(expected: tuple[str, ...]) -> None:
    books = books_of({PRODUCER: {}, LOG: {0: tally(ALL)}, CONSUMER: {}})
    assert list(books.edges((PRODUCER,))) == [(PRODUCER, LOG), (LOG, CONSUMER)]
    books = books_of({PRODUCER: {}, CONSUMER: {}})
    hub = BROKER if BROKER in expected else PRODUCER
    assert (hub, CONSUMER) in list(books.edges(expected)) or hub == PRODUCER
