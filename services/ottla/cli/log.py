"""`ottla log dump`: what is in a segment and its indexes, without a broker; `ottla log directories`: what brokers have on their disks.

`dump` reads and never writes, so it may look at the log of a running broker. It fails (exit code 1) when something is
wrong with a file, so that it serves in scripts as a check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import Connection, Json, cluster_metadata, commands, connects, noted
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_directories import log_directories, state_of
from ottla.cli.output import Count, bytes_of, count_of, say, say_json, table

if TYPE_CHECKING:
    from ottla.cli.segment_text import Line

    Printer = Callable[[Path], Iterator[Line]]

app = commands("Look into the files of a log, and at the log directories of brokers.")


@app.command()
def dump(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help=".log, .index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint.")
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Also each record: offset, time, key, value, headers.")] = False,
    index_check: Annotated[bool, typer.Option("--index-check/--no-index-check", help="Compare a segment with its indexes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="A line of JSON for each batch, damage, index or entry.")] = False,
) -> None:
    """Print the batches of a segment with their checksums, and check its indexes.

    Records of `__consumer_offsets` and `__transaction_state` are decoded. Also prints an index, aborted transactions, a producer
    snapshot or a leader-epoch-checkpoint. Exit code 1: something is wrong with a file.

    Examples:

    - `ottla log dump data/flights-0/00000000000000000000.log`
    - `ottla log dump data/flights-0/*.log --records --json`
    """
    for path in files:
        try:
            is_directory, is_file = path.is_dir(), path.is_file()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        if is_directory:
            raise UsageError(f"{path} is a directory; name its files: {path}/*.log")
        if not is_file:
            raise UsageError(f"{path}: no such file")
    problems = 0
    for path, printer in [(path, _printer(path, records, index_check)) for path in files]:
        if len(files) > 1 and not as_json:
            say(f"{path}:")
        for line in printer(path):
            problems += line.problems
            say(json.dumps({"path": str(path), **line.document()}, ensure_ascii=False) if as_json else line.text())
    if problems:
        raise CommandFailed(f"{count_of(problems, 'problem')} found")


def _printer(path: Path, records: bool, index_check: bool) -> Printer:
    from ottla.cli import segment_text

    printers: dict[str, Printer] = {
        ".log": lambda segment: segment_text.segment(segment, records, index_check),
        ".index": segment_text.offset_index,
        ".timeindex": segment_text.time_index,
        ".txnindex": segment_text.transaction_index,
        ".snapshot": segment_text.snapshot,
    }
    printer = segment_text.leader_epochs if path.name == "leader-epoch-checkpoint" else printers.get(path.suffix)
    if printer is None:
        raise UsageError(f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file, nor a leader-epoch-checkpoint")
    return printer


@app.command()
@connects
def directories(
    where: Connection,
    brokers: Annotated[list[int] | None, typer.Argument(metavar="[BROKER]...", help="All when none is given.")] = None,
    topics: Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Only what is of it; may be repeated.")] = None,
    replicas: Annotated[bool, typer.Option("--replicas", "-r", help="Every replica, the largest first.")] = False,
    as_json: Json = False,
) -> None:
    """Show how much the log directories of brokers hold, and which replicas; exit code 1 when a broker does not answer.

    The lag of a replica is how many messages it is behind its leader; one that moves is a copy on its way to this directory.

    Examples:

    - `ottla log directories`
    - `ottla log directories 1 2 --topic clicks --replicas`
    """
    there = cluster_metadata(where.admin(), where.bootstrap_server).brokers
    if missing := sorted(set(brokers or ()) - set(there)):
        raise CommandFailed(f"there is no broker {missing[0]}, only {', '.join(map(str, sorted(there)))}")
    failures: list[str] = []
    documents: list[dict[str, Any]] = []
    for broker_id in sorted(set(brokers or there)):
        with noted(failures):
            found = log_directories((str(there[broker_id].host), there[broker_id].port), where.properties, replicas=True)
            documents += [_directory(broker_id, result, topics or ()) for result in sorted(found, key=lambda result: str(result.log_dir))]
    if as_json:
        say_json(documents)
    elif replicas:
        rows = [
            (
                document["broker"],
                document["directory"],
                replica["topic"],
                replica["partition"],
                bytes_of(replica["size"]),
                replica["lag"],
                replica["moves"],
            )
            for document in documents
            for replica in sorted(document["replicas"], key=lambda replica: -replica["size"])
        ]
        say(table(("broker", "directory", "topic", "partition", "size", "lag", "moves"), rows))
    else:
        sums = [
            (
                document["broker"],
                document["directory"],
                document["state"],
                Count(len(document["replicas"])),
                bytes_of(sum(replica["size"] for replica in document["replicas"])),
                None if document["usable_bytes"] is None else bytes_of(document["usable_bytes"]),
            )
            for document in documents
        ]
        say(table(("broker", "directory", "state", "replicas", "size", "free"), sums))
    if failures:
        raise CommandFailed("; ".join(failures))


def _directory(broker_id: int, result: Any, topics: Sequence[str]) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "directory": result.log_dir,
        "state": state_of(result),
        "total_bytes": None if result.total_bytes < 0 else result.total_bytes,
        "usable_bytes": None if result.usable_bytes < 0 else result.usable_bytes,
        "replicas": [
            {
                "topic": topic.name,
                "partition": partition.partition_index,
                "size": partition.partition_size,
                "lag": partition.offset_lag,
                "moves": partition.is_future_key,
            }
            for topic in sorted(result.topics, key=lambda topic: str(topic.name))
            if topic.name in (topics or (topic.name,))
            for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
        ],
    }
