"""What other tools write into ZooKeeper while a controller is at work takes effect as with Kafka's: over the twin and a real one.

Sources: `KafkaController.processPartitionModifications`, `processZkPartitionReassignment`, `processReplicaLeaderElection`.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import cast
from uuid import UUID, uuid4

import pytest
from tests.loops import until

from ottla.config.connect_string import ConnectString
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.interface import Coordination
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.interbroker.calls import AlterPartitionRequest, IsrChange, IsrMember, NewTopic
from ottla.model import BrokerId, TopicPartition

from .clusters import ONE, THREE, TWO, Cluster, clustered

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
REASSIGNMENT, ELECTION = znodes.REASSIGNMENT.path(), znodes.PREFERRED_ELECTION.path()


class RealZooKeeper:
    """Sessions with a server, in a chroot of their own; one that is closed ends at once, as an expired one has."""

    def __init__(self, address: str) -> None:
        self._options = ZooKeeperOptions(ConnectString.parse(f"{address}/{uuid4().hex}"), 60.0, 60.0)
        self._sessions: list[Coordination] = []

    async def session(self) -> Coordination:
        self._sessions.append(await open_session(self._options))
        return self._sessions[-1]

    async def expire(self, session: Coordination) -> None:
        await session.close()

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


@pytest.fixture(params=["embedded", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Cluster]:
    if request.param == "embedded":
        return clustered()
    return clustered(cast("EmbeddedZooKeeper", RealZooKeeper(request.getfixturevalue("zookeeper_server").address)))


async def three_with_a_topic(cluster: Cluster) -> Coordination:
    """Brokers 1 to 3, of which 1 is the controller; topic a with two partitions at 1 and 2. Gives another tool's session."""
    controller, *_ = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [ONE, TWO], 1: [TWO, ONE]}))
    await cluster.settled(1, 2)
    return await cluster.zookeeper.session()


async def all_join(cluster: Cluster, key: TopicPartition, *isr: BrokerId) -> None:
    """The leader of a partition says that these are in sync."""
    await until(lambda: all(key in cluster.brokers[replica].replicas for replica in isr))
    known = cluster.brokers[ONE].brokers
    leader = cluster.brokers[ONE].metadata[key].state.leader
    assigned = cluster.brokers[leader].replicas[key]
    members = tuple(IsrMember(replica, known[replica].broker_epoch) for replica in isr)
    change = IsrChange(key, assigned.state.leader_epoch, assigned.partition_epoch, members)
    response = await cluster.controller.alter_partition(AlterPartitionRequest(leader, known[leader].broker_epoch, (change,)))
    assert response.partitions[key].error == 0


async def test_partitions_that_are_added_to_a_topics_znode_are_led(cluster: Cluster) -> None:
    """As `kafka-topics --zookeeper --alter --partitions` wrote them: version 1, without the topic's id, which stays what it was."""
    tool = await three_with_a_topic(cluster)
    topic_id = cluster.brokers[ONE].topics()["a"].topic_id
    await tool.set("/brokers/topics/a", b'{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[3],"3":[3,1]}}')
    await until(lambda: len(cluster.brokers[TWO].topics()["a"].partitions) == 4)
    await cluster.settled(1, 2, 3)
    assert cluster.brokers[THREE].leads() == [TopicPartition("a", 2), TopicPartition("a", 3)]
    written = znodes.decode_topic("", await cluster.data("/brokers/topics/a"))
    assert written.topic_id == topic_id != UUID(int=0)
    assert znodes.decode_partition_state("", await cluster.data("/brokers/topics/a/partitions/3/state"), (THREE, ONE)).isr == (3, 1)
    # The controller continues with the topic as it is now.
    assert len((await cluster.controller.create_partitions("a", 5)).partitions) == 5
    await tool.set("/brokers/topics/a", (await cluster.data("/brokers/topics/a")).replace(b'"4":', b'"5":[2],"4":'))
    await until(lambda: len(cluster.brokers[TWO].topics()["a"].partitions) == 6)


