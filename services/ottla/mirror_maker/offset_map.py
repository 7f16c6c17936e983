"""Where each record of the source is in the target, in ranges, and the records of the map topic that say so.

A batch that is copied takes consecutive offsets on both sides, so `(source, target, count)` stands for all of its records, and batches
that follow each other on both sides share a range. What is not copied (markers, aborted transactions, copies that would go round in a
loop, what was compacted away) lies between ranges. So translation is exact: the offset of the first copied record that is not before.

The ranges of a partition are written in pages of `PAGE_RANGES`. With each transaction the last page is written once more, longer, under
its key; compaction keeps the last of each. A page also says up to where the source is copied: that is the position. Pages whose records
the source has deleted are deleted.

A partition that always gets a little has thirty transactions a second, and a range of each: three million a day. So pages are kept as the
topic has them, at some 7 bytes a range, and only the one that is asked for, and the last one, are read.

    key    kind:1 …            value
    0 link                     cluster id of the source
    1 writer  producer_id:8    cluster id of the source: what this producer writes into the target are copies from there
    2 page    page:4 partition:4 topic      version:1 topic_id:16 next_offset:8 leader_epoch:4 (gap partition gap count: varints)…
    3 gap     offset:8 partition:4 topic    next_offset:8 time_ms:8 cause
    4 said    partition:4 topic             offset:8: before it the source's audit was told everything
    5 modes                                 JSON: of subjects that are in IMPORT mode for the link, the modes to put back

Pure: no I/O. What is staged becomes visible by `commit`, when its transaction is.
"""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from ottla.errors import InvalidRecord
from ottla.model import ZERO_TOPIC_ID, TopicPartition
from ottla.record.varints import decode_varint, encode_varint

PAGE_RANGES: Final = 64
VERSION: Final = 0
NO_OFFSET: Final = -1

_LINK, _WRITER, _PAGE, _GAP, _SAID, _MODES = range(6)
_WRITER_KEY: Final = struct.Struct(">bq")
_PAGE_KEY: Final = struct.Struct(">bii")
_GAP_KEY: Final = struct.Struct(">bqi")
_SAID_KEY: Final = struct.Struct(">bi")
_OFFSET: Final = struct.Struct(">q")
_PAGE_HEAD: Final = struct.Struct(">b16sqi")
_GAP_HEAD: Final = struct.Struct(">qq")

# Key and value of a record of the map topic; without a value it deletes.
MapRecord = tuple[bytes, bytes | None]


class Range(NamedTuple):
    """`record_count` records from offset `source` on are in the target's partition from offset `target` on."""

    source: int
    target_partition: int
    target: int
    record_count: int


