"""What a broker does at its first start where Kafka wrote last: it goes on, or it stops and has written nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from tests.unit.takeover.kafka_left import CLEAN, CLUSTER_ID, KAFKAS_BROKER, KafkaLeft, put_znodes

from ottla.broker.groups.commits import Commits
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.server import Broker
from ottla.clock import SystemClock
from ottla.config.broker import BrokerSettings
from ottla.config.connect_string import ConnectString
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import NotAuthorized
from ottla.coordination.interface import Create, Delete
from ottla.coordination.zookeeper import DigestCredentials, ZooKeeperOptions, open_session
from ottla.errors import BrokerNotAvailable
from ottla.model import TopicPartition
from ottla.takeover.cluster import read_cluster
from ottla.takeover.directories import NOTE
from ottla.takeover.first_start import TakeoverStopped
from ottla.testing.zookeeper import ZooKeeperServer

KAFKAS_CONTROLLER = b'{"version":2,"brokerid":2,"timestamp":"1795349579245","kraftControllerEpoch":-1}'


@pytest.fixture
def left(tmp_path: Path) -> KafkaLeft:
    return KafkaLeft.unpack(CLEAN, tmp_path, "znodes.json", "broker-1", "broker-2")


def files_of(directory: Path) -> dict[str, str]:
    """Every file below a directory with its content; an empty lock is no part of it."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


class World:
    """A twin with Kafka's znodes in memory, and one broker at a time."""

    def __init__(self, twin: EmbeddedZooKeeper, tool: EmbeddedSession) -> None:
        self.twin = twin
        self.tool = tool

    async def tree(self) -> dict[str, bytes]:
        """Every znode."""
        found: dict[str, bytes] = {}
        paths = ["/"]
        while paths:
            path = paths.pop()
            found[path] = (await self.tool.get(path))[0]
            paths += [f"{path.rstrip('/')}/{name}" for name in await self.tool.children(path)]
        return found

    async def start(self, settings: BrokerSettings) -> Broker:
        broker = Broker(settings, self.twin.session)
        await broker.start()
        return broker

    async def refused(self, settings: BrokerSettings) -> str:
        """Why the broker does not start, when neither a znode nor a file is others than before."""
        directories = settings.log_directories
        before = await self.tree(), [files_of(directory) for directory in directories]
        with pytest.raises(TakeoverStopped) as stopped:
            await self.start(settings)
        assert (await self.tree(), [files_of(directory) for directory in directories]) == before, "something was written"
        return str(stopped.value)


def run(left: KafkaLeft, scenario: Callable[[World], Awaitable[None]], changes: Mapping[str, bytes | None] = {}) -> None:
    async def main() -> None:
        twin = EmbeddedZooKeeper(None, SystemClock())
        async with asyncio.timeout(120):
            tool = await twin.session()
            await put_znodes(tool, left.znodes, changes)
            await scenario(World(twin, tool))
            await twin.close()

    asyncio.run(main())


