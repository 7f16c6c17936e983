"""Whole groups as records: to be written when they change into the other kind, and taken away when they are gone."""

from __future__ import annotations

from dataclasses import replace

from ottla.broker.groups.consumer.converting import tombstones
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.record_codec import encode_change
from ottla.broker.groups.effects import StoreGroup
from ottla.broker.groups.group import Group
from ottla.broker.groups.records import encode_group, encode_group_key
from ottla.broker.replication.internal_topics import KeyValue


def record_of(effect: StoreGroup, from_now_ms: int) -> KeyValue:
    """A classic group as a record.

    Args:
        from_now_ms: what makes a time of the wall clock of one that groups count in.
    """
    return encode_group_key(effect.group_id), encode_group(replace(effect, state_timestamp_ms=effect.state_timestamp_ms + from_now_ms))


def tombstones_of(group: Group | ConsumerGroup) -> list[KeyValue]:
    """What takes all records of a group away; nothing for a classic group that was never written."""
    if isinstance(group, ConsumerGroup):
        return [encode_change(group.group_id, each) for each in tombstones(group)]
    return [(encode_group_key(group.group_id), None)] if group.generation_id > 0 else []
