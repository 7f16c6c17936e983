"""What a properties file of the client may say, and what is the command's own to say."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from tests.waiting import until

from ottla.cli.connection import Connection, cluster_metadata
from ottla.cli.group_facts import list_groups
from ottla.cli.main import run
from ottla.client import Producer, ProducerSettings
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, commit_offsets


@pytest.mark.long
def test_the_file_of_a_consumer_moves_no_offsets_and_names_no_other_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's tools have the address of --bootstrap-server, too. A look at a group with its own file committed what it looked at."""
    file = tmp_path / "consumer.properties"
    lines = "bootstrap.servers=127.0.0.1:1\nmetadata.broker.list=127.0.0.1:1\ngroup.id=billing\nenable.auto.commit=true\n"
    file.write_text(lines + "enable.partition.eof=false\n")
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        with_file = (*where, "--command-config", str(file))

        def committed(group: str) -> list[int]:
            capsys.readouterr()
            assert run(["groups", "describe", group, "--json", *where]) == 0
            return [partition["committed"] for partition in json.loads(capsys.readouterr().out)["partitions"]]

        lines_file = tmp_path / "lines"
        lines_file.write_text("".join(f"{number}\n" for number in range(10)))
        assert run(["produce", "clicks", str(lines_file), *with_file]) == 0
        assert run(["consume", "clicks", "--count", "3", "--group", "billing", *where]) == 0
        assert run(["groups", "describe", "billing", *with_file]) == 0
        assert committed("billing") == [3]
        assert run(["consume", "clicks", *with_file]) == 0
        assert committed("billing") == [3]
        assert run(["consume", "clicks", "--count", "5", "--group", "other", *with_file]) == 0
        assert (committed("billing"), committed("other")) == ([3], [5])


def test_the_file_of_a_producer_says_nothing_of_what_a_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its transactional id each message was refused ("Erroneous state"), and the other line ended in a traceback."""
    file, message = tmp_path / "producer.properties", tmp_path / "message"
    file.write_text("transactional.id=billing\ndelivery.report.only.error=true\n")
    message.write_text("hello\n")
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        assert run(["produce", "clicks", str(message), "-b", cluster.bootstrap_servers, "--command-config", str(file)]) == 0
        assert run(["produce", "clicks", "-b", cluster.bootstrap_servers, "-X", "delivery.report.only.error=true"]) == 2
    assert capsys.readouterr().err == "ottla: -X delivery.report.only.error: the command says this itself\n"


def test_a_client_may_be_content_with_fewer_acknowledgements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for Kafka's clients: who names acks and not idempotence has none. Such a file was refused for what the command says itself."""
    file, message = tmp_path / "producer.properties", tmp_path / "message"
    message.write_text("hello\n")
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers, "--command-config", str(file))
        for line in ("acks=1", "request.required.acks=0", "acks=all\nenable.idempotence=true"):
            file.write_text(line)
            assert run(["produce", "clicks", str(message), *where]) == 0, line
        file.write_text("acks=1\nenable.idempotence=true")
        assert run(["produce", "clicks", str(message), *where]) == 2
    assert "`acks` must be set to `all`" in capsys.readouterr().err


def test_what_only_a_program_can_give_a_client_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """confluent-kafka takes the topic's properties as a dictionary: a text was a traceback."""
    for name in ("default.topic.config", "error_cb"):
        assert run(["topics", "list", "-X", f"{name}=x"]) == 2
        assert capsys.readouterr().err == f"ottla: {name} takes an object of a program, which a command has no way to give\n"


