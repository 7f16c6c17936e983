"""The client in the terms of the paper and of Kafka's design document: one producer, the simple consumer, the consumer connector.

    from ottla.client import ConsumerConnector, ConsumerSettings, Producer, ProducerSettings, SimpleConsumer

All of them stand on `ottla.wire` (docs/decisions/0023), consumers on ZooKeeper too. docs/client.md has an example of each. What a name
needs is imported with it: a program with a broker list does not load kazoo, and only an audited client loads librdkafka.

Nothing here reads a log directory, and no broker imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.audited_clients import audited
    from ottla.client.consumer_connector import AsyncConsumerConnector, ConsumerConnector
    from ottla.client.message_stream import AsyncMessageStream, MessageStream
    from ottla.client.messages import Message, MessageSet
    from ottla.client.producer import Producer
    from ottla.client.simple_consumer import AsyncSimpleConsumer, FetchRequest, SimpleConsumer
    from ottla.client.topic_filters import BlackList, WhiteList
    from ottla.config.client import ConsumerSettings, ProducerSettings

_PLACES = {
    "audited": "ottla.client.audited_clients",
    "AsyncConsumerConnector": "ottla.client.consumer_connector",
    "AsyncMessageStream": "ottla.client.message_stream",
    "AsyncSimpleConsumer": "ottla.client.simple_consumer",
    "BlackList": "ottla.client.topic_filters",
    "ConsumerConnector": "ottla.client.consumer_connector",
    "ConsumerSettings": "ottla.config.client",
    "FetchRequest": "ottla.client.simple_consumer",
    "Message": "ottla.client.messages",
    "MessageSet": "ottla.client.messages",
    "MessageStream": "ottla.client.message_stream",
    "Producer": "ottla.client.producer",
    "ProducerSettings": "ottla.config.client",
    "SimpleConsumer": "ottla.client.simple_consumer",
    "WhiteList": "ottla.client.topic_filters",
}

__all__ = [
    "AsyncConsumerConnector",
    "AsyncMessageStream",
    "AsyncSimpleConsumer",
    "BlackList",
    "ConsumerConnector",
    "ConsumerSettings",
    "FetchRequest",
    "Message",
    "MessageSet",
    "MessageStream",
    "Producer",
    "ProducerSettings",
    "SimpleConsumer",
    "WhiteList",
    "audited",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
