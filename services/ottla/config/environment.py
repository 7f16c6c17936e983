"""The settings of a service from environment variables, as containers are given theirs, and layers of settings in general.

    OTTLA_SETTING_ZOOKEEPER_CONNECT=zookeeper:2181                 zookeeper.connect
    OTTLA_SETTING_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION=…   listener.name.external.ssl.keystore.location

The name is in upper case with `_` for `.`. That can be undone, as no two settings differ in these alone. A service whose settings have
names that a person chooses (the mirror maker's clusters) says itself which variables there are beside. A variable that stands for no
setting is refused as an unknown name in a file is: one that was ignored would be found out much later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.config.properties import Properties
from ottla.config.reading import LISTENER_PREFIX, ServiceSettings
from ottla.config.refused import why_refused
from ottla.config.settings import nearest
from ottla.errors import ConfigurationError

PREFIX: Final = "OTTLA_SETTING_"
_LISTENER: Final = "LISTENER_NAME_"
_FOR_ONE_LISTENER: Final = "SSL_"  # what can be set for one listener begins so


class Placed(Properties):
    """Settings that come from somewhere else than the lines of one file, each with the words for where."""

    def __init__(self, values: Mapping[str, str], places: Mapping[str, str], source: str) -> None:
        super().__init__(values, {}, source)
        self._places = dict(places)

    def place_of(self, name: str) -> str:
        """The variable, the file and line, or the option that it was given by."""
        return self._places[name]


def from_environment(service: type[ServiceSettings], environment: Mapping[str, str], file: Mapping[str, str] | None = None) -> Properties:
    """The settings of a service that variables give; other variables are not looked at.

    Args:
        file: what the file gives, over which these go.

    Raises:
        ConfigurationError: with one line for each variable that stands for no setting, or for one that another gives too.
    """
    known = {name.replace(".", "_").upper(): name for name in service.definitions_by_any_name()}
    plain = {name: environment[PREFIX + variable] for variable, name in known.items() if PREFIX + variable in environment}
    variables = sorted(name for name in environment if name.startswith(PREFIX))
    known |= service.names_by_more_variables({**(file or {}), **plain}, {variable.removeprefix(PREFIX) for variable in variables})
    values: dict[str, str] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for variable in variables:
        name = _name_of(known, variable.removeprefix(PREFIX))
        if name is None:
            problems.append(_unknown(known, variable))
        else:
            values[name], places[name] = environment[variable], variable
    if problems:
        raise ConfigurationError("\n".join(problems))
    return Placed(values, places, "the environment")


def layered(service: type[ServiceSettings], layers: Iterable[Properties]) -> Properties:
    """Several sources as one; what a later one gives replaces what an earlier one gives, under an alias too."""
    found: dict[str, tuple[str, str]] = {}
    sources: list[str] = []
    for layer in layers:
        given = {service.name_meant(name) for name in layer}
        found = {name: placed for name, placed in found.items() if service.name_meant(name) not in given}
        found.update({name: (layer[name], layer.place_of(name)) for name in layer})
        if layer:
            sources.append(layer.source)
    values = {name: placed[0] for name, placed in found.items()}
    return Placed(values, {name: placed[1] for name, placed in found.items()}, " and ".join(sources) or "the command line")


def _name_of(known: Mapping[str, str], text: str) -> str | None:
    """`LOG_DIRS` is log.dirs; None for what is no setting."""
    if text in known:
        return known[text]
    if not text.startswith(_LISTENER):
        return None
    rest = text.removeprefix(_LISTENER)
    # A listener's name may have underscores too: it ends where the name of a setting begins.
    ends = (end for end in range(1, len(rest)) if rest.startswith(f"_{_FOR_ONE_LISTENER}", end) and rest[end + 1 :] in known)
    end = next(ends, None)
    return None if end is None else f"{LISTENER_PREFIX}{rest[:end].lower()}.{known[rest[end + 1 :]]}"


def _unknown(names: Mapping[str, str], variable: str) -> str:
    text = variable.removeprefix(PREFIX)
    if reason := why_refused(text.lower().replace("_", ".")):
        return f"{variable}: {reason}"
    begin = PREFIX
    known: Iterable[str] = names
    listener, found, plain = text.removeprefix(_LISTENER).partition(f"_{_FOR_ONE_LISTENER}")
    if text.startswith(_LISTENER) and found:
        begin, text = f"{PREFIX}{_LISTENER}{listener}_", f"{_FOR_ONE_LISTENER}{plain}"
        known = [name for name in known if name.startswith(_FOR_ONE_LISTENER)]
    return f"{variable}: there is no such setting{nearest((begin + text).upper(), [begin + name for name in known])}"
