"""What the brokers of a cluster ask of each other: each request, its answer, and the table of all of them, `OPERATIONS`.

The controller sends each broker what it leads and follows (`BrokerControl`); any broker asks the controller for what only the
controller may decide (`ControllerControl`). A request is a dataclass whose base class names its answer, so `call(request)` has the
answer's type. The methods of the two controls make these requests; carriers (`rpc`, `local`) implement `call` and nothing else.
`ControlTransport` says where the other ends are. Nothing here knows which carrier is in use.

Every request carries epochs, and one that is out of date is refused: StaleControllerEpoch for a deposed controller,
StaleBrokerEpoch for a broker that has registered again since.

Within these epochs a controller sends a broker one request after the other, and a network may deliver one after its sender
has given up and sent later ones. `request_number` orders them: it rises with each request that a controller sends, and a broker
refuses one that has a lower number than the one before. Nothing else orders two topics of one name, whose ids are random and
whose epochs start again at 0. 0 is a controller of a release that sent no number: its requests are taken as they come.

Invariant: a request that is not in `OPERATIONS` cannot be sent, and no carrier knows a request by its name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from ottla.errors import (
    ApiError,
    ElectionNotNeeded,
    InvalidPartitions,
    NoReassignmentInProgress,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla.model import (
    NO_LEADER,
    UNKNOWN_TRANSACTION,
    ZERO_TOPIC_ID,
    BrokerId,
    BrokerRegistration,
    PartitionState,
    TopicDescription,
    TopicPartition,
    TransactionNumber,
)

BROKER_DEFAULT: Final = -1  # of partitions or replicas
DEFAULT_TIMEOUT_SECONDS: Final = 30.0
# A controller that is given some time answers at its end; the answer needs this to arrive.
ANSWER_MARGIN_SECONDS: Final = 1.0

A = TypeVar("A")
Q = TypeVar("Q", bound="Request[Any]")


class Request(Generic[A]):
    """What one broker asks of another. A is the type of the answer."""

    __slots__ = ()


class BrokerRequest(Request[A]):
    """What the controller or another broker asks of a broker."""

    __slots__ = ()


class ControllerRequest(Request[A]):
    """What a broker asks of the controller."""

    __slots__ = ()


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
        topic_ids: of topics in `partitions`; an older release names none.
    """

    partitions: Mapping[str, frozenset[int]]
    unread_topics: frozenset[str] = frozenset()
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def each(self) -> Iterator[TopicPartition]:
        """Each of the replicas."""
        return (TopicPartition(topic, partition) for topic, partitions in self.partitions.items() for partition in partitions)

    def is_stray(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether a replica is none that the broker should have: it is not named, or is of another topic of that name.

        Args:
            topic_id: of the topic that it is of; None or zero where it does not say.
        """
        topic, partition = topic_partition
        named_id = self.topic_ids.get(topic, ZERO_TOPIC_ID)
        is_anothers = named_id != ZERO_TOPIC_ID and topic_id not in (None, ZERO_TOPIC_ID, named_id)
        return topic not in self.unread_topics and (is_anothers or partition not in self.partitions.get(topic, ()))


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """The error code of each partition; 0 where the broker does as the request says.

    `written_epochs` has the latest leader epoch of each log that is ahead of the epoch given: no replica can lead in that one.
    """

    errors: Mapping[TopicPartition, int]
    written_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest(BrokerRequest[LeaderAndIsrResponse]):
    """What a broker is to lead or to follow. `broker_epoch` is the receiver's.

    `all_replicas` is there when the broker may hold replicas that are not its own any more: one that registers again, or has a
    new controller, has not heard of every StopReplica. Kafka says so by a request's type, FULL (KIP-866, KAFKA-14616).
    """

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionAssignment, ...]
    live_leaders: tuple[BrokerRegistration, ...]
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of its topics, also that one sets nothing
    all_replicas: AllReplicas | None = None  # None says nothing of others
    all_topics_known: bool = False  # whether no UpdateMetadata waits to be sent to the broker
    request_number: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest(BrokerRequest[None]):
    """What a broker answers clients about the cluster: partitions that changed, and all live brokers. `broker_epoch` is the receiver's.

    `all_topics` is there when the broker may know topics that are gone: a broker that registers again, or has a new controller,
    has not heard of every deletion. One of them that the broker does not know then is one that the controller cannot read.
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
class StopReplicaResponse:
    """The error code of each partition; 0 where the replica has stopped."""

    errors: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StopReplicaRequest(BrokerRequest[StopReplicaResponse]):
    """Replicas that a broker is to give up. `broker_epoch` is the receiver's."""

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionToStop, ...]
    request_number: int = 0


