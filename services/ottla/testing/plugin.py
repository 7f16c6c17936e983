"""Fixtures for any project that talks to Kafka; pytest finds them by itself once Ottla is installed.

    def test_clicks_are_counted(ottla_bootstrap_servers, ottla_topic):
        publish(ottla_bootstrap_servers, ottla_topic, ...)

`ottla_cluster`            one broker for the whole run, started by the first test that asks for it
`ottla_bootstrap_servers`  its address
`ottla_topic`              the name of a new topic with one partition, for this test alone
`ottla_schema_registry_url`  the address of a schema registry over that broker's topics, started by the first test that asks for it
`ottla_audit`              the address of an audit counter over that broker; the test fails if a message of an audited client is not there
`ottla_settings`           override it (session scope) to give the broker other properties

Nothing but pytest and the standard library may be imported here: this runs in every project's every test run.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from ottla.testing.cluster import EmbeddedCluster

_NAME_LENGTH: Final = 200  # a topic's name may have 249 characters; the number at its end needs some
_numbers: Final = itertools.count(1)
_AUDIT_SECONDS: Final = 10
_DAY_MS: Final = 86_400_000


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


@pytest.fixture(scope="session")
def ottla_schema_registry_url(ottla_cluster: EmbeddedCluster) -> str:
    """The URL to configure a schema registry's client with."""
    return ottla_cluster.with_schema_registry()


@pytest.fixture
def ottla_audit(ottla_cluster: EmbeddedCluster) -> Iterator[str]:
    """The URL of an audit counter. After the test every message that an audited client has sent or read since must be COMPLETE.

    Close audited clients before the test ends (`close_audit()`, `close()`): what they have not said is not known.
    """
    from urllib.parse import quote, urlencode

    url = ottla_cluster.with_audit_counter()
    before = {one["session"] for one in _json(f"{url}/v1/sessions")}
    yield url
    ottla_cluster.wait_audited()
    now_ms = time.time_ns() // 1_000_000
    query = urlencode({"from": now_ms - _DAY_MS, "to": now_ms + _DAY_MS, "wait": _AUDIT_SECONDS})
    for topic in {one["topic"] for one in _json(f"{url}/v1/sessions") if one["session"] not in before and one["tier"] != "broker"}:
        found = _json(f"{url}/v1/topics/{quote(topic, safe='')}/verify?{query}")
        if found["exit_code"]:
            edges = "; ".join(f"{edge['edge']}: {edge['verdict']} {edge['reason']}" for edge in found["edges"])
            pytest.fail(f"the audit of {topic} says {found['verdict']}: {edges or 'nothing is known of it'}")


def _json(url: str) -> Any:
    from urllib.request import ProxyHandler, build_opener  # with ssl: not in every project's every run

    # It is on this machine, where a proxy that the environment names does not reach.
    with build_opener(ProxyHandler({})).open(url, timeout=2 * _AUDIT_SECONDS) as answer:
        return json.load(answer)


@pytest.fixture
def ottla_topic(ottla_cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition, named after the test."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-.")[:_NAME_LENGTH]
    return ottla_cluster.create_topic(f"{readable}-{next(_numbers)}")
