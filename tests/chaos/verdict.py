"""What every judge of a run gives: how often each anomaly is there, and the first of each in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

# Of each kind so many are told in words; all are counted.
TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly, in words, and when in the run (in milliseconds) the operation that shows it was."""

    anomaly: StrEnum
    at_ms: int
    explanation: str


@dataclass(slots=True, kw_only=True)
class Findings:
    """The anomalies of a history. What a judge has looked at, it counts in fields of its own."""

    counts: Counter[StrEnum] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there is no anomaly at all."""
        return not self.counts

    def count(self, anomaly: StrEnum) -> bool:
        """One more is there; gives whether it is to be told in words."""
        self.counts[anomaly] += 1
        return self.counts[anomaly] <= TOLD

    def add(self, anomaly: StrEnum, at_ms: int, explanation: str) -> None:
        """One more is there."""
        if self.count(anomaly):
            self.findings.append(Finding(anomaly, at_ms, explanation))

    def document(self, anomalies: type[StrEnum]) -> dict[str, Any]:
        """All of it, for the run's file."""
        return {
            **{name: count for name, count in asdict(self).items() if name not in ("counts", "findings")},
            "anomalies": {str(anomaly): self.counts[anomaly] for anomaly in anomalies},
            "findings": [asdict(finding) for finding in self.findings],
        }


def seconds(milliseconds: int) -> str:
    """As findings say when something was."""
    return f"{milliseconds / 1000:.3f} s"
