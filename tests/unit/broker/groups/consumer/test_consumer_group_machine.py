"""A consumer group under random events: no partition has two readers, nothing is lost with a coordinator, and it comes to rest."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples
from tests.unit.broker.groups.consumer.clients import ClassicClient, Client, ConsumerCoordinator, essence
from tests.unit.broker.groups.known_topics import KnownTopics

from ottla.broker.groups.consumer.group import ConsumerLimits
from ottla.broker.groups.consumer.member import LEAVES_FOR_A_WHILE
from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.errors import ApiError, GroupMaxSizeReached, InconsistentGroupProtocol

NAMES = [frozenset({"clicks"}), frozenset({"views"}), frozenset({"clicks", "views"}), frozenset({"clicks", "gone"})]
REGEXES = [None, None, "", "v.*", "clicks|views"]


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = KnownTopics(clicks=5, views=3)
        self.coordinator = ConsumerCoordinator(self.topics, ConsumerLimits(max_size=6))
        self.clients: list[Client | ClassicClient] = []
        self.epoch = 0

    def _here(self) -> list[Client | ClassicClient]:
        return [client for client in self.clients if not client.is_out]

    # Members come, and send heartbeats: most of what happens.

    @precondition(lambda self: len(self.clients) < 9)
    @rule(
        names=st.sampled_from(NAMES),
        regex=st.sampled_from(REGEXES),
        instance=st.sampled_from([None, None, "a"]),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def comes(self, names: frozenset[str], regex: str | None, instance: str | None, assignor: str | None) -> None:
        if instance is not None and any(client.instance_id == instance for client in self._here()):
            return  # the same process twice: a mistake of its own, tested elsewhere
        client = Client(self.coordinator, f"m{len(self.clients)}", names, regex, instance, assignor)
        self.clients.append(client)
        client.is_out = not self._beats(client)

    @precondition(lambda self: len(self.clients) < 9 and self.coordinator.group.members)
    @rule(names=st.sampled_from(NAMES))
    def comes_with_the_classic_protocol(self, names: frozenset[str]) -> None:
        client = ClassicClient(self.coordinator, f"c{len(self.clients)}", names)
        self.clients.append(client)
        client.is_out = not self._beats(client)

    def _beats(self, client: Client | ClassicClient, **how: bool) -> bool:
        try:
            if isinstance(client, Client):
                client.beat(**how)
            else:
                client.beat()
        except (GroupMaxSizeReached, InconsistentGroupProtocol):
            return False
        return True

    @precondition(lambda self: self._here())
    @rule(data=st.data())
    def an_answer_is_lost(self, data: st.DataObject) -> None:
        self._beats(data.draw(st.sampled_from(self._here())), answer_is_lost=True)

    @precondition(lambda self: self._here())
    @rule(data=st.data(), full=st.booleans())
    def one_is_slow_to_give_up(self, data: st.DataObject, full: bool) -> None:
        self._beats(data.draw(st.sampled_from(self._here())), revokes=False, is_full=full)

    @precondition(lambda self: self._here())
    @rule(data=st.data(), full=st.booleans())
    def one_beats(self, data: st.DataObject, full: bool) -> None:
        self._beats(data.draw(st.sampled_from(self._here())), is_full=full)

    @rule()
    def all_beat(self) -> None:
        for client in self._here():
            self._beats(client)

    # And now and then, something else.

    @precondition(lambda self: self._here())
    @rule(data=st.data(), names=st.sampled_from(NAMES))
    def subscribes_to_something_else(self, data: st.DataObject, names: frozenset[str]) -> None:
        client = data.draw(st.sampled_from(self._here()))
        client.names = names
        self._beats(client, is_full=True)

    @precondition(lambda self: self._here())
    @rule(data=st.data(), how=st.sampled_from(["leaves", "dies", "restarts", "restarts"]))
    def goes(self, data: st.DataObject, how: str) -> None:
        client = data.draw(st.sampled_from(self._here()))
        if how == "dies":
            client.is_out = True
            return
        restarts = how == "restarts" and isinstance(client, Client) and client.instance_id is not None
        try:
            if restarts:
                assert isinstance(client, Client)
                client.leave(LEAVES_FOR_A_WHILE)
            else:
                client.leave()
        except ApiError:  # it was put out before, and does not know
            client.is_out = True
            return
        if restarts:
            client.is_out = False
            client.member_id += "'"
            self._beats(client)

    @rule(topic=st.sampled_from(["clicks", "views"]), more=st.sampled_from([1, 3, None]))
    def topics_change(self, topic: str, more: int | None) -> None:
        known = self.topics.topic(topic)
        if more is not None:
            self.topics.make(topic, more + (0 if known is None else len(known.partitions)))
        elif known is not None:
            self.topics.delete(topic)

    @rule(milliseconds=st.sampled_from([1, 1_000, 10_000, 45_000]))
    def time_passes(self, milliseconds: int) -> None:
        if milliseconds > 1_000:
            self.all_beat()
        self.coordinator.wait(milliseconds)

    @precondition(lambda self: self._here())
    @rule(data=st.data(), fails_over=st.booleans())
    def the_log_refuses(self, data: st.DataObject, fails_over: bool) -> None:
        if fails_over:
            self.coordinator.group = self.coordinator.replayed()
            return
        before = essence(self.coordinator.group)
        self.coordinator.refuses = True
        self._beats(data.draw(st.sampled_from(self._here())), is_full=True)
        self.coordinator.refuses = False
        assert essence(self.coordinator.group) == before

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        group, readers = self.coordinator.group, dict[object, str]()
        for client in self.clients:
            if not group.has(client.member_id) or client.is_out:
                continue  # it was put out, and finds out at its next heartbeat, or never
            for partition in client.owned:
                assert partition not in readers, f"{partition} is read by {readers[partition]} and by {client.member_id}"
                readers[partition] = client.member_id

    @invariant()
    def what_is_read_is_held(self) -> None:
        """At any epoch that a member may speak of, what it reads is its own in the eyes of the coordinator."""
        group = self.coordinator.group
        for client in self.clients:
            if group.has(client.member_id) and not client.is_out:
                for topic_id, partition in client.owned:
                    assert group.is_free_for(client.member_id, topic_id, partition)

    @invariant()
    def another_coordinator_finds_the_same(self) -> None:
        assert essence(self.coordinator.replayed()) == essence(self.coordinator.group)

    @invariant()
    def epochs_only_go_up(self) -> None:
        group = self.coordinator.group
        assert group.assignment_epoch <= group.epoch
        assert group.epoch >= self.epoch
        self.epoch = group.epoch

    @invariant()
    def no_deadline_is_missed(self) -> None:
        group = self.coordinator.group
        bound = group.next_deadline_ms
        group.find_next_deadline()
        assert bound <= group.next_deadline_ms

    def teardown(self) -> None:
        """When events stop, everybody has their part, and all of it is read."""
        coordinator = self.coordinator
        here = self._here()
        for _ in range(40):  # a session's time, in which the dead are found out
            coordinator.wait(3_000)
            for client in here:
                self._beats(client)
        group = coordinator.group
        members = [client for client in here if group.has(client.member_id)]
        assert set(group.members) == {member.member_id for member in members}
        assert group.state is (ConsumerGroupState.STABLE if members else ConsumerGroupState.EMPTY)
        wanted = {
            (topic.topic_id, partition)
            for name in group.subscribed_names()
            if (topic := self.topics.topic(name)) is not None
            for partition in range(len(topic.partitions))
        }
        found = [partition for client in members for partition in client.owned]
        assert sorted(found) == sorted(wanted)


ConsumerGroupMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
