"""Requests: what `RequestMeters` has counted, what waits, the bytes and records of each topic; and connections by listener.

Bytes and records are counted by partition, where they are appended and read. A topic's series is of what its partitions
have counted since the broker was started: when one is moved away or opened again, what it had counted stays in the
topic's sum, which would otherwise seem to have begun again. The sum goes with the last of the partitions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.partition import Partition
from ottla.broker.request_meters import RequestMeters
from ottla.metrics import network, replica, requests
from ottla.metrics.family import PAUSE, Family, Pause, Sample, single
from ottla.metrics.metric import Metric
from ottla.model import TopicPartition
from ottla.network.listener import AnyListener

# About 0.2 ms of partitions that were all written to.
PARTITIONS_AT_ONCE: Final = 48


class Queue(Protocol):
    """What requests wait in."""

    @property
    def queue_length(self) -> int:
        """How many wait to be handled."""


class RequestCollector:
    """`ottla.metrics.requests`, but for topics.

    Args:
        queue: of the dispatcher.
        waiting: the purgatories by what waits in them.
    """

    def __init__(self, meters: RequestMeters, queue: Queue, waiting: dict[str, Purgatory]) -> None:
        self._meters = meters
        self._queue = queue
        self._waiting = waiting

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield Family(requests.REQUESTS, self._counts())
        yield Family(requests.SECONDS, self._stages())
        failures = sorted(self._meters.failures.items())
        yield Family(requests.FAILED, [((api, error_name(code)), count) for (api, code), count in failures])
        yield single(requests.QUEUE_LENGTH, self._queue.queue_length)
        yield Family(requests.PURGATORY, [((operation,), len(purgatory)) for operation, purgatory in self._waiting.items()])

    def _counts(self) -> Iterator[Sample]:
        for meter in self._meters.all():
            for version, count in sorted(meter.versions.items()):
                yield (meter.name, str(version)), count

    def _stages(self) -> Iterator[Sample]:
        for meter in self._meters.all():
            for stage, snapshot in meter.snapshots():
                yield (meter.name, stage), snapshot


class _Counts(NamedTuple):
    """What one partition has counted, or all of a topic together."""

    received_bytes: int = 0
    messages: int = 0
    sent_bytes: int = 0
    produces: int = 0
    fetches: int = 0
    produce_failures: int = 0
    fetch_failures: int = 0
    followed_bytes: int = 0

    def plus(self, other: _Counts) -> _Counts:
        return _Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, earlier: _Counts) -> _Counts:
        """What was added; a count that is smaller has begun again."""
        return _Counts(*(now - then if now >= then else now for now, then in zip(self, earlier, strict=True)))


_NOTHING: Final = _Counts()

_SHOWN: Final[tuple[Metric, ...]] = (
    requests.RECEIVED_BYTES,
    requests.MESSAGES_RECEIVED,
    requests.SENT_BYTES,
    requests.PRODUCES,
    requests.FETCHES,
    requests.PRODUCE_FAILURES,
    requests.FETCH_FAILURES,
)


def _counts_of(partition: Partition) -> _Counts:
    log, followed = partition.log, partition.followed_bytes
    return _Counts(
        log.appender.appended_bytes - followed,
        log.appender.appended_messages - partition.followed_messages,
        partition.sent_bytes,
        log.appender.appended_batches - partition.followed_batches + partition.produce_failures,
        partition.fetches,
        partition.produce_failures,
        partition.fetch_failures,
        followed,
    )


class TopicCollector:
    """Bytes and records by topic, and what followers took and brought.

    Args:
        partitions: all that have a replica here.
    """

    def __init__(self, meters: RequestMeters, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._meters = meters
        self._partitions = partitions
        self._seen: dict[Partition, _Counts] = {}
        self._sums: dict[str, _Counts] = {}
        self._followed_bytes = 0

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield from self._add_up()
        sums = list(self._sums.items())
        for index, metric in enumerate(_SHOWN):
            yield Family(metric, (((topic,), counts[index]) for topic, counts in sums))
        yield single(replica.RECEIVED_BYTES, self._followed_bytes)
        yield single(replica.SENT_BYTES, self._meters.replica_sent_bytes)

    def _add_up(self) -> Iterator[Pause]:
        """Adds what partitions have counted since they were last looked at. Each is done with before a pause."""
        partitions = list(self._partitions.values())
        topics: set[str] = set()
        for number, partition in enumerate(partitions, start=1):
            topic, former = partition.topic_partition.topic, self._seen.get(partition)
            topics.add(topic)
            counts = _counts_of(partition)
            if counts != former:
                added = counts if former is None else counts.since(former)
                self._seen[partition] = counts
                self._sums[topic] = self._sums.get(topic, _NOTHING).plus(added)
                self._followed_bytes += added.followed_bytes
            if not number % PARTITIONS_AT_ONCE:
                yield PAUSE
        if len(self._sums) > len(topics):
            yield PAUSE
            self._sums = {topic: counts for topic, counts in self._sums.items() if topic in topics}
        if len(self._seen) > len(partitions):
            yield PAUSE
            there = set(partitions)
            self._seen = {partition: counts for partition, counts in self._seen.items() if partition in there}


class NetworkCollector:
    """`ottla.metrics.network`, but for certificates.

    Args:
        listeners: by name.
    """

    def __init__(self, listeners: Mapping[str, AnyListener]) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        listeners = list(self._listeners.items())
        traffics = [(name, listener.traffic) for name, listener in listeners]
        yield Family(network.CONNECTIONS, [((name,), listener.connection_count) for name, listener in listeners])
        yield Family(network.CONNECTIONS_OPENED, [((name,), traffic.opened) for name, traffic in traffics])
        yield Family(
            network.CONNECTIONS_CLOSED, [((name, reason), count) for name, traffic in traffics for reason, count in traffic.closed.items()]
        )
        yield Family(network.RECEIVED_BYTES, [((name,), traffic.received_bytes) for name, traffic in traffics])
        yield Family(network.SENT_BYTES, [((name,), traffic.sent_bytes) for name, traffic in traffics])
        yield single(network.SENDFILE_BYTES, sum(traffic.sendfile_bytes for _, traffic in traffics))
        yield single(network.PAUSED_READS, sum(traffic.paused_reads for _, traffic in traffics))
        yield single(network.COLD_READS, sum(traffic.cold_reads for _, traffic in traffics))


# Kafka's names of its errors, as its metrics and tools spell them: NOT_LEADER_OR_FOLLOWER.


@functools.cache
def error_name(code: int) -> str:
    """The name of an error code; of one that Kafka does not have, the number."""
    # Ten milliseconds to import, and imported only by a scrape.
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
