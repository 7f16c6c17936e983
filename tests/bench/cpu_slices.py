"""The `ottla` command, but that a scrape's slices are measured in CPU time: what others do to the machine is not in them."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Sequence

from ottla.cli.main import main
from ottla.clock import Clock, SystemClock
from ottla.metrics import registry
from ottla.metrics.family import Collector
from ottla.metrics.kafka_view import Remembered
from ottla.metrics.rendering import Format, Names, Took, render


class ThreadClock(SystemClock):
    """The CPU time of the thread, in the place of time."""

    def monotonic(self) -> float:
        return time.thread_time()


def in_cpu_time(
    collectors: Sequence[Collector], names: Names, form: Format, remembered: Remembered, clock: Clock, took: Took
) -> AsyncIterator[bytes]:
    return render(collectors, names, form, remembered, ThreadClock(), took)


if __name__ == "__main__":
    registry.render = in_cpu_time  # type: ignore[attr-defined]  # where a registry looks for it
    sys.argv[0] = "ottla"
    main()
