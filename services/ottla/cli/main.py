"""How a command begins and ends: `main` is what the installed `ottla` runs, `run` the same for tests.

Commands that start a broker take the quick way (`ottla.cli.quick`); all others, and every mistake, go through Typer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ottla.cli.output import note
from ottla.errors import ConfigurationError, OttlaError


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code; an error is one sentence on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _run(words)
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


def _run(words: list[str]) -> None:
    if words[:1] in (["dev"], ["broker"], ["schema-registry"]):
        from ottla.cli.quick import NotPlain, arguments_for

        service = _service(words[0])
        try:
            keywords = arguments_for(service, words[1:])
        except NotPlain:
            pass
        else:
            service(**keywords)
            return
    from ottla.cli.app import command

    command()(args=words, prog_name="ottla")


def _service(name: str) -> Callable[..., Any]:
    if name == "dev":
        from ottla.cli.dev import dev

        return dev
    if name == "schema-registry":
        from ottla.cli.schema_registry import schema_registry

        return schema_registry
    from ottla.cli.broker import broker

    return broker


def main() -> None:
    """The entry point of the installed command."""
    # kio's types enter themselves with Hypothesis where it is installed: half a second, and a directory `.hypothesis` left behind.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # the documented way to make an import fail
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
