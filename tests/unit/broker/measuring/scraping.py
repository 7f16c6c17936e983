"""Brokers that are scraped over HTTP, and what they say."""

from __future__ import annotations

import http.client
from typing import Final

from ottla.testing import EmbeddedCluster

SETTINGS: Final = {"http.listener": "127.0.0.1:0"}


def text(port: int, path: str = "/metrics") -> str:
    """An exposition as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        assert response.status == 200, body
        return body
    finally:
        connection.close()


def scrape(cluster: EmbeddedCluster, broker_id: int = 1, path: str = "/metrics") -> dict[str, float]:
    """The samples of one broker, by their names with labels, which are in alphabetical order."""
    lines = text(cluster._broker(broker_id).http_port, path).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def summed(cluster: EmbeddedCluster, name: str) -> float:
    """A sample of all brokers that run, together; of one that does not have it nothing."""
    return sum(scrape(cluster, broker).get(name, 0.0) for broker in cluster.running_brokers)
