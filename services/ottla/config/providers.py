"""Values that stand elsewhere than in the file of settings: in another file, in a directory of files, in the environment (KIP-297).

    config.providers=file,dir,env
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/run/secrets
    zookeeper.digest.password=${file:/run/secrets/broker.properties:digest}

A class is known by its name; Java's own cannot be loaded. Which variables of the environment are read `param.allowlist.pattern` says.
Unlike Kafka, which leaves a variable as it stands where it finds nothing, a broker says so and does not start: the text of the variable
would be the password. One of a provider that is not listed stays as it stands, as in Kafka.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ottla.config import properties
from ottla.config.properties import Properties
from ottla.config.settings import unknown_setting
from ottla.errors import ConfigurationError

Lookup = Callable[[str, str], str]

PROVIDERS: Final = "config.providers"
_VARIABLE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*):)?([^}:]*)\}")
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
# A file with a secret is small.
_MAX_BYTES: Final = 1024 * 1024


def _from_file(path: str, key: str) -> str:
    _check_path(path, key)
    values = properties.load(path)
    if key not in values:
        raise ConfigurationError(f"{path} has no {key}")
    return values[key]


def _from_directory(path: str, key: str) -> str:
    _check_path(path, key)
    if key != Path(key).name or key in ("", os.pardir):
        raise ConfigurationError(f"{key!r} is not the name of a file")
    try:
        with Path(path, key).open("rb") as file:
            return file.read(_MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}/{key}: {error}") from error


def _check_path(path: str, key: str) -> None:
    if not path:  # which would be that of the process
        raise ConfigurationError(f"{key} has no path before it")


def _from_environment(path: str, key: str) -> str:
    if path:
        raise ConfigurationError(f"a variable of the environment has no path, such as {path}")
    if key not in os.environ:
        raise ConfigurationError(f"the environment has no {key}")
    return os.environ[key]


def load(path: Path | str) -> Properties:
    """A file of settings with its variables replaced, without the settings of the providers.

    Raises:
        ConfigurationError: with one line for everything that is wrong; none of them has a value that was looked up.
    """
    given = properties.load(path)
    names = [name.strip() for name in given.get(PROVIDERS, "").split(",") if name.strip()]
    if not names:
        return given
    problems: list[str] = []
    providers: dict[str, Lookup] = {}
    for name in names:
        try:
            providers[name] = _provider(given, name)
        except ConfigurationError as error:
            problems.append(str(error))
    found: dict[str, str] = {}
    for name, text in given.items():
        if name == PROVIDERS or name.startswith(f"{PROVIDERS}."):
            continue
        try:
            found[name] = _replaced(text, providers)
        except ConfigurationError as error:
            problems.append(f"{given.place_of(name)}: {name}: {error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return given.with_values(found)


def _within(allowed: str, lookup: Lookup) -> Lookup:
    """A provider that looks below these paths alone; without any it looks everywhere, as Kafka's do."""
    roots = [Path(directory.strip()).resolve() for directory in allowed.split(",") if directory.strip()]

    def look(path: str, key: str) -> str:
        if roots and path and not any(Path(path).resolve().is_relative_to(root) for root in roots):
            raise ConfigurationError(f"{path} is outside of allowed.paths")
        return lookup(path, key)

    return look


def _matching(pattern: str, lookup: Lookup) -> Lookup:
    """A provider of those variables alone whose whole name is of this pattern."""
    try:
        allowed = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"no pattern: {error}") from error

    def look(path: str, key: str) -> str:
        if not allowed.fullmatch(key):
            raise ConfigurationError(f"{key} is not in allowlist.pattern")
        return lookup(path, key)

    return look


# Where a class looks, its parameter, and what is left of it with that.
_CLASSES: Final[Mapping[str, tuple[Lookup, str, Callable[[str, Lookup], Lookup]]]] = {
    "FileConfigProvider": (_from_file, "allowed.paths", _within),
    "DirectoryConfigProvider": (_from_directory, "allowed.paths", _within),
    "EnvVarConfigProvider": (_from_environment, "allowlist.pattern", _matching),
}


def _provider(given: Properties, name: str) -> Lookup:
    """A provider as it is set. A misspelt parameter that was ignored would leave every path open."""
    key = f"{PROVIDERS}.{name}.class"
    kind = given.get(key, "").strip()
    if kind.removeprefix(_PACKAGE) not in _CLASSES:
        place = given.place_of(key if key in given else PROVIDERS)
        raise ConfigurationError(f"{place}: {key} = '{kind}': there are {', '.join(_PACKAGE + known for known in _CLASSES)}")
    lookup, parameter, restricted = _CLASSES[kind.removeprefix(_PACKAGE)]
    known = key, f"{PROVIDERS}.{name}.param.{parameter}"
    for setting_name in given:
        if setting_name.startswith(f"{PROVIDERS}.{name}.") and setting_name not in known:
            raise ConfigurationError(f"{given.place_of(setting_name)}: {unknown_setting(setting_name, known)}")
    if known[1] not in given:
        return lookup
    try:
        return restricted(given[known[1]], lookup)
    except ConfigurationError as error:
        raise ConfigurationError(f"{given.place_of(known[1])}: {known[1]}: {error}") from error


def _replaced(text: str, providers: Mapping[str, Lookup]) -> str:
    def value(match: re.Match[str]) -> str:
        provider, path, key = match.groups()
        return match[0] if provider not in providers else providers[provider](path or "", key)

    return _VARIABLE.sub(value, text)
