"""What the controller knows of the cluster: a copy of its znodes, which only its operations change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import UnknownTopicOrPartition
from ottla.model import BrokerId, BrokerRegistration, TopicDescription


@dataclass(slots=True)
class ClusterState:
    """The topics, the settings and the brokers.

    `static_settings` is what this broker was started with, `settings` the same with what was changed while it runs.
    `topic_versions` are the versions of `/brokers/topics/[topic]`, which a change of the topic checks.
    """

    static_settings: BrokerSettings
    settings: BrokerSettings
    topics: dict[str, TopicDescription] = field(default_factory=dict)
    topic_versions: dict[str, int] = field(default_factory=dict)
    topic_overrides: dict[str, Mapping[str, str]] = field(default_factory=dict)
    broker_overrides: dict[BrokerId | None, Mapping[str, str]] = field(default_factory=dict)
    brokers: list[BrokerRegistration] = field(default_factory=list)

    def topic(self, name: str) -> TopicDescription:
        """The topic, as it is known. Raises UnknownTopicOrPartition."""
        description = self.topics.get(name)
        if description is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        return description

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        return TopicSettings.of(self.settings, self.topic_overrides.get(name, {}))

    def living(self) -> frozenset[BrokerId]:
        """The brokers that live."""
        return frozenset(each.broker_id for each in self.brokers)

    def put_topic(self, description: TopicDescription, version: int, overrides: Mapping[str, str]) -> None:
        """Takes in a topic, or what became of it."""
        self.topics[description.name] = description
        self.topic_versions[description.name] = version
        self.topic_overrides[description.name] = overrides

    def remove_topic(self, name: str) -> None:
        """Forgets a topic."""
        del self.topics[name], self.topic_versions[name], self.topic_overrides[name]
