"""Asking a cluster of real brokers, and of brokers that lie."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.loops import until
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, servers, two_attempts_only
from tests.unit.wire.fakes import Asked, FakeChannel, api_versions, connecting, one_partition

from ottla.errors import CoordinatorNotAvailable, RequestTimedOut, UnknownTopicOrPartition, UnsupportedVersion, error_of
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import METADATA_VERSIONS, Cluster, ClusterSettings, CoordinatorKind, bootstrap_endpoints


async def test_leader_coordinator_and_controller_are_found_and_asked(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 4, 3)
        topic = await cluster.topic("clicks")
        assert sorted(topic.partitions) == [0, 1, 2, 3] and topic.topic_id is not None
        assert await cluster.controller() in running.running
        leaders = {await cluster.leader(TopicPartition("clicks", number)) for number in range(4)}
        assert leaders <= set(running.running)

        async def ask_for_offsets(coordinator: BrokerId) -> bool:
            answer = await cluster.ask(
                coordinator,
                ApiKey.OFFSET_FETCH,
                (1, 7),
                lambda api: api.build("OffsetFetchRequest", group_id="readers", topics=(), require_stable=False),
            )
            if answer.error_code:
                raise error_of(answer.error_code)  # a coordinator that is still loading is asked again
            return True

        assert await cluster.with_coordinator(CoordinatorKind.GROUP, "readers", ask_for_offsets)

        async def cluster_id(connection: BrokerConnection) -> str:
            api = connection.message(ApiKey.DESCRIBE_CLUSTER, 0, 1)
            body = api.build("DescribeClusterRequest", include_cluster_authorized_operations=False)
            return str((await connection.ask(api, body, 60.0)).cluster_id)

        assert await cluster.with_any(cluster_id) == cluster.metadata.cluster_id


async def test_what_is_not_there_is_said_with_the_brokers_own_error(tmp_path: Path) -> None:
    async with brokers(tmp_path, auto_create_topics_enable="false") as running, cluster_of(running) as cluster:
        with pytest.raises(UnknownTopicOrPartition, match="topic nothing: UnknownTopicOrPartition"):
            await cluster.topic("nothing")
        await create_topic(cluster, "clicks")
        with pytest.raises(UnknownTopicOrPartition, match="clicks-9 is not known"):
            await cluster.leader(TopicPartition("clicks", 9))
        with pytest.raises(UnsupportedVersion, match="serves Metadata in versions 0 to 12; 13 to 13"):
            await cluster.ask(BrokerId(1), ApiKey.METADATA, (13, 13), lambda api: None)


async def test_many_who_want_to_hear_share_one_request_and_hear_what_is_so_now(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    connection = await cluster.any_connection()
    sent = connection._correlation_id
    await asyncio.gather(*(cluster.refresh(("clicks",)) for _ in range(50)), cluster.refresh(()), cluster.refresh(None))
    assert connection._correlation_id - sent == 1
    first = asyncio.ensure_future(cluster.refresh(()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert connection._correlation_id - sent == 2  # it is on its way, so what it says may be old
    await asyncio.gather(first, *(cluster.refresh(("clicks",)) for _ in range(9)))
    assert connection._correlation_id - sent == 3


async def test_requests_share_a_connection_and_are_answered_each_to_its_own(cluster: Cluster) -> None:
    names = [f"topic-{number}" for number in range(20)]
    for name in names:
        await create_topic(cluster, name)
    connections = await asyncio.gather(*(cluster.connection(BrokerId(1)) for _ in range(5)))
    assert len(set(map(id, connections))) == 1

    async def partitions(name: str) -> str:
        answer = await cluster.ask(
            BrokerId(1),
            ApiKey.METADATA,
            (9, 9),
            lambda api: api.build(
                "MetadataRequest",
                topics=[api.build("MetadataRequestTopic", name=name)],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            ),
        )
        return str(answer.topics[0].name)

    assert await asyncio.gather(*map(partitions, names)) == names


async def test_nobody_there_is_said_within_the_time(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running:
        gone = servers(running)
    async with Cluster(gone, ClusterSettings(retry_backoff_seconds=0.01)) as cluster:
        with pytest.raises(ConnectionError, match="no broker answers"):
            await cluster.refresh(())

        async def never(broker_id: BrokerId) -> None:
            raise AssertionError

        with two_attempts_only(cluster), pytest.raises(ConnectionError):
            await cluster.with_coordinator(CoordinatorKind.GROUP, "readers", never)


async def test_the_time_of_all_attempts_ends_while_the_leader_is_looked_up_again() -> None:
    """That asks one broker after the other, each for as long as a connection and an answer may take."""
    cluster = Cluster("127.0.0.1:1")

    attempts = 0

    async def leader() -> BrokerId:
        if attempts:
            await asyncio.Event().wait()
        return BrokerId(1)

    async def refused(broker_id: BrokerId) -> None:
        nonlocal attempts
        attempts += 1
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        async with asyncio.timeout(20):
            await cluster._retried(leader, refused, lambda error: None, 1.0)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        await cluster._retried(leader, refused, lambda error: None, 0.1)


async def test_a_broker_that_was_not_told_of_the_cluster_yet_is_not_believed() -> None:
    """One of Kafka's that has just started names no brokers and no topics; its clients ignore such an answer."""
    is_starting = False

    def answer(asked: Asked) -> bytes | Exception | None:
        if asked.key is ApiKey.API_VERSIONS:
            return api_versions(asked)
        if is_starting:
            return asked.answer(throttle_time=0, brokers=(), cluster_id="c", controller_id=-1, topics=())
        return one_partition(asked, UUID(int=7))

    async with Cluster("broker:9092", connect=connecting(answer)) as cluster:
        await cluster.refresh(None)
        is_starting = True
        with pytest.raises(ConnectionError, match="does not know the cluster yet"):
            await cluster.refresh(None)
        assert set(cluster.metadata.topics) == {"clicks"}
        assert await cluster.leader(TopicPartition("clicks", 0)) == 1


