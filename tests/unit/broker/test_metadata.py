"""What the broker was last told of topics, found by name and by id."""

from __future__ import annotations

from uuid import UUID

from ottla.broker.metadata import MetadataCache
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicDescription

ONE, TWO = BrokerId(1), BrokerId(2)


def state(leader: BrokerId = ONE, epoch: int = 0) -> PartitionState:
    return PartitionState(leader, epoch, (leader,), (ONE, TWO))


def topic(name: str, number: int, partitions: int = 2) -> TopicDescription:
    return TopicDescription(name, UUID(int=number), (state(),) * partitions)


def test_topics_are_found_by_name_and_id_and_listed_by_name() -> None:
    metadata = MetadataCache()
    assert (metadata.cluster_id, metadata.controller_id, metadata.brokers) == ("", NO_LEADER, {})
    for name, number in (("b", 1), ("a", 2)):
        metadata.put_topic(topic(name, number))
    assert [each.name for each in metadata.topics()] == ["a", "b"]
    assert metadata.topic("a") == topic("a", 2)
    assert metadata.topic_name(UUID(int=1)) == "b"
    assert metadata.topic("c") is None
    assert metadata.topic_name(UUID(int=3)) is None


def test_a_removed_topic_is_gone_by_name_and_id_and_may_come_back_as_another() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    assert metadata.remove_topic("a") == topic("a", 1)
    assert metadata.remove_topic("a") is None
    assert metadata.topic_name(UUID(int=1)) is None
    metadata.put_topic(topic("a", 2))
    assert (metadata.topic_name(UUID(int=1)), metadata.topic_name(UUID(int=2))) == (None, "a")


def test_a_topic_replaced_by_another_of_its_name_is_no_longer_found_by_its_old_id() -> None:
    """Deleted and created again faster than this broker was told of the deletion."""
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    metadata.put_topic(topic("a", 2))
    assert (metadata.topic_name(UUID(int=1)), metadata.topic_name(UUID(int=2))) == (None, "a")


def test_partitions_by_number_and_their_new_states() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    metadata.put_partitions("a", [(1, state(TWO, 5))])
    assert metadata.partition("a", 0) == state()
    assert metadata.partition("a", 1) == state(TWO, 5)
    assert metadata.partition("a", 2) is None
    assert metadata.partition("a", -1) is None
    assert metadata.partition("b", 0) is None
