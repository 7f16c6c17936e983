"""The groups' scenarios: who is told what, and in which state it leaves the group. `make golden` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from .group_commands import GroupCommands
from .transcript import replay

FILES = sorted(Path(__file__).parent.glob("group_*.txt"))


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=[file.stem for file in FILES])
def test_a_group_does_as_the_file_says(path: Path) -> None:
    commands = GroupCommands()
    try:
        replay(path, commands.execute)
    finally:
        commands.close()
