"""Three brokers in one process, with real clients: what people trust Kafka for is that any of them may go at any moment."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.waiting import until

from ottla.broker.coordinator.state_partition import partition_of
from ottla.broker.server import Broker
from ottla.errors import ConfigurationError, CoordinatorNotAvailable
from ottla.testing import EmbeddedCluster
from ottla.testing.cluster import ClusterError
from ottla.testing.zookeeper import ZooKeeperServer

from .clients import QUIET, Publisher, assert_nothing_lost, read_all

ALL = [1, 2, 3]
LONG = pytest.mark.long
SETTINGS = {
    "min.insync.replicas": "2",
    "controlled.shutdown.retry.backoff.ms": "100",
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, settings=SETTINGS) as three:
        three.create_topic("events", replication_factor=3)
        yield three


def whole(cluster: EmbeddedCluster, topic: str = "events") -> None:
    """Waits until all replicas are in sync."""
    until(lambda: cluster.isr(topic) == ALL, f"the ISR of {topic} is {ALL}")


def log_bytes(cluster: EmbeddedCluster, topic: str = "events") -> list[bytes]:
    """What each broker has of the topic's first partition."""
    directories = [cluster.data_directory / f"broker-{broker_id}" / f"{topic}-0" for broker_id in ALL]
    return [b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))) for directory in directories]


def assert_logs_are_equal(cluster: EmbeddedCluster) -> None:
    first, second, third = log_bytes(cluster)
    assert first == second == third


def test_every_broker_has_every_message_and_every_broker_knows_the_cluster(cluster: EmbeddedCluster) -> None:
    with Publisher(cluster, "events") as publisher:
        publisher.more()
    whole(cluster)
    assert_nothing_lost(publisher, read_all(cluster, "events"))
    assert_logs_are_equal(cluster)
    assert log_bytes(cluster)[0]
    for address in cluster.bootstrap_servers.split(","):
        metadata = AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=120)
        assert sorted(metadata.brokers) == ALL
        assert metadata.controller_id == cluster.controller_id
        assert sorted(metadata.topics["events"].partitions[0].isrs) == ALL


def test_the_leader_dies_and_nothing_is_lost(cluster: EmbeddedCluster) -> None:
    with Publisher(cluster, "events") as publisher:
        publisher.more()
        leader = cluster.leader("events")
        cluster.kill(leader)
        publisher.more()
        until(lambda: cluster.leader("events") not in (-1, leader), "the controller has heard of its own decision")
        assert leader not in cluster.isr("events")
        cluster.start_broker(leader)
        whole(cluster)
        publisher.more()
    assert_nothing_lost(publisher, read_all(cluster, "events"))
    whole(cluster)
    assert_logs_are_equal(cluster)


@LONG
def test_each_leader_dies_in_turn(cluster: EmbeddedCluster) -> None:
    """Every one of them has led and followed, been truncated and caught up again."""
    with Publisher(cluster, "events") as publisher:
        for _ in range(4):
            publisher.more()
            leader = cluster.leader("events")
            cluster.kill(leader)
            publisher.more()
            cluster.start_broker(leader)
            whole(cluster)
    assert_nothing_lost(publisher, read_all(cluster, "events"))
    assert_logs_are_equal(cluster)


def test_the_controller_dies_and_another_goes_on(cluster: EmbeddedCluster) -> None:
    with Publisher(cluster, "events") as publisher:
        publisher.more()
        former = cluster.controller_id
        cluster.kill(former)
        until(lambda: cluster.controller_id not in (-1, former), "another controller")
        publisher.more()
        cluster.create_topic("made-afterwards", replication_factor=2)
        until(lambda: len(cluster.isr("made-afterwards")) == 2, "the controller has heard of its own decision")
        cluster.start_broker(former)
        whole(cluster)
    assert_nothing_lost(publisher, read_all(cluster, "events"))


def broker_epoch(cluster: EmbeddedCluster, broker_id: int) -> int:
    return cluster._broker(broker_id).parts.controller.registered_epoch


