"""A broker's logs in several log directories over histories: each directory is a disk of its own, which fails, fills and loses power.

Topics are made, deleted and made again under the same name, their logs written, synced, cut, shortened and moved, all of it at once;
the process stops, is killed, or dies between two calls, and begins again. What a start finds is held against what was written and
synced, by topic id, and by the simulation's audit.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.disk import CALLS, CallFault, Crashed, Disk, recording
from tests.simulation.log_audit import checkpoint_findings, durability_findings, findings, topic_findings
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import DiskOffload, SkewedClock
from tests.simulation.nodes import Node

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import KafkaStorageError
from ottla.model import TopicPartition
from ottla.record.batch import batches, read_header
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.file_names import partition_of_directory
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves

from .brokers import CLICKS
from .logs import append, batch_of

KEYS: Final = CLICKS[:2]
EVENTS: Final = (
    *("append",) * 16,
    *("flush",) * 6,
    *("end", "end", "roll", "roll", "cut", "restart", "start", "retention", "checkpoint", "commit", "commit", "epoch"),
    *("move", "move", "move", "call off", "delete", "create", "create", "stray", "fault", "full", "space", "look", "wait"),
)
PROPERTIES: Final = {
    "broker.id": "0",
    "log.segment.bytes": "1200",
    "log.retention.ms": "-1",
    "log.index.interval.bytes": "200",
    "log.segment.delete.delay.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "2000",
}
CHECKPOINTS: Final = "*-checkpoint"
# A replica that was given up may come back by what earlier moves of it have left, with what it had then: there a history ends.
RESTORED: Final = "was interrupted, and"
# What is logged when it comes to that.
STATES: Final = ("has two directories", "is offline:", "moved to", "cancelled", "retrying", "is damaged", RESTORED)


class Topic:
    """What was done to the log of a topic's partition, and what of it has to be there."""

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id: Final = topic_id
        self.batches: list[bytes] = []
        self.former: list[list[bytes]] = []  # what a loss of power may bring back: before a cut, or with what could not be written
        self.written = self.synced = 0  # up to where the log has it, whatever ends the process; whatever ends the machine
        self.start = 0  # the furthest that the log has begun
        self.high_watermark = 0
        self.cuts = 0
        self.is_changing = False

    def is_cut(self, offset: int, batches: list[bytes]) -> None:
        """No more is to be there than this."""
        self.former.append(self.batches)
        self.batches = batches
        self.written, self.synced = min(self.written, offset), min(self.synced, offset)
        self.cuts += 1


def last_of(batch: bytes) -> int:
    return read_header(batch).last_offset


def content_of(log: Log) -> list[bytes]:
    whole = b"".join(Path(segment.path()).read_bytes()[: segment.size] for segment in log.segments)
    return [whole[at : at + header.size] for at, header in batches(whole)]


