"""Which topics the members of a consumer group read: what their subscriptions say.

The broker passes subscriptions on unread; only to know whose offsets may expire or be deleted it looks at the topics.
A group of another protocol type says nothing that could be understood here.

Source: Kafka's ConsumerProtocolSubscription schema: version:int16, then an array of topic names, then more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ottla.broker.groups.group import Group
from ottla.broker.groups.transitions import GroupState

CONSUMER: Final = "consumer"

_HEAD: Final = struct.Struct(">hi")
_INT16: Final = struct.Struct(">h")


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that members read; None when that can not be told."""
    if group.protocol_type != CONSUMER or group.protocol_name is None or group.state is not GroupState.STABLE:
        return None
    return topics_of(each.metadata(group.protocol_name) for each in group.members.values())


def topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in some subscriptions; None when one of them can not be read."""
    topics: set[str] = set()
    for data in subscriptions:
        try:
            _, count = _HEAD.unpack_from(data)
            position = _HEAD.size
            for _ in range(count):
                (size,) = _INT16.unpack_from(data, position)
                position += _INT16.size
                if size < 0 or position + size > len(data):
                    return None
                topics.add(data[position : position + size].decode())
                position += size
        except (struct.error, UnicodeDecodeError):
            return None
    return frozenset(topics)