async def test_what_a_topics_znode_says_of_partitions_that_are_there_is_passed_over(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    tool = await three_with_a_topic(cluster)
    data = await cluster.data("/brokers/topics/a")
    await tool.set("/brokers/topics/a", data.replace(b'"0":[1,2]', b'"0":[3]').replace(b'"1":[2,1]', b'"1":[2,1],"2":[3]'))
    await until(lambda: len(cluster.brokers[TWO].topics()["a"].partitions) == 3)
    assert "topic a: another tool has changed the replicas" in caplog.text
    assert cluster.brokers[TWO].metadata[A0].state.replicas == (1, 2)
    await tool.set("/brokers/topics/a", b"{")
    await until(lambda: "/brokers/topics/a: " in caplog.text)
    assert len((await cluster.controller.create_partitions("a", 4)).partitions) == 4
    assert len(znodes.decode_topic("", await cluster.data("/brokers/topics/a")).replicas) == 4


async def test_a_topic_that_could_not_be_read_is_there_once_it_is_mended(cluster: Cluster) -> None:
    tool = await three_with_a_topic(cluster)
    await tool.create("/brokers/topics/b", b"{")
    await until(lambda: "b" in cluster.controller.active._state.unread_topics)  # type: ignore[union-attr]
    await tool.set("/brokers/topics/b", b'{"version":1,"partitions":{"0":[3]}}')
    await until(lambda: "b" in cluster.brokers[TWO].topics())


async def test_partitions_move_as_a_tool_wrote_and_the_request_goes_with_the_last(cluster: Cluster) -> None:
    """`kafka-reassign-partitions --zookeeper` waits until its znode is gone."""
    tool = await three_with_a_topic(cluster)
    unknown = TopicPartition("no-such", 0)
    wanted = {A0: (TWO, THREE), A1: (THREE, TWO), unknown: (ONE,)}
    await tool.create(REASSIGNMENT, znodes.encode_reassignment(wanted))
    await until(lambda: len(cluster.brokers[ONE].metadata[A1].adding_replicas) == 1)
    assert set(await cluster.controller.list_partition_reassignments()) == {A0, A1}
    await all_join(cluster, A0, ONE, TWO, THREE)
    await until(lambda: cluster.brokers[ONE].metadata[A0].state.replicas == (2, 3))
    while set(znodes.decode_reassignment("", (await tool.get(REASSIGNMENT))[0])) != {A1}:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await all_join(cluster, A1, ONE, TWO, THREE)
    await cluster.gone(REASSIGNMENT)
    assert cluster.brokers[ONE].metadata[A1].state.replicas == (3, 2)
    # Another one, of what is as it is wanted already, and then of nothing at all.
    await tool.create(REASSIGNMENT, znodes.encode_reassignment({A0: (TWO, THREE)}))
    await cluster.gone(REASSIGNMENT)
    await tool.create(REASSIGNMENT, b'{"version":1,"partitions":[]}')
    await cluster.gone(REASSIGNMENT)


async def test_a_new_controller_goes_on_with_what_a_tool_wrote(cluster: Cluster) -> None:
    tool = await three_with_a_topic(cluster)
    await tool.create(REASSIGNMENT, znodes.encode_reassignment({A1: (TWO, THREE)}))
    await until(lambda: THREE in cluster.brokers[TWO].metadata[A1].state.replicas)
    await cluster.kill(ONE)
    await until(lambda: any(service.is_active for service in cluster.services.values()))
    await until(lambda: cluster.brokers[TWO].metadata[A1].state.isr == (2,))
    await cluster.start(ONE)
    await until(lambda: set(cluster.brokers[ONE].brokers) == {1, 2, 3} and A1 in cluster.brokers[ONE].metadata)
    await all_join(cluster, A1, TWO, THREE)
    await cluster.gone(REASSIGNMENT)
    assert znodes.decode_topic("", await cluster.data("/brokers/topics/a")).replicas[1] == (2, 3)


async def test_preferred_replicas_lead_as_a_tool_wrote(cluster: Cluster) -> None:
    tool = await three_with_a_topic(cluster)
    await cluster.kill(TWO)
    await until(lambda: cluster.brokers[ONE].metadata[A1].state.leader == ONE)
    await cluster.start(TWO)
    await until(lambda: set(cluster.brokers[ONE].brokers) == {1, 2, 3})
    await all_join(cluster, A1, ONE, TWO)
    assert cluster.brokers[ONE].metadata[A1].state.leader == ONE
    named = b'{"topic":"a","partition":0},{"topic":"a","partition":1},{"topic":"no-such","partition":7}'
    await tool.create(ELECTION, b'{"version":1,"partitions":[%s]}' % named)
    await cluster.gone(ELECTION)
    await until(lambda: cluster.brokers[ONE].metadata[A1].state.leader == TWO)
    await tool.create(ELECTION, b'{"version":1,"partitions":[{"topic":"a","partition":0}]}')
    await cluster.gone(ELECTION)


@pytest.mark.parametrize("path", [REASSIGNMENT, ELECTION])
async def test_a_request_that_can_not_be_read_is_removed(cluster: Cluster, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """Kafka leaves the first of the two there, and with that keeps away every later one."""
    tool = await three_with_a_topic(cluster)
    for data in (b"{", b"", b'{"version":1,"partitions":[{"topic":"a"}]}'):
        await tool.create(path, data)
        await cluster.gone(path)
    assert caplog.text.count(f"{path}: ") >= 3
    assert cluster.controller.is_active, "nothing of it ended its term"


async def test_a_topic_that_a_tool_removes_is_not_waited_for_any_more(cluster: Cluster) -> None:
    """Neither by the tool that has its partitions moved, which takes the znode for a reassignment that is under way, nor by a deletion."""
    controller, *_ = await cluster.start_three()
    for name in ("moving", "deleting"):
        await controller.create_topic(NewTopic(name, assignments={0: [ONE]}))
    cluster.brokers[ONE].is_deaf = True
    tool = await cluster.zookeeper.session()
    await tool.create(REASSIGNMENT, znodes.encode_reassignment({TopicPartition("moving", 0): (TWO,)}))
    deletion = asyncio.ensure_future(controller.delete_topic("deleting", timeout_seconds=3_600))
    active = controller.active
    assert active is not None
    await until(lambda: TopicPartition("moving", 0) in active.state.reassigning() and "deleting" in active.state.deletions)
    for name in ("moving", "deleting"):
        for path in reversed(await cluster.paths(f"/brokers/topics/{name}")):
            await tool.delete(path)
        await tool.delete(f"/brokers/topics/{name}")
    await until(lambda: not active.state.topics)
    cluster.brokers[ONE].is_deaf = False
    await cluster.gone(REASSIGNMENT)
    await deletion
