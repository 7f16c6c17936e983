"""Collectors that give what they are told, and what of it a parser that is not ours reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ottla.metrics.family import Collector, Family, Pause
from ottla.metrics.registry import Registry
from ottla.metrics.rendering import Names
from ottla.testing.clock import ManualClock

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Given:
    """A collector of the given families."""

    def __init__(self, *families: Family | Pause) -> None:
        self.families = families

    def collect(self) -> Iterator[Family | Pause]:
        yield from self.families


async def slices(registry: Registry, accept: str = "", names: Names = "native") -> list[bytes]:
    return [value async for value in registry.render(accept, names).body]


def text_of(registry: Registry, accept: str = "", names: Names = "native") -> str:
    return b"".join(asyncio.run(slices(registry, accept, names))).decode()


def registry_of(*collectors: Collector) -> Registry:
    return Registry(collectors, ManualClock())


def rendered(*families: Family | Pause, accept: str = "", names: Names = "native") -> str:
    return text_of(registry_of(Given(*families)), accept, names)


def parsed(text: str) -> dict[str, Any]:
    """The families by the name that they have in the format."""
    families: Iterable[Any] = parse_openmetrics(text) if text.endswith("# EOF\n") else parse_text(text)
    return {family.name: family for family in families}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and labels."""
    return {(sample.name, frozenset(sample.labels.items())): sample.value for family in parsed(text).values() for sample in family.samples}


def sample(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]
