"""What the metrics say of replicas and of the controller while brokers go and come back."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Producer
from tests.waiting import until

from ottla.testing import EmbeddedCluster

from .scraping import SETTINGS, scrape, summed

UNDER_REPLICATED = "ottla_replica_under_replicated_partitions"


def produce(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number).encode() * 10)
    assert producer.flush(120) == 0


@pytest.mark.long
def test_a_broker_that_is_killed_is_seen_in_the_metrics_of_the_others_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 6: kill one of three, and the gauge of under-replicated partitions goes up and back.

    Every change of a partition is said once by the controller and once by each broker that applies it.
    """
    caplog.set_level(logging.INFO, "ottla.state_change")
    with EmbeddedCluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.make_internal_topics()  # of four partitions each
        cluster.create_topic("clicks", partitions=6, replication_factor=3, settings={"min.insync.replicas": "2"})
        produce(cluster, "clicks", 300)
        until(lambda: summed(cluster, UNDER_REPLICATED) == 0)
        until(lambda: summed(cluster, "ottla_broker_partitions") == 3 * (6 + 8))
        until(lambda: summed(cluster, "ottla_broker_leaders") == 6 + 8)
        assert summed(cluster, "ottla_controller_active") == 1
        assert summed(cluster, "ottla_controller_partitions") == 6 + 8
        assert summed(cluster, "ottla_controller_alive_brokers") == 3
        assert summed(cluster, "ottla_replica_at_min_isr_partitions") == 0
        new = [record.getMessage() for record in caplog.records if record.name == "ottla.state_change"]
        for partition in range(6):
            of_one = [name for name in new if name.startswith(f"clicks-{partition}: ")]
            assert len([line for line in of_one if ": new, leader " in line]) == 1
            assert len([line for line in of_one if " leads, leader epoch 0 " in line]) == 1
            assert len([line for line in of_one if " follows " in line]) == 2

        killed = next(number for number in (1, 2, 3) if number != cluster.controller_id)
        counts = {"clicks": 6, "__consumer_offsets": 4, "__transaction_state": 4}
        led = sum(cluster.leader(topic, number) == killed for topic, count in counts.items() for number in range(count))
        elections = summed(cluster, "ottla_controller_elections_total")
        caplog.clear()
        cluster.kill(killed)
        until(lambda: summed(cluster, UNDER_REPLICATED) == 6 + 8)
        assert summed(cluster, "ottla_replica_at_min_isr_partitions") == 6 + 4, "transactions ask for two"
        assert summed(cluster, "ottla_replica_under_min_isr_partitions") == 0
        until(lambda: summed(cluster, "ottla_controller_alive_brokers") == 2)
        until(lambda: summed(cluster, "ottla_controller_elections_total") == elections + led)
        assert summed(cluster, "ottla_controller_election_seconds_count") >= 1
        assert summed(cluster, "ottla_controller_unclean_elections_total") == 0
        assert summed(cluster, "ottla_controller_offline_partitions") == 0
        decided = [
            record.getMessage() for record in caplog.records if "ISR [" in record.getMessage() and " asks for " not in record.getMessage()
        ]
        assert sorted(line.partition(":")[0] for line in decided) == sorted(
            f"{topic}-{number}" for topic, count in counts.items() for number in range(count)
        )

        produce(cluster, "clicks", 300)
        cluster.start_broker(killed)
        until(lambda: summed(cluster, UNDER_REPLICATED) == 0)
        assert summed(cluster, "ottla_replica_isr_expands_total") >= 6
        assert scrape(cluster, killed)["ottla_log_recovered_bytes_total"] > 0

        def lags() -> list[float]:
            return [lag for name, lag in scrape(cluster, killed).items() if name.startswith("ottla_replica_fetcher_lag_messages{")]

        until(lambda: (found := lags()) and not any(found))


def test_what_too_few_replicas_hold_and_what_nobody_leads_is_counted() -> None:
    with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        cluster.make_internal_topics()
        cluster.create_topic("both", partitions=2, replication_factor=2, settings={"min.insync.replicas": "2"})
        cluster.create_topic("single", partitions=4, replication_factor=1)
        until(lambda: summed(cluster, "ottla_replica_at_min_isr_partitions") == 6 + 4)
        killed = 2 if cluster.controller_id == 1 else 1
        alone = sum(cluster.leader("single", number) == killed for number in range(4))
        assert alone
        cluster.kill(killed)
        until(lambda: summed(cluster, "ottla_replica_under_min_isr_partitions") == 2 + 4)
        until(lambda: summed(cluster, "ottla_controller_offline_partitions") == alone)
        until(lambda: summed(cluster, "ottla_controller_preferred_leader_imbalance") >= alone)


@pytest.mark.usefixtures("patient")
def test_each_partition_has_series_of_its_own_where_that_is_asked_for() -> None:
    with EmbeddedCluster(settings={**SETTINGS, "metrics.partition.enabled": "true"}, topics={"clicks": 2}) as cluster:
        produce(cluster, "clicks", 50)
        found = scrape(cluster)
        ends = [found[f'ottla_log_end_offset{{partition="{number}",topic="clicks"}}'] for number in (0, 1)]
        assert sum(ends) == 50
        assert [found[f'ottla_partition_high_watermark{{partition="{number}",topic="clicks"}}'] for number in (0, 1)] == ends
        assert found['ottla_partition_under_replicated{partition="0",topic="clicks"}'] == 0
        assert found['ottla_log_start_offset{partition="0",topic="clicks"}'] == 0
        sizes = [found[f'ottla_log_size_bytes{{partition="{number}",topic="clicks"}}'] for number in (0, 1)]
        (directory,) = [value for name, value in found.items() if name.startswith("ottla_log_directory_size_bytes")]
        assert sum(sizes) == directory > 500

    with EmbeddedCluster(settings=SETTINGS, topics={"clicks": 2}) as cluster:
        assert not [name for name in scrape(cluster) if "partition=" in name]
