"""Whole nodes over brokers in this process: elections, forwarding, restarts, snapshots, gRPC, metrics."""

from __future__ import annotations

import asyncio
import base64
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.loops import until
from tests.unit.schema_registry.registries import Client, Reply, record
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, servers
from tests.unit.wire.fakes import Asked, api_versions, connecting, one_partition

from ottla.broker.in_process import InProcessBrokers
from ottla.cli.main import run as ottla
from ottla.clock import SystemClock
from ottla.config.registry import RegistrySettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.interface import SessionEvent
from ottla.errors import NONE, ApiError, ConfigurationError, CorruptMessage, OffsetOutOfRange, OttlaError, UnknownTopicOrPartition
from ottla.model import BrokerId
from ottla.protocol import fetch, produce
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchAnswer
from ottla.protocol.produce import PartitionAnswer
from ottla.record.records import Record as WireRecord
from ottla.record.records import build_batch
from ottla.rpc.channel import RpcChannel
from ottla.rpc.v1 import schema_registry_pb2 as messages
from ottla.rpc.v1 import schema_registry_pb2_grpc as services
from ottla.schema_registry.server import SchemaRegistry, topic_settings
from ottla.schema_registry.state.records import Record
from ottla.schema_registry.store.replaying import TopicChanged
from ottla.schema_registry.store.topic import IDENTITY_SECONDS, UNKNOWN_SECONDS, KafkaTopic, TopicSettings
from ottla.testing.certificates import Authority
from ottla.testing.clock import ManualClock
from ottla.wire.admin import delete_topics
from ottla.wire.cluster import ClusterSettings
from ottla.wire.producing import BatchProducer, ProducerIdentity