@pytest.mark.parametrize("whose", [pytest.param("the leader", marks=LONG), pytest.param("the controller", marks=LONG), "every broker"])
def test_sessions_that_time_out_lose_nothing(cluster: EmbeddedCluster, whose: str) -> None:
    """A broker without a session stops leading at once, as others lead by then, and joins again; its process lives on."""
    with Publisher(cluster, "events") as publisher:
        publisher.more()
        if whose == "every broker":
            for broker_id in ALL:
                cluster.expire_session(broker_id)
        elif whose == "the leader":
            # The same one may lead on: where it was the controller too, and has registered again before the next one looks.
            leader = cluster.leader("events")
            epoch = broker_epoch(cluster, leader)
            cluster.expire_session(leader)
            until(lambda: broker_epoch(cluster, leader) > epoch and cluster.leader("events") != -1, "another registration, and a leader")
        else:
            former = cluster.controller_id
            cluster.expire_session(former)
            until(lambda: cluster.controller_id not in (-1, former), "another controller")
        publisher.more()
        whole(cluster)
        publisher.more()
    assert_nothing_lost(publisher, read_all(cluster, "events"))
    whole(cluster)
    assert_logs_are_equal(cluster)


@LONG
def test_a_rolling_restart_is_not_noticed(cluster: EmbeddedCluster) -> None:
    """One after the other stops cleanly, hands over before, and is back in sync before the next one goes."""
    with Publisher(cluster, "events") as publisher:
        for broker_id in ALL:
            publisher.more()
            cluster.stop_broker(broker_id)
            until(lambda: cluster.leader("events") not in (-1, broker_id), "another leader")  # noqa: B023
            publisher.more()
            cluster.start_broker(broker_id)
            whole(cluster)
    assert_nothing_lost(publisher, read_all(cluster, "events"))


def test_with_too_few_in_sync_nothing_is_acknowledged(cluster: EmbeddedCluster) -> None:
    with Publisher(cluster, "events") as publisher:
        publisher.more()
    leader = cluster.leader("events")
    others = [broker_id for broker_id in ALL if broker_id != leader]
    for other in others:
        cluster.kill(other)
    until(lambda: cluster.isr("events") == [leader], "the leader is alone")
    outcomes: list[int] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "retries": 0, "message.timeout.ms": 120_000, **QUIET}
    )
    producer.produce("events", b"refused", on_delivery=lambda error, _: outcomes.append(error.code() if error else 0))
    producer.flush(120)
    assert outcomes == [confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS]
    for other in others:
        cluster.start_broker(other)
    whole(cluster)
    with Publisher(cluster, "events") as again:
        again.more(1)
    assert read_all(cluster, "events")[: len(publisher.acknowledged)] == publisher.acknowledged


def test_all_stop_and_are_back_with_what_they_had(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=3, settings=SETTINGS, data_directory=tmp_path) as cluster:
        cluster.create_topic("events", replication_factor=3)
        before = cluster.bootstrap_servers
        with Publisher(cluster, "events") as publisher:
            publisher.more()
        whole(cluster)
        cluster.restart()
        assert cluster.bootstrap_servers == before
        whole(cluster)
        assert_nothing_lost(publisher, read_all(cluster, "events"))
    with EmbeddedCluster(brokers=3, settings=SETTINGS, data_directory=tmp_path) as cluster:
        until(lambda: cluster.leader("events") != -1, "a leader")
        assert_nothing_lost(publisher, read_all(cluster, "events"))


def test_all_die_at_once_and_are_back_with_what_they_had(cluster: EmbeddedCluster) -> None:
    """As `kill -9` of all processes of a machine that lives on: what was written is in its page cache."""
    with Publisher(cluster, "events") as publisher:
        publisher.more()
    for broker_id in ALL:
        cluster.kill(broker_id)
    for broker_id in ALL:
        cluster.start_broker(broker_id)
    whole(cluster)
    with Publisher(cluster, "events") as again:
        again.more(1)
    assert read_all(cluster, "events")[: len(publisher.acknowledged)] == publisher.acknowledged


def test_what_is_asked_of_a_broker_that_does_not_run() -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.kill(2)
        assert cluster.running_brokers == [1]
        with pytest.raises(ClusterError, match=r"broker 2 is not running; these are: \[1\]"):
            cluster.stop_broker(2)
        with pytest.raises(ClusterError, match="broker 1 is running already"):
            cluster.start_broker(1)


