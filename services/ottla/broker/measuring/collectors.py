"""All that measures one broker, each collector given what it reads. Imported where there are scrapes, and nowhere else."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ottla.broker.controller.service import ControllerService
from ottla.broker.controller.state import ClusterState
from ottla.broker.dispatcher import Dispatcher
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.health import BrokerHealth
from ottla.broker.measuring.group_lags import GOOD_FOR_SECONDS, GroupCollector, GroupLags
from ottla.broker.measuring.measured import Measured
from ottla.broker.measuring.requests import NetworkCollector, RequestCollector, TopicCollector
from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.fetch_queue import UNKNOWN
from ottla.broker.replication.fetchers import Fetchers
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.states import TransactionState
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.control import LISTENER_NAME
from ottla.coordination.sessions import CoordinationSessions
from ottla.lifecycle import Offload
from ottla.metrics import broker as broker_metrics
from ottla.metrics import controller as controller_metrics
from ottla.metrics import coordination
from ottla.metrics import log as log_metrics
from ottla.metrics import replica as replica_metrics
from ottla.metrics import transactions as transaction_metrics
from ottla.metrics.family import PAUSE, Collector, Family, Pause, Sample, single
from ottla.model import BrokerId
from ottla.network.listener import AnyListener
from ottla.serving.freshness import Freshness
from ottla.serving.surface import CertificateCollector
from ottla.storage.compaction.cleaner import LogCleaner
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

# About 0.2 ms of transactions.
TRANSACTIONS_AT_ONCE: Final = 500

# About 0.2 ms of partitions.
PARTITIONS_AT_ONCE: Final = 256

# About 0.2 ms of partitions.
REPLICAS_AT_ONCE: Final = 128

# About 0.3 ms of logs.
LOGS_AT_ONCE: Final = 48
# For how long the space of a file system is believed.
SPACE_SECONDS: Final = 5.0


def measuring_of(
    measured: Measured, health: BrokerHealth, clock: Clock, started_ms: int
) -> tuple[Sequence[Collector], Sequence[Freshness]]:
    """What a broker shows beside what every service does, and what has to be looked up for it."""
    parts = measured.parts
    settings = parts.settings
    per_partition = settings.metrics_partition_enabled
    paths = settings.log_directories
    space = DiskSpace(paths, parts.logs.offline_directories, parts.offload)
    lags = GroupLags(parts.groups, parts.replicas, parts.offload, clock)

    collectors: list[Collector] = [
        IdentityCollector(health, started_ms, parts),
        *data_path_collectors(parts, measured.dispatcher, measured.produces, measured.listeners),
        certificates_of(settings),
        ReplicaCollector(parts.replicas, measured.fetchers, per_partition=per_partition),
        LogCollector(parts.logs, paths, space, measured.cleaner, per_partition=per_partition),
        ControllerCollector(measured.service),
        CoordinationCollector(measured.sessions, measured.service),
        GroupCollector(parts.groups, lags, per_partition=per_partition),
        TransactionCollector(parts.transactions.coordinator, clock),
    ]
    fresh = [
        Freshness(space, SPACE_SECONDS, clock),
        Freshness(lags, GOOD_FOR_SECONDS, clock),
    ]
    return collectors, fresh


def data_path_collectors(
    parts: BrokerParts, dispatcher: Dispatcher, produces: Purgatory, listeners: Mapping[str, AnyListener]
) -> list[Collector]:
    """One of each."""
    waiting = {"produce": produces, "fetch": parts.fetch_purgatory}
    return [
        RequestCollector(parts.meters, dispatcher, waiting),
        TopicCollector(parts.meters, parts.replicas.partitions),
        NetworkCollector(listeners),
    ]


def certificates_of(settings: BrokerSettings) -> CertificateCollector:
    """Of the listeners that speak TLS, that for the other brokers' calls among them; it reads files."""
    shown = {listener.name: settings.for_listener(listener.name) for listener in settings.accepted_listeners if listener.is_tls}
    if settings.control_address.is_tls:
        shown[LISTENER_NAME] = settings.for_control()
    return CertificateCollector(shown)


