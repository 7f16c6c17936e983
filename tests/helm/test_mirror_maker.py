"""The mirror maker in the chart: what its workers are started with, what may reach them, and its hop in `helm test`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helm.charting import CHART, broker_container, refusal, template
from tests.helm.pod_script import script
from tests.helm.test_promises import CI, policy

from ottla.config.environment import from_environment, layered
from ottla.config.mirror import MirrorSettings
from ottla.config.properties import load

mirror_check = script("mirror_check")


def test_mirror_makers_are_let_alone_scraped_checked_and_go_one_at_a_time() -> None:
    rendered = template(file=CI / "mirror-maker.yaml")
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla", "app.kubernetes.io/instance": "mine"}}}
    assert policy(rendered, "mirror") == {"rpc": [own], "http": [own, "anybody"]}
    assert rendered.one("PodDisruptionBudget", "mirror")["spec"]["maxUnavailable"] == 1
    one = {"mirrorMaker.enabled": True, "mirrorMaker.replicas": 1, "mirrorMaker.sources": {"a": {"bootstrap.servers": "a:9092"}}}
    assert "mine-ottla-mirror" not in [found["metadata"]["name"] for found in template(one).all("PodDisruptionBudget")]
    template_ = rendered.one("Deployment", "mirror")["spec"]["template"]
    assert template_["metadata"]["labels"]["mine-ottla-client"] == "true", "a client of the brokers"
    pod = template_["spec"]
    probes = [pod["containers"][0][name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert probes == [broker_container(rendered)[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert list(pod["affinity"]["podAntiAffinity"]) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    assert not [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume], "it keeps nothing"
    [monitor] = [document["spec"] for document in rendered.all("ServiceMonitor") if document["metadata"]["name"] == "mine-ottla-mirror"]
    assert {"targetLabel": "component", "replacement": "mirror-maker"} in monitor["endpoints"][0]["relabelings"]
    wanted = monitor["selector"]["matchLabels"].items()
    chosen = [found for found in rendered.all("Service") if wanted <= found["metadata"]["labels"].items()]
    assert [document["metadata"]["name"] for document in chosen] == ["mine-ottla-mirror"]
    assert chosen[0]["spec"]["publishNotReadyAddresses"] is True
    check = rendered.one("Pod", "check-mirror")["spec"]["containers"][0]
    assert check["args"][0].strip() == (CHART / "files" / "scripts" / "mirror_check.py").read_text(encoding="utf-8").strip()
    assert check["args"][1:] == [
        "mine-ottla.streams.svc.cluster.local:9092",
        "mine-ottla-mirror.streams.svc.cluster.local:9095",
        "240",
        "far->here",
        "near->here",
    ]
    assert not [found for found in template() if "mirror" in found["metadata"]["name"]], "nobody asked for one"


def test_the_mirror_maker_takes_what_it_is_started_with(tmp_path: Path) -> None:
    """The file, and over it the Secret's variables: a link for each source, its passwords from elsewhere."""
    rendered = template(file=CHART / "ci" / "mirror-maker.yaml")
    file = tmp_path / "mm2.properties"
    file.write_text(rendered.one("ConfigMap", "mirror")["data"]["mm2.properties"], encoding="utf-8")
    pod = rendered.one("Deployment", "mirror")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "far-credentials"}}]
    secret = {"OTTLA_SETTING_FAR_SASL_JAAS_CONFIG": 'x required username="me" password="secret";'}
    variables = {variable["name"]: variable.get("value", "secret") for variable in container["env"]} | secret
    properties = load(file)
    environment = from_environment(MirrorSettings, variables, properties)
    settings = MirrorSettings.from_properties(layered(MirrorSettings, [properties, environment]))
    assert [(link.source, link.target, link.naming_policy) for link in settings.links] == [
        ("far", "here", "prefix"),
        ("near", "here", "identity"),
    ]
    assert all(link.topics == ("clicks", "views") and link.throttle_bytes_per_second == 10_000_000 for link in settings.links)
    here, far = settings.sides["here"], settings.sides["far"]
    assert (here.bootstrap_servers, here.security_protocol) == ("mine-ottla.streams.svc.cluster.local:9092", "SSL")
    assert (here.ssl_keystore_location, here.ssl_truststore_location) == ("/run/ottla/keystore.pem", "/etc/ottla-tls/ca.crt")
    assert (far.sasl_mechanism, far.credentials) == ("SCRAM-SHA-512", ("me", "secret"))
    assert settings.http_address is not None and settings.http_address.port == 9404
    assert (settings.zookeeper_digest_username, settings.zookeeper_set_acl) == ("secret", True)
    assert pod["initContainers"][0]["command"][3:] == ["/etc/ottla-tls/tls.key", "/etc/ottla-tls/tls.crt"]


