"""OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.replication.partition import Partition
from ottla.broker.security.authorizer import Operation
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import BrokerId, BrokerRegistration, PartitionState
from ottla.protocol.api import ApiKey


async def end_of(broker: Any, version: int, epoch: int, *, topic: str = "flights", current: int = -1, partition: int = 0) -> Any:
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    response = await broker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": topic, "partitions": [asked]}])
    assert response.topics[0].topic == topic
    answer = response.topics[0].partitions[0]
    assert answer.partition == partition
    return int(answer.error_code), answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_an_epoch_ends_where_the_next_one_begins(broker: Any, version: int) -> None:
    """KIP-101: of an epoch that is not known the one before it is answered."""
    await broker.create("flights")
    broker.publish("flights", 0, 1, 2, 3)
    partition = broker.parts.replicas.get("flights", 0)
    partition.leader_epoch = 4
    partition.log.leader_epochs.assign(4, 3)
    broker.publish("flights", 0, 4)
    answers = {epoch: await end_of(broker, version, epoch) for epoch in (0, 2, 4, 5)}
    assert answers == {0: (0, 0, 3), 2: (0, 0, 3), 4: (0, 4, 4), 5: (0, -1, -1)}


async def test_the_askers_own_epoch_is_compared_and_access_checked(broker: Any) -> None:
    """Brokers may ask by CLUSTER_ACTION, everybody else needs DESCRIBE on the topic."""
    await broker.create("flights")
    broker.parts.replicas.get("flights", 0).leader_epoch = 2
    assert [(await end_of(broker, 4, 0, current=epoch))[0] for epoch in (1, 2, 3)] == [74, 0, 75]
    assert (await end_of(broker, 4, 0, topic="unknown"))[0] == 3
    assert (await end_of(broker, 4, 0, partition=9))[0] == 3
    broker.rules.denied.add((Operation.DESCRIBE, "flights"))
    assert (await end_of(broker, 4, 0))[0] == 0
    broker.rules.denied.add((Operation.CLUSTER_ACTION, "kafka-cluster"))
    assert await end_of(broker, 4, 0) == (29, -1, -1)


async def delete(broker: Any, offset: int, *, version: int = 2, topic: str = "flights", partition: int = 0) -> tuple[int, int]:
    asked = {"partition_index": partition, "offset": offset}
    response = await broker.ask(ApiKey.DELETE_RECORDS, version, topics=[{"name": topic, "partitions": [asked]}])
    answer = response.topics[0].partitions[0]
    return int(answer.error_code), answer.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_records_before_an_offset_are_deleted_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1, 2, 3)
    assert await delete(broker, 2, version=version) == (0, 2)
    assert broker.parts.replicas.get("flights", 0).log.log_start_offset == 2


async def test_minus_1_deletes_up_to_the_high_watermark_and_the_start_never_goes_back(broker: Any) -> None:
    await broker.create("flights")
    broker.publish("flights", 0, 1, 2, 3)
    assert await delete(broker, -1) == (0, 3)
    assert await delete(broker, 1) == (0, 3)


async def test_what_can_not_be_deleted_is_told_apart(broker: Any) -> None:
    await broker.create("flights")
    await broker.create("table", cleanup_policy="compact")
    broker.publish("flights", 0, 1)
    assert await delete(broker, 2) == (1, -1)
    assert await delete(broker, -2) == (1, -1)
    assert await delete(broker, 0, topic="unknown") == (3, -1)
    assert await delete(broker, 0, partition=9) == (3, -1)
    assert await delete(broker, 0, topic="table") == (44, -1)
    broker.rules.denied.add((Operation.DELETE, "flights"))
    assert await delete(broker, 1) == (29, -1)


def replicated(broker: Any, *living: int, topic: str = "flights") -> Any:
    """The partition with replicas on brokers 1, 2 and 3, of which those live."""
    partition = broker.parts.replicas.get(topic, 0)
    brokers = tuple(BrokerId(number) for number in (1, 2, 3))
    state = PartitionState(BrokerId(1), partition.leader_epoch, brokers, brokers)
    partition.become_leader(PartitionAssignment(topic, partition.topic_id, 0, state, partition.partition_epoch + 1), 0)
    broker.parts.metadata.brokers = {BrokerId(number): BrokerRegistration(BrokerId(number), ()) for number in living}
    return partition


def follow(broker: Any, replica: int, log_start_offset: int, topic: str = "flights") -> None:
    partition = broker.parts.replicas.get(topic, 0)
    broker.parts.replicas.follower_fetched(partition, BrokerId(replica), -1, 3, log_start_offset, 0)


async def test_the_answer_waits_for_all_living_replicas(broker: Any) -> None:
    """KIP-107: the low watermark is the smallest log start offset of those that live."""
    answer = await delete_that_waits(broker, "flights")
    follow(broker, 2, 1)
    await broker.pause()
    assert not answer.done()
    follow(broker, 2, 2)
    assert await answer == [(0, 2)]
    assert len(broker.parts.replicas.deletes) == 0


async def delete_that_waits(broker: Any, *names: str) -> asyncio.Future[list[tuple[int, int]]]:
    """Of the records before offset 2 in these topics, for their followers."""
    for name in names:
        await broker.create(name)
        replicated(broker, 1, 2, topic=name)
        broker.publish(name, 0, 1, 2, 3)
        for number in (2, 3):
            follow(broker, number, 0, name)
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 2}]} for name in names]

    async def answer() -> list[tuple[int, int]]:
        found = [topic.partitions[0] for topic in (await broker.ask(ApiKey.DELETE_RECORDS, 2, topics=topics)).topics]
        return [(int(one.error_code), one.low_watermark) for one in found]

    answering = asyncio.ensure_future(answer())
    await until(lambda: len(broker.parts.replicas.deletes) == len(names))
    return answering


async def test_what_all_replicas_have_deleted_stays_so_while_the_request_waits_for_another_partition(broker: Any) -> None:
    """Kafka's `DelayedDeleteRecords.tryComplete`. Who leads no more would say that he does not know."""
    answer = await delete_that_waits(broker, "flights", "hotels")
    follow(broker, 2, 2)
    broker.parts.replicas.get("flights", 0).stop_leading()
    follow(broker, 2, 2, "hotels")
    assert await answer == [(0, 2), (0, 2)]


