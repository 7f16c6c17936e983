"""The places where a program joins in an asynchronous producer's work: Kafka 0.7's `CallbackHandler` and `EventHandler`.

    send ─ before_enqueue ─ queue ─ after_enqueue … after_dequeuing ─ before_sending ─ event handler ─ brokers

The first and the third run in the thread that calls `send`, all later ones in the producer's own, one batch at a time. What a hook in
`send` raises, `send` raises; what one of the others raises, the deliveries of its batch fail with.

A subclass overrides what it needs: everything here does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ottla.config.client import ProducerSettings


class ProducerRecord(NamedTuple):
    """One message on its way, encoded. A partition of -1 leaves the choice to the partitioner; a timestamp of 0 is now."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    partition: int = -1


class CallbackHandler:
    """What is called on a message's way through an asynchronous producer."""

    def init(self, settings: ProducerSettings) -> None:
        """Before the first message."""

    def before_enqueue(self, record: ProducerRecord) -> ProducerRecord | None:
        """Gives what is to be enqueued: the record, another one, or None to drop it."""
        return record

    def after_enqueue(self, record: ProducerRecord, is_added: bool) -> None:
        """The record is in the queue, or there was no room."""

    def after_dequeuing(self, record: ProducerRecord) -> Sequence[ProducerRecord]:
        """Gives what continues in the place of a record that left the queue."""
        return (record,)

    def before_sending(self, records: Sequence[ProducerRecord]) -> Sequence[ProducerRecord]:
        """Gives the batch that is to be sent."""
        return records

    def last_batch_before_close(self) -> Sequence[ProducerRecord]:
        """Gives what is to be sent at last."""
        return ()

    def close(self) -> None:
        """Everything has been sent."""


class EventHandler(Protocol):
    """Sends batches instead of the producer; what it raises, their deliveries fail with."""

    def handle(self, records: Sequence[ProducerRecord]) -> None:
        """Sends a batch, and returns when it is delivered."""
        ...
