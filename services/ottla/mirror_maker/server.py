"""A mirror maker's worker put together: its clusters, its links, and the order in which they start and stop.

Nothing that is far away keeps it from starting: a cluster that does not answer is waited for, and readiness says so. When it stops, open
transactions are aborted and the slots are free before the session ends, so that another worker takes them at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.client.discovery import KnownBrokers, open_client_session
from ottla.clock import Clock, SystemClock
from ottla.config.mirror import MirrorCluster, MirrorLink, MirrorSettings
from ottla.coordination.errors import NodeExists, NoNode
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import CoordinationSessions, OpenSession, first_session_seconds, zookeeper_options
from ottla.coordination.zookeeper import open_session
from ottla.errors import ConfigurationError, InvalidRequest, OttlaError
from ottla.lifecycle import Tasks, ThreadOffload, look_at_error
from ottla.metrics import mirror as metrics
from ottla.metrics.family import Family, Pause
from ottla.mirror_maker.link import Link, check_installed
from ottla.mirror_maker.membership import ALL, MadeLinks
from ottla.mirror_maker.merge.slot import Repair
from ottla.mirror_maker.naming import name_filter
from ottla.mirror_maker.partition_states import PartitionState
from ottla.mirror_maker.sync.schemas import Registry, SchemaCopier
from ottla.model import TopicPartition
from ottla.network.tls import cluster_context
from ottla.rpc.health import THE_SERVER
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.v1 import mirror_pb2 as messages
from ottla.rpc.v1 import mirror_pb2_grpc as services
from ottla.serving.readiness import Status
from ottla.wire.broker_connection import Security
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.sasl import Credentials, Mechanism

if TYPE_CHECKING:
    from ottla.serving.surface import Surface

log: Final = logging.getLogger(__name__)

RPC_SERVICE: Final = messages.DESCRIPTOR.services_by_name["Mirror"].full_name
GRACE_SECONDS: Final = 2.0
# A transaction's first request may come while the markers of the one before are still written; that takes milliseconds.
RETRY_BACKOFF_SECONDS: Final = 0.01
# Links that commands have made are looked at again when a watch says so; and after this, when that failed.
FOLLOW_SECONDS: Final = 5.0
_REPAIRS: Final[dict[int, Repair]] = {messages.ACCEPT_GAP: "accept gap", messages.RESTART: "restart", messages.TRUNCATE: "truncate"}


class MirrorMaker:
    """One worker.

    Args:
        settings: of the worker.
        open_coordination: where its sessions come from; by default `zookeeper.connect`, and without it the worker has all slots.
    """

    def __init__(self, settings: MirrorSettings, open_coordination: OpenSession | None = None, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        if open_coordination is None and settings.zookeeper_connect is not None:
            open_coordination = partial(open_session, zookeeper_options(settings))
        self._open_coordination = open_coordination
        self._stack = AsyncExitStack()
        self.links: dict[str, Link] = {}
        self.surface: Surface | None = None
        self.rpc_port = 0
        self._worker = secrets.token_hex(6)
        self._offload = ThreadOffload(2, "ottla-mirror")
        self._session: Coordination | None = None
        self._following = asyncio.Lock()
        self._tasks = Tasks()
        self._is_stopping = False
        self._links_changed = asyncio.Event()
        self._made: dict[str, tuple[Mapping[str, Any], AsyncExitStack]] = {}  # links that commands have made, and what ends each
        self._damaged: dict[str, str] = {}  # of those, what cannot be read in ZooKeeper, and why

    @property
    def address(self) -> str:
        """Which links it copies, for who starts it."""
        return ", ".join(f"{link.source}->{link.target}" for link in self._settings.links) or "no link of its file"

    @property
    def url(self) -> str:
        """Where `ottla mirror` asks it; its port is 0 without `rpc.listener`."""
        address = self._settings.rpc_address
        return f"{address.host if address is not None else 'localhost'}:{self.rpc_port}"

    def status(self) -> Status:
        """As /readyz says it: ready while each slot of each link has a holder, here or elsewhere."""
        waiting = [name for name, link in self.links.items() if not link.is_assigned or link.failure]
        said: dict[str, Any] = {"status": "not ready" if waiting else "ready", **{name: name not in waiting for name in self.links}}
        reasons = [self.links[name].failure or f"{name} has slots without a worker" for name in waiting]
        return not waiting, {**said, "reason": ", ".join(reasons)} if reasons else said

    async def start(self) -> None:
        """Starts; raises what keeps it from that, and leaves nothing behind.

        Raises:
            OttlaError, OSError: a listener or ZooKeeper cannot be had.
        """
        settings = self._settings
        for name, why in settings.all_without_effect().items():
            log.info("%s has no effect: %s", name, why)
        async with AsyncExitStack() as stack:
            if settings.http_address is not None:
                from ottla.serving.surface import CertificateCollector, Surface  # it imports starlette, at a quarter of a second

                self.surface = Surface(self._clock, self)
                await self.surface.start(stack, settings.http_address)
            stack.callback(self._offload.close)
            for link in settings.links:
                self._add(stack, link)
            if self.surface is not None:
                shown = {alias: side for alias, side in settings.sides.items() if side.security_protocol.endswith("SSL")}
                self.surface.measure(stack, self._offload, [Collector(self, self._clock), CertificateCollector(shown, settings)])
            if settings.rpc_address is not None:
                server = RpcServer.for_operators(RpcService(RPC_SERVICE, self._register_rpc), settings)
                self.rpc_port = await server.start(settings.rpc_address.host, settings.rpc_address.port)
                stack.push_async_callback(server.stop, GRACE_SECONDS)
                await server.health.set(THE_SERVER, True)
            await self._join(stack)
            stack.push_async_callback(self._stop_links, list(self.links.values()))
            for one in self.links.values():
                one.start()
            if self._open_coordination is not None:
                stack.push_async_callback(self._end_made)
                following = asyncio.ensure_future(self._keep_following())
                stack.callback(following.cancel)
            self._stack = stack.pop_all()

    def _add(self, stack: AsyncExitStack, settings: MirrorLink) -> Link:
        """A link, until the stack ends. With connections of its own: a link waits for no other."""
        sides = [self._settings.sides[alias] for alias in (settings.source, settings.target)]
        source, target = (_cluster_of(stack, side, settings.name) for side in sides)
        schemas = None
        if settings.sync_schemas_enabled and all(side.schema_registry_url for side in sides):
            there, here = map(registry_of, sides)
            schemas = SchemaCopier(there, here, name_filter("subjects", settings.subjects, ()))
        link = Link(settings, source, target, self._offload, self._clock, self._worker, schemas, self.links)
        self.links[settings.name] = link
        stack.callback(self.links.pop, settings.name)
        return link

    async def _join(self, stack: AsyncExitStack) -> None:
        if self._open_coordination is None:
            return
        sessions = CoordinationSessions(self._open_coordination, self._lost, self._take_part)
        stack.push_async_callback(sessions.close)
        async with asyncio.timeout(first_session_seconds(self._settings) + GRACE_SECONDS):
            session = await sessions.open()
        await self._take_part(session)
        sessions.keep()
        stack.push_async_callback(sessions.stop_renewing)

    def _lost(self) -> None:
        self._session = None
        for link in self.links.values():
            link.lost()

    async def _take_part(self, session: Coordination) -> None:
        async with self._following:
            for link in self.links.values():
                await link.join(session)
            self._session = session
        self._links_changed.set()

    # Links that commands make.

    async def create(self, name: str, given: Mapping[str, str]) -> str:
        """Makes a link at all workers that share a ZooKeeper; gives its name.

        Raises:
            InvalidRequest: there is one, it cannot be, or there is nowhere to keep it.
        """
        made = self._made_links()
        try:
            link = self._settings.made_link(name, given)
            check_installed(link)
        except ConfigurationError as error:
            raise InvalidRequest(str(error)) from None
        try:
            if link.name in self.links:
                raise NodeExists
            await made.add(link.name, link.source, link.target, given)
        except NodeExists:
            raise InvalidRequest(f"there is a link {link.name}") from None
        await self._follow()
        return link.name

    async def delete(self, name: str) -> None:
        """Ends a link that was made so.

        Raises:
            InvalidRequest: there is none, or it is the file's.
        """
        made, link_name = self._made_links(), name.replace("->", "-")
        for link in self._settings.links:
            if link.name == link_name:
                raise InvalidRequest(f"{link.name} is in the workers' file; set {link.source}->{link.target}.enabled = false there")
        found, damaged = await made.look()
        if link_name not in found.keys() | damaged.keys():  # which one of these may be that this worker cannot copy
            self.link(name)
        with suppress(NoNode):
            await made.remove(link_name)
        await self._follow()

    def _made_links(self) -> MadeLinks:
        if self._session is None:
            why = "zookeeper.connect is not set" if self._open_coordination is None else "there is no session with ZooKeeper at the moment"
            raise InvalidRequest(f"links that commands make are kept in ZooKeeper, and {why}")
        return MadeLinks(self._session, self._links_changed.set)

    async def _keep_following(self) -> None:
        while True:
            self._links_changed.clear()
            try:
                await self._follow()
                seconds = None  # a watch says when
            except (OSError, OttlaError) as error:
                log.warning("links that commands have made are looked at again: %s", error)
                seconds = FOLLOW_SECONDS
            except Exception:
                # Where a look at the links ends: one that is at fault in a way of its own does not end the following of the others.
                log.exception("links that commands have made are looked at again, as that failed in a way that was not foreseen")
                seconds = FOLLOW_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._links_changed.wait()

    async def _follow(self) -> None:
        """Begins and ends links as commands have said; to the end, also where who waits for it is cancelled."""
        following = self._tasks.begin(self._followed())
        following.add_done_callback(look_at_error)
        await asyncio.shield(following)

    async def _followed(self) -> None:
        async with self._following:
            session = self._session
            if session is None or self._is_stopping:
                return
            found, damaged = await self._made_links().look()
            for name, why in damaged.items():
                if self._damaged.get(name) != why:
                    log.error("%s; the link stays as it is at each worker, and the other links do too", why)
            self._damaged = damaged
            for name in [name for name, (said, _) in self._made.items() if name not in damaged and found.get(name) != said]:
                log.info("%s ends: its link was deleted, or made again", name)
                await self._made.pop(name)[1].aclose()
            for name, said in found.items():
                if name in self.links:
                    continue
                try:
                    settings = self._settings.made_link(f"{said['source']}->{said['target']}", said["settings"])
                    async with AsyncExitStack() as stack:
                        link = self._add(stack, settings)
                        await link.join(session)
                        link.start()
                        stack.push_async_callback(link.stop)
                        self._made[name] = (said, stack.pop_all())
                except ConfigurationError as error:
                    log.error("%s, which a command has made, is not copied here: %s", name, error)
                    continue
                log.info("%s begins: a command has made it", name)

    @staticmethod
    async def _stop_links(links: Sequence[Link]) -> None:
        """At once: one whose target is away keeps no other one."""
        await asyncio.gather(*(link.stop() for link in links))

    async def _end_made(self) -> None:
        async with self._following:
            self._is_stopping = True
            await asyncio.gather(*(ending.aclose() for _, ending in self._made.values()))

    async def stop(self) -> None:
        """Stops cleanly."""
        await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until it cannot continue, and says why: what fails is tried again."""
        await asyncio.Event().wait()
        return "it has nothing that could fail"

    def _register_rpc(self, server: Any) -> None:
        services.add_MirrorServicer_to_server(_Servicer(self, self._clock), server)

    def link(self, name: str) -> Link:
        """A link by its name, also as `A->B`.

        Raises:
            InvalidRequest: there is none.
        """
        found = self.links.get(name.replace("->", "-"))
        if found is None:
            raise InvalidRequest(f"there is no link {name}; these are: {', '.join(self.links) or 'none'}")
        return found


