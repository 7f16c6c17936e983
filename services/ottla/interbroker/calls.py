"""What the brokers of a cluster say to each other: the data of each call, and who can be called.

The controller tells each broker what to lead and what to follow (`BrokerControl`); any broker asks the controller for
what only the controller may decide (`ControllerControl`). `ControlTransport` says where the other ends are: in the same
process, or behind gRPC (`rpc`). Nothing here knows which.

Every call carries epochs, and one that is out of date is refused: StaleControllerEpoch for a controller that has been
replaced, StaleBrokerEpoch for a broker that has registered again since.

Within these epochs a broker is told its state by one request after the other, and a network may deliver one after its caller
has given up and sent later ones. `request_number` orders them: it rises with each request that a controller sends, and a broker
refuses one that has a lower number than the one before. Nothing else orders two topics of one name, whose ids are random and
whose epochs start again at 0. 0 is a controller of a release that sent no number: its requests are taken as they come.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ottla.model import (
    UNKNOWN_TRANSACTION,
    BrokerId,
    BrokerRegistration,
    PartitionState,
    TopicDescription,
    TopicPartition,
    TransactionNumber,
)

BROKER_DEFAULT: Final = -1  # of partitions or replicas
DEFAULT_TIMEOUT_SECONDS: Final = 30.0


# From the controller to the brokers.


@dataclass(frozen=True, slots=True)
class PartitionAssignment:
    """One partition as the controller has it."""

    topic: str
    topic_id: UUID
    partition: int
    state: PartitionState
    partition_epoch: int  # the version of the state's znode
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    is_new: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class AllReplicas:
    """Every replica that a broker has by the controller's account, so that it may know what else it holds for a stray.

    Attributes:
        partitions: by topic; those of topics that are being deleted, too.
        unread_topics: nothing is said of these: what describes them could not be read.
    """

    partitions: Mapping[str, frozenset[int]]
    unread_topics: frozenset[str] = frozenset()

    def is_stray(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is none that the broker should have."""
        topic, partition = topic_partition
        return topic not in self.unread_topics and partition not in self.partitions.get(topic, ())


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """What a broker is to lead or to follow. `broker_epoch` is the receiver's.

    `all_replicas` is there when the broker may hold replicas that are not its own any more: whoever registers anew, or has a
    new controller, has not heard of every StopReplica. Kafka says so by a request's type, FULL (KIP-866, KAFKA-14616).
    """

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionAssignment, ...]
    live_leaders: tuple[BrokerRegistration, ...]
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of its topics that set any for themselves
    all_replicas: AllReplicas | None = None  # None says nothing of others
    all_topics_known: bool = False  # whether no UpdateMetadata waits to be sent to the broker
    request_number: int = 0


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """The error code of each partition; 0 where the broker does as it was told.

    `written_epochs` has the latest leader epoch of each log that is ahead of the epoch given: nobody can lead in that one.
    """

    errors: Mapping[TopicPartition, int]
    written_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """What a broker tells clients of the cluster: partitions that changed, and all live brokers. `broker_epoch` is the receiver's.

    `all_topics` is there when the broker may know topics that are gone: whoever registers anew, or has a new controller,
    has not heard of every deletion.
    """

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionAssignment, ...]
    brokers: tuple[BrokerRegistration, ...]
    deleted_topics: tuple[str, ...] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of the topics whose settings changed
    all_topics: tuple[str, ...] | None = None  # the names of all that there are; None says nothing of others
    all_topics_known: bool = False  # whether with this the broker has been sent all topics that the controller knows of
    request_number: int = 0


@dataclass(frozen=True, slots=True)
class PartitionToStop:
    """A replica that a broker is to give up, and whether its files go too.

    Attributes:
        topic_id: of the topic that is meant. A request that arrives late must not take the replica of a new topic of that
            name. None from a controller of a release that did not say.
    """

    topic_partition: TopicPartition
    leader_epoch: int
    delete: bool
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Replicas that a broker is to give up. `broker_epoch` is the receiver's."""

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionToStop, ...]
    request_number: int = 0


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    """The error code of each partition; 0 where the replica has stopped."""

    errors: Mapping[TopicPartition, int]


class LogEnd(NamedTuple):
    """Where a replica's log ends. Of two the greater one has everything that is committed, if the other one has it.

    The leader epoch counts first: a leader of a later epoch had all that was committed before (KIP-101, KIP-966).
    """

    leader_epoch: int  # of the last record; -1 when there is none
    offset: int


NO_LOG: Final = LogEnd(-1, -1)  # the broker has no log of the partition


@dataclass(frozen=True, slots=True)
class LogEndsRequest:
    """Replicas of which the controller wants to know where their logs end. `broker_epoch` is the receiver's."""

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, UUID]  # with the ids of their topics


