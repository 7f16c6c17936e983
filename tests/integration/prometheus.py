"""Questions to a Prometheus, and one of a test's own beside a cluster, whose alerts wait for seconds and not for minutes."""

from __future__ import annotations

import json
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.integration.containers import Containers, wait_until
from tests.integration.docker import ROOT, docker

IMAGE: Final = "ottla/prometheus:2.42.0"
RULES: Final = ROOT / "deploy" / "prometheus" / "rules"
ANSWER_SECONDS: Final = 30.0
READY_SECONDS: Final = 180.0


class QueryFailed(Exception):
    """Prometheus did not take an expression; its own words."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One Prometheus, by its address."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: samples with `metric` and `value`."""
        found = self._get("query", query=expression)
        if found["resultType"] == "scalar":
            return [{"metric": {}, "value": found["result"]}]
        return list(found["result"])

    def has_data(self, expression: str) -> bool:
        """Whether there is a figure. A quantile of nothing is a sample too, and none."""
        return any(sample["value"][1] != "NaN" for sample in self.query(expression))

    def value(self, expression: str) -> float | None:
        """The one sample of an expression; nothing where there is none."""
        samples = self.query(expression)
        assert len(samples) <= 1, f"{expression} has {len(samples)} samples"
        return float(samples[0]["value"][1]) if samples else None

    def targets(self) -> list[dict[str, Any]]:
        return list(self._get("targets", state="active")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[tuple[str, str]]:
        """The alerts that fire, by name and instance, if they are about one."""
        alerts = self._get("alerts")["alerts"]
        return {(alert["labels"]["alertname"], alert["labels"].get("instance", "")) for alert in alerts if alert["state"] == "firing"}

    def _get(self, what: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryFailed(f"{parameters}: {error.read().decode(errors='replace')}") from error


def shortened(rules: str) -> str:
    """The same rules, in seconds where they wait for minutes or look back on minutes; and a restart is over as soon as it was."""
    rules = re.sub(r"\[\d+[mh]\]", "[15s]", rules)
    rules = re.sub(r"\bfor: [1-9]\d*[mh]\b", "for: 3s", rules)
    rules = re.sub(r"\bkeep_firing_for: \d+[mh]\b", "keep_firing_for: 2s", rules)
    return rules.replace(":min < 180", ":min < 1")


@contextmanager
def impatient(containers: Containers, profiles: str = "") -> Iterator[Prometheus]:
    """A Prometheus in a cluster's network that scrapes every second, the profiles' targets too, and has the rules shortened."""
    with tempfile.TemporaryDirectory() as folder:
        for path in RULES.glob("*.yml"):
            (Path(folder) / path.name).write_text(shortened(path.read_text(encoding="utf-8")), encoding="utf-8")
        Path(folder).chmod(0o755)
        container = docker(
            *("create", "--network", containers.network, "--publish", "127.0.0.1::9090", "--env", "OTTLA_SCRAPE_INTERVAL=1s"),
            *("--env", f"OTTLA_PROFILES={profiles}"),
            *("--label", f"ottla.integration={containers.project}", IMAGE),
        )
        try:
            docker("cp", f"{folder}/.", f"{container}:/etc/prometheus/rules")
            docker("start", container)
            found = Prometheus(f"http://{docker('port', container, '9090').splitlines()[0]}")
            wait_until("the second Prometheus has looked at every rule", lambda: _is_evaluating(found), READY_SECONDS)
            yield found
        finally:
            docker("rm", "--force", "--volumes", container)


def _is_evaluating(prometheus: Prometheus) -> bool:
    try:
        rules = prometheus.rules()
    except (OSError, QueryFailed):  # it listens before it answers
        return False
    return bool(rules) and all(rule["health"] == "ok" for rule in rules)
