"""One load after the other: from the table's offsets to the topics' ends, in one commit.

    open the table ── its snapshot and offsets ── ends ── plan ── tasks write ── check ── commit ── what is only good to have

Before the commit nothing is visible, after it everything is: a driver that is killed anywhere is started again and that is all. Two
drivers of one job both read; the table refuses the second one's commit, which says who was first.

The offsets are those that the job's last commit remembers. Where the log has been cleaned of it, they are computed from the table's own
rows, and a log line says so.
"""

from __future__ import annotations

import enum
import logging
import os
import re
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final, Protocol

from ottla.clock import Clock, SystemClock
from ottla.errors import ApiError, ConfigurationError, OttlaError, reason_of
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.spark.loading.auditing import Report, send
from ottla.spark.loading.decoding import OURS, ColumnTypes, merged
from ottla.spark.loading.files import PARTITION_BY, WriteTask, table_schema, write
from ottla.spark.loading.inspection import runs_of_rows
from ottla.spark.loading.ranges import MAX_RECORDS_PER_FILE, LoadIncomplete, RangeFacts, check, forgotten, plan, reached
from ottla.spark.loading.schemas import Decoding
from ottla.spark.offsets import Loss, Offsets, backlog, flat, nested, packed
from ottla.spark.reading import ClusterReader, ReadFailed, report
from ottla.spark.settings import Boundary, OptionRefused, SourceSettings
from ottla.spark.table import Table, TableUnusable
from ottla.wire.admin import ConfigResource, ResourceType, describe_configs
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, commit_offsets

log = logging.getLogger(__name__)

_ASK_SECONDS: Final = 30.0
_CHECKED_SECONDS: Final = 60.0
_ASKED_AGAIN_SECONDS: Final = 0.5
_SMALL_RANGE: Final = 100_000  # offsets that are not worth a task of their own
_NOT_OF_A_LOAD: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "columns", "includeValue")
_TO_GO_ON: Final = "load it as another job, with startingOffsets, and this one without it"
_MOST_UNSENT: Final = 10_000  # records for the audit, which may be away for days
# By the session of a job's reports: up to which number, by topic, this process has tried to send them, and what it could not.
_reported: Final[dict[str, tuple[Mapping[str, int], Sequence[tuple[str, bytes]]]]] = {}

_told: Final[set[str]] = set()  # by this process, of topics that it leaves out: a load may be done each second


