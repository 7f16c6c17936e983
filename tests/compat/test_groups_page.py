"""docs/groups.md is true: its examples run, from the first to the last against one broker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.compat.test_readme import examples, exchanges, type_in

from ottla.broker.groups.transitions import table
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "groups.md"


@pytest.mark.timeout(180)
def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP_SERVER": cluster.bootstrap_servers,
        }
        for example in examples(PAGE):
            for exchange in exchanges(example.text):
                type_in(exchange, f"docs/groups.md:{example.line}", tmp_path, environment)


def test_the_table_of_states_is_the_one_that_holds() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
