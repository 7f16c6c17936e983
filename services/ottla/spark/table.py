"""Appends to a Delta table that happen exactly once, from Spark and from `ottla load`.

Tasks write Parquet files that no one sees. One commit of the table's own log makes them part of it, together with the version that the
application has reached and whatever it has to remember (a load: its offsets). So data and offsets are there together or not at all, and a
program that was killed leaves files that no reader knows and `vacuum` removes. Two drivers of an application that began from the same
snapshot cannot both commit: the log refuses the second.

The package `deltalake` (delta-rs) writes the log; no JVM and no jar is needed, and Polars, DuckDB, pandas, Trino and Spark read it.
It is imported when a table is opened. No file of a table is ever changed here, and none is removed but by `vacuum`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from ottla.clock import Clock, SystemClock
from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# What a commit remembers for us, in its custom metadata: JSON with `application`, `version` and what the application adds.
METADATA: Final = "ottla"
COMPRESSION: Final = "zstd"
_RECENT: Final = 20  # commits that are looked through first, then so many times as many: others may commit each second
_FURTHER: Final = 4
_CONSTRAINTS: Final = "delta.constraints."
_NEVER_NULL: Final = re.compile(r'("(?:nullable|containsNull|valueContainsNull)":)false')  # in a schema's JSON


class TableConflict(OttlaError):
    """Another driver of the same application has committed since the table was opened; nothing of ours is in it."""


class TableUnusable(OttlaError):
    """There is no table, or one with another schema."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that was written and is not part of a table yet.

    Attributes:
        path: below the table's root.
        size: in bytes.
        rows: as its own footer has them.
        values: of the columns that the table is partitioned by.
        minimums, maximums, nulls: of some columns, for readers that skip files.
    """

    path: str
    size: int
    rows: int
    values: Mapping[str, str | None] = field(default_factory=dict)
    minimums: Mapping[str, Any] = field(default_factory=dict)
    maximums: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)


def _kind_of(kind: Any) -> str:
    """A column's type as JSON, without what may be null in it: that differs from frame to frame."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false),?', "", str(kind.to_json())).strip('"')


