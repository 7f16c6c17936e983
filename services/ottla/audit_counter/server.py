"""An audit counter put together: its settings, its parts, and the order in which they start and stop.

It is ready once it has read all of `__audit`. With ZooKeeper one counter is elected and writes verdicts; the others read and judge the
same into files of their own. A counter that cannot go on ends, and its supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.audit_counter.canary.runner import Canary, CanarySchedule
from ottla.audit_counter.rpc import SERVICE, AuditServicer
from ottla.audit_counter.service import AuditCounter, CounterSettings, Standing, Sums
from ottla.audit_counter.store import Store, StoreFailed
from ottla.audit_counter.verdicts import NOT_KNOWN
from ottla.clock import Clock, SystemClock
from ottla.config.audit import AuditSettings
from ottla.coordination.election import Election, Office, Term
from ottla.coordination.interface import Coordination
from ottla.coordination.retries import make_znode
from ottla.coordination.sessions import CoordinationSessions, OpenSession, first_session_seconds, zookeeper_options
from ottla.coordination.zookeeper import open_session
from ottla.errors import OttlaError, reason_of
from ottla.lifecycle import Tasks, ThreadOffload
from ottla.metrics import audit as metrics
from ottla.metrics.family import Family, Pause, single
from ottla.network.tls import cluster_context
from ottla.record.audit_records import Verdict
from ottla.rpc.health import THE_SERVER
from ottla.rpc.server import RpcServer, RpcService
from ottla.rpc.v1 import audit_pb2_grpc as services
from ottla.serving.freshness import Freshness
from ottla.serving.readiness import Conditions
from ottla.wire.broker_connection import Security
from ottla.wire.cluster import Cluster, ClusterSettings

if TYPE_CHECKING:
    from ottla.serving.http import HttpListener
    from ottla.serving.surface import Surface

log: Final = logging.getLogger(__name__)

OFFICE: Final = Office("audit counter", "/ottla/audit/active", "/ottla/audit/epoch")
FILE: Final = "audit.db"
GRACE_SECONDS: Final = 2.0
_STANDING_SECONDS: Final = 5.0


class AuditServer:
    """One counter.

    Args:
        settings: of it.
        open_coordination: where its sessions come from; by default `zookeeper.connect`, and without it the counter is active alone.
        name: under which it takes part in the election.
    """

    def __init__(self, settings: AuditSettings, open_coordination: OpenSession | None = None, *, name: str = "localhost") -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._name = name
        if open_coordination is None and settings.zookeeper_connect is not None:
            open_coordination = partial(open_session, zookeeper_options(settings))
        self._open_coordination = open_coordination
        self._conditions = Conditions("audit_read", "registered")
        self._stack = AsyncExitStack()
        self._election: Election | None = None
        self._rest: HttpListener | None = None
        self._surface: Surface | None = None
        self.rpc_port = 0
        self._fault: asyncio.Future[str]
        self.counter: AuditCounter
        self.canary: Canary | None = None

    @property
    def url(self) -> str:
        """Where the page is; empty for nowhere."""
        return "" if self._rest is None else self._rest.url

    @property
    def metrics_url(self) -> str:
        """Where metrics and health are."""
        return "" if self._surface is None else self._surface.address

    @property
    def is_ready(self) -> bool:
        """As /readyz says it."""
        return self._conditions.is_ready

    async def start(self) -> None:
        """Starts; raises what keeps it from that, and leaves nothing behind.

        Raises:
            OttlaError, OSError: the file, a listener or ZooKeeper cannot be had.
        """
        from ottla.audit_counter.rest.application import AuditApplication
        from ottla.serving.http import HttpLimits, HttpListener
        from ottla.serving.surface import CertificateCollector, Surface  # with starlette, a quarter of a second

        settings = self._settings
        self._fault = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            surface = self._surface = Surface(self._clock, self._conditions)
            if settings.http_address is not None:
                await surface.start(stack, settings.http_address)
            in_store, beside = ThreadOffload(1, "ottla-audit-store"), ThreadOffload(1, "ottla-audit")
            stack.callback(beside.close)
            stack.callback(in_store.close)
            path = Path(settings.audit_directory) / FILE
            store = await in_store(Store, path, settings.audit_window_ms, settings.retention_ms)
            stack.push_async_callback(in_store, store.close)
            cluster = await stack.enter_async_context(Cluster(settings.bootstrap_servers, _cluster_settings(settings)))
            self.counter = AuditCounter(cluster, store, _counter_settings(settings), self._clock, in_store, beside)
            self.canary = await self._new_canary(stack)
            if settings.rest_address is not None:
                application = AuditApplication(self.counter, self._clock, self.canary).application
                self._rest = HttpListener(application, HttpLimits(connections=256, deadline_seconds=60), setting="rest.listener")
                stack.push_async_callback(self._rest.close)
                await self._rest.start(settings.rest_address)
                log.info("the page is at %s", self._rest.url)
            rpc = RpcServer.for_operators(RpcService(SERVICE, self._register_rpc), settings)
            if settings.rpc_address is not None:
                self.rpc_port = await rpc.start(settings.rpc_address.host, settings.rpc_address.port)
                stack.push_async_callback(rpc.stop, GRACE_SECONDS)
            if settings.http_address is not None:
                collector = Collector(self.counter, self._clock, self.canary)
                fresh = Freshness(collector, _STANDING_SECONDS, self._clock)
                shown = {"brokers": settings} if settings.security_protocol == "SSL" else {}
                surface.measure(stack, beside, [collector, CertificateCollector(shown, settings)], [fresh])
            tasks = Tasks()
            stack.push_async_callback(tasks.wait)
            stack.callback(tasks.cancel)
            tasks.begin(self.counter.run()).add_done_callback(self._stopped)
            tasks.begin(self._watch_reading(rpc))
            await self._join(stack)
            self._stack = stack.pop_all()

    async def _new_canary(self, stack: AsyncExitStack) -> Canary | None:
        settings = self._settings
        if not settings.audit_canary_enable:
            return None
        seconds = settings.audit_canary_timeout_ms / 1000
        patience = replace(
            _cluster_settings(settings),
            client_id="ottla-canary",
            request_timeout_seconds=seconds,
            api_timeout_seconds=seconds,
            setup_timeout_seconds=seconds,
        )
        cluster = await stack.enter_async_context(Cluster(settings.bootstrap_servers, patience, clock=self._clock))
        canary = Canary(cluster, _canary_schedule(settings, self._name), self._clock)
        stack.push_async_callback(canary.close)
        return canary

    async def _watch_reading(self, rpc: RpcServer) -> None:
        await self.counter.wait_caught_up()
        self._conditions.set("audit_read")
        await rpc.health.set(THE_SERVER, True)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._fault.done():
            return
        error = task.exception()
        if error is not None and not isinstance(error, OttlaError | OSError):
            log.error("the audit counter failed in a way that was not foreseen", exc_info=error)
        self._fault.set_result("its work ended" if error is None else reason_of(error))

    # The election.

    async def _join(self, stack: AsyncExitStack) -> None:
        if self._open_coordination is None:
            await self._activate(self.counter.epoch + 1, None)
            self._conditions.set("registered")
            return
        sessions = CoordinationSessions(self._open_coordination, self._lost, self._take_part)
        stack.push_async_callback(sessions.close)
        async with asyncio.timeout(first_session_seconds(self._settings) + GRACE_SECONDS):
            session = await sessions.open()
        stack.push_async_callback(self._leave)
        await self._take_part(session)
        sessions.keep()
        stack.push_async_callback(sessions.stop_renewing)

    async def _take_part(self, session: Coordination) -> None:
        await self._leave()
        for path in ("/ottla", "/ottla/audit"):
            await make_znode(session, path, b"")
        self._election = Election(session, OFFICE, self._name, self)
        await self._election.start()
        self._conditions.set("registered")

    def data(self) -> bytes:
        """Which counter is active, for the others to read."""
        return self._name.encode()

    async def term_begins(self, term: Term) -> None:
        """This counter or another is active now."""
        if not term.is_own:
            self.term_ended()
            self.counter.is_other_active = True
            log.info("%s is active, term %d; this counter stands by", term.holder.decode(errors="replace"), term.epoch)
            return
        try:
            await self._activate(term.epoch, self._election)
        except StoreFailed as error:
            if not self._fault.done():
                self._fault.set_result(str(error))

    async def _activate(self, epoch: int, election: Election | None) -> None:
        if await self.counter.activate(epoch, None if election is None else election.term_failed) and self.canary is not None:
            self.canary.begin()

    def term_ended(self) -> None:
        """Counts nothing any more, and stands by."""
        self.counter.stand_by()
        if self.canary is not None:
            self.canary.end()

    def _lost(self) -> None:
        self.term_ended()
        self._conditions.set("registered", False)

    async def _leave(self) -> None:
        election, self._election = self._election, None
        if election is not None:
            election.close()
            await election.wait_closed()

    async def stop(self) -> None:
        """Stops cleanly."""
        self.term_ended()
        if self.canary is not None:
            await self.canary.close()  # its final word, before another counter is elected whose canary fences this one
        await self._stack.aclose()

    async def failed(self) -> str:
        """Waits until it cannot continue, and says why."""
        return await asyncio.shield(self._fault)

    def _register_rpc(self, server: Any) -> None:
        services.add_AuditServicer_to_server(AuditServicer(self.counter, self.canary), server)


def _counter_settings(settings: AuditSettings) -> CounterSettings:
    return CounterSettings(
        settings.audit_window_ms,
        tuple(settings.audit_tiers),
        settings.audit_verify,
        settings.audit_session_timeout_ms,
        settings.audit_topic_partitions,
        settings.audit_topic_replication_factor,
        settings.retention_ms,
    )


def _cluster_settings(settings: AuditSettings) -> ClusterSettings:
    tls = cluster_context(settings) if settings.security_protocol == "SSL" else None
    return ClusterSettings(client_id="ottla-audit-counter", security=Security(tls))


def _canary_schedule(settings: AuditSettings, host: str) -> CanarySchedule:
    return CanarySchedule(
        settings.audit_canary_interval_ms / 1000,
        settings.audit_canary_timeout_ms / 1000,
        settings.audit_canary_commit_interval_ms / 1000,
        settings.audit_canary_replication_factor,
        settings.audit_window_ms,
        host,
    )


class Collector:
    """`ottla.metrics.audit`."""

    def __init__(self, counter: AuditCounter, clock: Clock, canary: Canary | None = None) -> None:
        self._counter = counter
        self._clock = clock
        self._canary = canary
        self._found: tuple[Standing, Sums] | None = None

    async def refresh(self) -> None:
        """Asks the file again."""
        self._found = await self._counter.standing(), await self._counter.sums()

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they were found."""
        counter = self._counter
        if self._found is not None:
            standing, sums = self._found
            yield Family(metrics.MESSAGES, [((tier, topic), count) for topic, tier, count in sums.totals])
            yield Family(metrics.LATENCY, [((kind,), found) for kind, found in standing.latencies.items()])
            yield Family(metrics.SESSIONS, [((tier,), count) for tier, count in standing.sessions.items()])
            yield from self._edges(sums)
            for metric, name in (
                (metrics.SESSION_GAPS, "gaps"),
                (metrics.RECORDS, "records"),
                (metrics.REPEATED, "repeated"),
                (metrics.QUARANTINED, "quarantined"),
                (metrics.REFUSED, "windows_refused"),
            ):
                yield single(metric, float(standing.counters[name]))
        progress = counter.progress
        for metric, value in (
            (metrics.LAG, progress.lag),
            (metrics.LOGS_READ, progress.logs_read),
            (metrics.LOG_RECORDS, progress.log_records),
            (metrics.LOG_FAILURES, progress.log_failures),
            (metrics.IS_ACTIVE, counter.is_active),
        ):
            yield single(metric, float(value))
        yield single(metrics.VERDICT_SECONDS, progress.verdict_seconds.snapshot())
        if self._canary is not None and self._canary.is_wanted:
            yield from _canary_families(self._canary)

    def _edges(self, sums: Sums) -> Iterator[Family | Pause]:
        missing: dict[tuple[str, str], int] = {}
        surplus: dict[tuple[str, str], int] = {}
        known: dict[tuple[str, str], list[int]] = {}
        oldest: dict[tuple[str, str], float] = {}
        windows = []
        for topic, upstream, downstream, verdict, count, lost, doubled, first_ms in sums.verdicts:
            edge = topic, f"{upstream}->{downstream}"
            windows.append(((*edge, verdict), count))
            missing[edge] = missing.get(edge, 0) + lost
            surplus[edge] = surplus.get(edge, 0) + doubled
            oldest.setdefault(edge, 0.0)
            if verdict == Verdict.PENDING:
                oldest[edge] = max(0.0, (self._clock.time_ms() - first_ms) / 1000)
            if verdict not in NOT_KNOWN:
                counts = known.setdefault(edge, [0, 0])
                counts[0] += count if verdict in (Verdict.COMPLETE, Verdict.LATE) else 0
                counts[1] += count
        yield Family(metrics.WINDOWS, windows)
        yield Family(metrics.MISSING, list(missing.items()))
        yield Family(metrics.DUPLICATE, list(surplus.items()))
        yield Family(metrics.COMPLETENESS, [(edge, whole / count) for edge, (whole, count) in known.items()])
        yield Family(metrics.OLDEST_INCOMPLETE, list(oldest.items()))