@dataclass
class World:
    """Brokers, and what nodes elect their leader by."""

    running: InProcessBrokers
    zookeeper: EmbeddedZooKeeper
    directory: Path
    stack: AsyncExitStack

    async def node(self, *, alone: bool = False, name: str = "", **properties: str) -> SchemaRegistry:
        """Starts a node, which is stopped at the end of the test."""
        given = {
            "listeners": "http://127.0.0.1:0",
            "kafkastore.bootstrap.servers": servers(self.running),
            "kafkastore.topic.replication.factor": "1",
            "kafkastore.timeout.ms": "120000",
            "request.timeout.ms": "120000",
            **({"kafkastore.checkpoint.dir": str(self.directory / name)} if name else {}),
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        registry = SchemaRegistry(RegistrySettings.from_properties(given), None if alone else self.zookeeper.session)
        await registry.start()
        self.stack.push_async_callback(registry.stop)
        return registry


def session_of(node: SchemaRegistry) -> EmbeddedSession:
    """The session that it is elected by."""
    assert node.sessions is not None and isinstance(node.sessions._session, EmbeddedSession)
    return node.sessions._session


@asynccontextmanager
async def world(directory: Path, broker_count: int = 1) -> AsyncIterator[World]:
    async with asyncio.timeout(480), AsyncExitStack() as stack:
        running = await stack.enter_async_context(brokers(directory, broker_count))
        zookeeper = EmbeddedZooKeeper(directory / "registries", SystemClock())
        stack.push_async_callback(zookeeper.close)
        nodes = await stack.enter_async_context(AsyncExitStack())
        yield World(running, zookeeper, directory, nodes)


@pytest.fixture
def found(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return world(tmp_path)


def client_of(registry: SchemaRegistry) -> Client:
    return Client(int(registry.url.rpartition(":")[2]))


async def test_two_nodes_elect_one_forward_to_it_and_go_on_after_it(found: World) -> None:
    first, second = await found.node(), await found.node()
    assert first.leadership.is_leader and not second.leadership.is_leader
    await until(lambda: second.leadership.leader_url == first.url)
    reply = await client_of(second).post("/subjects/a/versions", {"schema": '"int"'})  # forwarded
    assert reply.json["id"] == 1
    there = await client_of(second).get("/schemas/ids/1", X_Registry_Offset=reply.headers["x-registry-offset"])
    assert there.status == 200
    assert (await client_of(second).put("/config/a", {"compatibility": "NONE"})).json == {"compatibility": "NONE"}
    assert (await client_of(second).post("/subjects/a/versions", {"schema": "{"})).code == 42201  # as the leader says it
    await first.stop()
    await until(lambda: second.leadership.is_leader)
    assert await client_of(second).register("b", '"long"') == 2
    assert await client_of(second).register("c", '"int"') == 1
    third = await found.node()
    assert not third.leadership.is_leader, "the lead is sticky"
    assert (await client_of(third).get("/subjects")).json == ["a", "b", "c"]


async def test_two_nodes_of_one_address_are_told_and_writes_go_on_at_the_one_that_leads(
    found: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A copied configuration: to forward to the leader would be to forward to oneself."""
    given: dict[str, Any] = {"host_name": "registry", "host_port": "8081"}
    first, second = await found.node(**given), await found.node(**given)
    assert first.url == second.url == "http://registry:8081" and first.leadership.is_leader

    def client(node: SchemaRegistry) -> Client:
        (listener,) = node._listeners.values()
        return Client(listener.port)

    await until(lambda: "another node leads under the address of this one, http://registry:8081" in caplog.text)
    reply = await client(second).post("/subjects/a/versions", {"schema": '"int"'})
    assert (reply.status, reply.code) == (500, 50004)
    assert await client(first).register("a", '"int"') == 1
    await until(lambda: second.store.state.next_offset == first.store.state.next_offset)
    assert (await client(second).get("/schemas/ids/1")).status == 200
    await first.stop()
    await until(lambda: second.leadership.is_leader)
    assert await client(second).register("b", '"long"') == 2


async def test_a_request_is_forwarded_once_only_and_a_leader_that_does_not_answer_is_told_as_50003(found: World) -> None:
    leader, follower = await found.node(), await found.node()
    await until(lambda: follower.leadership.leader_url)
    reply = await client_of(follower).post("/subjects/a/versions", {"schema": '"int"'}, X_Forward="true")
    assert (reply.status, reply.code) == (500, 50003)
    for listener in leader._listeners.values():
        await listener.close()
    reply = await client_of(follower).post("/subjects/a/versions", {"schema": '"int"'})
    assert (reply.status, reply.code) == (500, 50003)


async def test_a_node_that_must_not_lead_does_not(found: World) -> None:
    observer = await found.node(leader_eligibility="false")
    assert (await client_of(observer).post("/subjects/a/versions", {"schema": '"int"'})).code == 50004
    assert not observer.is_ready
    leader = await found.node()
    await until(lambda: observer.leadership.leader_url == leader.url)
    assert await client_of(observer).register("a", '"int"') == 1 and observer.is_ready


async def test_a_leader_whose_session_ends_stops_and_may_lead_again(found: World) -> None:
    first, second = await found.node(), await found.node()
    await found.zookeeper.expire(session_of(first))
    await until(lambda: second.leadership.is_leader)
    assert await client_of(second).register("a", '"int"') == 1
    await until(lambda: first.leadership.leader_url == second.url)
    assert await client_of(first).register("b", '"long"') == 2


async def test_a_leader_knows_nothing_of_a_session_that_was_silent_for_its_timeout(found: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a session is counted from ZooKeeper's last answer, and not from when the connection was given up."""
    node = await found.node(zookeeper_session_timeout_ms="7200000")
    assert node.leadership.is_leader
    session = session_of(node)
    monkeypatch.setattr(EmbeddedSession, "session_timeout_seconds", 3_600.0)  # as the server granted it
    monkeypatch.setattr(EmbeddedSession, "silent_seconds", 3_600.0)
    session._tell(SessionEvent.SUSPENDED)
    await until(lambda: node.leadership.term_count == 2 and node.leadership.is_leader)  # it lives after all


async def test_a_node_that_must_not_lead_knows_the_leader_again_when_a_session_lives_after_all(
    found: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper counts a session from its beginning when it starts again: it lives, nothing has changed, and no watch fires."""
    leader, observer = await found.node(), await found.node(leader_eligibility="false")
    await until(lambda: observer.leadership.leader_url == leader.url)
    session = session_of(observer)
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedSession, "silent_seconds", 3_600.0)
        session._tell(SessionEvent.SUSPENDED)
    seen: list[str | None] = []
    observer.leadership._changed = lambda: seen.append(observer.leadership.leader_url)
    await until(lambda: None in seen)
    session._tell(SessionEvent.CONNECTED)
    await until(lambda: observer.leadership.leader_url == leader.url)
    assert await client_of(observer).register("a", '"int"') == 1


async def test_too_few_replicas_in_sync_are_a_write_that_the_topic_does_not_take_in_time(tmp_path: Path) -> None:
    """NOT_ENOUGH_REPLICAS is tried again until `kafkastore.timeout.ms`, and then it is 50002 as any write that takes too long."""
    async with world(tmp_path, broker_count=2) as found:
        async with cluster_of(found.running) as cluster:
            await create_topic(cluster, "_schemas", 1, 2, **{"cleanup.policy": "compact", "min.insync.replicas": "2"})
        node = await found.node(kafkastore_timeout_ms="2000")
        client = client_of(node)
        while (first := await client.post("/subjects/a/versions", {"schema": '"int"'})).status != 200:
            assert first.code == 50002, first
        await found.running.stop_broker(BrokerId(2))
        refused = await client.post("/subjects/b/versions", {"schema": '"long"'})
        assert (refused.status, refused.code) == (500, 50002), refused
        assert (await client.get("/schemas/ids/1")).status == 200
        assert await client.register("a", '"int"') == 1  # it is there, and nothing has to be written
        await found.running.start_broker(BrokerId(2))
        while (reply := await client.post("/subjects/b/versions", {"schema": '"long"'})).status != 200:
            assert reply.code == 50002, reply
        assert reply.json["id"] == 2 and node.store.fault == ""


async def test_registrations_go_on_while_the_lead_changes_and_no_id_is_given_twice(found: World) -> None:
    """Clients ask again after an error of the class 500, at any node, until they have an id."""
    nodes = [await found.node() for _ in range(3)]
    ids: dict[str, int] = {}

    async def register(number: int) -> None:
        for turn in range(8):
            name = f"s-{number}-{turn}"
            schema = {"schema": str(record(f"R_{number}_{turn}", "a")).replace("'", '"')}
            for attempt in itertools.count():
                try:
                    reply = await client_of(nodes[(number + attempt) % 3]).post(f"/subjects/{name}/versions", schema)
                except OSError:
                    continue
                if reply.status == 200:
                    ids[name] = reply.json["id"]
                    break
                assert reply.status == 500, reply
                await asyncio.sleep(0.02)

    clients = [asyncio.ensure_future(register(number)) for number in range(6)]
    for _ in range(3):
        await asyncio.sleep(0.3)
        leader = next((node for node in nodes if node.leadership.is_leader), None)
        if leader is not None and leader.sessions is not None and leader.sessions._session is not None:
            await found.zookeeper.expire(session_of(leader))
    await asyncio.gather(*clients)
    assert len(ids) == 48 and len(set(ids.values())) == 48
    for node in nodes:
        await node.store.wait_for(max(other.store.state.next_offset for other in nodes))
        state = node.store.state
        assert state.conflict_count == 0
        assert {name: state.versions(name)[0].id for name in ids} == ids
    assert max(ids.values()) == 48, "ids are contiguous"


async def test_a_restart_has_everything_with_a_snapshot_and_without(found: World, tmp_path: Path) -> None:
    first = await found.node(alone=True, name="one", kafkastore_checkpoint_records="3")
    client = client_of(first)
    for number, kind in enumerate(("int", "long", "string", "bytes", "float"), 1):
        assert await client.register(f"s{number}", f'"{kind}"') == number
    await until(lambda: first.snapshot_offset > 3)
    await client.delete("/subjects/s5")
    await client.delete("/subjects/s5?permanent=true")
    await first.stop()
    path = tmp_path / "one" / "_schemas.snapshot"
    assert path.exists()
    with_it = await found.node(alone=True, name="one")
    assert with_it.snapshot_offset > 3
    assert (await client_of(with_it).get("/subjects")).json == ["s1", "s2", "s3", "s4"]
    await with_it.stop()
    path.write_bytes(path.read_bytes()[:-10])
    without = await found.node(alone=True, name="one")
    assert (await client_of(without).get("/subjects")).json == ["s1", "s2", "s3", "s4"]
    assert await client_of(without).register("s6", '"double"') == 6


async def test_a_snapshot_that_cannot_be_written_is_not_said_to_be_there(
    found: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The metric said how far it went all the same, as on a full disk; and where a log begins that has none."""
    (tmp_path / "one").write_bytes(b"no directory")
    node = await found.node(alone=True, name="one", kafkastore_checkpoint_records="2")
    client = client_of(node)
    for number, kind in enumerate(("int", "long"), 1):
        assert await client.register(f"s{number}", f'"{kind}"') == number
    await until(lambda: "_schemas.snapshot cannot be written" in caplog.text)
    assert node.snapshot_offset == 0
    (tmp_path / "one").unlink()
    assert await client.register("s3", '"string"') == 3
    assert await client.register("s4", '"bytes"') == 4
    await until(lambda: node.snapshot_offset > 3)


async def test_what_the_settings_say_of_validation_holds_where_no_config_does(found: World) -> None:
    """Also in a state that comes from a snapshot."""
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": null}]}'
    reserving = {"schema": text, "metadata": {"properties": {"confluent:reserved": "a"}}}
    first = await found.node(alone=True, name="one")
    assert (await client_of(first).post("/subjects/s/versions", {"schema": text})).code == 42201
    await client_of(first).put("/config/t", {"validateNewSchemas": True})
    await first.stop()
    client = client_of(await found.node(alone=True, name="one", schema_validate_fields="true", schema_validate_new_schemas="false"))
    assert await client.register("s", text) == 1
    assert (await client.post("/subjects/s/versions", reserving)).code == 409
    assert (await client.post("/subjects/t/versions", reserving)).code == 42201


@pytest.mark.parametrize("of", ["CreateTime", "LogAppendTime"])
async def test_the_leader_says_the_time_of_a_version_as_those_do_who_read_it(found: World, of: str) -> None:
    """It takes what it wrote without reading it, and a broker may give records a time of its own."""
    async with cluster_of(found.running) as cluster:
        await create_topic(cluster, "_schemas", cleanup_policy="compact", message_timestamp_type=of)
    leader, other = await found.node(), await found.node()
    topic = leader.store._topic
    assert isinstance(topic, KafkaTopic)
    topic._clock = ManualClock(1_000_000)
    for subject in "abc":  # the first one it may have read
        await client_of(leader).register(subject, '"int"')
    await other.store.wait_for(leader.store.state.next_offset)
    for subject in "abc":
        times = [(await client_of(node).get(f"/subjects/{subject}/versions/1")).json["ts"] for node in (leader, other)]
        assert times[0] == times[1] and (times[0] == 1_000_000) == (of == "CreateTime")


async def test_a_topic_that_would_lose_schemas_is_not_taken(found: World) -> None:
    async with cluster_of(found.running) as cluster:
        await create_topic(cluster, "_deleted", cleanup_policy="delete")
        await create_topic(cluster, "_wide", partitions=2, cleanup_policy="compact")
        with pytest.raises(ConfigurationError, match=r"cleanup\.policy=delete"):
            await found.node(alone=True, kafkastore_topic="_deleted")
        with pytest.raises(ConfigurationError, match="2 partitions"):
            await found.node(alone=True, kafkastore_topic="_wide")


async def test_a_topic_that_is_deleted_or_made_again_stops_writes_and_not_reads(found: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.schema_registry.store.topic.IDENTITY_SECONDS", 0.05)
    monkeypatch.setattr("ottla.schema_registry.store.topic.UNKNOWN_SECONDS", 0.2)
    assert IDENTITY_SECONDS >= 1
    registry = await found.node(alone=True)
    assert await client_of(registry).register("a", '"int"') == 1
    async with cluster_of(found.running) as cluster:
        assert await delete_topics(cluster, ["_schemas"]) == {}
        await until(lambda: registry.store.fault)
        assert "deleted" in registry.store.fault
    reply = await client_of(registry).post("/subjects/b/versions", {"schema": '"long"'})
    assert (reply.status, reply.code) == (500, 50001)
    assert (await client_of(registry).get("/schemas/ids/1")).status == 200


async def test_a_topic_that_cannot_be_read_in_time_is_named() -> None:
    """Method: a broker that never answers."""
    topic = KafkaTopic(
        TopicSettings("broker:9092", ClusterSettings(), init_timeout_seconds=0.05),
        ManualClock(),
        connect=connecting(lambda asked: api_versions(asked) if asked.key is ApiKey.API_VERSIONS else None),
    )
    with pytest.raises(TimeoutError, match="the topic _schemas cannot be read: timed out"):
        await topic.open()
    await topic.close()


async def test_a_broker_that_does_not_know_the_topic_yet_has_not_lost_it() -> None:
    """It has just started, and the controller has not told it of any topic. Method: a broker that is a function, and a clock."""
    is_known = False
    clock = ManualClock()
    topic = KafkaTopic(
        TopicSettings("broker:9092", ClusterSettings()), clock, connect=connecting(lambda asked: metadata(asked, is_known, UUID(int=7)))
    )
    topic._topic_id = str(UUID(int=7))
    for seconds, is_known in [(20.0, True), (20.0, False), (UNKNOWN_SECONDS - 1, False), (2.0, True), (20.0, False)]:
        clock.advance(seconds=seconds)
        with nullcontext() if is_known else pytest.raises(UnknownTopicOrPartition):
            await topic._check_identity()
    clock.advance(seconds=UNKNOWN_SECONDS)
    with pytest.raises(TopicChanged, match="deleted"):
        await topic._check_identity()
    await topic.close()


async def test_a_broker_that_says_no_id_of_the_topic_has_no_other_one() -> None:
    """Of a cluster that is being updated some say it, and others do not."""
    said: list[UUID | None] = [None, UUID(int=7), None, UUID(int=7)]
    clock = ManualClock()
    topic = KafkaTopic(
        TopicSettings("broker:9092", ClusterSettings()), clock, connect=connecting(lambda asked: metadata(asked, True, said[0]))
    )
    while said:
        clock.advance(seconds=20.0)
        await topic._check_identity()
        del said[0]
    said.append(UUID(int=8))
    clock.advance(seconds=20.0)
    with pytest.raises(TopicChanged, match="made again"):
        await topic._check_identity()
    await topic.close()


async def test_a_leader_that_was_cut_off_has_less_than_was_written_and_the_topic_was_not_cut() -> None:
    """The next leader, of which metadata says nothing yet, acknowledged it (simulation, seed 506448045).

    Method: a broker that is a function.
    """
    leader_epoch = 5

    def answer(asked: Asked) -> bytes | Exception | None:
        match asked.key:
            case ApiKey.API_VERSIONS:
                return api_versions(asked)
            case ApiKey.METADATA:
                return one_partition(asked, UUID(int=7), leader_epoch=leader_epoch)
            case ApiKey.PRODUCE:
                written = [("clicks", [PartitionAnswer(0, NONE, 39)])]
                return produce.encode_response(asked.version, asked.correlation_id, written)[4:]
            case ApiKey.LIST_OFFSETS:
                numbers = {"partition_index": 0, "error_code": NONE, "timestamp": -1, "offset": 38, "leader_epoch": leader_epoch}
                found = asked.schema(
                    "ListOffsetsTopicResponse", name="clicks", partitions=[asked.schema("ListOffsetsPartitionResponse", **numbers)]
                )
                return asked.answer(throttle_time=0, topics=[found])
            case _:
                pieces = fetch.encode_response(asked.version, NONE, 0, [("clicks", [FetchAnswer(0, OffsetOutOfRange.code)])])
                return asked.frame[4:8].tobytes() + b"\0" + b"".join(piece for piece in pieces if isinstance(piece, bytes))

    clock = ManualClock()
    topic = KafkaTopic(TopicSettings("broker:9092", ClusterSettings(), topic="clicks"), clock, connect=connecting(answer))
    topic._producer = BatchProducer(topic._cluster, identity=ProducerIdentity(7, 0))
    assert (await topic.append([Record(b"key", b"value")], ("header", b""))).offset == 39
    with pytest.raises(OffsetOutOfRange):
        await topic.fetch(40)
    leader_epoch = 6
    with pytest.raises(OffsetOutOfRange):
        await topic.fetch(40)
    with pytest.raises(TopicChanged, match=r"\[38, 38\), and 40"):
        await topic.fetch(40)
    await topic.close()


async def test_a_fetched_batch_is_read_when_all_of_it_has_come_and_is_not_damaged() -> None:
    """Kafka's brokers cut an answer at its bound, wherever in a batch that is. Method: an answer that is cut at each byte."""
    given = [memoryview(build_batch([WireRecord(0, 7, b"key", number, ())])).tobytes() for number in (b"1", b"2")]
    answer = memoryview(given[0] + (1).to_bytes(8) + given[1][8:])
    for size in range(len(given[0]), len(answer)):
        assert KafkaTopic._records(answer[:size], 0).next_offset == 1
    assert [record.value for record in KafkaTopic._records(answer, 0).records] == [b"1", b"2"]
    with pytest.raises(CorruptMessage, match="checksum"):
        KafkaTopic._records(memoryview(answer.tobytes().replace(b"key", b"kez")), 0)


def metadata(asked: Asked, is_known: bool, topic_id: UUID | None) -> bytes | Exception | None:
    if asked.key is ApiKey.API_VERSIONS:
        return api_versions(asked)
    assert asked.key is ApiKey.METADATA
    found = asked.schema(
        "MetadataResponseTopic",
        error_code=NONE if is_known else UnknownTopicOrPartition.code,
        name="_schemas",
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
        topic_authorized_operations=0,
    )
    broker = asked.schema("MetadataResponseBroker", node_id=1, host="broker", port=9092, rack=None)
    return asked.answer(throttle_time=0, brokers=[broker], cluster_id="c", controller_id=1, topics=[found])


async def test_a_topic_that_was_made_again_is_another_one(found: World) -> None:
    """Method: the client of the topic alone, which meets the new one before it has seen that the former one was gone."""
    properties = {"listeners": "http://127.0.0.1:0", "kafkastore.bootstrap.servers": servers(found.running)}
    topic = KafkaTopic(topic_settings(RegistrySettings.from_properties(properties)), SystemClock())
    _, first_id, _, _ = await topic.open()
    async with cluster_of(found.running) as cluster:
        await delete_topics(cluster, ["_schemas"])
        async with asyncio.timeout(120):
            while True:
                try:
                    await create_topic(cluster, "_schemas", cleanup_policy="compact")
                    break
                except ApiError:
                    await asyncio.sleep(0.05)
        with pytest.raises(TopicChanged, match=first_id):
            for _ in range(200):
                try:
                    await topic.fetch(0)
                except (ApiError, OSError):
                    await asyncio.sleep(0.05)
                topic._checked_at = 0.0
    await topic.close()


async def test_operators_ask_by_grpc(found: World, tmp_path: Path) -> None:
    registry = await found.node(name="kept", rpc_listener="127.0.0.1:0")
    other = await found.node(rpc_listener="127.0.0.1:0")
    await client_of(registry).register("a", '"int"')
    await client_of(registry).register("b", '"int"')
    channel = RpcChannel(f"127.0.0.1:{registry._rpc_port}")
    try:
        stub = services.SchemaRegistryStub(channel.grpc_channel)
        status = await channel.call(stub.Status, messages.SchemaRegistryStatusRequest(), 120)
        assert status.is_leader and status.leader_url == registry.url == status.url and status.is_ready
        assert (status.subject_count, dict(status.schema_counts), status.epoch) == (2, {"AVRO": 1}, 1)
        written = await channel.call(stub.Snapshot, messages.SnapshotRequest(), 120)
        assert written.path == str(tmp_path / "kept" / "_schemas.snapshot") and written.size_bytes > 0
        assert written.next_offset == registry.store.state.next_offset
        found_wrong = await channel.call(stub.Doctor, messages.DoctorRequest(), 120)
        assert found_wrong == messages.DoctorResponse()
        assert (await channel.call(stub.Resign, messages.ResignRequest(), 120)).did_lead
    finally:
        await channel.close()
    await until(lambda: other.leadership.is_leader and registry.leadership.leader_url == other.url)
    assert await client_of(registry).register("c", '"long"') == 2


@pytest.mark.long
async def test_over_tls_an_operator_is_answered_and_no_one_else_that_the_authority_has_signed(
    found: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority("ours")
    keystore, truststore = authority.write(tmp_path, "registry")

    def doctor(registry: SchemaRegistry, name: str) -> Awaitable[int]:
        command = ["schema", "doctor", "--rpc", f"127.0.0.1:{registry._rpc_port}"]
        if name:
            own, trusted = authority.write(tmp_path, name)
            file = tmp_path / f"{name}.properties"
            file.write_text(f"security.protocol=SSL\nssl.keystore.location={own}\nssl.truststore.location={trusted}\n")
            command += ["--command-config", str(file)]
        return asyncio.get_running_loop().run_in_executor(None, ottla, command)

    registry = await found.node(
        rpc_listener="127.0.0.1:0",
        rpc_security_protocol="SSL",
        rpc_allowed_principals="ann",
        listener_name_rpc_ssl_keystore_location=keystore,
        listener_name_rpc_ssl_truststore_location=truststore,
    )
    assert await doctor(registry, "ann") == 0
    assert await doctor(registry, "some-consumer") == 1
    assert "'some-consumer' is none of rpc.allowed.principals" in capsys.readouterr().err
    assert await doctor(registry, "") == 1


async def test_metrics_and_health(found: World) -> None:
    registry = await found.node(http_listener="127.0.0.1:0")
    assert registry.surface is not None
    probes = Client(registry.surface.port)
    await client_of(registry).register("a", '"int"')
    await client_of(registry).get("/schemas/ids/7")
    assert (await probes.get("/readyz")).json == {"status": "ready", "topic_replayed": True, "leader_known": True}
    text = (await probes.get("/metrics")).content.decode()
    for line in (
        'ottla_registry_requests_total{route="register",status="200"} 1',
        'ottla_registry_requests_total{route="schema_by_id",status="404"} 1',
        'ottla_registry_schemas{type="AVRO"} 1',
        "ottla_registry_is_leader 1",
        "ottla_registry_conflicts_total 0",
        "ottla_registry_write_seconds_count 1",
    ):
        assert line in text, line


async def test_what_cannot_be_reached_is_told_in_time(found: World) -> None:
    with pytest.raises((OttlaError, OSError)):
        await found.node(alone=True, kafkastore_bootstrap_servers="127.0.0.1:1", kafkastore_init_timeout_ms="500")
    registry = await found.node(alone=True)
    port = registry.url.rpartition(":")[2]
    with pytest.raises(OttlaError, match="cannot listen"):
        await found.node(alone=True, listeners=f"http://127.0.0.1:{port}")


async def test_writes_are_forwarded_over_tls_and_with_the_password_that_came(found: World, tmp_path: Path) -> None:
    keystore, truststore = Authority("tests").write(tmp_path, "registry")
    users = tmp_path / "users"
    users.write_text("ada: secret, writer\nbob: secret, reader\n")
    secured: dict[str, Any] = {
        "listeners": "https://127.0.0.1:0",
        "ssl_keystore_location": keystore,
        "ssl_keystore_type": "PEM",
        "ssl_truststore_location": truststore,
        "authentication_method": "BASIC",
        "authentication_file": str(users),
        "authentication_write_roles": "writer",
        "inter_instance_protocol": "https",
    }

    async def ask(registry: SchemaRegistry, path: str, user: str, body: object = None) -> Reply:
        client = Client(client_of(registry).port, ssl.create_default_context(cafile=truststore))
        token = base64.b64encode(f"{user}:secret".encode()).decode()
        return await client.ask("GET" if body is None else "POST", path, body, {"Authorization": f"Basic {token}"})

    leader, follower = await found.node(**secured), await found.node(**secured)
    await until(lambda: follower.leadership.leader_url)
    assert leader.url.startswith("https://")
    schema = {"schema": '"int"'}
    assert (await ask(follower, "/subjects/a/versions", "ada", schema)).json["id"] == 1
    assert (await ask(follower, "/subjects/b/versions", "bob", schema)).status == 403
    assert (await ask(leader, "/schemas/ids/1", "bob")).status == 200
    assert (await ask(leader, "/schemas/ids/1", "eve")).status == 401


async def test_the_topic_is_reached_over_tls(tmp_path: Path) -> None:
    keystore, truststore = Authority("tests").write(tmp_path, "broker")
    tls: dict[str, Any] = {"listeners": "SSL://127.0.0.1:0", "ssl_keystore_location": keystore, "ssl_keystore_type": "PEM"}
    more: dict[str, Any] = {
        "security_inter_broker_protocol": "SSL",
        "ssl_truststore_location": truststore,
        "ssl_truststore_type": "PEM",
    }
    async with asyncio.timeout(120), brokers(tmp_path, **tls, **more) as running, AsyncExitStack() as stack:
        settings = {
            "listeners": "http://127.0.0.1:0",
            "kafkastore.bootstrap.servers": f"SSL://{servers(running)}",
            "kafkastore.security.protocol": "SSL",
            "kafkastore.ssl.truststore.location": truststore,
        }
        registry = SchemaRegistry(RegistrySettings.from_properties(settings))
        await registry.start()
        stack.push_async_callback(registry.stop)
        assert await client_of(registry).register("a", '"int"') == 1


async def test_a_session_that_ends_while_the_lead_is_given_up_makes_no_second_election(found: World) -> None:
    """Two elections of one node would both begin to write. Seed 124 of the simulation's profile `registry` has found it."""
    registry = await found.node()
    assert registry.sessions is not None and registry.sessions._session is not None
    resigning = asyncio.ensure_future(registry.resign())
    await until(lambda: registry.leadership.leader is None)  # from now on it waits a second for another node
    await registry.sessions._session.close()
    joining = asyncio.ensure_future(registry._take_part(await found.zookeeper.session()))
    await asyncio.gather(resigning, joining, return_exceptions=True)
    await until(lambda: registry.leadership.is_leader)
    assert await client_of(registry).register("a", '"int"') == 1
    assert registry.leadership.term_count == 2, "the first one's, and one after it"
