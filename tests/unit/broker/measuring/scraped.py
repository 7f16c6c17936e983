"""A broker's data path over real sockets, and what is told of it."""

from __future__ import annotations

from types import SimpleNamespace

from tests.unit.broker.wired import Wired
from tests.unit.metrics.collectors import samples

from ottla.broker.measuring.requests import NetworkCollector, RequestCollector, TopicCollector
from ottla.metrics.family import Collector
from ottla.metrics.registry import Registry
from ottla.metrics.rendering import Names


class Scraped:
    """What Prometheus would see of a broker, scrape by scrape."""

    def __init__(self, broker: Wired) -> None:
        meters = broker.parts.meters
        waiting = {"produce": broker.produces, "fetch": broker.parts.fetch_purgatory}
        collectors: list[Collector] = [
            RequestCollector(meters, SimpleNamespace(queue_length=0), waiting),
            TopicCollector(meters, broker.parts.replicas.partitions),
            NetworkCollector({"PLAINTEXT": broker.listener}),
        ]
        self._registry = Registry(collectors, broker.clock)
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    async def again(self, names: Names = "native") -> Scraped:
        self.samples = samples(b"".join([value async for value in self._registry.render("", names).body]).decode())
        return self

    def __call__(self, name: str, **labels: str) -> float | None:
        """One sample; None when it is not there."""
        return self.samples.get((name, frozenset(labels.items())))

    def stage(self, api: str, stage: str) -> tuple[float, float]:
        """How many requests were counted in a stage, and their seconds together."""
        count = self("ottla_request_seconds_count", api=api, stage=stage)
        seconds = self("ottla_request_seconds_sum", api=api, stage=stage)
        return count or 0.0, seconds or 0.0
