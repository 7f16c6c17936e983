"""docs/transactions.md is true: its examples run, from the first to the last against one broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.test_groups_page import state_table
from tests.compat.test_readme import READERS_ADDRESS, environment_for, examples, exchanges, type_in

from ottla.broker.transactions.states import LEGAL_PREDECESSORS
from ottla.config.broker import BrokerSettings
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "transactions.md"


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for number, example in enumerate(examples(PAGE)):
            where = f"docs/transactions.md:{example.line}"
            if example.language == "console":
                for exchange in exchanges(example.text):
                    type_in(exchange, where, tmp_path, environment)
            elif example.language == "python":
                script = tmp_path / f"example_{number}.py"
                script.write_text(example.text.replace(READERS_ADDRESS, cluster.bootstrap_servers))
                command = [sys.executable, str(script)]
                done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
                assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
            else:
                pytest.fail(f"{where}: nobody checks a block of {example.language}")


def test_the_table_of_states_is_the_one_that_holds() -> None:
    held = {target.title: {state.title for state in before} for target, before in LEGAL_PREDECESSORS.items()}
    assert state_table(held) in PAGE.read_text(encoding="utf-8")


def test_the_settings_have_the_defaults_that_the_page_says() -> None:
    settings = BrokerSettings.from_properties({"broker.id": "1"})
    said = re.findall(r"^\| `([a-z.]+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(said) >= 7
    for name, default in said:
        assert str(getattr(settings, name.replace(".", "_"))).lower() == default, name
