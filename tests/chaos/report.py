"""What a run found, as tables for a person and as JSON for whoever compares runs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.chaos.auditing import counted
from tests.chaos.checker import Anomaly
from tests.chaos.incarnations import Wrong
from tests.chaos.run import Options, Result
from tests.chaos.schedule import Kind
from tests.chaos.transaction_report import print_transactions, transactions_document

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
    for anomaly in Anomaly:
        count = verdict.counts[anomaly]
        anomalies.add_row(anomaly, f"[red]{count}[/red]" if count else "0")
    anomalies.add_row("replicas that differ", f"[red]{len(result.differences)}[/red]" if result.differences else "0")
    anomalies.add_row("other troubles", f"[red]{len(result.troubles)}[/red]" if result.troubles else "0")
    console.print(anomalies)
    if options.audit:
        audit = Table("what the audit says", "windows")
        for what, found in (("", result.audit), ("transactions: ", result.audit_of_transactions)):
            for said, count in counted(found).items():
                audit.add_row(f"{what}{said}", str(count))
        console.print(audit)
    if options.transactions:
        print_transactions(console, result.transactions, result.injected)

    made_again = Table("a topic made again and again", "count")
    lives = result.incarnations
    made_again.add_row("incarnations", f"{lives.incarnations:,}, of which {lives.partitions_read:,} partitions were read to their end")
    made_again.add_row("messages acknowledged", f"{lives.acknowledged:,}")
    made_again.add_row("partitions of which records were deleted", f"{lives.deletions:,}")
    made_again.add_row("messages of unknown end that came to a later incarnation", f"{lives.late:,}")
    for wrong in Wrong:
        number = lives.counts[wrong]
        made_again.add_row(wrong, f"[red]{number}[/red]" if number else "0")
    console.print(made_again)

    told: dict[Anomaly, int] = defaultdict(int)
    for finding in verdict.findings:
        told[finding.anomaly] += 1
        if told[finding.anomaly] <= _EXPLAINED:
            during = "; ".join(fault.what for fault in result.injected if fault.lasts_at(finding.at_ms / 1000)) or "nothing broken"
            console.print(f"{finding.anomaly}: {finding.explanation} [{during}]", highlight=False, markup=False, soft_wrap=True)
    made_again_wrong = (f"{finding.wrong}: {finding.explanation}" for finding in lives.findings)
    for text in (*made_again_wrong, *(difference.explanation for difference in result.differences), *result.troubles):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for name, report in result.clients.items():
        if report.get("errors"):
            console.print(f"{name} met {report['errors']}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        "sound" if result.is_sound else f"NOT SOUND; everything is kept in {options.directory}",
        style="green" if result.is_sound else "bold red",
    )


def write_json(path: Path, options: Options, result: Result, left_out: Mapping[Kind, str]) -> None:
    """The whole result."""
    document: dict[str, Any] = {
        "seed": options.seed,
        "seconds": round(result.seconds, 1),
        "messages_per_second": options.messages_per_second,
        "is_sound": result.is_sound,
        "faults": [asdict(fault) for fault in result.injected],
        "left_out": dict(left_out),
        "verdict": {
            **{
                name: getattr(result.verdict, name)
                for name in ("sent", "acknowledged", "unknown", "unknown_but_written", "failed", "sent_again", "polled")
            },
            "anomalies": {str(anomaly): result.verdict.counts[anomaly] for anomaly in Anomaly},
            "findings": [asdict(finding) for finding in result.verdict.findings],
        },
        "transactions": transactions_document(result.transactions) if options.transactions else None,
        "incarnations": {
            **{
                name: getattr(result.incarnations, name)
                for name in ("incarnations", "partitions_read", "acknowledged", "deletions", "late")
            },
            "anomalies": {str(wrong): result.incarnations.counts[wrong] for wrong in Wrong},
            "findings": [asdict(finding) for finding in result.incarnations.findings],
        },
        "replicas_that_differ": [asdict(difference) for difference in result.differences],
        "troubles": result.troubles,
        "restarts": result.restarts,
        "clients": result.clients,
        "longest_silence_seconds": round(result.longest_silence_seconds, 1),
        "longest_silence_at": round(result.longest_silence_at, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
