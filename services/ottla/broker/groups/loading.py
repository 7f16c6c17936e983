"""Groups out of what a partition of `__consumer_offsets` says in the end: runs outside the loop, and belongs to the loader.

A record that cannot be read costs only what it said.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.groups.consumer.changes import Change
from ottla.broker.groups.consumer.record_codec import ConsumerGroupKey, decode_change
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import GroupKey, OffsetKey, OtherKey, StoredGroup, decode_group, decode_key, decode_offset
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedGroup:
    """A group as the log has it: as a classic group in one record, or as a consumer group in many. With neither there are only
    offsets; should there be both, what was written later counts.

    Attributes:
        changes: of a consumer group, what makes it from nothing, in an order that can be applied.
    """

    stored: StoredGroup | None = None
    stored_at: int = -1
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    changes: list[Change] = field(default_factory=list)
    changed_at: int = -1

    @property
    def is_consumer_group(self) -> bool:
        return self.changed_at > self.stored_at


def loaded_groups(partition: TopicPartition, read: LastValues) -> dict[str, LoadedGroup]:
    """The groups that there are."""
    loaded: defaultdict[str, LoadedGroup] = defaultdict(LoadedGroup)
    changes: list[tuple[ConsumerGroupKey, int, bytes]] = []
    for data, (offset, value) in read.values.items():
        try:
            key = decode_key(data)
            match key:
                case OffsetKey():
                    stored_offset, of = decode_offset(value), TopicPartition(key.topic, key.partition)
                    loaded[key.group_id].offsets.commit(of, stored_offset.committed, offset, stored_offset.topic_id)
                case GroupKey():
                    stored, group = decode_group(value), loaded[key.group_id]
                    group.stored, group.stored_at = stored, offset
                case ConsumerGroupKey():
                    changes.append((key, offset, value))
                case OtherKey(version):
                    log.debug("%s: the record at offset %d has the unknown key version %d; skipped", partition, offset, version)
        except Exception as error:  # a damaged record is skipped
            read.skip(offset, error)
    _read_changes(read, changes, loaded)
    for producer_id, pending in read.pending.items():
        for data, (offset, undecided) in pending.items():
            try:
                key = decode_key(data)
                if isinstance(key, OffsetKey) and undecided is not None:
                    stored_offset, of = decode_offset(undecided), TopicPartition(key.topic, key.partition)
                    offsets = loaded[key.group_id].offsets
                    offsets.add_pending(producer_id, of, stored_offset.committed, offset, stored_offset.topic_id)
            except Exception as error:  # a damaged record is skipped
                read.skip(offset, error)
    return loaded


def _read_changes(read: LastValues, changes: list[tuple[ConsumerGroupKey, int, bytes]], loaded: defaultdict[str, LoadedGroup]) -> None:
    # Kafka has numbered them so that a member comes before what it is to have, and that before what it has.
    for key, offset, value in sorted(changes, key=lambda change: change[0].kind):
        try:
            change = decode_change(key, value)
        except Exception as error:  # a damaged record is skipped
            read.skip(offset, error)
            continue
        group = loaded[key.group_id]
        group.changes.append(change)
        group.changed_at = max(group.changed_at, offset)
