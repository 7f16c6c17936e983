"""Writes a run's figures into docs/benchmarks.md, between its two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import HEADINGS, Figure, machine, row
from tests.bench.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- results: written by `python -m tests.bench --document` -->"
END: Final = "<!-- end of results -->"


def results(figures: Sequence[Figure], asked: Mapping[str, Any]) -> str:
    facts = machine()
    lines = [
        f"{facts['date']}, revision {facts['revision']}: {facts['cpus']} CPUs ({facts['processor']}), "
        f"{facts['memory_bytes'] / (1 << 30):.0f} GiB, Linux {facts['kernel']}, Python {facts['python']}; "
        f"{asked['rounds']} rounds of {asked['seconds']:g} s. Load average at the end: {facts['load_average']:.1f}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|--:|--:|---|---|---|---|",
    ]
    previous = ""
    for figure in figures:
        cells = row(figure)
        lines.append("| " + " | ".join(("" if figure.bench == previous else cells[0], *cells[1:])) + " |")
        previous = figure.bench
    return "\n".join(lines)


def write(figures: Sequence[Figure], asked: Mapping[str, Any], page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{results(figures, asked)}\n{END}{after}", encoding="utf-8")
