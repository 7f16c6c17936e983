"""Latency at a steady rate, open loop: a request leaves when its time has come, whatever became of those before.

`python -m tests.bench.pace JSON` prints one JSON line, at the end of its time or at SIGTERM. A latency counts from the
moment the request was *due*, so a server (or generator) that stalls is charged for every request that it kept waiting:
no coordinated omission. How late the generator itself was is given too.
"""

from __future__ import annotations

import ctypes
import gc
import json
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Final

from tests.bench import wire
from tests.bench.processes import cpu_seconds

_PR_SET_TIMERSLACK: Final = 29
STALL_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate` requests a second, one message each, over `connections` in turn, for `seconds` after the warm-up."""

    port: int
    server_pid: int
    topic: str
    version: int
    rate: float
    connections: int
    seconds: float
    warm_up_seconds: float
    message_size: int
    messages_per_batch: int = 1
    answer_size: int = 0


def run(pace: Pace) -> dict[str, object]:
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    # A sleep may last 50 microseconds longer by default.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    request = wire.produce_request(pace.version, pace.topic, 0, wire.record_batch(pace.messages_per_batch, pace.message_size))
    sockets = [socket.create_connection(("127.0.0.1", pace.port), 10) for _ in range(pace.connections)]
    for client in sockets:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer_size = pace.answer_size
    if not answer_size:
        for client in sockets:
            client.sendall(request)
            answer = client.recv(4096)
            error_code, _ = wire.produce_answer(pace.version, answer)
            if error_code:
                raise wire.UnexpectedAnswer(f"Produce answered with error {error_code}")
            answer_size = len(answer)
    due: dict[socket.socket, deque[float]] = {client: deque() for client in sockets}
    received = dict.fromkeys(sockets, 0)
    samples: list[tuple[float, float]] = []
    late: list[float] = []
    interval = 1 / pace.rate
    gc.disable()
    server_cpu = cpu_seconds(pace.server_pid)
    begun_at = time.perf_counter()
    measured_from = begun_at + pace.warm_up_seconds
    last = measured_from + pace.seconds
    number = 0
    answered_at = begun_at
    while True:
        now = time.perf_counter()
        next_due = begun_at + number * interval
        sending = not stopped and next_due < last
        if sending and now >= next_due:
            target = sockets[number % pace.connections]
            target.sendall(request)
            due[target].append(next_due)
            late.append(now - next_due)
            number += 1
            continue
        if not sending and not any(due.values()):
            break
        ready, _, _ = select.select(sockets, [], [], next_due - now if sending else STALL_SECONDS)
        now = time.perf_counter()
        for connection in ready:
            received[connection] += len(connection.recv(65536))
            while received[connection] >= answer_size:
                received[connection] -= answer_size
                was_due = due[connection].popleft()
                answered_at = now
                if was_due >= measured_from:
                    samples.append((was_due, now - was_due))
        if now - answered_at > STALL_SECONDS:
            raise wire.UnexpectedAnswer(f"no answer for {STALL_SECONDS:.0f} s")
    late.sort()
    return {
        "samples": samples,
        "generator_late_p99": late[len(late) * 99 // 100] if late else 0.0,
        "server_cpu_seconds": cpu_seconds(pace.server_pid) - server_cpu,
        "seconds": time.perf_counter() - begun_at,
        "answer_size": answer_size,
    }


def main() -> None:
    sys.stdout.write(json.dumps(run(Pace(**json.loads(sys.argv[1])))) + "\n")


if __name__ == "__main__":
    main()
