"""The counter's file: offsets and counts in one transaction, so that nothing is counted twice or lost, whatever is killed when."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.loops import until
from tests.unit.audit_counter.records import MINUTE, NOW, START, appended, consumed, produced, read, record
from tests.unit.audit_counter.test_many import answer
from tests.unit.audit_counter.test_verdicts import headers, tally

from ottla.audit_counter.books import Moved
from ottla.audit_counter.rest import application
from ottla.audit_counter.rest.application import AuditApplication
from ottla.audit_counter.server import AuditServer, Collector
from ottla.audit_counter.service import AuditCounter, CounterSettings, _LogCount
from ottla.audit_counter.store import Read, Store, StoreFailed
from ottla.audit_counter.verdicts import EdgeVerdict, Named, judge
from ottla.audit_counter.windows import (
    NO_END,
    SessionStanding,
    are_cut_off,
    is_in_doubt,
    lacks_audit_data,
    may_have_had_more,
    watermark_of,
)
from ottla.clock import SystemClock
from ottla.coordination.election import Term
from ottla.errors import InvalidRequest, TopicAuthorizationFailed
from ottla.lifecycle import Offload, ThreadOffload, offload_nothing
from ottla.metrics import audit as metrics
from ottla.record.audit_records import NO_PARTITION, AuditRecord, Tally, Verdict
from ottla.record.digests import Latencies, OffsetSums

HOUR = 3_600_000
END = START + MINUTE
ALL = list(range(100))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "audit.db", MINUTE, 168 * HOUR)
    store.next_offsets("topic-1")
    yield store
    store.close()


def counter_of(store: Store, in_store: Offload = offload_nothing, **settings: Any) -> AuditCounter:
    return AuditCounter(cast(Any, None), store, CounterSettings(**settings), SystemClock(), in_store, in_store)


def apply(store: Store, *records: AuditRecord | None, first: int = 0) -> set[tuple[str, int]]:
    return store.apply(read(*records, first=first), {0: first + len(records)}, NOW).changed


def acknowledged(offsets: list[int]) -> Tally:
    return replace(tally(offsets), attempted=len(offsets), acknowledged=len(offsets))


def put_log(store: Store, offsets: list[int], topic: str = "clicks") -> None:
    store.begin_log(topic, [START])
    store.put_log(topic, {START: {0: tally(offsets)}}, {0: 100}, {START: 0})


def count_of(store: Store, tier: str) -> int:
    return sum(found.count for found in store.books("clicks", START).tallies[tier].values())


def verdicts(store: Store) -> dict[str, Verdict]:
    return {said.edge: said.verdict for said in judge(store.books("clicks", START), ("producer", "broker"))}


def test_records_of_all_tiers_become_books_that_are_judged(store: Store) -> None:
    changed = apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END), consumed(0, ALL, 100))
    assert changed == {("clicks", START), ("clicks", -1)}
    assert store.books("clicks", START).beginnings == {"broker": {0: 0}, "consumer:g": {0: 0}}
    assert verdicts(store) == {"producer->broker": Verdict.COMPLETE, "broker->consumer:g": Verdict.COMPLETE}
    assert store.topics() == ["clicks"]
    assert sorted(store.totals()) == [("clicks", "broker", 100), ("clicks", "consumer:g", 100), ("clicks", "producer", 100)]


def test_a_second_copy_of_a_record_changes_nothing(store: Store) -> None:
    apply(store, produced(0, ALL), appended(0, ALL), consumed(0, ALL, 100))
    before = store.books("clicks", START)
    apply(store, produced(0, ALL), appended(0, ALL), consumed(0, ALL, 100), first=3)
    assert store.books("clicks", START) == before
    assert store.counters.repeated == 3
    # Nor do offsets that were read before, as after a kill between the answer of SQLite and the next fetch.
    store.apply(read(produced(1, [7])), {0: 6}, NOW)
    assert store.books("clicks", START) == before


def test_records_count_the_same_one_by_one_and_in_one_transaction(store: Store, tmp_path: Path) -> None:
    """Digests and full sketches are added to those of the file, and the second copies within a transaction are none."""
    records = [produced(number, ALL[20 * number : 20 * number + 60]) for number in range(3)]
    for number, one in enumerate(records):
        apply(store, one, first=number)
    other = Store(tmp_path / "other.db", MINUTE, 168 * HOUR)
    assert other.apply(iter(read(*records, *records)), {0: 6}, NOW) == ({("clicks", START), ("clicks", -1)}, True)
    assert other.counters.repeated == 3
    assert other.books("clicks", START) == store.books("clicks", START)
    assert count_of(other, "producer") == 180
    other.close()


@pytest.mark.parametrize("rows", [4_096, 1])
def test_rows_that_are_remembered_are_those_of_the_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """One store works on; the other one is opened again before each step, and so has nothing but its file."""
    monkeypatch.setattr("ottla.audit_counter.store._RECENT_COUNTS", rows)
    monkeypatch.setattr("ottla.audit_counter.store._RECENT_SESSIONS", rows)
    again: dict[str, Any] = {"host": "b", "first_offset": 60, "next_offset": 80}
    steps: list[Callable[[Store], object]] = [
        lambda it: apply(it, produced(0, ALL), appended(0, ALL[:60]), appended(1, ALL[60:]), record("l", 0, "log", {START: tally(ALL)})),
        lambda it: put_log(it, ALL[:50]),
        lambda it: apply(it, record("l", 1, "log", {START: tally([7])}), first=4),
        lambda it: it.drop_sketches(NOW + HOUR),
        lambda it: apply(it, produced(1, [100]), first=5),
        lambda it: apply(it, record("n", 0, "broker", {START: headers(ALL[60:80])}, **again), first=6),
        lambda it: apply(it, record("n", 1, "broker", {START: headers(ALL[60:80])}, **again), first=7),
        lambda it: it.silent_sessions(NOW + 1, NOW + 1),
        lambda it: apply(it, produced(0, ALL), first=8),
        lambda it: it.purge(NOW + 169 * HOUR),
        lambda it: apply(it, produced(2, [101]), first=9),
    ]
    path = tmp_path / "other.db"
    Store(path, MINUTE, 168 * HOUR).close()
    for number, step in enumerate(steps):
        step(store)
        other = Store(path, MINUTE, 168 * HOUR)
        other.next_offsets("topic-1")
        step(other)
        assert other.books("clicks", START) == store.books("clicks", START), number
        assert other.sessions() == store.sessions(), number
        other.close()


def test_a_file_that_is_opened_again_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    store = Store(path, MINUTE, HOUR)
    store.next_offsets("topic-1")
    apply(store, produced(0, ALL))
    books = store.books("clicks", START)
    store.close()
    store = Store(path, MINUTE, HOUR)
    assert store.next_offsets("topic-1") == {0: 1}
    # A broker of a cluster that is being updated may not say the topic's id.
    assert store.next_offsets("") == {0: 1}
    assert store.books("clicks", START) == books
    # A topic that was made again has other offsets, and what was counted of it is gone with it.
    assert store.next_offsets("topic-2") == {}
    assert not store.topics()
    store.close()


def test_what_changed_is_unjudged_until_it_is_judged_whatever_is_stopped_between(tmp_path: Path) -> None:
    store = Store(tmp_path / "audit.db", MINUTE, HOUR)
    store.next_offsets("topic-1")
    changed = apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL))
    store.begin_log("clicks", [START + MINUTE])
    store.put_log("clicks", {START + MINUTE: {}}, {0: 100}, {START + MINUTE: 0})
    store.close()
    store = Store(tmp_path / "audit.db", MINUTE, HOUR)
    assert store.unjudged() == changed | {("clicks", START + MINUTE)}
    store.judged([("clicks", START), ("clicks", -1)])
    assert store.unjudged() == {("clicks", START + MINUTE)}
    store.next_offsets("topic-2")
    assert not store.unjudged()
    store.close()


def test_a_judgement_has_of_sessions_that_have_ended_what_it_needs_and_not_each_of_a_week(store: Store) -> None:
    """Of a cron job each minute had ten thousand in a week, and all were read for each window that changed."""
    rows = []
    for number in range(2_000):  # each is through with minute `number`; every third was killed, and every fifth of another tier
        ended_ms = START + number * MINUTE
        tier = "producer" if number % 5 else "broker"
        gaps = [[0, 1, ended_ms, ended_ms + 1, ended_ms]] if number % 499 == 498 else []
        facts = ("clicks", tier, "host", "", 3, ended_ms, number % 3 > 0, number % 3 == 0, ended_ms, ended_ms + 5, json.dumps(gaps))
        rows.append((f"{number}", *facts, ended_ms + 2 * MINUTE))
    rows.append(("open", "clicks", "producer", "host", "", 3, START + 10 * HOUR, False, False, START, START, "[]", NO_END))
    store._connection.executemany(f"INSERT INTO sessions VALUES ({', '.join('?' * 13)})", rows)
    every: dict[str, list[SessionStanding]] = {}
    for one in store.sessions("clicks"):
        every.setdefault(one.tier, []).append(one)
    for number in range(-3, 2_010, 61):
        span = START + number * MINUTE, START + (number + 1) * MINUTE
        books = store.books("clicks", span[0])
        assert books.reporting == every.keys()
        for tier, sessions in books.sessions.items():
            assert watermark_of(sessions) == watermark_of(every[tier])
            for says in (is_in_doubt, are_cut_off, lacks_audit_data, may_have_had_more):
                assert says(sessions, *span) == says(every[tier], *span), (number, tier, says)
            assert max(one.reported_ms for one in sessions) == max(one.reported_ms for one in every[tier])
        assert sum(map(len, books.sessions.values())) < 40


def test_a_missing_sequence_is_missing_audit_data_and_never_loss(store: Store) -> None:
    apply(
        store,
        produced(0, ALL, watermark_ms=START),
        produced(2, [200], watermark_ms=END, reported_ms=END),
        appended(0, ALL, watermark_ms=END),
    )
    (session,) = (session for session in store.sessions() if session.tier == "producer")
    assert [(gap.first, gap.behind) for gap in session.gaps] == [(1, 2)]
    store.apply(read(appended(1, [100], watermark_ms=END, next_offset=300), first=3), {0: 4}, NOW)
    assert verdicts(store)["producer->broker"] is Verdict.UNAUDITED


def test_a_window_that_a_producer_s_missing_report_may_be_of_is_never_complete(store: Store) -> None:
    """Brokers that lose the end of their logs lose both: the messages, and what was said of them. A window before that is well."""
    before, offsets = START - MINUTE, {"first_offset": 100, "next_offset": 200}
    apply(
        store,
        record("p", 0, "producer", {before: acknowledged(ALL)}, watermark_ms=START),
        record("b", 0, "broker", {before: headers(ALL)}, first_offset=0, next_offset=100),
        produced(1, [*range(100, 150)], watermark_ms=START + 1),
        record("p", 3, "producer", {}, watermark_ms=END, reported_ms=END),
        record("b", 1, "broker", {START: headers([*range(100, 150)])}, watermark_ms=END, **offsets),
    )
    assert verdicts(store) == {"producer->broker": Verdict.UNAUDITED}
    assert [said.verdict for said in judge(store.books("clicks", before), ("producer", "broker"))] == [Verdict.COMPLETE]


def test_a_report_that_is_missing_of_a_session_whose_clock_is_behind_is_never_loss(store: Store) -> None:
    """By the clock of its machine, the messages that it had were still to come: what its missing report had was called lost."""
    behind = [START - HOUR, START - HOUR + 10_000]
    apply(
        store,
        produced(0, ALL, watermark_ms=END),
        appended(0, ALL, watermark_ms=END),
        consumed(0, ALL[:50], 50, watermark_ms=behind[0], reported_ms=behind[0]),
        consumed(2, ALL[80:], 100, watermark_ms=behind[1], reported_ms=behind[1]),
    )
    assert verdicts(store) == {"producer->broker": Verdict.COMPLETE, "broker->consumer:g": Verdict.UNAUDITED}


def test_the_next_leader_counts_again_what_the_former_one_may_have_said(store: Store) -> None:
    """A leader died after its report and before its checkpoint: the next one begins at the checkpoint."""
    apply(store, appended(0, ALL[:40]), appended(1, ALL[40:70]), produced(0, ALL, watermark_ms=END))
    again = record("b2", 0, "broker", {START: headers(ALL[40:])}, first_offset=40, next_offset=100, leader_epoch=1, watermark_ms=END)
    apply(store, again, first=3)
    assert count_of(store, "broker") == 100
    assert store.counters.recounts == 1


@pytest.mark.parametrize("is_old", [False, True])
def test_a_leader_that_was_stopped_and_does_not_know_that_it_is_deposed_changes_nothing(tmp_path: Path, is_old: bool) -> None:
    """Its last report comes after that of the next leader, who counted the same offsets; in a file that knew of no leader epochs, too."""
    path = tmp_path / "audit.db"
    Store(path, MINUTE, 168 * HOUR).close()
    if is_old:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE positions DROP COLUMN leader_epoch")
    store = Store(path, MINUTE, 168 * HOUR)
    next_one = record("b2", 0, "broker", {START: headers(ALL)}, first_offset=0, next_offset=100, leader_epoch=5, watermark_ms=END)
    apply(store, produced(0, ALL, watermark_ms=END, is_final=True), appended(0, ALL[:40], watermark_ms=END, leader_epoch=4), next_one)
    store.close()
    store = Store(path, MINUTE, 168 * HOUR)
    apply(store, appended(1, ALL[40:60], watermark_ms=END, leader_epoch=4), first=3)
    assert verdicts(store) == {"producer->broker": Verdict.COMPLETE}
    assert store.books("clicks", START).positions["broker"] == {0: 100}
    apply(store, appended(2, ALL[:10], leader_epoch=0), appended(3, ALL[10:20], leader_epoch=0), first=4)
    assert count_of(store, "broker") == 20, "a topic that was made again has leader epochs from 0 on"
    store.close()


def test_a_deposed_leader_that_counted_from_the_start_of_the_same_topic_changes_nothing(store: Store) -> None:
    """After a report that failed a log shorter than a block is counted from 0 again. The topic's id tells it from one made again."""
    next_one = record(
        "b2", 0, "broker", {START: headers(ALL)}, first_offset=0, next_offset=100, leader_epoch=5, watermark_ms=END, topic_id=NEXT
    )
    late = appended(0, ALL[:40], watermark_ms=END, leader_epoch=4, topic_id=NEXT)
    apply(store, produced(0, ALL, watermark_ms=END, is_final=True), next_one, late)
    assert store.books("clicks", START).positions["broker"] == {0: 100}
    assert verdicts(store) == {"producer->broker": Verdict.COMPLETE}