async def test_a_follower_of_one_partition_has_no_other_of_the_request_looked_at(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two thousand partitions, all at each fetch of each of them would be eight million looks, which take the loop seconds."""
    answer = await delete_that_waits(broker, "flights", "hotels")
    looked_at = list[str]()
    low_watermark = Partition.low_watermark

    def noted(partition: Partition, living: Collection[BrokerId]) -> int:
        looked_at.append(partition.topic_partition.topic)
        return low_watermark(partition, living)

    monkeypatch.setattr(Partition, "low_watermark", noted)
    follow(broker, 2, 1)
    assert looked_at == ["flights"]
    answer.cancel()
    await until(lambda: len(broker.parts.replicas.deletes) == 0)


async def test_the_answer_waits_for_what_was_asked_and_not_for_what_was_deleted_before(broker: Any) -> None:
    """Kafka's `Partition.deleteRecordsOnLeader`: a replica that begins where it was asked need not begin where the leader does."""
    await broker.create("flights")
    partition = replicated(broker, 1, 2)
    broker.publish("flights", 0, 1, 2, 3)
    for number in (2, 3):
        follow(broker, number, 1)
    partition.delete_records(3)
    assert await asyncio.wait_for(delete(broker, 1), 10) == (0, 1)


async def test_replicas_that_do_not_follow_in_time_are_told_with_the_low_watermark(broker: Any) -> None:
    await broker.create("flights")
    replicated(broker, 1, 2, 3)
    broker.publish("flights", 0, 1, 2, 3)
    for number in (2, 3):
        follow(broker, number, 1)
    asked = {"partition_index": 0, "offset": 3}
    topics = [{"name": "flights", "partitions": [asked]}]
    response = await broker.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=20)
    (answer,) = response.topics[0].partitions
    assert (int(answer.error_code), answer.low_watermark) == (7, 1)


async def test_a_leader_that_leads_no_more_does_not_know_how_far_its_followers_are(broker: Any) -> None:
    answer = await delete_that_waits(broker, "flights")
    broker.parts.replicas.stop_leading_all()
    assert await answer == [(6, -1)]
