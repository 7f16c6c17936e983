"""Heartbeat (key 12), versions 0-4: a member lives. v3 adds static members (KIP-345)."""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, CoordinatorLoadInProgress
from ottla.protocol import messages
from ottla.protocol.api import ApiKey


@handles(ApiKey.HEARTBEAT, 0, 4)
def heartbeat(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    error_code = NONE
    try:
        group = group_of(parts, context, Operation.READ, request.group_id)
        group.heartbeat(request.group_id, request.member_id, getattr(request, "group_instance_id", None), request.generation_id)
    except CoordinatorLoadInProgress:
        pass  # as Kafka: older clients do not know this answer, and the group is here again in a moment
    except ApiError as error:
        error_code = error.code
    return messages.response_schema(ApiKey.HEARTBEAT, context.api_version)("HeartbeatResponse", throttle_time=0, error_code=error_code)
