"""Brokers that call each other over gRPC: each call with what was said, epochs that are checked, and the ways between them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.config.broker import BrokerSettings
from ottla.errors import BrokerNotAvailable, ConfigurationError, NotController, StaleBrokerEpoch, StaleControllerEpoch
from ottla.interbroker.calls import (
    NO_LOG,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    Caller,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    IsrChange,
    IsrMember,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    NewTopic,
    OngoingReassignment,
    PartitionAssignment,
    PartitionOutcome,
    PartitionToStop,
    StopReplicaRequest,
    StopReplicaResponse,
    TransactionAnswer,
    TransactionMarker,
    TransactionQuestion,
    UpdateMetadataRequest,
)
from ottla.interbroker.rpc import BROKER_SERVICE, CONTROLLER_SERVICE, GrpcControl
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition, TransactionNumber
from ottla.rpc.channel import RpcChannel
from ottla.rpc.health import LIVENESS, THE_SERVER, is_serving
from ottla.testing.certificates import Authority

ONE, TWO = BrokerId(1), BrokerId(2)
ORDERS = TopicPartition("orders", 3)
STATE = PartitionState(ONE, 7, (ONE, TWO), (TWO, ONE), 4)
DESCRIPTION = TopicDescription("orders", UUID(int=9), (STATE,))
CALLER = Caller(TWO, 2**40, 4)
PLAIN = {"listeners": "PLAINTEXT://127.0.0.1:0"}


class Recording:
    """Either end of control, which notes what it is asked and answers with what a test says."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answers = answers or {}

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            self.calls.append((method, *arguments))
            answer = self._answers.get(method)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def no_check(_: Caller) -> None:
    """Lets everybody in."""


def transport(properties: Mapping[str, str] = PLAIN, check: Any = no_check) -> GrpcControl:
    return GrpcControl(BrokerSettings.from_properties(properties), "localhost", lambda: CALLER, check)


@asynccontextmanager
async def two_brokers(
    broker: Any = None, controller: Any = None, properties: Sequence[Mapping[str, str]] = (PLAIN, PLAIN), check: Any = no_check
) -> AsyncIterator[tuple[GrpcControl, BrokerRegistration]]:
    """Broker 2's way to others, and the registration of broker 1, which is served."""
    served, calling = transport(properties[0], check), transport(properties[1])
    endpoint = await served.serve(ONE, broker or Recording(), controller or Recording())
    try:
        yield calling, BrokerRegistration(ONE, (Endpoint("PLAINTEXT", "127.0.0.1", 9092),), broker_epoch=5, control_endpoint=endpoint)
    finally:
        await calling.close()
        await served.close()


