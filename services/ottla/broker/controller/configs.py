"""Decisions about settings: what an alteration makes of those that a topic or a broker has. Pure functions.

AlterConfigs replaces everything (KIP-133), IncrementalAlterConfigs changes some (KIP-339). The result is checked as a
whole before anything is written. Error texts are Kafka's where Kafka has one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.config.broker import DYNAMIC_SETTINGS, BrokerSettings
from ottla.config.settings import SettingDefinition
from ottla.config.topic import TopicSettings
from ottla.errors import ConfigurationError, InvalidConfig, InvalidRequest
from ottla.interbroker.calls import AlterConfigsRequest, IncrementalAlterConfigsRequest
from ottla.interbroker.calls import ConfigChange as ConfigChange
from ottla.interbroker.calls import ConfigOperation as ConfigOperation

log: Final = logging.getLogger(__name__)


def changed_configs(
    current: Mapping[str, str], changes: Sequence[ConfigChange], definitions: Mapping[str, SettingDefinition]
) -> dict[str, str]:
    """What incremental changes make of the settings that are there; whether the result is acceptable is not looked at.

    Args:
        current: what is set.
        changes: what to do, at most one thing for each setting.
        definitions: the settings that exist, for their types and defaults.
    """
    check_changes(changes)
    result = dict(current)
    for change in changes:
        match change.operation:
            case ConfigOperation.DELETE:
                result.pop(change.name, None)
            case ConfigOperation.SET:
                result[change.name] = change.value or ""
            case ConfigOperation.APPEND:
                elements = _elements(result, change, definitions, "append")
                added = [element for element in _split(change.value) if element not in elements]
                result[change.name] = ",".join(elements + added)
            case ConfigOperation.SUBTRACT:
                removed = _split(change.value)
                elements = _elements(result, change, definitions, "subtract")
                result[change.name] = ",".join(element for element in elements if element not in removed)
    return result


def altered(
    current: Mapping[str, str], request: AlterConfigsRequest | IncrementalAlterConfigsRequest, definitions: Mapping[str, SettingDefinition]
) -> dict[str, str]:
    """What a request makes of the settings that are there; whether the result is acceptable is not looked at."""
    return dict(request.overrides) if isinstance(request, AlterConfigsRequest) else changed_configs(current, request.changes, definitions)


def check_changes(changes: Sequence[ConfigChange]) -> None:
    """Refuses, with InvalidRequest, two changes of one setting and a change without its value."""
    repeated = [name for name, count in Counter(change.name for change in changes).items() if count > 1]
    if repeated:
        raise InvalidRequest(f"Error due to duplicate config keys : {', '.join(repeated)}")
    without_value = [change.name for change in changes if change.value is None and change.operation != ConfigOperation.DELETE]
    if without_value:
        raise InvalidRequest(f"Null value not supported for : {', '.join(without_value)}")


def _elements(current: Mapping[str, str], change: ConfigChange, definitions: Mapping[str, SettingDefinition], verb: str) -> list[str]:
    """The list that an append or subtract starts from: what is set, else the setting's default."""
    definition = definitions.get(change.name)
    if definition is None or definition.kind != "list":
        raise InvalidConfig(f"Config value {verb} is not allowed for config key: {change.name}")
    return _split(current[change.name]) if change.name in current else list(definition.default or ())


def _split(value: str | None) -> list[str]:
    return [element for element in map(str.strip, (value or "").split(",")) if element]


def checked_topic_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """The settings of a topic that is to override these of a broker's. Raises InvalidConfig."""
    settings = TopicSettings.of(broker, overrides)
    least, most = settings.min_compaction_lag_ms, settings.max_compaction_lag_ms
    if least > most:
        raise InvalidConfig(f"min.compaction.lag.ms = {least}: over max.compaction.lag.ms = {most}")
    return settings


def checked_broker_settings(static: BrokerSettings, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerSettings:
    """The settings that a broker runs with.

    Args:
        static: what it was started with.
        defaults: what was changed for all brokers.
        own: what was changed for this one, which wins.

    Raises:
        InvalidRequest: a setting is unknown, cannot be changed there while the broker runs, or has a bad value.
    """
    _check_dynamic(defaults, for_all=True)
    _check_dynamic(own, for_all=False)
    try:
        return static.with_changes(defaults, cluster_wide=True).with_changes(own)
    except ConfigurationError as error:
        # Not InvalidConfig: KAFKA-13609 left Kafka's older choice as it is.
        raise InvalidRequest(f"Invalid value for a dynamic setting: {error}") from error


def without_unusable(static: BrokerSettings, overrides: Mapping[str, str], *, for_all: bool) -> Mapping[str, str]:
    """What was changed while brokers run, without what means nothing here, where that is given up by name (`takeover.accept`)."""
    if DYNAMIC_SETTINGS not in static.takeover_accept:
        return overrides
    reasons = {name: static.unusable(name, text, for_all=for_all) for name, text in overrides.items()}
    for reason in filter(None, reasons.values()):
        log.warning("broker config ignored: %s", reason)
    return {name: text for name, text in overrides.items() if not reasons[name]}


def _check_dynamic(overrides: Mapping[str, str], for_all: bool) -> None:
    definitions = BrokerSettings.definitions()
    known = [definitions[name] for name in overrides if name in definitions]
    fixed = [definition.name for definition in known if definition.dynamic == "read-only"]
    if fixed:
        raise InvalidRequest(f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}")
    per_broker = [definition.name for definition in known if definition.dynamic == "per-broker"]
    if for_all and per_broker:
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level, broker id must be specified: {', '.join(sorted(per_broker))}"
        )
