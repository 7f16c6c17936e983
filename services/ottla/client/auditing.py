"""What a client counts for the audit counter: messages as they are attempted, acknowledged and consumed.

`ProducerAudit` and `ConsumerAudit` hear of messages from a producer or consumer, one by one or many by columns, and add them up by columns.
A message is reported once its outcome is known, and the session's watermark stays below whatever is still on its way: so a process that is
killed leaves windows in doubt and never a wrong count.

Thread-safe: delivery reports and reports to the counter come from different threads. Nothing here does I/O.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Final, NamedTuple, TypeAlias
from weakref import ref

import numpy as np

from ottla.client.outgoing import Outgoing, OutgoingBatch, runs_of
from ottla.clock import Clock, SystemClock
from ottla.record.audit_records import NO_OFFSET, NO_PARTITION, AuditRecord, Session, Tally
from ottla.record.columnar import Integers
from ottla.record.digests import NAMED, Identities, by_window, contents, digest_of, digests_of
from ottla.record.lists import NO_HEADERS
from ottla.record.message_ids import id_of, ids_of_sections
from ottla.wire.producing import BaseOffset

Headers: TypeAlias = Iterable[tuple[str, str | bytes | None]]

# Messages of a topic are added up when there are so many, so that memory is bounded whatever the interval of reports.
_FOLDED_AT: Final = 32_768
# Batches of a producer are counted when they have so many bytes.
_COUNTED_AT: Final = 1_000_000
# Of one record, with up to 4 KiB of a sketch each: neither a broker nor a counter takes one larger than a million bytes.
_MOST_WINDOWS: Final = 128


class Attempt(NamedTuple):
    """One message on its way. `counted_ms` is the time by which it is counted until it is acknowledged."""

    topic: str
    timestamp: int
    digest: bytes
    key_length: int
    size: int
    counted_ms: int


def _attempt(topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, counted_ms: int) -> Attempt:
    message_id = id_of(headers) if headers else None
    key_length = NAMED if message_id is not None else -1 if key is None else len(key)
    size = len(key or b"") + len(value or b"")
    return Attempt(topic, timestamp_ms, digest_of(key, value, message_id), key_length, size, counted_ms)


class _Outcome(NamedTuple):
    attempt: Attempt
    partition: int
    offset: int
    timestamp: int
    latency_ms: int


class Outcomes(NamedTuple):
    """Messages of one topic that were acknowledged or read, by columns. An offset below zero is one that no one knows."""

    digests: bytes  # `digest_of` each, end to end
    partitions: Integers
    offsets: Integers
    timestamps: Integers
    latencies_ms: Integers
    key_lengths: Integers
    sizes: Integers

    def part(self, first: int, behind: int) -> Outcomes:
        """Those from one to before another."""
        digests, *columns = self
        return Outcomes(digests[16 * first : 16 * behind], *(column[first:behind] for column in columns))


class _Topic:
    """What is counted of one topic and not reported yet."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[int, int], Tally] = {}  # by partition and window
        self.outcomes: list[_Outcome] = []
        self.columns: list[Outcomes] = []
        self.count = 0  # of messages in these two
        self.ways: dict[int, deque[None]] = {}  # by window: as many entries as messages are on their way
        self.positions: dict[int, tuple[int, int]] = {}
        self.last_times: dict[int, int] = {}  # of what was consumed last, by partition
        self.watermark_ms = 0

    def on_their_way(self) -> dict[int, int]:
        """How many messages are on their way, by window."""
        empty = {start_ms: ref(self.ways.pop(start_ms)) for start_ms in [start_ms for start_ms, way in self.ways.items() if not way]}
        self.ways |= {start_ms: way for start_ms, found in empty.items() if (way := found()) is not None}  # a client has it still
        return {start_ms: count for start_ms, way in self.ways.items() if (count := len(way))}


def new_session(tier: str, *, cluster: str = "", host: str = "", application: str = "", window_ms: int = 60_000) -> Session:
    """A session of this process."""
    return Session(uuid.uuid4().hex, tier, cluster=cluster, host=host, application=application, window_ms=window_ms)


