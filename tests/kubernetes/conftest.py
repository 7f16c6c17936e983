"""One release in a namespace of its own, installed before the first test that asks for it and removed after the last of its file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes.cluster import RELEASE, Cluster, Failed, namespaced


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    """The chart with three brokers and one ZooKeeper, ready."""
    with namespaced() as cluster:
        try:
            cluster.deploy("install")
        except Failed as error:
            pods = cluster.kubectl("get", "pods", "--output=wide")
            raise AssertionError(f"helm install {RELEASE}: {error}\n{pods}") from error
        yield cluster
