"""A producer with `zk.connect`: what ZooKeeper's watchers tell it of brokers and topics, while it sends.

The design document, "Automatic producer load balancing", has four events: a broker comes, a broker goes, a topic is new, brokers have
other partitions of a topic that there is.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kazoo.client import KazooClient
from tests.unit.client.test_audited_clients import records_on
from tests.unit.wire.fakes import Asked, api_versions, connecting, one_partition
from tests.waiting import until

from ottla.client.discovery import BrokerWatch, Discovered, preferred_leaders
from ottla.client.errors import DeliveryFailed
from ottla.client.messages import Message
from ottla.client.outgoing import Outgoing
from ottla.client.partitioners import murmur2_partition
from ottla.client.producer import Producer
from ottla.client.record_sender import RecordSender, SendSettings
from ottla.client.simple_consumer import SimpleConsumer
from ottla.clock import SystemClock
from ottla.config.client import ProducerSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, NoNode
from ottla.coordination.interface import Delete, Stat, Watch
from ottla.errors import BrokerNotAvailable
from ottla.protocol.api import ApiKey
from ottla.testing.cluster import EmbeddedCluster
from ottla.wire.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, settings={"coordination.listener": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: EmbeddedCluster) -> str:
    return cluster.zookeeper_address


@pytest.fixture
def look(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper)
    client.start(120)
    yield client
    client.stop()
    client.close()


def partition_of(producer: Producer, topic: str, key: bytes) -> int:
    return producer.send(topic, b"x", key=key).result(120)[0][0].partition


@pytest.mark.parametrize("partitioner", [None, lambda key, count: count - 1], ids=["murmur2", "own"])
def test_partitions_that_are_added_are_written_to_at_once(
    cluster: EmbeddedCluster, zookeeper: str, partitioner: Callable[[bytes | None, int], int] | None
) -> None:
    """Without ZooKeeper that would be after `metadata.max.age.ms`, which is five minutes."""
    topic = cluster.create_topic("growing", partitions=1)
    key = next(key for number in range(100) if murmur2_partition(key := b"%d" % number, 4) == 3)
    with Producer(ProducerSettings(zookeeper_connect=zookeeper), partitioner=partitioner) as producer:
        assert partition_of(producer, topic, key) == 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(120)
        until(lambda: partition_of(producer, topic, key) == 3)


@pytest.mark.parametrize("name", ["", "no-utf-8-\udcff"])
def test_topics_are_watched_after_a_message_to_what_can_be_none(cluster: EmbeddedCluster, zookeeper: str, name: str) -> None:
    """There is no znode of such a name: each look at the topics in use failed by it, and the producer followed nothing any more."""
    topic = cluster.create_topic("growing", partitions=1)
    key = next(key for number in range(100) if murmur2_partition(key := b"%d" % number, 4) == 3)
    with Producer(ProducerSettings(zookeeper_connect=zookeeper)) as producer:
        with pytest.raises(DeliveryFailed):
            producer.send(name, b"x")
        assert partition_of(producer, topic, key) == 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(120)
        until(lambda: partition_of(producer, topic, key) == 3, seconds=30)


def test_a_topic_that_is_new_is_written_to(cluster: EmbeddedCluster, zookeeper: str) -> None:
    with Producer(ProducerSettings(zookeeper_connect=zookeeper, producer_type="async", queue_buffering_max_ms=1)) as producer:
        producer.send(cluster.create_topic("there"), b"x").result(120)
        delivery = producer.send(cluster.create_topic("new", partitions=3), b"x", key=b"k")
        assert delivery.result(120)[0][0].partition == murmur2_partition(b"k", 3)


def test_brokers_that_come_and_go_are_followed(cluster: EmbeddedCluster, zookeeper: str) -> None:
    """The producer knows broker 1 alone when it starts. Broker 2 comes, broker 1 goes: all that it sends is written."""
    topic = cluster.create_topic("steady", partitions=1, replication_factor=2)
    cluster.stop_broker(2)
    with Producer(ProducerSettings(zookeeper_connect=zookeeper)) as producer:
        producer.send(topic, b"first")
        cluster.start_broker(2)
        until(lambda: set(cluster.isr(topic)) == {1, 2})
        cluster.stop_broker(1)
        producer.send(topic, b"second")
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        assert [message.value for message in consumer.fetch(topic, 0, 0)] == [b"first", b"second"]


async def test_brokers_are_asked_again_until_they_know_one_that_has_come() -> None:
    """Asked once, too early, it was not heard of for five minutes, in which messages without a key went to none of its partitions."""

    def answer(asked: Asked) -> bytes:
        return api_versions(asked) if asked.key is ApiKey.API_VERSIONS else one_partition(asked, None)

    async with Cluster("broker:9092", connect=connecting(answer)) as cluster:
        outgoing = Outgoing(10, 100, 60.0, SystemClock(), lambda: None)
        sender = RecordSender(outgoing, cluster, SendSettings(0.0, 60.0, -1, True, 0, None, 60_000), None, lambda servers: None)
        assert await sender._follow(Discovered("broker:9092", {"clicks": 1}))
        assert not await sender._follow(Discovered("broker:9092,[::1]:9092", {"clicks": 1}))


@pytest.mark.parametrize("audit", [False, pytest.param(True, marks=pytest.mark.long)])
def test_brokers_that_all_have_moved_are_found_at_their_new_addresses(
    cluster: EmbeddedCluster, look: KazooClient, zookeeper: str, audit: bool
) -> None:
    """A logical broker id lets a broker move to another machine without a change at its clients: no one answers any more at the addresses
    that the producer began with."""
    with EmbeddedCluster(topics={"moved": 1}) as former:
        port = int(former.bootstrap_servers.rpartition(":")[2])
        data = {"version": 5, "host": "127.0.0.1", "port": port, "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"], "jmx_port": -1}
        data |= {"listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}, "timestamp": "1", "features": {}, "rack": None}
        look.create("/elsewhere/brokers/ids/1", json.dumps(data).encode(), makepath=True)
        settings = ProducerSettings(zookeeper_connect=f"{zookeeper}/elsewhere", message_timeout_ms=60_000)
        producer = Producer(settings, audit={"ottla.audit.report.interval.ms": 600_000} if audit else False)
        assert producer.send("moved", b"first").result(120)
    now = cluster.create_topic("moved")  # at other addresses
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    data |= {"port": port, "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"]}
    look.set("/elsewhere/brokers/ids/1", json.dumps(data).encode())
    producer.send(now, b"second", key=b"k", headers=[("h", b"1")], timestamp_ms=5)  # waits for brokers that no one has heard of yet
    producer.close()
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        (message,) = consumer.fetch(now, 0, 0)
    assert message == Message(now, 0, 0, 5, b"k", b"second", (("h", b"1"),))
    if audit:  # what the former brokers did not hear of is said here
        (record,) = records_on(cluster.bootstrap_servers, 1)
        assert (record.sequence, record.is_final, record.partition, record.topic) == (0, True, 0, "moved")
        assert sum(tally.acknowledged for tally in record.windows.values()) == 2


async def test_brokers_are_found_where_their_znodes_were_deleted_and_made_again() -> None:
    """As when a cluster is set up again. No watch can be set on the children of a znode that is not there."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()

    async def register(port: int) -> None:
        data = b'{"version":1,"host":"127.0.0.1","port":%d}' % port
        await session.create("/brokers/ids/1", data, make_parents=True)

    watch = BrokerWatch(zookeeper.session, "PLAINTEXT")
    try:
        await register(1)
        async with asyncio.timeout(120):
            assert (await watch.look()).bootstrap_servers == "127.0.0.1:1"
            await session.transaction([Delete("/brokers/ids/1"), Delete("/brokers/ids")])
            with pytest.raises(BrokerNotAvailable):
                await watch.look()
            await register(2)
            while True:
                with suppress(BrokerNotAvailable):  # /brokers/ids is made, and then what is in it
                    assert (await watch.look()).bootstrap_servers == "127.0.0.1:2"
                    break
    finally:
        await watch.close()
        await zookeeper.close()


