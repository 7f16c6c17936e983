"""What the controller says to a broker of several: led, followed, stopped, offline, under another topic's id."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
from tests.unit.storage.brokers import Broker

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.following import Follow
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.config.topic import TopicSettings
from ottla.errors import FencedLeaderEpoch, InconsistentTopicId, KafkaStorageError, StaleControllerEpoch, UnknownTopicOrPartition
from ottla.interbroker.calls import EMPTY_LOG, NO_LOG, AllReplicas, LogEnd, PartitionAssignment, PartitionToStop
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, PartitionState, TopicPartition
from ottla.storage import log_manager

from ..wired import BROKER, NOW, Wired, batch, topic_id

TWO, THREE = BrokerId(2), BrokerId(3)
BROKERS = (BROKER, TWO, THREE)
LIVING = tuple(BrokerRegistration(broker_id, ()) for broker_id in (TWO, THREE))
KEY = TopicPartition("events", 0)
STORAGE_ERROR, STALE_CONTROLLER, FENCED = KafkaStorageError.code, StaleControllerEpoch.code, FencedLeaderEpoch.code
INCONSISTENT_TOPIC_ID = InconsistentTopicId.code


class PartitionFetchState:
    """What would be fetched."""

    def __init__(self) -> None:
        self.now: dict[TopicPartition, Follow] = {}
        self.calls: list[str] = []

    def follow(self, partitions: Mapping[TopicPartition, Follow], /) -> None:
        self.calls.append(f"follow {len(partitions)}")
        self.now.update(partitions)

    def unfollow(self, partitions: Iterable[TopicPartition], /) -> None:
        gone = list(partitions)
        self.calls.append(f"unfollow {len(gone)}")
        for partition in gone:
            del self.now[partition]


def told(
    leader: BrokerId, *, epoch: int = 0, partition_epoch: int = 0, partition: int = 0, id_of: str = "events", is_new: bool = True
) -> PartitionAssignment:
    state = PartitionState(leader, epoch, BROKERS, BROKERS)
    return PartitionAssignment("events", topic_id(id_of), partition, state, partition_epoch, is_new=is_new)


def followed_by(broker: Wired) -> PartitionFetchState:
    broker.settings["events"] = TopicSettings.of(broker.parts.settings, {})
    following = broker.parts.replicas.following = PartitionFetchState()
    return following


def append(broker: Wired, *values: bytes) -> None:
    partition = broker.partition("events")
    for value in values:
        sent = memoryview(batch(value))
        partition.append_as_leader(sent, 0, len(sent), 1, NOW)
    broker.parts.replicas.appends.stage(partition)
    assert broker.parts.replicas.appends.complete() is None


async def test_a_partition_is_fetched_from_its_living_leader_and_from_nobody_while_it_leads(broker: Wired) -> None:
    following = followed_by(broker)
    replicas = broker.parts.replicas

    async def tell(*assignments: PartitionAssignment) -> list[int]:
        return list((await replicas.apply(assignments, LIVING)).values())

    assert await tell(told(TWO), told(THREE, partition=1)) == [0, 0]
    assert {key: (each.leader.broker_id, each.leader_epoch, each.topic_id) for key, each in following.now.items()} == {
        KEY: (TWO, 0, topic_id("events")),
        TopicPartition("events", 1): (THREE, 0, topic_id("events")),
    }
    assert await tell(told(TWO), told(THREE, partition=1)) == [0, 0]
    assert following.calls == ["follow 2"], "what is told again changes nothing"
    assert await tell(told(THREE, epoch=1, partition_epoch=1)) == [0]
    assert following.now[KEY].leader.broker_id == THREE
    assert await tell(told(BROKER, epoch=2, partition_epoch=2)) == [0]
    assert KEY not in following.now
    assert broker.partition("events").is_leader
    assert await tell(told(NO_LEADER, epoch=3, partition_epoch=3)) == [0]
    assert not broker.partition("events").is_leader
    assert await tell(told(BrokerId(9), epoch=4, partition_epoch=4)) == [0]
    assert KEY not in following.now, "its leader is not alive"


async def test_an_older_leader_epoch_is_refused_and_an_older_state_passed_over(broker: Wired) -> None:
    following = followed_by(broker)
    replicas = broker.parts.replicas
    await replicas.apply([told(TWO, epoch=5, partition_epoch=8)], LIVING)
    assert await replicas.apply([told(BROKER, epoch=4, partition_epoch=9)], LIVING) == {KEY: STALE_CONTROLLER}
    assert await replicas.apply([told(BROKER, epoch=5, partition_epoch=7)], LIVING) == {KEY: 0}
    assert not broker.partition("events").is_leader
    assert following.now[KEY].leader.broker_id == TWO
    assert await replicas.stop([PartitionToStop(KEY, 4, delete=True, topic_id=topic_id("events"))]) == {KEY: FENCED}
    assert KEY in replicas.partitions


async def test_a_replica_that_is_given_up_is_led_and_fetched_no_more_and_may_come_back(broker: Wired) -> None:
    """A broker that shuts down is told so for what it follows; its files stay."""
    following = followed_by(broker)
    replicas = broker.parts.replicas
    await replicas.apply([told(BROKER)], LIVING)
    append(broker, b"a")
    assert await replicas.stop([PartitionToStop(KEY, 0, delete=False)]) == {KEY: 0}
    assert not broker.partition("events").is_leader
    await replicas.apply([told(TWO, epoch=1, partition_epoch=1)], LIVING)
    assert await replicas.stop([PartitionToStop(KEY, 1, delete=False)]) == {KEY: 0}
    assert not following.now
    await replicas.apply([told(TWO, epoch=1, partition_epoch=1)], LIVING)
    assert KEY in following.now
    assert broker.partition("events").log.log_end_offset == 1


async def test_a_log_goes_with_its_topic_even_if_nobody_has_said_what_it_was_for(broker: Wired) -> None:
    """The topic was deleted while the broker was away."""
    followed_by(broker)
    broker.parts.logs.create(KEY, topic_id("events"))
    assert await broker.parts.replicas.stop([PartitionToStop(KEY, -2, delete=True, topic_id=topic_id("events"))]) == {KEY: 0}
    assert broker.parts.logs.get(KEY) is None
    assert await broker.parts.replicas.stop([PartitionToStop(KEY, -2, delete=True, topic_id=topic_id("events"))]) == {KEY: 0}


async def test_a_replica_on_a_new_disk_gets_a_log_with_its_leader_and_not_before(broker: Wired) -> None:
    """An empty log would be compared with those of others, as if nothing had ever been in it, and could lead."""
    following, replicas = followed_by(broker), broker.parts.replicas
    for epoch in (3, 4):
        assert await replicas.apply([told(NO_LEADER, epoch=epoch, partition_epoch=epoch, is_new=False)], LIVING) == {KEY: 0}
        assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: NO_LOG}
        assert KEY not in replicas.partitions
    assert await replicas.apply([told(TWO, epoch=5, partition_epoch=5, is_new=False)], LIVING) == {KEY: 0}
    assert following.now[KEY].leader.broker_id == TWO
    assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: LogEnd(-1, 0)}
    assert await replicas.apply([told(NO_LEADER, epoch=6, partition_epoch=6, is_new=False)], LIVING) == {KEY: 0}
    assert not following.now
    assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: LogEnd(-1, 0)}, "what it has it keeps"


async def test_where_a_log_ends_is_said_of_the_topic_that_is_meant(broker: Wired) -> None:
    followed_by(broker)
    log, replicas = broker.parts.logs.create(KEY, topic_id("events")), broker.parts.replicas
    assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: LogEnd(-1, 0)}
    log.appender.append_as_received(memoryview(batch(b"a", b"b", leader_epoch=7)))
    other = TopicPartition("events", 1)
    asked = {KEY: topic_id("events"), other: topic_id("events")}
    assert replicas.log_ends(asked) == {KEY: LogEnd(7, 2), other: NO_LOG}
    assert replicas.log_ends({KEY: topic_id("events of last year")}) == {KEY: NO_LOG}
    log.leader_epochs.assign(8, 2)
    assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: LogEnd(7, 2, 8)}, "in 8 it wrote nothing, maybe as the order came late"
    log.advance_log_start_offset(2)
    assert replicas.log_ends({KEY: topic_id("events")}) == {KEY: LogEnd(8, 2)}, "of an empty log no record says it"


async def test_a_log_that_was_never_made_is_an_empty_one_where_all_others_are_there(broker: Wired) -> None:
    """The broker was killed before it heard of the partition. Its disk is no new one: it had a log of each replica then."""
    followed_by(broker)
    replicas, other = broker.parts.replicas, TopicPartition("events", 1)
    named = AllReplicas({"events": frozenset({0, 1})}, topic_ids={"events": topic_id("events")})
    broker.parts.logs.create(KEY, topic_id("events"))
    await replicas.rename_stray_logs(named)
    assert replicas.log_ends({other: topic_id("events")}) == {other: NO_LOG}, "it may have been on the disk that was here before"
    await replicas.rename_stray_logs(AllReplicas({"events": frozenset({0})}, frozenset({"unread"})))
    assert replicas.log_ends({other: topic_id("events")}) == {other: NO_LOG}, "who knows what that topic has here"
    await replicas.rename_stray_logs(AllReplicas({"events": frozenset({0})}))
    assert replicas.log_ends({other: topic_id("events")}) == {other: EMPTY_LOG}
    assert replicas.log_ends({KEY: topic_id("events made again")}) == {KEY: EMPTY_LOG}


async def test_before_the_logs_are_loaded_it_is_not_said_that_there_is_none(tmp_path: Path) -> None:
    """A broker that is started again is asked under its former registration, whose session has not ended (simulation, seed 30117705)."""
    logs = Broker(tmp_path, broker_id=str(BROKER)).manager()
    replicas, asked = ReplicaManager(BROKER, logs, Purgatory(), Purgatory()), {KEY: topic_id("events")}
    assert replicas.log_ends(asked) == {}
    await logs.start()
    assert replicas.log_ends(asked) == {KEY: NO_LOG}
    await logs.shutdown()


async def test_of_a_log_that_may_lie_on_a_failed_disk_it_is_not_said_that_there_is_none(broker: Wired) -> None:
    """Where no replica has a log one of them leads, as nothing was ever written. What the disk has would be cut off when it is back."""
    followed_by(broker)
    logs, replicas, other = broker.parts.logs, broker.parts.replicas, TopicPartition("events", 1)
    logs.create(KEY, topic_id("events")).files.fail("its disk has failed")
    asked = {KEY: topic_id("events"), other: topic_id("events")}
    assert replicas.log_ends(asked) == {other: NO_LOG}
    logs.fail_directory(broker.parts.settings.log_directories[0], OSError(errno.EIO, os.strerror(errno.EIO)))
    assert replicas.log_ends(asked) == {}, "at a start with such a disk there is neither"


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_a_leader_epoch_that_the_log_has_already_is_named_with_the_one_to_be_above(broker: Wired, is_hosted: bool) -> None:
    """ZooKeeper was restored from a copy. In an epoch in which someone else has led, followers could not tell two logs apart."""
    followed_by(broker)
    replicas = broker.parts.replicas

    def named(assignment: PartitionAssignment) -> int | None:
        return replicas.written_epochs([assignment]).get(KEY)

    assert named(told(BROKER, epoch=0)) is None, "there is no log yet"
    if is_hosted:
        await replicas.apply([told(BROKER, epoch=7, partition_epoch=9)], LIVING)
        assert named(told(BROKER, epoch=7, partition_epoch=10)) is None, "it is told again"
        append(broker, b"a")
    else:
        broker.parts.logs.create(KEY, topic_id("events")).appender.append_as_received(memoryview(batch(b"a", leader_epoch=7)))
        assert named(told(BROKER, epoch=7)) == 7, "another may have led in it"
        alone = PartitionState(BROKER, 7, (BROKER,), (BROKER,))
        assert named(PartitionAssignment("events", topic_id("events"), 0, alone, 3)) is None, "no one else has"
    assert named(told(BROKER, epoch=4)) == 7
    assert named(told(TWO, epoch=4)) == 7, "nor can it follow in that"
    assert named(told(TWO, epoch=7)) is None
    assert named(told(BROKER, epoch=8)) is None
    assert named(told(BROKER, epoch=4, id_of="events of last year")) is None, "it is another topic's"


async def test_an_epoch_that_was_another_leaders_or_went_further_before_the_session_ended_is_named_too(broker: Wired) -> None:
    """ZooKeeper was restored while brokers ran. In the session that goes on the same request is one that arrived late."""
    followed_by(broker)
    replicas = broker.parts.replicas

    def named(assignment: PartitionAssignment) -> int | None:
        return replicas.written_epochs([assignment]).get(KEY)

    await replicas.apply([told(BROKER, epoch=7, partition_epoch=9)], LIVING)
    assert named(told(BROKER, epoch=7, partition_epoch=8)) is None
    replicas.stop_leading_all()
    replicas.stop_leading_all()
    assert named(told(BROKER, epoch=7, partition_epoch=9)) is None
    assert named(told(BROKER, epoch=7, partition_epoch=8)) == 7
    assert named(told(TWO, epoch=7, partition_epoch=9)) == 7
    await replicas.apply([told(TWO, epoch=8, partition_epoch=3)], LIVING)
    assert named(told(TWO, epoch=8, partition_epoch=2)) is None, "the controller has said more since"
    replicas.stop_leading_all()
    assert named(told(BROKER, epoch=8, partition_epoch=4)) == 8, "who followed does not lead in it"


@pytest.mark.parametrize("is_hosted", [True, False])
@pytest.mark.parametrize("leader_epoch", [-2, 0, 9])
async def test_a_stop_that_arrives_late_leaves_the_replica_of_a_new_topic_of_that_name_alone(
    broker: Wired, leader_epoch: int, is_hosted: bool
) -> None:
    """The repetition of the call was answered, so the deletion ended and the name was free. Kafka 3.9 would delete the new log."""
    followed_by(broker)
    replicas = broker.parts.replicas
    if is_hosted:
        await replicas.apply([told(BROKER)], LIVING)
        append(broker, b"acknowledged")
    else:
        broker.parts.logs.create(KEY, topic_id("events"))
    late = PartitionToStop(KEY, leader_epoch, delete=True, topic_id=topic_id("events of last year"))
    assert await replicas.stop([late]) == {KEY: 0}, "of the topic that is meant there is nothing left"
    log = broker.parts.logs.get(KEY)
    assert log is not None
    assert (log.log_end_offset, KEY in replicas.partitions) == (int(is_hosted), is_hosted)
    assert not is_hosted or broker.partition("events").is_leader


async def test_a_deletion_that_does_not_say_of_which_topic_deletes_nothing(broker: Wired) -> None:
    """From a controller of an older release: its successor asks again."""
    followed_by(broker)
    await broker.parts.replicas.apply([told(BROKER)], LIVING)
    assert await broker.parts.replicas.stop([PartitionToStop(KEY, -2, delete=True)]) == {KEY: INCONSISTENT_TOPIC_ID}
    assert broker.partition("events").is_leader


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_records_of_a_former_topic_of_that_name_are_set_aside(broker: Wired, tmp_path: Path, is_hosted: bool) -> None:
    following = followed_by(broker)
    replicas = broker.parts.replicas
    if is_hosted:
        await replicas.apply([told(BROKER, epoch=9, partition_epoch=20)], LIVING)
        append(broker, b"a")
    else:
        broker.parts.logs.create(KEY, topic_id("events"))
    assert await replicas.apply([told(TWO, id_of="another", is_new=False)], LIVING) == {KEY: 0}
    partition = broker.partition("events")
    assert (partition.topic_id, partition.leader_epoch, partition.log.log_end_offset) == (topic_id("another"), 0, 0)
    assert following.now[KEY].topic_id == topic_id("another")
    assert len(list((tmp_path / "logs").glob("events-0.*-stray"))) == 1


async def test_only_what_the_controller_does_not_name_is_a_stray(broker: Wired) -> None:
    followed_by(broker)
    broker.settings["gone"] = broker.settings["events"]
    for key in (KEY, TopicPartition("events", 1), TopicPartition("gone", 0)):
        broker.parts.logs.create(key, UUID(int=0))
    await broker.parts.replicas.apply([told(TWO, is_new=False)], LIVING)
    named = AllReplicas({"events": frozenset({0, 1})}, topic_ids={"events": topic_id("events")})
    assert await broker.parts.replicas.rename_stray_logs(named) == (TopicPartition("gone", 0),)
    assert set(broker.parts.logs.logs) == {KEY, TopicPartition("events", 1)}


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_what_is_of_another_topic_of_a_name_that_the_controller_names_is_a_stray(broker: Wired, is_hosted: bool) -> None:
    """A disk of before is back: its topic was deleted and made again meanwhile, and that one is being deleted, too."""
    followed_by(broker)
    if is_hosted:
        await broker.parts.replicas.apply([told(TWO)], LIVING)
    else:
        broker.parts.logs.create(KEY, topic_id("events"))
    stop = PartitionToStop(KEY, -2, True, topic_id("another"))
    assert await broker.parts.replicas.stop([stop]) == {KEY: 0}, "for that one nothing is here"
    named = AllReplicas({"events": frozenset({0})}, topic_ids={"events": topic_id("another")})
    assert await broker.parts.replicas.rename_stray_logs(named) == (KEY,)
    assert not broker.parts.logs.logs


async def test_a_partition_on_a_failed_disk_says_so_and_neither_leads_nor_follows(broker: Wired) -> None:
    following = followed_by(broker)
    replicas = broker.parts.replicas
    await replicas.apply([told(BROKER), told(TWO, partition=1)], LIVING)
    for partition in replicas.partitions.values():
        partition.log.files.fail("the disk is gone")
    assert set(replicas.directory_failed()) == {KEY, TopicPartition("events", 1)}
    assert replicas.directory_failed() == ()
    assert not following.now
    assert not broker.partition("events").is_leader
    later = [told(BROKER, epoch=1, partition_epoch=1), told(TWO, epoch=1, partition_epoch=1, partition=1)]
    assert set((await replicas.apply(later, LIVING)).values()) == {STORAGE_ERROR}
    assert not following.now
    with pytest.raises(KafkaStorageError):
        broker.partition("events").check_leader_epoch(-1)


async def test_a_replica_on_a_failed_disk_is_not_said_to_be_deleted(broker: Wired) -> None:
    """Its files are there when the disk is back. The controller asks again then, and the topic is not gone before (`stopReplicas`)."""
    followed_by(broker)
    replicas = broker.parts.replicas
    await replicas.apply([told(BROKER), told(BROKER, partition=1)], LIVING)
    other = TopicPartition("events", 1)
    broker.partition("events").log.files.fail("the disk is gone")
    replicas.directory_failed()
    stops = [PartitionToStop(key, -2, delete=True, topic_id=topic_id("events")) for key in (KEY, other)]
    assert await replicas.stop(stops) == {KEY: STORAGE_ERROR, other: 0}
    assert set(broker.parts.logs.logs) == {KEY}


async def test_a_disk_that_fails_in_the_middle_of_a_request_has_nothing_followed_that_came_before_it(
    broker: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched for it would be dropped, again and again, until the leader epoch is another."""
    following = followed_by(broker)
    replicas, logs = broker.parts.replicas, broker.parts.logs
    await replicas.apply([told(BROKER), told(BROKER, partition=1)], LIVING)

    def directory_failed(_directory: Path, _reason: str) -> None:
        replicas.directory_failed()

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    logs.directory_failed = directory_failed
    monkeypatch.setattr(log_manager, "make_logs", fails)
    leads = told(BROKER, epoch=1, partition_epoch=1, partition=1)
    errors = await replicas.apply([told(TWO, epoch=1, partition_epoch=1), leads, told(TWO, partition=2)], LIVING)
    assert list(errors.values()) == [STORAGE_ERROR] * 3
    assert not following.now


