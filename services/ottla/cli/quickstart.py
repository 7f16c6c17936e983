"""`ottla quickstart`: a real activity log goes in through one client and comes back complete through another.

All flights of a year are published in the order of the timetable through confluent-kafka (librdkafka, C) and read back
from offset 0 through kafka-python (pure Python). What came back is compared with the file, event by event.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ottla.cli.dev import DEFAULT_PORT, is_free
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import Count, bytes_of, say, table
from ottla.cli.process import PidFile

if TYPE_CHECKING:
    from ottla.cli.flights import Flight, Tally

T = TypeVar("T")

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.02

TOPIC: Final = "flights"
PARTITIONS: Final = 6
CODEC: Final = "lz4"
REPORT_EVERY: Final = 4_096
SILENT_SECONDS: Final = 30.0
Advance = Callable[[int], None]


def quickstart(
    stop: Annotated[bool, typer.Option("--stop", help="Stop the broker that an earlier quickstart left running.")] = False,
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Use this cluster and start nothing.", show_default=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help=f"With --bootstrap-server: delete that cluster's topic `{TOPIC}` if it has one.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Where the broker's data, log and pid file are kept.")
    ] = Path(".quickstart"),
    spark: Annotated[
        bool, typer.Option("--spark", help="Load them into a Delta table by Spark too, and plot the delays; needs ottla[spark] and a Java.")
    ] = False,
    counter: Annotated[
        str | None,
        typer.Option("--counter", metavar="URL", help="With --spark: the cluster's audit counter, which says whether the table has all."),
    ] = None,
) -> None:
    """Publish 336,776 real events, read them back through another client, and compare.

    Starts a broker in the background (embedded coordination: no Java, no Docker) and leaves it running, to be looked at.
    Running it again uses the same broker and a new topic.
    """
    background = BackgroundBroker(directory)
    if stop:
        stopped = background.stop()
        say(
            f"No broker of {directory} runs."
            if stopped is None
            else f"Stopped the broker at {stopped.bootstrap_servers}; its data is in {directory}."
        )
        return
    _need_kafka_python()
    from ottla.cli.flights_in_spark import why_not

    if spark and (reason := why_not()):
        raise CommandFailed(reason)
    if counter is not None and not (spark and bootstrap_server):
        raise UsageError("--counter is that of the cluster at --bootstrap-server, and is asked with --spark")
    into = directory if spark else None
    if bootstrap_server is None:
        pid_file = background.running()
        if pid_file is None:
            pid_file = background.start()
            say(f"Started Ottla on {pid_file.bootstrap_servers} (process {pid_file.process_id}, log {background.log_path}).")
        else:
            say(f"Ottla is running on {pid_file.bootstrap_servers} (process {pid_file.process_id}).")
        _run(pid_file.bootstrap_servers, replace=True, into=into)
        _say_what_next(pid_file.bootstrap_servers, directory)
    else:
        _run(bootstrap_server, replace, into, counter)
        _say_what_next(bootstrap_server, None)


def _need_kafka_python() -> None:
    from importlib.util import find_spec

    if find_spec("kafka") is None or find_spec("lz4") is None:
        raise CommandFailed("the quickstart reads through kafka-python: pip install 'ottla[quickstart]'")


def _run(bootstrap_server: str, replace: bool, into: Path | None, counter: str | None = None) -> None:
    from ottla.cli import flights

    directory = flights.data_directory()
    with _progress() as bar:
        with bar("reading the file", flights.TOTAL) as advance:
            events = flights.in_order(list(_counted(flights.read(directory), advance)))
        expected = flights.Tally()
        for event in events:
            expected.add(event.key, event.value, event.carrier)
        create_topic(bootstrap_server, replace, is_audited=counter is not None)
        with bar("publishing, confluent-kafka", len(events)) as advance:
            published = publish(bootstrap_server, events, advance)
        del events
        with bar("reading back, kafka-python", expected.events) as advance:
            found, read = read_back(bootstrap_server, expected.events, advance)
    _say_result(bootstrap_server, expected, found, published, read, flights.airline_names(directory))
    if wrong := flights.differences(expected, found):
        raise CommandFailed("what came back is not what was published:\n" + "\n".join(f"  {line}" for line in wrong))
    say("\nEverything came back: every event, every byte, each aircraft's flights in their order.")
    if into is not None:
        from ottla.cli.flights_in_spark import report

        into.mkdir(parents=True, exist_ok=True)
        report(bootstrap_server, TOPIC, into, flights.airline_names(directory), expected.events, counter)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], Any]]:
    """Progress bars, one below the other; on something that is no terminal, only how each ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description:<28}")
    with Progress(text, BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:

        @contextmanager
        def bar(description: str, total: int) -> Iterator[Advance]:
            task = progress.add_task(description, total=total)
            yield lambda count: progress.advance(task, count)

        yield bar


def _counted(items: Iterator[T], advance: Advance) -> Iterator[T]:
    number = 0
    for number, item in enumerate(items, start=1):
        if number % REPORT_EVERY == 0:
            advance(REPORT_EVERY)
        yield item
    advance(number % REPORT_EVERY)


def _say_result(bootstrap_server: str, expected: Any, found: Any, published: Pace, read: Pace, names: dict[str, str]) -> None:
    from ottla.cli.connection import Connection
    from ottla.cli.topic_facts import gather

    (topic,) = gather(Connection(bootstrap_server), [TOPIC])
    rows = [
        ("client", published.client, read.client),
        ("events", f"{expected.events:,}", f"{found.events:,}"),
        ("bytes of keys and values", bytes_of(expected.size), bytes_of(found.size)),
        ("seconds", f"{published.seconds:.1f}", f"{read.seconds:.1f}"),
        ("messages/s", f"{expected.events / published.seconds:,.0f}", f"{found.events / read.seconds:,.0f}"),
    ]
    if topic.size is not None and found.events:
        on_disk = f"{topic.size / found.events:.1f} B a message ({CODEC}; {bytes_of(topic.size)})"
        rows.append(("on disk", on_disk, f"of {expected.size / expected.events:.1f} B uncompressed"))
    say()
    say(table(("", "in", "out"), rows))
    say()
    carriers = expected.by_carrier | found.by_carrier
    say(
        table(
            ("carrier", "airline", "in the file", "came back", "same"),
            [
                (
                    carrier,
                    names.get(carrier, "?"),
                    Count(expected.by_carrier[carrier]),
                    Count(found.by_carrier[carrier]),
                    expected.by_carrier[carrier] == found.by_carrier[carrier],
                )
                for carrier, _ in carriers.most_common()
            ],
        )
    )


def program() -> str:
    """How this command is called from here: `ottla` when that is what a shell would run, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which("ottla")
    if called.name != "ottla":
        return f"{_from_here(Path(sys.executable))} -m ottla.cli"
    if found is not None and Path(found).resolve() == called.resolve():
        return "ottla"
    return _from_here(called)


def _from_here(path: Path) -> str:
    """Relative when it lies below this directory, else in full."""
    relative = os.path.relpath(path)
    return str(path.absolute()) if relative.startswith("..") else relative


def _say_what_next(bootstrap_server: str, directory: Path | None) -> None:
    from ottla.cli.connection import DEFAULT_BOOTSTRAP_SERVER

    ottla = program()
    address = "" if bootstrap_server == DEFAULT_BOOTSTRAP_SERVER else f" -b {bootstrap_server}"
    say()
    say("Look further:")
    say(f"  {ottla} topics describe {TOPIC}{address}")
    say(f"  {ottla} consume {TOPIC} -o -2 --key{address}")
    say(f"  {ottla} consume {TOPIC} -o s@2013-12-24T06:00 -c 5 --timestamp{address}")
    again = f"{address} --replace" if directory is None else ""
    say(f"  {ottla} quickstart --spark{again}  (a Delta table, and delays as a plot; needs ottla[spark] and a Java)")
    if directory is not None:
        segment = next(iter(sorted((directory / "data" / "log" / f"{TOPIC}-0").glob("*.log"))), None)
        if segment is not None:
            say(f"  {ottla} log dump {_from_here(segment)}")
        option = "" if directory == Path(".quickstart") else f" --directory {directory}"
        say(f"Stop the broker:\n  {ottla} quickstart --stop{option}")


# A broker in the background: `ottla dev`, detached, with its pid file, log and data in one directory.
#
# The quickstart starts it, uses it again the next time, and stops it when asked to.


@dataclass(frozen=True, slots=True)
class BackgroundBroker:
    """The broker that lives in this directory, running or not."""

    directory: Path

    @property
    def pid_path(self) -> Path:
        return self.directory / "ottla.pid"

    @property
    def log_path(self) -> Path:
        return self.directory / "ottla.log"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def running(self) -> PidFile | None:
        """What the pid file says, if that process still runs and is one of ours."""
        pid_file = PidFile.read(self.pid_path)
        if pid_file is None or not pid_file.is_alive() or not _is_ottla(pid_file.process_id):
            return None
        return pid_file

    def start(self) -> PidFile:
        """Starts it and waits until it answers; the usual port if that is free, else any."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.pid_path.unlink(missing_ok=True)
            log = self.log_path.open("ab")
        except OSError as error:
            raise CommandFailed(f"{error.filename} cannot be made: {error.strerror}; say where data may go: --directory") from None
        port = DEFAULT_PORT if is_free(f"127.0.0.1:{DEFAULT_PORT}") else 0
        command = [sys.executable, "-m", "ottla.cli", "dev"]
        command += ["--data-dir", str(self.data_directory), "--port", str(port), "--pid-file", str(self.pid_path)]
        with log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            pid_file = PidFile.read(self.pid_path)
            if pid_file is not None and pid_file.process_id == process.pid:
                return pid_file
            if process.poll() is not None:
                raise CommandFailed(f"the broker did not start:\n{self._end_of_log()}")
            time.sleep(POLL_SECONDS)
        process.terminate()
        raise CommandFailed(f"the broker was not ready after {START_SECONDS:.0f} s:\n{self._end_of_log()}")

    def stop(self) -> PidFile | None:
        """Asks it to stop and waits until it has; None when it did not run."""
        pid_file = self.running()
        if pid_file is None:
            return None
        os.kill(pid_file.process_id, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while pid_file.is_alive() and self.pid_path.exists():
            if time.monotonic() > deadline:
                raise CommandFailed(f"process {pid_file.process_id} was asked to stop and still runs after {STOP_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        return pid_file

    def _end_of_log(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-10:])


def _is_ottla(process_id: int) -> bool:
    """Whether the process runs our command: after a restart of the machine the number may be another process's, of this checkout too."""
    try:
        return b"\0ottla.cli\0dev\0" in Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return True  # a system without /proc: the pid file is all there is


# The quickstart's way there and back: a new topic, all events in through one client, all events out through another.


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a client took."""

    client: str
    seconds: float


def create_topic(bootstrap_server: str, replace: bool, *, is_audited: bool = False) -> None:
    """A new, empty topic. An old one of the same name is deleted if that was asked for.

    Args:
        is_audited: records have the broker's time: an audit counter has no windows for 2013.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly

    admin = Connection(bootstrap_server).admin()
    # The events are of 2013: by the default retention of a week they would be long gone, and a segment for each week of
    # theirs (`segment.ms` goes by the events' time) would be many small files.
    settings = {"retention.ms": "-1", "segment.ms": str(2 * 365 * 86_400_000)}
    if is_audited:
        settings["message.timestamp.type"] = "LogAppendTime"
    topic = NewTopic(TOPIC, PARTITIONS, -1, config=settings)
    with told_plainly(bootstrap_server, f"topic {TOPIC!r}"):
        if TOPIC in cluster_metadata(admin, bootstrap_server).topics:
            if not replace:
                raise CommandFailed(f"{bootstrap_server} has a topic {TOPIC!r} already; --replace deletes it")
            admin.delete_topics([TOPIC], operation_timeout=ANSWER_SECONDS)[TOPIC].result()
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[TOPIC].result()
                return
            except KafkaException as exception:
                # A deletion is answered when it is decided; the name is free a moment later.
                if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def publish(bootstrap_server: str, events: Sequence[Flight], advance: Advance) -> Pace:
    """Publishes in order; returns when every event is acknowledged."""
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "client.id": "ottla-quickstart",
            "enable.idempotence": True,
            "compression.type": CODEC,
            "linger.ms": 20,
            "partitioner": "murmur2_random",  # Java's: the same key lies in the same partition, no matter who publishes
            "log_level": 2,
        }
    )
    acknowledged = 0
    failures: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(error.str())
            return
        acknowledged += 1
        if acknowledged % REPORT_EVERY == 0:
            advance(REPORT_EVERY)

    started = time.monotonic()
    for number, event in enumerate(events):
        while True:
            try:
                producer.produce(TOPIC, event.value, event.key, timestamp=event.timestamp_ms, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()
    advance(acknowledged % REPORT_EVERY)
    if failures or acknowledged != len(events):
        reason = failures[0] if failures else "no answer came"
        raise CommandFailed(f"{acknowledged:,} of {len(events):,} events were acknowledged; the first that was not: {reason}")
    return Pace(f"confluent-kafka {confluent_kafka.__version__}", time.monotonic() - started)


def read_back(bootstrap_server: str, expected_events: int, advance: Advance) -> tuple[Tally, Pace]:
    """Reads every partition from offset 0 to its end and tallies what came."""
    import kafka

    from ottla.cli.flights import Tally

    started = time.monotonic()
    found = Tally()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_server,
        client_id="ottla-quickstart",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=REPORT_EVERY,
    )
    try:
        partitions = [kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        home: dict[bytes, int] = {}
        last_seen = time.monotonic()
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            polled = consumer.poll(timeout_ms=500)
            for records in polled.values():
                for record in records:
                    found.add(record.key, record.value, json.loads(record.value)["carrier"])
                    if record.key is not None and home.setdefault(record.key, record.partition) != record.partition:
                        raise CommandFailed(f"events of {record.key.decode()} are in partitions {home[record.key]} and {record.partition}")
                advance(len(records))
            if polled:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > SILENT_SECONDS:
                raise CommandFailed(f"{found.events:,} of {expected_events:,} events came back, then nothing for {SILENT_SECONDS:.0f} s")
    finally:
        consumer.close()
    return found, Pace(f"kafka-python {kafka.__version__}", time.monotonic() - started)
