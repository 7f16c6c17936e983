"""docs/groups.md is true: its examples run, from the first to the last against one broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.broker.groups.classic import transitions
from ottla.broker.groups.consumer import states
from ottla.config.properties import parse
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "groups.md"


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster(settings=parse(_settings(), "docs/groups.md")) as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for example in examples(PAGE):
            if example.language == "properties":
                continue
            for exchange in exchanges(example.text):
                type_in(exchange, f"docs/groups.md:{example.line}", tmp_path, environment)


def _settings() -> str:
    """What the page says that a broker is to be set to."""
    return "\n".join(example.text for example in examples(PAGE) if example.language == "properties")


def test_the_tables_of_states_are_those_that_hold() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for held in (transitions.LEGAL_PREDECESSORS, states.LEGAL_PREDECESSORS):
        assert state_table({target.value: {state.value for state in before} for target, before in held.items()}) in text


def state_table(predecessors: Mapping[str, Collection[str]]) -> str:
    """The table in Markdown: from which states each may be entered, all of them in one order."""
    rows = (f"| {target} | {', '.join(state for state in predecessors if state in before)} |" for target, before in predecessors.items())
    return "\n".join(("| to | from |", "|---|---|", *rows))
