"""Batches for the tests of `wire`, sent as they are."""

from __future__ import annotations

from ottla.errors import error_of
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster


async def produce(cluster: Cluster, partition: TopicPartition, *timestamps: int) -> int:
    """Writes a batch of one record for each timestamp, and gives its first offset."""
    batch = build_batch([Record(index, timestamp, b"key", b"value") for index, timestamp in enumerate(timestamps)])

    async def attempt(leader: BrokerId) -> int:
        answer = await cluster.ask(
            leader,
            ApiKey.PRODUCE,
            (3, 9),
            lambda api: api.build(
                "ProduceRequest",
                transactional_id=None,
                acks=-1,
                timeout=10_000,
                topic_data=[
                    api.build(
                        "TopicProduceData",
                        name=partition.topic,
                        partition_data=[api.build("PartitionProduceData", index=partition.partition, records=batch)],
                    )
                ],
            ),
        )
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            raise error_of(int(found.error_code))
        return int(found.base_offset)

    return await cluster.with_leader(partition, attempt)
