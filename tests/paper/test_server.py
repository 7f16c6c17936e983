"""The chapter "Inside the server" of *Kafka: The Definitive Guide*: a test for each statement about brokers and their requests.

The statements are in our own words, with the heading that they stand under. What the chapter says of files is in `test_log`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient
from tests.paper.connection import CREATE_TOPICS, FETCH, METADATA, PRODUCE, Connection, fetch_fields, produce_fields
from tests.waiting import until

from ottla.broker.controller.topics import assign_replicas
from ottla.broker.replication.fetch_lane import FetchLane
from ottla.client import Producer, ProducerSettings, SimpleConsumer
from ottla.errors import (
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StaleControllerEpoch,
    UnsupportedVersion,
)
from ottla.interbroker.calls import Caller, UpdateMetadataRequest
from ottla.interbroker.local import Call
from ottla.model import BrokerId, BrokerRegistration
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message
from ottla.record.batch import batches
from ottla.testing.cluster import EmbeddedCluster

BROKERS = (1, 2, 3)
QUICK = {
    "coordination.listener": "127.0.0.1:0",
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, settings=QUICK) as running:
        running.make_internal_topics()
        yield running


def registered(look: KazooClient) -> list[int]:
    return sorted(map(int, look.get_children("/brokers/ids")))


def value_of(look: KazooClient, path: str) -> int:
    return int(look.get(path)[0])


def address_of(cluster: EmbeddedCluster, broker: int) -> str:
    return cluster.bootstrap_servers.split(",")[broker - 1]


def produce(connection: Connection, topic: str, value: bytes, acks: int) -> int:
    """The error's code, or 0."""
    code: int = connection.ask(PRODUCE, **produce_fields(topic, value, acks=acks)).responses[0].partition_responses[0].error_code
    return code


def fetch(connection: Connection, topic: str, offset: int, **limits: int) -> Any:
    return connection.ask(FETCH, **fetch_fields(topic, offset, **limits)).responses[0].partitions[0]


# "Cluster membership".


