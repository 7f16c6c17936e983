"""A schema registry put together: its settings, its parts, and the order in which they start and stop.

The API answers once the topic has been replayed, so a node that answers knows everything. When it stops it first gives up the lead, so
that another node takes it while requests that are at work here are still answered.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla import release
from ottla.clock import SystemClock
from ottla.config.listeners import Listener
from ottla.config.registry import RegistrySettings
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import CoordinationSessions, OpenSession, first_session_seconds, zookeeper_options
from ottla.coordination.zookeeper import open_session
from ottla.errors import OttlaError
from ottla.lifecycle import Offload, ThreadOffload
from ottla.metrics import coordination as zookeeper_metrics
from ottla.metrics import schema_registry as metrics
from ottla.metrics.family import Family, Pause, single
from ottla.network.tls import TlsSettings, client_context, server_context
from ottla.rpc.health import THE_SERVER
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.v1 import schema_registry_pb2 as messages
from ottla.rpc.v1 import schema_registry_pb2_grpc as services
from ottla.schema_registry.formats import Formats, Limits
from ottla.schema_registry.leadership import Address, Leadership
from ottla.schema_registry.rest.api import Api, Bounds, Identity
from ottla.schema_registry.rest.application import Application, Cors
from ottla.schema_registry.rest.document import openapi
from ottla.schema_registry.rest.forwarding import Forwarder
from ottla.schema_registry.rest.http import HANDSHAKES, HttpLimits, HttpListener
from ottla.schema_registry.rest.security import Authentication, users_of
from ottla.schema_registry.state import names
from ottla.schema_registry.state.drafts import Drafts
from ottla.schema_registry.state.replay import State
from ottla.schema_registry.state.schemas import Json
from ottla.schema_registry.store import snapshot
from ottla.schema_registry.store.replaying import Store, replayed
from ottla.schema_registry.store.topic import KafkaTopic, TopicSettings
from ottla.serving.readiness import Conditions
from ottla.wire.broker_connection import Security
from ottla.wire.cluster import ClusterSettings

if TYPE_CHECKING:
    from ottla.serving.surface import Surface

log: Final = logging.getLogger(__name__)

RPC_SERVICE: Final = messages.DESCRIPTOR.services_by_name["SchemaRegistry"].full_name
GRACE_SECONDS: Final = 2.0
FILES_KEPT: Final = 200 + HANDSHAKES  # for brokers, ZooKeeper, gRPC, forwarding and files, and for what is no connection yet


class SchemaRegistry:
    """One node.

    Args:
        settings: of the node.
        open_coordination: where its sessions come from; by default `zookeeper.connect`, and none without it.
        host_name: of this machine.
    """

    def __init__(self, settings: RegistrySettings, open_coordination: OpenSession | None = None, *, host_name: str = "localhost") -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._host_name = host_name
        if open_coordination is None and settings.zookeeper_connect is not None:
            open_coordination = partial(open_session, zookeeper_options(settings))
        self._open_coordination = open_coordination
        self._conditions = Conditions("topic_replayed", "leader_known")
        self.surface: Surface | None = None
        self._listeners: dict[str, HttpListener] = {}
        self._stack = AsyncExitStack()
        self._snapshot_offset = 0
        self._writing_snapshot: asyncio.Task[None] | None = None
        self._rpc_port = 0
        self.store: Store
        self.leadership: Leadership
        self.sessions: CoordinationSessions | None = None

    # Where it is.

    @property
    def url(self) -> str:
        """Where the API is, as the node advertises it."""
        listener = self._settings.inter_instance_listener
        port = self._settings.host_port or self._listeners[str(listener)].port
        host = self._settings.advertised_host(self._host_name)
        return f"{'https' if listener.is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def is_ready(self) -> bool:
        """As /readyz says it."""
        return self._conditions.is_ready

    def _address(self) -> Address:
        rpc = f"{self._settings.advertised_host(self._host_name)}:{self._rpc_port}" if self._rpc_port else ""
        return Address(self.url, rpc)

    # Starting and stopping.

    async def start(self) -> None:
        """Starts; raises what keeps it from that, and leaves nothing behind.

        Raises:
            OttlaError, OSError: a listener, the topic or ZooKeeper cannot be had.
        """
        settings = self._settings
        settings.warn_without_effect(settings.given, log)
        async with AsyncExitStack() as stack:
            if settings.http_address is not None:
                from ottla.serving.surface import CertificateCollector, Surface  # it imports starlette, at a quarter of a second

                self.surface = Surface(self._clock, self._conditions)
                await self.surface.start(stack, settings.http_address)
            offload = ThreadOffload(2, "ottla-registry")
            stack.callback(offload.close)
            formats = Formats(Limits(size=settings.schema_max_bytes))
            stack.push_async_callback(formats.close)
            await self._open_store(stack, offload, Drafts(formats, settings.schema_cache_size))
            application, forwarder = await self._open_api(stack)
            if self.surface is not None:
                shown = {listener.name: settings.for_listener(listener.name) for listener in settings.api_listeners if listener.is_tls}
                certificates = CertificateCollector({"kafkastore": settings.kafkastore_ssl_keystore_location or "", **shown}, settings)
                self.surface.measure(stack, offload, [Collector(self, application, forwarder), certificates])
            await self._join(stack)
            self._stack = stack.pop_all()

    async def _open_store(self, stack: AsyncExitStack, offload: Offload, drafts: Drafts) -> None:
        settings = self._settings
        topic = KafkaTopic(topic_settings(settings), self._clock)
        stack.push_async_callback(topic.close)
        cluster_id, topic_id, first_offset, next_offset = await topic.open()
        self._topic_identity = snapshot.Identity(cluster_id, settings.kafkastore_topic, topic_id)
        defaults = default_config(settings)
        state = None
        if settings.kafkastore_checkpoint_dir:
            self._snapshot_path = snapshot.file_of(Path(settings.kafkastore_checkpoint_dir), settings.kafkastore_topic)
            state = await offload(snapshot.read_or_none, self._snapshot_path, self._topic_identity, first_offset, next_offset, defaults)
        self._snapshot_offset = 0 if state is None else state.next_offset
        self._offload = offload
        timeouts = settings.kafkastore_timeout_ms / 1000, settings.kafkastore_init_timeout_ms / 1000
        self.store = await replayed(topic, drafts, state or State(defaults), (first_offset, next_offset), *timeouts)
        stack.push_async_callback(self._end_snapshots)
        stack.push_async_callback(self.store.close)
        state = self.store.state
        log.info("%d subjects from %s, offset %d", state.subject_count, settings.kafkastore_topic, state.next_offset)
        self._conditions.set("topic_replayed")
        if settings.kafkastore_checkpoint_dir:
            self._writing_snapshot = asyncio.ensure_future(self._write_snapshots())

    async def _open_api(self, stack: AsyncExitStack) -> tuple[Application, Forwarder]:
        settings = self._settings
        self.leadership = Leadership(self.store, self._address, is_eligible=settings.leader_eligibility, changed=self._leader_changed)
        identity = Identity(self._topic_identity.cluster_id, settings.schema_registry_group_id, release())
        bounds = Bounds(
            (settings.schema_search_default_limit, settings.schema_search_max_limit),
            (settings.subject_version_search_default_limit, settings.subject_version_search_max_limit),
            (settings.subject_search_default_limit, settings.subject_search_max_limit),
            (settings.context_search_default_limit, settings.context_search_max_limit),
        )
        api = Api(
            self.store,
            bounds,
            identity,
            may_change_mode=settings.mode_mutability,
            may_be_empty=not settings.schema_reject_empty_subject,
            document=openapi(identity.version),
        )
        forwarder = Forwarder(settings.request_timeout_ms / 1000, self._forwarding_tls())
        stack.push_async_callback(forwarder.close)
        application = Application(
            api,
            self.leadership,
            forwarder,
            authentication=self._authentication(),
            cors=Cors(settings.access_control_allow_origin, settings.access_control_allow_methods, settings.access_control_allow_headers),
            headers=settings.response_headers,
            body_bytes=settings.size_limit_filter_max_request_body_size,
            incompatible_code=settings.incompatible_schema_error_code,
        )
        # A process that has no file left accepts no one, and could not reach the brokers either.
        room = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT)
        if room < settings.connections_max:
            log.warning("connections.max is %d instead of %d, by the limit of open files", room, settings.connections_max)
        limits = HttpLimits(
            connections=min(settings.connections_max, room),
            deadline_seconds=settings.request_timeout_ms / 1000,
            idle_seconds=settings.idle_timeout_ms / 1000,
            body_bytes=settings.size_limit_filter_max_request_body_size,
        )
        for listener in settings.api_listeners:
            tls = server_context(TlsSettings.of(settings.for_listener(listener.name))) if listener.is_tls else None
            opened = self._listeners[str(listener)] = HttpListener(application.handle, limits, tls)
            stack.push_async_callback(opened.close)
            await opened.start(listener.host, listener.port)
            log.info("the API is at %s:%d", listener.host or "*", opened.port)
        return application, forwarder

    async def _join(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        address = settings.rpc_address
        self._rpc = RpcServer.for_operators(RpcService(RPC_SERVICE, self._register_rpc), settings)
        if address is not None:
            self._rpc_port = await self._rpc.start(address.host, address.port)
            stack.push_async_callback(self._rpc.stop, GRACE_SECONDS)
            await self._rpc.health.set(THE_SERVER, True)
        stack.push_async_callback(self.leadership.leave)
        if self._open_coordination is None:
            await self.leadership.lead_alone()
            return
        sessions = self.sessions = CoordinationSessions(self._open_coordination, self.leadership.lost, self._take_part)
        stack.push_async_callback(sessions.close)
        async with asyncio.timeout(first_session_seconds(settings) + GRACE_SECONDS):
            session = await sessions.open()
        await self._take_part(session)
        sessions.keep()
        stack.push_async_callback(sessions.stop_renewing)

    async def _take_part(self, session: Coordination) -> None:
        await self.leadership.join(session, self._settings.schema_registry_group_id)

    def _leader_changed(self) -> None:
        if self.leadership.leader is not None:
            self._conditions.set("leader_known")  # latched: reads need no leader

    async def stop(self) -> None:
        """Stops cleanly: the lead first."""
        await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until it cannot continue, and says why: it answers from memory whatever happens."""
        await asyncio.Event().wait()
        return "it has nothing that could fail"

    # Snapshots.

    async def _write_snapshots(self) -> None:
        tried_offset = 0
        while True:
            await self.store.wait_for_ever(max(tried_offset, self._snapshot_offset) + self._settings.kafkastore_checkpoint_records)
            tried_offset = self.store.state.next_offset
            await self._try_snapshot()

    async def _try_snapshot(self) -> None:
        try:
            await self.write_snapshot()
        except OSError as error:
            log.warning("the snapshot %s cannot be written: %s", self._snapshot_path, error)

    async def write_snapshot(self) -> int:
        """Writes one, and gives its size.

        Raises:
            OttlaError: there is no place for one.
            OSError: it cannot be written.
        """
        if not self._settings.kafkastore_checkpoint_dir:
            raise OttlaError("kafkastore.checkpoint.dir is not set")
        image = self.store.state.image()
        size = await self._offload(snapshot.write, self._snapshot_path, self._topic_identity, image)
        self._snapshot_offset = image.next_offset
        return size

    async def _end_snapshots(self) -> None:
        if self._writing_snapshot is None:
            return
        self._writing_snapshot.cancel()
        await asyncio.wait([self._writing_snapshot])
        if self.store.state.next_offset > self._snapshot_offset and not self.store.fault:
            await self._try_snapshot()

    @property
    def snapshot_offset(self) -> int:
        """Up to which offset the snapshot on disk goes; 0 without one."""
        return self._snapshot_offset if self._settings.kafkastore_checkpoint_dir else 0

    @property
    def connection_count(self) -> int:
        """Open connections of the API."""
        return sum(listener.connection_count for listener in self._listeners.values())

    # Security.

    def _authentication(self) -> Authentication | None:
        settings = self._settings
        if settings.authentication_method == "NONE":
            return None
        assert settings.authentication_file is not None, "checked with the settings"
        users = users_of(Path(settings.authentication_file))
        roles = frozenset(settings.authentication_roles), frozenset(settings.authentication_write_roles)
        return Authentication(users, *roles, settings.authentication_realm)

    def _forwarding_tls(self) -> ssl.SSLContext | None:
        settings = self._settings
        listener: Listener = settings.inter_instance_listener
        if not listener.is_tls:
            return None
        own = settings.for_listener(listener.name)
        return client_context(TlsSettings.of(own), check_host_name=bool(own.ssl_endpoint_identification_algorithm))

    # gRPC.

    def _register_rpc(self, server: Any) -> None:
        services.add_SchemaRegistryServicer_to_server(_Servicer(self), server)

    def status(self) -> messages.SchemaRegistryStatusResponse:
        """Where the node stands."""
        state, leader = self.store.state, self.leadership.leader
        return messages.SchemaRegistryStatusResponse(
            url=self.url,
            is_leader=self.leadership.is_leader,
            leader_url=leader.url if leader is not None else "",
            leader_rpc=leader.rpc if leader is not None else "",
            epoch=state.epoch,
            next_offset=state.next_offset,
            subject_count=state.subject_count,
            schema_counts=state.schema_counts,
            fault=self.store.fault,
            cluster_id=self._topic_identity.cluster_id,
            topic_id=self._topic_identity.topic_id,
            is_ready=self.is_ready,
        )

    async def resign(self) -> bool:
        """Gives the lead up, and takes part in the next election; whether it did lead."""
        did_lead = self.leadership.is_leader
        if did_lead and self.sessions is not None:
            await self.leadership.resign()
        return did_lead

    def diagnosis(self) -> messages.DoctorResponse:
        """What is wrong with the topic."""
        state = self.store.state
        dangling = [
            messages.DanglingReference(subject=version.subject, version=version.version, reference_subject=target, reference_version=number)
            for version in state.versions_in(names.GLOBAL_SCOPE)
            for target, number in state.targets(version)
            if (state.latest(target) if number == -1 else state.version(target, number)) is None
        ]
        conflicts = [
            messages.IdConflict(
                offset=conflict.offset,
                subject=conflict.version.subject,
                version=conflict.version.version,
                id=conflict.version.id,
                holder=conflict.holder,
                schema=conflict.version.schema.text[:10_000],
            )
            for conflict in state.conflicts
        ]
        return messages.DoctorResponse(
            conflicts=conflicts,
            conflict_count=state.conflict_count,
            dropped_count=state.dropped_count,
            unreadable_count=state.unreadable_count,
            dangling_references=dangling,
            fault=self.store.fault,
        )

    @property
    def snapshot_path(self) -> str:
        """Where the snapshot is; empty without one."""
        return str(self._snapshot_path) if self._settings.kafkastore_checkpoint_dir else ""