def _cluster_of(stack: AsyncExitStack, side: MirrorCluster, link: str) -> Cluster:
    """A cluster of the file, as one link asks it, until the stack ends."""
    settings = cluster_settings(side, link)
    if side.zookeeper_connect is not None:
        seconds = side.zookeeper_session_timeout_ms / 1000, side.zookeeper_connection_timeout_ms / 1000
        known = KnownBrokers(side.alias, open_client_session(side.zookeeper_connect, *seconds), side.security_protocol)
        stack.push_async_callback(known.close)
        cluster = Cluster(known, settings)
    else:
        try:
            cluster = Cluster(side.bootstrap_servers, settings)
        except ValueError as error:
            raise ConfigurationError(f"{side.alias}.{error}") from None
    stack.push_async_callback(cluster.close)
    return cluster


def cluster_settings(side: MirrorCluster, link: str) -> ClusterSettings:
    """How one asks a cluster of the file.

    Raises:
        ConfigurationError: a PEM file cannot be read.
    """
    tls = cluster_context(side) if side.security_protocol.endswith("SSL") else None
    credentials = None
    if side.credentials is not None:
        credentials = Credentials(cast(Mechanism, side.sasl_mechanism), *side.credentials)
    return ClusterSettings(
        client_id=f"ottla-mirror-{link}", security=Security(tls, credentials), retry_backoff_seconds=RETRY_BACKOFF_SECONDS
    )


