"""A follower has cut its log, and could not read what the producers' batches are now: nothing is concluded from what it knows of them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.storage.brokers import CLICKS
from tests.unit.storage.failing_calls import failing
from tests.unit.storage.logs import batch_of

from ottla.broker.replication.partition import Partition
from ottla.errors import KafkaStorageError

from .test_settled_leaders import INDEXES, Follower

KEY = CLICKS[INDEXES[0]]


async def cut_without_a_look(it: Follower, *, transactional: bool = False) -> Partition:
    """Ends at 64; the last four of its batches are a producer's, and the high watermark lies among them."""
    cut, _ = await it.start()
    records = b"".join(
        batch_of(60 + number, leader_epoch=4, producer_id=8, producer_epoch=0, base_sequence=number, transactional=transactional)
        for number in range(10)
    )
    assert cut.append_as_follower(memoryview(records), 5, 62, 0)
    with (
        failing("open", lambda path: path.endswith(".log"), errno.EMFILE),
        pytest.raises(KafkaStorageError, match="Too many open files"),
    ):
        cut.truncate_for(5, 64)
    assert (cut.log.log_end_offset, cut.high_watermark) == (64, 62)
    return cut


def next_sequences(partition: Partition) -> dict[int, int]:
    return {state.producer_id: state.next_sequence for state in partition.log.producers}


async def test_readers_of_committed_data_see_nothing_of_a_transaction_that_is_open(tmp_path: Path) -> None:
    """Of a follower in their rack (KIP-392)."""
    it = Follower(tmp_path)
    cut = await cut_without_a_look(it, transactional=True)
    assert cut.last_stable_offset <= 60
    await cut.checkpoint_truncation()
    assert cut.last_stable_offset == 60
    await it.logs.shutdown(clean=False)


async def test_a_clean_stop_leaves_a_snapshot_of_what_is_in_the_log(tmp_path: Path) -> None:
    """The next start believes it, and a batch that is sent again would be stored twice."""
    it = Follower(tmp_path)
    await cut_without_a_look(it)
    await it.logs.shutdown(clean=True)
    again = it.broker.manager()
    await again.start()
    assert again.was_clean
    assert {state.producer_id: state.next_sequence for state in again.logs[KEY].producers} == {8: 4}
    await again.shutdown(clean=False)


async def test_a_stop_that_can_not_read_them_is_no_clean_one(tmp_path: Path) -> None:
    it = Follower(tmp_path)
    await cut_without_a_look(it)
    with failing("open", lambda path: path.endswith(".log"), errno.EMFILE):
        await it.logs.shutdown(clean=True)
    again = it.broker.manager()
    await again.start()
    assert not again.was_clean
    assert {state.producer_id: state.next_sequence for state in again.logs[KEY].producers} == {8: 4}
    await again.shutdown(clean=False)


async def test_a_roll_of_retention_leaves_a_snapshot_of_what_was_in_the_log(tmp_path: Path) -> None:
    it = Follower(tmp_path)
    cut = await cut_without_a_look(it)
    assert cut.log.delete_old_segments(1 << 50) == 1
    assert cut.log.log_start_offset == 64
    await cut.checkpoint_truncation()
    assert next_sequences(cut) == {8: 4}
    await it.logs.shutdown(clean=False)
