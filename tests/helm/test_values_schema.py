"""values.schema.json: everything that can be set is known, and a slip of the pen is told before anything is installed."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.helm.charting import CHART, ROOT, broker_container, helm, refusal, template

kubernetes_validate: Any = importlib.import_module("kubernetes_validate")  # untyped

SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
# Kubernetes' own objects, whose fields differ from release to release, and Helm's `global`.
OPEN: Final = {"kubernetes", "global"}


def resolved(schema: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def properties(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path that the schema names, but for what a person names in it."""
    found = resolved(schema)
    for name, each in found.get("properties", {}).items():
        if path in (("broker",), ("schemaRegistry",), ("auditCounter",), ("mirrorMaker",)) and name in ("settings", "sources"):
            yield (*path, name)
            continue
        yield (*path, name)
        yield from properties(each, (*path, name)) if isinstance(each, dict) else ()


def objects(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object in it, with where it stands."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield where, schema
        for name, each in schema.items():
            yield from objects(each, f"{where}/{name}" if name not in ("properties", "$defs") else where)


def paths(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(values, dict):
        for name, each in values.items():
            yield (*path, name)
            yield from paths(each, (*path, name))


def test_every_object_is_closed_but_for_those_that_are_kubernetes() -> None:
    for where, schema in objects(SCHEMA):
        further = schema.get("additionalProperties", "left open")
        named = where.rpartition("/")[2]
        assert further is False or isinstance(further, dict) or (named in OPEN and further is True), f"{where}: {further}"


def test_values_yaml_and_the_schema_name_the_same_values() -> None:
    """But for parts of Kubernetes' objects, which have no names in the schema, and those that values.yaml leaves empty."""
    in_schema = set(properties(SCHEMA)) - {("global",)}
    in_values = set(paths(VALUES))
    unknown = {
        in_value
        for in_value in in_values - in_schema
        if not any(part in in_value for part in ("podSecurityContext", "containerSecurityContext"))
    }
    assert {path for path in unknown if path[-3:-1] not in ((("resources", "requests")), ("resources", "limits"))} == set()
    missing = {
        path
        for path in in_schema - in_values
        if path[:-1] in in_values and isinstance(_at(VALUES, path[:-1]), dict) and _at(VALUES, path[:-1])
    }
    assert missing <= {("broker", "updateStrategy", "rollingUpdate"), ("zookeeper", "persistence", "volumes")}


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def test_every_value_is_explained() -> None:
    """The README's table is made from the comments, so a value without one would be missing in it."""
    page = (CHART / "README.md").read_text(encoding="utf-8")
    documented = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    for path in paths(VALUES):
        name = ".".join(path)
        covered = any(".".join(path[:length]) in documented for length in range(1, len(path) + 1))
        assert covered or any(path.startswith(f"{name}.") for path in documented), f"{name} has no comment"
    assert not [name for name in documented if tuple(name.split(".")) not in set(paths(VALUES))]


def test_no_value_is_without_effect() -> None:
    """Each is read by a template; what is Kubernetes' own is handed on whole."""
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*") if path.is_file())
    whole = {"resources", "updateStrategy", "podSecurityContext", "containerSecurityContext"}
    for path in paths(VALUES):
        if not whole & set(path[:-1]):
            assert re.search(rf"\.{path[-1]}\b", templates), f"no template reads {'.'.join(path)}"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("broker.persistence.enabled", "broker.persistence: enabled is required"),
        ("broker.replicas", "broker: replicas is required"),
        ("clusterDomain", "(root): clusterDomain is required"),
        ("externalAccess", "(root): externalAccess is required"),
        ("networkPolicy.clientLabelRequired", "networkPolicy: clientLabelRequired is required"),
        ("tls.listeners", "tls: listeners is required"),
    ],
)
def test_a_value_without_which_the_chart_would_say_something_else_can_not_be_null(value: str, named: str) -> None:
    """Helm takes a default away where a file has the name and nothing behind it; no volume, or no TLS, is not what was meant by that."""
    assert named in refusal({value: None})


EVERYTHING: Final[dict[str, Any]] = {
    "auditCounter.enabled": True,
    "externalAccess.enabled": True,
    "load": {"enabled": True, "pattern": "clicks", "into": "s3://lake/clicks"},
    "metrics.serviceMonitor.enabled": True,
    "mirrorMaker": {"enabled": True, "sources": {"far": {"bootstrap.servers": "far:9092"}}},
    "schemaRegistry.enabled": True,
    "tls.certManager": {"enabled": True, "issuerRef": {"name": "authority"}},
}


