"""What the counter keeps, in one SQLite file: counts, sessions, verdicts, and up to which offset of `__audit` all of it goes.

Offsets and counts are written in one transaction, so a kill counts nothing twice and loses nothing: what was read behind the offset is
read again. A session's record that came before changes nothing, by its sequence on the topic. A broker's ranges replace what was counted
from their first offset on, so that the next leader may count again what the former one had not said. Windows that changed are noted there
too until they are judged, which a kill may put off to the next start.

Two hours later the windows of an hour in which all is well are folded into one, so that a week of many topics stays small: of each tier and
partition one row. What comes late is counted with its hour then; logs are not read for it any more.

Blocking: it lives in one thread of its own, and is called there only. No one else opens the file while it is in use.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np

from ottla.audit_counter.books import BROKER, LOG, Books, Moved, is_mirrored, is_of_ranges, is_writer
from ottla.audit_counter.verdicts import NOT_KNOWN, EdgeVerdict, Named
from ottla.audit_counter.windows import MOST_AHEAD_MS, NO_END, Gap, SessionStanding, is_countable
from ottla.errors import KafkaStorageError
from ottla.record.audit_records import WRONG, AuditRecord, Tally, Verdict, fields_of, tally_of
from ottla.record.digests import Latencies, OffsetSums, quantiles

log: Final = logging.getLogger(__name__)

_VERSION: Final = 1
_MOST_GAPS: Final = 100
_MOST_QUARANTINED: Final = 1_000
# Rows that are remembered, so that they are not read again: some 5 KiB each with a sketch, and half a KiB.
_RECENT_COUNTS: Final = 4_096
_RECENT_SESSIONS: Final = 16_384
_HOUR_MS: Final = 3_600_000
_KINDS_WITH_LATENCIES: Final = ("producer", "consumer", "load")  # a stranger may say any tier
_LOCKED_SECONDS: Final = 5.0  # for another process to close the file
_FOLDED_AFTER_MS: Final = 2 * _HOUR_MS
_FOLDED_AT_ONCE: Final = 20  # topics, some 5 ms each; the store does nothing else meanwhile
# Whose latencies are in memory, a KiB and more each. Arrays of many more go back to the system, which gives them zeroed the next time:
# a day takes 32 ms of CPU with 4,096 rows, and 19 with these.
_ROWS_AT_ONCE: Final = 128
# SQLite's numbers have 63 bits. What adds up to more is forged, and is kept as this, so that no stranger ends the counter.
_MOST_COUNT: Final = 1 << 60
# In place of where a range begins, in a row that windows were folded into.
_FOLDED: Final = -1
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE offsets (partition INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE sessions (
    session TEXT, topic TEXT, tier TEXT, host TEXT, application TEXT, next_sequence INTEGER, watermark_ms INTEGER,
    is_final INTEGER, is_dead INTEGER, reported_ms INTEGER, heard_ms INTEGER, gaps TEXT, until_ms INTEGER,
    PRIMARY KEY (topic, session)) WITHOUT ROWID;
CREATE TABLE positions (topic TEXT, tier TEXT, partition INTEGER, next_offset INTEGER, first_offset INTEGER, leader_epoch INTEGER,
    PRIMARY KEY (topic, tier, partition)) WITHOUT ROWID;
CREATE TABLE counts (
    topic TEXT, start_ms INTEGER, tier TEXT, partition INTEGER, host TEXT, range_offset INTEGER,
    attempted INTEGER, acknowledged INTEGER, failed INTEGER, count INTEGER, size INTEGER, first_offset INTEGER, last_offset INTEGER,
    offsets BLOB, content BLOB, placed BLOB, sketch BLOB, latencies BLOB,
    PRIMARY KEY (topic, start_ms, tier, partition, host, range_offset));
CREATE TABLE repeated (topic TEXT, start_ms INTEGER, count INTEGER, moved TEXT, PRIMARY KEY (topic, start_ms)) WITHOUT ROWID;
CREATE TABLE verdicts (
    topic TEXT, start_ms INTEGER, upstream TEXT, downstream TEXT, verdict TEXT, upstream_count INTEGER, downstream_count INTEGER,
    missing INTEGER, surplus INTEGER, revision INTEGER, details TEXT, windows INTEGER DEFAULT 1,
    PRIMARY KEY (topic, start_ms, upstream, downstream)) WITHOUT ROWID;
CREATE INDEX verdicts_by_kind ON verdicts (verdict, topic, start_ms);
CREATE TABLE quarantine (partition INTEGER, next_offset INTEGER, reason TEXT, PRIMARY KEY (partition, next_offset)) WITHOUT ROWID;
"""
# A file of the first version may lack them, the leader epochs of positions, how many windows a verdict is of, and what sessions may have
# had. By the index each scrape adds up all messages without a look at the rows, of a KiB and more; by those of sessions a judgement, and
# what each second looks for who is silent, do without the rows of those that have ended.
_LATER_TABLES: Final = """
CREATE TABLE IF NOT EXISTS unjudged (topic TEXT, start_ms INTEGER, PRIMARY KEY (topic, start_ms)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (topic TEXT PRIMARY KEY, topic_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS former (topic TEXT, start_ms INTEGER, is_mixed INTEGER, PRIMARY KEY (topic, start_ms)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unwritten (topic TEXT, start_ms INTEGER, changes INTEGER, changed_ms INTEGER, PRIMARY KEY (topic, start_ms))
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counts_by_tier ON counts (topic, tier, count);
CREATE INDEX IF NOT EXISTS sessions_ended ON sessions (topic, tier, watermark_ms, is_final, is_dead, reported_ms, heard_ms)
    WHERE is_final OR is_dead;
CREATE INDEX IF NOT EXISTS sessions_left ON sessions (topic) WHERE NOT is_final OR gaps != '[]';
CREATE INDEX IF NOT EXISTS sessions_open ON sessions (heard_ms, tier) WHERE is_final = 0 AND is_dead = 0;
"""
_LATER_COLUMNS: Final = (
    ("positions", "leader_epoch", "INTEGER DEFAULT -1"),
    ("sessions", "until_ms", f"INTEGER DEFAULT {NO_END}"),
    ("repeated", "moved", "TEXT"),
    ("verdicts", "windows", "INTEGER DEFAULT 1"),
)
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'meta'"
_COUNTS: Final = (
    "attempted",
    "acknowledged",
    "failed",
    "count",
    "size",
    "first_offset",
    "last_offset",
    "offsets",
    "content",
    "placed",
    "sketch",
    "latencies",
)
_COUNTS_TO_JUDGE: Final = ", ".join("x''" if name == "latencies" else name for name in _COUNTS)
_PUT_COUNTS: Final = f"INSERT OR REPLACE INTO counts VALUES ({', '.join('?' * (6 + len(_COUNTS)))})"
_GET_COUNTS: Final = f"SELECT {', '.join(_COUNTS)} FROM counts"
_KEY: Final = "topic = ? AND start_ms = ? AND tier = ? AND partition = ? AND host = ? AND range_offset = ?"

_TOPICS_OF: Final = (  # from one to the next by the index, as there are many rows of each
    "WITH RECURSIVE found(topic) AS (SELECT MIN(topic) FROM {0} UNION ALL"
    " SELECT (SELECT MIN(topic) FROM {0} WHERE topic > found.topic) FROM found WHERE found.topic IS NOT NULL)"
    " SELECT topic FROM found WHERE topic IS NOT NULL"
)

_NOTHING_MOVED: Final[Mapping[int, Mapping[int, Moved]]] = {}

Window = tuple[str, int]
_CountKey = tuple[str, int, str, int, str, int]