class Step(enum.Enum):
    """Where a load has come to."""

    PLANNED = "planned"
    WRITTEN = "written"
    CHECKED = "checked"
    COMMITTED = "committed"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What is loaded, and where to.

    Attributes:
        source: topics, cluster, and where a job begins that never ran.
        table: the Delta table's directory or address. It is made if it is not there.
        job: whose offsets they are: a table may take several jobs, of different topics.
        until_ms: no record from this time on.
        max_records: at most so many offsets in one load.
        group: consumer group whose offsets are committed afterwards, for tools that show lag; None: none is.
        decoding: how values become columns; None: they stay bytes.
        audit_window_ms: windows by which the audit hears of what was loaded, the counter's `audit.window.ms`; None: it is not.
    """

    source: SourceSettings
    table: str
    job: str
    until_ms: int | None = None
    max_records: int | None = None
    max_records_per_file: int = MAX_RECORDS_PER_FILE
    group: str | None = None
    decoding: Decoding | None = None
    audit_window_ms: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], table: str, job: str, **more: Any) -> LoadSettings:
        """With the options of a batch of the source; only what is committed is read, unless they say otherwise.

        Raises:
            OptionRefused
        """
        given = {name.lower() for name in options}
        if idle := [name for name in _NOT_OF_A_LOAD if name.lower() in given]:
            raise OptionRefused(f"{idle[0]} is not for a load, which has all columns, and ends where the topics do or `until_ms` says")
        source = SourceSettings.of({"kafka.isolation.level": "read_committed", **options}, is_stream=False)
        if source.engine != "ottla":
            raise OptionRefused(f"a load accounts for every offset, of which engine={source.engine} does not say what became of it")
        if not job or len(job) > 200:
            raise ConfigurationError("a job has a name, of 200 characters at most")
        settings = cls(source, table, job, **more)
        if settings.audit_window_ms is not None and settings.audit_window_ms < 1:
            raise ConfigurationError("the audit's windows are 1 ms long at least: audit.window.ms of the counter")
        if settings.audit_window_ms is not None and find_spec("fastavro") is None:
            raise ConfigurationError("a load that is audited needs the extra `audit`: pip install 'ottla[spark,audit]'")
        return settings

    @property
    def application(self) -> str:
        return f"ottla-load/{self.job}"

    def mark_of(self, topic_id: str) -> str:
        """The application that says which topics the job has loaded: checkpoints keep it, where the log is cleaned of commits."""
        return f"ottla-load-topic/{topic_id}/{self.job}"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What a load did.

    Attributes:
        snapshot: of the table afterwards.
        version: of the job: how many commits it has made.
        rows, files, size: what was added.
        offsets: where the table is.
        left: how many offsets there were behind them when the load had its plan.
        left_out: a sentence for each topic of a pattern that was made again since it was loaded, which is another one. It is not loaded.
    """

    snapshot: int
    version: int
    rows: int
    files: int
    size: int
    offsets: Offsets = field(default_factory=dict)
    left: int = 0
    lost: int = 0
    seconds: float = 0.0
    quarantined: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to load, so that nothing was committed."""
        return not self.files and not self.rows and self.seconds == 0.0


class Executor(Protocol):
    """Who runs a load's tasks."""

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
        """Runs them, each at least once, and gives what one run of each says; `done` hears how many are, as they are."""
        ...


class TasksFailed(OttlaError):
    """Spark gave a task up, or is gone itself. The message says what the last attempt died of."""


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Raises what Spark raises as TasksFailed, with what that means."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        raise TasksFailed(f"{what}: {_cause(str(error))}") from error


class LocalExecutor:
    """Runs tasks in this process, without Spark."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
        found: list[RangeFacts] = []
        with ThreadPoolExecutor(self._threads, "ottla-load") as threads:
            for count, facts in enumerate(threads.map(WriteTask.run, tasks), 1):
                found += facts
                done(count)
        return found


class SparkExecutor:
    """Runs tasks on a Spark session, which is started when there is something to run: a load that finds nothing needs no JVM.

    Args:
        start: gives the session; called once.

    `run` raises TasksFailed.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._session: Any = None

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
        with failing("the tasks of a load failed, and nothing was committed"):
            self._session = self._session or self._start()
            return self._run(tasks, done)

    def _run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
        context = self._session.sparkContext
        group = f"ottla-load-{secrets.token_hex(4)}"  # of this run alone, whose tasks are counted

        def collect() -> list[list[RangeFacts]]:
            # A job is of the group of the thread that starts it; the threads of Java have none from each other.
            context.setJobGroup(group, f"load of {len(tasks)} tasks")
            return list(context.parallelize(tasks, len(tasks)).mapPartitions(write).collect())

        with ThreadPoolExecutor(1, "ottla-load") as thread:
            waiting = thread.submit(collect)
            while not waiting.done():
                done(_tasks_done(context.statusTracker(), group))
                try:
                    waiting.exception(0.5)
                except TimeoutError:
                    continue
        done(len(tasks))
        return [facts for of_task in waiting.result() for facts in of_task]


def _cause(told: str) -> str:
    """What a task died of, as one line of what Spark says of it: the error of its Python, or Spark's own of it."""
    before_java = re.split(r"\n\s+at [\w.$]+", told.rpartition("Traceback (most recent call last):\n")[2], maxsplit=1)[0]
    lines = [line.removeprefix(": ") for line in before_java.splitlines() if line.strip()]  # as py4j has the line of Java's error
    raised = [line for line in lines if re.match(r"[\w.]+: ", line) and not line.startswith("py4j.")]
    return (raised or [line.strip() for line in lines[-1:]] or ["it does not answer"])[0]


