"""What a task of a load does: reads ranges, and writes them as Parquet by topic and day.

    topic=clicks/day=2026-11-22/0-1000-2000-<attempt>-<number>.zstd.parquet

Every attempt has names of its own, so a task that is run twice, or at two places at once, costs files that no commit knows. A day is
that of a record's timestamp, in UTC.

Nothing here makes a file visible, and nothing here removes one.
"""

from __future__ import annotations

import datetime
import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.record.columnar import Columns, Integers
from ottla.spark.loading import auditing
from ottla.spark.loading.decoding import SCHEMA_ID, ColumnTypes, Decoder
from ottla.spark.loading.ranges import RangeFacts
from ottla.spark.loading.schemas import Decoding
from ottla.spark.offsets import OffsetRange
from ottla.spark.reading import Portion, ReadFailed, arrow_schema, is_beyond_time, put_aside, read_ranges, record_batch
from ottla.spark.settings import COLUMNS, HEADERS, SourceSettings
from ottla.spark.table import COMPRESSION, NewFile, ParquetFile

log = logging.getLogger(__name__)

PARTITION_BY: Final = ("topic", "day")
_IN_FILES: Final = tuple(name for name in (*COLUMNS, HEADERS) if name != "topic")
_DAY_MS: Final = 86_400_000
# Timestamps may name any day: with more files than this open at once, all are closed and others begun.
_OPEN_FILES: Final = 64
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, which is what a date can be


def file_schema(*, is_decoded: bool = False) -> Any:
    """The columns of a file: those of the source but the topic, which its directory's name has.

    Where values are decoded their own columns stand behind the id of their schema, and there are no bytes.
    """
    import pyarrow

    if not is_decoded:
        return arrow_schema(_IN_FILES)
    return pyarrow.schema([*arrow_schema([name for name in _IN_FILES if name != "value"]), pyarrow.field(SCHEMA_ID, pyarrow.int32())])


