"""What a load says to the audit: the tier `load:<job>`, by windows of message time.

A task sums up the offsets that it has written; the driver makes records of them that are part of the table's commit, and sends them when
that is done. What was not sent, because a driver was killed between the two, the next load sends: it stands in the commit, and a counter
takes a record once, by its number. More than `_MOST_REMEMBERED` is not put into a commit: where such a load is killed, audit data is
missing, which a counter says and never takes for a loss.

Contents are not hashed: offsets are compared with those that the broker has counted. Needs the extra `audit`, which is imported where a
load is audited.
"""

from __future__ import annotations

import base64
import socket
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ottla.errors import TopicAlreadyExists
from ottla.model import TopicPartition
from ottla.record.columnar import Columns
from ottla.record.records import Record, build_batch
from ottla.spark.loading.ranges import RangeFacts
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster
from ottla.wire.producing import BatchProducer, ProduceSettings

if TYPE_CHECKING:
    from ottla.record.audit_records import Tally

_MOST_REMEMBERED: Final = 64 * 1024
_WINDOWS_IN_A_RECORD: Final = 1000
_BATCH_BYTES: Final = 500_000
_SEND_SECONDS: Final = 30.0


def count(tallies: dict[int, Tally], records: Columns, keep: Any, window_ms: int, now_ms: int) -> None:
    """Counts records into the tally of each window, by its start.

    Args:
        keep: which of them were written, as a mask; None: all.
        now_ms: for latencies.
    """
    from ottla.record.audit_records import Tally
    from ottla.record.digests import by_window

    which = slice(None) if keep is None else keep
    offsets, times = records.offsets[which], records.timestamps[which]
    sizes = np.maximum(records.keys.lengths[which], 0) + np.maximum(records.values.lengths[which], 0)
    for start, mask in by_window(times, window_ms):
        of_it = slice(None) if mask is None else mask
        tally = tallies.setdefault(start, Tally())
        tally.count_offsets(offsets[of_it], int(sizes[of_it].sum()))
        tally.latencies.add_all(np.maximum(now_ms - times[of_it], 0))


@dataclass(frozen=True, slots=True)
class Report:
    """What a commit says to the audit.

    Attributes:
        session: of the job in its table.
        next_sequences: the number of the next record, by topic.
        records: topics and values of `__audit`, in their order.
    """

    session: str
    next_sequences: Mapping[str, int]
    records: Sequence[tuple[str, bytes]]

    @classmethod
    def of(cls, job: str, facts: Iterable[RangeFacts], before: Report | None, window_ms: int, now_ms: int) -> Report:
        """The report of a load.

        Args:
            before: that of the job's last commit; None: there is none.
        """
        from ottla.record.audit_records import AuditRecord, Tally, encode

        session = uuid.uuid4().hex if before is None else before.session
        sequences: dict[str, int] = dict({} if before is None else before.next_sequences)
        bounds: dict[TopicPartition, tuple[int, int]] = {}
        tallies: dict[TopicPartition, dict[int, Tally]] = {}
        for one in facts:
            partition, start, end = one.range.partition, one.range.start, one.range.end
            low, high = bounds.get(partition, (start, end))
            bounds[partition] = min(low, start), max(high, end)
            for window, tally in one.tallies.items():
                tallies.setdefault(partition, {}).setdefault(window, Tally()).merge(tally)
        parts = [
            (partition, dict(windows)) for partition in sorted(bounds) for windows in _parts(sorted(tallies.get(partition, {}).items()))
        ]
        last = {partition.topic: number for number, (partition, _) in enumerate(parts)}
        records = []
        for number, (partition, windows) in enumerate(parts):
            sequence = sequences.get(partition.topic, 0)
            sequences[partition.topic] = sequence + 1
            # The job may rest for as long as it likes: after its last word it is not taken for dead.
            record = AuditRecord(
                session,
                sequence,
                f"load:{job}",
                partition.topic,
                partition.partition,
                window_ms,
                now_ms,
                windows,
                last[partition.topic] == number,
                host=socket.gethostname(),
                application="ottla load",
                first_offset=bounds[partition][0],
                next_offset=bounds[partition][1],
                reported_ms=now_ms,
            )
            records.append((partition.topic, encode(record)))
        return cls(session, sequences, records)

    @classmethod
    def remembered(cls, found: Mapping[str, Any]) -> Report:
        """The report of a commit, as far as that has it."""
        records = [(topic, base64.b64decode(value)) for topic, value in found["records"]]
        return cls(found["session"], found["next"], records)

    def to_remember(self) -> dict[str, Any]:
        """For the commit."""
        is_small = sum(len(value) for _, value in self.records) <= _MOST_REMEMBERED
        records = [[topic, base64.b64encode(value).decode()] for topic, value in self.records] if is_small else []
        return {"session": self.session, "next": dict(self.next_sequences), "records": records}


def _parts(windows: Sequence[tuple[int, Tally]]) -> list[Sequence[tuple[int, Tally]]]:
    """One at least: a range without a row moves the tier's position too."""
    return [windows[at : at + _WINDOWS_IN_A_RECORD] for at in range(0, len(windows) or 1, _WINDOWS_IN_A_RECORD)]


async def send(cluster: Cluster, records: Iterable[tuple[str, bytes]], now_ms: int) -> None:
    """Writes audit records, and waits until the brokers have them. The topic is made if it is not there.

    Raises:
        ApiError, OSError
    """
    from ottla.record.audit_records import TOPIC, TOPIC_PARTITIONS, TOPIC_SETTINGS

    wanted = NewTopic(TOPIC, TOPIC_PARTITIONS, settings=TOPIC_SETTINGS)
    await cluster.refresh({TOPIC})
    if TOPIC not in cluster.metadata.topics:
        for error in (await create_topics(cluster, [wanted])).values():
            if not isinstance(error, TopicAlreadyExists):
                raise error
    count_of_partitions = len((await cluster.topic(TOPIC)).partitions)
    async with BatchProducer(cluster, ProduceSettings(delivery_timeout_seconds=_SEND_SECONDS)) as producer:
        for topic, batch in _batches(records, now_ms):
            await producer.room()
            await producer.send(TopicPartition(TOPIC, zlib.crc32(topic.encode()) % count_of_partitions), batch)


def _batches(records: Iterable[tuple[str, bytes]], now_ms: int) -> Iterable[tuple[str, bytes]]:
    """Batches of one topic each, in the order of its records."""
    rows: dict[str, list[bytes]] = {}
    for topic, value in records:
        of_it = rows.setdefault(topic, [])
        if of_it and sum(map(len, of_it)) + len(value) > _BATCH_BYTES:
            yield topic, _batch(topic, of_it, now_ms)
            of_it.clear()
        of_it.append(value)
    for topic, of_it in rows.items():
        yield topic, _batch(topic, of_it, now_ms)


def _batch(topic: str, values: Sequence[bytes], now_ms: int) -> bytes:
    return build_batch(Record(number, now_ms, topic.encode(), value) for number, value in enumerate(values))
