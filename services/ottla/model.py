"""The field's nouns, as small values that every layer shares.

Nothing here does I/O or knows a wire format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NewType, TypeAlias
from uuid import UUID

BrokerId = NewType("BrokerId", int)
# Makes ids and parts of names that nothing else has; a test gives its own.
MakeUnique: TypeAlias = Callable[[], UUID]

NO_LEADER: Final = BrokerId(-1)
NO_PARTITION_LEADER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
ZERO_TOPIC_ID: Final = UUID(int=0)

MAX_TOPIC_NAME_LENGTH: Final = 249
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


class TransactionNumber(NamedTuple):
    """Which of a producer's transactions, so that they are ordered.

    The number is the offset behind what its coordinator has written of the transaction last: it grows within a transaction, and what
    is known of the next one is larger than what the marker of this one has.
    """

    coordinator_epoch: int
    number: int


# A former release's coordinator does not say, and who writes a marker by hand does not know.
UNKNOWN_TRANSACTION: Final = TransactionNumber(-1, 0)


class TopicPartition(NamedTuple):
    """One partition of one topic.

    A named tuple and not a dataclass: it is the key of the tables that every request looks into,
    and a tuple's hash and equality run in C.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one listener of a broker can be reached."""

    listener_name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.listener_name}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


# Kafka stopped cleanly where this broker starts for the first time. With ZooKeeper, Kafka does not write down under which epoch.
CLOSED_BY_KAFKA: Final = -2


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """One live broker, as `/brokers/ids/[id]` has it."""

    broker_id: BrokerId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    broker_epoch: int = -1
    control_endpoint: str | None = None  # host:port at which other brokers call it
    # The epoch that its last life ended cleanly under; -1 after an unclean stop, and when it has none behind it; or CLOSED_BY_KAFKA.
    previous_broker_epoch: int = -1
    is_foreign: bool = False  # whether another implementation wrote it: Kafka
    # What a caller in plain text has to know; it does not travel with the registration from broker to broker.
    control_secret: str | None = field(default=None, repr=False, compare=False)

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The endpoint of that listener, or None when the broker does not have it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener_name == listener_name), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition and who is in sync: `/brokers/topics/[topic]/partitions/[p]/state` and the assignment.

    Attributes:
        eligible_leader_replicas: those outside the ISR that have everything which is committed, for too few were in sync
            to commit anything since they left (KIP-966). While there are any, the leader commits nothing. Without a leader also
            those of them that are last known.
        last_known_leader_replicas: without a leader: those that were in sync or eligible, and may have lost records since by an
            unclean stop. Who of them leads is decided by their logs. Only the controller looks at it.
    """

    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    controller_epoch: int = 0
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    last_known_leader_replicas: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with the state of each partition, indexed by partition number."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. Kafka's form: a type and a name."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
