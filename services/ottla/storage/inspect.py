"""Looking into the files of a log directory: what `ottla log dump` prints.

Nothing here changes a file, and nothing that is in one makes it fail: damage is a value with a position and a
reason. The log of a running broker may be read, too; its last batch can then look torn.

Only files are touched, never the broker's objects, so the command line may use it without a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, Generic, TypeVar

from ottla.errors import ApiError, OttlaError
from ottla.record.batch import HEADER_SIZE, SMALLEST_LENGTH, BatchHeader, crc_of, read_header
from ottla.record.codecs import MAXIMUM_DECOMPRESSED
from ottla.record.control_records import EndTransactionMarker, read_marker
from ottla.record.records import Record, read_records
from ottla.storage.checkpoints import read_leader_epochs
from ottla.storage.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_in
from ottla.storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from ottla.storage.producer_snapshots import read_snapshot
from ottla.storage.producers import ProducerSnapshotEntry
from ottla.storage.transaction_index import ENTRY_SIZE, AbortedTransaction, TransactionIndex

# A dump shows the first contradictions of an index; after those the rest says nothing new.
MOST_PROBLEMS: Final = 20

_CHUNK: Final = 1024 * 1024

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class BatchDump:
    """A batch whose length made sense, with everything that is wrong about it."""

    position: int
    header: BatchHeader
    computed_crc: int
    records: tuple[Record, ...]
    marker: EndTransactionMarker | None
    problems: tuple[str, ...]

    @property
    def crc_is_valid(self) -> bool:
        return self.computed_crc == self.header.crc


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no batch; what follows them was not read, as it is unknown where the next one would begin."""

    position: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class IndexDump:
    """An `.index` file, with (relative offset, position) of each entry, or a `.timeindex`, with (timestamp, relative offset)."""

    path: Path
    entries: tuple[tuple[int, int], ...]
    unused_entries: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileDump(Generic[Entry]):
    """A file of entries; `problem` says why there are none, or why they cannot be believed."""

    path: Path
    entries: tuple[Entry, ...]
    problem: str | None


