"""The topics that the cluster keeps for itself: made when first needed, with the settings that they need."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.metadata import MetadataCache
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC
from ottla.config.broker import BrokerSettings
from ottla.errors import ApiError, CoordinatorNotAvailable, InvalidReplicationFactor, TopicAlreadyExists
from ottla.interbroker.calls import NewTopic
from ottla.model import TopicDescription

log: Final = logging.getLogger(__name__)

# Clients that look for a coordinator ask several times a second.
_SAY_AGAIN_SECONDS: Final = 60.0


class _Replication(NamedTuple):
    """How many brokers a topic takes, by which setting, and what there is not without it."""

    title: str
    setting: str
    factor: int
    serves: str


def _replication(name: str, settings: BrokerSettings) -> _Replication:
    if name == TRANSACTIONS_TOPIC:
        factor = settings.transaction_state_log_replication_factor
        return _Replication("transactions state topic", "transaction.state.log.replication.factor", factor, "transactions")
    return _Replication("offsets topic", "offsets.topic.replication.factor", settings.offsets_topic_replication_factor, "consumer groups")


def warn_of_missing_brokers(settings: BrokerSettings, metadata: MetadataCache) -> None:
    """Says at a start what cannot be served yet: a broker that stays alone with Kafka's defaults never serves a group."""
    alive = len(metadata.brokers)
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        topic = _replication(name, settings)
        if metadata.topic(name) is None and alive < topic.factor:
            log.warning(
                "%s is %d and the number of alive brokers is %d: %s are not served until it is %d",
                topic.setting,
                topic.factor,
                alive,
                topic.serves,
                topic.factor,
            )


async def internal_topic(name: str, parts: BrokerParts) -> TopicDescription:
    """The topic; it is made if it is not there.

    Raises:
        CoordinatorNotAvailable: it cannot be made now, mostly because too few brokers live for its replicas.
    """
    description = parts.metadata.topic(name)
    if description is not None:
        return description
    try:
        with contextlib.suppress(TopicAlreadyExists):
            await parts.controller.create_topic(_new_topic(name, parts.settings))
    except InvalidReplicationFactor as error:
        raise CoordinatorNotAvailable(_too_few_brokers(name, parts)) from error
    except ApiError as error:
        raise CoordinatorNotAvailable(f"{name} cannot be made: {error.message}") from error
    description = parts.metadata.topic(name)
    if description is None:
        raise CoordinatorNotAvailable(f"{name} was made and is not known here yet")
    return description


def _too_few_brokers(name: str, parts: BrokerParts) -> str:
    """Kafka's sentence, logged as an error now and then. Clients get it too, and do not show it."""
    topic, now = _replication(name, parts.settings), parts.clock.monotonic()
    sentence = (
        f"Number of alive brokers '{len(parts.metadata.brokers)}' does not meet the required replication factor '{topic.factor}' for the "
        f"{topic.title} (configured via '{topic.setting}')."
    )
    said = parts.topics_not_made.get(name)
    if said is None or now - said >= _SAY_AGAIN_SECONDS:
        parts.topics_not_made[name] = now
        log.error("%s This error can be ignored if the cluster is starting up and not all brokers are up yet.", sentence)
    return sentence


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
