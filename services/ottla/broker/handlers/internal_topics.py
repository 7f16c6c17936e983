"""The topics that the cluster keeps for itself: made when first needed, with the settings that they need."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC
from ottla.config.broker import BrokerSettings
from ottla.errors import ApiError, CoordinatorNotAvailable, TopicAlreadyExists
from ottla.interbroker.calls import NewTopic
from ottla.model import TopicDescription


async def internal_topic(name: str, parts: BrokerParts) -> TopicDescription:
    """The topic; it is made if it is not there.

    Raises:
        CoordinatorNotAvailable: it can not be made now, mostly because too few brokers live for its replicas.
    """
    description = parts.metadata.topic(name)
    if description is not None:
        return description
    try:
        with contextlib.suppress(TopicAlreadyExists):
            await parts.controller.create_topic(_new_topic(name, parts.settings))
    except ApiError as error:
        raise CoordinatorNotAvailable(f"{name} can not be made: {error.message}") from error
    description = parts.metadata.topic(name)
    if description is None:
        raise CoordinatorNotAvailable(f"{name} was made and is not known here yet")
    return description


def _new_topic(name: str, settings: BrokerSettings) -> NewTopic:
    if name == TRANSACTIONS_TOPIC:
        transaction_configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings.transaction_state_log_min_isr),
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        count, factor = settings.transaction_state_log_num_partitions, settings.transaction_state_log_replication_factor
        return NewTopic(name, count, factor, configs=transaction_configs)
    assert name == OFFSETS_TOPIC, name
    configs: Mapping[str, str] = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }
    return NewTopic(name, settings.offsets_topic_num_partitions, settings.offsets_topic_replication_factor, configs=configs)
