"""Audit records with a schema registry and without one: its id stands before them, and while it is away the audit works all the same."""

from __future__ import annotations

import struct
import time
import urllib.request
from pathlib import Path

import confluent_kafka
import pytest

from ottla.client import Producer, ProducerSettings
from ottla.clock import SystemClock
from ottla.network import audit_schema
from ottla.network.audit_schema import AuditSchemaId
from ottla.network.registry_http import RegistryAnswer
from ottla.record.audit_records import TOPIC, decode
from ottla.testing import EmbeddedCluster

ORDERS = "orders"


def values_of(servers: str) -> dict[str, set[bytes]]:
    """Of each tier the first bytes of its records, once the producer has said its final word and the broker something."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: dict[str, set[bytes]] = {}
    deadline = time.monotonic() + 120
    try:
        while found.keys() != {"producer", "broker"}:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                value = message.value() or b""
                record = decode(value)
                if record.topic == ORDERS and record.windows:
                    found.setdefault(record.tier, set()).add(value[:5])
        return found
    finally:
        consumer.close()


def test_records_have_the_registry_s_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both reporters', and the counter reads them. A registry that takes more than two seconds for its first answer is waited for."""
    monkeypatch.setattr(audit_schema, "_ANSWER_SECONDS", 120.0)
    with EmbeddedCluster(services=["schema-registry"], data_directory=tmp_path) as registries:
        url = registries.schema_registry_url
        settings = {"audit.enable": "true", "audit.report.interval.ms": "200", "confluent.schema.registry.url": url}
        with EmbeddedCluster(services=["audit-counter"], settings=settings, topics={ORDERS: 1}) as cluster:
            options = {"ottla.audit.schema.registry.url": url, "ottla.audit.report.interval.ms": 100}
            with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), audit=options) as producer:
                producer.send(ORDERS, [b"one", b"two"])
            with urllib.request.urlopen(f"{url}/subjects/{TOPIC}-value/versions/1", timeout=60) as answer:
                number = int(answer.read().split(b'"id":')[1].split(b",")[0].strip(b"} "))
            assert values_of(cluster.bootstrap_servers) == {tier: {struct.pack(">bI", 0, number)} for tier in ("producer", "broker")}
            edges = f"{cluster.audit_url}/v1/topics/{ORDERS}/verify?tiers=producer,broker&wait=60"
            with urllib.request.urlopen(edges, timeout=120) as answer:
                assert b'"COMPLETE"' in answer.read()


def test_a_registry_that_is_away_changes_nothing_but_the_frame(tmp_path: Path) -> None:
    away = "http://127.0.0.1:9"  # the port of `discard`, where nothing listens
    settings = {"audit.enable": "true", "audit.report.interval.ms": "200", "confluent.schema.registry.url": away}
    with EmbeddedCluster(services=["audit-counter"], settings=settings, topics={ORDERS: 1}, data_directory=tmp_path) as cluster:
        options = {"ottla.audit.schema.registry.url": away, "ottla.audit.report.interval.ms": 100}
        with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers), audit=options) as producer:
            producer.send(ORDERS, [b"one", b"two"])
        assert {value[:2] for values in values_of(cluster.bootstrap_servers).values() for value in values} == {b"\xc3\x01"}
        edges = f"{cluster.audit_url}/v1/topics/{ORDERS}/verify?tiers=producer,broker&wait=60"
        with urllib.request.urlopen(edges, timeout=120) as answer:
            assert b'"COMPLETE"' in answer.read()


def test_a_registry_is_asked_once_a_minute_until_it_gives_an_id_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(SystemClock):
        now = 1_000.0

        def monotonic(self) -> float:
            return self.now

    answers = [RegistryAnswer(503, "Unavailable", b""), RegistryAnswer(200, "OK", b"[]"), RegistryAnswer(200, "OK", b'{"id": 7}')]
    monkeypatch.setattr(audit_schema, "ask_registry", lambda *_, **__: answers.pop(0))
    clock = Clock()
    schema = AuditSchemaId(["http://one"], clock)
    assert [schema.get(), schema.get()] == [None, None]
    assert len(answers) == 2, "nothing is asked within the minute"
    clock.now += 60
    assert schema.get() is None, "what answers is no registry"
    clock.now += 60
    assert [schema.get(), schema.get()] == [7, 7]
    assert AuditSchemaId([], clock).get() is None
