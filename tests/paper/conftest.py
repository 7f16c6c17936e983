"""One cluster for each file, which ZooKeeper's clients can look into."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from ottla.client import Producer, ProducerSettings
from ottla.testing.cluster import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"coordination.listener": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="module")
def zookeeper(cluster: EmbeddedCluster) -> str:
    return cluster.zookeeper_address


@pytest.fixture(scope="module")
def look(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper)
    client.start(120)
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as sending:
        yield sending
