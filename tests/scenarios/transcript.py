"""Scenario files: commands, and beneath each the whole of what comes of it.

A file is made of blocks with an empty line between them. A block of lines that begin with '#' is a remark. Any other is
one command, a line of four dashes, and what the command printed when the file was last written. `make golden` writes
the files anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

RULE: Final = "----"


def replay(path: Path, execute: Callable[[str], Iterable[str]]) -> None:
    """Executes the commands of a file, and fails where they print something else than what the file says.

    With OTTLA_GOLDEN in the environment the file is written instead.
    """
    before = path.read_text(encoding="utf-8")
    blocks = [block.strip("\n") for block in before.split("\n\n") if block.strip()]
    after = "\n\n".join(_block(block, execute) for block in blocks) + "\n"
    if os.environ.get("OTTLA_GOLDEN"):
        path.write_text(after, encoding="utf-8")
        return
    if after != before:
        pytest.fail(f"{path.name} tells another story; if it is the right one: make golden\n\n{_difference(before, after)}", pytrace=False)


def _block(block: str, execute: Callable[[str], Iterable[str]]) -> str:
    command = block.split("\n", 1)[0]
    if command.startswith("#"):
        return block
    return "\n".join([command, RULE, *execute(command)])


def _difference(before: str, after: str) -> str:
    """The first block that differs, as it was and as it is."""
    pairs = zip(before.split("\n\n"), after.split("\n\n"), strict=False)
    was, now = next(((was, now) for was, now in pairs if was.strip("\n") != now.strip("\n")), (before, after))
    return f"the file has\n{was}\n\nand this is what came\n{now}"
