"""The log levels of a broker's process, described and changed while it runs (KIP-412: the resource BROKER_LOGGER).

Kafka's level names stand for Python's levels; TRACE and OFF lie below and above all that Python has. A level that is deleted
is inherited again, in the end from `root`. Nothing is written down: a broker starts with `--log-level`. Brokers that share
a process (`ottla dev --brokers 3`) share its loggers.
Unlike Kafka: OFF can be set too, and packages can be named as well as modules.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ottla.broker.controller.configs import ConfigChange, ConfigOperation, check_changes
from ottla.errors import InvalidConfig, InvalidRequest

log: Final = logging.getLogger(__name__)

ROOT: Final = "root"
_OURS: Final = "ottla"
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
        "OFF": 1 << 20,
    }
)


def logger_levels() -> dict[str, str]:
    """The level that holds for each of Ottla's loggers and for the root, under Kafka's names."""
    names = [name for name in logging.root.manager.loggerDict if name == _OURS or name.startswith(f"{_OURS}.")]
    return {ROOT: _level_name(logging.root), **{name: _level_name(logging.getLogger(name)) for name in sorted(names)}}


def change_levels(changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Sets levels or gives them back, all or none.

    Raises:
        InvalidConfig: there is no such logger, or no such level.
        InvalidRequest: something that cannot be done to a level, or to the root's.
    """
    check_changes(changes)
    known = logger_levels()
    for change in changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            raise InvalidRequest(f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource")
        if change.name not in known:
            raise InvalidConfig(f"Logger {change.name} does not exist!")
        if change.operation == ConfigOperation.DELETE:
            if change.name == ROOT:
                raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
        elif change.value not in LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}"
            )
    if validate_only:
        return
    for change in changes:
        logger = logging.root if change.name == ROOT else logging.getLogger(change.name)
        logger.setLevel(logging.NOTSET if change.operation == ConfigOperation.DELETE else LEVELS[change.value or ""])
        log.info("logger %s: its level is now %s", change.name, _level_name(logger))


def _level_name(logger: logging.Logger) -> str:
    """The name of the lowest level that the logger lets through: Python's levels may lie between Kafka's."""
    least = logger.getEffectiveLevel()
    return next((name for name, level in LEVELS.items() if level >= least), "OFF")
