"""Writes what follows from the chart's values and the broker's settings: `python helm/document.py`.

- the table in helm/ottla/README.md, from the comments that begin with `# --` in values.yaml;
- the names that values.schema.json lets `broker.settings`, `schemaRegistry.settings`, `auditCounter.settings`,
  `mirrorMaker.settings` and `mirrorMaker.sources` have, from the declarations in services/ottla/config;
- which values values.schema.json does not let be null: those that values.yaml gives something.

`make docs` runs it, and a test fails when the files in the tree are others; `--check` only compares.
"""

# ruff: noqa: T201  (a command)
from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ottla.config.audit import AuditSettings
from ottla.config.broker import BrokerSettings
from ottla.config.mirror import MirrorCluster, MirrorSettings
from ottla.config.registry import RegistrySettings

OF_KUBERNETES = {"resources", "updateStrategy", "podSecurityContext", "containerSecurityContext"}
CHART = Path(__file__).parent / "ottla"
BEGIN, END = "<!-- values: made by `make docs` -->", "<!-- end of values -->"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart that a person may set."""

    path: tuple[str, ...]
    default: Any
    meaning: str


def values_of(text: str) -> Iterator[Value]:
    """Every value with a comment `# --` above it, in the order of the file."""
    loaded = yaml.safe_load(text)
    meaning: list[str] = []
    open_keys: list[tuple[int, str]] = []
    for line in text.splitlines():
        if found := re.match(r"\s*# -- (.*)", line):
            meaning = [found[1]]
        elif meaning and (found := re.match(r"\s*# (.*)", line)):
            meaning.append(found[1])
        elif found := re.match(r"( *)([A-Za-z]+):", line):
            indent, key = len(found[1]), found[2]
            open_keys = [*(each for each in open_keys if each[0] < indent), (indent, key)]
            if meaning:
                path = tuple(name for _, name in open_keys)
                default = loaded
                for name in path:
                    default = default[name]
                yield Value(path, default, " ".join(meaning))
                meaning = []


def table(values: Iterator[Value]) -> str:
    """The values as a table in Markdown, a section for each block."""
    lines: list[str] = []
    section: str | None = None
    for each in values:
        block = each.path[0] if len(each.path) > 1 else ""
        if block != section:
            section = block
            lines += ["", f"### {block or 'Names'}", "", "| value | default | |", "|---|---|---|"]
        default = json.dumps(each.default, ensure_ascii=False).replace("|", "\\|")
        lines.append(f"| `{'.'.join(each.path)}` | `{default}` | {each.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def readme(text: str, values: str) -> str:
    """The page with the table of these values."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(values_of(values))}\n{END}{after}"


def require(schema: dict[str, Any], values: dict[str, Any]) -> None:
    """Puts into the schema what may not be null: Helm takes such a value away, and templates would say nothing in its place.

    What is empty or false by default may be, and so may Kubernetes' own objects, which have defaults there.
    """
    needed = [name for name, value in values.items() if name not in OF_KUBERNETES and value is not False and value not in ("", [], {})]
    schema["required"] = needed
    for name in needed:
        if isinstance(values[name], dict):
            require(schema["properties"][name], values[name])


def schema(text: str, values: str) -> str:
    """The schema with the names of the settings that there are, and with what must be there."""
    loaded = json.loads(text)
    require(loaded, yaml.safe_load(values))
    for name, service in (
        ("settings", BrokerSettings),
        ("registrySettings", RegistrySettings),
        ("auditSettings", AuditSettings),
        ("mirrorSettings", MirrorSettings),
        ("mirrorSourceSettings", MirrorCluster),
    ):
        loaded["$defs"][name]["properties"] = dict.fromkeys(sorted(service.definitions_by_any_name()), True)
    return json.dumps(loaded, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes the files, or with `--check` says which would become others."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    page, types = CHART / "README.md", CHART / "values.schema.json"
    made = {page: readme(page.read_text(encoding="utf-8"), values), types: schema(types.read_text(encoding="utf-8"), values)}
    stale = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    if "--check" not in sys.argv:
        for path in stale:
            path.write_text(made[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path} is not what values.yaml and the settings say: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