class Gap(NamedTuple):
    """Offsets from `offset` up to, and without, `next_offset` were not copied, and why. An operator allowed it."""

    offset: int
    next_offset: int
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some ranges of a partition, and where the copying of the source stood when they were written."""

    topic_id: UUID
    next_offset: int
    leader_epoch: int
    ranges: tuple[Range, ...] = ()


_NOTHING: Final = Page(ZERO_TOPIC_ID, NO_OFFSET, NO_OFFSET)


class PartitionMap:
    """The map of one partition of the source.

    Args:
        pages: by their numbers, as the map topic has them.
    """

    def __init__(self, partition: TopicPartition, pages: Mapping[int, bytes] | None = None) -> None:
        self.partition: Final = partition
        self._pages = dict(sorted((pages or {}).items()))
        self._staged: dict[int, tuple[Page, bytes] | None] = {}
        filled = [(number, first) for number, page in self._pages.items() if (first := _first_source(page)) is not None]
        self._filled = array("q", [number for number, _ in filled])  # pages with ranges, and where the first range of each begins
        self._firsts = array("q", [first for _, first in filled])
        self._number = max(self._pages, default=0)
        self._last = decode_page(self._pages[self._number]) if self._pages else _NOTHING

    # What holds.

    @property
    def topic_id(self) -> UUID:
        """Of the source's topic; all zero where the source does not say, or nothing is copied yet."""
        return self._last.topic_id

    @property
    def next_offset(self) -> int:
        """Of the source, that is to be copied next; -1 before anything was."""
        return self._last.next_offset

    @property
    def leader_epoch(self) -> int:
        """Of the last record before it; -1 where it is not known."""
        return self._last.leader_epoch

    def ranges(self, first_page: int = 0) -> Iterator[Range]:
        """All of them, in the order of the source; or those of the pages from one on."""
        for index in range(first_page, len(self._filled)):
            yield from self._ranges_of(index)

    def _ranges_of(self, index: int) -> tuple[Range, ...]:
        number = self._filled[index]
        return self._last.ranges if number == self._number else decode_page(self._pages[number]).ranges

    def translate(self, offset: int, target_partition: int | None = None) -> int | None:
        """The target's offset of the first copied record that is not before this one; at the end, the one behind the last.

        Args:
            offset: of the source: the next that a group would read.
            target_partition: only records there count; None where all of them are in one.

        Returns:
            None while the offset is not copied up to, and where nothing is copied.
        """
        if offset > self.next_offset:
            return None
        for found in self.ranges(max(bisect_right(self._firsts, offset) - 1, 0)):
            if found.source + found.record_count > offset and target_partition in (None, found.target_partition):
                return found.target + max(offset - found.source, 0)
        for index in reversed(range(len(self._filled))):
            for found in reversed(self._ranges_of(index)):
                if target_partition in (None, found.target_partition):
                    return found.target + found.record_count
        return None

    def first_from(self, target: int) -> int:
        """The source's offset of the first record whose copy is not before an offset of the target; at the end, the next to be copied."""
        at = bisect_right(range(len(self._filled)), target, key=lambda index: self._ranges_of(index)[0].target) - 1
        for found in self.ranges(max(at, 0)):
            if found.target + found.record_count > target:
                return found.source + max(target - found.target, 0)
        return self.next_offset

    # What changes.

    def stage(self, topic_id: UUID, ranges: Sequence[Range], next_offset: int, leader_epoch: int) -> list[MapRecord]:
        """Adds ranges behind those there are, and moves the position; gives the records that say so."""
        number, tail = self._number, list(self._last.ranges)
        changed: dict[int, Page | None] = {}
        if self.is_behind(ranges):
            number, tail, changed = self._in_target_before(ranges[0].target)
        for new in ranges:
            if tail and _follows(tail[-1], new):
                tail[-1] = tail[-1]._replace(record_count=tail[-1].record_count + new.record_count)
            else:
                tail.append(new)
        pieces = [tuple(tail[begin : begin + PAGE_RANGES]) for begin in range(0, len(tail), PAGE_RANGES)] or [()]
        for index, piece in enumerate(pieces):
            if index == len(pieces) - 1 or piece != self._last.ranges:
                changed[number + index] = Page(topic_id, next_offset, leader_epoch, piece)
        return self._stage(changed)

    def is_behind(self, ranges: Sequence[Range]) -> bool:
        """Whether the target has lost its end, or was made again: what comes next was written where it had something before."""
        last = self._last.ranges[-1] if self._last.ranges and ranges else None
        return (
            last is not None and last.target_partition == ranges[0].target_partition and ranges[0].target < last.target + last.record_count
        )

    def _in_target_before(self, target: int) -> tuple[int, list[Range], dict[int, Page | None]]:
        """The page that has the last records before an offset of the target, its ranges up to there, and the pages that go."""
        at = max(bisect_left(range(len(self._filled)), target, key=lambda index: self._ranges_of(index)[0].target) - 1, 0)
        left = [found for found in self._ranges_of(at) if found.target < target]
        if left:
            left[-1] = left[-1]._replace(record_count=min(left[-1].record_count, target - left[-1].target))
        return self._filled[at], left, {number: None for number in self._pages if number > self._filled[at]}

    def stage_cut(self, offset: int, leader_epoch: int) -> list[MapRecord]:
        """The source was cut: what is said of offsets from there on is taken back. The target's records stay."""
        kept = bisect_left(self._firsts, offset) - 1  # the last page with something before it
        last = self._filled[kept] if kept >= 0 else min(self._pages, default=0)
        changed: dict[int, Page | None] = {number: None for number in self._pages if number > last}
        left = [found for found in self._ranges_of(kept) if found.source < offset] if kept >= 0 else []
        if left:
            left[-1] = left[-1]._replace(record_count=min(left[-1].record_count, offset - left[-1].source))
        changed[last] = Page(self.topic_id, offset, leader_epoch, tuple(left))
        return self._stage(changed)

    def stage_other_topic(self, topic_id: UUID, offset: int) -> list[MapRecord]:
        """The source's topic was made again: the map of the former one is deleted, and this one begins."""
        changed: dict[int, Page | None] = dict.fromkeys(self._pages)
        changed[self._number + 1] = Page(topic_id, offset, NO_OFFSET)
        return self._stage(changed)

    def stage_trim(self, log_start_offset: int) -> list[MapRecord]:
        """The source has deleted what is before the offset: pages that are about nothing else go, but for the last one."""
        gone = self._filled[: max(bisect_right(self._firsts, log_start_offset) - 1, 0)]
        return self._stage(dict.fromkeys(gone)) if gone else []

    def commit(self) -> None:
        """What was staged holds."""
        staged, self._staged = self._staged, {}
        for number, change in staged.items():
            if change is None:
                self._pages.pop(number, None)
                self._index(number, None)
            else:
                page, self._pages[number] = change
                self._index(number, page.ranges[0].source if page.ranges else None)
                if number >= self._number:
                    self._number, self._last = number, page
        if self._number not in self._pages:  # the last ones were taken back
            self._number = max(self._pages, default=0)
            self._last = decode_page(self._pages[self._number]) if self._pages else _NOTHING

    def discard(self) -> None:
        """What was staged does not hold."""
        self._staged = {}

    def _stage(self, changed: Mapping[int, Page | None]) -> list[MapRecord]:
        assert not self._staged, f"{self.partition}: two changes in one transaction"
        self._staged = {number: None if page is None else (page, encode_page(page)) for number, page in changed.items()}
        return [(page_key(self.partition, number), None if change is None else change[1]) for number, change in self._staged.items()]

    def _index(self, number: int, first: int | None) -> None:
        """A page begins there now, or is gone."""
        at = bisect_left(self._filled, number)
        if at < len(self._filled) and self._filled[at] == number:
            del self._filled[at], self._firsts[at]
        if first is not None:
            self._filled.insert(at, number)
            self._firsts.insert(at, first)


