"""Real brokers inside the test's process: the same code that serves, on free ports, with directories of their own.

    with EmbeddedCluster(topics={"clicks": 3}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("clicks", replication_factor=3)
        cluster.kill(cluster.leader("clicks", 0))

The brokers have a thread of their own with an event loop of its own; the test talks to them through sockets like any
client. A process can not be killed here, but `kill` leaves of a broker what `kill -9` leaves of one: files as they are,
connections cut, nobody told.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from types import TracebackType

    from ottla.broker.in_process import InProcessBrokers
    from ottla.broker.server import Broker
    from ottla.config.broker import BrokerSettings
    from ottla.model import BrokerId, PartitionState

T = TypeVar("T")

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
LISTENER: Final = "PLAINTEXT"


class ClusterError(OttlaError):
    """The embedded cluster is not in the state that the call needs, or did not come to it in time."""


class EmbeddedCluster:
    """Brokers 1 to n with embedded coordination, for tests. A context manager; `start` and `stop` do the same by hand.

    Args:
        brokers: how many.
        settings: broker properties under Kafka's names, over the ones for tests. With `zookeeper.connect` the brokers
            meet there and call each other by gRPC.
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
        if brokers < 1:
            raise ConfigurationError(f"an embedded cluster of {brokers} brokers can not be had: it takes one at least")
        self._broker_count = brokers
        self._settings = dict(settings or {})
        self._topics = dict(topics or {})
        self._given_directory = None if data_directory is None else Path(data_directory)
        self._directory: Path | None = self._given_directory
        self._ports: dict[int, int] = {}
        self._running: _ClusterThread | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with: `127.0.0.1:PORT` of each broker. It stays the same over restarts."""
        self._started()
        return ",".join(f"127.0.0.1:{port}" for _, port in sorted(self._ports.items()))

    def address(self, listener: str, broker_id: int = 1) -> str:
        """The address of one listener of a broker, for a cluster whose `listeners` are given in its settings."""
        return f"127.0.0.1:{self._broker(broker_id).port(listener)}"

    @property
    def data_directory(self) -> Path:
        """Where the brokers keep their files: `coordination/`, and `log/`, or with several brokers `broker-1/` and so on."""
        if self._directory is None:
            raise ClusterError("the cluster has no directory before it is started")
        return self._directory

    def start(self) -> EmbeddedCluster:
        """Starts the brokers, creates the topics and returns when they answer. Topics that are there already are kept."""
        if self._running is not None:
            raise ClusterError("the cluster is running already")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ottla-test-"))
        try:
            self._run()
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions=partitions)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops the brokers cleanly; a temporary directory is removed."""
        try:
            if self._running is not None:
                self._running.stop()
        finally:
            self._running = None
            if self._given_directory is None and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
                self._ports = {}

    def restart(self) -> None:
        """Stops all brokers cleanly and starts all of them again on the same data and the same ports."""
        self._started().stop()
        self._running = None
        self._run()

    # One broker of several.

    @property
    def running_brokers(self) -> list[int]:
        """The ids of the brokers that run."""
        return sorted(self._started().brokers.running)

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that was stopped or killed, on the same data and the same port."""
        thread = self._started()
        if broker_id in thread.brokers.running:
            raise ClusterError(f"broker {broker_id} is running already")
        self._note_port(thread.call(thread.brokers.start_broker(_id(broker_id)), START_SECONDS))

    def stop_broker(self, broker_id: int) -> None:
        """Stops a broker cleanly: it hands over what it leads first. As with `kill` the internal topics are made before."""
        self._broker(broker_id)
        self.make_internal_topics()
        thread = self._started()
        thread.call(thread.brokers.stop_broker(_id(broker_id)), STOP_SECONDS)

    def kill(self, broker_id: int) -> None:
        """Ends a broker as a crash does, as seen once its session has timed out. Nothing is flushed, closed or handed over.

        As `make_internal_topics` before it, if all brokers run.
        """
        self._broker(broker_id)
        self.make_internal_topics()
        thread = self._started()
        thread.call(thread.brokers.kill(_id(broker_id)), STOP_SECONDS)

    def make_internal_topics(self) -> None:
        """Makes the topics of groups and of transactions, unless they are there; of a cluster of several brokers that all run.

        Else the first client that looks for a coordinator has them made, which takes as many brokers as they have replicas: with
        one of three gone there would be no first group.
        """
        thread = self._started()
        thread.call(thread.make_internal_topics(), START_SECONDS)

    def expire_session(self, broker_id: int) -> None:
        """Has a broker's session time out while it runs. It stops leading and joins again. Not with `zookeeper.connect`."""
        self._broker(broker_id)
        if "zookeeper.connect" in self._settings:
            raise ClusterError("the sessions are ZooKeeper's to end")
        thread = self._started()
        thread.call(thread.brokers.expire_session(_id(broker_id)), STOP_SECONDS)

    @property
    def controller_id(self) -> int:
        """The broker that is the controller, as those that run know it; -1 while they know none."""

        async def controller_id() -> int:
            known = {each.metadata.controller_id for each in self._started().brokers.running.values()}
            return max((each for each in known if each in self._started().brokers.running), default=-1)

        return self._started().call(controller_id(), START_SECONDS)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, or -1."""
        state = self._partition_state(topic, partition)
        return -1 if state is None else state.leader

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers that are in sync with a partition's leader, itself included; none of a partition that is not there."""
        state = self._partition_state(topic, partition)
        return [] if state is None else sorted(state.isr)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Creates a topic, unless it is there, and returns its name; `settings` are the topic's, under Kafka's names.

        It goes through the first listener, which must be one without TLS.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, partitions, replication_factor, config=dict(settings or {}))
        try:
            admin.create_topics([topic], operation_timeout=10)[name].result(15)
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return name

    def _partition_state(self, topic: str, partition: int) -> PartitionState | None:
        """As the controller knows it, if it runs, and else as any broker does."""
        thread = self._started()

        async def state() -> PartitionState | None:
            running = thread.brokers.running
            known = [each.metadata for each in running.values()]
            known.sort(key=lambda each: each.controller_id not in running or running[each.controller_id].metadata is not each)
            return known[0].partition(topic, partition) if known else None

        return thread.call(state(), START_SECONDS)

    def _broker(self, broker_id: int) -> Broker:
        running = self._started().brokers.running
        if broker_id not in running:
            raise ClusterError(f"broker {broker_id} is not running; these are: {sorted(running) or 'none'}")
        return running[_id(broker_id)]

    def _run(self) -> None:
        ids = range(1, self._broker_count + 1)
        self._running = _ClusterThread(ids, self._settings_of, self.data_directory / "coordination")
        for broker_id in ids:
            self._note_port(self._broker(broker_id))

    def _note_port(self, broker: Broker) -> None:
        self._ports[broker.broker_id] = int(broker.bootstrap_servers.rpartition(":")[2])

    def _settings_of(self, broker_id: int) -> BrokerSettings:
        from ottla.config.broker import BrokerSettings

        directory = self.data_directory
        return BrokerSettings.from_properties(
            {
                "broker.id": str(broker_id),
                "listeners": f"{LISTENER}://127.0.0.1:{self._ports.get(broker_id, 0)}",
                "log.dirs": str(directory / (f"broker-{broker_id}" if self._broker_count > 1 else "log")),
                "coordination.directory": str(directory / "coordination"),
                # A test's consumer is assigned at once, and waits for no more of its group.
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "4",
                "offsets.topic.replication.factor": str(min(3, self._broker_count)),
                "transaction.state.log.num.partitions": "4",
                "transaction.state.log.replication.factor": str(min(3, self._broker_count)),
                "transaction.state.log.min.isr": str(min(2, self._broker_count)),
                **self._settings,
            }
        )

    def _started(self) -> _ClusterThread:
        if self._running is None:
            raise ClusterError("the cluster is not running: use it in a `with`, or call start()")
        return self._running

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def _id(broker_id: int) -> BrokerId:
    from ottla.model import BrokerId

    return BrokerId(broker_id)