async def test_a_topic_that_is_made_between_a_look_and_its_watch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No watch says that it was made, as it is there already when the watch is set."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    get = EmbeddedSession.get

    async def made_behind_it(session: EmbeddedSession, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        try:
            return await get(session, path, watch)
        except NoNode:
            await session.create(path, b'{"version":1,"partitions":{"0":[1],"1":[1]}}', make_parents=True)
            raise

    monkeypatch.setattr(EmbeddedSession, "get", made_behind_it)
    try:
        assert await preferred_leaders(session, "new", lambda event: None) == [1, 1]
    finally:
        await zookeeper.close()


async def test_a_look_that_is_not_answered_in_time_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection may live on, so that no event comes, and no watch was set."""
    zookeeper = EmbeddedZooKeeper(None, SystemClock())
    session = await zookeeper.session()
    await session.create("/brokers/ids/1", b'{"version":1,"host":"127.0.0.1","port":1}', make_parents=True)
    watch = BrokerWatch(zookeeper.session, "PLAINTEXT")
    children = EmbeddedSession.children

    async def late(session: EmbeddedSession, path: str, watch: Watch | None = None) -> list[str]:
        monkeypatch.undo()
        raise ConnectionLoss(f"{path}: no answer in time")

    monkeypatch.setattr(EmbeddedSession, "children", late)
    try:
        with pytest.raises(ConnectionLoss):
            await watch.look()
        assert EmbeddedSession.children is children
        async with asyncio.timeout(10):
            assert (await watch.look()).bootstrap_servers == "127.0.0.1:1"
    finally:
        await watch.close()
        await zookeeper.close()


def producer_without_brokers(
    cluster: EmbeddedCluster, look: KazooClient, zookeeper: str, chroot: str
) -> tuple[Producer, Callable[[], Any]]:
    """A producer whose brokers have gone, and what registers those of the cluster in their place."""
    registered = {"version": 5, "host": "127.0.0.1", "jmx_port": -1, "timestamp": "1", "features": {}, "rack": None}
    registered |= {"listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}}

    def data(servers: str) -> bytes:
        port = int(servers.split(",")[0].rpartition(":")[2])
        return json.dumps(registered | {"port": port, "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"]}).encode()

    path = f"{chroot}/brokers/ids/1"
    with EmbeddedCluster(topics={"in-order": 1}) as former:
        look.create(path, data(former.bootstrap_servers), makepath=True)
        properties = {"zk.connect": f"{zookeeper}{chroot}", "producer.type": "async", "message.timeout.ms": "60000"}
        producer = Producer.from_properties(properties)
        producer.send("in-order", b"-").result(120)
    return producer, partial(look.set, path, data(cluster.bootstrap_servers))


def test_what_waited_for_brokers_that_all_have_moved_goes_before_what_is_sent_later(
    cluster: EmbeddedCluster, look: KazooClient, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages of a partition are written in the order in which one thread sent them."""
    producer, move = producer_without_brokers(cluster, look, zookeeper, "/moving")
    now = cluster.create_topic("in-order")
    for number in range(40):
        producer.send(now, b"%d" % number)
    move()
    until(lambda: "all brokers have moved" in caplog.text)
    for number in range(40, 45):
        producer.send(now, b"%d" % number)
    producer.close()
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        assert [message.value for message in consumer.fetch(now, 0, 0)] == [b"%d" % number for number in range(45)]


def test_a_close_while_all_brokers_move_delivers_what_waited_for_them(cluster: EmbeddedCluster, look: KazooClient, zookeeper: str) -> None:
    producer, move = producer_without_brokers(cluster, look, zookeeper, "/closing")
    now = cluster.create_topic("while-closing")
    for number in range(40):
        producer.send(now, b"%d" % number)
    closing = threading.Thread(target=producer.close)
    closing.start()
    move()
    closing.join(120)
    assert not closing.is_alive()
    with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        assert [message.value for message in consumer.fetch(now, 0, 0)] == [b"%d" % number for number in range(40)]


REFUSED = """
import sys, threading
from ottla.client.producer import Producer
from ottla.client.producer_handlers import CallbackHandler
from ottla.config.client import ProducerSettings

class Refusing(CallbackHandler):
    def init(self, settings):
        raise PermissionError("no such table")

try:
    Producer(ProducerSettings(zookeeper_connect=sys.argv[1], producer_type="async"), callback_handler=Refusing())
except PermissionError:
    print([thread.name for thread in threading.enumerate()])
"""


def test_a_producer_that_cannot_be_made_leaves_no_thread_behind(zookeeper: str) -> None:
    """In a process of its own: in that of the test, the cluster's pools may begin another thread at any time."""
    done = subprocess.run([sys.executable, "-c", REFUSED, zookeeper], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "['MainThread']\n", done.stderr


def test_a_chroot_that_is_not_there_is_said_and_not_made(cluster: EmbeddedCluster, look: KazooClient, zookeeper: str) -> None:
    with pytest.raises(BrokerNotAvailable, match="/misspelt: there is no such chroot"):
        Producer(ProducerSettings(zookeeper_connect=f"{zookeeper}/misspelt"))
    assert look.exists("/misspelt") is None
