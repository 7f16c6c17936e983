"""`ottla consume --group`, with a client that says what a broker would."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from ottla.cli.connection import Connection
from ottla.cli.consume import GroupReader


class Said:
    """A message, or with an error the end of its partition."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset, self._error = offset, error

    def topic(self) -> str:
        return "clicks"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Client:
    """A consumer whose queue has these messages whenever it is looked at."""

    def __init__(self, *queues: list[Said]) -> None:
        self._queues = list(queues)
        self.committed: list[int] = []

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any) -> None:
        on_assign(self, [TopicPartition("clicks", 0)])

    def poll(self, timeout: float) -> Said | None:
        return self._queues[0].pop(0) if self._queues else None

    def consume(self, count: int, timeout: float) -> list[Said]:
        return self._queues.pop(0)

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> None:
        self.committed += [place.offset for place in offsets]


def test_the_end_of_a_partition_is_not_committed_over_what_was_printed_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who prints slowly, as into a pager, finds the end and what was written since in one queue. An end may lie behind the last message."""
    end = KafkaError._PARTITION_EOF
    client = Client([Said(0), Said(1, end), Said(1), Said(2)], [Said(3), Said(7, end)])
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda configuration: client)
    reader = GroupReader(Connection("127.0.0.1:9092"), ["clicks"], "billing", "read_committed", from_the_end=False, follow=True)
    for messages in reader.batches(0):
        reader.printed(messages)
    assert client.committed == [3, 4, 7]
