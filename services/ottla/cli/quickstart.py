"""`ottla quickstart`: a real activity log goes in through one client and comes back complete through another.

All flights of a year are published in the order of the timetable through confluent-kafka (librdkafka, C) and read back
from offset 0 through kafka-python (pure Python). What came back is compared with the file, event by event.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ottla.cli.errors import CommandFailed
from ottla.cli.output import bytes_of, say, table
from ottla.cli.round_trip import CODEC, REPORT_EVERY, TOPIC, Advance, Pace, create_topic, publish, read_back

T = TypeVar("T")


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
) -> None:
    """Publish 336,776 real events, read them back through another client, and compare.

    Starts a broker in the background (embedded coordination: no Java, no Docker) and leaves it running, to be looked at.
    Running it again uses the same broker and a new topic.
    """
    from ottla.cli.background import BackgroundBroker

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
    if bootstrap_server is None:
        pid_file = background.running()
        if pid_file is None:
            pid_file = background.start()
            say(f"Started Ottla on {pid_file.bootstrap_servers} (process {pid_file.process_id}, log {background.log_path}).")
        else:
            say(f"Ottla is running on {pid_file.bootstrap_servers} (process {pid_file.process_id}).")
        _run(pid_file.bootstrap_servers, replace=True)
        _say_what_next(pid_file.bootstrap_servers, directory)
    else:
        _run(bootstrap_server, replace)
        _say_what_next(bootstrap_server, None)


def _need_kafka_python() -> None:
    from importlib.util import find_spec

    if find_spec("kafka") is None or find_spec("lz4") is None:
        raise CommandFailed("the quickstart reads through kafka-python: pip install 'ottla[quickstart]'")


def _run(bootstrap_server: str, replace: bool) -> None:
    from ottla.cli import flights

    directory = flights.data_directory()
    with _progress() as bar:
        with bar("reading the file", flights.TOTAL) as advance:
            events = flights.in_order(list(_counted(flights.read(directory), advance)))
        expected = flights.Tally()
        for event in events:
            expected.add(event.key, event.value, event.carrier)
        create_topic(bootstrap_server, replace)
        with bar("publishing, confluent-kafka", len(events)) as advance:
            published = publish(bootstrap_server, events, advance)
        del events
        with bar("reading back, kafka-python", expected.events) as advance:
            found, read = read_back(bootstrap_server, expected.events, advance)
    _say_result(bootstrap_server, expected, found, published, read, flights.airline_names(directory))
    if wrong := flights.differences(expected, found):
        raise CommandFailed("what came back is not what was published:\n" + "\n".join(f"  {each}" for each in wrong))
    say("\nEverything came back: every event, every byte, each aircraft's flights in their order.")


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
                    each,
                    names.get(each, "?"),
                    expected.by_carrier[each],
                    found.by_carrier[each],
                    expected.by_carrier[each] == found.by_carrier[each],
                )
                for each, _ in carriers.most_common()
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
    if directory is not None:
        segment = next(iter(sorted((directory / "data" / "log" / f"{TOPIC}-0").glob("*.log"))), None)
        if segment is not None:
            say(f"  {ottla} log dump {_from_here(segment)}")
        option = "" if directory == Path(".quickstart") else f" --directory {directory}"
        say(f"Stop the broker:\n  {ottla} quickstart --stop{option}")
