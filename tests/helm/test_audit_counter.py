"""The chart's audit counter: what it is started with, what it may, what it keeps, and its check."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helm.charting import CHART, refusal, template
from tests.helm.pod_script import script
from tests.helm.test_promises import policy

from ottla.config.audit import AuditSettings
from ottla.config.environment import from_environment, layered
from ottla.config.properties import load

CI = CHART / "ci"
audit_check = script("audit_check")


def test_audit_counters_are_let_alone_scraped_checked_and_keep_their_counts() -> None:
    rendered = template(file=CI / "audit-counter.yaml")
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla", "app.kubernetes.io/instance": "mine"}}}
    labelled = {"podSelector": {"matchLabels": {"mine-ottla-client": "true"}}}
    assert policy(rendered, "audit") == {"page": [own, labelled], "rpc": [own], "http": [own, "anybody"]}
    assert rendered.one("PodDisruptionBudget", "audit")["spec"]["maxUnavailable"] == 1
    alone = template({"auditCounter.enabled": True}).all("PodDisruptionBudget")
    assert "mine-ottla-audit" not in [found["metadata"]["name"] for found in alone]
    spec = rendered.one("StatefulSet", "audit")["spec"]
    assert spec["serviceName"] == rendered.one("Service", "audit-headless")["metadata"]["name"]
    [claim] = spec["volumeClaimTemplates"]
    assert (claim["spec"]["resources"]["requests"]["storage"], claim["spec"]["storageClassName"]) == ("20Gi", "fast")
    [monitor] = [document["spec"] for document in rendered.all("ServiceMonitor") if document["metadata"]["name"] == "mine-ottla-audit"]
    assert {"targetLabel": "component", "replacement": "audit-counter"} in monitor["endpoints"][0]["relabelings"]
    wanted = monitor["selector"]["matchLabels"].items()
    chosen = [found["metadata"]["name"] for found in rendered.all("Service") if wanted <= found["metadata"]["labels"].items()]
    assert chosen == ["mine-ottla-audit-headless"]
    check = rendered.one("Pod", "check-audit")["spec"]["containers"][0]
    assert check["args"][0].strip() == (CHART / "files" / "scripts" / "audit_check.py").read_text(encoding="utf-8").strip()
    assert check["args"][1:] == ["http://mine-ottla-audit.streams.svc.cluster.local:8090", "240"]
    assert not [found for found in template() if "audit" in found["metadata"]["name"]], "nobody asked for one"


def test_the_audit_counter_takes_what_it_is_started_with(tmp_path: Path) -> None:
    rendered = template(file=CHART / "ci" / "audit-counter.yaml")
    file = tmp_path / "audit-counter.properties"
    file.write_text(rendered.one("ConfigMap", "audit")["data"]["audit-counter.properties"], encoding="utf-8")
    [container] = rendered.one("StatefulSet", "audit")["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value", "secret") for variable in container["env"]}
    properties = load(file)
    settings = AuditSettings.from_properties(layered(AuditSettings, [properties, from_environment(AuditSettings, variables, properties)]))
    assert settings.bootstrap_servers == "mine-ottla.streams.svc.cluster.local:9092"
    assert (settings.audit_window_ms, settings.audit_verify, settings.audit_tiers) == (30_000, "doubt", ("producer", "broker"))
    assert [address.port for address in (settings.rest_address, settings.rpc_address, settings.http_address) if address] == [
        8090,
        9095,
        9404,
    ]
    assert (settings.zookeeper_digest_username, settings.zookeeper_set_acl) == ("secret", True)
    assert "audit.enable=true" in rendered.one("ConfigMap", "broker")["data"]["server.properties"]
    assert "audit.enable" not in template().one("ConfigMap", "broker")["data"]["server.properties"]


def test_what_an_audit_counter_cannot_do_is_refused() -> None:
    said = refusal({"auditCounter.enabled": True, "auditCounter.settings": {"rest.listener": ":1"}})
    assert "auditCounter.settings: rest.listener is set by the chart" in said
    said = refusal({"auditCounter.enabled": True, "auditCounter.settings": {"security.protocol": "SSL"}})
    assert "auditCounter.settings: security.protocol is set by the chart; see the value tls.listeners" in said


def test_a_counter_is_well_when_it_has_read_all_there_is() -> None:
    assert audit_check.what_is_missing({"is_caught_up": True, "lag": 0}) == ""
    assert audit_check.what_is_missing({"is_caught_up": False, "lag": 7}) == "7 audit records are still to be read"
    with pytest.raises(SystemExit, match=r"http://127\.0\.0\.1:1 does not answer"):
        audit_check.check("http://127.0.0.1:1", 0.0)