def test_an_update_of_workers_needs_no_node_more_than_there_are_workers() -> None:
    """A Deployment's default is a worker more before one goes, which `antiAffinity: hard` leaves without a node where each has a worker."""
    deployment = template(file=CI / "mirror-maker.yaml").one("Deployment", "mirror")["spec"]
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mirrorMaker.settings": {"rpc.listener": ":1"}}, "mirrorMaker.settings: rpc.listener is set by the chart"),
        ({"mirrorMaker.sources": {}}, "mirrorMaker.enabled needs mirrorMaker.sources"),
        ({"mirrorMaker.alias": "far"}, "mirrorMaker.sources: far is this cluster"),
    ],
)
def test_what_makes_no_mirror_is_refused(values: dict[str, Any], said: str) -> None:
    sources = {"mirrorMaker.sources": {"far": {"bootstrap.servers": "far:9092"}}}
    assert said in refusal({"mirrorMaker.enabled": True, **sources, **values})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"failure": "source and target are one cluster"}, "A->B: source and target are one cluster"),
        ({"failed": 2}, "A->B: 2 partitions have failed"),
        ({"held": 3}, "A->B: 3 of 4 slots have a worker"),
    ],
)
def test_a_link_is_well_when_its_slots_are_held_and_nothing_has_failed(changes: dict[str, Any], said: str) -> None:
    link = {"link": "A->B", "slots": 4, "held": 4, "failed": 0, "failure": "", **changes}
    assert mirror_check.what_is_missing({"ottla-mirror-A-B"}, {"A->B": link}, "A->B") == said


def test_a_link_that_nobody_knows_or_that_has_not_begun_is_not_well() -> None:
    link = {"link": "A->B", "slots": 1, "held": 1, "failed": 0, "failure": ""}
    assert mirror_check.what_is_missing(set(), {}, "A->B") == "A->B: no worker knows it"
    assert mirror_check.what_is_missing(set(), {"A->B": link}, "A->B") == "A->B: the topic ottla-mirror-A-B is not there"


@pytest.mark.parametrize("protocol", ["SSL", "ssl"])
def test_workers_that_answer_operators_alone_are_not_asked_by_the_check(protocol: str, tmp_path: Path) -> None:
    secured = {
        "rpc.security.protocol": protocol,
        "rpc.allowed.principals": "ann",
        "listener.name.rpc.ssl.keystore.location": "/etc/mirror-rpc/own.pem",
        "listener.name.rpc.ssl.truststore.location": "/etc/mirror-rpc/operators.pem",
    }
    rendered = template(
        {"mirrorMaker.enabled": True, "mirrorMaker.sources": {"a": {"bootstrap.servers": "a:9092"}}, "mirrorMaker.settings": secured}
    )
    (tmp_path / "mm2.properties").write_text(rendered.one("ConfigMap", "mirror")["data"]["mm2.properties"])
    assert MirrorSettings.from_properties(load(tmp_path / "mm2.properties")).rpc_allowed_principals == ("ann",)
    assert rendered.one("Pod", "check-mirror")["spec"]["containers"][0]["args"][2] == ""
    assert mirror_check.what_is_missing({"ottla-mirror-A-B"}, None, "A->B") == ""
    assert mirror_check.what_is_missing(set(), None, "A->B") == "A->B: the topic ottla-mirror-A-B is not there"


def test_a_link_that_is_switched_off_is_not_checked() -> None:
    sources = {alias: {"bootstrap.servers": f"{alias}:9092"} for alias in ("far", "near")}
    values = {"mirrorMaker": {"enabled": True, "sources": sources, "settings": {"far->local.enabled": False}}}
    assert template(values).one("Pod", "check-mirror")["spec"]["containers"][0]["args"][4:] == ["near->local"]


def test_workers_that_do_not_answer_are_said() -> None:
    with pytest.raises(OSError, match=r"no mirror maker answers at 127\.0\.0\.1:1"):
        mirror_check.links_of("127.0.0.1:1")
