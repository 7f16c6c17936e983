"""docs/kubernetes.md: its commands are ones that helm and Ottla take, and the values that it names are there.

The commands themselves are run by tests/kubernetes, in a cluster; here it is helm's flags and names that are looked at, and Ottla's by
tests/unit/deploy/test_commands_in_documents.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.helm.charting import CHART, NAMESPACE, ROOT, helm, template

PAGE: Final = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
VALUES: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
# A command may continue in the next line.
COMMANDS: Final = [line.strip() for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith("    ")]
CLUSTERS_OWN: Final = {"--wait", "--reset-then-reuse-values", "--create-namespace"}


def flags(command: str) -> list[str]:
    """What of a `helm install` or `upgrade` also means something to `helm template`."""
    words = [word for word in shlex.split(command, comments=True) if word not in CLUSTERS_OWN]
    return words[4:] if words[:1] == ["helm"] else words


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(("helm install", "helm upgrade", "--set"))])
def test_the_chart_takes_what_the_page_sets(command: str) -> None:
    if command.startswith("helm"):
        assert shlex.split(command)[2:4] == ["mine", "helm/ottla"]
    given = [
        str(ROOT / flag) if flag.startswith("helm/") else flag for flag in flags(command) if flag not in ("-n", "--namespace", "streams")
    ]
    made = helm("template", "mine", str(CHART), "--namespace", NAMESPACE, *given)
    assert made.returncode == 0, made.stderr


def test_there_are_commands_to_look_at() -> None:
    assert len([command for command in COMMANDS if command.startswith("helm")]) >= 6


def test_every_value_that_the_page_names_is_there() -> None:
    roots = "|".join(VALUES)
    named = set(re.findall(rf"`((?:{roots})(?:\.[A-Za-z]+)+)", PAGE))
    assert len(named) > 15
    for name in named:
        found: Any = VALUES
        for part in name.split("."):
            assert isinstance(found, dict) and part in found, name
            found = found[part]


MIRROR = {"mirrorMaker.enabled": True, "mirrorMaker.sources": {"far": {"bootstrap.servers": "far:9092"}}}
LOAD = {"load.enabled": True, "load.topics": ["clicks"], "load.into": "s3://lake/clicks"}


def test_every_object_that_the_page_names_is_made() -> None:
    rendered = template(
        {"externalAccess.enabled": True, "schemaRegistry.enabled": True, "auditCounter.enabled": True, **MIRROR, **LOAD}, "--is-upgrade"
    )
    made = {document["metadata"]["name"] for document in rendered}
    table = PAGE.partition("## Who is who")[2].partition("| probe |")[0]
    for kinds, name in re.findall(r"^\| (StatefulSet|Service|Services|Deployment|CronJob) `([a-z0-9-]+)`", table, re.MULTILINE):
        assert name in made, f"{kinds} {name}"
    assert "mine-ottla-scale-down-check" in PAGE
    assert "mine-ottla-scale-down-check" in made


def notes(tmp_path: Path, values: dict[str, Any]) -> str:
    """What helm prints after an installation, which `helm template` leaves out: as a value of an object that it does print."""
    chart = tmp_path / "ottla"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    text = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    printed = '{{ define "notes" }}' + text + '{{ end }}kind: ConfigMap\ndata: {notes: {{ include "notes" . | toJson }}}\n'
    (chart / "templates" / "notes.yaml").write_text(printed, encoding="utf-8")
    given = [argument for name, value in values.items() for argument in ("--set-json", f"{name}={json.dumps(value)}")]
    made = helm("template", "mine", str(chart), "--namespace", NAMESPACE, "--show-only", "templates/notes.yaml", *given)
    assert made.returncode == 0, made.stderr
    return str(yaml.safe_load(made.stdout)["data"]["notes"])


def test_the_commands_that_an_installation_prints_reach_brokers_that_speak_tls(tmp_path: Path) -> None:
    """By a name that their certificate has, and with the files that the broker's container has; 127.0.0.1 in plain text otherwise."""
    assert "-c broker -- ottla cluster\n" in notes(tmp_path, {})
    mirror = {"mirrorMaker": {"enabled": True, "sources": {"far": {"bootstrap.servers": "far:9092"}}}}
    assert "ottla mirror list" in notes(tmp_path, mirror)
    tls = {"existingSecret": "brokers-tls", "listeners": ["INTERNAL", "RPC"]}
    asked = "ottla cluster -b mine-ottla.streams.svc.cluster.local:9092 -X security.protocol=ssl"
    asked += " -X ssl.ca.location=/run/ottla/truststore.pem"
    printed = notes(tmp_path, {"tls": tls, **mirror})
    assert f"-c broker -- {asked}\n" in printed
    assert "-- ottla mirror list" not in printed, "a worker has no certificate of an operator"
    shown = "-X ssl.certificate.location=/run/ottla/keystore.pem -X ssl.key.location=/run/ottla/keystore.pem"
    assert f"-c broker -- {asked} {shown}\n" in notes(tmp_path, {"tls": {**tls, "clientAuth": "required"}})


def test_each_worker_is_asked_how_far_the_topics_are(tmp_path: Path) -> None:
    """Without `--rpc` a worker answers for its own slots alone: of two, half of the partitions seemed to have no worker."""
    printed = notes(tmp_path, {**MIRROR, "mirrorMaker.replicas": 2})
    labels = template(MIRROR).pod_templates()["Deployment/mine-ottla-mirror"]["metadata"]["labels"]
    [selector] = re.findall(r"for pod in \$\(kubectl -n streams get pods -o name -l (\S+)\)", printed)
    assert dict(term.split("=") for term in selector.split(",")).items() <= labels.items()
    assert "do kubectl -n streams exec $pod -c mirror-maker -- ottla mirror list; done" in printed


def test_workers_that_answer_operators_alone_by_their_settings_are_not_asked_from_their_pods(tmp_path: Path) -> None:
    secured = {"rpc.security.protocol": "SSL", "rpc.allowed.principals": "ann"}
    assert "-- ottla mirror list" not in notes(tmp_path, {**MIRROR, "mirrorMaker.settings": secured})