def registry_of(side: MirrorCluster) -> Registry:
    """The schema registry of a cluster of the file."""
    user_info = side.schema_registry_basic_auth_user_info
    return Registry(side.schema_registry_url, user_info.value if user_info is not None else None)


class _Servicer(services.MirrorServicer):
    """The gRPC service; the names of the methods are those of the proto file."""

    def __init__(self, mirror_maker: MirrorMaker, clock: Clock) -> None:
        self._mirror_maker = mirror_maker
        self._clock = clock

    async def Status(self, request: messages.MirrorStatusRequest, context: Any) -> messages.MirrorStatusResponse:
        wanted = [self._mirror_maker.link(request.link)] if request.link else list(self._mirror_maker.links.values())
        return messages.MirrorStatusResponse(links=[self._status_of(link) for link in wanted])

    async def Pause(self, request: messages.MirrorPauseRequest, context: Any) -> messages.MirrorPauseResponse:
        link = self._mirror_maker.link(request.link)
        await link.pause(request.name or ALL)
        return messages.MirrorPauseResponse(paused=sorted(link.paused))

    async def Resume(self, request: messages.MirrorResumeRequest, context: Any) -> messages.MirrorResumeResponse:
        link = self._mirror_maker.link(request.link)
        await link.resume(request.name or ALL)
        return messages.MirrorResumeResponse(paused=sorted(link.paused))

    async def Offsets(self, request: messages.MirrorOffsetsRequest, context: Any) -> messages.MirrorOffsetsResponse:
        found = await self._mirror_maker.link(request.link).translate(request.group)
        return messages.MirrorOffsetsResponse(
            offsets=[
                messages.MirrorOffset(
                    topic=one.partition.topic,
                    partition=one.partition.partition,
                    source_offset=one.upstream_offset,
                    target_offset=one.offset,
                )
                for one in found
            ]
        )

    async def Repair(self, request: messages.MirrorRepairRequest, context: Any) -> messages.MirrorRepairResponse:
        link = self._mirror_maker.link(request.link)
        how = _REPAIRS.get(request.how)
        if how is None:
            raise InvalidRequest(f"a repair of kind {request.how}, which this release does not know")
        return messages.MirrorRepairResponse(is_held=link.repair(TopicPartition(request.topic, request.partition), how))

    async def Create(self, request: messages.MirrorCreateRequest, context: Any) -> messages.MirrorCreateResponse:
        return messages.MirrorCreateResponse(link=await self._mirror_maker.create(request.link, request.settings))

    async def Delete(self, request: messages.MirrorDeleteRequest, context: Any) -> messages.MirrorDeleteResponse:
        await self._mirror_maker.delete(request.link)
        return messages.MirrorDeleteResponse()

    def _status_of(self, link: Link) -> messages.MirrorLinkStatus:
        now_ms = self._clock.time_ms()
        return messages.MirrorLinkStatus(
            link=link.settings.name,
            source=link.settings.source,
            target=link.settings.target,
            failure=link.failure,
            slots=link.settings.slots,
            held_slots=sorted(link.slots),
            paused=sorted(link.paused),
            partitions=[
                messages.MirrorPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    target_topic=link.target_of(partition),
                    state=status.state.value,
                    reason=status.reason,
                    next_offset=status.next_offset,
                    end_offset=status.end_offset,
                    lag_seconds=status.lag_seconds(now_ms),
                )
                for partition, status in sorted(link.statuses.items())
            ],
            gaps=[
                messages.MirrorGap(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=gap.offset,
                    next_offset=gap.next_offset,
                    cause=gap.cause,
                    time_ms=gap.time_ms,
                )
                for partition, gap in link.gaps
            ],
        )


