"""Topics that the controller did not write just now: a crash cut their creation short, or another tool wrote them (C2)."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.loops import until

from ottla.coordination import znodes
from ottla.errors import InvalidPartitions, TopicAlreadyExists
from ottla.interbroker.calls import AllReplicas, ElectionType, NewTopic
from ottla.model import NO_LEADER, BrokerId, TopicPartition

from .clusters import ONE, Cluster, Dies, MortalSession, clustered, looked_again


@pytest.mark.long
async def test_a_creation_cut_between_two_requests_is_completed_by_the_next_start(cluster: Cluster) -> None:
    controller = await cluster.start(
        wrapped=lambda session: MortalSession(session, "/brokers/topics/a/partitions/6000/state", False)  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(Dies):
        await controller.create_topic(NewTopic("a", 7_000))
    left = len(await cluster.session.children("/brokers/topics/a/partitions"))
    assert 1 < left < 7_000
    await cluster.kill(ONE)
    await cluster.start()
    await until(lambda: len(cluster.broker.replicas) == len(cluster.broker.metadata) == 7_000)
    assert len(await cluster.session.children("/brokers/topics/a/partitions")) == 7_000


async def test_a_topic_that_another_tool_writes_takes_effect_at_once(cluster: Cluster) -> None:
    """C2. The tool writes what `kafka-topics --zookeeper` did: no partition has a state yet, and before 2.8 no id."""
    controller = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/config/topics/theirs", b'{"version":1,"config":{"retention.ms":"9","no.such":"1"}}')
    await tool.create("/brokers/topics/theirs", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    await looked_again(controller)
    await until(lambda: "theirs" in cluster.broker.topics())
    topic = cluster.broker.topics()["theirs"]
    assert [partition.leader for partition in topic.partitions] == [1, 1]
    assert len(cluster.broker.leads()) == 2
    assert controller.topic_overrides("theirs") == {"retention.ms": "9"}
    written = znodes.decode_topic("", await cluster.data("/brokers/topics/theirs"))
    assert written.topic_id == topic.topic_id != UUID(int=0)
    assert znodes.decode_partition_state("", await cluster.data("/brokers/topics/theirs/partitions/1/state"), (ONE,)).leader == 1
    with pytest.raises(TopicAlreadyExists):
        await controller.create_topic(NewTopic("theirs"))


async def test_a_topic_that_another_tool_marks_is_deleted_at_once(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    tool = await cluster.zookeeper.session()
    await tool.create("/admin/delete_topics/a")
    await tool.create("/admin/delete_topics/never-there")
    await looked_again(controller)
    await looked_again(controller)
    await until(lambda: cluster.broker.topics() == {})
    assert cluster.broker.stopped == [(TopicPartition("a", 0), True)]
    assert await cluster.paths("/admin/delete_topics") == await cluster.paths("/brokers/topics") == []


async def test_a_topic_of_which_no_replica_has_lived_yet_gets_more_partitions(cluster: Cluster) -> None:
    """No partition has a state, so their parent is not there. Each attempt ended the controller's term."""
    controller = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/brokers/topics/a", znodes.encode_topic(znodes.TopicAssignment(UUID(int=7), ((BrokerId(9),),))))
    await looked_again(controller)
    await controller.create_partitions("a", 2)
    await until(lambda: cluster.broker.leads() == [TopicPartition("a", 1)])
    assert await cluster.paths("/brokers/topics/a/partitions") == [f"/brokers/topics/a/partitions/1{state}" for state in ("", "/state")]


async def test_a_topic_that_a_tool_has_left_with_znodes_of_more_partitions_gets_none_of_these(cluster: Cluster) -> None:
    """Each attempt ended the controller's term."""
    controller = await cluster.start()
    tool = await cluster.zookeeper.session()
    await controller.create_topic(NewTopic("a"))
    await tool.create("/brokers/topics/a/partitions/2")
    active = controller.active
    with pytest.raises(InvalidPartitions, match="/brokers/topics/a/partitions/2 and 0 others are to be deleted first"):
        await controller.create_partitions("a", 3)
    assert active is not None and controller.active is active
    await tool.delete("/brokers/topics/a/partitions/2")
    assert len((await controller.create_partitions("a", 3)).partitions) == 3


async def test_a_deleted_topic_goes_with_what_another_tool_has_left_below_its_znodes(cluster: Cluster) -> None:
    """As Kafka's deleteRecursive. Each term ended as the znodes were not empty, the next one continued the deletion, and so on for ever."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a", 2, 1))
    tool = await cluster.zookeeper.session()
    for path in ("partitions/1/note", "partitions/1/note/of", "partitions/0/state/note", "other", "other/note"):
        await tool.create(f"/brokers/topics/a/{path}")
    await tool.create("/config/topics/a/note")
    await controller.delete_topic("a")
    await cluster.gone("/brokers/topics/a")
    await cluster.gone("/admin/delete_topics/a")
    assert await cluster.paths("/config/topics") == []
    assert controller.controller_epoch == 1


async def test_a_topic_whose_znode_another_tool_removes_is_forgotten_and_its_logs_are_kept_as_strays(cluster: Cluster) -> None:
    """No one has asked for the deletion of its records. Kafka keeps the logs, too."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a", 2))
    await controller.create_topic(NewTopic("b"))
    tool = await cluster.zookeeper.session()
    for path in reversed(await cluster.paths("/brokers/topics/a")):
        await tool.delete(path)
    await tool.delete("/brokers/topics/a")
    await until(lambda: list(cluster.broker.topics()) == ["b"])
    await until(lambda: cluster.broker.all_replicas[-1].partitions == {"b": frozenset({0})})
    assert list(cluster.broker.replicas) == [TopicPartition("b", 0)]
    assert cluster.broker.stopped == [], "a stop would have deleted them"


