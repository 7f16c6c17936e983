"""Ten thousand topics, and hosts without number: what they may cost.

There is no broker: audit records go into the counter's file as it reads them, and everything is judged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pytest
from tests.unit.audit_counter.records import NOW, START, appended, produced, read

from ottla.audit_counter import store as stores
from ottla.audit_counter.rest.application import AuditApplication
from ottla.audit_counter.server import Collector
from ottla.audit_counter.service import AuditCounter, CounterSettings, Standing, Sums
from ottla.audit_counter.store import Store
from ottla.clock import SystemClock
from ottla.lifecycle import ThreadOffload
from ottla.record.audit_records import AuditRecord
from ottla.wire.cluster import Cluster

log: Final = logging.getLogger(__name__)
T = TypeVar("T")

TOPICS = 10_000
HOSTS = 20_000


class Counter(AuditCounter):
    """A counter that is given audit records and reads none."""

    def take(self, records: Iterable[AuditRecord]) -> set[stores.Window]:
        return self._store.apply(read(*records), {}, NOW).changed

    async def judge(self, changed: Iterable[stores.Window]) -> None:
        await self._judge(changed)

    @property
    def remembered(self) -> tuple[int, int]:
        """Rows that the file's reader keeps in memory: counts and sessions."""
        return len(self._store._recent.counts), len(self._store._recent.sessions)

    @property
    def open_windows(self) -> int:
        return sum(map(len, self._open.values()))


@asynccontextmanager
async def counter_of(path: Path) -> AsyncIterator[Counter]:
    in_store = ThreadOffload(1, "store")
    store = Store(path, 60_000, 168 * 3_600_000)
    try:
        settings = CounterSettings(verify="never")
        yield Counter(cast(Cluster, None), store, settings, SystemClock(), in_store, in_store)
    finally:
        in_store.close()
        store.close()


async def answer(application: AuditApplication, path: str, query: bytes = b"") -> Any:
    """What the API says, without a listener."""
    body = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal body
        body += message.get("body", b"")

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query, "headers": []}
    await application.application(scope, receive, send)
    return json.loads(body)


@pytest.mark.long
async def test_ten_thousand_topics_are_judged_and_listed_in_bounded_memory(tmp_path: Path) -> None:
    """Each has a producer and a broker that report. What is kept in memory does not grow with them."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with counter_of(tmp_path / "audit.db") as counter:
        for first in range(0, TOPICS, 500):
            topics = [f"topic-{number}" for number in range(first, first + 500)]
            said = [produced(0, [0, 1, 2], topic=topic, is_final=True) for topic in topics]
            said += [appended(0, [0, 1, 2], topic=topic, is_final=True) for topic in topics]
            await counter.judge(counter.take(said))
        assert counter.remembered <= (stores._RECENT_COUNTS, stores._RECENT_SESSIONS)
        assert not counter.open_windows
        rows = await answer(AuditApplication(counter, SystemClock()), "/v1/topics")
        seconds, grown = time.perf_counter() - began, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        log.info("%d topics: %.1f s, %.0f MiB more at most", TOPICS, seconds, grown)
        assert len(rows) == TOPICS
        assert all(row["verdicts"] == {"COMPLETE": 1} and row["messages"] == {"producer": 3, "broker": 3} for row in rows)
        assert grown < 200


class Once(tuple[T, ...]):
    """Says how often it was walked over."""

    walks = 0

    def __iter__(self) -> Iterator[T]:
        self.walks += 1
        return super().__iter__()


def test_the_list_of_topics_walks_over_what_is_known_once() -> None:
    """And not once for each topic: ten thousand topics would hold the loop for minutes."""
    verdicts = Once((f"topic-{number}", "producer", "broker", "COMPLETE", 1, 0, 0, START) for number in range(100))
    totals = Once((f"topic-{number}", "producer", 1) for number in range(100))

    class Known:
        async def standing(self) -> Standing:
            return Standing(0, tuple(f"topic-{number}" for number in range(100)), {}, {})

        async def sums(self) -> Sums:
            return Sums(totals, verdicts)

    rows = asyncio.run(answer(AuditApplication(cast(AuditCounter, Known()), SystemClock()), "/v1/topics"))
    assert len(rows) == 100
    assert (verdicts.walks, totals.walks) == (1, 1)


@pytest.mark.long
async def test_hosts_sessions_and_applications_make_no_series(tmp_path: Path) -> None:
    """Whatever strangers call themselves: as many series as of one of them."""
    series = []
    async with counter_of(tmp_path / "audit.db") as counter:
        collector = Collector(counter, SystemClock())
        for first, behind in ((0, 1), (1, HOSTS)):
            said = [
                produced(0, [number], host=f"host-{number}", application=f"application-{number}")._replace(session=f"{number:032x}")
                for number in range(first, behind)
            ]
            await counter.judge(counter.take(said))
            await collector.refresh()
            found = [family for family in collector.collect() if not isinstance(family, str)]
            series.append({(family.metric.name, sample[0]) for family in found for sample in family.samples if not isinstance(sample, str)})
        assert counter.remembered[1] <= stores._RECENT_SESSIONS
    assert series[0] == series[1]
    assert len(series[0]) < 40
