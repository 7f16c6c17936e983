"""What there is to ask brokers about transactions (keys 10, 27, 61, 65, 66), for which librdkafka has no calls.

Transactions are asked of their coordinators, producers and markers of the partitions' leaders.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.broker_call import call, can_call
from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.errors import NONE, TransactionalIdNotFound, error_of
from ottla.protocol.primitives import read_array_length, read_string, skip_tagged_fields

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

NO_OFFSET: Final = -1
_TRANSACTION: Final = 1  # of FindCoordinator's kinds of keys
_INT16: Final = struct.Struct(">h")
_TIMEOUT_AND_START: Final = struct.Struct(">iq")
_PRODUCER: Final = struct.Struct(">qh")

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id in a list, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Described:
    """All about a transactional id. `start_ms` is negative when it has no transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer as a partition knows it. `start_offset` is negative when it has no transaction there."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int


class Brokers:
    """The brokers of a cluster, to be asked.

    Raises:
        UsageError: the connection is one that these requests can not be sent over.
    """

    def __init__(self, where: Connection, metadata: ClusterMetadata) -> None:
        if not can_call(where.properties):
            raise UsageError(f"transactions can not be asked for over {where.properties['security.protocol']}; use a listener without SASL")
        self._where = where
        self._metadata = metadata

    def transactions(self, states: Sequence[str] = (), producer_ids: Sequence[int] = ()) -> list[Listed]:
        """The transactional ids of all coordinators, by id."""
        from kio.schema.list_transactions.v0.request import ListTransactionsRequest
        from kio.schema.list_transactions.v0.response import ListTransactionsResponse

        request = ListTransactionsRequest(state_filters=tuple(states), producer_id_filters=tuple(producer_ids))  # type: ignore[arg-type]
        found = []
        for broker_id in sorted(self._metadata.brokers):
            answer = self._ask(broker_id, request, ListTransactionsResponse)
            _check(answer.error_code, f"broker {broker_id}")
            if answer.unknown_state_filters:
                raise UsageError(f"there is no state {answer.unknown_state_filters[0]!r}; Ongoing and CompleteCommit are two")
            found += [
                Listed(each.transactional_id, each.producer_id, each.transaction_state, broker_id) for each in answer.transaction_states
            ]
        return sorted(found, key=lambda each: each.transactional_id)

    def describe(self, transactional_id: str) -> Described:
        """One id, from its coordinator.

        Raises:
            CommandFailed: it is not known.
        """
        from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

        coordinator = self._coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))  # type: ignore[arg-type]
        # kio takes the -1 of an id without a transaction for a broken timestamp.
        described = self._ask(coordinator, request, lambda frame: _read_described(frame, coordinator))
        assert isinstance(described, Described)
        return described

    def writers(self, partitions: Sequence[Partition]) -> list[Writer]:
        """The producers of partitions, from their leaders."""
        from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
        from kio.schema.describe_producers.v0.response import DescribeProducersResponse

        found = []
        for leader, led in self._by_leader(partitions).items():
            topics: dict[str, list[int]] = {}
            for topic, index in led:
                topics.setdefault(topic, []).append(index)
            request = DescribeProducersRequest(
                topics=tuple(TopicRequest(name=name, partition_indexes=tuple(each)) for name, each in topics.items())  # type: ignore[arg-type]
            )
            for topic_answer in self._ask(leader, request, DescribeProducersResponse).topics:
                for each in topic_answer.partitions:
                    partition = (str(topic_answer.name), int(each.partition_index))
                    _check(each.error_code, f"{partition[0]}-{partition[1]}")
                    found += [
                        Writer(
                            partition,
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.last_timestamp,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset,
                        )
                        for producer in each.active_producers
                    ]
        return found

    def abort(self, writer: Writer) -> None:
        """Writes the marker that ends a producer's transaction in one partition, as aborted."""
        from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
        from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse

        topic, index = writer.partition
        values: dict[str, Any] = {
            "producer_id": writer.producer_id,
            "producer_epoch": writer.producer_epoch,
            "transaction_result": False,
            # One that is older than what the partition has seen would be refused.
            "coordinator_epoch": max(0, writer.coordinator_epoch),
        }
        topics = (WritableTxnMarkerTopic(name=topic, partition_indexes=(index,)),)  # type: ignore[arg-type]
        request = WriteTxnMarkersRequest(markers=(WritableTxnMarker(topics=topics, **values),))
        (leader,) = self._by_leader([writer.partition])
        answer = self._ask(leader, request, WriteTxnMarkersResponse)
        _check(answer.markers[0].topics[0].partitions[0].error_code, f"{topic}-{index}")

    def _coordinator(self, transactional_id: str) -> int:
        from kio.schema.find_coordinator.v1.request import FindCoordinatorRequest
        from kio.schema.find_coordinator.v1.response import FindCoordinatorResponse

        request = FindCoordinatorRequest(key=transactional_id, key_type=_TRANSACTION)  # type: ignore[arg-type]
        answer = self._ask(min(self._metadata.brokers), request, FindCoordinatorResponse)
        _check(answer.error_code, f"transactional id {transactional_id!r}")
        return int(answer.node_id)

    def _by_leader(self, partitions: Sequence[Partition]) -> Mapping[int, list[Partition]]:
        found: dict[int, list[Partition]] = {}
        for topic, index in partitions:
            leader = self._metadata.topics[topic].partitions[index].leader
            if leader not in self._metadata.brokers:
                raise CommandFailed(f"{topic}-{index} has no leader at the moment")
            found.setdefault(leader, []).append((topic, index))
        return found

    def _ask(self, broker_id: int, request: Any, response: Any) -> Any:
        broker = self._metadata.brokers[broker_id]
        return call((str(broker.host), broker.port), self._where.properties, request, response, "does not tell of transactions")


def _check(code: int, subject: str) -> None:
    if code != NONE:
        error = error_of(int(code))
        raise CommandFailed(f"{subject}: {type(error).__name__} (error code {int(code)})")


def _read_described(frame: memoryview, coordinator: int) -> Described:
    """DescribeTransactionsResponse version 0, of one id, with its header."""
    end = len(frame)
    position = skip_tagged_fields(frame, 4, end) + 4  # correlation id, tags; throttle time
    _, position = read_array_length(frame, position, end, compact=True, element_size=1)
    (code,) = _INT16.unpack_from(frame, position)
    transactional_id, position = read_string(frame, position + 2, end, compact=True)
    if code == TransactionalIdNotFound.code:
        raise CommandFailed(f"transactional id {transactional_id!r} is not known")
    _check(code, f"transactional id {transactional_id!r}")
    state, position = read_string(frame, position, end, compact=True)
    timeout_ms, start_ms = _TIMEOUT_AND_START.unpack_from(frame, position)
    producer_id, producer_epoch = _PRODUCER.unpack_from(frame, position + _TIMEOUT_AND_START.size)
    position += _TIMEOUT_AND_START.size + _PRODUCER.size
    partitions = tuple(_partitions(frame, position, end))
    return Described(transactional_id or "", coordinator, producer_id, producer_epoch, state or "", timeout_ms, start_ms, partitions)


def _partitions(frame: memoryview, position: int, end: int) -> Iterator[Partition]:
    topics, position = read_array_length(frame, position, end, compact=True, element_size=1)
    for _ in range(topics):
        topic, position = read_string(frame, position, end, compact=True)
        count, position = read_array_length(frame, position, end, compact=True, element_size=4)
        for index in struct.unpack_from(f">{count}i", frame, position):
            yield topic or "", index
        position = skip_tagged_fields(frame, position + 4 * count, end)
