"""A session that expires, over the embedded twin: what stops, what is taken up again, and which broker this is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.loops import until

from ottla.broker import server
from ottla.broker.server import Broker
from ottla.clock import SystemClock
from ottla.config.broker import BrokerSettings
from ottla.coordination import sessions, znodes
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import zookeeper_options
from ottla.errors import ApiError, ConfigurationError
from ottla.interbroker.calls import NewTopic
from ottla.model import NO_LEADER, TopicPartition


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_PAUSE_SECONDS", 0.01)


def settings_for(directory: Path, **properties: str) -> BrokerSettings:
    return BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": f"{directory}/a,{directory}/b", **properties}
    )


class Service:
    """An embedded ZooKeeper that remembers its sessions and can be away."""

    def __init__(self) -> None:
        self.zookeeper = EmbeddedZooKeeper(None, SystemClock())
        self.sessions: list[EmbeddedSession] = []
        self.is_away = False
        self.attempts = 0
        self.operations = 0
        self.fails_at: int | None = None
        self.failure = ""

    async def open(self) -> Coordination:
        self.attempts += 1
        if self.is_away:
            raise ConnectionLoss("no one is there")
        self.sessions.append(await self.zookeeper.session())
        if self.fails_at is not None:
            return cast("Coordination", Fragile(self, self.sessions[-1], self.fails_at, self.failure))
        return self.sessions[-1]

    async def expire(self) -> None:
        await self.zookeeper.expire(self.sessions[-1])


@asynccontextmanager
async def served() -> AsyncIterator[Service]:
    service = Service()
    try:
        async with asyncio.timeout(120):
            yield service
    finally:
        await service.zookeeper.close()


@pytest.fixture
def service() -> AbstractAsyncContextManager[Service]:
    return served()


async def test_after_an_expiry_the_broker_is_registered_and_the_controller_again(service: Service, tmp_path: Path) -> None:
    """A broker that lost its session stops leading at once and re-registers; anyone who is the controller takes the next epoch."""
    broker = Broker(settings_for(tmp_path), service.open)
    await broker.start()
    try:
        controller, metadata = broker.parts.controller, broker.metadata
        kept = TopicPartition("kept", 0)
        topic = await controller.create_topic(NewTopic("kept", 2, 1))
        before = controller.registration
        service.is_away = True
        await service.expire()
        await until(lambda: metadata.controller_id == NO_LEADER)
        assert not broker.parts.replicas.partitions[kept].is_leader
        with pytest.raises(ApiError):
            await controller.create_topic(NewTopic("too-early"), timeout_seconds=0.05)
        service.is_away = False
        await until(lambda: metadata.controller_id == 1 and broker.parts.replicas.partitions[kept].is_leader)
        after = controller.registration
        assert before is not None and after is not None
        assert after.broker_epoch > before.broker_epoch
        assert controller.controller_epoch == 2
        again = metadata.topic("kept")
        assert again is not None and (again.topic_id, len(again.partitions)) == (topic.topic_id, 2)
        await controller.create_topic(NewTopic("afterwards"))
        session = service.sessions[-1]
        for path in (znodes.BROKER.path(1), znodes.CONTROLLER.path()):
            stat = await session.exists(path)
            assert stat is not None and stat.ephemeral_owner == session.session_id
    finally:
        await broker.stop()


async def test_what_other_tools_wrote_meanwhile_is_taken_in(service: Service, tmp_path: Path) -> None:
    broker = Broker(settings_for(tmp_path), service.open)
    await broker.start()
    try:
        for name in ("kept", "deleted"):
            await broker.parts.controller.create_topic(NewTopic(name))
        service.is_away = True
        await service.expire()
        await until(lambda: broker.metadata.controller_id == NO_LEADER)
        tool = await service.zookeeper.session()
        await tool.create(znodes.TOPIC.path("found"), b'{"version":1,"partitions":{"0":[1]}}')
        await tool.create(znodes.DELETE_TOPIC.path("deleted"))
        await tool.set(znodes.TOPIC_CONFIG.path("kept"), b'{"version":1,"config":{"retention.ms":"7"}}')
        service.is_away = False
        await until(lambda: [topic.name for topic in broker.metadata.topics()] == ["found", "kept"])
        await until(lambda: broker.parts.replicas.get("kept", 0).log.settings.retention_ms == 7)
    finally:
        await broker.stop()


class Fragile:
    """A session that meets a failure at one of its operations, counted over all sessions of a broker's start."""

    def __init__(self, service: Service, session: EmbeddedSession, fails_at: int, failure: str) -> None:
        self._service = service
        self._session = session
        self._fails_at = fails_at
        self._failure = failure

    def __getattr__(self, name: str) -> object:
        operation = getattr(self._session, name)
        if name not in ("create", "get", "get_many", "set", "delete", "exists", "children", "transaction"):
            return operation

        async def perform(*arguments: object, **keywords: object) -> object:
            self._service.operations += 1
            if self._service.operations == self._fails_at:
                if self._failure == "expires":
                    await self._service.zookeeper.expire(self._session)
                elif self._failure == "loses the answer":
                    await operation(*arguments, **keywords)
                    raise ConnectionLoss("the answer is lost")
                else:
                    raise ConnectionLoss("the request is lost")
            return await operation(*arguments, **keywords)

        return perform