def test_a_broker_is_registered_for_as_long_as_it_lives(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "Cluster membership" (C1): an ephemeral znode by its id; it goes with the broker, whose id stays in the lists of replicas."""
    topic = cluster.create_topic("listed", replication_factor=3)
    assert registered(look) == [*BROKERS]
    assert all(look.exists(f"/brokers/ids/{broker}").ephemeralOwner for broker in BROKERS)
    cluster.kill(3)
    assert registered(look) == [1, 2]
    assert 3 in json.loads(look.get(f"/brokers/topics/{topic}")[0])["partitions"]["0"]
    cluster.start_broker(3)
    assert registered(look) == [*BROKERS]
    until(lambda: cluster.isr(topic) == [*BROKERS], "the broker has its partitions again")


def test_another_broker_of_the_same_id_is_refused(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "Cluster membership" (C1): it tries to register, and there is a broker of that id."""
    settings = {"zookeeper.connect": cluster.zookeeper_address, "zookeeper.session.timeout.ms": "500"}
    with pytest.raises(Exception, match=r"broker\.id 1 is taken"), EmbeddedCluster(settings=settings):
        pytest.fail("two brokers of one id run")
    assert registered(look) == [*BROKERS]


# "The controller".


def test_the_first_broker_is_the_controller_and_the_next_one_has_a_higher_epoch(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "The controller" (C3): who makes the ephemeral znode is it; the epoch grows with each, and what comes of a lower one is ignored."""
    first, epoch = cluster.controller_id, value_of(look, "/controller_epoch")
    assert json.loads(look.get("/controller")[0])["brokerid"] == first
    assert look.exists("/controller").ephemeralOwner == look.exists(f"/brokers/ids/{first}").ephemeralOwner
    cluster.kill(first)
    until(lambda: cluster.controller_id not in (-1, first), "another broker becomes the controller")
    assert json.loads(look.get("/controller")[0])["brokerid"] == cluster.controller_id
    assert value_of(look, "/controller_epoch") == epoch + 1
    other = BrokerId(next(broker for broker in registered(look) if broker != cluster.controller_id))
    late = UpdateMetadataRequest(BrokerId(first), epoch, look.exists(f"/brokers/ids/{other}").czxid, (), ())
    call, caller = Call(BrokerId(first), other, "UpdateMetadata"), Caller(BrokerId(first), -1, epoch)

    def is_ignored() -> bool:
        try:
            cluster._call(cluster._started().hub.call(call, caller, late), 60)
        except StaleControllerEpoch:
            return True
        return False

    until(is_ignored, "the broker has heard of the next controller")
    cluster.start_broker(first)


def test_a_partition_without_a_leader_is_led_by_the_next_of_its_replicas_that_is_in_sync(cluster: EmbeddedCluster) -> None:
    """ "The controller" and "Replication" (C4): messages are kept; the broker that comes back catches up, and leads again.

    It leads as the preferred one: `auto.leader.rebalance.enable` looks for partitions that are not led by the first of their replicas.
    """
    topic = cluster.create_topic("led", replication_factor=3)
    until(lambda: cluster.isr(topic) == [*BROKERS], "all are in sync")
    preferred = cluster.leader(topic)
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer, SimpleConsumer(cluster.bootstrap_servers) as reader:
        producer.send(topic, b"before", partition=0)
        cluster.kill(preferred)
        until(lambda: cluster.leader(topic) not in (-1, preferred), "another replica leads")
        assert preferred not in cluster.isr(topic)
        producer.send(topic, b"meanwhile", partition=0)
        cluster.start_broker(preferred)
        until(lambda: cluster.isr(topic) == [*BROKERS], "it has caught up")
        until(lambda: cluster.leader(topic) == preferred, "the preferred replica leads again")
        assert [message.value for message in reader.fetch(topic, 0, 0)] == [b"before", b"meanwhile"]


def test_a_message_is_shown_when_all_replicas_in_sync_have_it(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Fetch requests" and "Replication" (C5, V6, T2): followers fetch as consumers do; what they ask for says what they have.

    Until then a consumer is given nothing, and no error: another leader might not have the message. acks=all waits for the same.
    """
    may_fetch, fetching = threading.Event(), [0]
    may_fetch.set()
    real = FetchLane._fetch

    async def held(lane: FetchLane) -> None:
        while not may_fetch.is_set():  # noqa: ASYNC110  # the test's thread sets it
            await asyncio.sleep(0.01)
        fetching[0] += 1
        try:
            await real(lane)
        finally:
            fetching[0] -= 1

    monkeypatch.setattr(FetchLane, "_fetch", held)
    topic = cluster.create_topic("shown", replication_factor=3)
    until(lambda: cluster.isr(topic) == [*BROKERS], "all are in sync")
    with (
        Connection(address_of(cluster, cluster.leader(topic))) as producer,
        Connection(address_of(cluster, cluster.leader(topic))) as reader,
    ):
        time.sleep(1.0)  # what was on its way before ends within `replica.fetch.wait.max.ms`
        may_fetch.clear()
        try:
            until(lambda: not fetching[0], "no follower fetches")
            assert produce(producer, topic, b"of the leader alone", 1) == 0
            waiting = producer.send(PRODUCE, **produce_fields(topic, b"of all", acks=-1))
            found = fetch(reader, topic, 0, max_wait_ms=100, min_bytes=1)
            assert (found.error_code, found.high_watermark, found.records or b"") == (0, 0, b"")
        finally:
            may_fetch.set()
        assert PRODUCE.decode(producer.receive(), waiting).responses[0].partition_responses[0].error_code == 0
        assert fetch(reader, topic, 0).high_watermark == 2


# "Partition allocation".


def test_replicas_are_spread_over_brokers_and_racks() -> None:
    """ "Partition allocation" (C6): the chapter's own examples, of 10 partitions with 3 replicas on 6 brokers.

    Each broker has five replicas, or one more or less, as after each round the followers stand one further from their leader; none has
    two of one partition, and with racks a partition has its replicas in different ones.
    """
    plain = [BrokerRegistration(BrokerId(number), ()) for number in range(6)]
    found = assign_replicas(plain, 10, 3, start=4, random=Random(1))
    assert [replicas[0] for replicas in found] == [4, 5, 0, 1, 2, 3, 4, 5, 0, 1], "leaders go round, from one that chance has chosen"
    counts = Counter(broker for replicas in found for broker in replicas)
    assert len(counts) == 6 and all(4 <= count <= 6 for count in counts.values())
    assert all(len(set(replicas)) == 3 for replicas in found)
    racks = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
    racked = [BrokerRegistration(BrokerId(number), (), rack=rack) for number, rack in racks.items()]
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in assign_replicas(racked, 10, 2, start=4))


# "Request processing".


def test_answers_come_in_the_order_of_the_requests(cluster: EmbeddedCluster) -> None:
    """ "Request processing" (R1, R2): an answer has the correlation id of its request; a fetch that waits holds up what follows."""
    topic = cluster.create_topic("ordered")
    with Connection(address_of(cluster, cluster.leader(topic))) as connection:
        begin = time.monotonic()
        sent = [
            connection.send(FETCH, **fetch_fields(topic, 0, max_wait_ms=300, min_bytes=1)),
            connection.send(METADATA, topics=[]),
            connection.send(PRODUCE, **produce_fields(topic, b"later", acks=1)),
        ]
        assert [int.from_bytes(connection.receive()[:4]) for _ in sent] == sent
        assert time.monotonic() - begin >= 0.3


def test_a_client_asks_which_versions_a_broker_speaks_and_each_is_answered_in_its_own(cluster: EmbeddedCluster) -> None:
    """ "Other requests" (R2): Metadata has told of the controller since version 1, and a client of version 0 is not surprised by that.

    A client that is newer than the broker gets that answer in the oldest version, which each can read.
    """
    with Connection(address_of(cluster, 1)) as connection:
        answer = connection.ask(message(ApiKey.API_VERSIONS, 0))
        versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        assert versions[ApiKey.METADATA][0] == 0 and len(versions) > 20, "about 20 kinds of requests, and more to come"
        assert not hasattr(connection.ask(message(ApiKey.METADATA, 0), topics=[]), "controller_id")
        assert connection.ask(METADATA, topics=[]).controller_id == cluster.controller_id
        connection.send_bytes(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 4711, -1))
        assert struct.unpack_from(">ih", connection.receive()) == (4711, UnsupportedVersion.code)
        assert connection.ask(message(ApiKey.API_VERSIONS, 0)).error_code == 0


