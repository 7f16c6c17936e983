"""`<20-digit offset>.snapshot`: the producers of a partition as they were when the log ended at that offset.

    version:2 = 1   crc:4   count:4   then per producer, 46 bytes:
    producer_id:8 epoch:2 last_sequence:4 last_offset:8 offset_delta:4 timestamp:8 coordinator_epoch:4
    current_transaction_first_offset:8

The CRC (Castagnoli) covers everything after itself. Written at each roll and at a clean close. A start takes the
newest one that is whole and reads the log from its offset on; without any it reads the whole log.

Everything that takes a path blocks; on the event loop it goes through `offload`.

Source: Kafka's `ProducerStateManager`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ottla.errors import OttlaError
from ottla.storage.checkpoints import path_aside, write_file
from ottla.storage.file_names import SNAPSHOT_SUFFIX, offset_in, segment_file_name
from ottla.storage.producers import ProducerSnapshotEntry

SNAPSHOT_VERSION: Final = 1

_HEADER: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_START: Final = 6


class CorruptSnapshot(OttlaError):
    """A producer snapshot is not what its format says; an older one, or the log itself, takes its place."""


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    """The bytes of a snapshot file."""
    packed = [
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for entry in entries
    ]
    covered = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(covered)) + covered


def decode_snapshot(data: bytes, name: str) -> list[ProducerSnapshotEntry]:
    """The producers in a snapshot file's bytes.

    Args:
        data: the whole file.
        name: for the message.

    Raises:
        CorruptSnapshot: too short, another version, a wrong checksum, or a count that is not what follows.
    """
    if len(data) < _HEADER.size:
        raise CorruptSnapshot(f"{name}: {len(data)} bytes are fewer than a snapshot's header ({_HEADER.size})")
    version, crc, count = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"{name}: version {version} is unknown, {SNAPSHOT_VERSION} is")
    computed = crc32c(memoryview(data)[_CRC_START:])
    if computed != crc:
        raise CorruptSnapshot(f"{name}: CRC {computed:#010x} computed, {crc:#010x} in the file")
    if len(data) - _HEADER.size != count * _ENTRY.size:
        raise CorruptSnapshot(f"{name}: {count} producers announced, {len(data) - _HEADER.size} bytes follow at {_ENTRY.size} each")
    return [ProducerSnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])]


def read_snapshot(path: Path) -> list[ProducerSnapshotEntry]:
    """The producers in a snapshot file.

    Raises:
        CorruptSnapshot: see `decode_snapshot`.
        FileNotFoundError: there is no such file.
    """
    return decode_snapshot(path.read_bytes(), str(path))


def write_snapshot(path: Path, encoded: bytes) -> None:
    """Puts an encoded snapshot in its place, whole. It is not synced: what a loss of power leaves of it is known by its checksum.

    Raises:
        OSError: it cannot be written; what was in its place is still there.
    """
    aside = path_aside(path)
    write_file(aside, encoded, synced=False)
    aside.replace(path)


def snapshot_path(directory: Path, offset: int) -> Path:
    """Where the snapshot of a log that ended at `offset` lies."""
    return directory / segment_file_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offsets(directory: Path) -> list[int]:
    """The offsets of the snapshots in a partition's directory, ascending."""
    found = (offset_in(file.name) for file in directory.iterdir() if file.suffix == SNAPSHOT_SUFFIX)
    return sorted(offset for offset in found if offset is not None)
