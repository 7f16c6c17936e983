"""How a command begins and ends: `main` is what the installed `ottla` runs, `run` the same for tests.

Commands that start a broker take the quick way (`ottla.cli.quick`); all others, and every mistake, go through Typer.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ottla.cli.errors import OutputFailed, UsageError, not_installed
from ottla.cli.output import note
from ottla.errors import ConfigurationError, OttlaError


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code; an error is one sentence on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    code, flushed = _code_of(words), _code_of(None)
    return code or flushed


def _code_of(words: list[str] | None) -> int:
    """Of a command; None is what is left of its output."""
    try:
        if words is None:
            sys.stdout.flush()
        else:
            _run(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except ConfigurationError as error:
        note(f"ottla: {error}")
        return 2
    except OttlaError as error:
        if not (isinstance(error, OutputFailed) and error.is_closed_pipe):
            note(f"ottla: {error}")
        return getattr(error, "exit_code", 1)
    except ModuleNotFoundError as error:
        if (failed := not_installed(error)) is None:
            raise
        note(f"ottla: {failed}")
        return failed.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _run(words: list[str]) -> None:
    for word in words:
        # Names and contents that are no text crash the client. A file may have any name.
        if re.search("[\ud800-\udfff]", word) and not os.path.exists(word):
            raise UsageError(f"{word!r} is not UTF-8")
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
        from ottla.cli.services import schema_registry

        return schema_registry
    from ottla.cli.broker import broker

    return broker


class _Output(io.FileIO):
    """Standard output: what fails once is the command's failure, and what is printed after it is dropped, so that it fails once."""

    _failed = False

    def write(self, content: Any) -> int:
        if not self._failed:
            try:
                return super().write(content)
            except OSError as error:
                self._failed = True
                raise OutputFailed(error) from None
        return memoryview(content).nbytes


class _Errors(io.FileIO):
    """Standard error: a command has its exit code, and a service works, where nothing can be said."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def _standard_streams() -> None:
    # What is closed leads nowhere from here on: a log that got its number would be given what a library says there.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    by_line = isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.line_buffering or sys.stdout.write_through)
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Output(1, "w", closefd=False)), encoding, "backslashreplace", line_buffering=by_line)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(_Errors(2, "w", closefd=False)), encoding, "backslashreplace", line_buffering=True)


def main() -> None:
    """The entry point of the installed command."""
    # kio's types enter themselves with Hypothesis where it is installed: half a second, and a directory `.hypothesis` left behind.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # the documented way to make an import fail
    # As Ctrl-C does, it lets a command deliver what it has read, and leave its group. Services wait for it themselves.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _standard_streams()
    sys.exit(run())


if __name__ == "__main__":
    main()
