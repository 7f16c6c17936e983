"""What was seen of one topic that is deleted and made again under its name, and the judge of it: each incarnation on its own.

A topic that is made again is another topic, with the same name and another id. Of its records all that were acknowledged and
not deleted on request are there, from offset 0 on, whatever the former one left on the brokers' disks. Asked of each partition
of an incarnation that was read from its first offset to its end:

lost                 acknowledged, not before where the log begins, and not there
begins too late      the log begins beyond everything that DeleteRecords was asked for, or was asked for of a former one without an answer
came back            the log begins before what a DeleteRecords was answered
of another topic     a message that another incarnation acknowledged, or that no one sent
inconsistent offset  another message lies at the offset that was acknowledged

A request may come late, when it has waited at a broker that was frozen: then it is done to whatever has the name by then, as with
Kafka. So a message of unknown end may be in a later incarnation; those are counted, and are no anomaly. Nothing here does I/O but
loading and saving.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.chaos.verdict import Findings


class Wrong(StrEnum):
    """What can be wrong with an incarnation."""

    LOST = "lost"
    BEGINS_TOO_LATE = "begins too late"
    CAME_BACK = "came back"
    OF_ANOTHER_TOPIC = "of another topic"
    INCONSISTENT_OFFSET = "inconsistent offset"


@dataclass(slots=True)
class PartitionLife:
    """One partition of one incarnation.

    Attributes:
        sent: how many messages were sent; they are numbered from 0.
        acknowledged: the offset of each message that was acknowledged, by its number.
        asked: the largest offset that DeleteRecords was asked for.
        answered: the largest low watermark that it was answered with.
        unanswered: the largest offset of which it is not known whether it was done.
        read: the offset, incarnation and number of each message, when all was read.
        begin: where the log began when it was read; None when it was not read to its end.
    """

    sent: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    answered: int = 0
    unanswered: int = 0
    read: list[tuple[int, int, int]] = field(default_factory=list)
    begin: int | None = None


@dataclass(slots=True)
class Incarnation:
    """A topic from its creation to its deletion; times are milliseconds since the run began."""

    number: int
    began_at: int
    partitions: list[PartitionLife]


@dataclass(slots=True)
class IncarnationVerdict(Findings):
    """What was found, and how much was looked at; a finding's time is that at which its incarnation began."""

    incarnations: int = 0
    partitions_read: int = 0
    acknowledged: int = 0
    deletions: int = 0  # partitions of which records were deleted
    late: int = 0  # messages of unknown end that came to a later incarnation


def save(path: Path, lives: list[Incarnation]) -> None:
    """Writes them as JSON."""
    path.write_text(json.dumps([asdict(life) for life in lives]), encoding="utf-8")


def load(path: Path) -> list[Incarnation]:
    """Reads what `save` wrote."""
    return [
        Incarnation(life["number"], life["began_at"], [_partition(one) for one in life["partitions"]])
        for life in json.loads(path.read_text(encoding="utf-8"))
    ]


def check(lives: list[Incarnation]) -> IncarnationVerdict:
    """Judges all of them."""
    verdict = IncarnationVerdict(incarnations=len(lives))
    by_number = {life.number: life for life in lives}
    for life in lives:
        for index, partition in enumerate(life.partitions):
            verdict.acknowledged += len(partition.acknowledged)
            verdict.deletions += partition.asked > 0
            if partition.begin is not None:
                verdict.partitions_read += 1
                _check_partition(verdict, by_number, life, index, partition, partition.begin)
    return verdict


def _check_partition(
    verdict: IncarnationVerdict, by_number: dict[int, Incarnation], life: Incarnation, index: int, partition: PartitionLife, begin: int
) -> None:
    def tell(wrong: Wrong, explanation: str) -> None:
        verdict.add(wrong, life.began_at, f"partition {index} of incarnation {life.number}: {explanation}")

    former = [each for number, each in by_number.items() if number < life.number]
    asked = max(partition.asked, *(incarnation.partitions[index].unanswered for incarnation in former), 0)
    if begin > asked:
        tell(Wrong.BEGINS_TOO_LATE, f"it begins at {begin}, and records were to be deleted up to {asked} at most")
    if begin < partition.answered:
        tell(Wrong.CAME_BACK, f"it begins at {begin}, and records were deleted up to {partition.answered}")
    at = {offset: (incarnation, number) for offset, incarnation, number in partition.read}
    for number, offset in partition.acknowledged.items():
        found = at.get(offset)
        if found is None and offset >= begin:
            tell(Wrong.LOST, f"message {number} was acknowledged at {offset}, and nothing is there; it begins at {begin}")
        elif found is not None and found != (life.number, number):
            tell(Wrong.INCONSISTENT_OFFSET, f"message {number} was acknowledged at {offset}, and {_named(found)} is there")
    for offset, incarnation, number in partition.read:
        sender = by_number.get(incarnation)
        sent = None if sender is None or index >= len(sender.partitions) else sender.partitions[index]
        if sent is None or number >= sent.sent or incarnation > life.number or (incarnation < life.number and number in sent.acknowledged):
            tell(Wrong.OF_ANOTHER_TOPIC, f"{_named((incarnation, number))} is at {offset}")
        else:
            verdict.late += incarnation < life.number


def _named(message: tuple[int, int]) -> str:
    return f"message {message[1]} of incarnation {message[0]}"


def _partition(fields: dict[str, Any]) -> PartitionLife:
    acknowledged = {int(number): offset for number, offset in fields.pop("acknowledged").items()}
    read = [(offset, incarnation, number) for offset, incarnation, number in fields.pop("read")]
    return PartitionLife(**fields, acknowledged=acknowledged, read=read)
