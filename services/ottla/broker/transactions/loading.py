"""Reading a partition of `__transaction_state`: the last word on each transactional id. Runs beside the loop.

A batch whose checksum is wrong, or a record that can not be read, is counted, told in the log and passed over: what it said of
its ids is lost, and all others are served. A state that a turned bit has made up would be worse than none.
"""

from __future__ import annotations

import logging
from typing import Final

from crc32c import crc32c

from ottla.broker.transactions.records import decode, decode_key
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import ApiError, CorruptMessage
from ottla.model import TopicPartition
from ottla.record.batch import CRC_START, batches
from ottla.record.key_values import read_key_values

log: Final = logging.getLogger(__name__)


class TransactionsLoader:
    """Takes chunks of the log in order.

    Attributes:
        corrupt_records: how many, or batches of them, could not be read.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._values: dict[bytes, tuple[int, bytes]] = {}
        self.corrupt_records = 0

    def feed(self, chunk: bytes) -> None:
        """Reads the whole batches of a chunk."""
        view = memoryview(chunk)
        for position, header in batches(chunk):
            batch = view[position : position + header.size]
            try:
                if crc32c(batch[CRC_START:]) != header.crc:
                    raise CorruptMessage(f"a wrong checksum in a batch of {header.size} bytes")
                if header.is_control:
                    continue
                found = read_key_values(batch)
            except ApiError as error:
                self._skip(header.base_offset, error)
                continue
            for offset, key, value in found:
                if key is not None and value is not None:
                    self._values[key] = (offset, value)
                elif key is not None:
                    self._values.pop(key, None)

    def pass_over(self, count: int) -> None:
        """Takes note of records that are not in any chunk, since no batch could be made out there."""
        self.corrupt_records += count

    def transactions(self) -> list[tuple[Transaction, int]]:
        """What there is, once everything has been fed: each with the offset behind its record."""
        found: list[tuple[Transaction, int]] = []
        for key, (offset, value) in self._values.items():
            try:
                transactional_id = decode_key(key)
                if transactional_id is not None:
                    found.append((decode(transactional_id, value), offset + 1))
            except ApiError as error:
                self._skip(offset, error)
        return found

    def _skip(self, offset: int, error: ApiError) -> None:
        self.corrupt_records += 1
        log.error("%s: the record at offset %d can not be read and is passed over: %s", self._partition, offset, error)
