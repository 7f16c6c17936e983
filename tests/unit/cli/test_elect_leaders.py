"""Which partitions the words of `ottla elect-leaders` stand for, and what it says came of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from ottla.cli.elect_leaders import named_in, outcomes_of, partitions_named
from ottla.cli.errors import CommandFailed, UsageError
from ottla.model import TopicPartition

COUNTS = {"clicks": 3, "views": 1}


def test_a_topic_stands_for_its_partitions_and_each_is_asked_for_once() -> None:
    assert partitions_named(["clicks:1", "views", "clicks"], COUNTS) == [
        TopicPartition("clicks", 1),
        TopicPartition("views", 0),
        TopicPartition("clicks", 0),
        TopicPartition("clicks", 2),
    ]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("other", "topic 'other' does not exist"),
        ("other:0", "topic 'other' does not exist"),
        ("clicks:3", "topic 'clicks' has no partition '3'"),
        pytest.param("clicks:" + "9" * 5000, f"topic 'clicks' has no partition {'9' * 5000!r}", id="more digits than int() takes"),
        ("clicks:-1", "topic 'clicks' has no partition '-1'"),
        ("clicks:", "topic 'clicks' has no partition ''"),
    ],
)
def test_what_does_not_exist_is_named(name: str, complaint: str) -> None:
    with pytest.raises(CommandFailed) as raised:
        partitions_named([name], COUNTS)
    assert str(raised.value) == complaint


def test_what_came_of_each_is_told_in_a_few_words() -> None:
    """Whichever of its two kinds the client gives."""
    refused = KafkaError(KafkaError.PREFERRED_LEADER_NOT_AVAILABLE, "2 is away")
    answer: dict[ClientPartition, KafkaError | KafkaException | None] = {
        ClientPartition("clicks", 2): KafkaException(refused),
        ClientPartition("clicks", 1): KafkaError(KafkaError.ELECTION_NOT_NEEDED),
        ClientPartition("clicks", 0): None,
        ClientPartition("views", 0): refused,
    }
    assert outcomes_of(answer) == {
        TopicPartition("clicks", 0): "elected",
        TopicPartition("clicks", 1): "not needed",
        TopicPartition("clicks", 2): "2 is away",
        TopicPartition("views", 0): "2 is away",
    }


def test_partitions_are_named_in_a_file_of_kafka_s_form(tmp_path: Path) -> None:
    """LeaderElectionCommandTest, testPathToJsonFile."""
    file = tmp_path / "partitions.json"
    file.write_text('{"version": 1, "partitions": [{"topic": "clicks", "partition": 1}, {"topic": "views", "partition": 0}]}')
    assert named_in(file) == ["clicks:1", "views:0"]
    for text in ("", "[]", '{"partitions": []}', '{"partitions": [{"topic": "clicks"}]}', '{"partitions": 1}'):
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(str(file))):
            named_in(file)
