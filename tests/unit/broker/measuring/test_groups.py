"""Consumer groups in the metrics: members, states, and how far they are behind in records and in seconds."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.waiting import until

from ottla.broker.measuring import collectors
from ottla.testing import EmbeddedCluster

from .scraping import SETTINGS, scrape

LAG = 'ottla_group_lag_messages{group="readers",topic="clicks"}'
SECONDS = 'ottla_group_lag_seconds{group="readers",topic="clicks"}'
AGE_SECONDS = 1000


def produce(cluster: EmbeddedCluster, count: int, *, age_seconds: int = 0) -> None:
    """Each record is a batch of its own, with a timestamp one second after the one before."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 1})
    begin_ms = int(time.time() - age_seconds) * 1000
    for number in range(count):
        producer.produce("clicks", b"x" * 100, partition=0, timestamp=begin_ms + number * 1000)
    assert producer.flush(120) == 0


@pytest.mark.long
def test_a_group_is_behind_by_records_and_by_the_age_of_the_first_that_it_has_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "GOOD_FOR_SECONDS", 0.05)
    with EmbeddedCluster(settings={**SETTINGS, "metrics.partition.enabled": "true"}, topics={"clicks": 2}) as cluster:
        produce(cluster, 100, age_seconds=AGE_SECONDS)
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["clicks"])
        until(lambda: consumer.poll(0.1) is not None)
        found = scrape(cluster)
        assert found['ottla_group_members{group="readers"}'] == 1
        assert found['ottla_group_state{group="readers",state="Stable"}'] == 1
        assert found['ottla_groups{state="Stable"}'] == 1
        assert LAG not in found  # it has committed nothing

        for committed in (10, 60):
            consumer.commit(offsets=[TopicPartition("clicks", 0, committed)], asynchronous=False)
            until(lambda committed=committed: scrape(cluster).get(LAG) == 100 - committed)  # type: ignore[misc]
            found = scrape(cluster)
            assert AGE_SECONDS - committed - 2 <= found[SECONDS] <= AGE_SECONDS - committed + 60
            assert found['ottla_group_committed_offset{group="readers",partition="0",topic="clicks"}'] == committed
        assert found["ottla_group_commits_total"] == 2
        assert found["ottla_group_rebalances_total"] >= 1

        consumer.commit(offsets=[TopicPartition("clicks", 0, 100)], asynchronous=False)
        until(lambda: scrape(cluster).get(LAG) == 0)
        assert scrape(cluster)[SECONDS] == 0
        # A fresh record: the lag is of its age, not of what was.
        produce(cluster, 1)
        until(lambda: scrape(cluster).get(LAG) == 1)
        assert scrape(cluster)[SECONDS] < 60
        consumer.close()
        until(lambda: scrape(cluster).get('ottla_group_state{group="readers",state="Empty"}') == 1)
        assert scrape(cluster)['ottla_group_members{group="readers"}'] == 0
        kafka = scrape(cluster, path="/metrics/kafka")
        assert kafka['kafka_consumergroup_lag{consumergroup="readers",topic="clicks"}'] == 1


def test_transactions_are_counted_by_how_they_ended_and_the_open_ones_by_their_age() -> None:
    with EmbeddedCluster(settings=SETTINGS, topics={"clicks": 1}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "copier"})
        producer.init_transactions(120)
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce("clicks", b"x")
            producer.flush(120)
            ends(120)
        ended = 'ottla_transactions_ended_total{outcome="%s"}'
        until(lambda: scrape(cluster)[ended % "committed"] == scrape(cluster)[ended % "aborted"] == 1)
        until(lambda: scrape(cluster)["ottla_transactions_oldest_open_seconds"] == 0)
        producer.begin_transaction()
        producer.produce("clicks", b"x")
        producer.flush(120)
        until(lambda: scrape(cluster)['ottla_transactions{state="Ongoing"}'] == 1)
        until(lambda: scrape(cluster)["ottla_transactions_oldest_open_seconds"] > 0)
        producer.abort_transaction(120)
        until(lambda: scrape(cluster)['ottla_transactions{state="Ongoing"}'] == 0)