class _ClusterThread:
    """A thread whose event loop runs the brokers, from construction until `stop`."""

    def __init__(self, broker_ids: range, settings_of: Callable[[int], BrokerSettings], coordination_directory: Path) -> None:
        self._broker_ids = broker_ids
        self._settings_of = settings_of
        self._coordination_directory = coordination_directory
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._request_stop: Callable[[], object] = lambda: None
        self._loop: asyncio.AbstractEventLoop
        self.brokers: InProcessBrokers
        # A daemon: a test run that is interrupted between start and stop must still be able to end.
        self._thread = threading.Thread(target=self._run, name="ottla-embedded-cluster", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise ClusterError(f"the cluster was not ready after {START_SECONDS:.0f} s")
        if self._error is not None:
            self._thread.join(STOP_SECONDS)
            raise self._error

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Runs something in the brokers' loop, and gives what it gives."""
        import asyncio
        import concurrent.futures

        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_seconds)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise ClusterError(f"it was not done after {timeout_seconds:.0f} s") from error

    async def make_internal_topics(self) -> None:
        """Makes the topics of groups and of transactions on a cluster whose brokers all run; where that fails the log says why."""
        from ottla.errors import CoordinatorNotAvailable

        running = list(self.brokers.running.values())
        if len(running) == len(self._broker_ids) > 1:
            with contextlib.suppress(CoordinatorNotAvailable):
                await running[0].make_internal_topics()

    def stop(self) -> None:
        """Stops the brokers cleanly and waits for the thread to end; raises what went wrong on the way."""
        self._request_stop()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise ClusterError(f"the cluster did not stop within {STOP_SECONDS:.0f} s")
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

        from ottla.broker.in_process import InProcessBrokers

        self._loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self.brokers = InProcessBrokers(map(_id, self._broker_ids), self._settings_of, self._coordination_directory)
        await self.brokers.start()
        self.brokers.warn_of_missing_brokers()
        try:
            self._request_stop = lambda: self._loop.call_soon_threadsafe(stopped.set)
            self._ready.set()
            await stopped.wait()
        finally:
            await self.brokers.stop()
