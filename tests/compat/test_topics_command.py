"""`ottla topics` beside what Kafka's tools do with topics, against a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.cli.main import run
from ottla.testing import EmbeddedCluster

Topics = Callable[..., str]


@pytest.fixture
def topics(ottla_cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> Topics:
    """Runs `ottla topics`; gives what it prints, or what it complains of where a code is expected."""

    def call(*arguments: str, code: int = 0) -> str:
        assert run(["topics", *arguments, "-b", ottla_cluster.bootstrap_servers]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return call


def fill(cluster: EmbeddedCluster, name: str, *timestamps: tuple[int, ...]) -> str:
    """Makes a topic whose partitions have records of these times."""
    topic = cluster.create_topic(name, partitions=len(timestamps))
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition, times in enumerate(timestamps):
        for timestamp in times:
            producer.produce(topic, b"x", partition=partition, timestamp=timestamp)
    assert producer.flush(120) == 0
    return topic


def test_offsets_are_found_by_words_numbers_and_times(ottla_cluster: EmbeddedCluster, topics: Topics) -> None:
    """GetOffsetShellTest: by words, by Kafka's numbers for them and by times; patterns, partitions, internal topics."""
    one = fill(ottla_cluster, "found-one", (1000, 3000, 2000), (), (1000,))
    two = fill(ottla_cluster, "found-two", (5000,))

    def found(*arguments: str) -> list[list[str]]:
        return [line.split() for line in topics("offsets", *arguments).splitlines()[1:]]

    latest = [[one, "0", "3"], [one, "1", "0"], [one, "2", "1"], [two, "0", "1"]]
    assert found("found-.*") == found("found-.*", "--time", "latest") == found("found-.*", "--time", "-1") == latest
    assert [row for row in found() if row[0].startswith("found-")] == latest
    assert found(f"{one}:0,2", f"{two}:0", two) == [latest[0], *latest[2:]]
    assert found("found-(?:one|two):2", "--time", "-2") == found(f"{one}:2", "--time", "earliest") == [[one, "2", "0"]]
    assert found(one, "--time", "-3") == found(one, "--time", "max-timestamp")
    youngest = json.loads(topics("offsets", one, "--time", "max-timestamp", "--json"))
    assert [(row["partition"], row["offset"], row["timestamp"]) for row in youngest] == [(0, 1, 3000), (1, None, None), (2, 0, 1000)]
    since = [[one, "0", "1", "1970-01-01T00:00:03.000Z"], [one, "1", "-", "-"], [one, "2", "-", "-"]]
    assert found(one, "--time", "1500") == found(one, "--time", "1970-01-01T00:00:01.5Z") == since

    topics("create", "__found", "--partitions", "1")
    assert "__found" not in [row[0] for row in found()]
    assert ["__found", "0", "0"] in found("--internal") and found("__f.*") == found(".*found", "--internal") == [["__found", "0", "0"]]
    assert "'found-three' matches no partition on " in topics("offsets", one, "found-three", code=1)
    assert f"'{two}:1' matches no partition on " in topics("offsets", f"{two}:1", code=1)
    for wrong, complaint in (("-5", "--time takes "), ("soon", "'soon' is neither")):
        assert complaint in topics("offsets", one, "--time", wrong, code=2)
    assert "'fo(' is no regular expression" in topics("offsets", "fo(", code=2)


