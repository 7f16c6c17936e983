"""Brokers that call each other over gRPC: each call with what was said, epochs that are checked, and the ways between them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.unit.interbroker.callers import Known, admit_all
from tests.unit.rpc.serving import is_serving

from ottla.config.broker import BrokerSettings
from ottla.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    ConfigurationError,
    NotController,
    StaleBrokerEpoch,
    StaleControllerEpoch,
)
from ottla.interbroker.calls import (
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    AlterPartitionRequest,
    BrokerControl,
    Caller,
    ConfigResource,
    ControlledShutdownRequest,
    ControllerControl,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DrainRequest,
    ElectionType,
    IncrementalAlterConfigsRequest,
    LeaderAndIsrRequest,
    ListPartitionReassignmentsRequest,
    NewTopic,
)
from ottla.interbroker.rpc import BROKER_SERVICE, CONTROLLER_SERVICE, GrpcControl
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import LIVENESS, THE_SERVER
from ottla.testing.certificates import Authority

ONE, TWO = BrokerId(1), BrokerId(2)
ORDERS = TopicPartition("orders", 3)
STATE = PartitionState(ONE, 7, (ONE, TWO), (TWO, ONE), 4)
DESCRIPTION = TopicDescription("orders", UUID(int=9), (STATE,))
CALLER = Caller(TWO, 2**40, 4)
PLAIN = {"listeners": "PLAINTEXT://127.0.0.1:0"}


class Recording(ControllerControl, BrokerControl):
    """Either end of control, which notes what it is asked and answers with what a test says."""

    def __init__(self, answers: Mapping[type, Any] | None = None) -> None:
        self.calls: list[Any] = []
        self._answers = answers or {}

    async def call(self, request: Any) -> Any:
        self.calls.append(request)
        answer = self._answers.get(type(request))
        if isinstance(answer, Exception):
            raise answer
        return answer


def transport(properties: Mapping[str, str] = PLAIN, check: Any = admit_all) -> GrpcControl:
    return GrpcControl(BrokerSettings.from_properties(properties), "localhost", Known(CALLER, check))


async def serve(transport: GrpcControl, broker: Any, controller: Any) -> str:
    """Serves broker 1, whose ends may be no more than a test needs."""
    return await transport.serve(ONE, broker, controller)


@asynccontextmanager
async def two_brokers(
    broker: Any = None, controller: Any = None, properties: Sequence[Mapping[str, str]] = (PLAIN, PLAIN), check: Any = admit_all
) -> AsyncIterator[tuple[GrpcControl, BrokerRegistration]]:
    """Broker 2's way to others, and the registration of broker 1, which is served."""
    served, calling = transport(properties[0], check), transport(properties[1])
    endpoint = await serve(served, broker or Recording(), controller or Recording())
    try:
        endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
        yield calling, BrokerRegistration(ONE, endpoints, broker_epoch=5, control_endpoint=endpoint, control_secret=served.secret)
    finally:
        await calling.close()
        await served.close()


async def test_a_call_to_the_controller_arrives_with_the_defaults_that_its_caller_left_out() -> None:
    """Every call with everything that it can have is in `test_golden`."""
    controller = Recording({CreateTopicRequest: DESCRIPTION, CreatePartitionsRequest: DESCRIPTION, ListPartitionReassignmentsRequest: {}})
    async with two_brokers(controller=controller) as (control, registration):
        remote = control.controller(registration)
        assert await remote.create_topic(NewTopic("orders")) == DESCRIPTION
        await remote.delete_topic("orders")
        assert await remote.create_partitions("orders", 4) == DESCRIPTION
        await remote.alter_topic_configs("orders", {"retention.ms": "1"})
        await remote.incremental_alter_broker_configs(TWO, ())
        assert await remote.list_partition_reassignments() == {}
    assert controller.calls == [
        CreateTopicRequest(NewTopic("orders"), False, 30),
        DeleteTopicRequest("orders", 30),
        CreatePartitionsRequest("orders", 4, None, False, 30),
        AlterConfigsRequest(ConfigResource("orders"), {"retention.ms": "1"}, False),
        IncrementalAlterConfigsRequest(ConfigResource(broker_id=TWO), (), False),
        ListPartitionReassignmentsRequest(None),
    ]


