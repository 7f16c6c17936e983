"""Brokers and controllers that die, come back, lose their sessions and disks: three brokers on one ZooKeeper.

Source: KafkaController's handlers (`processStartup`, `onBrokerStartup`, `onBrokerFailure`, `processExpire`,
`onBrokerLogDirFailure`); traps.md, 'Controller and replication'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast
from uuid import UUID

import pytest
from tests.loops import LoopClock, until

from ottla.broker.controller import active, request_batch
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedSession
from ottla.coordination.errors import ConnectionLoss, MalformedZnode
from ottla.coordination.interface import Coordination, Watch
from ottla.errors import (
    BrokerNotAvailable,
    ConfigurationError,
    InconsistentTopicId,
    KafkaStorageError,
    NotController,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    TopicAlreadyExists,
)
from ottla.interbroker.calls import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ElectionType,
    IsrChange,
    IsrMember,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    NewTopic,
    PartitionOutcome,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.interbroker.local import Call, Perform
from ottla.lifecycle import Backoff
from ottla.model import NO_LEADER, BrokerId, TopicPartition

from .clusters import FIRST_ID, ONE, THREE, TWO, Cluster, clustered

EVERYWHERE = {index: (BrokerId(1 + index % 3), BrokerId(1 + (index + 1) % 3), BrokerId(1 + (index + 2) % 3)) for index in range(6)}


async def test_the_brokers_agree_on_one_controller_and_are_told_the_same(cluster: Cluster) -> None:
    one, two, three = await cluster.start_three()
    assert [service.is_active for service in (one, two, three)] == [True, False, False]
    assert {service.controller_id for service in (one, two, three)} == {1}
    topic = await three.create_topic(NewTopic("a", assignments=EVERYWHERE))
    assert all(broker.topics() == {"a": topic} for broker in cluster.brokers.values()), "it is told when the answer is given"
    assert cluster.brokers[TWO].leads() == [TopicPartition("a", 1), TopicPartition("a", 4)]
    assert len(cluster.brokers[TWO].replicas) == 6


async def test_when_the_controller_dies_another_reads_everything_and_elects_leaders(cluster: Cluster) -> None:
    await cluster.start_three()
    topic = await cluster.services[TWO].create_topic(NewTopic("a", assignments=EVERYWHERE, configs={"retention.ms": "5"}))
    await cluster.kill(ONE)
    await cluster.settled(2, 3)
    assert {service.controller_epoch for service in cluster.services.values()} == {2}
    described = cluster.brokers[TWO].topics()["a"]
    assert described.topic_id == topic.topic_id
    assert [(partition.leader, partition.leader_epoch, 1 in partition.isr) for partition in described.partitions] == [
        (leader, 1, False) for leader in (2, 2, 3, 2, 2, 3)
    ]
    assert all(set(broker.brokers) == {2, 3} for broker in cluster.brokers.values())
    assert cluster.services[THREE].topic_settings("a").retention_ms == 5
    # What no one but the dead one led is as it was, in ZooKeeper too.
    path = "/brokers/topics/a/partitions/0/state"
    assert znodes.decode_partition_state(path, await cluster.data(path), described.partitions[0].replicas) == described.partitions[0]


async def test_the_next_controller_tells_what_topics_set_to_brokers_that_the_former_one_had_not_told(cluster: Cluster) -> None:
    """A broker without a replica said `delete` of a compacted topic from then on, to a schema registry and a mirror too."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments={0: (TWO,)}, configs={"cleanup.policy": "compact"}))
    cluster.services[THREE].forget_topics(["a"])  # as it stands where the request was lost
    await cluster.kill(ONE)
    await cluster.settled(2, 3)
    await until(lambda: cluster.services[THREE].topic_settings("a").cleanup_policy == ("compact",))


