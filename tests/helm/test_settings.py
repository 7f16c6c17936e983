"""The properties that a pod's broker is started with: the broker's own parser must take them, and they must say what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.helm.charting import CHART, VALUES_FILES, Rendered, refusal, template
from tests.helm.pod_script import script

from ottla.config.broker import BrokerSettings
from ottla.config.environment import from_environment, layered
from ottla.config.properties import load
from ottla.config.registry import RegistrySettings

configure = script("configure")


def pod_environment(ordinal: int = 1) -> dict[str, str]:
    return {
        "POD_NAME": f"mine-ottla-broker-{ordinal}",
        "POD_NAMESPACE": "streams",
        "NODE_NAME": "node-a",
        "HOST_IP": "192.0.2.7",
        "ZOOKEEPER_DIGEST_USERNAME": "ottla",
        "ZOOKEEPER_DIGEST_PASSWORD": "back\\slash and ü",
    }


def api_server(path: str) -> dict[str, Any]:
    """A node in a zone with two addresses, and Services with what a cluster gives them."""
    if path == "/api/v1/nodes/node-a":
        addresses = [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "ExternalIP", "address": "203.0.113.7"}]
        labels = {"topology.kubernetes.io/zone": "zone-1"}
        return {"metadata": {"name": "node-a", "labels": labels}, "status": {"addresses": addresses}}
    assert path == "/api/v1/namespaces/streams/services/mine-ottla-broker-1", path
    return {"spec": {"ports": [{"nodePort": 31234}]}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.99"}]}}}


def started_with(rendered: Rendered, tmp_path: Path, environment: Mapping[str, str] | None = None) -> BrokerSettings:
    """What `ottla broker` reads in such a pod."""
    source, into, secret = tmp_path / "from", tmp_path / "into", tmp_path / "secret"
    for path in (source, into, secret):
        path.mkdir(exist_ok=True)
    for name, text in rendered.one("ConfigMap", "broker")["data"].items():
        (source / name).write_text(text, encoding="utf-8")
    tls = json.loads((source / "pod.json").read_text(encoding="utf-8")).get("tls", {})
    for name, key in tls.items():
        (secret / key).write_text(f"-----BEGIN {name}-----\n", encoding="ascii")
    configure.configure(source, into, environment or pod_environment(), api_server, secret)
    return BrokerSettings.from_properties(load(into / "server.properties"))


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_the_broker_takes_what_it_is_started_with(file: Path, tmp_path: Path) -> None:
    """Every values file, through the template and the init container, to the broker's own reading."""
    rendered = template(file=file)
    settings = started_with(rendered, tmp_path)
    values = json.loads(rendered.one("ConfigMap", "broker")["data"]["pod.json"])
    assert settings.broker_id == values["id_base"] + 1
    assert settings.inter_broker_listener.name == "INTERNAL"
    assert settings.control_address.port == 9095
    assert not settings.without_effect(settings.given)


def test_what_the_chart_sets_itself_are_settings_that_there_are() -> None:
    text = (CHART / "templates" / "_settings.tpl").read_text(encoding="utf-8")
    owned = text.partition('"ottla.ownedSettings"')[2].partition("{{- end -}}")[0]
    names = {line.partition(":")[0] for line in owned.splitlines()[1:] if line}
    assert len(names) > 15
    assert names <= set(BrokerSettings.definitions_by_any_name())


def test_copies_follow_the_number_of_brokers(tmp_path: Path) -> None:
    """Three copies of which two must have a message; with fewer brokers as many as there are, as a topic could not be made otherwise."""
    three = started_with(template(), tmp_path)
    assert (three.default_replication_factor, three.min_insync_replicas, three.offsets_topic_replication_factor) == (3, 2, 3)
    assert (three.transaction_state_log_replication_factor, three.transaction_state_log_min_isr) == (3, 2)
    one = started_with(template({"broker.replicas": 1}), tmp_path)
    assert (one.default_replication_factor, one.min_insync_replicas, one.offsets_topic_replication_factor) == (1, 1, 1)


def test_a_person_s_settings_go_before_the_chart_s(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "min.insync.replicas": 1,
        "log.retention.bytes": 107374182400,
        "log.cleaner.min.cleanable.ratio": 0.25,
        "num.partitions": 6,
    }
    given["log.flush.interval.messages"] = str(2**63 - 1)
    settings = started_with(template({"broker.settings": given}), tmp_path)
    assert settings.log_flush_interval_messages == 2**63 - 1
    assert settings.min_insync_replicas == 1
    assert settings.log_retention_bytes == 107374182400
    assert settings.log_cleaner_min_cleanable_ratio == 0.25
    assert settings.num_partitions == 6