# Who a broker is and what it does.


class IdentityCollector:
    """`ottla.metrics.broker`. There from the first moment of a start on.

    Args:
        health: of this broker.
        started_ms: when it was started.
        parts: of a broker that has been put together.
    """

    def __init__(self, health: BrokerHealth, started_ms: int, parts: BrokerParts | None = None) -> None:
        self._health = health
        self._started_ms = started_ms
        self._parts = parts

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        if self._parts is not None:
            settings, metadata = self._parts.settings, self._parts.metadata
            yield Family(broker_metrics.IDENTITY, [((str(settings.broker_id), settings.broker_rack or "", metadata.cluster_id), 1.0)])
        yield single(broker_metrics.START_TIME, self._started_ms / 1000)
        yield single(broker_metrics.STATE, float(self._health.readiness.phase))


# Transactions that this broker coordinates.


class TransactionCollector:
    """`ottla.metrics.transactions`."""

    def __init__(self, coordinator: TransactionCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        states: Counter[TransactionState] = Counter()
        now_ms = self._clock.time_ms()
        oldest_ms = now_ms
        for number, transaction in enumerate(list(self._coordinator.transactions()), start=1):
            states[transaction.state] += 1
            if transaction.state is TransactionState.ONGOING:
                oldest_ms = min(oldest_ms, transaction.start_timestamp)
            if number % TRANSACTIONS_AT_ONCE == 0:
                yield PAUSE
        counts = self._coordinator.counts
        yield Family(transaction_metrics.TRANSACTIONS, [((state.title,), states[state]) for state in TransactionState])
        yield Family(transaction_metrics.ENDED, [(("committed",), counts.committed), (("aborted",), counts.aborted)])
        yield single(transaction_metrics.OLDEST_OPEN, (now_ms - oldest_ms) / 1000)
        yield single(transaction_metrics.RECORDS_CORRUPT, counts.records_corrupt)


# The controller: what it has decided, and the cluster as it knows it. Of the cluster only the broker that is it speaks.


class ControllerCollector:
    """`ottla.metrics.controller`."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        service = self._service
        active, counts = service.active, service.counts
        yield single(controller_metrics.ACTIVE, float(active is not None))
        yield single(controller_metrics.EPOCH, service.controller_epoch)
        yield single(controller_metrics.ELECTIONS, counts.elections)
        yield single(controller_metrics.UNCLEAN_ELECTIONS, counts.unclean_elections)
        yield single(controller_metrics.ELECTION_SECONDS, counts.election_seconds.snapshot())
        yield Family(controller_metrics.EVENTS, [((event,), count) for event, count in sorted(counts.events.items())])
        if active is not None:
            yield single(controller_metrics.EVENT_QUEUE_LENGTH, active.waiting_count)
        if active is not None and active.is_loaded:
            yield single(controller_metrics.ALIVE_BROKERS, len(active.state.brokers))
            yield from _cluster(active.state)


def _cluster(state: ClusterState) -> Iterator[Family | Pause]:
    living = state.brokers.keys()
    topics = offline = imbalanced = partitions = 0
    for topic in list(state.topics.values()):
        if topic.is_deleting:
            continue
        topics += 1
        for partition in list(topic.partitions):
            partitions += 1
            leader, replicas = partition.state.leader, partition.state.replicas
            offline += leader not in living
            imbalanced += bool(replicas) and leader != replicas[0]
            if partitions % PARTITIONS_AT_ONCE == 0:
                yield PAUSE
    yield single(controller_metrics.TOPICS, topics)
    yield single(controller_metrics.PARTITIONS, partitions)
    yield single(controller_metrics.OFFLINE_PARTITIONS, offline)
    yield single(controller_metrics.PREFERRED_LEADER_IMBALANCE, imbalanced)


class CoordinationCollector:
    """`ottla.metrics.coordination`: the session with ZooKeeper, or with the embedded twin that stands in for it."""

    def __init__(self, sessions: CoordinationSessions, service: ControllerService) -> None:
        self._sessions = sessions
        self._service = service

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield single(coordination.SESSION_STATE, float(self._sessions.state))
        yield single(coordination.EXPIRATIONS, self._sessions.expirations)
        yield single(coordination.DISCONNECTIONS, self._sessions.disconnections)
        yield single(coordination.REQUEST_SECONDS, self._service.coordination_seconds.snapshot())


# Replicas: what this broker leads and follows, who is in sync, how far behind it is, and how often that changed.


class ReplicaCollector:
    """`ottla.metrics.replica`, but for bytes.

    Args:
        per_partition: whether each partition has series of its own.
    """

    def __init__(self, replicas: ReplicaManager, fetchers: Fetchers, *, per_partition: bool) -> None:
        self._replicas = replicas
        self._fetchers = fetchers
        self._per_partition = per_partition

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        partitions = list(self._replicas.partitions.values())
        leaders = under_replicated = under_min_isr = at_min_isr = offline = reassigning = 0
        for number, replica in enumerate(partitions, start=1):
            offline += replica.storage_error is not None
            if replica.is_leader:
                leaders += 1
                under_replicated += is_under_replicated(replica)
                under_min_isr += replica.is_under_min_isr
                at_min_isr += len(replica.isr) == min(replica.min_insync_replicas, len(replica.in_sync.replicas))
                reassigning += bool(replica.in_sync.adding_replicas or replica.in_sync.removing_replicas)
            if number % REPLICAS_AT_ONCE == 0:
                yield PAUSE
        yield single(replica_metrics.PARTITIONS, len(partitions))
        yield single(replica_metrics.LEADERS, leaders)
        yield single(replica_metrics.UNDER_REPLICATED, under_replicated)
        yield single(replica_metrics.UNDER_MIN_ISR, under_min_isr)
        yield single(replica_metrics.AT_MIN_ISR, at_min_isr)
        yield single(replica_metrics.OFFLINE, offline)
        yield single(replica_metrics.REASSIGNING, reassigning)
        changes = self._replicas.isr_counts
        yield single(replica_metrics.ISR_SHRINKS, changes.shrinks)
        yield single(replica_metrics.ISR_EXPANDS, changes.expansions)
        yield single(replica_metrics.FAILED_ISR_UPDATES, changes.refused)
        yield from self._following()
        if self._per_partition:
            high_watermarks = (_sample(partition, partition.high_watermark) for partition in partitions)
            yield Family(replica_metrics.HIGH_WATERMARK, high_watermarks)
            led = [partition for partition in partitions if partition.is_leader]
            yield Family(
                replica_metrics.PARTITION_UNDER_REPLICATED, (_sample(partition, is_under_replicated(partition)) for partition in led)
            )

    def _following(self) -> Iterator[Family | Pause]:
        behind: dict[BrokerId, int] = {}
        partitions = self._replicas.partitions
        for number, (leader, followed) in enumerate(self._fetchers.followed(), start=1):
            here = partitions.get(followed.topic_partition)
            if here is not None and followed.leader_high_watermark != UNKNOWN:
                lag = max(0, followed.leader_high_watermark - here.log.log_end_offset)
                behind[leader] = max(behind.get(leader, 0), lag)
            if number % REPLICAS_AT_ONCE == 0:
                yield PAUSE
        yield Family(replica_metrics.FETCHER_LAG, [((str(leader),), lag) for leader, lag in sorted(behind.items())])
        yield single(replica_metrics.FETCHER_FAILURES, self._fetchers.counts.failures)
        yield single(replica_metrics.CRC_ERRORS, self._fetchers.counts.crc_errors)


def is_under_replicated(partition: Partition) -> bool:
    """Whether a replica that is not just being added is out of sync; of a partition that is led here."""
    state = partition.in_sync
    return any(replica not in state.isr and replica not in state.adding_replicas for replica in state.replicas)


def _sample(partition: Partition, value: float) -> Sample:
    return (partition.topic_partition.topic, str(partition.topic_partition.partition)), float(value)


# Logs: their sizes, the space that is left for them, flushes, recovery, and the cleaner.


class Space(NamedTuple):
    """A file system's, in bytes."""

    total: int
    free: int


class DiskSpace:
    """The space of the log directories' file systems, as last looked at.

    Args:
        paths: the log directories.
        offline: those that have failed.
        offload: a disk that hangs must not hold the loop up.
    """

    def __init__(self, paths: Sequence[Path], offline: Mapping[Path, str], offload: Offload) -> None:
        self.known: Mapping[Path, Space] = {}
        self._paths = paths
        self._offline = offline
        self._offload = offload

    async def refresh(self) -> None:
        """Looks again."""
        self.known = await self._offload(spaces, [path for path in self._paths if path not in self._offline])


def spaces(paths: Sequence[Path]) -> dict[Path, Space]:
    """The space of file systems; those that cannot be asked are left out."""
    found = {}
    for path in paths:
        with suppress(OSError):
            about = os.statvfs(path)
            found[path] = Space(about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize)
    return found


class LogCollector:
    """`ottla.metrics.log`, but for the cleaner.

    Args:
        paths: the log directories.
        space: as last looked at.
        per_partition: whether each partition has series of its own.
    """

    def __init__(self, logs: LogManager, paths: Sequence[Path], space: DiskSpace, cleaner: LogCleaner, *, per_partition: bool) -> None:
        self._logs = logs
        self._paths = paths
        self._space = space
        self._cleaner = cleaner
        self._per_partition = per_partition

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        sizes = dict.fromkeys(self._paths, 0)
        logs: list[tuple[Log, int]] = []
        segments = 0
        for number, log in enumerate(list(self._logs.logs.values()), start=1):
            size = log.size
            logs.append((log, size))
            sizes[log.directory.parent] += size
            segments += len(log.segments)
            if number % LOGS_AT_ONCE == 0:
                yield PAUSE
        yield single(log_metrics.SEGMENTS, segments)
        yield Family(log_metrics.DIRECTORY_SIZE, [((str(path),), size) for path, size in sizes.items()])
        space = self._space.known
        yield Family(log_metrics.DIRECTORY_FREE, [((str(path),), disk.free) for path, disk in space.items()])
        yield Family(log_metrics.DIRECTORY_TOTAL, [((str(path),), disk.total) for path, disk in space.items()])
        yield single(log_metrics.DIRECTORIES_OFFLINE, len(self._logs.offline_directories))
        yield single(log_metrics.DIRECTORIES_FULL, len(self._logs.full_directories))
        counts, cleaning = self._logs.counts, self._cleaner.counts
        yield single(log_metrics.FLUSH_SECONDS, counts.flush_seconds.snapshot())
        yield single(log_metrics.CRC_ERRORS, counts.crc_errors + cleaning.crc_errors)
        yield single(log_metrics.RECOVERY_SECONDS, counts.recovery_seconds)
        yield single(log_metrics.RECOVERED_BYTES, counts.recovered_bytes)
        yield single(log_metrics.CLEANED_BYTES, cleaning.read_bytes)
        yield single(log_metrics.MAX_DIRTY_RATIO, cleaning.max_dirty_ratio)
        yield single(log_metrics.UNCLEANABLE, len(self._cleaner.uncleanable))
        yield single(log_metrics.CLEANER_RUN_SECONDS, cleaning.run_seconds.snapshot())
        if self._per_partition:
            yield Family(log_metrics.SIZE_BYTES, (_log_sample(log, size) for log, size in logs))
            yield Family(log_metrics.START_OFFSET, (_log_sample(log, log.log_start_offset) for log, _ in logs))
            yield Family(log_metrics.END_OFFSET, (_log_sample(log, log.log_end_offset) for log, _ in logs))


def _log_sample(log: Log, value: int) -> Sample:
    return (log.topic_partition.topic, str(log.topic_partition.partition)), value
