"""What a table that loads write to says of itself: where each job is, and whether every row that was committed is there once.

Reads the table alone and asks no broker. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ottla.model import TopicPartition
from ottla.record.columnar import Integers
from ottla.spark.loading.files import PARTITION_BY
from ottla.spark.offsets import Offsets, flat
from ottla.spark.table import Table, TableUnusable

_APPLICATION: Final = "ottla-load/"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job, by its last commit that the log still has."""

    job: str
    version: int
    snapshot: int
    at_ms: int
    by: str
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found.

    Attributes:
        rows: that the table has.
        files: that it is made of.
        wrong: a sentence for each thing that is not as it should be.
        is_whole: whether the log still has every commit of every job, so that rows could be counted against commits.
    """

    rows: int
    files: int
    wrong: Sequence[str]
    is_whole: bool


def status(table: Table) -> list[JobStatus]:
    """Where each job is, in the order of their names."""
    found: dict[str, JobStatus] = {}
    for commit in table.commits():
        application = str(commit["application"])
        job = application.removeprefix(_APPLICATION)
        if application != job and job not in found:
            offsets = flat(commit["offsets"])
            found[job] = JobStatus(job, commit["version"], commit["snapshot"], commit["at_ms"], commit["by"], offsets)
    return [found[job] for job in sorted(found)]


def check_is_of_loads(table: Table) -> None:
    """Raises TableUnusable for a table of something else."""
    if list(table.delta.metadata().partition_columns) != list(PARTITION_BY):
        raise TableUnusable(f"{table.uri} is no table that loads write to: it is not partitioned by {' and '.join(PARTITION_BY)}")


def verify(table: Table) -> Verdict:
    """Reads topic, partition and offset of every row, and looks at every file's size.

    A row that is there twice, one behind its job's offsets, a file that is gone or has another size, and a number of rows that is not
    the one that was committed are wrong.

    Raises:
        TableUnusable: it is no load's.
    """
    check_is_of_loads(table)
    wrong: list[str] = []
    actions = table.files()
    if "://" not in table.uri:
        for action in actions:
            path = Path(table.uri) / action["path"]
            size = path.stat().st_size if path.exists() else None
            if size != action["size_bytes"]:
                wrong.append(f"{action['path']} has {size} bytes, and {action['size_bytes']} were committed")
    runs = runs_of_rows(table) if not wrong else {}
    rows = {partition: int((ends - starts).sum()) for partition, (starts, ends) in runs.items()}
    committed, is_whole, reached = _committed(table)
    loaded: dict[TopicPartition, list[Integers]] | None = None
    for partition in sorted(runs.keys() | committed.keys()) if not wrong else ():
        starts, ends = runs.get(partition, np.zeros((2, 0), np.int64))
        if (again := starts[1:] < ends[:-1]).any():
            loaded = _loaded(table) if loaded is None else loaded
            if doubled := _doubled(starts, ends, again, loaded.get(partition, [])):
                wrong.append(f"{partition}: {doubled} offsets are there more than once")
        if len(ends) and partition in reached and int(ends[-1]) > reached[partition]:
            wrong.append(f"{partition}: offset {int(ends[-1]) - 1} is there, and its job is at {reached[partition]}")
        if is_whole and (count := rows.get(partition, 0)) != committed[partition]:
            wrong.append(f"{partition}: {count} rows are there, and {committed[partition]} were committed")
    return Verdict(sum(rows.values()), len(actions), tuple(wrong), is_whole)


def runs_of(offsets: Integers) -> Integers:
    """The first offsets of those that stand side by side, and the offsets behind the last, each in their order."""
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    return np.array([ordered[np.append(0, breaks + 1)], ordered[np.append(breaks, len(ordered) - 1)] + 1])


def runs_of_rows(table: Table) -> dict[TopicPartition, Integers]:
    """As `runs_of`, of each partition."""
    found: dict[TopicPartition, list[Integers]] = {}
    for file, batch in table.rows(["partition", "offset"]):
        numbers, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
        for number in np.unique(numbers).tolist():
            found.setdefault(TopicPartition(file["partition.topic"], number), []).append(runs_of(offsets[numbers == number]))
    return {partition: np.sort(np.concatenate(parts, axis=1), axis=1) for partition, parts in found.items()}


def _loaded(table: Table) -> dict[TopicPartition, list[Integers]]:
    """What loads have committed of each partition: one after the other of each topic that had the name, starts and ends of ranges."""
    found: dict[TopicPartition, dict[str | None, list[tuple[int, int]]]] = {}
    for commit in table.commits():
        for topic, number, start, end, *_ in commit["ranges"] if str(commit["application"]).startswith(_APPLICATION) else ():
            topic_id = commit.get("topics", {}).get(topic)
            found.setdefault(TopicPartition(topic, number), {}).setdefault(topic_id, []).append((start, end))
    return {partition: [np.sort(ranges, axis=0).T for ranges in by_id.values()] for partition, by_id in found.items()}


def _doubled(starts: Integers, ends: Integers, again: NDArray[np.bool_], loaded: Sequence[Integers]) -> int:
    """How many offsets are too many: each is there once, and once more for each further topic of the name that was loaded up to there.

    Args:
        again: which of the runs begin before the former ends, so that more than one has what lies between.
    """
    between = zip(starts[1:][again].tolist(), ends[:-1][again].tolist(), strict=True)
    offsets = np.unique(np.concatenate([np.arange(start, end) for start, end in between]))
    counts = np.searchsorted(starts, offsets, "right") - np.searchsorted(ends, offsets, "right")
    within = [np.searchsorted(starts, offsets, "right") > np.searchsorted(ends, offsets, "right") for starts, ends in loaded]
    return int(np.maximum(counts - np.maximum(np.sum(within, axis=0), 1), 0).sum())


def _committed(table: Table) -> tuple[Counter[TopicPartition], bool, dict[TopicPartition, int]]:
    """Rows by partition over all commits that the log has, whether those are all, and where jobs are."""
    ranges, ends, is_whole = committed_by_loads(table)
    rows = Counter({partition: sum(count for _, _, count, _ in found) for partition, found in ranges.items()})
    # Of a job that the log has been cleaned of there are rows, and no commit says so.
    return rows, is_whole and table.has_whole_log, ends


def committed_by_loads(
    table: Table,
) -> tuple[dict[TopicPartition, list[tuple[int, int, int, int]]], dict[TopicPartition, int], bool]:
    """What loads have committed, as far as the log goes back.

    Returns:
        Ranges of each partition as start, end, rows, lost; where jobs are; and whether the log has every commit of every job.
    """
    ranges: dict[TopicPartition, list[tuple[int, int, int, int]]] = {}
    ends: dict[TopicPartition, int] = {}
    first: dict[str, int] = {}
    for commit in table.commits():
        if not str(commit["application"]).startswith(_APPLICATION):
            continue
        first[commit["application"]] = commit["version"]
        for topic, number, start, end, count, lost in commit["ranges"]:
            ranges.setdefault(TopicPartition(topic, number), []).append((start, end, count, lost))
        for partition, offset in flat(commit["offsets"]).items():
            ends[partition] = max(ends.get(partition, 0), offset)
    return ranges, ends, set(first.values()) <= {1}
