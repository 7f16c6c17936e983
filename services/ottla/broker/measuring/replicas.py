"""Replicas: what this broker leads and follows, who is in sync, how far behind it is, and how often that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.broker.replication.fetch_queue import UNKNOWN
from ottla.broker.replication.fetchers import Fetchers
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.metrics import replica as metrics
from ottla.metrics.family import PAUSE, Family, Pause, Sample, single
from ottla.model import BrokerId

# About 0.2 ms of partitions.
AT_ONCE: Final = 128


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
        for number, each in enumerate(partitions, start=1):
            offline += each.storage_error is not None
            if each.is_leader:
                leaders += 1
                under_replicated += is_under_replicated(each)
                under_min_isr += each.is_under_min_isr
                at_min_isr += len(each.isr) == min(each.min_insync_replicas, len(each.in_sync.replicas))
                reassigning += bool(each.in_sync.adding_replicas or each.in_sync.removing_replicas)
            if number % AT_ONCE == 0:
                yield PAUSE
        yield single(metrics.PARTITIONS, len(partitions))
        yield single(metrics.LEADERS, leaders)
        yield single(metrics.UNDER_REPLICATED, under_replicated)
        yield single(metrics.UNDER_MIN_ISR, under_min_isr)
        yield single(metrics.AT_MIN_ISR, at_min_isr)
        yield single(metrics.OFFLINE, offline)
        yield single(metrics.REASSIGNING, reassigning)
        changes = self._replicas.isr_counts
        yield single(metrics.ISR_SHRINKS, changes.shrinks)
        yield single(metrics.ISR_EXPANDS, changes.expansions)
        yield single(metrics.FAILED_ISR_UPDATES, changes.refused)
        yield from self._following()
        if self._per_partition:
            yield Family(metrics.HIGH_WATERMARK, (_sample(each, each.high_watermark) for each in partitions))
            led = [each for each in partitions if each.is_leader]
            yield Family(metrics.PARTITION_UNDER_REPLICATED, (_sample(each, is_under_replicated(each)) for each in led))

    def _following(self) -> Iterator[Family | Pause]:
        behind: dict[BrokerId, int] = {}
        partitions = self._replicas.partitions
        for number, (leader, followed) in enumerate(self._fetchers.followed(), start=1):
            here = partitions.get(followed.topic_partition)
            if here is not None and followed.leader_high_watermark != UNKNOWN:
                lag = max(0, followed.leader_high_watermark - here.log.log_end_offset)
                behind[leader] = max(behind.get(leader, 0), lag)
            if number % AT_ONCE == 0:
                yield PAUSE
        yield Family(metrics.FETCHER_LAG, [((str(leader),), lag) for leader, lag in sorted(behind.items())])
        yield single(metrics.FETCHER_FAILURES, self._fetchers.counts.failures)
        yield single(metrics.CRC_ERRORS, self._fetchers.counts.crc_errors)


def is_under_replicated(partition: Partition) -> bool:
    """Whether a replica that is not just being added is out of sync; of a partition that is led here."""
    state = partition.in_sync
    return any(each not in state.isr and each not in state.adding_replicas for each in state.replicas)


def _sample(partition: Partition, value: float) -> Sample:
    return (partition.topic_partition.topic, str(partition.topic_partition.partition)), float(value)
