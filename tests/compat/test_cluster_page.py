"""docs/cluster.md is true: its examples run, from the first to the last against one cluster of three brokers.

Method: as for the README (`test_readme`), whose blocks and dialogues are read here too.
"""

from __future__ import annotations

from pathlib import Path

from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=3) as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for example in examples(PAGE):
            assert example.language == "console", f"nobody checks a block of {example.language}"
            for exchange in exchanges(example.text):
                type_in(exchange, f"docs/cluster.md:{example.line}", tmp_path, environment)


def test_there_are_examples() -> None:
    assert sum(len(list(exchanges(example.text))) for example in examples(PAGE)) >= 10