class LogEnd(NamedTuple):
    """Where a replica's log ends. Of two the one whose position is greater has everything that is committed, if the other one has it.

    The leader epoch counts first: a leader of a later epoch had all that was committed before (KIP-101, KIP-966).
    """

    leader_epoch: int  # of the last record, or of who led before the first one; -1 when there is none
    offset: int
    epoch_led: int | None = None  # a later leader epoch that begins at this end: no record of it is left

    @property
    def position(self) -> tuple[int, int]:
        """What is compared."""
        return self.leader_epoch, self.offset

    @property
    def latest_epoch(self) -> int:
        """The last that the log knows, with or without a record."""
        return self.leader_epoch if self.epoch_led is None else self.epoch_led


NO_LOG: Final = LogEnd(-1, -1)  # the broker has no log of the partition, and may have had one on a disk that it has no more
EMPTY_LOG: Final = LogEnd(-1, 0)  # nothing was ever in the broker's log, if there is one


@dataclass(frozen=True, slots=True)
class LogEndsRequest(BrokerRequest[Mapping[TopicPartition, LogEnd]]):
    """Replicas of which the controller wants to know where their logs end. `broker_epoch` is the receiver's."""

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, UUID]  # with the ids of their topics


@dataclass(frozen=True, slots=True)
class DrainRequest(BrokerRequest[None]):
    """Hand over all that is led, and continue running."""


@dataclass(frozen=True, slots=True)
class UndrainRequest(BrokerRequest[None]):
    """Lead and follow again as before a DrainRequest."""


# From a broker to another one.


@dataclass(frozen=True, slots=True)
class TransactionMarker(BrokerRequest[Mapping[TopicPartition, int]]):
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
class TransactionAnswer:
    """For each partition 0 if it is part of the producer's ongoing transaction, else why not; and which transaction that is."""

    errors: Mapping[TopicPartition, int]
    transaction: TransactionNumber = UNKNOWN_TRANSACTION


