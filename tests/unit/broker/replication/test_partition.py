"""One partition's decisions, on a real log: offsets, the high watermark, what may be seen, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.replication.partition import Partition
from ottla.config.topic import TopicSettings
from ottla.errors import ApiError, InvalidRecord, KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange, UnsupportedCompressionType
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import BrokerId, PartitionState
from ottla.record.batch import read_header
from ottla.record.records import seal

from ..wired import BROKER, NOW, Wired, batch, values

OTHER, THIRD = BrokerId(2), BrokerId(3)


def lead(partition: Partition, *isr: BrokerId, epoch: int = 0) -> None:
    """What the controller says when the ISR or the epoch of a partition that this broker leads has changed."""
    state = PartitionState(BROKER, epoch, isr, partition.replicas)
    partition.become_leader(PartitionAssignment("events", partition.topic_id, 0, state, partition.partition_epoch + 1), 0)


def append(broker: Wired, *batches: bytes, topic: str = "events") -> list[tuple[int, int, int]]:
    """Stages the batches and writes them as one group."""
    partition = broker.partition(topic)
    answers = [partition.append_as_leader(memoryview(batch), 0, len(batch), 1, NOW) for batch in batches]
    broker.parts.replicas.appends.stage(partition)
    assert broker.parts.replicas.appends.complete() is None
    return answers


def append_to(partition: Partition, sent: bytes) -> None:
    partition.append_as_leader(memoryview(sent), 0, len(sent), 1, NOW)
    partition.log.appender.write_staged()
    partition.appended()


async def test_offsets_are_given_as_staged_and_seen_only_when_written(broker: Wired) -> None:
    broker.topic("events")
    partition = broker.partition("events")
    sent = [batch(b"a", b"b"), batch(b"c")]
    assert [partition.append_as_leader(memoryview(value), 0, len(value), 1, NOW) for value in sent] == [(0, 1, -1), (2, 2, -1)]
    assert (partition.log.log_end_offset, partition.high_watermark) == (0, 0)
    broker.parts.replicas.appends.stage(partition)
    assert partition.has_staged
    assert broker.parts.replicas.appends.complete() is None
    assert (partition.log.log_end_offset, partition.high_watermark, partition.has_staged) == (3, 3, False)


async def test_the_high_watermark_waits_for_those_in_sync_and_never_goes_back(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, OTHER))
    partition = broker.partition("events")
    append(broker, batch(b"a"), batch(b"b"))
    assert (partition.high_watermark, partition.commits_at_once) == (0, False)
    assert partition.record_follower_fetch(OTHER, 7, 1, 0, 0)
    assert partition.high_watermark == 1
    lead(partition, BROKER)
    assert partition.high_watermark == 2
    lead(partition, BROKER, OTHER)
    append(broker, batch(b"c"))
    assert partition.high_watermark == 2
    assert not partition.advance_high_watermark()


async def test_a_new_leader_epoch_begins_at_the_logs_end_and_is_written_into_batches(broker: Wired) -> None:
    """KIP-101: OffsetForLeaderEpoch answers where an epoch ended."""
    broker.topic("events")
    partition = broker.partition("events")
    append(broker, batch(b"a"), batch(b"b"))
    lead(partition, BROKER, epoch=4)
    append(broker, batch(b"c"))
    assert partition.end_offset_for_epoch(4) == (4, 3)
    assert partition.end_offset_for_epoch(0) == (0, 2)
    assert partition.end_offset_for_epoch(3) == (0, 2)
    assert partition.end_offset_for_epoch(5) == (-1, -1)


async def test_who_leads_on_after_a_restart_lets_no_one_join_that_has_less_than_its_log(broker: Wired) -> None:
    """No controller was there to give a new epoch, and a damaged checkpoint had no high watermark. Kafka's `Partition.makeLeader`."""
    broker.topic("events", isr=(BROKER, OTHER))
    before = broker.partition("events")
    append(broker, batch(b"a"), batch(b"b"))
    state = PartitionState(BROKER, before.leader_epoch, (BROKER, OTHER), (BROKER, OTHER, THIRD))
    now = Partition(before.topic_partition, before.topic_id, BROKER, before.log, before.settings)
    now.become_leader(PartitionAssignment("events", now.topic_id, 0, state, 5), 0)
    assert now.high_watermark == 0, "the other one in sync has not said how far it is"
    now.record_follower_fetch(THIRD, 7, 1, 0, 0)
    assert now.propose_expansion(0) is None
    now.become_leader(PartitionAssignment("events", now.topic_id, 0, state, 6), 0)
    append_to(now, batch(b"c"))
    now.record_follower_fetch(THIRD, 7, 2, 0, 0)
    assert now.propose_expansion(0) is not None, "of what is written since it needs what is committed"


async def test_what_consumers_see_ends_at_the_high_watermark(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, OTHER))
    partition = broker.partition("events")
    append(broker, batch(b"a"), batch(b"b"), batch(b"c"))
    partition.high_watermark = 2
    options: dict[str, Any] = {"committed_only": False, "at_least_one_batch": True}
    region = partition.read(0, 1 << 20, **options)
    assert region is not None
    assert values(region.read()) == [(0, b"a"), (1, b"b")]
    assert partition.read(2, 1 << 20, **options) is None
    assert partition.read(3, 1 << 20, **options) is None, "the end is not out of range, it is only not committed"
    with pytest.raises(OffsetOutOfRange):
        partition.read(4, 1 << 20, **options)


