"""Consumers of a group when something breaks: ZooKeeper is away, a consumer is cut off from it or from brokers, or stopped, a leader goes.

The brokers and the group meet in a real ZooKeeper. Nothing is lost, and no two consumers own a partition at once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kazoo.client import KazooClient
from tests.chaos.network import Cut, Proxy, Wires
from tests.unit.client.ensembles import Ensemble
from tests.waiting import until

from ottla.client import ConsumerConnector, ConsumerSettings, MessageStream, Producer, ProducerSettings, consumer_connector
from ottla.errors import OttlaError
from ottla.lifecycle import LoopThread
from ottla.model import TopicPartition
from ottla.testing.cluster import EmbeddedCluster
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy

pytestmark = pytest.mark.long  # whole services and what breaks around them; the rules that they follow have quicker tests

SESSION_MS = 3_000
COMMIT_MS = 100
_BROKER, _PRODUCER, _CONSUMER = 1, 2, 3
SECONDS = 120.0


@pytest.fixture
def chroot() -> str:
    return f"/{uuid4().hex}"


@pytest.fixture
def zookeeper(request: pytest.FixtureRequest, a_zookeeper_to_start: None, chroot: str) -> str:
    """What brokers and consumers of a test are told: the server that tests share, unless one asks for its own."""
    name = "own_zookeeper_server" if "own_zookeeper_server" in request.fixturenames else "zookeeper_server"
    server: ZooKeeperServer = request.getfixturevalue(name)
    return server.address + chroot


@pytest.fixture
def cluster(zookeeper: str) -> Iterator[EmbeddedCluster]:
    settings = {"zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": "20000"}
    with EmbeddedCluster(brokers=2, settings=settings) as running:
        yield running


def settings_of(zookeeper: str, name: str, session_ms: int = SESSION_MS) -> ConsumerSettings:
    return ConsumerSettings(
        group_id="g",
        consumer_id=name,
        zookeeper_connect=zookeeper,
        zookeeper_session_timeout_ms=session_ms,
        zookeeper_connection_timeout_ms=30_000,
        rebalance_backoff_ms=100,
        auto_offset_reset="smallest",
        auto_commit_interval_ms=COMMIT_MS,
        fetch_wait_max_ms=20,
    )


@contextmanager
def reading(stream: MessageStream) -> Iterator[list[tuple[int, int]]]:
    """What a thread reads of a stream: partitions and offsets. It ends with the stream."""
    seen: list[tuple[int, int]] = []

    def read() -> None:
        for message in stream:
            seen.append((message.partition, message.offset))  # noqa: PERF401

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield seen


@pytest.fixture
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    """One for all of a test: a broker that has no producer ids left gives none while ZooKeeper is away."""
    with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as sending:
        yield sending


def send(producer: Producer, topic: str) -> None:
    """Five messages more into each of two partitions."""
    for partition in range(2):
        producer.send(topic, [b"x"] * 5, partition=partition)


def test_a_consumer_that_is_cut_off_from_zookeeper_gives_up_before_another_takes_over(
    cluster: EmbeddedCluster, zookeeper_server: ZooKeeperServer, zookeeper: str, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reaches all brokers. When it is back it gets its share again."""
    monkeypatch.setattr(consumer_connector, "_LEASE_SHARE", 0.6)  # a busy machine looks a second late
    topic = cluster.create_topic("cut-off", partitions=4)
    with LoopThread("proxy") as loop:

        async def started() -> ZooKeeperProxy:
            proxy = ZooKeeperProxy(zookeeper_server.port)
            await proxy.start()
            return proxy

        async def cut(proxy: ZooKeeperProxy) -> None:
            proxy.refuses = True
            proxy.cut()

        proxy = loop.call(started(), SECONDS)
        try:
            with (
                ConsumerConnector(settings_of(f"127.0.0.1:{proxy.port}{chroot}", "one")) as one,
                ConsumerConnector(settings_of(zookeeper, "two")) as two,
            ):
                one.create_message_streams({topic: 1})
                two.create_message_streams({topic: 1})
                until(lambda: len(one.owned) == len(two.owned) == 2)
                loop.call(cut(proxy), SECONDS)
                owned: list[TopicPartition] = []
                while len(owned) < 4:
                    owned = two.owned  # asked first: what it has now `one` must have given up before
                    assert not set(owned) & set(one.owned)
                    time.sleep(0.01)
                assert one.owned == []
                proxy.refuses = False
                until(lambda: len(one.owned) == len(two.owned) == 2)
                assert not set(one.owned) & set(two.owned)
        finally:
            loop.call(proxy.close(), SECONDS)


