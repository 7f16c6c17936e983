"""How far followers are behind their leader, by the sizes of their logs.

A replica is its leader's bytes, so the difference of two files is what a follower lacks, and no one has to be asked: a
thread looks at the files every few milliseconds. How old the first missing byte is comes from the same series: when was
the leader's log as long as the follower's is now?
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.bench.wire import UnexpectedAnswer

INTERVAL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Sample:
    """The logs' sizes at one time. Followers are looked at before the leader: a lag may be told too long by 0.1 ms, never too short."""

    at: float
    leader: int
    followers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """What one follower lacked at one time."""

    at: float
    bytes: int
    seconds: float


class LagSampler:
    """Looks at the logs of one partition until it is left. A context manager."""

    def __init__(self, leader: Path, followers: Sequence[Path]) -> None:
        self.samples: list[Sample] = []
        self._leader = leader
        self._followers = list(followers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def __enter__(self) -> LagSampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def until_caught_up(self, timeout_seconds: float) -> float:
        """Waits until every follower has all; gives the seconds from the leader's last growth till then."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            seen = list(self.samples)
            if seen and all(follower == seen[-1].leader for follower in seen[-1].followers):
                break
            if time.monotonic() > deadline:
                raise UnexpectedAnswer(f"after {timeout_seconds:.0f} s the followers have {seen[-1].followers} of {seen[-1].leader} bytes")
            time.sleep(INTERVAL_SECONDS)
        size = seen[-1].leader
        grown_at = next(sample.at for sample in seen if sample.leader == size)
        caught_up_at = next(
            sample.at for sample in seen if sample.leader == size and all(follower == size for follower in sample.followers)
        )
        return caught_up_at - grown_at

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            followers = tuple(log_size(follower) for follower in self._followers)
            self.samples.append(Sample(time.perf_counter(), log_size(self._leader), followers))


def log_size(directory: Path) -> int:
    """All segments of a partition, in bytes; 0 before there are any."""
    try:
        return sum(path.stat().st_size for path in directory.iterdir() if path.suffix == ".log")
    except FileNotFoundError:
        return 0  # not made yet, or a segment went between the two looks


def lags(samples: Sequence[Sample], follower: int, begin: float, end: float) -> list[Lag]:
    """What one follower lacked at each look between two times."""
    sizes = [sample.leader for sample in samples]
    found = []
    for index, sample in enumerate(samples):
        if begin <= sample.at <= end:
            size = sample.followers[follower]
            # The last look at which the leader had no more than the follower has now.
            had = bisect.bisect_right(sizes, size, 0, index + 1) - 1
            seconds = 0.0
            if size < sample.leader:
                seconds = sample.at - (_passed(samples[had], samples[had + 1], size) if had >= 0 else samples[0].at)
            found.append(Lag(sample.at, max(0, sample.leader - size), seconds))
    return found


def _passed(before: Sample, after: Sample, size: int) -> float:
    """When the leader had so many bytes, which lie between two looks."""
    grown = after.leader - before.leader
    return before.at + (after.at - before.at) * ((size - before.leader) / grown if grown else 0.0)
