"""What many seeds came to: how often each fault was drawn and what became of it, and how often each recovery path was walked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.faults import Kind
from tests.simulation.paths import PATHS
from tests.simulation.run import Outcome

# From so many seeds on a path that none of them walked is a finding.
MANY_SEEDS = 10_000


@dataclass(slots=True)
class Summary:
    """Added up over seeds and processes."""

    seeds: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    performed: Counter[str] = field(default_factory=Counter)
    failed_calls: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    faults: int = 0
    acknowledged: int = 0
    polled: int = 0
    audits: int = 0

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.seconds += outcome.seconds
        self.faults += outcome.faults
        self.acknowledged += outcome.acknowledged
        self.polled += outcome.polled
        self.audits += outcome.audits
        self.drawn.update(outcome.drawn)
        self.performed.update(outcome.performed)
        self.failed_calls.update(outcome.failed_calls)
        self.paths.update(outcome.paths)

    def lines(self) -> Iterator[str]:
        """The tables, and a line for each fault and path that did not happen."""
        yield f"faults, drawn and performed, and in how many of {self.seeds} seeds there were calls on a disk that failed:"
        yield from _table((str(kind), f"{self.drawn[kind]:7} {self.performed[kind]:7}") for kind in Kind)
        yield from _table((name, f"{count:7}") for name, count in sorted(self.failed_calls.items()))
        yield "recovery paths, by the lines that brokers logged:"
        yield from _table((path.name, f"{self.paths[path.name]:7}") for path in PATHS)
        never = [f"fault never performed: {kind}" for kind in Kind if not self.performed[kind]]
        never += [f"recovery path never walked: {path.name}" for path in PATHS if not self.paths[path.name]]
        word = "FINDING: " if self.seeds >= MANY_SEEDS else ""
        yield from (f"{word}{line}, in {self.seeds} seeds" for line in never)


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:50} {figures}" for name, figures in rows)