PROGRAM = """
import sys
from ottla.client import ConsumerConnector
from tests.unit.client.test_faults import settings_of
with ConsumerConnector(settings_of(sys.argv[1], "stopped")) as connector:
    (stream,) = connector.create_message_streams({sys.argv[2]: 1})[sys.argv[2]]
    for message in stream:
        print(message.partition, message.offset, flush=True)
"""


def test_a_consumer_that_is_stopped_for_longer_than_its_session_is_replaced_and_comes_back(
    cluster: EmbeddedCluster, producer: Producer, zookeeper: str
) -> None:
    """SIGSTOP. Whoever takes over reads everything from the group's offset on; the one that wakes up joins again, and loses nothing."""
    topic = cluster.create_topic("stopped", partitions=2)
    send(producer, topic)
    program = [sys.executable, "-c", PROGRAM, zookeeper, topic]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    rows: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: rows.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        until(lambda: len(rows) == 10)
        process.send_signal(signal.SIGSTOP)
        with ConsumerConnector(settings_of(zookeeper, "awake")) as awake:
            (stream,) = awake.create_message_streams({topic: 1})[topic]
            with reading(stream) as seen:
                until(lambda: len(awake.owned) == 2)
                send(producer, topic)
                until(lambda: {(partition, offset) for partition in range(2) for offset in range(5, 10)} <= set(seen))
                process.send_signal(signal.SIGCONT)
                until(lambda: len(awake.owned) == 1)
                before = len(rows)
                send(producer, topic)
                until(lambda: len(rows) > before)
                theirs = lambda: {tuple(map(int, row.split())) for row in rows}  # noqa: E731
                until(lambda: {(partition, offset) for partition in range(2) for offset in range(15)} <= set(seen) | theirs())
    finally:
        process.kill()
        process.wait()
        reader.join(SECONDS)
        process.stdout.close()


def everything(count: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(2) for offset in range(count)}


def test_nothing_is_lost_while_zookeeper_is_away_for_longer_than_a_session(
    own_zookeeper_server: ZooKeeperServer, zookeeper: str, cluster: EmbeddedCluster, producer: Producer
) -> None:
    topic = cluster.create_topic("away", partitions=2)
    with ConsumerConnector(settings_of(zookeeper, "one")) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with reading(stream) as seen:
            send(producer, topic)
            until(lambda: set(seen) == everything(5))
            own_zookeeper_server.stop()
            until(lambda: connector.owned == [])
            send(producer, topic)
            own_zookeeper_server.start()
            until(lambda: set(seen) == everything(10))


def test_nothing_is_lost_when_a_leader_goes_and_comes_back(cluster: EmbeddedCluster, producer: Producer, zookeeper: str) -> None:
    topic = cluster.create_topic("gone", partitions=2, replication_factor=2)
    with ConsumerConnector(settings_of(zookeeper, "one")) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with reading(stream) as seen:
            send(producer, topic)
            until(lambda: set(seen) == everything(5))
            leader = cluster.leader(topic, 0)
            cluster.stop_broker(leader)
            send(producer, topic)
            until(lambda: set(seen) == everything(10))
            cluster.start_broker(leader)
            send(producer, topic)
            until(lambda: set(seen) == everything(15))


def test_partitions_that_are_added_are_shared_out_and_read(cluster: EmbeddedCluster, producer: Producer, zookeeper: str) -> None:
    topic = cluster.create_topic("growing", partitions=1)
    with (
        ConsumerConnector(settings_of(zookeeper, "one")) as one,
        ConsumerConnector(settings_of(zookeeper, "two")) as two,
    ):
        (first,) = one.create_message_streams({topic: 1})[topic]
        (second,) = two.create_message_streams({topic: 1})[topic]
        with reading(first) as seen, reading(second) as too:
            producer.send(topic, [b"x"] * 5, partition=0)
            until(lambda: {(0, offset) for offset in range(5)} == {*seen, *too})
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            admin.create_partitions([NewPartitions(topic, 4)])[topic].result(SECONDS)
            with Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as anew:
                for partition in range(1, 4):
                    anew.send(topic, [b"x"] * 5, partition=partition)
            until(lambda: {(partition, offset) for partition in range(4) for offset in range(5)} == {*seen, *too})
            until(lambda: len(one.owned) == len(two.owned) == 2)


