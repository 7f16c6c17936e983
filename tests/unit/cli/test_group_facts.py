"""What is said of a group that has no coordinator: the client only knows that nothing came in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed
from ottla.cli.group_facts import told_of_group

WHERE = Connection("localhost:9092")


def said(topics: list[str]) -> str:
    admin: Any = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=dict.fromkeys(topics), brokers={1: None}))
    with pytest.raises(CommandFailed) as caught, told_of_group(admin, WHERE, "billing"):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed while waiting for coordinator"))
    return str(caught.value)


def test_a_group_without_an_offsets_topic_has_no_coordinator() -> None:
    assert said(["clicks"]) == (
        "group 'billing' has no coordinator: __consumer_offsets is not made, and localhost:9092 has 1 broker; "
        "is offsets.topic.replication.factor larger than that?"
    )


def test_a_cluster_that_is_slow_is_not_called_away() -> None:
    assert said(["clicks", "__consumer_offsets"]) == (
        "group 'billing': the cluster at localhost:9092 did not answer in time: Failed while waiting for coordinator"
    )