def test_a_setting_of_several_lines_comes_with_all_of_them(tmp_path: Path) -> None:
    """A certificate that a machine with Windows has written, by `--set-file`: a carriage return ends a line of YAML too."""
    pem = "-----BEGIN CERTIFICATE-----\r\nAAAA\r\n-----END CERTIFICATE-----"
    settings = started_with(template({"broker.settings": {"ssl.truststore.certificates": pem}}), tmp_path)
    assert settings.ssl_truststore_certificates is not None
    assert settings.ssl_truststore_certificates.value.split() == pem.split()


def test_a_setting_that_is_switched_off_goes_before_the_chart_s_too() -> None:
    """Sprig's `merge` takes false for a value that is not there."""
    off = {"audit.enable": False, "zookeeper.set.acl": False}
    link = {"remote->local.enabled": False, "zookeeper.set.acl": False}
    rendered = template(
        {
            "broker.settings": off,
            "zookeeper.digest.existingSecret": "zookeeper-credentials",
            "schemaRegistry": {"enabled": True, "settings": {"zookeeper.set.acl": False}},
            "auditCounter": {"enabled": True, "settings": {"zookeeper.set.acl": False}},
            "mirrorMaker": {"enabled": True, "sources": {"remote": {"bootstrap.servers": "far:9092"}}, "settings": link},
        }
    )

    def lines(name: str, file: str) -> set[str]:
        return set(rendered.one("ConfigMap", name)["data"][file].splitlines())

    assert {"audit.enable=false", "zookeeper.set.acl=false"} <= lines("broker", "server.properties")
    assert "zookeeper.set.acl=false" in lines("registry", "schema-registry.properties")
    assert "zookeeper.set.acl=false" in lines("audit", "audit-counter.properties")
    assert {"remote->local.enabled=false", "zookeeper.set.acl=false"} <= lines("mirror", "mm2.properties")


def test_a_setting_of_one_values_file_is_taken_back_by_null_in_the_next(tmp_path: Path) -> None:
    """As Helm has it for a chart's own values: then the chart's default is given, or none."""
    given = {"min.insync.replicas": 1, "num.partitions": 6}
    services = {name: {"enabled": True, "settings": {"zookeeper.session.timeout.ms": 9000}} for name in ("auditCounter", "schemaRegistry")}
    far = {"bootstrap.servers": "far:9092", "security.protocol": "SSL"}
    mirror = {"enabled": True, "sources": {"far": far}, "settings": {"topics": "clicks"}}
    every, here = tmp_path / "every.json", tmp_path / "here.json"
    every.write_text(json.dumps({"broker": {"settings": given}, "mirrorMaker": mirror, **services}), encoding="utf-8")
    taken_back: dict[str, Any] = {name: {"settings": {"zookeeper.session.timeout.ms": None}} for name in services}
    taken_back["mirrorMaker"] = {"sources": {"far": {"security.protocol": None}}, "settings": {"topics": None}}
    here.write_text(json.dumps({"broker": {"settings": dict.fromkeys(given)}, **taken_back}), encoding="utf-8")
    rendered = template(None, "--values", str(every), "--values", str(here))
    settings = started_with(rendered, tmp_path)
    assert (settings.min_insync_replicas, settings.num_partitions) == (2, 1)
    files = [text for config_map in rendered.all("ConfigMap") for name, text in config_map["data"].items() if name.endswith(".properties")]
    assert len(files) == 4
    assert not [line for text in files for line in text.splitlines() if line.startswith(("topics=", "far.security=", "zookeeper.session"))]


def test_other_settings_are_other_pods_and_other_values_are_not() -> None:
    """A checksum of the ConfigMap is on the pods, so that `helm upgrade` rolls them exactly when it must."""

    def checksum(values: dict[str, Any]) -> str:
        annotations = template(values).one("StatefulSet", "broker")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/configuration"])

    assert checksum({}) != checksum({"broker.settings": {"num.partitions": 6}})
    assert checksum({}) != checksum({"externalAccess": {"enabled": True}})
    assert checksum({}) == checksum({"metrics.dashboards.enabled": True})
    assert checksum({"broker.replicas": 3}) == checksum({"broker.replicas": 4}), "a broker more must not restart the others"


def test_digest_credentials_reach_the_broker_as_they_are(tmp_path: Path) -> None:
    file = CHART / "ci" / "external-zookeeper.yaml"
    settings = started_with(template(file=file), tmp_path)
    assert settings.zookeeper_digest_username == "ottla"
    assert settings.zookeeper_digest_password is not None
    assert settings.zookeeper_digest_password.value == "back\\slash and ü"
    assert settings.zookeeper_set_acl
    assert settings.zookeeper_connect == "zk-0.example.org:2181,zk-1.example.org:2181,zk-2.example.org:2181/clusters/mine"
    assert (tmp_path / "into" / "server.properties").stat().st_mode & 0o777 == 0o440


