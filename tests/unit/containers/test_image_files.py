"""What the images are built from agrees with what is declared elsewhere; Docker itself is asked in tests/integration."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from deploy.sbom import main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SERVICES = sorted({*PROJECT["dependencies"], *EXTRAS["server"], *EXTRAS["registry"], *EXTRAS["spark"]} - {"ottla[columns]"})
TARGETS = {"audit-counter", "broker", "mirror-maker", "schema-registry", "spark"}
FILES = ["requirements.txt", "requirements-registry.txt", "requirements-spark.txt"]


def pinned(name: str) -> dict[str, tuple[Version, int]]:
    """Each distribution of a requirements file with its version and its number of hashes."""
    text = (ROOT / "services" / name).read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", text, flags=re.MULTILINE)
    return {canonicalize_name(each): (Version(version), hashes.count("sha256:")) for each, version, hashes in entries}


@pytest.mark.parametrize("declared", SERVICES)
def test_the_image_installs_what_the_project_asks_for(declared: str) -> None:
    """Anyone who changes a dependency runs `make requirements`."""
    requirement = Requirement(declared)
    extra = "registry" if declared in EXTRAS["registry"] else "spark"
    files = [pinned("requirements.txt")] + [pinned(f"requirements-{extra}.txt")] * (declared in EXTRAS[extra])
    found = next((each for file in files if (each := file.get(canonicalize_name(requirement.name)))), None)
    assert found is not None, f"nothing pins {requirement.name}: make requirements"
    assert requirement.specifier.contains(found[0]), f"{requirement.name} is {found[0]}: make requirements"


def test_no_distribution_is_installed_twice() -> None:
    """The registry's image and Spark's stand upon what every service has, each with one more."""
    every, *more = FILES
    assert not [name for file in more for name in pinned(file) if name in pinned(every)]


@pytest.mark.parametrize("name", [*FILES, "requirements-build.txt"])
def test_everything_is_pinned_with_hashes(name: str) -> None:
    text = (ROOT / "services" / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert lines
    assert len(lines) == len(pinned(name)), [line for line in lines if not re.fullmatch(r"[\w.-]+==\S+ \\", line)]


def test_the_list_of_what_is_installed_has_every_image_s(tmp_path: Path) -> None:
    """`make sbom`: protoc of the schema registry's and pyspark of Spark's were not in it."""
    main([str(tmp_path / "sbom.json")])
    components = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))["components"]
    found = {canonicalize_name(one["name"]): (Version(one["version"]), len(one["hashes"])) for one in components}
    assert found == {name: pin for file in FILES for name, pin in pinned(file).items()}
    assert len(components) == len(found)


def test_the_tags_are_the_release_s() -> None:
    version = PROJECT["version"]
    for path in ("docker-compose.yml", "services/Dockerfile"):
        named = re.findall(rf"ottla/(?:{'|'.join(TARGETS)}):(\d[\w.]*)", (ROOT / path).read_text(encoding="utf-8"))
        assert named, path
        assert set(named) == {version}, path
    assert f"ARG VERSION={version}\n" in (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")


def test_every_service_of_compose_that_is_ours_has_its_target() -> None:
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    targets = set(re.findall(r"^FROM service AS ([\w-]+)$", dockerfile, re.MULTILINE))
    assert targets == set(re.findall(r"^ +target: ([\w-]+)$", compose, re.MULTILINE)) == TARGETS
    page = (ROOT / "services" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`ottla/([\w-]+)`", page)) == TARGETS


@pytest.mark.parametrize(
    "path", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("**/Dockerfile") if ".venv" not in path.parts)
)
def test_a_dockerfile_is_for_both_builders(path: str) -> None:
    """The older one knows none of these, and `# syntax=` makes the newer one ask a registry."""
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.search(r"^# *syntax=", text, flags=re.MULTILINE)
    instructions = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    assert not re.search(r"--mount=|--chmod=|<<-?['\"]?EOF", instructions)
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm" in text, "the base must be a choice"