def test_each_call_to_a_broker_arrives_as_it_was_made_and_is_answered() -> None:
    assignment = PartitionAssignment("orders", UUID(int=9), 3, STATE, 11, (TWO,), (ONE,), True)
    registrations = (BrokerRegistration(TWO, (Endpoint("SSL", "b", 1, "SSL"),), "rack-1", 8, "b:2", 6),)
    leader_and_isr = LeaderAndIsrRequest(ONE, 4, 5, (assignment,), registrations, {"orders": {"retention.ms": "1"}}, None, True)
    metadata = UpdateMetadataRequest(ONE, 4, 5, (assignment,), registrations, ("gone",), {"orders": {"retention.ms": "1"}}, None, True)
    stop = StopReplicaRequest(
        ONE, 4, 5, (PartitionToStop(ORDERS, 7, True, UUID(int=9)), PartitionToStop(TopicPartition("clicks", 1), -2, False))
    )
    marker = TransactionMarker(2**40, 3, True, 9, (ORDERS,), 2**33)
    question = TransactionQuestion("copier", 2**40, 3, (ORDERS,))
    log_ends = LogEndsRequest(ONE, 4, 5, {ORDERS: UUID(int=9), TopicPartition("clicks", 1): UUID(int=8)})
    broker = Recording(
        {
            "leader_and_isr": LeaderAndIsrResponse({ORDERS: 74}, {ORDERS: 2**31 - 2}),
            "log_ends": {ORDERS: LogEnd(2**31 - 1, 2**60), TopicPartition("clicks", 1): NO_LOG},
            "stop_replica": StopReplicaResponse({ORDERS: 0}),
            "write_transaction_marker": {ORDERS: 52},
            "verify_transaction": TransactionAnswer({ORDERS: 48}, TransactionNumber(9, 2**33)),
        }
    )

    async def run() -> None:
        async with two_brokers(broker) as (control, registration):
            remote = control.broker(registration)
            assert await remote.leader_and_isr(leader_and_isr) == LeaderAndIsrResponse({ORDERS: 74}, {ORDERS: 2**31 - 2})
            await remote.update_metadata(metadata)
            assert await remote.stop_replica(stop) == StopReplicaResponse({ORDERS: 0})
            assert await remote.log_ends(log_ends) == {ORDERS: LogEnd(2**31 - 1, 2**60), TopicPartition("clicks", 1): NO_LOG}
            await remote.drain()
            await remote.undrain()
            assert await remote.write_transaction_marker(marker) == {ORDERS: 52}
            assert await remote.verify_transaction(question) == TransactionAnswer({ORDERS: 48}, TransactionNumber(9, 2**33))
        assert broker.calls == [
            ("leader_and_isr", leader_and_isr),
            ("update_metadata", metadata),
            ("stop_replica", stop),
            ("log_ends", log_ends),
            ("drain",),
            ("undrain",),
            ("write_transaction_marker", marker),
            ("verify_transaction", question),
        ]

    asyncio.run(run())