FORMER, NEXT = "0" * 31 + "1", "0" * 31 + "2"


def judged(store: Store, start_ms: int = START) -> dict[str, tuple[Verdict, str]]:
    """Judges a window as the counter does, and notes it."""
    known = {said.edge: said for _, _, said in store.verdicts("clicks", start_ms, start_ms + 1)}
    said = judge(store.books("clicks", start_ms), ("producer", "broker"), known)
    store.put_verdicts("clicks", start_ms, said)
    return {one.edge: (one.verdict, one.reason) for one in said}


def test_what_was_known_of_a_topic_stays_when_another_one_has_its_name(store: Store) -> None:
    """The other one has fewer messages, at the same offsets: what was counted of the former is neither replaced nor compared with it."""
    apply(store, produced(0, ALL, watermark_ms=END, is_final=True), appended(0, ALL, watermark_ms=END, topic_id=FORMER))
    known = judged(store)
    assert known == {"producer->broker": (Verdict.COMPLETE, "")}
    later = {"topic_id": NEXT, "watermark_ms": END + MINUTE}
    there = record("b2", 0, "broker", {}, partition=NO_PARTITION, **later)
    messages = record("b2", 1, "broker", {END: headers(ALL[:30])}, first_offset=0, next_offset=30, **later)
    assert ("clicks", START) in apply(store, there, first=2)
    apply(store, messages, first=3)
    assert judged(store) == known
    assert count_of(store, "broker") == 100
    new = tally(ALL[:30])
    new.attempted = new.acknowledged = 30
    assert judged(store, END)["producer->broker"][0] is Verdict.UNAUDITED, "the former producer has ended, and no one waits for it"
    apply(store, record("p2", 0, "producer", {END: new}, watermark_ms=END + MINUTE, is_final=True), first=4)
    assert judged(store, END) == known
    assert store.counters.recounts == 0


def test_messages_of_two_topics_of_a_name_in_a_window_are_not_compared(store: Store) -> None:
    apply(store, produced(0, ALL, watermark_ms=END, is_final=True), appended(0, ALL, watermark_ms=END, topic_id=FORMER))
    judged(store)
    apply(store, record("b2", 0, "broker", {START: headers([0])}, first_offset=0, next_offset=1, topic_id=NEXT), first=2)
    two = (Verdict.UNAUDITED, "messages of two topics of this name lie in the window")
    assert judged(store) == {"producer->broker": two}
    apply(store, consumed(0, [0], 1), first=3)
    assert judged(store) == {"producer->broker": two, "broker->consumer:g": two}


def test_what_was_not_known_when_a_topic_was_deleted_is_never_known(store: Store) -> None:
    """Its producer had reported more than its brokers; of the next topic nothing can tell whether that was lost."""
    apply(store, produced(0, ALL, watermark_ms=END, is_final=True), appended(0, ALL[:40], watermark_ms=END, topic_id=FORMER))
    assert judged(store)["producer->broker"][0] is Verdict.PENDING
    for life, topic_id in enumerate((NEXT, FORMER, NEXT)):
        apply(store, record(f"b{life + 2}", 0, "broker", {}, partition=NO_PARTITION, topic_id=topic_id), first=2 + life)
        assert judged(store) == {"producer->broker": (Verdict.UNAUDITED, "the topic was deleted before this was known")}
    assert count_of(store, "broker") == 40


