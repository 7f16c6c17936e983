"""What is said of an edge: two tiers, one topic, one window. The table, first match:

    UNAUDITED    a tier does not report, or audit data is missing that may explain what differs: never COMPLETE by silence
    PENDING      not known yet: a session may still have older messages, or the tier behind has not come so far, or has what may have
                 come to the log since that was read
    LOSS         acknowledged messages that the tier behind does not have
    COMPENSATED  as many messages, and others
    DUPLICATE    more messages than were attempted
    IN_DOUBT     attempted, not acknowledged; or a session that died before its final word
    LATE         all is there, and some of it came after the window was known
    COMPLETE     the same multiset

An edge is judged by the strongest evidence that both its ends have, and the verdict says which: `placed` (contents at their offsets),
`offsets` (sums of them), `content`, or `counts`. Sketches name what differs, as long as it is some tens. Beyond that a log that was read
names it where it is one run of offsets of a partition, by the difference of the digests. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ottla.audit_counter.books import BROKER, LOG, PRODUCER, Books, is_mirrored, is_writer, last_offsets
from ottla.audit_counter.windows import has_come_to, is_in_doubt, lacks_audit_data, watermark_of
from ottla.record.audit_records import NO_PARTITION, WRONG, Tally, Verdict
from ottla.record.digests import MASK_128, Difference, place_of

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

    @property
    def edge(self) -> str:
        """As a person writes it."""
        return f"{self.upstream}->{self.downstream}"

    @property
    def is_log_old(self) -> bool:
        """Whether the log has to be read again before this is known."""
        return self.verdict is Verdict.PENDING and self.reason == _LOG_IS_OLD

    @property
    def is_unnamed(self) -> bool:
        """Whether messages are missing or too many that sketches could not name."""
        return self.verdict in WRONG and sum(abs(named.times) for named in self.named) < self.missing + self.surplus


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Of one partition."""

    missing: int = 0
    surplus: int = 0
    is_other: bool = False
    evidence: str = "counts"
    named: tuple[Named, ...] = ()


_NOTHING: Final = Tally()
_LOG_IS_OLD: Final = "the log is read again"


def judge(
    books: Books, expected: tuple[str, ...], known: Mapping[str, EdgeVerdict] | None = None, runs: Runs | None = None
) -> list[EdgeVerdict]:
    """What is said of each edge of a window.

    Args:
        expected: tiers whose silence is told.
        known: what was said before, by the edge.
        runs: of the log, if it was read just now.
    """
    joined, found = books.joined(), []
    for edge in books.edges(expected):
        said = _judge_edge(books, joined, *edge)
        if runs is not None:
            said = _with_runs(said, books, runs)
        former = (known or {}).get(said.edge)
        again = revised(former, said)
        if runs is None and books.repeated is not None and said.upstream == LOG and said.verdict is Verdict.DUPLICATE and again != former:
            again = revised(former, replace(said, verdict=Verdict.PENDING, reason=_LOG_IS_OLD))
        found.append(again)
    return found


def _judge_edge(books: Books, joined: Mapping[str, Mapping[int, Tally]], upstream: str, downstream: str) -> EdgeVerdict:
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
    waiting = _unknown(books, above, below, upstream, downstream)
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
        hosts = books.hosts(downstream, differing[0]) or books.hosts(upstream, differing[0])
        said = replace(said, partition=differing[0], hosts=hosts)
    said = _named_verdict(said, books, compared, outstanding, failed)
    sessions = (*books.sessions.get(upstream, ()), *books.sessions.get(downstream, ()))
    if said.verdict in WRONG | {Verdict.UNAUDITED} and lacks_audit_data(sessions, books.start_ms, books.end_ms):
        return replace(said, verdict=Verdict.UNAUDITED, reason="audit data is missing, which may be all that differs")
    if said.verdict is Verdict.COMPLETE and upstream == PRODUCER and is_in_doubt(books.sessions.get(upstream, ()), books.end_ms):
        return replace(said, verdict=Verdict.IN_DOUBT, reason="a session ended without a final word")
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
        last = _in_the_log(books, last)
    if downstream != LOG and not has_come_to(books.positions.get(downstream, {}), last):
        return f"{downstream} has not come so far"
    # A broker that died was read from before it could say what it had; the next leader counts that again.
    position = _positions_of_mirrors(books, last_offsets(above)) if is_writer(upstream) else books.positions.get(upstream, {})
    if upstream != LOG and position is not None and not has_come_to(position, last_offsets(below)):
        return f"{upstream} has not come so far"
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


