"""What only a client can meet; everything else is `ottla.errors`, as the broker has it."""

from __future__ import annotations

from ottla.errors import OttlaError, UnknownTopicId


class TopicRecreated(UnknownTopicId):
    """The topic was deleted and made again: its offsets mean other messages than before. Open a new consumer to read it."""

    retriable = False


class ConsumerTimeout(OttlaError):
    """No message came within `consumer.timeout.ms`. The stream can be read on."""


class ConsumerIdInUse(OttlaError):
    """Another consumer of the group that is alive has the same `consumer.id`."""


class RebalanceFailed(OttlaError):
    """The partitions could not be claimed within `rebalance.max.retries` attempts."""


class ClientClosed(OttlaError):
    """The client was closed, or belongs to the process of which this one is a forked child."""


class QueueFull(OttlaError):
    """The producer's queue has `queue.size` messages, and `queue.enqueue.timeout.ms` is over."""


class InvalidPartition(OttlaError):
    """A partitioner gave a number that no partition of the topic has."""


class DeliveryFailed(OttlaError):
    """Messages were not written, or no one knows whether they were.

    Attributes:
        code: of the first failure: Kafka's error code; -1 of what a handler or a partitioner raised.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
