"""The attacks as a whole: each finding has one, or a reason; and what they judge by sees what it is there to see."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

from tests.security.__main__ import attacks
from tests.security.watch import SECONDS, map_of, watching

README = Path(__file__).parent / "README.md"


def test_each_finding_has_an_attack_or_a_reason_why_there_is_none() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.read_text().splitlines() if line.startswith("| S")]
    assert [row[0] for row in rows] == [f"S{number}" for number in range(1, 24)]
    assert all(where and (named or reason) for _, _, where, named, reason in rows)
    assert {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row[3])} == {name for name, _ in attacks()}


def longest_wait(tmp_path: Path, hold_seconds: float, times: int = 1, late_seconds: float = 0.0) -> float:
    """Of a loop that is held so often; `late_seconds` after it has looked at the clocks the watch asks for its turn."""
    path = tmp_path / "longest"
    path.write_bytes(bytes(SECONDS.size))
    longest = map_of(path)

    async def held() -> None:
        await asyncio.sleep(0.05)
        for _ in range(times):
            began = time.thread_time()
            while time.thread_time() - began < hold_seconds:
                pass
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        ask = loop.call_soon_threadsafe

        def late(*arguments: Any) -> asyncio.Handle:
            time.sleep(late_seconds)
            return ask(*arguments)

        loop.call_soon_threadsafe = late  # type: ignore[method-assign, assignment]
        with watching(loop, longest):
            runner.run(held())
    return float(SECONDS.unpack_from(longest)[0])


def test_a_loop_that_is_held_is_seen_and_one_that_is_not_is_not(tmp_path: Path) -> None:
    """In CPU time of this process alone; a few milliseconds may have passed before someone asks for a turn.

    On a busy machine the thread that asks may stand still for as long as a loop is held once.
    """
    assert longest_wait(tmp_path, 0.4, 4) > 0.3
    assert longest_wait(tmp_path, 0) < 0.1


def test_a_watch_that_stands_still_before_it_asks_has_not_waited(tmp_path: Path) -> None:
    """As a thread does on a busy machine, while the loop turns again and again."""
    assert longest_wait(tmp_path, 0.01, 40, 0.3) < 0.1
