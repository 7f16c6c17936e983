"""The lines of `ottla log dump`: what storage's inspection found, as text for people and as JSON for scripts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.cli.output import bytes_of, count_of
from ottla.cli.rendering import text_or_base64, time_of
from ottla.errors import InvalidRecord
from ottla.model import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.record.records import Record
    from ottla.storage.inspect import BatchDump, Damage, IndexDump

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was found: as a line, as JSON, and how much is wrong with it."""

    lines: tuple[str, ...]
    fields: dict[str, Any]
    problems: int = 0

    def text(self) -> str:
        return "\n".join(self.lines)

    def document(self) -> dict[str, Any]:
        return self.fields


def _time(timestamp: int) -> str:
    return "no timestamp" if timestamp < 0 else time_of(timestamp)


def _bytes(content: bytes | None) -> str:
    """Text where it is text, else Python's way to write bytes; control characters never reach the terminal."""
    if content is None:
        return "null"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return repr(content)
    return text if text.isprintable() and text else repr(text)


def segment(path: Path, with_records: bool, index_check: bool) -> Iterator[Line]:
    """Batches, damage, the indexes beside the segment, and a sentence that sums up."""
    from ottla.storage.inspect import BatchDump, dump_offset_index, dump_segment, dump_time_index

    topic = path.absolute().parent.name.rpartition("-")[0]
    batches = records = size = bad_checksums = problems = 0
    for found in dump_segment(path, with_records=with_records):
        if isinstance(found, BatchDump):
            batches += 1
            records += found.header.record_count
            size += found.header.size
            bad_checksums += not found.crc_is_valid
            line = _batch(found, with_records, topic)
        else:
            line = _damage(found)
        problems += line.problems
        yield line
    if index_check:
        for index in (dump_offset_index(path), dump_time_index(path)):
            if index is not None:
                line = _index(index)
                problems += line.problems
                yield line
    checksums = "all checksums are right" if not bad_checksums else count_of(bad_checksums, "checksum") + " wrong"
    yield Line(
        (f"{count_of(batches, 'batch', 'batches')}, {count_of(records, 'record')}, {bytes_of(size)}; {checksums}",),
        {"kind": "summary", "batches": batches, "records": records, "size": size, "bad_checksums": bad_checksums, "problems": problems},
    )


def _batch(batch: BatchDump, with_records: bool, topic: str) -> Line:
    header = batch.header
    codec = CODECS[header.codec] if header.codec < len(CODECS) else f"codec {header.codec}"
    words = [
        f"@{batch.position}",
        f"offsets {header.base_offset}-{header.last_offset}",
        count_of(header.record_count, "record"),
        f"{header.size:,} B",
        codec,
        f"{'append' if header.timestamp_type else 'create'} time {_time(header.max_timestamp)}",
        f"leader epoch {header.leader_epoch}",
    ]
    if header.producer_id >= 0:
        words.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
    if header.is_control:
        words.append(f"control: {batch.marker.control_type.name.lower()}" if batch.marker else "control")
    elif header.is_transactional:
        words.append("transactional")
    words.append(f"crc {header.crc:#010x} {'ok' if batch.crc_is_valid else 'WRONG'}")
    lines = ["  ".join(words), *(f"    ! {problem}" for problem in batch.problems)]
    if with_records:
        lines += [_record(record, {} if header.is_control else _decoded(topic, record)) for record in batch.records]
    document: dict[str, Any] = {
        "kind": "batch",
        "position": batch.position,
        **header._asdict(),
        "size": header.size,
        "last_offset": header.last_offset,
        "codec": codec,
        "computed_crc": batch.computed_crc,
        "crc_is_valid": batch.crc_is_valid,
        "problems": list(batch.problems),
    }
    if with_records:
        document["records"] = [
            _record_document(record) | ({} if header.is_control else _decoded(topic, record)) for record in batch.records
        ]
    return Line(tuple(lines), document, len(batch.problems))


def _record(record: Record, decoded: dict[str, Any]) -> str:
    headers = "".join(f"  {name}={_bytes(value)}" for name, value in record.headers)
    key, value = _bytes(record.key), _bytes(record.value)
    if decoded:
        key, value = (json.dumps(decoded["decoded"][part], ensure_ascii=False) for part in ("key", "value"))
    return f"    {record.offset}  {_time(record.timestamp)}  {key} → {value}{headers}"


def _record_document(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name.encode(errors="surrogateescape").decode(errors="replace"), **text_or_base64("value", value)}
            for name, value in record.headers
        ],
    }


