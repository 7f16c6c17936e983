"""A consumer in a process of its own: it polls all partitions and writes down every message that it got.

    python -m tests.chaos.consuming JSON       # the fields of `Consuming`; ends at SIGTERM, then writes its history

It assigns itself the partitions; there are no groups. Now and then it starts again some way back, as a new process of the
history. With `reads_to_the_end` it reads everything once from the first offset to the high watermark, and ends.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.chaos import messages
from tests.chaos.auditing import OF_CLIENTS
from tests.chaos.history import History, Polls
from tests.chaos.producing import LIVES

from ottla.client import audited

_FURTHEST_BACK: Final = 5_000
_POLL_SECONDS: Final = 0.2
_POLL_COUNT: Final = 1_000
# librdkafka reads no more of a partition whose offset was refused, until it is assigned again.
_STOPS_READING: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")
_WATERMARK_SECONDS: Final = 30.0
_TO_THE_END_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Consuming:
    """What a consumer process is told."""

    worker: int
    bootstrap_servers: str
    topic: str
    partition_count: int
    seed: str
    began_at: float
    history_file: str
    reads_to_the_end: bool = False
    rack: str = ""
    is_audited: bool = False


class Worker:
    """The consumer process."""

    def __init__(self, told: Consuming) -> None:
        self._told = told
        self._random = Random(told.seed)
        self._history = History()
        self._positions = dict.fromkeys(range(told.partition_count), 0)
        self._errors: Counter[str] = Counter()
        self._polled = 0
        self._is_stopped = False

    def run(self) -> int:
        """Consumes until SIGTERM, or to the end. 1 when the end was not reached in time."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_is_stopped", True))
        is_complete = True
        if self._told.reads_to_the_end:
            is_complete = self._read_to_the_end()
        else:
            while not self._is_stopped:
                self._live()
        self._history.save(Path(self._told.history_file))
        self._report()
        return 0 if is_complete else 1

    def _now_ms(self) -> int:
        return max(0, int((time.monotonic() - self._told.began_at) * 1000))

    def _live(self) -> None:
        consumer, polls = self._assigned()
        ends_at = time.monotonic() + self._random.uniform(15, 60)
        reported_at = time.monotonic()
        try:
            while not self._is_stopped and time.monotonic() < ends_at:
                self._poll(consumer, polls)
                if time.monotonic() > reported_at + 1:
                    reported_at = time.monotonic()
                    self._report()
        finally:
            consumer.close()
        for partition, position in self._positions.items():
            self._positions[partition] = max(0, position - self._random.choice((0, self._random.randint(0, _FURTHEST_BACK))))

    def _read_to_the_end(self) -> bool:
        consumer, polls = self._assigned()
        deadline = time.monotonic() + _TO_THE_END_SECONDS
        try:
            ends = {partition: self._end_of(consumer, partition, deadline) for partition in self._positions}
            while not self._is_stopped and time.monotonic() < deadline:
                if all(self._positions[partition] >= end for partition, end in ends.items()):
                    return True
                self._poll(consumer, polls)
        except KafkaException as error:
            self._errors[error.args[0].name()] += 1
        finally:
            consumer.close()
        return False

    def _end_of(self, consumer: Consumer, partition: int, deadline: float) -> int:
        """Asked again while leaderships are given back to those who have them by preference."""
        while True:
            try:
                end: int = consumer.get_watermark_offsets(TopicPartition(self._told.topic, partition), _WATERMARK_SECONDS)[1]
                return end
            except KafkaException as error:
                self._errors[error.args[0].name()] += 1
                if self._is_stopped or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _assigned(self) -> tuple[Consumer, Polls]:
        polls = Polls(self._told.worker * LIVES + len(self._history.polls))
        self._history.polls.append(polls)
        consumer = audited(Consumer)({**self._configuration(), **OF_CLIENTS}) if self._told.is_audited else Consumer(self._configuration())
        self._assign(consumer)
        for partition, offset in self._positions.items():
            polls.assign(partition, offset, self._now_ms())
        return consumer, polls

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(self._told.topic, partition, offset) for partition, offset in self._positions.items()])

    def _configuration(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._told.bootstrap_servers,
            "client.id": f"consumer-{self._told.worker}",
            "client.rack": self._told.rack,
            "group.id": f"chaos-{self._told.worker}",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # a reset would hide a log that was cut
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
            "socket.timeout.ms": 5_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "queued.max.messages.kbytes": 16_384,
        }

    def _poll(self, consumer: Consumer, polls: Polls) -> None:
        got = consumer.consume(_POLL_COUNT, _POLL_SECONDS)
        now_ms = self._now_ms()
        is_stuck = False
        for message in got:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                self._errors[error.name()] += 1
                sys.stderr.write(f"{now_ms / 1000:.3f} s: partition {partition} at {self._positions.get(partition or 0)}: {error.str()}\n")
                is_stuck = is_stuck or error.name() in _STOPS_READING
                continue
            assert partition is not None and offset is not None
            polls.poll(partition, offset, messages.decode(message.value()), now_ms)
            self._positions[partition] = offset + 1
            self._polled += 1
        if is_stuck:
            # It stays the same process: what it gets next has to be what comes next.
            time.sleep(_POLL_SECONDS)
            self._assign(consumer)

    def _report(self) -> None:
        sys.stdout.write(json.dumps({"worker": self._told.worker, "polled": self._polled, "errors": self._errors}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(Worker(Consuming(**json.loads(sys.argv[1]))).run())
