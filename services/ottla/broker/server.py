"""A broker, put together: what exists, in which order it starts, and in which order it stops.

This is the only module that knows all the others. It decides nothing about requests, logs or topics; it makes the
parts, hands each what it needs, and takes them down again in reverse, whatever fails on the way.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

from ottla.broker import handlers
from ottla.broker.controller.changes import (
    BrokerConfigChanged,
    MetadataChange,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.controller.controller import Controller
from ottla.broker.coordinating import CoordinationSessions, OpenSession, former_session_seconds, sessions_of
from ottla.broker.dispatcher import Dispatcher
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.identity import with_broker_id
from ottla.broker.metadata import MetadataCache
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.security.authorizer import AllowAll, Authorizer
from ottla.clock import Clock, SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination.interface import Coordination
from ottla.errors import OttlaError
from ottla.lifecycle import ThreadOffload
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, Endpoint
from ottla.network.buffers import ReceiveBuffers
from ottla.network.listener import ConnectionLimits, Listener
from ottla.network.tls import TlsSettings, server_context
from ottla.storage.log_manager import LogManager

log = logging.getLogger(__name__)

# Disk reads, fsyncs and decoding beside the loop. More threads than cores, because most of them wait for the disk.
OFFLOAD_THREADS: Final = 8
# A peer that takes nothing of an answer for so long is gone, whatever TCP believes.
STALL_SECONDS: Final = 30.0


class Broker:
    """One broker of a cluster.

    Args:
        settings: its configuration.
        open_session: gives sessions to coordinate by; by default with `zookeeper.connect`, or with an embedded twin of its own.
        authorizer: who may do what; by default everyone everything.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        open_session: OpenSession | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._settings = settings
        self._open_session = open_session
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._authorizer = authorizer or AllowAll()
        self._listeners: dict[str, Listener] = {}
        self._stack = AsyncExitStack()
        self._is_started = False
        self._all_failed = asyncio.Event()

    async def start(self) -> None:
        """Starts, or fails and leaves nothing behind.

        Raises:
            OttlaError: a setting, a data directory or the coordination is not usable; says which and why.
        """
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stops cleanly: no new requests, waiting ones answered, logs flushed and checkpointed. Stopping again does nothing."""
        await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until the broker can not go on, and says why: every log directory has failed."""
        await self._all_failed.wait()
        return "; ".join(f"{path}: {reason}" for path, reason in self._logs.offline_directories.items())

    def port(self, listener_name: str = "PLAINTEXT") -> int:
        """The port that a listener is bound to."""
        return self._listeners[listener_name].port

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the first listener, as clients take it."""
        endpoint = self._endpoints()[0]
        return f"{endpoint.host}:{endpoint.port}"

    @property
    def connection_count(self) -> int:
        """Open client connections."""
        return sum(each.connection_count for each in self._listeners.values())

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        for name, reason in settings.without_effect().items():
            log.warning("%s has no effect: %s", name, reason)
        offload = ThreadOffload(OFFLOAD_THREADS, "ottla-offload")
        stack.callback(offload.close)
        sessions = CoordinationSessions(
            self._open_session or sessions_of(settings, self._clock, stack), self._session_lost, self._session_renewed
        )
        stack.push_async_callback(sessions.close)
        coordination = await sessions.open()
        settings = self._settings = await with_broker_id(settings, coordination, offload)
        broker_id = BrokerId(settings.broker_id)

        metadata = MetadataCache()
        fetches, produces = Purgatory(), Purgatory()
        controller = self._controller = Controller(
            coordination, settings, self._clock, self._random, self._apply, former_session_seconds(settings)
        )
        logs = LogManager(settings.log_directories, settings, self._clock, offload, controller.topic_settings)
        replicas = ReplicaManager(broker_id, logs, fetches, produces)
        logs.high_watermarks = replicas.high_watermarks
        logs.directory_failed = self._directory_failed
        self._metadata, self._replicas, self._logs = metadata, replicas, logs
        parts = BrokerParts(
            settings=settings,
            clock=self._clock,
            offload=offload,
            authorizer=self._authorizer,
            metadata=metadata,
            replicas=replicas,
            logs=logs,
            controller=controller,
            producer_ids=ProducerIds(controller.allocate_producer_ids),
            fetch_sessions=FetchSessions(settings.max_incremental_fetch_session_cache_slots, self._clock, self._random),
            fetch_purgatory=fetches,
        )
        handlers.load()
        dispatcher = Dispatcher(parts, produces, settings.queued_max_requests)

        # Bound before anything is read or registered: a port that is taken is found out first, and a free one is known.
        await self._bind(stack, dispatcher, offload)
        await controller.load()
        await logs.start(controller.cluster_id)
        stack.push_async_callback(logs.shutdown)
        stack.push_async_callback(replicas.group_commit.close)
        stack.push_async_callback(controller.close)
        registration = BrokerRegistration(broker_id, self._endpoints(), settings.broker_rack)
        metadata.cluster_id = controller.cluster_id
        metadata.controller_id = broker_id
        metadata.brokers = {broker_id: registration}
        await controller.start(registration)
        self._is_started = True
        sessions.keep()
        stack.push_async_callback(sessions.stop_renewing)
        for listener in self._listeners.values():
            await listener.start()
        stack.callback(produces.expire_all)
        stack.callback(fetches.expire_all)
        log.info(
            "broker %d serves %s", broker_id, ", ".join(f"{each.listener_name}://{each.host}:{each.port}" for each in self._endpoints())
        )

    def _directory_failed(self, directory: Path, reason: str) -> None:
        """A log directory has failed; with the last of them this broker has nothing left to serve."""
        self._replicas.directory_failed()
        if len(self._logs.offline_directories) == len(self._settings.log_directories):
            self._all_failed.set()

    def _session_lost(self) -> None:
        """Whatever this broker leads it goes on leading until it is told otherwise: there is nobody else to lead it."""
        self._controller.session_lost()
        self._metadata.controller_id = NO_LEADER

    async def _session_renewed(self, coordination: Coordination) -> None:
        registration = await self._controller.rejoin(coordination)
        self._metadata.brokers = {registration.broker_id: registration}
        self._metadata.controller_id = registration.broker_id

    async def _bind(self, stack: AsyncExitStack, dispatcher: Dispatcher, offload: ThreadOffload) -> None:
        settings = self._settings
        limits = self._limits = ConnectionLimits(
            settings.max_connections, settings.max_connections_per_ip, settings.connections_per_address
        )
        buffers = ReceiveBuffers(settings.queued_max_request_bytes if settings.queued_max_request_bytes > 0 else None)
        for each in settings.accepted_listeners:
            idle_ms = settings.connections_max_idle_ms
            listener = Listener(
                each.name,
                limits=limits,
                buffers=buffers,
                offload=offload,
                max_frame_size=settings.socket_request_max_bytes,
                idle_seconds=idle_ms / 1000 if idle_ms >= 0 else float("inf"),
                stall_seconds=STALL_SECONDS,
                open_receiver=dispatcher.open,
                tls=server_context(_tls_settings(settings.for_listener(each.name))) if each.is_tls else None,
            )
            try:
                await listener.bind(
                    each.host,
                    each.port,
                    backlog=settings.socket_listen_backlog_size,
                    receive_buffer_bytes=settings.socket_receive_buffer_bytes,
                    send_buffer_bytes=settings.socket_send_buffer_bytes,
                )
            except OSError as error:
                raise OttlaError(f"{each}: can not listen there: {error.strerror or error}") from error
            stack.push_async_callback(listener.close)
            self._listeners[each.name] = listener

    def _endpoints(self) -> tuple[Endpoint, ...]:
        return self._settings.advertised_endpoints(bound_ports={name: each.port for name, each in self._listeners.items()})

    async def _apply(self, change: MetadataChange) -> None:
        """Takes in what the controller has written."""
        match change:
            case TopicCreated(topic) | PartitionsAdded(topic):
                self._metadata.put_topic(topic)
                self._replicas.apply_topic(topic, self._logs.topic_settings(topic.name), is_new=self._is_started)
            case TopicDeleted(name, _, partition_count):
                self._metadata.remove_topic(name)
                await self._replicas.remove_topic(name, partition_count)
            case TopicConfigChanged(name, topic_settings):
                self._replicas.update_settings(name, topic_settings)
            case BrokerConfigChanged(_, overrides, settings):
                self._limits.update(settings.max_connections, settings.max_connections_per_ip, settings.connections_per_address)
                log.info("settings changed while running: %s", ", ".join(sorted(overrides)) or "none is overridden any more")


def _tls_settings(settings: BrokerSettings) -> TlsSettings:
    def text(secret: object) -> str:
        return "" if secret is None else str(getattr(secret, "value", secret))

    return TlsSettings(
        keystore_location=settings.ssl_keystore_location or "",
        keystore_certificate_chain=text(settings.ssl_keystore_certificate_chain),
        keystore_key=text(settings.ssl_keystore_key),
        key_password=text(settings.ssl_key_password) or None,
        truststore_location=settings.ssl_truststore_location or "",
        truststore_certificates=text(settings.ssl_truststore_certificates),
        client_auth=settings.ssl_client_auth,
        enabled_protocols=tuple(settings.ssl_enabled_protocols),
        cipher_suites=tuple(settings.ssl_cipher_suites or ()),
    )