@pytest.mark.parametrize(
    "value",
    [
        "broker.podAnnotations",
        "broker.podLabels",
        "broker.rack.fromNode",
        "broker.rack.values",
        "broker.settings",
        "externalAccess.hosts",
        "externalAccess.loadBalancerIPs",
        "externalAccess.nodeExternalAddress",
        "externalAccess.nodePorts",
        "image.tag",
        "load.topics",
        "metrics.serviceMonitor.labels",
        "mirrorMaker.settings",
        "schemaRegistry.settings",
        "tls.existingSecret",
        "zookeeper.connect",
        "zookeeper.digest.existingSecret",
    ],
)
def test_null_is_empty_where_the_default_is(value: str) -> None:
    """`existingSecret:` with nothing behind it names no Secret, and `hosts:` no host: as when a person comments out all that was there."""
    assert list(template({**EVERYTHING, value: None})) == list(template(EVERYTHING))


@pytest.mark.parametrize(
    "values",
    [
        {"broker.resources": {"requests": {"cpu": 0.5, "memory": "1e9"}, "limits": {"cpu": 1.5, "memory": 2147483648}}},
        {"broker.persistence.size": "1Ei"},
        {"tls.existingSecret": f"wildcard-{'a' * 244}", "zookeeper.digest.existingSecret": f"digest.{'a' * 200}"},
        {"load": {**EVERYTHING["load"], "existingClaim": f"tables-{'a' * 200}"}, "serviceAccount.name": f"streams-{'a' * 100}"},
    ],
    ids=["numbers", "exa", "secrets", "claim and account"],
)
def test_what_kubernetes_takes_is_taken(values: dict[str, Any]) -> None:
    """A quantity may be a number (`cpu: 0.5`) or have an exponent; a Secret's name may have 253 characters, unlike a Service's."""
    for manifest in template(values):
        if manifest["kind"] != "Certificate":
            kubernetes_validate.validate(json.loads(json.dumps(manifest)), "1.30", strict=True)


def test_hosts_are_names_and_addresses_of_either_kind() -> None:
    """Brokers put IPv6 addresses into brackets where there are none; a certificate has them without."""
    hosts = ["kafka.example.org", "192.0.2.7", "2001:db8::7", "[2001:db8::8]"]
    issued = {"enabled": True, "issuerRef": {"name": "authority"}}
    rendered = template({"externalAccess": {"enabled": True, "hosts": hosts}, "tls.certManager": issued})
    certificate = rendered.one("Certificate", "tls")["spec"]
    assert certificate["dnsNames"][-1] == "kafka.example.org"
    assert certificate["ipAddresses"] == ["192.0.2.7", "2001:db8::7", "2001:db8::8"]


def test_an_image_is_named_with_a_port_a_path_and_a_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    rendered = template({"image": {"registry": "registry.example.org:5000/mirror", "repository": "streams/ottla", "digest": digest}})
    assert broker_container(rendered)["image"] == f"registry.example.org:5000/mirror/streams/ottla@{digest}"
    rendered = template({"image": {"repository": "registry.example.org:5000/streams/ottla", "tag": "0.2.0"}})
    assert broker_container(rendered)["image"] == "registry.example.org:5000/streams/ottla:0.2.0"


