"""The APIs of transactions, from InitProducerId to ListTransactions: what is answered in each version, and who may ask."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.security.authorizer import Operation
from ottla.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NotCoordinator,
    NotLeaderOrFollower,
    OperationNotAttempted,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from ottla.protocol.api import ApiKey
from ottla.record.batch import read_header
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.record.records import Record, build_batch


async def begin(broker: Any, transactional_id: str = "t", version: int = 4, **more: Any) -> tuple[int, int, int]:
    """Error, producer id and epoch, once the coordinator is there."""
    found = await broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transactional_id])
    assert [int(coordinator.error_code) for coordinator in found.coordinators] == [0]
    await until(lambda: not broker.parts.transactions.coordinator.is_loading)
    values = {"transactional_id": transactional_id, "transaction_timeout": 60_000, **more}
    response = await broker.ask(ApiKey.INIT_PRODUCER_ID, version, **values)
    return int(response.error_code), response.producer_id, response.producer_epoch


async def add(broker: Any, producer: tuple[int, int], *partitions: tuple[str, int], version: int = 3, name: str = "t") -> list[int]:
    """Adds partitions to the transaction, each in an entry of its own, and gives their error codes."""
    prefix = "v3_and_below_"
    response = await broker.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        version,
        **{
            f"{prefix}transactional_id": name,
            f"{prefix}producer_id": producer[0],
            f"{prefix}producer_epoch": producer[1],
            f"{prefix}topics": [{"name": topic, "partitions": [index]} for topic, index in partitions],
        },
    )
    return [int(result.partition_error_code) for topic in response.results_by_topic_v3_and_below for result in topic.results_by_partition]


async def end(broker: Any, producer: tuple[int, int], committed: bool, version: int = 4, name: str = "t") -> int:
    response = await broker.ask(
        ApiKey.END_TXN, version, transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    return int(response.error_code)


def publish(broker: Any, producer: tuple[int, int], topic: str = "events", sequence: int = 0) -> None:
    """A batch of a transaction that the coordinator is known to know."""
    batch = build_batch(
        [Record(0, 1, b"k", b"v")], producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=True
    )
    partition = broker.parts.replicas.get(topic, 0)
    producers = partition.log.producers
    producers.end_verification(*producer, producers.begin_verification(producer[0]), True)
    partition.append_as_leader(memoryview(batch), 0, len(batch), -1, 1, in_transaction=True)
    broker.parts.replicas.appends.stage(partition)
    broker.parts.replicas.appends.complete()


async def described(broker: Any, name: str = "t") -> Any:
    (found,) = (await broker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name])).transaction_states
    return found


@pytest.mark.parametrize("version", range(6))
async def test_each_producer_with_an_id_gets_the_next_epoch(broker: Any, version: int) -> None:
    error, producer_id, epoch = await begin(broker, version=version)
    assert (error, epoch) == (0, 0)
    assert await begin(broker, version=version) == (0, producer_id, 1)
    assert (await begin(broker, "other", version=version))[1] != producer_id
    if version >= 3:
        assert await begin(broker, version=version, producer_id=producer_id, producer_epoch=1) == (0, producer_id, 2)
        fenced = ProducerFenced if version >= 4 else InvalidProducerEpoch
        assert (await begin(broker, version=version, producer_id=producer_id, producer_epoch=0))[0] == fenced.code


async def test_a_timeout_is_kept_to_the_millisecond(broker: Any) -> None:
    """Seconds as a float lose one of some numbers, and a client that asks for the least session timeout would be refused."""
    await begin(broker, transaction_timeout=8_008)
    assert broker.parts.transactions.coordinator.of("t").describe("t").timeout_ms == 8_008
    await broker.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"])
    await until(lambda: not broker.parts.groups.is_loading)
    protocols = [{"name": "range", "metadata": b""}]
    times = {"session_timeout": 8_008, "rebalance_timeout": 8_011}
    joining = asyncio.ensure_future(broker.ask(ApiKey.JOIN_GROUP, 3, group_id="g", protocol_type="consumer", protocols=protocols, **times))
    await asyncio.sleep(0)
    joining.cancel()
    (member,) = broker.parts.groups.of("g").group("g").members.values()
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (8_008, 8_011)


async def test_ids_and_timeouts_that_can_not_be(broker: Any) -> None:
    await begin(broker)
    broker.rules.denied.add((Operation.WRITE, "secret"))

    async def refused(**values: Any) -> int:
        response = await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, **{"transaction_timeout": 60_000, **values})
        return int(response.error_code)

    assert await refused(transactional_id="") == InvalidRequest.code
    assert await refused(transactional_id="secret") == TransactionalIdAuthorizationFailed.code
    assert await refused(transactional_id="t", transaction_timeout=0) == InvalidTransactionTimeout.code
    assert await refused(transactional_id="t", transaction_timeout=900_001) == InvalidTransactionTimeout.code
    assert await refused(transactional_id="t", producer_id=5) == InvalidRequest.code


@pytest.mark.parametrize("broker", [{"transaction.state.log.replication.factor": "3"}], indirect=True)
async def test_the_coordinator_is_who_leads_the_ids_partition(broker: Any) -> None:
    """And no one is one before the topic is there, which too few brokers can keep from being made."""
    found = await broker.ask(ApiKey.FIND_COORDINATOR, 1, key="t", key_type=1)
    assert found.error_code == CoordinatorNotAvailable.code
    response = await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout=1)
    assert response.error_code == NotCoordinator.code


async def test_the_topic_of_transactions_has_kafkas_settings(broker: Any) -> None:
    await begin(broker)
    settings = broker.parts.controller.topic_settings("__transaction_state")
    assert (settings.cleanup_policy, settings.compression_type, settings.min_insync_replicas) == (("compact",), "uncompressed", 1)
    assert (settings.segment_bytes, settings.unclean_leader_election_enable) == (100 * 1024 * 1024, False)


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_all_or_none(broker: Any, version: int) -> None:
    await broker.create("events")
    await broker.create("closed")
    broker.rules.denied |= {(Operation.WRITE, "closed"), (Operation.WRITE, "secret")}
    _, *producer = await begin(broker)
    given = (producer[0], producer[1])
    codes = await add(broker, given, ("events", 0), ("events", 7), ("closed", 0), ("__consumer_offsets", 0), version=version)
    denied = TopicAuthorizationFailed.code
    assert codes == [OperationNotAttempted.code, UnknownTopicOrPartition.code, denied, denied]
    assert broker.parts.transactions.coordinator.of("t").describe("t").partitions == frozenset()
    assert await add(broker, given, ("events", 0), version=version) == [0]
    fenced = ProducerFenced if version >= 2 else InvalidProducerEpoch
    assert await add(broker, (producer[0], 9), ("events", 0), version=version) == [fenced.code]
    assert await add(broker, (9999, 0), ("events", 0), version=version) == [InvalidProducerIdMapping.code]
    assert await add(broker, given, ("events", 0), version=version, name="secret") == [TransactionalIdAuthorizationFailed.code]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
async def test_an_end_writes_markers_to_all_partitions(broker: Any, version: int, committed: bool) -> None:
    await broker.create("events")
    _, *ids = await begin(broker)
    producer = (ids[0], ids[1])
    assert await add(broker, producer, ("events", 0)) == [0]
    publish(broker, producer)
    partition = broker.parts.replicas.get("events", 0)
    assert partition.last_stable_offset == 0
    assert await end(broker, producer, committed, version) == 0
    await until(lambda: partition.last_stable_offset == 2)
    region = partition.read(1, 1 << 20, committed_only=False, at_least_one_batch=True)
    assert region is not None
    marker = marker_of(region.read())
    assert marker is not None
    assert marker.control_type is (ControlRecordType.COMMIT if committed else ControlRecordType.ABORT)
    assert read_header(region.read()).producer_id == producer[0]
    aborted = partition.aborted_transactions(0, partition.read(0, 1, committed_only=True, at_least_one_batch=True))
    assert [transaction[:3] for transaction in aborted] == ([] if committed else [(producer[0], 0, 1)])
    assert await end(broker, producer, not committed, version) == InvalidTransactionState.code
    fenced = ProducerFenced if version >= 2 else InvalidProducerEpoch
    assert await end(broker, (producer[0], 9), committed, version) == fenced.code


@pytest.mark.parametrize("version", range(5))
async def test_offsets_are_committed_with_the_transaction(broker: Any, version: int) -> None:
    await broker.create("events")
    broker.rules.denied |= {(Operation.READ, "closed"), (Operation.WRITE, "secret")}
    _, *ids = await begin(broker)
    producer = {"producer_id": ids[0], "producer_epoch": ids[1]}
    await broker.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"])
    await until(lambda: not broker.parts.groups.is_loading)

    async def commit(**more: Any) -> list[int]:
        partitions = [{"partition_index": index, "committed_offset": 5, "committed_metadata": "m"} for index in (0, 7)]
        topics = [{"name": "events", "partitions": partitions}]
        values = {"transactional_id": "t", "group_id": "g", **producer, "generation_id": -1, "topics": topics, **more}
        response = await broker.ask(ApiKey.TXN_OFFSET_COMMIT, version, **values)
        return [int(partition.error_code) for topic in response.topics for partition in topic.partitions]

    async def committed(require_stable: bool) -> tuple[int, int]:
        groups = [{"group_id": "g", "topics": [{"name": "events", "partition_indexes": [0]}]}]
        response = await broker.ask(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=require_stable)
        (found,) = response.groups[0].topics[0].partitions
        return int(found.error_code), found.committed_offset

    # A zombie's: the group is not part of any transaction of it, so no one would ever decide of these (KIP-890). The error is that of
    # Kafka's `AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling`; a Java producer ends at the former one.
    refusal = TransactionAbortable if version >= 4 else InvalidTransactionState
    assert await commit() == [refusal.code, UnknownTopicOrPartition.code]
    added = await broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, transactional_id="t", group_id="g", **producer)
    assert added.error_code == 0
    assert await commit() == [0, UnknownTopicOrPartition.code]
    assert await committed(require_stable=False) == (0, -1)
    assert await committed(require_stable=True) == (88, -1)
    assert await end(broker, (ids[0], ids[1]), True) == 0
    while await committed(require_stable=True) == (88, -1):
        await broker.pause()
    assert await committed(require_stable=True) == (0, 5)
    assert await commit(transactional_id="secret") == [TransactionalIdAuthorizationFailed.code] * 2
    assert await commit(group_id="closed") == [GroupAuthorizationFailed.code] * 2


@pytest.mark.parametrize("version", range(5))
async def test_groups_are_added_by_who_may_read_them(broker: Any, version: int) -> None:
    broker.rules.denied |= {(Operation.READ, "closed"), (Operation.WRITE, "secret")}
    _, *ids = await begin(broker)

    async def added(name: str, group: str, epoch: int) -> int:
        values = {"transactional_id": name, "producer_id": ids[0], "producer_epoch": epoch, "group_id": group}
        return int((await broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, **values)).error_code)

    assert await added("t", "closed", 0) == GroupAuthorizationFailed.code
    assert await added("secret", "g", 0) == TransactionalIdAuthorizationFailed.code
    assert await added("t", "g", 5) == (ProducerFenced.code if version >= 2 else InvalidProducerEpoch.code)
    assert await added("t", "g", 0) == 0
    found = await described(broker)
    assert [(topic.topic, tuple(topic.partitions)) for topic in found.topics] == [
        ("__consumer_offsets", (broker.parts.groups.partition_of("g"),))
    ]


async def test_transactions_are_listed_and_described(broker: Any) -> None:
    """KIP-664, KIP-994."""
    await broker.create("events")
    _, producer_id, epoch = await begin(broker)
    await begin(broker, "idle")
    await add(broker, (producer_id, epoch), ("events", 0))
    found = await described(broker)
    assert (found.error_code, found.transaction_state, found.producer_id, found.producer_epoch) == (0, "Ongoing", producer_id, 0)
    assert (found.transaction_timeout.total_seconds(), found.transaction_start_time.timestamp() > 0) == (60, True)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("events", (0,))]
    # Without a transaction the start is -1, which kio cannot read.
    frame = await broker.ask_bytes(ApiKey.DESCRIBE_TRANSACTIONS, 0, b"\2\5idle\0")
    assert b"\5idle\6Empty" + struct.pack(">iq", 60_000, -1) in frame
    assert (await described(broker, "unknown")).error_code == TransactionalIdNotFound.code

    async def listed(version: int = 1, **filters: Any) -> list[str]:
        response = await broker.ask(ApiKey.LIST_TRANSACTIONS, version, **{"duration_filter": -1, **filters})
        assert response.error_code == 0
        return sorted(f"{state.transactional_id} {state.transaction_state}" for state in response.transaction_states)

    assert await listed(version=0) == await listed() == ["idle Empty", "t Ongoing"]
    assert await listed(state_filters=["Ongoing", "Nonsense"]) == ["t Ongoing"]
    assert await listed(producer_id_filters=[producer_id]) == ["t Ongoing"]
    assert await listed(duration_filter=60_000) == []
    unknown = await broker.ask(ApiKey.LIST_TRANSACTIONS, 1, state_filters=["Nonsense"], duration_filter=-1)
    assert (list(unknown.unknown_state_filters), list(unknown.transaction_states)) == (["Nonsense"], [])
    started = found.transaction_start_time
    assert await end(broker, (producer_id, epoch), committed=True) == 0
    await until(lambda: not broker.parts.replicas.get("events", 0).log.producers.first_undecided_offset)
    await until(lambda: broker.parts.transactions.coordinator.of("t").describe("t").state.title == "CompleteCommit")
    assert (await described(broker)).transaction_start_time == started, "Kafka keeps it until the next transaction begins"
    broker.rules.denied |= {(Operation.DESCRIBE, "t")}
    assert await listed() == ["idle Empty"]
    assert (await described(broker)).error_code == TransactionalIdAuthorizationFailed.code


async def test_producers_of_a_partition_are_described_and_hanging_transactions_ended(broker: Any) -> None:
    """KIP-664: a marker from an operator, by what DescribeProducers says. Kafka's `KafkaApisTest.testDescribeProducers`, and
    `ReplicaManagerTest.testActiveProducerState`: followers answer as well.
    """
    await broker.create("events")
    publish(broker, (900, 3))

    async def producers(topic: str = "events", index: int = 0) -> Any:
        response = await broker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [index]}])
        return response.topics[0].partitions[0]

    (found,) = (await producers()).active_producers
    assert (found.producer_id, found.producer_epoch, found.last_sequence, found.current_txn_start_offset) == (900, 3, 0, 0)
    assert (await producers(index=5)).error_code == UnknownTopicOrPartition.code
    assert (await producers("invalid;topic")).error_code == InvalidTopic.code

    async def mark(epoch: int, coordinator_epoch: int = 0) -> int:
        marker = {
            "producer_id": 900,
            "producer_epoch": epoch,
            "transaction_result": False,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": "events", "partition_indexes": [0]}],
        }
        response = await broker.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
        return int(response.markers[0].topics[0].partitions[0].error_code)

    assert await mark(2) == InvalidProducerEpoch.code
    assert await mark(3, coordinator_epoch=4) == 0
    assert (await producers()).active_producers[0].current_txn_start_offset == -1
    assert await mark(3, coordinator_epoch=3) == 52
    assert broker.parts.replicas.get("events", 0).last_stable_offset == 2
    broker.parts.replicas.get("events", 0).stop_leading()
    assert await mark(3, coordinator_epoch=4) == NotLeaderOrFollower.code
    (followed,) = (await producers()).active_producers
    assert (followed.producer_id, followed.current_txn_start_offset) == (900, -1)
    broker.rules.denied |= {(Operation.CLUSTER_ACTION, "kafka-cluster"), (Operation.READ, "events")}
    assert await mark(3) == NotLeaderOrFollower.code, "KAFKA-16513: who may alter the cluster may write markers"
    broker.rules.denied |= {(Operation.ALTER, "kafka-cluster")}
    assert await mark(3) == ClusterAuthorizationFailed.code
    assert (await producers()).error_code == TopicAuthorizationFailed.code


async def test_a_marker_for_no_partition_is_not_answered(broker: Any) -> None:
    """Kafka answers what was written or refused, and of this there is nothing."""
    await broker.create("events")
    empty = {"producer_id": 77, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0, "topics": []}
    whole = {**empty, "producer_id": 78, "topics": [{"name": "events", "partition_indexes": [0]}]}
    assert (await broker.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[empty])).markers == ()
    response = await broker.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[empty, whole])
    assert [marker.producer_id for marker in response.markers] == [78]


async def test_a_marker_without_a_transaction_ends_nothing_and_a_replaced_coordinators_is_refused(broker: Any) -> None:
    """Kafka's `ProducerAppendInfo.checkProducerEpoch` and `checkCoordinatorEpoch`; a coordinator may send a marker again."""
    await broker.create("events")
    partition = broker.parts.replicas.get("events", 0)

    async def mark(topic: str = "events", index: int = 0, producer_id: int = 901, epoch: int = 3, coordinator_epoch: int = 5) -> int:
        marker = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": True,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": topic, "partition_indexes": [index]}],
        }
        response = await broker.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
        return int(response.markers[0].topics[0].partitions[0].error_code)

    assert await mark() == 0, "from a producer that has never written here"
    assert await mark() == 0, "again"
    assert (partition.log.log_end_offset, partition.last_stable_offset) == (2, 2)
    publish(broker, (900, 0))
    assert await mark() == 0
    assert partition.last_stable_offset == 2, "another producer's transaction is as open as it was"
    assert await mark(coordinator_epoch=4) == TransactionCoordinatorFenced.code
    assert await mark(epoch=2) == InvalidProducerEpoch.code
    assert await mark(index=7) == await mark("nowhere") == UnknownTopicOrPartition.code
    assert partition.log.log_end_offset == 4, "what was refused is not in the log"
    assert await mark(producer_id=900, epoch=0) == 0
    assert partition.last_stable_offset == 5
    assert await mark(producer_id=900, epoch=0) == 0, "its end comes again, for an answer that was lost"
    assert partition.last_stable_offset == 6
