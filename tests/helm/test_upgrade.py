"""An upgrade looks at what is there: what cannot become what the values say is refused before Helm has changed half of it.

`--dry-run=server` has the templates ask an API server for what is there. Here that is a small one that knows StatefulSets and the brokers'
ConfigMap alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.helm.charting import CHART, NAMESPACE, helm, template

SETS = {"name": "statefulsets", "singularName": "statefulset", "namespaced": True, "kind": "StatefulSet", "verbs": ["get", "list"]}
MAPS = {"name": "configmaps", "singularName": "configmap", "namespaced": True, "kind": "ConfigMap", "verbs": ["get"]}
VERSION = {"groupVersion": "apps/v1", "version": "v1"}
DISCOVERY: Mapping[str, Any] = {
    "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [MAPS]},
    "/apis": {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [VERSION], "preferredVersion": VERSION}]},
    "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [SETS]},
}
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def api_server(specs: Mapping[str, Any], configured: Mapping[str, Any] | None) -> Iterator[str]:
    """Where an API server has these StatefulSets, by their names, and the ConfigMap of brokers that were installed with values."""
    maps = {} if configured is None else {"mine-ottla-broker": template(configured).one("ConfigMap", "broker")}
    listed = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
    there: dict[str, Any] = {f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}": config_map for name, config_map in maps.items()} | {
        f"{listed}/{name}": {
            "kind": "StatefulSet",
            "apiVersion": "apps/v1",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {
                    "app.kubernetes.io/instance": "mine",
                    "app.kubernetes.io/component": name.rpartition("-")[2],
                    "helm.sh/chart": "ottla-0.0.9",
                },
            },
            "spec": spec,
        }
        for name, spec in specs.items()
    }
    there[listed] = {"kind": "StatefulSetList", "apiVersion": "apps/v1", "metadata": {}, "items": [*there.values()][len(maps) :]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {**DISCOVERY, **there}.get(self.path.partition("?")[0])
            body = json.dumps(found or NOT_FOUND).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing: helm's own words are what is looked at."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def refusal_of(values: str, configured: Mapping[str, Any] | None = None, **specs: Any) -> str:
    """What an upgrade to these values is refused with; empty when it is taken."""
    with api_server({f"mine-ottla-{name}": spec for name, spec in specs.items()}, configured) as address:
        look = ("--is-upgrade", "--dry-run=server", "--kube-apiserver", address)
        made = helm("template", "mine", str(CHART), "--namespace", NAMESPACE, *look, "--set", values)
    return made.stderr if made.returncode else ""


def brokers(volumes: int) -> dict[str, Any]:
    return {"replicas": 3, "volumeClaimTemplates": [{"metadata": {"name": f"data-{number}"}} for number in range(volumes)]}


@pytest.mark.parametrize(
    ("there", "values", "said"),
    [
        (1, "broker.persistence.volumes=2", "each broker has 1 volumes and cannot have 2 in place"),
        (2, "broker.persistence.volumes=1", "each broker has 2 volumes and cannot have 1 in place"),
        (1, "broker.persistence.enabled=false", "each broker has 1 volumes and cannot have 0 in place"),
        (0, "broker.replicas=3", "each broker has 0 volumes and cannot have 1 in place"),
    ],
)
def test_an_upgrade_to_another_number_of_volumes_is_refused(there: int, values: str, said: str) -> None:
    """The API server refuses it too, but when the ConfigMap that a broker reads at its next start has the other `log.dirs`."""
    assert said in refusal_of(values, broker=brokers(there))


@pytest.mark.parametrize(("there", "values"), [(2, "broker.persistence.volumes=2"), (0, "broker.persistence.enabled=false")])
def test_an_upgrade_with_the_volumes_that_there_are_is_taken(there: int, values: str) -> None:
    assert refusal_of(values, broker=brokers(there)) == ""


def test_a_zookeeper_of_another_number_of_servers_is_refused() -> None:
    assert "zookeeper.replicas is 1 and cannot become 3 in place" in refusal_of("zookeeper.replicas=3", zookeeper={"replicas": 1})


@pytest.mark.parametrize("values", ["fullnameOverride=events", "nameOverride=events"])
def test_brokers_of_another_name_are_refused(values: str) -> None:
    """Helm would take those that there are away, with ZooKeeper, and start new ones on new volumes."""
    said = refusal_of(values, broker=brokers(1), zookeeper={"replicas": 3})
    assert "the brokers of this release are mine-ottla-broker and cannot become " in said


OUTSIDE = {"zookeeper": {"enabled": False, "connect": "zk-0:2181,zk-1:2181", "chroot": "/here"}}
TO_OUTSIDE = "zookeeper.enabled=false,zookeeper.chroot=/here,zookeeper.connect="


@pytest.mark.parametrize(
    ("there", "values", "said"),
    [
        ({"broker.idBase": 100}, "broker.idBase=0", "broker.idBase is 100 and cannot become 0 in place"),
        ({}, "zookeeper.chroot=/elsewhere", "zookeeper.chroot is '/ottla' and cannot become '/elsewhere' in place"),
        (OUTSIDE, f"{TO_OUTSIDE}zk-0:2181,zookeeper.chroot=", "zookeeper.chroot is '/here' and cannot become '' in place"),
        (OUTSIDE, f"{TO_OUTSIDE}other:2181", "none of the ZooKeeper servers zk-0:2181,zk-1:2181 is left in other:2181"),
        (OUTSIDE, "zookeeper.chroot=/here", "none of the ZooKeeper servers zk-0:2181,zk-1:2181 is left in mine-ottla-zookeeper-0."),
        ({"zookeeper.chroot": "/here"}, f"{TO_OUTSIDE}zk-0:2181", ":2181 is left in zk-0:2181"),
    ],
)
def test_an_upgrade_that_makes_another_cluster_of_the_brokers_is_refused(there: Mapping[str, Any], values: str, said: str) -> None:
    """Under other ids, or in another place of ZooKeeper, no broker is the one that partitions have as their replica."""
    assert said in refusal_of(values, there)


@pytest.mark.parametrize(
    ("there", "values"),
    [
        ({"broker.idBase": 100}, "broker.idBase=100"),
        (OUTSIDE, f"{TO_OUTSIDE}zk-1:2181\\,zk-2:2181"),
        ({}, "clusterDomain=example.internal"),
    ],
)
def test_an_upgrade_of_the_same_cluster_is_taken(there: Mapping[str, Any], values: str) -> None:
    """Servers of an ensemble come and go one by one; those of the chart have other names in another domain."""
    ours = {} if there == OUTSIDE else {"zookeeper": {"replicas": 3}}
    assert refusal_of(values, there, **ours) == ""
