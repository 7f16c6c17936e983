"""A consumer of a group that meets in ZooKeeper, by `ottla.client.ConsumerConnector`; it is killed, frozen, and leaves.

    python -m tests.chaos.connecting JSON       # the fields of `Connecting`; ends at SIGTERM, then writes its history

Each life is a process of its own: `python -m tests.chaos.connecting JSON LIFE` reads a stream and writes a row of each message to
stdout before it asks for the next one, so that what its reader has not seen is not processed. It ends by kill -9, by leaving, or is
frozen for up to two sessions and goes on.

A partition comes and goes while a life reads, so a jump in the offsets is where it was set to. That nothing is lost is judged of the
whole group (`gaps`): whoever of it read an offset, someone has read all offsets before it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos import messages
from tests.chaos.history import History, Polls
from tests.chaos.mortal import mortal
from tests.chaos.producing import LIVES

from ottla.client import ConsumerConnector, ConsumerSettings
from ottla.client.errors import ConsumerTimeout
from ottla.errors import OttlaError

GROUP: Final = "chaos-connector"
SESSION_MS: Final = 6_000
_ROW: Final = struct.Struct("<HQQ")  # partition, offset, value
_AGAIN_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_LEAVE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Connecting:
    """What such a consumer is told."""

    worker: int
    zookeeper: str
    topic: str
    seed: str
    began_at: float
    history_file: str


def live(told: Connecting, life: str) -> int:
    """One life: reads until SIGTERM. 1 when it could not join, or its stream failed: there will be another one."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    settings = ConsumerSettings(
        group_id=GROUP,
        consumer_id=f"{told.worker}-{life}",
        zookeeper_connect=told.zookeeper,
        zookeeper_session_timeout_ms=SESSION_MS,
        auto_offset_reset="smallest",
        auto_commit_interval_ms=500,
        rebalance_backoff_ms=500,
        consumer_timeout_ms=500,
    )
    try:
        with ConsumerConnector(settings) as connector:
            (stream,) = connector.create_message_streams({told.topic: 1})[told.topic]
            while not stopped:
                try:
                    for message in stream:
                        os.write(1, _ROW.pack(message.partition, message.offset, messages.decode(message.value)))
                        if stopped:
                            break
                except ConsumerTimeout:
                    continue
    except (OttlaError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


class Worker:
    """The process that has one life after the other, and writes down what they read."""

    def __init__(self, told: Connecting) -> None:
        self._told = told
        self._random = Random(told.seed)
        self._history = History()
        self._ends: Counter[str] = Counter()
        self._polled = 0
        self._next: dict[tuple[int, int], int] = {}  # of a life and a partition: the offset that comes next
        self._is_stopped = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_is_stopped", True))
        while not self._is_stopped:
            self._live()
            self._report()
        self._history.save(Path(self._told.history_file))
        return 0

    def _live(self) -> None:
        life = len(self._history.polls)
        polls = Polls(self._told.worker * LIVES + life)
        self._history.polls.append(polls)
        command = mortal((sys.executable, "-m", "tests.chaos.connecting", json.dumps(asdict(self._told)), str(life)))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
        try:
            how = self._random.choice(("killed", "left", "frozen"))
            self._read(process, polls, self._random.uniform(8, 30))
            if how == "frozen" and process.poll() is None and not self._is_stopped:
                process.send_signal(signal.SIGSTOP)
                self._read(process, polls, self._random.uniform(1, 2 * SESSION_MS / 1000))
                process.send_signal(signal.SIGCONT)
                self._read(process, polls, self._random.uniform(5, 15))
            if process.poll() is not None:
                how = "failed"
                time.sleep(_AGAIN_SECONDS)
            elif how == "killed" and not self._is_stopped:
                process.kill()
            else:
                process.terminate()
                self._read(process, polls, _LEAVE_SECONDS, to_the_end=True)
            self._ends[how] += 1
        finally:
            process.kill()
            self._take(process, polls)
            process.wait()

    def _read(self, process: subprocess.Popen[bytes], polls: Polls, seconds: float, *, to_the_end: bool = False) -> None:
        until = time.monotonic() + seconds
        assert process.stdout is not None
        while process.poll() is None and time.monotonic() < until and (to_the_end or not self._is_stopped):
            if select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
                self._take(process, polls, once=True)

    def _take(self, process: subprocess.Popen[bytes], polls: Polls, *, once: bool = False) -> None:
        """Rows that are there; without `once` all up to the end. A row is written whole, for a pipe keeps so few bytes together."""
        assert process.stdout is not None
        now_ms = max(0, int((time.monotonic() - self._told.began_at) * 1000))
        while data := process.stdout.read(_ROW.size * 200):
            for partition, offset, value in _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]):
                if self._next.get((polls.process, partition)) != offset:
                    polls.assign(partition, offset, now_ms)
                self._next[polls.process, partition] = offset + 1
                polls.poll(partition, offset, value, now_ms)
                self._polled += 1
            if once:
                break

    def _report(self) -> None:
        sys.stdout.write(json.dumps({"worker": self._told.worker, "polled": self._polled, "ends": self._ends}) + "\n")
        sys.stdout.flush()


def gaps(group: Iterable[Polls], everything: Iterable[Polls]) -> list[str]:
    """Which messages no one of a group has read, although one of them has read beyond.

    Args:
        everything: of who has read all there is; between two messages there may be offsets without one.
    """

    def offsets(polls: Iterable[Polls]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for poll in polls:
            for partition, first, count, _, _ in poll.runs():
                found[partition].update(range(first, first + count))
        return found

    there = offsets(everything)
    told = []
    for partition, seen in sorted(offsets(group).items()):
        last = max(seen, default=0)
        if missing := sorted(offset for offset in there[partition] - seen if offset < last):
            told.append(
                f"group {GROUP}: of partition {partition} no one has read {len(missing)} messages from offset {missing[0]} on,"
                f" and one has read up to {last}"
            )
    return told


if __name__ == "__main__":
    given = Connecting(**json.loads(sys.argv[1]))
    sys.exit(live(given, sys.argv[2]) if len(sys.argv) > 2 else Worker(given).run())
