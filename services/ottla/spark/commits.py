"""What a stream's sink decides: each batch is committed in all its transactions or in none, no matter who dies in between.

    begin ──► tasks ──► decide ──────────────► end ──────────► ended
      │         │          │                     │
      │         │          │                     └ the batch's transactions, one after the other
      │         │          └ a record of `__ottla_sink_commits`, by the query's name: from here on the batch is committed
      │         └ each writes in a transaction of its own and leaves it open
      └ the driver's transactional id is taken, so that no other driver of the query decides any more; what was decided is ended,
        what was not is aborted

The records are written in transactions of the driver's id: a driver that another one has replaced cannot write one. A batch whose
decision is there is never written again, as often as Spark runs it.

Pure: names, the record, and what it means for the batch at hand. `exactly_once` asks and writes.
"""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from ottla.errors import OttlaError

TOPIC: Final = "__ottla_sink_commits"
PARTITIONS: Final = 16
# Small segments are compacted soon, and all of a partition is read when a batch begins.
SEGMENT_BYTES: Final = 1 << 20
DEFAULT_TIMEOUT_MS: Final = 900_000  # what brokers allow at most, unless transaction.max.timeout.ms says otherwise
MARGIN_MS: Final = 10_000  # of its transactions' time, which a batch leaves for their end
NO_BATCH: Final = -1

_RELEASE: Final = 1
_SLOT: Final = re.compile(r"\d+(\.\d+)*")


class CheckpointFenced(OttlaError):
    """Another query or checkpoint has written under the name; nothing is written under it for this one."""


class CommitsUnreadable(OttlaError):
    """A decision that is no decision, or one of a newer release."""


class TransactionLost(OttlaError):
    """A transaction ended in another way than it was to; the message says what that means for the batch."""


class Step(enum.Enum):
    """Where a batch has come to: what tests stop at."""

    FENCED = "fenced"
    RESUMED = "resumed"
    BEGUN = "begun"
    PREPARED = "prepared"
    VERIFIED = "verified"
    DECIDED = "decided"
    ENDED_ONE = "ended one"
    ENDED = "ended"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class Slot:
    """A task's transaction, which is everything that the task has written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    rows: int


@dataclass(frozen=True, slots=True)
class Decision:
    """That a batch is committed.

    Attributes:
        query: the id in the checkpoint of the query.
        is_ended: whether all of its transactions have been.
        plan: a digest of what the checkpoint says of the batch, its offsets above all; empty: not known.
    """

    query: str
    batch: int
    slots: tuple[Slot, ...]
    is_ended: bool = False
    plan: str = ""

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps({"release": _RELEASE, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes, where: str) -> Decision:
        """Reads a record's value.

        Raises:
            CommitsUnreadable: with where it is.
        """
        try:
            found: dict[str, Any] = json.loads(value)
            release = found.pop("release")
            if release != _RELEASE:
                raise CommitsUnreadable(f"{where} is of release {release} of the sink's records, and {_RELEASE} is read here")
            slots = tuple(Slot(**slot) for slot in found.pop("slots"))
            return cls(slots=slots, **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CommitsUnreadable(f"{where} is no decision of a sink: {error}") from error


def partition_of(name: str) -> int:
    """The partition of `__ottla_sink_commits` that a query's decisions are in."""
    return zlib.crc32(name.encode()) % PARTITIONS


def driver_id(name: str) -> str:
    """The transactional id that decisions are written by."""
    return f"{name}-driver"


def slot_id(name: str, partition: int, attempt: int) -> str:
    """The transactional id of a task. A second attempt has another one: Spark may run both at a time, and take the first one's word."""
    return f"{name}-{partition}" if attempt == 0 else f"{name}-{partition}.{attempt}"


def slots_of(name: str, transactional_ids: Iterable[str]) -> list[str]:
    """Those of some transactional ids that are tasks' of this name."""
    prefix = f"{name}-"
    return [found for found in transactional_ids if found.startswith(prefix) and _SLOT.fullmatch(found, len(prefix))]


def check_owner(name: str, found: Decision | None, query: str | None) -> None:
    """Looks whether the name is this query's.

    Args:
        query: None where it is not known yet.

    Raises:
        CheckpointFenced
    """
    if found is not None and query is not None and found.query != query:
        raise CheckpointFenced(
            f"{name} belongs to the checkpoint of query {found.query}, which has written batch {found.batch} under it, and this is query"
            f" {query}: take another kafka.transactional.id, or the checkpoint of that query"
        )


def check_plan(name: str, found: Decision | None, plan: str | None) -> None:
    """Looks whether the batch that was decided is this checkpoint's. Batches are known by their numbers, so that those of a checkpoint
    that was copied, or restored from a backup, would be taken for committed, and their rows be lost.

    Args:
        plan: of that batch in this checkpoint; empty: not known; None: the checkpoint has not come so far.

    Raises:
        CheckpointFenced
    """
    if found is None or plan == "" or (plan is not None and found.plan in ("", plan)):
        return
    here = "ends before it" if plan is None else "has other offsets of it"
    raise CheckpointFenced(
        f"batch {found.batch} of {name} is committed, and this checkpoint {here}: it is a copy of the one that wrote it, or was restored"
        " from a backup. Start the query with that one; or with this one under another kafka.transactional.id, which writes again what came"
        " since the copy was made"
    )


def check_time(began_ms: int, now_ms: int, timeout_ms: int) -> None:
    """Looks whether a batch's transactions will live until they are ended.

    Raises:
        TransactionLost: nothing is committed.
    """
    if now_ms - began_ms + MARGIN_MS > timeout_ms:
        raise TransactionLost(
            f"the batch took {now_ms - began_ms} ms, and its transactions may end before they are committed, so nothing was:"
            f" kafka.transaction.timeout.ms is {timeout_ms}, and has to be {MARGIN_MS} ms above that"
        )


def check_prepared(slots: Iterable[Slot], found: Iterable[tuple[int, int] | None]) -> None:
    """Looks whether the coordinators still have each transaction open, as its task left it.

    Args:
        found: of each slot the producer id and epoch whose transaction is open; None if none is.

    Raises:
        TransactionLost: nothing is committed.
    """
    gone = [slot.transactional_id for slot, at in zip(slots, found, strict=True) if at != (slot.producer_id, slot.producer_epoch)]
    if gone:
        raise TransactionLost(f"another task has taken over, or time has ended, {', '.join(gone)}: nothing of the batch was committed")
