"""A real broker inside the test's process: the same code that serves, on a free port, with a directory of its own.

    with EmbeddedCluster(topics={"clicks": 3}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

The broker has a thread of its own with an event loop of its own; the test talks to it through a socket like any client.
A test that wants to see a broker killed runs `ottla dev` as a process: a thread can not be killed.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from ottla.broker.server import Broker

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
LISTENER: Final = "PLAINTEXT"


class ClusterError(OttlaError):
    """The embedded cluster is not in the state that the call needs, or did not come to it in time."""


class EmbeddedCluster:
    """One broker with embedded coordination, for tests. A context manager; `start` and `stop` do the same by hand.

    Args:
        brokers: how many; this release has clusters of one.
        settings: broker properties under Kafka's names, over the ones for tests.
        topics: topics to create at start, each with its number of partitions.
        data_directory: kept afterwards, and used again if it has data. By default a temporary one, removed at the end.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        topics: Mapping[str, int] | None = None,
        data_directory: Path | str | None = None,
    ) -> None:
        if brokers != 1:
            raise ConfigurationError(f"an embedded cluster of {brokers} brokers can not be had: this release has one broker")
        self._settings = dict(settings or {})
        self._topics = dict(topics or {})
        self._given_directory = None if data_directory is None else Path(data_directory)
        self._directory: Path | None = self._given_directory
        self._port = 0
        self._running: _BrokerThread | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with: `127.0.0.1:PORT`. It stays the same over a restart."""
        return self._started().broker.bootstrap_servers

    def address(self, listener: str) -> str:
        """The address of one listener, for a cluster whose `listeners` are given in its settings."""
        return f"127.0.0.1:{self._started().broker.port(listener)}"

    @property
    def data_directory(self) -> Path:
        """Where the broker keeps its files: `log/` and `coordination/`."""
        if self._directory is None:
            raise ClusterError("the cluster has no directory before it is started")
        return self._directory

    def start(self) -> EmbeddedCluster:
        """Starts the broker, creates the topics and returns when it answers. Topics that are there already are kept."""
        if self._running is not None:
            raise ClusterError("the cluster is running already")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ottla-test-"))
        try:
            self._running = _BrokerThread(self._properties())
            self._port = int(self.bootstrap_servers.rpartition(":")[2])
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions=partitions)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops the broker cleanly; a temporary directory is removed."""
        try:
            if self._running is not None:
                self._running.stop()
        finally:
            self._running = None
            if self._given_directory is None and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
                self._port = 0

    def restart(self) -> None:
        """Stops the broker cleanly and starts it again on the same data and the same port."""
        self._started().stop()
        self._running = _BrokerThread(self._properties())

    def create_topic(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """Creates a topic, unless it is there, and returns its name; `settings` are the topic's, under Kafka's names.

        It goes through the first listener, which must be one without TLS.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, partitions, 1, config=dict(settings or {}))
        try:
            admin.create_topics([topic], operation_timeout=10)[name].result(15)
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return name

    def _properties(self) -> dict[str, str]:
        directory = self.data_directory
        return {
            "broker.id": "1",
            "listeners": f"{LISTENER}://127.0.0.1:{self._port}",
            "log.dirs": str(directory / "log"),
            "coordination.directory": str(directory / "coordination"),
            **self._settings,
        }

    def _started(self) -> _BrokerThread:
        if self._running is None:
            raise ClusterError("the cluster is not running: use it in a `with`, or call start()")
        return self._running

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


class _BrokerThread:
    """A thread whose event loop runs one broker, from construction until `stop`."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._request_stop: Callable[[], object] = lambda: None
        self.broker: Broker
        # A daemon: a test run that is interrupted between start and stop must still be able to end.
        self._thread = threading.Thread(target=self._run, name="ottla-embedded-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise ClusterError(f"the broker was not ready after {START_SECONDS:.0f} s")
        if self._error is not None:
            self._thread.join(STOP_SECONDS)
            raise self._error

    def stop(self) -> None:
        """Stops the broker cleanly and waits for the thread to end; raises what went wrong on the way."""
        self._request_stop()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise ClusterError(f"the broker did not stop within {STOP_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        import asyncio

        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the thread ends here; the test's thread raises it
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        import asyncio

        from ottla.broker.server import Broker
        from ottla.config.broker import BrokerSettings

        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self.broker = broker = Broker(BrokerSettings.from_properties(self._properties))
        await broker.start()
        try:
            self._request_stop = lambda: loop.call_soon_threadsafe(stopped.set)
            self._ready.set()
            await stopped.wait()
        finally:
            await broker.stop()