def table_schema(*, is_decoded: bool = False) -> Any:
    """The columns of the table; of decoded values, those that every one has."""
    import pyarrow

    return pyarrow.schema(
        [*file_schema(is_decoded=is_decoded), pyarrow.field("topic", pyarrow.string()), pyarrow.field("day", pyarrow.date32())]
    )


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One task: what it reads, and below which root it writes.

    Attributes:
        decoding: how values become columns; None: they stay bytes.
        known: the decoded columns that the table has.
        audit_window_ms: the length of the windows in which rows are counted for the audit; None: they are not.
    """

    settings: SourceSettings
    ranges: tuple[OffsetRange, ...]
    root: str
    decoding: Decoding | None = None
    known: ColumnTypes = field(default_factory=dict)
    audit_window_ms: int | None = None

    def run(self) -> list[RangeFacts]:
        """Does it.

        Raises:
            DataLost, ReadFailed: as `reading.read_ranges`; the second one too where a value cannot be decoded.
            SchemaChanged, RegistryUnavailable
        """
        decoder = None if self.decoding is None else Decoder(self.decoding, self.known)
        written = {one.partition: _Written(one, self.root) for one in self.ranges}
        try:
            for portion in read_ranges(self.settings, self.ranges):
                of_it = written[portion.partition]
                of_it.move(portion)
                records = self._within_time(portion.columns, of_it)
                if not len(records):
                    continue
                keep = None
                if decoder is None:
                    batch = record_batch(records, portion.partition, file_schema())
                    of_it.write(batch, records.offsets, records.timestamps)
                else:
                    keep = self._decode(records, of_it, decoder)
                if self.audit_window_ms is not None:
                    auditing.count(of_it.tallies, records, keep, self.audit_window_ms, SystemClock().time_ms())
            return [of_it.finish(decoder) for of_it in written.values()]
        finally:
            for of_it in written.values():
                of_it.abandon()

    def _within_time(self, records: Columns, of_it: _Written) -> Columns:
        """Those whose time a column can have."""
        keep = ~is_beyond_time(records.timestamps)
        if keep.all():
            return records
        bad = {
            number: f"has a time that no column can have, {int(records.timestamps[number])} ms" for number in np.flatnonzero(~keep).tolist()
        }
        self._put_aside(records, bad, of_it)
        return records.select(keep)

    def _decode(self, records: Columns, of_it: _Written, decoder: Decoder) -> NDArray[np.bool_]:
        """Which of the records were written."""
        import pyarrow

        partition = of_it.range.partition
        decoded = decoder.decode(records, partition)
        bad = {number: f"cannot be decoded: {decoded.why[number]}" for number in np.flatnonzero(decoded.is_bad).tolist()}
        self._put_aside(records, bad, of_it)
        base = record_batch(records, partition, arrow_schema([name for name in _IN_FILES if name != "value"]))
        batch = pyarrow.RecordBatch.from_arrays(
            [*base.columns, *decoded.columns.values()], names=[*base.schema.names, *decoded.columns.keys()]
        )
        offsets, timestamps = records.offsets, records.timestamps
        if bad:
            batch, offsets, timestamps = _filtered(batch, ~decoded.is_bad), offsets[~decoded.is_bad], timestamps[~decoded.is_bad]
        if len(offsets):
            of_it.write(batch, offsets, timestamps)
        return ~decoded.is_bad

    def _put_aside(self, records: Columns, bad: Mapping[int, str], of_it: _Written) -> None:
        """Values into quarantine, by their numbers and with why, or an error for the first of them."""
        partition = of_it.range.partition
        for number, why in bad.items():
            offset = int(records.offsets[number])
            if self.settings.quarantine is None:
                raise ReadFailed(f"{partition}: the value at offset {offset} {why}")
            put_aside(self.settings.quarantine, f"{partition}-{offset}.value", records.values[number] or b"")
            log.error("%s: the value at offset %d is in quarantine: it %s", partition, offset, why)
        of_it.quarantined += len(bad)


def write(tasks: Iterable[WriteTask]) -> Iterable[list[RangeFacts]]:
    """What an executor runs over the tasks that it is given."""
    return (task.run() for task in tasks)


class _Open:
    """A file, and what its statistics come from."""

    def __init__(self, root: str, path: str, values: dict[str, str | None], schema: Any) -> None:
        self.path, self.values, self.schema = path, values, schema
        self.file = ParquetFile(root, path, schema)
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.nulls = dict.fromkeys(("key",) if SCHEMA_ID in schema.names else ("key", "value"), 0)

    def write(self, batch: Any, offsets: Integers, timestamps: Integers) -> None:
        self.file.write(batch)
        self.offsets += [int(offsets[0]), int(offsets[-1])]
        self.timestamps += [int(timestamps.min()), int(timestamps.max())]
        for name in self.nulls:
            self.nulls[name] += batch.column(name).null_count

    def close(self, partition: TopicPartition) -> NewFile:
        self.file.close()
        of_it = {"partition": partition.partition}
        return NewFile(
            self.path,
            self.file.size,
            self.file.rows,
            self.values,
            {**of_it, "offset": min(self.offsets), "timestamp": _iso(min(self.timestamps))},
            {**of_it, "offset": max(self.offsets), "timestamp": _iso(max(self.timestamps))},
            {**self.nulls, "partition": 0, "offset": 0, "timestamp": 0},
        )


class _Written:
    """A range while it is written."""

    def __init__(self, one: OffsetRange, root: str) -> None:
        self.range, self.root = one, root
        self.attempt = secrets.token_hex(8)
        self.position = one.start
        self.unseen = self.lost = self.quarantined = 0
        self.last = one.start - 1
        self.is_ordered = True
        self.files: list[NewFile] = []
        self.tallies: dict[int, Any] = {}
        self._open: dict[int, _Open] = {}
        self._count = 0

    def move(self, portion: Portion) -> None:
        """The next portion; what lies between it and the one before is gone."""
        self.lost += portion.start - self.position
        self.position = portion.end
        self.unseen += portion.unseen
        self.quarantined += portion.quarantined

    def write(self, batch: Any, offsets: Integers, timestamps: Integers) -> None:
        self.is_ordered &= bool(int(offsets[0]) > self.last and (np.diff(offsets) > 0).all())
        self.last = int(offsets[-1])
        days = np.clip(timestamps // _DAY_MS, _FIRST_DAY, _LAST_DAY)
        for day in np.unique(days).tolist():
            mask = days == day
            if mask.all():
                self._file(day, batch.schema).write(batch, offsets, timestamps)
            else:
                self._file(day, batch.schema).write(_filtered(batch, mask), offsets[mask], timestamps[mask])

    def finish(self, decoder: Decoder | None) -> RangeFacts:
        self.lost += self.range.end - self.position
        self.close()
        decoded, is_stale = ({}, False) if decoder is None else (dict(decoder.columns), decoder.is_stale)
        return RangeFacts(
            self.range, self.unseen, self.lost, tuple(self.files), self.is_ordered, self.quarantined, decoded, is_stale, self.tallies
        )

    def abandon(self) -> None:
        """Closes what is still open after an error; no one will know of it."""
        for found in self._open.values():
            with suppress(OSError):
                found.file.close()
        self._open.clear()

    def _file(self, day: int, schema: Any) -> _Open:
        found = self._open.get(day)
        if found is not None and found.schema != schema:  # a column came, and a file cannot take it
            self.close()
            found = None
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self.close()
            date = (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat()
            topic, number = self.range.partition
            name = f"{number}-{self.range.start}-{self.range.end}-{self.attempt}-{self._count}.{COMPRESSION}.parquet"
            self._count += 1
            found = self._open[day] = _Open(self.root, f"topic={topic}/day={date}/{name}", {"topic": topic, "day": date}, schema)
        return found

    def close(self) -> None:
        """Closes the files that are open. One that cannot be closed is not tried again: the error says why."""
        while self._open:
            self.files.append(self._open.pop(next(iter(self._open))).close(self.range.partition))


def _filtered(batch: Any, mask: Any) -> Any:
    import pyarrow

    return batch.filter(pyarrow.array(mask))


def _iso(milliseconds: int) -> str:
    within = min(max(milliseconds, _FIRST_DAY * _DAY_MS), (_LAST_DAY + 1) * _DAY_MS - 1)
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=within)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
