"""`helm template` as Python values, for the tests of this folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "ottla"
VALUES_FILES: Final = sorted((CHART / "ci").glob("*.yaml"))
RELEASE, NAMESPACE = "mine", "streams"

Manifest = dict[str, Any]


def helm_program() -> str:
    """Where helm is: `helm-binary` puts it beside Python."""
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        pytest.fail("helm is not here: make install")
    return found


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of helm, whatever comes of it."""
    return subprocess.run([helm_program(), *arguments], capture_output=True, text=True, timeout=60, check=False)


class Rendered:
    """The objects of one `helm template`."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests
        sets = [manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "StatefulSet"]
        self.fullname: str = next(name.removesuffix("-broker") for name in sets if name.endswith("-broker"))

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self.manifests)

    def all(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        """The object of this name; `broker` stands for `mine-ottla-broker`."""
        found = [
            document for document in self.all(kind) if document["metadata"]["name"].removeprefix(self.fullname).removeprefix("-") == name
        ]
        assert len(found) == 1, f"{kind} {name}: {[document['metadata']['name'] for document in self.all(kind)]}"
        return found[0]

    def pod_templates(self) -> dict[str, Manifest]:
        """What every pod is made from, by kind and name."""
        found = {}
        for manifest in self.manifests:
            if manifest["kind"] in ("StatefulSet", "Job", "Deployment"):
                found[f"{manifest['kind']}/{manifest['metadata']['name']}"] = manifest["spec"]["template"]
            elif manifest["kind"] == "CronJob":
                found[f"CronJob/{manifest['metadata']['name']}"] = manifest["spec"]["jobTemplate"]["spec"]["template"]
            elif manifest["kind"] == "Pod":
                found[f"Pod/{manifest['metadata']['name']}"] = manifest
        return found


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A key twice in a mapping is an error, as for kustomize and Flux; PyYAML, like Helm, takes the last one.

    libyaml's loader where it is there: Python's own takes longer than all of helm.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: {sorted(keys)}"
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def template(values: Mapping[str, Any] | None = None, *arguments: str, file: Path | None = None, version: str = "1.30") -> Rendered:
    """What the chart makes of a values file and of values over it."""
    return _template(json.dumps(values or {}, sort_keys=True), arguments, file, version)


@cache
def _template(values: str, arguments: tuple[str, ...], file: Path | None, version: str) -> Rendered:
    files = ["--values", str(file)] if file is not None else []
    given = [argument for name, value in json.loads(values).items() for argument in ("--set-json", f"{name}={json.dumps(value)}")]
    made = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", version, *files, *given, *arguments)
    assert made.returncode == 0, made.stderr
    return Rendered([document for document in yaml.load_all(made.stdout, UniqueKeys) if document])


def refusal(values: Mapping[str, Any], *arguments: str) -> str:
    """Why the chart refuses these values."""
    given = [argument for name, value in values.items() for argument in ("--set-json", f"{name}={json.dumps(value)}")]
    made = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *given, *arguments)
    assert made.returncode != 0, f"{dict(values)} was taken"
    return made.stderr


def broker_container(rendered: Rendered) -> Manifest:
    container: Manifest = rendered.one("StatefulSet", "broker")["spec"]["template"]["spec"]["containers"][0]
    return container
