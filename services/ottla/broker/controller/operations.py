"""What the controller does for each request: partitions, topics, settings. Each decides, and has its effects written.

A topic's deletion is first written down in `/admin/delete_topics`; its replicas are stopped, and once all have confirmed
its znodes go, the note last. What a crash leaves half done the next controller completes: a deletion that was written down, and the
states of partitions that a topic has and that were never led. Each alteration of settings leaves a notice under `/config/changes`,
at which all brokers read them again (`settings_watch`); old ones are removed on the way. Leaders are checked again then, for an
unclean leader may be allowed now.

Invariant: one operation at a time; the event queue ensures that (`active`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Final
from uuid import UUID

from ottla.broker.controller import configs, decisions, deletions, isr_changes, reassignments, znode_writes
from ottla.broker.controller.effect_writer import EffectWriter
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState, KnownPartition, KnownTopic
from ottla.broker.controller.topics import NewTopic, check_new_name, place_more_partitions, place_topic
from ottla.broker.controller.znode_reader import acceptable_overrides, load_all_broker_configs, load_config
from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode, NoNode
from ottla.coordination.interface import Coordination, Create, Delete, Operation, SetData
from ottla.errors import (
    NONE,
    ApiError,
    BrokerIdNotRegistered,
    InvalidPartitions,
    InvalidRequest,
    KafkaStorageError,
    ReassignmentInProgress,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
    reason_of,
)
from ottla.interbroker.calls import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    AlterPartitionResponse,
    CancelControlledShutdownRequest,
    ControlledShutdownRequest,
    ControlTransport,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    LogEnd,
    LogEndsRequest,
    OngoingReassignment,
    PartitionOutcome,
)
from ottla.model import ZERO_TOPIC_ID, BrokerId, BrokerRegistration, PartitionState, TopicDescription, TopicPartition

log: Final = logging.getLogger(__name__)


# A broker looks into its memory to answer.
_ANSWER_SECONDS: Final = 3.0


class LogEndQueries:
    """Asks replicas where their logs end, before a leader is chosen of those that may have lost records.

    The answers go into the state, and out of it once they were used. Brokers are asked side by side and given a few seconds: the
    controller does nothing else meanwhile. One that does not answer cannot be elected by its log; `active` asks again later.

    Args:
        state: what decisions are made on.
        transport: the way to the brokers.
    """

    def __init__(self, state: ClusterState, transport: ControlTransport) -> None:
        self._state = state
        self._transport = transport
        state.log_ends = {}

    async def ask(self, wanted: Iterable[Sequence[TopicPartition]]) -> bool:
        """Asks every replica that is there of these partitions, a slice at a time. Gives whether there were any."""
        has_asked = False
        silent: set[BrokerId] = set()
        for partitions in wanted:
            if partitions:
                has_asked = True
                await self._ask(partitions, silent)
            await asyncio.sleep(0)
        return has_asked

    def forget(self) -> None:
        """The answers were used; the next question is asked again."""
        self._state.log_ends = {}

    async def _ask(self, partitions: Sequence[TopicPartition], silent: set[BrokerId]) -> None:
        """Asks for a slice of them; which brokers give no answer is added to `silent`, and those are not waited for again."""
        state = self._state
        log.info("%d partitions have no replica that is known to be complete; requesting their log end offsets", len(partitions))
        questions: dict[BrokerId, dict[TopicPartition, UUID]] = {}
        for key in partitions:
            known = state.find(key)
            for broker_id in () if known is None else known.state.replicas:
                if broker_id in state.brokers and broker_id not in silent:
                    questions.setdefault(broker_id, {})[key] = state.topics[key.topic].topic_id
        answers = await asyncio.gather(*(self._ask_broker(state.brokers[asked], question) for asked, question in questions.items()))
        assert state.log_ends is not None
        for broker_id, answer in zip(questions, answers, strict=True):
            if answer is None:
                silent.add(broker_id)
                continue
            for key, end in answer.items():
                state.log_ends.setdefault(key, {})[broker_id] = end

    async def _ask_broker(
        self, broker: BrokerRegistration, question: Mapping[TopicPartition, UUID]
    ) -> Mapping[TopicPartition, LogEnd] | None:
        request = LogEndsRequest(self._state.controller_id, self._state.controller_epoch, broker.broker_epoch, question)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._transport.broker(broker).log_ends(request)
        except (ApiError, TimeoutError, OSError) as error:
            log.warning(
                "broker %d: the log end offsets of %d partitions were not received: %s",
                broker.broker_id,
                len(question),
                reason_of(error),
            )
            return None


@dataclass(frozen=True, slots=True)
class PartitionOperations:
    """What concerns partitions that exist: their ISRs, leaders and places.

    Attributes:
        state: what is known.
        writer: for decisions.
        log_ends: asked before a leader is chosen of those that may have lost records.
    """

    state: ClusterState
    writer: EffectWriter
    log_ends: LogEndQueries

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Changes ISRs as their leader asks for."""
        decision, response = isr_changes.altered(self.state, request)
        await self.writer.perform([decision])
        return response

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> tuple[TopicPartition, ...]:
        """Moves leaderships away from a broker, and gives those that it still has."""
        broker_id = request.broker_id
        self.check_registered(broker_id, request.broker_epoch)
        log.info("broker %d: controlled shutdown", broker_id)
        self.state.shutting_down.add(broker_id)
        await self.writer.perform(decisions.controlled_shutdown(self.state, broker_id))
        return decisions.remaining_leaderships(self.state, broker_id)

    async def cancel_controlled_shutdown(self, request: CancelControlledShutdownRequest) -> None:
        """Lets a broker lead and be in sync again, and has it follow what it was to stop."""
        broker_id = request.broker_id
        self.check_registered(broker_id, request.broker_epoch)
        if broker_id in self.state.shutting_down:
            log.info("broker %d: controlled shutdown cancelled", broker_id)
            self.state.shutting_down.discard(broker_id)
            await self.writer.perform(decisions.shutdown_cancelled(self.state, broker_id), except_brokers=[broker_id])
            await self.writer.send_everything([broker_id])

    async def elect_leaders(self, request: ElectLeadersRequest) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders as an administrator asks for."""
        outcomes: dict[TopicPartition, PartitionOutcome] = {}
        if request.election_type is ElectionType.UNCLEAN:
            named = decisions.without_leader(self.state) if request.selection is None else request.selection
            await self.log_ends.ask(decisions.slices(key for key in named if self._has_no_leader(key)))
        decided = decisions.elect_leaders(self.state, request.election_type, request.selection)
        await self.writer.perform(_noted(decided, outcomes))
        self.log_ends.forget()
        return outcomes

    async def elect_by_log_ends(self) -> None:
        """Looks again whether partitions without a leader can have one by now: some replicas did not say where their logs end."""
        offline = list(decisions.without_leader(self.state))
        if await self.log_ends.ask(decisions.log_ends_wanted(self.state, offline)):
            await self.writer.perform(decisions.log_ends_known(self.state, offline))
            self.log_ends.forget()

    async def rebalance(self) -> None:
        """Gives leaderships back to preferred replicas."""
        await self.writer.perform(decisions.rebalance(self.state))

    async def alter_reassignments(self, request: AlterPartitionReassignmentsRequest) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions, or cancels that (KIP-455)."""
        decision = reassignments.altered(self.state, request.reassignments)
        await self.writer.perform([decision])
        return {key: _outcome(decision.refused.get(key)) for key in request.reassignments}

    async def list_reassignments(self, request: ListPartitionReassignmentsRequest) -> Mapping[TopicPartition, OngoingReassignment]:
        """The reassignments in progress."""
        return reassignments.ongoing(self.state, request.selection)

    async def take_stops(self, registration: BrokerRegistration, errors: Mapping[TopicPartition, int]) -> None:
        """Takes in what a broker answered to StopReplica."""
        if self._is_current(registration):
            await self.writer.perform([deletions.replicas_stopped(self.state, registration.broker_id, errors)])

    async def take_errors(self, registration: BrokerRegistration, errors: Mapping[TopicPartition, int]) -> None:
        """Takes in what a broker answered to LeaderAndIsr: which replicas it cannot use, and which it has again.

        Its log directory has failed, or its disk is full (`ask_offline_replicas`). What a
        broker knows of a replica that is there again may be out of date: no change was announced to it meanwhile.
        """
        if not self._is_current(registration):
            return
        state, broker_id = self.state, registration.broker_id
        offline = state.offline_replicas.get(broker_id, set())
        failed = [key for key, code in errors.items() if code == KafkaStorageError.code and key not in offline and state.find(key)]
        back = [key for key, code in errors.items() if code == NONE and key in offline]
        if failed:
            log.warning("broker %d: %d replicas are offline: a log directory has failed or its disk is full", broker_id, len(failed))
            state.replicas_went_offline(broker_id, failed)
            await self.log_ends.ask(decisions.log_ends_wanted(state, failed))
            await self.writer.perform(decisions.replicas_offline(state, broker_id, failed))
            self.log_ends.forget()
        if back:
            log.info("broker %d: %d replicas are online again", broker_id, len(back))
            state.replicas_came_online(broker_id, back)
            await self.writer.perform(decisions.replicas_online(state, broker_id, back))
            await self.writer.send_again(broker_id, [key for key in back if not self._is_deleting(key)])

    async def ask_offline_replicas(self) -> None:
        """Has brokers try again what they could not do with replicas, for the error of a full disk is that of a failed one.

        A broker whose log directory has failed gives the same answer again, and its replicas stay offline.
        """
        for broker_id, offline in list(self.state.offline_replicas.items()):
            await self.writer.send_again(broker_id, sorted(offline))

    async def take_written_epochs(self, registration: BrokerRegistration, outdated: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Takes in which logs have records of epochs that were given before this controller's memory."""
        if self._is_current(registration):
            log.warning(
                "broker %d: %d logs have records of leader epochs that ZooKeeper does not know; was it restored from a copy?",
                registration.broker_id,
                len(outdated),
            )
            await self.writer.perform(decisions.epochs_outdated(self.state, registration.broker_id, outdated))

    def _is_deleting(self, topic_partition: TopicPartition) -> bool:
        topic = self.state.topics.get(topic_partition.topic)
        return topic is None or topic.is_deleting

    def _has_no_leader(self, topic_partition: TopicPartition) -> bool:
        known = self.state.find(topic_partition)
        return known is not None and known.state.leader not in self.state.brokers

    def check_registered(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Raises BrokerIdNotRegistered, or StaleBrokerEpoch for a broker that has registered again since."""
        registration = self.state.brokers.get(broker_id)
        if registration is None:
            raise BrokerIdNotRegistered(f"broker {broker_id} is not registered")
        if 0 <= broker_epoch < registration.broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} calls in epoch {broker_epoch}, and is in {registration.broker_epoch}")

    def _is_current(self, registration: BrokerRegistration) -> bool:
        known = self.state.brokers.get(registration.broker_id)
        return known is not None and known.broker_epoch == registration.broker_epoch


def _outcome(refusal: ApiError | None) -> PartitionOutcome:
    return PartitionOutcome(NONE) if refusal is None else PartitionOutcome(refusal.code, refusal.message)


def _noted(decided: Iterable[Decision], outcomes: dict[TopicPartition, PartitionOutcome]) -> Iterator[Decision]:
    """The decisions as they come; what comes of each partition is noted once the decision was performed."""
    for decision in decided:
        yield decision
        outcomes.update((change.topic_partition, PartitionOutcome(NONE)) for change in decision.changes)
        outcomes.update((key, _outcome(refusal)) for key, refusal in decision.refused.items())


@dataclass(frozen=True, slots=True)
class TopicOperations:
    """Topics are created, extended and deleted.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        writer: for decisions, and for requests to the brokers.
        random: for placement and ids.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    writer: EffectWriter
    random: Random

    async def create(self, requests: Sequence[CreateTopicRequest]) -> list[TopicDescription | ApiError]:
        """Creates topics in as few transactions as hold them."""
        state = self.state
        results: list[TopicDescription | ApiError] = []
        made: dict[str, tuple[TopicDescription, NewTopic]] = {}
        written: list[Iterator[Operation]] = []
        configured = await self.coordination.get_many([znodes.TOPIC_CONFIG.path(request.new_topic.name) for request in requests])
        placed = 0
        for request, config in zip(requests, configured, strict=True):
            if placed >= decisions.SLICE:
                placed = 0
                await asyncio.sleep(0)
            new_topic = request.new_topic
            name = new_topic.name
            try:
                if name in state.deletions:
                    raise TopicAlreadyExists(f"Topic '{name}' is marked for deletion.")
                for existing in (state.topics, state.unread_topics, made):
                    check_new_name(name, existing)
                replicas = place_topic(
                    new_topic, self._living(), state.settings.num_partitions, state.settings.default_replication_factor, self.random
                )
                placed += len(replicas)
                configs.checked_topic_settings(state.settings, new_topic.configs)
                states = decisions.new_topic_states(state, replicas)
                description = TopicDescription(name, znodes.random_uuid(self.random), states)
                creation = znode_writes.topic_creation(description, new_topic.configs, config is not None)
            except ApiError as error:
                results.append(error.with_traceback(None))  # which would lead to this list, and make all of it a cycle
                continue
            if request.validate_only:
                results.append(TopicDescription(name, ZERO_TOPIC_ID, states))
                continue
            results.append(description)
            written.append(creation)
            made[name] = description, new_topic
        await self.writes.write_in_parts(chain.from_iterable(written))
        new: list[TopicPartition] = []
        for name, (description, new_topic) in made.items():
            state.put_topic(KnownTopic(name, description.topic_id, 0, _first(description.partitions), dict(new_topic.configs)))
            topic_id = znodes.encode_uuid(description.topic_id)
            log.info("topic %s: created with %d partitions, id %s", name, len(description.partitions), topic_id)
            new += state.topic(name).topic_partitions()
        # Brokers without a replica as well: each of them, and this one, may be asked for the topic's settings. Also that it sets nothing:
        # a broker may have read what a former topic of its name set when that was being deleted.
        self.writer.send_topic_configs(made.keys())
        await self.writer.send_new(new)
        await self.writer.log_new(new)
        return results

    async def extend(self, request: CreatePartitionsRequest) -> TopicDescription:
        """Adds partitions to a topic."""
        name = request.name
        topic = self.state.topic(name, request.topic_id)
        if any(partition.is_being_reassigned for partition in topic.partitions):
            raise ReassignmentInProgress(f"A partition reassignment is in progress for the topic '{name}'.")
        former = topic.describe()
        placed = place_more_partitions(name, former.partitions, request.total_count, request.placement, self._living())
        # A restored ZooKeeper may not know that the topic had these once: then the others were elected since, in epochs above theirs. But
        # for that they begin at 0, as all do when the topic is made again: librdkafka does not go back to a lower epoch.
        leader_epoch = max((partition.state.leader_epoch for partition in topic.partitions), default=0)
        added = decisions.new_topic_states(self.state, placed, leader_epoch)
        description = TopicDescription(name, topic.topic_id, former.partitions + added)
        try:
            known = await self.coordination.children(znodes.PARTITIONS.path(name))
            has_parent = True
        except NoNode:
            known, has_parent = [], False
        new_names = {str(index) for index in range(len(former.partitions), request.total_count)}
        if left := sorted(new_names.intersection(known), key=int):
            path = znodes.PARTITION.path(name, int(left[0]))
            raise InvalidPartitions(f"Topic '{name}' has had more partitions: {path} and {len(left) - 1} others are to be deleted first.")
        written = znode_writes.topic_extension(description, len(former.partitions), topic.version, has_parent)
        if request.validate_only:
            return description
        await self.writes.write_in_parts(written)
        self.state.put_topic(KnownTopic(name, topic.topic_id, topic.version + 1, [*topic.partitions, *_first(added)], topic.overrides))
        log.info("topic %s: %d partitions -> %d", name, len(former.partitions), request.total_count)
        new = list(self.state.topic(name).topic_partitions())[len(former.partitions) :]
        await self.writer.send_new(new)
        await self.writer.log_new(new)
        return description

    async def delete(self, requests: Sequence[DeleteTopicRequest]) -> list[ApiError | None]:
        """Begins to delete topics."""
        results: list[ApiError | None] = []
        deleted: dict[str, None] = {}
        for request in requests:
            try:
                if request.name in deleted:
                    raise UnknownTopicOrPartition(f"The topic '{request.name}' does not exist.")
                self.state.topic(request.name, request.topic_id)
                if not self.state.settings.delete_topic_enable:
                    raise TopicDeletionDisabled("Topic deletion is disabled.")
            except ApiError as error:
                results.append(error.with_traceback(None))
                continue
            results.append(None)
            deleted[request.name] = None
        paths = [znodes.DELETE_TOPIC.path(name) for name in deleted]
        noted = await self.coordination.get_many(paths)
        await self.writes.write_in_parts(Create(path) for path, found in zip(paths, noted, strict=True) if found is None)
        for name in deleted:
            await self.begin_deletion(name)
        return results

    async def begin_deletion(self, name: str) -> None:
        """Stops the replicas of a topic whose deletion is written down; clients no longer see it."""
        log.info("topic %s: deletion started", name)
        await self.writer.perform(deletions.begun(self.state, self.state.topic(name)))
        self.writer.send(deleted_topics=[name])

    def take_in(self, topic: KnownTopic) -> None:
        """Takes in a topic that was found, without those of its settings that are invalid."""
        topic.overrides = acceptable_overrides(self.state.settings, topic.name, topic.overrides)
        self.state.put_topic(topic)

    def _living(self) -> list[BrokerRegistration]:
        living = self.state.living()
        return [candidate for broker_id, candidate in sorted(self.state.brokers.items()) if broker_id in living]


def _first(states: Sequence[PartitionState]) -> list[KnownPartition]:
    return [KnownPartition(state, partition_epoch=0) for state in states]


# As Kafka: long enough for every broker to have seen a notice.
CONFIG_CHANGE_LIFETIME_MS: Final = 15 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ConfigOperations:
    """Settings of topics and brokers are altered, written and sent.

    Attributes:
        state: what is known, and is changed after each write.
        coordination: for reading.
        writes: for writing, in the name of one controller epoch.
        writer: for requests to the brokers, and for what follows.
        log_ends: asked before a leader is chosen of those that may have lost records.
        clock: says which notices are old.
    """

    state: ClusterState
    coordination: Coordination
    writes: ControllerWrites
    writer: EffectWriter
    log_ends: LogEndQueries
    clock: Clock

    async def alter(self, request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> None:
        """Alters what a topic, a broker or all brokers set."""
        if request.resource.topic is not None:
            await self._alter_topic(request.resource.topic, request)
        else:
            await self._alter_broker(request.resource.broker_id, request)

    async def _alter_topic(self, name: str, request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> None:
        topic, path = self.state.topic(name, request.resource.topic_id), znodes.TOPIC_CONFIG.path(name)
        try:
            # As it is in ZooKeeper, as of brokers. What cannot be used, and is not altered, stays.
            current: Mapping[str, str] = await load_config(self.coordination, path)
        except MalformedZnode:
            current = topic.overrides
        overrides = configs.altered(current, request, TopicSettings.definitions())
        TopicSettings.of(self.state.settings, {key: value for key, value in overrides.items() if current.get(key) != value})
        acceptable = acceptable_overrides(self.state.settings, name, overrides)
        configs.checked_topic_settings(self.state.settings, acceptable)
        if request.validate_only:
            return
        await self._write(path, overrides, f"topics/{name}")
        log.info("topic %s: configs are now %s", name, overrides)
        await self._take_in_topic(name, acceptable)

    async def _alter_broker(self, broker_id: BrokerId | None, request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> None:
        # As it is in ZooKeeper, and not as it was taken in: what is invalid, or was written just now, is not to be lost.
        changed = await load_all_broker_configs(self.coordination)
        overrides = changed[broker_id] = configs.altered(changed.get(broker_id, {}), request, BrokerSettings.definitions())
        # The broker has checked its own static settings itself; ours stand for them here, but for listeners.
        if broker_id in (None, self.state.controller_id):
            self._settings(changed, self.state.controller_id)
        else:
            comparable = {name: text for name, text in overrides.items() if name != "advertised.listeners"}
            self._settings({**changed, broker_id: comparable}, broker_id)
        if request.validate_only:
            return
        entity = znodes.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        await self._write(znodes.BROKER_CONFIG.path(entity), overrides, f"brokers/{entity}")
        log.info("broker %s: dynamic configs are now %s", entity, overrides)
        await self.take_in_brokers(changed)

    async def read_again(self, entity: str) -> None:
        """Takes in what a notice of changed settings is about. Mostly the controller wrote it, and nothing is new."""
        kind, _, name = entity.partition("/")
        if kind == "topics" and name in self.state.topics and not self.state.topics[name].is_deleting:
            overrides = acceptable_overrides(
                self.state.settings, name, await load_config(self.coordination, znodes.TOPIC_CONFIG.path(name))
            )
            if overrides != self.state.topics[name].overrides:
                await self._take_in_topic(name, overrides)
        elif kind == "brokers":
            changed = await load_all_broker_configs(self.coordination)
            if any(
                changed.get(override, {}) != self.state.broker_overrides.get(override, {})
                for override in {*changed, *self.state.broker_overrides}
            ):
                await self.take_in_brokers(changed)

    async def remove_old_notices(self) -> None:
        """Removes the notices that every broker has seen."""
        removed = []
        for name in sorted(await self.coordination.children(znodes.CONFIG_CHANGES.path())):
            path = f"{znodes.CONFIG_CHANGES.path()}/{name}"
            stat = await self.coordination.exists(path)
            if stat is None or self.clock.time_ms() - stat.ctime < CONFIG_CHANGE_LIFETIME_MS:
                break
            removed.append(Delete(path))
        if removed:
            await self.writes.write_in_parts(removed)

    async def _take_in_topic(self, name: str, overrides: Mapping[str, str]) -> None:
        self.state.topics[name].overrides = overrides
        self.writer.send_topic_configs([name])
        await self._elect_where_needed([name])

    async def take_in_brokers(self, changed: Mapping[BrokerId | None, Mapping[str, str]]) -> None:
        state = self.state
        try:
            settings = self._settings(changed, state.controller_id)
        except InvalidRequest as error:
            log.error("dynamic configs of this broker are invalid, and ignored: %s", error)
            return
        may_lead_uncleanly = settings.unclean_leader_election_enable and not state.settings.unclean_leader_election_enable
        needs_fewer = settings.min_insync_replicas < state.settings.min_insync_replicas
        state.broker_overrides, state.settings = dict(changed), settings
        if may_lead_uncleanly or needs_fewer:
            await self._elect_where_needed(list(state.topics))

    async def _elect_where_needed(self, names: Sequence[str]) -> None:
        """Which replicas may lead, and which are known to be complete, depends on settings."""
        partitions = [key for name in names for key in self.state.topics[name].topic_partitions()]
        await self.log_ends.ask(decisions.log_ends_wanted(self.state, partitions))
        await self.writer.perform(decisions.topics_found(self.state, names))
        self.log_ends.forget()

    def _settings(self, overrides: Mapping[BrokerId | None, Mapping[str, str]], broker_id: BrokerId) -> BrokerSettings:
        static = self.state.static_settings
        defaults = configs.without_unusable(static, overrides.get(None, {}), for_all=True)
        own = configs.without_unusable(static, overrides.get(broker_id, {}), for_all=False)
        return configs.checked_broker_settings(static, defaults, own)

    async def _write(self, path: str, overrides: Mapping[str, str], entity_path: str) -> None:
        data = znodes.encode_config(overrides)
        exists = await self.coordination.exists(path) is not None
        notice = Create(znodes.CONFIG_CHANGE.path(""), znodes.encode_config_change(entity_path), sequential=True)
        await self.writes.write([SetData(path, data) if exists else Create(path, data), notice])
        await self.remove_old_notices()
