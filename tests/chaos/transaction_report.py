"""What a run says of its transactions: how they ended, what is wrong with them, and a part of its file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.chaos.faults import Injected
from tests.chaos.transaction_checker import TransactionAnomaly, TransactionVerdict

_EXPLAINED = 10


def print_transactions(console: Console, verdict: TransactionVerdict, injected: Sequence[Injected]) -> None:
    """Two tables, and in words whatever is wrong."""
    counts = Table("transactions", "count")
    counts.add_row("committed", f"{verdict.committed:,}")
    counts.add_row("aborted", f"{verdict.aborted:,}")
    counts.add_row("whose commit was not answered", f"{verdict.unknown:,}, of which {verdict.unknown_but_committed:,} are committed")
    counts.add_row("committed while others were, in another order elsewhere", f"{verdict.interleaved:,}")
    counts.add_row("their messages", f"{verdict.messages:,}")
    counts.add_row("copied", f"{verdict.copied:,}")
    counts.add_row("polled by readers of committed data", f"{verdict.polled:,}")
    console.print(counts)
    anomalies = Table("anomaly of transactions", "count")
    for anomaly in TransactionAnomaly:
        count = verdict.counts[anomaly]
        anomalies.add_row(anomaly, f"[red]{count}[/red]" if count else "0")
    console.print(anomalies)
    told: dict[TransactionAnomaly, int] = defaultdict(int)
    for finding in verdict.findings:
        told[finding.anomaly] += 1
        if told[finding.anomaly] <= _EXPLAINED:
            during = "; ".join(fault.what for fault in injected if fault.lasts_at(finding.at_ms / 1000)) or "nothing broken"
            console.print(f"{finding.anomaly}: {finding.explanation} [{during}]", highlight=False, markup=False, soft_wrap=True)


def transactions_document(verdict: TransactionVerdict) -> dict[str, Any]:
    """The verdict, for the run's file."""
    return {
        **{
            name: getattr(verdict, name)
            for name in ("committed", "aborted", "unknown", "unknown_but_committed", "interleaved", "messages", "copied", "polled")
        },
        "anomalies": {str(anomaly): verdict.counts[anomaly] for anomaly in TransactionAnomaly},
        "findings": [asdict(finding) for finding in verdict.findings],
    }
