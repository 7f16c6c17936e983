"""Single histories of three replicas: those that KIP-101, KIP-279 and others were written for, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.controller.isr_changes import with_isr
from ottla.broker.replication.partition import ACKS_ALL, Partition
from ottla.errors import CorruptMessage, InvalidUpdateVersion, KafkaStorageError, NotEnoughReplicas, StaleControllerEpoch
from ottla.interbroker.calls import AlteredPartition, PartitionAssignment
from ottla.model import BrokerId, PartitionState
from ottla.record.batch import batches
from ottla.record.records import Record, build_batch
from ottla.storage.checkpoints import RECOVERY_POINT_CHECKPOINT, read_offsets

from .replicated import BROKERS, KEY, LAG_TIME_MAX_MS, TOPIC_ID, Replicated

ONE, TWO, THREE = BROKERS


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Replicated]:
    replicated = Replicated(tmp_path)
    yield replicated
    replicated.close()


def on(replicated: Replicated, broker_id: BrokerId) -> Partition:
    found = replicated.partition(broker_id)
    assert found is not None
    return found


def end(replicated: Replicated, broker_id: BrokerId) -> int:
    return on(replicated, broker_id).log.log_end_offset


def without(replicated: Replicated, *gone: BrokerId) -> None:
    """They are dead, and the others know."""
    for broker_id in gone:
        replicated.kill(broker_id)
        replicated.controller.gone(broker_id)
    for broker in BROKERS:
        replicated.tell(broker)


def test_a_follower_that_comes_back_keeps_what_it_did_not_know_to_be_committed(partition: Replicated) -> None:
    """KIP-101, scenario 1: cutting at the high watermark lost it, when the leader died before it could be fetched again."""
    without(partition, THREE)
    partition.append(ONE, 2)
    partition.fetch(TWO)
    partition.ask(TWO)  # now it is committed, and the answer that says so is lost
    assert on(partition, ONE).high_watermark == 2
    partition.kill(TWO)
    partition.start(TWO)
    assert (end(partition, TWO), on(partition, TWO).high_watermark) == (2, 0)
    partition.controller.isr = (ONE, TWO)
    partition.kill(ONE)
    partition.controller.gone(ONE)
    partition.tell(TWO)
    assert on(partition, TWO).is_leader
    assert end(partition, TWO) == 2
    partition.converge()


def test_logs_that_parted_in_several_epochs_become_one_again(partition: Replicated) -> None:
    """KIP-279: after two fast elections a follower's last epoch is one that the leader has never heard of."""
    partition.append(ONE, 1)
    for broker_id in (TWO, THREE):
        partition.fetch(broker_id)
    partition.append(ONE, 2)  # no one gets it
    partition.controller.lead(TWO)
    partition.tell(TWO)
    partition.append(TWO, 3)  # no one gets this either
    partition.controller.lead(THREE)
    partition.tell(THREE)
    partition.append(THREE, 1)
    assert [end(partition, broker) for broker in BROKERS] == [3, 4, 2]
    partition.converge()
    assert [each for _, each in on(partition, ONE).log.leader_epochs.entries] == [
        each for _, each in on(partition, TWO).log.leader_epochs.entries
    ]


def test_an_epoch_in_which_nothing_was_written_is_forgotten_by_whoever_led_it(partition: Replicated) -> None:
    """Its leader was replaced at once; asked for it, the next one does not know it, whatever often."""
    partition.append(ONE, 1)
    partition.recover()
    partition.controller.lead(TWO)
    partition.tell(TWO)
    partition.controller.lead(ONE)
    partition.append(ONE, 1)
    partition.converge()


