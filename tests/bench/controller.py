"""Another broker becomes the controller of a cluster with thousands of partitions, because the first was killed.

Half of the topics have one replica, half two; three brokers. The time counts from when the killed controller's session
has ended, which ZooKeeper decides and not its size (`failover` has that part), until both brokers that live say who leads
each partition: another replica where there is one in sync, nobody where there is none. How it grows is measured on one
cluster that is given more topics between the kills.

A broker needs a file for each log that was written to; these are empty, and the limit on open files is looked at first.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from kazoo.client import KazooClient
from tests.bench import admin, cluster, wire
from tests.bench.admin import NO_LEADER, PartitionView
from tests.bench.cluster import Cluster, Member
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.options import MIB, Options
from tests.bench.processes import ChildFailed, cpu_seconds, resident_bytes

SIZES: Final = (2_500, 5_000, 10_000)
SIZES_QUICK: Final = (500, 1_000)
PARTITIONS_A_TOPIC: Final = 100
TARGET_SECONDS: Final = 5.0
KILLS: Final = 3
TIMEOUT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.005

Partitions = Mapping[tuple[str, int], PartitionView]


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds since the former controller's session ended, but for the first, which is how long that took from the kill on."""

    session_ended: float
    elected: float
    right: float
    cpu: float
    """What the new controller's process spent until then."""
    memory: float


class ControllerWatch:
    """Sees `/controller` go and come in ZooKeeper. A context manager."""

    def __init__(self, address: str) -> None:
        self._client: Any = KazooClient(hosts=f"{address}/bench")
        self._went_at: float | None = None
        self._came_at: float | None = None
        self._has_come = threading.Event()

    def __enter__(self) -> ControllerWatch:
        self._client.start(30)
        self._client.DataWatch("/controller", self._changed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.stop()
        self._client.close()

    def again(self) -> tuple[float, float]:
        """Waits until it has gone and come again; gives when."""
        if not self._has_come.wait(TIMEOUT_SECONDS):
            raise wire.UnexpectedAnswer(f"there is no new controller after {TIMEOUT_SECONDS:.0f} s")
        assert self._went_at is not None and self._came_at is not None
        return self._went_at, self._came_at

    def _changed(self, data: bytes | None, stat: Any) -> None:
        now = time.perf_counter()
        if data is None:
            self._went_at = self._went_at or now
        elif self._went_at is not None and self._came_at is None:
            self._came_at = now
            self._has_come.set()