# From a broker to another one.


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """How a producer's transaction ended, for some of its partitions. Their leaders write it to them."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int  # one that has been replaced may not write any more
    partitions: tuple[TopicPartition, ...]
    transaction_number: int = UNKNOWN_TRANSACTION.number  # which of the producer's transactions

    @property
    def transaction(self) -> TransactionNumber:
        """Which transaction has ended."""
        known = self.transaction_number != UNKNOWN_TRANSACTION.number
        return TransactionNumber(self.coordinator_epoch, self.transaction_number) if known else UNKNOWN_TRANSACTION


@dataclass(frozen=True, slots=True)
class TransactionQuestion:
    """Are these partitions part of the producer's ongoing transaction? Asked of its coordinator (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """For each partition 0 if it is part of the producer's ongoing transaction, else why not; and which transaction that is."""

    errors: Mapping[TopicPartition, int]
    transaction: TransactionNumber = UNKNOWN_TRANSACTION


class TransactionControl(Protocol):
    """A broker, as other brokers see it where transactions reach over several of them.

    Raises:
        BrokerNotAvailable, RequestTimedOut: no answer came.
    """

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """Writes the marker to those of the partitions that the broker leads; 0 where all in-sync replicas have it, else why not."""
        ...

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        """Says which of the partitions are part of the transaction."""
        ...


class BrokerControl(TransactionControl, Protocol):
    """A broker, as the controller and other brokers see it.

    Raises:
        StaleControllerEpoch, StaleBrokerEpoch: the request is from a former controller, or for a former life of the broker.
        BrokerNotAvailable, RequestTimedOut: no answer came; whether the broker did it is unknown.
    """

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Makes the broker lead and follow."""
        ...

    async def update_metadata(self, request: UpdateMetadataRequest) -> None:
        """Tells the broker what it answers its clients."""
        ...

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Makes the broker give replicas up."""
        ...

    async def log_ends(self, request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        """Says where the logs of replicas end; `NO_LOG` for one that the broker does not have."""
        ...

    async def drain(self) -> None:
        """Makes the broker hand over what it leads, as if it were about to stop, and go on running."""
        ...

    async def undrain(self) -> None:
        """Makes the broker take part again as before `drain`."""
        ...


# From the brokers to the controller.


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica that is in sync, with the broker epoch that its leader knows it by; -1 when it does not."""

    broker_id: BrokerId
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that the leader of a partition wants to have."""

    topic_partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    """Changes of ISRs that a leader asks for. `broker_epoch` is the sender's."""

    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[IsrChange, ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """What came of one change: the state as it is now, or why not."""

    error: int
    state: PartitionState | None = None
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AlterPartitionResponse:
    """What came of the changes; an error of the whole request leaves no partition."""

    error: int
    partitions: Mapping[TopicPartition, AlteredPartition]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What CreateTopics asks for. With assignments both numbers are BROKER_DEFAULT."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[BrokerId]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class ConfigOperation(enum.IntEnum):
    """What to do with one setting, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One setting of an incremental alteration."""

    name: str
    operation: ConfigOperation
    value: str | None = None


class ElectionType(enum.IntEnum):
    """Which replica is to lead, by Kafka's numbers."""

    PREFERRED = 0  # the first of the assignment, if it is in sync
    UNCLEAN = 1  # any live one, if none in sync is


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What came of a request for one partition; error code 0 when it was done."""

    error: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition on its way to other brokers."""

    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]


class ControllerControl(Protocol):
    """The controller, as a broker sees it.

    Raises:
        NotController: the one that was asked is not, or not any more.
        StaleBrokerEpoch: this broker has registered anew since.
        BrokerNotAvailable, RequestTimedOut: no answer came; whether it was done is unknown.
        Any error that the operation has: the same class as at the controller.
    """

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Changes the ISRs of partitions that the sender leads."""
        ...

    async def controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> tuple[TopicPartition, ...]:
        """Moves leaderships away from a broker that wants to stop, and gives those that it still has."""
        ...

    async def cancel_controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> None:
        """Lets a broker that handed over lead and be in sync again."""
        ...

    async def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> range:
        """The next block of producer ids, for the sender."""
        ...

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        """Makes a topic; only says what it would be like with `validate_only`."""
        ...

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Deletes a topic."""
        ...

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> TopicDescription:
        """Gives a topic more partitions; only says what it would be like with `validate_only`."""
        ...

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""
        ...

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""
        ...

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of a broker, or of all with None, while it runs."""
        ...

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of a broker, or of all brokers with None, while it runs."""
        ...

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Sequence[TopicPartition] | None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders of the partitions named, or with None of all."""
        ...

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions to the brokers named; None instead of brokers cancels what is under way."""
        ...

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers, of those named or with None of all."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks the controller, and what it believes of the cluster; -1 where it knows nothing, as an operator's tool does."""

    broker_id: BrokerId
    broker_epoch: int  # of its registration
    controller_epoch: int  # the latest that it knows of


class ControlTransport(Protocol):
    """How the brokers of a cluster reach each other."""

    def broker(self, registration: BrokerRegistration) -> BrokerControl:
        """A broker of the cluster."""
        ...

    def controller(self, registration: BrokerRegistration) -> ControllerControl:
        """The broker that is the controller."""
        ...

    async def serve(self, own: BrokerId, broker_control: BrokerControl, controller_control: ControllerControl) -> str | None:
        """Makes this broker reachable, and gives the `host:port` to register; None where none is needed."""
        ...

    async def show_ready(self, is_ready: bool) -> None:
        """Tells whoever asks for this broker's health whether it is ready. Before the first word it is not."""
        ...

    async def close(self) -> None:
        """Ends what `serve` began, and every way to other brokers."""
        ...
