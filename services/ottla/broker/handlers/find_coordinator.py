"""FindCoordinator (key 10), versions 0-6: which broker coordinates a group or a transactional id.

v1 adds transactional ids (key_type 1), v4 asks for several keys at once (KIP-699), v6 knows share groups (key_type 2),
which are refused. A broker on its own coordinates whatever there is, so the answer is always this broker; whether it
serves groups or transactions a client learns from ApiVersions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ottla.broker.handlers.authorization import allowed
from ottla.broker.handlers.listeners import reachable_brokers
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind
from ottla.errors import (
    NONE,
    ApiError,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InvalidRequest,
    TransactionalIdAuthorizationFailed,
)
from ottla.model import BrokerId
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_WITH_SEVERAL_KEYS: Final = 4


class Coordinator(NamedTuple):
    node_id: int
    host: str
    port: int
    error_code: int = NONE
    error_message: str | None = None


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
def find_coordinator(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.FIND_COORDINATOR, context.api_version)
    key_type = getattr(request, "key_type", GROUP)
    if context.api_version < FIRST_WITH_SEVERAL_KEYS:
        return schema("FindCoordinatorResponse", throttle_time=0, **_coordinator(request.key, key_type, context, parts)._asdict())
    return schema(
        "FindCoordinatorResponse",
        throttle_time=0,
        coordinators=[
            schema("Coordinator", key=key, **_coordinator(key, key_type, context, parts)._asdict()) for key in request.coordinator_keys
        ],
    )


def _coordinator(key: str, key_type: int, context: RequestContext, parts: BrokerParts) -> Coordinator:
    try:
        _check(key, key_type, context, parts)
        broker_id = BrokerId(parts.settings.broker_id)
        found = reachable_brokers(parts, context).get(broker_id)
        if found is None:
            raise CoordinatorNotAvailable(f"broker {broker_id} has no listener {context.listener_name}")
        endpoint, _ = found
        return Coordinator(broker_id, endpoint.host, endpoint.port)
    except ApiError as error:
        return Coordinator(-1, "", -1, error.code, error.message)


def _check(key: str, key_type: int, context: RequestContext, parts: BrokerParts) -> None:
    if key_type == GROUP:
        if not allowed(parts, context, Operation.DESCRIBE, Resource(ResourceKind.GROUP, key)):
            raise GroupAuthorizationFailed(f"Not authorized to access group: {key}")
    elif key_type == TRANSACTION:
        if not allowed(parts, context, Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, key)):
            raise TransactionalIdAuthorizationFailed(f"Not authorized to access transactional id: {key}")
    else:
        raise InvalidRequest(f"coordinator key type {key_type} is not served")