class TopicStanding(NamedTuple):
    """How far tiers have come with a topic: sessions by tier, the next and the first offset by tier and partition."""

    sessions: Mapping[str, tuple[SessionStanding, ...]]
    positions: Mapping[str, Mapping[int, int]]
    beginnings: Mapping[str, Mapping[int, int]]


class TierRow(TypedDict):
    """What a tier had of a window, as it is answered."""

    window: int
    tier: str
    attempted: int
    acknowledged: int
    failed: int
    count: int
    bytes: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None


class StoreFailed(KafkaStorageError):
    """The file cannot be read or written."""


@dataclass(slots=True)
class Counters:
    """What was read since the start."""

    records: int = 0
    repeated: int = 0
    quarantined: int = 0
    windows_refused: int = 0
    recounts: int = 0
    gaps: int = 0


class Applied(NamedTuple):
    """The windows that changed, and whether all was taken in, or only what comes before the first record of another topic of a name.

    Then the windows are to be judged before `apply` is called again with the same: the next call makes them a former topic's.
    """

    changed: set[Window]
    is_whole: bool


class Read(NamedTuple):
    """One record of `__audit`, or why it is none."""

    partition: int
    offset: int
    record: AuditRecord | None
    reason: str = ""


@dataclass(slots=True)
class _Recent:
    """Rows as they were committed last, the latest at the end. Who writes them otherwise forgets them here."""

    counts: OrderedDict[_CountKey, Tally] = field(default_factory=OrderedDict)
    sessions: OrderedDict[tuple[str, str], list[Any]] = field(default_factory=OrderedDict)

    def committed(self, counts: Mapping[_CountKey, Tally], sessions: Mapping[tuple[str, str], list[Any]]) -> None:
        """Remembers what a transaction wrote, and forgets what was written longest ago."""
        self.counts.update(counts)
        self.sessions.update(sessions)
        for rows, most in ((self.counts, _RECENT_COUNTS), (self.sessions, _RECENT_SESSIONS)):
            while len(rows) > most:
                rows.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self.counts.clear()
        self.sessions.clear()


