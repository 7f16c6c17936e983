"""docs/client.md is true: its examples run, from the first to the last, against one broker and its listener for ZooKeeper's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.client import SimpleConsumer
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    with EmbeddedCluster(settings={"coordination.listener": "127.0.0.1:0"}) as cluster:
        found = examples(PAGE)
        assert [example.language for example in found] == ["python"] * 10 + ["console"]
        for example in found:
            text = example.text.replace("127.0.0.1:9092", cluster.bootstrap_servers).replace("127.0.0.1:2181", cluster.zookeeper_address)
            if example.language == "python":
                exec(compile(text, f"docs/client.md:{example.line}", "exec"), names)
            else:
                for exchange in exchanges(text):
                    type_in(exchange, f"docs/client.md:{example.line}", tmp_path, environment_for(cluster.bootstrap_servers))
        with SimpleConsumer(cluster.bootstrap_servers) as consumer:
            again = list(consumer.fetch("page-views-again", 0, 0))
        assert len(again) == 16
    assert names["values"][:2] == [b"first", b"second"]
    assert names["table"].num_rows == names["total"] == 16
    said = capsys.readouterr().out
    assert "0 0 b'first'" in said
    assert "sent once at most: b'first'" in said
