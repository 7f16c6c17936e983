"""A flush is in its thread, where an fsync takes its time, and meanwhile the log is no longer what it was.

Method: the offload holds back one `sync`. What the thread does late must not be found in a log that was cut, nor in a
directory that is another log's by now.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ottla.config.topic import TopicSettings
from ottla.record.batch import batches, read_header
from ottla.storage import log_sync
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, read_leader_epochs
from ottla.storage.indexes import OffsetIndex
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.storage.producer_replay import note_batch
from ottla.storage.producers import ProducerStates

from .brokers import CLICKS, Broker
from .logs import LogMaker, append, batch_of, fill, truncate

KEY = CLICKS[3]


class LateThread:
    """An offload of which the next `sync`, if the test says so, begins when the test lets it."""

    def __init__(self) -> None:
        self.holds_next = False
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function is log_sync.sync and self.holds_next:
            self.holds_next = False
            self.arrived.set()
            await asyncio.wait_for(self.released.wait(), 120)
        return function(*arguments, **keywords)

    async def hold(self, log: Log) -> asyncio.Task[None]:
        """A flush of what the log has sealed, which stands in its thread."""
        self.holds_next = True
        flushing = asyncio.ensure_future(log.flusher.flush_sealed())
        await asyncio.wait_for(self.arrived.wait(), 120)
        return flushing

    async def let(self, flushing: asyncio.Task[None]) -> None:
        self.released.set()
        await asyncio.wait([flushing])


def late_log(make_log: LogMaker) -> LateThread:
    thread = LateThread()
    make_log.context = dataclasses.replace(make_log.context, offload=thread)
    return thread


def replayed(log: Log) -> ProducerStates:
    """The producers as all batches in the files tell of them."""
    states = ProducerStates()
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        for position, header in batches(data):
            if header.producer_id >= 0:
                note_batch(states, header, data[position : position + header.size])
    return states


def every_index_entry_points_at_its_batch(log: Log) -> bool:
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        places = {header.last_offset - segment.base_offset: position for position, header in batches(data)}
        for entries in (segment.offset_index.entries(), OffsetIndex(segment.offset_index.path).entries()):
            if any(places.get(offset) != position for offset, position in entries):
                return False
    return True


def found_by_fresh_look_ups(log: Log) -> list[int]:
    """The offsets that a reader who has read nothing yet is answered with their batch."""
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        log.reader.forget()
        region = log.read(offset, 1, log.log_end_offset, at_least_one_batch=True)
        assert region is not None
        header = read_header(os.pread(region.file.fd, 61, region.position))
        if header.magic == 2 and header.base_offset <= offset <= header.last_offset:
            found.append(offset)
    return found


@pytest.mark.parametrize("cut_to", [0, 3, 8])
async def test_producers_of_what_was_cut_do_not_come_back_with_a_late_flush(make_log: LogMaker, cut_to: int) -> None:
    """Or a sequence that is in no log is acknowledged as a duplicate, and a transaction that is in none is never decided."""
    thread = late_log(make_log)
    size = len(batch_of(0, producer_id=21, producer_epoch=2, base_sequence=0, transactional=True))
    log = make_log(segment_bytes=9 * size)
    for sequence in range(20):
        append(log, batch_of(sequence, producer_id=21, producer_epoch=2, base_sequence=sequence, transactional=sequence > 9))
    assert [segment.base_offset for segment in log.segments] == [0, 9, 18]
    flushing = await thread.hold(log)
    await truncate(log, cut_to)
    log.update_settings(dataclasses.replace(log.settings, segment_bytes=1_000_000))
    while log.log_end_offset < 24:
        append(log, batch_of(log.log_end_offset, leader_epoch=4, size=7))
    await thread.let(flushing)
    await truncate(log, 22)  # the next leader has a little less: the states are those of the newest snapshot, and what follows it
    assert log.producers.snapshot() == replayed(log).snapshot()
    assert log.producers.first_unstable_offset is None
    await log.close()
    assert make_log(clean=True).producers.snapshot() == replayed(log).snapshot()


@pytest.mark.parametrize("cut_to", [20, 77, 140])
async def test_entries_of_what_was_cut_do_not_come_into_an_index_with_a_late_flush(make_log: LogMaker, cut_to: int) -> None:
    """The batches that follow have other sizes, so that each old entry points into the middle of one."""
    thread = late_log(make_log)
    log = make_log(segment_bytes=30_000, index_interval_bytes=180)
    while len(log.segments) == 1:
        fill(log, 1, size=90)
    flushing = await thread.hold(log)
    await truncate(log, cut_to)
    log.update_settings(dataclasses.replace(log.settings, segment_bytes=1_000_000))
    while log.log_end_offset < 420:
        append(log, batch_of(log.log_end_offset, 2, leader_epoch=1, size=5))
    await thread.let(flushing)
    assert found_by_fresh_look_ups(log) == list(range(log.log_end_offset))
    assert every_index_entry_points_at_its_batch(log)
    await log.close()
    again = make_log(clean=True, segment_bytes=30_000)
    assert every_index_entry_points_at_its_batch(again)


async def test_leader_epochs_of_what_was_cut_do_not_take_their_place_with_a_late_flush(make_log: LogMaker) -> None:
    """They wait under another name until they are synced, and a truncation takes them away."""
    thread = late_log(make_log)
    log = make_log(segment_bytes=1_500)
    fill(log, 4, leader_epoch=2)
    await log.flush()
    while len(log.segments) == 1:
        fill(log, 1, leader_epoch=6)
    flushing = await thread.hold(log)
    await truncate(log, 3)
    await thread.let(flushing)
    file = log.directory / LEADER_EPOCH_CHECKPOINT
    assert read_leader_epochs(file) == [(2, 0)]
    fill(log, 2, leader_epoch=7)
    await log.flush()
    assert read_leader_epochs(file) == log.leader_epochs.entries == [(2, 0), (7, 3)]


async def test_a_leader_epoch_that_begins_during_a_flush_is_known_after_a_kill_once_that_is_over(make_log: LogMaker) -> None:
    """It has committed what was not. Otherwise the log of a leader that was deposed, with a later epoch, might lead (decision 19)."""
    thread = late_log(make_log)
    log = make_log()
    append(log, batch_of(0, leader_epoch=1), batch_of(1, leader_epoch=1))
    log.appender.roll()
    flushing = await thread.hold(log)
    log.begin_epoch(3, 1)
    await thread.let(flushing)
    assert make_log().leader_epochs.entries == [(1, 0), (3, 2)]
    append(log, batch_of(2, leader_epoch=3))
    await log.flush()
    assert read_leader_epochs(make_log.directory / LEADER_EPOCH_CHECKPOINT) == [(1, 0), (3, 2)]


def _manager(broker: Broker, thread: LateThread) -> LogManager:
    return LogManager(
        broker.directories, broker.settings, broker.clock, thread, lambda topic: TopicSettings.of(broker.settings, broker.overrides)
    )


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "stray"])
async def test_a_late_flush_leaves_nothing_in_the_directory_of_a_recreated_topic(tmp_path: Path, is_deleted: bool) -> None:
    """Its directory has the same name. Indexes would be those of other batches, epochs and producers those of another topic."""
    broker, thread = Broker(tmp_path), LateThread()
    broker.overrides = {"segment.bytes": "6000", "index.interval.bytes": "100"}
    logs = _manager(broker, thread)
    await logs.start()
    former = logs.create(KEY, uuid4())
    for sequence in range(70):
        append(former, batch_of(sequence, leader_epoch=30 + sequence // 20, producer_id=5, producer_epoch=1, base_sequence=sequence))
    assert len(former.segments) > 1
    flushing = await thread.hold(former)
    if is_deleted:
        await logs.delete(KEY)
    else:
        logs.rename_stray(KEY)
    new = logs.create(KEY, uuid4())
    fill(new, 25, size=11, leader_epoch=2)
    await new.flush()
    before = _contents(new.directory)
    await thread.let(flushing)
    assert _contents(new.directory) == before
    await logs.write_checkpoints()
    await logs.shutdown(clean=False)
    again = _manager(broker, LateThread())
    await again.start()
    found = again.get(KEY)
    assert found is not None
    assert (found.log_end_offset, found.leader_epochs.entries, list(found.producers.snapshot())) == (25, [(2, 0)], [])
    await again.shutdown(clean=False)


async def test_a_late_flush_does_not_follow_the_name_of_its_directory(make_log: LogMaker) -> None:
    """A log moves to another log directory and comes back: the name is the same, and the directory is another."""
    thread = late_log(make_log)
    former = make_log(segment_bytes=4_000)
    fill(former, 10, leader_epoch=1)
    await former.flush()
    while len(former.segments) == 1:
        fill(former, 1, leader_epoch=2)
    flushing = await thread.hold(former)
    former.retire()
    left = former.directory.rename(former.directory.with_name("left"))
    log = make_log(segment_bytes=4_000)
    for leader_epoch in (1, 2, 3, 4):
        fill(log, 5, leader_epoch=leader_epoch)
    await log.flush()
    before = _contents(log.directory)
    await thread.let(flushing)
    assert _contents(log.directory) == before
    assert read_leader_epochs(log.directory / LEADER_EPOCH_CHECKPOINT) == log.leader_epochs.entries
    assert read_leader_epochs(left / LEADER_EPOCH_CHECKPOINT) == [(1, 0), (2, 10)], "it ends where it began"