class Store:
    """The file.

    Args:
        path: of it; made where it is not there.
        retention_ms: for which windows are kept.
    """

    def __init__(self, path: Path, window_ms: int, retention_ms: int) -> None:
        self._window_ms = window_ms
        self._retention_ms = retention_ms
        self.counters = Counters()
        self.latencies: dict[str, Latencies] = {}  # of what was read since the start, by the kind of tier
        self._recent = _Recent()
        self._in_log: set[Window] = set()  # that a log is read for, and that were not written to since
        self._said: set[Window] = set()  # that something was said of since `begin_log`
        self._without_log: set[Window] = set()  # since something was said of them last
        self.fold_ms: Final = max(1, _HOUR_MS // window_ms) * window_ms
        self._folded_ms = 0  # up to where windows were folded, or could not be
        self._fold_until_ms = 0
        self._unfolded: list[str] = []  # topics that are to be folded up to there
        self._purged_ms = 0  # up to where windows were forgotten
        self._connection = _opened(path)
        with self._transaction():
            known = self._meta("window.ms")
            if known is not None and known != str(window_ms):
                raise StoreFailed(
                    f"{path} was written with windows of {known} ms, and audit.window.ms is {window_ms}: give it another file"
                )
            self._set_meta("window.ms", str(window_ms))
        self._next_offsets: dict[int, int] = dict(self._connection.execute("SELECT partition, next_offset FROM offsets"))
        (newest_ms,) = self._connection.execute("SELECT MAX(MIN(reported_ms, heard_ms)) FROM sessions").fetchone()
        self.newest_ms: int = newest_ms or 0  # when someone spoke last, by their clock

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        except sqlite3.Error as error:
            raise StoreFailed(f"the audit counter's file fails: {error}") from error

    def _meta(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set_meta(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    # What was read.

    def next_offsets(self, topic_id: str) -> dict[int, int]:
        """Where to go on in each partition of `__audit`; none if that is another topic than the file's, which is then forgotten.

        Args:
            topic_id: empty where the broker does not say it, as some of a cluster that is being updated.
        """
        with self._transaction() as connection:
            known = self._meta("topic.id") or ""
            topic_id = topic_id or known
            if known not in ("", topic_id):
                log.warning("__audit was made again: all counts are of a topic that is gone, and begin from nothing")
                self._recent.clear()
                for (table,) in connection.execute(_TABLES).fetchall():
                    connection.execute(f"DELETE FROM {table}")
                self._next_offsets.clear()
            self._set_meta("topic.id", topic_id)
        return dict(self._next_offsets)

    def read_from(self, offsets: Iterable[tuple[int, int]]) -> None:
        """What comes of a partition begins here: below where it was, if its log was cut, and then other records have these offsets."""
        lower = {partition: offset for partition, offset in offsets if offset < self._next_offsets.get(partition, 0)}
        if lower:  # seldom, and each fetch asks
            with self._transaction() as connection:
                connection.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", lower.items())
            self._next_offsets |= lower

    def apply(self, read: Iterable[Read], next_offsets: Mapping[int, int], now_ms: int, past_ms: int | None = None) -> Applied:
        """Takes in what was read, with the offsets behind it.

        Args:
            read: had one by one, so that it may be decoded as it is counted: nothing of it is kept.
            next_offsets: of each partition that was read.
            past_ms: from which the retention counts, for which a purge is not due: a window that is not counted any more has no counts.
                None is `now_ms`.

        Raises:
            StoreFailed: nothing was taken in.
        """
        counters = Counters()
        with self._transaction() as connection:
            oldest_ms = self._oldest_ms(now_ms if past_ms is None else past_ms)
            applied = _Batch(connection, self._recent, self._window_ms, self.fold_ms, oldest_ms, now_ms, counters)
            is_whole = True
            none: Read | None = None
            reached: dict[int, int] = {}
            newest_ms = self.newest_ms
            for one in read:
                if one.offset < self._next_offsets.get(one.partition, 0):
                    continue
                if one.record is not None and applied.is_of_next_topic(one.record):
                    is_whole, next_offsets = False, reached
                    break
                reached[one.partition] = one.offset + 1
                if one.record is None:
                    counters.quarantined += 1
                    none = one
                    connection.execute("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?)", (one.partition, one.offset, one.reason[:1000]))
                else:
                    applied.take(one.record)
                    newest_ms = max(newest_ms, one.record.reported_ms)
            applied.write()
            connection.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", next_offsets.items())
            connection.executemany(_PUT_UNJUDGED, applied.changed)
        applied.committed()
        self.newest_ms = newest_ms
        self._next_offsets.update(next_offsets)
        if none is not None:
            log.warning(
                "__audit-%d: no audit record is at offset %d, the last of %d such: %s",
                none.partition,
                none.offset,
                counters.quarantined,
                none.reason,
            )
        for kind, latencies in applied.latencies.items():
            self.latencies.setdefault(kind, Latencies()).merge(latencies)
        self._in_log -= applied.written
        self._said |= applied.changed
        self._without_log -= applied.changed
        for name, count in asdict(counters).items():
            setattr(self.counters, name, getattr(self.counters, name) + count)
        return Applied(applied.changed, is_whole)

    def topic_id(self, topic: str) -> str:
        """Of the topic of a name that brokers spoke of last, as 32 hexadecimal digits; empty: they have said none."""
        return _topic_id(self._connection, topic)

    def begin_topic(self, topic: str, topic_id: str) -> set[Window]:
        """The name is another topic's from now on; gives the windows that changed."""
        self._recent.clear()
        with self._transaction() as connection:
            changed = _begin_topic(connection, topic, topic_id)
            # No one can say of which of the two topics that was which came since these were judged.
            where = "topic = ? AND start_ms IN (SELECT start_ms FROM unjudged WHERE topic = ?)"
            connection.execute(f"UPDATE former SET is_mixed = 1 WHERE {where}", (topic, topic))
            connection.executemany(_PUT_UNJUDGED, changed)
        self._in_log -= changed
        return changed

    def begin_log(self, topic: str, starts: Iterable[int]) -> None:
        """A log is read from now on for these windows, and no other: what is said until `put_log` to be written, it need not have."""
        self._in_log = {(topic, start_ms) for start_ms in starts}
        self._said.clear()

    def without_log(self, topic: str, start_ms: int) -> bool:
        """A window's log is gone: nothing that was said so far waits for it. False if something was said since `begin_log`.

        That may be of another topic of the name, which was made meanwhile: the log is to be looked for again.
        """
        if (topic, start_ms) in self._said:
            return False
        self._without_log.add((topic, start_ms))
        return True

    def put_log(
        self,
        topic: str,
        counted: Mapping[int, Mapping[int, Tally]],
        next_offsets: Mapping[int, int],
        repeated: Mapping[int, int],
        moved: Mapping[int, Mapping[int, Moved]] = _NOTHING_MOVED,
    ) -> None:
        """Takes in what the log says of windows, in place of what it said before; not of those that were written to since `begin_log`.

        Args:
            counted: by window and partition.
            next_offsets: up to where it was read, by partition.
            repeated: of each window, how many records had the content of another one.
            moved: by window and partition.
        """
        counted = {start_ms: tallies for start_ms, tallies in counted.items() if (topic, start_ms) in self._in_log}
        if not counted:
            next_offsets = {}  # they may be of a topic that is gone
        for key in [key for key in self._recent.counts if key[2] == LOG]:
            del self._recent.counts[key]
        with self._transaction() as connection:
            for start_ms, tallies in counted.items():
                connection.execute("DELETE FROM counts WHERE topic = ? AND start_ms = ? AND tier = ?", (topic, start_ms, LOG))
                rows = [(topic, start_ms, LOG, partition, "", 0, *_values(tally)) for partition, tally in tallies.items()]
                connection.executemany(_PUT_COUNTS, rows)
            rows = [(topic, start_ms, repeated[start_ms], json.dumps(moved.get(start_ms, {}))) for start_ms in counted]
            connection.executemany("INSERT OR REPLACE INTO repeated VALUES (?, ?, ?, ?)", rows)
            connection.executemany(_PUT_POSITION, [(topic, LOG, *pair, 0, -1) for pair in next_offsets.items()])
            connection.executemany(_PUT_UNJUDGED, [(topic, start_ms) for start_ms in repeated])

    def silent_sessions(self, heard_before_ms: int, now_ms: int) -> list[Window]:
        """Marks sessions as dead that were heard of last before a time, and gives their topics with the watermarks they left.

        Messages that one may have had lie no further ahead of now than those that it spoke of lay when it was heard of last.
        """
        with self._transaction() as connection:
            where = "is_final = 0 AND is_dead = 0 AND heard_ms < ?"
            found = connection.execute(f"SELECT topic, watermark_ms FROM sessions WHERE {where}", (heard_before_ms,)).fetchall()
            if found:
                self._recent.sessions.clear()
                until = "MAX(until_ms, heard_ms) + ? - heard_ms"
                connection.execute(f"UPDATE sessions SET is_dead = 1, until_ms = {until} WHERE {where}", (now_ms, heard_before_ms))
            return found

    def silent_brokers(self, heard_before_ms: int) -> list[str]:
        """The topics of which a broker's session would be marked as dead."""
        where = "tier = ? AND is_final = 0 AND is_dead = 0 AND heard_ms < ?"
        found = f"SELECT DISTINCT topic FROM sessions INDEXED BY sessions_open WHERE {where}"
        return [topic for (topic,) in self._connection.execute(found, (BROKER, heard_before_ms))]

    def heard_brokers(self, topics: Iterable[str], now_ms: int) -> None:
        """Begins to wait for the brokers' sessions of topics again."""
        with self._transaction() as connection:
            rows = [(now_ms, topic, BROKER) for topic in topics]
            connection.executemany("UPDATE sessions SET heard_ms = ? WHERE topic = ? AND tier = ? AND is_final = 0 AND is_dead = 0", rows)

    def heard_all(self, now_ms: int) -> None:
        """Begins to wait for every session again: while the counter did not read, or could not, no silence was theirs."""
        with self._transaction() as connection:
            connection.execute("UPDATE sessions SET heard_ms = ? WHERE is_final = 0 AND is_dead = 0", (now_ms,))

    # Books and verdicts.

    def standing(self, topic: str, from_ms: int = 0, to_ms: int = NO_END) -> TopicStanding:
        """What `books` of a topic's windows have in common.

        Args:
            from_ms, to_ms: between which these windows lie. Of sessions that have ended, of which a week has very many, those alone are
                had that leave something open there; one more without a name stands for all that have ended of a tier.
        """
        positions: dict[str, dict[int, int]] = {}
        beginnings: dict[str, dict[int, int]] = {}
        for tier, partition, next_offset, first_offset in self._connection.execute(
            "SELECT tier, partition, next_offset, first_offset FROM positions WHERE topic = ?", (topic,)
        ):
            positions.setdefault(tier, {})[partition] = next_offset
            beginnings.setdefault(tier, {})[partition] = first_offset
        sessions: dict[str, list[SessionStanding]] = {}
        ended = "SELECT tier, MAX(watermark_ms), MAX(is_final), MAX(MIN(reported_ms, heard_ms)) FROM sessions"
        for tier, watermark_ms, is_final, reported_ms in self._connection.execute(
            f"{ended} WHERE topic = ? AND (is_final OR is_dead) GROUP BY tier", (topic,)
        ):
            of_all = SessionStanding("", tier, topic, "", "", 0, watermark_ms, bool(is_final), True, reported_ms, until_ms=0)
            sessions[tier] = [of_all]
        left = "(NOT is_final OR gaps != '[]') AND (NOT is_dead OR gaps != '[]' OR (watermark_ms < ? AND until_ms > ?))"
        for one in self._sessions(f"INDEXED BY sessions_left WHERE topic = ? AND {left}", topic, to_ms, from_ms):
            sessions.setdefault(one.tier, []).append(one)
        return TopicStanding({tier: tuple(found) for tier, found in sessions.items()}, positions, beginnings)

    def books(self, topic: str, start_ms: int, standing: TopicStanding | None = None) -> Books:
        """The books of a window, without latencies.

        Args:
            standing: the topic's, of a time that the window lies in, where nothing was taken in since; None looks for it.
        """
        connection = self._connection
        books = Books(start_ms, self._window_ms, is_log_gone=(topic, start_ms) in self._without_log)
        where = "WHERE topic = ? AND start_ms = ?"
        for tier, partition, host, range_offset, *values in connection.execute(
            f"SELECT tier, partition, host, range_offset, {_COUNTS_TO_JUDGE} FROM counts {where}",
            (topic, start_ms),
        ):
            books.add(tier, partition, host, _tally(values))
            if range_offset == _FOLDED:
                books.window_ms, books.is_log_gone = self.fold_ms, True
        row = connection.execute(f"SELECT is_mixed FROM former {where}", (topic, start_ms)).fetchone()
        if row is not None:
            books.is_former, books.is_mixed, books.is_log_gone = True, bool(row[0]), True
        books.sessions, books.positions, books.beginnings = standing or self.standing(topic, start_ms, start_ms + self.fold_ms)
        books.reporting = frozenset(books.sessions) | frozenset(books.positions)
        row = connection.execute(f"SELECT count, moved FROM repeated {where}", (topic, start_ms)).fetchone()
        if row is not None:
            books.repeated = int(row[0])
            books.moved = _moved(row[1])
        return books

    def put_verdicts(self, topic: str, start_ms: int, verdicts: Sequence[EdgeVerdict], windows: int = 1, now_ms: int = 0) -> None:
        """Writes what is said of a window, in place of what was, and that it is still to be written to `__audit_verdicts`.

        Args:
            windows: how many were folded into it.
        """
        with self._transaction() as connection:
            self._put_verdicts(connection, topic, start_ms, verdicts, windows)
            connection.execute(_PUT_UNWRITTEN, (topic, start_ms, now_ms))

    def unwritten(self, limit: int) -> list[tuple[str, int, int, list[EdgeVerdict]]]:
        """Windows whose verdicts are still to be written to `__audit_verdicts`, with a mark for `written`."""
        rows = self._connection.execute("SELECT topic, start_ms, changes FROM unwritten ORDER BY changed_ms LIMIT ?", (limit,)).fetchall()
        return [(*row, [said for _, _, said in self.verdicts(row[0], row[1], row[1] + 1)]) for row in rows]

    def written(self, some: Iterable[tuple[str, int, int]]) -> None:
        """Notes that these were, as far as they have not changed since."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM unwritten WHERE topic = ? AND start_ms = ? AND changes = ?", some)

    def leave_unwritten(self, before_ms: int) -> None:
        """Forgets what changed before a time: the active counter has written it."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM unwritten WHERE changed_ms < ?", (before_ms,))

    @staticmethod
    def _put_verdicts(connection: sqlite3.Connection, topic: str, start_ms: int, verdicts: Iterable[EdgeVerdict], windows: int) -> None:
        connection.execute("DELETE FROM verdicts WHERE topic = ? AND start_ms = ?", (topic, start_ms))
        connection.executemany("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (
            (topic, start_ms, said.upstream, said.downstream, str(said.verdict),
             *(min(count, _MOST_COUNT) for count in (said.upstream_count, said.downstream_count, said.missing, said.surplus)),
             said.revision, json.dumps(_details(said)), windows) for said in verdicts
        ))  # fmt: skip

    def unjudged(self) -> set[Window]:
        """Windows that changed and were not judged since, because the counter was stopped."""
        return set(self._connection.execute("SELECT topic, start_ms FROM unjudged"))

    def judged(self, windows: Iterable[Window]) -> None:
        """Notes that all that was said of these windows was judged."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM unjudged WHERE topic = ? AND start_ms = ?", windows)

    def drop_sketches(self, before_ms: int) -> None:
        """Forgets the sketches of windows that are all well and began before a time: nothing is left to be named."""
        self._recent.counts.clear()
        with self._transaction() as connection:
            wrong = ", ".join(f"'{verdict}'" for verdict in (*WRONG, *NOT_KNOWN))
            connection.executemany(
                "UPDATE counts SET sketch = NULL WHERE topic = ? AND start_ms >= ? AND start_ms < ? AND sketch IS NOT NULL AND NOT EXISTS"
                " (SELECT 1 FROM verdicts WHERE verdicts.topic = counts.topic AND verdicts.start_ms = counts.start_ms"
                f" AND verdict IN ({wrong}))",
                [(topic, self._folded_ms, before_ms) for topic in self._topics_in("counts")],
            )

    def fold(self, now_ms: int) -> int:
        """Folds windows of hours that are past and in which all is well, of some topics at a time; gives how many windows."""
        until = now_ms - _FOLDED_AFTER_MS
        until -= until % self.fold_ms
        if not self._unfolded:
            if until <= self._folded_ms:
                return 0
            self._fold_until_ms = until
            self._unfolded = self._topics_in("counts")
        until = self._fold_until_ms  # for all of them, however long they take
        topics, self._unfolded = self._unfolded[:_FOLDED_AT_ONCE], self._unfolded[_FOLDED_AT_ONCE:]
        folded = 0
        with self._transaction() as connection:
            for topic in topics:
                hours = connection.execute(
                    "SELECT DISTINCT start_ms - start_ms % ? FROM counts WHERE topic = ? AND start_ms >= ? AND start_ms < ?"
                    " AND range_offset != ?",
                    (self.fold_ms, topic, self._folded_ms, until, _FOLDED),
                ).fetchall()
                folded += sum(self._fold(connection, topic, hour) for (hour,) in hours)
        self._recent.counts.clear()
        if not self._unfolded:
            self._folded_ms = until
        return folded

    def _fold(self, connection: sqlite3.Connection, topic: str, hour: int) -> int:
        span = (topic, hour, hour + self.fold_ms)
        where = "WHERE topic = ? AND start_ms >= ? AND start_ms < ?"
        said: dict[str, list[EdgeVerdict]] = {}
        starts = set()
        for _, start_ms, verdict in self.verdicts(*span):
            starts.add(start_ms)
            said.setdefault(verdict.edge, []).append(verdict)
        counted = set(self.windows_of(*span))
        is_left = any(connection.execute(f"SELECT 1 FROM {table} {where} LIMIT 1", span).fetchone() for table in ("unjudged", "former"))
        if is_left or not counted <= starts or any(one.verdict not in _WELL for edge in said.values() for one in edge):
            return 0
        (windows,) = connection.execute(
            f"SELECT SUM(windows) FROM (SELECT MAX(windows) AS windows FROM verdicts {where} GROUP BY start_ms)", span
        ).fetchone()
        moved: dict[int, Moved] = {}
        for (texts,) in connection.execute(f"SELECT moved FROM repeated {where}", span):
            for partition, one in _moved(texts).items():
                known = moved.get(partition, Moved())
                moved[partition] = Moved(known.messages + one.messages, known.offsets.plus(one.offsets))
        tallies = [(tier, number, _by_records(tier, tally, moved.get(number))) for tier, number, tally in self.partitions(*span)]
        rows = [(topic, hour, tier, number, "", _FOLDED, *_values(tally)) for tier, number, tally in tallies]
        self._in_log -= {(topic, start_ms) for start_ms in counted}
        for table in ("counts", "verdicts", "repeated"):
            connection.execute(f"DELETE FROM {table} {where}", span)
        connection.executemany(_PUT_COUNTS, rows)
        self._put_verdicts(connection, topic, hour, map(_folded, said.values()), windows)
        return len(counted)

    def verdicts(
        self,
        topic: str | None = None,
        from_ms: int = 0,
        to_ms: int = 1 << 62,
        kinds: Iterable[Verdict] = (),
        limit: int = -1,
        *,
        starts: Sequence[int] = (),
        tiers: Sequence[str] = (),
    ) -> list[tuple[str, int, EdgeVerdict]]:
        """What is said of windows that begin in [from_ms, to_ms): topic, start, edge.

        Args:
            limit: the most that are given; -1 gives all.
            starts: only these windows.
            tiers: only edges between these.
        """
        found = list(kinds)
        where = ["start_ms >= ?", "start_ms < ?"]
        values: list[Any] = [from_ms, to_ms]
        if topic is not None:
            where.append("topic = ?")
            values.append(topic)
        if found:
            where.append(f"verdict IN ({', '.join('?' * len(found))})")
            values += [str(kind) for kind in found]
        for column, some in (("start_ms", starts), ("upstream", tiers), ("downstream", tiers)):
            if some:
                where.append(f"{column} IN ({', '.join('?' * len(some))})")
                values += some
        rows = self._connection.execute(
            "SELECT topic, start_ms, upstream, downstream, verdict, upstream_count, downstream_count, missing, surplus, revision, details"
            f" FROM verdicts WHERE {' AND '.join(where)} ORDER BY topic, start_ms LIMIT ?",
            (*values, limit),
        )
        return [(row[0], row[1], _verdict(row[2:])) for row in rows]

    def windows_with(self, kinds: Iterable[Verdict]) -> set[Window]:
        """All windows of which one of these is said."""
        names = [str(kind) for kind in kinds]
        where = f"verdict IN ({', '.join('?' * len(names))})"
        return set(self._connection.execute(f"SELECT topic, start_ms FROM verdicts WHERE {where}", names))

    def topics(self) -> list[str]:
        """Of which anything was said."""
        return sorted({*self._topics_in("sessions"), *self._topics_in("counts")})

    def has_topic(self, topic: str) -> bool:
        """Whether anything was said of it."""
        found = "SELECT EXISTS (SELECT 1 FROM sessions WHERE topic = ?) OR EXISTS (SELECT 1 FROM counts WHERE topic = ?)"
        return bool(self._connection.execute(found, (topic, topic)).fetchone()[0])

    def _topics_in(self, table: str) -> list[str]:
        return [topic for (topic,) in self._connection.execute(_TOPICS_OF.format(table))]

    def begin_of(self, topic: str, time_ms: int) -> int:
        """Where the windows begin in which messages of a time and later lie: with the hour, if that was folded."""
        hour = time_ms - time_ms % self.fold_ms
        folded = "SELECT EXISTS (SELECT 1 FROM counts WHERE topic = ? AND start_ms = ? AND range_offset = ?)"
        return hour if self._connection.execute(folded, (topic, hour, _FOLDED)).fetchone()[0] else time_ms

    def windows_of(self, topic: str, from_ms: int = 0, to_ms: int = 1 << 62) -> list[int]:
        """The windows that have counts."""
        rows = self._connection.execute(
            "SELECT DISTINCT start_ms FROM counts WHERE topic = ? AND start_ms >= ? AND start_ms < ?", (topic, from_ms, to_ms)
        )
        return [row[0] for row in rows]

    def folded(self, topic: str, from_ms: int, to_ms: int) -> dict[int, int]:
        """Those of them that others were folded into, and how long they are."""
        found = "SELECT DISTINCT start_ms FROM counts WHERE topic = ? AND start_ms >= ? AND start_ms < ? AND range_offset = ?"
        return {start_ms: self.fold_ms for (start_ms,) in self._connection.execute(found, (topic, from_ms, to_ms, _FOLDED))}

    def sessions(self, only: str | None = None) -> list[SessionStanding]:
        """What sessions have said, of one topic or of all."""
        return self._sessions() if only is None else self._sessions("WHERE topic = ?", only)

    def _sessions(self, where: str = "", *values: object) -> list[SessionStanding]:
        rows = self._connection.execute(  # the clock of a session may be ahead
            "SELECT session, tier, topic, host, application, next_sequence, watermark_ms, is_final, is_dead,"
            f" MIN(reported_ms, heard_ms), gaps, until_ms FROM sessions {where}",
            values,
        )
        return [
            SessionStanding(
                session,
                tier,
                topic,
                host,
                application,
                sequence,
                watermark_ms,
                bool(is_final),
                bool(is_dead),
                reported_ms,
                _gaps(gaps),
                until,
            )
            for session, tier, topic, host, application, sequence, watermark_ms, is_final, is_dead, reported_ms, gaps, until in rows
        ]

    def open_sessions(self) -> dict[str, int]:
        """How many sessions have not ended, by tier: of brokers and producers that came and went, a week has very many."""
        found = "SELECT tier, COUNT(*) FROM sessions WHERE is_final = 0 AND is_dead = 0 GROUP BY tier"
        return dict(self._connection.execute(found))

    def totals(self) -> list[tuple[str, str, int]]:
        """Topic, tier, messages of all windows that are kept."""
        return self._connection.execute("SELECT topic, tier, CAST(TOTAL(count) AS INTEGER) FROM counts GROUP BY topic, tier").fetchall()

    def verdict_counts(self) -> list[tuple[str, str, str, str, int, int, int, int]]:
        """Topic, both ends, verdict, how many windows, what is missing and what is too much in them, and where the first begins.

        Nothing is where it is not known: what differs there may be audit data.
        """
        rows = self._connection.execute(
            "SELECT topic, upstream, downstream, verdict, SUM(windows), CAST(TOTAL(missing) AS INTEGER), CAST(TOTAL(surplus) AS INTEGER),"
            " MIN(start_ms) FROM verdicts GROUP BY topic, upstream, downstream, verdict"
        )
        return [row if row[3] in WRONG else (*row[:5], 0, 0, row[7]) for row in rows]

    def tiers(self, topic: str, from_ms: int, to_ms: int, tier: str | None = None) -> list[TierRow]:
        """What tiers had of windows that begin in [from_ms, to_ms), partitions and hosts added up."""
        rows = self._connection.execute(
            "SELECT start_ms, tier, attempted, acknowledged, failed, count, size, latencies FROM counts"
            " WHERE topic = ? AND start_ms >= ? AND start_ms < ?" + (" AND tier = ?" if tier else "") + " ORDER BY start_ms, tier",
            (topic, from_ms, to_ms, tier) if tier else (topic, from_ms, to_ms),
        )
        found: list[TierRow] = []
        some: list[tuple[Any, ...]] = []
        for row in rows:
            if len(some) >= _ROWS_AT_ONCE and row[:2] != some[-1][:2]:
                found += _tier_rows(some)
                some.clear()
            some.append(row)
        return found + _tier_rows(some)

    def partitions(self, topic: str, from_ms: int, to_ms: int) -> list[tuple[str, int, Tally]]:
        """What tiers had of each partition in windows that begin in [from_ms, to_ms), all added up: tier, partition, counts."""
        found: dict[tuple[str, int], Tally] = {}
        columns = ", ".join("NULL" if name == "sketch" else name for name in _COUNTS)
        for tier, partition, *values in self._connection.execute(
            f"SELECT tier, partition, {columns} FROM counts WHERE topic = ? AND start_ms >= ? AND start_ms < ?", (topic, from_ms, to_ms)
        ):
            found.setdefault((tier, partition), Tally()).merge(_tally(values))
        return [(tier, partition, tally) for (tier, partition), tally in sorted(found.items())]

    def purge(self, now_ms: int) -> int:
        """Forgets windows that are past the retention, and sessions that ended before it; how many windows."""
        before = self._oldest_ms(now_ms)
        self._recent.clear()
        for windows in (self._without_log, self._in_log):
            windows -= {window for window in windows if window[1] < before}
        with self._transaction() as connection:
            for table in ("verdicts", "repeated", "former", "unwritten", "counts"):
                rows = [(topic, before) for topic in self._topics_in(table)]
                found = connection.executemany(f"DELETE FROM {table} WHERE topic = ? AND start_ms < ?", rows)
            connection.execute("DELETE FROM sessions WHERE heard_ms < ? AND (is_final OR is_dead)", (before,))
            connection.execute(  # a tier that is gone, as a group, has no edge any more
                "DELETE FROM positions WHERE tier != ? AND NOT EXISTS"
                " (SELECT 1 FROM sessions WHERE sessions.topic = positions.topic AND sessions.tier = positions.tier)",
                (LOG,),
            )
            kept = f"SELECT partition, next_offset FROM quarantine ORDER BY next_offset DESC LIMIT {_MOST_QUARANTINED}"
            connection.execute(f"DELETE FROM quarantine WHERE (partition, next_offset) NOT IN ({kept})")
        self._purged_ms = before
        return found.rowcount

    def is_purge_due(self, now_ms: int) -> bool:
        """Whether there may be windows that are past the retention."""
        return self._purged_ms < self._oldest_ms(now_ms)

    def _oldest_ms(self, now_ms: int) -> int:
        """Where the oldest windows begin that are kept: whole hours, as an hour that was folded has all of its windows."""
        before = now_ms - self._retention_ms - self._window_ms
        return before - before % self.fold_ms

    # Who writes.

    @property
    def epoch(self) -> int:
        """The highest term of an active counter that the file knows."""
        return int(self._meta("epoch") or 0)

    def raise_epoch(self, epoch: int) -> None:
        """Remembers a term.

        Raises:
            StoreFailed: the file knows a later one: another counter is active.
        """
        with self._transaction():
            if epoch < int(self._meta("epoch") or 0):
                raise StoreFailed(f"term {epoch} is over: the file knows of term {self._meta('epoch')}")
            self._set_meta("epoch", str(epoch))


_PUT_UNJUDGED: Final = "INSERT OR IGNORE INTO unjudged VALUES (?, ?)"
_PUT_UNWRITTEN: Final = (
    "INSERT INTO unwritten VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE SET changes = changes + 1, changed_ms = excluded.changed_ms"
)
_PUT_POSITION: Final = (
    "INSERT INTO positions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET next_offset = MAX(next_offset, excluded.next_offset),"
    " first_offset = MIN(first_offset, excluded.first_offset), leader_epoch = excluded.leader_epoch"
)


class _Batch:
    """What some records change, added up before it is written. A recent row is taken out, and comes back when it is committed."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        recent: _Recent,
        window_ms: int,
        fold_ms: int,
        oldest_ms: int,
        now_ms: int,
        counters: Counters,
    ) -> None:
        self._connection = connection
        self._recent = recent
        self._window_ms = window_ms
        self._fold_ms = fold_ms
        self._oldest_ms = oldest_ms
        self._now_ms = now_ms
        self._counters = counters
        self._tallies: dict[_CountKey, Tally] = {}
        self._sessions: dict[tuple[str, str], list[Any]] = {}
        self._positions: dict[tuple[str, str, int], int] = {}
        self._beginnings: dict[tuple[str, str, int], int] = {}
        self._leader_epochs: dict[tuple[str, str, int], int] = {}
        self._topic_ids: dict[str, str] = {}
        self._former: dict[str, set[int]] = {}  # the windows of each topic that a former one of its name has messages in
        self._mixed: set[Window] = set()
        self.latencies: dict[str, Latencies] = {}
        self.changed: set[Window] = set()
        self.written: set[Window] = set()  # to the log, so that what the log said of them is old

    def is_of_next_topic(self, record: AuditRecord) -> bool:
        """Whether a record speaks of another topic of a name of which something was taken in here."""
        return self._is_of_another(record) and (record.topic, -1) in self.changed

    def _is_of_another(self, record: AuditRecord) -> bool:
        if not record.topic_id or record.sequence < self._session(record)[0]:
            return False
        topic_id = self._topic_ids.get(record.topic)
        if topic_id is None:
            topic_id = self._topic_ids[record.topic] = _topic_id(self._connection, record.topic)
        if not topic_id:
            self._connection.execute("INSERT INTO topics VALUES (?, ?)", (record.topic, record.topic_id))
            topic_id = self._topic_ids[record.topic] = record.topic_id
        return topic_id != record.topic_id

    def take(self, record: AuditRecord) -> None:
        """Takes in one record."""
        if self._is_of_another(record):
            self._topic_ids[record.topic] = record.topic_id
            self._recent.clear()
            self.changed |= _begin_topic(self._connection, record.topic, record.topic_id)
        session = self._session(record)
        next_sequence = session[0]
        if record.sequence < next_sequence:
            self._counters.repeated += 1
            return
        self._counters.records += 1
        # Its windows may be known now that this session has said so, whether it had any messages or not.
        self.changed.add((record.topic, -1))
        if session[3]:  # it was silent, and is not dead: what that left in doubt may be known too
            in_doubt = "SELECT topic, start_ms FROM verdicts WHERE verdict = ? AND topic = ?"
            self.changed.update(self._connection.execute(in_doubt, (str(Verdict.IN_DOUBT), record.topic)))
        if record.sequence > next_sequence:
            # Of messages of any time: what is late comes below a watermark too. A mirror's is its clock's, whatever it copies.
            watermark_ms = min(session[1], session[6] - record.window_ms) if is_mirrored(record.tier) else session[1]
            self._miss(session[5], Gap(next_sequence, record.sequence, 0, self._last_time(record), watermark_ms))
        session[:5] = [record.sequence + 1, max(session[1], record.watermark_ms), record.is_final, False, record.reported_ms]
        session[6] = max(session[6], min(max(record.windows, default=0) + record.window_ms, self._now_ms + MOST_AHEAD_MS))
        range_offset = self._range(record, session[5])
        if range_offset is None:
            return
        if record.window_ms != self._window_ms and record.windows:
            # They cannot be shared out among the windows that are kept here.
            self._counters.windows_refused += len(record.windows)
            until_ms = max(record.windows) + record.window_ms
            since_ms = min(record.windows)
            self._miss(session[5], Gap(record.sequence, record.sequence + 1, since_ms, until_ms, since_ms))
            return
        for own_ms, tally in record.windows.items():
            start_ms = own_ms
            former = self._former_windows(record.topic)
            if self._oldest_ms <= own_ms < self._now_ms - _FOLDED_AFTER_MS:
                hour = own_ms - own_ms % self._fold_ms
                last_offsets = self._folded_into(record, hour)
                if last_offsets and hour in former:
                    self._mixed.add((record.topic, hour))
                    self.changed.add((record.topic, hour))
                folded = last_offsets.get((record.tier, record.partition), -2)
                if is_of_ranges(record.tier) and record.first_offset <= folded and tally.first_offset <= folded:
                    if tally.last_offset > folded:  # and with it what came late, which cannot be told apart
                        self._miss(session[5], Gap(record.sequence, record.sequence + 1, hour, hour + self._fold_ms))
                        self.changed.add((record.topic, hour))
                    continue  # a leader counts again what was folded
                start_ms = hour if last_offsets else own_ms
            if start_ms in former:
                self._mixed.add((record.topic, start_ms))
            key = (record.topic, start_ms, record.tier, record.partition, record.host, range_offset)
            known = self._tallies.get(key)
            if known is None:  # it is not known to be a window that is kept
                if not is_countable(start_ms, self._oldest_ms, self._now_ms):
                    self._counters.windows_refused += 1
                    if start_ms > self._now_ms:  # what is said of it when its time has come is not all
                        self._miss(session[5], Gap(record.sequence, record.sequence + 1, start_ms, start_ms + self._window_ms, start_ms))
                    continue
                known = self._tallies[key] = self._count(key)
                self.changed.add((record.topic, start_ms))
                if record.tier == BROKER or is_writer(record.tier):
                    self.written.add((record.topic, start_ms))
            known.merge(tally)
            kind = record.tier.partition(":")[0]
            if kind in _KINDS_WITH_LATENCIES:
                self.latencies.setdefault(kind, Latencies()).merge(tally.latencies)

    def _former_windows(self, topic: str) -> set[int]:
        found = self._former.get(topic)
        if found is None:
            rows = self._connection.execute("SELECT start_ms FROM former WHERE topic = ?", (topic,))
            found = self._former[topic] = {start_ms for (start_ms,) in rows}
        return found

    def _folded_into(self, record: AuditRecord, hour: int) -> dict[tuple[str, int], int]:
        """The last offset of each tier and partition in an hour that was folded; none if it was not."""
        rows = self._connection.execute(
            "SELECT tier, partition, last_offset FROM counts WHERE topic = ? AND start_ms = ? AND range_offset = ?",
            (record.topic, hour, _FOLDED),
        )
        return {(tier, partition): last_offset for tier, partition, last_offset in rows}

    def _last_time(self, record: AuditRecord) -> int:
        """Before which all messages lie that were had by now: their clocks may be ahead of that of the session, which had some of them."""
        row = self._connection.execute("SELECT MAX(start_ms) FROM counts WHERE topic = ?", (record.topic,)).fetchone()
        starts = [row[0] or 0, *record.windows, *(key[1] for key in self._tallies if key[0] == record.topic)]
        return max(record.reported_ms, record.watermark_ms, min(max(starts), self._now_ms + MOST_AHEAD_MS) + self._window_ms)

    def _miss(self, gaps: list[Any], gap: Gap) -> None:
        """Notes audit data of a session that is missing. Of very many gaps the last one grows, as none may be forgotten."""
        self._counters.gaps += 1
        if len(gaps) >= _MOST_GAPS:
            last = Gap(*gaps.pop())
            lowest = min(last.since_ms, gap.since_ms), min(last.watermark_ms, gap.watermark_ms)
            gap = Gap(last.first, gap.behind, lowest[0], max(last.until_ms, gap.until_ms), lowest[1])
        gaps.append(astuple(gap))

    def _range(self, record: AuditRecord, gaps: list[Any]) -> int | None:
        """The range that a record is of, 0 at tiers without; None if it says nothing new. What it counts again is taken out."""
        if record.next_offset < 0:
            return 0
        place = (record.topic, record.tier, record.partition)
        position = self._positions.get(place)
        if position is None:
            row = self._connection.execute(
                "SELECT next_offset, leader_epoch FROM positions WHERE topic = ? AND tier = ? AND partition = ?", place
            ).fetchone()
            position, self._leader_epochs[place] = row or (-1, -1)
        if not is_of_ranges(record.tier):
            self._positions[place] = max(position, record.next_offset)
            self._begin(place, record.first_offset)
            return 0
        if record.first_offset < position:
            if record.next_offset <= position and not record.windows:
                return None
            # A leader that was deposed and did not know: the next one has counted that. Without the topic's id, it may be one made again.
            if record.leader_epoch < self._leader_epochs[place] and (record.first_offset or record.topic_id):
                return None
            self._recount(record, gaps)
        elif record.first_offset > position >= 0:  # offsets that no one counted, of messages of any time
            self._miss(gaps, Gap(record.sequence, record.sequence, 0, self._last_time(record)))
        self._positions[place], self._leader_epochs[place] = record.next_offset, record.leader_epoch
        self._begin(place, record.first_offset)
        return record.first_offset

    def _begin(self, place: tuple[str, str, int], first_offset: int) -> None:
        self._beginnings[place] = min(self._beginnings.get(place, first_offset), first_offset)

    def _recount(self, record: AuditRecord, gaps: list[Any]) -> None:
        """Takes out what was counted from the record's first offset on; a range that it begins within cannot be taken out in part."""
        self._counters.recounts += 1
        first = self._first_of_range(record)
        if first < record.first_offset:
            self._miss(gaps, Gap(record.sequence, record.sequence, 0, self._last_time(record)))
        # Of windows before nothing would be counted again.
        where = (record.topic, record.tier, record.partition, first, self._oldest_ms)
        counted = "FROM counts WHERE topic = ? AND tier = ? AND partition = ? AND range_offset >= ? AND start_ms >= ?"
        for (start_ms,) in self._connection.execute(f"SELECT DISTINCT start_ms {counted}", where):
            self.changed.add((record.topic, start_ms))
        self._connection.execute(f"DELETE {counted}", where)
        self._recent.counts.clear()
        for key in list(self._tallies):
            if (key[0], key[2], key[3]) == where[:3] and key[5] >= first:
                del self._tallies[key]
        # The new one is written with the rest, and may be lower.
        self._connection.execute("UPDATE positions SET next_offset = -1 WHERE topic = ? AND tier = ? AND partition = ?", where[:3])

    def _first_of_range(self, record: AuditRecord) -> int:
        """Where the range begins that has the record's first offset within it; that offset, if none has."""
        found = [record.first_offset]
        rows = self._connection.execute(
            "SELECT MIN(range_offset) FROM counts WHERE topic = ? AND tier = ? AND partition = ? AND range_offset >= 0 AND range_offset < ?"
            " AND last_offset >= ?",
            (record.topic, record.tier, record.partition, record.first_offset, record.first_offset),
        )
        found += [row[0] for row in rows if row[0] is not None]
        place = (record.topic, record.tier, record.partition)
        found += [
            key[5]
            for key, tally in self._tallies.items()
            if (key[0], key[2], key[3]) == place and key[5] < record.first_offset <= tally.last_offset
        ]
        return min(found)

    def _session(self, record: AuditRecord) -> list[Any]:
        key = (record.topic, record.session)
        session = self._sessions.get(key)
        if session is None and (session := self._recent.sessions.pop(key, None)) is not None:
            self._sessions[key] = session
        if session is None:
            row = self._connection.execute(
                "SELECT next_sequence, watermark_ms, is_final, is_dead, reported_ms, gaps, until_ms FROM sessions"
                " WHERE topic = ? AND session = ?",
                key,
            ).fetchone()
            found = [0, 0, False, False, 0, [], 0] if row is None else [*row[:5], json.loads(row[5]), row[6]]
            session = self._sessions[key] = [*found, record.tier, record.host, record.application]
        return session

    def _count(self, key: _CountKey) -> Tally:
        if (recent := self._recent.counts.pop(key, None)) is not None:
            return recent
        row = self._connection.execute(f"{_GET_COUNTS} WHERE {_KEY}", key).fetchone()
        return Tally() if row is None else _tally(row)

    def committed(self) -> None:
        """What was written is in the file."""
        self._recent.committed(self._tallies, self._sessions)

    def write(self) -> None:
        """Writes all of it."""
        connection = self._connection
        connection.executemany(_PUT_COUNTS, ((*key, *_values(tally)) for key, tally in self._tallies.items()))
        connection.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (
            (session, topic, *facts[7:], *facts[:5], self._now_ms, json.dumps(facts[5]), facts[6])
            for (topic, session), facts in self._sessions.items()
        ))  # fmt: skip
        connection.executemany("UPDATE former SET is_mixed = 1 WHERE topic = ? AND start_ms = ?", self._mixed)
        connection.executemany("DELETE FROM repeated WHERE topic = ? AND start_ms = ?", self.written)
        connection.executemany(_PUT_POSITION, (
            (*place, position, self._beginnings[place], self._leader_epochs[place]) for place, position in self._positions.items()
        ))  # fmt: skip


