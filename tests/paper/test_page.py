"""docs/paper.md says where each point of the checklist is shown; what it names is there, and says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| ([A-Z]\d+)(?:, ([A-Z]\d+))? \| .* \| (.*) \|$", (ROOT / "docs" / "paper.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_point_is_shown_by_tests_that_name_it(row: tuple[str, str, str]) -> None:
    first, second, shown = row
    for point in filter(None, (first, second)):
        for path in re.findall(r"\((\.\./tests/[^)]+)\)", shown):
            assert re.search(rf"\b{point}\b", (ROOT / "docs" / path).read_text()), f"{path} does not name {point}"


def test_no_point_of_the_checklist_is_left_out() -> None:
    found = {point for first, second, _ in ROWS for point in (first, second) if point}
    counts = {"S": 12, "R": 6, "C": 6, "P": 3, "K": 4, "V": 6, "N": 3, "T": 9}
    assert found == {f"{letter}{number}" for letter, count in counts.items() for number in range(1, count + 1)}