def _tasks_done(tracker: Any, group: str) -> int:
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _nothing(*_: object) -> None:
    pass


def load(
    settings: LoadSettings,
    executor: Executor,
    *,
    at: Callable[[Step], None] = _nothing,
    progress: Callable[[int, int], None] = _nothing,
    clock: Clock | None = None,
) -> LoadOutcome:
    """Loads what there is. Committed before it returns; where there is nothing, nothing is.

    Args:
        at: hears of each step when it is done.
        progress: hears how many tasks are done, of how many.

    Raises:
        TableConflict: another driver of the job was first.
        DataLost, ReadFailed, LoadIncomplete, SchemaChanged, RegistryUnavailable: nothing is committed.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    is_decoded = settings.decoding is not None
    table = Table.open(settings.table, table_schema(is_decoded=is_decoded), PARTITION_BY, clock, may_have_more=is_decoded)
    with ClusterReader(settings.source) as reader:
        version = table.application_version(settings.application)
        remembered = offsets_of(table, settings)
        last = table.remembered(settings.application) or {}
        known_ids = last.get("topics", {})
        start, end, forgone = reader.looked_at_again(lambda: _bounds(settings, reader, remembered, known_ids))
        ranges = plan(start, end, settings.max_records, settings.max_records_per_file)
        left = backlog(reached(start, ranges), end)
        left_out = tuple(_others(reader.topic_ids, known_ids).values())
        for sentence in left_out:
            if sentence not in _told:
                log.error("%s: %s", settings.table, sentence)
                _told.add(sentence)
        before = _report_before(table, settings)
        # Whether another process has sent it is not known: it is sent before there is another commit, which remembers what was not.
        if before is not None and (not ranges or before.session not in _reported):
            _report(settings, before, _unsent(before), clock)
        if not ranges:
            return LoadOutcome(table.version, version or 0, 0, 0, 0, start, left_out=left_out)
        known = {name: kind for name, kind in table.types().items() if name not in OURS} if is_decoded else {}
        groups = _grouped(ranges, reader)
        at(Step.PLANNED)
        facts, columns = _written(settings, groups, known, executor, lambda count: progress(count, len(groups)))
        at(Step.WRITTEN)
        _check_topics(reader, clock)
        compacted = _compacted(settings, {one.range.partition.topic for one in facts if one.empty > 0})
        check(ranges, facts, compacted, may_lose=not settings.source.fail_on_data_loss)
        at(Step.CHECKED)
        if added := {name: kind for name, kind in columns.items() if name not in known}:
            table.widen(added, settings.application)
        offsets = reached(start, ranges)
        mine = {partition.topic for partition in offsets}
        # Of one that is left out, what was loaded is another topic.
        ids = {topic: topic_id for topic, topic_id in reader.topic_ids.items() if topic in mine} | dict(known_ids)
        files = [file for one in facts for file in one.files if file.rows]
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        lost = forgone + sum(one.lost for one in facts)
        quarantined = sum(one.quarantined for one in facts)
        said = None
        if settings.audit_window_ms is not None:
            said = Report.of(settings.job, facts, before, settings.audit_window_ms, clock.time_ms())
            said = replace(said, records=[*_unsent(before), *said.records])
        snapshot = table.commit(
            files,
            settings.application,
            (version or 0) + 1,
            {
                "offsets": nested(offsets),
                "topics": ids,
                "marked": True,
                "metrics": {
                    "rows": rows,
                    "bytes": size,
                    "files": len(files),
                    "lost": lost,
                    "quarantined": quarantined,
                    "left": left,
                    "seconds": round(clock.monotonic() - began, 3),
                },
                "ranges": [
                    [*one.range.partition, one.range.start, one.range.end, one.rows, one.lost]
                    for one in sorted(facts, key=lambda one: one.range)
                ],
                "by": f"{socket.gethostname()}, process {os.getpid()}",
                **({} if said is None else {"audit": said.to_remember()}),
            },
            marks=[
                settings.mark_of(topic_id) for topic, topic_id in sorted(ids.items()) if not last.get("marked") or topic not in known_ids
            ],
        )
        at(Step.COMMITTED)
        if settings.group is not None:
            _tell_group(settings, {partition: offset for partition, offset in offsets.items() if partition in end})  # that are there
        if said is not None:
            _report(settings, said, said.records, clock)
        at(Step.REPORTED)
    return LoadOutcome(
        snapshot,
        (version or 0) + 1,
        rows,
        len(files),
        size,
        offsets,
        left,
        lost,
        clock.monotonic() - began,
        quarantined,
        left_out,
    )


def _report_before(table: Table, settings: LoadSettings) -> Report | None:
    """What the job's last commit says to the audit, if this load is audited and that one was."""
    if settings.audit_window_ms is None:
        return None
    found = (table.remembered(settings.application) or {}).get("audit")
    return None if found is None else Report.remembered(found)


