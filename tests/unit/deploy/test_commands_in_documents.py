"""Commands and queries in the runbooks and in operations.md are ones that there are.

Anyone who reads them at night types them in as they stand. Commands of ours are parsed by the command itself, which is not run;
queries by a parser of PromQL, and their metrics must be there. What operations.md does from beginning to end is run by
tests/compat/test_operations_page.py.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from tests.unit.deploy.expressions import ROOT, RUNBOOKS, TARGET_LABELS, known, selectors

from ottla.cli.app import app

PAGES: Final = [*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs" / "operations.md"]


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def blocks(page: Path, *languages: str) -> list[str]:
    """The lines of a page's blocks of one of these languages; a block may be indented, in a list."""
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip() for language, text in found if language in languages for line in text.replace("\\\n", " ").splitlines()]


def commands_of(page: Path) -> list[str]:
    """Each `ottla …`: lines of their own, at a prompt, in a condition, and in the running text where they have an argument."""
    lines = [re.sub(r"^(\$ |until |while )", "", line) for line in blocks(page, "sh", "console")]
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = [re.sub(r"\s+", " ", command) for command in re.findall(r"`(ottla [^`]+)`", text)]
    indented = re.findall(r"^    (ottla .*)$", text, re.MULTILINE)
    return [re.split(r" (?:[|>;]|2>|&&) ?", line)[0].rstrip("; ") for line in [*lines, *inline, *indented] if line.startswith("ottla ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_takes_every_command_of_a_page(page: Path) -> None:
    for line in commands_of(page):
        command: Any = whole_command()
        # A file that the page speaks of is not here, and the command would say so.
        name, words = "ottla", [str(page) if word.endswith(".properties") else word for word in shlex.split(line)[1:]]
        context = None
        while words or context is None:
            # Half a sentence names a command and leaves out what it is to be done to.
            context = command.make_context(name, list(words), parent=context, resilient_parsing=not words)
            if not hasattr(command, "resolve_command"):
                break
            words = [*context._protected_args, *context.args]
            if words:
                name, command, words = command.resolve_command(context, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_queries_of_a_page_ask_for_metrics_that_brokers_have(page: Path) -> None:
    names = known()
    for line in blocks(page, "promql"):
        for selector in selectors(line):
            assert selector.name in names or selector.name in ("scrape_duration_seconds",), f"{line}: {selector.name}"
            assert selector.labels <= names.get(selector.name, frozenset()) | TARGET_LABELS, line


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_metrics_that_a_runbook_names_in_its_text_are_there(page: Path) -> None:
    names = known().keys() | {name.removesuffix("_bucket") for name in known()}
    text = page.read_text(encoding="utf-8")
    # Also those with colons, which rules record.
    assert set(re.findall(r"(?<![\w:])(?:\w+:)?(?:ottla|python)_[a-z_]+(?::\w+)?", text)) <= names


def test_there_is_something_to_look_at() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) >= 30
    assert sum(len(blocks(page, "promql")) for page in PAGES) >= 40
