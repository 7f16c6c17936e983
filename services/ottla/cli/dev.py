"""`ottla dev`: a real broker for a laptop, in one process, with nothing else to install.

The coordination is the embedded one, so there is no ZooKeeper to start. Everything it keeps is in one directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from ottla.cli.connection import pairs
from ottla.cli.errors import UsageError
from ottla.cli.output import say

DEFAULT_PORT: Final = 9092


def default_data_directory() -> Path:
    """`$XDG_DATA_HOME/ottla/dev`, by default `~/.local/share/ottla/dev`."""
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser() / "ottla" / "dev"


def dev_properties(data_directory: Path, host: str, port: int, partitions: int, overrides: dict[str, str]) -> dict[str, str]:
    """The broker's properties for one machine: Kafka's defaults but for these, and whatever `-X` says last."""
    return {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": str(data_directory / "log"),
        "coordination.directory": str(data_directory / "coordination"),
        "num.partitions": str(partitions),
        **overrides,
    }


def dev(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", "-d", metavar="DIR", help="Where to keep data. [default: $XDG_DATA_HOME/ottla/dev]", show_default=False),
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep data in a temporary directory and remove it at the end.")] = False,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes a free one.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of a topic that is created by being used.")] = 1,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-X", metavar="KEY=VALUE", help="A property of the broker, under Kafka's name; may be repeated."),
    ] = None,
    pid_file: Annotated[
        Path | None, typer.Option("--pid-file", metavar="FILE", help="Written when ready: process id and address, a line each.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run a broker on this machine: one process, no Java, no Docker, ready at once.

    Topics are created by being used. Ctrl-C stops it; data is there again at the next start, unless `--ephemeral`.

    Examples:

    - `ottla dev`
    - `ottla dev --ephemeral --port 0`
    - `ottla dev -d ./data -X log.segment.bytes=1048576`
    """
    if ephemeral and data_dir is not None:
        raise UsageError("--ephemeral and --data-dir contradict each other")
    with ExitStack() as stack:
        if ephemeral:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-dev-", ignore_cleanup_errors=True)))
        else:
            directory = (data_dir or default_data_directory()).expanduser().absolute()
        _run(directory, ephemeral, dev_properties(directory, host, port, partitions, pairs(properties, "-X")), pid_file, log_level)


def _run(directory: Path, ephemeral: bool, properties: dict[str, str], pid_file: Path | None, log_level: str) -> None:
    from ottla.cli.process import seconds_since_start, serve, set_up_logging
    from ottla.config.broker import BrokerSettings

    set_up_logging(log_level)
    settings = BrokerSettings.from_properties(properties)

    def ready(bootstrap_servers: str) -> None:
        address = "" if bootstrap_servers == f"127.0.0.1:{DEFAULT_PORT}" else f" -b {bootstrap_servers}"
        say(f"Ottla is ready on {bootstrap_servers} ({seconds_since_start():.2f} s)")
        say(f"  data      {directory}{' (removed at the end)' if ephemeral else ''}")
        say(f"  publish   echo 'hello' | ottla produce greetings{address}")
        say(f"  read      ottla consume greetings{address}")
        say(f"  look      ottla topics describe{address}")
        say("  stop      Ctrl-C")
        sys.stdout.flush()

    serve(settings, ready, pid_file)