def _unsent(before: Report | None) -> list[tuple[str, bytes]]:
    """What this process could not send, and what a commit of another one says: that may have been killed before it sent it."""
    if before is None:
        return []
    reached, unsent = _reported.get(before.session, ({}, []))
    return [*unsent, *(before.records if reached != before.next_sequences else ())]


def _report(settings: LoadSettings, last: Report, records: Sequence[tuple[str, bytes]], clock: Clock) -> None:
    """For the audit counter, up to a report. What is not sent is sent after the next load, so a failure is a line in the log."""
    if not records:
        return
    _reported[last.session] = last.next_sequences, records[-_MOST_UNSENT:]
    try:
        with _asking(settings.source) as (loop, cluster):
            loop.call(send(cluster, records, clock.time_ms()), 4 * _ASK_SECONDS)
        _reported[last.session] = last.next_sequences, []
    except (OSError, ApiError, OttlaError) as error:
        log.warning("the audit is not told of this load yet, which changes nothing in the table: %s", error)


def offsets_of(table: Table, settings: LoadSettings) -> dict[TopicPartition, int] | None:
    """Where the job is in the table; None if it never ran."""
    if table.application_version(settings.application) is None:
        return None
    found = table.remembered(settings.application)
    if found is not None:
        return flat(found["offsets"])
    log.warning(
        "%s: the log has been cleaned of the last commit of %s; its offsets are computed from the table's rows", table.uri, settings.job
    )
    return offsets_of_rows(table, settings)


def offsets_of_rows(table: Table, settings: LoadSettings) -> dict[TopicPartition, int]:
    """The offset behind the last row of each partition of the topics that a job speaks of, or where it was to begin with it.

    Raises:
        TableUnusable: rows are of another topic, or an offset is there more than once, so that rows are of other topics or jobs too.
    """
    found = runs_of_rows(table)
    with ClusterReader(settings.source) as reader:
        there = reader.partitions()
        ends = _begins_without_rows(reader, there - found.keys())
    for partition in sorted(found.keys() & there):
        topic_id = reader.topic_ids.get(partition.topic)
        if topic_id is not None and table.application_version(settings.mark_of(topic_id)) is None:
            raise TableUnusable(
                f"{partition.topic} has the id {topic_id}, of which this job has loaded nothing into {table.uri}, and the rows of its name"
                f" there are of another topic or job: {_TO_GO_ON}"
            )
        starts, behind = found[partition]
        if (starts[1:] < behind[:-1]).any():
            raise TableUnusable(
                f"{partition} has offsets in {table.uri} more than once, of another job or of a topic that was made again, so that rows do"
                f" not say where this job is: {_TO_GO_ON}"
            )
        ends[partition] = int(behind[-1])
    return ends