@pytest.mark.parametrize("failure", ["expires", "loses the answer", "loses the request"])
async def test_a_session_that_fails_while_the_broker_starts_makes_for_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Found by killing brokers while ZooKeeper restarts. Method: at every third operation of a start in turn, until one needs fewer."""
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.01)
    for fails_at in itertools.count(1, 3):
        async with served() as service:
            service.fails_at, service.failure = fails_at, failure
            broker = Broker(settings_for(tmp_path / str(fails_at)), service.open)
            await broker.start()
            try:
                await until(lambda broker=broker: broker.metadata.controller_id == 1)  # type: ignore[misc]  # mypy infers no type of a default
            finally:
                service.fails_at = None
                await broker.stop()
        if service.operations < fails_at:
            break
    assert service.operations > 15


async def test_a_service_that_is_there_and_loses_every_session_is_waited_for_and_one_that_is_not_there_is_not(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's client has `zookeeper.connection.timeout.ms` to connect, and then retries for as long as it takes.

    Method: the clock of the broker continues by an hour with each session.
    """
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.01)

    class Hours(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + 3600 * len(service.sessions)

    async def fails_four_times() -> Coordination:
        service.operations = 0
        service.fails_at = 3 if len(service.sessions) < 4 else None
        return await service.open()

    service.failure = "expires"
    broker = Broker(settings_for(tmp_path), fails_four_times, clock=Hours())
    await broker.start()
    assert len(service.sessions) == 5
    await broker.stop()
    service.is_away = True
    with pytest.raises(ConnectionLoss, match="no one is there"):
        await Broker(settings_for(tmp_path), service.open).start()


async def test_it_tries_on_for_as_long_as_the_service_is_away_and_stops_when_asked_to(service: Service, tmp_path: Path) -> None:
    broker = Broker(settings_for(tmp_path), service.open)
    await broker.start()
    service.is_away = True
    await service.expire()
    await until(lambda: service.attempts > 5)
    await broker.stop()


async def test_a_session_that_expires_while_the_broker_joins_again_is_replaced_too(service: Service, tmp_path: Path) -> None:
    broker = Broker(settings_for(tmp_path), service.open)
    await broker.start()
    try:
        for _ in range(5):
            seen = len(service.sessions)
            await service.expire()
            await until(lambda seen=seen: len(service.sessions) > seen)  # type: ignore[misc]
        await until(lambda: broker.metadata.controller_id == 1)
        stat = await service.sessions[-1].exists(znodes.CONTROLLER.path())
        assert stat is not None and stat.ephemeral_owner == service.sessions[-1].session_id
    finally:
        await broker.stop()


async def test_another_cluster_in_the_same_place_is_not_joined(service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Someone emptied ZooKeeper: to join what is there now would delete every topic."""
    broker = Broker(settings_for(tmp_path), service.open)
    await broker.start()
    try:
        await broker.parts.controller.create_topic(NewTopic("kept"))
        service.is_away = True
        await service.expire()
        former, service.zookeeper = service.zookeeper, EmbeddedZooKeeper(None, SystemClock())
        await former.close()
        service.is_away = False
        await until(lambda: "the coordination service holds cluster" in caplog.text)
        assert broker.metadata.topic("kept") is not None
    finally:
        await broker.stop()


async def test_a_broker_without_an_id_makes_one_and_keeps_it(service: Service, tmp_path: Path) -> None:
    """`broker.id.generation.enable`: above reserved.broker.max.id, from /brokers/seqid, kept in meta.properties."""
    for name, expected in (("first", 1001), ("second", 1002), ("first", 1001)):
        broker = Broker(settings_for(tmp_path / name, **{"broker.id": "-1"}), service.open)
        await broker.start()
        try:
            assert list(broker.metadata.brokers) == [expected]
            await broker.parts.controller.alter_broker_configs(None, {"log.retention.ms": "99"})
        finally:
            await broker.stop()
        assert f"broker.id={expected}\n" in (tmp_path / name / "a" / "meta.properties").read_text()


async def test_directories_of_several_brokers_make_no_broker(service: Service, tmp_path: Path) -> None:
    for name, broker_id in (("a", 3), ("b", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(f"version=0\nbroker.id={broker_id}\n")
    with pytest.raises(ConfigurationError, match=r"/a is broker 3's, .*/b is broker 4's"):
        await Broker(settings_for(tmp_path, **{"broker.id": "-1"}), service.open).start()


def test_the_properties_become_the_options_of_a_session(tmp_path: Path) -> None:
    options = zookeeper_options(
        settings_for(
            tmp_path,
            **{
                "zookeeper.connect": "a:1,b/chroot",
                "zookeeper.session.timeout.ms": "6000",
                "zookeeper.set.acl": "true",
                "zookeeper.digest.username": "ottla",
                "zookeeper.digest.password": "secret",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.truststore.location": "/ca.pem",
                "zookeeper.ssl.endpoint.identification.algorithm": "",
            },
        )
    )
    assert (options.connect.hosts, options.connect.chroot) == ("a:1,b:2181", "/chroot")
    assert options.session_timeout_seconds == options.connection_timeout_seconds == 6
    assert options.max_in_flight_requests == 10
    assert options.set_acl and options.credentials is not None and options.credentials.password == "secret"
    assert options.tls is not None and options.tls.truststore == Path("/ca.pem") and not options.tls.check_host_name
    assert "secret" not in repr(options)
