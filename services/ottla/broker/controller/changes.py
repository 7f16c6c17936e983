"""What the controller tells a broker after it has written it down: effects, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.model import BrokerId, TopicDescription


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """There is a topic: a new one, or at the start one that was there already."""

    topic: TopicDescription


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The topic has more partitions. The description has the old ones too."""

    topic: TopicDescription


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic is to be forgotten, its logs included."""

    name: str
    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """The topic's settings are now these, whether it or a broker's setting that it falls back to changed."""

    name: str
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """What was changed of this broker (or of all, when `broker_id` is None) while it runs."""

    broker_id: BrokerId | None
    overrides: Mapping[str, str]
    settings: BrokerSettings


MetadataChange: TypeAlias = TopicCreated | PartitionsAdded | TopicDeleted | TopicConfigChanged | BrokerConfigChanged
SettingsChange: TypeAlias = TopicConfigChanged | BrokerConfigChanged
