"""What requests cost, counted where they pass: a few additions for each, and for pipelined Produces a few for each socket read.

Most requests are answered at once: nothing held them back, they waited for no other broker, and the socket took the answer.
Then all their time was in the handler, and one observation says all five stages; the other four are made up for when
a scrape asks. Times are of the event loop's clock.

The dispatcher and the handlers count here; `measuring.requests` shows it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from ottla.metrics.cells import Histogram, HistogramSnapshot
from ottla.protocol.api import ApiKey

STAGES: Final = ("total", "queue", "local", "remote", "send")
FETCH_FOLLOWER: Final = "FetchFollower"


class ApiMeter:
    """The requests of one API.

    `versions`, of requests that were taken on, and `at_once` are for the dispatcher to count in directly.
    """

    __slots__ = ("_local", "_queue", "_remote", "_send", "_total", "at_once", "name", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: defaultdict[int, int] = defaultdict(int)
        self.at_once = Histogram()
        # Of those that were not. A stage that took no time is not observed; the difference is added at the scrape.
        self._total, self._queue, self._local, self._remote, self._send = (Histogram() for _ in STAGES)

    def answered(self, count: int, queue: float, local: float, remote: float, send: float) -> None:
        """Counts requests that were answered and took the same time in each stage, in seconds."""
        if queue <= 0.0 and remote <= 0.0 and send <= 0.0:
            self.at_once.observe_many(local, count)
            return
        self._total.observe_many(queue + local + remote + send, count)
        self._local.observe_many(local, count)
        if queue > 0.0:
            self._queue.observe_many(queue, count)
        if remote > 0.0:
            self._remote.observe_many(remote, count)
        if send > 0.0:
            self._send.observe_many(send, count)

    @property
    def count(self) -> int:
        return sum(self.at_once.buckets) + sum(self._total.buckets)

    def snapshots(self) -> list[tuple[str, HistogramSnapshot]]:
        """Each stage with what it holds, all of them at one moment: a scrape lets requests in between two that it shows."""
        count, found = self.count, []
        for stage, cell in zip(STAGES, (self._total, self._queue, self._local, self._remote, self._send), strict=True):
            whole = Histogram()
            whole.add(cell)
            if stage in ("total", "local"):
                whole.add(self.at_once)
            whole.buckets[0] += count - sum(whole.buckets)
            found.append((stage, whole.snapshot()))
        return found


class RequestMeters:
    """All requests of a broker, and what went wrong with them."""

    def __init__(self) -> None:
        self._apis: dict[int, ApiMeter] = {}
        self.produce: Final = self.of(ApiKey.PRODUCE)
        self.fetch_follower: Final = ApiMeter(FETCH_FOLLOWER)
        self.failures: dict[tuple[str, int], int] = {}
        self.replica_sent_bytes = 0

    def of(self, key: ApiKey) -> ApiMeter:
        """The meter of an API; there are as many as there are APIs that were asked for."""
        meter = self._apis.get(key)
        if meter is None:
            meter = self._apis[key] = ApiMeter(key.api_name)
        return meter

    def all(self) -> list[ApiMeter]:
        """Every meter that has counted something."""
        return [meter for meter in (*self._apis.values(), self.fetch_follower) if meter.versions]

    def failed(self, api: str, code: int, count: int = 1) -> None:
        """Counts an error in an answer, or in so many places of one."""
        key = (api, code)
        self.failures[key] = self.failures.get(key, 0) + count
