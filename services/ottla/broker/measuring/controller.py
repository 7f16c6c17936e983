"""The controller: what it has decided, and the cluster as it knows it. Of the cluster only the broker that is it speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.broker.controller.service import ControllerService
from ottla.broker.controller.state import ClusterState
from ottla.metrics import controller as metrics
from ottla.metrics.family import PAUSE, Family, Pause, single

# About 0.2 ms of partitions.
AT_ONCE: Final = 256


class ControllerCollector:
    """`ottla.metrics.controller`."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        service = self._service
        active, counts = service.active, service.counts
        yield single(metrics.ACTIVE, float(active is not None))
        yield single(metrics.EPOCH, service.controller_epoch)
        yield single(metrics.ELECTIONS, counts.elections)
        yield single(metrics.UNCLEAN_ELECTIONS, counts.unclean_elections)
        yield single(metrics.ELECTION_SECONDS, counts.election_seconds.snapshot())
        yield Family(metrics.EVENTS, [((event,), count) for event, count in sorted(counts.events.items())])
        if active is not None:
            yield single(metrics.EVENT_QUEUE_LENGTH, active.waiting_count)
            yield single(metrics.ALIVE_BROKERS, len(active.state.brokers))
            yield from _cluster(active.state)


def _cluster(state: ClusterState) -> Iterator[Family | Pause]:
    living = state.brokers.keys()
    topics = offline = imbalanced = partitions = 0
    for topic in list(state.topics.values()):
        if topic.is_deleting:
            continue
        topics += 1
        for each in list(topic.partitions):
            partitions += 1
            leader, replicas = each.state.leader, each.state.replicas
            offline += leader not in living
            imbalanced += bool(replicas) and leader != replicas[0]
            if partitions % AT_ONCE == 0:
                yield PAUSE
    yield single(metrics.TOPICS, topics)
    yield single(metrics.PARTITIONS, partitions)
    yield single(metrics.OFFLINE_PARTITIONS, offline)
    yield single(metrics.PREFERRED_LEADER_IMBALANCE, imbalanced)