async def test_a_broker_that_comes_back_is_told_everything_and_leads_again_when_that_is_asked_for(cluster: Cluster) -> None:
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    former = cluster.services[TWO].registration
    assert former is not None
    await cluster.kill(TWO)
    await cluster.settled(1, 3)
    two = await cluster.start(TWO, previous_broker_epoch=former.broker_epoch)
    await until(lambda: len(cluster.broker.replicas) == len(cluster.broker.metadata) == 6)
    assert cluster.broker.leads() == []
    everything = [TopicPartition("a", index) for index in range(6)]
    for leader_id in (ONE, THREE):
        # Its leaders find that it has caught up.
        leader = cluster.services[leader_id]
        registrations = cluster.brokers[ONE].brokers
        changes = tuple(
            IsrChange(
                key,
                each.state.leader_epoch,
                each.partition_epoch,
                tuple(IsrMember(member, registrations[member].broker_epoch) for member in each.state.replicas),
            )
            for key, each in cluster.brokers[leader_id].replicas.items()
            if each.state.leader == leader_id
        )
        assert leader.registration is not None
        response = await leader.alter_partition(AlterPartitionRequest(leader_id, leader.registration.broker_epoch, changes))
        assert {partition.error for partition in response.partitions.values()} == {0}
    outcomes = await two.elect_leaders(ElectionType.PREFERRED, everything)
    assert [outcomes[partition].error for partition in everything] == [84, 0, 84, 84, 0, 84]
    await cluster.settled(1, 2, 3)
    assert cluster.brokers[TWO].leads() == [TopicPartition("a", 1), TopicPartition("a", 4)]


