"""JoinGroup (key 11), versions 0-9: a member comes into a group, or into its next generation.

v1 adds the rebalance timeout (before, it was the session's), v4 MEMBER_ID_REQUIRED (KIP-394), v5 static members
(KIP-345), v7 the protocol type in the answer, v8 a reason (KIP-800), v9 skip_assignment (KIP-814). The answer comes
when all members have joined or the time is up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.classic.effects import Joined
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import mapped, milliseconds
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest

FIRST_WITH_REBALANCE_TIMEOUT: Final = 1
FIRST_WITH_REQUIRED_MEMBER_ID: Final = 4
FIRST_WITH_NULL_PROTOCOL: Final = 7
FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9


@handles(ApiKey.JOIN_GROUP, 0, 9)
def join_group(request: JoinGroupRequest, context: RequestContext, parts: BrokerParts) -> Any | asyncio.Future[Any]:
    version = context.api_version
    schema = context.response_schema()

    def answer(joined: Joined) -> Any:
        null = None if version >= FIRST_WITH_NULL_PROTOCOL else ""
        return schema(
            "JoinGroupResponse",
            throttle_time=0,
            error_code=NONE if joined.error is None else joined.error.code,
            generation_id=joined.generation_id,
            protocol_type=joined.protocol_type,
            protocol_name=null if joined.protocol_name is None else joined.protocol_name,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                schema(
                    "JoinGroupResponseMember", member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
                )
                for member in joined.members
            ],
        )

    try:
        group = group_of(parts, context, Operation.READ, request.group_id)
        return mapped(group.join(request.group_id, _join(request, context)), answer)
    except ApiError as error:
        return answer(Joined(None, request.member_id, error=error))


def _join(request: JoinGroupRequest, context: RequestContext) -> Join:
    session_timeout = request.session_timeout
    rebalance_timeout = request.rebalance_timeout if context.api_version >= FIRST_WITH_REBALANCE_TIMEOUT else session_timeout
    return Join(
        request.member_id,
        request.group_instance_id,
        context.client_id or "",
        f"/{context.client_host}",
        milliseconds(session_timeout),
        milliseconds(rebalance_timeout),
        request.protocol_type,
        # One that is named twice is one: it would be counted as two members' (Kafka takes them into a map too).
        tuple(
            Protocol(name, metadata)
            for name, metadata in {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}.items()
        ),
        requires_known_member_id=context.api_version >= FIRST_WITH_REQUIRED_MEMBER_ID and request.group_instance_id is None,
        supports_skipping_assignment=context.api_version >= FIRST_WITH_SKIPPED_ASSIGNMENT,
        reason=request.reason or "",
    )
