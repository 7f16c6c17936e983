"""`ottla groups` against a broker, run as a person runs it."""

from __future__ import annotations

import json
import re

from confluent_kafka import Consumer
from tests.compat.test_command import Ottla, ottla
from tests.compat.test_groups import publish, read_with_confluent

__all__ = ["ottla"]  # the fixture


def test_a_group_is_listed_described_reset_and_deleted(ottla: Ottla, ottla_bootstrap_servers: str) -> None:
    topic, group = "commanded", "commanded-group"
    ottla("topics", "create", topic, "-p", "6")
    publish(ottla_bootstrap_servers, topic, 0, 12)
    read_with_confluent(ottla_bootstrap_servers, topic, group, 12)
    publish(ottla_bootstrap_servers, topic, 12, 6)

    assert [group, "classic", "Empty"] in [line.split() for line in ottla("groups", "list").stdout.splitlines()]
    assert group not in ottla("groups", "list", "--state", "stable").stdout
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
