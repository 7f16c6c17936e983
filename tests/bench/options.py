"""What a run was asked to do; every bench gets this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console
from tests.bench.ballast import Ballast
from tests.bench.servers import Servers

MESSAGE_SIZE: Final = 200
GIB: Final = 1 << 30
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Options:
    servers: Servers
    ballast: Ballast
    console: Console
    rounds: int
    seconds: float
    warm_up_seconds: float
    maximum_bytes: int
    """The most that one measured stretch of a producer writes; with its warm-up it stays within one segment of 1 GiB."""
    cold_bytes: int
    soak_minutes: float
    quick: bool
    compaction_keys: int = 10_000_000

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False)
