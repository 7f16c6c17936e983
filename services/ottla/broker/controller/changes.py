"""What a broker is told of settings that are others than before, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.model import BrokerId


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


SettingsChange: TypeAlias = TopicConfigChanged | BrokerConfigChanged