class Collector:
    """`ottla.metrics.mirror`."""

    def __init__(self, mirror_maker: MirrorMaker, clock: Clock) -> None:
        self._mirror_maker = mirror_maker
        self._clock = clock

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        links = list(self._mirror_maker.links.items())
        counts = {name: link.counts for name, link in links}
        for metric, attribute in (
            (metrics.RECORDS, "records"),
            (metrics.BYTES, "bytes"),
            (metrics.BATCHES, "batches"),
            (metrics.OPENED, "opened_batches"),
            (metrics.JOINED, "joined_batches"),
            (metrics.CUT, "cut_batches"),
            (metrics.TRANSACTIONS, "transactions"),
            (metrics.FAILED_TRANSACTIONS, "failed_transactions"),
            (metrics.GAPS, "gaps"),
        ):
            yield Family(metric, [((name,), float(getattr(found, attribute))) for name, found in counts.items()])
        statuses = {name: list(link.statuses.values()) for name, link in links}
        states = {name: Counter(status.state for status in found) for name, found in statuses.items()}
        lags = {name: sum(status.lag for status in found) for name, found in statuses.items()}
        now_ms = self._clock.time_ms()
        yield Family(
            metrics.PARTITIONS, [((name, state.value), float(found[state])) for name, found in states.items() for state in PartitionState]
        )
        yield Family(metrics.LAG, [((name,), float(lag)) for name, lag in lags.items()])
        yield Family(
            metrics.LAG_SECONDS,
            [((name,), max((status.lag_seconds(now_ms) for status in found), default=0.0)) for name, found in statuses.items()],
        )
        yield Family(metrics.RECORD_AGE, [((name,), link.record_ages) for name, link in links])
        yield Family(metrics.LAG_BYTES, [((name,), lag * counts[name].bytes / max(counts[name].records, 1)) for name, lag in lags.items()])
        yield Family(metrics.SLOTS, [((name,), float(sum(copier.is_open for copier in link.slots.values()))) for name, link in links])
        yield Family(metrics.LINK_SLOTS, [((name,), float(link.settings.slots)) for name, link in links])
        yield Family(metrics.PAUSED, [((name,), float(ALL in link.paused)) for name, link in links])
        yield Family(metrics.SCHEMAS, [((name,), float(link.copied_schemas)) for name, link in links])
        yield Family(metrics.REFUSED_SCHEMAS, [((name,), float(link.refused_schemas)) for name, link in links])
        yield Family(metrics.FAILED, [((name,), float(bool(link.failure))) for name, link in links])
