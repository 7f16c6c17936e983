"""What `ottla cluster` shows: who is there, who leads how much, and which partitions are not as they should be.

Gathered once from a client's metadata; what follows from it is worked out here, without a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.broker_call import can_call
from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly
from ottla.cli.errors import CommandFailed
from ottla.cli.log_directories import log_directory_states
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# Topics whose settings are asked for in one request: each has about thirty of them.
_TOPICS_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker that lives. What it has is counted over all topics; log directories are named where something is wrong with them."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    leader_count: int = 0
    replica_count: int = 0
    in_sync_count: int = 0
    full_log_dirs: tuple[str, ...] = ()
    offline_log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a partition is. `min_insync_replicas` is None where it is not known."""

    topic_partition: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_insync_replicas: int | None = None

    @property
    def is_offline(self) -> bool:
        """Whether nobody leads it."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether acks=all is refused for want of replicas."""
        return self.min_insync_replicas is not None and len(self.isr) < self.min_insync_replicas

    def as_json(self) -> dict[str, Any]:
        topic, partition = self.topic_partition
        return {
            "topic": topic,
            "partition": partition,
            "leader": self.leader,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "min_insync_replicas": self.min_insync_replicas,
        }


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The whole cluster at one moment."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerFacts, ...]
    partitions: tuple[Placed, ...]

    @property
    def topic_count(self) -> int:
        return len({each.topic_partition.topic for each in self.partitions})

    @property
    def offline(self) -> list[Placed]:
        return [each for each in self.partitions if each.is_offline]

    @property
    def under_min_isr(self) -> list[Placed]:
        return [each for each in self.partitions if each.is_under_min_isr]

    @property
    def under_replicated(self) -> list[Placed]:
        return [each for each in self.partitions if each.is_under_replicated]

    @property
    def missing_brokers(self) -> dict[int, int]:
        """Brokers that have replicas and do not live, with how many replicas."""
        living = {each.broker_id for each in self.brokers}
        return dict(sorted(Counter(each for placed in self.partitions for each in placed.replicas if each not in living).items()))

    @property
    def complaints(self) -> list[str]:
        """What is wrong, worst first; nothing when all is well."""
        found = [
            (len(self.offline), "offline"),
            (len(self.under_min_isr), f"under {MIN_INSYNC_REPLICAS}"),
            (len(self.under_replicated), "under-replicated"),
        ]
        complaints = [f"{count:,} of {len(self.partitions):,} partitions {what}" for count, what in found if count]
        if self.controller_id is None:
            complaints.insert(0, "no controller")
        if self.missing_brokers:
            complaints.append(f"no sign of broker {', '.join(map(str, self.missing_brokers))}")
        for each in self.brokers:
            complaints += [f"the log directory {path} of broker {each.broker_id} is offline" for path in each.offline_log_dirs]
            complaints += [f"the disk of the log directory {path} of broker {each.broker_id} is full" for path in each.full_log_dirs]
        return complaints

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "controller_id": self.controller_id,
            "brokers": [asdict(each) for each in self.brokers],
            "topic_count": self.topic_count,
            "partition_count": len(self.partitions),
            "offline": [each.as_json() for each in self.offline],
            "under_min_isr": [each.as_json() for each in self.under_min_isr],
            "under_replicated": [each.as_json() for each in self.under_replicated],
            "missing_brokers": [{"broker_id": each, "replica_count": count} for each, count in self.missing_brokers.items()],
        }


def with_counts(brokers: Sequence[BrokerFacts], partitions: Sequence[Placed]) -> tuple[BrokerFacts, ...]:
    """The brokers by id, with what each leads, has, and has in sync."""
    leads = Counter(each.leader for each in partitions)
    has = Counter(replica for each in partitions for replica in each.replicas)
    in_sync = Counter(replica for each in partitions for replica in each.isr)
    return tuple(
        replace(each, leader_count=leads[each.broker_id], replica_count=has[each.broker_id], in_sync_count=in_sync[each.broker_id])
        for each in sorted(brokers, key=lambda each: each.broker_id)
    )


def gather_cluster(where: Connection) -> ClusterFacts:
    """Asks any broker for all of it."""
    admin = where.admin()
    with told_plainly(where.bootstrap_server):
        described = admin.describe_cluster(request_timeout=ANSWER_SECONDS).result(ANSWER_SECONDS + 5)
    metadata = cluster_metadata(admin, where.bootstrap_server)
    minima = _min_insync_replicas(admin, where, sorted(metadata.topics))
    partitions = tuple(
        Placed(
            TopicPartition(name, number),
            found.leader if found.leader >= 0 else None,
            tuple(found.replicas),
            tuple(found.isrs),
            minima.get(name),
        )
        for name, topic in sorted(metadata.topics.items())
        for number, found in sorted(topic.partitions.items())
    )
    brokers = [_broker(each, where) for each in described.nodes]
    controller = described.controller
    return ClusterFacts(
        described.cluster_id or "",
        controller.id if controller is not None and controller.id >= 0 else None,
        with_counts(brokers, partitions),
        partitions,
    )


def _broker(node: Any, where: Connection) -> BrokerFacts:
    found = BrokerFacts(node.id, node.host, node.port, node.rack)
    if can_call(where.properties):
        with suppress(CommandFailed):  # one that has just gone, or may not be asked, does not hide what others tell
            states = log_directory_states((str(node.host), node.port), where.properties)
            full = tuple(path for path, state in states.items() if state == "full")
            return replace(found, full_log_dirs=full, offline_log_dirs=tuple(path for path, state in states.items() if state == "offline"))
    return found


def _min_insync_replicas(admin: AdminClient, where: Connection, names: Sequence[str]) -> Mapping[str, int]:
    """Of each topic; of none where the principal may not see them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    minima: dict[str, int] = {}
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names[start : start + _TOPICS_AT_ONCE]]
        with told_plainly(where.bootstrap_server):
            answers = admin.describe_configs(resources, request_timeout=ANSWER_SECONDS)
        for resource, answer in answers.items():
            try:
                minima[resource.name] = int(answer.result(ANSWER_SECONDS + 5)[MIN_INSYNC_REPLICAS].value)
            except KafkaException:  # deleted meanwhile, or not ours to see
                continue
    return minima
