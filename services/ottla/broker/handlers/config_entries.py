"""What DescribeConfigs says of each setting: its value, where that comes from, and what it would be otherwise.

Pure functions of the settings. A setting can come, first wins, from the topic, from this broker's dynamic settings,
from those of all brokers, from the file the broker was started with, or from the default. The list of all of these for
one setting is its synonyms (KIP-226).
Unlike Kafka: `retention.ms` set through `log.retention.hours` names that as its source; Kafka calls it a default.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from ottla.broker.handlers.registry import BrokerParts
from ottla.config.broker import BrokerSettings
from ottla.config.settings import SettingDefinition
from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRequest
from ottla.model import BrokerId, Endpoint


class ConfigResourceKind(enum.IntEnum):
    """Kafka's kinds of resources that have settings; those that nothing here has settings for are left out."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


def check_logger_resource(resource_name: str, broker_id: int) -> None:
    """Whether the loggers of this broker are meant: each process has its own, so there are none of all brokers.

    Raises:
        InvalidRequest: they are not.
    """
    if not resource_name:
        raise InvalidRequest("Broker id must not be empty")
    broker_of(resource_name, broker_id)


def broker_of(resource_name: str, broker_id: int) -> BrokerId | None:
    """The broker that a resource's name stands for; None for all of them, which have the empty name.

    Raises:
        InvalidRequest: it is not a number as we write one, or another broker's, which only that broker can answer. A request could
            name a broker in as many spellings as it has room for otherwise, and have all settings for each.
    """
    if not resource_name:
        return None
    try:
        named = int(resource_name)
    except ValueError as error:
        raise InvalidRequest(f"Broker id must be an integer, but it is: {resource_name}") from error
    if resource_name != str(broker_id):
        raise InvalidRequest(f"Unexpected broker id, expected {broker_id} or empty string, but received {resource_name}")
    return BrokerId(named)


class ConfigSource(enum.IntEnum):
    """Kafka's numbers of where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


UNKNOWN_TYPE: Final = 0
_CONFIG_TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "password": 9}


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place that the value comes from, or would come from if those before it were not there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as it is shown."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    config_type: int
    documentation: str


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A broker's settings by where they come from.

    `static` is what the broker was started with; the next two are what was changed since, by Kafka's names. `advertised` is what
    clients connect to, which the settings may leave to the listeners and the machine's name.
    """

    static: BrokerSettings
    dynamic: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    advertised: tuple[Endpoint, ...] = ()

    def effective(self) -> BrokerSettings:
        if not self.dynamic and not self.dynamic_default:
            return self.static
        return self.static.with_changes(self.dynamic_default, cluster_wide=True).with_changes(self.dynamic)

    def synonyms(self, names: Iterable[str]) -> list[ConfigSynonym]:
        """The places where any of these settings of a broker has a value, by source and then in the order given."""
        known = {name: BrokerSettings.definitions()[name] for name in names}
        defaults = {name: text for name, definition in known.items() if (text := definition.text(definition.default)) is not None}
        places: tuple[tuple[ConfigSource, Mapping[str, str | None]], ...] = (
            (ConfigSource.DYNAMIC_BROKER, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (ConfigSource.STATIC_BROKER, {name: self.static.text_of(name) for name in known if name in self.static.given}),
            (ConfigSource.DEFAULT, defaults),
        )
        return [_synonym(known[name], values[name], source) for source, values in places for name in known if name in values]


def _synonym(definition: SettingDefinition, value: str | None, source: ConfigSource) -> ConfigSynonym:
    return ConfigSynonym(definition.name, None if definition.sensitive else value, source)


def topic_entries(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    effective = TopicSettings.of(broker.effective(), overrides)
    entries = []
    for name, definition in TopicSettings.definitions().items():
        synonyms = broker.synonyms(synonym.name for synonym in definition.synonyms)
        if name in overrides:
            synonyms.insert(0, _synonym(definition, overrides[name], ConfigSource.TOPIC))
        entries.append(_entry(definition, effective.text_of(name), synonyms, read_only=False))
    return entries


def broker_entries(broker: BrokerConfig) -> list[ConfigEntry]:
    effective = broker.effective()
    entries = []
    for name, definition in BrokerSettings.definitions().items():
        # What is set in another unit counts only behind a value of this setting itself.
        synonyms = list(itertools.dropwhile(lambda synonym: synonym.name != name, broker.synonyms(_broker_synonyms(name))))  # noqa: B023
        value = effective.text_of(name)
        if not value and name == "advertised.listeners" and broker.advertised:
            value = ",".join(map(str, broker.advertised))
        entries.append(_entry(definition, value, synonyms, read_only=definition.dynamic == "read-only"))
    return entries


def dynamic_default_entries(broker: BrokerConfig) -> list[ConfigEntry]:
    """What was set for all brokers, and nothing else: that is what the broker of no name stands for."""
    definitions = BrokerSettings.definitions()
    return [
        _entry(definitions[name], value, [_synonym(definitions[name], value, ConfigSource.DYNAMIC_DEFAULT_BROKER)], read_only=False)
        for name, value in sorted(broker.dynamic_default.items())
    ]


def logger_entries(levels: Mapping[str, str]) -> list[ConfigEntry]:
    source = ConfigSource.DYNAMIC_BROKER_LOGGER
    return [ConfigEntry(name, level, source, False, False, (), UNKNOWN_TYPE, "") for name, level in levels.items()]


def _entry(definition: SettingDefinition, value: str | None, synonyms: list[ConfigSynonym], *, read_only: bool) -> ConfigEntry:
    return ConfigEntry(
        name=definition.name,
        value=None if definition.sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only=read_only,
        is_sensitive=definition.sensitive,
        synonyms=tuple(synonyms),
        config_type=_CONFIG_TYPES[definition.kind],
        documentation=definition.doc,
    )


def _broker_synonyms(name: str) -> tuple[str, ...]:
    """The settings that say the same in other units, in the order in which they are looked at."""
    return _groups().get(name, (name,))


@cache
def _groups() -> Mapping[str, tuple[str, ...]]:
    groups = [tuple(synonym.name for synonym in definition.synonyms) for definition in TopicSettings.definitions().values()]
    return {name: group for group in groups for name in group if len(group) > 1}


def broker_config(parts: BrokerParts) -> BrokerConfig:
    """What the broker was started with and what was changed since."""
    broker_id, controller = BrokerId(parts.settings.broker_id), parts.controller
    advertised = () if controller.registration is None else controller.registration.endpoints
    return BrokerConfig(parts.settings, controller.broker_overrides(broker_id), controller.broker_overrides(None), advertised)