def test_records_before_an_offset_are_deleted(ottla_cluster: EmbeddedCluster, topics: Topics, tmp_path: Path) -> None:
    """DeleteRecordsCommandTest; and the partitions named on the command line."""
    topic = fill(ottla_cluster, "shortened", (1000,) * 5, (1000,) * 3, ())

    def starts() -> list[int]:
        return [row["offset"] for row in json.loads(topics("offsets", topic, "--time", "earliest", "--json"))]

    assert [line.split() for line in topics("delete-records", f"{topic}:0,2", "--before", "0").splitlines()[1:]] == [
        [topic, "0", "0"],
        [topic, "2", "0"],
    ]
    topics("delete-records", f"{topic}:0", "--before", "2")
    assert starts() == [2, 0, 0]
    assert f"{topic}-1: " in topics("delete-records", f"{topic}:0,1", "--before", "4", code=1)
    assert starts() == [4, 0, 0]
    file = tmp_path / "offsets.json"
    entries = [{"topic": topic, "partition": 1, "offset": 1}, {"topic": topic, "partition": 0, "offset": -1}]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    assert json.loads(topics("delete-records", "--from-file", str(file), "--json")) == [
        {"topic": topic, "partition": 0, "start_offset": 5, "error": None},
        {"topic": topic, "partition": 1, "start_offset": 1, "error": None},
    ]
    topics("delete-records", topic, "--before", "end")
    assert starts() == [5, 3, 0]

    topics("create", "only-compacted", "-p", "1", "-c", "cleanup.policy=compact")
    assert "only-compacted-0: " in topics("delete-records", "only-compacted", "--before", "end", code=1)
    file.write_text(json.dumps({"partitions": [{"topic": "shortened-away", "partition": 0, "offset": 1}, *entries]}))
    assert topics("delete-records", "--from-file", str(file), code=1).count("shortened-away-0: does not exist") == 1
    for text, complaint in (
        ("{", f"{file} cannot be read: "),
        ('{"version": 2, "partitions": []}', "version 2"),
        (json.dumps({"partitions": entries * 2}), "has a partition twice"),
        ('{"partitions": [{"topic": "shortened", "partition": 0, "offset": 1.5}]}', "1.5"),
    ):
        file.write_text(text)
        assert complaint in topics("delete-records", "--from-file", str(file), code=2)
    for arguments in ([topic], ["--before", "1"], [topic, "--before", "1", "--from-file", str(file)], [topic, "--before", "all"]):
        topics("delete-records", *arguments, code=2)
    assert "does not exist" in topics("delete-records", "shortened-away", "--before", "1", code=1)


def test_replicas_of_new_partitions_are_assigned_by_hand(topics: Topics) -> None:
    """TopicCommandTest: testCreateWithReplicaAssignment, testAlterAssignment and testParseAssignment with what follows each."""
    topics("create", "assigned", "--replica-assignment", "1,1,1", "-c", "retention.ms=7")
    (topic,) = json.loads(topics("describe", "assigned", "--json"))
    assert [partition["replicas"] for partition in topic["partitions"]] == [[1]] * 3 and topic["configs"] == {"retention.ms": "7"}
    assert f", id {topic['topic_id']}\n" in topics("describe", "assigned") and len(topic["topic_id"]) == 22
    assert "topic 'assigned-elsewhere': " in topics("create", "assigned-elsewhere", "--replica-assignment", "77", code=1)
    for wrong in ("1:1", "1:2,1", "1:", "one", "1,-2", ""):
        assert "--replica-assignment takes " in topics("create", "assigned-wrongly", "--replica-assignment", wrong, code=2)
    assert "contradict" in topics("create", "assigned-wrongly", "--replica-assignment", "1", "-p", "1", code=2)
    assert "for 2 partitions" in topics("alter", "assigned", "--replica-assignment", "1,1", "-p", "4", code=2)
    assert "for 2 partitions" in topics("alter", "assigned", "--replica-assignment", "1,1", "-c", "retention.ms=8", code=2)
    assert "topic 'assigned': " in topics("alter", "assigned", "--replica-assignment", "1,1,1,77", "-p", "4", code=1)
    topics("alter", "assigned", "--replica-assignment", "77,77,77,1", "-p", "4")
    (topic,) = json.loads(topics("describe", "assigned", "--json"))
    assert [partition["replicas"] for partition in topic["partitions"]] == [[1]] * 4
    assert "has 4 partitions" in topics("alter", "assigned", "--replica-assignment", "1,1", "-p", "2", code=1)
