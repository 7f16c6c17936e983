"""Services beside an embedded cluster."""

from __future__ import annotations

import json
import urllib.request

import pytest

import ottla.testing.cluster
from ottla.errors import ConfigurationError
from ottla.testing import EmbeddedCluster
from ottla.testing.cluster import ClusterError
from ottla.testing.zookeeper import ZooKeeperServer


def _subjects(cluster: EmbeddedCluster) -> object:
    with urllib.request.urlopen(f"{cluster.schema_registry_url}/subjects", timeout=120) as answer:
        return json.load(answer)


def test_a_schema_registry_runs_beside_the_brokers_and_is_there_again_after_a_restart() -> None:
    with EmbeddedCluster(services=["schema-registry"]) as cluster:
        url = f"{cluster.schema_registry_url}/subjects/clicks-value/versions"
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        urllib.request.urlopen(urllib.request.Request(url, b'{"schema": "\\"int\\""}', headers), timeout=120).close()
        cluster.restart()
        assert url.startswith(cluster.schema_registry_url) and _subjects(cluster) == ["clicks-value"]
        assert cluster.with_schema_registry() == cluster.schema_registry_url


@pytest.mark.long
def test_the_audit_of_three_brokers_has_three_copies_whatever_runs_beside() -> None:
    """The registry came first, and what it wrote had the brokers make `__audit` with one: the audit ended with the first broker killed."""
    with EmbeddedCluster(brokers=3, services=["schema-registry", "audit-counter"]) as cluster:
        assert cluster.isr("__audit") == [1, 2, 3]
        cluster.kill(cluster.leader("__audit"))
        cluster.wait_audited()


def test_an_audit_that_is_not_read_in_time_is_told_with_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a fixture that waits for it had no text."""
    with EmbeddedCluster(services=["audit-counter"]) as cluster:
        cluster.kill(1)
        with monkeypatch.context() as shorter:
            shorter.setattr(ottla.testing.cluster, "START_SECONDS", 0.2)
            with pytest.raises(ClusterError, match=r"has not read all of __audit within 0\.2 s; brokers: \[\]"):
                cluster.wait_audited()


def test_a_service_that_is_none_is_refused_and_a_missing_one_is_told() -> None:
    with pytest.raises(ConfigurationError, match="there are schema-registry and audit-counter"):
        EmbeddedCluster(services=["schemas"])
    with EmbeddedCluster() as cluster, pytest.raises(ClusterError, match="no schema registry"):
        _ = cluster.schema_registry_url


def test_a_text_for_services_is_refused_and_not_read_letter_by_letter() -> None:
    with pytest.raises(ConfigurationError, match=r"it is a list, as \['schema-registry'\]"):
        EmbeddedCluster(services="schema-registry")


def test_a_zookeeper_that_runs_is_not_started_again(zookeeper_server: ZooKeeperServer) -> None:
    """Another Java ended, as its port was taken, and the one that ran was never stopped any more."""
    process_id = zookeeper_server.process_id
    assert zookeeper_server.start().process_id == process_id
