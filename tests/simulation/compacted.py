"""What a compacted log says, whatever has been cleaned of it: the last record of each key.

Two replicas are cleaned at different times, so their batches differ and this does not. A key whose last record is a
tombstone is left out, for one replica may have removed it already; and so is what a transaction wrote that is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.simulation.invariants import Replica

from ottla.model import TopicPartition
from ottla.record.batch import batches
from ottla.record.records import Record, read_records

_COMMIT: Final = 1


def last_of_keys(directory: Path, end_offset: int) -> dict[bytes, tuple[int, bytes]]:
    """Offset and value of the last record of each key before an offset, of what no transaction has taken back."""
    last: dict[bytes, Record] = {}
    pending: dict[int, list[Record]] = defaultdict(list)

    def take(records: list[Record]) -> None:
        for record in records:
            if record.key is not None and (record.key not in last or last[record.key].offset < record.offset):
                last[record.key] = record

    # A segment that is on its way in counts as well: a start brings it there.
    for path in sorted(path for path in directory.iterdir() if path.name.endswith((".log", ".log.swap"))):
        content = path.read_bytes()
        for position, header in batches(content):
            if header.base_offset >= end_offset or not header.record_count:
                continue
            records = list(read_records(content[position : position + header.size]))
            if header.is_control:
                key = records[0].key
                ended = pending.pop(header.producer_id, [])
                if key is not None and int.from_bytes(key[2:4], "big") == _COMMIT:
                    take(ended)
            elif header.is_transactional:
                pending[header.producer_id].extend(records)
            else:
                take(records)
    # Of what is left the marker was removed, or has not come.
    unknown = {record.key for records in pending.values() for record in records}
    return {key: (record.offset, record.value) for key, record in last.items() if record.value is not None and key not in unknown}


def lost_records(directory: Path, last: Mapping[bytes, tuple[int, bytes]]) -> dict[bytes, tuple[int, bytes]]:
    """Those of the last records of keys that are not there."""
    there: set[tuple[bytes | None, int, bytes | None]] = set()
    for path in directory.glob("*.log"):
        content = path.read_bytes()
        for position, header in batches(content):
            if header.record_count:
                records = read_records(content[position : position + header.size])
                there.update((record.key, record.offset, record.value) for record in records)
    return {key: (offset, value) for key, (offset, value) in last.items() if (key, offset, value) not in there}


def compare_compacted(key: TopicPartition, replicas: Mapping[int, Replica], violated: Callable[[str], None]) -> None:
    """At the end: every replica has the same last record of each key."""
    leading = [replica for replica in replicas.values() if replica.is_leader]
    if len(leading) != 1:
        violated(f"{key}: {len(leading)} leaders at the end")
        return
    high_watermark = leading[0].high_watermark
    found = {broker_id: last_of_keys(replica.log.directory, high_watermark) for broker_id, replica in replicas.items()}
    first_id, first = next(iter(found.items()))
    for broker_id, last in found.items():
        for name in sorted(first.keys() | last.keys()):
            if first.get(name) != last.get(name):
                violated(
                    f"{key}: of key {name!r} broker {first_id} has {first.get(name)} and broker {broker_id} {last.get(name)},"
                    f" below the high watermark {high_watermark}"
                )
                return
