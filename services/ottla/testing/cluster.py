"""Real brokers inside the test's process: the same code that serves, on free ports, with directories of their own.

    with EmbeddedCluster(topics={"clicks": 3}) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("clicks", replication_factor=3)
        cluster.kill(cluster.leader("clicks", 0))

The brokers have a thread of their own with an event loop of its own; the test talks to them through sockets like any
client. A process cannot be killed here, but `kill` leaves of a broker what `kill -9` leaves of one: files as they are,
connections cut, the controller not notified.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ottla.audit_counter.server import AuditServer
    from ottla.broker.in_process import InProcessBrokers
    from ottla.broker.server import Broker
    from ottla.config.broker import BrokerSettings
    from ottla.config.listeners import Listener
    from ottla.lifecycle import LoopThread
    from ottla.model import BrokerId, PartitionState
    from ottla.schema_registry.server import SchemaRegistry

T = TypeVar("T")

START_SECONDS: Final = 120.0  # these are for what hangs: a machine with much else to do takes ten times as long as a quiet one
STOP_SECONDS: Final = 120.0
LISTENER: Final = "PLAINTEXT"
SCHEMA_REGISTRY: Final = "schema-registry"
AUDIT_COUNTER: Final = "audit-counter"

_started: Final[WeakSet[EmbeddedCluster]] = WeakSet()


def _let_go_of_all() -> None:
    for cluster in list(_started):
        cluster.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


class ClusterError(OttlaError):
    """The embedded cluster is not in the state that the call needs, or did not come to it in time."""


class EmbeddedCluster:
    """Brokers 1 to n with embedded coordination, for tests. A context manager; `start` and `stop` do the same by hand.

    Args:
        brokers: how many.
        settings: broker properties under Kafka's names, over the ones for tests. With `zookeeper.connect` the brokers
            meet there and call each other by gRPC.
        topics: topics to create at start, each with its number of partitions.
        services: what runs beside the brokers: `schema-registry`, `audit-counter`. They reach them by their first listener without TLS.
        data_directory: kept afterwards, and used again if it has data. By default a temporary one, removed at `stop` or with the process.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        topics: Mapping[str, int] | None = None,
        services: Collection[str] = (),
        data_directory: Path | str | None = None,
    ) -> None:
        if brokers < 1:
            raise ConfigurationError(f"an embedded cluster of {brokers} brokers cannot be had: it takes one at least")
        self._broker_count = brokers
        self._settings = dict(settings or {})
        for name, value in self._settings.items():
            if not isinstance(value, str):  # as a test that no type checker reads may have it
                raise ConfigurationError(f"{name} = {value!r}: a setting is a text, as in a properties file")
        if "broker.id" in self._settings:
            raise ConfigurationError(f"broker.id = {self._settings['broker.id']}: the brokers of an embedded cluster are 1 to {brokers}")
        self._topics = dict(topics or {})
        if isinstance(services, str):  # a collection of letters, for type checkers too
            raise ConfigurationError(f"services = {services!r}: it is a list, as [{services!r}]")
        if unknown := set(services) - {SCHEMA_REGISTRY, AUDIT_COUNTER}:
            raise ConfigurationError(f"there is no service {', '.join(sorted(unknown))}; there are {SCHEMA_REGISTRY} and {AUDIT_COUNTER}")
        self._registry_port: int | None = 0 if SCHEMA_REGISTRY in services else None
        self._audit_port: int | None = 0 if AUDIT_COUNTER in services else None
        if AUDIT_COUNTER in services:
            self._settings = {"audit.enable": "true", "audit.report.interval.ms": "200", **self._settings}
        # Of now: the test may change the working directory, which is the brokers' too.
        self._given_directory = None if data_directory is None else Path(data_directory).absolute()
        if "," in str(self._given_directory):
            raise ConfigurationError(f"data_directory = {self._given_directory}: its path has a comma, at which log.dirs would be parted")
        self._directory: Path | None = self._given_directory
        self._addresses: dict[int, str] = {}
        self._bound: dict[int, dict[str, str]] = {}  # the listeners of each broker, with the ports that they got at its first start
        self._ports: set[int] = set()  # of these and of the locks a forked child keeps no copy
        self._locks: set[str] = set()
        self._thread: LoopThread | None = None
        self._brokers: InProcessBrokers | None = None
        self._registry: SchemaRegistry | None = None
        self._audit: AuditServer | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with: `127.0.0.1:PORT` of each broker, or the host of its first listener. Restarts keep it."""
        self._started()
        return ",".join(address for _, address in sorted(self._addresses.items()))

    @property
    def zookeeper_address(self) -> str:
        """Where clients of ZooKeeper connect, for a cluster with the setting `coordination.listener`; `127.0.0.1:0` takes a free port."""
        address = self._started().zookeeper_address
        if address is None:
            raise ClusterError("nothing answers ZooKeeper's protocol: EmbeddedCluster(settings={'coordination.listener': '127.0.0.1:0'})")
        return address

    @property
    def schema_registry_url(self) -> str:
        """Where the schema registry answers, for a cluster with that service. It stays the same over restarts."""
        self._started()
        if self._registry is None:
            raise ClusterError(f"the cluster has no schema registry: EmbeddedCluster(services=[{SCHEMA_REGISTRY!r}])")
        return self._registry.url

    def with_schema_registry(self) -> str:
        """Starts a schema registry beside the brokers that run, unless there is one, and gives its URL."""
        self._started()
        if self._registry is None:
            self._registry = self._call(self._start_registry(self._registry_port or 0), START_SECONDS)
            self._registry_port = int(self._registry.url.rpartition(":")[2])
        return self._registry.url

    @property
    def audit_url(self) -> str:
        """Where the audit counter's page and API are, for a cluster with that service. It stays the same over restarts."""
        self._started()
        if self._audit is None:
            raise ClusterError(f"the cluster has no audit counter: EmbeddedCluster(services=[{AUDIT_COUNTER!r}])")
        return self._audit.url

    def with_audit_counter(self) -> str:
        """Starts an audit counter beside the brokers that run, unless there is one, and gives its URL."""
        self._started()
        if self._audit is None:
            self._audit = self._call(self._start_audit(self._audit_port or 0), START_SECONDS)
            self._audit_port = int(self._audit.url.rpartition(":")[2])
        return self._audit.url

    def wait_audited(self) -> None:
        """Waits until the audit counter has read and judged all that was reported by now."""
        brokers = self._started()
        assert self._audit is not None, "with_audit_counter() comes first"
        if not self._call(self._audit.counter.has_read(START_SECONDS), START_SECONDS + 1):
            raise ClusterError(
                f"the audit counter has not read all of __audit within {START_SECONDS:g} s; brokers: {list(brokers.running)}"
            )

    def address(self, listener: str, broker_id: int = 1) -> str:
        """The address of one listener of a broker, for a cluster whose `listeners` are given in its settings."""
        broker = self._broker(broker_id)
        listeners = {one.name: one for one in self._settings_of(broker_id).accepted_listeners}
        if listener not in listeners:
            raise ClusterError(f"there is no listener {listener}; there are: {', '.join(listeners)}")
        return _address(listeners[listener], broker.port(listener))

    @property
    def data_directory(self) -> Path:
        """Where the brokers keep their files: `coordination/`, and `log/`, or with several brokers `broker-1/` and so on."""
        if self._directory is None:
            raise ClusterError("the cluster has no directory before it is started")
        return self._directory

    def start(self) -> EmbeddedCluster:
        """Starts the brokers, creates the topics and returns when they answer. Topics that are there already are kept."""
        if self._brokers is not None:
            raise ClusterError("the cluster is running already")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ottla-test-"))
            atexit.register(_remove_at_exit, self._directory, os.getpid())
        try:
            self._run()
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions=partitions)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops the brokers cleanly; a temporary directory is removed. In a forked child it does nothing: both are the parent's."""
        if self._thread is not None and not self._thread.is_here:
            return
        try:
            self._stop()
        finally:
            if self._given_directory is None and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
                self._addresses, self._bound = {}, {}

    def restart(self) -> None:
        """Stops all brokers cleanly and starts all of them again on the same data and the same ports."""
        self._started()
        self._stop()
        self._run()

    # One broker of several.

    @property
    def running_brokers(self) -> list[int]:
        """The ids of the brokers that run."""
        return sorted(self._started().running)

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that was stopped or killed, on the same data and the same port."""
        brokers = self._started()
        if broker_id in brokers.running:
            raise ClusterError(f"broker {broker_id} is running already")
        if not 1 <= broker_id <= self._broker_count:
            raise ClusterError(f"there is no broker {broker_id}: the brokers of this cluster are 1 to {self._broker_count}")
        self._note_address(self._call(brokers.start_broker(_id(broker_id)), START_SECONDS))

    def stop_broker(self, broker_id: int) -> None:
        """Stops a broker cleanly: it hands over what it leads first. As with `kill` the internal topics are made before."""
        self._broker(broker_id)
        self.make_internal_topics()
        self._call(self._started().stop_broker(_id(broker_id)), STOP_SECONDS)

    def kill(self, broker_id: int) -> None:
        """Ends a broker as a crash does, as seen once its session has timed out. Nothing is flushed, closed or handed over.

        As `make_internal_topics` before it, if all brokers run.
        """
        self._broker(broker_id)
        self.make_internal_topics()
        self._call(self._started().kill(_id(broker_id)), STOP_SECONDS)

    def make_internal_topics(self) -> None:
        """Makes the topics of groups and of transactions, unless they are there; of a cluster of several brokers that all run.

        Else the first client that looks for a coordinator has them made, which takes as many brokers as they have replicas: with
        one of three gone there would be no first group.
        """
        self._call(self._make_internal_topics(self._started()), START_SECONDS)

    def expire_session(self, broker_id: int) -> None:
        """Has a broker's session time out while it runs. It stops leading and joins again. Not with `zookeeper.connect`."""
        self._broker(broker_id)
        if "zookeeper.connect" in self._settings:
            raise ClusterError("the sessions are ZooKeeper's to end")
        self._call(self._started().expire_session(_id(broker_id)), STOP_SECONDS)

    @property
    def controller_id(self) -> int:
        """The broker that is the controller, as those that run know it; -1 while they know none."""

        running = self._started().running

        async def controller_id() -> int:
            known = {broker.metadata.controller_id for broker in running.values()}
            return max((broker_id for broker_id in known if broker_id in running), default=-1)

        return self._call(controller_id(), START_SECONDS)

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

        It goes through the first listener without TLS.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._servers_without_tls()})
        topic = NewTopic(name, partitions, replication_factor, config=dict(settings or {}))
        try:
            admin.create_topics([topic], operation_timeout=50)[name].result(START_SECONDS)  # librdkafka waits for 60 s at most
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return name

    def _servers_without_tls(self) -> str:
        """What clients of the cluster's own are configured with, which have no certificates."""
        if not self._started().running:
            raise ClusterError("no broker is running: start_broker(1)")
        addresses = []
        for broker_id in sorted(self._addresses):
            listeners = self._settings_of(broker_id).accepted_listeners
            if (plain := next((one for one in listeners if not one.is_tls), None)) is None:
                named = ",".join(map(str, listeners))
                raise ClusterError(f"listeners = {named}: topics and services take one without TLS beside: PLAINTEXT://127.0.0.1:0")
            addresses.append(_address(plain, plain.port))
        return ",".join(addresses)

    def _partition_state(self, topic: str, partition: int) -> PartitionState | None:
        """As the controller knows it, if it runs, and else as any broker does."""
        brokers = self._started()

        async def state() -> PartitionState | None:
            running = brokers.running
            known = [broker.metadata for broker in running.values()]
            known.sort(
                key=lambda metadata: metadata.controller_id not in running or running[metadata.controller_id].metadata is not metadata
            )
            return known[0].partition(topic, partition) if known else None

        return self._call(state(), START_SECONDS)

    def _broker(self, broker_id: int) -> Broker:
        running = self._started().running
        if broker_id not in running:
            raise ClusterError(f"broker {broker_id} is not running; these are: {sorted(running) or 'none'}")
        return running[_id(broker_id)]

    def _run(self) -> None:
        from ottla.lifecycle import LoopThread

        _started.add(self)
        self._thread = LoopThread("ottla-embedded-cluster")
        try:
            self._brokers = self._call(self._start_brokers(), START_SECONDS)
        except BaseException:
            self._end_thread()
            raise
        for broker in self._brokers.running.values():
            self._note_address(broker)
        try:
            # First, as it makes the topic of the audit with copies: the brokers make it with one once the registry writes.
            if self._audit_port is not None:
                self.with_audit_counter()
            if self._registry_port is not None:
                self.with_schema_registry()
        except BaseException:
            self._stop()
            raise

    def let_go(self) -> None:
        """In a forked child: with its copies of sockets and locks the parent could neither cut a connection nor start a broker again.

        The null device takes their numbers, which what the child inherited may close yet.
        """
        with suppress(OSError), open(os.devnull, "r+b", 0) as null:
            for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
                with suppress(OSError):
                    if self._is_of_brokers(fd):
                        os.dup2(null.fileno(), fd, inheritable=False)

    def _is_of_brokers(self, fd: int) -> bool:
        from socket import SOCK_STREAM, socket

        link = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  a Path would take its name for relative
        if not link.startswith("socket:"):
            return link in self._locks
        with socket(fileno=os.dup(fd)) as copy:
            name = copy.getsockname() if copy.type == SOCK_STREAM else ""
        return isinstance(name, tuple) and name[1] in (*self._ports, self._registry_port, self._audit_port)

    async def _start_brokers(self) -> InProcessBrokers:
        from ottla.broker.in_process import InProcessBrokers

        ids = map(_id, range(1, self._broker_count + 1))
        brokers = InProcessBrokers(ids, self._settings_of, self.data_directory / "coordination")
        await brokers.start()
        brokers.warn_of_missing_brokers()
        return brokers

    def _stop(self) -> None:
        """Stops the brokers cleanly, if they run, and raises what went wrong on the way."""
        running = self._brokers, self._registry, self._audit
        self._brokers = self._registry = self._audit = None
        with ExitStack() as stack:
            stack.callback(self._end_thread)
            for service in running:
                if service is not None:
                    stack.callback(lambda stop: self._call(stop(), STOP_SECONDS), service.stop)

    async def _start_registry(self, port: int) -> SchemaRegistry:
        from ottla.config.registry import RegistrySettings
        from ottla.schema_registry.server import SchemaRegistry

        properties = {
            "listeners": f"http://127.0.0.1:{port}",
            "kafkastore.bootstrap.servers": self._servers_without_tls(),
            "kafkastore.topic.replication.factor": str(min(3, self._broker_count)),
        }
        registry = SchemaRegistry(RegistrySettings.from_properties(properties))
        await registry.start()
        return registry

    async def _start_audit(self, port: int) -> AuditServer:
        from ottla.audit_counter.server import AuditServer
        from ottla.config.audit import AuditSettings

        properties = {
            "rest.listener": f"127.0.0.1:{port}",
            "bootstrap.servers": self._servers_without_tls(),
            "audit.directory": str(self.data_directory / "audit"),
            "audit.topic.replication.factor": str(min(3, self._broker_count)),
        }
        if self._settings.get("audit.enable") == "true":
            properties["audit.tiers"] = "producer,broker"
        if (window_ms := self._settings.get("audit.window.ms")) is not None:  # the same at every tier
            properties["audit.window.ms"] = window_ms
        audit = AuditServer(AuditSettings.from_properties(properties))
        await audit.start()
        return audit

    def _end_thread(self) -> None:
        _started.discard(self)  # others may have its ports
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(STOP_SECONDS)

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Runs something in the brokers' loop, and gives what it gives."""
        assert self._thread is not None, "the caller has looked whether the cluster runs"
        try:
            return self._thread.call(coroutine, timeout_seconds)
        except TimeoutError as error:
            raise ClusterError(str(error)) from error

    async def _make_internal_topics(self, brokers: InProcessBrokers) -> None:
        """Makes them on a cluster whose brokers all run. Where a topic takes more brokers than there are, the log says so."""
        import asyncio

        from ottla.errors import CoordinatorNotAvailable, InvalidReplicationFactor

        running = list(brokers.running.values())
        while len(running) == self._broker_count > 1:
            try:
                return await running[0].make_internal_topics()
            except CoordinatorNotAvailable as error:
                if isinstance(error.__cause__, InvalidReplicationFactor):
                    return None
            await asyncio.sleep(0.01)  # a topic was made and is not known to that broker yet: the other one is still to be made
        return None

    def _note_address(self, broker: Broker) -> None:
        settings = self._settings_of(broker.broker_id)
        listeners = settings.accepted_listeners
        self._addresses[broker.broker_id] = _address(listeners[0], int(broker.bootstrap_servers.rpartition(":")[2]))
        bound = [replace(listener, port=broker.port(listener.name)) for listener in listeners]
        self._bound[broker.broker_id] = {"listeners": ",".join(map(str, bound))}
        self._ports.update(listener.port for listener in bound)
        self._locks.update(str(directory.resolve() / ".lock") for directory in settings.log_directories)
        if settings.http_listener:
            self._ports.add(broker.http_port)
        if (address := self._started().zookeeper_address) is not None:
            self._bound[broker.broker_id]["coordination.listener"] = address
            self._ports.add(int(address.rpartition(":")[2]))

    def _settings_of(self, broker_id: int) -> BrokerSettings:
        from ottla.config.broker import BrokerSettings

        directory = self.data_directory
        return BrokerSettings.from_properties(
            {
                "broker.id": str(broker_id),
                "listeners": f"{LISTENER}://127.0.0.1:0",
                ("log.dir" if "log.dir" in self._settings else "log.dirs"): str(
                    directory / (f"broker-{broker_id}" if self._broker_count > 1 else "log")
                ),
                "coordination.directory": str(directory / "coordination"),
                # A test's consumer is assigned at once, and waits for no more of its group.
                "group.initial.rebalance.delay.ms": "0",
                # Its records may be of 1970, and must not go when the run has lasted for five minutes.
                "log.retention.hours": "-1",
                "offsets.topic.num.partitions": "4",
                "offsets.topic.replication.factor": str(min(3, self._broker_count)),
                "transaction.state.log.num.partitions": "4",
                "transaction.state.log.replication.factor": str(min(3, self._broker_count)),
                "transaction.state.log.min.isr": str(min(2, self._broker_count)),
                **self._settings,
                **self._bound.get(broker_id, {}),
            }
        )

    def _started(self) -> InProcessBrokers:
        if self._brokers is None:
            raise ClusterError("the cluster is not running: use it in a `with`, or call start()")
        return self._brokers

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _remove_at_exit(directory: Path, process_id: int) -> None:
    """Of a program or a notebook that ends without `stop`. Nothing, if that removed it, and in a forked child."""
    if os.getpid() == process_id:
        shutil.rmtree(directory, ignore_errors=True)


def _address(listener: Listener, port: int) -> str:
    """Where a client on this machine reaches a listener, which with a host of its own answers there alone."""
    from ottla.config.listeners import ANY_HOST

    if listener.host in ANY_HOST | {"localhost"}:
        return f"127.0.0.1:{port}"
    return str(replace(listener, port=port)).removeprefix(f"{listener.name}://")


def _id(broker_id: int) -> BrokerId:
    from ottla.model import BrokerId

    return BrokerId(broker_id)
