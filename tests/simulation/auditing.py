"""When brokers' logs are looked into, and what must be the same before and after.

    after each start    every log is audited, byte for byte, and compared with what its last life had promised to keep
    now and then        the logs of one broker are audited, and what its recovery points vouch for; the logs of a partition are
                        compared by their bytes up to the high watermark
    at the end          all of it, for everybody

A life that was killed must find everything that was written; one that lost its power everything before the recovery point, and a
crash between two calls everything that was committed. `log_audit` says what can be wrong with one log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.simulation.cluster import Cluster, Ending, Machine
from tests.simulation.compacted import last_of_keys, lost_records
from tests.simulation.disk import Disk
from tests.simulation.log_audit import MOST_FINDINGS, BatchKey, checkpoint_findings, durability_findings, findings, read_log, topic_findings

from ottla.model import TopicPartition
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

# Between two looks into one broker's logs; a run is one to two minutes long.
LOOK_SECONDS: Final = (4.0, 12.0)
LOOK_UPS: Final = 6
LOOK_UPS_AT_THE_END: Final = 40
_NUMBER: Final = re.compile(r"[0-9]+(?!-)")

_LOSSES_OF_POWER: Final = (Ending.LOST_POWER, Ending.CRASHED_AND_LOST_POWER)
# What an ending is when the power goes before the next life; a loss of power in all other cases.
_AND_LOST_POWER: Final = {
    Ending.CRASHED: Ending.CRASHED_AND_LOST_POWER,
    Ending.CRASHED_AND_LOST_POWER: Ending.CRASHED_AND_LOST_POWER,
    Ending.LOST_DISK: Ending.LOST_DISK,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a log had when its broker went down, as far as the next life must find it."""

    directory: Path
    log_start_offset: int
    kept_offset: int  # the end of what must be there
    first_offset: int  # from where on batches are compared
    batches: tuple[BatchKey, ...]  # from there to the end
    last_records: Mapping[bytes, tuple[int, bytes]]  # of keys, before that: offset and value


