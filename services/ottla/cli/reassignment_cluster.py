"""The cluster as reassignments see it: where partitions are, which are on their way, and whom to ask."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.cli.broker_call import security_for
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly
from ottla.cli.errors import CommandFailed
from ottla.cli.reassignment_plan import Plan, Replicas
from ottla.cli.reassignment_requests import Ongoing, controller_address, list_reassignments
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

# At the end of a move the controller has written it, and the broker that we ask hears of it a moment later.
SETTLE_SECONDS: Final = 10.0
# How long a wait continues without an answer: another controller is found well within it.
SILENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2


class ReassigningCluster:
    """What `ottla reassign` knows of the cluster, and how it asks for more."""

    def __init__(self, where: Connection) -> None:
        security_for(where.properties)  # before anything is asked
        self.where = where
        self.admin: AdminClient = where.admin()
        self.refresh()

    def refresh(self) -> None:
        """Asks again, also who the controller is."""
        metadata = cluster_metadata(self.admin, self.where.bootstrap_server)
        self.address = controller_address(metadata)
        self.metadata: ClusterMetadata = metadata
        self.broker_ids = sorted(metadata.brokers)
        self.replicas: dict[TopicPartition, Replicas] = {
            TopicPartition(name, number): tuple(found.replicas)
            for name, topic in sorted(metadata.topics.items())
            for number, found in sorted(topic.partitions.items())
        }

    def racks(self, broker_ids: Sequence[int]) -> dict[int, str | None]:
        """The racks of these brokers."""
        with told_plainly(self.where.bootstrap_server):
            nodes = self.admin.describe_cluster(request_timeout=ANSWER_SECONDS).result(ANSWER_SECONDS + 5).nodes
        known = {node.id: node.rack for node in nodes}
        return {broker_id: known.get(broker_id) for broker_id in broker_ids}

    def ongoing(self) -> dict[TopicPartition, Ongoing]:
        """All partitions that are on their way."""
        return list_reassignments(self.where, self.address)

    def ongoing_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ongoing]:
        """Those of these partitions that are on their way; patient with a cluster that is just changing its controller."""
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            try:
                ongoing = self.ongoing()
                break
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            try:
                self.refresh()
            except CommandFailed:
                continue  # the next attempt tells
        wanted = set(partitions)
        return {partition: found for partition, found in ongoing.items() if partition in wanted}

    def settled(self, plan: Plan) -> dict[TopicPartition, Replicas | None]:
        """Partitions that are not where the plan wants them, after the brokers had time to hear of it; with where they are."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.refresh()
            differing = elsewhere(plan, self.replicas)
            if not differing or time.monotonic() > deadline:
                return differing
            time.sleep(_PAUSE_SECONDS)


def elsewhere(plan: Plan, current: Mapping[TopicPartition, Replicas]) -> dict[TopicPartition, Replicas | None]:
    """Partitions that are not where the plan wants them, with where they are; None for one that is not there at all."""
    return {partition: current.get(partition) for partition, wanted in sorted(plan.items()) if current.get(partition) != wanted}
