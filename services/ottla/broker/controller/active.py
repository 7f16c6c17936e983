"""One term as the controller: what it knows, what it is asked for, and what it does of itself.

It begins by reading everything from ZooKeeper, and ends at once when it resigns: nothing is decided, written or sent
afterwards. A write whose outcome is unknown, or that finds a znode of the controller's changed by another writer,
makes the state doubtful; then the term has failed, and begins again from what ZooKeeper holds.

Everything that reads or changes the state is an event in `event_queue`; what an event does is in `operations` and `external_changes`.
A new request to the controller gets a row in `ActiveController._requests`.

Invariant: after `resign` nothing of this term reaches ZooKeeper or a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final, TypeAlias, TypeVar
from weakref import ref

from ottla.broker.controller import decisions
from ottla.broker.controller.channels import BrokerResponse, Channels
from ottla.broker.controller.decisions import next_block
from ottla.broker.controller.effect_writer import EffectWriter
from ottla.broker.controller.event_queue import ControllerCounts, ControllerEvent, EventQueue, GroupOperation
from ottla.broker.controller.external_changes import WATCHED_AT_ONCE, ExternalChanges, ToolRequests, Watched
from ottla.broker.controller.membership import ControllerTerm, make_skeleton
from ottla.broker.controller.operations import ConfigOperations, LogEndQueries, PartitionOperations, TopicOperations
from ottla.broker.controller.state import ClusterState, ReplicaPhase
from ottla.broker.controller.znode_reader import load_all_broker_configs
from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.coordination import znodes
from ottla.coordination.election import Election
from ottla.coordination.interface import Coordination, Delete, EventType, SetData, Watch, WatchedEvent
from ottla.errors import ApiError, StaleBrokerEpoch
from ottla.interbroker.calls import (
    OPERATIONS,
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    CancelControlledShutdownRequest,
    ControlledShutdownRequest,
    ControllerControl,
    ControllerRequest,
    ControlTransport,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    Request,
)
from ottla.lifecycle import Backoff
from ottla.model import BrokerId

log: Final = logging.getLogger(__name__)

A = TypeVar("A")
Q = TypeVar("Q", bound=Request[Any])
S = TypeVar("S")
Performer: TypeAlias = Callable[[S], Awaitable[Any]]  # of a request, or of a term

# An answer waits this long, at most, for all brokers to have acknowledged what it says.
_ACKNOWLEDGED_SECONDS: Final = 1.0
# The first look for leaders to move; later ones come every leader.imbalance.check.interval.seconds.
_FIRST_REBALANCE_SECONDS: Final = 5.0
# How often replicas of partitions without a leader are asked where their logs end; some may not have answered before.
_OFFLINE_SECONDS: Final = 5.0
# How often brokers are asked for the replicas that they could not use; the pause doubles for as long as there are any. A full
# disk has room again some time, and a failed one gives the same answer for each of its replicas.
_OFFLINE_REPLICAS_BACKOFF: Final = Backoff(first_seconds=5.0, longest_seconds=30.0)


@dataclass(frozen=True, slots=True)
class _Row:
    """How one kind of request is answered.

    Attributes:
        event: what it is counted as.
        perform: the operation; given a list of requests, and giving a list of answers, where `is_grouped`.
        is_grouped: whether requests that wait are performed together.
        waits: whether the answer waits until the brokers have acknowledged what changed.
    """

    event: ControllerEvent
    perform: Performer[Any]
    is_grouped: bool = False
    waits: bool = False


class ActiveController(ControllerControl):
    """The controller, in one term of this broker.

    Args:
        term: who and which epoch.
        coordination: the session that holds `/controller`.
        settings: what this broker was started with.
        clock: for the age of notices, for producer ids and for leader epochs.
        random: for placement and ids.
        transport: the way to the brokers.
        election: hears when this term cannot continue.
        counts: where what is decided is counted.
        request_numbers: what this process numbers its requests to brokers by. Two terms in a row may have the same epoch.
    """

    def __init__(
        self,
        term: ControllerTerm,
        coordination: Coordination,
        settings: BrokerSettings,
        clock: Clock,
        random: Random,
        transport: ControlTransport,
        election: Election,
        counts: ControllerCounts | None = None,
        request_numbers: Iterator[int] | None = None,
    ) -> None:
        assert term.epoch_version is not None, "only an own term is begun"
        self.term: Final = term
        self._coordination = coordination
        self._clock = clock
        self._transport = transport
        self._request_numbers = request_numbers or count(1)
        self._election = election
        self._is_over = False
        self.is_loaded = False  # the state is that of the cluster; before the first operation has ended it is empty
        self._background: list[asyncio.Task[None]] = []
        self._changed_deletions = asyncio.Event()
        counts = counts or ControllerCounts()
        floor = decisions.leader_epoch_floor(clock.time_ms())
        state = self._state = ClusterState(term.broker_id, term.epoch, settings, settings, leader_epoch_floor=floor)
        writes = self._writes = ControllerWrites(coordination, term.epoch_version)
        self._events = EventQueue(self.fenced, counts)
        self._channels = Channels(state, self._request_numbers, transport, self)
        writer = EffectWriter(state, coordination, writes, self._channels, self._moved, counts)
        log_ends = LogEndQueries(state, transport)
        self._topics = TopicOperations(state, coordination, writes, writer, random)
        self._partitions = PartitionOperations(state, writer, log_ends)
        self._configs = ConfigOperations(state, coordination, writes, writer, log_ends, clock)
        watched = Watched(
            self._watch(ControllerEvent.BROKER_CHANGE, "reading brokers", lambda active: active._external.look_for_brokers()),
            self._watch(ControllerEvent.TOPIC_CHANGE, "reading topics", lambda active: active._external.look_for_topics()),
            self._watch_topic,
            self._watch(
                ControllerEvent.LOG_DIR_EVENT, "reading log directory events", lambda active: active._external.look_for_failed_directories()
            ),
        )
        self._external = ExternalChanges(state, coordination, writes, writer, self._channels, self._topics, log_ends, random, watched)
        self._tools = ToolRequests(
            state,
            coordination,
            writes,
            self._partitions,
            self._watch(ControllerEvent.REASSIGN_PARTITIONS, "reading reassignments", lambda active: active._tools.look_for_reassignment()),
            self._watch(ControllerEvent.ELECT_LEADERS, "reading elections", lambda active: active._tools.look_for_election()),
        )
        self._requests: Final[dict[type[Request[Any]], _Row]] = dict(
            (
                _row(AlterPartitionRequest, ControllerEvent.ALTER_PARTITION, self._partitions.alter_partition),
                _row(ControlledShutdownRequest, ControllerEvent.CONTROLLED_SHUTDOWN, self._partitions.controlled_shutdown, waits=True),
                _row(
                    CancelControlledShutdownRequest,
                    ControllerEvent.CANCEL_CONTROLLED_SHUTDOWN,
                    self._partitions.cancel_controlled_shutdown,
                ),
                _row(AllocateProducerIdsRequest, ControllerEvent.ALLOCATE_PRODUCER_IDS, self._allocate_producer_ids),
                _grouped(CreateTopicRequest, ControllerEvent.CREATE_TOPIC, self._topics.create, waits=True),
                _grouped(DeleteTopicRequest, ControllerEvent.DELETE_TOPIC, self._topics.delete),
                _row(CreatePartitionsRequest, ControllerEvent.CREATE_PARTITIONS, self._topics.extend, waits=True),
                _row(AlterConfigsRequest, ControllerEvent.ALTER_CONFIGS, self._configs.alter, waits=True),
                _row(IncrementalAlterConfigsRequest, ControllerEvent.ALTER_CONFIGS, self._configs.alter, waits=True),
                _row(ElectLeadersRequest, ControllerEvent.ELECT_LEADERS, self._partitions.elect_leaders, waits=True),
                _row(AlterPartitionReassignmentsRequest, ControllerEvent.REASSIGN_PARTITIONS, self._partitions.alter_reassignments),
                _row(ListPartitionReassignmentsRequest, ControllerEvent.REASSIGN_PARTITIONS, self._partitions.list_reassignments),
            )
        )

    @property
    def state(self) -> ClusterState:
        """What decisions are made on, for looking only."""
        return self._state

    @property
    def waiting_count(self) -> int:
        """Operations that have not ended."""
        return self._events.length

    # The term.

    async def start(self) -> None:
        """Takes over: afterwards it answers requests, and every broker is about to be sent everything.

        Raises:
            ApiError: it could not; the term has failed.
        """
        await self._events.submit(ControllerEvent.TAKE_OVER, "taking over", self._take_over)
        if not self._is_over:
            # In the background, as the cluster is whole without it.
            work = (self._rebalance(), self._look_for_leaders(), self._ask_offline_replicas(), self._look_for_tools())
            self._background = [asyncio.ensure_future(coroutine) for coroutine in work]

    def resign(self) -> None:
        """Decides, writes and sends nothing any more, at once."""
        self._is_over = True
        self._events.close()
        self._writes.close()
        self._channels.close()
        self._changed_deletions.set()
        for task in self._background:
            task.cancel()

    async def wait_closed(self, timeout_seconds: float) -> None:
        """Waits until what was under way has ended."""
        await self._events.wait_closed(timeout_seconds)
        await self._channels.wait_closed()
        if self._background:
            await asyncio.wait(self._background)

    async def wait_acknowledged(self, timeout_seconds: float = math.inf) -> bool:
        """Waits until every living broker has acknowledged what is decided. False: it took too long."""
        return await self._channels.wait_acknowledged(min(timeout_seconds, _ACKNOWLEDGED_SECONDS))

    async def leave(self) -> None:
        """Gives up `/controller` and the broker's registration in one write, so that its successor does not count on this broker."""
        term = self.term

        async def give_up() -> None:
            await self._writes.write([Delete(znodes.CONTROLLER.path()), Delete(znodes.BROKER.path(term.broker_id))])
            self.resign()  # before it gets to look at who has gone

        await self._events.submit(ControllerEvent.RESIGN, "resigning", give_up)

    @property
    def is_over(self) -> bool:
        """Whether it has resigned."""
        return self._is_over

    def check_broker(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Raises StaleBrokerEpoch for a broker that has registered again since."""
        registration = self._state.brokers.get(broker_id)
        if registration is not None and 0 <= broker_epoch < registration.broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} calls in epoch {broker_epoch}, and has registered with {registration.broker_epoch}")

    def settings_noticed(self, entity: str) -> None:
        """A notice says that something was set for a topic or broker."""
        self._events.put(ControllerEvent.CONFIG_CHANGE, f"reading the configs of {entity}", lambda: self._configs.read_again(entity))
        if entity.startswith("brokers/"):
            # A broker with other advertised listeners has written that to its registration.
            self._events.put(ControllerEvent.BROKER_CHANGE, "reading brokers", self._external.look_for_brokers)

    def broker_responded(self, response: BrokerResponse) -> None:
        """A broker has answered. What matters of it is an event."""
        broker_id, event = response.registration.broker_id, ControllerEvent.BROKER_RESPONSE
        if response.is_stop:
            self._events.put(
                event,
                f"the StopReplica response of broker {broker_id}",
                lambda: self._partitions.take_stops(response.registration, response.errors),
            )
            return
        title = f"the LeaderAndIsr response of broker {broker_id}"
        if response.outdated_epochs:
            self._events.put(event, title, lambda: self._partitions.take_written_epochs(response.registration, response.outdated_epochs))
        if any(response.errors.values()) or broker_id in self._state.offline_replicas:
            self._events.put(event, title, lambda: self._partitions.take_errors(response.registration, response.errors))

    def fenced(self, why: str) -> None:
        """This term cannot continue: a broker knows of a later controller, or an event has left the state doubtful."""
        if not self._is_over:
            self._election.term_failed(why)

    # What it is asked for.

    async def call(self, request: ControllerRequest[A]) -> A:
        """Answers a request, in its turn. Most answers wait until the living brokers have acknowledged what changed, or time is up."""
        answer: A
        row, title = self._requests[type(request)], OPERATIONS[type(request)].title_of(request)
        if row.is_grouped:
            answer = await self._events.submit_grouped(row.event, title, request, row.perform)
        else:
            answer = await self._events.submit(row.event, title, lambda: row.perform(request))
        if isinstance(request, DeleteTopicRequest):
            await self._wait_deleted(request)
        elif row.waits and _has_brokers_to_wait_for(request):
            await self.wait_acknowledged(getattr(request, "timeout_seconds", math.inf))
        return answer

    async def _wait_deleted(self, request: DeleteTopicRequest) -> None:
        """Waits until a topic is gone, or all of it that is not on brokers that are away; or until the time is up."""
        try:
            async with asyncio.timeout(request.timeout_seconds):
                while not self._is_over and self._is_stopping(request.name):
                    self._changed_deletions.clear()
                    await self._changed_deletions.wait()
                await self.wait_acknowledged()
        except TimeoutError:
            log.info("topic %s: deletion still in progress", request.name)

    async def _allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> range:
        self.check_broker(request.broker_id, request.broker_epoch)
        path = znodes.PRODUCER_ID_BLOCK.path()
        data, stat = await self._coordination.get(path)
        block = next_block(znodes.decode_producer_id_block(path, data), request.broker_id, self._clock.time_ms())
        await self._writes.write([SetData(path, znodes.encode_producer_id_block(block), stat.version)])
        return range(block.first, block.last + 1)

    # What it does of itself.

    async def _take_over(self) -> None:
        await make_skeleton(self._coordination)  # another tool may have removed a parent with all of its children
        overrides = await load_all_broker_configs(self._coordination)
        await self._configs.take_in_brokers(overrides)
        await self._external.take_over()
        await self._configs.remove_old_notices()
        state = self._state
        partition_count = sum(len(topic.partitions) for topic in state.topics.values())
        log.info(
            "controller epoch %d: loaded %d brokers, %d topics and %d partitions",
            self.term.epoch,
            len(state.brokers),
            len(state.topics),
            partition_count,
        )
        self.is_loaded = True

    def _is_stopping(self, name: str) -> bool:
        """Whether living brokers have still to confirm that they have nothing of a topic any more."""
        deletion = self._state.deletions.get(name)
        return deletion is not None and any(deletion.in_phase(broker_id, ReplicaPhase.DELETION_STARTED) for broker_id in deletion.phases)

    def _watch(self, event: ControllerEvent, title: str, look: Performer[ActiveController]) -> Watch:
        known = ref(self)  # the session keeps a watch until it fires, and may outlive many terms

        def happened(_: WatchedEvent) -> None:
            if (active := known()) is not None:
                active._events.put(event, title, lambda: look(active))

        return happened

    def _watch_topic(self, name: str) -> Watch:
        known = ref(self)

        def happened(event: WatchedEvent) -> None:
            if (active := known()) is None:
                return
            active._external.watched_topics.discard(name)
            if event.event_type is not EventType.DELETED:  # that is seen in the list of topics
                active._events.put(ControllerEvent.TOPIC_CHANGE, f"reading topic {name}", lambda: active._external.look_at_topic(name))

        return happened

    async def _look_for_tools(self) -> None:
        """What was asked for before this term, and a watch on every topic: some of them in one event, for ISRs change meanwhile."""
        submit, event = self._events.submit, ControllerEvent.TOPIC_CHANGE
        with contextlib.suppress(ApiError):  # logged where it fails the term
            await submit(ControllerEvent.REASSIGN_PARTITIONS, "reading reassignments", self._tools.look_for_reassignment)
            await submit(ControllerEvent.ELECT_LEADERS, "reading elections", self._tools.look_for_election)
            names = [*self._state.topics, *self._state.unread_topics]
            for start in range(0, len(names), WATCHED_AT_ONCE):
                some = [name for name in names[start : start + WATCHED_AT_ONCE] if name not in self._external.watched_topics]
                await submit(event, "watching topics", lambda some=some: self._external.watch_topics(some))  # type: ignore[misc]  # mypy infers no type of a default
            if self._state.unread_topics:  # they may have become readable before there was a watch
                await submit(event, "reading topics", self._external.look_for_topics)

    def _moved(self) -> None:
        self._changed_deletions.set()
        if self._tools.is_moving:
            event = ControllerEvent.REASSIGN_PARTITIONS
            self._events.put(event, "writing which reassignments are complete", self._tools.reassignments_went_on)

    async def _look_for_leaders(self) -> None:
        while True:
            await asyncio.sleep(_OFFLINE_SECONDS)
            if next(decisions.without_leader(self._state), None) is not None:
                self._events.put(ControllerEvent.ELECT_LEADERS, "electing leaders by log ends", self._partitions.elect_by_log_ends)

    async def _ask_offline_replicas(self) -> None:
        repeats = 0
        while True:
            await asyncio.sleep(_OFFLINE_REPLICAS_BACKOFF.seconds(repeats))
            if self._state.offline_replicas:
                repeats += 1
                event = ControllerEvent.OFFLINE_REPLICAS
                self._events.put(event, "sending offline replicas again", self._partitions.ask_offline_replicas)
            else:
                repeats = 0

    async def _rebalance(self) -> None:
        pause = _FIRST_REBALANCE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = self._state.settings.leader_imbalance_check_interval_seconds
            if self._state.settings.auto_leader_rebalance_enable:
                self._events.put(ControllerEvent.REBALANCE, "rebalancing leaders", self._partitions.rebalance)


def _row(request: type[Q], event: ControllerEvent, perform: Performer[Q], *, waits: bool = False) -> tuple[type[Request[Any]], _Row]:
    return request, _Row(event, perform, waits=waits)


def _grouped(
    request: type[Q], event: ControllerEvent, perform: GroupOperation[Q, Any], *, waits: bool = False
) -> tuple[type[Request[Any]], _Row]:
    return request, _Row(event, perform, is_grouped=True, waits=waits)


def _has_brokers_to_wait_for(request: ControllerRequest[Any]) -> bool:
    """Whether brokers are sent what the request changed. They read brokers' configs themselves, at a notice."""
    is_for_brokers = isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest) and request.resource.topic is None
    return not is_for_brokers and not getattr(request, "validate_only", False)