class Complaints(logging.Handler):
    """What the code logs with a traceback."""

    def __init__(self, found: list[str], counts: Counter[str]) -> None:
        super().__init__()
        self.found: Final = found
        self.counts: Final = counts

    def emit(self, record: logging.LogRecord) -> None:
        for state in STATES:
            self.counts[state] += state in record.getMessage()
        if record.exc_info and not isinstance(record.exc_info[1], Crashed):
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class History:
    """One broker's lives."""

    def __init__(self, directory: Path, random: Random, counts: Counter[str]) -> None:
        self.random, self.counts = random, counts
        self.found: list[str] = []
        self.story: list[str] = []
        self.loop = cast("Any", VirtualLoop)(self.unhandled)
        self.disks = [Disk(directory / name) for name in "abc"[: random.choice((1, 2, 2, 2, 2, 3))]]
        self.directories = [Path(disk.root) / "logs" for disk in self.disks]
        for disk in self.disks:
            disk.crashing = self.crash
        more = {"log.retention.bytes": "3000"} if random.random() < 0.3 else {}
        self.settings = BrokerSettings.from_properties({**PROPERTIES, **more, "log.dirs": ",".join(map(str, self.directories))})
        self.clock = SkewedClock(self.loop, 0)
        self.offload = DiskOffload(Random(random.random()), random.choice((0.0, 0.001, 0.02)), random.choice((0.0, 0.05)))
        self.topics: dict[TopicPartition, Topic] = {}  # as the controller has them
        self.known: dict[UUID, Topic] = {}  # all that ever were
        self.epoch = 0
        self.life = 0
        self.clean_lives = {0}  # one that was killed while it stopped may have closed everything
        self.node = Node("none")
        self.logs = self.moves = cast("Any", None)
        self.spoilt: dict[Path, bytes] = {}  # checkpoints that were damaged, until they are written again
        self.is_whole = True  # nothing can have been lost since the last start
        self.hosted: set[TopicPartition] = set()
        self.locks: dict[TopicPartition, asyncio.Lock] = {}
        self.tasks: list[asyncio.Task[bool]] = []

    def unhandled(self, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Crashed):
            self.found.append(str(context))

    def tell(self, event: str) -> None:
        self.story.append(f"{self.loop.time():.3f} {event}")

    def check(self) -> None:
        assert self.found == [], "\n".join([*self.story, *self.found])

    def complain(self, what: object, found: Any) -> None:
        self.found += [f"{what}: {finding}" for finding in found]

    # Lives.

    def crash(self) -> bool:
        self.tell("dies in a call")
        self.counts["crash"] += 1
        self.loop.kill(self.node)
        for disk in self.disks:
            disk.is_frozen = True
        return True

    async def run(self, coroutine: Coroutine[Any, Any, object]) -> bool:
        """Has the broker do something; whether it lived to its end."""
        task = self.loop.spawn(self.node, self.attempt(coroutine))
        ends = self.loop.time() + 600
        while self.node.is_alive and not task.done():
            await asyncio.sleep(0.005)
            assert self.loop.time() < ends, self.story
        return self.node.is_alive and bool(task.result())

    async def attempt(self, coroutine: Coroutine[Any, Any, object]) -> bool:
        try:
            await coroutine
        except KafkaStorageError as error:
            self.tell(f"refused: {str(error)[-90:]}")
            return False
        except Exception as error:  # whatever else comes out of the storage is a finding: the history fails by it
            self.found.append(f"{coroutine!r}: {error!r}")
            return False
        return True

    async def begin(self) -> None:
        random = self.random
        self.life += 1
        self.node = Node(f"life {self.life}")
        self.logs = LogManager(
            self.directories,
            self.settings,
            self.clock,
            self.offload,
            lambda topic: TopicSettings.of(self.settings, {}),
            new_id=lambda: UUID(int=random.getrandbits(128)),
        )
        self.logs.high_watermarks = lambda: {key: self.topics[key].high_watermark for key in self.hosted if key in self.topics}
        self.moves = LogMoves(
            self.logs, self.directories, self.offload, lambda key, log: self.tell(f"{key} is in {log.directory.parent.parent.name}")
        )
        self.tasks = []
        self.hosted, self.locks = set(), {key: asyncio.Lock() for key in KEYS}
        if random.random() < 0.25:
            self.arm()
        if len(self.disks) > 1 and random.random() < 0.15:
            disk = random.choice(self.disks)
            disk.arm(CallFault("any", "*", errno.EIO, random.choice((0, 0, 10, 100)), 1 << 30))
            self.tell(f"{disk.root[-1]} fails")
        before = self.loop.time() + random.uniform(0, 0.1)
        start = asyncio.ensure_future(self.run(self.logs.start("cluster")))
        if random.random() < 0.1:
            await asyncio.wait([start], timeout=max(0.0, before - self.loop.time()))
            if not start.done():
                self.counts["killed in start"] += 1
                self.loop.kill(self.node)
        if not await start:
            self.loop.kill(self.node)
            return
        self.counts["start"] += 1
        self.counts["start without a directory"] += bool(self.logs.offline_directories)
        self.counts["start that vouches"] += self.vouches
        self.tell(f"started, {self.describe()}")
        self.judge()
        await self.run(self.host())
        self.look()

    def describe(self) -> str:
        names = [
            f"{key.partition} [{log.log_start_offset}, {log.log_end_offset}) in {log.directory.parent.parent.name}"
            for key, log in self.logs.logs.items()
        ]
        offline = [path.parent.name for path in self.logs.offline_directories]
        return f"{'clean' if self.logs.was_clean else 'unclean'}, {names}, offline {offline}, damaged {dict(self.logs.damaged)}"

    async def host(self) -> None:
        """What the controller has to say to a broker that has started."""
        for key in KEYS:
            log, topic = self.logs.get(key), self.topics.get(key)
            if topic is None:
                if log is not None and not log.is_offline:
                    self.counts["stray found"] += 1
                    await (self.logs.delete(key) if self.random.random() < 0.5 else self.rename_stray(key))
                continue
            if log is not None and log.topic_id not in (None, topic.topic_id):
                self.counts["foreign found"] += 1
                self.logs.rename_stray(key)
            await self.attempt(self.create(key, topic, is_new=False))

    async def rename_stray(self, key: TopicPartition) -> None:
        self.logs.rename_stray(key)

    async def create(self, key: TopicPartition, topic: Topic, *, is_new: bool) -> None:
        log = self.logs.get(key)
        if log is None and (is_new or not self.logs.offline_directories) and self.random.random() < 0.7:
            await self.logs.create_all({key: topic.topic_id})
            log = self.logs.get(key)
        if log is None:
            log = self.logs.create(key, topic.topic_id, is_new=is_new)
        elif log.topic_id is None:
            await self.logs.write_topic_ids({key: topic.topic_id})
        if not log.is_offline and log.topic_id == topic.topic_id:
            topic.high_watermark = min(max(self.logs.recorded_high_watermark(key) or 0, log.log_start_offset), log.log_end_offset)
            self.hosted.add(key)

    def judge(self) -> None:
        """Holds what a start has found against what was to be kept."""
        logs = self.logs
        offline = set(logs.offline_directories)
        if logs.damaged and self.is_whole and not offline:
            self.found.append(f"damaged are {dict(logs.damaged)}")
        self.is_whole = not offline and not logs.damaged
        if logs.clean_shutdown_epoch >= 0 and logs.clean_shutdown_epoch not in self.clean_lives:
            self.found.append(f"closed under {logs.clean_shutdown_epoch}, and the last that closed was {self.clean_lives}")
        for entry in (
            () if any(disk.faults for disk in self.disks) else sorted(file for path in self.directories for file in path.iterdir())
        ):
            key = partition_of_directory(entry.name)
            if key is not None and (key not in logs.logs or logs.logs[key].directory != entry) and key not in logs._waiting_for_room:
                self.found.append(f"{entry} is no log's")
        for key, log in logs.logs.items():
            if log.is_offline:
                continue
            self.complain(key, findings(log, self.random, looks=4, checks_bytes=True))
            if log.topic_id is None:
                if log.log_end_offset:
                    self.found.append(f"{key} is of no topic, and ends at {log.log_end_offset}")
                continue
            self.judge_log(key, log, self.known[log.topic_id])
        for key, topic in self.topics.items():
            log = logs.get(key)
            if (log is None or log.topic_id != topic.topic_id) and not offline and topic.written > topic.start:
                self.found.append(f"{key} with [{topic.start}, {topic.written}) is gone")
            if log is None or log.is_offline or log.topic_id != topic.topic_id:
                if self.vouches:
                    self.found += [f"{key} is vouched for and not there"] if topic.batches else []
                topic.former.append(topic.batches)
                topic.batches = []
                topic.written = topic.synced = 0

    @property
    def vouches(self) -> bool:
        return bool(self.logs.clean_shutdown_epoch >= 0)

    def judge_log(self, key: TopicPartition, log: Log, topic: Topic) -> None:
        content = content_of(log)
        is_current = self.topics.get(key) is topic
        where = [at for version in (topic.batches, *topic.former) if (at := found_at(content, version)) is not None]
        is_moved_back = bool(self.logs.offline_directories)  # the other directory of a move may have more
        if not where:
            self.found.append(f"{key}: its batches to {log.log_end_offset} are not what was written: {offsets(content)}")
        elif is_current and not is_moved_back:
            if log.log_end_offset < topic.written:
                self.found.append(f"{key} ends at {log.log_end_offset}, and up to {topic.written} was kept; {offsets(content)}")
            # Segments that were deleted may be back before it.
            first = read_header(topic.batches[0]).base_offset if topic.batches else 0
            kept = [batch for batch in content if first <= last_of(batch) < topic.written]
            if found_at(kept, topic.batches) is None:
                self.found.append(f"{key} has {offsets(kept)} of what was kept, and {offsets(topic.batches)} was written")
            if log.log_start_offset > max(topic.start, 0):
                self.found.append(f"{key} starts at {log.log_start_offset}, and started at {topic.start}")
            if self.vouches and content and content[-1:] != topic.batches[-1:]:
                self.found.append(f"{key} is vouched for, and ends at {log.log_end_offset}")
        if is_current:
            topic.former.append(topic.batches)
            topic.batches = content
            topic.synced = min(topic.synced, log.log_end_offset)
            topic.written = log.log_end_offset
            topic.is_changing = False
            if is_moved_back:
                topic.written = topic.synced = 0

    async def end(self) -> None:
        """Ends the life, and what the disks then have."""
        random, how = self.random, self.random.choice(("stop", "stop", "kill", "kill", "power", "power"))
        if how == "stop" and self.node.is_alive:
            if random.random() < 0.7:
                self.calm()
            stop = asyncio.ensure_future(self.run(self.stop()))
            if random.random() < 0.15:
                await asyncio.wait([stop], timeout=random.uniform(0, 0.2))
            else:
                await asyncio.wait([stop])
            how = "stop" if stop.done() and stop.result() else "kill"
            self.clean_lives = {self.life} if how == "stop" else {*self.clean_lives, self.life}
        elif not self.node.is_alive:
            how = {"stop": "kill"}.get(how, how) + " in a call"
        self.note_starts()
        self.loop.kill(self.node)
        self.counts[how] += 1
        lost: list[str] = []
        self.calm()
        for disk in self.disks:
            disk.is_frozen = False
            if how.startswith("power") and random.random() < 0.7:
                lost.append(f"{disk.root[-1]}: {disk.lose_power(random)}")
            else:
                disk.release()
        self.keeps(is_clean=how == "stop", is_power=bool(lost))
        self.is_whole &= not lost and not self.logs.offline_directories
        self.tell(f"{how}, {lost}")
        if random.random() < 0.15:
            self.damage()

    def keeps(self, *, is_clean: bool, is_power: bool) -> None:
        """What the next start has to find."""
        for key, topic in self.topics.items():
            log = self.logs.get(key)
            if is_clean and log is not None and not log.is_offline and log.topic_id == topic.topic_id:
                topic.synced = topic.written
            if is_power or topic.is_changing or (log is not None and log.is_offline):
                topic.written = min(topic.written, topic.synced)
            self.counts["kept all"] += topic.written > topic.synced

    async def stop(self) -> None:
        await asyncio.gather(*self.tasks)  # requests are answered before logs are closed
        await self.moves.close()
        await self.logs.shutdown(broker_epoch=self.life)

    def note_starts(self) -> None:
        for log in self.logs.logs.values():
            if log.topic_id in self.known:
                topic = self.known[log.topic_id]
                topic.start = max(topic.start, log.log_start_offset)

    def damage(self) -> None:
        random = self.random
        path = random.choice([file for directory in self.directories for file in sorted(directory.glob(CHECKPOINTS))] or [None])
        if path is not None:
            self.counts["damage"] += 1
            content = path.read_bytes()
            torn = content[: random.randrange(len(content) or 1)]
            self.spoilt[path] = random.choice((b"", bytes(len(content)), random.randbytes(40), torn))
            path.write_bytes(self.spoilt[path])
            self.tell(f"{path.parent.parent.name}/{path.name} is damaged")
            self.is_whole = False

    # Disks.

    def arm(self) -> None:
        random = self.random
        disk = random.choice(self.disks)
        error = random.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, 0, 0))
        pattern = random.choice(("*", "*", "*.log", "*checkpoint*", "logs/*-?", "logs/*-future*", "logs/*-?/*", "*meta*"))
        hits = random.choice((1, 3, 40)) if error else 1
        disk.arm(CallFault(random.choice((*CALLS, "any")), pattern, error, random.choice((0, 0, 3, random.randint(0, 40))), hits))
        self.counts["fault"] += 1
        self.tell(f"armed {disk.root[-1]}: {disk.faults[-1]}")

    def calm(self) -> None:
        for disk in self.disks:
            disk.disarm()
            disk.set_room(None)

    def look(self) -> None:
        """Audits what is there now."""
        if not self.node.is_alive:
            return
        self.counts["look"] += 1
        if self.moves._working is None and not self.logs.offline_directories and self.logs._held != set(self.logs._leaving):
            self.found.append(f"nothing moves, and held are {self.logs._held}")
        for key, log in self.logs.logs.items():
            if log.is_offline or log.topic_id not in self.known:
                continue
            topic = self.known[log.topic_id]
            disk = next(disk for disk in self.disks if disk.owns(str(log.directory)))
            self.complain(key, findings(log, self.random, looks=3, checks_bytes=False))
            self.complain(key, durability_findings(log, disk, topic.start))
            if key in self.hosted and self.topics.get(key) is topic:
                self.complain(key, topic_findings(log, topic.topic_id))
        for path in self.directories:
            is_spoilt = any(file.parent == path and file.exists() and file.read_bytes() == left for file, left in self.spoilt.items())
            if path not in self.logs.offline_directories and not is_spoilt:
                there = {key: log for key, log in self.logs.logs.items() if log.directory.parent == path and not log.is_offline}
                self.complain(path, checkpoint_findings(path, there, {}))

    # What happens in a life.

    async def step(self) -> None:
        random, event = self.random, self.random.choice(EVENTS)
        match event:
            case "fault":
                if random.random() < 0.5:
                    self.arm()
            case "full":
                random.choice(self.disks).set_room(random.randint(0, 3000))
            case "space":
                self.calm()
            case "look":
                self.look()
            case "epoch":
                self.epoch += 1
            case "wait":
                await asyncio.sleep(random.choice((0.1, 3.0, 40.0)))
            case _:
                self.tasks.append(self.loop.spawn(self.node, self.attempt(self.happens(event, random.choice(KEYS)))))
        await asyncio.sleep(random.choice((0.0, 0.0, 0.001, 0.02)))

    async def happens(self, event: str, key: TopicPartition) -> None:
        random, topic = self.random, self.topics.get(key)
        log = self.logs.get(key) if key in self.hosted and topic is not None else None
        if event in ("create", "retention", "checkpoint"):
            match event:
                case "create":
                    async with self.locks[key]:
                        await self.make(key)
                case "retention":
                    await self.logs.run_retention_once()
                    self.note_starts()
                case _:
                    await self.logs.write_checkpoints()
            self.counts[event] += 1
            return
        if log is None or topic is None or log.is_offline or log.topic_id != topic.topic_id:
            return
        if event == "flush":
            await self.flush(key, topic)
        elif event in ("move", "call off"):
            home = log.directory.parent
            others = [path for path in self.directories if path != home]
            target = home if event == "call off" or not others else random.choice(others)
            if target not in self.logs.offline_directories:
                self.moves.move(key, str(target))
                self.counts[event] += target != home
                self.tell(f"{key} is to move to {target.parent.name}")
        else:
            async with self.locks[key]:
                if self.logs.get(key) is log and self.topics.get(key) is topic and not log.is_offline:
                    await self.change(event, key, topic, log)
        self.counts[event] += 1

    async def make(self, key: TopicPartition) -> None:
        """A topic is made, or made again while this broker did not see that the former was deleted."""
        topic = self.topics.get(key)
        is_new = topic is None or (topic.topic_id not in self.known) or self.random.random() < 0.1
        if is_new:
            topic = Topic(UUID(int=self.random.getrandbits(128)))
            self.known[topic.topic_id] = topic
            self.topics[key] = topic
            self.hosted.discard(key)
            if self.logs.get(key) is not None:
                self.logs.rename_stray(key)
            self.tell(f"{key} is made")
        assert topic is not None
        if key not in self.hosted and (is_new or self.logs.get(key) is None):
            await self.create(key, topic, is_new=is_new)

    async def flush(self, key: TopicPartition, topic: Topic) -> None:
        log: Log | None = self.logs.get(key)
        end, cuts = topic.written, topic.cuts
        while log is not None and not log.is_offline:
            await log.flush(end)
            if self.logs.get(key) is log:
                if self.topics.get(key) is topic and topic.cuts == cuts:
                    topic.synced = max(topic.synced, end)
                    self.tell(f"{key} is synced to {end}")
                return
            log = self.logs.get(key)

    async def change(self, event: str, key: TopicPartition, topic: Topic, log: Log) -> None:
        random = self.random
        match event:
            case "append" | "end":
                if log.must_checkpoint_truncation:
                    await log.checkpoint_truncation()
                    if self.logs.get(key) is not log or log.must_checkpoint_truncation:
                        return
                    topic.is_changing = False
                for _ in range(random.randint(1, 4) if event == "append" else 1):
                    self.append(event, topic, log)
                self.tell(f"{key} ends at {log.log_end_offset}")
            case "roll":
                if log.appender.active.size and not log.must_checkpoint_truncation:
                    log.appender.roll()
            case "start":
                log.advance_log_start_offset(random.randint(log.log_start_offset, max(log.log_start_offset, topic.high_watermark)))
                topic.start = max(topic.start, log.log_start_offset)
                self.tell(f"{key} starts at {log.log_start_offset}")
            case "commit":
                topic.high_watermark = max(topic.high_watermark, log.log_end_offset)
            case "cut" | "restart":
                await self.cut(event, key, topic, log)
            case "delete" | "stray":
                self.hosted.discard(key)
                if event == "delete" or random.random() < 0.5:
                    del self.topics[key]
                topic.is_cut(0, [])
                topic.start = max(topic.start, log.log_start_offset)
                self.tell(f"{key} is given up: {event}")
                await (self.logs.delete(key) if event == "delete" else self.rename_stray(key))
                if random.random() < 0.5:
                    await self.make(key)

    def append(self, event: str, topic: Topic, log: Log) -> None:
        random, end = self.random, log.log_end_offset
        producer_id = random.choice((-1, 1, 2, 3))
        state = log.producers.get(producer_id)
        is_open = state is not None and state.transaction_first_offset >= 0
        if event == "end":
            if not is_open:
                return
            kind = random.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
            batch = build_marker_batch(
                EndTransactionMarker(kind, 3),
                base_offset=end,
                timestamp=1_000,
                producer_id=producer_id,
                producer_epoch=0,
                leader_epoch=self.epoch,
            )
        else:
            more: dict[str, Any] = {}
            if producer_id >= 0:
                sequence = 0 if state is None else state.next_sequence
                more = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": producer_id > 1}
            batch = batch_of(
                end,
                random.randint(1, 3),
                size=random.choice((10, 90, 300)),
                timestamp=random.randint(1, 10**6),
                leader_epoch=self.epoch,
                **more,
            )
        topic.former.append([*topic.batches, batch])
        append(log, batch)
        topic.former.pop()
        topic.batches.append(batch)
        topic.written = log.log_end_offset

    async def cut(self, event: str, key: TopicPartition, topic: Topic, log: Log) -> None:
        random = self.random
        if event == "restart":
            offset = random.choice((log.log_end_offset, random.randint(log.log_start_offset, log.log_end_offset + 20)))
            left: list[bytes] = []
            topic.start = max(topic.start, offset)
        else:
            offset = random.randint(log.log_start_offset, log.log_end_offset)
            left = [batch for batch in topic.batches if last_of(batch) < offset]
            topic.start = max(topic.start, log.log_start_offset)
        self.tell(f"{key} is cut at {offset}: {event}")
        if event == "restart" or offset < log.log_end_offset:
            topic.is_changing = True
            self.is_whole &= event == "cut" and offset >= topic.high_watermark
            topic.is_cut(0 if event == "restart" else last_of(left[-1]) + 1 if left else 0, left)
        self.epoch += 1
        try:
            while not (log.truncate_fully_and_start_at(offset) if event == "restart" else log.truncate_to(offset)):
                await log.checkpoint_truncation()
                if self.logs.get(key) is not log:
                    return
            topic.high_watermark = offset if event == "restart" else min(topic.high_watermark, log.log_end_offset)
            await log.checkpoint_truncation()
            topic.is_changing = log.must_checkpoint_truncation
        finally:
            found = self.logs.get(key)
            if found is not None and found.topic_id == topic.topic_id and not found.is_offline and self.node.is_alive:
                topic.former.append(topic.batches)
                # The test looks, and not the broker, whose disk may fail.
                topic.batches, topic.written = Context().run(content_of, found), found.log_end_offset

    async def live(self) -> None:
        for key in KEYS:
            self.topics[key] = Topic(UUID(int=self.random.getrandbits(128)))
            self.known[self.topics[key].topic_id] = self.topics[key]
        restored = self.counts[RESTORED]
        for _ in range(self.random.randint(1, 6)):
            await self.begin()
            if self.counts[RESTORED] > restored:
                return
            self.check()
            for _ in range(self.random.randint(0, 60)):
                if not self.node.is_alive or (self.moves.ongoing and self.random.random() < 0.1):
                    break
                await self.step()
                self.check()
            await self.end()
            self.check()
        self.calm()
        self.life += 1
        await self.begin()
        if self.counts[RESTORED] == restored:
            self.check()