def _canary_families(canary: Canary) -> Iterator[Family | Pause]:
    ledgers = sorted(canary.ledgers.items())
    yield single(metrics.CANARY_RUNS, float(canary.is_running))
    yield single(metrics.CANARY_UNLED, float(len(canary.brokers_without_partition)))
    yield Family(
        metrics.CANARY_MESSAGES,
        [
            ((str(number), outcome), float(getattr(ledger, outcome)))
            for number, ledger in ledgers
            for outcome in ("attempted", "acknowledged", "failed", "consumed", "lost", "doubled")
        ],
    )
    found = [(str(number), canary.availability(number)) for number, _ in ledgers]
    yield Family(metrics.CANARY_PRODUCE, [((number,), share) for number, (share, _) in found if share is not None])
    yield Family(metrics.CANARY_CONSUME, [((number,), share) for number, (_, share) in found if share is not None])
    yield Family(metrics.CANARY_PRODUCE_SECONDS, [((str(number),), ledger.produce_seconds.snapshot()) for number, ledger in ledgers])
    yield Family(metrics.CANARY_END_TO_END, [((str(number),), ledger.end_to_end_seconds.snapshot()) for number, ledger in ledgers])
    yield single(metrics.CANARY_COMMIT, canary.reports.commit_seconds.snapshot())
    yield single(metrics.CANARY_COMMIT_FAILURES, float(canary.reports.failures))