@dataclass(frozen=True, slots=True)
class TransactionQuestion(BrokerRequest[TransactionAnswer]):
    """Are these partitions part of the producer's ongoing transaction? Asked of its coordinator (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


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


class BrokerControl:
    """A broker, as the controller and other brokers see it. It is a `TransactionControl` too.

    A carrier overrides `call`, a receiver overrides every other method.

    Raises:
        StaleControllerEpoch, StaleBrokerEpoch: the request is from a deposed controller, or for a former registration of the broker.
        BrokerNotAvailable, RequestTimedOut: no answer came; whether the broker did it is unknown.
    """

    async def call(self, request: BrokerRequest[A]) -> A:
        """Gives the answer to a request: a receiver's own method does."""
        perform = OPERATIONS[type(request)].perform
        assert perform is not None, "a broker has a method for each"
        answer: A = await perform(self, request)
        return answer

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Makes the broker lead and follow."""
        return await self.call(request)

    async def update_metadata(self, request: UpdateMetadataRequest) -> None:
        """Tells the broker what it answers its clients."""
        return await self.call(request)

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Makes the broker give replicas up."""
        return await self.call(request)

    async def log_ends(self, request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        """Says where the logs of replicas end; `NO_LOG` for one that is not there, and nothing of one that may lie on a failed disk."""
        return await self.call(request)

    async def drain(self) -> None:
        """Makes the broker hand over what it leads, as if it were about to stop, and continue running."""
        return await self.call(DrainRequest())

    async def undrain(self) -> None:
        """Makes the broker lead and follow again as before `drain`."""
        return await self.call(UndrainRequest())

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        """As `TransactionControl` says."""
        return await self.call(marker)

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        """As `TransactionControl` says."""
        return await self.call(question)


# From the brokers to the controller.


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica that is in sync, with the broker epoch that its leader knows it by; -1 when it does not."""

    broker_id: BrokerId
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that the leader of a partition wants to have. `topic_id` is None from a release that did not send it."""

    topic_partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]
    topic_id: UUID | None = None


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
class AlterPartitionRequest(ControllerRequest[AlterPartitionResponse]):
    """Changes of ISRs that a leader asks for. `broker_epoch` is the sender's."""

    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[IsrChange, ...]


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


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest(ControllerRequest[tuple[TopicPartition, ...]]):
    """Move leaderships away from the sender. The answer has those that it still has."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class CancelControlledShutdownRequest(ControllerRequest[None]):
    """Let the sender lead and be in sync again."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsRequest(ControllerRequest[range]):
    """The next block of producer ids, for the sender."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class CreateTopicRequest(ControllerRequest[TopicDescription]):
    """Create a topic; with `validate_only` only say what it would be like."""

    new_topic: NewTopic
    validate_only: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class DeleteTopicRequest(ControllerRequest[None]):
    """Delete a topic.

    `topic_id` says which one is meant: the request may arrive late, or a second time, when there is another of that name. None from a
    release that did not say.
    """

    name: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(ControllerRequest[TopicDescription]):
    """Add partitions to a topic. `placement` has the replicas of the new ones, where the caller chooses them; `topic_id` is as in
    DeleteTopicRequest.
    """

    name: str
    total_count: int
    placement: Sequence[Sequence[BrokerId]] | None = None
    validate_only: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """What settings belong to: a topic, a broker, or with neither all brokers. `topic_id` is as in DeleteTopicRequest."""

    topic: str | None = None
    broker_id: BrokerId | None = None
    topic_id: UUID | None = None

    def __str__(self) -> str:
        return "brokers" if self.topic is None else f"topic {self.topic}"


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest(ControllerRequest[None]):
    """Replace all that a topic or a broker sets."""

    resource: ConfigResource
    overrides: Mapping[str, str]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(ControllerRequest[None]):
    """Change some of what a topic or a broker sets."""

    resource: ConfigResource
    changes: Sequence[ConfigChange]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest(ControllerRequest[Mapping[TopicPartition, PartitionOutcome]]):
    """Elect leaders of the partitions selected; None selects all."""

    election_type: ElectionType
    selection: Sequence[TopicPartition] | None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(ControllerRequest[Mapping[TopicPartition, PartitionOutcome]]):
    """Move partitions to the brokers named; None instead of brokers cancels the reassignment that is in progress."""

    reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None]
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest(ControllerRequest[Mapping[TopicPartition, OngoingReassignment]]):
    """The reassignments in progress, of the partitions selected; None selects all."""

    selection: Sequence[TopicPartition] | None = None


class ClusterOperations:
    """What a broker asks the controller for on behalf of clients. Each method makes a request; `call` is the subclass's affair.

    Raises:
        NotController: the receiver is not the controller, or not any more.
        StaleBrokerEpoch: this broker has registered again since.
        BrokerNotAvailable, RequestTimedOut: no answer came; whether it was done is unknown.
        Any error that the operation has: the same class as at the controller.
    """

    async def call(self, request: ControllerRequest[A]) -> A:
        """Gives the answer to a request."""
        raise NotImplementedError

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        """Makes a topic; only says what it would be like with `validate_only`."""
        return await self.call(CreateTopicRequest(new_topic, validate_only, timeout_seconds))

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS, topic_id: UUID | None = None) -> None:
        """Deletes a topic; with `topic_id` no other one of that name."""
        return await self.call(DeleteTopicRequest(name, timeout_seconds, topic_id))

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        topic_id: UUID | None = None,
    ) -> TopicDescription:
        """Gives a topic, with `topic_id` no other one of that name, more partitions; `validate_only` says what it would be like."""
        return await self.call(CreatePartitionsRequest(name, total_count, assignments, validate_only, timeout_seconds, topic_id))

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that a topic sets for itself."""
        return await self.call(AlterConfigsRequest(ConfigResource(topic=name), overrides, validate_only))

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Changes some of what a topic sets for itself."""
        return await self.call(IncrementalAlterConfigsRequest(ConfigResource(topic=name), changes, validate_only))

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        """Replaces all that was changed of a broker, or of all with None, while it runs."""
        return await self.call(AlterConfigsRequest(ConfigResource(broker_id=broker_id), overrides, validate_only))

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        """Changes some settings of a broker, or of all brokers with None, while it runs."""
        return await self.call(IncrementalAlterConfigsRequest(ConfigResource(broker_id=broker_id), changes, validate_only))

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Sequence[TopicPartition] | None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Elects leaders of the partitions named, or with None of all."""
        return await self.call(ElectLeadersRequest(election_type, partitions, timeout_seconds))

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        """Starts to move partitions to the brokers named; None instead of brokers cancels what is under way."""
        return await self.call(AlterPartitionReassignmentsRequest(reassignments, timeout_seconds))

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        """The partitions on their way to other brokers, of those named or with None of all."""
        return await self.call(ListPartitionReassignmentsRequest(partitions))


