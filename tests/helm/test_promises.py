"""What the chart promises, looked for in what it makes: safety, placement, networks, monitoring, hooks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.helm.charting import CHART, NAMESPACE, ROOT, VALUES_FILES, Manifest, Rendered, broker_container, helm, template

CI: Final = CHART / "ci"


def pod_specs(rendered: Rendered) -> dict[str, Manifest]:
    return {name: each["spec"] for name, each in rendered.pod_templates().items()}


def containers(spec: Manifest) -> list[Manifest]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_every_pod_is_as_harmless_as_it_can_be(file: Path) -> None:
    """The restricted profile of Kubernetes' pod security standards, a read-only root, no links of services, bounded memory."""
    for name, spec in pod_specs(template(None, "--is-upgrade", file=file)).items():
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(spec):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name
            assert not container["image"].endswith(":latest"), name


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_a_token_is_only_where_something_is_asked_for(file: Path) -> None:
    """Brokers, ZooKeeper and the hook never have one; the init container has its own where it must ask; a killer of pods needs one."""
    rendered = template(None, "--is-upgrade", file=file)
    for name, spec in pod_specs(rendered).items():
        assert spec["automountServiceAccountToken"] is ("check-failover" in name), name
        for container in spec["containers"]:
            assert not any("serviceaccount" in volume_mount["mountPath"] for volume_mount in container["volumeMounts"]), name
    asks = any("-nodes" in cluster_role["metadata"]["name"] for cluster_role in rendered.all("ClusterRole")) or any(
        "-services" in role["metadata"]["name"] for role in rendered.all("Role")
    )
    [init] = rendered.one("StatefulSet", "broker")["spec"]["template"]["spec"]["initContainers"]
    assert any(volume_mount["name"] == "token" for volume_mount in init["volumeMounts"]) is asks


def test_roles_are_no_wider_than_needed() -> None:
    """By default the only role is that of the failover check, which is there for the time of a test."""
    assert not template().all("ClusterRole")
    [role] = template().all("Role")
    assert role["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert "hook-failed" in role["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["delete"],
            "resourceNames": [f"mine-ottla-broker-{number}" for number in range(3)],
        }
    ]
    nodes = template(file=CI / "rack-from-node.yaml").all("ClusterRole")
    assert [node["rules"] for node in nodes] == [[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]]
    [services] = [role for role in template(file=CI / "one-node.yaml").all("Role") if role["metadata"]["name"].endswith("-services")]
    assert services["rules"][0]["verbs"] == ["get"]
    assert len(services["rules"][0]["resourceNames"]) == 3