async def test_a_broker_that_comes_back_hears_all_that_clients_ask_for_before_it_hears_of_its_replicas(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those it may have thousands, and it answers no client before (KafkaController.onBrokerStartup)."""
    await cluster.start_three()
    for name in ("a", "b"):
        await cluster.controller.create_topic(NewTopic(name, 15, 2))
    await cluster.kill(TWO)
    monkeypatch.setattr(request_batch, "AT_ONCE", 10)
    await cluster.start(TWO)
    await until(lambda: bool(cluster.brokers[TWO].all_replicas))
    first = cluster.brokers[TWO].heard.index("leader_and_isr")
    assert cluster.brokers[TWO].heard[:first] == [*["update_metadata"] * 3, "update_metadata, all"], "none has parts of two topics"


async def test_a_broker_that_was_bounced_is_known_by_its_epoch(cluster: Cluster) -> None:
    """Between two looks of the controller its registration ended and began: the same id, another czxid."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    before = cluster.brokers[THREE]
    session = cluster.sessions[THREE]
    cluster.services[THREE].session_lost()
    await asyncio.gather(cluster.zookeeper.expire(session), cluster.start(THREE))
    await until(lambda: len(cluster.broker.replicas) == 6)
    assert cluster.broker is not before
    # It may have lost what it had in its page cache, so it is in no ISR with others.
    await cluster.settled(1, 2)
    assert all(3 not in assignment.state.isr for assignment in cluster.broker.metadata.values())
    registration = cluster.services[THREE].registration
    assert registration is not None
    assert znodes.decode_unclean_start("", await cluster.data("/ottla/unclean_starts/3")) == registration.broker_epoch
    assert cluster.brokers[ONE].brokers[THREE] == registration
    with pytest.raises(StaleBrokerEpoch):
        await cluster.services[ONE].served.call(AllocateProducerIdsRequest(THREE, registration.broker_epoch - 1))


@pytest.mark.parametrize("invalid", [b'{"version":1,"config":{"log.retention.ms":"soon"}}', b"{"])
async def test_what_is_invalid_among_settings_does_not_keep_a_broker_that_runs_out_of_its_cluster(cluster: Cluster, invalid: bytes) -> None:
    """While it runs it is ignored. With it there, brokers that lost their sessions all tried in vain, and led nothing."""
    one = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/config/brokers/<default>", invalid)
    await one.create_topic(NewTopic("a"))
    await cluster.zookeeper.expire(cluster.sessions[ONE])
    one.session_lost()
    cluster.sessions[ONE] = await cluster.zookeeper.session()
    await one.rejoin(cluster.sessions[ONE])
    assert one.is_active
    await one.create_topic(NewTopic("b"))
    await one.close()
    with pytest.raises((ConfigurationError, MalformedZnode)):
        await cluster.start()


async def test_a_controller_that_lost_its_session_decides_nothing_more_and_rejoins_as_a_broker(cluster: Cluster) -> None:
    one, _, _ = await cluster.start_three()
    await one.create_topic(NewTopic("a", assignments=EVERYWHERE))
    former = one.registration
    assert former is not None
    deciding = asyncio.ensure_future(one.served.create_topic(NewTopic("b")))
    one.session_lost()
    assert (one.is_active, one.controller_id, cluster.brokers[ONE].controllers[-1]) == (False, NO_LEADER, NO_LEADER)
    with pytest.raises(NotController):
        await deciding
    told = sum(broker.requests for broker in cluster.brokers.values())
    await cluster.zookeeper.expire(cluster.sessions[ONE])
    await until(lambda: cluster.services[TWO].is_active or cluster.services[THREE].is_active)
    assert told <= sum(broker.requests for broker in cluster.brokers.values())
    cluster.sessions[ONE] = await cluster.zookeeper.session()
    registration = await one.rejoin(cluster.sessions[ONE])
    assert registration.previous_broker_epoch == former.broker_epoch < registration.broker_epoch
    assert one.controller_id == cluster.controller.controller_id != 1
    # The process lived on, so what it has not lost in the meantime is in sync.
    await until(lambda: set(cluster.brokers[ONE].brokers) == {1, 2, 3})
    assert (await one.create_topic(NewTopic("b", 1, 1))).name == "b"
    assert await cluster.data("/controller_epoch") == b"2"
    with pytest.raises(NotController):
        await one.served.delete_topic("b")


async def test_a_controller_whose_znode_is_removed_by_hand_makes_way(cluster: Cluster) -> None:
    """Operators force an election so."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    tool = await cluster.zookeeper.session()
    await tool.delete("/controller")
    await until(lambda: all(service.controller_epoch == 2 and service.controller_id != NO_LEADER for service in cluster.services.values()))
    await cluster.controller.create_partitions("a", 7)
    await cluster.settled(1, 2, 3)


async def test_a_controller_that_a_broker_knows_a_later_one_than_looks_again(cluster: Cluster) -> None:
    one, two, _ = await cluster.start_three()
    broker = cluster.brokers[TWO]
    refused: list[str] = []

    async def refuses(request: object) -> None:
        refused.append("once")
        del broker.update_metadata
        raise StaleControllerEpoch("a later one has begun")

    broker.update_metadata = refuses  # type: ignore[method-assign]
    await two.create_topic(NewTopic("a", assignments=EVERYWHERE))
    await until(lambda: one.is_active)
    await cluster.settled(1, 2, 3)
    assert (refused, one.controller_epoch) == (["once"], 1)


async def unheard_by_three(cluster: Cluster, clock: LoopClock, asked: Awaitable[object], *topics: str) -> None:
    """Brokers 1 and 2 have heard of what is asked for, and know these topics, and 10 s are over before broker 3 has."""
    asking = asyncio.ensure_future(asked)
    await until(lambda: all(list(cluster.brokers[broker_id].topics()) == list(topics) for broker_id in (ONE, TWO)))
    clock.put_forward(seconds=10)
    await asking


async def test_what_a_broker_could_not_hear_it_is_told_later_and_nobody_waits_for_it(cluster: Cluster) -> None:
    one, _, _ = await cluster.start_three()
    deaf = cluster.brokers[THREE]
    deaf.is_deaf = True
    clock = LoopClock()
    await unheard_by_three(cluster, clock, one.create_topic(NewTopic("a", assignments=EVERYWHERE), timeout_seconds=10), "a")
    await unheard_by_three(cluster, clock, one.create_topic(NewTopic("b", assignments=EVERYWHERE), timeout_seconds=10), "a", "b")
    await unheard_by_three(cluster, clock, one.delete_topic("b", timeout_seconds=10), "a")
    assert deaf.replicas == {}
    deaf.is_deaf = False
    await cluster.settled(1, 2, 3)
    await until(lambda: sorted(key for key, _ in deaf.stopped) == [TopicPartition("b", index) for index in range(6)])
    assert {replica.topic for replica in deaf.replicas} == {"a"}
    await until(lambda: all(list(broker.topics()) == ["a"] for broker in cluster.brokers.values()))


async def test_a_deletion_waits_for_a_broker_that_is_away_also_over_a_change_of_controllers(cluster: Cluster) -> None:
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    await cluster.kill(THREE)
    await until(lambda: set(cluster.brokers[ONE].brokers) == {1, 2})
    await cluster.controller.delete_topic("a")
    assert cluster.brokers[TWO].replicas == cluster.brokers[TWO].metadata == {}
    await cluster.kill(ONE)
    await until(lambda: cluster.services[TWO].is_active)
    assert await cluster.paths("/admin/delete_topics") == ["/admin/delete_topics/a"]
    await cluster.start(THREE)
    await until(lambda: len(cluster.broker.stopped) == 6 and all(deleted for _, deleted in cluster.broker.stopped))
    assert await cluster.paths("/admin/delete_topics") == ["/admin/delete_topics/a"]
    await cluster.start(ONE)
    await cluster.gone("/admin/delete_topics/a")
    assert await cluster.paths("/brokers/topics") == []
    assert (await cluster.services[THREE].create_topic(NewTopic("a", 1, 2))).name == "a"


async def test_a_deletion_that_an_older_controller_could_not_name_is_performed_by_the_next_controller(cluster: Cluster) -> None:
    """During a rolling upgrade the former release is the controller last, and brokers of this one refuse a delete without a topic id."""
    await cluster.start_three()
    topic = await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    refused: dict[BrokerId, int] = {TWO: 0, THREE: 0}
    named: set[UUID | None] = set()

    def of_this_release(broker_id: BrokerId) -> Callable[[StopReplicaRequest], Awaitable[StopReplicaResponse]]:
        stop_replica = cluster.brokers[broker_id].stop_replica

        async def answer(request: StopReplicaRequest) -> StopReplicaResponse:
            if request.controller_id != ONE:
                named.update(partition.topic_id for partition in request.partitions)
                return await stop_replica(request)
            refused[broker_id] += len(request.partitions)  # as if it had named no topic
            return StopReplicaResponse({partition.topic_partition: InconsistentTopicId.code for partition in request.partitions})

        return answer

    for broker_id in refused:
        cluster.brokers[broker_id].stop_replica = of_this_release(broker_id)  # type: ignore[method-assign, assignment]
    await cluster.controller.delete_topic("a", timeout_seconds=5)
    assert refused == {TWO: 6, THREE: 6}
    assert len(cluster.brokers[ONE].stopped) == 6
    with pytest.raises(TopicAlreadyExists):
        await cluster.services[TWO].create_topic(NewTopic("a"))
    await cluster.kill(ONE)
    await until(lambda: all(len(cluster.brokers[broker_id].stopped) == 6 for broker_id in (TWO, THREE)))
    assert named == {topic.topic_id}
    assert await cluster.paths("/admin/delete_topics") == ["/admin/delete_topics/a"]
    await cluster.start(ONE)
    await cluster.gone("/admin/delete_topics/a")
    assert (await cluster.services[THREE].create_topic(NewTopic("a"))).name == "a"


async def test_a_broker_that_stops_hands_over_first_and_then_leaves_at_once(cluster: Cluster) -> None:
    one, two, _ = await cluster.start_three()
    await one.create_topic(NewTopic("a", assignments=EVERYWHERE))
    await two.controlled_shutdown()
    await cluster.settled(1, 3)
    assert [partition.leader_epoch for partition in cluster.brokers[ONE].topics()["a"].partitions] == [1] * 6
    await one.controlled_shutdown()  # the controller itself
    await cluster.settled(3)
    await one.close()
    del cluster.services[ONE], cluster.brokers[ONE]
    await until(lambda: any(service.is_active for service in cluster.services.values()))
    await until(lambda: all(set(broker.brokers) == {2, 3} for broker in cluster.brokers.values()))
    await two.close()
    del cluster.services[TWO], cluster.brokers[TWO]
    await until(lambda: cluster.services[THREE].is_active and set(cluster.brokers[THREE].brokers) == {3})
    await cluster.settled(3)


async def test_a_broker_that_is_drained_stays_so_under_the_next_controller_until_it_takes_part_again(cluster: Cluster) -> None:
    """Kafka forgets with the controller who was shutting down; there such a broker is about to be gone."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    await cluster.brokers[TWO].drain()
    await cluster.settled(1, 3)
    keys = set(cluster.brokers[TWO].metadata)
    await cluster.kill(ONE)
    await until(lambda: any(service.is_active for service in cluster.services.values()))
    await until(lambda: TWO in cluster.controller.active._state.shutting_down)  # type: ignore[union-attr]
    await cluster.settled(3)
    cluster.brokers[TWO].replicas.clear()
    await cluster.brokers[TWO].undrain()
    await until(lambda: set(cluster.brokers[TWO].replicas) == keys)
    assert TWO in cluster.controller.active._state.living()  # type: ignore[union-attr]
    known = cluster.brokers[THREE].brokers
    for key, each in cluster.brokers[THREE].replicas.items():
        members = tuple(IsrMember(broker_id, known[broker_id].broker_epoch) for broker_id in (THREE, TWO))
        change = IsrChange(key, each.state.leader_epoch, each.partition_epoch, members)
        response = await cluster.controller.alter_partition(AlterPartitionRequest(THREE, known[THREE].broker_epoch, (change,)))
        assert response.partitions[key].error == 0, "it may be in sync again"
    await cluster.brokers[TWO].undrain()  # again it does no harm


async def test_a_broker_that_takes_part_again_is_not_drained_by_a_later_attempt_of_before() -> None:
    """What it leads alone cannot be handed over, so it is tried again. It would neither lead nor be in sync until it starts again."""
    async with clustered(controlled_shutdown_retry_backoff_ms="1") as cluster:
        await cluster.start_three()
        one, two = cluster.services[ONE], cluster.services[TWO]
        await one.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}))
        key, state = TopicPartition("a", 0), one._locator.active.state  # type: ignore[union-attr]
        led, epoch = cluster.brokers[TWO].replicas[key], state.brokers[TWO].broker_epoch
        alone = IsrChange(key, led.state.leader_epoch, led.partition_epoch, (IsrMember(TWO, epoch),))
        await two.alter_partition(AlterPartitionRequest(TWO, epoch, (alone,)))
        draining = asyncio.ensure_future(two.drain())
        await until(lambda: TWO in state.shutting_down)
        await two.undrain()
        await draining
        assert TWO in state.living()


