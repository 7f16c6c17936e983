"""What holds of the tree as a whole and no other tool sees: documentation that equals it, names, dead modules, figures that only fall.

A rule that stands in the way of something good is changed here, with its reason; it is not worked around.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from tests import house
from tests.house import MODULES, PACKAGE, ROOT, name_of, nodes_of, tree_of

from ottla.config.broker import BrokerSettings
from ottla.config.document import page
from ottla.config.topic import TopicSettings
from ottla.metrics import document as metrics_document
from ottla.metrics.metric import Metric
from ottla.metrics.table import AREAS

TESTS: Final = sorted((ROOT / "tests").rglob("*.py"))
MARKDOWN: Final = sorted(
    [*ROOT.glob("*.md"), *(path for folder in ("docs", "services", "tests", "deploy", "helm") for path in ROOT.glob(f"{folder}/**/*.md"))]
)

# Nobody knows what is in a package of such a name, so everything ends up there. The last two shadow the standard library.
VAGUE_NAMES: Final = {"utils", "util", "common", "core", "helpers", "helper", "misc", "types", "logging"}

# Time, chance and threads come in as arguments, or the simulation could not turn them. Here is where they come in from.
DRIVERS: Final = ("clock.py", "lifecycle.py", "cli/", "testing/")

METRIC_AREAS: Final = (
    "service",
    "broker",
    "requests",
    "network",
    "replica",
    "log",
    "controller",
    "coordination",
    "groups",
    "transactions",
    "schema_registry",
    "mirror",
)

NOT_IN_THE_TREE: Final = {
    "a path of somebody's machine": re.compile(r"(?<![\w.<>$}*-])/(?:work|home|root|Users)/[\w.]"),
    "a package index": re.compile(r"(?:extra-)?index-url|pypi\.|pythonhosted|/simple/?\b(?=[\"'\s])", re.IGNORECASE),
    "something left undone": re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"),
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def for_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes one test of a check of many files, which tells of each that fails: as many tests would cost more than what they check."""

    def test_of(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{relative(path)}: {error}")
            assert not wrong, "\n\n".join(wrong)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return test_of


@cache
def committed_texts() -> dict[Path, str]:
    """The text files that git keeps; without git (a source archive) those of the folders that we write in."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [path for folder in ("services", "tests", "docs", ".ci") for path in (ROOT / folder).rglob("*")]
    contents = {path: path.read_bytes() for path in paths if path.is_file()}
    return {path: content.decode(errors="replace") for path, content in contents.items() if b"\0" not in content[:4096]}


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Every module, or name in a module, that a file imports anywhere in it."""
    return frozenset(_imported_names(path))


def _imported_names(path: Path) -> Iterator[str]:
    package = ""
    if path.is_relative_to(PACKAGE):
        package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def rows_of(markdown: Path, heading: str) -> list[str]:
    """What stands in the first column of the table under a heading, in backquotes."""
    section = re.split(rf"^#+ {re.escape(heading)}\s*$", markdown.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@for_each(MODULES)
def test_every_module_opens_with_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(tree_of(path))
    assert docstring, f"{relative(path)} has no docstring"
    sentence = docstring.split("\n\n")[0].strip()
    assert sentence[0].isupper() or sentence[0] in "`_", f"{relative(path)}: {sentence!r} is no sentence"
    assert sentence.endswith((".", ":", "?")), f"{relative(path)}: the first paragraph is no whole sentence: {sentence!r}"


@for_each(MODULES)
def test_no_name_is_vague(path: Path) -> None:
    assert not VAGUE_NAMES & {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts}


def test_no_module_is_dead() -> None:
    """Each is imported by another module, is one that a person or an entry point runs, or is a handler."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = {target.partition(":")[0] for target in project["scripts"].values()}
    entry_points |= {target.partition(":")[0] for group in project["entry-points"].values() for target in group.values()}
    used = {name for path in MODULES for name in imported_names(path)}
    # What is made for tests is used by tests.
    for_tests = "".join(path.read_text(encoding="utf-8") for path in TESTS)
    used |= set(re.findall(r"^ *(?:from|import) (ottla\.testing[\w.]*)", for_tests, re.MULTILINE))
    # Spark looks for a package of this name, which is nothing but a door to ours.
    used |= {name for path in (PACKAGE.parent / "pyspark_ottla").rglob("*.py") for name in imported_names(path)}
    dead = [
        relative(path)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
        and name_of(path) not in used | entry_points
        and '__name__ == "__main__"' not in path.read_text(encoding="utf-8")
        and path.parent != PACKAGE / "broker" / "handlers"  # imported by the names in its `__init__`
    ]
    assert not dead, f"imported by nothing: {dead}"


def test_no_package_is_empty() -> None:
    folders = {path.parent for path in MODULES}
    assert not [relative(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert not [relative(folder) for folder in folders if folder != PACKAGE and len(list(folder.glob("*"))) < 2]


@for_each(MODULES)
def test_time_chance_and_threads_come_in_as_arguments(path: Path) -> None:
    """`random.Random` may be named, as the type of an argument; that argument may well be called `random`."""
    if path.relative_to(PACKAGE).as_posix().startswith(DRIVERS):
        return
    imported = {name for name in imported_names(path) if name.split(".")[0] in ("time", "random")}
    assert imported <= {"random", "random.Random"}
    modules = {alias.name for node in nodes_of(path) if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & {"time", "random"}, "import random.Random by its name"
    assert "asyncio.to_thread" not in {
        f"{ast.unparse(node.func.value)}.to_thread"
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to_thread"
    }


def test_the_page_of_settings_is_what_the_declarations_say() -> None:
    """`make docs` regenerates it."""
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page()


def test_the_page_of_metrics_is_what_the_declarations_say() -> None:
    """`make docs` regenerates it."""
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == metrics_document.page()


def test_every_metric_that_is_declared_is_in_the_table_and_given_by_a_collector() -> None:
    """Method: each constant that is a `Metric` in an area's module, and each use of `area.CONSTANT` outside of it."""
    areas = {name: sys.modules[f"ottla.metrics.{name}"] for name in METRIC_AREAS}
    declared = {f"{name}.{key}": each for name, area in areas.items() for key, each in vars(area).items() if isinstance(each, Metric)}
    in_the_table = [metric for metrics in AREAS.values() for metric in metrics]
    assert not {metric.name for metric in declared.values()} - {metric.name for metric in in_the_table}
    used = {
        f"{path_of_area}.{node.attr}"
        for path in MODULES
        for imported, path_of_area in _imported_areas(path).items()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == imported
    }
    assert not set(declared) - used, "declared, and given by no collector"


def _imported_areas(path: Path) -> dict[str, str]:
    """By which name a module knows the areas of metrics that it imports."""
    return {
        alias.asname or alias.name: alias.name
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.module == "ottla.metrics"
        for alias in node.names
        if alias.name in METRIC_AREAS
    }


def test_a_setting_that_nothing_reads_says_that_it_has_no_effect() -> None:
    """Method: every `something.attribute` in the package; a broker's setting also counts as read through its topic's."""
    read = {node.attr for path in MODULES for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    topics, brokers = TopicSettings.definitions(), BrokerSettings.definitions()
    overriding = {synonym.name: setting for setting in topics.values() for synonym in setting.synonyms}
    unread = {name for name, each in topics.items() if each.attribute not in read and not each.without_effect}
    unread |= {
        name
        for name, each in brokers.items()
        if each.attribute not in read and not each.without_effect and (name not in overriding or overriding[name].without_effect)
    }
    assert not unread
    assert all(each.without_effect for name, each in overriding.items() if brokers[name].without_effect)


def test_the_table_of_packages_in_the_architecture_is_the_tree() -> None:
    named = {name.rstrip("/").removesuffix(".py") for name in rows_of(ROOT / "ARCHITECTURE.md", "What is where")}
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert named == there


def test_the_commands_in_the_readme_are_those_of_the_command() -> None:
    helped = subprocess.run([sys.executable, "-m", "ottla.cli", "--help"], check=True, capture_output=True, text=True).stdout
    commands = set(re.findall(r"^│ ([a-z][a-z-]*)  ", helped, re.MULTILINE))
    named = {name.split()[1] for name in rows_of(ROOT / "README.md", "The command") if name.startswith("ottla ")}
    assert named == commands


def test_every_target_of_the_makefile_is_explained_and_every_one_in_the_documents_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    declared = set(" ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split())
    explained = set(re.findall(r"^([a-z0-9-]+):.*## \S", makefile, re.MULTILINE))
    assert declared == explained
    for document in MARKDOWN:
        named = set(re.findall(r"`make ([a-z0-9-]+)", document.read_text(encoding="utf-8")))
        assert named <= declared, f"{relative(document)} names {named - declared}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@for_each(MARKDOWN)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{relative(document)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{relative(document)} links to {target}"


@pytest.mark.parametrize("what", NOT_IN_THE_TREE)
def test_the_tree_does_not_hold(what: str) -> None:
    """The words are looked for in every committed text file but this one, which has to name them."""
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path, text in committed_texts().items()
        if path != Path(__file__)
        if NOT_IN_THE_TREE[what].search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if NOT_IN_THE_TREE[what].search(line)
    ]
    assert not found, f"{what}: " + "; ".join(found)


def test_unit_tests_mirror_the_package() -> None:
    """And deploy/, whose rules and dashboards ask for the package's metrics, and what images and compose file are made from."""
    folders = {path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    elsewhere = [folder.as_posix() for folder in folders if not (PACKAGE / folder).is_dir()]
    assert not set(elsewhere) - {"deploy", "containers"}


def test_no_figure_of_the_house_is_over_its_ceiling() -> None:
    """`make house` prints them. Method: counting, and two requests that are followed through a cluster of three in this process."""
    found = house.figures()
    assert set(house.CEILINGS) <= set(found)
    assert {name: found[name] for name, ceiling in house.CEILINGS.items() if found[name] > ceiling} == {}
    assert found["files on the way of a Produce"] >= 8, "the request was not followed"


def test_the_picture_of_the_rooms_is_what_the_imports_say() -> None:
    """`make docs` draws it."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert house.with_rooms(page) == page


def test_the_glossary_names_files_and_words_that_are_there() -> None:
    """Kafka's term, ours in backquotes, the file that it is in, and why it is another one."""
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| `([\w/.]+)` \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == (ROOT / "docs/glossary.md").read_text("utf-8").count("\n|") - 2, "a row is written in another way"
    assert [ours for _, ours, file, _ in rows if not re.search(rf"\b{ours}\b", (PACKAGE / file).read_text("utf-8"))] == []


def test_every_decision_says_what_was_decided_and_why() -> None:
    """Half a page each: what was decided, why, and what it costs. A number is given once."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len({path.name[:4] for path in decisions}) == len(decisions)
    for path in decisions:
        assert re.match(r"[0-9]{4}-", path.name), f"{relative(path)} has no number"
        text = path.read_text(encoding="utf-8")
        assert {"Decision", "Why", "Price"} <= set(re.findall(r"^## (.*)$", text, re.MULTILINE)), relative(path)
        assert len(text.split()) < 500, f"{relative(path)} is longer than a page"
