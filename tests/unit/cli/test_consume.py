"""`ottla consume --group`, with a client that says what a broker would."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from ottla.cli.connection import Connection
from ottla.cli.consume import GroupReader


def message(offset: int, error: KafkaError | None = None) -> Any:
    said = {"topic": "clicks", "partition": 0, "offset": offset, "error": error}
    return Mock(**{f"{name}.return_value": value for name, value in said.items()})


def test_the_end_of_a_partition_is_not_committed_over_what_was_printed_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who prints slowly, as into a pager, finds the end and what was written since in one queue. An end may lie behind the last message."""
    end = KafkaError(KafkaError._PARTITION_EOF)
    client = Mock()
    client.subscribe.side_effect = lambda topics, on_assign, on_revoke: on_assign(client, [TopicPartition("clicks", 0)])
    client.poll.side_effect = [message(0), message(3), None]
    client.consume.side_effect = [[message(1, end), message(1), message(2)], [message(7, end)]]
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda configuration: client)
    reader = GroupReader(Connection("127.0.0.1:9092"), ["clicks"], "billing", "read_committed", from_the_end=False, follow=True)
    for messages in reader.batches(0):
        reader.printed(messages)
    assert [place.offset for call in client.commit.call_args_list for place in call.kwargs["offsets"]] == [3, 4, 7]