async def test_the_last_broker_of_a_topic_stops_though_nobody_can_take_over() -> None:
    async with clustered(controlled_shutdown_retry_backoff_ms="1") as cluster:
        one, two, _ = await cluster.start_three()
        await one.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}))
        await cluster.kill(THREE)
        await cluster.settled(2)
        await two.controlled_shutdown()
        assert cluster.brokers[TWO].leads() == [TopicPartition("a", 0)]


async def test_replicas_of_a_failed_log_directory_lead_no_more(cluster: Cluster) -> None:
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    broker, key = cluster.brokers[TWO], TopicPartition("a", 1)
    broker.errors[key] = KafkaStorageError.code
    await cluster.services[TWO].log_directory_failed()
    await until(lambda: all(broker.metadata[key].state.leader == 3 for broker in cluster.brokers.values()))
    assert [assignment.state.leader for assignment in cluster.brokers[ONE].metadata.values()] == [1, 3, 3, 1, 2, 3]
    await until(lambda: 2 not in cluster.brokers[ONE].metadata[key].state.isr)
    assert await cluster.paths("/log_dir_event_notification") == []


async def test_a_log_directory_that_fails_while_zookeeper_is_away_is_told_when_it_is_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session lasts, for no ZooKeeper was there to end it, so nothing else would have others lead what was on that disk."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    broker, key, session, refused = cluster.brokers[TWO], TopicPartition("a", 1), cluster.sessions[TWO], 0
    create = session.create

    async def away(path: str, data: bytes = b"", **how: bool) -> str:
        nonlocal refused
        if refused < 15:
            refused += 1
            raise ConnectionLoss(f"{path}: no answer within 10 s")
        return await create(path, data, **how)

    await cluster.settled(1, 2, 3)
    monkeypatch.setattr(session, "create", away)
    broker.errors[key] = KafkaStorageError.code
    await cluster.services[TWO].log_directory_failed()
    await until(lambda: all(broker.metadata[key].state.leader == 3 for broker in cluster.brokers.values()))