def _in_the_log(books: Books, last: Mapping[int, int]) -> dict[int, int]:
    """Offsets that a broker can have come to: none behind the end of a log that was read, whatever a producer was told."""
    ends = books.positions.get(LOG, {})
    return {partition: min(offset, ends.get(partition, offset + 1) - 1) for partition, offset in last.items()}


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
    if upstream.sketch is None:
        assert downstream.sketch is not None
        return _negative(downstream.sketch.decode())
    difference = (upstream.sketch if downstream.sketch is None else upstream.sketch - downstream.sketch).decode()
    return difference if difference.is_whole else None


def _negative(difference: Difference) -> Difference | None:
    items = tuple((first, second, -times) for first, second, times in difference.items)
    return Difference(items, True) if difference.is_whole else None


def _names(difference: Difference) -> tuple[Named, ...]:
    return tuple(Named(*place_of(first), times) for first, _, times in difference.items)


class Runs(Protocol):
    """What was read of a log."""

    def find(self, start_ms: int, partition: int, total: int, count: int) -> tuple[int, int] | None:
        """The first and the last of so many messages of a window, one after the other, with a digest of their places."""


def _with_runs(said: EdgeVerdict, books: Books, runs: Runs) -> EdgeVerdict:
    """A verdict of a window whose log was read, with the runs of offsets that explain what sketches could not name."""
    if not said.is_unnamed:
        return said
    joined, found = books.joined(), []
    above, below = joined.get(said.upstream, {}), joined.get(said.downstream, {})
    for partition in sorted(above.keys() | below.keys() - {NO_PARTITION}):
        one, other = above.get(partition, _NOTHING), below.get(partition, _NOTHING)
        if any(tally.count and tally.placed is None for tally in (one, other)):
            continue
        times = one.count - other.count
        total = ((one.placed or 0) - (other.placed or 0)) * (1 if times > 0 else -1) & MASK_128
        if times and (run := runs.find(books.start_ms, partition, total, abs(times))) is not None:
            found.append(f"{run[0]} to {run[1]} of partition {partition} {'are missing' if times > 0 else 'came twice'}")
    return replace(said, reason=f"offsets {', '.join(found)}") if found else said


_STRENGTH: Final = ("counts", "content", "offsets", "placed")


def _weakest(evidences: Iterable[str]) -> str:
    return min(evidences, key=_STRENGTH.index, default="")


def revised(former: EdgeVerdict | None, said: EdgeVerdict) -> EdgeVerdict:
    """A verdict after a former one of the same edge: its revision, and LATE where what was known has grown and is all there."""
    known = None if former is None else former.known
    revision = 0 if former is None else former.revision
    if said.verdict in (Verdict.PENDING, Verdict.UNAUDITED):
        return replace(said, revision=revision, known=known)
    if former is not None and not said.reason and _difference(former) == _difference(said):
        said = replace(said, reason=former.reason)  # the log that told it is not read again
    counts = (said.upstream_count, said.downstream_count)
    revision += known is not None and known != counts
    if revision and said.verdict is Verdict.COMPLETE:
        said = replace(said, verdict=Verdict.LATE, reason="messages came after the window was known")
    return replace(said, revision=revision, known=counts)


def _difference(said: EdgeVerdict) -> tuple[object, ...]:
    return said.verdict, said.upstream_count, said.downstream_count, said.missing, said.surplus
