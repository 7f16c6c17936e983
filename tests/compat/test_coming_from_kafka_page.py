"""docs/coming-from-kafka.md is true of the command: its examples run against one broker, and there is every option that it names."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest
from tests.compat.test_readme import environment_for, examples, exchanges, type_in

from ottla.cli.main import run
from ottla.testing import EmbeddedCluster

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-kafka.md"


def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        environment = environment_for(cluster.bootstrap_servers)
        for example in examples(PAGE):
            for exchange in exchanges(example.text):
                type_in(exchange, f"docs/coming-from-kafka.md:{example.line}", tmp_path, environment)


def test_the_commands_have_the_options_that_the_page_names(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second column of a table: of the command that is named last, or of the one in the head."""
    monkeypatch.setenv("COLUMNS", "200")
    named: dict[str, set[str]] = {}
    head = command = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"\| (.*) \| (.*) \|", line)
        if found is None:
            head = head if line == "|---|---|" else ""
            continue
        if not head:
            head = command = found[2].strip("`")
        for code in re.findall(r"`([^`]*)`", found[2]) if head.startswith("ottla") else ():
            words = code.split()
            if words[:1] == ["ottla"]:
                command = " ".join(takewhile(lambda word: word[0].islower(), words[1:]))
            elif head != "ottla":
                command = head.removeprefix("ottla ")
            named.setdefault(command, set()).update(word for word in words if word.startswith("--"))
    assert len(named) > 20
    for command, options in named.items():
        assert run([*command.split(), "--help"]) == 0, command
        text = capsys.readouterr().out
        meant = {"--all-topics", "--dry-run"}  # Kafka's, in a sentence
        assert not {option for option in options - meant if f"{option} " not in text}, command
