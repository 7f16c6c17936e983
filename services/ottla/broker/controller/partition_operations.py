"""Carries out what is asked for about partitions that are there: their ISRs, leaders and places.

One operation at a time: whoever calls sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ottla.broker.controller import decisions
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.log_end_questions import LogEndQuestions
from ottla.broker.controller.performing import Performer
from ottla.broker.controller.state import ClusterState
from ottla.errors import NONE, ApiError, BrokerIdNotRegistered, KafkaStorageError, StaleBrokerEpoch
from ottla.interbroker.calls import AlterPartitionRequest, AlterPartitionResponse, ElectionType, OngoingReassignment, PartitionOutcome
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionOperations:
    """What a controller does with partitions in its term.

    Attributes:
        state: what is known.
        performer: for decisions.
        questions: asked before a leader is chosen of those that may have lost records.
    """

    state: ClusterState
    performer: Performer
    questions: LogEndQuestions

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Changes ISRs as a leader asks for."""
        decision, response = decisions.alter_partition(self.state, request)
        await self.performer.perform([decision])
        return response

    async def controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Moves leaderships away from a broker, and gives those that it still has."""
        self._check_registered(broker_id, broker_epoch, "wants to stop")
        log.info("broker %d wants to stop", broker_id)
        self.state.shutting_down.add(broker_id)
        await self.performer.perform(decisions.controlled_shutdown(self.state, broker_id))
        return decisions.remaining_leaderships(self.state, broker_id)

    async def cancel_controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Lets a broker lead and be in sync again, and has it follow what it was told to stop."""
        self._check_registered(broker_id, broker_epoch, "wants to take part again")
        if broker_id in self.state.shutting_down:
            log.info("broker %d takes part again", broker_id)
            self.state.shutting_down.discard(broker_id)
            await self.performer.perform(decisions.shutdown_cancelled(self.state, broker_id), except_brokers=[broker_id])
            await self.performer.announce_everything([broker_id])

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders as an administrator asks for."""
        outcomes: dict[TopicPartition, PartitionOutcome] = {}
        if election_type is ElectionType.UNCLEAN:
            named = decisions.without_leader(self.state) if partitions is None else partitions
            await self.questions.ask(_parts(key for key in named if self._has_no_leader(key)))
        decided = decisions.elect_leaders(self.state, election_type, partitions)
        await self.performer.perform(_noted(decided, outcomes))
        self.questions.forget()
        return outcomes

    async def elect_by_log_ends(self) -> None:
        """Looks again whether partitions without a leader can have one by now: some replicas did not say where their logs end."""
        offline = list(decisions.without_leader(self.state))
        for wanted in decisions.log_ends_wanted(self.state, offline):
            if wanted:
                await self.questions.ask([wanted])
                await self.performer.perform(decisions.log_ends_known(self.state, wanted))
                self.questions.forget()

    async def rebalance(self) -> None:
        """Gives leaderships back to preferred replicas."""
        await self.performer.perform(decisions.rebalance(self.state))

    async def alter_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None]
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions, or cancels that."""
        decision = decisions.alter_reassignments(self.state, reassignments)
        await self.performer.perform([decision])
        return {key: _outcome(decision.refused.get(key)) for key in reassignments}

    def ongoing_reassignments(self, partitions: Sequence[TopicPartition] | None) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers."""
        return decisions.ongoing_reassignments(self.state, partitions)

    async def take_stops(self, registration: BrokerRegistration, errors: Mapping[TopicPartition, int]) -> None:
        """Takes in what a broker answered to StopReplica."""
        if self._is_current(registration):
            await self.performer.perform([decisions.replicas_stopped(self.state, registration.broker_id, errors)])

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
            log.warning("broker %d: %d replicas are offline, as a log directory has failed or its disk is full", broker_id, len(failed))
            state.replicas_went_offline(broker_id, failed)
            await self.performer.perform(decisions.replicas_offline(state, broker_id, failed))
        if back:
            log.info("broker %d: %d replicas are there again", broker_id, len(back))
            state.replicas_came_online(broker_id, back)
            await self.performer.perform(decisions.replicas_online(state, broker_id, back))
            await self.performer.announce_again(broker_id, [key for key in back if not self._is_deleting(key)])

    async def ask_offline_replicas(self) -> None:
        """Has brokers try again what they could not do with replicas, for the error of a full disk is that of a failed one.

        A broker whose log directory has failed gives the same answer again, and its replicas stay offline.
        """
        for broker_id, offline in list(self.state.offline_replicas.items()):
            await self.performer.announce_again(broker_id, sorted(offline))

    async def take_written_epochs(self, registration: BrokerRegistration, outdated: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Takes in which logs have records of epochs that were given before this controller's memory."""
        if self._is_current(registration):
            log.warning(
                "broker %d: %d logs have records of leader epochs that ZooKeeper does not know; was it restored from a copy?",
                registration.broker_id,
                len(outdated),
            )
            await self.performer.perform(decisions.epochs_outdated(self.state, registration.broker_id, outdated))

    def _is_deleting(self, topic_partition: TopicPartition) -> bool:
        topic = self.state.topics.get(topic_partition.topic)
        return topic is None or topic.is_deleting

    def _has_no_leader(self, topic_partition: TopicPartition) -> bool:
        known = self.state.find(topic_partition)
        return known is not None and known.state.leader not in self.state.brokers

    def _check_registered(self, broker_id: BrokerId, broker_epoch: int, what: str) -> None:
        registration = self.state.brokers.get(broker_id)
        if registration is None:
            raise BrokerIdNotRegistered(f"broker {broker_id} {what} and is not registered")
        if 0 <= broker_epoch < registration.broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} {what} in epoch {broker_epoch}, and is in {registration.broker_epoch}")

    def _is_current(self, registration: BrokerRegistration) -> bool:
        known = self.state.brokers.get(registration.broker_id)
        return known is not None and known.broker_epoch == registration.broker_epoch


def _parts(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(partitions)
    while part := list(islice(rest, decisions.SLICE)):
        yield part


def _outcome(refusal: ApiError | None) -> PartitionOutcome:
    return PartitionOutcome(NONE) if refusal is None else PartitionOutcome(refusal.code, refusal.message)


def _noted(decided: Iterable[Decision], outcomes: dict[TopicPartition, PartitionOutcome]) -> Iterator[Decision]:
    """The decisions as they come; what comes of each partition is noted once the decision was performed."""
    for decision in decided:
        yield decision
        outcomes.update((change.topic_partition, PartitionOutcome(NONE)) for change in decision.changes)
        outcomes.update((key, _outcome(refusal)) for key, refusal in decision.refused.items())