def test_a_counter_that_reads_of_two_topics_of_a_name_at_once_judges_the_former_first(store: Store) -> None:
    """As one with a new file does: all of it is taken in up to where the next topic begins, and then the rest."""
    records = read(
        produced(0, ALL, watermark_ms=END, is_final=True),
        appended(0, ALL, watermark_ms=END, topic_id=FORMER),
        record("b2", 0, "broker", {}, partition=NO_PARTITION, topic_id=NEXT),
        record("b2", 1, "broker", {END: headers(ALL[:30])}, first_offset=0, next_offset=30, topic_id=NEXT),
    )
    assert store.apply(iter(records), {0: 4}, NOW) == ({("clicks", START), ("clicks", -1)}, False)
    assert store.next_offsets("topic-1") == {0: 2}
    known = judged(store)
    assert known == {"producer->broker": (Verdict.COMPLETE, "")}
    assert store.apply(iter(records), {0: 4}, NOW) == ({("clicks", START), ("clicks", END), ("clicks", -1)}, True)
    assert store.next_offsets("topic-1") == {0: 4}
    assert judged(store) == known
    assert store.topic_id("clicks") == NEXT


@pytest.mark.parametrize("is_spoken_of", [False, True])
def test_what_no_verdict_has_seen_when_the_log_tells_of_another_topic_makes_its_window_unaudited(store: Store, is_spoken_of: bool) -> None:
    """A producer of the next topic has spoken in a window of the former one, which was COMPLETE."""
    apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END, topic_id=FORMER))
    judged(store)
    store.judged(store.unjudged())
    if is_spoken_of:
        apply(store, record("p2", 0, "producer", {START: tally(ALL[:10])}), first=2)
    store.begin_topic("clicks", NEXT)
    assert judged(store)["producer->broker"][0] is (Verdict.UNAUDITED if is_spoken_of else Verdict.COMPLETE)


def test_a_log_is_gone_for_what_was_said_before_it_was_looked_for_and_for_nothing_else(store: Store) -> None:
    """What is said later may be of another topic of the name, whose log is there."""
    apply(store, appended(0, ALL, watermark_ms=END, topic_id=FORMER))
    store.begin_log("clicks", [START])
    assert store.without_log("clicks", START)
    assert store.books("clicks", START).is_log_gone
    store.begin_log("clicks", [START])
    apply(store, produced(0, ALL, watermark_ms=END), first=1)
    assert not store.books("clicks", START).is_log_gone
    assert not store.without_log("clicks", START)
    assert not store.books("clicks", START).is_log_gone


def test_latencies_in_json_as_older_files_have_them_are_read_with_those_that_are_added(store: Store) -> None:
    said, later = tally(ALL[:50]), tally(ALL[:50])
    said.latencies.add_all(np.full(50, 20))
    later.latencies.add_all(np.full(50, 200))
    apply(store, record("c", 0, "consumer:g", {START: said}))
    (bucket,) = said.latencies.buckets
    store._connection.execute("UPDATE counts SET latencies = ?", (f"[[{bucket}, 50]]",))
    store._recent.clear()
    apply(store, record("c", 1, "consumer:g", {START: said}), first=1)
    apply(store, record("d", 0, "consumer:g", {START: later}), first=2)
    (row,) = store.tiers("clicks", START, END)
    assert row["count"] == 150
    assert row["latency_p50_ms"] == pytest.approx(20, rel=0.01)
    assert row["latency_p99_ms"] == pytest.approx(200, rel=0.01)


