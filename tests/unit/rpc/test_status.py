"""Errors across a call: the class that is raised at one end is raised at the other."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc.status_pb2 import Status

from ottla import errors
from ottla.errors import ApiError
from ottla.rpc.channel import RpcChannel
from ottla.rpc.status import DETAILS_KEY, MAX_MESSAGE_LENGTH
from ottla.rpc.v1 import broker_pb2, broker_pb2_grpc
from ottla.rpc.v1.common_pb2 import ErrorDetail

from .serving import DEADLINE, serving


async def raised_at_the_caller(error: BaseException) -> ApiError:
    async def fail(_: broker_pb2.UpdateMetadataRequest) -> None:
        raise error

    async with serving(fail) as served:
        with pytest.raises(ApiError) as caught:
            await served.call()
        return caught.value


async def test_every_error_of_the_table_arrives_as_itself() -> None:
    """control plane: the same exception class is raised on the other side, with its message."""
    raising: list[ApiError] = []

    async def fail(_: broker_pb2.UpdateMetadataRequest) -> None:
        raise raising[0]

    async with serving(fail) as served:
        for kind in ApiError.__subclasses__():
            raising[:] = [kind(f"{kind.__name__}: 17 of 4")]
            with pytest.raises(ApiError) as caught:
                await served.call()
            assert type(caught.value) is kind
            assert caught.value.message == f"{kind.__name__}: 17 of 4"


@pytest.mark.parametrize("message", ["größer als erlaubt: ✓\n\0 \U0001f409", "%41 100%"])
def test_a_message_arrives_letter_by_letter(message: str) -> None:
    assert asyncio.run(raised_at_the_caller(errors.InvalidRequest(message))).message == message


def test_the_longest_message_is_cut_and_not_turned_into_another_error() -> None:
    """gRPC gives up answers with more headers than it takes; the dearest letter takes four bytes, escaped twelve."""
    error = asyncio.run(raised_at_the_caller(errors.InvalidReplicaAssignment("\U0001f409" * 100_000)))
    assert type(error) is errors.InvalidReplicaAssignment
    assert error.message == "\U0001f409" * (MAX_MESSAGE_LENGTH - 1) + "…"


def test_an_unforeseen_exception_is_told_to_the_log_and_not_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    error = asyncio.run(raised_at_the_caller(KeyError("the inside of the server")))
    assert type(error) is errors.UnknownServerError
    assert "inside" not in error.message
    assert "the inside of the server" in caplog.text


async def test_a_status_of_a_server_that_is_not_ours_is_told_by_its_code() -> None:
    """A method that is not there: gRPC itself answers, without a detail."""
    async with serving() as served:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = served.channel.grpc_channel.unary_unary(
            "/ottla.rpc.v1.Broker/Levitate", request_serializer=bytes
        )
        with pytest.raises(errors.UnsupportedVersion, match=rf"127\.0\.0\.1:{served.port}: UNIMPLEMENTED"):
            await served.channel.call(method, b"", DEADLINE)


async def test_where_none_listens_the_reason_is_told_and_the_address_once() -> None:
    channel = RpcChannel("127.0.0.1:1")
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.grpc_channel.unary_unary("/any", request_serializer=bytes)
    with pytest.raises(errors.BrokerNotAvailable) as refused:
        await channel.call(method, b"", DEADLINE)
    assert str(refused.value) == "127.0.0.1:1: UNAVAILABLE: Failed to connect to remote host: Connection refused"
    await channel.close()


async def test_other_tools_read_the_status_as_googles_model_of_errors_has_it() -> None:
    """google.rpc.Status in `grpc-status-details-bin`, its code and message those of the call; what grpcurl prints."""

    async def fail(_: broker_pb2.UpdateMetadataRequest) -> None:
        raise errors.StaleBrokerEpoch("epoch 4 is older than 7")

    async with serving(fail) as served, grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broker_pb2_grpc.BrokerStub(channel).UpdateMetadata(broker_pb2.UpdateMetadataRequest(), timeout=DEADLINE)
        failure = caught.value
        assert (failure.code(), failure.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "epoch 4 is older than 7")
        status = Status.FromString(dict(failure.trailing_metadata())[DETAILS_KEY])
        assert (status.code, status.message) == (failure.code().value[0], failure.details())
        detail = ErrorDetail()
        assert status.details[0].Unpack(detail)
        assert detail == ErrorDetail(code=77, message="epoch 4 is older than 7")
