"""Brokers behind load balancers: each is told its own address when it starts, and clients reach it there.

Where nothing in the cluster gives out addresses, the test does, as a cloud's controller would: in the Service's status. kube-proxy
then routes them inside of the cluster, which is where the checks are.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.kubernetes.cluster import FULLNAME, RELEASE, WAIT_SECONDS, Cluster, Failed, namespaced, until

pytestmark = pytest.mark.timeout(3 * WAIT_SECONDS)

# Documentation's (RFC 5737): no machine has them.
ADDRESSES = ("192.0.2.10", "192.0.2.11", "192.0.2.12")
PATIENCE_SECONDS = 20


def given(cluster: Cluster, ordinal: int) -> list[dict[str, Any]]:
    """The addresses of a broker's Service."""
    found: list[dict[str, Any]] = (
        cluster.get("service", f"{FULLNAME}-broker-{ordinal}")["status"].get("loadBalancer", {}).get("ingress", [])
    )
    return found


def give(cluster: Cluster, ordinal: int, address: str) -> None:
    """By the address of the status itself: kubectl's `--subresource` is of 1.24."""
    service = cluster.get("service", f"{FULLNAME}-broker-{ordinal}")
    service["status"] = {"loadBalancer": {"ingress": [{"ip": address}]}}
    path = f"/api/v1/namespaces/{cluster.namespace}/services/{service['metadata']['name']}/status"
    cluster.kubectl("replace", "--raw", path, "--filename=-", given=json.dumps(service))


def all_have_services(cluster: Cluster) -> bool:
    try:
        return all(cluster.get("service", f"{FULLNAME}-broker-{ordinal}") for ordinal in range(3))
    except Failed:
        return False


def says_that_it_waits(cluster: Cluster) -> bool:
    try:
        said = cluster.kubectl("logs", f"{FULLNAME}-broker-0", "--container=configure")
    except Failed:  # the container has not started
        return False
    return f"Service {FULLNAME}-broker-0 has no address yet" in said


def test_brokers_wait_for_their_balancers_and_are_reached_through_them() -> None:
    with namespaced() as cluster:
        failed: list[BaseException] = []

        def install() -> None:
            try:
                cluster.deploy("install", externalAccess__type="LoadBalancer", externalAccess__port=9094, checks__failover__enabled=False)
            except BaseException as error:
                failed.append(error)

        installing = threading.Thread(target=install, daemon=True)
        installing.start()
        until("Services are there", lambda: all_have_services(cluster) or not installing.is_alive())
        try:
            until("a controller gives addresses", lambda: all(given(cluster, number) for number in range(3)), PATIENCE_SECONDS)
        except AssertionError:
            until("broker 0 waits", lambda: says_that_it_waits(cluster))
            for ordinal, address in enumerate(ADDRESSES):
                give(cluster, ordinal, address)
        installing.join(WAIT_SECONDS + 60)
        assert not failed, failed
        addresses = [given(cluster, number)[0] for number in range(3)]
        cluster.helm("test", RELEASE, f"--timeout={WAIT_SECONDS}s")
        said = cluster.kubectl("logs", f"{FULLNAME}-check-external")
        for ingress in addresses:
            assert f"{ingress.get('hostname') or ingress['ip']}:9094" in said
        assert "there and back through all 3 brokers" in said
