"""What a run found, as tables for a person and as JSON for whoever compares runs."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.chaos.auditing import counted
from tests.chaos.checker import Anomaly
from tests.chaos.faults import Injected
from tests.chaos.incarnations import Wrong
from tests.chaos.run import Options, Result
from tests.chaos.schedule import Kind
from tests.chaos.transaction_checker import TransactionAnomaly, TransactionVerdict
from tests.chaos.verdict import Findings

_EXPLAINED = 10


def make_console() -> Console:
    """A terminal as it is; a file as wide as the tables."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def print_tables(console: Console, options: Options, result: Result, left_out: Mapping[Kind, str]) -> None:
    """Faults, messages, anomalies; and in words whatever is wrong."""
    faults = Table("fault", "injected", "seconds in all", title=f"seed {options.seed}, {result.seconds:.0f} s")
    times: dict[Kind, list[float]] = defaultdict(list)
    for fault in result.injected:
        times[fault.kind].append(fault.ended - fault.began)
    for kind in Kind:
        if kind in left_out:
            faults.add_row(kind, "-", left_out[kind])
        else:
            faults.add_row(kind, str(len(times[kind])), f"{sum(times[kind]):.0f}")
    faults.add_section()
    faults.add_row("all", str(len(result.injected)), f"{sum(map(sum, times.values())):.0f}")
    console.print(faults)

    verdict = result.verdict
    messages = Table("messages", "count")
    messages.add_row("sent", f"{verdict.sent:,}")
    messages.add_row("acknowledged", f"{verdict.acknowledged:,}")
    messages.add_row("of unknown end", f"{verdict.unknown:,}, of which {verdict.unknown_but_written:,} are in the log")
    messages.add_row("not sent", f"{verdict.failed:,}")
    messages.add_row("sent again by a client under a new epoch", f"{verdict.sent_again:,}")
    messages.add_row("polled", f"{verdict.polled:,}")
    messages.add_row(
        "longest time without an acknowledgement", f"{result.longest_silence_seconds:.0f} s, from {result.longest_silence_at:.0f} s on"
    )
    console.print(messages)

    if result.restarts:
        console.print(f"{result.restarts} times a broker found no ZooKeeper while it started, ended, and was started again")
    anomalies = Table("anomaly", "count")
    _add_counts(anomalies, {anomaly: verdict.counts[anomaly] for anomaly in Anomaly})
    _add_counts(anomalies, {"replicas that differ": len(result.differences), "other troubles": len(result.troubles)})
    console.print(anomalies)
    if options.audit:
        audit = Table("what the audit says", "windows")
        for what, found in (("", result.audit), ("transactions: ", result.audit_of_transactions)):
            for said, count in counted(found).items():
                audit.add_row(f"{what}{said}", str(count))
        console.print(audit)
    if options.transactions:
        _print_transactions(console, result.transactions, result.injected)

    made_again = Table("a topic made again and again", "count")
    lives = result.incarnations
    made_again.add_row("incarnations", f"{lives.incarnations:,}, of which {lives.partitions_read:,} partitions were read to their end")
    made_again.add_row("messages acknowledged", f"{lives.acknowledged:,}")
    made_again.add_row("partitions of which records were deleted", f"{lives.deletions:,}")
    made_again.add_row("messages of unknown end that came to a later incarnation", f"{lives.late:,}")
    _add_counts(made_again, {wrong: lives.counts[wrong] for wrong in Wrong})
    console.print(made_again)

    _explain(console, verdict, result.injected)
    made_again_wrong = (f"{finding.anomaly}: {finding.explanation}" for finding in lives.findings)
    for text in (*made_again_wrong, *(difference.explanation for difference in result.differences), *result.troubles):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for name, report in result.clients.items():
        if report.get("errors"):
            console.print(f"{name} met {report['errors']}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        "sound" if result.is_sound else f"NOT SOUND; everything is kept in {options.directory}",
        style="green" if result.is_sound else "bold red",
    )


def _print_transactions(console: Console, verdict: TransactionVerdict, injected: Sequence[Injected]) -> None:
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
    _add_counts(anomalies, {anomaly: verdict.counts[anomaly] for anomaly in TransactionAnomaly})
    console.print(anomalies)
    _explain(console, verdict, injected)


def _add_counts(table: Table, counts: Mapping[str, int]) -> None:
    for what, count in counts.items():
        table.add_row(what, f"[red]{count}[/red]" if count else "0")


def _explain(console: Console, verdict: Findings, injected: Sequence[Injected]) -> None:
    """The first anomalies of each kind, each with the faults of its time."""
    told: Counter[str] = Counter()
    for finding in verdict.findings:
        told[finding.anomaly] += 1
        if told[finding.anomaly] <= _EXPLAINED:
            during = "; ".join(fault.what for fault in injected if fault.lasts_at(finding.at_ms / 1000)) or "nothing broken"
            console.print(f"{finding.anomaly}: {finding.explanation} [{during}]", highlight=False, markup=False, soft_wrap=True)


def write_json(path: Path, options: Options, result: Result, left_out: Mapping[Kind, str]) -> None:
    """The whole result."""
    document: dict[str, Any] = {
        "seed": options.seed,
        "seconds": round(result.seconds, 1),
        "messages_per_second": options.messages_per_second,
        "is_sound": result.is_sound,
        "faults": [asdict(fault) for fault in result.injected],
        "left_out": dict(left_out),
        "verdict": result.verdict.document(Anomaly),
        "transactions": result.transactions.document(TransactionAnomaly) if options.transactions else None,
        "incarnations": result.incarnations.document(Wrong),
        "replicas_that_differ": [asdict(difference) for difference in result.differences],
        "troubles": result.troubles,
        "restarts": result.restarts,
        "clients": result.clients,
        "longest_silence_seconds": round(result.longest_silence_seconds, 1),
        "longest_silence_at": round(result.longest_silence_at, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
