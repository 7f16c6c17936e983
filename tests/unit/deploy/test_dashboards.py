"""The dashboards are what their declarations say, whole, and ask for what brokers have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from deploy.grafana.board import BROKER, CLUSTER, NAMESPACE
from deploy.grafana.generate import BOARDS, INTO, differences
from tests.unit.deploy.expressions import RECORDS, ROOT, TARGET_LABELS, exposed, in_grafanas_place, known, panel_expressions, selectors

from ottla.metrics.table import BROKER_METRICS

FILES = sorted(INTO.glob("*.json"))


def test_the_files_are_what_the_declarations_say() -> None:
    """`make dashboards` regenerates them."""
    assert not differences()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_grafana_finds_in_a_file_what_it_needs(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"datasource", "job"} <= {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert len(panel["description"]) > 10
        # A heat map's values are counts, and what is measured is its axis.
        assert panel["options"]["yAxis"]["unit"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(letters) == len(set(letters))


def test_what_falls_below_zero_is_drawn_there() -> None:
    """A group that catches up has fewer unread messages by the second, a certificate that has ended did so some time ago."""
    panels = [panel for path in FILES for panel in json.loads(path.read_text(encoding="utf-8"))["panels"] if panel["type"] == "timeseries"]
    from_zero = {panel["title"]: panel["fieldConfig"]["defaults"].get("min") for panel in panels}
    assert {title for title, least in from_zero.items() if least is None} == {"Certificates end in", "Unread messages, change"}
    assert set(from_zero.values()) == {0, None}


def test_no_two_panels_lie_upon_each_other() -> None:
    for path in FILES:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken, f"{path.name}: {panel['title']}"
            taken |= cells


def test_a_uid_is_given_once_and_never_changed() -> None:
    """Bookmarks and links in runbooks have it in them."""
    uids = [json.loads(path.read_text(encoding="utf-8"))["uid"] for path in FILES]
    assert len(uids) == len(set(uids))
    assert set(uids) == {
        f"ottla-{name}"
        for name in ("overview", "brokers", "replication", "topics", "groups", "transactions", "zookeeper", "registry", "audit", "mirror")
    }


@pytest.mark.parametrize(("where", "expression"), list(panel_expressions()), ids=lambda value: value[:60])
def test_a_panel_asks_for_metrics_that_brokers_have_and_by_labels_that_they_have(where: str, expression: str) -> None:
    names = known()
    for selector in selectors(expression):
        assert selector.name in names, f"{where} asks for {selector.name}"
        assert selector.labels <= names[selector.name] | TARGET_LABELS, f"{where}: {selector.name} has no {selector.labels}"


def test_every_variable_that_a_query_uses_is_there_to_be_chosen() -> None:
    for board in BOARDS:
        offered = {"__rate_interval", NAMESPACE.name, CLUSTER.name, BROKER.name} | {variable.name for variable in board.variables}
        asked = {name for panel in board.panels for expression, _ in panel.queries for name in re.findall(r"\$(\w+)", expression)}
        assert asked <= offered, board.name
        assert {variable.name for variable in board.variables} <= asked, f"{board.name} lets choose what changes nothing"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_two_releases_of_one_name_in_two_namespaces_can_be_told_apart(path: Path) -> None:
    """Their job is the same: whatever is asked for, but for the alerts of all, is of the chosen namespace too."""
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [annotation["expr"] for annotation in dashboard["annotations"]["list"] if "expr" in annotation]
    chosen = {"namespace", "job"}
    for variable in dashboard["templating"]["list"]:
        if variable["name"] not in {"datasource", *chosen}:
            asked.append(variable["query"].removeprefix("label_values(").rpartition(",")[0])
    assert {variable["name"] for variable in dashboard["templating"]["list"]} >= chosen
    for expression in asked:
        assert "ALERTS" in expression or expression.count('namespace=~"$namespace"') == expression.count('job="$job"') >= 1, expression


def test_a_variable_lists_the_values_of_a_label_that_is_there() -> None:
    names = exposed()
    for board in BOARDS:
        for variable in (NAMESPACE, CLUSTER, BROKER, *board.variables):
            (selector,) = selectors(in_grafanas_place(variable.metric))
            assert variable.label in names[selector.name] | TARGET_LABELS


def test_every_metric_of_brokers_is_in_a_panel_or_a_rule_or_says_why_not() -> None:
    """A figure that nobody ever looks at need not be gathered."""
    asked = {selector.name for _, expression in panel_expressions() for selector in selectors(expression)}
    asked |= {selector.name for name in asked & RECORDS.keys() for selector in selectors(RECORDS[name].expression)}
    without_a_panel = {
        "ottla_build_info",  # variables are made of it
        "ottla_broker_info",
        "ottla_log_recovered_bytes_total",  # beside its seconds
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
        "python_gc_objects_collected_total",
        "python_gc_objects_uncollectable_total",
    }
    names = {metric.name for metric in BROKER_METRICS}
    seen = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in asked} | asked
    assert names - seen == without_a_panel


def test_grafana_is_told_where_the_dashboards_and_prometheus_are_and_how_often_that_looks() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    # Of a shorter one `$__rate_interval` has a single scrape in it, and every rate is "No data".
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    interval = services["prometheus"]["environment"]["OTTLA_SCRAPE_INTERVAL"]
    assert services["grafana"]["environment"]["OTTLA_SCRAPE_INTERVAL"] == interval
    assert source["jsonData"]["timeInterval"] == "$OTTLA_SCRAPE_INTERVAL"
    (provider,) = yaml.safe_load((folder / "dashboards" / "ottla.yml").read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
