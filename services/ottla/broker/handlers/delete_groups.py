"""DeleteGroups (key 42), versions 0-2: forgets groups without members, offsets and all (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import check_group
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import side_by_side
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest


@handles(ApiKey.DELETE_GROUPS, 0, 2, waits=True)
async def delete_groups(request: DeleteGroupsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()

    async def delete(group_id: str) -> Any:
        error_code = NONE
        try:
            check_group(parts, context, Operation.DELETE, group_id)
            await parts.groups.of_any(group_id).delete(group_id)
        except ApiError as error:
            error_code = error.code
        return schema("DeletableGroupResult", group_id=group_id, error_code=error_code)

    # Each waits for its partition of the offsets topic: one that a follower holds up must not hold up the others.
    results = await side_by_side(delete, dict.fromkeys(request.groups_names))
    return schema("DeleteGroupsResponse", throttle_time=0, results=results)