def test_what_tiers_had_is_added_up_however_many_rows_it_is_read_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hosts and partitions in any order, and of windows without latencies."""
    said = tally(ALL[:10])
    for number, milliseconds in enumerate((5, 50, 500)):
        had = tally(ALL[:10])
        had.latencies.add_all(np.full(10, milliseconds))
        windows = {START: had, END: said}
        apply(store, record(f"c{number}", 0, "consumer:g", windows, partition=2 - number, host=f"h{number}"), first=number)
    apply(store, record("p", 0, "producer", {START: said}), first=3)
    wanted = store.tiers("clicks", START, END + 1)
    assert [(row["window"], row["tier"], row["count"], row["latency_p50_ms"] is None) for row in wanted] == [
        (START, "consumer:g", 30, False),
        (START, "producer", 10, True),
        (END, "consumer:g", 30, True),
    ]
    assert wanted[0]["latency_p50_ms"] == pytest.approx(50, rel=0.01)
    assert store.tiers("clicks", START, END + 1, "producer") == wanted[1:2]
    assert store.tiers("clicks", START, END + 1, "consumer:_") == store.tiers("clicks", START, END + 1, "Producer") == []
    assert store.tiers("clicks", END + 1, END + 2) == []
    monkeypatch.setattr("ottla.audit_counter.store._ROWS_AT_ONCE", 2)
    assert store.tiers("clicks", START, END + 1) == wanted


def test_messages_are_added_up_without_a_look_at_rows(store: Store) -> None:
    """A scrape does it, and a day of fifty topics has 400 MiB of them: the store did nothing else for a second."""
    apply(store, record("p", 0, "producer", {START: tally(ALL[:10]), END: tally(ALL[:5])}))
    said: list[str] = []
    store._connection.set_trace_callback(said.append)
    assert store.totals() == [("clicks", "producer", 15)]
    store._connection.set_trace_callback(None)
    (plan,) = store._connection.execute(f"EXPLAIN QUERY PLAN {said[0]}").fetchall()
    assert "USING COVERING INDEX" in plan[-1]


def test_who_is_silent_is_found_without_a_look_at_sessions_that_have_ended(store: Store) -> None:
    """The counter asks each second, and a week has very many: of 200,000 it did nothing else for a second."""
    said: list[str] = []
    store._connection.set_trace_callback(said.append)
    assert not store.silent_sessions(NOW, NOW) and not store.silent_brokers(NOW)
    store._connection.set_trace_callback(None)
    questions = [text for text in said if text.startswith("SELECT")]
    plans = [store._connection.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()[0][-1] for question in questions]
    assert len(plans) == 2 and all("SEARCH sessions USING" in plan and "sessions_open (heard_ms<?)" in plan for plan in plans), plans


def test_what_a_mirror_reads_again_takes_the_place_of_what_it_said_before(store: Store) -> None:
    """A worker was killed before its word was acknowledged; the next one reads the same in other portions."""

    def mirrored(session: str, sequence: int, first: int, behind: int) -> AuditRecord:
        windows = {START: headers(ALL[first:behind])}
        return record(session, sequence, "mirror:A-B", windows, first_offset=first, next_offset=behind, reported_ms=END)

    apply(store, appended(0, ALL, watermark_ms=END), mirrored("m1", 0, 0, 50), mirrored("m1", 1, 50, 100))
    assert verdicts(store)["broker->mirror:A-B"] is Verdict.COMPLETE
    apply(store, mirrored("m2", 0, 50, 60), first=3)
    assert verdicts(store)["broker->mirror:A-B"] is Verdict.PENDING
    apply(store, mirrored("m2", 1, 60, 100), mirrored("m2", 1, 60, 100), first=4)
    assert verdicts(store)["broker->mirror:A-B"] is Verdict.COMPLETE
    # Its source was cut within a range: what is known of that range is known no more, and that is said.
    apply(store, mirrored("m2", 2, 55, 100), first=6)
    assert verdicts(store)["broker->mirror:A-B"] is Verdict.UNAUDITED


def test_what_a_deposed_leader_says_in_vain_moves_no_beginning(store: Store) -> None:
    """Brokers report since offset 131,072; what was sent before was called lost once a deposed leader had spoken of older offsets."""
    bounds = {"leader_epoch": 6, "watermark_ms": END}
    apply(
        store,
        record("b", 0, "broker", {}, first_offset=131_072, next_offset=131_082, **bounds),
        record("d", 0, "broker", {START: headers([65_536])}, first_offset=65_536, next_offset=65_537, leader_epoch=5, watermark_ms=END),
        record("b", 1, "broker", {}, first_offset=131_082, next_offset=131_083, **bounds),
        record("p", 0, "producer", {START: acknowledged([65_540])}, watermark_ms=END),
    )
    assert verdicts(store) == {"producer->broker": Verdict.UNAUDITED}


def test_a_group_that_is_gone_for_longer_than_the_retention_has_no_edge(store: Store) -> None:
    """Each window that came since was PENDING at its edge, for ever, and AuditWindowStuck fired."""
    apply(store, produced(0, ALL, is_final=True), appended(0, ALL), consumed(0, ALL, 100, is_final=True))
    store.begin_log("clicks", [START])
    store.put_log("clicks", {START: {0: tally(ALL)}}, {0: 100}, {START: 0})
    store.purge(NOW + 168 * HOUR)
    assert "consumer:g" in store.books("clicks", START).reporting
    store.purge(NOW + 171 * HOUR)
    assert store.books("clicks", START).reporting == {"broker", "log"}


async def test_what_was_pending_of_a_group_is_said_no_more_once_the_group_is_gone(store: Store) -> None:
    """It was PENDING in the windows before for as long as these were kept, and what asked for all of a topic was not answered by more."""
    counter, later = counter_of(store, verify="never"), START + 100 * HOUR
    apply(store, consumed(0, ALL[:50], 50, is_final=True))
    said = [
        record("p", 0, "producer", {later: acknowledged(ALL)}, is_final=True),
        record("b", 0, "broker", {later: headers(ALL)}, first_offset=0, next_offset=100, watermark_ms=later + MINUTE),
    ]
    changed = store.apply(read(*said, first=1), {0: 3}, NOW + 100 * HOUR).changed

    async def edges() -> dict[str, Verdict]:
        await counter._judge({*changed, ("clicks", -1)})
        return {said.edge: said.verdict for _, start_ms, said in store.verdicts("clicks") if start_ms == later}

    assert await edges() == {"producer->broker": Verdict.COMPLETE, "broker->consumer:g": Verdict.PENDING}
    store.purge(NOW + 171 * HOUR)
    assert await edges() == {"producer->broker": Verdict.COMPLETE}


def test_offsets_that_no_broker_counted_are_missing_audit_data(store: Store) -> None:
    apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL[:50], watermark_ms=END))
    apply(store, appended(1, ALL[60:], watermark_ms=END, reported_ms=END), first=2)
    assert verdicts(store)["producer->broker"] is Verdict.UNAUDITED


def test_windows_far_ahead_and_long_past_are_not_opened(store: Store) -> None:
    day = 24 * HOUR
    apply(store, record("p", 0, "producer", {START + 2 * day: Tally(), START - 8 * day: Tally(), START: Tally(count=1)}))
    assert store.windows_of("clicks") == [START]
    assert store.counters.windows_refused == 2


def test_a_producer_whose_clock_is_ahead_keeps_no_log_from_being_read(store: Store) -> None:
    """By its clock it spoke after the brokers for a day, so that what they have not come to was PENDING, and not looked for in the log."""
    ahead = produced(0, ALL, watermark_ms=END, reported_ms=END + 24 * HOUR)
    since = record("b", 1, "broker", {}, partition=NO_PARTITION, watermark_ms=END + MINUTE)
    apply(store, ahead, appended(0, ALL[:50], watermark_ms=END), since)
    (said,) = judge(store.books("clicks", START), ("producer", "broker"), reads_logs=True)
    assert said.verdict is Verdict.PENDING and said.waits_for_log


@pytest.mark.parametrize("first", ["producer", "broker"])
def test_a_window_that_was_too_far_ahead_for_what_one_tier_said_first_is_no_loss(store: Store, first: str) -> None:
    """As of a host whose clock is a day ahead, and a little more: what the tier says of the window later counts, what it said does not."""
    said = [produced, appended] if first == "producer" else [appended, produced]
    store.apply(read(said[0](0, ALL[:50], watermark_ms=END)), {0: 1}, START - 24 * HOUR)
    apply(store, said[0](1, ALL[50:], watermark_ms=END), said[1](0, ALL, watermark_ms=END), first=1)
    assert verdicts(store) == {"producer->broker": Verdict.UNAUDITED}


def test_a_tier_with_windows_of_another_width_is_missing_audit_data_and_no_loss(store: Store) -> None:
    """However often it reports: the gaps of a session are bounded, and none is forgotten."""
    starts = [*(START + number * MINUTE for number in range(1, 150)), START]
    other = [
        appended(number, [number], watermark_ms=END)._replace(window_ms=MINUTE // 2, windows={start_ms: Tally(count=1)})
        for number, start_ms in enumerate(starts)
    ]
    apply(store, produced(0, ALL, watermark_ms=END), *other)
    assert verdicts(store) == {"producer->broker": Verdict.UNAUDITED}
    (session,) = (session for session in store.sessions("clicks") if session.tier == "broker")
    assert len(session.gaps) == 100
    assert store.counters.windows_refused == 150


def test_records_that_are_none_are_kept_with_their_offset_and_counted(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    apply(store, None, produced(0, ALL))
    assert caplog.messages == ["__audit-0: no audit record is at offset 0, the last of 1 such: no record"]
    assert store._connection.execute("SELECT * FROM quarantine").fetchall() == [(0, 0, "no record")]
    assert store.counters.quarantined == 1


def test_of_records_that_are_none_the_latest_are_kept(store: Store) -> None:
    apply(store, *[None] * 1_005)
    store.purge(NOW)
    assert store._connection.execute("SELECT COUNT(*), MIN(next_offset) FROM quarantine").fetchone() == (1_000, 5)


def test_a_session_that_says_nothing_for_long_is_dead_until_it_speaks(store: Store) -> None:
    apply(store, produced(0, ALL, watermark_ms=START + 1), appended(0, ALL, watermark_ms=END))
    assert store.silent_sessions(NOW, NOW) == []
    assert ("clicks", START + 1) in store.silent_sessions(NOW + 1, NOW + 1)
    assert verdicts(store)["producer->broker"] is Verdict.IN_DOUBT
    apply(store, produced(1, [], watermark_ms=END), first=2)
    assert verdicts(store)["producer->broker"] is Verdict.COMPLETE


def test_a_dead_session_leaves_its_last_windows_in_doubt_and_none_that_began_since(store: Store) -> None:
    """A producer and a consumer were killed; the next ones of the same host work, and the consumer skips a message an hour later.

    All windows of a week were in doubt, so no loss was told. A session whose messages are ahead of the clock leaves more in doubt.
    """
    ahead, later, last = START + 10 * MINUTE, START + HOUR, START + HOUR + 10 * MINUTE
    had = record("c", 1, "consumer:g", {ahead: tally([99])}, first_offset=0, next_offset=100)
    apply(store, produced(0, ALL[:99]), consumed(0, ALL[:99], 99), had)
    found_dead_ms = later + MINUTE
    store.silent_sessions(NOW + 1, found_dead_ms)
    positions = {"first_offset": 99, "next_offset": 102, "watermark_ms": last + MINUTE}
    sent = {start_ms: acknowledged([offset]) for start_ms, offset in ((later, 100), (last, 101))}
    apply(
        store,
        record("p2", 0, "producer", sent, watermark_ms=last + MINUTE, host="p"),
        record("b", 0, "broker", {later: headers([100]), last: headers([101])}, **positions),
        record("c2", 0, "consumer:g", {}, **positions, host="c"),
        first=3,
    )

    def told(start_ms: int) -> dict[str, Verdict]:
        return {said.edge: said.verdict for said in judge(store.books("clicks", start_ms), ("producer", "broker"))}

    assert told(later) == {"producer->broker": Verdict.IN_DOUBT, "broker->consumer:g": Verdict.IN_DOUBT}
    assert told(last) == {"producer->broker": Verdict.COMPLETE, "broker->consumer:g": Verdict.IN_DOUBT}
    much_later = last + 10 * MINUTE
    apply(
        store,
        record("b", 1, "broker", {much_later: headers([102])}, first_offset=102, next_offset=103, watermark_ms=much_later + MINUTE),
        first=6,
    )
    apply(store, record("c2", 1, "consumer:g", {}, first_offset=102, next_offset=103), first=7)
    assert told(much_later)["broker->consumer:g"] is Verdict.LOSS


async def test_what_a_session_left_in_doubt_is_judged_again_when_it_was_not_dead(store: Store) -> None:
    """A machine that slept, or was cut off for longer than a session may be silent: it has nothing more to say of the window itself."""
    counter = counter_of(store, verify="never")

    async def judged(changed: set[tuple[str, int]]) -> dict[str, Verdict]:
        await counter._judge(changed)
        return {said.edge: said.verdict for _, _, said in store.verdicts("clicks")}

    had = consumed(0, ALL[:50], 100, watermark_ms=START + 1)
    await judged(apply(store, produced(0, ALL, watermark_ms=START + 1), appended(0, ALL, watermark_ms=END), had))
    dead = {(topic, -1) for topic, _ in store.silent_sessions(NOW + 1, NOW + 1)}
    assert await judged(dead) == dict.fromkeys(("producer->broker", "broker->consumer:g"), Verdict.IN_DOUBT)
    spoken = record("p", 1, "producer", {}, watermark_ms=END), record("c", 1, "consumer:g", {}, watermark_ms=END)
    said = await judged(apply(store, *spoken, first=3))
    assert said == {"producer->broker": Verdict.COMPLETE, "broker->consumer:g": Verdict.LOSS}


async def test_what_is_listed_is_written_beside_the_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200,000 sessions, which a week may have, nothing else was done for seconds, and the canary took that for the cluster's."""
    threads: list[threading.Thread] = []
    listed = application._listed

    def noted(request: Request, rows: Iterable[Mapping[str, Any]]) -> Response:
        threads.append(threading.current_thread())
        return listed(request, rows)

    monkeypatch.setattr(application, "_listed", noted)
    await counter_of(store)._judge(apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END)))
    asked = AuditApplication(counter_of(store), SystemClock())
    between = f"from={START}&to={END}".encode()
    for path in ("/v1/sessions", "/v1/topics", "/v1/topics/clicks/edges", "/v1/topics/clicks/partitions"):
        assert await answer(asked, path, between if "clicks" in path else b""), path
    assert len(threads) == 4 and threading.main_thread() not in threads


