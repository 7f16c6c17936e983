"""What transactional clients did and saw: every transaction with its sends, its reads and its end, and every read beside them.

There are tens of transactions a second and not thousands of messages, so rows are plain values and a file is JSON.

A message has a name that is unique in the whole run: whose it is, of which transaction, and how many that had sent before.
A copy's name has the name of what it is a copy of behind it. A message carries its name and a checksum of it, so that
what was damaged is told from what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

NO_OFFSET: Final = -1
NEVER: Final = -1
OUTSIDE: Final = -1  # in the place of a transaction's number: read outside of any
DAMAGED: Final = "(damaged)"

_COPY_OF: Final = "<"


def encode(name: str) -> bytes:
    """The message of that name."""
    data = name.encode()
    return b"%s %08x" % (data, crc32(data))


def decode(message: bytes | None) -> str:
    """The name of a message, or DAMAGED when it is not as `encode` made it."""
    data, _, checksum = (message or b"").rpartition(b" ")
    return data.decode() if data and checksum == b"%08x" % crc32(data) else DAMAGED


def copy_name(own: str, original: str) -> str:
    """The name of a copy."""
    return f"{own}{_COPY_OF}{original}"


def original_of(name: str) -> str | None:
    """The name of what this is a copy of; None when it is none."""
    _, separator, original = name.partition(_COPY_OF)
    return original if separator else None


class End(StrEnum):
    """How a transaction ended, as far as its producer can know."""

    COMMITTED = "committed"
    ABORTED = "aborted"  # or a commit was never asked for: no one may ever read what it wrote
    UNKNOWN = "unknown"  # a commit was asked for and not answered


class Sent(NamedTuple):
    """A message that a transaction sent; NO_OFFSET where the broker did not say where it is."""

    partition: str
    name: str
    offset: int


class Got(NamedTuple):
    """A message that a process read, and in which of its transactions."""

    partition: str
    offset: int
    name: str
    at_ms: int
    transaction: int = OUTSIDE


@dataclass(slots=True)
class Transaction:
    """One transaction of one producer. Times are milliseconds since the run's begin.

    Attributes:
        process: the life of the client.
        number: how many transactions that life had before.
        commit_asked_ms: when a commit was first asked for; NEVER when it was not.
        ended_ms: when its end was answered; NEVER when it was not.
    """

    process: str
    number: int
    began_ms: int
    commit_asked_ms: int = NEVER
    ended_ms: int = NEVER
    end: End = End.ABORTED
    sends: list[Sent] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For messages and for people."""
        return f"{self.process}.{self.number}"

    def send(self, partition: str, original: str | None = None) -> tuple[int, str]:
        """A message is about to be sent; gives its place in `sends` and its name."""
        own = f"{self.name}.{len(self.sends)}"
        name = own if original is None else copy_name(own, original)
        self.sends.append(Sent(partition, name, NO_OFFSET))
        return len(self.sends) - 1, name

    def delivered(self, place: int, offset: int) -> None:
        """The broker says where a message is."""
        self.sends[place] = self.sends[place]._replace(offset=offset)


@dataclass(slots=True)
class Reads:
    """What one process read, in its order. What it is assigned has `positions`: the next it reads there should be that offset."""

    process: str
    positions: dict[str, int] = field(default_factory=dict)
    rows: list[Got] = field(default_factory=list)


@dataclass(slots=True)
class TransactionHistory:
    """What all processes did."""

    transactions: list[Transaction] = field(default_factory=list)
    reads: list[Reads] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Writes a file, a line for each transaction and each reader."""
        with path.open("w", encoding="utf-8") as file:
            for line in self._lines():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def load(self, path: Path) -> None:
        """Adds what `save` wrote."""
        with path.open(encoding="utf-8") as file:
            for line in file:
                kind, *fields = json.loads(line)
                if kind == Transaction.__name__:
                    process, number, began, asked, ended, end, sends = fields
                    self.transactions.append(Transaction(process, number, began, asked, ended, End(end), [Sent(*send) for send in sends]))
                else:
                    process, positions, rows = fields
                    self.reads.append(Reads(process, positions, [Got(*row) for row in rows]))

    def _lines(self) -> Iterator[list[Any]]:
        for transaction in self.transactions:
            yield [
                Transaction.__name__,
                *(
                    transaction.process,
                    transaction.number,
                    transaction.began_ms,
                    transaction.commit_asked_ms,
                    transaction.ended_ms,
                    str(transaction.end),
                    transaction.sends,
                ),
            ]
        for reads in self.reads:
            yield [Reads.__name__, reads.process, reads.positions, reads.rows]