class _Servicer(services.SchemaRegistryServicer):
    """The gRPC service; the names of the methods are those of the proto file."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def Status(self, request: messages.SchemaRegistryStatusRequest, context: Any) -> messages.SchemaRegistryStatusResponse:
        return self._registry.status()

    async def Resign(self, request: messages.ResignRequest, context: Any) -> messages.ResignResponse:
        return messages.ResignResponse(did_lead=await self._registry.resign())

    async def Snapshot(self, request: messages.SnapshotRequest, context: Any) -> messages.SnapshotResponse:
        size = await self._registry.write_snapshot()
        return messages.SnapshotResponse(path=self._registry.snapshot_path, next_offset=self._registry.snapshot_offset, size_bytes=size)

    async def Doctor(self, request: messages.DoctorRequest, context: Any) -> messages.DoctorResponse:
        return self._registry.diagnosis()


class Collector:
    """`ottla.metrics.schema_registry`, and the session with ZooKeeper."""

    def __init__(self, registry: SchemaRegistry, application: Application, forwarder: Forwarder) -> None:
        self._registry = registry
        self._application = application
        self._forwarder = forwarder

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        registry, store, counts = self._registry, self._registry.store, self._application.counts
        state = store.state
        yield Family(metrics.REQUESTS, [((route, str(status)), count) for (route, status), count in list(counts.by_route.items())])
        yield Family(metrics.SCHEMAS, [((kind,), count) for kind, count in state.schema_counts.items()])
        yield single(metrics.REQUEST_SECONDS, counts.seconds.snapshot())
        yield single(metrics.WRITE_SECONDS, store.write_seconds.snapshot())
        for metric, value in (
            (metrics.CACHED, counts.cached),
            (metrics.CONNECTIONS, registry.connection_count),
            (metrics.SUBJECTS, state.subject_count),
            (metrics.NEXT_OFFSET, state.next_offset),
            (metrics.EPOCH, state.epoch),
            (metrics.IS_LEADER, store.is_writing),
            (metrics.LEADER_KNOWN, registry.leadership.leader is not None),
            (metrics.TERMS, registry.leadership.term_count),
            (metrics.CONFLICTS, state.conflict_count),
            (metrics.DROPPED, state.dropped_count),
            (metrics.UNREADABLE, state.unreadable_count),
            (metrics.WRITTEN, store.written_count),
            (metrics.BATCHES, store.batch_count),
            (metrics.FORWARDED, self._forwarder.count),
            (metrics.FORWARD_FAILURES, self._forwarder.failures),
            (metrics.FAULT, bool(store.fault)),
            (metrics.SNAPSHOT_OFFSET, registry.snapshot_offset),
        ):
            yield single(metric, float(value))
        if registry.sessions is not None:
            yield single(zookeeper_metrics.SESSION_STATE, float(registry.sessions.state))
            yield single(zookeeper_metrics.EXPIRATIONS, float(registry.sessions.expirations))
            yield single(zookeeper_metrics.DISCONNECTIONS, float(registry.sessions.disconnections))


def default_config(settings: RegistrySettings) -> Json:
    """The config that holds where none is set."""
    found: dict[str, Any] = {"compatibilityLevel": settings.schema_compatibility_level}
    if settings.schema_validate_fields:
        found["validateFields"] = True
    if not settings.schema_validate_new_schemas:
        found["validateNewSchemas"] = False
    return found


def topic_settings(settings: RegistrySettings) -> TopicSettings:
    """`kafkastore.…` as the topic takes it."""
    tls = None
    if settings.kafkastore_security_protocol == "SSL":
        tls = ssl.create_default_context(cafile=settings.kafkastore_ssl_truststore_location)
        tls.check_hostname = bool(settings.kafkastore_ssl_endpoint_identification_algorithm)
        if settings.kafkastore_ssl_keystore_location is not None:
            password = settings.kafkastore_ssl_key_password
            tls.load_cert_chain(settings.kafkastore_ssl_keystore_location, password=password.value if password is not None else "")
    timeout_seconds = settings.kafkastore_timeout_ms / 1000
    cluster = ClusterSettings(
        client_id="ottla-schema-registry",
        security=Security(tls),
        request_timeout_seconds=timeout_seconds,
        api_timeout_seconds=timeout_seconds,
    )
    return TopicSettings(
        settings.bootstrap_servers,
        cluster,
        settings.kafkastore_topic,
        settings.kafkastore_topic_replication_factor,
        settings.schema_registry_group_id,
        settings.kafkastore_init_timeout_ms / 1000,
        timeout_seconds,
    )