@dataclass(slots=True)
class MapContents:
    """What the records of a map topic, or of a partition of it, say together."""

    cluster_id: str = ""
    writers: dict[int, str] = field(default_factory=dict)  # by producer id, the cluster that it copies from
    pages: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)  # as they are in the topic
    gaps: dict[TopicPartition, dict[int, Gap]] = field(default_factory=dict)
    said: dict[TopicPartition, int] = field(default_factory=dict)
    former_modes: dict[str, str | None] = field(default_factory=dict)

    def take(self, key: bytes, value: bytes | None) -> None:
        """Takes a record in, in the order of the log.

        Raises:
            InvalidRecord: it is none of a map, or a later release's.
        """
        try:
            self._take(key, value)
        except (struct.error, IndexError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise InvalidRecord(f"{key!r} is no record of a mirror's map: {error}") from None

    def _take(self, key: bytes, value: bytes | None) -> None:
        kind = key[0]
        if kind == _LINK:
            self.cluster_id = "" if value is None else value.decode()
        elif kind == _WRITER:
            _, producer_id = _WRITER_KEY.unpack(key)
            if value is not None:
                self.writers[producer_id] = value.decode()
        elif kind == _PAGE:
            _, number, partition = _PAGE_KEY.unpack_from(key)
            pages = self.pages.setdefault(TopicPartition(key[_PAGE_KEY.size :].decode(), partition), {})
            if value is None:
                pages.pop(number, None)
            else:
                _head_of(value)  # its ranges are read when they are asked for: a day's would take seconds when a slot is opened
                pages[number] = value
        elif kind == _GAP:
            _, offset, partition = _GAP_KEY.unpack_from(key)
            gaps = self.gaps.setdefault(TopicPartition(key[_GAP_KEY.size :].decode(), partition), {})
            if value is None:
                gaps.pop(offset, None)
            else:
                next_offset, time_ms = _GAP_HEAD.unpack_from(value)
                gaps[offset] = Gap(offset, next_offset, time_ms, value[_GAP_HEAD.size :].decode())
        elif kind == _SAID:
            _, partition = _SAID_KEY.unpack_from(key)
            if value is not None:
                (self.said[TopicPartition(key[_SAID_KEY.size :].decode(), partition)],) = _OFFSET.unpack(value)
        elif kind == _MODES:
            self.former_modes = {} if value is None else dict(json.loads(value))
        else:
            raise InvalidRecord(f"a record of kind {kind} in a mirror's map")


def link_record(cluster_id: str) -> MapRecord:
    """Which cluster the link copies from."""
    return bytes([_LINK]), cluster_id.encode()


def writer_record(producer_id: int, cluster_id: str) -> MapRecord:
    """Whose copies a producer writes."""
    return _WRITER_KEY.pack(_WRITER, producer_id), cluster_id.encode()


def gap_record(partition: TopicPartition, gap: Gap) -> MapRecord:
    """What is not copied, and why."""
    return _GAP_KEY.pack(_GAP, gap.offset, partition.partition) + partition.topic.encode(), (
        _GAP_HEAD.pack(gap.next_offset, gap.time_ms) + gap.cause.encode()
    )


def said_record(partition: TopicPartition, offset: int) -> MapRecord:
    """Before which offset the source's audit was told everything."""
    return _SAID_KEY.pack(_SAID, partition.partition) + partition.topic.encode(), _OFFSET.pack(offset)


def modes_record(former_modes: Mapping[str, str | None]) -> MapRecord:
    """Which modes of subjects are to be put back, also by the next holder of slot 0."""
    return bytes([_MODES]), json.dumps(dict(former_modes)).encode() if former_modes else None


def page_key(partition: TopicPartition, number: int) -> bytes:
    """The key of a page."""
    return _PAGE_KEY.pack(_PAGE, number, partition.partition) + partition.topic.encode()


def encode_page(page: Page) -> bytes:
    """The value of a page: of each range, how far it is behind the former one on both sides."""
    parts = [_PAGE_HEAD.pack(VERSION, page.topic_id.bytes, page.next_offset, page.leader_epoch)]
    source = target = 0
    for found in page.ranges:
        parts += map(encode_varint, (found.source - source, found.target_partition, found.target - target, found.record_count))
        source, target = found.source + found.record_count, found.target + found.record_count
    return b"".join(parts)


def decode_page(value: bytes) -> Page:
    """The reverse.

    Raises:
        InvalidRecord: of another version, with ranges that overlap, or cut short.
    """
    topic_id, next_offset, leader_epoch = _head_of(value)
    ranges = []
    source = target = 0
    position = _PAGE_HEAD.size
    try:
        while position < len(value):
            gap, position = decode_varint(value, position)
            partition, position = decode_varint(value, position)
            distance, position = decode_varint(value, position)
            count, position = decode_varint(value, position)
            found = Range(source + gap, partition, target + distance, count)
            if count < 1 or partition < 0 or found.target < 0 or found.source < source:
                raise InvalidRecord(f"a page with the range {found} behind offset {source}")
            ranges.append(found)
            source, target = found.source + count, found.target + count
    except IndexError:
        raise InvalidRecord(f"a page of {len(value)} bytes that ends within a range") from None
    return Page(UUID(bytes=topic_id), next_offset, leader_epoch, tuple(ranges))


def _head_of(page: bytes) -> tuple[bytes, int, int]:
    version, topic_id, next_offset, leader_epoch = _PAGE_HEAD.unpack_from(page)
    if version != VERSION:
        raise InvalidRecord(f"a page of version {version}; {VERSION} is read")
    return topic_id, next_offset, leader_epoch


def _first_source(page: bytes) -> int | None:
    """Where the first range of a page begins, in the source; None if it has none."""
    try:
        return decode_varint(page, _PAGE_HEAD.size)[0] if len(page) > _PAGE_HEAD.size else None
    except IndexError:
        raise InvalidRecord(f"a page of {len(page)} bytes that ends within a range") from None


def _follows(former: Range, new: Range) -> bool:
    return (
        former.target_partition == new.target_partition
        and former.source + former.record_count == new.source
        and former.target + former.record_count == new.target
    )