def _decoded(topic: str, record: Record) -> dict[str, Any]:
    """What a record says that a coordinator wrote for itself; nothing where it is of a later release, or damaged."""
    if topic not in INTERNAL_TOPICS:
        return {}
    from ottla.broker.groups.consumer.record_codec import ConsumerGroupKey, decode_change
    from ottla.broker.groups.records import OffsetKey, OtherKey, decode_group, decode_key, decode_offset
    from ottla.broker.transactions import records as transactions

    key: Any = None
    value: Any = record.value
    try:
        if topic == "__transaction_state":
            key = transactions.decode_key(record.key or b"")
            value = None if key is None or value is None else transactions.decode(key, value)
        else:
            found = decode_key(record.key or b"")
            key = None if isinstance(found, OtherKey) else found
            if isinstance(found, ConsumerGroupKey) and value is not None:
                value = decode_change(found, value)
            elif key is not None and value is not None:
                value = decode_offset(value) if isinstance(found, OffsetKey) else decode_group(value)
    except InvalidRecord:
        return {}
    return {} if key is None else {"decoded": {"key": _plain(key), "value": _plain(value)}}


def _plain(value: Any) -> Any:
    """As JSON has it: bytes in Base64, a set in order."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value) if isinstance(value, UUID) else value


def _damage(damage: Damage) -> Line:
    return Line(
        (f"@{damage.position}  ! {damage.size:,} B are no batch: {damage.reason}",),
        {"kind": "damage", "position": damage.position, "size": damage.size, "reason": damage.reason},
        1,
    )


def _index(index: IndexDump) -> Line:
    state = "agrees with the segment" if not index.problems else count_of(len(index.problems), "problem")
    count = count_of(len(index.entries), "entry", "entries")
    return Line(
        (f"{index.path.name}: {count}, {state}", *(f"    ! {problem}" for problem in index.problems)),
        {
            "kind": "index",
            "file": index.path.name,
            "entries": len(index.entries),
            "unused_entries": index.unused_entries,
            "problems": list(index.problems),
        },
        len(index.problems),
    )


def offset_index(path: Path) -> Iterator[Line]:
    """Each entry of an `.index`, and what its segment says to it."""
    from ottla.storage.inspect import dump_offset_index

    index = dump_offset_index(path)
    if index is None:
        return
    for relative_offset, position in index.entries:
        yield Line(
            (f"offset +{relative_offset}  @{position}",), {"kind": "entry", "relative_offset": relative_offset, "position": position}
        )
    yield _index(index)


def time_index(path: Path) -> Iterator[Line]:
    """Each entry of a `.timeindex`, and what its segment says to it."""
    from ottla.storage.inspect import dump_time_index

    index = dump_time_index(path)
    if index is None:
        return
    for timestamp, relative_offset in index.entries:
        yield Line(
            (f"{_time(timestamp)}  offset +{relative_offset}",),
            {"kind": "entry", "timestamp": timestamp, "relative_offset": relative_offset},
        )
    yield _index(index)


def snapshot(path: Path) -> Iterator[Line]:
    """Each producer of a `.snapshot`."""
    from dataclasses import asdict

    from ottla.storage.inspect import dump_snapshot

    dumped = dump_snapshot(path)
    for entry in dumped.entries:
        fields = asdict(entry)
        yield Line(("  ".join(f"{name} {value}" for name, value in fields.items()),), {"kind": "producer", **fields})
    yield _end(path, len(dumped.entries), "producer", dumped.problem)


def transaction_index(path: Path) -> Iterator[Line]:
    """Each aborted transaction of a `.txnindex`, and what its segment says to them."""
    from ottla.storage.inspect import dump_transaction_index

    dumped = dump_transaction_index(path)
    for entry in dumped.entries:
        fields = entry._asdict()
        yield Line(("  ".join(f"{name} {value}" for name, value in fields.items()),), {"kind": "aborted_transaction", **fields})
    yield _end(path, len(dumped.entries), "aborted transaction", dumped.problem)


def leader_epochs(path: Path) -> Iterator[Line]:
    """Each line of a leader-epoch-checkpoint."""
    from ottla.storage.inspect import dump_leader_epochs

    dumped = dump_leader_epochs(path)
    for epoch, start_offset in dumped.entries:
        yield Line(
            (f"leader epoch {epoch} from offset {start_offset}",), {"kind": "leader_epoch", "epoch": epoch, "start_offset": start_offset}
        )
    yield _end(path, len(dumped.entries), "leader epoch", dumped.problem)


def _end(path: Path, count: int, noun: str, problem: str | None) -> Line:
    if problem is not None:
        return Line((f"! {problem}",), {"kind": "damage", "file": path.name, "reason": problem}, 1)
    return Line((f"{path.name}: {count_of(count, noun)}",), {"kind": "summary", "file": path.name, "entries": count})