async def test_a_failed_log_directory_is_not_told_in_a_session_that_is_over(cluster: Cluster) -> None:
    """The next registration tells it."""
    await cluster.start_three()
    await cluster.zookeeper.expire(cluster.sessions[TWO])
    await asyncio.wait_for(cluster.services[TWO].log_directory_failed(), 5)


async def test_a_replica_that_a_full_disk_refused_follows_again_when_there_is_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers with the same error as for a failed disk, and never registers again."""
    quick_questions(monkeypatch)
    await cluster.start_three()
    key, broker = TopicPartition("a", 0), cluster.brokers[TWO]
    broker.errors[key] = KafkaStorageError.code
    await cluster.controller.create_topic(NewTopic("a", assignments={0: (TWO, ONE, THREE)}))
    await until(lambda: cluster.brokers[ONE].leads() == [key])
    await until(lambda: 2 not in cluster.brokers[THREE].metadata[key].state.isr)
    assert key not in broker.replicas
    del broker.errors[key]
    await until(lambda: key in broker.replicas and broker.replicas[key].state.leader == 1)
    await until(lambda: not cluster.controller.active.state.offline_replicas)  # type: ignore[union-attr]  # it has the broker's answer
    leader = cluster.brokers[ONE].replicas[key]
    registrations = cluster.brokers[ONE].brokers
    members = tuple(IsrMember(broker_id, registrations[broker_id].broker_epoch) for broker_id in (TWO, ONE, THREE))
    change = IsrChange(key, leader.state.leader_epoch, leader.partition_epoch, members)
    one = cluster.services[ONE]
    response = await one.alter_partition(AlterPartitionRequest(ONE, registrations[ONE].broker_epoch, (change,)))
    assert response.partitions[key].error == 0, "it may be in sync again"


async def test_the_only_replica_that_a_full_disk_refused_leads_when_there_is_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_questions(monkeypatch)
    await cluster.start_three()
    key, broker = TopicPartition("a", 0), cluster.brokers[THREE]
    broker.errors[key] = KafkaStorageError.code
    await cluster.controller.create_topic(NewTopic("a", assignments={0: (THREE,)}))
    await until(lambda: cluster.brokers[ONE].metadata[key].state.leader == NO_LEADER)
    del broker.errors[key]
    await cluster.settled(3)


async def test_a_log_directory_that_has_failed_stays_offline_however_often_its_broker_is_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_questions(monkeypatch)
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    broker, key = cluster.brokers[TWO], TopicPartition("a", 1)
    broker.errors[key] = KafkaStorageError.code
    await cluster.services[TWO].log_directory_failed()
    await until(lambda: all(2 not in other.metadata[key].state.isr for other in cluster.brokers.values()))
    asked, elsewhere = broker.requests, cluster.brokers[THREE].requests
    await until(lambda: broker.requests >= asked + 3)
    described = cluster.brokers[ONE].metadata[key].state
    assert (described.leader, described.leader_epoch, 2 in described.isr) == (3, 1, False)
    assert cluster.brokers[THREE].requests == elsewhere, "only those who have such a replica are asked"


async def test_a_topic_is_deleted_where_a_full_disk_refused_its_replica(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are deleted to make room."""
    quick_questions(monkeypatch)
    await cluster.start_three()
    key, broker = TopicPartition("a", 0), cluster.brokers[TWO]
    broker.errors[key] = KafkaStorageError.code
    await cluster.controller.create_topic(NewTopic("a", assignments={0: (ONE, TWO)}))
    await until(lambda: 2 not in cluster.brokers[THREE].metadata[key].state.isr)
    await cluster.controller.delete_topic("a")
    del broker.errors[key]
    await cluster.gone("/brokers/topics/a")
    assert broker.stopped == [(key, True)]
    assert key not in broker.replicas


