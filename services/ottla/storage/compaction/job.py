"""What passes between a broker and the process that cleans its logs: plain data, a line of JSON each.

    broker                                      cleaner
      CleaningJob     ────────────────────────►
                      ◄────────────────────────   CleanedSegment    a `.cleaned` file is whole and on the disk
                      ◄────────────────────────   StillAtWork       now and then
                      ◄────────────────────────   CleaningResult  or  CleaningFailed

Offsets, sizes and names only: the cleaner knows no object of the broker's, and reads nothing but the files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias, get_type_hints

from ottla.errors import OttlaError
from ottla.storage.batches import CorruptLog


class Unopened(OttlaError):
    """A batch whose checksum is right holds more than is opened, or is not what its header says: it stays as it is."""


class OffsetMapTooSmall(OttlaError):
    """Not even the keys of one batch fit into the offset map: `log.cleaner.dedupe.buffer.size` has to be larger."""


class CleaningInterrupted(OttlaError):
    """A cleaning has ended before its end, and can begin again: files have gone, or the process has."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment that is to be cleaned. Its file ends at `size` and is not written to any more."""

    base_offset: int
    next_base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """What a producer that is still active wrote last: of its batches that one must stay, to know its sequence by.

    `last_offset` is -1 when only a transaction's marker is left of it, as after a fencing.
    """

    producer_id: int
    last_offset: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One cleaning of one log.

    Args:
        name: the partition, for messages.
        directory: its directory.
        sources: the segments from the log's first on, up to where it may be cleaned.
        following: the segments behind them, as far as they are committed: the markers of transactions may lie there.
        first_dirty_offset: what lies before was cleaned before.
        committed_offset: no marker at this offset or later counts.
        producers: the active ones.
        epoch_begins: the offset from which on each leader epoch wrote but the first.
        now_ms: the time of the cleaning, for all of it.
        delete_retention_ms: for tombstones and markers that have no delete horizon yet.
        segment_bytes: small cleaned segments are joined up to this size,
        segment_index_bytes: and up to this size of each index.
        index_interval_bytes: as the log's own.
        map_bytes: memory for the offset map.
        load_factor: how full it may become.
        buffer_bytes: how much to read at a time.
        bytes_per_second: how fast to read and write.
    """

    name: str
    directory: str
    sources: tuple[SourceSegment, ...]
    following: tuple[SourceSegment, ...]
    first_dirty_offset: int
    committed_offset: int
    producers: tuple[LastOfProducer, ...]
    epoch_begins: tuple[int, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    load_factor: float
    buffer_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment that takes the place of the `joined` ones from `base_offset` on. Its files end in `.cleaned`."""

    base_offset: int
    joined: int
    size: int


@dataclass(frozen=True, slots=True)
class StillAtWork:
    """A sign of life."""

    bytes_read: int


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """How a cleaning went. Everything before `end_offset` is clean now."""

    end_offset: int
    keys: int
    bytes_read: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    records_without_key: int
    unopened: int = 0
    first_unopened: str = ""


@dataclass(frozen=True, slots=True)
class CleaningFailed:
    """Why it did not continue: the name of the error, and its message."""

    error: str
    message: str


Message: TypeAlias = CleaningJob | CleanedSegment | StillAtWork | CleaningResult | CleaningFailed

_KINDS: Final[dict[str, type[Any]]] = {
    message.__name__: message for message in (CleaningJob, CleanedSegment, StillAtWork, CleaningResult, CleaningFailed)
}
_ELEMENTS: Final[dict[str, type[Any]]] = {
    "sources": SourceSegment,
    "following": SourceSegment,
    "producers": LastOfProducer,
    "epoch_begins": int,
}
_ERRORS: Final[dict[str, type[OttlaError]]] = {error.__name__: error for error in (CorruptLog, OffsetMapTooSmall, CleaningInterrupted)}


def encode(message: Message) -> bytes:
    """A line."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line.

    Raises:
        CleaningInterrupted: it is none; its writer has gone astray.
    """
    try:
        name, fields = json.loads(line)
        kind = _KINDS[name]
        for field, element in _ELEMENTS.items():
            if field in fields:
                fields[field] = tuple(map(int, fields[field]) if element is int else (element(**value) for value in fields[field]))
        message: Message = kind(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise CleaningInterrupted(f"{line[:100]!r} is no message of a cleaner: {error}") from error
    wrong = [name for name, hint in get_type_hints(kind).items() if hint in (int, str) and not isinstance(getattr(message, name), hint)]
    if wrong:
        raise CleaningInterrupted(f"{kind.__name__} with a wrong {', '.join(wrong)}")
    return message


def failure_of(error: Exception) -> CleaningFailed:
    """What to tell of an error."""
    name = type(error).__name__
    if isinstance(error, OSError | MemoryError):
        # A source has been renamed to be deleted, or the disk or the machine's memory is full: it may be otherwise the next time.
        name = CleaningInterrupted.__name__
    return CleaningFailed(name, str(error) or repr(error))


def error_of(failure: CleaningFailed) -> OttlaError:
    """The error that was reported. An unknown one counts as that of a corrupt log."""
    kind = _ERRORS.get(failure.error)
    return CorruptLog(f"{failure.error}: {failure.message}") if kind is None else kind(failure.message)
