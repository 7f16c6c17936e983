"""`ottla log dump`: what is in a segment and its indexes, without a broker.

It reads and never writes, so it may look at the log of a running broker. It fails (exit code 1) when something is
wrong with a file, so that it serves in scripts as a check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import commands
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, say

if TYPE_CHECKING:
    from ottla.cli.segment_text import Line

app = commands("Look into the files of a log.")


@app.callback()
def _group() -> None:
    """Keeps `dump` a command of its own: a Typer app with one command would become that command."""


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

    Also prints an index, aborted transactions, a producer snapshot or a leader-epoch-checkpoint. Exit code 1: something is
    wrong with a file.

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
    for path in files:
        if len(files) > 1 and not as_json:
            say(f"{path}:")
        for line in _lines(path, records, index_check):
            problems += line.problems
            say(json.dumps(line.document(), ensure_ascii=False) if as_json else line.text())
    if problems:
        raise CommandFailed(f"{count_of(problems, 'problem')} found")


def _lines(path: Path, records: bool, index_check: bool) -> Iterator[Line]:
    from ottla.cli import segment_text

    printers: dict[str, Callable[[Path], Iterator[Line]]] = {
        ".log": lambda segment: segment_text.segment(segment, records, index_check),
        ".index": segment_text.offset_index,
        ".timeindex": segment_text.time_index,
        ".txnindex": segment_text.transaction_index,
        ".snapshot": segment_text.snapshot,
    }
    printer = segment_text.leader_epochs if path.name == "leader-epoch-checkpoint" else printers.get(path.suffix)
    if printer is None:
        raise UsageError(f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file, nor a leader-epoch-checkpoint")
    yield from printer(path)
