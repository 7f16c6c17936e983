"""LeaveGroup (key 13), versions 0-5: members go. v3 takes several, and static ones by their instance id (KIP-345);
v5 adds a reason (KIP-800).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.groups.classic.membership import Leaver
from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveGroupRequestV2
    from kio.schema.leave_group.v5.request import LeaveGroupRequest

FIRST_WITH_SEVERAL: Final = 3


@handles(ApiKey.LEAVE_GROUP, 0, 5)
def leave_group(request: LeaveGroupRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    leavers = _leavers(request, context)
    error_code, outcomes = NONE, list[ApiError | None]()
    try:
        outcomes = group_of(parts, context, Operation.READ, request.group_id).leave(request.group_id, leavers)
    except ApiError as error:
        error_code = error.code
    if context.api_version < FIRST_WITH_SEVERAL:
        first = outcomes[0] if outcomes else None
        return schema("LeaveGroupResponse", throttle_time=0, error_code=error_code if first is None else first.code)
    return schema(
        "LeaveGroupResponse",
        throttle_time=0,
        error_code=error_code,
        members=[
            schema(
                "MemberResponse",
                member_id=leaver.member_id,
                group_instance_id=leaver.instance_id,
                error_code=NONE if outcome is None else outcome.code,
            )
            for leaver, outcome in zip(leavers, outcomes, strict=False)  # no outcomes when the request as a whole is refused
        ],
    )


def _leavers(request: LeaveGroupRequest, context: RequestContext) -> list[Leaver]:
    if context.api_version < FIRST_WITH_SEVERAL:
        return [Leaver(cast("LeaveGroupRequestV2", request).member_id)]
    return [Leaver(member.member_id, member.group_instance_id, member.reason or "") for member in request.members]