def test_a_follower_behind_the_start_of_the_epoch_does_not_join(partition: Replicated) -> None:
    """KAFKA-7128: a new leader's high watermark is old, so it alone says too little."""
    partition.controller.isr, partition.controller.partition_epoch = (ONE, TWO), 1
    for broker in BROKERS:
        partition.tell(broker)
    partition.append(ONE, 3)
    partition.fetch(TWO)
    partition.ask(TWO)  # committed, and TWO has yet to hear of it
    assert on(partition, ONE).high_watermark == 3
    without(partition, ONE)
    new = on(partition, TWO)
    assert (new.is_leader, new.high_watermark, new.log.log_end_offset) == (True, 3, 3)
    new.high_watermark = 0  # it leads alone and knows at once; with others in sync it would wait for them
    partition.ask(THREE)
    assert new.propose_expansion(partition.now_ms()) is None
    partition.answer(THREE)
    partition.ask(THREE)
    assert new.propose_expansion(partition.now_ms()) is not None


def test_who_may_be_in_the_isr_is_waited_for(partition: Replicated) -> None:
    """KIP-497: the controller has made TWO in sync, and its answer is lost."""
    without(partition, TWO, THREE)
    partition.append(ONE, 1)
    partition.start(TWO)
    for broker_id in (ONE, TWO):
        partition.tell(broker_id)
    partition.fetch(TWO)
    partition.ask(TWO)
    partition.propose(ONE, shrink=False)
    partition.alter(ONE, is_heard=False)
    assert partition.controller.isr == (ONE, TWO)
    leader = on(partition, ONE)
    leader.in_sync.forget_absent(partition.now_ms() + 60_000)  # it is not because TWO was about to join
    partition.append(ONE, 2)
    assert (leader.isr, leader.high_watermark, leader.log.log_end_offset) == ((ONE,), 1, 3)
    # What has been decided since is unknown, but for its being on the way.
    assert not leader.isr_altered(partition.nodes[ONE].asked, AlteredPartition(InvalidUpdateVersion.code), 0)  # type: ignore[arg-type]
    leader.become_leader(
        PartitionAssignment(KEY.topic, TOPIC_ID, 0, PartitionState(ONE, leader.leader_epoch, (ONE,), BROKERS), leader.partition_epoch), 0
    )
    assert not leader.advance_high_watermark(), "the same state told again says nothing of what came after it"
    partition.alter(ONE, is_heard=True)
    assert leader.isr == (ONE, TWO)
    without(partition, ONE)
    assert on(partition, TWO).is_leader
    partition.converge()


def test_a_follower_that_lags_is_waited_for_until_the_controller_has_agreed(partition: Replicated) -> None:
    partition.append(ONE, 1)
    partition.clock.advance(milliseconds=LAG_TIME_MAX_MS + 1)
    partition.propose(ONE, shrink=True)
    leader = on(partition, ONE)
    assert leader.high_watermark == 0
    partition.alter(ONE, is_heard=True)
    assert (leader.isr, leader.high_watermark) == ((ONE,), 1)


def test_a_follower_that_has_everything_never_lags(partition: Replicated) -> None:
    for broker_id in (TWO, THREE):
        partition.fetch(broker_id)
    partition.clock.advance(milliseconds=10 * LAG_TIME_MAX_MS)
    partition.propose(ONE, shrink=True)
    assert partition.nodes[ONE].asked is None


def test_what_a_former_leader_answered_is_not_taken(partition: Replicated) -> None:
    partition.append(ONE, 2)
    partition.ask(TWO)
    partition.controller.lead(THREE)
    partition.tell(TWO)
    partition.answer(TWO)
    assert end(partition, TWO) == 0
    partition.converge()


def test_progress_is_forgotten_with_the_epoch(partition: Replicated) -> None:
    """The same broker leads again, and has missed an epoch in which its followers cut their logs for another."""
    partition.append(ONE, 2)
    for broker_id in (TWO, THREE):
        partition.fetch(broker_id)
    partition.ask(TWO)
    partition.nodes[TWO].answer = None
    leader = on(partition, ONE)
    assert leader.in_sync.followers[TWO].log_end_offset == 2
    partition.controller.lead(TWO)
    partition.controller.lead(ONE)
    partition.tell(ONE)
    assert leader.in_sync.followers[TWO].log_end_offset == -1