async def test_who_waits_for_a_connection_or_for_metadata_when_all_is_closed_gets_an_error() -> None:
    """And is not cancelled: a task that no one has cancelled would end without a word."""

    async def connect(endpoint: Endpoint) -> FakeChannel:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def never(connection: BrokerConnection) -> None:
        raise AssertionError

    cluster = Cluster("broker:9092", connect=connect)
    refreshing, asking, given_up = map(asyncio.ensure_future, (cluster.refresh(()), cluster.with_any(never), cluster.with_any(never)))
    await until(lambda: cluster._opening)
    given_up.cancel()
    await cluster.close()
    await asyncio.wait([refreshing, asking, given_up])
    assert isinstance(refreshing.exception(), ConnectionError) and isinstance(asking.exception(), ConnectionError)
    assert given_up.cancelled()


async def test_a_close_that_is_given_up_leaves_no_connection_open() -> None:
    """As by a bound of time, while a connection that is being opened ends slowly."""
    channels: list[FakeChannel] = []

    async def connect(endpoint: Endpoint) -> FakeChannel:
        if channels:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(3600)
        channels.append(FakeChannel(lambda asked: api_versions(asked) if asked.key is ApiKey.API_VERSIONS else one_partition(asked, None)))
        return channels[0]

    cluster = Cluster("broker:9092", connect=connect)
    await cluster.refresh(())
    opening = asyncio.ensure_future(cluster.connection(BrokerId(1), "slow"))
    await until(lambda: cluster._opening)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cluster.close(), 0.05)
    assert channels[0].is_lost
    await asyncio.wait([opening])


async def test_what_is_on_its_way_when_a_sasl_session_ends_is_answered() -> None:
    """KIP-368: Kafka's clients say who they are once more, and lose nothing by it. A topic that was being made would be there already."""
    is_slow = False
    slow: list[bytes] = []
    channels: list[FakeChannel] = []

    def answer(asked: Asked) -> bytes | Exception | None:
        if asked.key is ApiKey.API_VERSIONS:
            return api_versions(asked)
        if not is_slow:
            return one_partition(asked, UUID(int=7))
        slow.append(one_partition(asked, UUID(int=7)))
        return None

    async def connect(endpoint: Endpoint) -> FakeChannel:
        channels.append(FakeChannel(answer))
        return channels[-1]

    async def ask(connection: BrokerConnection) -> str:
        api = connection.message(ApiKey.METADATA, 12, 12)
        return str((await connection.ask(api, cluster._metadata_request(api, ()), 60.0)).cluster_id)

    async with Cluster("broker:9092", connect=connect) as cluster:
        await cluster.refresh(())
        connection = await cluster.connection(BrokerId(1))
        is_slow = True
        asking = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0)
        is_slow = False
        connection.expires_at = asyncio.get_running_loop().time()
        assert await cluster.connection(BrokerId(1)) is not connection
        assert not asking.done() and not channels[0].is_lost
        channels[0]._open[-1].set_result(memoryview(slow[0]))
        assert await asking == "c"
        assert channels[0].is_lost and not channels[1].is_lost, "it is closed then"
        connection = await cluster.connection(BrokerId(1))
        is_slow = True
        asking = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0)
        is_slow = False
        connection.expires_at = asyncio.get_running_loop().time()
        await cluster.connection(BrokerId(1))
    with pytest.raises(ConnectionError):
        await asking


