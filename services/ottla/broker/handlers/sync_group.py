"""SyncGroup (key 14), versions 0-5: the leader brings what it assigned, and every member gets its part.

v3 adds static members (KIP-345), v5 protocol type and name, both ways (KIP-559). The answer comes when the leader's
assignment is in the offsets topic.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ottla.broker.groups.classic.effects import Synced
from ottla.broker.groups.classic.membership import Sync
from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import mapped
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InconsistentGroupProtocol
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

FIRST_WITH_PROTOCOL: Final = 5


@handles(ApiKey.SYNC_GROUP, 0, 5)
def sync_group(request: Any, context: RequestContext, parts: BrokerParts) -> Any | asyncio.Future[Any]:
    schema = messages.response_schema(ApiKey.SYNC_GROUP, context.api_version)

    def answer(synced: Synced) -> Any:
        return schema(
            "SyncGroupResponse",
            throttle_time=0,
            error_code=NONE if synced.error is None else synced.error.code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol_name,
            assignment=synced.assignment,
        )

    try:
        group = group_of(parts, context, Operation.READ, request.group_id)
        protocol_type, protocol_name = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
        if context.api_version >= FIRST_WITH_PROTOCOL and (protocol_type is None or protocol_name is None):
            raise InconsistentGroupProtocol(f"group {request.group_id}: protocol type and name have to be given")
        assignments = {assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments}
        instance_id = getattr(request, "group_instance_id", None)
        sync = Sync(request.member_id, instance_id, request.generation_id, protocol_type, protocol_name, assignments)
        return mapped(group.sync(request.group_id, sync), answer)
    except ApiError as error:
        return answer(Synced(None, error=error))
