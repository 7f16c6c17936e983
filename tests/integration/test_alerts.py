"""Alerts fire when they should, and clear afterwards: brokers that are killed, a ZooKeeper that stops.

Method: the cluster's own Prometheus has the rules as they are, and must keep quiet while a broker is away for half a minute. One
beside it has the same rules with seconds in the place of minutes. How long each alert waits is tested by promtool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from tests.integration.containers import BROKERS, Containers, broker, wait_until
from tests.integration.prometheus import Prometheus, impatient
from tests.integration.view import View

# The alerts that faults of brokers and ZooKeeper can cause. Not those of a machine that is busy, or of groups that other tests have left.
WATCHED: Final = {
    *("AllBrokersDown", "BrokerDown", "BrokerNotReady", "BrokerRestartsOften", "ScrapeProblem"),
    *("IsrFlapping", "UnderMinIsrPartitions", "UnderReplicatedPartitions"),
    *("AbnormalControllerState", "OfflinePartitions", "UncleanLeaderElection"),
    *("CorruptRecords", "OfflineLogDirectory"),
    *("ZooKeeperSessionFlapping", "ZooKeeperSessionLost"),
}
FIRES_SECONDS: Final = 180.0
CLEARS_SECONDS: Final = 180.0


@pytest.fixture
def alerts(containers: Containers) -> Iterator[Prometheus]:
    with impatient(containers) as prometheus:
        # Rates over minutes have no past yet, and nothing fires that a test has not caused.
        wait_clear(prometheus)
        yield prometheus


def firing(prometheus: Prometheus) -> set[tuple[str, str]]:
    return {alert for alert in prometheus.firing() if alert[0] in WATCHED}


def wait_firing(prometheus: Prometheus, *wanted: tuple[str, str]) -> None:
    wait_until(f"{wanted} fire", lambda: set(wanted) <= firing(prometheus), FIRES_SECONDS, prometheus.firing)


def wait_clear(prometheus: Prometheus) -> None:
    wait_until("every alert has cleared", lambda: not firing(prometheus), CLEARS_SECONDS, prometheus.firing)


def instances(prometheus: Prometheus, alert: str) -> set[str]:
    return {instance for name, instance in firing(prometheus) if name == alert}


def test_a_killed_broker_is_told_of_and_cleared_when_it_is_back(
    containers: Containers, view: View, new_topic: Callable[[], str], alerts: Prometheus, prometheus_url: str
) -> None:
    patient = Prometheus(prometheus_url)
    topic = view.create_topic(new_topic(), partitions=3)
    victim = view.leader(topic)
    containers.kill(broker(victim))
    wait_firing(alerts, ("BrokerDown", broker(victim)))
    wait_until("its partitions lack a copy", lambda: bool(instances(alerts, "UnderReplicatedPartitions")), FIRES_SECONDS, alerts.firing)
    # Two of three are in sync, and the controller is one of those that live.
    assert not {"UnderMinIsrPartitions", "AllBrokersDown"} & {name for name, _ in firing(alerts)}
    assert instances(alerts, "BrokerDown") == {broker(victim)}
    assert broker(victim) not in instances(alerts, "UnderReplicatedPartitions")
    containers.start(broker(victim))
    containers.wait_healthy()
    wait_clear(alerts)
    assert not firing(patient), "a broker that is away for less than a minute is no alert"


def test_two_killed_brokers_stop_writes_and_take_partitions_offline(
    containers: Containers, view: View, new_topic: Callable[[], str], alerts: Prometheus
) -> None:
    copied = view.create_topic(new_topic(), partitions=3)
    lonely = view.create_topic(new_topic(), partitions=3, replicas=1, **{"min.insync.replicas": "1"})  # type: ignore[arg-type]
    survivor = view.controller()
    assert view.leader(copied)
    assert {view.leader(lonely, partition) for partition in range(3)} == set(BROKERS)
    victims = [broker_id for broker_id in BROKERS if broker_id != survivor]
    for victim in victims:
        containers.kill(broker(victim))
    wait_firing(
        alerts,
        *(("BrokerDown", broker(victim)) for victim in victims),
        ("UnderMinIsrPartitions", broker(survivor)),
        ("OfflinePartitions", ""),
    )
    assert instances(alerts, "UnderReplicatedPartitions") == {broker(survivor)}
    for victim in victims:
        containers.start(broker(victim))
    containers.wait_healthy()
    wait_clear(alerts)


def test_a_stopped_zookeeper_is_told_of_by_every_broker(containers: Containers, alerts: Prometheus) -> None:
    containers.stop("zookeeper")
    wait_firing(alerts, *(("ZooKeeperSessionLost", broker(broker_id)) for broker_id in BROKERS))
    assert not instances(alerts, "BrokerDown"), "brokers live on without it"
    containers.start("zookeeper")
    containers.wait_healthy()
    wait_clear(alerts)


def test_a_cluster_that_is_gone_is_one_alert(containers: Containers, alerts: Prometheus) -> None:
    for broker_id in BROKERS:
        containers.kill(broker(broker_id))
    wait_firing(alerts, ("AllBrokersDown", ""), *(("BrokerDown", broker(broker_id)) for broker_id in BROKERS))
    # Figures that no one gives any more must not be taken for zeros.
    wait_until("these are all", lambda: {name for name, _ in firing(alerts)} == {"AllBrokersDown", "BrokerDown"}, 180.0, alerts.firing)
    containers.start(*(broker(broker_id) for broker_id in BROKERS))
    containers.wait_healthy()
    wait_clear(alerts)