class Audit:
    """What a client counts, until it is reported."""

    def __init__(self, session: Session, clock: Clock | None = None) -> None:
        self._session = session
        self._clock = clock or SystemClock()
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()

    def records(self, now_ms: int, *, is_final: bool = False) -> list[AuditRecord]:
        """What was counted since the last call: of each topic at least one record, as silence means death.

        Args:
            is_final: the session says nothing more; what is still on its way is then reported as attempted.
        """
        found: list[AuditRecord] = []
        with self._lock:
            # Before what was delivered is counted: what is delivered meanwhile is still on its way in this report.
            on_their_way = {name: self._on_their_way(name, topic) for name, topic in self._topics.items()}
            self._gather()
            for name, topic in self._topics.items():
                self._fold(topic)
                left = on_their_way.get(name, {})
                windows: dict[int, dict[int, Tally]] = {}
                for (partition, start_ms), tally in topic.tallies.items():
                    windows.setdefault(partition, {})[start_ms] = tally
                if is_final:
                    for start_ms, count in left.items():
                        windows.setdefault(NO_PARTITION, {}).setdefault(start_ms, Tally()).merge(Tally(attempted=count))
                former, topic.watermark_ms = topic.watermark_ms, max(topic.watermark_ms, self._watermark(topic, left, now_ms))
                parts = [
                    (partition, dict(some))
                    for partition in sorted(windows.keys() | topic.positions.keys()) or [NO_PARTITION]
                    for some in _shared_out(windows.get(partition, {}))
                ]
                for number, (partition, some) in enumerate(parts, start=1):
                    is_last = number == len(parts)  # only then is everything said that the watermark speaks of
                    is_whole = is_last or parts[number][0] != partition
                    found.append(
                        self._session.record(
                            name,
                            partition,
                            some,
                            watermark_ms=topic.watermark_ms if is_last else former,
                            reported_ms=now_ms,
                            is_final=is_final and is_last,
                            offsets=topic.positions.get(partition, (NO_OFFSET, NO_OFFSET)) if is_whole else (NO_OFFSET, NO_OFFSET),
                        )
                    )
                topic.tallies, topic.positions = {}, {}
        return found

    def _gather(self) -> None:
        """Takes in what a client has and has not handed over yet. The lock is held."""

    def _on_their_way(self, name: str, topic: _Topic) -> dict[int, int]:
        return topic.on_their_way()

    def _watermark(self, topic: _Topic, on_their_way: Mapping[int, int], now_ms: int) -> int:
        return min((now_ms, *on_their_way))

    def _count(self, name: str, outcomes: Outcomes) -> None:
        """Takes in these. The lock is held."""
        topic = self._topic(name)
        topic.columns.append(outcomes)
        self._counted(topic, len(outcomes.offsets))

    def _topic(self, name: str) -> _Topic:
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = _Topic()
        return known

    def _counted(self, topic: _Topic, count: int) -> None:
        topic.count += count
        if topic.count >= _FOLDED_AT:
            self._fold(topic)

    def _fold(self, topic: _Topic) -> None:
        if topic.outcomes:
            attempts, *found = zip(*topic.outcomes, strict=True)
            _, _, digests, *lengths, _ = zip(*attempts, strict=True)
            topic.columns.append(Outcomes(b"".join(digests), *(np.array(column, np.int64) for column in (*found, *lengths))))
        if topic.columns:
            digests, *columns = zip(*topic.columns, strict=True)
            partitions, offsets, times, latencies, key_lengths, sizes = map(np.concatenate, columns)
            identities = contents(b"".join(digests), times, key_lengths)
            some = [offsets, times, latencies, sizes]
            if bool((partitions != partitions[0]).any()):
                order = np.argsort(partitions, kind="stable")
                partitions, identities, some = partitions[order], identities.select(order), [column[order] for column in some]
            bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
            for first, behind in pairwise(bounds):
                run = slice(first, behind)
                self._add(topic, int(partitions[first]), identities.select(run), [column[run] for column in some])
        topic.outcomes, topic.columns, topic.count = [], [], 0

    def _add(self, topic: _Topic, partition: int, identities: Identities, columns: Sequence[Integers]) -> None:
        for start_ms, mask in by_window(columns[1], self._session.window_ms):
            tally = topic.tallies.setdefault((partition, start_ms), Tally())
            some = identities if mask is None else identities.select(mask)
            offsets, _, latencies, sizes = columns if mask is None else [column[mask] for column in columns]
            tally.count_contents(some)
            self._enter(tally, len(some))
            if int(offsets.min()) >= 0:
                tally.count_messages(partition, offsets, some, int(sizes.sum()))
            else:  # acks=0: no one knows where they are
                tally.merge(Tally(count=len(some), size=int(sizes.sum()), offsets=None, content=0))
            tally.latencies.add_all(latencies)

    def _enter(self, tally: Tally, count: int) -> None:
        """Counts what a producer alone counts."""


def _shared_out(windows: Mapping[int, Tally]) -> list[list[tuple[int, Tally]]]:
    """So few for each record that it can be sent; of none at all one record."""
    rows = list(windows.items())
    return [rows[first : first + _MOST_WINDOWS] for first in range(0, max(1, len(rows)), _MOST_WINDOWS)]


