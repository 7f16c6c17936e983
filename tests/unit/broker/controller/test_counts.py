"""What the controller counts: a bounded number of kinds, whatever the topics are called."""

from __future__ import annotations

import asyncio

from ottla.broker.controller.event_queue import ControllerCounts, ControllerEvent, EventQueue
from ottla.interbroker.calls import OPERATIONS

from .clusters import Cluster


def test_the_labels_of_events_are_those_that_dashboards_have() -> None:
    assert {event.value for event in ControllerEvent} == {
        "alter_partition",
        "alter_settings",
        "answers",
        "brokers",
        "controlled_shutdown",
        "create_partitions",
        "create_topic",
        "delete_topic",
        "elect_leaders",
        "log_directories",
        "offline_replicas",
        "producer_ids",
        "reassign",
        "rebalance",
        "resign",
        "settings",
        "take_over",
        "topics",
        "undrain",
    }


async def test_the_controller_answers_every_request_that_there_is(cluster: Cluster) -> None:
    await cluster.start()
    active = cluster.controller.active
    assert active is not None
    assert active._requests.keys() == {operation.request for operation in OPERATIONS.values() if operation.is_for_controller}


async def test_the_name_of_a_topic_makes_no_kind_of_its_own() -> None:
    counts = ControllerCounts()
    queue = EventQueue(lambda _: None, counts)

    async def nothing() -> None:
        assert queue.length

    for name in ("clicks", "orders"):
        await queue.submit(ControllerEvent.CREATE_TOPIC, f"creating topic {name}", nothing)
    await asyncio.sleep(0)
    assert counts.events == {"create_topic": 2}
    assert queue.length == 0