async def test_many_partitions_leave_the_loop_room(broker: Wired) -> None:
    followed_by(broker)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await broker.parts.replicas.apply([told(BROKER, partition=number) for number in range(200)], LIVING)
    beside.cancel()
    assert turns >= 8
    assert len(broker.parts.replicas.partitions) == 200


class NotWalked(dict[TopicPartition, Partition]):
    """Partitions that no one may go through one by one."""

    def items(self) -> NoReturn:
        raise AssertionError

    __iter__ = values = items


async def test_new_settings_of_a_topic_are_no_work_for_the_partitions_of_all_others(broker: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's setting is that of thousands of topics; the loop stood still for seconds. Partitions of a topic come and go."""
    replicas = broker.parts.replicas
    for name in ("events", "orders"):
        broker.topic(name, partitions=2)
    await replicas.stop([PartitionToStop(TopicPartition("events", 1), 0, delete=True, topic_id=topic_id("events"))])
    settings = TopicSettings.of(broker.parts.settings, {"retention.ms": "7"})
    with monkeypatch.context() as patched:
        patched.setattr(replicas, "_partitions", NotWalked(replicas.partitions))
        replicas.update_settings("events", settings)
        replicas.update_settings("none", settings)
    found = [broker.partition(*key).settings.retention_ms == 7 for key in (("events", 0), ("orders", 0), ("orders", 1))]
    assert found == [True, False, False]


async def test_without_a_partition_there_is_nothing_to_get(broker: Wired) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        broker.partition("events")


async def test_fewer_replicas_asked_for_may_commit_what_waited(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO), min_insync_replicas="2")
    broker.lead("events", isr=(BROKER,))
    append(broker, b"a")
    assert broker.partition("events").high_watermark == 0
    broker.parts.replicas.update_settings("events", TopicSettings.of(broker.parts.settings, {}))
    assert broker.partition("events").high_watermark == 1
