"""`python -m tests.simulation --sabotage NAME`: brokers that are broken on purpose, each of which has to be found out.

Those of `tests.chaos.sabotaged` take away what keeps acknowledged messages on several brokers; those here take away what
keeps them on one disk, which no process that is killed would ever miss. There are no transactions in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from ottla.broker.control import PartitionAssignment
from tests.chaos.sabotaged import OF_REPLICATION
from tests.simulation.faults import MOVES, RECREATION

from ottla.broker.replication import log_owner, replicas
from ottla.model import ZERO_TOPIC_ID, TopicPartition
from ottla.storage import checkpoints, log_directory, log_moves, log_sync
from ottla.storage.kafka_uuid import format_uuid
from ottla.storage.log import Log
from ottla.storage.log_checkpoints import LogCheckpoints
from ottla.storage.log_directory import LogDirectory
from ottla.storage.log_manager import LogManager
from ottla.storage.partition_metadata import PARTITION_METADATA


def skip_fsync() -> None:
    """What is said to be synced was only written."""

    def sync(job: object, operations: object) -> None:
        pass

    _replace(log_sync, "sync", sync)


def forget_the_directory() -> None:
    """New names are never made to last: a file is on the disk, and nobody can find it."""

    def sync_directory(directory: Path) -> None:
        pass

    for module in (checkpoints, log_directory, log_sync):
        _replace(module, "sync_directory", sync_directory)


def inherit_checkpoints() -> None:
    """A partition's name is given to a new log while the checkpoints still speak of the former one."""

    async def forget(self: LogCheckpoints, directory: LogDirectory, topic_partitions: Collection[TopicPartition]) -> None:
        pass

    def forget_now(self: LogCheckpoints, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        pass

    _replace(LogCheckpoints, "forget", forget)
    _replace(LogCheckpoints, "forget_now", forget_now)


def take_any_log() -> None:
    """The file that says whose a log is was only written, and a log without it is the topic's that comes first."""

    def write_topic_id(directory: Path, topic_id: UUID) -> None:
        with open(directory / PARTITION_METADATA, "w", encoding="utf-8") as file:
            file.write(f"version: 0\ntopic_id: {format_uuid(topic_id)}\n")

    def owner_of(found: log_owner.Found, assignment: PartitionAssignment, broker_id: int) -> log_owner.Owner:
        is_topics = found.topic_id in (None, ZERO_TOPIC_ID, assignment.topic_id)
        return log_owner.Owner.TOPIC if is_topics else log_owner.Owner.ANOTHER_TOPIC

    async def write_topic_ids(self: LogManager, topic_ids: Mapping[TopicPartition, UUID]) -> None:
        pass

    _replace(log_directory, "write_topic_id", write_topic_id)
    _replace(replicas, "owner_of", owner_of)
    _replace(LogManager, "write_topic_ids", write_topic_ids)


def give_up_the_source_first() -> None:
    """A log that has moved leaves its former directory before the new one has its name and its bytes for good."""

    async def settle(self: log_moves.LogMoves, moved: Log, move: log_moves._Move) -> None:
        await self._logs.give_up(move.source)
        await moved.flush()
        await self._logs.write_checkpoints()

    def sync_directory(directory: Path) -> None:
        pass

    _replace(log_moves.LogMoves, "_settle", settle)
    _replace(log_moves, "sync_directory", sync_directory)


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A way to break brokers.

    Attributes:
        begin: breaks them, in this process and for good.
        profile: of the runs that are to find it out; None for those that seeds draw.
    """

    begin: Callable[[], None]
    profile: str | None = None


SABOTAGES: Final[Mapping[str, Sabotage]] = {
    **{name: Sabotage(begin) for name, begin in OF_REPLICATION.items()},
    "skips-fsync": Sabotage(skip_fsync),
    "forgets-the-directory": Sabotage(forget_the_directory),
    "inherits-checkpoints": Sabotage(inherit_checkpoints, RECREATION),
    "takes-any-log": Sabotage(take_any_log),
    "gives-up-the-source-first": Sabotage(give_up_the_source_first, MOVES),
}


def _replace(owner: Any, name: str, replacement: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the sabotage is out of date"
    setattr(owner, name, replacement)