@dataclass(slots=True)
class Auditor:
    """The audits of one run.

    Args:
        violated: told what must not be.
        producers_expire: whether clocks go so far ahead that producers are forgotten.
        exempt: topics that may lose what was committed, by their settings.
    """

    cluster: Cluster
    random: Random
    violated: Callable[[str], None]
    producers_expire: bool = False
    exempt: Set[str] = frozenset()
    audits: int = 0
    _kept: dict[int, dict[TopicPartition, Kept]] = field(default_factory=dict)
    # The same if power is lost before the next life has loaded its logs.
    _synced: dict[int, dict[TopicPartition, Kept]] = field(default_factory=dict)
    # By broker, partition and topic: up to where its logs have deleted records, in all lives before this one.
    _deleted_up_to: dict[tuple[int, TopicPartition, UUID | None], int] = field(default_factory=dict)
    _next_look: float = 0.0
    _told: set[str] = field(default_factory=set)

    def look(self, now: float) -> None:
        """Called often; looks seldom."""
        if now < self._next_look:
            return
        self._next_look = now + self.random.uniform(*LOOK_SECONDS)
        running = [machine for machine in self.cluster.machines.values() if machine.is_up and machine.logs is not None]
        if running:
            self._audit_machine(self.random.choice(running), checks_bytes=False, looks=LOOK_UPS)
        self._compare(self.random.sample(sorted(self.cluster.states()), min(2, len(self.cluster.states()))))

    def finish(self) -> None:
        """Everything of everybody."""
        for machine in self.cluster.machines.values():
            self._audit_machine(machine, checks_bytes=True, looks=LOOK_UPS_AT_THE_END)
        self._compare(sorted(self.cluster.states()))

    # One broker.

    def _audit_machine(self, machine: Machine, *, checks_bytes: bool, looks: int) -> None:
        logs, replicas = machine.logs, machine.replicas
        if logs is None:
            return
        with self._undisturbed(machine):
            for key, log in sorted(logs.logs.items()):
                if log.is_offline:
                    continue
                self._tell(machine, key, self._of_one(machine, log, checks_bytes, looks))
                replica = replicas.get(key)
                if replica is not None and replica.log is log:
                    self._tell(machine, key, topic_findings(log, replica.topic_id))
            self._checkpoints(machine, logs, replicas)

    def _of_one(self, machine: Machine, log: Log, checks_bytes: bool, looks: int) -> Iterator[str]:
        self.audits += 1
        try:
            yield from findings(log, self.random, looks=looks, checks_bytes=checks_bytes, producers_expire=self.producers_expire)
            here = machine.broker_id, log.topic_partition
            # A log whose partition.metadata was damaged has no id.
            deleted = [
                up_to for (*named, topic_id), up_to in self._deleted_up_to.items() if (*named,) == here and log.topic_id in (None, topic_id)
            ]
            yield from durability_findings(log, self._disk_of(machine, log), max(deleted, default=0))
        except OSError as error:
            yield f"its files cannot be read: {error!r}"

    def _checkpoints(self, machine: Machine, logs: LogManager, replicas: Mapping[TopicPartition, Any]) -> None:
        for path in machine.log_directories:
            if Path(path) in logs.offline_directories:
                continue
            if any(str(file.parent) == path and file.is_file() and file.read_bytes() == left for file, left in machine.spoilt.items()):
                continue  # a full disk keeps it from being renamed, and until it is written again nothing in it is believed
            there = {key: log for key, log in logs.logs.items() if str(log.directory.parent) == path and not log.is_offline}
            marks = {key: replicas[key].high_watermark for key in there if key in replicas and key.topic not in self.exempt}
            if machine.has_forgotten:
                marks = {}
            self._tell(machine, Path(path).parent.name, checkpoint_findings(Path(path), there, marks))

    # Before and after.

    def going_down(self, machine: Machine, ending: Ending) -> None:
        """Notes what the next life must find."""
        if machine.logs is None:
            # It had not got so far, or had ended before: what the life before it had is what counts, and of that what was synced.
            if ending is Ending.LOST_DISK:
                self._kept.pop(machine.broker_id, None)
            elif ending in _LOSSES_OF_POWER and machine.broker_id in self._kept:
                self._kept[machine.broker_id] = self._synced[machine.broker_id]
            return
        replicas = machine.broker.parts.replicas.partitions if machine.broker is not None else {}
        with self._undisturbed(machine):
            self._kept[machine.broker_id] = self._what_is_kept(machine, machine.logs, replicas, ending)
            and_lost = _AND_LOST_POWER.get(ending, Ending.LOST_POWER)
            self._synced[machine.broker_id] = self._what_is_kept(machine, machine.logs, replicas, and_lost)
        for log in machine.logs.logs.values():
            self.note_start(machine, log)

    def note_start(self, machine: Machine, log: Log) -> None:
        """Where a log starts that goes: what was deleted of it may be back, without its leader epochs."""
        named = machine.broker_id, log.topic_partition, log.topic_id
        self._deleted_up_to[named] = max(self._deleted_up_to.get(named, 0), log.log_start_offset)

    def cut(self, machine: Machine, key: TopicPartition, offset: int) -> None:
        """The files of a log have lost what lies from an offset on, while its broker is down."""
        for lives in (self._kept, self._synced):
            kept = lives.get(machine.broker_id, {})
            if key in kept and kept[key].kept_offset > offset:
                left = tuple(batch for batch in kept[key].batches if batch[1] < offset)
                kept[key] = replace(kept[key], kept_offset=offset, batches=left)

    def replaced(self, broker_id: int) -> None:
        """Another process has this id, over disks of its own."""
        self._kept.pop(broker_id, None)
        self._synced.pop(broker_id, None)

    def _what_is_kept(
        self, machine: Machine, logs: LogManager, replicas: Mapping[TopicPartition, Any], ending: Ending
    ) -> dict[TopicPartition, Kept]:
        kept: dict[TopicPartition, Kept] = {}
        if ending is Ending.LOST_DISK:
            return kept
        for key, log in logs.logs.items():
            replica = replicas.get(key)
            lost_power = ending in _LOSSES_OF_POWER
            end = log.recovery_point if lost_power or log.is_offline else log.log_end_offset
            if ending in (Ending.CRASHED, Ending.CRASHED_AND_LOST_POWER):
                end = min(end, replica.high_watermark if replica is not None else 0)
            # A cleaning replaces segments in several steps: of those before the active one a start may find the old ones or the new
            # one, and in both the last record of each key; and of the two directories of a move one may not be cleaned yet.
            is_changing = "compact" in log.settings.cleanup_policy and (
                lost_power
                or any(log.directory.glob("*.swap"))
                or sum(Path(path, log.directory.name).is_dir() for path in machine.log_directories) > 1
            )
            # A log that begins again behind all that it had (its leader has nothing of that any more) gives it up segment by segment.
            first = max(log.log_start_offset, (log.files.segments.active if is_changing else log.files.segments.all[0]).base_offset)
            try:
                batches = tuple(read_log(log, first).keys(first, end))
                last = last_of_keys(log.directory, min(first, end)) if is_changing else {}
            except OSError:
                continue  # on a disk that has failed
            # Where a log begins that has nothing which was synced is not synced either.
            start = sys.maxsize if (lost_power or log.is_offline) and end <= log.log_start_offset else log.log_start_offset
            kept[key] = Kept(log.directory, start, end, first, batches, last)
        return kept

    def loaded(self, machine: Machine) -> None:
        """A life begins with these logs."""
        logs = machine.logs
        assert logs is not None, machine.name
        with self._undisturbed(machine):
            for key, log in sorted(logs.logs.items()):
                if not log.is_offline:
                    self._tell(machine, key, self._of_one(machine, log, True, LOOK_UPS))
            for key, kept in sorted(self._kept.pop(machine.broker_id, {}).items()):
                self._tell(machine, key, self._not_kept(logs, key, kept))

    def _not_kept(self, logs: LogManager, key: TopicPartition, kept: Kept) -> Iterator[str]:
        log = logs.get(key)
        if log is None:
            if logs.offline_directories or not (kept.batches or kept.last_records):
                return
            yield f"the log with offsets {kept.log_start_offset} to {kept.kept_offset} is gone after a start"
            return
        if log.is_offline or kept.directory.parent in logs.offline_directories:
            return  # in the second case it is the copy of a move, on another disk
        if log.log_start_offset > kept.log_start_offset:
            yield f"the log started at {kept.log_start_offset}, and starts at {log.log_start_offset} after a start"
        lost = lost_records(log.directory, kept.last_records) if kept.last_records else {}
        if lost:
            of_key, (offset, _) = next(iter(lost.items()))
            yield f"the last record of key {of_key!r}, offset {offset}, was to be kept, and is gone after a start"
        found = read_log(log, kept.first_offset).keys(kept.first_offset, kept.kept_offset)
        if tuple(found) != kept.batches:
            missing = [batch for batch in kept.batches if batch not in found][:1]
            other = [batch for batch in found if batch not in kept.batches][:1]
            yield (
                f"offsets {kept.first_offset} to {kept.kept_offset} were to be kept, and after a start {missing} is missing"
                f" and {other} is there; the log ends at {log.log_end_offset}"
            )

    # One partition.

    def _compare(self, keys: Iterable[TopicPartition]) -> None:
        """The logs of a partition are the same, byte for byte, up to the lowest high watermark of those who have forgotten nothing."""
        for key in keys:
            if key.topic in self.exempt:
                continue
            first: tuple[int, Any, bytes] | None = None
            replicas = {
                machine.broker_id: machine.replicas[key]
                for machine in self.cluster.machines.values()
                if not machine.has_forgotten and key in machine.replicas and not machine.replicas[key].log.is_offline
            }
            ids = {replica.topic_id for replica in replicas.values()}
            if len(ids) != 1:
                continue  # some have not heard yet that the topic was deleted and made again
            end = min(replica.high_watermark for replica in replicas.values())
            start = max(replica.log.log_start_offset for replica in replicas.values())
            if start >= end:
                continue  # one begins again, and may lack the first batch, which begins before the log does
            for broker_id, replica in sorted(replicas.items()):
                content = _bytes(replica.log, start, end)
                if first is None:
                    first = broker_id, replica, content
                elif content != first[2] and "compact" not in replica.log.settings.cleanup_policy:
                    self.violated(f"{key}: brokers {first[0]} and {broker_id} have other bytes between offsets {start} and {end}")

    def _tell(self, machine: Machine, what: object, found: Iterator[str]) -> None:
        for finding in islice(found, MOST_FINDINGS):
            # What is wrong stays wrong, and is seen again at each look.
            seen = _NUMBER.sub("#", f"{machine.name}, {what}: {finding}")
            if seen not in self._told:
                self._told.add(seen)
                self.violated(f"{machine.name}, {what}: {finding}")

    def _disk_of(self, machine: Machine, log: Log) -> Disk:
        return next(disk for disk in machine.disks if disk.owns(str(log.directory)))

    @contextmanager
    def _undisturbed(self, machine: Machine) -> Iterator[None]:
        """What fails on these disks fails for the broker, and not for the one who looks."""
        for disk in machine.disks:
            disk.is_observed = True
        try:
            yield
        finally:
            for disk in machine.disks:
                disk.is_observed = False


def _bytes(log: Log, start_offset: int, end_offset: int) -> bytes:
    """The batches with anything in [start, end)."""
    found = []
    for segment in read_log(log).segments:
        for position, header in segment.headers.items():
            if start_offset <= header.last_offset and header.base_offset < end_offset:
                found.append(segment.content[position : position + header.size])
    return b"".join(found)
