"""The certificate of the services around the log: whom they show it to, brokers and operators, and what they are started with for that."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final, cast

import pytest
from tests.helm.charting import CHART, Manifest, Rendered, template

from ottla.config.audit import AuditSettings
from ottla.config.mirror import MirrorSettings
from ottla.config.properties import load
from ottla.config.registry import RegistrySettings
from ottla.config.rpc import RpcSettings

# Of each: what its pods are made by, its file, and how it says what it speaks to the brokers.
SERVICES: Final[dict[str, tuple[str, str, Any, str]]] = {
    "registry": ("StatefulSet", "schema-registry.properties", RegistrySettings, "kafkastore."),
    "audit": ("StatefulSet", "audit-counter.properties", AuditSettings, ""),
    "mirror": ("Deployment", "mm2.properties", MirrorSettings, "target."),
}
ENABLED: Final = {
    "schemaRegistry.enabled": True,
    "auditCounter.enabled": True,
    "mirrorMaker.enabled": True,
    "mirrorMaker.alias": "target",
    "mirrorMaker.sources": {"far": {"bootstrap.servers": "far.example.org:9092"}},
    "tls.existingSecret": "brokers-tls",
}
KEY, AUTHORITIES = "/run/ottla/keystore.pem", "/etc/ottla-tls/ca.crt"


def started_with(rendered: Rendered, name: str, directory: Path) -> tuple[RpcSettings, dict[str, str]]:
    """What a service reads, and its file as it stands."""
    _, file, settings, _ = SERVICES[name]
    path = directory / file
    path.write_text(rendered.one("ConfigMap", name)["data"][file], encoding="utf-8")
    properties = dict(load(path))
    return cast("RpcSettings", settings.from_properties(properties)), properties


def pod_of(rendered: Rendered, name: str) -> Manifest:
    return cast("Manifest", rendered.one(SERVICES[name][0], name)["spec"]["template"]["spec"])


def makes_a_keystore(pod: Manifest) -> bool:
    """Whether an init container makes the file of key and certificate, and the service finds both it and the authorities."""
    makers = [
        container
        for container in pod.get("initContainers", ())
        if "/etc/ottla-tls/tls.key" in [*container.get("command", ()), *container.get("args", ())]
    ]
    mounts = [{mount["mountPath"] for mount in container["volumeMounts"]} for container in [*makers, pod["containers"][0]]]
    return bool(makers) and all({"/run/ottla", "/etc/ottla-tls"} <= found for found in mounts)


@pytest.mark.parametrize("name", SERVICES)
def test_with_rpc_among_the_listeners_operators_show_a_certificate(name: str, tmp_path: Path) -> None:
    rendered = template({**ENABLED, "tls.listeners": ["RPC"]})
    settings, properties = started_with(rendered, name, tmp_path)
    assert settings.rpc_security_protocol == "SSL"
    seen = settings.for_rpc()
    assert (seen.ssl_keystore_location, seen.ssl_truststore_location) == (KEY, AUTHORITIES)
    assert f"{SERVICES[name][3]}security.protocol" not in properties, "brokers were not said to speak TLS"
    assert makes_a_keystore(pod_of(rendered, name))


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_with_internal_among_them_services_speak_tls_to_brokers(name: str, client_auth: str, tmp_path: Path) -> None:
    rendered = template({**ENABLED, "tls.listeners": ["INTERNAL", "CONTROL"], "tls.clientAuth": client_auth})
    settings, properties = started_with(rendered, name, tmp_path)
    prefix = SERVICES[name][3]
    assert (properties[f"{prefix}security.protocol"], properties[f"{prefix}ssl.truststore.location"]) == ("SSL", AUTHORITIES)
    assert properties.get(f"{prefix}ssl.keystore.location") == (KEY if client_auth == "required" else None)
    assert settings.rpc_security_protocol == "PLAINTEXT"
    assert makes_a_keystore(pod_of(rendered, name)) == (client_auth == "required")


@pytest.mark.parametrize("name", ["audit", "mirror"])
def test_a_key_that_ends_without_a_new_line_does_not_spoil_the_certificate_behind_it(name: str, tmp_path: Path) -> None:
    """As PEM comes out of Vault or an ExternalSecret: brokers and registries take such a Secret (configure.py, registry_prepare.py)."""
    [maker] = pod_of(template({**ENABLED, "tls.listeners": ["RPC"]}), name)["initContainers"]
    for key in ("tls.key", "tls.crt"):
        (tmp_path / key).write_text(f"-----BEGIN {key}-----\n-----END {key}-----", encoding="ascii")
    here = [word.replace("/run/ottla", str(tmp_path)).replace("/etc/ottla-tls", str(tmp_path)) for word in maker["command"]]
    subprocess.run(here, check=True, timeout=60)
    made = tmp_path / "keystore.pem"
    lines = [line for line in made.read_text(encoding="ascii").splitlines() if line]
    assert lines == ["-----BEGIN tls.key-----", "-----END tls.key-----", "-----BEGIN tls.crt-----", "-----END tls.crt-----"]
    assert made.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", SERVICES)
def test_without_tls_services_have_no_certificate(name: str, tmp_path: Path) -> None:
    rendered = template({**ENABLED, "tls.listeners": ["EXTERNAL"]})
    settings, properties = started_with(rendered, name, tmp_path)
    assert settings.rpc_security_protocol == "PLAINTEXT"
    assert not [key for key in properties if "ssl" in key]
    pod = pod_of(rendered, name)
    assert "tls" not in [volume["name"] for volume in pod["volumes"]]
    assert not makes_a_keystore(pod)


def test_a_persons_own_files_for_rpc_come_first(tmp_path: Path) -> None:
    own = {
        "rpc.allowed.principals": "ann,bob",
        "listener.name.rpc.ssl.keystore.location": "/etc/audit-rpc/own.pem",
        "listener.name.rpc.ssl.truststore.location": "/etc/audit-rpc/operators.pem",
    }
    settings, _ = started_with(template({**ENABLED, "tls.listeners": ["RPC"], "auditCounter.settings": own}), "audit", tmp_path)
    assert settings.rpc_allowed_principals == ("ann", "bob")
    seen = settings.for_rpc()
    assert (seen.ssl_keystore_location, seen.ssl_truststore_location) == ("/etc/audit-rpc/own.pem", "/etc/audit-rpc/operators.pem")


@pytest.mark.parametrize(("name", "value"), [("registry", "schemaRegistry"), ("audit", "auditCounter"), ("mirror", "mirrorMaker")])
def test_one_service_whose_settings_say_so_answers_in_plain_text(name: str, value: str, tmp_path: Path) -> None:
    """It was given the files all the same, and refused them at its start: no caller shows who it is."""
    rendered = template({**ENABLED, "tls.listeners": ["RPC"], f"{value}.settings": {"rpc.security.protocol": "plaintext"}})
    assert {other: started_with(rendered, other, tmp_path)[0].rpc_security_protocol for other in SERVICES} == {
        other: "PLAINTEXT" if other == name else "SSL" for other in SERVICES
    }


def test_a_certificate_of_cert_manager_names_the_services_that_operators_call_and_the_check_calls_none() -> None:
    rendered = template(file=CHART / "ci" / "tls-services.yaml")
    names = rendered.one("Certificate", "tls")["spec"]["dnsNames"]
    domain = "streams.svc.cluster.local"
    assert {
        f"mine-ottla-registry.{domain}",
        f"*.mine-ottla-registry-headless.{domain}",
        f"mine-ottla-audit.{domain}",
        f"*.mine-ottla-audit-headless.{domain}",
        f"mine-ottla-mirror.{domain}",
    } <= set(names)
    assert rendered.one("Pod", "check-mirror")["spec"]["containers"][0]["args"][2] == "", "it calls addresses, which no certificate names"
    brokers = template({"tls.certManager.enabled": True, "tls.certManager.issuerRef": {"name": "authority"}, "auditCounter.enabled": True})
    assert not [name for name in brokers.one("Certificate", "tls")["spec"]["dnsNames"] if "audit" in name]
