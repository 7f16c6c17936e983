"""The bytes of every call between brokers, both ways, as releases before this one send them: `golden.txt` has them in hexadecimal.

A cluster is upgraded broker by broker, so what goes over the wire must stay what it was. Each sample is sent over a real gRPC
connection. The line of a new message is copied from what the failing test prints; a line that is there is not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from tests.unit.interbroker.callers import Known

from ottla.config.broker import BrokerSettings
from ottla.interbroker.calls import (
    NO_LOG,
    AllocateProducerIdsRequest,
    AllReplicas,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerControl,
    Caller,
    CancelControlledShutdownRequest,
    ConfigChange,
    ConfigOperation,
    ControlledShutdownRequest,
    ControllerControl,
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
from ottla.interbroker.rpc import GrpcControl
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition, TransactionNumber
from ottla.rpc.channel import RpcChannel
from ottla.rpc.v1 import broker_pb2, controller_pb2

GOLDEN: Final = Path(__file__).with_name("golden.txt")

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ORDERS, CLICKS, ACCENTED = TopicPartition("orders", 3), TopicPartition("clicks", 0), TopicPartition("nævne", 2**31 - 1)
STATE = PartitionState(ONE, 7, (ONE, TWO), (TWO, ONE, THREE), 4)
NOBODY = PartitionState(BrokerId(-1), 0, (), (TWO,), -1)
REGISTRATIONS = (
    BrokerRegistration(TWO, (Endpoint("SSL", "b", 9093, "SSL"), Endpoint("LOCAL", "::1", 1, "PLAINTEXT")), "rack-1", 2**40, "b:2", 6),
    BrokerRegistration(BrokerId(0), ()),
    BrokerRegistration(THREE, (), "", 1, "", -1),
)
# Neighbours of one topic share a message, a topic of the same name and another id does not, and one that comes again does neither.
ASSIGNMENTS = (
    PartitionAssignment("orders", UUID(int=9), 3, STATE, 11, (TWO, THREE), (ONE,), True),
    PartitionAssignment("orders", UUID(int=9), 0, NOBODY, 0),
    PartitionAssignment("orders", UUID(int=10), 0, STATE, 2),
    PartitionAssignment("clicks", UUID(int=2**128 - 1), 0, STATE, 1),
    PartitionAssignment("orders", UUID(int=9), 4, STATE, 1),
)
CONFIGS = {"orders": {"retention.ms": "1"}, "clicks": {}}
REPLICAS = AllReplicas({"orders": frozenset({7, 3, 0}), "clicks": frozenset()}, frozenset({"z", "a"}))
NAMED = AllReplicas({"orders": frozenset({3})}, topic_ids={"orders": UUID(int=9)})
DESCRIPTION = TopicDescription("orders", UUID(int=9), (STATE, NOBODY))
CHANGES = (
    ConfigChange("retention.ms", ConfigOperation.SET, ""),
    ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact"),
    ConfigChange("a", ConfigOperation.SUBTRACT, "b"),
    ConfigChange("segment.ms", ConfigOperation.DELETE),
)
OUTCOMES = {ORDERS: PartitionOutcome(84, "it leads already"), CLICKS: PartitionOutcome(0)}

# Each call as its method, what the receiver is given, and what it answers.
Sample = tuple[str, tuple[Any, ...], Any]
TO_BROKERS: Final[tuple[Sample, ...]] = (
    ("leader_and_isr", (LeaderAndIsrRequest(ONE, 4, 5, (), ()),), LeaderAndIsrResponse({})),
    (
        "leader_and_isr",
        (LeaderAndIsrRequest(ONE, 4, 2**40, ASSIGNMENTS, REGISTRATIONS, CONFIGS, REPLICAS, True, 2**33),),
        LeaderAndIsrResponse({ORDERS: 74, CLICKS: 0, ACCENTED: -1}, {ORDERS: 2**31 - 2, CLICKS: 0}),
    ),
    ("leader_and_isr", (LeaderAndIsrRequest(ONE, 4, 5, (), (), all_replicas=AllReplicas({})),), LeaderAndIsrResponse({}, {ORDERS: 1})),
    ("leader_and_isr", (LeaderAndIsrRequest(ONE, 4, 5, (), (), all_replicas=NAMED),), LeaderAndIsrResponse({})),
    ("update_metadata", (UpdateMetadataRequest(ONE, 4, 5, (), ()),), None),
    ("update_metadata", (UpdateMetadataRequest(ONE, 4, 5, ASSIGNMENTS, REGISTRATIONS, ("b", "a"), CONFIGS, ("z", "y"), True, 9),), None),
    ("update_metadata", (UpdateMetadataRequest(ONE, 4, 5, (), (), all_topics=()),), None),
    ("stop_replica", (StopReplicaRequest(ONE, 4, 5, ()),), StopReplicaResponse({})),
    (
        "stop_replica",
        (StopReplicaRequest(ONE, 4, -1, (PartitionToStop(ORDERS, 7, True, UUID(int=9)), PartitionToStop(ACCENTED, -2, False)), 3),),
        StopReplicaResponse({ACCENTED: 3, ORDERS: 0}),
    ),
    ("log_ends", (LogEndsRequest(ONE, 4, 5, {}),), {}),
    ("log_ends", (LogEndsRequest(ONE, 4, 5, {ORDERS: UUID(int=9), CLICKS: UUID(int=0)}),), {ORDERS: LogEnd(5, 2**60), CLICKS: NO_LOG}),
    ("drain", (), None),
    ("undrain", (), None),
    ("write_transaction_marker", (TransactionMarker(2**40, 3, True, 9, (ORDERS, CLICKS), 2**33),), {ORDERS: 52, CLICKS: 0}),
    ("write_transaction_marker", (TransactionMarker(0, 0, False, -1, ()),), {}),
    (
        "verify_transaction",
        (TransactionQuestion("copier", 2**40, 3, (ORDERS,)),),
        TransactionAnswer({ORDERS: 48}, TransactionNumber(9, 2**33)),
    ),
    ("verify_transaction", (TransactionQuestion("", 0, 0, ()),), TransactionAnswer({})),
)
TO_THE_CONTROLLER: Final[tuple[Sample, ...]] = (
    (
        "call",
        (AlterPartitionRequest(TWO, 12, (IsrChange(ORDERS, 7, 11, (IsrMember(ONE, 2**40), IsrMember(TWO))), IsrChange(CLICKS, 0, 0, ()))),),
        AlterPartitionResponse(
            0, {ORDERS: AlteredPartition(0, STATE, 12), CLICKS: AlteredPartition(3), ACCENTED: AlteredPartition(0, NOBODY)}
        ),
    ),
    ("call", (AlterPartitionRequest(TWO, 12, ()),), AlterPartitionResponse(41, {})),
    ("call", (ControlledShutdownRequest(TWO, 12),), (ORDERS, CLICKS)),
    ("call", (CancelControlledShutdownRequest(TWO, 13),), None),
    ("call", (AllocateProducerIdsRequest(TWO, 12),), range(2**40, 2**40 + 1000)),
    (
        "create_topic",
        (NewTopic("orders", assignments={0: (ONE, TWO), 1: (THREE,)}, configs={"retention.ms": "1"}), True, 2.5),
        DESCRIPTION,
    ),
    ("create_topic", (NewTopic("nævne", 3, 2), False, 30.0), TopicDescription("nævne", UUID(int=0), ())),
    ("delete_topic", ("orders", 0.25), None),
    ("delete_topic", ("orders", 0.25, UUID(int=7)), None),
    ("create_partitions", ("orders", 4, ((ONE, TWO), ()), True, 3.0), DESCRIPTION),
    ("create_partitions", ("orders", 4, (), False, 3.0), DESCRIPTION),
    ("create_partitions", ("orders", 4, None, False, 0.001), DESCRIPTION),
    ("create_partitions", ("orders", 4, None, False, 0.001, UUID(int=7)), DESCRIPTION),
    ("alter_topic_configs", ("orders", {"retention.ms": "1"}, True), None),
    ("alter_topic_configs", ("", {}, False), None),
    ("incremental_alter_topic_configs", ("orders", CHANGES, False), None),
    ("alter_broker_configs", (None, {"log.retention.ms": "1"}, False), None),
    ("alter_broker_configs", (BrokerId(0), {}, True), None),
    ("incremental_alter_broker_configs", (TWO, CHANGES, True), None),
    ("incremental_alter_broker_configs", (None, (), False), None),
    ("elect_leaders", (ElectionType.UNCLEAN, None, 1.0), OUTCOMES),
    ("elect_leaders", (ElectionType.PREFERRED, (ORDERS, CLICKS), 1.0), {}),
    ("elect_leaders", (ElectionType.PREFERRED, (), 0.0), {}),
    ("alter_partition_reassignments", ({ORDERS: (TWO, ONE), CLICKS: None, ACCENTED: ()}, 1.5), OUTCOMES),
    ("alter_partition_reassignments", ({}, 30.0), {}),
    (
        "list_partition_reassignments",
        (None,),
        {ORDERS: OngoingReassignment((ONE, TWO), (TWO,), (ONE,)), CLICKS: OngoingReassignment((), (), ())},
    ),
    ("list_partition_reassignments", ((),), {}),
    ("list_partition_reassignments", ((ORDERS,),), {}),
)


class Receiver(ControllerControl, BrokerControl):
    """Either end of control, which remembers the last request, and answers with what the sample has."""

    def __init__(self) -> None:
        self.received: Any = None
        self.answer: Any = None

    async def call(self, request: Any) -> Any:
        self.received = request
        return self.answer


def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The lines of the golden file, as they come of every sample."""
    messages: list[Any] = []
    call = RpcChannel.call

    async def watched(self: RpcChannel, method: Any, request: Any, timeout_seconds: float, metadata: Any = ()) -> Any:
        answer = await call(self, method, request, timeout_seconds, metadata)
        messages.extend((request, answer))
        return answer

    monkeypatch.setattr(RpcChannel, "call", watched)

    async def run() -> None:
        settings = BrokerSettings.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0"})
        receiver = Receiver()
        served, calling = (GrpcControl(settings, "localhost", Known(Caller(TWO, 2**40, 4))) for _ in range(2))
        endpoint = await served.serve(ONE, receiver, receiver)
        registration = BrokerRegistration(ONE, (), broker_epoch=5, control_endpoint=endpoint, control_secret=served.secret)
        try:
            for remote, samples in ((calling.broker(registration), TO_BROKERS), (calling.controller(registration), TO_THE_CONTROLLER)):
                for method, arguments, answer in samples:
                    made, receiver.answer = Receiver(), answer
                    await getattr(made, method)(*arguments)
                    assert await getattr(remote, method)(*arguments) == answer
                    assert receiver.received == made.received
        finally:
            await calling.close()
            await served.close()

    asyncio.run(run())
    for message in messages:
        yield f"{message.DESCRIPTOR.name} {message.SerializeToString(deterministic=True).hex()}".rstrip()


def test_every_message_has_the_bytes_that_it_always_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(sent(monkeypatch)) == GOLDEN.read_text(encoding="ascii").splitlines()


def test_no_message_is_left_out() -> None:
    recorded = {line.partition(" ")[0] for line in GOLDEN.read_text(encoding="ascii").splitlines()}
    services = (broker_pb2.DESCRIPTOR.services_by_name["Broker"], controller_pb2.DESCRIPTOR.services_by_name["Controller"])
    methods = [method for service in services for method in service.methods]
    assert recorded == {message.name for method in methods for message in (method.input_type, method.output_type)}
