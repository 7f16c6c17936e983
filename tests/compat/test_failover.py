"""Clients ride through every failover: the leader dies, the controller dies, brokers restart one after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from tests.waiting import until

from ottla.testing import EmbeddedCluster

from .failover_clients import APPLICATIONS, Application, Flow

ALL = [1, 2, 3]
WAIT_SECONDS = 180.0


def more(flow: Flow, count: int = 30) -> None:
    """Waits until so many more are acknowledged and read."""
    goal = len(flow.acknowledged) + count
    until(lambda: (len(flow.acknowledged) >= goal and len(flow.read) >= goal) or flow.errors, f"{count} more there and back")
    assert flow.errors == []


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda each: each.name)
def test_nothing_is_lost_and_no_error_is_seen(application: Application, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # the Python clients tell of every connection that ends
    settings = {"min.insync.replicas": "2", "controlled.shutdown.retry.backoff.ms": "100"}
    with EmbeddedCluster(brokers=3, settings=settings) as cluster:
        flow = Flow(cluster.bootstrap_servers, cluster.create_topic("events", replication_factor=3))

        def run(what: Callable[[Flow], None]) -> None:
            try:
                what(flow)
            except Exception as error:
                flow.failed(error)

        publisher = threading.Thread(target=run, args=(application.publish,), daemon=True)
        reader = threading.Thread(target=run, args=(application.read,), daemon=True)
        publisher.start()
        reader.start()

        def whole() -> None:
            until(lambda: cluster.isr("events") == ALL, "all are in sync")

        for ends, whom in (
            (cluster.kill, lambda: cluster.leader("events")),
            (cluster.kill, lambda: cluster.controller_id),
            *((cluster.stop_broker, lambda broker_id=broker_id: broker_id) for broker_id in ALL),
        ):
            more(flow)
            broker_id = whom()
            ends(broker_id)
            more(flow)
            cluster.start_broker(broker_id)
            whole()
        flow.stop_publishing.set()
        publisher.join(WAIT_SECONDS)
        assert not publisher.is_alive()
        assert flow.errors == []
        until(lambda: len(flow.read) >= len(flow.acknowledged), "all that was acknowledged is read")
        flow.stop_reading.set()
        reader.join(WAIT_SECONDS)
        assert not reader.is_alive()
        assert flow.read == sorted(flow.acknowledged, key=int), "in order, none twice and none missing"