def grouped(cluster: EmbeddedCluster, group: str, count: int) -> list[bytes | None]:
    """So many messages of the topic of events, as a group that begins at the start reads them; what it has read it commits."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings, **QUIET})
    values: list[bytes | None] = []
    try:
        consumer.subscribe(["events"])

        def read() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
            return len(values) == count

        until(read, f"the group {group} has read {count} messages")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def created(cluster: EmbeddedCluster) -> bool:
    """Creates the topic of events; its deletion may take a while where a broker was away."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    try:
        admin.create_topics([NewTopic("events", 1, 3)], operation_timeout=10)["events"].result(120)
    except confluent_kafka.KafkaException:
        return False
    return True


@pytest.mark.parametrize("stops", [False, pytest.param(True, marks=LONG)])
def test_a_first_group_and_a_first_transaction_come_after_a_broker_has_gone(cluster: EmbeddedCluster, stops: bool) -> None:
    """Their topics take three brokers, so they are made before the first one goes."""
    with Publisher(cluster, "events") as publisher:
        publisher.more()
    leader = cluster.leader("events")
    if stops:
        cluster.stop_broker(leader)
    else:
        cluster.kill(leader)
    assert grouped(cluster, "late", len(publisher.acknowledged)) == publisher.acknowledged
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "late", **QUIET})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce("events", b"in a transaction")
    producer.commit_transaction(120)


def test_the_internal_topics_are_both_there_though_a_broker_is_late_to_know_the_first(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, late = Broker.make_internal_topics, iter([True])

    async def make_later(broker: Broker) -> None:
        if next(late, False):
            raise CoordinatorNotAvailable("__consumer_offsets was made and is not known here yet")
        await make(broker)

    monkeypatch.setattr(Broker, "make_internal_topics", make_later)
    cluster.kill(1)
    assert cluster.isr("__consumer_offsets") and cluster.isr("__transaction_state")


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=LONG)])
def test_a_group_reads_a_topic_that_was_deleted_and_made_again_from_its_start(cluster: EmbeddedCluster, restarts: bool) -> None:
    """Also where no coordinator that had the offsets in memory is left when the topic is back."""
    with Publisher(cluster, "events") as publisher:
        publisher.more()
    grouped(cluster, "readers", len(publisher.acknowledged))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    coordinator = cluster.leader("__consumer_offsets", partition_of("readers", 4))
    if restarts:
        cluster.kill(coordinator)
    admin.delete_topics(["events"], operation_timeout=20, request_timeout=120)["events"].result(120)
    if restarts:
        cluster.start_broker(coordinator)
    until(lambda: created(cluster), "the topic is there again")
    if restarts:
        cluster.restart()
    with Publisher(cluster, "events") as again:
        again.more(1)
    few = again.acknowledged[:5]
    assert grouped(cluster, "readers", len(few)) == few


def test_what_cannot_be_handed_over_is_not_asked_for_again_where_all_stop(caplog: pytest.LogCaptureFixture) -> None:
    """Of each two of the three one stops before the other, which then leads what they had. It would ask three times, 5 s apart."""
    caplog.set_level(logging.INFO, "ottla.broker.controller")
    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("pairs", partitions=3, replication_factor=2)
    asked = [record.args for record in caplog.records if record.getMessage().endswith(": controlled shutdown")]
    assert len(asked) == len(set(asked)) == 2
    assert "that no other replica can lead" in caplog.text


def test_a_cluster_of_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 brokers"):
        EmbeddedCluster(brokers=0)


def test_over_a_real_zookeeper_and_grpc(zookeeper_server: ZooKeeperServer) -> None:
    """The same with what they have in production between them."""
    settings = {
        **SETTINGS,
        "zookeeper.connect": f"{zookeeper_server.address}/{uuid4().hex}",
        "zookeeper.session.timeout.ms": "4000",
        "control.listener": "127.0.0.1:0",
    }
    with EmbeddedCluster(brokers=3, settings=settings) as cluster:
        cluster.create_topic("events", replication_factor=3)
        with Publisher(cluster, "events") as publisher:
            publisher.more()
            leader = cluster.leader("events")
            cluster.kill(leader)
            publisher.more()
            cluster.start_broker(leader)
            whole(cluster)
            controller = cluster.controller_id
            cluster.stop_broker(controller)
            until(lambda: cluster.controller_id not in (-1, controller), "another controller")
            publisher.more()
            cluster.start_broker(controller)
            whole(cluster)
        assert_nothing_lost(publisher, read_all(cluster, "events"))
