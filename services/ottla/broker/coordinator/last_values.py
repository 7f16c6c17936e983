"""What the log of an internal topic's partition says in the end: the last value of each key. What a coordinator reads before it serves.

Most records are replaced by later ones, so nothing is decoded before it is known to count: keys and values stay bytes. All of
this runs outside the loop, chunk by chunk.

A record that cannot be read is counted, logged and skipped, whatever is wrong with it: one bad record must not keep a thousand
groups from their offsets. Of a batch with a wrong checksum nothing is believed, and it counts as one.

Source: Kafka's `CoordinatorLoaderImpl`, `GroupMetadataManager.doLoadGroupsAndOffsets`.
"""

from __future__ import annotations

import logging
from typing import Final

from crc32c import crc32c

from ottla.broker.replication.internal_topics import InternalTopics
from ottla.errors import CorruptMessage
from ottla.lifecycle import Offload
from ottla.model import TopicPartition
from ottla.record.batch import CRC_START, batches
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.record.key_values import read_key_values

log: Final = logging.getLogger(__name__)


class LastValues:
    """Takes chunks of the log in order.

    Attributes:
        values: by key, with the offset of the record.
        pending: the same by producer id, of transactions that are not decided yet. A null value takes the key's away.
        records: how many there were.
        corrupt_records: how many could not be read.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self.values: Final[dict[bytes, tuple[int, bytes]]] = {}
        self.pending: Final[dict[int, dict[bytes, tuple[int, bytes | None]]]] = {}
        self.records = 0
        self.corrupt_records = 0

    async def read(self, internal: InternalTopics, leader_epoch: int, chunk_bytes: int, offload: Offload) -> None:
        """Reads all of the partition that is committed. Raises ApiError when it is not led any more, or cannot be read."""
        async for chunk in internal.chunks(self._partition, leader_epoch, chunk_bytes, self._note_corrupt):
            await offload(self.feed, chunk)

    def _note_corrupt(self, count: int) -> None:
        self.corrupt_records += count  # no batch could be made out there, so they are in no chunk

    def feed(self, chunk: bytes) -> None:
        """Reads the whole batches of a chunk."""
        view = memoryview(chunk)
        for position, header in batches(chunk):
            batch = view[position : position + header.size]
            count = 1
            try:
                # Compaction takes records out and keeps the batch's last offset: there may be fewer than the offsets tell.
                if crc32c(batch[CRC_START:]) != header.crc:
                    raise CorruptMessage(f"a wrong checksum in a batch of {header.size} bytes")
                count = header.record_count
                if header.is_control:
                    marker = marker_of(batch)
                    if marker is not None:
                        self._complete(header.producer_id, marker.control_type is ControlRecordType.COMMIT)
                    continue
                found = read_key_values(batch)
            except Exception as error:  # a damaged batch must not keep the rest of the partition from being loaded
                self.skip(header.base_offset, error, count)
                continue
            self.records += len(found)
            if header.is_transactional:
                pending = self.pending.setdefault(header.producer_id, {})
                for offset, key, value in found:
                    if key is not None:
                        pending[key] = (offset, value)
            else:
                self._take(found)

    def _take(self, found: list[tuple[int, bytes | None, bytes | None]]) -> None:
        values, pending = self.values, self.pending
        for offset, key, value in found:
            if value is not None:
                if key is not None:
                    values[key] = (offset, value)
            elif key is not None:
                values.pop(key, None)
                for undecided in pending.values():
                    undecided.pop(key, None)

    def _complete(self, producer_id: int, is_commit: bool) -> None:
        for key, (offset, value) in self.pending.pop(producer_id, {}).items():
            current = self.values.get(key)
            if not is_commit or (current is not None and current[0] > offset):
                continue
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = (offset, value)

    def skip(self, offset: int, error: Exception, count: int = 1) -> None:
        """Counts what cannot be read."""
        self.corrupt_records += count
        log.error("%s: the record at offset %d cannot be read and is skipped: %s", self._partition, offset, error)
