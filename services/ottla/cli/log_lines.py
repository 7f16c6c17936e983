"""Log lines of a service: sentences for people, one JSON object a line for machines, both to stderr.

    text    2026-11-21 19:14:47,123 INFO ottla.broker.server: broker 1 serves PLAINTEXT://localhost:9092
            19:14:47 INFO  broker 1 serves PLAINTEXT://localhost:9092            (on a terminal, with the level in colour)
    json    {"timestamp": "2026-11-21T19:14:47.123Z", "level": "INFO", "logger": "ottla.broker.server", "message": "…",
             "service": "broker", "broker_id": 1}

A JSON line has `exception` too when there was one. The service and the broker that speaks are known by `ottla.lifecycle`, as one process
may have several brokers. What a format or a level may be is checked here, with the name of the option or variable.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TextIO

import typer

from ottla.cli.errors import CommandFailed, UsageError, not_installed
from ottla.cli.output import printable
from ottla.errors import ConfigurationError, OttlaError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
FORMAT_VARIABLE: Final = "OTTLA_LOG_FORMAT"
LEVEL_VARIABLE: Final = "OTTLA_LOG_LEVEL"

LevelOption = Annotated[str | None, typer.Option("--log-level", help=f"debug, info, warning or error; or ${LEVEL_VARIABLE}.")]
FormatOption = Annotated[
    str | None, typer.Option("--log-format", help=f"text, or json: one object a line; or ${FORMAT_VARIABLE}. [default: text]")
]

_IN_A_FILE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_COLOURS: Final[Mapping[int, str]] = {
    logging.DEBUG: "2",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31",
}

log = logging.getLogger(__name__)

# What this module has put in, with the level that was there before.
_installed: Final[list[tuple[logging.Handler, int]]] = []


class TextLines(logging.Formatter):
    """A line for each message, whatever a stranger has put into it; a traceback's lines stand further to the right."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler's text of it
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join("  " + printable(line) for line in super().formatException(ei).split("\n"))


class TerminalLines(TextLines):
    """Short lines for a person who watches: the time of day, the level in its colour, the sentence."""

    def __init__(self, *, in_colour: bool) -> None:
        super().__init__("%(asctime)s %(shown_level)s %(message)s", "%H:%M:%S")
        self._in_colour = in_colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        record.shown_level = f"\x1b[{_COLOURS.get(record.levelno, '0')}m{level}\x1b[0m" if self._in_colour else level
        return super().format(record)


def json_lines() -> logging.Formatter:
    """The formatter of JSON lines. Its import costs a twentieth of a second, which a line of text need not pay."""
    from time import gmtime

    from pythonjsonlogger.json import JsonFormatter

    from ottla.lifecycle import speaking_broker, speaking_service

    class JsonLines(JsonFormatter):
        def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
            super().add_fields(log_data, record, message_dict)
            if (service := speaking_service.get()) is not None:
                log_data["service"] = service
            if (broker_id := speaking_broker.get()) is not None:
                log_data["broker_id"] = broker_id

        def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
            # RFC 3339, of which ISO 8601 with a Z is one form.
            return f"{logging.Formatter.formatTime(self, record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"

    formatter = JsonLines(
        ["asctime", "levelname", "name", "message"],
        rename_fields={"asctime": "timestamp", "levelname": "level", "name": "logger", "exc_info": "exception"},
        json_ensure_ascii=False,
    )
    formatter.converter = gmtime
    return formatter


def set_up(level: str | None, log_format: str | None, *, default_level: str, stream: TextIO | None = None) -> str:
    """Sets the logging of this process up, and gives the format.

    Args:
        level: from the command line; None takes the variable's, else the default.
        log_format: likewise.
        default_level: what is logged when no level was chosen.
        stream: where the lines go; by default stderr.

    Raises:
        UsageError: there is no such level or format.
    """
    chosen_level = _chosen("--log-level", level, LEVEL_VARIABLE, LEVELS, default_level)
    chosen_format = _chosen("--log-format", log_format, FORMAT_VARIABLE, FORMATS, "text")
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if chosen_format == "json":
        handler.setFormatter(json_lines())
        logging.captureWarnings(True)  # they would be lines that are no JSON
    elif stream.isatty():
        handler.setFormatter(TerminalLines(in_colour="NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"))
    else:
        handler.setFormatter(TextLines(_IN_A_FILE))
    root = logging.getLogger()
    _take_down()
    _installed.append((handler, root.level))
    root.addHandler(handler)
    root.setLevel(chosen_level.upper())
    return chosen_format


def _take_down() -> None:
    """Leaves the logging of a process that has a life of its own (a test's) as it was."""
    root = logging.getLogger()
    while _installed:
        handler, level = _installed.pop()
        root.removeHandler(handler)
        root.setLevel(level)
        logging.captureWarnings(False)


@contextmanager
def ends_told(log_format: str) -> Iterator[None]:
    """What ends a service is a JSON line as well, where lines are JSON; elsewhere it is the sentence of every command."""
    try:
        yield
    except OttlaError as error:
        if log_format != "json":
            raise
        code = 2 if isinstance(error, ConfigurationError) else error.exit_code if isinstance(error, CommandFailed) else 1
        log.critical("%s", error)
        raise SystemExit(code) from error
    except Exception as error:  # a program ends here; a log collector is given its last words as JSON
        if log_format != "json":
            raise
        if isinstance(error, ModuleNotFoundError) and (failed := not_installed(error)) is not None:
            log.critical("%s", failed)
        else:
            log.critical("this is a bug in Ottla", exc_info=True)
        raise SystemExit(1) from error
    finally:
        if len(logging.getLogger().handlers) > len(_installed):
            _take_down()


def _chosen(option: str, given: str | None, variable: str, known: tuple[str, ...], default: str) -> str:
    place, text = (option, given) if given is not None else (variable, os.environ.get(variable) or default)
    if text.lower() not in known:
        raise UsageError(f"{place} takes {', '.join(known)}, and not {text!r}")
    return text.lower()
