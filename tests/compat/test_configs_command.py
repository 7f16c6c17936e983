"""`ottla configs` against two brokers, seen beside by librdkafka's admin client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ottla.cli.main import run
from ottla.testing import EmbeddedCluster

Ottla = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, settings={"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}) as two:
        admin = AdminClient({"bootstrap.servers": two.bootstrap_servers})
        admin.create_topics([NewTopic("clicks", 1)])["clicks"].result(90)
        yield two


@pytest.fixture
def ottla(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> Ottla:
    """Runs `ottla configs …` and gives what it prints, on stderr where another code than 0 is expected."""

    def call(*arguments: str, code: int = 0) -> str:
        found = run(["configs", *arguments, "-b", cluster.bootstrap_servers])
        printed = capsys.readouterr()
        assert found == code, printed.out + printed.err
        return printed.err if code else printed.out

    return call


def of_broker(cluster: EmbeddedCluster, broker_id: int) -> dict[str, str | None]:
    resource, admin = ConfigResource(ResourceType.BROKER, str(broker_id)), AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(90).items()}


def test_a_topic_s_setting_is_set_seen_and_unset(ottla: Ottla, tmp_path: Path) -> None:
    ottla("alter", "topic", "clicks", "--config", "retention.ms=86400000", "--config", "segment.bytes=1048576")
    rows = [row.split() for row in ottla("describe", "topic", "clicks").splitlines()]
    assert rows[1:] == [["retention.ms", "86400000", "topic", "no"], ["segment.bytes", "1048576", "topic", "no"]]
    ottla("alter", "topic", "clicks", "--delete-config", "segment.bytes")
    everything = json.loads(ottla("describe", "topic", "clicks", "--all", "--json"))
    assert {"retention.ms": "TOPIC", "segment.bytes": "DEFAULT"}.items() <= {entry["name"]: entry["source"] for entry in everything}.items()
    file = tmp_path / "topic.properties"
    file.write_text("# kafka-configs --add-config-file\nretention.ms=1\nsegment.bytes = 1048576\n")
    ottla("alter", "topic", "clicks", "--config-file", str(file), "--config", "retention.ms=2", "--delete-config", "max.message.bytes")
    rows = [row.split()[:2] for row in ottla("describe", "topic", "clicks").splitlines()]
    assert rows[1:] == [["retention.ms", "2"], ["segment.bytes", "1048576"]]
    assert "is both set and deleted" in ottla(
        "alter", "topic", "clicks", "--config-file", str(file), "--delete-config", "segment.bytes", code=2
    )
    ottla("alter", "topic", "clicks", "--config-file", str(tmp_path / "none"), code=2)


def test_all_brokers_are_changed_at_once_and_one_for_itself(ottla: Ottla, cluster: EmbeddedCluster) -> None:
    """KIP-226: what is set for one broker goes before what is set for all."""
    assert "nothing is set" in ottla("describe", "broker")
    ottla("alter", "broker", "--config", "log.cleaner.threads=2")
    ottla("alter", "broker", "2", "--config", "log.cleaner.threads=3")
    assert [of_broker(cluster, broker_id)["log.cleaner.threads"] for broker_id in (1, 2)] == ["2", "3"]
    assert "all brokers, at run time" in ottla("describe", "broker", "1")
    ottla("alter", "broker", "2", "--delete-config", "log.cleaner.threads")
    assert of_broker(cluster, 2)["log.cleaner.threads"] == "2"
    ottla("alter", "broker", "--delete-config", "log.cleaner.threads")
    assert "nothing is set" in ottla("describe", "broker")


def test_a_logger_s_level_is_changed_while_the_broker_runs(ottla: Ottla) -> None:
    ottla("alter", "broker-logger", "1", "--config", "ottla.broker.controller=DEBUG")
    levels = {entry["name"]: entry["value"] for entry in json.loads(ottla("describe", "broker-logger", "1", "--json"))}
    assert levels["ottla.broker.controller"] == "DEBUG"
    ottla("alter", "broker-logger", "1", "--delete-config", "ottla.broker.controller")


def test_a_change_that_is_only_to_be_checked_is_not_made(ottla: Ottla) -> None:
    assert "valid" in ottla("alter", "topic", "clicks", "--config", "max.message.bytes=5000", "--validate-only")
    assert "max.message.bytes" not in ottla("describe", "topic", "clicks")


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("alter", "topic", "clicks", "--config", "retention.msec=1"), 1, "retention.ms"),
        (("alter", "topic", "clicks", "--delete-config", "retention.m"), 1, "unknown setting 'retention.m'; did you mean 'retention.ms'?"),
        (("alter", "broker", "1", "--delete-config", "log.cleaner.thread"), 1, "did you mean 'log.cleaner.threads'?"),
        (("alter", "broker", "--delete-config", "log.cleaner.thread"), 1, "did you mean 'log.cleaner.threads'?"),
        (("alter", "broker", "1", "--config", "log.dirs=/elsewhere"), 1, "log.dirs"),
        (("describe", "topic", "nope"), 1, "topic 'nope'"),
        (("describe", "broker", "7"), 1, "broker 7"),
        (("describe", "broker", "one"), 2, "'one'"),
        (("describe", "topic"), 2, "which topic?"),
        (("alter", "broker", "", "--config", "log.cleaner.threads=2"), 2, "NAME is empty"),
        (("alter", "topic", "clicks"), 2, "nothing to alter"),
        (("alter", "topic", "clicks", "--config", "a=1", "--delete-config", "a"), 2, "both"),
        (("describe", "broker", "1", "-X", "security.protocol=sasl_ssl"), 2, "sasl.mechanism: GSSAPI"),
        (("describe", "broker", "1", "-X", "security.protocol=ssl", "-X", "ssl.ca.location=/nope"), 2, "cannot be used: [Errno 2]"),
        (("describe", "broker", "1", "-X", "security.protocol=ssl", "-X", "ssl.ca.pem=none"), 2, "ssl.ca.pem cannot be used"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], code: int, complaint: str, ottla: Ottla) -> None:
    printed = ottla(*arguments, code=code)
    assert printed.startswith("ottla: ") and complaint in printed and printed.count("\n") == 1


def test_a_command_leaves_nothing_behind_where_hypothesis_is_installed(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """kio's types enter themselves with Hypothesis, which then makes a directory where the command was called."""
    command = [sys.executable, "-m", "ottla.cli", "topics", "describe", "clicks", "-b", cluster.bootstrap_servers]
    subprocess.run(command, cwd=tmp_path, env=os.environ, check=True, capture_output=True, timeout=300)
    assert list(tmp_path.iterdir()) == []