async def test_more_verdicts_than_are_looked_at_are_refused_and_not_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a week with ten groups there are so many, and the latest windows would be left out."""
    edges = [EdgeVerdict("producer", "broker", Verdict.COMPLETE), EdgeVerdict("broker", "consumer:g", Verdict.COMPLETE)]
    for number in range(3):
        store.put_verdicts("clicks", START + number * MINUTE, edges)
    store.put_verdicts("clicks", START + 3 * MINUTE, [EdgeVerdict("producer", "broker", Verdict.LOSS, missing=1)])
    monkeypatch.setattr("ottla.audit_counter.service.MOST_VERDICTS", 4)
    counter = counter_of(store)
    assert (await counter.summary("clicks", 0, 1 << 60, ("producer", "broker"))).exit_code == 1
    with pytest.raises(InvalidRequest, match="shorter time"):
        await counter.summary("clicks", 0, 1 << 60)


def test_what_was_known_of_windows_is_found_whatever_lies_between_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store.verdicts, "__defaults__", (None, 0, 1 << 62, (), 4))
    said = EdgeVerdict("producer", "broker", Verdict.COMPLETE, revision=3, known=(1, 1))
    for number in range(10):
        store.put_verdicts("clicks", START + number * MINUTE, [said])
    counter = counter_of(store)
    apply(store, produced(0, ALL, watermark_ms=END))
    events, _ = counter._judge_in_store("clicks", [START, START + 9 * MINUTE], None)
    assert [event.verdict.revision for event in events] == [3, 3]


def test_verdicts_are_read_as_they_were_written_and_go_with_their_windows(store: Store) -> None:
    said = EdgeVerdict("a", "b", Verdict.LOSS, "why", "placed", 10, 9, 1, 0, 0, 2, ("h",), (Named(2, 7, 1),), 3)
    apply(store, produced(0, ALL))
    store.put_verdicts("clicks", START, [said])
    assert store.verdicts("clicks") == [("clicks", START, said)]
    assert store.verdicts(kinds=(Verdict.COMPLETE,)) == []
    store.purge(NOW)
    assert store.verdicts("clicks")
    assert store.purge(NOW + 169 * HOUR) == 1
    assert store.verdicts("clicks") == []


def test_a_torn_file_is_set_apart_and_everything_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    store = Store(path, MINUTE, HOUR)
    apply(store, produced(0, ALL))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(b"torn" + whole[4:])
    store = Store(path, MINUTE, HOUR)
    assert store.next_offsets("topic-1") == {}
    assert path.with_suffix(".torn").exists()
    store.close()


def test_a_torn_file_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is no failure of ours with a traceback. Method: SQLite cannot make the second file."""
    path = tmp_path / "audit.db"
    path.write_bytes(b"torn" * 1024)
    connect = sqlite3.connect

    def connected(database: Path, **keywords: Any) -> sqlite3.Connection:
        if not path.exists():
            raise sqlite3.OperationalError("database or disk is full")
        connection: sqlite3.Connection = connect(database, **keywords)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)
    with pytest.raises(StoreFailed, match=r"audit\.db cannot be opened: database or disk is full"):
        Store(path, MINUTE, HOUR)


def test_a_full_disk_takes_nothing_in(store: Store) -> None:
    apply(store, produced(0, ALL))
    before = store.books("clicks", START)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    many = [record("q", number, "producer", {START: headers([number])}, topic=f"t{number}", host="h" * 500) for number in range(100)]
    with pytest.raises(StoreFailed, match="full"):
        apply(store, produced(1, [100]), *many, first=1)
    assert store.next_offsets("topic-1") == {0: 1}
    assert store.books("clicks", START) == before
    store._connection.execute("PRAGMA max_page_count = 1073741823")
    apply(store, produced(1, [100]), *many, first=1)
    assert count_of(store, "producer") == 101
    assert store.counters.repeated == 0


def test_two_counters_cannot_have_one_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "audit.db", MINUTE, HOUR)
    script = (
        "import sys; from pathlib import Path; from ottla.audit_counter import store\n"
        "real = store.sqlite3.connect\n"
        "store.sqlite3.connect = lambda *a, **k: real(*a, **{**k, 'timeout': 0.1})\n"
        "store.Store(Path(sys.argv[1]), 60000, 1)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "audit.db")], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode
    assert "locked" in found.stderr
    store.close()


def test_a_former_term_cannot_write(store: Store) -> None:
    store.raise_epoch(4)
    store.raise_epoch(4)
    with pytest.raises(StoreFailed, match="term 3 is over"):
        store.raise_epoch(3)
    assert store.epoch == 4


def test_another_window_needs_another_file(tmp_path: Path) -> None:
    Store(tmp_path / "audit.db", MINUTE, HOUR).close()
    with pytest.raises(StoreFailed, match=r"audit\.window\.ms is 10000"):
        Store(tmp_path / "audit.db", 10_000, HOUR)


_WRITER = """
import sys
from pathlib import Path
from ottla.audit_counter.store import Store
from tests.unit.audit_counter.records import MINUTE, NOW, read, produced
store = Store(Path(sys.argv[1]), MINUTE, 3_600_000)
offset = store.next_offsets("topic-1").get(0, 0)
print("open", flush=True)
for number in range(offset, 100_000):
    store.apply(read(produced(number, [number]), first=number), {0: number + 1}, NOW)
    print(number, flush=True)
"""


def test_kill_9_counts_nothing_twice_and_nothing_less(tmp_path: Path) -> None:
    """The process is killed in the middle of its writing, twice; what is there is what the offset says."""
    path = tmp_path / "audit.db"
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
        process.stdout.close()
        store = Store(path, MINUTE, HOUR)
        done = store.next_offsets("topic-1")[0]
        (had,) = store.books("clicks", START).tallies["producer"].values()
        assert (had.count, had.last_offset) == (done, done - 1)
        store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_the_log_said_is_old_once_more_was_written(store: Store) -> None:
    apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END))
    put_log(store, ALL)
    assert store.books("clicks", START).repeated == 0
    store.apply([Read(0, 2, consumed(0, ALL, 100))], {0: 3}, NOW)
    assert store.books("clicks", START).repeated == 0
    store.apply([Read(0, 3, produced(1, [100], watermark_ms=END))], {0: 4}, NOW)
    assert store.books("clicks", START).repeated is None


def test_what_a_log_says_is_not_taken_in_when_more_was_written_while_it_was_read(store: Store) -> None:
    """The log was read up to offset 99, and a broker says of 100 before that is known: the log has not lost it."""
    apply(store, produced(0, [*ALL, 100], watermark_ms=END, is_final=True), appended(0, ALL, watermark_ms=END))
    store.begin_log("clicks", [START])
    store.apply([Read(0, 2, appended(1, [100], watermark_ms=END))], {0: 3}, NOW)
    store.put_log("clicks", {START: {0: tally(ALL)}}, {0: 100}, {START: 0})
    assert verdicts(store) == {"producer->broker": Verdict.COMPLETE}


@pytest.mark.parametrize("is_folded", [True, False])
def test_what_a_log_says_is_not_taken_in_when_its_window_was_folded_or_forgotten_while_it_was_read(store: Store, is_folded: bool) -> None:
    apply(store, appended(0, ALL))
    store.put_verdicts("clicks", START, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)])
    store.judged(store.unjudged())
    store.begin_log("clicks", [START])
    assert (store.fold(START + 5 * HOUR) if is_folded else store.purge(START + 170 * HOUR)) == 1
    store.put_log("clicks", {START: {0: tally([0])}}, {0: 100}, {START: 0})
    assert [tier for _, tier, _ in store.totals()] == ["broker"] * is_folded


