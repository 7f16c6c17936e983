"""Clients inside and outside each reach every broker by their own listener, and none is told an address it cannot reach."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest
from tests.compat.clients import CLIENTS, Client, Message
from tests.integration.containers import BROKERS, CLIENT_PORT, HTTP_PORT, Containers, broker
from tests.integration.view import View


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.name)
@pytest.mark.parametrize("broker_id", BROKERS)
def test_from_the_host_by_any_broker(
    client: Client, broker_id: int, containers: Containers, view: View, new_topic: Callable[[], str]
) -> None:
    """A topic with its leader anywhere is written to and read by a client that knows one broker's published port."""
    topic = view.create_topic(new_topic())
    messages = [Message(b"key", b"%d" % number, (), 1_700_000_000_000 + number) for number in range(50)]
    address = containers.address(broker(broker_id), CLIENT_PORT)
    assert client.publish(address, topic, "lz4", messages) == list(range(50))
    assert client.read(address, topic, 50) == messages


@pytest.mark.parametrize("broker_id", BROKERS)
def test_from_the_cluster_s_network_by_any_broker(broker_id: int, containers: Containers, new_topic: Callable[[], str]) -> None:
    """By `ottla` in a container of its own, as the README shows it."""
    topic, address = new_topic(), f"broker-{broker_id}:9092"
    containers.ottla("topics", "create", topic, "--partitions", "3", "--bootstrap-server", address)
    containers.ottla("produce", topic, "--bootstrap-server", address, given=b"one\ntwo\nthree\n")
    assert sorted(containers.ottla("consume", topic, "--bootstrap-server", address).split()) == ["one", "three", "two"]


def test_what_goes_in_inside_comes_out_outside(containers: Containers, view: View, new_topic: Callable[[], str]) -> None:
    topic = view.create_topic(new_topic())
    containers.ottla("produce", topic, "--bootstrap-server", "broker-2:9092", given=b"from inside\n")
    (message,) = CLIENTS[0].read(view.addresses, topic, 1)
    assert message.value == b"from inside"


def test_each_side_is_told_its_own_addresses(containers: Containers, view: View) -> None:
    """KIP-103: the listener that a client comes by decides which addresses it is told."""
    outside = {node.id: f"{node.host}:{node.port}" for node in view.metadata().brokers.values()}
    assert outside == {broker_id: containers.address(broker(broker_id), CLIENT_PORT) for broker_id in BROKERS}
    inside = json.loads(containers.ottla("cluster", "--json", "--bootstrap-server", "broker-1:9092"))
    told = {endpoint["broker_id"]: f"{endpoint['host']}:{endpoint['port']}" for endpoint in inside["brokers"]}
    assert told == {broker_id: f"broker-{broker_id}:9092" for broker_id in BROKERS}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/metrics/kafka"])
@pytest.mark.parametrize("broker_id", BROKERS)
def test_health_and_metrics_are_published(broker_id: int, path: str, containers: Containers) -> None:
    with urllib.request.urlopen(f"http://{containers.address(broker(broker_id), HTTP_PORT)}{path}", timeout=10) as answer:
        body = answer.read()
    assert answer.status == 200
    assert body