class ControllerControl(ClusterOperations):
    """The controller, as a broker sees it. What a broker asks for on its own behalf it asks by `call`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks the controller, and what it believes of the cluster; -1 where it knows nothing, as an operator's tool does."""

    broker_id: BrokerId
    broker_epoch: int  # of its registration
    controller_epoch: int  # the latest that it knows of


class OwnBroker(Protocol):
    """A broker, as its own way to the others sees it: `ottla.broker.controller.service.ControllerService`."""

    def caller(self) -> Caller:
        """Who it is now: its registration's epoch and the controller's."""
        ...

    def check_caller(self, caller: Caller) -> None:
        """Raises StaleBrokerEpoch or StaleControllerEpoch for a caller that is out of date."""
        ...

    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None:
        """Reads a broker's registration, for what it has to be shown; None where there is none to read."""
        ...


class Outsider:
    """Who calls brokers and is none, such as a command. It has no epochs, and serves nothing."""

    def caller(self) -> Caller:
        return Caller(NO_LEADER, -1, -1)

    def check_caller(self, caller: Caller) -> None:
        """Refuses no one, as no call comes."""

    async def registration_of(self, broker_id: BrokerId) -> BrokerRegistration | None:
        return None


class ControlTransport(Protocol):
    """How the brokers of a cluster reach each other."""

    @property
    def secret(self) -> str | None:
        """What a broker has to register so that others are let in; None where that is not needed."""
        ...

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
        """Sets whether this broker's health is that of a ready one. Before the first call it is not."""
        ...

    async def close(self) -> None:
        """Ends what `serve` began, and every way to other brokers."""
        ...


# How a broker reaches the others, made from who it is.
MakeTransport: TypeAlias = Callable[[OwnBroker], ControlTransport]


