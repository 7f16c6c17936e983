"""What `ottla topics describe` tells of a topic, gathered from the cluster: metadata, offsets, sizes and configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly
from ottla.cli.errors import CommandFailed
from ottla.cli.group_facts import earliest_offsets, latest_offsets
from ottla.cli.log_directories import replicas_on_disk
from ottla.cli.reassignment_requests import adding_replicas
from ottla.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


NO_TOPIC_ID: Final = "A" * 22  # zero, of a broker that gives none


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. An offset is None when no leader tells it, the size when it cannot be asked.

    Replicas that a reassignment is adding are `adding`, too: until they have caught up they are missing nowhere (KIP-455).
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None
    size: int | None
    adding: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        return not {*self.isr, *self.adding}.issuperset(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic, its partitions by number and what is configured for it alone. The id is None of a cluster that has none."""

    name: str
    topic_id: str | None
    partitions: tuple[PartitionFacts, ...]
    overrides: Mapping[str, str]

    @property
    def replication_factor(self) -> int:
        return max((len(set(partition.replicas) - set(partition.adding)) for partition in self.partitions), default=0)

    @property
    def message_count(self) -> int:
        """Offsets between start and end: what is there, give or take control records and compaction."""
        return sum((partition.end_offset or 0) - (partition.start_offset or 0) for partition in self.partitions)

    @property
    def size(self) -> int | None:
        sizes = [partition.size for partition in self.partitions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def shown(self, under_replicated: bool) -> list[PartitionFacts]:
        """The partitions, or only those with a replica that is not in sync."""
        return [partition for partition in self.partitions if partition.is_under_replicated or not under_replicated]

    def as_json(self, under_replicated: bool = False) -> dict[str, Any]:
        return {
            "topic": self.name,
            "topic_id": self.topic_id,
            "partition_count": len(self.partitions),
            "replication_factor": self.replication_factor,
            "configs": dict(self.overrides),
            "partitions": [asdict(partition) for partition in self.shown(under_replicated)],
        }


def gather(connection: Connection, names: Sequence[str], *, internal: bool = False) -> list[TopicFacts]:
    """The facts of these topics, or of all when none is named, the internal ones if asked for; a name that is not there fails."""
    admin = connection.admin()
    metadata = cluster_metadata(admin, connection.bootstrap_server)
    adding = adding_replicas(connection, metadata)
    for name in names:
        cluster_metadata_has(metadata.topics, name, connection.bootstrap_server)
    chosen = sorted(set(names)) if names else sorted(name for name in metadata.topics if internal or not name.startswith("__"))
    partitions = [TopicPartition(name, partition) for name in chosen for partition in sorted(metadata.topics[name].partitions)]
    # Only of those that have a leader: librdkafka would wait for the others to get one.
    led = [partition for partition in partitions if metadata.topics[partition.topic].partitions[partition.partition].leader >= 0]
    begins, ends = earliest_offsets(admin, connection, led), latest_offsets(admin, connection, led)
    sizes = _sizes(connection, metadata, partitions)
    ids = _ids(admin, connection, chosen)
    overrides = _overrides(admin, connection, chosen)
    for name in names:
        cluster_metadata_has(overrides, name, connection.bootstrap_server)
    return [
        TopicFacts(
            name,
            ids.get(name),
            tuple(
                PartitionFacts(
                    partition=partition.id,
                    leader=partition.leader if partition.leader >= 0 else None,
                    replicas=tuple(partition.replicas),
                    isr=tuple(partition.isrs),
                    start_offset=begins.get((name, partition.id)),
                    end_offset=ends.get((name, partition.id)),
                    size=sizes.get(TopicPartition(name, partition.id)),
                    adding=adding.get(TopicPartition(name, partition.id), ()),
                )
                for _, partition in sorted(metadata.topics[name].partitions.items())
            ),
            overrides[name],
        )
        for name in chosen
        if name in overrides
    ]


def cluster_metadata_has(topics: Collection[str], name: str, bootstrap_server: str) -> None:
    """Fails when no topic of the cluster's has that name."""
    if name not in topics:
        raise CommandFailed(f"topic {name!r} does not exist on {bootstrap_server}")


def _ids(admin: AdminClient, connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """The ids of topics by name, as Kafka writes them."""
    if not names:
        return {}
    from confluent_kafka import KafkaException, TopicCollection

    ids: dict[str, str] = {}
    with told_plainly(connection.bootstrap_server):
        answers = admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_SECONDS)
    for name, answer in answers.items():
        with suppress(KafkaException):  # one that is gone
            topic_id = str(answer.result(ANSWER_SECONDS + 5).topic_id)
            if topic_id != NO_TOPIC_ID:
                ids[name] = topic_id
    return ids


def _sizes(connection: Connection, metadata: ClusterMetadata, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Each partition's bytes on its leader's disk; followers hold the same."""
    sizes: dict[TopicPartition, int] = {}
    for broker_id, broker in metadata.brokers.items():
        if led := [part for part in partitions if metadata.topics[part.topic].partitions[part.partition].leader == broker_id]:
            with suppress(CommandFailed):  # a broker that has just gone, or may not be asked in this way, hides nothing
                found = replicas_on_disk((str(broker.host), broker.port), connection.properties, led)
                sizes.update((partition, replica.size) for partition, replica in found.items())
    return sizes


def _overrides(admin: AdminClient, connection: Connection, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """What was set for each topic itself, by name; defaults and the broker's own settings are left out, and topics that are gone."""
    if not names:
        return {}
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    overrides: dict[str, dict[str, str]] = {}
    with told_plainly(connection.bootstrap_server):
        for resource, answer in admin.describe_configs(resources, request_timeout=ANSWER_SECONDS).items():
            try:
                entries = sorted(answer.result().items())
            except KafkaException as exception:
                if exception.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                continue
            overrides[resource.name] = {key: entry.value or "" for key, entry in entries if entry.source in (own, ConfigSource(own))}
    return overrides
