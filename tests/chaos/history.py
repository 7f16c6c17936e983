"""What clients did and saw: every send with what came of it, every message that was polled, by process and in order.

Half an hour at thousands of messages a second is tens of millions of rows, so a row is some bytes of an array and never
an object. A *process* is one life of one client, as in Jepsen: a producer that was made again after a fatal error, or a
consumer that was set to another place, is another process, because the client promises no order across that.

A message's value is unique in the whole run: the process that sent it and how many it had sent before.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

NO_OFFSET: Final = -1
# In the place of a value: what was read is nothing that a producer of ours ever wrote.
DAMAGED: Final = (1 << 64) - 2

_SEQUENCE_BITS: Final = 32
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1


def value_of(process: int, sequence: int) -> int:
    """The value of the message that a process sent after `sequence` others."""
    return process << _SEQUENCE_BITS | sequence


def sender_of(value: int) -> tuple[int, int]:
    """The process and the sequence that a value is made of."""
    return value >> _SEQUENCE_BITS, value & _SEQUENCE_MASK


class Outcome(IntEnum):
    """What a producer learned of a message."""

    UNKNOWN = 0  # it may be in the log or not
    ACKNOWLEDGED = 1
    FAILED = 2  # it is certainly not in the log


class Sends:
    """What one process sent: row `i` is its message `i`. Times are milliseconds since the run began."""

    __slots__ = ("done_at", "offsets", "outcomes", "partitions", "process", "sent_at")

    def __init__(self, process: int) -> None:
        self.process = process
        self.partitions = array("H")
        self.offsets = array("q")
        self.outcomes = array("B")
        self.sent_at = array("I")
        self.done_at = array("I")

    def __len__(self) -> int:
        return len(self.partitions)

    def begin(self, partition: int, now_ms: int) -> int:
        """A message is about to be sent; gives its value. Until its end is known its outcome is not."""
        self.partitions.append(partition)
        self.offsets.append(NO_OFFSET)
        self.outcomes.append(Outcome.UNKNOWN)
        self.sent_at.append(now_ms)
        self.done_at.append(0)
        return value_of(self.process, len(self.partitions) - 1)

    def acknowledge(self, sequence: int, offset: int, now_ms: int) -> None:
        """The broker says that the message is there; `offset` may be NO_OFFSET where it does not say where."""
        self.offsets[sequence] = offset
        self.outcomes[sequence] = Outcome.ACKNOWLEDGED
        self.done_at[sequence] = now_ms

    def fail(self, sequence: int, now_ms: int) -> None:
        """The message never left this process."""
        self.outcomes[sequence] = Outcome.FAILED
        self.done_at[sequence] = now_ms

    def give_up(self, sequence: int, now_ms: int) -> None:
        """The client tries no more, and whether the message is in the log is not known."""
        self.done_at[sequence] = now_ms

    def _columns(self) -> tuple[array[int], ...]:
        return self.partitions, self.offsets, self.outcomes, self.sent_at, self.done_at


class Polls:
    """What one process polled, in its order: runs of consecutive offsets of a partition, and a value for each offset.

    A run without values is a place that the process was set to: the next that it polls there should be that offset.
    """

    __slots__ = ("at", "counts", "first_offsets", "partitions", "process", "values")

    def __init__(self, process: int) -> None:
        self.process = process
        self.partitions = array("H")
        self.first_offsets = array("q")
        self.counts = array("I")
        self.at = array("I")
        self.values = array("Q")

    def __len__(self) -> int:
        return len(self.values)

    def assign(self, partition: int, offset: int, now_ms: int) -> None:
        """The process reads this partition from `offset` on."""
        self._run(partition, offset, 0, now_ms)

    def poll(self, partition: int, offset: int, value: int, now_ms: int) -> None:
        """The process got one message."""
        self.values.append(value)
        if (
            self.counts
            and self.counts[-1]
            and self.partitions[-1] == partition
            and self.at[-1] == now_ms
            and self.first_offsets[-1] + self.counts[-1] == offset
        ):
            self.counts[-1] += 1
        else:
            self._run(partition, offset, 1, now_ms)

    def runs(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Each run: partition, first offset, count, time, and where its values begin."""
        position = 0
        for partition, first_offset, count, at in zip(self.partitions, self.first_offsets, self.counts, self.at, strict=True):
            yield partition, first_offset, count, at, position
            position += count

    def _run(self, partition: int, offset: int, count: int, now_ms: int) -> None:
        self.partitions.append(partition)
        self.first_offsets.append(offset)
        self.counts.append(count)
        self.at.append(now_ms)

    def _columns(self) -> tuple[array[int], ...]:
        return self.partitions, self.first_offsets, self.counts, self.at, self.values


@dataclass(slots=True)
class History:
    """What all processes did."""

    sends: list[Sends] = field(default_factory=list)
    polls: list[Polls] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Writes a file: for each process a line of JSON, and its columns as the machine holds them."""
        with path.open("wb") as file:
            processes: list[Sends | Polls] = [*self.sends, *self.polls]
            for process in processes:
                columns = process._columns()
                sizes = [len(column) * column.itemsize for column in columns]
                header = {"kind": type(process).__name__, "process": process.process, "sizes": sizes}
                file.write(json.dumps(header).encode() + b"\n")
                for column in columns:
                    column.tofile(file)

    def load(self, path: Path) -> None:
        """Adds what `save` wrote."""
        with path.open("rb") as file:
            while line := file.readline():
                header = json.loads(line)
                if header["kind"] == Sends.__name__:
                    sends = Sends(header["process"])
                    _fill(sends._columns(), header, file)
                    self.sends.append(sends)
                else:
                    polls = Polls(header["process"])
                    _fill(polls._columns(), header, file)
                    self.polls.append(polls)


def _fill(columns: tuple[array[int], ...], header: dict[str, Any], file: BinaryIO) -> None:
    for column, size in zip(columns, header["sizes"], strict=True):
        column.fromfile(file, size // column.itemsize)