def test_an_empty_entry_among_the_addresses_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """librdkafka leaves it out. It was said that its name cannot be resolved, or of a broker that hangs that it closes its connections."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f",127.0.0.1:{closed.getsockname()[1]}"
    assert run(["topics", "list", "-b", address]) == 1
    assert capsys.readouterr().err == f"ottla: no broker answers at {address} (`ottla dev` starts one)\n"
    assert run(["topics", "list", "-b", " ,"]) == 2
    assert capsys.readouterr().err == "ottla: --bootstrap-server takes HOST:PORT, and ' ,' has none\n"
    monkeypatch.setattr("ottla.cli.connection.ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]},"
        assert run(["reassign", "list", "-b", address]) == 1
    assert capsys.readouterr().err == f"ottla: no answer from {address}: it accepts connections, and says nothing\n"


def test_a_file_that_no_consumer_takes_is_refused_where_a_group_is_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a producer: the message that the group has not read is read by a consumer, whose refusal was a traceback."""
    (tmp_path / "message").write_text("hello\n")
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        assert run(["produce", "clicks", str(tmp_path / "message"), *where]) == 0
        assert run(["groups", "reset-offsets", "billing", "--topic", "clicks", "--to-earliest", "--execute", *where]) == 0
        assert run(["groups", "describe", "billing", *where, "-X", "receive.message.max.bytes=1000000"]) == 2
    assert "`receive.message.max.bytes` must be >= `fetch.max.bytes`" in capsys.readouterr().err


def test_an_address_without_a_port_is_kafkas_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """As for librdkafka's commands: those that go by `ottla.wire` ended in a traceback."""
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        address = f"127.0.0.2,{cluster.bootstrap_servers}"
        assert run(["configs", "describe", "topic", "clicks", "-b", address]) == 0
        assert run(["replay", "clicks", "--from", "0", "-b", address]) == 0
    assert "Wrote 0 messages" in capsys.readouterr().out


