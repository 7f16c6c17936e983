"""What a client counts for the audit counter: messages as they are attempted, acknowledged and consumed.

`ProducerAudit` and `ConsumerAudit` hear of each message from its producer or consumer, at the cost of one hash and one tuple;
`records` adds the tuples up by columns. A message is reported once its outcome is known, and the session's watermark stays below whatever
is still on its way: so a process that is killed leaves windows in doubt and never a wrong count.

Thread-safe: delivery reports and reports to the counter come from different threads. Nothing here does I/O.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ottla.clock import Clock, SystemClock
from ottla.record.audit_records import NO_OFFSET, NO_PARTITION, AuditRecord, Session, Tally
from ottla.record.columnar import Integers
from ottla.record.digests import Identities, by_window, contents, digest_of

# Tuples are added up when there are so many, so that memory is bounded whatever the interval of reports.
_FOLDED_AT: Final = 32_768


class Attempt(NamedTuple):
    """One message on its way. `counted_ms` is the time by which it is counted until it is acknowledged."""

    topic: str
    timestamp: int
    digest: bytes
    key_length: int
    size: int
    counted_ms: int


class _Outcome(NamedTuple):
    attempt: Attempt
    partition: int
    offset: int
    timestamp: int
    latency_ms: int


class _Topic:
    """What is counted of one topic and not reported yet."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[int, int], Tally] = {}  # by partition and window
        self.outcomes: list[_Outcome] = []
        self.on_their_way: Counter[int] = Counter()  # by window
        self.positions: dict[int, tuple[int, int]] = {}
        self.last_times: dict[int, int] = {}  # of what was consumed last, by partition
        self.watermark_ms = 0


def new_session(tier: str, *, cluster: str = "", host: str = "", application: str = "", window_ms: int = 60_000) -> Session:
    """A session of this process."""
    return Session(uuid.uuid4().hex, tier, cluster=cluster, host=host, application=application, window_ms=window_ms)


class _Audit:
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
            for name, topic in self._topics.items():
                self._fold(topic)
                windows: dict[int, dict[int, Tally]] = {}
                for (partition, start_ms), tally in topic.tallies.items():
                    windows.setdefault(partition, {})[start_ms] = tally
                if is_final:
                    for start_ms, count in topic.on_their_way.items():
                        windows.setdefault(NO_PARTITION, {}).setdefault(start_ms, Tally()).merge(Tally(attempted=count))
                former, topic.watermark_ms = topic.watermark_ms, max(topic.watermark_ms, self._watermark(topic, now_ms))
                partitions = sorted(windows.keys() | topic.positions.keys()) or [NO_PARTITION]
                for partition in partitions:
                    is_last = partition == partitions[-1]  # only then is everything said that the watermark speaks of
                    found.append(
                        self._session.record(
                            name,
                            partition,
                            windows.get(partition, {}),
                            watermark_ms=topic.watermark_ms if is_last else former,
                            reported_ms=now_ms,
                            is_final=is_final and is_last,
                            offsets=topic.positions.get(partition, (NO_OFFSET, NO_OFFSET)),
                        )
                    )
                topic.tallies, topic.positions = {}, {}
        return found

    def _watermark(self, topic: _Topic, now_ms: int) -> int:
        return min((start_ms for start_ms, count in topic.on_their_way.items() if count), default=now_ms)

    def _fold(self, topic: _Topic) -> None:
        outcomes, topic.outcomes = topic.outcomes, []
        if not outcomes:
            return
        attempts, partitions, offsets, times, latencies = zip(*outcomes, strict=True)
        _, _, digests, key_lengths, sizes, _ = zip(*attempts, strict=True)
        columns = [np.array(column, np.int64) for column in (partitions, offsets, times, latencies, sizes)]
        identities = contents(b"".join(digests), columns[2], np.array(key_lengths, np.int64))
        for partition in np.unique(columns[0]).tolist():
            mask = columns[0] == partition
            whole = [column[mask] for column in columns]
            self._add(topic, partition, identities.select(mask), whole)

    def _add(self, topic: _Topic, partition: int, identities: Identities, columns: Sequence[Integers]) -> None:
        _, offsets, times, latencies, sizes = columns
        window_ms = self._session.window_ms
        for start_ms, found in by_window(times, window_ms):
            mask = np.ones(len(times), bool) if found is None else found
            tally = topic.tallies.setdefault((partition, start_ms), Tally())
            some = identities.select(mask)
            tally.count_contents(some)
            self._enter(tally, int(mask.sum()))
            if bool((offsets[mask] >= 0).all()):
                tally.count_messages(partition, offsets[mask], some, int(sizes[mask].sum()))
            else:  # acks=0: no one knows where they are
                tally.merge(Tally(count=int(mask.sum()), size=int(sizes[mask].sum()), offsets=None, content=0))
            tally.latencies.add_all(latencies[mask])

    def _enter(self, tally: Tally, count: int) -> None:
        """Counts what a producer alone counts."""


