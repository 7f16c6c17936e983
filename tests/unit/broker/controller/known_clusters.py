"""A cluster as the controller knows it, without any driver: facts go in, and what is decided is taken as performed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.broker.controller import decisions, isr_changes
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState, KnownPartition, KnownTopic
from ottla.config.broker import BrokerSettings
from ottla.errors import ApiError
from ottla.interbroker.calls import AlterPartitionRequest, AlterPartitionResponse, IsrChange, IsrMember
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicPartition

NONE_LEADS = -1


def ids(*values: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, values))


def partition_of(text: str) -> TopicPartition:
    """`a-0`."""
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


class KnownCluster:
    """Brokers that come and go, and topics, in the eyes of one controller after another."""

    def __init__(self, *broker_ids: int, **properties: str) -> None:
        settings = BrokerSettings.from_properties({"broker.id": "1", **{k.replace("_", "."): v for k, v in properties.items()}})
        self.state = ClusterState(BrokerId(1), 1, settings, settings)
        self.czxid = 100
        self.refused: dict[TopicPartition, ApiError] = {}
        self.join(*broker_ids)

    # Events.

    def join(self, *broker_ids: int, clean: bool = True) -> list[Decision]:
        """Brokers register."""
        return self.change(broker_ids, (), clean)

    def leave(self, *broker_ids: int) -> list[Decision]:
        """The registrations of brokers end."""
        return self.change((), broker_ids)

    def bounce(self, *broker_ids: int, clean: bool = True) -> list[Decision]:
        """Brokers register again before their absence was noticed."""
        return self.change(broker_ids, broker_ids, clean)

    def change(self, came: Iterable[int], went: Iterable[int], clean: bool = True) -> list[Decision]:
        new = [self.registration(number, clean) for number in came]
        gone = ids(*went)
        self.state.brokers_came_and_went(new, gone)
        return self.perform(decisions.brokers_changed(self.state, new, gone))

    def registration(self, broker_id: int, clean: bool = True) -> BrokerRegistration:
        self.czxid += 1
        endpoint = Endpoint("PLAINTEXT", f"broker{broker_id}.test", 9092)
        former = self.state.unclean_starts.get(BrokerId(broker_id), -1)
        return BrokerRegistration(BrokerId(broker_id), (endpoint,), None, self.czxid, None, former if clean else -1)

    def topic(self, name: str, *assignments: tuple[int, ...], **overrides: str) -> None:
        """A new topic, with its first states."""
        replicas = [ids(*assignment) for assignment in assignments]
        states = decisions.new_topic_states(self.state, replicas)
        partitions = [KnownPartition(state, 0) for state in states]
        self.put(name, partitions, overrides)

    def found(self, name: str, *assignments: tuple[int, ...], **overrides: str) -> list[Decision]:
        """A topic that another tool wrote: nothing but its assignment."""
        self.put(name, [KnownPartition.without_state(ids(*assignment)) for assignment in assignments], overrides)
        return self.perform(decisions.topics_found(self.state, [name]))

    def put(self, name: str, partitions: list[KnownPartition], overrides: Mapping[str, str]) -> None:
        settings = {key.replace("_", "."): value for key, value in overrides.items()}
        self.state.put_topic(KnownTopic(name, UUID(int=len(self.state.topics) + 1), 0, partitions, settings))

    def set_isr(self, name: str, *isr: int) -> None:
        """The leader has changed its ISR."""
        response = self.alter_isr(name, *isr)
        assert [partition.error for partition in response.partitions.values()] == [0]

    def alter_isr(
        self,
        name: str,
        *isr: int,
        sender: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        sender_epoch: int | None = None,
        member_epochs: Mapping[int, int] | None = None,
    ) -> AlterPartitionResponse:
        """The leader asks for an ISR; whatever is given is not as it should be."""
        topic_partition = partition_of(name)
        known = self.known(name)
        leader = known.state.leader if sender is None else BrokerId(sender)
        members = tuple(
            IsrMember(
                broker_id,
                (member_epochs or {}).get(broker_id, self.state.brokers[broker_id].broker_epoch if broker_id in self.state.brokers else 1),
            )
            for broker_id in ids(*isr)
        )
        asked = IsrChange(
            topic_partition,
            known.state.leader_epoch if leader_epoch is None else leader_epoch,
            known.partition_epoch if partition_epoch is None else partition_epoch,
            members,
        )
        epoch = self.state.brokers[leader].broker_epoch if sender_epoch is None else sender_epoch
        decision, response = isr_changes.altered(self.state, AlterPartitionRequest(leader, epoch, (asked,)))
        self.perform([decision])
        return response

    def fail_over(self) -> list[Decision]:
        """Another controller takes over: all that it has is what was written."""
        former = self.state
        self.state = ClusterState(former.controller_id, former.controller_epoch + 1, former.static_settings, former.settings)
        self.state.brokers_came_and_went(former.brokers.values(), ())
        self.state.unclean_starts = dict(former.unclean_starts)
        self.state.log_ends = former.log_ends
        for topic in former.topics.values():
            self.state.put_topic(topic)
        return self.perform(decisions.take_over(self.state))

    # What comes of them.

    def perform(self, decided: Iterable[Decision]) -> list[Decision]:
        """Takes decisions, and what follows from them, as performed. Gives those that are not empty."""
        performed: list[Decision] = []
        for first in decided:
            decision = first
            self.refused.update(decision.refused)
            while decision:
                self.state.take_in(decision)
                performed.append(decision)
                decision = decisions.follow_up(self.state, decision)
        return performed

    def known(self, name: str) -> KnownPartition:
        known = self.state.find(partition_of(name))
        assert known is not None
        return known

    def of(self, name: str) -> PartitionState:
        return self.known(name).state

    def leader_and_isr(self, name: str) -> tuple[int, tuple[int, ...]]:
        return self.of(name).leader, self.of(name).isr