async def test_errors_are_raised_again_at_the_caller() -> None:
    broker = Recording({LeaderAndIsrRequest: StaleControllerEpoch("epoch 4 is older than 6")})
    controller = Recording({DeleteTopicRequest: NotController("broker 1 is not")})
    async with two_brokers(broker, controller) as (control, registration):
        with pytest.raises(StaleControllerEpoch, match="epoch 4 is older than 6"):
            await control.broker(registration).leader_and_isr(LeaderAndIsrRequest(ONE, 4, 5, (), ()))
        with pytest.raises(NotController, match="broker 1 is not"):
            await control.controller(registration).delete_topic("orders")


async def test_every_call_to_the_controller_says_who_calls_and_is_refused_when_that_is_out_of_date() -> None:
    """Every call carries the controller epoch and the broker epoch; stale ones are refused."""
    seen: list[Caller] = []
    controller, broker = Recording(), Recording()

    def refuse(caller: Caller) -> None:
        seen.append(caller)
        raise StaleBrokerEpoch(f"broker {caller.broker_id} has registered again")

    async with two_brokers(broker, controller, check=refuse) as (control, registration):
        remote = control.controller(registration)
        calls = [
            remote.call(AlterPartitionRequest(TWO, 12, ())),
            remote.call(ControlledShutdownRequest(TWO, 12)),
            remote.call(AllocateProducerIdsRequest(TWO, 12)),
            remote.create_topic(NewTopic("orders")),
            remote.delete_topic("orders"),
            remote.create_partitions("orders", 2),
            remote.alter_topic_configs("orders", {}),
            remote.incremental_alter_topic_configs("orders", ()),
            remote.alter_broker_configs(None, {}),
            remote.incremental_alter_broker_configs(None, ()),
            remote.elect_leaders(ElectionType.PREFERRED, None),
            remote.alter_partition_reassignments({}),
            remote.list_partition_reassignments(),
            control.broker(registration).drain(),
        ]
        for call in calls:
            with pytest.raises(StaleBrokerEpoch, match="broker 2 has registered again"):
                await call
    # The first three are made under the epoch that they name: what was asked in a former life stays a former life's.
    assert seen == [replace(CALLER, broker_epoch=12)] * 3 + [CALLER] * 11
    assert not controller.calls
    assert not broker.calls


async def test_health_follows_what_is_said_of_readiness_and_liveness_does_not() -> None:
    """grpc.health.v1. Before the first word a broker is not ready; other brokers call it all the same."""
    served = transport()
    endpoint = await serve(served, Recording(), Recording())
    channel = RpcChannel(endpoint)
    try:
        for is_ready in (False, True, False):
            assert [await is_serving(channel, 20, name) for name in (BROKER_SERVICE, THE_SERVER)] == [is_ready] * 2
            assert [await is_serving(channel, 20, name) for name in (CONTROLLER_SERVICE, LIVENESS)] == [True] * 2
            await served.show_ready(not is_ready)
    finally:
        await channel.close()
        await served.close()
    await served.show_ready(True)  # no one is there to be told


async def test_a_broker_that_registered_anew_is_called_where_it_is_now() -> None:
    async with two_brokers() as (control, registration):
        await control.broker(registration).drain()
        restarted, again = Recording(), transport()
        endpoint = await serve(again, restarted, Recording())
        now = replace(registration, control_endpoint=endpoint, broker_epoch=6, control_secret=again.secret)
        await control.broker(now).drain()
        assert restarted.calls == [DrainRequest()]
        await again.close()


async def test_a_broker_that_is_back_at_its_old_address_is_reached_by_the_first_call() -> None:
    """The channel to its former life is in the pause after a failed attempt; the new registration has one of its own."""
    async with two_brokers() as (control, registration):
        first = transport()
        endpoint = await serve(first, Recording(), Recording())
        port = endpoint.rpartition(":")[2]
        before = replace(registration, control_endpoint=endpoint)
        await first.close()
        for _ in range(3):
            with pytest.raises(BrokerNotAvailable):
                await control.broker(before).drain()
        second = transport({**PLAIN, "control.listener": f"127.0.0.1:{port}"})
        await serve(second, Recording(), Recording())
        await control.broker(replace(before, broker_epoch=6, control_secret=second.secret)).drain()
        await second.close()


async def test_a_broker_without_a_control_endpoint_fails_when_it_is_called() -> None:
    control = transport()
    registration = BrokerRegistration(ONE, ())
    with pytest.raises(BrokerNotAvailable, match="broker 1 has registered no control endpoint"):
        await control.broker(registration).drain()
    with pytest.raises(BrokerNotAvailable, match="broker 1 has registered no control endpoint"):
        await control.controller(registration).delete_topic("orders")
    await control.close()


