"""Heartbeat (key 12), versions 0-4: a member lives. v3 adds static members (KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, CoordinatorLoadInProgress
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest


@handles(ApiKey.HEARTBEAT, 0, 4)
def heartbeat(request: HeartbeatRequest, context: RequestContext, parts: BrokerParts) -> Any:
    error_code = NONE
    try:
        group = group_of(parts, context, Operation.READ, request.group_id)
        group.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    except CoordinatorLoadInProgress:
        pass  # as Kafka: older clients do not know this answer, and the group is here again in a moment
    except ApiError as error:
        error_code = error.code
    return context.response_schema()("HeartbeatResponse", throttle_time=0, error_code=error_code)