def test_epochs_only_grow(partition: Replicated) -> None:
    replica = on(partition, TWO)

    def told(leader: BrokerId, leader_epoch: int, partition_epoch: int) -> PartitionAssignment:
        return PartitionAssignment(KEY.topic, TOPIC_ID, 0, PartitionState(leader, leader_epoch, BROKERS, BROKERS), partition_epoch)

    assert replica.become_leader(told(TWO, 5, 9), 0)
    assert not replica.become_leader(told(TWO, 5, 9), 0)
    assert not replica.become_leader(told(TWO, 5, 8), 0)
    for late in (told(ONE, 4, 10), told(TWO, 4, 10)):
        with pytest.raises(StaleControllerEpoch):
            replica.become_follower(late)
        with pytest.raises(StaleControllerEpoch):
            replica.become_leader(late, 0)
    assert replica.is_leader
    replica.stop_leading()
    assert replica.become_leader(told(TWO, 5, 9), 0), "its session was lost and it was told again"
    assert replica.become_follower(told(THREE, 6, 10))
    assert (replica.is_leader, replica.leader, replica.leader_epoch) == (False, THREE, 6)


def test_a_replica_whose_disk_has_failed_does_not_lead(partition: Replicated) -> None:
    partition.controller.lead(TWO)
    replica = on(partition, TWO)
    replica.storage_error = KafkaStorageError("gone")
    with pytest.raises(KafkaStorageError):
        partition.tell(TWO)
    assert not replica.is_leader
    with pytest.raises(KafkaStorageError):
        replica.truncate_for(0, 0)
    with pytest.raises(KafkaStorageError):
        replica.restart_at(0)


def test_damaged_records_are_not_taken_and_those_before_them_are(partition: Replicated) -> None:
    """The follower verifies checksums: what went wrong on its way, or on the leader's disk, ends there."""
    for _ in range(2):
        partition.append(ONE, 1)
    partition.ask(TWO, 1 << 20)
    answer = partition.nodes[TWO].answer
    assert answer is not None
    damaged = bytearray(answer.records)
    damaged[-1] ^= 1
    answer.records = bytes(damaged)
    with pytest.raises(CorruptMessage):
        partition.answer(TWO)
    assert end(partition, TWO) == 1
    partition.converge()


def test_committed_records_are_dropped_only_with_an_error(partition: Replicated, caplog: pytest.LogCaptureFixture) -> None:
    """An unclean election: the leader does not have what was committed, and so no one has it any more."""
    partition.append(ONE, 2)
    partition.recover()
    replica = on(partition, TWO)
    assert replica.truncate_for(-1, 1)
    assert (replica.log.log_end_offset, replica.high_watermark) == (0, 0), "the batch of both records goes"
    assert "committed records from" in caplog.text
    replica.restart_at(7)
    assert (replica.log.log_start_offset, replica.log.log_end_offset, replica.high_watermark) == (7, 7, 7)


def test_a_follower_may_begin_inside_a_batch(partition: Replicated) -> None:
    """DeleteRecords has made the leader's log start there; the batch comes whole, with records that no one sees."""
    without(partition, TWO)
    partition.append(ONE, 3)
    partition.fetch(THREE)
    partition.ask(THREE)
    leader = on(partition, ONE)
    assert leader.delete_records(2) == 2
    partition.start(TWO)
    partition.tell(TWO)
    follower = on(partition, TWO)
    follower.restart_at(2)
    partition.fetch(TWO)
    assert (follower.log.log_start_offset, follower.log.log_end_offset, follower.high_watermark) == (2, 3, 3)
    data = b"".join(path.read_bytes() for path in sorted(follower.log.directory.glob("*.log")))
    assert [header.base_offset for _, header in batches(data)] == [0]


