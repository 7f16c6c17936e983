"""The settings of a whole service: read from properties, whatever class declares them, and checked against each other.

    class MirrorSettings(HttpSettings, ServiceSettings): ...

    settings = MirrorSettings.from_properties(properties.load("mirror.properties"))

All errors are reported at once, each with its file and line; a service does not start with half of a configuration. An `ssl.…` setting
can be given for one listener, by `listener.name.<name>.` before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ottla.config.properties import Properties
from ottla.config.refused import why_refused
from ottla.config.settings import SettingDefinition, Settings, nearest, unknown_setting
from ottla.errors import ConfigurationError

if TYPE_CHECKING:
    from logging import Logger  # commands that look at settings alone need none

# Between settings: the one to look at, and what raises ConfigurationError where it does not hold.
Relation: TypeAlias = tuple[str, Callable[[], object]]
LISTENER_PREFIX: Final = "listener.name."
ACCEPT: Final = "takeover.accept"


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Settings):
    """What the settings of every service can do. A service's class joins it with its parts."""

    given: frozenset[str] = field(default=frozenset(), compare=False)  # the names that were set, by their Kafka names
    listener_overrides: tuple[tuple[str, str, Any], ...] = ()  # listener, setting, value
    ignored: frozenset[str] = field(default=frozenset(), compare=False)  # refused names that `takeover.accept` has

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The settings that a file (or a plain mapping) holds.

        Raises:
            ConfigurationError: with one line for everything that is wrong.
        """
        values: dict[str, Any] = {}
        seen: set[tuple[str, str]] = set()  # listener or nothing, setting
        overrides: list[tuple[str, str, Any]] = []
        problems: list[str] = []
        ignored = cls._accepted_losses(properties)
        for name, text in properties.items():
            if name in ignored:
                continue
            try:
                listener, definition = cls.definition_of(name)
                if (listener, definition.name) in seen:
                    raise ConfigurationError(f"{name}: {definition.name} was set already")
                value = definition.parse(text)
            except ConfigurationError as error:
                problems.append(_placed(properties, name, error))
                continue
            if listener:
                overrides.append((listener, definition.name, value))
            else:
                values[definition.attribute] = value
            seen.add((listener, definition.name))
        given = frozenset(name for listener, name in seen if not listener)
        settings = cls(**values, given=given, listener_overrides=tuple(overrides), ignored=ignored)
        problems += [_placed(properties, name, error) for name, error in settings.contradictions()]
        if problems:
            raise ConfigurationError("\n".join(problems))
        return settings

    @classmethod
    def _accepted_losses(cls, properties: Mapping[str, str]) -> frozenset[str]:
        """Kafka's settings that are refused, and are given up by name: a file that Kafka is to have back can stay as it is."""
        if ACCEPT not in cls.definitions_by_any_name():
            return frozenset()
        accepted = {name.strip() for name in properties.get(ACCEPT, "").split(",")}
        return frozenset(name for name in properties if name in accepted and why_refused(name))

    @classmethod
    @cache
    def definitions_by_any_name(cls) -> Mapping[str, SettingDefinition]:
        """By every name under which a setting can be given, but for those of one listener."""
        return {name: definition for definition in cls.definitions().values() for name in (definition.name, *definition.aliases)}

    @classmethod
    def names_by_more_variables(cls, _given: Mapping[str, str], _variables: Container[str]) -> Mapping[str, str]:
        """Of settings whose names depend on what others say: `REMOTE_BOOTSTRAP_SERVERS` is remote.bootstrap.servers.

        Args:
            _given: what others say.
            _variables: those that there are.

        Raises:
            ConfigurationError: one of these would stand for two settings.
        """
        return {}

    @classmethod
    def name_meant(cls, name: str) -> str:
        """The name of the setting that a name stands for, which may be an alias; what stands for none is itself."""
        if name.startswith(LISTENER_PREFIX):
            listener, dot, plain = name[len(LISTENER_PREFIX) :].partition(".")
            return f"{LISTENER_PREFIX}{listener.lower()}{dot}{plain}"
        definition = cls.definitions_by_any_name().get(name)
        return name if definition is None else definition.name

    @classmethod
    def definition_of(cls, name: str) -> tuple[str, SettingDefinition]:
        """The listener (or an empty text) and the definition that a name in a file stands for; ConfigurationError for none."""
        known = cls.definitions_by_any_name()
        listener = ""
        plain = name
        if name.startswith(LISTENER_PREFIX):
            listener, _, plain = name[len(LISTENER_PREFIX) :].partition(".")
            if not listener:  # without its name it would be a setting of all
                raise ConfigurationError(f"{name}: the name of the listener is missing")
            if plain in known and not plain.startswith("ssl."):
                raise ConfigurationError(f"{name}: {plain} is one setting for all listeners; only ssl.… can be set for one")
        if plain not in known:
            raise ConfigurationError(why_refused(name) or unknown_setting(name, known))
        return listener.lower(), known[plain]

    def for_listener(self, listener_name: str) -> Self:
        """These settings as one listener sees them, its `listener.name.<name>.` ones taken in."""
        definitions = self.definitions()
        values = {
            definitions[name].attribute: value for listener, name, value in self.listener_overrides if listener == listener_name.lower()
        }
        return dataclasses.replace(self, **values) if values else self

    def check_overridden(self, listener_names: Iterable[str]) -> None:
        """Refuses what is set for a listener that there is not: one that was to ask for certificates would let everybody in."""
        known = [name.lower() for name in listener_names]
        for listener, name, _ in self.listener_overrides:
            if listener not in known:
                raise ConfigurationError(f"{LISTENER_PREFIX}{listener}.{name}: there is no listener '{listener}'{nearest(listener, known)}")

    @classmethod
    def without_effect(cls, names: Iterable[str]) -> Mapping[str, str]:
        """Those of some settings that change nothing when they are given, each with the reason."""
        definitions = cls.definitions()
        return {name: definitions[name].without_effect for name in sorted(names) if definitions[name].without_effect}

    @classmethod
    def warn_without_effect(cls, names: Iterable[str], log: Logger) -> None:
        """Says which of some settings that were given change nothing."""
        for name, reason in cls.without_effect(names).items():
            log.warning("%s has no effect: %s", name, reason)

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return ()

    def contradictions(self) -> Iterable[tuple[str, ConfigurationError]]:
        """What is wrong between settings, each with the name of the setting to look at."""
        complaints: set[str] = set()
        for name, check in self.checks():
            try:
                check()
            except ConfigurationError as error:
                if str(error) not in complaints:  # one bad map breaks everything that is read with it
                    complaints.add(str(error))
                    yield name, error


def _placed(properties: Mapping[str, str], name: str, error: ConfigurationError) -> str:
    """An error's text with the file and line that it comes from."""
    if not isinstance(properties, Properties):
        return str(error)
    return f"{properties.place_of(name)}: {error}" if name in properties else f"{properties.source}: {error}"