def advertised(settings: BrokerSettings) -> dict[str, str]:
    return {endpoint.listener_name: f"{endpoint.host}:{endpoint.port}" for endpoint in settings.advertised_endpoints()}


@pytest.mark.parametrize(
    ("file", "address"),
    [
        ("node-port", "kafka.example.org:30093"),
        ("node-port-asked", "203.0.113.7:31234"),
        ("one-node", "192.0.2.7:31234"),
        ("load-balancer", "203.0.113.99:9094"),
        ("load-balancer-hosts", "b1.example.org:443"),
    ],
)
def test_clients_outside_are_told_where_this_broker_is(file: str, address: str, tmp_path: Path) -> None:
    settings = started_with(template(file=CHART / "ci" / f"{file}.yaml"), tmp_path)
    inside = "mine-ottla-broker-1.mine-ottla-broker-headless.streams.svc.cluster.local:9092"
    assert advertised(settings) == {"INTERNAL": inside, "EXTERNAL": address}


def test_the_rack_is_the_node_s_or_the_next_of_the_list(tmp_path: Path) -> None:
    assert started_with(template(file=CHART / "ci" / "rack-from-node.yaml"), tmp_path).broker_rack == "zone-1"
    values = template(file=CHART / "ci" / "rack-values.yaml")
    racks = [started_with(values, tmp_path, pod_environment(ordinal)).broker_rack for ordinal in range(4)]
    assert racks == ["east", "west", "east", "west"]


def test_tls_is_spoken_where_it_was_asked_for(tmp_path: Path) -> None:
    settings = started_with(template(file=CHART / "ci" / "tls.yaml"), tmp_path)
    assert {accepted_listener.name: accepted_listener.is_tls for accepted_listener in settings.accepted_listeners} == {
        "INTERNAL": False,
        "EXTERNAL": True,
    }
    assert not settings.control_address.is_tls
    everywhere = started_with(template(file=CHART / "ci" / "tls-everywhere.yaml"), tmp_path)
    assert all(accepted_listener.is_tls for accepted_listener in everywhere.accepted_listeners)
    assert everywhere.control_address.is_tls
    keystore = (tmp_path / "into" / "keystore.pem").read_text(encoding="ascii")
    assert keystore == "-----BEGIN private_key-----\n-----BEGIN certificate-----\n"


def test_the_schema_registry_takes_what_it_is_started_with(tmp_path: Path) -> None:
    """The ConfigMap's file and the container's variables, through its own reading: its nodes are told names that lead to each other."""
    rendered = template(file=CHART / "ci" / "schema-registry.yaml")
    file = tmp_path / "schema-registry.properties"
    file.write_text(rendered.one("ConfigMap", "registry")["data"]["schema-registry.properties"], encoding="utf-8")
    pod = rendered.one("StatefulSet", "registry")["spec"]["template"]["spec"]
    variables = {
        variable["name"]: variable.get("value", "secret").replace("$(POD_NAME)", "mine-ottla-registry-1")
        for variable in pod["containers"][0]["env"]
    }
    settings = RegistrySettings.from_properties(layered(RegistrySettings, [load(file), from_environment(RegistrySettings, variables)]))
    assert settings.advertised_host("a-pod") == "mine-ottla-registry-1.mine-ottla-registry-headless.streams.svc.cluster.local"
    assert settings.bootstrap_servers == "mine-ottla.streams.svc.cluster.local:9092"
    assert settings.kafkastore_topic_replication_factor == 3
    assert settings.schema_compatibility_level == "FULL"
    assert (settings.zookeeper_digest_username, settings.zookeeper_set_acl) == ("secret", True)
    assert settings.kafkastore_security_protocol == "SSL"
    assert {settings.kafkastore_ssl_keystore_location, settings.kafkastore_ssl_truststore_location} == {
        "/run/ottla/keystore.pem",
        "/etc/ottla-tls/ca.crt",
    }
    assert pod["initContainers"][0]["args"][4:] == ["/run/ottla", "/etc/ottla-tls/tls.key", "/etc/ottla-tls/tls.crt"]


def test_what_the_chart_says_of_a_schema_registry_is_refused_in_its_settings() -> None:
    said = refusal({"schemaRegistry.enabled": True, "schemaRegistry.settings": {"host.name": "elsewhere"}})
    assert "schemaRegistry.settings: host.name is set by the chart" in said