class _Sent(Audit):
    """What a producer counts.

    Args:
        by_append: brokers stamp messages (`message.timestamp.type=LogAppendTime`), so what is on its way is counted by this clock.
    """

    def __init__(self, session: Session, clock: Clock | None = None, *, by_append: bool = False) -> None:
        super().__init__(session, clock)
        self.by_append: Final = by_append

    def _failed(self, topic: str, counted_ms: int, count: int = 1) -> None:
        tally = self._topic(topic).tallies.setdefault((NO_PARTITION, self._start_ms(counted_ms)), Tally())
        tally.attempted += count
        tally.failed += count

    def _start_ms(self, counted_ms: int) -> int:
        return counted_ms - counted_ms % self._session.window_ms

    def _enter(self, tally: Tally, count: int) -> None:
        tally.attempted += count
        tally.acknowledged += count


class ProducerAudit(_Sent):
    """What a producer counts, of which each message is known."""

    def attempted(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers = ()) -> Attempt:
        """A message that is about to be sent. It is on its way until `acknowledged`, `failed` or `withdrawn`."""
        counted_ms = self._clock.time_ms() if self.by_append else timestamp_ms
        attempt = _attempt(topic, key, value, timestamp_ms, headers, counted_ms)
        with self._lock:
            self._topic(topic).ways.setdefault(self._start_ms(counted_ms), deque()).append(None)
        return attempt

    def way(self, topic: str, counted_ms: int) -> deque[None]:
        """What has an entry for each message of that topic and of that time's window that is on its way.

        A client appends and pops without a lock, as long as it has this.
        """
        with self._lock:
            return self._topic(topic).ways.setdefault(self._start_ms(counted_ms), deque())

    def acknowledged(self, attempt: Attempt, partition: int, offset: int, timestamp_ms: int | None = None) -> None:
        """The brokers have it.

        Args:
            offset: -1 if no one knows.
            timestamp_ms: that the broker stamped it with; None leaves the producer's.
        """
        stamped = attempt.timestamp if timestamp_ms is None else timestamp_ms
        outcome = _Outcome(attempt, partition, offset, stamped, max(0, self._clock.time_ms() - attempt.counted_ms))
        with self._lock:
            topic = self._ended(attempt)
            topic.outcomes.append(outcome)
            self._counted(topic, 1)

    def failed(self, attempt: Attempt) -> None:
        """It was given up, and the application was told so; it may have arrived all the same."""
        with self._lock:
            self._ended(attempt)
            self._failed(attempt.topic, attempt.counted_ms)

    def withdrawn(self, attempt: Attempt) -> None:
        """It was never sent."""
        with self._lock:
            self._ended(attempt)

    def _ended(self, attempt: Attempt) -> _Topic:
        topic = self._topics[attempt.topic]
        topic.ways[self._start_ms(attempt.counted_ms)].pop()
        return topic


