"""`ottla broker`: a broker from a properties file or the environment, as a server runs it; and what is done to one that runs.

The group itself is the command that runs a broker. That is what containers and units start: with `--config`, with
variables `OTTLA_SETTING_…` (`ottla.config.environment`), or with both.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.connection import pairs
from ottla.cli.drain import drain, undrain
from ottla.cli.errors import UsageError
from ottla.cli.log_lines import FormatOption, LevelOption, ends_told, set_up

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="The properties file."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--override", "-X", metavar="KEY=VALUE", help="Over file and environment; may be repeated.")
]
PidFileOption = Annotated[
    Path | None, typer.Option("--pid-file", metavar="FILE", help="Written when ready: process id and address, a line each.")
]

log = logging.getLogger(__name__)
app = typer.Typer(
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("drain")(drain)
app.command("undrain")(undrain)


@app.callback(invoke_without_command=True)
def _group(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Run a broker from a properties file or the environment, or say what one that runs is to do.

    The names are Kafka's; docs/configuration.md lists them all. Any can be given by a variable: OTTLA_SETTING_ and its name
    in upper case, with _ for each dot. A name that does not exist or a value that cannot be is refused with the file and
    line, or the variable, and the nearest right name (exit code 2).

    Examples:

    - `ottla broker --config server.properties`
    - `ottla broker --config server.properties --override broker.id=2`
    - `OTTLA_SETTING_BROKER_ID=2 OTTLA_SETTING_ZOOKEEPER_CONNECT=zookeeper:2181 ottla broker --log-format json`
    - `ottla broker drain 2 --zookeeper localhost:2181`
    - `ottla broker undrain 2 --zookeeper localhost:2181`
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise UsageError(f"--config before {context.invoked_subcommand} would run a broker; it comes after")
        return
    broker(config, overrides, pid_file, log_level, log_format)


def broker(
    config: ConfigOption = None,
    overrides: Overrides = None,
    pid_file: PidFileOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
) -> None:
    """Runs a broker until a signal stops it."""
    from ottla.cli.process import announce, serve, settings_of
    from ottla.lifecycle import speaking

    chosen_format = set_up(log_level, log_format, default_level="info")
    with ends_told(chosen_format):
        from ottla.config.broker import BrokerSettings

        settings = settings_of(BrokerSettings, "broker", config, os.environ, pairs(overrides, "--override"))

        def ready(bootstrap_servers: str) -> None:
            name = f"broker {settings.broker_id}" if settings.broker_id >= 0 else "broker"  # one that made its id says so in its log
            announce(log, f"Ottla {name} is ready on {bootstrap_servers}", chosen_format)

        with speaking(settings.broker_id):
            serve(settings, ready, pid_file)
