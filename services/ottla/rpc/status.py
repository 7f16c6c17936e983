"""Ottla's errors as gRPC statuses, and back: the class that is raised at one end is raised at the other.

The status's code and text are for people and for tools (`grpcurl` shows both). What counts is the detail: an
`ottla.rpc.v1.ErrorDetail` with Kafka's code and the message, carried as gRPC carries details, in a `google.rpc.Status`
in the trailing metadata.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from ottla import errors
from ottla.errors import ApiError
from ottla.rpc.v1.common_pb2 import ErrorDetail

DETAILS_KEY: Final = "grpc-status-details-bin"
# The message is sent twice, once of it escaped to up to twelve bytes a letter, and all has to fit in MAX_METADATA_BYTES.
MAX_MESSAGE_LENGTH: Final = 2_000

# What gRPC says before the reason why no connection came about; who was called is said already.
_WHERE: Final = re.compile(r"^failed to connect to all addresses; last error: (?:[A-Z]+: )?(?:ipv[46]:\S+: )?")

# Where an error has a near relation among gRPC's codes. All others are FAILED_PRECONDITION: right now it cannot be done.
_STATUS_CODES: Final[dict[type[ApiError], grpc.StatusCode]] = {
    errors.UnknownServerError: grpc.StatusCode.INTERNAL,
    errors.UnknownTopicOrPartition: grpc.StatusCode.NOT_FOUND,
    errors.UnknownTopicId: grpc.StatusCode.NOT_FOUND,
    errors.ResourceNotFound: grpc.StatusCode.NOT_FOUND,
    errors.TopicAlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.RequestTimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.BrokerNotAvailable: grpc.StatusCode.UNAVAILABLE,
    errors.CoordinatorNotAvailable: grpc.StatusCode.UNAVAILABLE,
    errors.NotController: grpc.StatusCode.UNAVAILABLE,
    errors.ClusterAuthorizationFailed: grpc.StatusCode.PERMISSION_DENIED,
    errors.TopicAuthorizationFailed: grpc.StatusCode.PERMISSION_DENIED,
    errors.InvalidTopic: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidPartitions: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidReplicationFactor: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidReplicaAssignment: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidConfig: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedVersion: grpc.StatusCode.UNIMPLEMENTED,
}

# What gRPC itself says when no answer of ours came.
_ERRORS_WITHOUT_DETAIL: Final[dict[grpc.StatusCode, type[ApiError]]] = {
    grpc.StatusCode.UNAVAILABLE: errors.BrokerNotAvailable,
    grpc.StatusCode.CANCELLED: errors.BrokerNotAvailable,  # the server stopped meanwhile
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.RequestTimedOut,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.InvalidRequest,  # larger than one of the ends takes
    grpc.StatusCode.NOT_FOUND: errors.ResourceNotFound,  # the health service, of a service that it does not know
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedVersion,
    grpc.StatusCode.UNAUTHENTICATED: errors.ClusterAuthorizationFailed,
    grpc.StatusCode.PERMISSION_DENIED: errors.ClusterAuthorizationFailed,
}


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ApiError) -> NoReturn:
    """Ends a call with an error."""
    code = _STATUS_CODES.get(type(error), grpc.StatusCode.FAILED_PRECONDITION)
    message = error.message
    if len(message) > MAX_MESSAGE_LENGTH:
        message = message[: MAX_MESSAGE_LENGTH - 1] + "…"
    status = Status(code=code.value[0], message=message)
    status.details.add().Pack(ErrorDetail(code=error.code, message=message))
    await context.abort(code, message, ((DETAILS_KEY, status.SerializeToString()),))


def error_of_call(failure: grpc.aio.AioRpcError, target: str) -> ApiError:
    """What a failed call is to be raised as.

    Args:
        failure: as gRPC raised it.
        target: who was called, for errors that did not come from there.
    """
    for key, value in failure.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            detail = _detail_in(value)
            if detail is not None:
                return errors.error_of(detail.code, message=detail.message)
    kind = _ERRORS_WITHOUT_DETAIL.get(failure.code(), errors.UnknownServerError)
    details = _WHERE.sub("", failure.details() or "nothing was said of it")
    return kind(f"{target}: {failure.code().name}: {details}")


def _detail_in(value: bytes) -> ErrorDetail | None:
    detail = ErrorDetail()
    try:
        for packed in Status.FromString(value).details:
            if packed.Unpack(detail):
                return detail
    except DecodeError:
        pass  # not from us; the status's own code has to do
    return None
