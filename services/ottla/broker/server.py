"""A broker, put together: what exists, in which order it starts, and in which order it stops.

This is the only module that knows all the others. It decides nothing about requests, logs or topics; it makes the
parts, hands each what it needs, and takes them down again in reverse, whatever fails on the way.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from ottla.broker import handlers
from ottla.broker.applying import ControlApplier
from ottla.broker.controller.service import ControllerService
from ottla.broker.controller.settings_watch import BrokerConfigChanged, SettingsChange, TopicConfigChanged
from ottla.broker.dispatcher import Dispatcher
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.groups.coordinator import OFFSETS_TOPIC, group_coordinator
from ottla.broker.handlers.fetch_reading import is_here
from ottla.broker.handlers.internal_topics import internal_topic, warn_of_missing_brokers
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.identity import LOCAL, canonical_host_name, with_broker_id
from ottla.broker.measuring.measured import Measured
from ottla.broker.metadata import MetadataCache
from ottla.broker.observing import Observation, RunningBroker
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.purgatory import Purgatory
from ottla.broker.readiness import Phase
from ottla.broker.replication.fetchers import Fetchers
from ottla.broker.replication.following import Connect
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.replication.schema_ids import SchemaIds
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.security.authorizer import AllowAll, Authorizer
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC, transactions_of
from ottla.clock import Clock, SystemClock
from ottla.config.broker import BrokerSettings
from ottla.config.settings import INT_MAX
from ottla.coordination.errors import ConnectionLoss, SessionExpired
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import CoordinationSessions, OpenSession, former_session_seconds, sessions_of
from ottla.errors import OttlaError, PortInUse
from ottla.interbroker.calls import MakeTransport
from ottla.interbroker.local import LocalControl
from ottla.lifecycle import Offload, Tasks, ThreadOffload, speaking, speaking_broker
from ottla.model import CLOSED_BY_KAFKA, NO_LEADER, BrokerId, BrokerRegistration, Endpoint
from ottla.network.buffers import ReceiveBuffers, memory_of_process
from ottla.network.complaints import Complaints
from ottla.network.listener import AnyListener, ConnectionLimits, Listener
from ottla.network.tls import TlsSettings, check_between_brokers, client_context, server_context
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.compaction.cleaner import LogCleaner
from ottla.storage.compaction.runner import InlineRunner, ProcessRunner
from ottla.storage.file_pool import descriptors_for_sockets
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves
from ottla.takeover.first_start import check_before_start, write_down
from ottla.wire.connection import OVERHEAD, SocketConnection, open_connection

log = logging.getLogger(__name__)

# Disk reads, fsyncs and decoding outside the loop. More threads than cores, because most of them wait for the disk.
OFFLOAD_THREADS: Final = 8
# A peer that takes nothing of an answer for so long is gone, whatever TCP believes.
STALL_SECONDS: Final = 30.0
# The least that a broker which stops gives the controller, however short the pauses between its attempts. With the default
# pauses, 3 of 5 s, and all else that it waits for in vain, a stop ends within the 30 s that containers are given.
HAND_OVER_SECONDS: Final = 10.0
# Between two attempts to start.
PAUSE_SECONDS: Final = 0.5
# The longest that a broker which starts waits to hear from a controller before it answers clients.
FIRST_WORD_SECONDS: Final = 10.0


class Broker:
    """One broker of a cluster.

    Args:
        settings: its configuration.
        open_session: gives sessions to coordinate by; by default with `zookeeper.connect`, or with an embedded twin of its own.
        authorizer: who may do what; by default everyone everything.
        transport: how it reaches other brokers; by default by gRPC with `zookeeper.connect`, and without it there are none.
        connect: opens the connections that followers fetch by; by default over TCP.
        offload: runs what blocks; by default threads of the broker's own.
        listener: makes the listeners.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        open_session: OpenSession | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        authorizer: Authorizer | None = None,
        transport: MakeTransport | None = None,
        connect: Connect | None = None,
        offload: Offload | None = None,
        listener: Callable[..., AnyListener] = Listener,
    ) -> None:
        self._clock = clock or SystemClock()
        self.metadata = MetadataCache(self._clock)
        self._settings = settings
        self._open_session = open_session
        self._random = random or Random()
        self._authorizer = authorizer or AllowAll()
        self._make_transport = transport
        self._connect = connect
        self._offload = offload
        self._make_listener = listener
        self._listeners: dict[str, AnyListener] = {}
        self._stack = AsyncExitStack()
        self._is_killed = False
        self._handover_attempts: int | None = None
        self._host = LOCAL
        self._has_session = False
        self._all_failed = asyncio.Event()
        self._beside: Final = Tasks()
        self._notices: Final = Tasks()  # of failed log directories: for as long as ZooKeeper does not take them
        self._observation = Observation(settings, self._clock)
        self.parts: BrokerParts  # once it has started

    async def start(self) -> None:
        """Starts, or fails and leaves nothing behind.

        The coordination service has to be there within `zookeeper.connection.timeout.ms`. A session that is lost or ends on the
        way makes for another attempt, which is given as long again: anyone who starts a broker may rely on it to wait.

        Raises:
            OttlaError: a setting, a data directory or the coordination is not usable; says which and why.
        """
        with speaking(self._settings.broker_id):
            async with AsyncExitStack() as stack:
                await self._observation.start(stack)
                await self._start_trying(stack)
                self._stack = stack.pop_all()

    async def _start_trying(self, stack: AsyncExitStack) -> None:
        while True:
            self._has_session = False
            try:
                async with AsyncExitStack() as attempt:
                    await self._start(attempt)
                    stack.push_async_exit(attempt.pop_all())
                    return
            except (ConnectionLoss, SessionExpired) as error:
                if not self._has_session:
                    raise
                log.warning("startup failed, retrying: %s", error)
            await self._observation.health.enter(Phase.STARTING)
            await asyncio.sleep(PAUSE_SECONDS)

    async def stop(self, *, handover_attempts: int | None = None) -> None:
        """Stops cleanly: leaderships handed over, waiting requests answered, logs flushed and checkpointed. Again it does nothing.

        Args:
            handover_attempts: how often to have others lead first, if `controlled.shutdown.enable` says so; by default as its retries say.
        """
        self._handover_attempts = handover_attempts
        with speaking(self._settings.broker_id):
            try:
                await self._observation.health.enter(Phase.STOPPING)
            finally:
                await self._stack.aclose()

    async def kill(self) -> None:
        """Ends as a crash does once the session has timed out: connections cut, nothing flushed, the controller not notified."""
        self._is_killed = True
        self._session_lost()
        for listener in self._listeners.values():
            listener.abort()
        try:
            await self._sessions.close()
        finally:
            await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until the broker cannot continue, and says why: every log directory has failed."""
        await self._all_failed.wait()
        failed = "; ".join(f"{path}: {reason}" for path, reason in self._logs.offline_directories.items())
        return f"every log directory has failed: {failed}"

    async def make_internal_topics(self) -> None:
        """Makes the topics of groups and of transactions, which else the first client to look for a coordinator does.

        Raises:
            CoordinatorNotAvailable: one cannot be made; says why.
        """
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await internal_topic(name, self.parts)

    def warn_of_missing_brokers(self) -> None:
        """Says in the log if there are too few brokers for groups and transactions; called once all brokers of the process run."""
        with speaking(self._settings.broker_id):
            warn_of_missing_brokers(self._settings, self.metadata)

    def port(self, listener_name: str = "PLAINTEXT") -> int:
        return self._listeners[listener_name].port

    @property
    def http_port(self) -> int:
        return self._observation.http_port

    @property
    def broker_id(self) -> BrokerId:
        """Which broker it is; one that makes its id has it once it has started."""
        return BrokerId(self._settings.broker_id)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the first listener, as clients take it."""
        endpoint = self._endpoints(self._settings)[0]
        return f"{endpoint.host}:{endpoint.port}"

    @property
    def connection_count(self) -> int:
        return sum(listener.connection_count for listener in self._listeners.values())

    async def _start(self, stack: AsyncExitStack) -> None:
        _log_settings_without_effect(self._settings.given, self._settings.ignored)
        offload = self._offload or _threads(stack)
        open_session = self._open_session or sessions_of(self._settings, self._settings.coordination_path, self._clock, stack)
        sessions = self._sessions = CoordinationSessions(open_session, self._session_lost, self._session_renewed)
        stack.push_async_callback(sessions.close)
        coordination = await sessions.open()
        self._has_session = True
        settings = self._settings = await with_broker_id(self._settings, coordination, offload)
        if settings.needs_host_name:
            self._host = await offload(canonical_host_name)
        broker_id, metadata = self.broker_id, self.metadata
        speaking_broker.set(broker_id)

        service = self._service = ControllerService(
            coordination,
            settings,
            self._clock,
            self._random,
            self._make_transport or transport_of(settings, self._host),
            self._settings_changed,
            self._controller_changed,
            metadata,
            former_session_seconds(settings),
        )
        transport = service.transport
        stack.push_async_callback(transport.close)

        # Anyone who brings an offload has no processes to start.
        opener = BatchOpener(offload, has_process=self._offload is None)
        stack.push_async_callback(opener.close)
        logs = self._logs = LogManager(settings.log_directories, settings, self._clock, offload, service.topic_settings, opener=opener)
        fetches, produces = Purgatory(), Purgatory()
        replicas = self._replicas = ReplicaManager(
            broker_id, logs, fetches, produces, clock=self._clock, lag_time_max_ms=settings.replica_lag_time_max_ms
        )
        throttles = self._throttles = ReplicationThrottles(self._clock, settings)
        connect = self._connect or self._over_sockets()
        fetchers = self._fetchers = Fetchers(
            broker_id, service, settings, self._clock, connect, replicas.partitions, metadata, throttles.follower
        )
        replicas.following = fetchers
        logs.directory_failed = self._directory_failed
        log_moves = LogMoves(logs, settings.log_directories, offload, replicas.log_moved)
        runner = ProcessRunner() if self._offload is None else InlineRunner(offload)
        cleaner = self._cleaner = LogCleaner(logs.logs, replicas.high_watermarks, settings, self._clock, offload, runner)
        internal = InternalTopics(replicas, produces, self._clock, offload)
        groups = self._groups = group_coordinator(settings, internal, self._clock, self._random, offload, metadata)
        producer_ids = ProducerIds(service.allocate_producer_ids)
        transactions = transactions_of(settings, internal, self._clock, offload, metadata, producer_ids, transport, groups, service)
        replicas.coordinate({OFFSETS_TOPIC: groups, TRANSACTIONS_TOPIC: transactions.coordinator})
        coordinators = groups, transactions.coordinator
        applier = self._applier = ControlApplier(broker_id, service, metadata, replicas, coordinators, transactions.calls)
        user_info = settings.confluent_basic_auth_user_info
        schema_ids = SchemaIds(settings.confluent_schema_registry_url, user_info.value if user_info else None, self._clock)
        stack.callback(schema_ids.close)
        parts = self.parts = BrokerParts(
            settings=settings,
            clock=self._clock,
            offload=offload,
            opener=opener,
            authorizer=self._authorizer,
            metadata=metadata,
            replicas=replicas,
            logs=logs,
            log_moves=log_moves,
            controller=service,
            producer_ids=producer_ids,
            fetch_sessions=FetchSessions(
                settings.max_incremental_fetch_session_cache_slots, self._clock, self._random, partial(is_here, metadata, replicas)
            ),
            fetch_purgatory=fetches,
            throttles=throttles,
            groups=groups,
            transactions=transactions,
            schema_ids=schema_ids,
        )
        self._observation.watch(RunningBroker(broker_id, service, applier, replicas.partitions, logs, metadata, transport))
        handlers.load()
        dispatcher = Dispatcher(parts, produces, settings.queued_max_requests)
        stack.callback(dispatcher.close)
        self._observation.measure(stack, Measured(parts, dispatcher, produces, self._listeners, service, sessions, fetchers, cleaner))

        # Bound before anything is read or registered: a port that is taken is found out first, and a free one is known.
        await self._bind(stack, dispatcher, offload)
        takeover = await check_before_start(coordination, settings, offload)  # before anything is written
        control_endpoint = await transport.serve(broker_id, applier, service.served)
        await service.load()
        self._take_effect(service.settings)
        metadata.cluster_id = service.cluster_id
        stack.push_async_callback(service.close)
        await self._observation.health.enter(Phase.RECOVERING)
        await logs.start(service.cluster_id, was_left_by_kafka=takeover is not None)
        await self._observation.health.enter(Phase.STARTING)
        stack.push_async_callback(self._close_logs)
        if takeover is not None:
            online = [path for path in settings.log_directories if path not in logs.offline_directories]
            await write_down(takeover, online, offload, self._clock.time_ms())
        stack.push_async_callback(log_moves.close)
        cleaner.start()
        stack.push_async_callback(cleaner.close)
        replicas.start(service)
        stack.push_async_callback(replicas.close)
        groups.start()
        stack.push_async_callback(groups.close)
        transactions.coordinator.start()
        stack.push_async_callback(transactions.coordinator.close)
        stack.push_async_callback(fetchers.close)
        stack.push_async_callback(self._close_listeners)
        stack.callback(produces.expire_all)
        stack.callback(fetches.expire_all)
        stack.push_async_callback(applier.close)
        closed_by_kafka = takeover is not None and logs.closed_without_epoch
        await service.start(
            BrokerRegistration(
                broker_id,
                self._endpoints(service.settings),
                settings.broker_rack,
                control_endpoint=control_endpoint,
                previous_broker_epoch=CLOSED_BY_KAFKA if closed_by_kafka else logs.clean_shutdown_epoch,
                control_secret=transport.secret,
            )
        )
        sessions.keep()
        stack.push_async_callback(sessions.stop_renewing)
        stack.push_async_callback(self._hand_over)
        await self._first_word()
        for listener in self._listeners.values():
            await listener.start()
        await self._start_audit(stack, replicas, offload)
        log.info("broker %d serves %s", broker_id, ", ".join(map(str, self._endpoints(service.settings))))
        await self._observation.health.enter(Phase.RUNNING)

    async def _start_audit(self, stack: AsyncExitStack, replicas: ReplicaManager, offload: Offload) -> None:
        if not self._settings.audit_enable:
            return
        try:
            from ottla.broker.auditing.tier import start_tier
        except ModuleNotFoundError as error:
            raise OttlaError(f"audit.enable is true, and {error.name} is not installed: pip install 'ottla[audit]'") from error
        reached = self._endpoints(self._settings), self._tls_between_brokers()
        await start_tier(
            stack,
            self._settings,
            *reached,
            replicas,
            self._clock,
            offload,
            self._service.cluster_id,
            lambda: self.metadata.brokers.keys() <= {self.broker_id},
        )

    async def _first_word(self) -> None:
        """Waits for a controller to say what there is: a client that asked before would hear that there are no topics."""
        try:
            async with asyncio.timeout(FIRST_WORD_SECONDS):
                await self.metadata.complete.wait()
        except TimeoutError:
            log.warning(
                "broker %d has received no request from a controller for %g s; serving clients anyway", self.broker_id, FIRST_WORD_SECONDS
            )

    async def _hand_over(self) -> None:
        settings = self._settings
        if self._handover_attempts == 0 or self._is_killed or not settings.controlled_shutdown_enable:
            return
        await self._observation.health.enter(Phase.DRAINING)
        pauses = settings.controlled_shutdown_max_retries * settings.controlled_shutdown_retry_backoff_ms / 1000
        try:
            async with asyncio.timeout(max(HAND_OVER_SECONDS, pauses)):
                await self._service.controlled_shutdown(self._handover_attempts)
        except TimeoutError:
            log.warning("broker %d stops without controlled shutdown: no controller answers", self.broker_id)
        await self._observation.health.enter(Phase.STOPPING)

    async def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            await listener.close()

    async def _close_logs(self) -> None:
        self._notices.cancel()
        try:
            await self._beside.wait()
        finally:
            await self._logs.shutdown(clean=not self._is_killed, broker_epoch=self._service.broker_epoch)

    def _directory_failed(self, directory: Path, reason: str) -> None:
        """A log directory has failed: others are to lead what was in it. With the last of them nothing is left to serve."""
        self._replicas.directory_failed()
        self._notices.begin(self._service.log_directory_failed())
        if len(self._logs.offline_directories) == len(self._settings.log_directories):
            self._all_failed.set()

    def _session_lost(self) -> None:
        """Others may lead by now what this broker led, so it stops at once."""
        self._applier.session_lost()
        self._service.session_lost()
        self.metadata.controller_id = NO_LEADER

    async def _session_renewed(self, coordination: Coordination) -> None:
        await self._service.rejoin(coordination)

    def _controller_changed(self, controller_id: BrokerId, controller_epoch: int) -> None:
        self._applier.controller_changed(controller_id, controller_epoch)

    def _settings_changed(self, change: SettingsChange) -> None:
        match change:
            case TopicConfigChanged(name, topic_settings):
                self._replicas.update_settings(name, topic_settings)
            case BrokerConfigChanged(_, overrides, settings):
                self._take_effect(settings)
                log.info("settings changed while running: %s", ", ".join(sorted(overrides)) or "none is overridden any more")
                _log_settings_without_effect(overrides)
                self._beside.begin(self._service.advertise(self._endpoints(settings)))

    def _take_effect(self, settings: BrokerSettings) -> None:
        """What may change while the broker runs, at the start too: it may have been changed in an earlier run."""
        self._logs.update_settings(settings)
        self._throttles.update(settings)
        self._cleaner.update_settings(settings)
        self._fetchers.update_settings(settings)
        self._limits.update(*connection_bounds(settings), settings.connections_per_address)

    def _tls_between_brokers(self) -> ssl.SSLContext | None:
        listener = self._settings.inter_broker_listener
        if not listener.is_tls:
            return None
        settings = self._settings.for_listener(listener.name)
        if settings.zookeeper_connect is not None:
            check_between_brokers(TlsSettings.of(settings))
        return client_context(TlsSettings.of(settings), check_host_name=bool(settings.ssl_endpoint_identification_algorithm))

    def _over_sockets(self) -> Connect:
        """How followers here reach the leaders of their partitions: as the listener between brokers is reached."""
        tls = self._tls_between_brokers()

        async def connect(endpoint: Endpoint) -> SocketConnection:
            now = self._service.settings
            usual_size = now.replica_fetch_response_max_bytes + OVERHEAD
            return await open_connection(
                endpoint,
                tls,
                usual_size=usual_size,
                # A single batch may exceed what was asked for (KIP-74); no batch is larger than the request that it came in.
                limit=usual_size + now.socket_request_max_bytes,
                receive_buffer_bytes=now.replica_socket_receive_buffer_bytes,
            )

        return connect

    def _endpoints(self, settings: BrokerSettings) -> tuple[Endpoint, ...]:
        return settings.advertised_endpoints(self._host, {name: listener.port for name, listener in self._listeners.items()})

    async def _bind(self, stack: AsyncExitStack, dispatcher: Dispatcher, offload: Offload) -> None:
        settings = self._settings
        limits = self._limits = ConnectionLimits(*connection_bounds(settings), settings.connections_per_address)
        complaints = Complaints(self._clock.monotonic)
        most = settings.queued_max_request_bytes if settings.queued_max_request_bytes > 0 else memory_of_process() // 4
        buffers = ReceiveBuffers(most, max(most // 4, 1))
        for accepted_listener in settings.accepted_listeners:
            idle_ms = settings.connections_max_idle_ms
            listener = self._make_listener(
                accepted_listener.name,
                limits=limits,
                buffers=buffers,
                offload=offload,
                max_frame_size=settings.socket_request_max_bytes,
                idle_seconds=idle_ms / 1000 if idle_ms >= 0 else float("inf"),
                stall_seconds=STALL_SECONDS,
                open_receiver=dispatcher.open,
                tls=server_context(TlsSettings.of(settings.for_listener(accepted_listener.name))) if accepted_listener.is_tls else None,
                complaints=complaints,
                is_protected=len(settings.accepted_listeners) > 1 and accepted_listener == settings.inter_broker_listener,
            )
            try:
                await listener.bind(
                    accepted_listener.host,
                    accepted_listener.port,
                    backlog=settings.socket_listen_backlog_size,
                    receive_buffer_bytes=settings.socket_receive_buffer_bytes,
                    send_buffer_bytes=settings.socket_send_buffer_bytes,
                )
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(f"{accepted_listener}: port {accepted_listener.port} is in use") from error
                raise OttlaError(f"{accepted_listener}: cannot listen there: {error.strerror or error}") from error
            stack.push_async_callback(listener.close)
            self._listeners[accepted_listener.name] = listener


def connection_bounds(settings: BrokerSettings) -> tuple[int, int]:
    """How many connections there may be, in all and from one address.

    Without a bound of the operator's they are what the process may open less what its files take; one address then has a quarter.
    """
    most, most_per_address = settings.max_connections, settings.max_connections_per_ip
    if most == INT_MAX:
        most = descriptors_for_sockets()
        most_per_address = min(most_per_address, max(most // 4, 1))
    return most, most_per_address


def _log_settings_without_effect(names: Iterable[str], ignored: Iterable[str] = ()) -> None:
    for name in sorted(ignored):
        log.warning("%s is ignored, as takeover.accept says", name)
    BrokerSettings.warn_without_effect(names, log)


def _threads(stack: AsyncExitStack) -> Offload:
    offload = ThreadOffload(OFFLOAD_THREADS, "ottla-offload")
    stack.callback(offload.close)
    return offload


def transport_of(settings: BrokerSettings, host: str) -> MakeTransport:
    """How a broker reaches others by default, and they a broker on a machine of this name."""
    if settings.zookeeper_connect is None:
        return LocalControl(settings.controller_socket_timeout_ms / 1000).transport
    # At a tenth of a second, which a broker that is alone has no use for.
    from ottla.interbroker.rpc import GrpcControl

    return partial(GrpcControl, settings, host)
