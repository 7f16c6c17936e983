"""How many examples a property gets that costs more, or less, than most."""

from __future__ import annotations

from hypothesis import settings

USUAL = 50


def examples(count: int) -> int:
    """So many in `make test-long`, two fifths of them in `make test`, and ten times as many with `--hypothesis-profile thorough`."""
    return max(1, count * settings().max_examples // USUAL)
