"""The alert rules ask for what brokers have, are whole, and each has a test and a runbook.

What they do is tested by promtool (`make rules`), which is not needed here.
"""

from __future__ import annotations

import re

import pytest
import yaml
from tests.unit.deploy.expressions import ALERTS, ROOT, RULE_TESTS, RUNBOOKS, TARGET_LABELS, Rule, known, rules, selectors

from ottla.metrics import service
from ottla.metrics.coordination import SESSION_STATE

SEVERITIES = {"critical", "warning", "info"}
# They tell of what has happened; waiting would only make it later.
AT_ONCE = {"UncleanLeaderElection", "CorruptRecords"}


def name_of(rule: Rule) -> str:
    return f"{rule.name}-{rule.definition['labels']['severity']}" if rule.is_alert else rule.name


@pytest.mark.parametrize("rule", rules(), ids=name_of)
def test_a_rule_asks_for_metrics_that_brokers_have_and_by_labels_that_they_have(rule: Rule) -> None:
    names = known()
    for selector in selectors(rule.expression):
        assert selector.name in names, f"{rule.name} asks for {selector.name}"
        assert selector.labels <= names[selector.name] | TARGET_LABELS, f"{rule.name}: {selector.name} has no {selector.labels}"


@pytest.mark.parametrize("rule", ALERTS, ids=name_of)
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(rule: Rule) -> None:
    labels, annotations = rule.definition["labels"], rule.definition["annotations"]
    assert labels["severity"] in SEVERITIES
    assert labels["service"] == "ottla"
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"docs/runbooks/{rule.name}.md"
    assert annotations["description"].endswith("."), "a description is a sentence"


@pytest.mark.parametrize("rule", ALERTS, ids=name_of)
def test_an_alert_waits_before_it_fires_and_before_it_clears(rule: Rule) -> None:
    """A blip is no alert, and one that comes and goes is one alert and not twenty."""
    assert re.fullmatch(r"[1-9]\d*[mh]", rule.definition["keep_firing_for"])
    assert re.fullmatch(r"\d+[mh]", rule.definition["for"])
    assert (rule.definition["for"] == "0m") == (rule.name in AT_ONCE)


def test_a_description_has_the_number_that_it_is_about() -> None:
    """But for those whose number is always the same: nothing answers, not ready, silent."""
    without = {rule.name for rule in ALERTS if "$value" not in rule.definition["annotations"]["description"]}
    assert without == {
        "BrokerDown",
        "AllBrokersDown",
        "BrokerNotReady",
        "NoMessageForTooLong",
        "RegistryDown",
        "RegistryNoLeader",
        "AuditCounterDown",
        "AuditCanaryDown",
    }


def test_an_alert_about_what_every_service_has_calls_none_of_them_a_broker() -> None:
    """A mirror maker that is not ready, or a registry without a session, fires it too."""
    everyones = {metric.name for metric in service.METRICS} | {SESSION_STATE.name}

    def is_asked_for(rule: Rule) -> bool:
        return any(asked.name in everyones and "component" not in asked.labels for asked in selectors(rule.expression))

    found = [rule for rule in ALERTS if is_asked_for(rule)]
    assert {"BrokerNotReady", "EventLoopBusy", "ZooKeeperSessionLost"} <= {rule.name for rule in found}
    for rule in found:
        said = f"{rule.definition['annotations']['summary']} {rule.definition['annotations']['description']}"
        assert "broker" not in said.lower(), said


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires: set[str] = set()
    holds: set[str] = set()
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for check in test["alert_rule_test"]:
                (fires if check["exp_alerts"] else holds).add(check["alertname"])
    names = {rule.name for rule in ALERTS}
    assert fires == names
    assert holds == names


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == {rule.name for rule in ALERTS}


@pytest.mark.parametrize("name", sorted({rule.name for rule in ALERTS}))
def test_a_runbook_says_what_it_means_how_to_confirm_it_what_to_do_and_how_it_ends(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "What it means",
        "What users notice",
        "How to confirm",
        "What to do",
        "How it ends",
    ]


def test_the_page_of_operations_lists_every_alert_with_its_severity() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    listed = {(name, severity) for name, severity in re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \| (\w+)", text, re.MULTILINE)}
    assert {name for name, _ in listed} == {rule.name for rule in ALERTS}
    assert listed <= {(rule.name, rule.definition["labels"]["severity"]) for rule in ALERTS}


def test_the_page_of_operations_says_how_long_an_alert_waits() -> None:
    """But for CertificateExpiry, whose row says how long before the end it fires."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| \[(\w+)\].* (after \d+ \w+|at once) \|", text, re.MULTILINE))
    waits = {rule.name: rule.definition["for"] for rule in ALERTS if rule.name != "CertificateExpiry"}
    words = {"m": "min", "h": "h"}
    assert said == {name: "at once" if wait == "0m" else f"after {wait[:-1]} {words[wait[-1]]}" for name, wait in waits.items()}


def test_no_two_rules_are_told_apart_by_nothing() -> None:
    names = [name_of(rule) for rule in rules()]
    assert len(names) == len(set(names))
