"""`ottla groups` against a broker, run as a person runs it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.compat.test_command import Ottla, ottla
from tests.compat.test_groups import publish, read_with_confluent

from ottla.cli.configs import asked
from ottla.cli.connection import Connection
from ottla.cli.main import run
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster
from ottla.wire.groups import CommittedOffset, commit_offsets

__all__ = ["ottla"]  # the fixture


def test_a_group_is_listed_described_reset_and_deleted(ottla: Ottla, ottla_bootstrap_servers: str) -> None:
    topic, group = "commanded", "commanded-group"
    ottla("topics", "create", topic, "-p", "6")
    publish(ottla_bootstrap_servers, topic, 0, 12)
    read_with_confluent(ottla_bootstrap_servers, topic, group, 12)
    publish(ottla_bootstrap_servers, topic, 12, 6)

    assert [group, "classic", "Empty"] in [line.split() for line in ottla("groups", "list").stdout.splitlines()]
    assert group not in ottla("groups", "list", "--state", "stable").stdout
    assert group in ottla("groups", "list", "--state", "Stable, empty", "--type", "classic,consumer").stdout
    assert "--state takes Assigning, " in ottla("groups", "list", "--state", "Stable,gone", code=2).stderr
    described = json.loads(ottla("groups", "describe", group, "--json").stdout)
    assert described["state"] == "Empty"
    assert [(partition["committed"], partition["end"], partition["lag"]) for partition in described["partitions"]] == [(2, 3, 1)] * 6
    assert all(partition["lag_seconds"] >= 0 for partition in described["partitions"])
    text = ottla("groups", "describe", group).stdout
    assert text.startswith(f"{group}: Empty, classic protocol, 0 members, coordinator 1, 6 messages behind, ")
    assert text.splitlines()[3].split()[:5] == [topic, "0", "2", "3", "1"]

    shown = ottla("groups", "reset-offsets", group, "-t", f"{topic}:0,5", "--shift-by", "-1")
    assert "Nothing was changed" in shown.stderr
    assert json.loads(ottla("groups", "describe", group, "--json").stdout) | {"partitions": []} == described | {"partitions": []}
    ottla("groups", "reset-offsets", group, "-t", f"{topic}:0,5", "--shift-by", "-1", "--execute")
    after = json.loads(ottla("groups", "describe", group, "--json").stdout)
    assert [partition["committed"] for partition in after["partitions"]] == [1, 2, 2, 2, 2, 1]
    done = json.loads(ottla("groups", "reset-offsets", group, "--to-offset", "99", "--execute", "--json").stdout)
    assert [offset["after"] for offset in done["offsets"]] == [3] * 6
    ottla("groups", "reset-offsets", group, "--to-datetime", "2020-01-01", "--execute")
    assert sorted(read_with_confluent(ottla_bootstrap_servers, topic, group, 18)) == list(range(18))

    assert ottla("groups", "delete", group).stdout == f"Deleted group '{group}'.\n"
    assert "does not exist" in ottla("groups", "describe", group, code=1).stderr


def test_what_can_not_be_meant_is_refused(ottla: Ottla) -> None:
    assert "give one of" in ottla("groups", "reset-offsets", "g", code=2).stderr
    assert "give one of" in ottla("groups", "reset-offsets", "g", "--to-latest", "--to-earliest", code=2).stderr
    for zero in ("0001-01-01", "1969-12-31T23:59:59.999"):  # -1 ms asks for the end
        ottla("topics", "create", "of-no-time", "--if-not-exists")
        ottla("produce", "of-no-time", "-p", "0", given="x\n")
        rows = json.loads(ottla("groups", "reset-offsets", "g", "-t", "of-no-time:0", "--to-datetime", zero, "--json").stdout)
        assert [offset["after"] for offset in rows["offsets"]] == [0]
    assert "has committed nothing" in ottla("groups", "reset-offsets", "unheard-of", "--to-latest", code=1).stderr


def test_where_a_group_is_goes_into_a_file_of_kafkas_and_back(
    ottla_cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ResetConsumerGroupOffsetTest (plans with the group in front and without), DeleteOffsetsConsumerGroupCommandIntegrationTest."""
    topic, group, address = ottla_cluster.create_topic("planned", partitions=2), "planning", ottla_cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": address})
    for partition, age in ((0, 7200), (0, 7200), (0, 0), (1, 0), (1, 0), (1, 0)):
        producer.produce(topic, b"x", partition=partition, timestamp=int((time.time() - age) * 1000))
    assert producer.flush(120) == 0

    def called(*arguments: str, code: int = 0) -> str:
        assert run(["groups", *arguments, "-b", address]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    def reset(*arguments: str, code: int = 0) -> str:
        return called("reset-offsets", group, *arguments, code=code)

    assert reset("-t", topic, "--by-duration", "PT1H30M", "--execute", "--export") == f"{topic},0,2\n{topic},1,0\n"
    assert reset("-t", topic, "--by-duration", "P1D", "--export") == f"{topic},0,0\n{topic},1,0\n"
    called("delete-offsets", group, "-t", f"{topic}:1")
    exported = reset("-t", topic, "--to-current", "--export")
    assert exported == f"{topic},0,2\n{topic},1,3\n"
    plan = tmp_path / "plan.csv"
    for text in (exported, f'other,{topic},0,5\n\n"{group}",{topic},0,2\n{group},{topic},1,99\n'):
        reset("-t", topic, "--to-earliest", "--execute")
        plan.write_text(text)
        reset("--from-file", str(plan), "--execute")
        assert reset("--to-current", "--export") == exported
    for text, code, complaint in (
        (f"other,{topic},0,5\n", 2, f"has nothing of group '{group}'"),
        (f"{topic},0\n", 2, f"{plan}:1: '{topic},0' is not topic,partition,offset"),
        (f"{topic},0,all\n", 2, f"{plan} cannot be read: "),
        (f"{topic},7,1\n", 1, f"{topic}-7 does not say where it begins and ends"),
    ):
        plan.write_text(text)
        assert complaint in reset("--from-file", str(plan), code=code)

    assert called("delete-offsets", group, "-t", topic) == f"Deleted the offsets of group '{group}' for 2 partitions.\n"
    refused = "ottla: offsets are not deleted: group unheard-of: GroupIdNotFound (error code 69)\n"
    assert called("delete-offsets", "unheard-of", "-t", topic, code=1) == refused
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.subscribe([topic])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        assert f"{topic}-0" in called("delete-offsets", group, "-t", topic, code=1)
    finally:
        consumer.close()


def test_all_groups_are_described_reset_and_deleted_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DescribeConsumerGroupTest, ResetConsumerGroupOffsetTest and DeleteConsumerGroupsTest with --all-groups or several groups."""
    with EmbeddedCluster(topics={"clicks": 2}) as cluster:
        address = cluster.bootstrap_servers

        def called(*arguments: str, code: int = 0) -> str:
            assert run(["groups", *arguments, "-b", address]) == code
            printed = capsys.readouterr()
            return printed.err if code else printed.out

        def committed() -> dict[str, list[int]]:
            found = json.loads(called("describe", "--all-groups", "--json"))
            return {group["group"]: [partition["committed"] for partition in group["partitions"]] for group in found}

        assert committed() == {} and called("describe", "--all-groups") == called("delete", "--all-groups") == f"No groups on {address}.\n"
        producer = Producer({"bootstrap.servers": address})
        for partition in (0, 0, 1):
            producer.produce("clicks", b"x", partition=partition)
        assert producer.flush(120) == 0
        called("reset-offsets", "a", 'b,"', "-t", "clicks", "--to-latest", "--execute")
        assert committed() == {"a": [2, 1], 'b,"': [2, 1]}
        assert called("describe", "a", 'b,"').count(": Empty, classic protocol, ") == called("describe", "--all-groups").count("Empty") == 2
        assert called("describe", "--all-groups", "--members") == (
            'a: Empty, classic protocol, no members\n\nb,": Empty, classic protocol, no members\n'
        )

        exported = called("reset-offsets", "--all-groups", "--to-current", "--export")
        assert exported == 'a,clicks,0,2\na,clicks,1,1\n"b,""",clicks,0,2\n"b,""",clicks,1,1\n'
        shown = called("reset-offsets", "--all-groups", "--shift-by", "-1", "--execute")
        assert [line.split() for line in shown.splitlines()[1:3]] == [["a", "clicks", "0", "2", "1"], ["a", "clicks", "1", "1", "0"]]
        assert committed() == {"a": [1, 0], 'b,"': [1, 0]}
        plan = tmp_path / "plan.csv"
        plan.write_text(exported)
        called("reset-offsets", "a", "--from-file", str(plan), "--execute")
        assert committed() == {"a": [2, 1], 'b,"': [1, 0]}
        called("reset-offsets", "--all-groups", "--from-file", str(plan), "--execute")
        assert committed() == {"a": [2, 1], 'b,"': [2, 1]}
        assert "has nothing of group 'c'" in called("reset-offsets", "a", "c", "--from-file", str(plan), code=2)
        plan.write_text("clicks,0,1\n")
        assert "'clicks,0,1' is not group,topic,partition,offset" in called("reset-offsets", "a", 'b,"', "--from-file", str(plan), code=2)

        consumer = Consumer({"bootstrap.servers": address, "group.id": "a"})
        consumer.subscribe(["clicks"])
        try:
            while not consumer.assignment():
                consumer.poll(0.1)
            complaint = called("reset-offsets", "--all-groups", "--to-earliest", "--execute", "--json", code=1)
            assert complaint == "ottla: group 'a' has 1 member (Stable); stop its consumers first\n"
            assert committed() == {"a": [2, 1], 'b,"': [0, 0]}
            assert called("delete", "--all-groups", code=1).startswith("ottla: group 'a': ")
            assert committed() == {"a": [2, 1]}
            offsets = {TopicPartition("clicks", 0): CommittedOffset(1)}
            asked(Connection(address), "", lambda cluster: commit_offsets(cluster, "", offsets))  # librdkafka refuses to
            no_way = "ottla: group '' has an empty id, for which the client has no way to ask\n"
            assert called("describe", "--all-groups", code=1) == called("describe", "", code=1) == no_way
            assert run(["groups", "describe", "--all-groups", "-b", address]) == 1 and "a: Stable" in capsys.readouterr().out
            assert "group 'c' does not exist" in called("describe", "c", "a", code=1)
        finally:
            consumer.close()
        for command in (["describe"], ["describe", "a", "--all-groups"], ["delete"], ["reset-offsets", "--to-latest"]):
            assert "say which groups: " in called(*command, code=2)
        assert "--zookeeper is for one GROUP" in called("reset-offsets", "--all-groups", "--to-latest", "--zookeeper", "x:1", code=2)


def test_a_group_reads_on_where_the_last_command_stopped(ottla: Ottla, ottla_bootstrap_servers: str) -> None:
    topic = "read-by-a-group"
    ottla("topics", "create", topic, "-p", "6")
    publish(ottla_bootstrap_servers, topic, 0, 12)
    first = ottla("consume", topic, "--group", "readers", "--count", "5").stdout.split()
    second = ottla("consume", topic, "--group", "readers").stdout.split()
    assert sorted(map(int, first + second)) == list(range(12))
    assert ottla("consume", topic, "--group", "readers").stdout == ""
    assert "the group says what is read" in ottla("consume", topic, "--group", "readers", "-p", "0", code=2).stderr


def test_partitions_without_a_committed_offset_are_told_beside_the_sum(ottla: Ottla, ottla_bootstrap_servers: str) -> None:
    topic, group = "half-committed", "halfway"
    ottla("topics", "create", topic, "-p", "4")
    publish(ottla_bootstrap_servers, topic, 0, 12)
    ottla("groups", "reset-offsets", group, "-t", f"{topic}:2", "--to-earliest", "--execute")
    consumer = Consumer({"bootstrap.servers": ottla_bootstrap_servers, "group.id": group, "auto.offset.reset": "latest"})
    consumer.subscribe([topic])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        text = ottla("groups", "describe", group).stdout
        assert re.search(r", \d+ messages? behind in 1 partition, .*; 3 partitions have no committed offset\n", text)
        shown = ottla("groups", "reset-offsets", group, "-t", topic, "--to-earliest")
        assert f"group '{group}' has 1 member (Stable); stop its consumers first" in shown.stderr
        refused = ottla("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", code=1)
        assert f"group '{group}' has 1 member (Stable); stop its consumers first" in refused.stderr
        assert "Unknown member" not in refused.stderr
    finally:
        consumer.close()


def test_a_partition_that_does_not_exist_is_not_said_of_its_topic(ottla: Ottla) -> None:
    ottla("topics", "create", "of-two-partitions", "-p", "2")
    refused = ottla("produce", "of-two-partitions", "-p", "9", given="a line\n", code=1)
    assert "partition 9 of 'of-two-partitions' does not exist" in refused.stderr
    assert "topic 'of-two-partitions' does not exist" not in refused.stderr
