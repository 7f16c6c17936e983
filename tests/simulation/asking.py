"""What a client asks brokers for beside producing: records by a topic's id, offsets, coordinators, commits, transactions.

Each method is one question to the broker that should know, and gives its error code beside its answer. Everything
raises OSError when no broker answers. A leader or a coordinator that is not known, or said that it is none, is looked
up again before the next question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.simulation.wire import ClientView

from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message
from ottla.record.batch import batches
from ottla.record.records import Record, read_records

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
NO_ANSWER: Final = 7
GROUP: Final = 0
TRANSACTION: Final = 1
NO_OFFSET: Final = -1
EARLIEST: Final = -2
LATEST: Final = -1
# No coordinator there, or not yet: it is looked for again.
_ELSEWHERE: Final = frozenset({14, 15, 16})
_ABORT: Final = 0
_SECONDS: Final = 8.0


class NobodyKnows(ConnectionError):
    """No broker said who leads or coordinates."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a leader has of one partition.

    Attributes:
        next_offset: where the next fetch begins.
    """

    leader: int
    topic_id: UUID
    error: int
    log_start_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    records: tuple[Record, ...] = ()
    next_offset: int = NO_OFFSET


class Asker:
    """A client's questions, and what it knows about whom to ask."""

    def __init__(self, view: ClientView, broker_ids: Iterable[int], random: Random) -> None:
        self._view: Final = view
        self._broker_ids: Final = list(broker_ids)
        self._random: Final = random
        self._coordinators: dict[tuple[int, str], int] = {}

    @property
    def view(self) -> ClientView:
        return self._view

    # Records.

    async def leader(self, topic: str, partition: int) -> int:
        """Raises NobodyKnows."""
        if self._view.leaders.get((topic, partition), -1) < 0:
            await self.refresh(topic)
        leader = self._view.leaders.get((topic, partition), -1)
        if leader < 0:
            raise NobodyKnows(f"no one leads {topic}-{partition}")
        return leader

    async def refresh(self, topic: str) -> None:
        await self._view.refresh(self._random.choice(self._broker_ids), topic)

    async def fetch(self, topic: str, partition: int, offset: int, *, is_committed: bool = False, max_wait_ms: int = 500) -> Fetched:
        """Asks a partition's leader for records by the topic's id.

        Args:
            is_committed: only what no transaction can take back, and nothing that was aborted.
        """
        leader = await self.leader(topic, partition)
        topic_id = self._view.topic_ids[topic]
        api = message(ApiKey.FETCH, 13)
        kinds = api.request
        asked = kinds.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 16)
        body = kinds.FetchRequest(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            isolation_level=1 if is_committed else 0,
            topics=(kinds.FetchTopic(topic_id=topic_id, partitions=(asked,)),),
            forgotten_topics_data=(),
        )
        answer = await self._ask_leader(topic, leader, api, body)
        error = int(answer.error_code)
        if error or not answer.responses:
            await self._look_again(topic)
            return Fetched(leader, topic_id, error or NO_ANSWER)
        found = answer.responses[0].partitions[0]
        error = int(found.error_code)
        if error:
            await self._look_again(topic)
            return Fetched(leader, topic_id, error, found.log_start_offset)
        data = bytes(found.records or b"")
        aborted = (
            [
                (aborted_transaction.first_offset, aborted_transaction.producer_id)
                for aborted_transaction in found.aborted_transactions or ()
            ]
            if is_committed
            else []
        )
        records = tuple(record for record in _records(data, aborted) if record.offset >= offset)
        ends = [header.last_offset + 1 for _, header in batches(data)]
        return Fetched(
            leader, topic_id, NONE, found.log_start_offset, found.high_watermark, found.last_stable_offset, records, max([offset, *ends])
        )

    async def offset_at(self, topic: str, partition: int, timestamp: int) -> tuple[int, int]:
        """Error and offset: EARLIEST or LATEST."""
        leader = await self.leader(topic, partition)
        api = message(ApiKey.LIST_OFFSETS, 7)
        kinds = api.request
        asked = kinds.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        body = kinds.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(kinds.ListOffsetsTopic(name=topic, partitions=(asked,)),))
        answer = await self._ask_leader(topic, leader, api, body)
        found = answer.topics[0].partitions[0]
        if int(found.error_code):
            await self._look_again(topic)
        return int(found.error_code), int(found.offset)

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Gives the error code."""
        leader = await self.leader(topic, partition)
        api = message(ApiKey.DELETE_RECORDS, 2)
        kinds = api.request
        asked = kinds.DeleteRecordsPartition(partition_index=partition, offset=offset)
        body = kinds.DeleteRecordsRequest(topics=(kinds.DeleteRecordsTopic(name=topic, partitions=(asked,)),), timeout=timedelta(seconds=5))
        answer = await self._ask_leader(topic, leader, api, body)
        error = int(answer.topics[0].partitions[0].error_code)
        if error:
            await self._look_again(topic)
        return error

    async def produce(self, topic: str, partition: int, batch: bytes, transactional_id: str | None) -> tuple[int, int]:
        """Error and base offset."""
        leader = await self.leader(topic, partition)
        api = message(ApiKey.PRODUCE, 9)
        kinds = api.request
        body = kinds.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout=timedelta(seconds=5),
            topic_data=(kinds.TopicProduceData(name=topic, partition_data=(kinds.PartitionProduceData(index=partition, records=batch),)),),
        )
        produced = (await self._ask_leader(topic, leader, api, body)).responses[0].partition_responses[0]
        error = int(produced.error_code)
        if error:
            await self._look_again(topic)
        return error, produced.base_offset

    async def _ask_leader(self, topic: str, leader: int, api: Any, body: Any) -> Any:
        try:
            return await self._view.ask(leader, api, body, _SECONDS)
        except OSError:
            await self._look_again(topic)
            raise

    async def _look_again(self, topic: str) -> None:
        with suppress(OSError):
            await self.refresh(topic)

    # Coordinators.

    async def coordinator(self, kind: int, key: str) -> int:
        """Raises NobodyKnows."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        api = message(ApiKey.FIND_COORDINATOR, 4)
        body = api.request.FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
        answer = await self._view.ask(self._random.choice(self._broker_ids), api, body, _SECONDS)
        found = answer.coordinators[0]
        if int(found.error_code):
            raise NobodyKnows(f"no one coordinates {key}: error {int(found.error_code)}")
        self._coordinators[kind, key] = int(found.node_id)
        return int(found.node_id)

    async def _ask_coordinator(self, kind: int, key: str, api: Any, body: Any) -> Any:
        coordinator = await self.coordinator(kind, key)
        try:
            return await self._view.ask(coordinator, api, body, _SECONDS)
        except OSError:
            self._coordinators.pop((kind, key), None)
            raise

    def _heard(self, kind: int, key: str, error: int) -> int:
        if error in _ELSEWHERE:
            self._coordinators.pop((kind, key), None)
        return error

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> int:
        """Commits for a group without members; gives the first error code."""
        api = message(ApiKey.OFFSET_COMMIT, 8)
        kinds = api.request
        partitions = tuple(
            kinds.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
            for partition, offset in offsets.items()
        )
        body = kinds.OffsetCommitRequest(
            group_id=group, member_id="", topics=(kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions),)
        )
        answer = await self._ask_coordinator(GROUP, group, api, body)
        errors = [int(found.error_code) for found in answer.topics[0].partitions]
        return self._heard(GROUP, group, next((error for error in errors if error), NONE))

    async def committed_offset(self, group: str, topic: str, partition: int) -> tuple[int, int]:
        """Error and offset, NO_OFFSET where there is none; of pending transactions the end is waited for."""
        api = message(ApiKey.OFFSET_FETCH, 8)
        kinds = api.request
        asked = kinds.OffsetFetchRequestGroup(
            group_id=group, topics=(kinds.OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,)),)
        )
        answer = await self._ask_coordinator(GROUP, group, api, kinds.OffsetFetchRequest(groups=(asked,), require_stable=True))
        found = answer.groups[0]
        error = int(found.error_code)
        if not error and found.topics:
            error = int(found.topics[0].partitions[0].error_code)
        if error:
            return self._heard(GROUP, group, error), NO_OFFSET
        return NONE, int(found.topics[0].partitions[0].committed_offset)

    # Transactions.

    async def begin_producer(self, transactional_id: str, timeout_ms: int) -> tuple[int, int, int]:
        """InitProducerId: error, producer id and epoch."""
        api = message(ApiKey.INIT_PRODUCER_ID, 4)
        body = api.request.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=timedelta(milliseconds=timeout_ms))
        answer = await self._ask_coordinator(TRANSACTION, transactional_id, api, body)
        error = self._heard(TRANSACTION, transactional_id, int(answer.error_code))
        return error, int(answer.producer_id), int(answer.producer_epoch)

    async def add_partitions(self, transactional_id: str, producer: tuple[int, int], topic: str, partitions: Iterable[int]) -> int:
        """AddPartitionsToTxn; gives the first error code."""
        api = message(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
        kinds = api.request
        body = kinds.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=(kinds.AddPartitionsToTxnTopic(name=topic, partitions=tuple(partitions)),),
        )
        answer = await self._ask_coordinator(TRANSACTION, transactional_id, api, body)
        errors = [
            int(found.partition_error_code) for topics in answer.results_by_topic_v3_and_below for found in topics.results_by_partition
        ]
        return self._heard(TRANSACTION, transactional_id, next((error for error in errors if error), NONE))

    async def add_offsets(self, transactional_id: str, producer: tuple[int, int], group: str) -> int:
        """AddOffsetsToTxn; gives the error code."""
        api = message(ApiKey.ADD_OFFSETS_TO_TXN, 3)
        body = api.request.AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group
        )
        answer = await self._ask_coordinator(TRANSACTION, transactional_id, api, body)
        return self._heard(TRANSACTION, transactional_id, int(answer.error_code))

    async def commit_offset_in_transaction(
        self, transactional_id: str, producer: tuple[int, int], group: str, topic: str, partition: int, offset: int
    ) -> int:
        """TxnOffsetCommit; gives the error code."""
        api = message(ApiKey.TXN_OFFSET_COMMIT, 3)
        kinds = api.request
        asked = kinds.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        body = kinds.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=(kinds.TxnOffsetCommitRequestTopic(name=topic, partitions=(asked,)),),
        )
        answer = await self._ask_coordinator(GROUP, group, api, body)
        return self._heard(GROUP, group, int(answer.topics[0].partitions[0].error_code))

    async def end_transaction(self, transactional_id: str, producer: tuple[int, int], *, commits: bool) -> int:
        """EndTxn; gives the error code."""
        api = message(ApiKey.END_TXN, 3)
        body = api.request.EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=commits
        )
        answer = await self._ask_coordinator(TRANSACTION, transactional_id, api, body)
        return self._heard(TRANSACTION, transactional_id, int(answer.error_code))


def _records(data: bytes, aborted: list[tuple[int, int]]) -> Iterator[Record]:
    """The records of whole batches, without markers and without those of aborted transactions, as Kafka's consumer finds them."""
    waiting, open_producers = sorted(aborted, reverse=True), set[int]()
    for position, header in batches(data):
        while waiting and waiting[-1][0] <= header.last_offset:
            open_producers.add(waiting.pop()[1])
        batch = data[position : position + header.size]
        if header.is_control:
            key = next(iter(read_records(batch))).key
            if key is not None and int.from_bytes(key[2:4], "big") == _ABORT:
                open_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_producers):
            yield from read_records(batch)