def test_a_chart_above_it_can_switch_it_off(tmp_path: Path) -> None:
    """`condition: ottla.enabled` is how Helm's own page has it (helm.sh/docs/topics/charts, "Tags and Condition Fields")."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    shutil.copytree(CHART, tmp_path / "charts" / "ottla")
    dependency = {"name": "ottla", "version": version, "condition": "ottla.enabled"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(json.dumps(chart), encoding="utf-8")
    for enabled, count in (("true", 1), ("false", 0)):
        made = helm("template", "mine", str(tmp_path), "--set", f"ottla.enabled={enabled}")
        assert made.returncode == 0, made.stderr
        assert made.stdout.count("name: mine-ottla-broker-headless") == count


def test_what_is_made_from_values_and_settings_is_what_is_in_the_tree() -> None:
    """`make docs` regenerates it."""
    checked = subprocess.run([sys.executable, "helm/document.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_the_chart_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"broker.replica": 3}, "Additional property replica is not allowed"),
        ({"brokers.replicas": 3}, "Additional property brokers is not allowed"),
        ({"broker.replicas": "3"}, "broker.replicas: Invalid type"),
        ({"broker.replicas": 0}, "broker.replicas: Must be greater than or equal to 1"),
        ({"broker.idBase": 999}, "broker.idBase"),
        ({"broker.settings": {"log.segment.byte": 1}}, "Additional property log.segment.byte is not allowed"),
        ({"broker.settings": {"log.segment.bytes": [1]}}, "broker.settings.log.segment.bytes"),
        ({"broker.settings": {"process.roles": "broker"}}, "Additional property process.roles is not allowed"),
        ({"schemaRegistry.settings": {"schema.compatibility": "FULL"}}, "Additional property schema.compatibility is not allowed"),
        ({"schemaRegistry.replicas": 0}, "schemaRegistry.replicas: Must be greater than or equal to 1"),
        ({"auditCounter.settings": {"audit.windows.ms": 1}}, "Additional property audit.windows.ms is not allowed"),
        ({"mirrorMaker.settings": {"topcis": "clicks"}}, "Additional property topcis is not allowed"),
        ({"mirrorMaker.sources": {"far": {"bootstrap.server": "far:9092"}}}, "Additional property bootstrap.server is not allowed"),
        ({"mirrorMaker.sources": {"f.a.r": {}}}, "mirrorMaker.sources"),
        ({"load.schedule": "every minute"}, "load.schedule"),
        ({"load.master": "yarn"}, "load.master"),
        ({"broker.persistence.size": "20GB"}, "broker.persistence.size"),
        ({"broker.persistence.accessModes": ["ReadWriteMany"]}, "broker.persistence.accessModes"),
        ({"broker.antiAffinity": "strict"}, "broker.antiAffinity"),
        ({"broker.resources": {"request": {}}}, "Additional property request is not allowed"),
        ({"broker.resources": {"requests": {"memory": "one gigabyte"}}}, "broker.resources.requests.memory"),
        ({"broker.probes.startup.timeoutSeconds": 1}, "Additional property timeoutSeconds is not allowed"),
        ({"broker.updateStrategy": {"type": "Recreate"}}, "broker.updateStrategy.type"),
        ({"broker.affinity": {"podAntiAffinity": {}}}, "Additional property podAntiAffinity is not allowed"),
        ({"image.digest": "latest"}, "image.digest"),
        ({"image.pullPolicy": "Sometimes"}, "image.pullPolicy"),
        ({"image.registry": "https://registry.example.org"}, "image.registry"),
        ({"image.registry": "registry.example.org/"}, "image.registry"),
        ({"image.repository": "ottla/broker:0.2.0"}, "image.repository"),
        ({"load.image.repository": f"ottla/spark@sha256:{'0' * 64}"}, "load.image.repository"),
        ({"zookeeper.image.repository": "/zookeeper"}, "zookeeper.image.repository"),
        ({"tls.listeners": ["CONTROLLER"]}, "tls.listeners"),
        ({"tls.keystorePassword": "secret"}, "Additional property keystorePassword is not allowed"),
        ({"externalAccess.type": "Ingress"}, "externalAccess.type"),
        ({"externalAccess.nodePorts": [30092, 30092]}, "externalAccess.nodePorts"),
        ({"externalAccess.sourceRanges": ["10.0.0.1"]}, "externalAccess.sourceRanges"),
        ({"externalAccess.hosts": ["kafka.example.org:9094"]}, "externalAccess.hosts"),
        ({"externalAccess.hosts": ["https://kafka.example.org"]}, "externalAccess.hosts"),
        ({"zookeeper.replicas": 2}, "zookeeper.replicas"),
        ({"zookeeper.chroot": "/ottla/"}, "zookeeper.chroot"),
        ({"zookeeper.digest.password": "secret"}, "Additional property password is not allowed"),
        ({"networkPolicy.clientsFrom": [{"pods": {}}]}, "Additional property pods is not allowed"),
        ({"metrics.serviceMonitor.interval": "15"}, "metrics.serviceMonitor.interval"),
        ({"labels": {"team": 7}}, "labels.team"),
        ({"labels": {"app.kubernetes.io/name": "events"}}, "app.kubernetes.io/name"),
        ({"nameOverride": "My_Name"}, "nameOverride"),
    ],
    ids=lambda each: str(each)[:60] if isinstance(each, dict) else "",
)
def test_a_value_that_can_not_be_is_refused(values: dict[str, Any], named: str) -> None:
    assert named in refusal(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"zookeeper.connect": "zk:2181"}, "set zookeeper.enabled=false with it"),
        ({"zookeeper.enabled": False}, "say in zookeeper.connect where ZooKeeper is"),
        ({"zookeeper.enabled": False, "zookeeper.connect": "zk:2181/chroot"}, "the path belongs into zookeeper.chroot"),
        ({"broker.drain.timeoutSeconds": 100}, "must leave 30 s beside broker.drain.timeoutSeconds"),
        ({"broker.rack": {"fromNode": True, "values": ["a"]}}, "either fromNode or values"),
        ({"zookeeper.heapMegabytes": 1024}, "512Mi does not leave 128Mi beside zookeeper.heapMegabytes, which is 1024"),
        ({"zookeeper.resources": {"limits": {"memory": "1Gi"}}, "zookeeper.heapMegabytes": 897}, "1Gi does not leave 128Mi beside"),
        ({"broker.settings": {"broker.id": 7}}, "broker.id is set by the chart; see the value broker.idBase"),
        ({"broker.settings": {"zookeeper.connect": "zk:2181"}}, "see the value zookeeper.connect"),
        ({"tls.clientAuth": "required"}, "tls.clientAuth needs a certificate"),
        ({"tls": {"existingSecret": "a", "certManager": {"enabled": True, "issuerRef": {"name": "b"}}}}, "leave tls.existingSecret empty"),
        ({"tls.certManager.enabled": True}, "needs tls.certManager.issuerRef"),
        ({"fullnameOverride": "events.example"}, "events.example is no name of a Service"),
        ({"broker.settings": {"log.retention.bytes": 2**63 - 1}}, "log.retention.bytes: Helm rounds so large a number: write it in quotes"),
        ({"fullnameOverride": "7-events"}, "7-events is no name of a Service"),
        (
            {"metrics.serviceMonitor": {"enabled": True, "interval": "5s"}},
            "scrapeTimeout is 10s, and a scrape may not take longer than the interval of 5s",
        ),
        (
            {"metrics.serviceMonitor": {"enabled": True, "interval": "1m", "scrapeTimeout": "1m30s"}},
            "metrics.serviceMonitor.scrapeTimeout is 1m30s, and a scrape may not take longer than the interval of 1m",
        ),
        (
            {"metrics.serviceMonitor": {"enabled": True, "path": "/metrics/kafka"}, "metrics.prometheusRule.enabled": True},
            "metrics.serviceMonitor.path is /metrics/kafka, and the rules go by /metrics: AllBrokersDown would fire for good",
        ),
        (
            {"metrics.prometheusRule": {"enabled": True, "disabledAlerts": ["BrokerDown"]}},
            "metrics.serviceMonitor is not: AllBrokersDown would fire for good",
        ),
        ({"externalAccess": {"enabled": True, "nodePorts": [30092]}}, "has 1 ports for 3 brokers"),
        ({"externalAccess": {"enabled": True, "type": "LoadBalancer", "hosts": ["a"]}}, "has 1 hosts for 3 brokers"),
        ({"externalAccess": {"enabled": True, "hosts": ["a", "b"]}}, "give one for each, or one for all"),
        ({"externalAccess": {"enabled": True, "type": "LoadBalancer", "loadBalancerIPs": ["192.0.2.1"]}}, "has 1 addresses for 3 brokers"),
    ],
    ids=lambda each: str(each)[:60] if isinstance(each, dict) else "",
)
def test_values_that_contradict_each_other_are_refused_with_what_to_do(values: dict[str, Any], told: str) -> None:
    assert told in refusal(values)


def test_rules_for_another_monitor_are_taken_without_the_alert_that_asks_for_a_target() -> None:
    rules = {"enabled": True, "disabledAlerts": ["AllBrokersDown"]}
    assert len(template({"metrics.prometheusRule": rules}).all("PrometheusRule")) > 5


@pytest.mark.parametrize("memory", ["1Gi", "1024Mi", "1073741824", "1.5G", 1073741824, None])
def test_a_heap_that_leaves_room_or_has_no_limit_in_mebibytes_is_taken(memory: str | int | None) -> None:
    template({"zookeeper.resources": {"limits": {"memory": memory}}, "zookeeper.heapMegabytes": 896})