def found_at(content: list[bytes], version: list[bytes]) -> int | None:
    """Where a log's batches begin among those of a version of it."""
    if not content:
        return len(version)
    at = next((at for at, batch in enumerate(version) if batch == content[0]), None)
    return at if at is not None and version[at : at + len(content)] == content else None


def offsets(content: list[bytes]) -> str:
    return str([(header.base_offset, header.last_offset, header.leader_epoch) for header in map(read_header, content)])


def take_down(history: History) -> None:
    """Lets go of lives that were killed; what their `finally` blocks would like to do is not wanted any more."""
    former, sys.unraisablehook = sys.unraisablehook, lambda _: None
    history.loop.close()
    for task in list(history.loop.tasks):
        task._log_destroy_pending = False
        with suppress(BaseException):
            task.get_coro().close()
    history.loop.tasks.clear()
    gc.collect()
    sys.unraisablehook = former


def tell_of(seed: int, directory: Path, counts: Counter[str]) -> None:
    random = Random(seed)
    history = History(directory, random, counts)
    complaints = Complaints(history.found, counts)
    logger = logging.getLogger("ottla")
    logger.addHandler(complaints)
    try:
        with recording(history.disks, Random(seed).randbytes):
            history.loop.run_until_complete(history.live())
    except AssertionError:
        raise
    except BaseException as error:
        raise AssertionError("\n".join([*history.story, *history.found, repr(error)])) from error
    finally:
        logger.removeHandler(complaints)
        take_down(history)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_was_synced_is_there_whatever_became_of_disks_and_names(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = tmp_path_factory.mktemp("disks")
    tell_of(seed, directory, Counter())
    shutil.rmtree(directory)
