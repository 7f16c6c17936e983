"""DescribeTopicPartitions: pages of partitions, by name."""

from __future__ import annotations

from typing import Any

from ottla.broker.security.authorizer import Operation
from ottla.model import BrokerId, PartitionState, TopicDescription
from ottla.protocol.api import ApiKey


async def describe(broker: Any, *names: str, cursor: dict[str, Any] | None = None, limit: int = 2_000) -> Any:
    topics = [{"name": name} for name in names]
    cursor_and_limit = {"cursor": cursor, "response_partition_limit": limit}
    return await broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, **cursor_and_limit)


def seen(response: Any) -> list[tuple[str, int, list[int]]]:
    return [(topic.name, topic.error_code, [found.partition_index for found in topic.partitions]) for topic in response.topics]


async def test_topics_are_described_by_name_with_what_is_wrong_with_the_others(broker: Any) -> None:
    await broker.create("b", 2)
    await broker.create("a")
    await broker.create("secret")
    broker.rules.denied.add((Operation.DESCRIBE, "secret"))
    response = await describe(broker, "b", "secret", "nothing", "b", "a", "a/b")
    assert seen(response) == [("a", 0, [0]), ("a/b", 17, []), ("b", 0, [0, 1]), ("nothing", 3, []), ("secret", 29, [])]
    assert response.next_cursor is None
    (partition,) = response.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.replica_nodes, partition.isr_nodes) == (1, 0, (1,), (1,))
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ((), (), ())
    assert response.topics[0].topic_id == broker.parts.metadata.topic("a").topic_id
    assert response.topics[0].topic_authorized_operations == sum(1 << number for number in (3, 4, 5, 6, 7, 8, 10, 11))
    assert seen(await describe(broker)) == [("a", 0, [0]), ("b", 0, [0, 1])]


async def test_pages_follow_each_other(broker: Any) -> None:
    """Whatever the limit, the pages together have each partition once."""
    counts = {"a": 3, "b": 1, "c": 5, "d": 2}
    for name, count in counts.items():
        await broker.create(name, count)
    for limit in (-1, 0, 1, 2, 3, 4, 10, 11, 12):
        found, cursor = list[tuple[str, int]](), None
        for _ in range(12):
            response = await describe(broker, cursor=cursor, limit=limit)
            page = [(topic.name, index.partition_index) for topic in response.topics for index in topic.partitions]
            assert len(page) <= max(limit, 1)
            found += page
            if response.next_cursor is None:
                break
            cursor = {"topic_name": response.next_cursor.topic_name, "partition_index": response.next_cursor.partition_index}
        assert found == [(name, index) for name, count in counts.items() for index in range(count)]


async def test_a_cursor_may_point_to_what_is_not_there_any_more(broker: Any) -> None:
    await broker.create("a", 2)
    await broker.create("c", 2)
    gone = await describe(broker, cursor={"topic_name": "b", "partition_index": 7})
    assert seen(gone) == [("c", 0, [0, 1])]
    short = await describe(broker, cursor={"topic_name": "a", "partition_index": 7})
    assert seen(short) == [("a", 0, []), ("c", 0, [0, 1])]
    wrong = await describe(broker, "a", cursor={"topic_name": "a", "partition_index": -1})
    assert seen(wrong) == [("a", 42, [])]


async def test_a_partition_without_a_leader_says_so(broker: Any) -> None:
    await broker.create("a")
    description = broker.parts.metadata.topic("a")
    one, two = BrokerId(1), BrokerId(2)
    broker.parts.metadata.put_topic(
        TopicDescription(
            "a", description.topic_id, (PartitionState(BrokerId(-1), 4, (two,), (two, one)), PartitionState(two, 4, (two,), (two,)))
        )
    )
    response = await describe(broker, "a")
    assert [(partition.error_code, partition.leader_id, partition.offline_replicas) for partition in response.topics[0].partitions] == [
        (5, -1, (2,)),
        (5, -1, (2,)),
    ]
    elsewhere = await broker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}], listener_name="OTHER")
    assert elsewhere.topics[0].partitions[0].error_code == 5