def test_a_follower_whose_log_parted_before_the_leaders_start_begins_inside_a_batch_too(partition: Replicated) -> None:
    """DeleteRecords took the end of their last common epoch, so it is cut where the leader's log starts: behind nothing that is there."""
    partition.append(ONE, 2)
    for broker_id in (TWO, THREE):
        partition.fetch(broker_id)
    for _ in range(3):
        partition.append(ONE, 1)  # no one gets these
    without(partition, ONE)
    partition.append(TWO, 5)
    partition.fetch(THREE)
    partition.ask(THREE)
    assert on(partition, TWO).delete_records(4) == 4
    partition.start(ONE)
    partition.tell(ONE)
    partition.fetch(ONE)
    follower = on(partition, ONE)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (0, 4)
    partition.recover()
    assert (follower.log.log_start_offset, follower.log.log_end_offset, follower.high_watermark) == (4, 7, 7)


def test_the_high_watermark_of_a_follower_does_not_go_back_and_not_beyond_its_log(partition: Replicated) -> None:
    partition.append(ONE, 2)
    partition.fetch(TWO)
    follower = on(partition, TWO)
    for said, known in ((5, 2), (1, 2), (0, 2)):
        assert follower.append_as_follower(memoryview(b""), 0, said, 0)
        assert follower.high_watermark == known


def test_the_checkpoint_says_that_the_log_was_cut_before_the_leader_hears_of_what_came_after(tmp_path: Path) -> None:
    """A crash would take the new records for synced, because the old ones were, and never look at them."""
    partition = Replicated(tmp_path)
    for _ in range(6):
        partition.append(ONE, 2)
    partition.fetch(TWO)
    partition.flush(TWO)
    partition.checkpoint(TWO)
    path = partition.nodes[TWO].directory
    assert read_offsets(path / RECOVERY_POINT_CHECKPOINT)[KEY] == 12
    follower = on(partition, TWO)
    assert not follower.must_checkpoint_truncation
    follower.truncate_for(-1, 4)
    assert follower.must_checkpoint_truncation
    partition.fetch(TWO)
    assert not follower.must_checkpoint_truncation
    assert read_offsets(path / RECOVERY_POINT_CHECKPOINT)[KEY] == 4
    assert follower.log.log_end_offset == 12
    partition.kill(TWO)
    (last,) = path.glob("events-0/*4.log") if list(path.glob("events-0/*4.log")) else [max(path.glob("events-0/*.log"))]
    with last.open("r+b") as file:  # the file's new size has reached the disk, and its content has not
        file.seek(-90, os.SEEK_END)
        file.write(bytes(90))
    partition.start(TWO)
    assert end(partition, TWO) < 12, "the hole was seen"
    partition.converge()
    partition.close()


def test_with_flush_messages_nothing_is_told_or_committed_that_is_not_on_the_disk(tmp_path: Path) -> None:
    partition = Replicated(tmp_path, flush_messages=1)
    without(partition, THREE)
    partition.append(ONE, 2)
    partition.fetch(TWO)
    leader, follower = on(partition, ONE), on(partition, TWO)
    assert follower.must_checkpoint_truncation
    assert follower.log.recovery_point == 0
    partition.ask(TWO)
    assert follower.log.recovery_point == 2
    assert leader.high_watermark == 0, "the leader's own are not synced"
    partition.flush(ONE)
    assert leader.high_watermark == 2
    partition.close()


