"""`ottla dev`: a real broker for a laptop, or a cluster of them, in one process, with nothing else to install.

The coordination is the embedded one, so there is no ZooKeeper to start. Everything it keeps is in one directory.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from ottla.cli.connection import pairs
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_lines import FormatOption, LevelOption, ends_told, set_up
from ottla.cli.output import note, say

DEFAULT_PORT: Final = 9092
# What `--with` takes, and the port of each.
SERVICE_PORTS: Final = {"schema-registry": 8081, "audit-counter": 8090, "mirror-maker": 9095}
ZOOKEEPER_ADDRESS: Final = "127.0.0.1:2181"  # of the embedded twin, where consumers of other processes meet


def default_data_directory() -> Path:
    """`$XDG_DATA_HOME/ottla/dev`, by default `~/.local/share/ottla/dev`."""
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser() / "ottla" / "dev"


def log_directory(data_directory: Path, broker_id: int, brokers: int) -> Path:
    """Where a broker keeps its logs: `log` for one that is alone, else `broker-1` and so on.

    What broker 1 has is found again when a cluster grows or shrinks.
    """
    alone, one_of_several = data_directory / "log", data_directory / f"broker-{broker_id}"
    if broker_id > 1 or one_of_several.exists():
        return one_of_several
    return one_of_several if brokers > 1 and not alone.exists() else alone


def dev_properties(
    data_directory: Path, host: str, port: int, partitions: int, overrides: dict[str, str], broker_id: int = 1, brokers: int = 1
) -> dict[str, str]:
    """A broker's properties for one machine: Kafka's defaults but for these, and whatever `-X` says last.

    Raises:
        UsageError: it would say the same of several brokers, of which each has its own.
    """
    if brokers > 1 and (shared := {"broker.id", "log.dir", "log.dirs"} & overrides.keys()):
        raise UsageError(f"{min(shared)} would be that of all {brokers} brokers; each has its own: -d says where their data goes")
    return {
        "broker.id": str(broker_id),
        "listeners": f"PLAINTEXT://{host}:{port + broker_id - 1 if port else 0}",
        # It goes before a log.dir that is given.
        ("log.dir" if "log.dir" in overrides else "log.dirs"): str(log_directory(data_directory, broker_id, brokers)),
        "coordination.directory": str(data_directory / "coordination"),
        "num.partitions": str(partitions),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": str(min(3, brokers)),
        "transaction.state.log.replication.factor": str(min(3, brokers)),
        "transaction.state.log.min.isr": str(min(2, brokers)),
        **({"coordination.listener": ZOOKEEPER_ADDRESS} if broker_id == 1 and is_free(ZOOKEEPER_ADDRESS) else {}),
        **overrides,
        **_own_http_listener(overrides, broker_id),
    }


def _from_environment() -> Mapping[str, str]:
    """What variables `OTTLA_SETTING_…` say, as they do for `ottla broker`."""
    if not any(name.startswith("OTTLA_SETTING_") for name in os.environ):
        return {}  # without the import
    from ottla.config.broker import BrokerSettings
    from ottla.config.environment import from_environment

    return from_environment(BrokerSettings, os.environ)


def is_free(address: str) -> bool:
    """Whether one could listen there now. No one relies on it: a broker continues without."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def _own_http_listener(overrides: dict[str, str], broker_id: int) -> dict[str, str]:
    """Of further brokers the ports after the one that is given, as with `--port`."""
    from ottla.config.listeners import is_port

    host, colon, port = overrides.get("http.listener", "").rpartition(":")
    if not (colon and is_port(port) and int(port)):
        return {}  # none, any that is free, or something for the settings to complain about
    return {"http.listener": f"{host}:{int(port) + broker_id - 1}"}