async def test_a_coordinator_that_is_not_it_any_more_is_looked_for_again(cluster: Cluster) -> None:
    tried = 0

    async def attempt(coordinator: BrokerId) -> int:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise CoordinatorNotAvailable("not yet")
        return tried

    assert await cluster.with_coordinator(CoordinatorKind.TRANSACTION, "orders", attempt) == 3


async def test_a_coordinator_that_cannot_write_in_time_is_looked_for_again(cluster: Cluster) -> None:
    """One that is cut off from its replicas says that for ever. As Kafka's ConsumerCoordinator, for REQUEST_TIMED_OUT of a commit."""
    named = await cluster.coordinator(CoordinatorKind.GROUP, "readers")
    cluster._coordinators[CoordinatorKind.GROUP, "readers"] = former = BrokerId(7)

    async def attempt(coordinator: BrokerId) -> BrokerId:
        if coordinator == former:
            raise RequestTimedOut("too few replicas have it")
        return coordinator

    assert await cluster.with_coordinator(CoordinatorKind.GROUP, "readers", attempt, timeout_seconds=5) == named


async def test_metadata_is_not_asked_of_a_broker_that_has_not_answered_in_time(tmp_path: Path) -> None:
    """As Kafka's clients ask the least loaded one (NetworkClientTest.testLeastLoadedNode): who waits for a fetch would wait twice."""
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        first = await cluster.any_connection()
        await cluster.refresh(())
        (broker_id,) = (broker.broker_id for broker in cluster.metadata.brokers.values() if broker.port == first.endpoint.port)
        lane = await cluster.connection(broker_id, "lane")
        assert await cluster.any_connection() is first
        api = lane.message(ApiKey.METADATA, *METADATA_VERSIONS)
        with pytest.raises(TimeoutError):
            await lane.ask(api, cluster._metadata_request(api, ()), 0.0)
        second = await cluster.any_connection()
        assert second is not first
        for _ in range(20):
            assert await cluster.any_connection() is second
        await second.close()
        await running.stop_broker(BrokerId(3 - broker_id))
        assert await cluster.any_connection() is first  # there is no other
        await cluster.connection(broker_id, "lane")
        assert await cluster.any_connection() is first


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:9092", (("a", 9092),)),
        (" a:1 , [::1]:2,", (("a", 1), ("::1", 2))),
        ("PLAINTEXT://a:1,SSL://[::1]:2", (("a", 1), ("::1", 2))),
    ],
)
def test_bootstrap_servers_are_read(text: str, found: tuple[tuple[str, int], ...]) -> None:
    assert bootstrap_endpoints(text) == found


@pytest.mark.parametrize("text", ["", "a", "a:", "a:0", "a:65536", "a:b", " , ", "a:" + "9" * 5_000])
def test_bootstrap_servers_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap.servers"):
        bootstrap_endpoints(text)


async def test_a_host_is_reached_by_another_of_its_addresses_when_who_is_at_one_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's NetworkClientTest.testFailedConnectionToFirstAddress (KIP-302): as of a name for all brokers, of which one hangs."""
    reached: list[int] = []

    async def dead(number: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(number)
            writer.close()

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async with brokers(tmp_path) as running, await dead(0) as first, await dead(1) as second:
        port = int(servers(running).rpartition(":")[2])
        places = [first.sockets[0].getsockname(), second.sockets[0].getsockname(), ("127.0.0.1", port)]

        async def addresses(host: str, *_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        async with Cluster("kafka.example:9092", random=Random(1)) as cluster:
            for _ in range(2):
                with pytest.raises(ConnectionError, match="no broker answers"):
                    await cluster.refresh(())
            await cluster.refresh(())
            await cluster._connection(("kafka.example", 9092, "lane"))
            await cluster._connection(("kafka.example", 9092, "another"))
            assert reached == [0, 1], "the address at which someone has answered stays the first"


async def test_who_is_registered_is_asked_before_whom_one_remembers(tmp_path: Path) -> None:
    """An address that brokers have left may be another cluster's by now, which would be taken for the first."""

    class Registered:
        found = ""

        async def bootstrap_servers(self) -> str:
            if not self.found:
                raise ConnectionError("none is known yet")
            return self.found

    registered = Registered()
    async with Cluster(registered) as cluster:
        async with brokers(tmp_path / "former") as former:
            with pytest.raises(ConnectionError, match="none is known yet"):
                await cluster.refresh(())
            address = registered.found = servers(former)
            await cluster.refresh(())
            before = cluster.metadata.cluster_id
        async with brokers(tmp_path / "now") as now, brokers(tmp_path / "other", listeners=f"PLAINTEXT://{address}"):
            registered.found = servers(now)
            await cluster.refresh(())
            async with cluster_of(now) as known:
                await known.refresh(())
                assert before != cluster.metadata.cluster_id == known.metadata.cluster_id
