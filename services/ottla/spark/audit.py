"""The audit of a past day: a table's rows, of each topic and partition, against what the brokers say that they had.

    files of the day ──tasks──► runs of offsets ─┐
    audit counter ──────────► counts and sums ───┴──► a verdict for each partition, with the offsets that are missing or doubled

The counter has of each partition how many messages the brokers appended, their first and last offset and the sums of their offsets'
powers (`record.digests.OffsetSums`), which one missing offset changes; where a producer or a log was hashed, a digest of contents too.
The table's own offsets then say which are missing: those that are not in it, if their sums are what the brokers have beyond the table's.

A day is of message time, in UTC, in the counter's windows. `judge` is pure; the rest reads the table and asks the counter, and writes
nothing. Needs the extra `audit`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ottla.clock import Clock, SystemClock
from ottla.errors import ConfigurationError, OttlaError, reason_of
from ottla.model import TopicPartition
from ottla.network.registry_http import ask_registry
from ottla.record.audit_records import WRONG, Verdict
from ottla.record.digests import MASK_64, MASK_128, Identities, OffsetSums, contents, digest, digests_of, placed
from ottla.record.message_ids import id_of
from ottla.spark.loading.decoding import SCHEMA_ID
from ottla.spark.loading.inspection import check_is_of_loads, committed_by_loads, runs_of
from ottla.spark.table import Table, file_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS: Final = 86_400_000
_BROKER: Final = "broker"
_ASK_SECONDS: Final = 30.0
_ANSWER_BYTES: Final = 64 << 20
_TASKS: Final = 64
_MICROSECONDS: Final = 1000
_HASHED: Final = ("key", "value", "headers")

_NO_RUNS: Final = np.zeros((0, 2), np.int64)

Range = tuple[int, int]  # [start, end)


class CounterUnavailable(OttlaError):
    """No audit counter answers, or not with what was asked for."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the counter has of a partition: how many messages, their first and last offset, the sums of offsets, a digest of contents."""

    count: int
    first: int
    last: int
    sums: OffsetSums | None
    placed: int | None = None


@dataclass(slots=True)
class Rows:
    """What the table has of a partition.

    Attributes:
        runs: offsets that stand side by side, as [start, end), in any order; an offset that is there twice is in two of them.
        placed: the digest of contents; None where they were not hashed.
    """

    runs: NDArray[np.int64]
    placed: int | None = None

    def merge(self, other: Rows) -> None:
        """Adds what another file has."""
        self.runs = np.concatenate((self.runs, other.runs))
        self.placed = None if self.placed is None or other.placed is None else (self.placed + other.placed) & MASK_128


@dataclass(frozen=True, slots=True)
class Known:
    """What the table's commits say of a partition.

    Attributes:
        begin: the first offset that was to be loaded; None: the log does not go back so far.
        end: where its job is.
        filled: ranges with as many rows as offsets are accounted for: what is not there was never a message.
    """

    begin: int | None = None
    end: int = 0
    filled: Sequence[tuple[int, int, int]] = ()


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """What is said of one partition.

    Attributes:
        brokers, rows: how many messages the brokers had, and rows the table has.
        first, last: the lowest and the highest offset of both; -1 of none.
        evidence: `placed` (contents at their offsets), `offsets` (sums of them), `counts`.
        missing, doubled: ranges of offsets, [start, end).
        missing_count, doubled_count: offsets that are missing, and rows too many.
        is_exact: whether `missing` are those offsets and no others; otherwise they lie among them.
    """

    partition: TopicPartition
    verdict: Verdict
    reason: str = ""
    brokers: int = 0
    rows: int = 0
    first: int = -1
    last: int = -1
    evidence: str = "counts"
    missing: tuple[Range, ...] = ()
    doubled: tuple[Range, ...] = ()
    missing_count: int = 0
    doubled_count: int = 0
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What is said of a day.

    Attributes:
        partitions: in their order.
        edges: the counter's own verdicts of the day, windows by topic, edge and verdict.
    """

    day: datetime.date
    partitions: tuple[PartitionVerdict, ...]
    edges: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of them; PENDING of nothing at all."""
        return max((one.verdict for one in self.partitions), key=list(Verdict).index, default=Verdict.PENDING)

    @property
    def exit_code(self) -> int:
        """As `ottla audit verify`: 0 the table has everything once, 1 something is lost, doubled or another, 3 not known."""
        return 1 if self.verdict in WRONG else 0 if self.verdict is Verdict.COMPLETE else 3


