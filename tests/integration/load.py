"""Applications that publish and read all the time while a test breaks things, each with its library's own defaults.

A failed delivery is an error of the test, whichever client it comes from: brokers that are restarted one after the other,
and even one that is killed, are no reason for an application to see anything but a pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.compat.failover_clients import APPLICATIONS, Application, Flow
from tests.integration.containers import wait_until

WAIT_SECONDS: Final = 240.0


class Load:
    """Each application's flow, and what has come of all of them."""

    def __init__(self, address: str, topics: dict[str, str]) -> None:
        self.flows = {name: Flow(address, topic) for name, topic in topics.items()}
        self._publishers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def start(self, applications: Sequence[Application]) -> None:
        for application in applications:
            flow = self.flows[application.name]
            self._publishers.append(self._started(application.publish, flow))
            self._readers.append(self._started(application.read, flow))

    @staticmethod
    def _started(what: Callable[[Flow], None], flow: Flow) -> threading.Thread:
        def run() -> None:
            try:
                what(flow)
            except Exception as error:
                flow.failed(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    @property
    def acknowledged(self) -> int:
        return sum(len(flow.acknowledged) for flow in self.flows.values())

    def more(self, count: int = 30, seconds: float = WAIT_SECONDS) -> float:
        """Waits until every application has that many more acknowledged and read; for how long that took."""
        started = time.monotonic()
        goals = {name: len(flow.acknowledged) + count for name, flow in self.flows.items()}

        def is_met() -> bool:
            self.no_errors()
            return all(min(len(flow.acknowledged), len(flow.read)) >= goals[name] for name, flow in self.flows.items())

        wait_until(f"{count} more there and back with each client", is_met, seconds, self._counts)
        return time.monotonic() - started

    def _counts(self) -> str:
        return "; ".join(f"{name}: {len(flow.acknowledged)} acknowledged, {len(flow.read)} read" for name, flow in self.flows.items())

    def no_errors(self) -> None:
        errors = {name: flow.errors[:3] for name, flow in self.flows.items() if flow.errors}
        assert not errors, f"clients saw errors: {errors}"

    def finish(self) -> None:
        """Nothing acknowledged is missing, none came twice, and all are in their order."""
        self._stop_publishing()
        assert not any(publisher.is_alive() for publisher in self._publishers), f"a publisher does not end. {self._counts()}"
        self.no_errors()
        wait_until(
            "everything acknowledged is read",
            lambda: all(len(flow.read) >= len(flow.acknowledged) for flow in self.flows.values()),
            WAIT_SECONDS,
            self._counts,
        )
        self.stop()
        assert not any(reader.is_alive() for reader in self._readers), f"a reader does not end. {self._counts()}"
        for name, flow in self.flows.items():
            assert flow.read == sorted(flow.acknowledged, key=int), f"{name}: in order, none twice and none missing"

    def _stop_publishing(self) -> None:
        for flow in self.flows.values():
            flow.stop_publishing.set()
        for publisher in self._publishers:
            publisher.join(WAIT_SECONDS)

    def stop(self) -> None:
        for flow in self.flows.values():
            flow.stop_publishing.set()
            flow.stop_reading.set()
        for reader in self._readers:
            reader.join(WAIT_SECONDS)


@contextmanager
def load(address: str, topics: dict[str, str]) -> Iterator[Load]:
    """Runs the applications; at the end of the block what they have is judged."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # the Python clients tell of every connection that ends
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    running = Load(address, topics)
    running.start([application for application in APPLICATIONS if application.name in topics])
    try:
        yield running
        running.finish()
    finally:
        running.stop()