class _Written(NamedTuple):
    """A batch that is written, and has yet to be counted."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    sections: list[bytes] | None
    runs: list[tuple[int, int]]
    partition: int
    base_offset: int
    append_time_ms: int
    opened_ms: int
    written_ms: int


class OutgoingAudit(_Sent):
    """What a producer of `ottla.client` counts: many batches at a time, once they are written. Nothing is done for a message before.

    Args:
        outgoing: says what is on its way.
    """

    def __init__(self, session: Session, outgoing: Outgoing, clock: Clock | None = None, *, by_append: bool = False) -> None:
        super().__init__(session, clock, by_append=by_append)
        self._outgoing: Final = outgoing
        self._written: dict[str, list[_Written]] = {}
        self._written_size = 0
        # Of the open transaction: what is written, which counts at its commit, and which times its messages have.
        self._transaction: list[tuple[str, Outcomes, list[tuple[int, int]]]] | None = None

    def uses(self, topic: str) -> None:
        """Messages of the topic are going to be sent."""
        with self._lock:
            self._topic(topic)

    def written(self, batch: OutgoingBatch, base_offset: BaseOffset) -> None:
        """The batch is written there; nothing of one that is over, as its transaction was aborted meanwhile."""
        (topic, partition), append_time_ms = batch.partition, base_offset.append_time_ms
        with self._lock:
            with self._outgoing.lock:
                if batch.is_over:
                    return
                self._written.setdefault(topic, []).append(
                    _Written(
                        batch.values,
                        batch.keys,
                        batch.sections,
                        runs_of(batch),
                        partition,
                        int(base_offset),
                        append_time_ms,
                        batch.opened_ms,
                        self._clock.time_ms(),
                    )
                )
            self._written_size += batch.size
            if self._written_size >= _COUNTED_AT:
                self._gather()

    def _gather(self) -> None:
        for topic, batches in self._written.items():
            outcomes = _outcomes_of(batches, by_append=self.by_append)
            if self._transaction is None:
                self._count(topic, outcomes)
            else:
                self._transaction.append((topic, outcomes, [run for batch in batches for run in self._runs_of(batch)]))
        self._written, self._written_size = {}, 0

    def failed(self, batch: OutgoingBatch) -> None:
        """It is not, or no one knows."""
        for counted_ms, count in [(batch.opened_ms, batch.count)] if self.by_append else runs_of(batch):
            self.given_up(batch.partition.topic, counted_ms, count)

    def given_up(self, topic: str, timestamp_ms: int, count: int) -> None:
        """So many messages of that time are not written."""
        with self._lock:
            self._failed(topic, timestamp_ms, count)

    def begin_transaction(self) -> None:
        """What is written from now on counts at the commit."""
        with self._lock:
            self._gather()
            self._transaction = []

    def end_transaction(self, *, is_committed: bool) -> None:
        """What the transaction had counts, or is nowhere and counts for nothing."""
        with self._lock:
            self._gather()
            transaction, self._transaction = self._transaction or [], None
            now_ms = self._clock.time_ms()
            for topic, outcomes, _ in transaction if is_committed else ():
                self._count(topic, outcomes._replace(latencies_ms=np.maximum(outcomes.latencies_ms, now_ms - outcomes.timestamps)))

    def _runs_of(self, batch: _Written) -> list[tuple[int, int]]:
        return [(batch.opened_ms, len(batch.values))] if self.by_append else batch.runs

    def _on_their_way(self, name: str, topic: _Topic) -> dict[int, int]:
        found: dict[int, int] = {}
        runs = [*self._outgoing.on_their_way(name, by_clock=self.by_append)]
        if self._transaction is not None:
            runs += [run for of, _, runs_of_batch in self._transaction for run in runs_of_batch if of == name]
            runs += [run for batch in self._written.get(name, ()) for run in self._runs_of(batch)]
        for counted_ms, count in runs:
            start_ms = self._start_ms(counted_ms)
            found[start_ms] = found.get(start_ms, 0) + count
        return found


def _outcomes_of(batches: Sequence[_Written], *, by_append: bool) -> Outcomes:
    counts = np.array([len(batch.values) for batch in batches])
    values = list(chain.from_iterable(batch.values for batch in batches))
    keys = list(chain.from_iterable(batch.keys or repeat(None, len(batch.values)) for batch in batches))
    ids = None
    if any(batch.sections for batch in batches):
        ids = ids_of_sections([section for batch in batches for section in batch.sections or repeat(NO_HEADERS, len(batch.values))])
    digests, key_lengths, sizes = digests_of(keys, values, ids)
    columns = np.array([batch[4:] for batch in batches], np.int64).T
    partitions, base_offsets, append_times, opened, written = (np.repeat(column, counts) for column in columns)
    numbers = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    sent = np.repeat(*np.array([run for batch in batches for run in batch.runs], np.int64).T)
    return Outcomes(
        digests,
        partitions,
        np.where(base_offsets < 0, -1, base_offsets + numbers),
        np.where(append_times < 0, sent, append_times),
        np.maximum(written - (opened if by_append else sent), 0),
        key_lengths,
        sizes,
    )


class ConsumerAudit(Audit):
    """What a consumer of a group counts. Its watermark is the time of what it had last, so that one which is killed leaves in doubt what
    it may have had since, however far behind it was."""

    def _watermark(self, topic: _Topic, on_their_way: Mapping[int, int], now_ms: int) -> int:
        return min((now_ms, *topic.last_times.values()))

    def consumed(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
    ) -> None:
        """A message that the application is given."""
        attempt = _attempt(topic, key, value, timestamp_ms, headers, timestamp_ms)
        latency_ms = max(0, self._clock.time_ms() - max(timestamp_ms, 0))
        outcome = _Outcome(attempt, partition, offset, timestamp_ms, latency_ms)
        with self._lock:
            known = self._topic(topic)
            known.outcomes.append(outcome)
            known.last_times[partition] = timestamp_ms
            first, behind = known.positions.get(partition, (offset, offset))
            known.positions[partition] = min(first, offset), max(behind, offset + 1)
            self._counted(known, 1)

    def consumed_many(self, name: str, outcomes: Outcomes) -> None:
        """Messages of a topic that the application is given, of each partition in the order of offsets."""
        with self._lock:
            topic = self._topic(name)
            for partition in np.unique(outcomes.partitions).tolist():
                mask = outcomes.partitions == partition
                offsets, times = outcomes.offsets[mask], outcomes.timestamps[mask]
                lowest = int(offsets[0])
                first, behind = topic.positions.get(partition, (lowest, lowest))
                topic.positions[partition] = min(first, lowest), max(behind, int(offsets[-1]) + 1)
                topic.last_times[partition] = int(times[-1])
            self._count(name, outcomes)
