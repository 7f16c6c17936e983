"""`EmbeddedCluster(services=["audit-counter"])` and the fixture `ottla_audit`, as another project uses them; docs/audit.md is true."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.compat.test_readme import READERS_ADDRESS, examples

from ottla.client import audited
from ottla.errors import OttlaError
from ottla.testing import EmbeddedCluster

pytest_plugins = ["pytester"]

CLIENTS, FIXTURE = examples(Path(__file__).parents[3] / "docs" / "audit.md")

# All messages have one time: two windows would have a verdict each.
PROJECT = """
import time

import confluent_kafka
from ottla.client import audited

NOW_MS = time.time_ns() // 1_000_000

def send(servers, topic, close):
    producer = audited(confluent_kafka.Producer)({"bootstrap.servers": servers, "ottla.audit.report.interval.ms": 100})
    for number in range(100):
        producer.produce(topic, b"%d" % number, timestamp=NOW_MS)
    producer.flush(120)
    if close:
        producer.close_audit()
    return producer

def test_a_message_is_claimed_and_was_never_sent(ottla_audit, ottla_bootstrap_servers, ottla_topic):
    producer = send(ottla_bootstrap_servers, ottla_topic, close=False)
    attempt = producer.audit.attempted(ottla_topic, None, b"lost", NOW_MS)
    producer.audit.acknowledged(attempt, 0, 100)
    producer.close_audit()
"""


@pytest.mark.long
def test_a_test_whose_messages_are_not_all_there_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROJECT + FIXTURE.text)
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=300)
    outcome.assert_outcomes(passed=2, errors=1)
    outcome.stdout.fnmatch_lines(["*the audit of test_a_message_is_claimed* says LOSS*producer->log: LOSS*"])


def test_the_clients_of_the_page_are_counted_in_a_cluster_with_an_audit_counter(tmp_path: Path) -> None:
    with EmbeddedCluster(services=["audit-counter"], topics={"clicks": 2, "orders": 2}, data_directory=tmp_path) as cluster:
        names: dict[str, Any] = {}
        exec(CLIENTS.text.replace(READERS_ADDRESS, cluster.bootstrap_servers), names)
        assert names["message"].value() == b"value"
        cluster.wait_audited()
        edges: dict[str, Any] = {}
        for tiers, seconds in (("producer,broker", 100), ("broker,consumer:billing", 0)):
            with urllib.request.urlopen(f"{cluster.audit_url}/v1/topics/clicks/verify?tiers={tiers}&wait={seconds}", timeout=120) as answer:
                edges |= {edge["edge"]: edge for edge in json.load(answer)["edges"] if edge["upstream_count"]}
        assert edges["producer->broker"]["verdict"] == "COMPLETE"
        assert edges["broker->consumer:billing"]["downstream_count"] == 1
        with urllib.request.urlopen(f"{cluster.audit_url}/v1/topics/orders/verify?tiers=producer,broker&wait=100", timeout=120) as answer:
            (edge,) = json.load(answer)["edges"]
        assert (edge["verdict"], edge["upstream_count"], edge["downstream_count"]) == ("COMPLETE", 2, 2)
        address = cluster.audit_url
        cluster.restart()
        assert cluster.audit_url == address
    with EmbeddedCluster() as cluster, pytest.raises(OttlaError, match="no audit counter"):
        _ = cluster.audit_url


def test_a_program_between_two_topics_changes_messages_and_their_ids_say_that_each_arrived(tmp_path: Path) -> None:
    """It keeps headers alone: keys, values and partitions are others, and the time is a later one of the same window."""
    with EmbeddedCluster(services=["audit-counter"], topics={"raw": 2, "clean": 3}, data_directory=tmp_path) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "ottla.audit.report.interval.ms": 100}
        reading = {**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        producing: Any = audited(confluent_kafka.Producer)
        first, copying = (producing(settings | more) for more in ({"ottla.audit.id.header": True}, {}))
        window_ms = time.time_ns() // 60_000_000_000 * 60_000 - 120_000  # one that brokers have done with
        for number in range(100):
            first.produce("raw", b"%d" % (number % 7), timestamp=window_ms + number)
        first.close_audit()
        for topic, group in (("raw", "cleaner"), ("clean", "billing")):
            consumer: Any = audited(confluent_kafka.Consumer)({**reading, "group.id": group})
            consumer.subscribe([topic])
            for _ in range(100):
                message = consumer.poll(60)
                if topic == "raw":
                    headers, value, later = message.headers(), b"clean " + message.value(), message.timestamp()[1] + 1
                    copying.produce("clean", value, b"key-%d" % (later % 11), timestamp=later, headers=headers)
            copying.close_audit()
            consumer.close()
        contents = []
        for topic, group in (("raw", "cleaner"), ("clean", "billing")):
            tiers = f"producer,broker,consumer:{group}"
            with urllib.request.urlopen(f"{cluster.audit_url}/v1/topics/{topic}/verify?tiers={tiers}&wait=60", timeout=120) as answer:
                edges = json.load(answer)["edges"]
            assert {edge["verdict"] for edge in edges} == {"COMPLETE"}, edges
            with urllib.request.urlopen(f"{cluster.audit_url}/v1/topics/{topic}/partitions", timeout=120) as answer:
                rows = json.load(answer)
            contents += [
                sum(int(row["content"], 16) for row in rows if row["tier"] == tier) % (1 << 128)
                for tier in ("producer", f"consumer:{group}")
            ]
        assert contents[0] != 0
        assert contents == contents[:1] * 4
