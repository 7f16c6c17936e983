"""What a broker does when the controller tells it something: `ottla.interbroker.calls.BrokerControl`.

Requests are taken one at a time in the order in which they came. Each is judged by its two epochs first, also when it
had to wait for its turn: a former controller, and one that speaks to a former life of this broker, are refused before
anything changes. So is a request that the network delivers behind a later one of the same controller: it knows an older
state, and may speak of a topic that has been deleted and created again since. A broker whose session has ended rejects them
until it has registered again, so that nothing that was sent before can make it lead again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from ottla.broker.metadata import MetadataCache
from ottla.errors import BrokerNotAvailable, FencedLeaderEpoch, StaleBrokerEpoch, StaleControllerEpoch
from ottla.interbroker.calls import (
    AllReplicas,
    BrokerControl,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    PartitionAssignment,
    PartitionToStop,
    StopReplicaRequest,
    StopReplicaResponse,
    TransactionAnswer,
    TransactionControl,
    TransactionMarker,
    TransactionQuestion,
    UpdateMetadataRequest,
)
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, TopicPartition

log: Final = logging.getLogger(__name__)

NOT_REGISTERED: Final = -1


class Replicas(Protocol):
    """What the partitions of this broker are changed to: `ottla.broker.replication.replicas.ReplicaManager`."""

    def written_epochs(self, partitions: Iterable[PartitionAssignment]) -> Mapping[TopicPartition, int]:
        """The latest leader epoch of each log that cannot continue in the epoch that is given."""
        ...

    async def apply(
        self, partitions: Sequence[PartitionAssignment], live_leaders: Sequence[BrokerRegistration]
    ) -> Mapping[TopicPartition, int]:
        """Leads and follows; gives the error code of each partition."""
        ...

    def log_ends(self, partitions: Mapping[TopicPartition, UUID]) -> Mapping[TopicPartition, LogEnd]:
        """Where the logs of these partitions of topics with these ids end."""
        ...

    async def stop(self, partitions: Sequence[PartitionToStop]) -> Mapping[TopicPartition, int]:
        """Gives replicas up; gives the error code of each."""
        ...

    async def rename_stray_logs(self, all_replicas: AllReplicas) -> Sequence[TopicPartition]:
        """Gives up what is none of these, and keeps its files under another name."""
        ...

    def stop_leading_all(self) -> None:
        """Leads nothing any more, at once."""
        ...


class Service(Protocol):
    """This broker's part in the control of the cluster: `ottla.broker.controller.service.ControllerService`."""

    @property
    def registration(self) -> BrokerRegistration | None:
        """The latest; None before the first."""
        ...

    def learn_topic_overrides(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """Takes in what topics set, before anything is opened by it."""
        ...

    def forget_topics(self, names: Sequence[str]) -> None:
        """Takes in that topics are gone."""
        ...

    def keep_topics(self, names: Sequence[str]) -> None:
        """Takes in which topics there are."""
        ...

    # Hands over what this broker leads, and takes part again.
    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...

    # The latest controller's epoch, and a broker's registration, as ZooKeeper has them now.
    async def begun_epoch(self) -> int: ...
    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None: ...


class Coordinator(Protocol):
    """What is coordinated here and depends on topics: `GroupCoordinator` and `TransactionCoordinator`."""

    def topics_changed(self, deleted: Sequence[str], all_known: bool) -> None:
        """The controller has sent topics.

        Args:
            deleted: those that are gone.
            all_known: whether all that there are are known by now.
        """
        ...


class ControlApplier(BrokerControl):
    """This broker, as the controller sees it.

    Args:
        broker_id: which.
        service: has its registration and what topics set for themselves, and asks ZooKeeper about epochs ahead of what is known here.
        metadata: what clients are answered from.
        replicas: the partitions here.
        coordinators: have to know which topics are gone.
        transactions: does what other brokers ask of them.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        service: Service,
        metadata: MetadataCache,
        replicas: Replicas,
        coordinators: Sequence[Coordinator],
        transactions: TransactionControl,
    ) -> None:
        self._broker_id = broker_id
        self._service = service
        self._metadata = metadata
        self._replicas = replicas
        self._coordinators = coordinators
        self._transactions = transactions
        self.metadata_epoch = NOT_REGISTERED  # the broker epoch under which the controller sent all state
        self.drained_epoch = NOT_REGISTERED  # the one under which this broker was asked to hand over
        self._controller_epoch = -1
        # The last request that was taken: controller, its epoch, broker epoch and number. Numbers count within these three.
        self._last_taken = (NO_LEADER, -1, NOT_REGISTERED, 0)
        self._ended: BrokerRegistration | None = None  # the last one that ended with its session
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False

    async def close(self) -> None:
        """Completes the requests in progress and accepts no more: the broker stops."""
        self._is_closed = True
        async with self._one_at_a_time:
            pass

    def session_lost(self) -> None:
        """The registration has ended: nothing is led any more, and what was meant for it is refused, even if it waits for its turn."""
        self._ended = self._service.registration or self._ended
        self._replicas.stop_leading_all()

    def controller_changed(self, controller_id: BrokerId, controller_epoch: int) -> None:
        """Who is the controller is known by other ways too; an older one is not listened to from then on."""
        self._controller_epoch = max(self._controller_epoch, controller_epoch)
        self._metadata.controller_id = controller_id

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Becomes leader or follower of the partitions. Settings first, as logs are opened with them; then clients see the new leaders."""
        async with self._one_at_a_time:
            await self._confirm(request)
            self._take(request)
            self._service.learn_topic_overrides(request.topic_configs)
            self._metadata.update_known(request.partitions)
            written_epochs = self._replicas.written_epochs(request.partitions)
            possible = [partition for partition in request.partitions if partition.topic_partition not in written_epochs]
            errors = dict(await self._replicas.apply(possible, request.live_leaders))
            if not self._is_for(request.broker_epoch):
                # The session ended in the middle of it, so what came after that has to be taken back.
                self._replicas.stop_leading_all()
                self._check(request)
            if request.all_replicas is not None:
                self._check(request)  # its controller may have been replaced meanwhile, and this is not to be undone
                await self._replicas.rename_stray_logs(request.all_replicas)
            if request.all_topics_known:
                self._topics_changed((), True)
            for key, epoch in written_epochs.items():
                log.warning(
                    "%s: LeaderAndIsr refused: the log has records of leader epoch %d, which is not below the controller's", key, epoch
                )
                errors[key] = FencedLeaderEpoch.code
            return LeaderAndIsrResponse(errors, written_epochs)

    async def update_metadata(self, request: UpdateMetadataRequest) -> None:
        """Tells clients what has changed from now on."""
        async with self._one_at_a_time:
            await self._confirm(request)
            self._take(request)
            gone = [] if request.all_topics is None else self._metadata.topics_beside(request.all_topics)
            deleted = list(dict.fromkeys((*request.deleted_topics, *gone)))
            self._service.forget_topics(deleted)
            if request.all_topics is not None:
                self._service.keep_topics(request.all_topics)
            self._service.learn_topic_overrides(request.topic_configs)
            self._metadata.put_brokers(request.brokers)
            replaced = self._metadata.update(request.partitions, deleted, request.all_topics)
            self._topics_changed([*deleted, *replaced], request.all_topics_known)
            if request.all_topics is not None:  # the last request of those that follow a registration
                self.metadata_epoch = request.broker_epoch

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Gives replicas up."""
        async with self._one_at_a_time:
            await self._confirm(request)
            self._take(request)
            return StopReplicaResponse(await self._replicas.stop(request.partitions))

    async def log_ends(self, request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        """Says where logs end, of those that are loaded. Nothing is written to a partition without a leader."""
        async with self._one_at_a_time:
            if self._service.registration is not None:  # else the registration that the question names is not read back yet
                await self._confirm(request)
                self._check(request)
            return self._replicas.log_ends(request.partitions)

    async def drain(self) -> None:
        """Hands over what it leads."""
        registration = self._service.registration
        if registration is not None:
            self.drained_epoch = registration.broker_epoch
        await self._service.drain()

    async def undrain(self) -> None:
        """Takes part again."""
        await self._service.undrain()
        self.drained_epoch = NOT_REGISTERED

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """Writes a marker for another broker that coordinates the transaction. The epochs in it say whether it may."""
        return await self._transactions.write_transaction_marker(marker)

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        """Says what is known here of a transaction."""
        return await self._transactions.verify_transaction(question)

    def _topics_changed(self, deleted: Sequence[str], all_known: bool) -> None:
        for coordinator in self._coordinators:
            coordinator.topics_changed(deleted, all_known)

    async def _confirm(self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest | LogEndsRequest) -> None:
        """Refuses an epoch ahead of what is known here that ZooKeeper does not know either: its sender has made it up.

        Or this broker's server of ZooKeeper is behind those that the sender wrote to: then it is right, and has to try again.
        """
        if request.controller_epoch > self._controller_epoch and request.controller_epoch > await self._service.begun_epoch():
            raise BrokerNotAvailable(f"broker {self._broker_id}: ZooKeeper does not know controller epoch {request.controller_epoch} yet")
        own = self._service.registration
        if own is not None and request.broker_epoch > own.broker_epoch:
            registered = await self._service.registration_of(self._broker_id)
            if registered is None or request.broker_epoch > registered.broker_epoch:
                raise StaleBrokerEpoch(f"broker {self._broker_id}: request for broker epoch {request.broker_epoch}, which it never had")

    def _take(self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest) -> None:
        """Refuses what is out of date, by its epochs or by its number, and notes what was taken."""
        self._check(request)
        if request.request_number == 0:
            return
        sender = request.controller_id, request.controller_epoch, request.broker_epoch
        last_number = self._last_taken[3]
        if sender == self._last_taken[:3] and request.request_number < last_number:
            raise StaleControllerEpoch(
                f"broker {self._broker_id}: request {request.request_number} of controller {request.controller_id}, epoch"
                f" {request.controller_epoch}, arrived after request {last_number}"
            )
        self._last_taken = (*sender, request.request_number)

    def _is_for(self, broker_epoch: int) -> bool:
        """Whether that is the registration that stands, or a later one that is not read back yet. Epochs go back with ZooKeeper's zxids."""
        own, ended = self._service.registration, self._ended
        if own is None or broker_epoch < own.broker_epoch:
            return False
        return own is not ended if broker_epoch == own.broker_epoch else ended is None or broker_epoch != ended.broker_epoch

    def _check(self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest | LogEndsRequest) -> None:
        """Refuses what is out of date, and takes in who is the controller."""
        if self._is_closed:
            raise BrokerNotAvailable(f"broker {self._broker_id} stops")
        if not self._is_for(request.broker_epoch):
            own = NOT_REGISTERED if (registered := self._service.registration) is None else registered.broker_epoch
            raise StaleBrokerEpoch(f"broker {self._broker_id}: request for broker epoch {request.broker_epoch}, the current one is {own}")
        if request.controller_epoch < self._controller_epoch:
            raise StaleControllerEpoch(
                f"broker {self._broker_id}: request of controller {request.controller_id} with the stale epoch "
                f"{request.controller_epoch}, the current one is {self._controller_epoch}"
            )
        if request.controller_epoch > self._controller_epoch:
            log.info("broker %d: accepted controller %d, epoch %d", self._broker_id, request.controller_id, request.controller_epoch)
        self._controller_epoch = request.controller_epoch
        self._metadata.controller_id = request.controller_id
