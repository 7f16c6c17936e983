"""ListOffsets: the ends of a partition, and the offset at a time."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ottla.broker.handlers.list_offsets import EARLIEST, LATEST, offsets_before
from ottla.broker.security.authorizer import Operation
from ottla.protocol.api import ApiKey

NOTHING = (-1, -1, -1)


async def ask(broker: Any, version: int, timestamp: int, *, replica_id: int = -1, topic: str = "flights", **fields: Any) -> Any:
    isolation_level = fields.pop("isolation_level", 0)
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1, **fields}
    response = await broker.ask(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[{"name": topic, "partitions": [partition]}],
    )
    assert [topic.name for topic in response.topics] == [topic]
    return response.topics[0].partitions[0]


async def found(broker: Any, timestamp: int, **fields: Any) -> tuple[int, int, int]:
    answer = await ask(broker, 9, timestamp, **fields)
    assert answer.error_code == 0
    return answer.timestamp, answer.offset, answer.leader_epoch


@pytest.mark.parametrize("version", range(1, 10))
async def test_earliest_latest_and_a_time_are_answered_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 2_000)
    broker.publish("flights", 0, 3_000)
    for timestamp, expected in ((-2, (-1, 0)), (-1, (-1, 3)), (1_500, (2_000, 1)), (3_001, (-1, -1))):
        answer = await ask(broker, version, timestamp)
        assert (answer.error_code, answer.timestamp, answer.offset) == (0, *expected)


async def test_the_largest_timestamp_is_found_where_it_first_occurs(broker: Any) -> None:
    """KIP-734."""
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 9_000, 2_000)
    broker.publish("flights", 0, 9_000)
    assert await found(broker, -3) == (9_000, 1, 0)


async def test_an_empty_partition_has_ends_and_no_times(broker: Any) -> None:
    await broker.create("flights")
    assert await found(broker, -2) == (-1, 0, 0)
    assert await found(broker, -1) == (-1, 0, 0)
    assert await found(broker, -3) == NOTHING
    assert await found(broker, 0) == NOTHING


async def test_nothing_is_tiered(broker: Any) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1_000)
    assert await found(broker, -4) == (-1, 0, 0)
    assert await found(broker, -5) == NOTHING


@pytest.mark.parametrize(("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 10), (-(1 << 63), 10)])
async def test_a_special_timestamp_is_unsupported_before_its_version(broker: Any, timestamp: int, first_version: int) -> None:
    await broker.create("flights")
    for version in range(1, 10):
        assert (await ask(broker, version, timestamp)).error_code == (0 if version >= first_version else 35)


async def test_a_consumer_sees_up_to_the_high_watermark_and_a_replica_the_whole_log(broker: Any) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 2_000)
    broker.parts.replicas.get("flights", 0).high_watermark = 1
    assert (await found(broker, -1))[1] == 1
    assert (await found(broker, -1, isolation_level=1))[1] == 1
    assert (await found(broker, -1, replica_id=-2))[1] == 2
    # The record is there, and no one may know yet.
    assert await found(broker, 1_500) == NOTHING
    assert (await found(broker, 1_500, replica_id=-2))[1] == 1


async def test_the_clients_leader_epoch_is_compared_with_ours(broker: Any) -> None:
    """KIP-320; -1 is not compared."""
    await broker.create("flights")
    partition = broker.parts.replicas.get("flights", 0)
    partition.leader_epoch = 3
    assert [(await ask(broker, 4, -2, current_leader_epoch=epoch)).error_code for epoch in (-1, 3, 2, 4)] == [0, 0, 74, 75]


async def test_a_new_leader_does_not_know_the_latest_offset_before_its_high_watermark_reached_its_epoch(broker: Any) -> None:
    """KIP-207: OFFSET_NOT_AVAILABLE, which before v5 is LEADER_NOT_AVAILABLE. The earliest is known."""
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 2_000)
    partition = broker.parts.replicas.get("flights", 0)
    partition.in_sync.epoch_start_offset, partition.high_watermark = 2, 1
    assert [(await ask(broker, version, -1)).error_code for version in (4, 5)] == [5, 78]
    assert (await ask(broker, 5, 1_500)).error_code == 78
    assert (await ask(broker, 5, -2)).error_code == 0
    assert (await ask(broker, 5, 500)).offset == 0


async def test_unknown_forbidden_and_repeated_partitions_have_errors_of_their_own(broker: Any) -> None:
    await broker.create("flights")
    await broker.create("secret")
    broker.rules.denied.add((Operation.DESCRIBE, "secret"))
    assert (await ask(broker, 9, -1, topic="unknown")).error_code == 3
    assert (await ask(broker, 9, -1, partition_index=7)).error_code == 3
    assert (await ask(broker, 9, -1, topic="secret")).error_code == 29
    twice = [{"name": "flights", "partitions": [{"partition_index": 0, "timestamp": -1}] * 2}]
    response = await broker.ask(ApiKey.LIST_OFFSETS, 9, replica_id=-1, topics=twice)
    assert [partition.error_code for partition in response.topics[0].partitions] == [42]


async def test_after_delete_records_the_earliest_offset_is_the_new_start(broker: Any) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 2_000, 3_000)
    broker.parts.replicas.get("flights", 0).delete_records(2)
    assert (await found(broker, -2))[1] == 2
    assert await found(broker, 0) == (3_000, 2, 0)


async def test_version_0_gives_the_latest_offset_and_the_starts_of_segments_before_it(broker: Any) -> None:
    """Kafka 0.8's getOffsetsBefore. `KafkaApisTest.testListOffsetNegativeTimestampWithZeroVersion`: -3 is of a later version."""
    await broker.create("flights")
    broker.publish("flights", 0, 1_000, 2_000)
    broker.parts.replicas.get("flights", 0).log.appender.roll()
    broker.publish("flights", 0, 3_000)
    for timestamp, count, code, expected in ((-1, 1, 0, [3]), (-1, 9, 0, [3, 2, 0]), (-2, 9, 0, [0]), (1_000, 9, 0, []), (-3, 9, 35, [])):
        body = struct.pack(">iih7siiqi", -1, 1, 7, b"flights", 1, 0, timestamp, count)
        response = await broker.ask_bytes(ApiKey.LIST_OFFSETS, 0, body)
        offsets = struct.pack(f">ih7siihi{len(expected)}q", 1, 7, b"flights", 1, 0, code, len(expected), *expected)
        assert response == offsets


async def test_version_0_names_the_error_of_a_partition_that_is_not_here(broker: Any) -> None:
    body = struct.pack(">iih7siiqi", -1, 1, 7, b"flights", 1, 0, -1, 1)
    assert await broker.ask_bytes(ApiKey.LIST_OFFSETS, 0, body) == struct.pack(">ih7siihi", 1, 7, b"flights", 1, 0, 3, 0)


def test_segments_count_by_the_time_of_their_last_write_and_nothing_uncommitted_counts() -> None:
    starts = [(0, 100), (50, 200), (90, 300)]
    assert offsets_before(starts, 0, 80, LATEST) == [80, 50, 0]
    assert offsets_before(starts, 20, 95, LATEST) == [95, 90, 50, 20]
    assert offsets_before(starts, 20, 95, EARLIEST) == [20]
    assert offsets_before(starts, 0, 95, 250) == [50, 0]
    assert offsets_before([], 7, 7, EARLIEST) == [7]
