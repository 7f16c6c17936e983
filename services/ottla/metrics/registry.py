"""The collectors of one service, and what is rendered of them when it is scraped.

Made once, by the composition root of the service. Nothing is collected before a scrape.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from ottla.clock import Clock
from ottla.metrics import service
from ottla.metrics.family import Collector, Family, Pause, single
from ottla.metrics.kafka_view import Remembered
from ottla.metrics.rendering import Format, Names, Took, format_for, render


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer to a scrape: its type, and its body as it comes about."""

    content_type: str
    body: AsyncIterator[bytes]


class Registry:
    """All that a service shows of itself.

    Args:
        collectors: in the order in which they are shown.
        clock: for how long a scrape takes.
    """

    def __init__(self, collectors: Sequence[Collector], clock: Clock) -> None:
        self._collectors = (*collectors, self)
        self._clock = clock
        self._remembered = Remembered(clock)
        self._took: Took | None = None

    def render(self, accept: str = "", names: Names = "native") -> Rendered:
        """The exposition.

        Args:
            accept: the request's Accept header.
            names: ours, or those of Kafka's JMX exporter.
        """
        form = format_for(accept)
        return Rendered(form.content_type, self._body(form, names))

    async def _body(self, form: Format, names: Names) -> AsyncIterator[bytes]:
        took = Took()
        async for part in render(self._collectors, names, form, self._remembered, self._clock, took):
            yield part
        self._took = took

    def collect(self) -> Iterator[Family | Pause]:
        """What the scrape before this one took."""
        if self._took is not None:
            yield single(service.SCRAPE_SECONDS, self._took.seconds)
            yield single(service.SCRAPE_LONGEST_SLICE, self._took.longest_slice)