def _topic_id(connection: sqlite3.Connection, topic: str) -> str:
    row = connection.execute("SELECT topic_id FROM topics WHERE topic = ?", (topic,)).fetchone()
    return "" if row is None else str(row[0])


def _begin_topic(connection: sqlite3.Connection, topic: str, topic_id: str) -> set[Window]:
    """Sets what was counted of a former topic of the name apart; gives its windows.

    Positions are of no use any more, nor are sessions that have ended: nothing of the new topic is waited for by them. Clients know no
    topic's id, so that a window in which one has already spoken of the new topic is among those set apart.
    """
    log.warning("topic %s was deleted and made again: its windows so far are a former one's", topic)
    windows = {(topic, start_ms) for (start_ms,) in connection.execute("SELECT DISTINCT start_ms FROM counts WHERE topic = ?", (topic,))}
    connection.execute("INSERT OR REPLACE INTO topics VALUES (?, ?)", (topic, topic_id))
    connection.executemany("INSERT OR IGNORE INTO former VALUES (?, ?, 0)", windows)
    # Before all ranges of the new topic, whose leaders take out what is counted again.
    where = "topic = ? AND range_offset >= 0"
    connection.execute(f"UPDATE OR REPLACE counts SET range_offset = {_FOLDED - 1} - range_offset WHERE {where}", (topic,))
    connection.execute("DELETE FROM positions WHERE topic = ?", (topic,))
    connection.execute("DELETE FROM sessions WHERE topic = ? AND (is_final OR is_dead)", (topic,))
    return windows