async def test_a_replica_that_is_there_again_learns_what_has_changed_meanwhile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader changes while the broker does what it is asked again."""
    quick_questions(monkeypatch)
    await cluster.start_three()
    key, broker = TopicPartition("a", 0), cluster.brokers[THREE]
    broker.errors[key] = KafkaStorageError.code
    await cluster.controller.create_topic(NewTopic("a", assignments={0: (TWO, ONE, THREE)}))
    await until(lambda: 3 not in cluster.brokers[ONE].metadata[key].state.isr)
    answer, may_answer, is_asked = broker.leader_and_isr, asyncio.Event(), asyncio.Event()

    async def slow(request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        broker.errors.pop(key, None)
        answered = await answer(request)
        is_asked.set()
        await may_answer.wait()
        return answered

    monkeypatch.setattr(broker, "leader_and_isr", slow)
    await is_asked.wait()
    await cluster.kill(TWO)
    await until(lambda: cluster.brokers[ONE].leads() == [key])
    may_answer.set()
    await until(lambda: broker.replicas[key].state.leader == 1)


def quick_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "_OFFLINE_REPLICAS_BACKOFF", Backoff(first_seconds=0.02, longest_seconds=0.05))


async def test_replicas_move_to_other_brokers_and_are_given_up_where_they_were(cluster: Cluster) -> None:
    one, two, _ = await cluster.start_three()
    key = TopicPartition("a", 0)
    await one.create_topic(NewTopic("a", assignments={0: (ONE, TWO)}))
    outcomes = await two.alter_partition_reassignments({key: (TWO, THREE), TopicPartition("b", 0): (ONE,)})
    assert (outcomes[key], outcomes[TopicPartition("b", 0)].error) == (PartitionOutcome(0), 3)
    ongoing = (await two.list_partition_reassignments())[key]
    assert (set(ongoing.replicas), ongoing.adding_replicas, ongoing.removing_replicas) == ({1, 2, 3}, (3,), (1,))
    await until(lambda: key in cluster.brokers[THREE].replicas)
    leader = cluster.brokers[ONE].replicas[key]
    known = cluster.brokers[ONE].brokers
    members = tuple(IsrMember(broker_id, known[broker_id].broker_epoch) for broker_id in (ONE, TWO, THREE))
    change = IsrChange(key, leader.state.leader_epoch, leader.partition_epoch, members)
    response = await one.alter_partition(AlterPartitionRequest(ONE, known[ONE].broker_epoch, (change,)))
    assert response.partitions[key].error == 0
    await cluster.settled(2)
    assert cluster.brokers[TWO].metadata[key].state.replicas == (2, 3)
    await until(lambda: cluster.brokers[ONE].stopped == [(key, True)])
    assert await one.list_partition_reassignments() == {}
    assert znodes.decode_topic("", await cluster.data("/brokers/topics/a")).replicas == ((2, 3),)


class SlowToReadTopics:
    """A session in which the names of topics are not read before they may be."""

    def __init__(self, session: EmbeddedSession) -> None:
        self._session = session
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if path == znodes.TOPICS.path() and watch is not None:
            self.is_asked.set()
            await self.may_answer.wait()
        return await self._session.children(path, watch)


async def test_a_new_controller_says_which_reassignments_there_are_once_it_has_read_them(cluster: Cluster) -> None:
    """As KafkaController, where it is an event behind the failover: a tool takes a partition that is not named for one that has moved."""
    await cluster.start(ONE)
    slow: list[SlowToReadTopics] = []

    def wrapped(session: EmbeddedSession) -> Coordination:
        slow.append(SlowToReadTopics(session))
        return cast("Coordination", slow[-1])

    two = await cluster.start(TWO, wrapped)
    three = await cluster.start(THREE)
    key = TopicPartition("a", 0)
    await three.create_topic(NewTopic("a", assignments={0: (TWO,)}))
    await three.alter_partition_reassignments({key: (THREE,)})
    await cluster.kill(ONE)
    await slow[0].is_asked.wait()
    assert two.is_active
    listed = asyncio.ensure_future(two.list_partition_reassignments())
    await asyncio.wait([listed], timeout=0.05)
    slow[0].may_answer.set()
    assert (await listed).keys() == {key}


@pytest.mark.parametrize("request_arrives", [True, False])
@pytest.mark.parametrize("step", range(1, 14))
async def test_an_answer_of_zookeeper_that_is_lost_at_a_failure_costs_no_leader(cluster: Cluster, step: int, request_arrives: bool) -> None:
    """We lose each answer in turn while the controller deals with a death. What is doubtful is read again, by a term begun again."""
    await cluster.start_three()
    await cluster.controller.create_topic(NewTopic("a", assignments=EVERYWHERE))
    session, calls = cluster.sessions[ONE], 0

    def losing(name: str) -> None:
        action = getattr(session, name)

        async def lose(*arguments: object, **keywords: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                cluster.zookeeper.break_connection(session, request_arrives=request_arrives)
            return await action(*arguments, **keywords)

        setattr(session, name, lose)

    for name in ("get", "get_many", "exists", "children", "transaction"):
        losing(name)
    await cluster.kill(TWO)
    await cluster.settled(1, 3)
    assert all(2 not in assignment.state.isr for assignment in cluster.brokers[THREE].metadata.values())


async def test_a_controller_that_is_cut_off_from_a_broker_goes_on_with_the_others(cluster: Cluster) -> None:
    one, two, _ = await cluster.start_three()
    cluster.hub.partition(ONE, THREE)
    creation = one.create_topic(NewTopic("a", assignments=EVERYWHERE), timeout_seconds=10)
    await unheard_by_three(cluster, LoopClock(), creation, "a")
    assert cluster.brokers[TWO].leads() == [TopicPartition("a", 1), TopicPartition("a", 4)]
    with pytest.raises(BrokerNotAvailable):
        await cluster.services[THREE].create_topic(NewTopic("b"), timeout_seconds=0.1)
    cluster.hub.heal()
    await cluster.settled(1, 2, 3)
    assert await two.allocate_producer_ids() == range(FIRST_ID, FIRST_ID + 1_000)


async def test_a_call_that_is_repeated_by_the_network_does_no_harm(cluster: Cluster) -> None:
    one, _, _ = await cluster.start_three()

    async def twice(_: Call, perform: Perform) -> object:
        await perform()
        return await perform()

    cluster.hub.carry = twice
    await one.create_topic(NewTopic("a", assignments=EVERYWHERE))
    await one.delete_topic("a")
    assert await cluster.paths("/brokers/topics") == []
    assert all(broker.replicas == broker.metadata == {} for broker in cluster.brokers.values())
