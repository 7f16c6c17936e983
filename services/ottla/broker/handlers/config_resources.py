"""What settings can belong to, by the numbers that the three requests about settings share."""

from __future__ import annotations

import enum

from ottla.errors import InvalidRequest
from ottla.model import BrokerId


class ConfigResourceKind(enum.IntEnum):
    """Kafka's kinds of resources that have settings; those that nothing here has settings for are left out."""

    TOPIC = 2
    BROKER = 4


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
