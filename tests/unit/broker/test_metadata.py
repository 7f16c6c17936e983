"""What the broker was last told of topics, found by name and by id."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from tests.loops import at_once_at_the_end

from ottla.broker.metadata import JUST_GONE_SECONDS, NOT_TOLD, MetadataCache
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition
from ottla.testing import ManualClock

ONE, TWO = BrokerId(1), BrokerId(2)


def state(leader: BrokerId = ONE, epoch: int = 0) -> PartitionState:
    return PartitionState(leader, epoch, (leader,), (ONE, TWO))


def topic(name: str, number: int, partitions: int = 2) -> TopicDescription:
    return TopicDescription(name, UUID(int=number), (state(),) * partitions)


def assignment(name: str, number: int, index: int, of: PartitionState) -> PartitionAssignment:
    return PartitionAssignment(name, UUID(int=number), index, of, 0)


def test_topics_are_found_by_name_and_id_and_listed_by_name() -> None:
    metadata = MetadataCache()
    assert (metadata.cluster_id, metadata.controller_id, metadata.brokers) == ("", NO_LEADER, {})
    for name, number in (("b", 1), ("a", 2)):
        metadata.put_topic(topic(name, number))
    assert [described.name for described in metadata.topics()] == ["a", "b"]
    assert metadata.topic("a") == topic("a", 2)
    assert metadata.topic_name(UUID(int=1)) == "b"
    assert metadata.topic("c") is None
    assert metadata.topic_name(UUID(int=3)) is None


def test_a_broker_that_goes_is_remembered_for_a_moment_and_not_longer() -> None:
    clock = ManualClock()
    metadata = MetadataCache(clock)
    one, two = (BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", f"broker-{broker_id}", 9092),)) for broker_id in (ONE, TWO))
    metadata.put_brokers([one, two])
    assert metadata.just_gone() == []
    metadata.put_brokers([one])
    clock.advance(seconds=JUST_GONE_SECONDS - 1)
    metadata.put_brokers([one])  # told again of the same
    assert (metadata.brokers, metadata.just_gone()) == ({ONE: one}, [two])
    clock.advance(seconds=1)
    assert metadata.just_gone() == []
    metadata.put_brokers([one, two])
    metadata.put_brokers([two])
    metadata.put_brokers([one, two])
    assert metadata.just_gone() == [], "it is back"


def test_what_a_broker_is_told_of_its_own_replicas_changes_only_what_clients_know_already() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    new = state(TWO, epoch=1)
    metadata.update_known(
        [
            assignment("a", 1, 1, new),
            assignment("a", 1, 0, replace(new, leader_epoch=0)),  # no later than what is known
            assignment("a", 1, 2, new),  # a partition more
            assignment("b", 2, 0, new),  # a topic more
        ]
    )
    assert [metadata.partition("a", index) for index in range(3)] == [state(), new, None]
    assert metadata.topic("b") is None
    metadata.update_known([assignment("a", 3, 0, new)])  # another topic of this name
    assert metadata.partition("a", 0) == state()


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
    metadata.put_partitions("a", UUID(int=1), {1: state(TWO, 5)})
    assert metadata.partition("a", 0) == state()
    assert metadata.partition("a", 1) == state(TWO, 5)
    assert metadata.partition("a", 2) is None
    assert metadata.partition("a", -1) is None
    assert metadata.partition("b", 0) is None


def test_what_the_controller_tells_changes_only_what_it_names() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    metadata.put_topic(topic("b", 2))
    before = metadata.topic("b")
    metadata.update([assignment("a", 1, 1, state(TWO, 5)), assignment("new", 3, 0, state(TWO)), assignment("a", 1, 2, state())], ())
    assert metadata.topic("a") == TopicDescription("a", UUID(int=1), (state(), state(TWO, 5), state()))
    assert metadata.topic("b") is before
    assert [described.name for described in metadata.topics()] == ["a", "b", "new"]
    assert metadata.topic_name(UUID(int=3)) == "new"


def test_a_topic_that_was_deleted_and_made_anew_is_the_new_one_only() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1, partitions=5))
    metadata.update([assignment("a", 2, 0, state(TWO))], ["a", "never there"])
    assert metadata.topic("a") == TopicDescription("a", UUID(int=2), (state(TWO),))
    assert metadata.topic_name(UUID(int=1)) is None
    metadata.update([assignment("a", 3, 1, state(TWO))], ())  # of the deletion we heard nothing
    assert metadata.topic("a") == TopicDescription("a", UUID(int=3), (NOT_TOLD, state(TWO)))
    metadata.update((), ["a"])
    assert metadata.topics() == []


def test_that_a_topic_took_the_place_of_another_is_said() -> None:
    metadata = MetadataCache()
    assert metadata.update([assignment("a", 1, 0, state()), assignment("b", 2, 0, state())], []) == []
    assert metadata.update([assignment("a", 1, 0, state(TWO, 1)), assignment("b", 3, 0, state())], []) == ["b"]
    assert metadata.update([assignment("a", 4, 0, state())], ["a"]) == [], "which is said by its deletion"


def test_a_change_is_never_seen_by_an_answer_that_was_begun_before() -> None:
    metadata = MetadataCache()
    metadata.put_topic(topic("a", 1))
    begun = metadata.topic("a")
    metadata.update([assignment("a", 1, 0, state(TWO, 5))], ())
    assert begun == topic("a", 1)


def test_that_a_controller_has_told_everything_is_known_even_if_it_was_nothing() -> None:
    """A client that asks in between, with a part of many partitions told, would hear that the others are not there."""
    metadata = MetadataCache()
    metadata.update((), ())
    assert not metadata.complete.is_set()
    metadata.update((), (), ())
    assert metadata.complete.is_set()


def test_a_topic_that_the_controller_can_not_read_is_not_taken_for_gone() -> None:
    """A coordinator gives up the markers of what is gone, and with them a transaction that was committed."""
    metadata = MetadataCache()
    metadata.update([assignment("a", 1, 0, state(TWO, 5))], (), ("a", "broken"))
    leaders = {name: metadata.leader(TopicPartition(name, 0)) for name in ("a", "broken", "gone")}
    assert leaders == {"a": TWO, "broken": NO_LEADER, "gone": None}
    assert (metadata.topic("broken"), metadata.is_unread("a")) == (None, False)
    metadata.update([assignment("broken", 2, 0, state(TWO, 5))], ())
    assert (metadata.leader(TopicPartition("broken", 0)), metadata.is_unread("broken")) == (TWO, False)
    metadata.update((), ["broken"])
    assert (metadata.leader(TopicPartition("broken", 0)), metadata.is_unread("broken")) == (None, False), "deleted since"


async def test_a_topic_that_comes_as_the_time_ends_is_known() -> None:
    metadata, made = MetadataCache(), topic("late", 1)
    waiting = asyncio.create_task(metadata.wait_for(made, 0.05))
    await asyncio.sleep(0)
    at_once_at_the_end(0.05, lambda: metadata.update([assignment("late", 1, index, state()) for index in range(2)], ()))
    await waiting
