"""`ottla broker`: a broker from a properties file, as a server runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import pairs
from ottla.cli.output import say

if TYPE_CHECKING:
    from ottla.config.properties import Properties


def overridden(properties: Properties, overrides: Mapping[str, str]) -> Properties:
    """A file's properties with some given on the command line; an error in one of those says so instead of a line."""
    from ottla.config.properties import Properties

    class Overridden(Properties):
        def place_of(self, name: str) -> str:
            return "--override" if name in overrides else properties.place_of(name)

    return Overridden({**properties, **overrides}, {}, properties.source)


def broker(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="The properties file; Kafka's names.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--override", "-X", metavar="KEY=VALUE", help="Over the file's value; may be repeated.")
    ] = None,
    pid_file: Annotated[
        Path | None, typer.Option("--pid-file", metavar="FILE", help="Written when ready: process id and address, a line each.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a broker from a properties file.

    The names are Kafka's; docs/configuration.md lists them all. A name that does not exist or a value that can not be is
    refused with the file, the line and the nearest right name (exit code 2).

    Examples:

    - `ottla broker --config server.properties`
    - `ottla broker --config server.properties --override broker.id=2`
    """
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