# What is decided.


def united(runs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranges that runs cover, in their order, and those that more than one of them covers."""
    if not len(runs):
        return runs, runs
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(runs[:, 1])
    begins = np.concatenate(([True], runs[1:, 0] > reach[:-1]))
    firsts = np.flatnonzero(begins)
    whole = np.column_stack((runs[firsts, 0], np.append(reach[firsts[1:] - 1], reach[-1])))
    again = np.column_stack((runs[1:, 0], np.minimum(runs[1:, 1], reach[:-1])))
    again = again[again[:, 0] < again[:, 1]]
    return whole, united(again)[0] if len(again) else again


def judge(
    partition: TopicPartition, said: Said | None, rows: Rows, known: Known, elsewhere: NDArray[np.int64] | None = None
) -> PartitionVerdict:
    """What is said of a partition.

    Args:
        said: what the brokers had; None: nothing was said.
        elsewhere: runs of offsets that the table has on other days.
    """
    whole, doubled = united(rows.runs)
    count = _size(rows.runs)
    distinct = _size(whole)
    first, last = (int(whole[0, 0]), int(whole[-1, 1]) - 1) if distinct else (-1, -1)
    found = PartitionVerdict(
        partition, Verdict.COMPLETE, "", 0, count, first, last, doubled=_ranges(doubled), doubled_count=count - distinct
    )
    if said is None or not said.count:
        if not count:
            return found
        return _replaced(found, Verdict.DUPLICATE if count > distinct else Verdict.UNAUDITED, "the brokers have said nothing of it")
    sums = _sums(whole)
    bounds = [offset for offset in (first, said.first) if offset >= 0]
    evidence = "counts" if said.sums is None else "offsets"
    found = _replaced(found, found.verdict, brokers=said.count, first=min(bounds, default=-1), last=max(last, said.last), evidence=evidence)
    if said.count == distinct and said.sums in (None, sums):
        if count > distinct:
            return _replaced(found, Verdict.DUPLICATE)
        if said.placed is None or rows.placed is None:
            return found
        if said.placed == rows.placed:
            return _replaced(found, Verdict.COMPLETE, evidence="placed")
        return _replaced(found, Verdict.COMPENSATED, "the offsets are the brokers', and what is in the rows is not", evidence="placed")
    lacking = said.count - distinct
    if lacking < 0:
        verdict = Verdict.DUPLICATE if count > distinct else Verdict.UNAUDITED
        return _replaced(found, verdict, f"{-lacking} rows are of messages that the brokers have not spoken of")
    if lacking == 0:
        return _replaced(found, Verdict.COMPENSATED, "as many rows as messages, and others")
    missing, is_exact = _missing(said, whole, sums, lacking, known, elsewhere)
    doubtful = Verdict.DUPLICATE if count > distinct else None
    if len(missing) and (missing[:, 0] >= known.end).all():
        return _replaced(found, doubtful or Verdict.PENDING, f"the table is at offset {known.end}")
    if len(missing) and known.begin is not None and (missing[:, 1] <= known.begin).all():
        return _replaced(found, doubtful or Verdict.UNAUDITED, f"its job began at offset {known.begin}")
    if is_exact:  # what was before the job, or is to come, is not lost
        missing = _cut(missing, known.begin or 0, known.end)
        lacking = _size(missing)
    return _replaced(found, Verdict.LOSS, missing=_ranges(missing), missing_count=lacking, is_exact=is_exact)


def _replaced(found: PartitionVerdict, verdict: Verdict, reason: str = "", **more: Any) -> PartitionVerdict:
    return replace(found, verdict=verdict, reason=reason, **more)


def _missing(
    said: Said, whole: NDArray[np.int64], sums: OffsetSums, lacking: int, known: Known, elsewhere: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], bool]:
    """The offsets that the brokers had and the table does not, and whether they are no others: what they come to says so."""
    elsewhere = _NO_RUNS if elsewhere is None else united(elsewhere)[0]
    gaps = _without(_without(np.array([[said.first, said.last + 1]], np.int64), whole), elsewhere)
    # A gap of a range that has every row that was committed is of markers, of aborted messages, or of what compaction took.
    filled = [
        (start, end)
        for start, end, rows in known.filled
        if end > said.first and start <= said.last and _size(_cut(whole, start, end)) + _size(_cut(elsewhere, start, end)) >= rows
    ]
    wanted = _without(gaps, united(np.array(filled, np.int64))[0]) if filled else gaps
    if said.sums is not None:
        total = OffsetSums(*((more - less) & MASK_64 for more, less in zip(said.sums, sums, strict=True)))
        for some in (wanted, gaps):
            if _size(some) == lacking and _sums(some) == total:
                return some, True
        # One run has its sum and its length, which say where it begins; its squares and cubes say whether it is one.
        start, rest = divmod(total.first - lacking * (lacking - 1) // 2, lacking)
        if not rest and start >= 0 and OffsetSums.of_range(start, start + lacking - 1) == total:
            return np.array([[start, start + lacking]], np.int64), True
    return wanted if _size(wanted) >= lacking else gaps, False


def _size(runs: NDArray[np.int64]) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum())


def _sums(runs: NDArray[np.int64]) -> OffsetSums:
    total = OffsetSums()
    for start, end in runs.tolist():
        total = total.plus(OffsetSums.of_range(start, end - 1))
    return total


def _ranges(runs: NDArray[np.int64]) -> tuple[Range, ...]:
    return tuple((start, end) for start, end in runs.tolist())


def _cut(runs: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    """What of ranges lies in [start, end)."""
    found = np.clip(runs, start, end)
    return found[found[:, 0] < found[:, 1]]


def _without(ranges: NDArray[np.int64], taken: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges without what others cover; both are in their order and do not overlap."""
    left: list[Range] = []
    others = taken.tolist()
    at = 0
    for begin, end in ranges.tolist():
        start = begin
        while at and others[at - 1][1] > start:
            at -= 1
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                left.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return np.array(left, np.int64).reshape(-1, 2)


# What is read.


@dataclass(frozen=True, slots=True)
class CountTask:
    """One task: which files it reads, and what it counts of them.

    Attributes:
        between: only rows of windows that begin in [from, to), as (from, to, length of a window), in ms; None: all.
        has_contents: whether contents are hashed.
    """

    root: str
    paths: tuple[str, ...]
    between: tuple[int, int, int] | None
    has_contents: bool = False

    def run(self) -> dict[int, Rows]:
        """What each partition has."""
        columns = ["partition", "offset", "timestamp", *(_HASHED if self.has_contents else ())]
        return _merged(one for path in self.paths for batch in file_rows(self.root, path, columns) for one in self._count(batch))

    def _count(self, batch: Any) -> Iterable[tuple[int, Rows]]:
        import pyarrow

        numbers, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
        times = batch.column("timestamp").cast(pyarrow.int64()).to_numpy() // _MICROSECONDS
        keep = np.ones(len(offsets), bool)
        if self.between is not None:
            from_ms, to_ms, window_ms = self.between
            starts = times - times % window_ms
            keep = (starts >= from_ms) & (starts < to_ms)
        for number in np.unique(numbers[keep]).tolist():
            which = keep & (numbers == number)
            yield number, Rows(runs_of(offsets[which]).T, self._digest(batch, number, which, offsets, times) if self.has_contents else None)

    def _digest(self, batch: Any, number: int, which: NDArray[np.bool_], offsets: Any, times: Any) -> int:
        # As lists before anything is left out: a file that delta-rs has compacted has views of bytes, which Arrow cannot filter.
        index = np.flatnonzero(which).tolist()
        keys, values, headers = ([column[row] for row in index] for column in (batch.column(name).to_pylist() for name in _HASHED))
        ids = [id_of((one["key"], one["value"]) for one in some or ()) for some in headers]
        digests, lengths, _ = digests_of(keys, values, ids)
        identities: Identities = contents(digests, times[which], lengths)
        return digest(placed(identities, number, offsets[which]))


def reconcile(
    path: str,
    day: datetime.date,
    topics: str | Sequence[str] | None = None,
    *,
    counter: str,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> Reconciliation:
    """Says of each partition whether a table that loads write to has what the brokers had on a day. What `ottla load reconcile` does.

    Args:
        path: the table's directory or address.
        day: of message time, in UTC.
        topics: their names; None: all that jobs have loaded.
        counter: where the audit counter answers, `http://host:port`; it knows `audit.retention.hours`.
        spark: reads the files; None reads them in this process.

    Raises:
        TableUnusable: there is no table, or it is no load's.
        CounterUnavailable: the counter does not answer, or does not know such questions.
    """
    now_ms = (clock or SystemClock()).time_ms()
    table = Table.open(path)
    check_is_of_loads(table)
    from_ms = (day - datetime.date(1970, 1, 1)).days * DAY_MS
    to_ms = from_ms + DAY_MS
    status = _ask(counter, "/v1/status?wait=10")  # brokers report at any time, so that it often has a few records to read
    window_ms = int(status["window_ms"])
    known = _known(table)
    if topics is None:
        topics = sorted({partition.topic for partition in known} | {file["partition.topic"] for file in table.files()})
    wanted = [topics] if isinstance(topics, str) else list(topics)
    if not wanted:
        raise ConfigurationError(f"no job has loaded anything into {path}: name a topic")
    unfinished = _unfinished(status, day, to_ms, now_ms)
    days = {day.isoformat()}
    if DAY_MS % window_ms and day < datetime.date.max:
        days.add((day + datetime.timedelta(days=1)).isoformat())
    verdicts: list[PartitionVerdict] = []
    edges: dict[str, dict[str, dict[str, int]]] = {}
    for topic in wanted:
        said = _said(counter, topic, from_ms, to_ms)
        edges[topic] = _edges(counter, topic, from_ms, to_ms)
        files = [file for file in table.files() if file["partition.topic"] == topic]
        today = [file for file in files if str(file["partition.day"]) in days]
        has_contents = SCHEMA_ID not in table.types() and any(one.placed is not None for one in said.values())
        rows = _rows(path, today, (from_ms, to_ms, window_ms), spark, has_contents=has_contents)
        for number in sorted(said.keys() | rows.keys()):
            partition = TopicPartition(topic, number)
            mine, of_it = said.get(number), rows.get(number, Rows(_NO_RUNS))
            of_table = known.get(partition)
            found = judge(partition, mine, of_it, of_table or Known())
            if mine is not None and found.brokers > found.rows - found.doubled_count:
                # What is on other days is not missing: only where something is are their files read. All of them where no commit says
                # any more where the job is: it continues behind its last row.
                others = [file for file in files if file not in today and (of_table is None or _overlaps(file, mine))]
                elsewhere = _rows(path, others, None, spark).get(number, Rows(_NO_RUNS)).runs
                of_table = of_table or Known(end=int(max(of_it.runs.max(initial=0), elsewhere.max(initial=0))))
                found = judge(partition, mine, of_it, of_table, elsewhere)
            if unfinished and found.verdict is Verdict.COMPLETE:
                found = _replaced(found, Verdict.PENDING, unfinished)
            verdicts.append(found)
    return Reconciliation(day, tuple(verdicts), edges)


def _unfinished(status: Mapping[str, Any], day: datetime.date, to_ms: int, now_ms: int) -> str:
    if now_ms < to_ms:
        return f"{day} is not over"
    return "" if status["is_caught_up"] else "the counter has not read all of the audit yet"


def _known(table: Table) -> dict[TopicPartition, Known]:
    ranges, ends, is_whole = committed_by_loads(table)
    found = {}
    for partition in ranges.keys() | ends.keys():
        mine = sorted(ranges.get(partition, ()))
        begin = mine[0][0] if mine and is_whole else None
        found[partition] = Known(begin, ends.get(partition, 0), [(start, end, rows) for start, end, rows, lost in mine if not lost])
    return found


def _overlaps(file: Mapping[str, Any], said: Said) -> bool:
    low, high = file.get("min.offset"), file.get("max.offset")
    return low is None or high is None or (low <= said.last and high >= said.first)


def _rows(
    root: str,
    files: Sequence[Mapping[str, Any]],
    between: tuple[int, int, int] | None,
    spark: SparkSession | None,
    *,
    has_contents: bool = False,
) -> dict[int, Rows]:
    paths = [str(file["path"]) for file in sorted(files, key=lambda file: -int(file["size_bytes"]))]
    if not paths:
        return {}
    # Large files first, dealt out in turn, so that tasks have about as much to read.
    tasks = [CountTask(root, tuple(paths[first::_TASKS]), between, has_contents) for first in range(min(_TASKS, len(paths)))]
    if spark is None:
        parts = [task.run() for task in tasks]
    else:
        parts = spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: task.run()).collect()
    return _merged(one for part in parts for one in part.items())


def _merged(counted: Iterable[tuple[int, Rows]]) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for number, rows in counted:
        if number in found:
            found[number].merge(rows)
        else:
            found[number] = rows
    return found


def _said(counter: str, topic: str, from_ms: int, to_ms: int) -> dict[int, Said]:
    """What the brokers had, with the contents that a producer, a mirror or a log has of the same offsets."""
    rows = _ask(counter, f"/v1/topics/{quote(topic, safe='')}/partitions?from={from_ms}&to={to_ms}") or []
    found: dict[int, Said] = {}
    for row in rows:
        if row["tier"] == _BROKER and row["partition"] >= 0:
            found[row["partition"]] = Said(row["count"], row["first_offset"], row["last_offset"], _sums_of(row))
    for row in rows:
        mine = found.get(row["partition"])
        if row["placed"] is None or mine is None or mine.sums is None or row["tier"] not in ("producer", "log"):
            continue
        if (mine.count, mine.sums) == (row["count"], _sums_of(row)):
            found[row["partition"]] = replace(mine, placed=int(row["placed"], 16))
    return found


def _sums_of(row: Mapping[str, Any]) -> OffsetSums | None:
    return None if row["offsets"] is None else OffsetSums(*map(int, row["offsets"]))


def _edges(counter: str, topic: str, from_ms: int, to_ms: int) -> dict[str, dict[str, int]]:
    rows = _ask(counter, f"/v1/topics/{quote(topic, safe='')}/edges?from={from_ms}&to={to_ms}") or []
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        by_verdict = found.setdefault(row["edge"], {})
        by_verdict[row["verdict"]] = by_verdict.get(row["verdict"], 0) + 1
    return found


def _ask(counter: str, path: str) -> Any:
    """The answer's JSON; None where the counter has nothing of it."""
    url = counter if "://" in counter else f"http://{counter}"
    try:
        # Made for registries, it asks any server for JSON.
        answer = ask_registry(url, path, timeout_seconds=_ASK_SECONDS, most_bytes=_ANSWER_BYTES)
        found = json.loads(answer.body)
    except (OSError, ValueError) as error:
        raise CounterUnavailable(f"no audit counter answers at {counter}: {reason_of(error)}") from error
    if answer.status == HTTPStatus.NOT_FOUND and isinstance(found, dict) and "nothing was said of topic" in str(found.get("detail")):
        return None
    if answer.status != HTTPStatus.OK:
        detail = found.get("detail", answer.reason) if isinstance(found, dict) else answer.reason
        raise CounterUnavailable(f"the audit counter at {counter} answers {answer.status} to {path}: {detail}")
    return found