def test_a_broker_that_hangs_is_not_said_to_close_its_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """librdkafka's error is the same; the sentence sent its reader to look for TLS."""
    monkeypatch.setattr("ottla.cli.connection.ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert run(["reassign", "list", "-b", address]) == 1
    assert capsys.readouterr().err == f"ottla: no answer from {address}: it accepts connections, and says nothing\n"


def test_a_topic_that_goes_while_all_are_described_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": where})

        def deleted_afterwards(*arguments: Any) -> Any:
            metadata = cluster_metadata(*arguments)
            admin.delete_topics(["gone"])["gone"].result(90)
            until(lambda: "gone" not in admin.list_topics(timeout=90).topics, "the topic is gone")
            return metadata

        monkeypatch.setattr("ottla.cli.topic_facts.cluster_metadata", deleted_afterwards)
        for names, code in ((), 0), (("gone",), 1):
            cluster.create_topic("gone")
            assert run(["topics", "describe", *names, "-b", where]) == code
        printed = capsys.readouterr()
    assert printed.out.startswith("clicks: 1 partition") and "gone" not in printed.out
    assert printed.err == f"ottla: topic 'gone' does not exist on {where}\n"


def test_a_message_without_a_time_says_nothing_of_how_far_a_group_is_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A timestamp of -1 is none; it was taken for the end of 1969."""
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "timestamp": -1}\n')
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        assert run(["produce", "clicks", "--json", str(lines), *where]) == 0
        reset = ("groups", "reset-offsets", "billing", "--to-earliest", "--execute", *where)
        assert run([*reset, "-t", "clicks:0,0", "-t", "clicks", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["offsets"]) == 1
        assert run([*reset, "-t", "clicks:"]) == 2
        assert "is neither NAME nor NAME:0,1,2" in capsys.readouterr().err
        assert run(["groups", "describe", "billing", "--json", *where]) == 0
    (partition,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (partition["lag"], partition["lag_seconds"]) == (1, None)


def test_a_group_that_began_at_the_end_reads_what_comes_while_no_one_reads(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """ConsoleConsumer commits the positions of its group when it ends (ConsumerCoordinator: maybeAutoCommitOffsetsSync)."""
    lines = tmp_path / "lines"
    with EmbeddedCluster(topics={"clicks": 1}, settings={"group.initial.rebalance.delay.ms": "0"}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        for line in ("before", "after"):
            lines.write_text(f"{line}\n")
            assert run(["produce", "clicks", str(lines), *where]) == 0
            assert run(["consume", "clicks", "--group", "billing", "-o", "end", *where]) == 0
        assert capfdbinary.readouterr().out == b"after\n"


def test_a_header_whose_name_is_not_utf_8_hides_no_message(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """RecordHeaderTest reads names as text; librdkafka's clients write any bytes, and one such message was a traceback, or a crash.

    Method: so many of them that Python calls the client's method in the short way.
    """
    values = [b"%d" % number for number in range(200)]
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        with Producer(ProducerSettings.from_properties({"bootstrap.servers": cluster.bootstrap_servers})) as producer:
            for value in values:
                producer.send("clicks", value, headers=() if value == b"0" else (("\udcff", b"x"),))
        assert run(["consume", "clicks", *where]) == 0
        assert run(["consume", "clicks", "--key", "--headers", *where]) == 1
    printed = capfdbinary.readouterr()
    assert printed.out.splitlines() == [*values, b"\t\t0"]
    assert b"ottla: clicks-0@1: the name of a header is not UTF-8; print it without headers\n" in printed.err


def test_a_topic_that_is_named_twice_is_described_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It was there twice, and without its id, which the client gives only where no name comes twice."""
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        assert run(["topics", "describe", "clicks", "clicks", "--json", "-b", cluster.bootstrap_servers]) == 0
    (topic,) = json.loads(capsys.readouterr().out)
    assert topic["topic_id"] is not None


def test_a_group_whose_members_wait_for_partitions_is_not_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    """DescribeConsumerGroupTest, testDescribeGroupWithShortInitializationTimeout: a group that rebalances."""
    with EmbeddedCluster(topics={"clicks": 1}, settings={"group.initial.rebalance.delay.ms": "600000"}) as cluster:
        where = cluster.bootstrap_servers
        consumer = Consumer({"bootstrap.servers": where, "group.id": "billing"})
        consumer.subscribe(["clicks"])

        def described() -> str:
            consumer.poll(0)
            run(["groups", "describe", "billing", "-b", where])
            return capsys.readouterr().out

        until(lambda: "1 member" in described(), "the consumer has joined")
        assert described().endswith("\n\nNothing is committed, and its members have no partitions yet.\n")


def test_groups_are_deleted_in_silence_where_the_reader_of_their_names_has_gone() -> None:
    """As `| head` goes. What was printed no more was taken for a failure of the group, and those behind it were not waited for."""
    names = [f"{number}-{'long' * 40}" for number in range(60)]  # more than is kept back before it is written
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:

        async def each_commits() -> None:
            async with Cluster(cluster.bootstrap_servers) as asked:
                for name in names:
                    await commit_offsets(asked, name, {TopicPartition("clicks", 0): CommittedOffset(0)})

        asyncio.run(each_commits())
        reader, writer = os.pipe()
        os.close(reader)
        try:
            words = [sys.executable, "-m", "ottla.cli", "groups", "delete", *names, "-b", cluster.bootstrap_servers]
            ended = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
        finally:
            os.close(writer)
        left, _ = list_groups(Connection(cluster.bootstrap_servers))
    assert (ended.returncode, ended.stderr, left) == (1, "", [])


def test_a_member_that_cooperates_waits_for_the_partitions_that_others_are_to_give_up(capsys: pytest.CaptureFixture[str]) -> None:
    """It joins with none (KIP-429), which was taken for the end: it printed nothing, as if the group had read everything."""
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    with EmbeddedCluster(topics={"clicks": 2}) as cluster:
        with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer:
            for partition in (0, 1):
                producer.send("clicks", b"%d" % partition, partition=partition)
        other = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "enable.auto.commit": False, **strategy})
        other.subscribe(["clicks"])
        until(lambda: other.poll(0.1) is None and len(other.assignment()) == 2)
        is_over = Event()
        polling = Thread(target=lambda: [other.poll(0.1) for _ in iter(is_over.is_set, True)])
        polling.start()
        try:
            words = [f"{name}={value}" for name, value in strategy.items()]
            assert run(["consume", "clicks", "--group", "g", "-X", *words, "-b", cluster.bootstrap_servers]) == 0
        finally:
            is_over.set()
            polling.join()
            other.close()
    assert capsys.readouterr().out in ("0\n", "1\n")
