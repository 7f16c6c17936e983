"""What is said of an edge: two tiers, one topic, one window. The table, first match:

    UNAUDITED    a tier does not report, or audit data is missing that may explain what differs: never COMPLETE by silence
    PENDING      not known yet: a session may still have older messages, or the tier behind has not come so far, or something differs,
                 or a broker should have come so far, and the log is still to be read, or to be read again for what may have come since
    LOSS         acknowledged messages that the tier behind does not have
    COMPENSATED  as many messages, and others
    DUPLICATE    more messages than were attempted
    IN_DOUBT     attempted, not acknowledged; or a session that died before its final word: a producer's that may have sent more, or a
                 consumer's that may have had what is missing; or those of all brokers, which may have had more than a tier behind
    LATE         all is there, and some of it came after the window was known
    COMPLETE     the same multiset

An edge is judged by the strongest evidence that both its ends have, and the verdict says which: `placed` (contents at their offsets),
`offsets` (sums of them), `content`, or `counts`. Sketches name what differs, as long as it is some tens. Beyond that a log that was read
names it where it is one run of offsets of a partition, by the difference of the digests; and piece by piece, where a tier has reported a
window in pieces: each has a sketch of its own, to compare with the log's range of the same offsets. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from ottla.audit_counter.books import BROKER, CONSUMER, LOG, PRODUCER, Books, has_same_offsets, is_mirrored, is_writer, last_offsets
from ottla.audit_counter.windows import are_cut_off, has_come_to, is_in_doubt, lacks_audit_data, may_have_had_more, watermark_of
from ottla.record.audit_records import NO_PARTITION, WRONG, Tally, Verdict
from ottla.record.digests import MASK_64, MASK_128, Difference, Sketch, place_of

NOT_KNOWN: Final = frozenset({Verdict.PENDING, Verdict.UNAUDITED, Verdict.IN_DOUBT})


@dataclass(frozen=True, slots=True)
class Named:
    """One message that differs.

    Attributes:
        times: above zero, how often the tier behind lacks it; below, how often it has it too much.
    """

    partition: int
    offset: int
    times: int


@dataclass(frozen=True, slots=True)
class EdgeVerdict:
    """What is said of one edge.

    Attributes:
        upstream_count, downstream_count: messages at each end.
        missing, surplus: messages that the tier behind lacks, and has too much.
        in_doubt: attempted, and neither acknowledged nor failed.
        partition, hosts: the first that differs; -1 and none if nothing does.
        named: the messages that differ, if sketches told all of them.
        revision: how often what was known has changed.
    known: the counts when it was known last; None: never.
    awaited: sessions of a group, with the next record of each when something was missing first: one may have had it and not said so yet.
    """

    upstream: str
    downstream: str
    verdict: Verdict
    reason: str = ""
    evidence: str = ""
    upstream_count: int = 0
    downstream_count: int = 0
    missing: int = 0
    surplus: int = 0
    in_doubt: int = 0
    partition: int = NO_PARTITION
    hosts: tuple[str, ...] = ()
    named: tuple[Named, ...] = ()
    revision: int = 0
    known: tuple[int, int] | None = None
    awaited: tuple[tuple[str, int], ...] = ()

    @property
    def edge(self) -> str:
        """As a person writes it."""
        return f"{self.upstream}->{self.downstream}"

    @property
    def unknown(self) -> str:
        """Why what differs cannot be said, of the window; empty if it can."""
        known = {Verdict.PENDING: "not known yet", Verdict.UNAUDITED: "not known"}.get(self.verdict)
        return "" if known is None else f"{known}: {self.reason}"

    @property
    def waits_for_log(self) -> bool:
        """Whether the log has to be read before this is known, or to be read again."""
        return self.verdict is Verdict.PENDING and self.reason in (_LOG_IS_TO_COME, _LOG_IS_OLD, _IS_OVERDUE)

    @property
    def is_open(self) -> bool:
        """Whether what sessions still say of other windows may make it known."""
        return self.verdict is Verdict.PENDING or self.reason.endswith(_BEHIND) or self.reason == _BROKERS_DIED

    @property
    def is_unnamed(self) -> bool:
        """Whether messages differ that sketches could not name."""
        return self.verdict in WRONG and not _is_whole(self.named, self.missing, self.surplus)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Of one partition."""

    missing: int = 0
    surplus: int = 0
    is_other: bool = False
    evidence: str = "counts"
    named: tuple[Named, ...] = ()
    runs: tuple[Run, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def is_unnamed(self) -> bool:
        return (self.is_other or self.missing + self.surplus > 0) and not _is_whole(self.named, self.missing, self.surplus)


class Run(NamedTuple):
    """So many messages between two offsets: above zero, that the tier behind lacks; below, that it has too much."""

    first: int
    last: int
    messages: int


class Log(Protocol):
    """What was read just now of a window's log, and what tiers have reported of the same messages, piece by piece."""

    def part(self, partition: int, first: int, last: int) -> Tally:
        """What the log has of the window between two offsets."""

    def find(self, partition: int, total: int, count: int) -> tuple[int, int] | None:
        """The first and the last of so many messages of the window, one after the other, with a digest of their places."""

    def pieces(self, tier: str, partition: int) -> Sequence[tuple[str, Tally]]:
        """What each host of a tier has reported, in the pieces in which it did; empty where it was not looked for."""


_NOTHING: Final = Tally()
_LOG_IS_TO_COME: Final = "something differs, and the log is still to be read"
_BEHIND: Final = "has not come so far"
_LOG_IS_OLD: Final = "the log is read again"
_IS_OVERDUE: Final = f"{BROKER} {_BEHIND} though it has spoken since, and the log is still to be read"
_GROUP_IS_TO_SPEAK: Final = "something is missing, and another consumer of the group may have had it and is still to speak"
_BROKERS_DIED: Final = f"the sessions of {BROKER} ended without a final word"
_MOST_AWAITED: Final = 100
_MOST_RUNS: Final = 10
_ALL: Final = MASK_64 >> 1


def judge(
    books: Books,
    expected: tuple[str, ...],
    known: Mapping[str, EdgeVerdict] | None = None,
    log: Log | None = None,
    *,
    reads_logs: bool = False,
) -> list[EdgeVerdict]:
    """What is said of each edge of a window.

    Args:
        expected: tiers whose silence is said.
        known: what was said before, by the edge.
        log: if it was read just now.
        reads_logs: nothing is said to differ before the log was read, as it may tell that nothing does.
    """
    if books.is_former:
        return _judge_former(books, expected, known or {})
    joined, found = books.joined(), []
    if books.repeated is None:
        log = None  # more was written while it was read
    for edge in books.edges(expected):
        said = _judge_edge(books, joined, log, *edge)
        if reads_logs and books.repeated is None and not books.is_log_gone and said.reason == f"{BROKER} {_BEHIND}" and _is_overdue(books):
            said = _waiting(said, _IS_OVERDUE)
        if not reads_logs and said.missing and said.downstream == BROKER and not _is_overdue(books) and _has_unknown_offsets(books, joined):
            said = _waiting(said, f"{BROKER} {_BEHIND}")
        former = (known or {}).get(said.edge)
        if log is None and former is not None:
            said = _as_the_log_told(former, said)
        if known is not None and said.verdict in WRONG and said.missing:
            said = _once_the_group_has_spoken(books, former, said)
        again = revised(former, said)
        if log is None and not books.is_log_gone and said.verdict in WRONG:
            if books.repeated is None:
                again = revised(former, _waiting(said, _LOG_IS_TO_COME)) if reads_logs else again
            elif (said.upstream == LOG and said.verdict is Verdict.DUPLICATE and again != former) or (
                reads_logs and former is not None and former.verdict not in WRONG  # as it was read before, it may be a former topic's
            ):
                again = revised(former, _waiting(said, _LOG_IS_OLD))
        found.append(again)
    lost = (known or {}).get(EdgeVerdict(BROKER, LOG, Verdict.LOSS).edge)
    if reads_logs and books.repeated is None and lost is not None and (lost.verdict in WRONG or lost.waits_for_log):
        said = _judge_edge(books, joined, None, BROKER, LOG)  # what came late has made the log old, and not what it had lost well
        found.append(revised(lost, said if books.is_log_gone else _waiting(said, _LOG_IS_TO_COME)))
    return found


def _once_the_group_has_spoken(books: Books, former: EdgeVerdict | None, said: EdgeVerdict) -> EdgeVerdict:
    """What is missing at a group of several consumers is not said before each of them has spoken again, or is dead.

    One that a partition was taken from reports what it had of it up to an interval later than the one that reads on from there.
    """
    if not said.downstream.startswith(CONSUMER):
        return said
    living = {one.session: one.next_sequence for one in books.sessions.get(said.downstream, ()) if not one.is_final and not one.is_dead}
    awaited = former.awaited if former is not None and former.verdict in WRONG | {Verdict.PENDING} else ()
    if not awaited and len(living) > 1 and (former is None or former.verdict not in WRONG):
        awaited = tuple(living.items())[:_MOST_AWAITED]
    said = replace(said, awaited=awaited)
    is_awaited = any(living.get(session, next_sequence + 1) <= next_sequence for session, next_sequence in awaited)
    return _waiting(said, _GROUP_IS_TO_SPEAK) if is_awaited else said


def _judge_former(books: Books, expected: tuple[str, ...], known: Mapping[str, EdgeVerdict]) -> list[EdgeVerdict]:
    """Of a window of a topic that was deleted and made again: what was known of it stays, unless messages of both lie in it."""
    reason = "messages of two topics of this name lie in the window" if books.is_mixed else "the topic was deleted before this was known"
    edges = {
        EdgeVerdict(upstream, downstream, Verdict.UNAUDITED).edge: (upstream, downstream) for upstream, downstream in books.edges(expected)
    }
    edges |= {edge: (former.upstream, former.downstream) for edge, former in known.items()}
    found = []
    for edge, ends in edges.items():
        former = known.get(edge)
        if former is not None and not books.is_mixed and former.verdict not in (Verdict.PENDING, Verdict.UNAUDITED):
            found.append(former)
        else:
            counts = (0, 0) if former is None else (former.upstream_count, former.downstream_count)
            said = EdgeVerdict(*ends, Verdict.UNAUDITED, reason, upstream_count=counts[0], downstream_count=counts[1])
            found.append(revised(former, said))
    return found


def _waiting(said: EdgeVerdict, reason: str) -> EdgeVerdict:
    return replace(said, verdict=Verdict.PENDING, reason=reason, missing=0, surplus=0, partition=NO_PARTITION, hosts=(), named=())


def _judge_edge(books: Books, joined: Mapping[str, Mapping[int, Tally]], log: Log | None, upstream: str, downstream: str) -> EdgeVerdict:
    above = books.written(joined) if is_writer(upstream) else joined.get(upstream, {})
    below = joined.get(downstream, {})
    attempts = [tally for tally in above.values() if tally.attempted]
    outstanding = max(0, sum(t.attempted for t in attempts) - sum(t.acknowledged + t.failed for t in above.values()))
    failed = sum(tally.failed for tally in above.values())
    said = EdgeVerdict(
        upstream,
        downstream,
        Verdict.COMPLETE,
        upstream_count=sum(tally.count for tally in above.values()),
        downstream_count=sum(tally.count for tally in below.values()),
        in_doubt=outstanding,
    )
    for tier in (upstream, downstream):
        if tier not in books.reporting:
            return replace(said, verdict=Verdict.UNAUDITED, reason=f"{tier} does not report")
    if books.is_log_gone and books.repeated is None and LOG in (upstream, downstream):
        return replace(said, verdict=Verdict.UNAUDITED, reason="the log is gone, or a part of it, and was not read before")
    waiting = _unknown(books, above, below, upstream, downstream)
    sessions = (*books.sessions.get(upstream, ()), *books.sessions.get(downstream, ()))
    if waiting.endswith(_BEHIND) and lacks_audit_data(sessions, books.start_ms, books.end_ms):
        return replace(said, verdict=Verdict.UNAUDITED, reason=f"audit data is missing, and {waiting}")
    if waiting:
        return replace(said, verdict=Verdict.PENDING, reason=waiting)
    beginnings = books.beginnings.get(downstream, {}) if downstream != LOG else {}
    for partition, tally in above.items():
        if 0 <= tally.first_offset < beginnings.get(partition, 0):
            reason = f"{downstream} began at offset {beginnings[partition]} of partition {partition}"
            return replace(said, verdict=Verdict.UNAUDITED, reason=reason, partition=partition)
    compared = {
        partition: _compare(above.get(partition, _NOTHING), below.get(partition, _NOTHING))
        for partition in sorted(above.keys() | below.keys() - {NO_PARTITION})
        if partition != NO_PARTITION
    }
    if log is not None:
        for partition, comparison in compared.items():
            if comparison.is_unnamed:
                one, other = above.get(partition, _NOTHING), below.get(partition, _NOTHING)
                compared[partition] = _explained(comparison, one, other, books, partition, log, upstream, downstream)
    missing = sum(comparison.missing for comparison in compared.values())
    surplus = sum(comparison.surplus for comparison in compared.values())
    differing = [number for number, comparison in compared.items() if comparison.missing or comparison.surplus or comparison.is_other]
    said = replace(
        said,
        missing=missing,
        surplus=surplus,
        evidence=_weakest(comparison.evidence for comparison in compared.values()),
        named=tuple(named for comparison in compared.values() for named in comparison.named),
    )
    if differing:
        first = differing[0]
        hosts = compared[first].hosts or books.hosts(downstream, first) or books.hosts(upstream, first)
        said = replace(said, partition=first, hosts=hosts)
    said = _named_verdict(said, books, compared, outstanding, failed)
    if said.verdict in WRONG and (runs := _runs_text(compared)):
        said = replace(said, reason=runs)
    spoken, window = books.sessions, (books.start_ms, books.end_ms)
    if said.verdict in WRONG | {Verdict.UNAUDITED} and lacks_audit_data(sessions, *window):
        return replace(said, verdict=Verdict.UNAUDITED, reason="audit data is missing, which may be all that differs")
    writers = (session for tier, some in spoken.items() if is_writer(tier) for session in some)
    if said.verdict is Verdict.COMPLETE and is_writer(upstream) and may_have_had_more(writers, *window):
        return replace(said, verdict=Verdict.UNAUDITED, reason="audit data is missing, of messages that may be missing too")
    has_died = downstream.startswith(CONSUMER) and is_in_doubt(spoken.get(downstream, ()), *window)
    if said.verdict in (Verdict.LOSS, Verdict.COMPENSATED) and has_died:
        reason = f"a session of {downstream} ended without a final word, and may have had what is missing"
        return replace(said, verdict=Verdict.IN_DOUBT, reason=reason)
    # What it had sent and not said may be in the log, with the contents of other messages too.
    is_unsaid = (said.verdict is Verdict.COMPLETE and upstream == PRODUCER) or (said.verdict is Verdict.DUPLICATE and is_writer(upstream))
    if is_unsaid and is_in_doubt(spoken.get(PRODUCER, ()), *window):
        return replace(said, verdict=Verdict.IN_DOUBT, reason="a session ended without a final word")
    if said.verdict is Verdict.COMPLETE and upstream == BROKER and are_cut_off(spoken.get(BROKER, ()), *window):
        return replace(said, verdict=Verdict.IN_DOUBT, reason=_BROKERS_DIED)
    return said


def _named_verdict(said: EdgeVerdict, books: Books, compared: Mapping[int, _Comparison], outstanding: int, failed: int) -> EdgeVerdict:
    others = any(comparison.is_other for comparison in compared.values())
    if said.missing and said.missing == said.surplus > outstanding + failed:
        return replace(said, verdict=Verdict.COMPENSATED, reason="as many messages, and others")
    if said.missing:
        return replace(said, verdict=Verdict.LOSS)
    if others:
        return replace(said, verdict=Verdict.COMPENSATED, reason="as many messages, and others")
    if said.surplus > outstanding + failed:
        if is_writer(said.upstream) and books.repeated is not None and said.surplus - outstanding - failed > books.repeated:
            foreign = said.surplus - outstanding - failed - books.repeated
            return replace(said, verdict=Verdict.UNAUDITED, reason=f"{foreign} messages are of producers that do not report")
        return replace(said, verdict=Verdict.DUPLICATE)
    if outstanding or said.surplus:
        return replace(said, verdict=Verdict.IN_DOUBT, reason="attempted, not acknowledged")
    return said


def _unknown(books: Books, above: Mapping[int, Tally], below: Mapping[int, Tally], upstream: str, downstream: str) -> str:
    """Why a window is not known yet; empty once it is."""
    told = PRODUCER if is_writer(upstream) else upstream  # mirrors are known by their positions
    sessions = books.sessions.get(told, ())
    if sessions and watermark_of(sessions) < books.end_ms:
        return f"{told} may have older messages"
    # A log is read for one window at a time, and to its end.
    if LOG in (upstream, downstream) and books.repeated is None:
        return "the log was not read"
    last = last_offsets(above)
    if downstream == BROKER and books.repeated is not None:
        last = _in_the_log(books, above)
    if downstream != LOG and not has_come_to(books.positions.get(downstream, {}), last):
        return f"{downstream} {_BEHIND}"
    # A broker that died was read from before it could say what it had; the next leader counts that again.
    position = _positions_of_mirrors(books, last_offsets(above)) if is_writer(upstream) else books.positions.get(upstream, {})
    if upstream != LOG and position is not None and not has_come_to(position, last_offsets(below)):
        return f"{upstream} {_BEHIND}"
    return ""


def _positions_of_mirrors(books: Books, last: Mapping[int, int]) -> dict[int, int] | None:
    """How far the mirrors that write have come, or a producer beside them; None: there is no mirror, and producers have watermarks."""
    mirrors = [positions for tier, positions in books.positions.items() if is_mirrored(tier)]
    if not mirrors:
        return None
    found = {partition: offset + 1 for partition, offset in last.items()}
    for positions in mirrors:
        for partition, offset in positions.items():
            found[partition] = max(offset, found.get(partition, 0))
    return found


def _is_overdue(books: Books) -> bool:
    """Whether brokers have spoken since those who wrote have: what they have not come to by then may have been cut off a log's end."""
    writers = [session.reported_ms for tier, sessions in books.sessions.items() if is_writer(tier) for session in sessions]
    return bool(books.sessions.get(BROKER)) and watermark_of(books.sessions[BROKER]) > max([books.end_ms, *writers])


def _has_unknown_offsets(books: Books, joined: Mapping[str, Mapping[int, Tally]]) -> bool:
    """Whether producers do not know where their messages are, so that no position of a broker tells whether it has come to them."""
    return any(tally.offsets is None for tally in books.written(joined).values())


def _in_the_log(books: Books, above: Mapping[int, Tally]) -> dict[int, int]:
    """Offsets that a broker comes to: none behind the end of a log that was read, whatever a producer was told.

    Where producers do not know where their messages are (acks=0), these are among those that the log has of the window.
    """
    ends, in_log = books.positions.get(LOG, {}), books.by_partition(LOG)
    found = {}
    for partition, offset in last_offsets(above).items():
        if above[partition].offsets is None:
            offset = max(offset, in_log.get(partition, _NOTHING).last_offset)
        found[partition] = min(offset, ends.get(partition, offset + 1) - 1)
    return found


def _compare(upstream: Tally, downstream: Tally) -> _Comparison:
    difference = downstream.count - upstream.count
    empty = not upstream.count or not downstream.count
    if upstream.placed is not None and downstream.placed is not None:
        is_same, evidence = upstream.placed == downstream.placed, "placed"
    elif upstream.offsets is not None and downstream.offsets is not None:
        is_same, evidence = upstream.offsets == downstream.offsets, "offsets"
    elif upstream.content is not None and downstream.content is not None and not upstream.outstanding:
        is_same, evidence = upstream.content == downstream.content, "content"
    else:
        is_same, evidence = True, "counts"
    if not difference and (is_same or empty):
        return _Comparison(evidence=evidence)
    if upstream.sketch is not None or downstream.sketch is not None:
        told = _told(upstream, downstream)
        if told is not None:
            missing = sum(times for _, _, times in told.missing)
            surplus = -sum(times for _, _, times in told.surplus)
            return _Comparison(missing, surplus, missing == surplus, "placed", _names(told))
    if not difference:
        return _Comparison(is_other=True, evidence=evidence)
    return _Comparison(max(0, -difference), max(0, difference), evidence=evidence)


def _told(upstream: Tally, downstream: Tally) -> Difference | None:
    """What differs, if both ends have sketches of all they count and these tell all of it."""
    if (upstream.sketch is None and upstream.count) or (downstream.sketch is None and downstream.count):
        return None
    difference = ((upstream.sketch or Sketch()) - (downstream.sketch or Sketch())).decode()
    return difference if difference.is_whole else None


def _names(difference: Difference) -> tuple[Named, ...]:
    return tuple(Named(*place_of(first), times) for first, _, times in difference.items)


def _is_whole(named: Sequence[Named], missing: int, surplus: int) -> bool:
    return bool(named) and sum(abs(one.times) for one in named) >= missing + surplus


def _explained(
    comparison: _Comparison, above: Tally, below: Tally, books: Books, partition: int, log: Log, upstream: str, downstream: str
) -> _Comparison:
    """What sketches of the whole window could not name: one run of offsets, or what differs between pieces and the log's ranges."""
    times = above.count - below.count
    if times and (above.placed is not None or not above.count) and (below.placed is not None or not below.count):
        total = ((above.placed or 0) - (below.placed or 0)) * (1 if times > 0 else -1) & MASK_128
        if (found := log.find(partition, total, abs(times))) is not None:
            return replace(comparison, runs=(Run(*found, times),))
    tier, other, sign = (upstream, below, -1) if is_writer(upstream) or downstream == LOG else (downstream, above, 1)
    pieces = log.pieces(tier, partition)
    whole = log.part(partition, 0, _ALL)
    # Pieces have to be all that the tier said, and the log has to be what the other tier has.
    reported = _added([tally for _, tally in pieces])
    if not pieces or not has_same_offsets(whole, other) or not _is_same(reported, books.by_partition(tier).get(partition, _NOTHING)):
        return comparison
    return _bisected(comparison, pieces, partition, whole, log, sign)


def _bisected(
    comparison: _Comparison, pieces: Sequence[tuple[str, Tally]], partition: int, whole: Tally, log: Log, sign: int
) -> _Comparison:
    named: list[Named] = []
    runs: list[Run] = []
    guilty: set[str] = set()
    behind = whole.first_offset
    # Of what lies between pieces nothing was said: it is compared with nothing.
    for hosts, some in (*_apart(pieces), (frozenset[str](), Tally(first_offset=whole.last_offset + 1))):
        for first, last, other in ((behind, some.first_offset - 1, _NOTHING), (some.first_offset, some.last_offset, some)):
            part = log.part(partition, first, last)
            if _is_same(part, other):
                continue
            guilty |= hosts if other is some else set()
            count = part.count - other.count
            if (difference := _told(part, other)) is not None:
                named += [Named(one.partition, one.offset, sign * one.times) for one in _names(difference)]
            elif not other.count:
                runs.append(Run(part.first_offset, part.last_offset, sign * count))
            else:
                total = ((part.placed or 0) - (other.placed or 0)) * (1 if count > 0 else -1) & MASK_128
                found = log.find(partition, total, abs(count)) if count and other.placed is not None else None
                runs.append(Run(*(found or (other.first_offset, other.last_offset)), sign * count))
        behind = some.last_offset + 1
    numbers = [one.times for one in named] + [run.messages for run in runs]
    missing, surplus = sum(number for number in numbers if number > 0), -sum(number for number in numbers if number < 0)
    return replace(
        comparison,
        missing=missing,
        surplus=surplus,
        is_other=missing == surplus,
        named=tuple(sorted(named, key=lambda one: one.offset)),
        runs=tuple(runs),
        hosts=tuple(sorted(guilty)),
    )


def _apart(pieces: Sequence[tuple[str, Tally]]) -> list[tuple[frozenset[str], Tally]]:
    """Pieces whose offsets overlap added up, in the order of offsets, each with the hosts that it is of."""
    found: list[tuple[frozenset[str], Tally]] = []
    for host, tally in sorted(pieces, key=lambda piece: piece[1].first_offset):
        if found and tally.first_offset <= found[-1][1].last_offset:
            hosts, known = found[-1]
            known.merge(tally)
            found[-1] = hosts | {host}, known
        elif tally.count:
            found.append((frozenset({host}), tally.copy()))
    return found


def _added(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


def _is_same(one: Tally, another: Tally) -> bool:
    """By the strongest evidence that both have."""
    if one.count and another.count and one.placed is not None and another.placed is not None and one.placed != another.placed:
        return False
    return has_same_offsets(one, another)


def _runs_text(compared: Mapping[int, _Comparison]) -> str:
    texts = [_run_text(partition, run) for partition, comparison in compared.items() for run in comparison.runs]
    more = f", and {len(texts) - _MOST_RUNS} more such" if len(texts) > _MOST_RUNS else ""
    return f"offsets {', '.join(texts[:_MOST_RUNS])}{more}" if texts else ""


def _run_text(partition: int, run: Run) -> str:
    what = "are missing" if run.messages > 0 else "came twice" if run.messages else "differ"
    some = "" if not run.messages or abs(run.messages) > run.last - run.first else f", of which {abs(run.messages)}"
    return f"{run.first} to {run.last} of partition {partition}{some} {what}"


_STRENGTH: Final = ("counts", "content", "offsets", "placed")


def _weakest(evidences: Iterable[str]) -> str:
    return min(evidences, key=_STRENGTH.index, default="")


def revised(former: EdgeVerdict | None, said: EdgeVerdict) -> EdgeVerdict:
    """A verdict after a former one of the same edge: its revision, and LATE where what was known has grown and is all there."""
    known = None if former is None else former.known
    revision = 0 if former is None else former.revision
    if said.verdict in (Verdict.PENDING, Verdict.UNAUDITED):
        return replace(said, revision=revision, known=known)
    counts = (said.upstream_count, said.downstream_count)
    revision += known is not None and known != counts
    if revision and said.verdict is Verdict.COMPLETE:
        said = replace(said, verdict=Verdict.LATE, reason="messages came after the window was known")
    return replace(said, revision=revision, known=counts)


def _as_the_log_told(former: EdgeVerdict, said: EdgeVerdict) -> EdgeVerdict:
    """A verdict that is said again, with the names that a log has for what differs: it is not read again."""
    if not said.is_unnamed or former.verdict not in WRONG or _difference(former) != _difference(said):
        return said
    return replace(
        said,
        verdict=former.verdict,
        reason=former.reason,
        missing=former.missing,
        surplus=former.surplus,
        named=former.named,
        hosts=former.hosts,
    )


def _difference(said: EdgeVerdict) -> tuple[int, int, int]:
    return said.upstream_count, said.downstream_count, said.missing - said.surplus