def dump_segment(
    path: Path, *, with_records: bool = False, maximum_decompressed: int = MAXIMUM_DECOMPRESSED
) -> Iterator[BatchDump | Damage]:
    """Each batch of a `.log` file, one in memory at a time; at most one Damage, which is the last.

    Args:
        path: the file.
        with_records: also open the records; what cannot be opened is a problem of its batch.
        maximum_decompressed: how many bytes a compressed batch may become.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        yield Damage(0, 0, f"cannot be opened: {error.strerror}")
        return
    with file:
        next_offset = offset_in(path.name) or 0
        for position, header, batch in _batches(file, whole=True):
            if isinstance(batch, str):
                yield Damage(position, _size_of(file) - position, batch)
                return
            yield _dump_batch(position, header, batch, next_offset, with_records, maximum_decompressed)
            next_offset = max(next_offset, header.last_offset + 1)


def dump_offset_index(segment: Path) -> IndexDump | None:
    """The `.index` beside a `.log` file, each entry checked: a batch begins there and reaches that offset.

    None when there is no such file.
    """
    return _dump_index(segment, OFFSET_INDEX_SUFFIX, OFFSET_ENTRY, ("offset", "position"))


def dump_time_index(segment: Path) -> IndexDump | None:
    """The `.timeindex` beside a `.log` file, each entry checked: no record up to its offset is newer.

    None when there is no such file.
    """
    return _dump_index(segment, TIME_INDEX_SUFFIX, TIME_ENTRY, ("timestamp", "offset"))


def _dump_index(segment: Path, suffix: str, entry: Struct, columns: tuple[str, str]) -> IndexDump | None:
    path = segment.with_suffix(suffix)
    problems: list[str] = []
    read = _read_entries(path, entry.size, problems)
    if read is None:
        return None
    data, unused = read
    entries = tuple(entry.iter_unpack(data))
    for column, name in enumerate(columns):
        _check_growth(name, [numbers[column] for numbers in entries], problems)
    if not problems:
        (_check_offsets if entry is OFFSET_ENTRY else _check_timestamps)(segment, entries, problems)
    return IndexDump(path, entries, unused, tuple(problems))


def dump_snapshot(path: Path) -> FileDump[ProducerSnapshotEntry]:
    """A producer snapshot."""
    return _dump_file(path, read_snapshot)


def dump_leader_epochs(path: Path) -> FileDump[tuple[int, int]]:
    """A leader epoch checkpoint: (epoch, start offset) of each."""
    if not path.exists():
        return FileDump(path, (), f"{path}: cannot be read: No such file or directory")
    return _dump_file(path, read_leader_epochs)


def _dump_file(path: Path, read: Callable[[Path], Sequence[Entry]]) -> FileDump[Entry]:
    try:
        return FileDump(path, tuple(read(path)), None)
    except OttlaError as error:
        return FileDump(path, (), str(error))
    except OSError as error:
        return FileDump(path, (), f"{path}: cannot be read: {error.strerror}")


def dump_transaction_index(path: Path) -> FileDump[AbortedTransaction]:
    """The aborted transactions of a segment, compared with its offsets where it lies beside."""
    try:
        index, size = TransactionIndex(str(path)), path.stat().st_size
    except OSError as error:
        return FileDump(path, (), f"{path}: cannot be read: {error.strerror}")
    end_offset = max((header.last_offset + 1 for _, header in _headers(path)), default=None)
    problem = index.problem(offset_in(path.name) or 0, end_offset)
    if problem is None and size % ENTRY_SIZE:
        problem = f"{size} bytes are no multiple of an entry's {ENTRY_SIZE}"
    return FileDump(path, tuple(index), problem)


def _batches(file: BinaryIO, *, whole: bool) -> Iterator[tuple[int, BatchHeader, bytes | str]]:
    """(position, header, batch or header's bytes); a text in place of the bytes says why there is no batch."""
    end = _size_of(file)
    position = 0
    while position < end:
        file.seek(position)
        head = file.read(HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            yield position, _NO_HEADER, f"{len(head)} bytes are left, fewer than a batch header ({HEADER_SIZE}): a torn batch"
            return
        header = read_header(head)
        if header.length < SMALLEST_LENGTH:
            zeros = " and only zeros follow" if _only_zeros(file, position, end) else ""
            yield position, header, f"a length of {header.length}, less than a batch has{zeros}"
            return
        if header.magic != 2:
            yield position, header, f"magic {header.magic}, where only 2 is stored"
            return
        if position + header.size > end:
            yield position, header, f"the batch says {header.size} bytes and {end - position} are left: a torn batch"
            return
        yield position, header, head + file.read(header.size - HEADER_SIZE) if whole else head
        position += header.size


_NO_HEADER: Final = BatchHeader(*(0,) * len(BatchHeader._fields))


def _dump_batch(
    position: int, header: BatchHeader, batch: bytes, next_offset: int, with_records: bool, maximum_decompressed: int
) -> BatchDump:
    problems = []
    computed_crc = crc_of(batch)
    if computed_crc != header.crc:
        problems.append(f"CRC {computed_crc:#010x} computed, {header.crc:#010x} in the batch")
    if header.base_offset < next_offset:
        problems.append(f"begins at offset {header.base_offset}, where {next_offset} or more is due")
    if header.last_offset_delta < 0 or header.record_count < 0:
        problems.append(f"a last offset delta of {header.last_offset_delta} and {header.record_count} records")
    records: list[Record] = []
    marker = None
    if with_records:
        try:
            for record in read_records(batch, maximum_decompressed):
                records.append(record)  # noqa: PERF402  one at a time, so that those before a damaged one are shown
            if header.is_control and records:
                marker = read_marker(records[0])
        except ApiError as error:
            problems.append(str(error))
    return BatchDump(position, header, computed_crc, tuple(records), marker, tuple(problems))


def _read_entries(path: Path, entry_size: int, problems: list[str]) -> tuple[bytes, int] | None:
    """The entries' bytes, and how many entries of zeros follow them: Kafka makes the file large first and cuts it at roll."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"cannot be read: {error.strerror}")
        return b"", 0
    if len(data) % entry_size:
        problems.append(f"{len(data)} bytes are no multiple of an entry's {entry_size}")
        data = data[: len(data) - len(data) % entry_size]
    used = len(data.rstrip(b"\0"))
    used += -used % entry_size
    return data[:used], (len(data) - used) // entry_size


def _check_growth(name: str, numbers: list[int], problems: list[str]) -> None:
    for index in range(1, len(numbers)):
        if numbers[index] < numbers[index - 1] and len(problems) < MOST_PROBLEMS:
            problems.append(f"entry {index}: {name} {numbers[index]} comes after {numbers[index - 1]}")


def _check_offsets(segment: Path, entries: Sequence[tuple[int, int]], problems: list[str]) -> None:
    """One pass over the headers, in step with the entries, which both grow."""
    base_offset = offset_in(segment.name) or 0
    headers = _headers(segment)
    position, header = next(headers, (None, _NO_HEADER))
    for index, (relative_offset, indexed) in enumerate(entries):
        while position is not None and position < indexed:
            position, header = next(headers, (None, _NO_HEADER))
        offset = base_offset + relative_offset
        if position != indexed:
            problems.append(f"entry {index}: offset {offset} at position {indexed}, where no batch begins")
        elif not header.base_offset <= offset <= header.last_offset:
            problems.append(f"entry {index}: offset {offset}, but the batch at {indexed} has {header.base_offset} to {header.last_offset}")
        if len(problems) >= MOST_PROBLEMS:
            return


def _check_timestamps(segment: Path, entries: Sequence[tuple[int, int]], problems: list[str]) -> None:
    base_offset = offset_in(segment.name) or 0
    headers = _headers(segment)
    newest = -1
    last_offset = base_offset - 1
    for index, (timestamp, relative_offset) in enumerate(entries):
        offset = base_offset + relative_offset
        while last_offset < offset:
            position, header = next(headers, (None, _NO_HEADER))
            if position is None:
                problems.append(f"entry {index}: offset {offset}, but the segment ends at {last_offset}")
                return
            newest, last_offset = max(newest, header.max_timestamp), header.last_offset
        if newest != timestamp:
            problems.append(f"entry {index}: timestamp {timestamp}, but the newest up to offset {offset} is {newest}")
        if len(problems) >= MOST_PROBLEMS:
            return


def _headers(segment: Path) -> Iterator[tuple[int, BatchHeader]]:
    """The headers of a `.log` file up to its end or the first damage; none when it is not there."""
    try:
        file = segment.with_suffix(LOG_SUFFIX).open("rb")
    except OSError:
        return
    with file:
        for position, header, batch in _batches(file, whole=False):
            if isinstance(batch, str):
                return
            yield position, header


def _size_of(file: BinaryIO) -> int:
    return file.seek(0, 2)


def _only_zeros(file: BinaryIO, position: int, end: int) -> bool:
    file.seek(position)
    while position < end:
        chunk = file.read(_CHUNK)
        if not chunk:
            return True
        if chunk.strip(b"\0"):
            return False
        position += len(chunk)
    return True
