"""A coordinator of groups, made from the broker's settings."""

from __future__ import annotations

from random import Random
from uuid import UUID

from ottla.broker.groups.consumer.group import ConsumerLimits
from ottla.broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.broker.groups.entries import ShardSettings
from ottla.broker.groups.group import GroupLimits
from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.groups import MigrationPolicy
from ottla.lifecycle import Offload
from ottla.model import INTERNAL_TOPICS, TopicDescription


class MetadataTopics:
    """The topics that this broker knows of, as consumer groups look them up."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def topic(self, name: str) -> TopicDescription | None:
        return self._metadata.topic(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._metadata.topic_name(topic_id)

    def names(self) -> list[str]:
        """Internal topics are subscribed to by name, or not at all."""
        return [each.name for each in self._metadata.topics() if each.name not in INTERNAL_TOPICS]


def group_coordinator(
    settings: BrokerSettings, internal: InternalTopics, clock: Clock, random: Random, offload: Offload, metadata: MetadataCache
) -> GroupCoordinator:
    """The coordinator that this broker is.

    Args:
        random: tells new members' ids apart.
        metadata: how many partitions the offsets topic has; before it is made, as many as the settings say.
    """

    def partition_count() -> int:
        topic = metadata.topic(OFFSETS_TOPIC)
        return settings.offsets_topic_num_partitions if topic is None else len(topic.partitions)

    limits = GroupLimits(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        max_size=settings.group_max_size,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    policy = MigrationPolicy(settings.group_consumer_migration_policy.lower())
    consumer_limits = ConsumerLimits(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=settings.group_consumer_assignors,
        can_upgrade=policy in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL),
        can_downgrade=policy in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL),
    )
    return GroupCoordinator(
        internal,
        clock,
        lambda: UUID(int=random.getrandbits(128), version=4),
        offload,
        ShardSettings(
            limits,
            commit_timeout_seconds=settings.offsets_commit_timeout_ms / 1000,
            metadata_max_bytes=settings.offset_metadata_max_bytes,
            retention_ms=settings.offsets_retention_minutes * 60_000,
            load_buffer_bytes=settings.offsets_load_buffer_size,
            codec=settings.offsets_topic_compression_codec,
            consumer_limits=consumer_limits,
        ),
        partition_count,
        settings.offsets_retention_check_interval_ms / 1000,
        MetadataTopics(metadata),
    )
