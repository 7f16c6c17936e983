"""A coordinator of groups, made from the broker's settings."""

from __future__ import annotations

from random import Random
from uuid import UUID

from ottla.broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.broker.groups.group import GroupLimits
from ottla.broker.groups.shard import ShardSettings
from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.lifecycle import Offload


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
        ),
        partition_count,
        settings.offsets_retention_check_interval_ms / 1000,
    )