class Table:
    """A table as it was when it was opened: every commit is from that snapshot.

    Args:
        uri: a directory, or what `deltalake` takes: `s3://…`, `hdfs://…`.
        delta: the opened `deltalake.DeltaTable`.
    """

    def __init__(self, uri: str, delta: Any, clock: Clock | None = None) -> None:
        self.uri = uri
        self.delta = delta
        self._clock = clock or SystemClock()
        self._remembered: dict[tuple[str, int], dict[str, Any] | None] = {}

    @classmethod
    def open(
        cls,
        uri: str,
        schema: Any = None,
        partition_by: Sequence[str] = (),
        clock: Clock | None = None,
        *,
        may_have_more: bool = False,
    ) -> Self:
        """Opens a table.

        Args:
            schema: a `pyarrow.Schema`: the table is made with it if it is not there, and has to have it if it is.
            may_have_more: whether it may have other columns too.

        Raises:
            TableUnusable
            ConfigurationError: as `place_of`.
        """
        from deltalake import CommitProperties, DeltaTable, Schema
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if uri.startswith("file:"):
            uri = place_of(uri)[1]
        try:
            delta = DeltaTable(uri)
        except TableNotFoundError as error:
            if schema is None:
                raise TableUnusable(f"there is no Delta table at {uri}") from error
            if "://" not in uri:
                Path(uri).mkdir(parents=True, exist_ok=True)
            # Frames differ in what may be null in them, and a null in a column that has none makes the whole table unreadable.
            columns = Schema.from_json(_NEVER_NULL.sub(r"\1true", Schema.from_arrow(schema).to_json()))
            # Tried once: a second try would be commit 1, which makes the same table again and refuses commits from the first.
            once = CommitProperties(max_commit_retries=0)
            try:
                delta = DeltaTable.create(uri, columns, mode="ignore", partition_by=list(partition_by), commit_properties=once)
                delta.update_incremental()
            except DeltaError:  # who made it at the same moment has made it for both
                delta = DeltaTable(uri)
        if schema is not None and list(delta.metadata().partition_columns) != list(partition_by):
            raise TableUnusable(f"{uri} is partitioned by {delta.metadata().partition_columns}, not by {list(partition_by)}")
        checked = sorted(name for name in delta.metadata().configuration if name.startswith(_CONSTRAINTS))
        if schema is not None and checked:
            raise TableUnusable(f"{uri} has {', '.join(checked)}, and rows that are written from here are not checked by such constraints")
        if schema is not None:
            there = {entry.name: _kind_of(entry.type) for entry in delta.schema().fields}
            if set(schema.names) - set(there) or (set(there) - set(schema.names) and not may_have_more):
                raise TableUnusable(f"{uri} has columns {', '.join(sorted(there))}, not {', '.join(sorted(schema.names))}")
            for entry in Schema.from_arrow(schema).fields:  # a file of another type would make the whole table unreadable
                if (kind := _kind_of(entry.type)) != there[entry.name]:
                    raise TableUnusable(f"the column {entry.name} of {uri} is {there[entry.name]}, not {kind}")
        return cls(uri, delta, clock)

    @property
    def version(self) -> int:
        """The number of the snapshot."""
        return int(self.delta.version())

    def application_version(self, application: str) -> int | None:
        """What an application has reached; None if it never committed. Kept in checkpoints, so it is there however old it is."""
        found = self.delta.transaction_version(application)
        return None if found is None else int(found)

    def remembered(self, application: str) -> dict[str, Any] | None:
        """What the application's last commit remembers; None if it never did, or the log has been cleaned of it."""
        reached = self.application_version(application)
        if reached is None:
            return None
        if (application, reached) not in self._remembered:
            limit = _RECENT
            found: dict[str, Any] | None = None
            while found is None:
                found = next((one for one in self.commits(limit) if (one["application"], one["version"]) == (application, reached)), None)
                if limit > self.version:  # that was the whole log
                    break
                limit *= _FURTHER
            self._remembered[application, reached] = found
        return self._remembered[application, reached]

    def commits(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """What commits of ours remember, the newest first, with `at_ms` and the table's `snapshot`."""
        reached: dict[str, int | None] = {}
        for entry in self.delta.history(limit):
            if entry.get(METADATA) is None:
                continue
            found = json.loads(entry[METADATA])
            application = found["application"]
            if application not in reached:
                reached[application] = self.application_version(application)
            last = reached[application]
            if last is not None and found["version"] <= last:  # `history` has what came behind the snapshot too
                yield {**found, "at_ms": int(entry["timestamp"]), "snapshot": int(entry["version"])}

    @property
    def has_whole_log(self) -> bool:
        """Whether the log has every commit: it is cleaned of old ones."""
        return len(self.delta.history()) > self.version

    def types(self) -> dict[str, Any]:
        """The `pyarrow.DataType` of each column."""
        import pyarrow

        schema = pyarrow.schema(self.delta.schema().to_arrow())
        return {entry.name: entry.type for entry in schema}

    def widen(self, columns: Mapping[str, Any], application: str) -> None:
        """Adds columns, which are null in every row that is there. A commit of its own: who is killed after it has changed no row.

        Args:
            columns: the `pyarrow.DataType` of each.

        Raises:
            TableConflict: the application has committed since the table was opened, or anybody has added columns.
        """
        import pyarrow
        from deltalake import Schema
        from deltalake.exceptions import DeltaError

        before = self.application_version(application)
        fields = Schema.from_arrow(pyarrow.schema([pyarrow.field(name, kind) for name, kind in columns.items()])).fields
        try:
            self.delta.alter.add_columns(list(fields))
        except DeltaError as error:
            raise TableConflict(f"columns cannot be added to {self.uri}, so nothing was committed: {error}") from error
        self.delta.update_incremental()
        # The snapshot is a later one now, so a commit from it would not see what another driver did before.
        reached = self.application_version(application)
        if reached != before:
            who = (self.remembered(application) or {}).get("by", "another driver")
            raise TableConflict(f"{application} has reached {reached} in {self.uri}, by {who}; nothing was committed")

    def commit(
        self,
        files: Sequence[NewFile],
        application: str,
        version: int,
        remember: Mapping[str, Any] | None = None,
        *,
        marks: Sequence[str] = (),
    ) -> int:
        """Makes files part of the table, and the application's version what is given, in one.

        A storage that fails may have taken the commit all the same: the log fails after it where its checkpoint finds no room, and an
        answer may be lost. So the log is read again, and what names this very commit is it.

        Args:
            marks: further applications, which reach version 1 with it.

        Returns:
            The number of the new snapshot.

        Raises:
            TableConflict: with who was first.
            TableUnusable: a task wrote a file into a directory of another machine, or relative to where it ran.
            DeltaError, OSError: nothing was committed, or the storage cannot be read either.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        for file in files:
            path = Path(self.uri) / file.path
            if "://" not in self.uri and not (path.exists() and path.stat().st_size == file.size):
                raise TableUnusable(
                    f"{path}, which a task wrote, is not here: tasks and driver have to have one directory, under one absolute path, or an"
                    " address; nothing was committed"
                )
        now_ms = self._clock.time_ms()
        actions = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(file.values),
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps(
                    {
                        "numRecords": file.rows,
                        "minValues": dict(file.minimums),
                        "maxValues": dict(file.maximums),
                        "nullCount": dict(file.nulls),
                    }
                ),
            )
            for file in files
        ]
        mark = secrets.token_hex(8)
        remembered = {"application": application, "version": version, "mark": mark, **(remember or {})}
        try:
            self.delta.create_write_transaction(
                actions,
                mode="append",
                schema=self.delta.schema(),
                partition_by=list(self.delta.metadata().partition_columns),
                commit_properties=CommitProperties(
                    custom_metadata={METADATA: json.dumps(remembered, separators=(",", ":"))},
                    app_transactions=[Transaction(application, version, now_ms), *(Transaction(mark, 1, now_ms) for mark in marks)],
                ),
            )
        except (DeltaError, OSError) as error:
            found = type(self).open(self.uri)
            reached = found.application_version(application)
            if reached is None or reached < version:
                raise
            if all(commit.get("mark") != mark for commit in found.commits(_RECENT)):
                who = (found.remembered(application) or {}).get("by", "another driver")
                raise TableConflict(
                    f"{application} has reached {reached} in {self.uri}, by {who}; version {version} was not committed"
                ) from error
            log.warning(
                "%s: version %d of %s is committed, and what the log does after it failed: %s", self.uri, version, application, error
            )
        self.delta.update_incremental()
        return self.version

    def files(self) -> list[dict[str, Any]]:
        """What the snapshot is made of: `path` below the root, `size_bytes`, `num_records`, and `partition.<column>`."""
        import pyarrow

        found: list[dict[str, Any]] = pyarrow.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        return found

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Some columns of every row, as `pyarrow.RecordBatch`es, each with its file as `files` has it.

        In this thread alone: `deltalake`'s dataset reads in Arrow's threads through Python, and a command that had just read one was
        seen to be aborted at its end (`terminate called without an active exception`).
        """
        for file in self.files():
            for batch in file_rows(self.uri, file["path"], columns):
                yield file, batch

    def vacuum(self, older_than_hours: float, *, dry_run: bool) -> list[str]:
        """Removes files that no snapshot of that age knows: what killed tasks left behind too. Gives their names.

        A file of a load that runs now is an orphan until its commit, so nothing younger than a load takes may be removed. `deltalake` knows
        whole hours: a part of one is an hour.

        Raises:
            ConfigurationError: that is no age.
        """
        if not 0 <= older_than_hours < math.inf:
            raise ConfigurationError(f"files are removed that are older than some hours, from 0 on, and not than {older_than_hours}")
        return list(self.delta.vacuum(math.ceil(older_than_hours), dry_run=dry_run, enforce_retention_duration=False, full=True))

    def compact(self) -> int:
        """Makes few large files of many small ones, which changes no row. Gives how many files were replaced."""
        return int(self.delta.optimize.compact()["numFilesRemoved"])


def place_of(uri: str) -> tuple[Any, str]:
    """A directory's file system as Arrow has it, and its path there: of a path, of one behind `file:`, or of an address.

    Raises:
        ConfigurationError: what is behind `file:` is of another machine.
    """
    from pyarrow import fs

    if uri.startswith("file:"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{uri} is of the machine {parts.netloc}: a directory of this one is file:///path")
        return fs.LocalFileSystem(), unquote(parts.path)
    found: tuple[Any, str] = fs.FileSystem.from_uri(uri) if "://" in uri else (fs.LocalFileSystem(), uri)
    return found


def file_rows(uri: str, path: str, columns: Sequence[str]) -> Iterator[Any]:
    """Some columns of a file's rows, as `pyarrow.RecordBatch`es.

    Args:
        path: below the root, as `Table.files` has it.
    """
    from pyarrow import parquet

    system, base = place_of(uri)
    with system.open_input_file(f"{base}/{path}") as source, parquet.ParquetFile(source) as opened:
        yield from opened.iter_batches(columns=list(columns), use_threads=False)


class ParquetFile:
    """A file below a table's root while it is written. Leaving the block puts it on the disk."""

    def __init__(self, root: str, path: str, schema: Any) -> None:
        from pyarrow import fs, parquet

        system, base = place_of(root)
        whole = f"{base}/{path}"
        self._local = whole if isinstance(system, fs.LocalFileSystem) else None
        system.create_dir(whole.rpartition("/")[0], recursive=True)
        self.size = self.rows = 0
        self._stream = system.open_output_stream(whole)
        self._writer = parquet.ParquetWriter(self._stream, schema, compression=COMPRESSION)

    def write(self, batch: Any) -> None:
        """Adds rows, which become a row group."""
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Writes the footer, and waits until all of it is on the disk."""
        try:
            self._writer.close()
            self.size = self._stream.tell()
        finally:
            self._stream.close()
        if self._local is not None:
            descriptor = os.open(self._local, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def append(frame: DataFrame, path: str, *, application: str, version: int) -> bool:
    """Appends a frame to a table as the application's `version`, once: what a stream's `foreachBatch` calls with its batch id.

    Args:
        application: of one checkpoint alone: a query with another one begins at batch 0 again, which may be taken for the former one's.

    Returns:
        Whether it was appended. False: that version was committed last, and nothing is done.

    Raises:
        TableConflict: another driver committed it meanwhile, or a later version is committed.
        TableUnusable: the table has other columns, or of other types, or the frame has a null where the table has none.
    """
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    table = Table.open(path, schema)
    columns = pyarrow.schema(table.delta.schema().to_arrow())
    reached = table.application_version(application)
    if reached == version:
        return False
    if reached is not None and reached > version:
        raise TableConflict(
            f"{application} has reached version {reached} in {path}, so that {version} is of another checkpoint, a new one or one that was"
            " restored or copied: start the query with the one that wrote it, or give its appends another application"
        )

    def written(batches: Iterator[Any]) -> NewFile | str:
        """The file, or which column has a null that it may not have."""
        name = f"part-{secrets.token_hex(16)}.{COMPRESSION}.parquet"
        with ParquetFile(path, name, schema) as file:
            for batch in batches:
                for column in columns:
                    if found := _null_in(column, batch.column(column.name)):
                        return found
                file.write(batch.cast(schema))
        return NewFile(name, file.size, file.rows)

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        first = next(batches, None)
        if first is not None:
            found = written(chain([first], batches))
            yield pyarrow.RecordBatch.from_pydict({"file": [json.dumps(found if isinstance(found, str) else asdict(found))]})

    told = [json.loads(row.file) for row in frame.mapInArrow(write, "file string").collect()]
    if wrong := [found for found in told if isinstance(found, str)]:
        raise TableUnusable(f"the column {wrong[0]} of {path} may not be null, and is in a row of version {version}; nothing was committed")
    files = [NewFile(**found) for found in told]
    table.commit([file for file in files if file.rows], application, version)
    return True


def _null_in(field: Any, values: Any) -> str | None:
    """The name of a column, or of a part of it, that has a null and may not; None is none."""
    from pyarrow import types

    if not field.nullable and values.null_count:
        return str(field.name)
    there, kind = values.drop_null(), field.type
    parts = []
    if types.is_struct(kind):
        parts = [(kind.field(number), there.field(number)) for number in range(kind.num_fields)]
    elif types.is_map(kind):
        first, last = there.offsets[0].as_py(), there.offsets[-1].as_py()
        parts = [(kind.item_field, there.items[first:last])]
    elif types.is_list(kind):
        parts = [(kind.value_field, there.flatten())]
    return next((f"{field.name}.{found}" for found in (_null_in(*part) for part in parts) if found), None)


def read(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """A table's snapshot as a frame, without Delta's jar.

    Args:
        version: a snapshot's number; None is the latest.
    """
    from pyspark.sql.types import StructType

    table = Table.open(path)
    if version is not None:
        table.delta.load_as_version(version)
    schema = StructType.fromJson(json.loads(table.delta.schema().to_json()))
    files = [f"{table.uri}/{file['path']}" for file in table.files()]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", table.uri).parquet(*files)
