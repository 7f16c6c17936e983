"""Fixtures for any project that talks to Kafka; pytest finds them by itself once Ottla is installed.

    def test_clicks_are_counted(ottla_bootstrap_servers, ottla_topic):
        publish(ottla_bootstrap_servers, ottla_topic, ...)

`ottla_cluster`            one broker for the whole run, started by the first test that asks for it
`ottla_bootstrap_servers`  its address
`ottla_topic`              the name of a new topic with one partition, for this test alone
`ottla_settings`           override it (session scope) to give the broker other properties

Nothing but pytest and the standard library may be imported here: this runs in every project's every test run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from ottla.testing.cluster import EmbeddedCluster

_NAME_LENGTH: Final = 200  # a topic's name may have 249 characters; the number at its end needs some
_numbers: Final = itertools.count(1)


@pytest.fixture(scope="session")
def ottla_settings() -> Mapping[str, str]:
    """The properties of the session's broker, under Kafka's names, over the ones for tests."""
    return {}


@pytest.fixture(scope="session")
def ottla_cluster(ottla_settings: Mapping[str, str]) -> Iterator[EmbeddedCluster]:
    """A real broker, shared by all tests of this run (with pytest-xdist: of this worker)."""
    from ottla.testing.cluster import EmbeddedCluster

    with EmbeddedCluster(settings=ottla_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ottla_bootstrap_servers(ottla_cluster: EmbeddedCluster) -> str:
    """The address to configure a client with."""
    return ottla_cluster.bootstrap_servers


@pytest.fixture
def ottla_topic(ottla_cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition, named after the test."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-.")[:_NAME_LENGTH]
    return ottla_cluster.create_topic(f"{readable}-{next(_numbers)}")
