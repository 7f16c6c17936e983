"""How the image of Prometheus begins: an interval from the environment, paths that hold from the volume, and what it refuses.

Method: the script itself, with a program in Prometheus' place that says what it was called with.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.unit.deploy.expressions import ROOT

FOLDER = ROOT / "deploy" / "prometheus"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    programs, data = tmp_path / "bin", tmp_path / "data"
    programs.mkdir()
    data.mkdir()
    stand_in = programs / "prometheus"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PROMETHEUS_CONFIG": str(FOLDER / "prometheus.yml"),
        "PROMETHEUS_DATA": str(data),
    }


def begin(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(FOLDER / "entrypoint.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def configuration(places: dict[str, str], **environment: str) -> dict[str, object]:
    done = begin(places | environment)
    assert done.returncode == 0, done.stderr
    loaded = yaml.safe_load((Path(places["PROMETHEUS_DATA"]) / "prometheus.yml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_without_a_word_it_is_what_the_file_says_but_for_the_paths(places: dict[str, str]) -> None:
    given = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    used = configuration(places)
    assert used["rule_files"] == [f"{FOLDER}/rules/*.yml"]
    assert used["global"] == given["global"]
    given["rule_files"] = used["rule_files"]
    (services,) = [job for job in given["scrape_configs"] if "file_sd_configs" in job]
    services["file_sd_configs"][0]["files"] = [f"{FOLDER}/targets/*.yml"]
    assert used == given


@pytest.mark.parametrize(
    ("profiles", "folders"),
    [("", []), ("mirror", ["mirror"]), ("ensemble,mirror", ["mirror"]), ("spark", ["spark"]), ("observability", []), ("*", ["*"])],
)
def test_of_a_profile_there_are_targets_only_with_the_profile(places: dict[str, str], profiles: str, folders: list[str]) -> None:
    used = configuration(places, OTTLA_PROFILES=profiles)["scrape_configs"]
    assert isinstance(used, list)
    (services,) = [job for job in used if "file_sd_configs" in job]
    found = services["file_sd_configs"][0]["files"]
    assert found == [f"{FOLDER}/targets/*.yml", *(f"{FOLDER}/targets/{folder}/*.yml" for folder in folders)]


def test_a_profile_that_is_no_name_is_refused(places: dict[str, str]) -> None:
    done = begin(places | {"OTTLA_PROFILES": "mirror,../../etc"})
    assert done.returncode == 1
    assert "../../etc" in done.stderr


@pytest.mark.parametrize(("interval", "timeout"), [("15s", "5s"), ("1s", "1s"), ("4s", "4s"), ("5s", "5s"), ("1m", "5s"), ("30s", "5s")])
def test_an_interval_is_that_of_scrapes_and_rules_and_no_scrape_may_take_longer(
    places: dict[str, str], interval: str, timeout: str
) -> None:
    used = configuration(places, OTTLA_SCRAPE_INTERVAL=interval)["global"]
    assert isinstance(used, dict)
    assert (used["scrape_interval"], used["evaluation_interval"], used["scrape_timeout"]) == (interval, interval, timeout)


@pytest.mark.parametrize("interval", ["banana", "15", "0s", "1h", "5 s", "5s; rm -rf /", ""])
def test_another_word_than_a_time_is_refused(places: dict[str, str], interval: str) -> None:
    done = begin(places | {"OTTLA_SCRAPE_INTERVAL": interval})
    if not interval:  # compose gives an empty one for a variable that is not set
        assert done.returncode == 0
        return
    assert done.returncode == 1
    assert interval in done.stderr


def test_a_volume_that_belongs_to_somebody_else_is_told_of(places: dict[str, str]) -> None:
    done = begin(places | {"PROMETHEUS_DATA": "/nowhere"})
    assert done.returncode == 1
    assert "may not write to /nowhere" in done.stderr


def test_arguments_go_to_prometheus_after_its_own(places: dict[str, str]) -> None:
    done = begin(places | {"OTTLA_METRICS_RETENTION": "2d"}, "--web.enable-lifecycle")
    assert done.stdout.splitlines() == [
        f"--config.file={places['PROMETHEUS_DATA']}/prometheus.yml",
        f"--storage.tsdb.path={places['PROMETHEUS_DATA']}/data",
        "--storage.tsdb.retention.time=2d",
        "--web.listen-address=:9090",
        "--web.enable-lifecycle",
    ]