def told(store: Store, start_ms: int) -> list[tuple[str, str]]:
    """Judges a window, and gives edges and verdicts."""
    known = {said.edge: said for _, _, said in store.verdicts("clicks", start_ms, start_ms + 1)}
    books = store.books("clicks", start_ms)
    said = judge(books, ("producer", "broker"), known)
    store.put_verdicts("clicks", start_ms, said, books.window_ms // MINUTE)
    store.judged([("clicks", start_ms), ("clicks", -1)])
    return [(one.edge, str(one.verdict)) for one in said]


def test_an_hour_in_which_all_is_well_is_folded_and_what_comes_late_is_counted_with_it(tmp_path: Path) -> None:
    """Of each tier and partition one row; an hour with a loss stays as it is. What a leader counts again of it changes nothing."""
    hour = START - START % HOUR
    store = Store(tmp_path / "audit.db", MINUTE, 168 * HOUR)
    store.next_offsets("topic-1")
    later = hour + 5 * HOUR
    for number in range(120):
        start_ms, own = hour + number * MINUTE, [offset + 100 * number for offset in ALL]
        produced_here = tally(own)
        produced_here.attempted = produced_here.acknowledged = 100
        bounds = {"first_offset": own[0], "next_offset": own[-1] + 1, "watermark_ms": later}
        apply(
            store,
            record("p", number, "producer", {start_ms: produced_here}, watermark_ms=later),
            record("b", number, "broker", {start_ms: headers(own[1:] if number == 67 else own)}, **bounds),
            record("c1", number, "consumer:g", {start_ms: tally(own[:50])}, **{**bounds, "first_offset": 0}),
            record("c2", number, "consumer:g", {start_ms: tally(own[50:])}, **{**bounds, "first_offset": 0}),
            first=4 * number,
        )
    for number in range(120):
        told(store, hour + number * MINUTE)
    before = store.verdict_counts()
    day = store.partitions("clicks", hour, hour + 24 * HOUR)
    assert {row[3] for row in before} == {"COMPLETE", "LOSS", "DUPLICATE"}
    assert store.fold(later) == 60
    assert store.fold(later) == 0
    assert store.windows_of("clicks", hour, hour + HOUR) == [hour]
    assert len(store.windows_of("clicks", hour + HOUR, hour + 2 * HOUR)) == 60, "one of them has a loss"
    (rows,) = store._connection.execute("SELECT COUNT(*) FROM counts WHERE start_ms < ?", (hour + HOUR,)).fetchone()
    assert rows == 3, "60 windows of a producer, a broker, and a consumer on two hosts"
    assert [row[:7] for row in store.verdict_counts()] == [row[:7] for row in before]
    assert store.totals() == [("clicks", tier, count) for tier, count in (("broker", 11_999), ("consumer:g", 12_000), ("producer", 12_000))]
    after = store.partitions("clicks", hour, hour + 24 * HOUR)
    assert [(tier, number, found.count, found.placed, found.offsets) for tier, number, found in after] == [
        (tier, number, found.count, found.placed, found.offsets) for tier, number, found in day
    ]
    # A leader without notes counts it all again.
    again = {"first_offset": 0, "next_offset": 6_000, "leader_epoch": 3, "watermark_ms": later}
    minutes = {hour + number * MINUTE: headers([offset + 100 * number for offset in ALL]) for number in range(60)}
    store.apply(read(record("b9", 0, "broker", minutes, **again), first=9_000), {0: 0}, later)
    assert dict(told(store, hour)) == {"producer->broker": "COMPLETE", "broker->consumer:g": "COMPLETE"}
    # A message of that hour comes late.
    late = tally([30_000])
    late.attempted = late.acknowledged = 1
    store.apply(
        read(
            record("p", 120, "producer", {hour + MINUTE: late}, watermark_ms=later),
            record("b9", 1, "broker", {hour + MINUTE: headers([30_000])}, first_offset=30_000, next_offset=30_001, watermark_ms=later),
            record("c1", 120, "consumer:g", {hour + MINUTE: tally([30_000])}, watermark_ms=later, first_offset=0, next_offset=30_001),
            first=9_100,
        ),
        {0: 0},
        later,
    )
    assert store.windows_of("clicks", hour, hour + HOUR) == [hour]
    assert dict(told(store, hour)) == {"producer->broker": "LATE", "broker->consumer:g": "LATE"}
    # A restart tries again, and what was folded is folded with what came late.
    store.close()
    store = Store(tmp_path / "audit.db", MINUTE, 168 * HOUR)
    assert store.fold(later) == 1
    assert [row for row in store.verdict_counts() if row[3] == "LATE"] == [
        ("clicks", edge[0], edge[1], "LATE", 60, 0, 0, hour) for edge in (("broker", "consumer:g"), ("producer", "broker"))
    ]
    assert store.purge(hour + 200 * HOUR) > 100
    assert not store.windows_of("clicks")
    store.close()


def folded_hour(store: Store, hour: int, now_ms: int) -> None:
    """Sixty windows of a producer and a broker, a message in each, folded into one."""
    for number in range(60):
        start_ms, one, bounds = hour + number * MINUTE, tally([number]), {"first_offset": number, "next_offset": number + 1}
        one.attempted = one.acknowledged = 1
        store.apply(
            read(
                record("p", number, "producer", {start_ms: one}, watermark_ms=now_ms),
                record("b", number, "broker", {start_ms: headers([number])}, **bounds, watermark_ms=now_ms),
                first=2 * number,
            ),
            {0: 2 * number + 2},
            now_ms,
        )
        assert told(store, start_ms) == [("producer->broker", "COMPLETE")]
    assert store.fold(now_ms) == 60


def test_topics_that_are_folded_one_after_the_other_are_all_folded_when_the_hour_ends_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was the next hour by then stayed as it was, of those that had had their turn."""
    monkeypatch.setattr("ottla.audit_counter.store._FOLDED_AT_ONCE", 1)
    hour = START - START % HOUR
    for number, (topic, start_ms) in enumerate((topic, hour + since * HOUR) for since in range(2) for topic in "ab"):
        apply(store, record("b", number // 2, "broker", {start_ms: headers([0])}, topic=topic), first=number)
        store.put_verdicts(topic, start_ms, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)])
    store.judged(store.unjudged())
    assert sum(store.fold(hour + later * HOUR + MINUTE) for later in (3, 4, 4, 4)) == 4


def test_an_hour_with_a_loss_at_the_last_of_very_many_groups_is_not_folded(tmp_path: Path) -> None:
    """It has more verdicts than are answered at once, and those behind them were not looked at."""
    store = Store(tmp_path / "audit.db", 10_000, 168 * HOUR)
    hour = START - START % HOUR
    starts, groups = range(hour, hour + HOUR, 10_000), [f"consumer:{number:03}" for number in range(278)]
    apply(store, record("b", 0, "broker", {start_ms: headers([0]) for start_ms in starts}, window_ms=10_000))
    for start_ms in starts:
        store.put_verdicts("clicks", start_ms, [EdgeVerdict("broker", group, Verdict.COMPLETE) for group in groups])
    store.put_verdicts(
        "clicks",
        starts[-1],
        [EdgeVerdict("broker", group, Verdict.COMPLETE) for group in groups[:-1]]
        + [EdgeVerdict("broker", groups[-1], Verdict.LOSS, missing=1)],
    )
    store.judged(store.unjudged())
    assert store.fold(hour + 5 * HOUR) == 0
    assert store.windows_with([Verdict.LOSS]) == {("clicks", starts[-1])}


def test_what_came_late_to_a_folded_hour_and_is_counted_again_by_the_next_leader_is_no_loss(store: Store) -> None:
    """Where both lie in one window of the range it cannot be told apart from what was folded."""
    hour = START - START % HOUR
    later = hour + 5 * HOUR
    folded_hour(store, hour, later)
    late = tally([60])
    late.attempted = late.acknowledged = 1
    again = {"first_offset": 0, "next_offset": 61, "watermark_ms": later, "leader_epoch": 3, "reported_ms": later}
    windows = {hour + number * MINUTE: headers([number]) for number in range(60)}
    mixed = {**windows, hour: headers([0, 60])}
    store.apply(read(record("p", 60, "producer", {hour: late}, watermark_ms=later), first=120), {0: 121}, later)
    store.apply(read(record("b2", 0, "broker", mixed, **again), first=121), {0: 122}, later)
    assert told(store, hour) == [("producer->broker", "UNAUDITED")]


async def test_who_asks_for_a_part_of_a_folded_hour_is_told_what_is_said_of_the_hour(store: Store) -> None:
    """Nothing at all would be PENDING for good, and what came late to the hour and is lost would pass for COMPLETE."""

    async def said(from_minute: int, to_minute: int) -> tuple[int, Verdict, int]:
        found = await counter.summary("clicks", hour + from_minute * MINUTE, hour + to_minute * MINUTE)
        return found.windows, found.verdict, found.exit_code

    counter = counter_of(store)
    hour = START - START % HOUR
    later = hour + 5 * HOUR
    folded_hour(store, hour, later)
    assert await said(15, 45) == await said(0, 60) == (1, Verdict.COMPLETE, 0)
    times = f"from={hour + 15 * MINUTE}&to={hour + 45 * MINUTE}".encode()
    (edge,) = await answer(AuditApplication(counter, SystemClock()), "/v1/topics/clicks/edges", times)
    assert (edge["window"], edge["window_ms"]) == (hour, HOUR), "a page that took it for a window showed nothing for the rest of the hour"
    assert await said(60, 75) == (0, Verdict.PENDING, 3)
    store.put_verdicts("clicks", hour, [EdgeVerdict("producer", "broker", Verdict.LOSS, missing=1)])
    store.put_verdicts("clicks", hour + HOUR, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)])
    assert (await said(15, 75))[1:] == (Verdict.LOSS, 1)
    # Of windows that are not folded only those count that begin in the time.
    assert store.begin_of("clicks", hour + HOUR + 15 * MINUTE) == hour + HOUR + 15 * MINUTE


def test_an_hour_is_folded_with_what_its_log_told_of_headers(store: Store) -> None:
    """By its batch's header the last message of an hour is of the next one. What comes late to either is compared with what clients had."""
    hour = START - START % HOUR
    later, last, following = hour + 5 * HOUR, hour + 59 * MINUTE, hour + HOUR

    def sent(sequence: int, windows: dict[int, list[int]]) -> AuditRecord:
        found = {start_ms: tally(offsets) for start_ms, offsets in windows.items()}
        for one in found.values():
            one.attempted = one.acknowledged = one.count
        return record("p", sequence, "producer", found, watermark_ms=later)

    def counted(sequence: int, first: int, windows: dict[int, list[int]]) -> AuditRecord:
        bounds = {"first_offset": first, "next_offset": max(map(max, windows.values())) + 1, "watermark_ms": later}
        return record("b", sequence, "broker", {start_ms: headers(offsets) for start_ms, offsets in windows.items()}, **bounds)

    wanted = {last: [*range(11)], following: [11, 12]}
    store.apply(read(sent(0, wanted), counted(0, 0, {last: [*range(10)], following: [10, 11, 12]})), {0: 2}, later)
    store.begin_log("clicks", wanted)
    tallies = {start_ms: {0: tally(offsets)} for start_ms, offsets in wanted.items()}
    sums = OffsetSums.of_range(10, 10)
    moved = {last: {0: Moved(-1, OffsetSums().minus(sums))}, following: {0: Moved(1, sums)}}
    store.put_log("clicks", tallies, {0: 13}, dict.fromkeys(wanted, 0), moved)
    assert {verdict for start_ms in wanted for _, verdict in told(store, start_ms)} == {"COMPLETE"}
    assert store.fold(later) == 2
    late = {last: [13], following: [14]}
    store.apply(read(sent(1, late), counted(1, 13, late), first=2), {0: 4}, later)
    assert [told(store, start_ms) for start_ms in (hour, following)] == [[("producer->broker", "LATE")]] * 2


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_leader_that_counts_again_what_is_past_the_retention_makes_no_loss_and_no_duplicate(store: Store, is_folded: bool) -> None:
    """Of a slow topic a block of offsets is of more than a week: with each new leader all of it is counted again."""
    hour = START - START % HOUR
    later = hour + 5 * HOUR
    if is_folded:
        folded_hour(store, hour, later)
    else:
        apply(store, produced(0, ALL, watermark_ms=later), appended(0, ALL, watermark_ms=later))
        assert told(store, START) == [("producer->broker", "COMPLETE")]
    now_ms = (hour + 30 * MINUTE if is_folded else START + 1) + 168 * HOUR + 2 * MINUTE
    windows = {hour + number * MINUTE: headers([number]) for number in range(60)} if is_folded else {START: headers(ALL)}
    if is_folded:
        store.purge(now_ms)
    next_offset = 60 if is_folded else 100
    again = record("b2", 0, "broker", windows, first_offset=0, next_offset=next_offset, leader_epoch=3, watermark_ms=now_ms)
    changed = store.apply(read(again, first=200), {0: 201}, now_ms).changed
    assert {verdict for _, start_ms in changed if start_ms >= 0 for _, verdict in told(store, start_ms)} <= {"COMPLETE"}
    assert {said.verdict for _, _, said in store.verdicts("clicks")} == {Verdict.COMPLETE}
    assert store.totals() == [("clicks", "broker", next_offset), ("clicks", "producer", next_offset)]


def test_what_comes_of_a_window_that_is_past_the_retention_and_still_kept_is_counted(store: Store) -> None:
    """A consumer that is as far behind as the counter remembers: what it had first was counted, and so is the rest."""
    apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END), consumed(0, ALL[:50], 50))
    now_ms = END + 168 * HOUR
    store.purge(now_ms)
    store.apply(read(consumed(1, ALL[50:], 100), first=3), {0: 4}, now_ms)
    assert told(store, START) == [("producer->broker", "COMPLETE"), ("broker->consumer:g", "COMPLETE")]
    # Of a window that is not kept nothing is said, nor does it matter.
    gaps = store.counters.gaps
    store.apply(read(record("p2", 0, "producer", {START - HOUR: tally([0])}), first=4), {0: 5}, now_ms)
    assert (store.counters.gaps, store.counters.windows_refused) == (gaps, 1)


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_window_that_comes_to_be_past_the_retention_between_two_reports_is_no_loss(store: Store, is_purged: bool) -> None:
    """As while records of a week ago are sent again with their times. What one tier said is kept just as long as what others may say."""
    hour = START - START % HOUR
    now_ms = START + MINUTE + 168 * HOUR - 1
    store.purge(now_ms)
    store.apply(read(produced(0, ALL, watermark_ms=now_ms)), {0: 1}, now_ms)
    later = hour + 169 * HOUR + MINUTE if is_purged else now_ms + 2_000
    assert store.is_purge_due(later) is is_purged
    if is_purged:
        store.purge(later)
    store.apply(read(appended(0, ALL, watermark_ms=later), first=1), {0: 2}, later)
    assert store.windows_of("clicks") == ([] if is_purged else [START])
    assert is_purged or verdicts(store) == {"producer->broker": Verdict.COMPLETE}


