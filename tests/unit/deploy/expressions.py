"""What deploy/ asks Prometheus for: the rules' expressions, the panels', and which names are in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml
from deploy.grafana.board import of_cluster
from deploy.grafana.generate import BOARDS

from ottla.metrics.table import METRICS

ROOT: Final = Path(__file__).parents[3]
RULES: Final = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
RULE_TESTS: Final = sorted((ROOT / "deploy" / "prometheus" / "tests").glob("*.yml"))
RUNBOOKS: Final = ROOT / "docs" / "runbooks"

# What Prometheus itself adds to everything that it scrapes, and what deploy/prometheus/prometheus.yml does.
TARGET_LABELS: Final = {"job", "instance", "namespace", "component"}
OF_PROMETHEUS: Final[Mapping[str, frozenset[str]]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "service", "severity"}),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it stands in its file; `name` is the alert's or the recorded series'."""

    file: Path
    name: str
    expression: str
    definition: Mapping[str, Any]

    @property
    def is_alert(self) -> bool:
        return "alert" in self.definition


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric that an expression selects, and the labels that it selects it by."""

    name: str
    labels: frozenset[str]


def rules() -> list[Rule]:
    return [
        Rule(path, rule.get("alert") or rule["record"], rule["expr"], rule)
        for path in RULES
        for group in yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["groups"]
        for rule in group["rules"]
    ]


ALERTS: Final = [rule for rule in rules() if rule.is_alert]
RECORDS: Final = {rule.name: rule for rule in rules() if not rule.is_alert}


def in_grafanas_place(expression: str, job: str = "ottla", interval: str = "1m") -> str:
    """A panel's expression with what Grafana puts in for its variables when everything is chosen."""
    chosen = {"$__rate_interval": interval, "$namespace": ".*", "$job": job, "$broker": ".*", "$topic": ".*", "$group": ".*", "$api": ".*"}
    expression = of_cluster(expression)
    for variable, value in chosen.items():
        expression = expression.replace(variable, value)
    return expression


def selectors(expression: str) -> set[Selector]:
    """Every metric in an expression."""
    found: set[Selector] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name, f"{expression!r} selects by labels alone"
            found.add(Selector(node.name, frozenset(matcher.name for matcher in node.matchers.matchers)))
        elif isinstance(node, promql_parser.MatrixSelector):
            visit(node.vector_selector)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def exposed() -> dict[str, frozenset[str]]:
    """The series of a broker, by name, with the labels that it gives them; a histogram is three, one of which has `le`."""
    names: dict[str, frozenset[str]] = {}
    for metric in METRICS:
        labels = frozenset(metric.labels)
        if metric.kind == "histogram":
            names |= {f"{metric.name}_bucket": labels | {"le"}, f"{metric.name}_sum": labels, f"{metric.name}_count": labels}
        else:
            names[metric.name] = labels
    return names


def known() -> dict[str, frozenset[str]]:
    """All that may be asked for: of brokers, recorded by rules, of Prometheus itself. A recorded name opens with its labels."""
    recorded = {name: frozenset(name.partition(":")[0].split("_")) for name in RECORDS}
    return exposed() | recorded | dict(OF_PROMETHEUS)


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Each panel's queries: where it stands, and the expression with Grafana's variables put in."""
    for board in BOARDS:
        for panel in board.panels:
            for expression, _ in panel.queries:
                yield f"{board.name}: {panel.title}", in_grafanas_place(expression)