def test_a_cold_start_does_not_deadlock_and_an_update_goes_one_by_one() -> None:
    """All pods start at once and find each other before they are ready; RollingUpdate waits for each."""
    rendered = template()
    for stateful_set in rendered.all("StatefulSet"):
        assert stateful_set["spec"]["podManagementPolicy"] == "Parallel"
        assert stateful_set["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
        service = next(found for found in rendered.all("Service") if found["metadata"]["name"] == stateful_set["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert stateful_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    bootstrap = next(found for found in rendered.all("Service") if found["metadata"]["name"] == "mine-ottla")
    assert "publishNotReadyAddresses" not in bootstrap["spec"]


def test_probes_ask_for_what_they_are_there_for() -> None:
    container = broker_container(template())
    startup, readiness, liveness = (container[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800, "half an hour for the recovery of logs"
    assert readiness["httpGet"]["path"] == "/readyz"
    assert startup["httpGet"]["path"] == liveness["httpGet"]["path"] == "/healthz"
    assert {"name": "http", "containerPort": 9404} in container["ports"]


def test_exec_probes_have_the_time_that_they_need() -> None:
    """The default is one second, and starting a process in a container alone takes a part of it."""
    [container] = template().one("StatefulSet", "zookeeper")["spec"]["template"]["spec"]["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["timeoutSeconds"] >= 5


def test_a_broker_is_drained_within_its_grace() -> None:
    spec = template().one("StatefulSet", "broker")["spec"]["template"]["spec"]
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["sh", "/etc/ottla/drain.sh"]
    assert int(command[2]) + 30 <= spec["terminationGracePeriodSeconds"]
    assert "lifecycle" not in broker_container(template(file=CI / "single-broker.yaml")), "nobody else can lead"
    assert "lifecycle" not in broker_container(template(file=CI / "without-guards.yaml"))


def test_zookeeper_outlasts_the_brokers_when_all_are_uninstalled() -> None:
    spec = template().one("StatefulSet", "zookeeper")["spec"]["template"]["spec"]
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[1].endswith("wait_for_brokers.sh")
    assert int(command[2]) + 30 <= spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_what_selects_pods_finds_some_and_its_ports_are_theirs(file: Path) -> None:
    """A budget, a policy or a Service that selects no pod is taken by the API server and does nothing."""
    rendered = template(file=file)
    pods = list(rendered.pod_templates().values())
    for manifest in (*rendered.all("PodDisruptionBudget"), *rendered.all("NetworkPolicy"), *rendered.all("Service")):
        spec = manifest["spec"]
        selector = spec["podSelector"]["matchLabels"] if "podSelector" in spec else spec["selector"].get("matchLabels", spec["selector"])
        # The StatefulSet's controller adds the pod's name.
        wanted = {name: value for name, value in selector.items() if name != "statefulset.kubernetes.io/pod-name"}
        found = [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]
        assert len(found) == 1, f"{manifest['kind']} {manifest['metadata']['name']}"
        ports = {port["name"] for container in found[0]["spec"]["containers"] for port in container.get("ports", ())}
        rules = [port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]]
        assert {*rules, *(port["targetPort"] for port in spec.get("ports", ()))} <= ports, manifest["metadata"]["name"]


def test_labels_of_pods_go_before_those_of_everything_and_never_before_what_selects_them() -> None:
    own = {"podLabels": {"team": "b", "app.kubernetes.io/component": "mine"}}
    services = {name: {"enabled": True, **own} for name in ("auditCounter", "schemaRegistry")}
    mirror = {"mirrorMaker": {"enabled": True, "sources": {"far": {"bootstrap.servers": "far:9092"}}, **own}}
    load = {"load": {"enabled": True, "topics": ["clicks"], "into": "s3://lake/clicks", **own}}
    rendered = template({"labels": {"team": "a"}, "broker": own, "zookeeper": own, **services, **mirror, **load})
    pods = [pod["metadata"]["labels"] for name, pod in rendered.pod_templates().items() if not name.startswith("Pod/")]
    components = {"audit-counter", "broker", "load", "mirror-maker", "schema-registry", "zookeeper"}
    assert {labels["app.kubernetes.io/component"] for labels in pods} == components
    assert {labels["team"] for labels in pods} == {"b"}


def test_a_label_or_an_annotation_that_the_chart_has_too_stands_once() -> None:
    """A key twice is refused by what reads strictly, such as Flux's post-renderers."""
    own: dict[str, Any] = {"enabled": True, "podAnnotations": {"kubectl.kubernetes.io/default-container": "mesh", "note": "mine"}}
    services = {"auditCounter": own, "schemaRegistry": own, "mirrorMaker": {**own, "sources": {"far": {"bootstrap.servers": "far:9092"}}}}
    found = {"enabled": True, "labels": {"release": "prometheus"}}
    metrics = {"serviceMonitor": found, "prometheusRule": found, "dashboards": {"enabled": True, "label": "release"}}
    given = {"labels": {"release": "stable"}, "broker.podAnnotations": own["podAnnotations"], "metrics": metrics, **services}
    rendered = template(given)
    for kind, value in (("ServiceMonitor", "prometheus"), ("PrometheusRule", "prometheus"), ("Service", "stable")):
        assert {manifest["metadata"]["labels"]["release"] for manifest in rendered.all(kind)} == {value}, kind
    for name in ("broker", "registry", "audit", "mirror"):
        annotations = rendered.one("Deployment" if name == "mirror" else "StatefulSet", name)["spec"]["template"]["metadata"]["annotations"]
        assert set(annotations) == {"checksum/configuration", *own["podAnnotations"]}
        assert own["podAnnotations"].items() <= annotations.items()


def test_budgets_let_one_go_at_a_time() -> None:
    budgets = {
        pod_disruption_budget["metadata"]["name"]: pod_disruption_budget["spec"]["maxUnavailable"]
        for pod_disruption_budget in template().all("PodDisruptionBudget")
    }
    assert budgets == {"mine-ottla-broker": 1, "mine-ottla-zookeeper": 1}
    assert not template(file=CI / "single-broker.yaml").all("PodDisruptionBudget")


def test_brokers_stand_apart() -> None:
    def terms(values: dict[str, Any]) -> dict[str, Any]:
        spec = template(values).one("StatefulSet", "broker")["spec"]["template"]["spec"]
        return dict(spec.get("affinity", {}).get("podAntiAffinity", {}))

    assert list(terms({})) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    assert list(terms({"broker.replicas": 2})) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert list(terms({"broker.antiAffinity": "soft"})) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms({"broker.antiAffinity": "none"}) == {}
    scheduled = template(file=CI / "scheduling.yaml").one("StatefulSet", "broker")["spec"]["template"]["spec"]
    assert set(scheduled["affinity"]) == {"nodeAffinity"}
    assert "topologySpreadConstraints" not in scheduled
    [spread] = template().one("StatefulSet", "broker")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")


def test_each_broker_has_volumes_of_its_own_for_each_log_directory() -> None:
    rendered = template(file=CI / "several-volumes.yaml")
    claims = rendered.one("StatefulSet", "broker")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["data", "data-1", "data-2"]
    assert {claim["spec"]["storageClassName"] for claim in claims} == {"fast"}
    mounted = {volume_mount["mountPath"] for volume_mount in broker_container(rendered)["volumeMounts"]}
    lines = rendered.one("ConfigMap", "broker")["data"]["server.properties"].splitlines()
    [directories] = [line.partition("=")[2].split(",") for line in lines if line.startswith("log.dirs=")]
    assert {str(Path(directory).parent) for directory in directories} <= mounted
    assert rendered.one("StatefulSet", "zookeeper")["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == ""


def test_each_broker_has_an_address_outside() -> None:
    def services(file: str) -> list[Manifest]:
        found = template(file=CI / file).all("Service")
        return [service for service in found if re.search(r"-broker-\d$", service["metadata"]["name"])]

    ports = [service["spec"]["ports"][0] for service in services("node-port.yaml")]
    assert [port["nodePort"] for port in ports] == [30092, 30093, 30094]
    balanced = services("load-balancer-hosts.yaml")
    assert [service["spec"]["loadBalancerIP"] for service in balanced] == ["192.0.2.10", "192.0.2.11", "192.0.2.12"]
    assert [service["spec"]["ports"][0]["port"] for service in balanced] == [443] * 3
    hosts = [service["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"] for service in balanced]
    assert hosts == ["b0.example.org", "b1.example.org", "b2.example.org"]
    for ordinal, each in enumerate(balanced):
        assert each["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"mine-ottla-broker-{ordinal}"
    assert not services("default.yaml")


def policy(rendered: Rendered, name: str = "broker") -> dict[str, list[Any]]:
    """Who is let in, by port."""
    found: dict[str, list[Any]] = {}
    for rule in rendered.one("NetworkPolicy", name)["spec"]["ingress"]:
        for port in rule["ports"]:
            found.setdefault(port["port"], []).extend(rule.get("from", ["anybody"]))
    return found


def test_nobody_is_let_in_who_has_no_business_there() -> None:
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla", "app.kubernetes.io/instance": "mine"}}}
    labelled = {"podSelector": {"matchLabels": {"mine-ottla-client": "true"}}}
    assert policy(template()) == {"internal": [own, labelled], "control": [own], "http": [own, "anybody"]}
    assert policy(template(), "zookeeper")["client"] == [own]
    opened = policy(template({"networkPolicy.clientLabelRequired": False, "externalAccess.enabled": True}))
    assert opened["internal"] == [own, "anybody"]
    assert opened["external"] == [own, "anybody"]
    office = {"ipBlock": {"cidr": "198.51.100.0/24"}}
    chosen = policy(template({"networkPolicy.externalFrom": [office], "externalAccess.enabled": True}))
    assert chosen["external"] == [own, office], "helm test writes and reads through EXTERNAL too"
    applications = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "applications"}}}
    narrowed = policy(template(file=CI / "network.yaml"))
    assert applications in narrowed["internal"]
    assert "anybody" not in narrowed["http"]
    for pod_template in template().pod_templates().values():
        labels = pod_template["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "mine"
    assert not template(file=CI / "without-guards.yaml").all("NetworkPolicy")


def test_secrets_are_named_and_never_held() -> None:
    """No Secret is made, and no value could hold a password."""
    for file in VALUES_FILES:
        assert not template(file=file).all("Secret")
    rendered = template(file=CI / "external-zookeeper.yaml")
    [init] = rendered.one("StatefulSet", "broker")["spec"]["template"]["spec"]["initContainers"]
    password = next(variable for variable in init["env"] if variable["name"] == "ZOOKEEPER_DIGEST_PASSWORD")
    assert password["valueFrom"]["secretKeyRef"] == {"name": "zookeeper-credentials", "key": "password"}
    volumes = template(file=CI / "tls.yaml").one("StatefulSet", "broker")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "tls", "secret": {"secretName": "brokers-tls", "defaultMode": 0o440}} in volumes
    [run] = [volume for volume in volumes if volume["name"] == "run"]
    assert run["emptyDir"]["medium"] == "Memory", "the private key touches no disk"


def test_a_certificate_is_for_every_name_that_clients_are_told() -> None:
    [certificate] = template(file=CI / "load-balancer-hosts.yaml").all("Certificate")
    names = certificate["spec"]["dnsNames"]
    assert {"*.mine-ottla-broker-headless.streams.svc.cluster.local", "mine-ottla.streams.svc.cluster.local", "b2.example.org"} <= set(
        names
    )
    assert certificate["spec"]["ipAddresses"] == ["192.0.2.10", "192.0.2.11", "192.0.2.12"]
    assert "client auth" in certificate["spec"]["usages"]


def test_rules_and_dashboards_are_the_files_that_compose_uses() -> None:
    """Not copies: links, which helm follows; but for the alert that was switched off."""
    rendered = template(file=CI / "monitoring.yaml")
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    assert files
    wanted = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    made = [group for prometheus_rule in rendered.all("PrometheusRule") for group in prometheus_rule["spec"]["groups"]]
    for group in wanted:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") != "BrokerRestartsOften"]
    assert sorted(made, key=lambda each: str(each["name"])) == sorted(wanted, key=lambda each: str(each["name"]))
    boards = {
        file.name: json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    }
    assert boards
    held: dict[str, Any] = {}
    for config_map in rendered.all("ConfigMap"):
        if config_map["metadata"]["labels"].get("grafana_dashboard") == "1":
            held |= {name: json.loads(text) for name, text in config_map["data"].items()}
    assert held == boards


def test_metrics_are_scraped_with_the_labels_that_the_rules_go_by() -> None:
    """The job is the cluster, the instance is the broker, and `component` says that it is one (deploy/prometheus/prometheus.yml)."""
    rendered = template(file=CI / "monitoring.yaml")
    [monitor] = rendered.all("ServiceMonitor")
    [endpoint] = monitor["spec"]["endpoints"]
    labels = {
        relabeling["targetLabel"]: relabeling.get("replacement", relabeling.get("sourceLabels")) for relabeling in endpoint["relabelings"]
    }
    assert labels == {"job": "mine-ottla", "instance": ["__meta_kubernetes_pod_name"], "component": "broker"}
    chosen = [
        service
        for service in rendered.all("Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert [document["metadata"]["name"] for document in chosen] == ["mine-ottla-broker-headless"]
    assert endpoint["port"] in {port["name"] for port in chosen[0]["spec"]["ports"]}
    assert "metrics.partition.enabled=true" in rendered.one("ConfigMap", "broker")["data"]["server.properties"]


def test_schema_registries_are_let_alone_scraped_checked_and_go_one_at_a_time() -> None:
    rendered = template(file=CI / "schema-registry.yaml")
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla", "app.kubernetes.io/instance": "mine"}}}
    labelled = {"podSelector": {"matchLabels": {"mine-ottla-client": "true"}}}
    assert policy(rendered, "registry") == {"api": [own, labelled], "rpc": [own], "http": [own, "anybody"]}
    assert rendered.one("PodDisruptionBudget", "registry")["spec"]["maxUnavailable"] == 1
    alone = template({"schemaRegistry.enabled": True, "schemaRegistry.replicas": 1}).all("PodDisruptionBudget")
    assert "mine-ottla-registry" not in [found["metadata"]["name"] for found in alone]
    spec = rendered.one("StatefulSet", "registry")["spec"]
    headless = rendered.one("Service", "registry-headless")
    assert (spec["serviceName"], spec["podManagementPolicy"]) == (headless["metadata"]["name"], "Parallel")
    assert headless["spec"]["publishNotReadyAddresses"] is True
    pod = spec["template"]["spec"]
    probes = [pod["containers"][0][name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert probes == [broker_container(rendered)[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert list(pod["affinity"]["podAntiAffinity"]) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    monitors = {monitor["metadata"]["name"]: monitor["spec"] for monitor in rendered.all("ServiceMonitor")}
    for name, component, service in (("", "broker", "broker-headless"), ("-registry", "schema-registry", "registry-headless")):
        monitor = monitors[f"mine-ottla{name}"]
        [endpoint] = monitor["endpoints"]
        assert {"targetLabel": "component", "replacement": component} in endpoint["relabelings"]
        wanted = monitor["selector"]["matchLabels"].items()
        chosen = [found["metadata"]["name"] for found in rendered.all("Service") if wanted <= found["metadata"]["labels"].items()]
        assert chosen == [f"mine-ottla-{service}"]
    check = rendered.one("Pod", "check-registry")["spec"]["containers"][0]
    assert check["args"][0].strip() == (CHART / "files" / "scripts" / "registry_check.py").read_text(encoding="utf-8").strip()
    nodes = [f"http://mine-ottla-registry-{ordinal}.mine-ottla-registry-headless.streams.svc.cluster.local:8081" for ordinal in range(3)]
    assert check["args"][1:] == ["http://mine-ottla-registry.streams.svc.cluster.local:8081", "240", *nodes]
    prepare = rendered.one("ConfigMap", "registry")["data"]["registry_prepare.py"].strip()
    assert prepare == (CHART / "files" / "scripts" / "registry_prepare.py").read_text(encoding="utf-8").strip()
    assert not [found for found in template() if "registry" in found["metadata"]["name"]], "nobody asked for one"


def test_every_listener_is_checked_by_helm_test_and_a_broker_killed() -> None:
    names = {pod["metadata"]["name"] for pod in template(file=CI / "tls.yaml").all("Pod")}
    assert names == {"mine-ottla-check-internal", "mine-ottla-check-external", "mine-ottla-check-failover"}
    external = template(file=CI / "tls-everywhere.yaml").one("Pod", "check-external")["spec"]["containers"][0]
    properties = json.loads(next(variable["value"] for variable in external["env"] if variable["name"] == "CLIENT_PROPERTIES"))
    assert properties == {
        "security.protocol": "ssl",
        "ssl.ca.location": "/etc/ottla-tls/authorities.pem",
        "ssl.certificate.location": "/etc/ottla-tls/chain.pem",
        "ssl.key.location": "/etc/ottla-tls/key.pem",
    }
    assert {pod["metadata"]["name"] for pod in template(file=CI / "without-guards.yaml").all("Pod")} == {"mine-ottla-check-internal"}


def test_a_scale_down_is_looked_at_before_an_upgrade_and_only_then() -> None:
    assert not template().all("Job")
    [job] = template(None, "--is-upgrade").all("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["backoffLimit"] == 0
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[1:] == ["mine-ottla.streams.svc.cluster.local:9092", "3", "100", "60"]
    assert not template(None, "--is-upgrade", file=CI / "without-guards.yaml").all("Job")


def test_the_look_before_an_upgrade_waits_for_no_certificate_that_the_upgrade_makes() -> None:
    """INTERNAL in plain text needs none, and a pod whose Secret is not there does not start: the upgrade would fail without a word."""
    certificate = {"enabled": True, "issuerRef": {"name": "authority"}}
    values = {"tls.certManager": certificate, "externalAccess.enabled": True}

    def secrets(values: dict[str, Any], kind: str, name: str) -> list[str]:
        pods = template(values, "--is-upgrade").pod_templates()
        return [volume["secret"]["secretName"] for volume in pods[f"{kind}/mine-ottla-{name}"]["spec"]["volumes"] if "secret" in volume]

    assert secrets(values, "Job", "scale-down-check") == []
    assert secrets(values, "Pod", "check-external") == ["mine-ottla-tls"]
    assert secrets({**values, "tls.listeners": ["INTERNAL"]}, "Job", "scale-down-check") == ["mine-ottla-tls"]


def test_scripts_in_pods_are_the_files_in_the_chart() -> None:
    """As Python sees them: an indented block of YAML must not have changed a line."""
    rendered = template(None, "--is-upgrade")
    scripts = CHART / "files" / "scripts"
    assert (
        rendered.one("ConfigMap", "broker")["data"]["configure.py"].strip()
        == (scripts / "configure.py").read_text(encoding="utf-8").strip()
    )
    assert rendered.one("ConfigMap", "broker")["data"]["drain.sh"].strip() == (scripts / "drain.sh").read_text(encoding="utf-8").strip()
    ran = {each["spec"]["containers"][0]["args"][0].strip() for name, each in rendered.pod_templates().items() if "check" in name}
    named = ("listener_check.py", "failover_check.py", "scale_down_check.py")
    assert ran == {(scripts / name).read_text(encoding="utf-8").strip() for name in named}


def test_the_package_holds_the_files_behind_the_links(tmp_path: Path) -> None:
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    [archive] = tmp_path.glob("ottla-*.tgz")
    monitored = "metrics.prometheusRule.enabled=true,metrics.serviceMonitor.enabled=true"
    made = helm("template", "mine", str(archive), "--namespace", NAMESPACE, "--set", monitored)
    assert made.returncode == 0, made.stderr
    assert "kind: PrometheusRule" in made.stdout
    assert archive.stat().st_size < 400_000, "a release's record in Kubernetes holds the chart and may have a megabyte"


def test_another_release_of_the_chart_restarts_only_what_it_changes(tmp_path: Path) -> None:
    """Images that carry its version are another; ZooKeeper's is the same, and what a StatefulSet may never change is."""
    file = CI / "one-node.yaml"
    packed = helm("package", str(CHART), "--destination", str(tmp_path), "--version", "9.9.9", "--app-version", "9.9.9")
    assert packed.returncode == 0, packed.stderr
    made = helm(
        "template", "mine", str(tmp_path / "ottla-9.9.9.tgz"), "--namespace", NAMESPACE, "--kube-version", "1.30", "--values", str(file)
    )
    assert made.returncode == 0, made.stderr
    newer = Rendered([document for document in yaml.safe_load_all(made.stdout) if document])
    older = template(file=file)
    assert newer.one("StatefulSet", "zookeeper")["metadata"]["labels"]["helm.sh/chart"] == "ottla-9.9.9"
    assert newer.one("StatefulSet", "zookeeper")["spec"] == older.one("StatefulSet", "zookeeper")["spec"]
    for stateful_set in older.all("StatefulSet"):
        name = stateful_set["metadata"]["name"].removeprefix("mine-ottla-")
        spec = newer.one("StatefulSet", name)["spec"]
        for field in ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"):
            assert spec.get(field) == stateful_set["spec"].get(field), f"{name}: {field}"


def test_names_stay_within_what_kubernetes_takes() -> None:
    """A label holds 63 characters, and a StatefulSet's name with its revision is one."""
    rendered = template(
        {
            "fullnameOverride": "a-name-that-is-far-too-long-for-what-is-made-of-it-afterwards",
            "externalAccess.enabled": True,
            "schemaRegistry.enabled": True,
        }
    )
    for document in rendered:
        assert len(document["metadata"]["name"]) <= 63, document["metadata"]["name"]
    assert all(len(stateful_set["metadata"]["name"]) <= 52 for stateful_set in rendered.all("StatefulSet"))


def test_a_name_that_is_a_word_of_yaml_is_a_name_all_the_same() -> None:
    """`name: yes` is true to Helm, which no API server takes."""
    metrics = {"serviceMonitor": {"enabled": True}}
    services = {"auditCounter": {"enabled": True}, "schemaRegistry": {"enabled": True}}
    mirror = {"enabled": True, "sources": {"far": {"bootstrap.servers": "far:9092"}}}
    tls = {"certManager": {"enabled": True, "issuerRef": {"name": "an-issuer"}}}
    rendered = template({"fullnameOverride": "yes", "metrics": metrics, "mirrorMaker": mirror, "tls": tls, **services})
    assert all(isinstance(manifest["metadata"]["name"], str) for manifest in rendered)
    assert "yes" in rendered.one("Certificate", "tls")["spec"]["dnsNames"]
    relabelings = [monitor["spec"]["endpoints"][0]["relabelings"][0] for monitor in rendered.all("ServiceMonitor")]
    assert relabelings == [{"targetLabel": "job", "replacement": "yes"}] * 4
