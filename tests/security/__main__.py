"""`python -m tests.security [name…]`: runs attacks, and fails when one succeeds.

Each has a broker of its own, and takes at most half a minute on a machine that has nothing else to do.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from .victim import Succeeded

ROOMS: Final = ("cost", "batches", "connections", "strings", "http", "control")


def attacks() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every attack, by its name."""
    for room in ROOMS:
        for attack in importlib.import_module(f"{__package__}.attacks_on_{room}").ATTACKS:
            yield f"{room}.{attack.__name__}", attack


def main(names: list[str]) -> int:
    succeeded = 0
    for name, attack in attacks():
        if names and not any(name.startswith(prefix) for prefix in names):
            continue
        began = time.monotonic()
        try:
            attack()
            outcome = "held"
        except Succeeded as error:
            succeeded += 1
            outcome = f"SUCCEEDED: {error}"
        sys.stdout.write(f"{name:40} {time.monotonic() - began:5.1f} s  {outcome}\n")
        sys.stdout.flush()
    return 1 if succeeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
