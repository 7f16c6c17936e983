"""`ottla broker`: a broker from a properties file, as a server runs it; and what is done to one that runs.

With `--config` the group itself is the command that runs a broker. That is what containers and units start.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import pairs
from ottla.cli.drain import drain
from ottla.cli.errors import UsageError
from ottla.cli.output import say

if TYPE_CHECKING:
    from ottla.config.properties import Properties

_CONFIG = typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="The properties file; Kafka's names.")
Overrides = Annotated[
    list[str] | None, typer.Option("--override", "-X", metavar="KEY=VALUE", help="Over the file's value; may be repeated.")
]
PidFileOption = Annotated[
    Path | None, typer.Option("--pid-file", metavar="FILE", help="Written when ready: process id and address, a line each.")
]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]

app = typer.Typer(
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("drain")(drain)


def overridden(properties: Properties, overrides: Mapping[str, str]) -> Properties:
    """A file's properties with some given on the command line; an error in one of those says so instead of a line."""
    from ottla.config.properties import Properties

    class Overridden(Properties):
        def place_of(self, name: str) -> str:
            return "--override" if name in overrides else properties.place_of(name)

    return Overridden({**properties, **overrides}, {}, properties.source)


@app.callback(invoke_without_command=True)
def _group(
    context: typer.Context,
    config: Annotated[Path | None, _CONFIG] = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LogLevel = "info",
) -> None:
    """Run a broker from a properties file, or say what one that runs is to do.

    The names are Kafka's; docs/configuration.md lists them all. A name that does not exist or a value that can not be is
    refused with the file, the line and the nearest right name (exit code 2).

    Examples:

    - `ottla broker --config server.properties`
    - `ottla broker --config server.properties --override broker.id=2`
    - `ottla broker drain 2 --zookeeper localhost:2181`
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise UsageError(f"--config before {context.invoked_subcommand} would run a broker; it comes after")
        return
    if config is None:
        raise UsageError("say with which properties to run a broker: --config FILE (`ottla broker --help` has more)")
    broker(config, overrides, pid_file, log_level)


def broker(
    config: Annotated[Path, _CONFIG], overrides: Overrides = None, pid_file: PidFileOption = None, log_level: LogLevel = "info"
) -> None:
    """Runs a broker until it is told to stop."""
    from ottla.cli.process import seconds_since_start, serve, set_up_logging
    from ottla.config.broker import BrokerSettings
    from ottla.config.properties import load

    settings = BrokerSettings.from_properties(overridden(load(config), pairs(overrides, "--override")))
    set_up_logging(log_level)

    def ready(bootstrap_servers: str) -> None:
        name = f"broker {settings.broker_id}" if settings.broker_id >= 0 else "broker"  # one that made its id says so in its log
        say(f"Ottla {name} is ready on {bootstrap_servers} ({seconds_since_start():.2f} s)")
        sys.stdout.flush()

    serve(settings, ready, pid_file)
