"""One term as the controller: what it knows, who may ask it for what, and what it does of itself.

It begins by reading everything from ZooKeeper, and ends at once when it resigns: nothing is decided, written or told
afterwards. A write whose outcome is not known, or that finds what nobody but the controller writes written by somebody
else, makes the state doubtful; then the term has failed, and begins anew from what ZooKeeper holds.

Operations take turns (`turns`); what they do is in `topic_operations`, `partition_operations`, `config_operations`,
`external_changes` and `tool_requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Final

from ottla.broker.controller import configs, decisions
from ottla.broker.controller.channels import Channel, Channels, Told
from ottla.broker.controller.config_operations import ConfigOperations
from ottla.broker.controller.counts import ControllerCounts
from ottla.broker.controller.external_changes import WATCHED_AT_ONCE, ExternalChanges, Watched
from ottla.broker.controller.loading import load_all_broker_configs
from ottla.broker.controller.log_end_questions import LogEndQuestions
from ottla.broker.controller.membership import make_skeleton
from ottla.broker.controller.partition_operations import PartitionOperations
from ottla.broker.controller.performing import Performer
from ottla.broker.controller.producer_ids import next_block
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.terms import ControllerTerm
from ottla.broker.controller.tool_requests import ToolRequests
from ottla.broker.controller.topic_operations import TopicOperations
from ottla.broker.controller.transitions import ReplicaPhase
from ottla.broker.controller.turns import Turns
from ottla.broker.controller.writes import ControllerWrites
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.interface import Coordination, Delete, EventType, SetData, Watch, WatchedEvent
from ottla.errors import ApiError, NotController, StaleBrokerEpoch
from ottla.interbroker.calls import (
    DEFAULT_TIMEOUT_SECONDS,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ConfigChange,
    ControlTransport,
    ElectionType,
    NewTopic,
    OngoingReassignment,
    PartitionOutcome,
)
from ottla.model import BrokerId, BrokerRegistration, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)

# An answer waits this long, at most, for all brokers to know what it says.
_TOLD_SECONDS: Final = 1.0
# The first look for leaders to move; later ones come every leader.imbalance.check.interval.seconds.
_FIRST_REBALANCE_SECONDS: Final = 5.0
# How often replicas of partitions without a leader are asked where their logs end; some may not have answered before.
_OFFLINE_SECONDS: Final = 5.0
# How often brokers are asked for the replicas that they could not use; the pause doubles for as long as there are any. A full
# disk has room again some time, and a failed one gives the same answer for each of its replicas.
_FIRST_OFFLINE_REPLICAS_SECONDS: Final = 5.0
_LONGEST_OFFLINE_REPLICAS_SECONDS: Final = 30.0


class ActiveController:
    """The controller, in one term of this broker: `ottla.interbroker.calls.ControllerControl`.

    Args:
        term: who and which epoch.
        coordination: the session that holds `/controller`.
        settings: what this broker was started with.
        clock: for the age of notices.
        random: for placement and ids.
        transport: the way to the brokers.
        failed: called when this term can not go on; says why.
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
        failed: Callable[[str], None],
        counts: ControllerCounts | None = None,
        request_numbers: Iterator[int] | None = None,
    ) -> None:
        assert term.epoch_version is not None, "only an own term is begun"
        self.term: Final = term
        self._coordination = coordination
        self._transport = transport
        self._request_numbers = request_numbers or count(1)
        self._failed = failed
        self._is_over = False
        self._beside: list[asyncio.Task[None]] = []
        self._changed_deletions = asyncio.Event()
        counts = counts or ControllerCounts()
        state = self._state = ClusterState(term.broker_id, term.epoch, settings, settings)
        writes = self._writes = ControllerWrites(coordination, term.epoch_version)
        self._turns = Turns(self._fail, counts)
        self._channels = Channels(self._open_channel)
        performer = self._performer = Performer(state, coordination, writes, self._channels, self._moved, counts)
        questions = LogEndQuestions(state, transport)
        self._topics = TopicOperations(state, coordination, writes, performer, random)
        self._partitions = PartitionOperations(state, performer, questions)
        self._configs = ConfigOperations(state, coordination, writes, performer, questions, clock)
        watched = Watched(
            self._watch("brokers", lambda: self._external.look_for_brokers()),
            self._watch("topics", lambda: self._external.look_for_topics()),
            self._watch_topic,
            self._watch("log directories", lambda: self._external.look_for_failed_directories()),
        )
        self._external = ExternalChanges(state, coordination, writes, performer, self._channels, self._topics, questions, random, watched)
        self._tools = ToolRequests(
            state,
            coordination,
            writes,
            self._partitions,
            self._watch("partitions to move", lambda: self._tools.look_for_reassignment()),
            self._watch("elections", lambda: self._tools.look_for_election()),
        )

    @property
    def state(self) -> ClusterState:
        """What decisions are made on, for looking only."""
        return self._state

    @property
    def waiting_count(self) -> int:
        """Operations that have not ended."""
        return self._turns.length

    # The term.

    async def start(self) -> None:
        """Takes over: afterwards it can be asked, and every broker is about to be told all.

        Raises:
            ApiError: it could not; the term has failed.
        """
        await self._turns.take("taking over", self._take_over)
        if not self._is_over:
            # Beside, as the cluster is whole without it.
            work = (self._rebalance(), self._look_for_leaders(), self._ask_offline_replicas(), self._look_for_tools())
            self._beside = [asyncio.ensure_future(each) for each in work]

    def resign(self) -> None:
        """Decides, writes and tells nothing any more, at once."""
        self._is_over = True
        self._turns.close()
        self._writes.close()
        self._channels.close()
        self._changed_deletions.set()
        for task in self._beside:
            task.cancel()

    async def wait_closed(self, timeout_seconds: float) -> None:
        """Waits until what was under way has ended."""
        await self._turns.wait_closed(timeout_seconds)
        await self._channels.wait_closed()
        if self._beside:
            await asyncio.wait(self._beside)

    async def told_all(self, timeout_seconds: float = _TOLD_SECONDS) -> bool:
        """Waits until every living broker knows what is decided. False: it took too long."""
        return await self._channels.told_all(timeout_seconds)

    async def leave(self) -> None:
        """Gives up `/controller` and the broker's registration in one write, so that its successor does not count on this broker."""
        term = self.term

        async def give_up() -> None:
            await self._writes.write([Delete(znodes.CONTROLLER.path()), Delete(znodes.BROKER.path(term.broker_id))])
            self.resign()  # before it gets to look at who has gone

        await self._turns.take("resigning", give_up)

    @property
    def is_over(self) -> bool:
        """Whether it has resigned."""
        return self._is_over

    def check_broker(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Raises StaleBrokerEpoch for one that has registered anew since."""
        registration = self._state.brokers.get(broker_id)
        if registration is not None and 0 <= broker_epoch < registration.broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} calls in epoch {broker_epoch}, and has registered with {registration.broker_epoch}")

    def settings_noticed(self, entity: str) -> None:
        """A notice says that something was set for a topic or broker."""
        self._turns.take_beside(f"reading the settings of {entity}", lambda: self._configs.read_again(entity))
        if entity.startswith("brokers/"):
            # A broker that is to be found elsewhere now has written that to its registration.
            self._turns.take_beside("looking for brokers", self._external.look_for_brokers)

    # What can be asked for: see ControllerControl.

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Changes the ISRs of partitions that the sender leads."""
        what = f"changing ISRs that broker {request.broker_id} leads"
        return await self._turns.take(what, lambda: self._partitions.alter_partition(request))

    async def controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Moves leaderships away from a broker that wants to stop. Answered when the others know who leads now."""
        what = f"the shutdown of broker {broker_id}"
        remaining = await self._turns.take(what, lambda: self._partitions.controlled_shutdown(broker_id, broker_epoch))
        await self.told_all()
        return remaining

    async def cancel_controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Lets a broker that handed over lead and be in sync again."""
        what = f"the end of draining broker {broker_id}"
        await self._turns.take(what, lambda: self._partitions.cancel_controlled_shutdown(broker_id, broker_epoch))

    async def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> range:
        """The next block of producer ids, for a broker."""

        async def allocate() -> range:
            self.check_broker(broker_id, broker_epoch)
            path = znodes.PRODUCER_ID_BLOCK.path()
            data, stat = await self._coordination.get(path)
            block = next_block(znodes.decode_producer_id_block(path, data), broker_id)
            await self._writes.write([SetData(path, znodes.encode_producer_id_block(block), stat.version)])
            return range(block.first, block.last + 1)

        return await self._turns.take("allocating producer ids", allocate)

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        """Makes a topic. Answered when the living brokers know of it, or could have."""
        what = f"creating topic {new_topic.name}"
        topic = await self._turns.take_together(what, (new_topic, validate_only), self._topics.create)
        await self._told_of(validate_only, timeout_seconds)
        return topic

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Deletes a topic. Answered when it is gone, or all of it that is not on brokers that are away; or when the time is up."""
        await self._turns.take_together(f"deleting topic {name}", name, self._topics.delete)
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self._is_over and self._is_stopping(name):
                    self._changed_deletions.clear()
                    await self._changed_deletions.wait()
                await self.told_all()
        except TimeoutError:
            log.info("topic %s: its deletion goes on", name)

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> TopicDescription:
        """Gives a topic more partitions. Answered as `create_topic`."""
        what = f"adding partitions to {name}"
        topic = await self._turns.take(what, lambda: self._topics.extend(name, total_count, assignments, validate_only))
        await self._told_of(validate_only, timeout_seconds)
        return topic

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""
        await self._alter_topic(name, lambda _: overrides, validate_only)

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""
        definitions = TopicSettings.definitions()
        await self._alter_topic(name, lambda current: configs.changed_configs(current, changes, definitions), validate_only)

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of a broker, or of all with None, while it runs."""
        await self._alter_broker(broker_id, lambda _: overrides, validate_only)

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of a broker, or of all brokers with None, while it runs."""
        definitions = BrokerSettings.definitions()
        await self._alter_broker(broker_id, lambda current: configs.changed_configs(current, changes, definitions), validate_only)

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders of the partitions named, or with None of all."""
        outcomes = await self._turns.take("electing leaders", lambda: self._partitions.elect_leaders(election_type, partitions))
        await self._told_of(False, timeout_seconds)
        return outcomes

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions to the brokers named; None instead of brokers cancels what is under way."""
        return await self._turns.take("moving partitions", lambda: self._partitions.alter_reassignments(reassignments))

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers, of those named or with None of all."""
        if self._is_over:
            raise NotController("this broker is not the controller any more")
        return self._partitions.ongoing_reassignments(partitions)

    # How it is done.

    async def _take_over(self) -> None:
        await make_skeleton(self._coordination)  # somebody may have removed a parent with all of its children
        overrides = await load_all_broker_configs(self._coordination)
        await self._configs.take_in_brokers(overrides)
        await self._external.take_over()
        await self._configs.remove_old_notices()
        state = self._state
        partition_count = sum(len(each.partitions) for each in state.topics.values())
        log.info(
            "the controller of epoch %d has taken over %d brokers, %d topics and %d partitions",
            self.term.epoch,
            len(state.brokers),
            len(state.topics),
            partition_count,
        )

    def _is_stopping(self, name: str) -> bool:
        """Whether living brokers have still to confirm that they have nothing of a topic any more."""
        deletion = self._state.deletions.get(name)
        return deletion is not None and any(deletion.in_phase(each, ReplicaPhase.DELETION_STARTED) for each in deletion.phases)

    async def _told_of(self, validate_only: bool, timeout_seconds: float) -> None:
        if not validate_only:
            await self.told_all(min(timeout_seconds, _TOLD_SECONDS))

    async def _alter_topic(self, name: str, decide: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool) -> None:
        what = f"altering the settings of topic {name}"
        await self._turns.take(what, lambda: self._configs.alter_topic(name, decide, validate_only))
        await self._told_of(validate_only, _TOLD_SECONDS)

    async def _alter_broker(
        self, broker_id: BrokerId | None, decide: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        await self._turns.take("altering the settings of brokers", lambda: self._configs.alter_broker(broker_id, decide, validate_only))

    def _open_channel(self, registration: BrokerRegistration) -> Channel:
        state = self._state
        return Channel(
            registration,
            state.controller_id,
            state.controller_epoch,
            self._request_numbers,
            self._transport,
            registrations=lambda: tuple(state.brokers[each] for each in sorted(state.brokers)),
            overrides=lambda name: state.topics[name].overrides if name in state.topics else {},
            topics=lambda: tuple(name for name, each in state.topics.items() if not each.is_deleting),
            all_replicas=lambda: state.all_replicas(registration.broker_id),
            told=self._told,
            fenced=self._fail,
        )

    def _told(self, told: Told) -> None:
        """A broker has answered. What of it matters is looked at in its turn."""
        broker_id = told.registration.broker_id
        if told.is_stop:
            self._turns.take_beside(f"hearing what broker {broker_id} stopped", lambda: self._take_stops(told))
            return
        if told.outdated_epochs:
            what = f"hearing what broker {broker_id} can not do: leader epochs"
            self._turns.take_beside(what, lambda: self._partitions.take_written_epochs(told.registration, told.outdated_epochs))
        if any(told.errors.values()) or broker_id in self._state.offline_replicas:
            what = f"hearing what broker {broker_id} can not do"
            self._turns.take_beside(what, lambda: self._partitions.take_errors(told.registration, told.errors))

    async def _take_stops(self, told: Told) -> None:
        await self._partitions.take_stops(told.registration, told.errors)
        self._changed_deletions.set()

    def _watch(self, what: str, look: Callable[[], Awaitable[None]]) -> Watch:
        return lambda _: self._turns.take_beside(f"looking for {what}", look)

    def _watch_topic(self, name: str) -> Watch:
        def happened(event: WatchedEvent) -> None:
            self._external.watched_topics.discard(name)
            if event.event_type is not EventType.DELETED:  # that is seen in the list of topics
                self._turns.take_beside(f"looking at topic {name}", lambda: self._external.look_at_topic(name))

        return happened

    async def _look_for_tools(self) -> None:
        """What was asked for before this term, and a watch on every topic: some of them in a turn, for ISRs change meanwhile."""
        with contextlib.suppress(ApiError):  # said where it fails the term
            await self._turns.take("looking for partitions to move", self._tools.look_for_reassignment)
            await self._turns.take("looking for elections", self._tools.look_for_election)
            names = [*self._state.topics, *self._state.unread_topics]
            for start in range(0, len(names), WATCHED_AT_ONCE):
                some = [each for each in names[start : start + WATCHED_AT_ONCE] if each not in self._external.watched_topics]
                await self._turns.take("watching topics", lambda some=some: self._external.watch_topics(some))  # type: ignore[misc]
            if self._state.unread_topics:  # they may have become readable before there was a watch
                await self._turns.take("looking for topics", self._external.look_for_topics)

    def _moved(self) -> None:
        if self._tools.is_moving:
            self._turns.take_beside("looking what has been moved", self._tools.reassignments_went_on)

    def _fail(self, why: str) -> None:
        if not self._is_over:
            self._failed(why)

    async def _look_for_leaders(self) -> None:
        while True:
            await asyncio.sleep(_OFFLINE_SECONDS)
            if next(decisions.without_leader(self._state), None) is not None:
                self._turns.take_beside("electing leaders by the ends of logs", self._partitions.elect_by_log_ends)

    async def _ask_offline_replicas(self) -> None:
        pause = _FIRST_OFFLINE_REPLICAS_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._state.offline_replicas:
                pause = min(pause * 2, _LONGEST_OFFLINE_REPLICAS_SECONDS)
                self._turns.take_beside("asking for replicas that are offline", self._partitions.ask_offline_replicas)
            else:
                pause = _FIRST_OFFLINE_REPLICAS_SECONDS

    async def _rebalance(self) -> None:
        pause = _FIRST_REBALANCE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = self._state.settings.leader_imbalance_check_interval_seconds
            if self._state.settings.auto_leader_rebalance_enable:
                self._turns.take_beside("giving leaderships back", self._partitions.rebalance)
