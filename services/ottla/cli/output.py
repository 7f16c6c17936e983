"""What commands print: aligned tables for people, JSON for scripts.

Tables are plain text. They read the same in a terminal, a file and a pipe to `grep`, and cost no import.
Only this module and the message printer of `consume` write to stdout, so that `--json` means JSON and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.message import Message

GAP: Final = "  "


# Control characters, and those that turn the direction of text: a name from outside may move a terminal's cursor or forge a line.
_TURNING: Final = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
_UNSEEN_IN_A_LINE: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{_TURNING}]")
_UNSEEN: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNING}]")


def printable(text: str) -> str:
    """The text without anything that a terminal or a reader of lines would act on; line ends are such a thing, too."""
    return _UNSEEN_IN_A_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"  # as JSON has it, so that a document stays one


def say(text: str = "") -> None:
    """Lines to stdout."""
    sys.stdout.write(_UNSEEN.sub(_escaped, text) + "\n")


def note(text: str) -> None:
    """A line to stderr: what a person should know and a pipe should not get."""
    sys.stderr.write(_UNSEEN.sub(_escaped, text) + "\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    """One JSON document to stdout."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def fields_of(message: Message) -> dict[str, Any]:
    """What a message of Protobuf says, for `say_json`: numbers of 64 bits too are numbers, and what is 0 or false is there."""

    def plain(value: Any) -> Any:
        return fields_of(value) if hasattr(value, "DESCRIPTOR") else value

    found = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    return {name: list(map(plain, value)) if isinstance(value, MutableSequence) else plain(value) for name, value in found.items()}


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """`1 topic`, `2,000 topics`; a plural that is not made by an s is given."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def bytes_of(size: int) -> str:
    """A size as people say it: `812 B`, `1.4 KiB`, `82.7 MiB`."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:,.1f} {unit}"


class Count(int):
    """A number in a table that is read and not typed in again: its thousands are separated."""


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Count):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(item) for item in value))
    return printable(str(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need to be; a column of numbers is aligned to the right.

    None is shown as `-`, a list as its members with commas, a number by its digits alone, unless it is a Count, so that an offset or an
    id can be typed into another command as it stands.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(heading), *(len(row[column]) for row in cells)]) for column, heading in enumerate(headings)]
    numeric = [
        any(isinstance(row[column], int) for row in rows) and all(row[column] is None or isinstance(row[column], int) for row in rows)
        for column in range(len(headings))
    ]

    def line(row: Sequence[str]) -> str:
        padded = (text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, numeric, strict=True))
        return GAP.join(padded).rstrip()

    return "\n".join([line([heading.upper() for heading in headings]), *(line(row) for row in cells)])
