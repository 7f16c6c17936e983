"""What a load shows of itself: to Prometheus while it runs, and in a file that node-exporter reads when it has ended.

A load is a job and no server: with a file, the time of its last success outlives it, and continues when it fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from ottla.clock import Clock, SystemClock
from ottla.config.http import listener_of
from ottla.lifecycle import LoopThread, offload_nothing
from ottla.metrics import load as metrics
from ottla.metrics.family import Family, Pause
from ottla.metrics.metric import Metric
from ottla.metrics.registry import Registry
from ottla.serving.readiness import Conditions
from ottla.serving.surface import Surface
from ottla.spark.loading.driver import LoadOutcome

_CALL_SECONDS: Final = 30.0


class LoadStatistics:
    """The loads of one process, of one job; a collector.

    Args:
        job: the label of its metrics.
        stale_after_seconds: what LoadStale compares with.
    """

    def __init__(self, job: str, stale_after_seconds: float, clock: Clock | None = None) -> None:
        self._labels = (job,)
        self._clock = clock or SystemClock()
        self._stale_after = stale_after_seconds
        self._counts = dict.fromkeys(
            (metrics.ROWS, metrics.BYTES, metrics.FILES, metrics.COMMITS, metrics.LOST, metrics.QUARANTINED, metrics.FAILURES), 0
        )
        self._gauges: dict[Metric, float] = {}

    def took(self, outcome: LoadOutcome) -> None:
        """A load came to its end."""
        self._gauges[metrics.LAST_SUCCESS] = self._clock.time_ms() / 1000
        if outcome.is_empty:
            self._gauges[metrics.LAG] = 0
            return
        for metric, more in (
            (metrics.ROWS, outcome.rows),
            (metrics.BYTES, outcome.size),
            (metrics.FILES, outcome.files),
            (metrics.COMMITS, 1),
            (metrics.LOST, outcome.lost),
            (metrics.QUARANTINED, outcome.quarantined),
        ):
            self._counts[metric] += more
        self._gauges[metrics.SECONDS] = outcome.seconds
        self._gauges[metrics.LAG] = outcome.left

    def failed(self) -> None:
        """A load ended with an error."""
        self._counts[metrics.FAILURES] += 1

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        for metric, value in {**self._counts, **self._gauges, metrics.STALE_AFTER: self._stale_after}.items():
            yield Family(metric, [(self._labels, value)])

    def write(self, path: Path) -> None:
        """Replaces a file that node-exporter reads (its name has to end with `.prom`), whole.

        Raises:
            OSError
        """
        if metrics.LAST_SUCCESS not in self._gauges:
            self._gauges.update(self._last_success(path))

        async def body() -> bytes:
            return b"".join([part async for part in Registry([self], self._clock).render().body])

        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(asyncio.run(body()))
        partial.replace(path)

    def _last_success(self, path: Path) -> dict[Metric, float]:
        """As the file has it that a run before this one wrote; 0 where there was no success yet."""
        try:
            families = list(text_string_to_metric_families(path.read_bytes().decode()))
        except (FileNotFoundError, ValueError):
            families = []
        labels = dict(zip(metrics.LAST_SUCCESS.labels, self._labels, strict=True))
        samples = [sample for family in families for sample in family.samples]
        found = (sample.value for sample in samples if (sample.name, sample.labels) == (metrics.LAST_SUCCESS.name, labels))
        return {metrics.LAST_SUCCESS: next(found, 0.0)}

    @contextmanager
    def served(self, address: str) -> Iterator[str]:
        """Shows the metrics at `host:port` for as long as the block; gives the URL.

        Raises:
            ConfigurationError, OttlaError: it is no address, or cannot be listened at.
        """
        listener = listener_of(address)
        with LoopThread("ottla-load-http") as loop:
            stack = AsyncExitStack()

            async def start() -> str:
                surface = Surface(self._clock, Conditions())
                await surface.start(stack, listener)
                surface.measure(stack, offload_nothing, [self])
                return surface.address

            try:
                yield loop.call(start(), _CALL_SECONDS)
            finally:
                loop.call(stack.aclose(), _CALL_SECONDS)