def dev(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", "-d", metavar="DIR", help="Where to keep data. [default: $XDG_DATA_HOME/ottla/dev]", show_default=False),
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep data in a temporary directory and remove it at the end.")] = False,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="The port, and of further brokers those after it; 0 takes free ones.")
    ] = DEFAULT_PORT,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=99, help="How many brokers make up the cluster.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of a topic that is created by being used.")] = 1,
    services: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="SERVICE", help=f"A service beside the brokers: {', '.join(SERVICE_PORTS)}; may be repeated."),
    ] = None,
    mirror_from: Annotated[
        str, typer.Option("--mirror-from", metavar="HOST:PORT,…", help="The brokers of the cluster that the mirror-maker copies from.")
    ] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-X", metavar="KEY=VALUE", help="A property of the broker, under Kafka's name; may be repeated."),
    ] = None,
    pid_file: Annotated[
        Path | None, typer.Option("--pid-file", metavar="FILE", help="Written when ready: process id and address, a line each.")
    ] = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Run a broker on this machine, or a cluster of them: one process, no Java, no Docker, ready at once.

    Topics are created by being used. Ctrl-C stops it; data is there again at the next start, unless `--ephemeral`.

    Examples:

    - `ottla dev`
    - `ottla dev --brokers 3`
    - `ottla dev --ephemeral --port 0`
    - `ottla dev -d ./data -X log.segment.bytes=1048576`
    - `ottla dev -X http.listener=127.0.0.1:9404`
    - `ottla dev --with schema-registry --with audit-counter`
    - `ottla dev --with mirror-maker --mirror-from localhost:19092`
    """
    if ephemeral and data_dir is not None:
        raise UsageError("--ephemeral and --data-dir contradict each other")
    unknown = [name for name in services or () if name not in SERVICE_PORTS]
    if unknown:
        raise UsageError(f"--with takes {', '.join(SERVICE_PORTS)}, and not {unknown[0]!r}")
    if bool(mirror_from) is not ("mirror-maker" in (services or ())):
        raise UsageError("--with mirror-maker and --mirror-from belong together")
    with ExitStack() as stack:
        if ephemeral:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-dev-", ignore_cleanup_errors=True)))
        else:
            try:
                directory = (data_dir or default_data_directory()).expanduser().absolute()
            except RuntimeError:  # a user without a name, as containers have them
                raise UsageError("there is no home directory; say where data may go: --data-dir or --ephemeral") from None
        if "," in str(directory):
            raise UsageError(f"{directory}: its path has a comma, at which log.dirs would be parted; say where data may go: --data-dir")
        audited = {"audit.enable": "true"} if "audit-counter" in (services or ()) else {}
        overrides = {**audited, **_from_environment(), **pairs(properties, "-X")}
        if former := [number for number in range(brokers + 1, 100) if (directory / f"broker-{number}").exists()]:
            note(
                f"ottla: {directory} was used with {former[-1]} brokers: partitions without a replica on those that run stay offline; "
                f"--brokers {former[-1]} runs all of them"
            )
        each = {number: dev_properties(directory, host, port, partitions, overrides, number, brokers) for number in range(1, brokers + 1)}
        with ends_told(set_up(log_level, log_format, default_level="warning")):
            addresses = {name: f"{host}:{SERVICE_PORTS[name] if port else 0}" for name in services or ()}
            _run(directory, ephemeral, each, pid_file, addresses, mirror_from)


def _run(
    directory: Path,
    ephemeral: bool,
    properties: dict[int, dict[str, str]],
    pid_file: Path | None,
    addresses: dict[str, str],
    mirror_from: str,
) -> None:
    from ottla.cli.process import seconds_since_start, serve, serve_several
    from ottla.config.broker import BrokerSettings
    from ottla.coordination.errors import StoreInUse
    from ottla.errors import PortInUse
    from ottla.model import BrokerId

    settings = {BrokerId(number): BrokerSettings.from_properties(each) for number, each in properties.items()}

    def ready(bootstrap_servers: str) -> None:
        address = "" if bootstrap_servers.startswith(f"127.0.0.1:{DEFAULT_PORT}") else f" -b {bootstrap_servers}"
        say(f"Ottla is ready on {bootstrap_servers} ({seconds_since_start():.2f} s)")
        say(f"  data      {directory}{' (removed at the end)' if ephemeral else ''}")
        say(f"  publish   echo 'hello' | ottla produce greetings{address}")
        say(f"  read      ottla consume greetings{address}")
        say(f"  look      ottla topics describe{address}")
        say("  stop      Ctrl-C")
        sys.stdout.flush()

    try:
        if addresses:
            from ottla.cli.dev_services import serve_with_services

            def all_ready(bootstrap_servers: str, urls: Mapping[str, str]) -> None:
                ready(bootstrap_servers)
                for label, url in urls.items():
                    say(f"  {label:<9} {url}")
                sys.stdout.flush()

            serve_with_services(settings, directory, addresses, mirror_from, all_ready, pid_file)
        elif len(settings) == 1:
            serve(settings[BrokerId(1)], ready, pid_file)
        else:
            serve_several(settings, directory / "coordination", ready, pid_file)
    except PortInUse as error:
        raise CommandFailed(f"{error} (is a quickstart or another `ottla dev` running?); stop it or choose another: --port 0") from None
    except StoreInUse as error:
        raise CommandFailed(f"{error} (is another `ottla dev` running?); stop it, or run a second with --ephemeral --port 0") from None