class ProducerAudit(_Audit):
    """What a producer counts.

    Args:
        by_append: brokers stamp messages (`message.timestamp.type=LogAppendTime`), so what is on its way is counted by this clock.
    """

    def __init__(self, session: Session, clock: Clock | None = None, *, by_append: bool = False) -> None:
        super().__init__(session, clock)
        self._by_append = by_append

    def attempted(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int) -> Attempt:
        """A message that is about to be sent. It is on its way until `acknowledged`, `failed` or `withdrawn`."""
        size, counted_ms = len(key or b"") + len(value or b""), self._clock.time_ms() if self._by_append else timestamp_ms
        attempt = Attempt(topic, timestamp_ms, digest_of(key, value), -1 if key is None else len(key), size, counted_ms)
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = _Topic()
            known.on_their_way[counted_ms - counted_ms % self._session.window_ms] += 1
        return attempt

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
            if len(topic.outcomes) >= _FOLDED_AT:
                self._fold(topic)

    def failed(self, attempt: Attempt) -> None:
        """It was given up, and the application was told so; it may have arrived all the same."""
        with self._lock:
            topic = self._ended(attempt)
            start_ms = attempt.counted_ms - attempt.counted_ms % self._session.window_ms
            tally = topic.tallies.setdefault((NO_PARTITION, start_ms), Tally())
            tally.attempted += 1
            tally.failed += 1

    def withdrawn(self, attempt: Attempt) -> None:
        """It was never sent."""
        with self._lock:
            self._ended(attempt)

    def _ended(self, attempt: Attempt) -> _Topic:
        topic = self._topics[attempt.topic]
        start_ms = attempt.counted_ms - attempt.counted_ms % self._session.window_ms
        topic.on_their_way[start_ms] -= 1
        if not topic.on_their_way[start_ms]:
            del topic.on_their_way[start_ms]
        return topic

    def _enter(self, tally: Tally, count: int) -> None:
        tally.attempted += count
        tally.acknowledged += count


class ConsumerAudit(_Audit):
    """What a consumer of a group counts. Its watermark is the time of what it had last, so that one which is killed leaves in doubt what
    it may have had since, however far behind it was."""

    def _watermark(self, topic: _Topic, now_ms: int) -> int:
        return min((now_ms, *topic.last_times.values()))

    def consumed(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """A message that the application is given."""
        size = len(key or b"") + len(value or b"")
        attempt = Attempt(topic, timestamp_ms, digest_of(key, value), -1 if key is None else len(key), size, timestamp_ms)
        outcome = _Outcome(attempt, partition, offset, timestamp_ms, max(0, self._clock.time_ms() - timestamp_ms))
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = _Topic()
            known.outcomes.append(outcome)
            known.last_times[partition] = timestamp_ms
            first, behind = known.positions.get(partition, (offset, offset))
            known.positions[partition] = min(first, offset), max(behind, offset + 1)
            if len(known.outcomes) >= _FOLDED_AT:
                self._fold(known)
