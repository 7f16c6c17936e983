"""The audit beside a run: a counter that knows nothing of the faults, and whether it says what the judge says.

Producers, brokers and the reader that reads everything in the end report to it. Where messages were acknowledged and are nowhere, or are
there twice, not every window may be COMPLETE, and of a sound run no edge may be wrong. It need not be wrong where something is: brokers
that lose messages lose audit records too (UNAUDITED), and among as many attempts that have failed a message that is there twice is
IN_DOUBT. That is no disagreement, but once all have ended nothing may be PENDING.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.chaos.brokers import REPOSITORY
from tests.chaos.checker import Anomaly
from tests.chaos.checker import Verdict as Judged
from tests.chaos.mortal import mortal

from ottla.record.audit_records import WRONG, Verdict

WINDOW_MS: Final = 10_000
OF_BROKERS: Final = {"audit.enable": "true", "audit.window.ms": str(WINDOW_MS), "audit.report.interval.ms": "1000"}
OF_CLIENTS: Final = {"ottla.audit.window.ms": WINDOW_MS, "ottla.audit.report.interval.ms": 1_000}
# What is acknowledged and gone, or twice at the brokers: the rest of the anomalies is of what single clients saw.
_OF_THE_LOG: Final = (Anomaly.LOST_WRITE, Anomaly.UNSEEN, Anomaly.DUPLICATE)
_READY_SECONDS: Final = 120.0
_KNOWN_SECONDS: Final = 240.0


class Said(NamedTuple):
    """What the audit says of an edge in a window."""

    window: int
    edge: str
    verdict: Verdict
    missing: int
    surplus: int
    reason: str


def disagreements(said: Iterable[Said], judged: Judged) -> list[str]:
    """Where the audit and the judge do not say the same."""
    said = list(said)
    wrong = [one for one in said if one.verdict in WRONG]
    found = [f"the audit does not know {one}" for one in said if one.verdict is Verdict.PENDING]
    if not said:
        found.append("the audit says nothing at all")
    of_the_log = sum(judged.counts[anomaly] for anomaly in _OF_THE_LOG)
    if of_the_log and {one.verdict for one in said} <= {Verdict.COMPLETE, Verdict.LATE}:
        found.append(f"the audit says that all is there, and the judge that {of_the_log} messages are lost or doubled")
    if not of_the_log:
        # What a client sent again under a new epoch is twice in the log, and the audit says so; how often, the judge counts.
        again = sum(one.surplus for one in wrong if one.verdict is Verdict.DUPLICATE)
        found += [f"the audit says {one}, and the judge finds no such thing" for one in wrong if one.verdict is not Verdict.DUPLICATE]
        if again > judged.sent_again:
            found.append(f"the audit says that {again} messages are there twice, and the judge {judged.sent_again}")
    return found


def accusations(said: Iterable[Said]) -> list[str]:
    """What the audit says of transactions that no sound run has: that something is lost or doubled, or never known."""
    return [f"of transactions the audit says {one}" for one in said if one.verdict in WRONG or one.verdict is Verdict.PENDING]


class AuditCounter:
    """`ottla audit-counter` as a process.

    Args:
        directory: its file, its log and its configuration.
    """

    def __init__(self, bootstrap_servers: str, directory: Path) -> None:
        self._directory = directory
        self._pid_file = directory / "counter.pid"
        self._url = ""
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "rest.listener": "127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
            "audit.directory": str(directory / "data"),
            "audit.tiers": "producer,broker",
            "audit.verify": "doubt",
            "audit.window.ms": str(WINDOW_MS),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it, and waits until it has read what there is."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "counter.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()), encoding="utf-8")
        command = sys.executable, "-m", "ottla.cli", "audit-counter", "--config", str(config), "--pid-file", str(self._pid_file)
        with (self._directory / "counter.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(*mortal(command), cwd=REPOSITORY, stdout=log, stderr=log)
        async with asyncio.timeout(_READY_SECONDS):
            while not self._pid_file.exists():  # noqa: ASYNC110 - a process says so by a file
                await asyncio.sleep(0.05)
            self._url = self._pid_file.read_text().splitlines()[1]
            # Its topics are made by then, while all brokers are there.
            while not (await self._ask("/v1/status") or {}).get("is_caught_up"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def said(self, topic: str) -> list[Said]:
        """What it says of a topic, once all of that is known or it has had time enough."""
        deadline = asyncio.get_running_loop().time() + _KNOWN_SECONDS
        while True:
            rows = await self._ask(f"/v1/topics/{topic}/edges") or ()  # of the last hour
            said = [Said(**{name: row[name] for name in Said._fields} | {"verdict": Verdict(row["verdict"])}) for row in rows]
            edges = {one.edge.partition("->")[2].partition(":")[0] for one in said}
            is_known = {"broker", "consumer"} <= edges and not any(one.verdict is Verdict.PENDING for one in said)
            if is_known or asyncio.get_running_loop().time() > deadline:
                return said
            await asyncio.sleep(0.5)

    async def _ask(self, path: str) -> Any:
        def ask() -> Any:
            try:
                with urllib.request.urlopen(f"{self._url}{path}", timeout=60) as answer:
                    return json.load(answer)
            except OSError:
                return None

        return await asyncio.to_thread(ask)

    async def close(self) -> None:
        """Ends it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def counted(said: Iterable[Said]) -> dict[str, int]:
    """How many windows there are of each edge and verdict, for the report."""
    return dict(sorted(Counter(f"{one.edge} {one.verdict}" for one in said).items()))
