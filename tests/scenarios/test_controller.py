"""The controller's scenarios: what it decides, in which order, and whom it tells. `make golden` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from .controller_commands import ControllerCommands
from .transcript import replay

FILES = sorted(Path(__file__).parent.glob("controller_*.txt"))


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=[file.stem for file in FILES])
def test_the_controller_decides_as_the_file_says(path: Path) -> None:
    replay(path, ControllerCommands().execute)


def test_a_transcript_that_differs_is_told_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_GOLDEN", raising=False)
    path = tmp_path / "controller_wrong.txt"
    path.write_text("# A remark.\n\nstart 1\n----\n  to 2: metadata of brokers\n", encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)controller_wrong.*to 2: metadata of brokers.*to 1: metadata of brokers"):
        replay(path, ControllerCommands().execute)


def test_a_golden_run_writes_the_file_and_keeps_the_remarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_GOLDEN", "1")
    path = tmp_path / "controller_new.txt"
    path.write_text("# A remark.\n\nshow\n", encoding="utf-8")
    replay(path, ControllerCommands().execute)
    assert path.read_text(encoding="utf-8") == "# A remark.\n\nshow\n----\nbrokers: none\n"