def test_any_broker_says_who_leads_and_only_the_leader_takes_and_gives_messages(cluster: EmbeddedCluster) -> None:
    """ "Request processing" (R5): all brokers have the metadata; a client that asks another one gets an error, and looks there again."""
    topic = cluster.create_topic("asked", replication_factor=2)
    leader = cluster.leader(topic)
    for broker in BROKERS:
        with Connection(address_of(cluster, broker)) as connection:

            def leader_that_it_knows(connection: Connection = connection) -> int:
                (found,) = connection.ask(METADATA, topics=[METADATA.build("MetadataRequestTopic", name=topic)]).topics
                return found.partitions[0].leader_id if found.partitions else -1

            until(lambda: leader_that_it_knows() == leader, f"broker {broker} knows the leader")
            produced = produce(connection, topic, b"here?", 1)
            fetched = fetch(connection, topic, 0).error_code
            expected = 0 if broker == leader else NotLeaderOrFollower.code
            assert (produced, fetched) == (expected, expected)


def test_acks_say_how_many_replicas_have_a_message_before_its_answer(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "Produce requests" (R3): 0, 1 or all; of 0 no answer comes, and all may be refused when too few replicas are in sync."""
    topic = cluster.create_topic("acknowledged", replication_factor=2, settings={"min.insync.replicas": "2"})
    until(lambda: len(cluster.isr(topic)) == 2, "both are in sync")
    leader = cluster.leader(topic)
    (follower,) = set(cluster.isr(topic)) - {leader}
    with Connection(address_of(cluster, leader)) as connection:
        connection.send(PRODUCE, **produce_fields(topic, b"none", acks=0))
        assert produce(connection, topic, b"one", 1) == 0
        assert produce(connection, topic, b"all", -1) == 0
        assert produce(connection, topic, b"two?", 2) == InvalidRequiredAcks.code
        cluster.kill(follower)
        until(lambda: cluster.isr(topic) == [leader], "the other replica is out of sync")
        assert produce(connection, topic, b"all?", -1) == NotEnoughReplicas.code
        assert produce(connection, topic, b"one again", 1) == 0
        cluster.start_broker(follower)
    with SimpleConsumer(cluster.bootstrap_servers) as reader:
        until(lambda: len(list(reader.fetch(topic, 0, 0))) == 4, "what the leader alone had is replicated, and shown")
        assert [message.value for message in reader.fetch(topic, 0, 0)] == [b"none", b"one", b"all", b"one again"]


def test_a_fetch_names_the_most_and_the_least_that_it_wants_and_how_long_it_waits(cluster: EmbeddedCluster) -> None:
    """ "Fetch requests" (R4): a client holds what comes in memory, and saves round trips where little is written.

    An offset that is not there is an error; a batch that is larger than the most comes whole, since Kafka 0.10.1.
    """
    topic = cluster.create_topic("fetched")
    with Connection(address_of(cluster, cluster.leader(topic))) as connection:
        for _ in range(10):
            assert produce(connection, topic, bytes(1000), 1) == 0
        least, most = fetch(connection, topic, 0, partition_max_bytes=1), fetch(connection, topic, 0, partition_max_bytes=3500)
        assert [len(list(batches(found.records))) for found in (least, most)] == [1, 3]
        assert len(most.records) <= 3500
        begin = time.monotonic()
        assert fetch(connection, topic, 9, max_wait_ms=300, min_bytes=5000).records, "after that time it comes with what is there"
        assert time.monotonic() - begin >= 0.3
        assert fetch(connection, topic, 11).error_code == OffsetOutOfRange.code
        waiting = connection.send(FETCH, **fetch_fields(topic, 10, max_wait_ms=120_000, min_bytes=2000))
        with Connection(address_of(cluster, cluster.leader(topic))) as other:
            for _ in range(2):
                assert produce(other, topic, bytes(1000), 1) == 0
        (found,) = FETCH.decode(connection.receive(), waiting).responses[0].partitions
        assert len(found.records) >= 2000, "it comes as soon as there is enough"


# "Other requests".


def test_a_topic_is_made_by_a_request_or_by_a_znode_and_deleted_by_one(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "Other requests" (R6, C2): tools wrote topics to ZooKeeper, which brokers watch; any client can ask for one by CreateTopics now.

    So it is with topics that are to be deleted.
    """
    look.create("/brokers/topics/by-znode", json.dumps({"version": 1, "partitions": {"0": [2], "1": [3]}}).encode())
    until(lambda: (cluster.leader("by-znode", 0), cluster.leader("by-znode", 1)) == (2, 3), "the controller found the topic")
    wanted = CREATE_TOPICS.build("CreatableTopic", name="by-request", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    with Connection(address_of(cluster, cluster.controller_id)) as connection:
        (made,) = connection.ask(CREATE_TOPICS, topics=[wanted], timeout=30_000, validate_only=False).topics
    assert made.error_code == 0 and look.exists("/brokers/topics/by-request")
    look.create("/admin/delete_topics/by-znode")
    until(lambda: not look.exists("/brokers/topics/by-znode") and not look.exists("/admin/delete_topics/by-znode"), "it is deleted")


def test_the_offsets_of_a_group_are_messages_of_a_topic(cluster: EmbeddedCluster, look: KazooClient) -> None:
    """ "Other requests" (R6, T3): OffsetCommit and OffsetFetch took the place of ZooKeeper's registry of offsets."""
    topic = cluster.create_topic("committed")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "of-the-guide"})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 17)], asynchronous=False)
        assert [found.offset for found in consumer.committed([TopicPartition(topic, 0)], 60)] == [17]
    finally:
        consumer.close()
    with SimpleConsumer(cluster.bootstrap_servers) as reader:
        keys = [message.key or b"" for partition in range(4) for message in reader.fetch("__consumer_offsets", partition, 0)]
    assert any(b"of-the-guide" in key and topic.encode() in key for key in keys)
    assert not look.exists("/consumers/of-the-guide")
