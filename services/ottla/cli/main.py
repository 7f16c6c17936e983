"""The command line's root: which commands there are, and how a command ends.

`main` is what the installed `ottla` runs. `run` is the same with arguments and an exit code, for tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from ottla.cli import broker, consume, dev, log, produce, quickstart, topics
from ottla.cli.output import note, say
from ottla.errors import ConfigurationError, OttlaError

RUN, USE, LOOK = "Run a broker", "Topics and messages", "Look inside"

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
app.command("broker", rich_help_panel=RUN)(broker.broker)
app.command("quickstart", rich_help_panel=RUN)(quickstart.quickstart)
app.add_typer(topics.app, name="topics", rich_help_panel=USE)
app.command("produce", rich_help_panel=USE)(produce.produce)
app.command("consume", rich_help_panel=USE)(consume.consume)
app.add_typer(log.app, name="log", rich_help_panel=LOOK)


@app.command("version", rich_help_panel=LOOK)
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    say(version_of("ottla"))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code; an error is one sentence on stderr."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="ottla")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except ConfigurationError as error:
        note(f"ottla: {error}")
        return 2
    except OttlaError as error:
        note(f"ottla: {error}")
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> None:
    """The entry point of the installed command."""
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone, which is its right. Python would flush again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


if __name__ == "__main__":
    main()