def test_each_call_to_the_controller_arrives_as_it_was_made_and_is_answered() -> None:
    isr_request = AlterPartitionRequest(TWO, 12, (IsrChange(ORDERS, 7, 11, (IsrMember(ONE, 5), IsrMember(TWO))),))
    isr_answer = AlterPartitionResponse(0, {ORDERS: AlteredPartition(0, STATE, 12), TopicPartition("gone", 0): AlteredPartition(3)})
    topic = NewTopic("orders", assignments={0: (ONE, TWO)}, configs={"retention.ms": "1"})
    changes = (ConfigChange("retention.ms", ConfigOperation.DELETE), ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact"))
    outcomes = {ORDERS: PartitionOutcome(84, "it leads already")}
    ongoing = {ORDERS: OngoingReassignment((ONE, TWO), (TWO,), (ONE,))}
    controller = Recording(
        {
            "alter_partition": isr_answer,
            "controlled_shutdown": (ORDERS,),
            "allocate_producer_ids": range(2**40, 2**40 + 1000),
            "create_topic": DESCRIPTION,
            "create_partitions": DESCRIPTION,
            "elect_leaders": outcomes,
            "alter_partition_reassignments": outcomes,
            "list_partition_reassignments": ongoing,
        }
    )

    async def run() -> None:
        async with two_brokers(controller=controller) as (control, registration):
            remote = control.controller(registration)
            assert await remote.alter_partition(isr_request) == isr_answer
            assert await remote.controlled_shutdown(TWO, 12) == (ORDERS,)
            await remote.cancel_controlled_shutdown(TWO, 12)
            assert await remote.allocate_producer_ids(TWO, 12) == range(2**40, 2**40 + 1000)
            assert await remote.create_topic(topic, True, 2.5) == DESCRIPTION
            await remote.delete_topic("orders", 0.25)
            assert await remote.create_partitions("orders", 4, [(ONE,)], True, 3) == DESCRIPTION
            assert await remote.create_partitions("orders", 4) == DESCRIPTION
            await remote.alter_topic_configs("orders", {"retention.ms": "1"}, True)
            await remote.incremental_alter_topic_configs("orders", changes)
            await remote.alter_broker_configs(None, {"log.retention.ms": "1"})
            await remote.alter_broker_configs(BrokerId(0), {"log.retention.ms": "1"}, True)
            await remote.incremental_alter_broker_configs(TWO, changes)
            assert await remote.elect_leaders(ElectionType.UNCLEAN, None, 1) == outcomes
            assert await remote.elect_leaders(ElectionType.PREFERRED, (ORDERS,), 1) == outcomes
            assert await remote.alter_partition_reassignments({ORDERS: (TWO,), TopicPartition("b", 0): None}, 1) == outcomes
            assert await remote.list_partition_reassignments(()) == ongoing
            assert await remote.list_partition_reassignments() == ongoing

    asyncio.run(run())
    assert controller.calls == [
        ("alter_partition", isr_request),
        ("controlled_shutdown", TWO, 12),
        ("cancel_controlled_shutdown", TWO, 12),
        ("allocate_producer_ids", TWO, 12),
        ("create_topic", topic, True, 2.5),
        ("delete_topic", "orders", 0.25),
        ("create_partitions", "orders", 4, ((ONE,),), True, 3),
        ("create_partitions", "orders", 4, None, False, 30),
        ("alter_topic_configs", "orders", {"retention.ms": "1"}, True),
        ("incremental_alter_topic_configs", "orders", changes, False),
        ("alter_broker_configs", None, {"log.retention.ms": "1"}, False),
        ("alter_broker_configs", 0, {"log.retention.ms": "1"}, True),
        ("incremental_alter_broker_configs", TWO, changes, False),
        ("elect_leaders", ElectionType.UNCLEAN, None, 1),
        ("elect_leaders", ElectionType.PREFERRED, (ORDERS,), 1),
        ("alter_partition_reassignments", {ORDERS: (TWO,), TopicPartition("b", 0): None}, 1),
        ("list_partition_reassignments", ()),
        ("list_partition_reassignments", None),
    ]


def test_errors_are_raised_again_at_the_caller() -> None:
    broker = Recording({"leader_and_isr": StaleControllerEpoch("epoch 4 is older than 6")})
    controller = Recording({"delete_topic": NotController("broker 1 is not")})

    async def run() -> None:
        async with two_brokers(broker, controller) as (control, registration):
            with pytest.raises(StaleControllerEpoch, match="epoch 4 is older than 6"):
                await control.broker(registration).leader_and_isr(LeaderAndIsrRequest(ONE, 4, 5, (), ()))
            with pytest.raises(NotController, match="broker 1 is not"):
                await control.controller(registration).delete_topic("orders")

    asyncio.run(run())


def test_every_call_to_the_controller_says_who_calls_and_is_refused_when_that_is_out_of_date() -> None:
    """Every call carries the controller epoch and the broker epoch; stale ones are refused."""
    seen: list[Caller] = []
    controller, broker = Recording(), Recording()

    def refuse(caller: Caller) -> None:
        seen.append(caller)
        raise StaleBrokerEpoch(f"broker {caller.broker_id} has registered anew")

    async def run() -> None:
        async with two_brokers(broker, controller, check=refuse) as (control, registration):
            remote = control.controller(registration)
            calls = [
                remote.alter_partition(AlterPartitionRequest(TWO, 12, ())),
                remote.controlled_shutdown(TWO, 12),
                remote.allocate_producer_ids(TWO, 12),
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
                with pytest.raises(StaleBrokerEpoch, match="broker 2 has registered anew"):
                    await call

    asyncio.run(run())
    # The first three are made under the epoch that they name: what was asked in a former life stays a former life's.
    assert seen == [replace(CALLER, broker_epoch=12)] * 3 + [CALLER] * 11
    assert not controller.calls
    assert not broker.calls


def test_health_follows_what_is_said_of_readiness_and_liveness_does_not() -> None:
    """grpc.health.v1. Before the first word a broker is not ready; other brokers call it all the same."""

    async def run() -> None:
        served = transport()
        endpoint = await served.serve(ONE, Recording(), Recording())
        channel = RpcChannel(endpoint)
        try:
            for is_ready in (False, True, False):
                assert [await is_serving(channel, 20, name) for name in (BROKER_SERVICE, THE_SERVER)] == [is_ready] * 2
                assert [await is_serving(channel, 20, name) for name in (CONTROLLER_SERVICE, LIVENESS)] == [True] * 2
                await served.show_ready(not is_ready)
        finally:
            await channel.close()
            await served.close()
        await served.show_ready(True)  # nobody is there to be told

    asyncio.run(run())


def test_a_broker_that_registered_anew_is_called_where_it_is_now() -> None:
    async def run() -> None:
        async with two_brokers() as (control, registration):
            await control.broker(registration).drain()
            restarted, again = Recording(), transport()
            endpoint = await again.serve(ONE, restarted, Recording())
            now = replace(registration, control_endpoint=endpoint, broker_epoch=6)
            await control.broker(now).drain()
            assert restarted.calls == [("drain",)]
            await again.close()

    asyncio.run(run())


def test_a_broker_that_is_back_at_its_old_address_is_reached_by_the_first_call() -> None:
    """The channel to its former life is in the pause after a failed attempt; the new registration has one of its own."""

    async def run() -> None:
        async with two_brokers() as (control, registration):
            first = transport()
            endpoint = await first.serve(ONE, Recording(), Recording())
            port = endpoint.rpartition(":")[2]
            before = replace(registration, control_endpoint=endpoint)
            await first.close()
            for _ in range(3):
                with pytest.raises(BrokerNotAvailable):
                    await control.broker(before).drain()
            second = transport({**PLAIN, "control.listener": f"127.0.0.1:{port}"})
            await second.serve(ONE, Recording(), Recording())
            await control.broker(replace(before, broker_epoch=6)).drain()
            await second.close()

    asyncio.run(run())


def test_a_broker_without_a_control_endpoint_fails_when_it_is_called() -> None:
    async def run() -> None:
        control = transport()
        registration = BrokerRegistration(ONE, ())
        with pytest.raises(BrokerNotAvailable, match="broker 1 has registered no control endpoint"):
            await control.broker(registration).drain()
        with pytest.raises(BrokerNotAvailable, match="broker 1 has registered no control endpoint"):
            await control.controller(registration).delete_topic("orders")
        await control.close()

    asyncio.run(run())


def test_a_broker_that_is_forgotten_keeps_nobody_waiting() -> None:
    class Endless(Recording):
        async def drain(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()

    async def run() -> None:
        async with two_brokers(Endless()) as (control, registration):
            call = asyncio.ensure_future(control.broker(registration).drain())
            await begun.wait()
            control.forget([ONE])
            with pytest.raises(BrokerNotAvailable):
                await call

    asyncio.run(run())


def test_brokers_with_certificates_of_one_authority_call_each_other_and_others_do_not(tmp_path: Path) -> None:
    """`control.security.protocol=SSL` is mutual. Files for one broker and PEM in the settings for the other."""
    ours, strangers = Authority("ours"), Authority("strangers")
    keystore, truststore = ours.write(tmp_path, "broker-1")
    tls = {**PLAIN, "control.security.protocol": "SSL"}
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

    async def run() -> None:
        async with two_brokers(properties=(one, two)) as (control, registration):
            await control.broker(registration).drain()
        async with two_brokers(properties=(one, stranger)) as (control, registration):
            with pytest.raises(BrokerNotAvailable):
                await control.broker(registration).drain()
        async with two_brokers(properties=(one, PLAIN)) as (control, registration):
            with pytest.raises(BrokerNotAvailable):
                await control.broker(registration).drain()

    asyncio.run(run())


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
