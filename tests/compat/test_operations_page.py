"""docs/operations.md is true: its examples run, from the first to the last against one cluster of three brokers.

Method: as for the README (`test_readme`). Blocks of `sh` are for another kind of machine (compose, servers); that the commands in them are
ones that there are is looked at in tests/unit/deploy/test_commands_in_documents.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.cli.reassignment_plan import parsed_plan
from ottla.config.audit import AuditSettings
from ottla.config.broker import BrokerSettings
from ottla.config.properties import parse
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=3) as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for example in examples(PAGE):
            if example.language == "properties":
                if "ssl.client.auth" in example.text:
                    BrokerSettings.from_properties({**parse(example.text), "zookeeper.connect": "127.0.0.1:2181"})
                    continue
                AuditSettings.from_properties({**parse(example.text), "bootstrap.servers": cluster.bootstrap_servers})  # as other services
                continue
            if example.language == "json":
                assert parsed_plan(example.text, example.language)[1], "it names log directories"
                continue
            assert example.language in ("console", "sh"), f"nobody checks a block of {example.language}"
            for exchange in exchanges(example.text) if example.language == "console" else ():
                type_in(exchange, f"docs/operations.md:{example.line}", tmp_path, environment)


def test_there_are_examples() -> None:
    assert sum(len(list(exchanges(example.text))) for example in examples(PAGE) if example.language == "console") >= 15
