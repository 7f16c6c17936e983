"""SyncGroup (key 14), versions 0-5: the leader brings what it assigned, and every member gets its part.

v3 adds static members (KIP-345), v5 protocol type and name, both ways (KIP-559). The answer comes when the leader's
assignment is in the offsets topic.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.classic.effects import Synced
from ottla.broker.groups.classic.membership import Sync
from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import mapped
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, CoordinatorLoadInProgress, InconsistentGroupProtocol, RebalanceInProgress
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest

FIRST_WITH_PROTOCOL: Final = 5


@handles(ApiKey.SYNC_GROUP, 0, 5)
def sync_group(request: SyncGroupRequest, context: RequestContext, parts: BrokerParts) -> Any | asyncio.Future[Any]:
    schema = context.response_schema()

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
        protocol_type, protocol_name = request.protocol_type, request.protocol_name
        if context.api_version >= FIRST_WITH_PROTOCOL and (protocol_type is None or protocol_name is None):
            raise InconsistentGroupProtocol(f"group {request.group_id}: protocol type and name have to be given")
        assignments = {assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments}
        sync = Sync(request.member_id, request.group_instance_id, request.generation_id, protocol_type, protocol_name, assignments)
        return mapped(group.sync(request.group_id, sync), answer)
    except CoordinatorLoadInProgress as error:
        # As Kafka: clients do not know this answer, and what the group was about is lost, so they join again.
        return answer(Synced(None, error=RebalanceInProgress(error.message)))
    except ApiError as error:
        return answer(Synced(None, error=error))
