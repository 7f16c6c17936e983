"""Memory, CPU, files and garbage collections of the process, as prometheus-client collects them for everybody.

It lists `/proc/self/fd` to count the open files, which takes milliseconds where there are thousands, so it is asked beside
the loop, and a collector shows what it said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import GCCollector, Metric, ProcessCollector
from prometheus_client.registry import CollectorRegistry

from ottla.lifecycle import Offload
from ottla.metrics.family import Family, Pause
from ottla.metrics.table import BY_NAME

# Two scrapes at the same time share what was found.
PROCESS_SECONDS: Final = 1.0


class ProcessMetrics:
    """`ottla.metrics.process`."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._found: Sequence[Metric] = ()

    async def refresh(self) -> None:
        """Asks again."""
        self._found = await self._offload(lambda: list(self._registry.collect()))

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they were found."""
        for each in self._found:
            metric = BY_NAME.get(f"{each.name}_total" if each.type == "counter" else each.name)
            if metric is not None:
                samples = [sample for sample in each.samples if sample.name == metric.name]
                yield Family(metric, [(tuple(sample.labels[label] for label in metric.labels), sample.value) for sample in samples])
