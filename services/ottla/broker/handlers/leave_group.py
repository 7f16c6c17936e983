"""LeaveGroup (key 13), versions 0-5: members go. v3 takes several, and static ones by their instance id (KIP-345);
v5 adds a reason (KIP-800).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.groups.classic.membership import Leaver
from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.handlers.waiting import portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveGroupRequestV2
    from kio.schema.leave_group.v5.request import LeaveGroupRequest

FIRST_WITH_SEVERAL: Final = 3


@handles(ApiKey.LEAVE_GROUP, 0, 5)
def leave_group(request: LeaveGroupRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    error_code, answers = NONE, list[Any]()
    try:
        for leavers in _leavers(request, context):
            yield
            outcomes = group_of(parts, context, Operation.READ, request.group_id).leave(request.group_id, leavers)
            for leaver, outcome in zip(leavers, outcomes, strict=True):
                code = NONE if outcome is None else outcome.code
                answers.append(schema("MemberResponse", member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=code))
                if context.api_version < FIRST_WITH_SEVERAL:
                    error_code = code
    except ApiError as error:
        error_code, answers = error.code, []
    return schema("LeaveGroupResponse", throttle_time=0, error_code=error_code, members=answers)


def _leavers(request: LeaveGroupRequest, context: RequestContext) -> Iterator[list[Leaver]]:
    """Those who leave together, before others have their turn."""
    if context.api_version < FIRST_WITH_SEVERAL:
        yield [Leaver(cast("LeaveGroupRequestV2", request).member_id)]
        return
    for members in portions(request.members) if request.members else ([],):
        yield [Leaver(member.member_id, member.group_instance_id, member.reason or "") for member in members]