def test_nothing_is_lost_and_all_is_owned_through_a_rolling_restart(cluster: EmbeddedCluster, producer: Producer, zookeeper: str) -> None:
    topic = cluster.create_topic("rolling", partitions=2, replication_factor=2)
    with ConsumerConnector(settings_of(zookeeper, "one")) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with reading(stream) as seen:
            for round_, broker_id in enumerate((1, 2)):
                cluster.stop_broker(broker_id)
                send(producer, topic)
                cluster.start_broker(broker_id)
                until(lambda: all(cluster.isr(topic, partition) == [1, 2] for partition in range(2)))
                send(producer, topic)
                until(lambda: set(seen) == everything(10 * (round_ + 1)))  # noqa: B023
            until(lambda: len(connector.owned) == 2)


@pytest.mark.parametrize("cut", [Cut.RESET, Cut.DROPPED])
def test_a_consumer_that_is_cut_off_from_brokers_alone_keeps_its_partitions_and_goes_on(zookeeper: str, cut: Cut) -> None:
    """Its session lives and it commits, so its claims stay. The proxy before the broker knows who connects: the producer came first."""
    wires, sender = Wires(), _PRODUCER
    directions = {(_CONSUMER, _BROKER), (_BROKER, _CONSUMER)}
    proxy = Proxy(wires, _BROKER, 0, lambda peer, port: sender)
    with LoopThread("proxy") as loop:

        async def change(wire: Callable[[set[tuple[int, int]], Cut], None]) -> None:
            wire(directions, cut)

        loop.call(proxy.start(), SECONDS)
        settings = {
            "zookeeper.connect": zookeeper,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
        }
        try:
            with EmbeddedCluster(settings=settings) as cluster, ExitStack() as stack:
                proxy.target_port = int(cluster.address("PLAINTEXT").rpartition(":")[2])
                topic = cluster.create_topic("cut", partitions=2)
                producer = stack.enter_context(Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)))
                send(producer, topic)
                sender = _CONSUMER
                look = KazooClient(zookeeper)
                look.start(SECONDS)
                stack.callback(look.stop)
                session_ms = 2 * SESSION_MS
                one = stack.enter_context(ConsumerConnector(settings_of(zookeeper, "one", session_ms)))
                with reading(one.create_message_streams({topic: 1})[topic][0]) as seen:
                    until(lambda: set(seen) == everything(5))

                    def claim() -> int:
                        return int(look.get(f"/consumers/g/owners/{topic}/0")[1].czxid)

                    def commits() -> int:
                        return int(look.get(f"/consumers/g/offsets/{topic}/0")[1].version)

                    claimed, committed = claim(), commits()
                    loop.call(change(wires.cut), SECONDS)
                    send(producer, topic)
                    until(lambda: commits() > committed + 1.5 * session_ms / COMMIT_MS)
                    assert set(seen) == everything(5)
                    loop.call(change(wires.heal), SECONDS)
                    until(lambda: set(seen) == everything(10))
                    assert claim() == claimed
        finally:
            loop.call(proxy.close(), SECONDS)


def test_nothing_is_lost_when_the_ensemble_loses_its_leader_twice(a_zookeeper_to_start: None, tmp_path: Path) -> None:
    """Sessions are the ensemble's, not a server's; while it elects no one can commit, and consumers read on."""
    with Ensemble(tmp_path / "ensemble") as ensemble:
        settings = {"zookeeper.connect": f"{ensemble.connect}/faults", "zookeeper.session.timeout.ms": "20000"}
        with (
            EmbeddedCluster(brokers=2, settings=settings) as cluster,
            Producer(ProducerSettings(broker_list=cluster.bootstrap_servers)) as producer,
            ConsumerConnector(settings_of(f"{ensemble.connect}/faults", "one")) as connector,
        ):
            topic = cluster.create_topic("elected", partitions=2)
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            with reading(stream) as seen:
                for count in (5, 10):
                    send(producer, topic)
                    until(lambda: set(seen) == everything(count))  # noqa: B023
                    leader = ensemble.leader()
                    ensemble.kill(leader)
                    assert ensemble.leader() != leader
                    ensemble.start_member(leader)
                send(producer, topic)
                until(lambda: set(seen) == everything(15))
                look = KazooClient(ensemble.connect)
                look.start(SECONDS)

                def committed() -> list[bytes]:
                    with suppress(OttlaError):  # it may lose its session yet, and with it what it owns
                        connector.commit_offsets()
                    look.retry(look.sync, "/faults")  # the member that it asks may be behind
                    return [look.retry(look.get, f"/faults/consumers/g/offsets/{topic}/{partition}")[0] for partition in range(2)]

                until(lambda: committed() == [b"15", b"15"])
                look.stop()
