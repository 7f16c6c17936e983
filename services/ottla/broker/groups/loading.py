"""Reading a partition of `__consumer_offsets` into groups: what a coordinator does before it answers for them.

Most records are replaced by later ones, so nothing is decoded before it is known to count: keys and values stay bytes
until the end. All of this runs beside the loop, chunk by chunk; the groups that come out belong to whoever loads.

A record that can not be read is counted, told in the log and passed over, whatever is wrong with it: one bad record must
not keep a thousand groups from their offsets.

Source: Kafka's `GroupMetadataManager.doLoadGroupsAndOffsets`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.groups.consumer.changes import Change
from ottla.broker.groups.consumer.record_codec import ConsumerGroupKey, decode_change
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import GroupKey, OffsetKey, OtherKey, StoredGroup, decode_group, decode_key, decode_offset
from ottla.model import TopicPartition
from ottla.record.batch import batches, check_batch
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.record.key_values import read_key_values

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


class OffsetsLoader:
    """Takes chunks of the log in order.

    Attributes:
        records: how many there were.
        corrupt_records: how many could not be read.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._values: dict[bytes, tuple[int, bytes]] = {}
        # By producer id, of transactions that are not decided yet. A null value takes an offset away.
        self._pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        self.records = 0
        self.corrupt_records = 0

    def feed(self, chunk: bytes) -> None:
        """Reads the whole batches of a chunk."""
        view = memoryview(chunk)
        for position, header in batches(chunk):
            batch = view[position : position + header.size]
            try:
                check_batch(batch)
                if header.is_control:
                    marker = marker_of(batch)
                    if marker is not None:
                        self._complete(header.producer_id, marker.control_type is ControlRecordType.COMMIT)
                    continue
                found = read_key_values(batch)
            except Exception as error:
                self._skip(header.base_offset, error, header.last_offset - header.base_offset + 1)
                continue
            self.records += len(found)
            if header.is_transactional:
                pending = self._pending.setdefault(header.producer_id, {})
                for offset, key, value in found:
                    if key is not None:
                        pending[key] = (offset, value)
            else:
                self._take(found)

    def _take(self, found: list[tuple[int, bytes | None, bytes | None]]) -> None:
        values, pending = self._values, self._pending
        for offset, key, value in found:
            if value is not None:
                if key is not None:
                    values[key] = (offset, value)
            elif key is not None:
                values.pop(key, None)
                for each in pending.values():
                    each.pop(key, None)

    def _complete(self, producer_id: int, is_commit: bool) -> None:
        for key, (offset, value) in self._pending.pop(producer_id, {}).items():
            current = self._values.get(key)
            if not is_commit or (current is not None and current[0] > offset):
                continue
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = (offset, value)

    def pass_over(self, count: int) -> None:
        """Takes note of records that are not in any chunk, since no batch could be made out there."""
        self.corrupt_records += count

    def groups(self) -> dict[str, LoadedGroup]:
        """The groups that there are, once everything has been fed."""
        loaded: dict[str, LoadedGroup] = {}
        changes: list[tuple[ConsumerGroupKey, int, bytes]] = []
        for data, (offset, value) in self._values.items():
            try:
                key = decode_key(data)
                match key:
                    case OffsetKey():
                        stored_offset, partition = decode_offset(value), TopicPartition(key.topic, key.partition)
                        _group(loaded, key.group_id).offsets.commit(partition, stored_offset.committed, offset, stored_offset.topic_id)
                    case GroupKey():
                        stored, group = decode_group(value), _group(loaded, key.group_id)
                        group.stored, group.stored_at = stored, offset
                    case ConsumerGroupKey():
                        changes.append((key, offset, value))
                    case OtherKey(version):
                        log.debug("%s: the record at offset %d has a key of version %d; passed over", self._partition, offset, version)
            except Exception as error:
                self._skip(offset, error)
        self._read_changes(changes, loaded)
        for producer_id, pending in self._pending.items():
            for data, (offset, undecided) in pending.items():
                try:
                    key = decode_key(data)
                    if isinstance(key, OffsetKey) and undecided is not None:
                        stored_offset, partition = decode_offset(undecided), TopicPartition(key.topic, key.partition)
                        offsets = _group(loaded, key.group_id).offsets
                        offsets.add_pending(producer_id, partition, stored_offset.committed, offset, stored_offset.topic_id)
                except Exception as error:
                    self._skip(offset, error)
        return loaded

    def _read_changes(self, changes: list[tuple[ConsumerGroupKey, int, bytes]], loaded: dict[str, LoadedGroup]) -> None:
        for key, offset, value in sorted(changes, key=_kind):
            try:
                change = decode_change(key, value)
            except Exception as error:
                self._skip(offset, error)
                continue
            group = _group(loaded, key.group_id)
            group.changes.append(change)
            group.changed_at = max(group.changed_at, offset)

    def _skip(self, offset: int, error: Exception, count: int = 1) -> None:
        self.corrupt_records += count
        log.error("%s: the record at offset %d can not be read and is passed over: %s", self._partition, offset, error)


def _group(loaded: dict[str, LoadedGroup], group_id: str) -> LoadedGroup:
    found = loaded.get(group_id)
    if found is None:
        found = loaded[group_id] = LoadedGroup()
    return found


def _kind(change: tuple[ConsumerGroupKey, int, bytes]) -> int:
    """Kafka has numbered them so that a member comes before what it is to have, and that before what it has."""
    return change[0].kind