# What stops a start: (name, the znodes that are others, what the message says)
IN_ZNODES: list[tuple[str, dict[str, bytes | None], str]] = [
    ("acls", {"/kafka-acl/Topic/orders": b'{"version":1,"acls":[]}'}, "/kafka-acl/Topic/orders"),
    ("acls", {"/kafka-acl-extended/prefixed/Topic/or": b"{}"}, "/kafka-acl-extended/prefixed/Topic/or"),
    ("scram-users", {"/config/users/alice": b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}'}, "/config/users/alice"),
    ("delegation-tokens", {"/delegation_token/tokens/abc": b"{}"}, "/delegation_token/tokens/abc"),
    ("quotas", {"/config/ips/10.0.0.1": b'{"version":1,"config":{"connection_creation_rate":"1"}}'}, "/config/ips/10.0.0.1"),
    (
        "quotas",
        {"/config/users/alice/clients/app": b'{"version":1,"config":{"request_percentage":"1"}}'},
        "/config/users/alice/clients/app",
    ),
    ("migration", {"/migration": b'{"version":0,"kraft_controller_id":3000,"kraft_controller_epoch":1}'}, "/migration"),
    ("tiered-topics", {"/config/topics/plain": b'{"version":1,"config":{"remote.storage.enable":"true"}}'}, "topic plain"),
    ("dynamic-settings", {"/config/brokers/1": b'{"version":1,"config":{"sasl.enabled.mechanisms":"PLAIN"}}'}, "/config/brokers/1"),
    ("dynamic-settings", {"/config/brokers/<default>": b'{"version":1,"config":{"broker.rack":"b"}}'}, "/config/brokers/<default>"),
    ("dynamic-settings", {"/config/topics/plain": b'{"version":1,"config":{"who.knows":"1"}}'}, "topic plain"),
    ("damaged-znodes", {"/brokers/topics/plain": b"{not json"}, "/brokers/topics/plain"),
    ("damaged-znodes", {"/brokers/topics/plain/partitions/0/state": b'{"leader":1}'}, "partitions/0/state"),
    ("protocol-version", {"/feature": b'{"version":1,"status":1,"features":{}}'}, "below 3.3 in Kafka"),
    ("reassignment", {"/admin/reassign_partitions": b'{"version":1,"partitions":7}'}, "/admin/reassign_partitions"),
    (
        "deletion",
        {"/admin/delete_topics/plain": b"", "/brokers/topics/plain": b"{not json"},
        "/admin/delete_topics/plain",
    ),
]


@pytest.mark.parametrize(("name", "changes", "says"), IN_ZNODES)
def test_what_cannot_be_honoured_stops_the_start_and_nothing_is_written(
    left: KafkaLeft, name: str, changes: dict[str, bytes | None], says: str
) -> None:
    """Issue 20: 'Never weaker than before'; each is named with its path."""

    async def scenario(world: World) -> None:
        message = await world.refused(left.settings())
        line = next(line for line in message.splitlines() if line.startswith(f"  {name}: "))
        assert says in line
        assert f"takeover.accept={name}" in line

    run(left, scenario, changes)


@pytest.mark.parametrize("name", ["acls", "dynamic-settings", "tiered-topics", "damaged-znodes"])
def test_what_is_accepted_by_name_is_given_up_and_written_down(left: KafkaLeft, name: str, caplog: pytest.LogCaptureFixture) -> None:
    changes = next(changes for each, changes, _ in IN_ZNODES if each == name)

    async def scenario(world: World) -> None:
        with caplog.at_level(logging.WARNING):
            broker = await world.start(left.settings(takeover_accept=f"quotas,{name}"))
        await broker.stop()
        note = json.loads((left.log_directory(1) / NOTE).read_bytes())
        assert note["accepted"] == sorted(["quotas", name])
        assert f"given up: {name}: " in caplog.text

    run(left, scenario, changes)


def test_it_is_checked_once_and_again_when_kafka_was_the_controller_in_between(left: KafkaLeft) -> None:
    """The epoch of the controller tells: Kafka takes the next one, and says nothing of it below `/ottla`."""
    acls = "/kafka-acl/Topic/orders"

    async def scenario(world: World) -> None:
        broker = await world.start(left.settings(takeover_accept="quotas"))
        await broker.stop()
        assert znodes.decode_own_epochs("/ottla", (await world.tool.get("/ottla"))[0]) == znodes.OwnEpochs(4, 4)
        await world.tool.create(acls, b"{}", make_parents=True)
        broker = await world.start(left.settings())  # not even the quota is looked at
        await broker.stop()
        assert znodes.decode_own_epochs("/ottla", (await world.tool.get("/ottla"))[0]) == znodes.OwnEpochs(4, 5)
        await world.tool.set("/controller_epoch", b"6")
        message = await world.refused(left.settings(takeover_accept="quotas"))
        assert acls in message
        assert "quotas" not in message
        await world.tool.delete(acls)
        broker = await world.start(left.settings(takeover_accept="quotas"))
        await broker.stop()
        assert znodes.decode_own_epochs("/ottla", (await world.tool.get("/ottla"))[0]) == znodes.OwnEpochs(7, 7)
        assert json.loads((left.log_directory(1) / NOTE).read_bytes())["since_controller_epoch"] == 7

    run(left, scenario)


async def test_a_cluster_of_our_own_is_not_looked_at(tmp_path: Path) -> None:
    """Nothing is written down, and an ACL that a tool wrote stops no one, as before."""
    twin = EmbeddedZooKeeper(None, SystemClock())
    world = World(twin, await twin.session())
    settings = BrokerSettings.from_properties({"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "log")})
    for _ in range(2):
        await (await world.start(settings)).stop()
        await world.tool.create("/kafka-acl/Topic/orders/", sequential=True, make_parents=True)
    assert not (tmp_path / "log" / NOTE).exists()
    await twin.close()


async def test_znodes_that_kafka_keeps_from_others_end_the_look_with_what_to_do(zookeeper_server: ZooKeeperServer) -> None:
    """With `zookeeper.set.acl` none but who made it reads `/config/users` (`ZkData.SensitiveRootPaths`); it was a bare NoAuthError."""
    address = ConnectString.parse(f"{zookeeper_server.address}/{uuid4().hex}")
    kafka = await open_session(ZooKeeperOptions(address, credentials=DigestCredentials("kafka", "secret"), set_acl=True))
    await kafka.create("/config/users", make_parents=True)
    ours = await open_session(ZooKeeperOptions(address))
    with pytest.raises(NotAuthorized, match=r"^/config/users: .*zookeeper\.set\.acl.*zookeeper-security-migration\.sh"):
        await read_cluster(ours)
    assert (await read_cluster(kafka)).kept_elsewhere == {}
    await ours.close()
    await kafka.close()


def test_a_live_broker_of_kafka_stops_every_start(left: KafkaLeft) -> None:
    """Issue 20: 'does not start, and says which, where, and what to do'. It cannot be accepted."""

    async def scenario(world: World) -> None:
        kafka = await world.twin.session()
        await kafka.create("/brokers/ids/2", KAFKAS_BROKER, ephemeral=True)
        await kafka.create("/controller", KAFKAS_CONTROLLER, ephemeral=True)
        message = await world.refused(left.settings(takeover_accept="quotas,live-brokers"))
        assert "broker 2 (PLAINTEXT://kafka.example:36302). One of them is the controller" in message
        assert "/brokers/ids/2" in message
        assert "stop Kafka's brokers" in message
        await kafka.close()
        broker = await world.start(left.settings(takeover_accept="quotas"))
        await broker.stop()

    run(left, scenario)


def test_a_kraft_controller_that_migrates_the_cluster_stops_every_start(left: KafkaLeft) -> None:
    async def scenario(world: World) -> None:
        kafka = await world.twin.session()
        await kafka.create("/controller", b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":9}', ephemeral=True)
        assert "live-controller: a KRaft controller, 3000" in await world.refused(left.settings(takeover_accept="quotas"))

    run(left, scenario)


def test_a_broker_of_kafka_that_joins_later_is_one_error_and_leads_nothing(left: KafkaLeft, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 20: 'never made a leader or told anything'. Method: every partition of which broker 2 has a replica is looked at."""

    async def scenario(world: World) -> None:
        broker = await world.start(left.settings(1, takeover_accept="quotas"))
        kafka = await world.twin.session()
        with caplog.at_level(logging.ERROR):
            await kafka.create("/brokers/ids/2", KAFKAS_BROKER, ephemeral=True)
            while "broker 2 at PLAINTEXT://kafka.example:36302 is Kafka's" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # Others come and go, and it is looked at again each time.
            other = await world.twin.session()
            await other.create("/brokers/ids/9", KAFKAS_BROKER.replace(b":36302", b":36309"), ephemeral=True)
            while "broker 9 at" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [message for message in caplog.messages if "broker 2 at" in message and "Kafka's" in message] == [
            "broker 2 at PLAINTEXT://kafka.example:36302 is Kafka's and joined this cluster: it leads nothing and is sent nothing, and its"
            " replicas count as offline; stop it, for a cluster is never mixed (docs/coming-from-kafka.md)"
        ]
        assert list(broker.metadata.brokers) == [1]
        leaders = {state.leader for topic in broker.metadata.topics() for state in topic.partitions}
        assert leaders <= {-1, 1}
        await broker.stop()

    run(left, scenario)


@pytest.mark.parametrize("how", ["KRaft's meta.properties", "the log of KRaft's metadata"])
def test_a_directory_of_kafka_in_kraft_mode_is_refused_with_what_to_do(left: KafkaLeft, how: str) -> None:
    directory = left.log_directory(1)
    if how == "KRaft's meta.properties":
        text = f"cluster.id={CLUSTER_ID}\nversion=1\ndirectory.id=0dSWLy2dTl2V9WnkKSmU0w\nnode.id=1\n"
        (directory / "meta.properties").write_text(text)
    else:
        (directory / "__cluster_metadata-0").mkdir()

    async def scenario(world: World) -> None:
        message = await world.refused(left.settings(takeover_accept="quotas,kraft"))
        assert "kraft: Kafka used the directory in KRaft mode" in message
        assert "with the mirror" in message
        assert str(directory) in message

    run(left, scenario)


FOREIGN = {
    "another cluster's": (b"Ns1g21eKQ8OHfovMSnVN8w", b"AAAAAAAAAAAAAAAAAAAAAA", "belongs to cluster AAAAAAAAAAAAAAAAAAAAAA"),
    "another broker's": (b"broker.id=1", b"broker.id=7", "is broker 7's, and broker.id is 1"),
    "damaged": (b"broker.id=1", b"broker.id=one", "broker.id='one' is not a number"),
}


@pytest.mark.parametrize("which", FOREIGN)
def test_a_foreign_or_damaged_directory_is_named_and_nothing_is_written(left: KafkaLeft, which: str) -> None:
    former, now, says = FOREIGN[which]
    path = left.log_directory(1) / "meta.properties"
    path.write_bytes(path.read_bytes().replace(former, now))

    async def scenario(world: World) -> None:
        message = await world.refused(left.settings(takeover_accept="quotas"))
        assert says in message
        assert str(left.log_directory(1)) in message

    run(left, scenario)


def test_segments_of_old_message_formats_stop_the_start_and_cannot_be_accepted(left: KafkaLeft) -> None:
    """A recovery would cut them away. Source of the format: message set version 1, offset:8 size:4 crc:4 magic:1 attributes:1 …"""
    segment = left.log_directory(1) / "codecs-0" / "00000000000000000000.log"
    message = (0).to_bytes(8, "big") + (22).to_bytes(4, "big") + bytes(4) + b"\1" + bytes(17)
    segment.write_bytes(message)

    async def scenario(world: World) -> None:
        text = await world.refused(left.settings(takeover_accept="quotas,message-format"))
        assert f"{segment} (format 1)" in text

    run(left, scenario)


def test_the_only_replica_in_sync_must_not_have_lost_its_disk(left: KafkaLeft) -> None:
    """Broker 2 stopped last and is the whole ISR of every partition: it would begin empty, and have the others cut their logs."""
    shutil.rmtree(left.log_directory(2))

    async def scenario(world: World) -> None:
        message = await world.refused(left.settings(2, takeover_accept="quotas"))
        assert "missing-logs: the log is missing on every broker that is in sync" in message
        assert "/brokers/topics/__consumer_offsets/partitions/0/state" in message
        broker = await world.start(left.settings(1, takeover_accept="quotas"))
        await broker.stop()

    run(left, scenario)


def test_a_file_of_kafka_can_stay_when_what_is_refused_is_accepted_by_name(left: KafkaLeft, caplog: pytest.LogCaptureFixture) -> None:
    """`authorizer.class.name` stops the start with the line, unless it is named; then it is ignored, and a line says so."""
    name = "authorizer.class.name"
    properties = {name: "kafka.security.authorizer.AclAuthorizer", "broker.id": "1", "log.dirs": str(left.log_directory(1))}
    with pytest.raises(Exception, match=r"authorizer\.class\.name cannot be set"):
        BrokerSettings.from_properties(properties)
    settings = BrokerSettings.from_properties({**properties, "listeners": "PLAINTEXT://127.0.0.1:0", "takeover.accept": f"quotas,{name}"})

    async def scenario(world: World) -> None:
        await (await world.start(settings)).stop()
        assert f"{name} is ignored, as takeover.accept says" in caplog.text
        assert json.loads((left.log_directory(1) / NOTE).read_bytes())["accepted"] == [name, "quotas"]

    with caplog.at_level(logging.WARNING):
        run(left, scenario)


def test_kafka_that_becomes_the_controller_is_one_error_and_nothing_is_asked_of_it(
    left: KafkaLeft, caplog: pytest.LogCaptureFixture
) -> None:
    """As when all sessions of Ottla's brokers end at once, and Kafka's broker beside them takes `/controller`."""

    async def scenario(world: World) -> None:
        kafka = await world.twin.session()
        broker = await world.start(left.settings(takeover_accept="quotas"))
        await kafka.create("/brokers/ids/2", KAFKAS_BROKER, ephemeral=True)
        with caplog.at_level(logging.ERROR):
            await kafka.transaction([Delete("/controller"), Create("/controller", KAFKAS_CONTROLLER, ephemeral=True)])
            while "controller 2 is Kafka's" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(BrokerNotAvailable, match="is Kafka's and decides nothing"):
            await broker.parts.controller._locator.find()
        await broker.kill()

    run(left, scenario)


@pytest.mark.parametrize(("release", "version"), [("3.9-IV0", 4), ("3.5", 4), ("3.4-IV0", 3), ("2.8", 3)])
def test_offsets_and_transactions_are_stored_as_the_oldest_release_that_must_read_them_does(
    left: KafkaLeft, release: str, version: int
) -> None:
    """Flexible versions with their tags are read since 3.5 (KIP-915). Method: the last record of the group's partition after a commit."""

    async def scenario(world: World) -> None:
        broker = await world.start(left.settings(takeover_accept="quotas,missing-logs", inter_broker_protocol_version=release))
        settings = broker.parts.groups._partitions._make(TopicPartition("__consumer_offsets", 0), 0)._settings
        assert settings.stores_topic_ids is (version == 4)
        ids = broker.parts.transactions.coordinator._partitions._make(TopicPartition("__transaction_state", 0), 0)
        assert ids._limits.keeps_previous_epochs is (version == 4)
        committed = CommittedOffset(7)
        commits = object.__new__(Commits)
        commits._settings, commits._topics = settings, broker.metadata
        _, records = commits._records("group", {TopicPartition("plain", 0): committed})
        assert int.from_bytes((records[0][1] or b"")[:2], "big") == version
        await broker.stop()

    run(left, scenario)