async def test_records_are_deleted_up_to_the_high_watermark(broker: Wired) -> None:
    """KIP-107; -1 means all that is committed."""
    broker.topic("events", isr=(BROKER, OTHER))
    partition = broker.partition("events")
    append(broker, batch(b"a"), batch(b"b"), batch(b"c"))
    partition.high_watermark = 2
    assert partition.delete_records(1) == 1
    for beyond in (3, -2):
        with pytest.raises(OffsetOutOfRange):
            partition.delete_records(beyond)
    assert partition.delete_records(-1) == 2
    assert partition.delete_records(1) == 1


async def test_nothing_is_taken_without_leadership_or_a_working_disk(broker: Wired) -> None:
    broker.topic("events")
    partition = broker.partition("events")
    sent = memoryview(batch(b"a"))
    partition.is_leader = False
    with pytest.raises(NotLeaderOrFollower):
        partition.append_as_leader(sent, 0, len(sent), 1, NOW)
    lead(partition, BROKER, epoch=1)
    partition.storage_error = KafkaStorageError("gone")
    with pytest.raises(KafkaStorageError):
        partition.append_as_leader(sent, 0, len(sent), 1, NOW)
    assert partition.log.appender.next_offset == 0


async def test_settings_take_effect_from_the_next_batch_on(broker: Wired) -> None:
    broker.topic("events")
    partition = broker.partition("events")
    changed = TopicSettings.of(broker.parts.settings, {"flush.messages": "10", "message.timestamp.type": "LogAppendTime"})
    broker.parts.replicas.update_settings("events", changed)
    assert (partition.waits_for_flush, partition.commits_at_once) == (True, False)
    assert append(broker, batch(b"a", timestamp=1)) == [(0, 0, NOW)]
    assert partition.high_watermark == 0
    broker.parts.replicas.update_settings("events", TopicSettings.of(broker.parts.settings, {}))
    append(broker, batch(b"b"))
    assert partition.high_watermark == 2


async def test_a_duplicate_on_a_topic_with_append_time_is_answered_with_its_first_time(broker: Wired) -> None:
    broker.topic("events", message_timestamp_type="LogAppendTime")
    sent = memoryview(batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0))
    partition = broker.partition("events")
    first = partition.append_as_leader(sent, 0, len(sent), 1, NOW)
    assert partition.append_as_leader(sent, 0, len(sent), 1, NOW + 5000) == first == (0, 0, NOW)
    broker.parts.replicas.appends.stage(partition)
    broker.parts.replicas.appends.complete()


async def test_a_batch_in_the_middle_of_a_buffer_is_taken_and_its_neighbours_are_not(broker: Wired) -> None:
    broker.topic("events")
    sent = batch(b"a")
    partition = broker.partition("events")
    buffer = memoryview(bytearray(b"x" * 7 + sent + b"y" * 7))
    partition.append_as_leader(buffer, 7, 7 + len(sent), 1, NOW)
    broker.parts.replicas.appends.stage(partition)
    broker.parts.replicas.appends.complete()
    assert broker.log_bytes("events")[16:] == sent[16:]


async def test_a_count_that_its_payload_may_have_is_stored_as_it_is(broker: Wired) -> None:
    """The records are not opened (docs/decisions): the header alone gives the offsets."""
    broker.topic("events")
    sent = batch(b"a" * 7000)
    lying = seal(read_header(sent)._replace(record_count=1000, last_offset_delta=999), sent[61:])
    assert append(broker, lying, batch(b"b")) == [(0, 999, -1), (1000, 1000, -1)]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"record_count": 3, "last_offset_delta": 2}, InvalidRecord),  # in 17 bytes, of which each takes 7
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, InvalidRecord),
        ({"attributes": 4, "record_count": 10_000, "last_offset_delta": 9_999}, InvalidRecord),  # were it compressed a thousand times
        ({"attributes": 5}, UnsupportedCompressionType),
        ({"attributes": 7}, UnsupportedCompressionType),
        ({"attributes": 0x08}, InvalidRecord),  # LogAppendTime
        ({"attributes": 0x40}, InvalidRecord),  # delete horizon
        ({"attributes": 0x80}, InvalidRecord),
        ({"attributes": -32768}, InvalidRecord),
        ({"attributes": 0x20}, InvalidRecord),  # control
    ],
)
async def test_what_a_header_alone_shows_to_be_wrong_is_refused(broker: Wired, changed: dict[str, int], error: type[ApiError]) -> None:
    """Its checksum is right: anyone who made it meant it, and no reader could do with it."""
    broker.topic("events")
    sent = batch(b"1234567890")
    with pytest.raises(error):
        append(broker, seal(read_header(sent)._replace(**changed), sent[61:]))
    assert append(broker, sent) == [(0, 0, -1)]
