"""The command line's root: which commands there are, and what `ottla --help` says of them."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from ottla import release
from ottla.cli import (
    audit,
    broker,
    cluster,
    configs,
    consume,
    dev,
    elect_leaders,
    groups,
    load,
    log,
    mirror,
    produce,
    quickstart,
    reassign,
    replay,
    schema,
    services,
    spark,
    takeover,
    topics,
    transactions,
)
from ottla.cli.output import say

RUN, USE, OPERATE, LOOK = "Run a broker", "Topics and messages", "A cluster", "Look inside"

app = typer.Typer(
    name="ottla",
    help="A message log that every Kafka client can talk to.",
    epilog=(
        "Start with `ottla dev` in one terminal; in another: `echo hello | ottla produce greetings`, "
        "then `ottla consume greetings`. `ottla COMMAND --help` has more, with examples."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("dev", rich_help_panel=RUN)(dev.dev)
app.add_typer(broker.app, name="broker", rich_help_panel=RUN)
app.command("schema-registry", rich_help_panel=RUN)(services.schema_registry)
app.command("audit-counter", rich_help_panel=RUN)(services.audit_counter)
app.command("mirror-maker", rich_help_panel=RUN)(services.mirror_maker)
app.command("quickstart", rich_help_panel=RUN)(quickstart.quickstart)
app.add_typer(topics.app, name="topics", rich_help_panel=USE)
app.add_typer(configs.app, name="configs", rich_help_panel=OPERATE)
app.command("produce", rich_help_panel=USE)(produce.produce)
app.command("consume", rich_help_panel=USE)(consume.consume)
app.command("replay", rich_help_panel=USE)(replay.replay)
app.add_typer(groups.app, name="groups", rich_help_panel=USE)
app.add_typer(transactions.app, name="transactions", rich_help_panel=USE)
app.add_typer(schema.app, name="schema", rich_help_panel=USE)
app.add_typer(load.app, name="load", rich_help_panel=USE)
app.add_typer(spark.app, name="spark", rich_help_panel=USE)
app.add_typer(audit.app, name="audit", rich_help_panel=USE)
app.command("cluster", rich_help_panel=OPERATE)(cluster.cluster)
app.add_typer(reassign.app, name="reassign", rich_help_panel=OPERATE)
app.add_typer(mirror.app, name="mirror", rich_help_panel=OPERATE)
app.command("elect-leaders", rich_help_panel=OPERATE)(elect_leaders.elect_leaders)
app.add_typer(takeover.app, name="takeover", rich_help_panel=OPERATE)
app.add_typer(log.app, name="log", rich_help_panel=LOOK)


@app.command("version", rich_help_panel=LOOK)
def version() -> None:
    """Print the version."""
    say(release())


def _version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True, show_default=False)
    ] = False,
) -> None:
    """Only what stands before any command."""


@cache  # Typer takes a tenth of a second to make it
def command() -> TyperGroup:
    """The whole command line. Its help shows no type beside an option that takes no value, where Typer would say `<bool>`."""
    root = typer.main.get_group(app)
    found: list[TyperCommand | TyperGroup] = [root]
    while found:
        command = found.pop()
        help_option = command.get_help_option(typer.Context(command, help_option_names=["-h", "--help"]))
        for parameter in (*command.params, help_option):
            if isinstance(parameter, TyperOption) and parameter.is_flag and parameter.metavar is None:
                parameter.metavar = ""
        found += getattr(command, "commands", {}).values()
    return root
