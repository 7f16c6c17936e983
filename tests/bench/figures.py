"""What a bench gives: figures with their spread and target, as a table and as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.bench.processes import REPOSITORY


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over rounds with its spread; `at_least` or `at_most` is the target, if there is one."""

    bench: str
    name: str
    median: float
    lowest: float
    highest: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    rounds: tuple[float, ...] = field(default=())

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        if self.at_least is not None:
            return self.median >= self.at_least
        if self.at_most is not None:
            return self.median <= self.at_most
        return None


def figure(
    bench: str,
    name: str,
    values: Sequence[float],
    unit: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    note: str = "",
) -> Figure:
    return Figure(bench, name, statistics.median(values), min(values), max(values), unit, at_least, at_most, note, tuple(values))


def ratios(ours: Iterable[float], floors: Iterable[float]) -> list[float]:
    """Round by round, so that what slowed the machine in one round slowed both."""
    return [mine / floor for mine, floor in zip(ours, floors, strict=True)]


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so great a share of them does not exceed; of few values the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def readable(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or not value else f"{value:.3f}"


def row(each: Figure) -> tuple[str, ...]:
    target = ""
    if each.at_least is not None:
        target = f"≥ {each.at_least:g}"
    elif each.at_most is not None:
        target = f"≤ {each.at_most:g}"
    spread = "" if each.lowest == each.highest else f"{readable(each.lowest)} … {readable(each.highest)}"
    verdict = {None: "", True: "met", False: "MISSED"}[each.met]
    return each.bench, each.name, readable(each.median), spread, each.unit, target, verdict, each.note


HEADINGS = ("bench", "figure", "median", "min … max", "unit", "target", "", "note")


def print_table(figures: Sequence[Figure], console: Console) -> None:
    table = Table(*HEADINGS[:2], header_style="bold")
    for heading in HEADINGS[2:4]:
        table.add_column(heading, justify="right")
    for heading in HEADINGS[4:]:
        table.add_column(heading)
    previous = ""
    for figure in figures:
        if previous and figure.bench != previous:
            table.add_section()
        cells = list(row(figure))
        if figure.bench == previous:
            cells[0] = ""
        previous = figure.bench
        if figure.met is not None:
            cells[6] = f"[{'green' if figure.met else 'bold red'}]{cells[6]}[/]"
        table.add_row(*cells)
    console.print(table)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?"
    )
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "revision": revision,
        "load_average": os.getloadavg()[0],
    }


def write_json(path: Path, figures: Sequence[Figure], options: dict[str, Any]) -> None:
    document = {
        "machine": machine(),
        "options": options,
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
