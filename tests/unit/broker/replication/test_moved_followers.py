"""A follower with `flush.messages` whose log moves to another directory tells its leader of nothing that no disk has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from tests.loops import until
from tests.unit.storage.brokers import CLICKS, Broker
from tests.unit.storage.logs import batch_of
from tests.unit.storage.test_late_flushes import LateThread

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.replicas import ReplicaManager
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import BrokerId, PartitionState, TopicPartition
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves

KEY = CLICKS[0]
HERE, THERE = BrokerId(0), BrokerId(7)


def received(*offsets: int) -> memoryview:
    return memoryview(b"".join(batch_of(offset, leader_epoch=4) for offset in offsets))


async def test_a_move_lets_no_one_go_who_waits_for_the_disk(tmp_path: Path) -> None:
    """It waits for one flush, the log continues elsewhere, and there the last records are not synced yet."""
    broker, thread = Broker(tmp_path / "a", tmp_path / "b"), LateThread()
    settings = TopicSettings.of(broker.settings, {"flush.messages": "1"})
    logs = LogManager(broker.directories, broker.settings, broker.clock, thread, lambda _: settings, new_id=broker.new_id)
    replicas = ReplicaManager(HERE, logs, Purgatory(), Purgatory())
    await logs.start()
    state = PartitionState(THERE, 4, (HERE, THERE), (HERE, THERE))
    await replicas.apply([PartitionAssignment(KEY.topic, UUID(int=3), KEY.partition, state, 4, is_new=True)], ())
    follower = replicas.get(*KEY)
    assert follower.append_as_follower(received(0, 1, 2), 4, 0, 0)
    thread.holds_next = True
    flushing = asyncio.ensure_future(follower.log.flush())
    await asyncio.wait_for(thread.arrived.wait(), 120)
    assert follower.append_as_follower(received(3, 4), 4, 0, 0)
    waiting = asyncio.ensure_future(follower.checkpoint_truncation())
    source, first, moved = follower.log, thread.released, asyncio.Event()

    def log_moved(key: TopicPartition, log: Log) -> None:
        replicas.log_moved(key, log)
        thread.holds_next, thread.released = True, asyncio.Event()  # the flush of what has moved is late
        moved.set()

    moves = LogMoves(logs, broker.directories, thread, log_moved)
    moves.move(KEY, str(next(path for path in broker.directories if path != source.directory.parent)))
    await asyncio.wait_for(moved.wait(), 120)
    first.set()
    await flushing
    for _ in range(20):
        await asyncio.sleep(0)
    assert follower.log.recovery_point == 0
    assert not waiting.done()
    thread.released.set()
    await waiting
    assert follower.log.recovery_point == 5
    await until(lambda: not moves.ongoing)
    await moves.close()
    await logs.shutdown()