class Carrier(Protocol):
    """Takes requests to one other broker."""

    async def call(self, request: Request[A]) -> A:
        """Gives the answer. Raises BrokerNotAvailable, RequestTimedOut, and what the receiver raised."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteBroker(BrokerControl):
    """A broker behind a carrier."""

    carrier: Carrier

    async def call(self, request: BrokerRequest[A]) -> A:
        """Sends the request."""
        return await self.carrier.call(request)


@dataclass(frozen=True, slots=True)
class RemoteController(ControllerControl):
    """The controller behind a carrier."""

    carrier: Carrier

    async def call(self, request: ControllerRequest[A]) -> A:
        """Sends the request."""
        return await self.carrier.call(request)


# The table.


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: what there is to know of a request apart from its data.

    Attributes:
        rpc: its method in the proto files, whose services are `Broker` and `Controller`.
        request: the class of its requests; `Request` says what their answer is. A request that has `timeout_seconds` is given that
            and ANSWER_MARGIN_SECONDS, every other one `controller.socket.timeout.ms`.
        title: what it does, for errors and the log; `title_of` a request fills it in.
        refusal_of_repeat: what a repeated request is refused with because the first one was carried out, where the answer was lost.
            None where a repeat is harmless: it has the same effect, or none, and the same answer.
        perform: calls a broker's own method; None where the controller answers, which has a table of its own.
    """

    rpc: str
    request: type[Request[Any]]
    title: str
    refusal_of_repeat: type[ApiError] | None = None
    perform: Callable[[Any, Any], Awaitable[Any]] | None = None

    def title_of(self, request: Request[Any]) -> str:
        """What a request does."""
        return self.title.format(request=request)

    @property
    def is_for_controller(self) -> bool:
        """Whether the controller answers it."""
        return issubclass(self.request, ControllerRequest)

    @property
    def name(self) -> str:
        """The method's name in snake case."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.rpc).lower()


def _to_broker(rpc: str, request: type[Q], perform: Callable[[BrokerControl, Q], Awaitable[object]]) -> Operation:
    return Operation(rpc, request, rpc, perform=perform)


_ROWS: Final = (
    _to_broker("LeaderAndIsr", LeaderAndIsrRequest, lambda broker, request: broker.leader_and_isr(request)),
    _to_broker("UpdateMetadata", UpdateMetadataRequest, lambda broker, request: broker.update_metadata(request)),
    _to_broker("StopReplica", StopReplicaRequest, lambda broker, request: broker.stop_replica(request)),
    _to_broker("DescribeLogEnds", LogEndsRequest, lambda broker, request: broker.log_ends(request)),
    _to_broker("Drain", DrainRequest, lambda broker, _: broker.drain()),
    _to_broker("Undrain", UndrainRequest, lambda broker, _: broker.undrain()),
    _to_broker("WriteTransactionMarker", TransactionMarker, lambda broker, request: broker.write_transaction_marker(request)),
    _to_broker("VerifyTransaction", TransactionQuestion, lambda broker, request: broker.verify_transaction(request)),
    Operation("AlterPartition", AlterPartitionRequest, "changing ISRs that broker {request.broker_id} leads"),
    Operation("ControlledShutdown", ControlledShutdownRequest, "the shutdown of broker {request.broker_id}"),
    Operation(
        "CancelControlledShutdown",
        CancelControlledShutdownRequest,
        "the end of draining broker {request.broker_id}",
    ),
    # A block that was allocated and never arrived is lost, and none is given twice.
    Operation("AllocateProducerIds", AllocateProducerIdsRequest, "allocating producer ids"),
    Operation("CreateTopic", CreateTopicRequest, "creating topic {request.new_topic.name}", TopicAlreadyExists),
    Operation("DeleteTopic", DeleteTopicRequest, "deleting topic {request.name}", UnknownTopicOrPartition),
    Operation("CreatePartitions", CreatePartitionsRequest, "adding partitions to {request.name}", InvalidPartitions),
    # To set a value, to add to a list what is not in it and to take out what is, does the same when it is repeated.
    Operation("AlterConfigs", AlterConfigsRequest, "altering the settings of {request.resource}"),
    Operation("IncrementalAlterConfigs", IncrementalAlterConfigsRequest, "altering the settings of {request.resource}"),
    Operation("ElectLeaders", ElectLeadersRequest, "electing leaders", ElectionNotNeeded),
    Operation("AlterPartitionReassignments", AlterPartitionReassignmentsRequest, "moving partitions", NoReassignmentInProgress),
    Operation("ListPartitionReassignments", ListPartitionReassignmentsRequest, "listing reassignments"),
)
OPERATIONS: Final[Mapping[type[Request[Any]], Operation]] = {row.request: row for row in _ROWS}


def deadline_seconds(request: Request[Any], default_seconds: float) -> float:
    """How long an answer is waited for.

    Args:
        default_seconds: for a request without a timeout of its own.
    """
    own: float | None = getattr(request, "timeout_seconds", None)
    return default_seconds if own is None else max(0.0, own) + ANSWER_MARGIN_SECONDS