async def test_a_cluster_lives_on_when_somebody_removes_all_topics_with_their_parent(cluster: Cluster) -> None:
    """`deleteall /brokers/topics` in ZooKeeper's shell: the logs are strays, and topics can be made again."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    tool = await cluster.zookeeper.session()
    for path in reversed(await cluster.paths("/brokers/topics")):
        await tool.delete(path)
    await tool.delete("/brokers/topics")
    await until(lambda: cluster.broker.topics() == {} and cluster.broker.all_replicas[-1] == AllReplicas({}))
    assert cluster.broker.stopped == []
    await until(lambda: controller.is_active)
    await controller.create_topic(NewTopic("b"))
    assert list(cluster.broker.topics()) == ["b"]


DAMAGED = ("/brokers/topics/bad", "/brokers/topics/bad/partitions/0/state", "/config/topics/bad")


@pytest.mark.parametrize(
    ("path", "data"),
    [
        *((path, b"{not json") for path in DAMAGED),
        ("/brokers/topics/bad", b'{"version":2,"partitions":{"0":[1,%d]},"adding_replicas":{},"removing_replicas":{}}'),
        ("/brokers/topics/bad", b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"0":[%d]},"removing_replicas":{}}'),
        ("/brokers/topics/bad/partitions/0/state", b'{"version":1,"controller_epoch":1,"leader":1,"leader_epoch":%d,"isr":[1]}'),
        ("/brokers/topics/bad/partitions/0/state", b'{"version":1,"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[1,%d]}'),
    ],
)
async def test_a_topic_that_can_not_be_read_is_left_out_and_the_others_are_served(cluster: Cluster, path: str, data: bytes) -> None:
    """Also for a number that no message can have: with it nothing that is sent to brokers could be packed."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("bad"))
    await controller.create_topic(NewTopic("good"))
    await cluster.session.set(path, data.replace(b"%d", b"%d" % 2**31))
    await controller.close()
    await cluster.start()
    await until(lambda: list(cluster.broker.topics()) == ["good"] and len(cluster.broker.leads()) == 1)


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_topic_that_can_be_read_again_is_not_new_to_those_who_have_it(cluster: Cluster, damage: str) -> None:
    """A broker of which a log directory has failed makes an empty log for a new partition, and would lead with that."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("bad"))
    good = await cluster.data(damage)
    await cluster.session.set(damage, b"{not json")
    await cluster.kill(ONE)
    controller = await cluster.start()
    await until(lambda: bool(cluster.broker.all_replicas))
    tool = await cluster.zookeeper.session()
    await tool.set(damage, good)
    await tool.set("/brokers/topics/bad", await cluster.data("/brokers/topics/bad"))  # each is looked at by its own watch
    await until(lambda: TopicPartition("bad", 0) in cluster.broker.replicas)
    assert not cluster.broker.replicas[TopicPartition("bad", 0)].is_new


async def test_a_topic_that_can_not_be_read_is_not_removed_where_topics_are_not_deleted() -> None:
    """Its mark was taken for one of a topic that is not there, and all that is left of that goes."""
    async with clustered(delete_topic_enable="false") as cluster:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("bad"))
        await cluster.session.set("/config/topics/bad", b"{not json")
        await cluster.kill(ONE)
        await cluster.start()
        before = await cluster.paths("/brokers/topics")
        tool = await cluster.zookeeper.session()
        await tool.create("/admin/delete_topics/bad")
        await cluster.gone("/admin/delete_topics/bad")
        assert await cluster.paths("/brokers/topics") == before


async def test_a_partition_that_names_a_leader_and_no_one_in_sync_costs_no_other_its_controller(cluster: Cluster) -> None:
    """Each term ended with it, so that there was no controller at all. An administrator may have it led by what there is."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    await cluster.session.set(
        "/brokers/topics/a/partitions/0/state", b'{"version":1,"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[]}'
    )
    await cluster.kill(ONE)
    controller = await cluster.start()
    await controller.create_topic(NewTopic("b"))
    key = TopicPartition("a", 0)
    assert (cluster.broker.metadata[key].state.leader, cluster.broker.metadata[key].state.isr) == (NO_LEADER, ())
    await controller.elect_leaders(ElectionType.UNCLEAN, [key])
    assert (cluster.broker.metadata[key].state.leader, cluster.broker.metadata[key].state.isr) == (ONE, (ONE,))


async def test_a_topic_whose_name_no_directory_can_have_is_left_out(cluster: Cluster) -> None:
    """Each broker would take the log directory in which it cannot make the log for one that has failed, one after the other."""
    controller = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create(f"/brokers/topics/{'x' * 250}", b'{"version":1,"partitions":{"0":[1]}}')
    await tool.create("/brokers/topics/good", b'{"version":1,"partitions":{"0":[1]}}')
    await looked_again(controller)
    await until(lambda: "good" in cluster.broker.topics())
    assert list(cluster.broker.topics()) == ["good"]
