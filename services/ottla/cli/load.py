"""`ottla load`: topics into a Delta table, every record once; and what such a table says of itself.

Spark, pyarrow and deltalake come with `ottla[spark]`, and are imported when a command runs.
"""

from __future__ import annotations

import datetime
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer
from typer.core import TyperGroup

from ottla.cli.audit import DEFAULT_URL, MessagesDiffer, NotKnown
from ottla.cli.audit import Url as CounterUrl
from ottla.cli.connection import BootstrapServer, pairs
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_lines import FormatOption, LevelOption, ends_told, set_up
from ottla.cli.output import bytes_of, count_of, note, say, say_json, table
from ottla.errors import ConfigurationError, OttlaError

if TYPE_CHECKING:
    from ottla.spark.audit import Reconciliation
    from ottla.spark.loading.driver import LoadOutcome, LoadSettings
    from ottla.spark.loading.schemas import OnSchemaChange
    from ottla.spark.loading.statistics import LoadStatistics
    from ottla.spark.table import Table

log = logging.getLogger(__name__)

T = TypeVar("T")

_MILLISECONDS_DIGITS: Final = 19  # with fewer a number fits 64 bits
_DURATION: Final = re.compile(r"(\d{1,18})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES: Final = re.compile(r"\n\s*0: ")
_RANGES_SHOWN: Final = 8
RUN: Final = "run"


class _RunByDefault(TyperGroup):
    """`ottla load clicks --into …` is `ottla load run clicks --into …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Load topics into a Delta table, every record once.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
TablePath = Annotated[str, typer.Argument(metavar="TABLE", help="The Delta table's directory or address.")]
AsJson = Annotated[bool, typer.Option("--json", "-J", help="One JSON document.")]


@app.command(RUN)
def run(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="The topics.")] = None,
    into: Annotated[str, typer.Option("--into", metavar="TABLE", help="The Delta table; it is made if it is not there.")] = "",
    job: Annotated[str, typer.Option("--job", help="Whose offsets they are; one table may take several jobs.")] = "load",
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="Topics by their whole name, instead.")] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="OFFSETS", help="Where a job begins that never ran: startingOffsets.")
    ] = "earliest",
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="No record from this time on: ISO 8601, or ms.")] = None,
    max_records: Annotated[int | None, typer.Option("--max-records", min=1, help="At most so many offsets in one commit.")] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="TIME", help="Go on, and look for more after so long: 1s, 5m.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Make few large files of many small ones afterwards.")] = False,
    may_lose: Annotated[bool, typer.Option("--allow-data-loss", help="Go on where records are gone.")] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Put what is damaged into TABLE/_quarantine and go on; otherwise the load fails.")
    ] = False,
    registry: Annotated[
        str | None, typer.Option("--registry", "-r", metavar="URL", help="Decode values with the schemas of this registry.")
    ] = None,
    registry_user: Annotated[
        str | None, typer.Option("--registry-user", metavar="NAME:PASSWORD", envvar="OTTLA_SCHEMA_REGISTRY_USER", help="Who asks it.")
    ] = None,
    on_schema_change: Annotated[
        str, typer.Option("--on-schema-change", metavar="fail|merge|new", help="What columns do that the table does not have.")
    ] = "fail",
    audit_window: Annotated[
        str | None,
        typer.Option(
            "--audit-window", metavar="TIME", help="Report to the audit by windows of this length: the counter's audit.window.ms."
        ),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Commit the offsets to this group too, for tools that show lag.")] = None,
    master: Annotated[str, typer.Option("--master", help="Spark's: local[2], spark://host:7077; or `none`, in this process.")] = "local[*]",
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics-file", metavar="FILE.prom", help="Write metrics here, for node-exporter's textfile collector.")
    ] = None,
    http_listener: Annotated[
        str | None, typer.Option("--http-listener", metavar="HOST:PORT", help="Answer /metrics and /healthz here while it runs.")
    ] = None,
    stale_after: Annotated[
        str, typer.Option("--stale-after", metavar="TIME", help="How old the last success may become: what LoadStale compares with.")
    ] = "1h",
    properties: Annotated[list[str] | None, typer.Option("--property", "-X", metavar="KEY=VALUE", help="Of the Kafka client.")] = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = "127.0.0.1:9092",
) -> None:
    """Load what is new. Data and offsets are one commit of the table; a load that was killed is run again, and that is all.

    A load that finds nothing commits nothing, and starts no Spark.

    Examples:

    - `ottla load clicks --into /data/clicks`
    - `ottla load clicks orders --into s3://lake/events --every 1s --max-records 1000000`
    - `ottla load orders --into /data/orders --registry http://127.0.0.1:8081 --on-schema-change merge`
    - `ottla load --pattern 'metrics\\..*' --into /data/metrics --master spark://spark:7077`
    """
    chosen_format = set_up(log_level, log_format, default_level="warning")
    with ends_told(chosen_format):
        _needs_spark()
        from ottla.spark.loading.driver import LoadSettings
        from ottla.spark.loading.schemas import Decoding
        from ottla.spark.loading.statistics import LoadStatistics

        if not into:
            raise UsageError("--into TABLE says where to")
        if metrics_file is not None and not metrics_file.absolute().parent.is_dir():
            raise UsageError(f"--metrics-file {metrics_file}: there is no directory {metrics_file.parent}")
        if bool(topics) == (pattern is not None):
            raise UsageError("name topics, or give a --pattern")
        options = {f"kafka.{name}": value for name, value in pairs(properties, "-X").items()}
        options |= {"subscribe": ",".join(topics)} if topics else {"subscribePattern": pattern or ""}
        options |= {"kafka.bootstrap.servers": bootstrap_server, "startingOffsets": begin, "failOnDataLoss": str(not may_lose).lower()}
        if quarantine:
            options |= {"onCorrupt": "quarantine", "quarantinePath": f"{into.rstrip('/')}/_quarantine"}
        decoding = None
        if registry is not None:
            decoding = Decoding(registry, registry_user, cast("OnSchemaChange", on_schema_change))
        elif on_schema_change != "fail":
            raise UsageError("--on-schema-change is about values that are decoded, which takes a --registry")
        settings = LoadSettings.of(
            options,
            into,
            job,
            decoding=decoding,
            until_ms=_milliseconds(until),
            max_records=max_records,
            group=group,
            audit_window_ms=None if audit_window is None else round(_duration(audit_window, "--audit-window") * 1000),
        )
        pause_seconds = None if every is None else _duration(every, "--every")
        statistics = LoadStatistics(job, _duration(stale_after, "--stale-after"))
        with ExitStack() as stack:
            if http_listener is not None:
                _note(chosen_format, f"metrics are at {stack.enter_context(statistics.served(http_listener))}/metrics")
            load = _counted(_loader(settings, master, stack, is_quiet=as_json), statistics, metrics_file)
            stopping = stack.enter_context(_until_stopped())
            while True:
                outcome = load()
                _tell(outcome, settings, as_json, chosen_format)
                is_done = not outcome.left
                if pause_seconds is None and is_done:
                    break
                if stopping.wait(pause_seconds if is_done and pause_seconds is not None else 0):
                    break
        if compact:
            _note(
                chosen_format,
                f"{count_of(_asked(into, lambda table: table.compact(), 'all is loaded, and no file compacted: '), 'file')} compacted",
            )
        if outcome.left_out:
            raise CommandFailed("; ".join(outcome.left_out))


@app.command("status")
def status(path: TablePath, as_json: AsJson = False) -> None:
    """Say where each job is: its commits, its offsets, who committed last."""
    _needs_spark()
    from ottla.spark.loading import inspection
    from ottla.spark.offsets import nested

    jobs = _asked(path, inspection.status)
    if as_json:
        say_json(
            [
                {
                    "job": job.job,
                    "commits": job.version,
                    "snapshot": job.snapshot,
                    "atMs": job.at_ms,
                    "by": job.by,
                    "offsets": nested(job.offsets),
                }
                for job in jobs
            ]
        )
        return
    if not jobs:
        say(f"no job has loaded anything into {path}, as far as its log goes back")
    for job in jobs:
        at = datetime.datetime.fromtimestamp(job.at_ms / 1000, datetime.UTC).isoformat(timespec="seconds")
        say(f"{job.job}: {count_of(job.version, 'commit')}, the last is snapshot {job.snapshot}, at {at}, by {job.by}")
        say(table(["topic", "partition", "offset"], [[*partition, offset] for partition, offset in sorted(job.offsets.items())]))


@app.command("verify")
def verify(path: TablePath, as_json: AsJson = False) -> None:
    """Read every row's offset: each once, none behind its job, and as many as were committed. Exit code 1 if something is wrong."""
    _needs_spark()
    from ottla.spark.loading import inspection

    verdict = _asked(path, inspection.verify)
    if as_json:
        say_json({"rows": verdict.rows, "files": verdict.files, "wrong": list(verdict.wrong), "countedAgainstCommits": verdict.is_whole})
    else:
        for sentence in verdict.wrong:
            say(sentence)
        against = "" if verdict.is_whole else "; the log does not go back far enough to count them against its commits"
        say(f"{count_of(verdict.rows, 'row')} in {count_of(verdict.files, 'file')}{against}")
    if verdict.wrong:
        raise CommandFailed(f"{count_of(len(verdict.wrong), 'thing')} in {path} not as it should be")


@app.command("reconcile")
def reconcile(
    path: TablePath,
    day: Annotated[str, typer.Option("--day", metavar="DAY", help="Of message time, in UTC: 2026-11-22, or yesterday.")] = "yesterday",
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this one; may be repeated.")] = None,
    counter: CounterUrl = DEFAULT_URL,
    master: Annotated[str, typer.Option("--master", help="Spark's: local[2], spark://host:7077; or `none`, in this process.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Does the table have what the brokers had on a day? Names offsets that are missing or doubled.

    Exits 0 when it has every message once, 1 when one is lost, doubled or another, 3 when that is not known.

    Examples:

    - `ottla load reconcile /data/clicks --day 2026-11-22`
    """
    _needs_spark(*(() if master == "none" else ("pyspark",)), extra="xxhash")
    from ottla.spark import audit
    from ottla.spark.loading.driver import failing
    from ottla.spark.session import session

    try:
        with ExitStack() as stack:
            spark = None
            if master != "none":
                stack.enter_context(failing("the rows cannot be read"))
                spark = stack.enter_context(session("ottla load reconcile", master, {"spark.ui.enabled": "false"}))
            with _told(path):
                found = audit.reconcile(path, _day(day), topics or None, counter=counter, spark=spark)
    except (ConfigurationError, UsageError):
        raise
    except OttlaError as error:  # of which the exit code would say that messages are lost
        raise NotKnown(str(error)) from error
    if as_json:
        say_json(
            {
                "day": found.day.isoformat(),
                "verdict": found.verdict,
                "exit_code": found.exit_code,
                "partitions": [
                    {**asdict(one), "partition": one.partition.partition, "topic": one.partition.topic} for one in found.partitions
                ],
                "counter": found.edges,
            }
        )
    else:
        _tell_reconciliation(found)
    if found.exit_code == 1:
        raise MessagesDiffer(f"{path}: rows of {found.day} are lost, doubled or others")
    if found.exit_code:
        raise NotKnown(f"{path}: it is not known whether all of {found.day} is there")


def _tell_reconciliation(found: Reconciliation) -> None:
    def ranges(some: Sequence[tuple[int, int]], *, is_exact: bool = True) -> str:
        shown = ", ".join(f"{start}" if end == start + 1 else f"{start} to {end - 1}" for start, end in some[:_RANGES_SHOWN])
        more = f" and {len(some) - _RANGES_SHOWN} more" if len(some) > _RANGES_SHOWN else ""
        return f"{'' if is_exact or not some else 'among '}{shown}{more}"

    rows = [
        (
            str(one.partition),
            one.verdict,
            f"{one.brokers:,}",
            f"{one.rows:,}",
            ranges(one.missing, is_exact=one.is_exact),
            ranges(one.doubled),
            one.evidence,
            one.reason,
        )
        for one in found.partitions
    ]
    if rows:
        say(table(("PARTITION", "VERDICT", "BROKERS", "ROWS", "MISSING", "DOUBLED", "BY", "WHY"), rows))
    for topic, edges in found.edges.items():
        for edge, verdicts in edges.items():
            say(f"{topic}, {edge}: {', '.join(f'{verdict} {count:,}' for verdict, count in verdicts.items())}")
    say(f"{found.day}: {found.verdict}")


def _day(text: str) -> datetime.date:
    if text == "yesterday":
        return datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--day takes a day as 2026-11-22, or yesterday, and {text!r} is neither") from None


@app.command("vacuum")
def vacuum(
    path: TablePath,
    hours: Annotated[
        float, typer.Option("--older-than-hours", min=0, max=1_000_000, help="Files of this age; more than the longest load takes.")
    ] = 168,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; without it they are only named.")] = False,
) -> None:
    """Name, or delete, files that no snapshot of that age knows: what killed tasks left, and what was compacted away."""
    _needs_spark()
    files = _asked(path, lambda table: table.vacuum(hours, dry_run=not delete))
    for name in files:
        say(name)
    note(f"{count_of(len(files), 'file')} {'deleted' if delete else 'would be deleted'}")


def _needs_spark(*more: str, extra: str | None = None) -> None:
    for name in ("pyarrow", "deltalake", *more):
        if find_spec(name) is None:
            raise CommandFailed(f"{name} is not installed: pip install 'ottla[spark]'")
    if extra is not None and find_spec(extra) is None:
        raise CommandFailed(f"{extra} is not installed: pip install 'ottla[spark,audit]'")


def _asked(path: str, what: Callable[[Table], T], before: str = "") -> T:
    """What is asked of a table, or done to it."""
    from ottla.spark.table import Table

    with _told(path, before):
        return what(Table.open(path))


@contextmanager
def _told(path: str, before: str = "", after: str = "") -> Iterator[None]:
    """What a table's log, its files and their storage raise, as one line: `deltalake` tells it in colours, with Rust's frames.

    Args:
        before, after: what else a person has to know, or may do.
    """
    from deltalake.exceptions import DeltaError
    from pyarrow import ArrowException

    try:
        yield
    except (DeltaError, ArrowException, OSError) as error:
        said = _COLOURS.sub("", _FRAMES.split(str(error), 1)[0])
        raise CommandFailed(f"{path}: {before}{' '.join(said.split()).rstrip('.')}{after}") from error


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < _MILLISECONDS_DIGITS:
        return int(text)
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until takes a time as 2026-11-22T10:00:00Z or milliseconds, and {text!r} is neither") from None
    return int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def _duration(text: str, option: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) * _SECONDS[match[2]] > threading.TIMEOUT_MAX:
        raise UsageError(f"{option} takes a time such as 500ms, 1s or 5m, and {text!r} is none")
    return int(match[1]) * _SECONDS[match[2]]


def _counted(load: Callable[[], LoadOutcome], statistics: LoadStatistics, file: Path | None) -> Callable[[], LoadOutcome]:
    def counted() -> LoadOutcome:
        try:
            outcome = load()
        except BaseException:
            statistics.failed()
            raise
        else:
            statistics.took(outcome)
            return outcome
        finally:
            if file is not None:
                try:
                    statistics.write(file)
                except OSError as error:  # what was loaded is committed all the same, and that the file is old is an alert
                    log.warning("--metrics-file %s cannot be written: %s", file, error.strerror)

    return counted


def _loader(settings: LoadSettings, master: str, stack: ExitStack, *, is_quiet: bool) -> Callable[[], LoadOutcome]:
    from ottla.spark.loading.driver import Executor, LocalExecutor, SparkExecutor, load

    executor: Executor
    if master == "none":
        executor = LocalExecutor()
    else:
        _needs_spark("pyspark")
        from ottla.spark.session import session

        executor = SparkExecutor(lambda: stack.enter_context(session(f"ottla load {settings.job}", master, {"spark.ui.enabled": "false"})))

    def load_once() -> LoadOutcome:
        with _told(settings.table, after="; once that is mended, run the load again"), _progress(is_quiet) as shown:
            return load(settings, executor, progress=shown)

    return load_once


@contextmanager
def _progress(is_quiet: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("loading"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=is_quiet or not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("loading", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, so that a load which continues ends after the one that runs."""
    stopping = threading.Event()
    former = signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGTERM, former)


def _note(log_format: str, sentence: str) -> None:
    """A line to stderr, which is one of the log where those are JSON."""
    if log_format == "json":
        log.info("%s", sentence)
    else:
        note(sentence)


def _tell(outcome: LoadOutcome, settings: LoadSettings, as_json: bool, log_format: str) -> None:
    if as_json:
        from ottla.spark.offsets import nested

        say_json(
            {
                "table": settings.table,
                "job": settings.job,
                "snapshot": outcome.snapshot,
                "commits": outcome.version,
                "rows": outcome.rows,
                "files": outcome.files,
                "bytes": outcome.size,
                "lost": outcome.lost,
                "quarantined": outcome.quarantined,
                "seconds": round(outcome.seconds, 3),
                "offsets": nested(outcome.offsets),
            }
        )
    elif outcome.is_empty:
        _note(log_format, f"nothing new for {settings.table}")
    else:
        lost = f"; {count_of(outcome.lost, 'record')} lost" if outcome.lost else ""
        lost += f"; {count_of(outcome.quarantined, 'record')} in quarantine" if outcome.quarantined else ""
        _note(
            log_format,
            f"{count_of(outcome.rows, 'row')} in {count_of(outcome.files, 'file')}, {bytes_of(outcome.size)}, are snapshot"
            f" {outcome.snapshot} of {settings.table} after {outcome.seconds:.1f} s{lost}",
        )
