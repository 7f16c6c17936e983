"""Commands and queries in the documents are ones that there are.

Anyone who reads a runbook at night types them in as they stand. Commands of ours are parsed by the command itself, which is not run;
queries by a parser of PromQL, and their metrics must be there. Blocks with a `$` are run as well, by tests/compat/test_*_page.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from tests.unit.deploy.expressions import ROOT, RUNBOOKS, TARGET_LABELS, known, selectors

from ottla.cli.app import app

PAGES: Final = [
    *sorted(RUNBOOKS.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "services/README.md")),
]
# What stands for an argument in a sentence.
PLACEHOLDERS: Final = {"FILE": __file__, "PARTITION": "0", "START_OFFSET": "0"}
PREFIXES: Final = re.compile(r"(?:\$ |until |while |[A-Z_]+=\S+ |docker(?: |-)compose .*?exec \S+ |kubectl .*? -- )+")


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def blocks(page: Path, *languages: str) -> list[str]:
    """The lines of a page's blocks of one of these languages; a block may be indented, in a list."""
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip() for language, text in found if language in languages for line in text.replace("\\\n", " ").splitlines()]


def commands_in(lines: Iterable[str]) -> list[str]:
    """Each `ottla …` of shell lines; also behind a pipe, a condition or a variable."""
    pieces = [piece.strip() for line in lines for piece in re.split(r"[|;]|&&| 2?> ?", line)]
    return [command for piece in pieces if (command := PREFIXES.sub("", piece, count=1)).startswith("ottla ")]


def commands_of(page: Path) -> list[str]:
    """Those in blocks, indented, and in the running text."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = [re.sub(r"\s+", " ", command) for command in re.findall(r"`(ottla [^`]+)`", text)]
    indented = re.findall(r"^ {4,}(.*\bottla .*)$", re.sub(r"\\\n +", "", text), re.MULTILINE)
    return commands_in([*blocks(page, "sh", "console"), *inline, *indented])


def parse(line: str) -> None:
    """Raises what the command says of a line that it does not take; `--help` would end the parsing of any."""
    command: Any = whole_command()
    # A file that a page speaks of is not here, and the command would say so.
    words = [__file__ if word.endswith(".properties") else PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]
    name, context = "ottla", None
    while (words or context is None) and "--help" not in words:
        # Half a sentence names a command and leaves out what it is to be done to.
        context = command.make_context(name, list(words), parent=context, resilient_parsing=not words)
        if not hasattr(command, "resolve_command"):
            break
        words = [*context._protected_args, *context.args]
        if words:
            name, command, words = command.resolve_command(context, words)


def helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from helps(below)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_takes_every_command_of_a_page(page: Path) -> None:
    for line in commands_of(page):
        parse(line)


def test_the_command_takes_every_example_of_its_help() -> None:
    examples = commands_in(example for text in helps(whole_command()) for example in re.findall(r"`([^`]*\bottla [^`]+)`", text))
    assert len(examples) >= 60
    for line in examples:
        parse(line)


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


def test_addresses_of_a_runbook_are_ports_that_compose_publishes() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    published = set(re.findall(r"_PORT:-(\d+)}:\d+", compose))
    named = {port for page in RUNBOOKS.glob("*.md") for port in re.findall(r"127\.0\.0\.1:(\d+)", page.read_text(encoding="utf-8"))}
    assert "19404" in named
    assert named <= published


def test_there_is_something_to_look_at() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) >= 250
    assert sum(len(blocks(page, "promql")) for page in PAGES) >= 40
