"""The collectors of what happens between a client's socket and a log: the network, requests, topics."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.dispatcher import Dispatcher
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.measuring.network import NetworkCollector
from ottla.broker.measuring.requests import RequestCollector, TopicCollector
from ottla.broker.purgatory import Purgatory
from ottla.metrics.family import Collector
from ottla.network.listener import AnyListener


def data_path_collectors(
    parts: BrokerParts, dispatcher: Dispatcher, produces: Purgatory, listeners: Mapping[str, AnyListener]
) -> list[Collector]:
    """One of each."""
    waiting = {"produce": produces, "fetch": parts.fetch_purgatory}
    return [
        RequestCollector(parts.meters, lambda: dispatcher.queue_length, waiting),
        TopicCollector(parts.meters, lambda: list(parts.replicas.partitions.values())),
        NetworkCollector(listeners),
    ]