async def test_what_is_said_between_a_verdict_and_its_note_is_unjudged(store: Store) -> None:
    """A kill may come before it is judged: then the next start has to know of it."""

    async def in_store(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        found = function(*arguments, **keywords)
        if function == counter._judge_in_store:
            apply(store, appended(1, [0], first_offset=100, next_offset=101), first=2)
        return found

    counter = counter_of(store, in_store)
    await counter._judge(apply(store, produced(0, ALL, watermark_ms=END), appended(0, ALL, watermark_ms=END)))
    assert store.unjudged() == {("clicks", START), ("clicks", -1)}


async def test_a_log_that_was_read_has_its_own_window_judged_and_no_other(store: Store) -> None:
    """A counter that takes over reads the logs of a week: as many windows would be judged for each of them."""
    counter = counter_of(store)
    one = tally([0])
    one.attempted = one.acknowledged = 1
    windows = {START - number * MINUTE: one for number in range(100)}
    await counter._judge(apply(store, record("p", 0, "producer", windows), appended(0, ALL)))
    assert counter.progress.judged == 100
    await counter._judge({("clicks", START)}, _LogCount(START, MINUTE))
    assert counter.progress.judged == 101
    await counter._judge({("clicks", -1)})
    assert counter.progress.judged == 201


async def test_a_log_is_not_read_for_a_window_that_was_folded_or_forgotten_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that stood by for long has many to read: one window's log stood for the hour, and the rest of it was called lost."""

    async def no_id(counter: AuditCounter, topic: str) -> None: ...

    async def log_of_one(counter: AuditCounter, topic: str, start_ms: int, bounds: object) -> tuple[_LogCount, dict[int, int]]:
        counts = _LogCount(start_ms, MINUTE)
        counts.tallies[0] = tally([0])
        return counts, {0: 60}

    monkeypatch.setattr(AuditCounter, "_topic_id", no_id)
    monkeypatch.setattr(AuditCounter, "_count_log", log_of_one)
    counter = counter_of(store, verify="records")
    hour = START - START % HOUR
    folded_hour(store, hour, hour + 5 * HOUR)
    before = store.verdicts()
    for start_ms in (hour, hour + MINUTE, hour - 200 * HOUR):
        await counter.read_log("clicks", start_ms)
        assert store.verdicts() == before, start_ms
    assert store.windows_of("clicks") == [hour]


async def test_windows_that_are_too_many_to_be_read_at_once_are_read_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of quiet topics were PENDING for good, as no one spoke of them again."""
    read_now: list[str] = []
    is_read = asyncio.Event()

    async def note(counter: AuditCounter, topic: str, start_ms: int) -> None:
        read_now.append(topic)
        put_log(store, ALL, topic)
        await counter._judge({(topic, start_ms)}, _LogCount(start_ms, MINUTE))
        if len(read_now) == 3:
            is_read.set()

    monkeypatch.setattr("ottla.audit_counter.service._MOST_DOUBTS", 1)
    monkeypatch.setattr(AuditCounter, "read_log", note)
    counter = counter_of(store)
    counter.is_active = True
    both = (produced(0, ALL, watermark_ms=END), appended(0, ALL[:99], next_offset=100, watermark_ms=END))
    await counter._judge(apply(store, *(one._replace(topic=topic) for topic in "abc" for one in both)))
    looking = asyncio.ensure_future(counter._look_into_logs())
    try:
        await asyncio.wait_for(is_read.wait(), 10)
    finally:
        looking.cancel()
    assert sorted(read_now) == ["a", "b", "c"]


async def test_sessions_that_have_not_ended_are_counted_by_the_kind_of_their_tier(store: Store) -> None:
    ended = record("d", 0, "consumer:h", {}, is_final=True)
    apply(store, produced(0, ALL), appended(0, ALL), consumed(0, ALL, 100), record("e", 0, "consumer:h", {}), ended)
    assert (await counter_of(store).standing()).sessions == {"producer": 1, "broker": 1, "consumer": 2}
    assert store.silent_sessions(NOW + 1, NOW + 1)
    assert (await counter_of(store).standing()).sessions == {}


async def test_what_may_be_missing_audit_data_is_not_said_to_be_missing_messages(store: Store) -> None:
    """Who saw 1,000 missing of a topic with a loss of 3 looked for messages that are all there."""
    apply(store, produced(0, ALL))
    ends = ("producer", "broker")
    for number, (verdict, missing, surplus) in enumerate(
        [(Verdict.LOSS, 3, 0), (Verdict.DUPLICATE, 0, 2), (Verdict.UNAUDITED, 1000, 500), (Verdict.IN_DOUBT, 70, 60)]
    ):
        store.put_verdicts("clicks", START + number * MINUTE, [EdgeVerdict(*ends, verdict, missing=missing, surplus=surplus)])
    counter = counter_of(store)
    (row,) = await answer(AuditApplication(counter, SystemClock()), "/v1/topics")
    assert (row["missing"], row["surplus"]) == (3, 2)
    collector = Collector(counter, SystemClock())
    await collector.refresh()
    found = {family.metric: family.samples for family in collector.collect() if not isinstance(family, str)}
    edge = ("clicks", "producer->broker")
    assert (found[metrics.MISSING], found[metrics.DUPLICATE]) == ([(edge, 3)], [(edge, 2)])


async def test_latencies_are_added_up_by_the_kind_of_tier_that_is_known_and_each_record_once(store: Store) -> None:
    spent = replace(tally(ALL), latencies=Latencies({0: 3, 1: 2}))
    said = [record("c", number, f"consumer:{number}", {START: spent}) for number in range(2)]
    stranger = record("s", 0, "whatever:a", {START: spent})
    apply(store, *said, stranger)
    apply(store, *said, first=3)
    (found,) = (await counter_of(store).standing()).latencies.items()
    assert (found[0], found[1].count, found[1].buckets[:2]) == ("consumer", 10, (6, 0))
    with pytest.raises(StoreFailed, match="a full disk"):
        store.apply(failing(record("c", 2, "consumer:0", {START: spent})), {0: 9}, NOW)
    assert (await counter_of(store).standing()).latencies["consumer"].count == 10


def failing(record: AuditRecord) -> Iterator[Read]:
    """Read after all the others, and then the file fails."""
    yield Read(0, 8, record)
    raise sqlite3.OperationalError("a full disk")


@pytest.mark.parametrize("start_ms", [-(1 << 63) + 8_000, (1 << 63) - 55_807])
def test_a_window_at_the_end_of_all_time_is_refused_and_ends_no_counter(store: Store, start_ms: int) -> None:
    """Its hour begins before the lowest number that SQLite takes. The record was read again at each start, and ended it again."""
    start_ms -= start_ms % MINUTE
    apply(store, record("p", 0, "producer", {start_ms: acknowledged(ALL)}), produced(1, ALL))
    assert (store.counters.windows_refused, count_of(store, "producer")) == (1, 100)


async def test_sums_of_forged_counts_end_no_counter(store: Store) -> None:
    """Of some ten thousand records with the largest counts that are allowed: no 64 bits take their sum. Method: fewer, and larger ones."""
    most = 1 << 62
    latencies = Latencies.of_pairs([(7, most)])
    forged = Tally(2 * most, most, most, most, most, 0, 5, offsets=None, latencies=latencies)
    for number in range(3):
        apply(store, record("p", number, "producer", {START: forged}, watermark_ms=END), first=number)
        apply(store, record("q", number, "producer", {START: forged}, watermark_ms=END), first=number + 10)
    apply(store, appended(0, ALL, watermark_ms=END + 1), first=20)
    counter = counter_of(store, verify="never", expected=("producer", "broker"))
    await counter._judge({("clicks", START)})
    collector = Collector(counter, SystemClock())
    await collector.refresh()
    assert list(collector.collect())
    assert (await counter.summary("clicks", 0, 1 << 60)).verdict is Verdict.LOSS
    assert store.partitions("clicks", 0, 1 << 60)


def test_what_is_read_on_where_it_was_writes_nothing_and_a_log_that_was_cut_is_read_from_there(store: Store) -> None:
    """A fetch asks each time; a transaction for it was as much work for the file as what it brought."""
    apply(store, produced(0, ALL), produced(1, ALL))
    before = store._connection.total_changes
    said: list[str] = []
    store._connection.set_trace_callback(said.append)
    store.read_from([(0, 2), (0, 5), (1, 0)])
    assert not said
    store.read_from([(0, 1)])
    store._connection.set_trace_callback(None)
    assert (store._connection.total_changes - before, store.next_offsets("")) == (1, {0: 1})
    store.apply(read(produced(2, ALL), first=1), {0: 2}, NOW)
    assert count_of(store, "producer") == 300


def test_a_window_that_a_mirror_s_missing_report_may_be_of_is_never_complete(store: Store) -> None:
    """The target lost the end of its logs: copies, and what the mirror had said of them. They are older than its report before that."""
    windows = START - 2 * MINUTE, START - MINUTE, START
    parts = {start_ms: headers(ALL[40 * number : 40 * number + 40]) for number, start_ms in enumerate(windows)}
    said = {"watermark_ms": END + HOUR, "reported_ms": END + HOUR}
    apply(
        store,
        record("m", 0, "mirrored:A-B", {one: parts[one] for one in windows[:2]}, first_offset=0, next_offset=80, **said),
        record("m", 2, "mirrored:A-B", {START: parts[START]}, first_offset=80, next_offset=100, **said),
        record("b", 0, "broker", parts, first_offset=0, next_offset=100, watermark_ms=END),
    )
    found = [judge(store.books("clicks", start_ms), ("producer", "broker"))[0].verdict for start_ms in windows]
    assert found == [Verdict.COMPLETE, Verdict.UNAUDITED, Verdict.UNAUDITED]


async def test_verdicts_are_left_to_another_counter_only_while_there_is_an_active_one(store: Store) -> None:
    """Without ZooKeeper all stand by: what changed more than ten minutes before it was back came to no topic."""
    server = AuditServer(cast(Any, None), cast(Any, object()))
    server.counter = counter_of(store)
    store.put_verdicts("clicks", START, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)], now_ms=NOW)
    server.term_ended()
    server.counter._purge(NOW + HOUR)
    assert store.unwritten(1)
    await server.term_begins(Term(b"another", 2, None))
    server.counter._purge(NOW + HOUR)
    assert not store.unwritten(1)


def test_verdicts_that_are_forgotten_are_not_to_be_written_any_more(store: Store) -> None:
    """Where no counter is active, as ZooKeeper is away, the list of them grew for as long as that took."""
    for start_ms in (START, START + 10 * HOUR):
        store.put_verdicts("clicks", start_ms, [EdgeVerdict("producer", "broker", Verdict.COMPLETE)], now_ms=NOW)
    store.purge(NOW + 171 * HOUR)
    assert [start_ms for _, start_ms, _, _ in store.unwritten(10)] == [START + 10 * HOUR]


async def test_a_topic_whose_logs_cannot_be_read_keeps_no_other_topic_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that the counter may not read, each minute left a window to be tried again: a week of them were all that was ever tried."""
    tried: list[str] = []
    is_read = asyncio.Event()

    async def fail(counter: AuditCounter, topic: str, start_ms: int) -> None:
        tried.append(topic)
        if topic == "a":
            raise TopicAuthorizationFailed("a")
        is_read.set()

    monkeypatch.setattr("ottla.audit_counter.service._MOST_DOUBTS", 20)
    monkeypatch.setattr(AuditCounter, "read_log", fail)
    counter = counter_of(store)
    counter.is_active = True
    windows = {START - number * MINUTE: acknowledged(ALL) for number in range(30)}
    behind = {start_ms: headers(ALL[:99]) for start_ms in windows}
    unreadable = record("p", 0, "producer", windows, topic="a", watermark_ms=END)
    had = record("b", 0, "broker", behind, topic="a", first_offset=0, next_offset=100, watermark_ms=END)
    await counter._judge(apply(store, unreadable, had))
    looking = asyncio.ensure_future(counter._look_into_logs())
    try:
        await until(lambda: tried)
        both = (produced(0, ALL, watermark_ms=END), appended(0, ALL[:99], next_offset=100, watermark_ms=END))
        await counter._judge(apply(store, *both, first=2))
        await asyncio.wait_for(is_read.wait(), 60)
    finally:
        looking.cancel()
    assert len(tried) < 10


async def test_a_reader_that_keeps_up_is_sent_all_verdicts_that_become_known_together(store: Store) -> None:
    """A producer's final word makes a day of windows known: all of these came at once, and every reader was ended as too slow."""
    count = 1_500
    windows = {START - number * MINUTE: acknowledged(ALL[:1]) for number in range(count)}
    apply(store, record("p", 0, "producer", windows, watermark_ms=END), appended(0, ALL[:1], watermark_ms=END))
    in_store = ThreadOffload(1, "store")
    counter = counter_of(store, in_store, verify="never", expected=("producer", "broker"))
    found: dict[int, Verdict] = {}

    async def watch() -> None:
        async for event in counter.watch():
            found[event.start_ms] = event.verdict.verdict

    watching = asyncio.ensure_future(watch())
    await until(lambda: counter._watchers)
    await counter._judge(("clicks", start_ms) for start_ms in windows)
    await until(lambda: watching.done() or len(found) == count)
    watching.cancel()
    in_store.close()
    assert found.keys() == windows.keys()
