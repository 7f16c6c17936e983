"""What settings can belong to, by the numbers that the three requests about settings share."""

from __future__ import annotations

import enum

from ottla.errors import InvalidRequest
from ottla.model import BrokerId


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
        InvalidRequest: it is not a number, or another broker's, which only that broker can answer.
    """
    if not resource_name:
        return None
    try:
        named = int(resource_name)
    except ValueError as error:
        raise InvalidRequest(f"Broker id must be an integer, but it is: {resource_name}") from error
    if named != broker_id:
        raise InvalidRequest(f"Unexpected broker id, expected {broker_id} or empty string, but received {resource_name}")
    return BrokerId(named)