async def test_a_broker_that_is_forgotten_keeps_nobody_waiting() -> None:
    class Endless(Recording):
        async def call(self, request: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()
    async with two_brokers(Endless()) as (control, registration):
        call = asyncio.ensure_future(control.broker(registration).drain())
        await begun.wait()
        control.forget([ONE])
        with pytest.raises(BrokerNotAvailable):
            await call


async def test_brokers_with_certificates_of_one_authority_call_each_other_and_others_do_not(tmp_path: Path) -> None:
    """`control.security.protocol=SSL` is mutual. Files for one broker and PEM in the settings for the other."""
    ours, strangers = Authority("ours"), Authority("strangers")
    keystore, truststore = ours.write(tmp_path, "broker-1")
    tls = {**PLAIN, "control.security.protocol": "SSL", "control.allowed.principals": "broker-1,broker-2"}
    one = {**tls, "ssl.keystore.location": keystore, "ssl.truststore.location": truststore}
    key, _, certificate = ours.issue("broker-2").decode().partition("-----BEGIN CERTIFICATE-----")
    prefix = "listener.name.control.ssl."
    two = {
        **tls,
        f"{prefix}keystore.key": key,
        f"{prefix}keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{certificate}",
        f"{prefix}truststore.certificates": ours.pem.decode(),
    }
    stranger_keystore, _ = strangers.write(tmp_path, "stranger")
    stranger = {**tls, "ssl.keystore.location": stranger_keystore, "ssl.truststore.location": truststore}
    async with two_brokers(properties=(one, two)) as (control, registration):
        await control.broker(registration).drain()
    async with two_brokers(properties=(one, stranger)) as (control, registration):
        with pytest.raises(BrokerNotAvailable):
            await control.broker(registration).drain()
    async with two_brokers(properties=(one, PLAIN)) as (control, registration):
        with pytest.raises(BrokerNotAvailable):
            await control.broker(registration).drain()
    consumer_keystore, _ = ours.write(tmp_path, "some-consumer")
    async with two_brokers(properties=(one, {**one, "ssl.keystore.location": consumer_keystore})) as (control, registration):
        with pytest.raises(ClusterAuthorizationFailed, match="'some-consumer' is none of"):
            await control.broker(registration).drain()
    own_name = {**one, "control.allowed.principals": ""}
    async with two_brokers(properties=(own_name, own_name)) as (control, registration):
        await control.broker(registration).drain()
    async with two_brokers(properties=(own_name, two)) as (control, registration):
        with pytest.raises(ClusterAuthorizationFailed):
            await control.broker(registration).drain()


async def test_in_plain_text_a_caller_shows_that_it_has_read_the_registration() -> None:
    """What it shows is read again after it was the wrong one: the broker has registered again since."""
    broker = Recording()
    async with two_brokers(broker) as (control, registration):
        own = cast("Known", control._own)
        own.registered[ONE] = registration
        await control.broker(replace(registration, control_secret=None)).drain()
        stale = control.broker(replace(registration, broker_epoch=9, control_secret="of its last life"))
        with pytest.raises(BrokerNotAvailable):
            await stale.drain()
        await stale.drain()
        assert own.read == [ONE, ONE]
        own.registered.clear()
        with pytest.raises(BrokerNotAvailable):
            await control.broker(replace(registration, broker_epoch=10, control_secret=None)).drain()
        assert len(broker.calls) == 2


async def test_health_is_told_to_everybody_and_what_there_is_to_call_to_those_who_are_let_in() -> None:
    async with two_brokers() as (_, registration):
        assert registration.control_endpoint is not None
        async with grpc.aio.insecure_channel(registration.control_endpoint) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=120)) is not None
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in stub.ServerReflectionInfo(iter([question]), timeout=120):
                    pass
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_keys_that_can_not_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigurationError, match=r"empty\.pem holds no private key"):
        transport(
            {
                **PLAIN,
                "control.security.protocol": "SSL",
                "ssl.keystore.location": str(tmp_path / "empty.pem"),
                "ssl.truststore.location": str(tmp_path / "empty.pem"),
            }
        )


def test_a_broker_that_is_alone_does_not_import_grpc() -> None:
    """It costs a tenth of a second, which `ottla dev` should not take longer to start."""
    names = "ottla.broker.server, ottla.interbroker.calls, ottla.cli.main, ottla.cli.dev, ottla.cli.broker, ottla.testing.cluster"
    program = f"import sys, {names}; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
