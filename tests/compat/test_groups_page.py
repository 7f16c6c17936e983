"""docs/groups.md is true: its examples run, from the first to the last against one broker."""

from __future__ import annotations

from pathlib import Path

from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.broker.groups.classic.transitions import table
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
    assert table() in text
    assert states.table() in text
