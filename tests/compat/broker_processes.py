"""Three brokers, each a process of its own, and a real ZooKeeper, for tests that are not asynchronous: those of chaos, without faults.

Broker `n` is in rack `rack-n`, and consumers that name a rack read from the replica there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import views
from tests.chaos.cluster import COMMON_PROPERTIES, Cluster

T = TypeVar("T")
SECONDS = 180.0


class Brokers:
    """The cluster; its loop runs in a thread.

    Args:
        directory: for everything that it writes.
        settings: of all brokers, over those of chaos.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = Cluster(directory)
        with patch("tests.chaos.cluster.COMMON_PROPERTIES", {**COMMON_PROPERTIES, **settings}):
            self.call(self.cluster.start())

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def create_topic(self, name: str, partitions: int) -> None:
        """With three replicas, of which two have to be in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"})
        for made in admin.create_topics([topic], operation_timeout=60).values():
            made.result(SECONDS)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * SECONDS)

    def close(self) -> None:
        try:
            self.call(self.cluster.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS)
            self._loop.close()

    def leader(self, topic: str, partition: int) -> int:
        for broker in self.cluster.brokers.values():
            try:
                found = self.call(views.ask(broker.ports.client, topic)).partitions
            except OSError:
                continue
            if partition in found:
                return found[partition].leader
        return -1

    def until_whole(self, topics: dict[str, int], meanwhile: Callable[[], None]) -> None:
        """Waits until every broker says that all replicas are in sync."""
        deadline = time.monotonic() + 2 * SECONDS
        while missing := [shortcoming for topic, count in topics.items() for shortcoming in self._shortcomings(topic, count)]:
            assert time.monotonic() < deadline, missing
            meanwhile()
            time.sleep(0.2)

    def _shortcomings(self, topic: str, count: int) -> list[str]:
        try:
            return [
                shortcoming
                for broker in self.cluster.brokers.values()
                for shortcoming in self.call(views.ask(broker.ports.client, topic)).shortcomings(count)
            ]
        except OSError as error:
            return [str(error)]

    def kill(self, broker_id: int) -> None:
        self.call(self.cluster.brokers[broker_id].kill())

    def start(self, broker_id: int) -> None:
        self.call(self.cluster.brokers[broker_id].launch())
        self.call(self.cluster.brokers[broker_id].ready())
