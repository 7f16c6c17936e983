"""What waits to be told to one broker: merged, in order, and never told out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.controller.request_batch import AT_ONCE, MOST_PASSED_OVER, BrokerRequestBatch
from ottla.interbroker.calls import PartitionAssignment, PartitionToStop
from ottla.model import BrokerId, PartitionState, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def assigned(key: TopicPartition, epoch: int = 0, is_new: bool = False) -> PartitionAssignment:
    state = PartitionState(BrokerId(1), epoch, (BrokerId(1),), (BrokerId(1),))
    return PartitionAssignment(key.topic, UUID(int=1), key.partition, state, epoch, is_new=is_new)


def stop(key: TopicPartition, delete: bool = True) -> PartitionToStop:
    return PartitionToStop(key, 0, delete)


def add(
    waiting: BrokerRequestBatch,
    stops: Iterable[PartitionToStop] = (),
    leader_and_isr: Iterable[PartitionAssignment] = (),
    metadata: Iterable[PartitionAssignment] = (),
    deleted_topics: Iterable[str] = (),
    topic_configs: Iterable[str] = (),
    **flags: bool,
) -> None:
    """Merges a batch of these."""
    waiting.merge(
        BrokerRequestBatch(
            {stop.topic_partition: stop for stop in stops},
            {replica.topic_partition: replica for replica in leader_and_isr},
            {assignment.topic_partition: assignment for assignment in metadata},
            dict.fromkeys(deleted_topics),
            dict.fromkeys(topic_configs),
            **flags,
        )
    )


def test_what_is_to_be_stopped_is_told_first_then_leaders_then_metadata() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A)], metadata=[assigned(A)], stops=[stop(B)], topic_configs=["a"])
    assert waiting.next_request() == BrokerRequestBatch(stops={B: stop(B)})
    assert waiting.next_request() == BrokerRequestBatch(leader_and_isr={A: assigned(A)})
    assert waiting.next_request() == BrokerRequestBatch(metadata={A: assigned(A)}, topic_configs={"a": None}, brokers_changed=True)
    assert waiting.next_request() is None


def test_metadata_do_not_wait_for_as_long_as_there_is_more_to_lead_or_to_stop() -> None:
    """Topics made one after the other, each while the broker is still busy with the one before; one change keeps its order."""
    waiting, taken = BrokerRequestBatch(), list[BrokerRequestBatch]()
    for number in range(3 * MOST_PASSED_OVER):
        key = TopicPartition(f"t{number}", 0)
        if number % 2:
            add(waiting, stops=[stop(key)], deleted_topics=[key.topic])
        else:
            add(waiting, leader_and_isr=[assigned(key)], metadata=[assigned(key)])
        taken.append(waiting.next_request() or BrokerRequestBatch())
    updates = [number for number, request in enumerate(taken) if request.updates_metadata]
    assert updates == [MOST_PASSED_OVER, 2 * MOST_PASSED_OVER + 1]
    assert all(TopicPartition(f"t{number}", 0) in taken[MOST_PASSED_OVER].metadata for number in range(0, MOST_PASSED_OVER, 2))


def test_that_all_topics_are_known_is_said_with_the_last_of_what_is_told_of_them() -> None:
    """A coordinator takes an offset of a topic that it does not know for one of a deleted topic, so this must never be said early."""
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A)], metadata=[assigned(A)])
    assert [taken.all_topics_known for taken in all_of(waiting)] == [False, False], "no one has told this broker all that there are"
    add(
        waiting,
        leader_and_isr=[assigned(A, 1)],
        metadata=[assigned(TopicPartition("c", number)) for number in range(AT_ONCE + 1)],
        all_topics=True,
    )
    assert [taken.all_topics_known for taken in all_of(waiting)] == [False, False, True]
    add(waiting, leader_and_isr=[assigned(A, 2)])
    assert [taken.all_topics_known for taken in all_of(waiting)] == [True], "no metadata waits"
    add(waiting, leader_and_isr=[assigned(A, 3)], deleted_topics=["c"])
    leading, deleting = all_of(waiting)
    assert (leading.all_topics_known, deleting.all_topics_known) == (False, True)
    waiting.put_back(deleting)
    add(waiting, leader_and_isr=[assigned(A, 4)])
    assert [taken.all_topics_known for taken in all_of(waiting)] == [False, True]


def test_after_a_registration_all_topics_are_known_before_the_broker_is_told_what_it_leads() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A)], metadata=[assigned(A)], all_topics=True, metadata_first=True)
    assert [(bool(taken.leader_and_isr), taken.all_topics_known) for taken in all_of(waiting)] == [(False, True), (True, True)]


def all_of(waiting: BrokerRequestBatch) -> list[BrokerRequestBatch]:
    taken = []
    while (each := waiting.next_request()) is not None:
        taken.append(each)
    return taken


def test_what_is_newer_replaces_what_waits_and_a_new_replica_stays_new() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A, 0, is_new=True)], metadata=[assigned(A, 0)])
    add(waiting, leader_and_isr=[assigned(A, 1)], metadata=[assigned(A, 1)])
    taken = waiting.next_request()
    assert taken is not None
    assert taken.leader_and_isr == {A: replace(assigned(A, 1), is_new=True)}
    add(waiting, leader_and_isr=[assigned(A, 2)])
    waiting.put_back(taken)
    assert waiting.leader_and_isr == {A: replace(assigned(A, 2), is_new=True)}
    assert waiting.metadata == {A: assigned(A, 1)}


def test_a_replica_that_is_stopped_is_not_led_before_and_may_be_after() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A, 1)])
    add(waiting, stops=[stop(A)])
    assert waiting == BrokerRequestBatch(stops={A: stop(A)})
    add(waiting, leader_and_isr=[assigned(A, 0, is_new=True)])
    assert waiting.next_request() == BrokerRequestBatch(stops={A: stop(A)})
    assert waiting.next_request() == BrokerRequestBatch(leader_and_isr={A: assigned(A, 0, is_new=True)})


def test_of_two_stops_the_second_deletes_what_the_first_would_have_unless_that_was_another_topics() -> None:
    waiting, first, second = BrokerRequestBatch(), UUID(int=1), UUID(int=2)
    add(waiting, stops=[PartitionToStop(A, -2, True, first)])
    add(waiting, stops=[PartitionToStop(A, 4, False, first)])
    assert waiting.stops == {A: PartitionToStop(A, 4, True, first)}
    add(waiting, stops=[PartitionToStop(A, 1, False, second)])
    assert waiting.stops == {A: PartitionToStop(A, 1, False, second)}


def test_a_leadership_that_could_not_be_told_is_forgotten_when_the_replica_was_stopped_meanwhile() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=[assigned(A)])
    taken = waiting.next_request()
    assert taken is not None
    add(waiting, stops=[stop(A)])
    waiting.put_back(taken)
    assert waiting == BrokerRequestBatch(stops={A: stop(A)})


def test_files_that_were_to_be_deleted_are_deleted_whatever_comes_later() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, stops=[stop(A, delete=True)])
    add(waiting, stops=[stop(A, delete=False)])
    assert waiting.stops == {A: stop(A, delete=True)}
    taken = waiting.next_request()
    assert taken is not None
    add(waiting, stops=[stop(A, delete=False)])
    waiting.put_back(taken)
    assert waiting.stops == {A: stop(A, delete=True)}


def test_a_topic_that_is_deleted_and_made_again_is_told_as_both() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, metadata=[assigned(A, 5), assigned(B)], topic_configs=["a", "b"])
    add(waiting, deleted_topics=["a"])
    assert (waiting.metadata, waiting.topic_configs) == ({B: assigned(B)}, {"b": None})
    add(waiting, metadata=[assigned(A, 0)], topic_configs=["a"])
    taken = waiting.next_request()
    assert taken == BrokerRequestBatch(
        metadata={A: assigned(A, 0), B: assigned(B)}, deleted_topics={"a": None}, topic_configs={"a": None, "b": None}, brokers_changed=True
    )
    add(waiting, deleted_topics=["b"])
    waiting.put_back(taken)
    assert set(waiting.metadata) == {A}
    assert set(waiting.deleted_topics) == {"a", "b"}


def test_many_partitions_are_told_in_several_requests() -> None:
    waiting = BrokerRequestBatch()
    keys = [TopicPartition("a", index) for index in range(2 * AT_ONCE + 1)]
    add(waiting, metadata=map(assigned, keys), deleted_topics=["b"], all_topics=True)
    sizes = []
    while (taken := waiting.next_request()) is not None:
        sizes.append((len(taken.metadata), len(taken.deleted_topics), taken.all_topics))
    assert sizes == [(AT_ONCE, 1, False), (AT_ONCE, 0, False), (1, 0, True)]


def test_a_topic_is_told_as_a_whole() -> None:
    """One that hears of a half of it sends a key's records elsewhere, and takes a group for one of another partition's."""
    waiting = BrokerRequestBatch()
    counts = {"a": AT_ONCE - 1, "b": 2, "c": AT_ONCE, "d": AT_ONCE + 1, "e": 1}
    keys = [TopicPartition(name, index) for name, count in counts.items() for index in range(count)]
    add(waiting, metadata=map(assigned, keys))
    told = []
    while (taken := waiting.next_request()) is not None:
        told.append(dict(Counter(key.topic for key in taken.metadata)))
    assert told == [{"a": AT_ONCE - 1}, {"b": 2}, {"c": AT_ONCE}, {"d": AT_ONCE}, {"d": 1, "e": 1}]


def kinds(waiting: BrokerRequestBatch) -> list[tuple[int, bool, int, bool]]:
    """What is told, in order: replicas, whether these are all, metadata, whether that is all."""
    found = []
    while (taken := waiting.next_request()) is not None:
        found.append((len(taken.leader_and_isr), taken.all_replicas, len(taken.metadata), taken.all_topics))
    return found


def test_a_broker_that_was_told_everything_hears_with_the_last_part_that_this_is_all() -> None:
    keys = [TopicPartition("a", index) for index in range(AT_ONCE + 1)]
    waiting = BrokerRequestBatch()
    add(waiting, leader_and_isr=map(assigned, keys), metadata=map(assigned, keys), all_topics=True, all_replicas=True)
    told = [(AT_ONCE, False, 0, False), (1, True, 0, False), (0, False, AT_ONCE, False), (0, False, 1, True)]
    assert kinds(waiting) == told
    add(waiting, metadata_first=True)
    add(waiting, leader_and_isr=map(assigned, keys), metadata=map(assigned, keys), all_topics=True, all_replicas=True)
    assert kinds(waiting) == told[2:] + told[:2]
    add(waiting, leader_and_isr=map(assigned, keys[:1]), metadata=map(assigned, keys[:1]))
    assert kinds(waiting) == [(1, False, 0, False), (0, False, 1, False)], "and from then on in the usual order"


def test_a_broker_without_replicas_hears_that_too() -> None:
    waiting = BrokerRequestBatch()
    add(waiting, all_replicas=True)
    taken = waiting.next_request()
    assert taken == BrokerRequestBatch(all_replicas=True)
    waiting.put_back(taken)
    assert waiting.next_request() == taken
    assert waiting.next_request() is None


class Told:
    """A broker that does what it is told."""

    def __init__(self) -> None:
        self.replicas: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, int] = {}

    def tell(self, waiting: BrokerRequestBatch) -> None:
        for key in waiting.stops:
            self.replicas.pop(key, None)
        self.replicas.update({key: each.partition_epoch for key, each in waiting.leader_and_isr.items()})
        self.metadata = {key: each for key, each in self.metadata.items() if key.topic not in waiting.deleted_topics}
        self.metadata.update({key: each.partition_epoch for key, each in waiting.metadata.items()})


KEYS = st.sampled_from([A, B, TopicPartition("a", 1)])
EVENTS = st.one_of(
    st.tuples(st.just("changed"), KEYS),
    st.tuples(st.just("stopped"), KEYS),
    st.tuples(st.just("deleted"), KEYS),
    st.tuples(st.sampled_from(["told", "lost", "untold"]), st.none()),
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_is_merged_lost_and_repeated_the_broker_ends_as_if_told_all_in_order(
    events: list[tuple[str, TopicPartition | None]],
) -> None:
    """Method: beside the merged waiting, a broker that hears each thing at once. `lost` is a request that took place unheard of."""
    waiting, broker, model = BrokerRequestBatch(), Told(), Told()
    for epoch, (event, key) in enumerate(events):
        if key is not None:
            match event:
                case "changed":
                    parts = BrokerRequestBatch(leader_and_isr={key: assigned(key, epoch)}, metadata={key: assigned(key, epoch)})
                    add(waiting, leader_and_isr=parts.leader_and_isr.values(), metadata=parts.metadata.values())
                case "stopped":
                    parts = BrokerRequestBatch(stops={key: stop(key)})
                    add(waiting, stops=parts.stops.values())
                case _:
                    parts = BrokerRequestBatch(deleted_topics={key.topic: None})
                    add(waiting, deleted_topics=[key.topic])
            model.tell(parts)
            continue
        taken = waiting.next_request()
        if taken is not None:
            if event != "untold":
                broker.tell(taken)
            if event != "told":
                waiting.put_back(taken)
    while (taken := waiting.next_request()) is not None:
        broker.tell(taken)
    assert (broker.replicas, broker.metadata) == (model.replicas, model.metadata)