def test_with_flush_messages_a_truncation_that_did_not_take_place_hides_nothing_that_is_not_on_the_disk(tmp_path: Path) -> None:
    """The recovery point went back for it, and the next leader has what was to be cut."""
    partition = Replicated(tmp_path, flush_messages=1)
    for _ in range(13):
        partition.append(ONE, 2)
    for _ in range(3):  # a segment at a time
        partition.fetch(TWO)
    partition.ask(TWO)
    follower = on(partition, TWO)
    assert len(follower.log.segments) > 1 and follower.log.recovery_point == 26
    assert not follower.truncate_for(-1, 4)
    partition.answer(TWO)
    partition.ask(TWO)
    assert (follower.log.recovery_point, follower.log.log_end_offset) == (4, 26), "all was on the disk before"
    partition.append(ONE, 2)
    partition.answer(TWO)
    partition.fetch(TWO)
    partition.ask(TWO)
    assert (follower.log.recovery_point, follower.log.log_end_offset) == (28, 28)
    partition.close()


def test_too_few_in_sync_commit_nothing(tmp_path: Path) -> None:
    """KIP-966: what fewer than `min.insync.replicas` have may be lost with them, so no one sees it."""
    partition = Replicated(tmp_path, min_insync_replicas=2)
    without(partition, TWO, THREE)
    leader = on(partition, ONE)
    batch = memoryview(build_batch([Record(0, 1, None, b"a")]))
    leader.append_as_leader(batch, 0, len(batch), 1, 1)
    leader.log.appender.write_staged()
    leader.appended()
    assert (leader.is_under_min_isr, leader.high_watermark) == (True, 0)
    partition.start(TWO)
    for broker_id in (ONE, TWO):
        partition.tell(broker_id)
    partition.fetch(TWO)
    partition.ask(TWO)
    partition.propose(ONE, shrink=False)
    partition.alter(ONE, is_heard=True)
    assert (leader.is_under_min_isr, leader.high_watermark) == (False, 1)
    partition.close()


def test_nothing_is_committed_while_the_controller_counts_on_others_to_have_everything(tmp_path: Path) -> None:
    """KIP-966: who left while too few were in sync may lead later. The controller may go by another `min.insync.replicas` than the leader.

    It is in `server.properties`, which are not changed everywhere at once, and an alteration reaches brokers one after the other. A leader
    that went by its own would acknowledge what those who are elected without loss do not have.
    """
    partition = Replicated(tmp_path, min_insync_replicas=1)
    leader, controller = on(partition, ONE), partition.controller
    alone = with_isr(controller.assignment().state, ONE, (ONE,), 0, 0, min_insync_replicas=2)
    assert alone.eligible_leader_replicas == (TWO, THREE)
    leader.become_leader(PartitionAssignment(KEY.topic, TOPIC_ID, KEY.partition, alone, 1), partition.now_ms())
    batch = memoryview(build_batch([Record(0, 1, None, b"a")]))
    with pytest.raises(NotEnoughReplicas, match="by the controller's setting 2, 3 may lead as well"):
        leader.append_as_leader(batch, 0, len(batch), ACKS_ALL, 1)
    leader.append_as_leader(batch, 0, len(batch), 1, 1)
    leader.log.appender.write_staged()
    leader.appended()
    assert leader.high_watermark == 0
    settled = with_isr(alone, ONE, (ONE,), 0, 0, min_insync_replicas=1)
    leader.become_leader(PartitionAssignment(KEY.topic, TOPIC_ID, KEY.partition, settled, 2), partition.now_ms())
    assert leader.high_watermark == 1
    partition.close()


def test_the_answer_to_a_shrunk_isr_says_who_may_lead_beside_it(tmp_path: Path) -> None:
    """Else the leader commits before it hears of it."""
    partition = Replicated(tmp_path, min_insync_replicas=1)
    leader = on(partition, ONE)
    partition.append(ONE, 1)
    partition.clock.advance(seconds=60)
    proposed = leader.propose_shrink(partition.now_ms(), 10_000)
    assert proposed is not None
    alone = with_isr(partition.controller.assignment().state, ONE, (ONE,), 0, 0, min_insync_replicas=2)
    leader.isr_altered(proposed, AlteredPartition(0, alone, 1), partition.now_ms())
    assert (leader.isr, leader.high_watermark) == ((ONE,), 0)
    partition.close()
