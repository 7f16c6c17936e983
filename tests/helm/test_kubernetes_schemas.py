"""What the chart makes is what Kubernetes takes, from 1.25 to 1.37: each object against that release's own schema."""

from __future__ import annotations

import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from tests.helm.charting import CHART, VALUES_FILES, Rendered, UniqueKeys, helm, template

kubernetes_validate: Any = importlib.import_module("kubernetes_validate")  # untyped

VERSIONS: Final = [f"1.{minor}" for minor in range(25, 38)]
CHANGES_WITH: Final = "1.27"  # what becomes of volume claims can be said from then on
# Defined by operators and not by Kubernetes.
CUSTOM: Final = {"ServiceMonitor", "PrometheusRule", "Certificate"}


@cache
def _definitions(version: str) -> tuple[Path, Any]:
    """Where a release's strict schemas lie, and their common part, as kubernetes-validate brings them."""
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    [folder] = schemas.glob(f"v{version}*-local-strict")
    common = Resource.from_contents(json.loads((folder / "_definitions.json").read_text(encoding="utf-8")))
    return folder, common @ Registry()


@cache
def _validator(version: str, api_version: str, kind: str) -> Draft202012Validator:
    """As kubernetes_validate.validate makes it, but once: that one reads megabytes of definitions for each object."""
    folder, registry = _definitions(version)
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    contents = json.loads((folder / f"{kind.lower()}-{group}.json").read_text(encoding="utf-8"))
    return Draft202012Validator(contents, registry=Resource.from_contents(contents) @ registry)


@cache
def complaint(version: str, manifest: str) -> str:
    """What is wrong with an object in a release; empty when nothing is. Most objects are the same in many values files."""
    loaded = json.loads(manifest)
    try:
        validator = _validator(version, loaded["apiVersion"], loaded["kind"])
    except FileNotFoundError:
        return f"{loaded['apiVersion']} {loaded['kind']} does not exist"
    error = best_match(validator.iter_errors(loaded))
    return "" if error is None else f"{'.'.join(map(str, error.path))}: {error.message}"


def made_for(file: Path, version: str) -> Rendered:
    """As for an upgrade, which has one hook more. What is made depends on the release at one point only, as is tested below."""
    return template(
        None, "--is-upgrade", file=file, version=CHANGES_WITH if version_of(version) >= version_of(CHANGES_WITH) else VERSIONS[0]
    )


def version_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_every_object_is_valid_in_every_release(file: Path) -> None:
    """Strictly: a field that the release does not know is an error."""
    wrong = [
        f"{manifest['kind']} {manifest['metadata']['name']} in {version}: {said}"
        for version in VERSIONS
        for manifest in made_for(file, version)
        if manifest["kind"] not in CUSTOM and (said := complaint(version, json.dumps(manifest, sort_keys=True)))
    ]
    assert not wrong


def test_what_is_made_depends_on_the_release_at_one_point() -> None:
    """So that the test above may do with two calls of helm for a values file instead of thirteen."""
    file = CHART / "ci" / "several-volumes.yaml"
    for version in VERSIONS:
        assert template(None, "--is-upgrade", file=file, version=version).manifests == made_for(file, version).manifests, version


def test_a_misspelt_field_and_a_version_that_has_gone_would_be_found() -> None:
    """The judge is not asleep; and it judges as kubernetes-validate itself does."""
    manifest = json.loads(json.dumps(template().one("StatefulSet", "broker")))
    assert kubernetes_validate.validate(manifest, "1.30", strict=True) == "1.30"
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 3
    assert "terminationGracePeriodSecond" in complaint("1.30", json.dumps(manifest))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.30", strict=True)
    assert "does not exist" in complaint("1.30", json.dumps({"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget"}))


def test_lint_finds_nothing() -> None:
    linted = helm("lint", "--strict", "--kube-version", "1.30", str(CHART))
    assert linted.returncode == 0, linted.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in linted.stdout


@pytest.mark.parametrize("file", [CHART / "ci" / f"{name}.yaml" for name in ("default", "single-broker")], ids=lambda each: each.stem)
def test_an_old_cluster_gets_what_it_knows(file: Path) -> None:
    """1.20 is the oldest that `kubeVersion` names: policy/v1 came with 1.21, retention of volume claims with 1.27."""
    rendered = template(file=file, version="1.20")
    assert {pod_disruption_budget["apiVersion"] for pod_disruption_budget in rendered.all("PodDisruptionBudget")} <= {"policy/v1beta1"}
    assert not [
        stateful_set for stateful_set in rendered.all("StatefulSet") if "persistentVolumeClaimRetentionPolicy" in stateful_set["spec"]
    ]


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda each: each.stem)
def test_names_that_yaml_would_take_for_something_else_stay_names(file: Path) -> None:
    """A release `on`, and a namespace by the number of a pull request."""
    made = helm("template", "on", str(CHART), "--namespace", "2026", "--kube-version", "1.30", "--is-upgrade", "--values", str(file))
    assert made.returncode == 0, made.stderr
    for manifest in yaml.load_all(made.stdout, UniqueKeys):
        if manifest["kind"] not in CUSTOM:
            assert not complaint("1.30", json.dumps(manifest, sort_keys=True)), manifest["metadata"]["name"]
        elif manifest["kind"] == "ServiceMonitor":
            assert manifest["spec"]["namespaceSelector"] == {"matchNames": ["2026"]}
        assert all(isinstance(label, str) for label in manifest["metadata"]["labels"].values())


def test_names_of_a_person_s_own_objects_may_be_numbers_too() -> None:
    """Each is a name that Kubernetes takes; without quotes `1e3` is a number to YAML, and the API server refuses the object."""
    name = "1e3"
    services = {service: {"enabled": True, "priorityClassName": name} for service in ("auditCounter", "schemaRegistry")}
    mirror = {"enabled": True, "priorityClassName": name, "existingSecret": name, "sources": {"far": {"bootstrap.servers": "far:9092"}}}
    load = {"enabled": True, "priorityClassName": name, "existingSecret": name, "existingClaim": name, "pattern": "a", "into": "s3://a/b"}
    claims = {"priorityClassName": name, "persistence": {"storageClass": name}}
    digest = {"existingSecret": name, "usernameKey": "1", "passwordKey": "2"}
    rendered = template(
        {
            "broker": claims,
            "externalAccess": {"enabled": True, "type": "LoadBalancer", "loadBalancerClass": name},
            "image.pullSecrets": [name],
            "load": load,
            "mirrorMaker": mirror,
            "serviceAccount.name": name,
            "tls": {"existingSecret": name, "listeners": ["INTERNAL", "RPC"]},
            "zookeeper": {**claims, "digest": digest},
            **services,
        },
        "--is-upgrade",
    )
    wrong = [said for manifest in rendered if (said := complaint("1.30", json.dumps(manifest, sort_keys=True)))]
    assert not wrong