_WELL: Final = (Verdict.COMPLETE, Verdict.LATE)


def _folded(said: Sequence[EdgeVerdict]) -> EdgeVerdict:
    """One edge's verdicts of several windows, all of them well."""
    counts = sum(one.upstream_count for one in said), sum(one.downstream_count for one in said)
    worst = max(said, key=lambda one: (one.verdict is Verdict.LATE, one.revision))
    return replace(worst, upstream_count=counts[0], downstream_count=counts[1], known=counts)


def _moved(text: str | None) -> dict[int, Moved]:
    return {int(partition): Moved(count, OffsetSums(*sums)) for partition, (count, sums) in json.loads(text or "{}").items()}


def _by_records(tier: str, tally: Tally, moved: Moved | None) -> Tally:
    """What a tier that counts by headers has by records, once all is well and the log will not be read again."""
    if moved is None or tally.offsets is None or not (is_of_ranges(tier) or is_mirrored(tier)):
        return tally
    return replace(tally, count=tally.count - moved.messages, offsets=tally.offsets.minus(moved.offsets))


def _tier_rows(rows: Sequence[tuple[Any, ...]]) -> list[TierRow]:
    """Of rows in the order of windows and tiers. The latencies of a day have half a million buckets, so all are looked at together."""
    found: list[TierRow] = []
    places = []
    row: TierRow | None = None
    for start_ms, tier, attempted, acknowledged, failed, count, size, _ in rows:
        if row is not None and row["window"] == start_ms and row["tier"] == tier:
            row["attempted"] += attempted
            row["acknowledged"] += acknowledged
            row["failed"] += failed
            row["count"] += count
            row["bytes"] += size
        else:
            row = {
                "window": start_ms,
                "tier": tier,
                "attempted": attempted,
                "acknowledged": acknowledged,
                "failed": failed,
                "count": count,
                "bytes": size,
                "latency_p50_ms": None,
                "latency_p99_ms": None,
                "latency_p999_ms": None,
            }
            found.append(row)
        places.append(len(found) - 1)
    spent = [stored if isinstance(stored, bytes) else _packed(_buckets(stored)) for _, _, _, _, _, _, _, stored in rows]
    lengths = np.array([len(stored) // 16 for stored in spent], np.int64)
    numbers = np.frombuffer(b"".join(spent), "<i8")
    is_bucket = np.repeat(np.tile([True, False], len(rows)), np.repeat(lengths, 2))
    histograms = np.repeat(np.array(places, np.int64), lengths)
    of_shares = quantiles(histograms, numbers[is_bucket], numbers[~is_bucket], len(found), (0.5, 0.99, 0.999))
    for one, median, p99, p999 in zip(found, *of_shares, strict=True):
        one["latency_p50_ms"], one["latency_p99_ms"], one["latency_p999_ms"] = median, p99, p999
    return found


def _gaps(text: str) -> tuple[Gap, ...]:
    return tuple(Gap(*numbers) for numbers in json.loads(text))


def _values(tally: Tally) -> tuple[Any, ...]:
    fields = fields_of(tally)
    fields["latencies"] = _packed(tally.latencies.buckets)
    if max(fields["attempted"], fields["count"], fields["size"]) > _MOST_COUNT:
        fields |= {name: min(fields[name], _MOST_COUNT) for name in ("attempted", "acknowledged", "count", "size")}
        fields["failed"] = min(fields["failed"], fields["attempted"] - fields["acknowledged"])  # as `tally_of` has it
    return tuple(fields[name] for name in _COUNTS)


def _tally(values: Sequence[Any]) -> Tally:
    fields = dict(zip(_COUNTS, values, strict=True))
    fields["latencies"] = [{"bucket": bucket, "count": count} for bucket, count in _buckets(fields["latencies"]).items()]
    return tally_of(fields)


def _packed(buckets: Mapping[int, int]) -> bytes:
    if max(buckets.values(), default=0) > _MOST_COUNT:
        buckets = {bucket: min(count, _MOST_COUNT) for bucket, count in buckets.items()}
    return struct.pack(f"<{2 * len(buckets)}q", *buckets, *buckets.values())


def _buckets(stored: bytes | str) -> dict[int, int]:
    """Of latencies: all buckets and then all counts, as a day of windows has half a million of them. Older rows are pairs, in JSON."""
    if isinstance(stored, str):
        return dict(json.loads(stored))
    numbers = struct.unpack(f"<{len(stored) // 8}q", stored)
    return dict(zip(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :], strict=True))


def _details(said: EdgeVerdict) -> dict[str, Any]:
    return {
        "reason": said.reason,
        "evidence": said.evidence,
        "in_doubt": said.in_doubt,
        "partition": said.partition,
        "hosts": said.hosts,
        "known": said.known,
        "awaited": said.awaited,
        "named": [(named.partition, named.offset, named.times) for named in said.named],
    }


def _verdict(row: Sequence[Any]) -> EdgeVerdict:
    upstream, downstream, verdict, upstream_count, downstream_count, missing, surplus, revision, details = row
    facts = json.loads(details)
    facts["named"] = tuple(Named(*numbers) for numbers in facts["named"])
    facts["awaited"] = tuple((session, next_sequence) for session, next_sequence in facts.get("awaited", ()))
    return EdgeVerdict(
        upstream,
        downstream,
        Verdict(verdict),
        upstream_count=upstream_count,
        downstream_count=downstream_count,
        missing=missing,
        surplus=surplus,
        revision=revision,
        hosts=tuple(facts.pop("hosts")),
        known=None if (known := facts.pop("known")) is None else (known[0], known[1]),
        **facts,
    )


def _opened(path: Path) -> sqlite3.Connection:
    """The file, or a new one in place of one that is torn: what it had is read from `__audit` again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            return _connected(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            torn = path.with_suffix(".torn")
            log.error("%s is torn (%s): it is kept as %s, and all of __audit is read again", path, error, torn)
            path.replace(torn)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return _connected(path)
    except sqlite3.Error as error:
        raise StoreFailed(f"{path} cannot be opened: {error}") from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_LOCKED_SECONDS)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        # A window's counts change with each batch: in 64 MiB of the log, many of these are one page of the file.
        connection.execute("PRAGMA wal_autocheckpoint = 16384")
        connection.execute("PRAGMA cache_size = -32768")
        (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StoreFailed(f"{path} is of version {version}, and {_VERSION} is read")
        if not version:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        connection.executescript(_LATER_TABLES)
        for table, column, kind in _LATER_COLUMNS:
            if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    except BaseException:
        connection.close()
        raise
    return connection