def _begins_without_rows(reader: ClusterReader, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Where a job was to begin with partitions, of those that its settings speak of: others are read from their beginning."""
    starting = reader.settings.starting
    offsets, times = ({one: of[one] for one in partitions if one in of} for of in (starting.offsets, starting.timestamps_ms))
    wanted = partitions if starting.timestamp_ms is not None else {**offsets, **times}
    return reader.resolve(replace(starting, offsets=offsets, timestamps_ms=times, topic_offsets={}), wanted, is_start=True)


def _bounds(
    settings: LoadSettings, reader: ClusterReader, remembered: Offsets | None, known_ids: Mapping[str, str | None]
) -> tuple[Offsets, Offsets, int]:
    """Where to go on, up to where, and how many offsets before that are lost. Partitions that are new since are read from their beginning.

    Args:
        known_ids: of the topics whose offsets are remembered, as far as they are.
    """
    partitions = reader.partitions()
    others = _others(reader.topic_ids, known_ids)
    if others and settings.source.subscribe_pattern is None:
        raise ConfigurationError("; ".join(others.values()))
    partitions = {partition for partition in partitions if partition.topic not in others}
    # As Spark's own source. What a pattern matches may be created yet.
    if missing := sorted(set(settings.source.subscribe) - {partition.topic for partition in partitions}):
        raise ConfigurationError(f"there is no topic {', '.join(missing)}")
    losses: Sequence[Loss] = ()
    if remembered is None:
        start: dict[TopicPartition, int] = reader.resolve(settings.source.starting, partitions, is_start=True)
    else:
        earliest = reader.earliest(partitions)
        start = {**dict(remembered), **{partition: offset for partition, offset in earliest.items() if partition not in remembered}}
        losses = forgotten(start, earliest)
        report(losses, settings.source)
        start.update({loss.partition: loss.end for loss in losses})
    ends = reader.ends({partition: start[partition] for partition in partitions})
    latest = {partition: ends[partition] for partition in partitions if partition in ends}
    behind = [partition for partition, offset in latest.items() if offset < start[partition]]
    if behind and remembered is None and settings.source.starting.offsets:
        key = behind[0]
        raise OptionRefused(f"The resolved start offset {start[key]} is greater than the resolved end offset {latest[key]} for {key}")
    if behind and remembered is not None:
        ends_at = f"{behind[0]} ends at {latest[behind[0]]}, and the table is at {start[behind[0]]}"
        if behind[0].topic in known_ids.keys() & reader.topic_ids.keys():
            raise ReadFailed(
                f"{ends_at}, of this very topic: its leader has not heard of a successor yet, or its log was cut; run the load again"
            )
        raise ConfigurationError(f"{ends_at}: this is another topic than the one that was loaded; load it as another job")
    if settings.until_ms is not None:
        # Below 0 are ListOffsets' own words, such as -1 for where the log ends.
        until = reader.resolve(Boundary(timestamp_ms=max(0, settings.until_ms)), partitions, is_start=False)
        latest = {partition: min(offset, until[partition]) for partition, offset in latest.items()}
    return start, latest, sum(loss.end - loss.start for loss in losses)


def _others(topic_ids: Mapping[str, str], known_ids: Mapping[str, str | None]) -> dict[str, str]:
    """Topics that were made again since they were loaded, each with a sentence that says so."""
    return {
        topic: f"{topic} has the id {topic_id}, and had {known_ids[topic]} in the table's last load: this is another topic than the one"
        " that was loaded; load it as another job, and this one without it"
        for topic, topic_id in sorted(topic_ids.items())
        if known_ids.get(topic, topic_id) != topic_id
    }


def _check_topics(reader: ClusterReader, clock: Clock) -> None:
    """Looks whether the topics are those of the plan: tasks read them by their names.

    Everything is written by now, so a broker that cannot be reached is waited for.

    Raises:
        DataLost, LoadIncomplete: one was made again; whose records were read is not known.
        ReadFailed: no broker has answered for a minute.
    """
    planned = dict(reader.topic_ids)
    until = clock.monotonic() + _CHECKED_SECONDS
    while True:
        try:
            reader.partitions()
            break
        except ReadFailed as error:
            if clock.monotonic() >= until:
                raise
            log.info("asked again whether the topics are still those of the plan: %s", error)
            threading.Event().wait(_ASKED_AGAIN_SECONDS)
    if again := sorted(topic for topic, topic_id in planned.items() if reader.topic_ids[topic] != topic_id):
        raise LoadIncomplete(f"{', '.join(again)} was deleted and made again while it was read")


def _grouped(ranges: Sequence[Any], reader: ClusterReader) -> list[tuple[Any, ...]]:
    """Tasks. Parts of one partition are never in the same one."""
    parts = Counter(one.partition for one in ranges)
    alone = {partition for partition, count in parts.items() if count > 1}
    small = [one for one in ranges if one.partition not in alone]
    return [*packed(small, reader.leader, _SMALL_RANGE), *((one,) for one in ranges if one.partition in alone)]


def _written(
    settings: LoadSettings, groups: Sequence[tuple[Any, ...]], known: ColumnTypes, executor: Executor, done: Callable[[int], None]
) -> tuple[list[RangeFacts], ColumnTypes]:
    """What the tasks wrote, and the decoded columns of the table after it.

    Tasks know nothing of each other. Where a new column was given two types they run again, with one type to begin with, which no task
    changes any more; so there is an end.
    """

    def task(group: tuple[Any, ...]) -> WriteTask:
        return WriteTask(settings.source, group, settings.table, settings.decoding, known, settings.audit_window_ms)

    while True:
        facts = executor.run([task(group) for group in groups], done)
        if settings.decoding is None:
            return facts, known
        columns, is_whole = merged(known, [one.decoded for one in sorted(facts, key=lambda one: one.range)], settings.decoding)
        if is_whole and not any(one.is_stale for one in facts):
            return facts, columns
        known = columns


@contextmanager
def _asking(settings: SourceSettings) -> Iterator[tuple[LoopThread, Cluster]]:
    with LoopThread("ottla-load-ask") as loop:

        async def opened() -> Cluster:
            return Cluster(settings.kafka["bootstrap.servers"], settings.cluster_settings())

        cluster = loop.call(opened(), _ASK_SECONDS)
        try:
            yield loop, cluster
        finally:
            loop.call(cluster.close(), _ASK_SECONDS)


def _compacted(settings: LoadSettings, topics: Iterable[str]) -> set[str]:
    """Those of the topics that are compacted, as their settings say. Raises ReadFailed."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
    if not resources:
        return set()
    try:
        with _asking(settings.source) as (loop, cluster):
            found = loop.call(describe_configs(cluster, resources, timeout_seconds=_ASK_SECONDS), 2 * _ASK_SECONDS)
    except OSError as error:
        which = ", ".join(resource.name for resource in resources)
        servers = settings.source.kafka["bootstrap.servers"]
        raise ReadFailed(f"{servers} cannot be asked whether {which} is compacted: {reason_of(error)}") from error
    return {resource.name for resource, entries in found.items() if "compact" in (entries["cleanup.policy"].value or "")}


def _tell_group(settings: LoadSettings, offsets: Offsets) -> None:
    """For tools that show lag. The table has the offsets, so a failure is a line in the log."""
    assert settings.group is not None
    try:
        with _asking(settings.source) as (loop, cluster):
            committed = {partition: CommittedOffset(offset) for partition, offset in offsets.items()}
            loop.call(commit_offsets(cluster, settings.group, committed, timeout_seconds=_ASK_SECONDS), 2 * _ASK_SECONDS)
    except (OSError, ApiError, OttlaError) as error:
        log.warning("the offsets of group %s are not committed, which changes nothing in the table: %s", settings.group, error)
