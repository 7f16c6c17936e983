"""What a load reads, and whether what its tasks wrote is all of it. Pure.

A range of offsets is accounted for to the last one: each is a row, or a marker or aborted (`unseen`), or in quarantine, or was compacted
(`empty`), or is lost, of which the last is a failure unless the load was told otherwise, and so is `empty` on a topic that is not
compacted: one that was may have such offsets still.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.spark.offsets import Loss, OffsetRange, Offsets, divided, limited, ranges_between
from ottla.spark.table import NewFile

MAX_RECORDS_PER_FILE: Final = 5_000_000


class LoadIncomplete(OttlaError):
    """What the tasks wrote is not what was to be read; nothing is committed."""


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What a task did with a range.

    Attributes:
        unseen: offsets of markers and of aborted records.
        lost: offsets that the log did not have any more.
        files: what was written; their rows are those of their own footers.
        is_ordered: whether offsets only ever rose.
        quarantined: offsets of damaged batches and of values that cannot be decoded, whose bytes are in quarantine.
        decoded: the types of the columns that values were decoded to.
        is_stale: whether files have a column with a narrower type than that, so that they are of no use.
        tallies: a `record.audit_records.Tally` of the rows of each window, by its start, where the load is audited.
    """

    range: OffsetRange
    unseen: int
    lost: int
    files: tuple[NewFile, ...]
    is_ordered: bool
    quarantined: int = 0
    decoded: Mapping[str, Any] = field(default_factory=dict)
    is_stale: bool = False
    tallies: Mapping[int, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def empty(self) -> int:
        """Offsets that compaction emptied, as far as that can be told from a range."""
        return self.range.size - self.rows - self.unseen - self.lost - self.quarantined


def plan(
    start: Offsets, end: Offsets, max_records: int | None = None, max_records_per_file: int = MAX_RECORDS_PER_FILE
) -> list[OffsetRange]:
    """The ranges of one load, a file or a few for each."""
    ends = end if max_records is None else limited(start, end, max_records)
    return divided(ranges_between(start, ends), None, max_records_per_file)


def forgotten(start: Offsets, earliest: Offsets) -> list[Loss]:
    """What retention took before it was loaded."""
    return [
        Loss(partition, offset, earliest[partition], f"the log begins at {earliest[partition]}")
        for partition, offset in sorted(start.items())
        if partition in earliest and earliest[partition] > offset
    ]


def reached(start: Offsets, ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
    """The offsets that are to be remembered with these ranges."""
    offsets = dict(start)
    for one in ranges:
        offsets[one.partition] = max(offsets[one.partition], one.end)
    return offsets


def check(ranges: Sequence[OffsetRange], facts: Sequence[RangeFacts], compacted: Collection[str], *, may_lose: bool) -> None:
    """Looks whether the files hold what was planned, once.

    Args:
        compacted: topics of which compaction may have taken records.
        may_lose: whether records may be lost.

    Raises:
        LoadIncomplete
    """
    if sorted(one.range for one in facts) != sorted(ranges):
        raise LoadIncomplete(f"{len(ranges)} ranges were planned, and the tasks have written {len(facts)}, or others")
    for one in facts:
        where = f"{one.range.partition}, offsets [{one.range.start}, {one.range.end})"
        accounted = f"{one.rows} rows, {one.unseen} markers or aborted, {one.lost} lost, {one.quarantined} in quarantine"
        if not one.is_ordered:
            raise LoadIncomplete(f"{where}: offsets do not rise")
        if one.empty < 0:
            raise LoadIncomplete(f"{where}: more than there are offsets: {accounted}")
        if one.empty and one.range.partition.topic not in compacted and not may_lose:
            raise LoadIncomplete(f"{where}: {one.empty} offsets are missing, and the topic is not compacted: {accounted}")
        if one.lost and not may_lose:
            raise LoadIncomplete(f"{where}: {one.lost} offsets are gone: {accounted}")
        for file in one.files:
            if file.rows and not one.range.start <= file.minimums["offset"] <= file.maximums["offset"] < one.range.end:
                raise LoadIncomplete(f"{where}: {file.path} has offsets {file.minimums['offset']} to {file.maximums['offset']}")
