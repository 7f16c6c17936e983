"""FindCoordinator (key 10), versions 0-6: which broker coordinates a group or a transactional id.

v1 adds transactional ids (key_type 1), v4 asks for several keys at once (KIP-699), v6 knows share groups (key_type 2),
which are refused. The answer is the leader of the key's partition of `__consumer_offsets` or `__transaction_state`,
which are made at the first question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers.authorization import check_group, transaction_allowed
from ottla.broker.handlers.internal_topics import internal_topic
from ottla.broker.handlers.partition_view import reachable_brokers
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.security.authorizer import Operation
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC
from ottla.errors import NONE, ApiError, CoordinatorNotAvailable, InvalidRequest, TransactionalIdAuthorizationFailed
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as FindCoordinatorRequestV3
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_WITH_SEVERAL_KEYS: Final = 4


class Coordinator(NamedTuple):
    node_id: int
    host: str
    port: int
    error_code: int = NONE
    error_message: str | None = None


@handles(ApiKey.FIND_COORDINATOR, 0, 6, waits=True)
async def find_coordinator(request: FindCoordinatorRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    if context.api_version < FIRST_WITH_SEVERAL_KEYS:
        found = await _coordinator(cast("FindCoordinatorRequestV3", request).key, request.key_type, context, parts)
        return schema("FindCoordinatorResponse", throttle_time=0, **found._asdict())
    coordinators = []
    async for key in in_slices(dict.fromkeys(request.coordinator_keys)):
        found = await _coordinator(key, request.key_type, context, parts)
        coordinators.append(schema("Coordinator", key=key, **found._asdict()))
    return schema("FindCoordinatorResponse", throttle_time=0, coordinators=coordinators)


async def _coordinator(key: str, key_type: int, context: RequestContext, parts: BrokerParts) -> Coordinator:
    try:
        _check(key, key_type, context, parts)
        if key_type == GROUP:
            topic = await internal_topic(OFFSETS_TOPIC, parts)
            broker_id = topic.partitions[parts.groups.partition_of(key)].leader
        else:
            topic = await internal_topic(TRANSACTIONS_TOPIC, parts)
            broker_id = topic.partitions[parts.transactions.coordinator.partition_of(key)].leader
        found = reachable_brokers(parts, context).get(broker_id)
        if found is None:
            raise CoordinatorNotAvailable(f"{key}: its coordinator {broker_id} has no listener {context.listener_name}, or does not live")
        endpoint, _ = found
        return Coordinator(broker_id, endpoint.host, endpoint.port)
    except ApiError as error:
        return Coordinator(-1, "", -1, error.code, error.message)


def _check(key: str, key_type: int, context: RequestContext, parts: BrokerParts) -> None:
    if key_type == GROUP:
        check_group(parts, context, Operation.DESCRIBE, key)
    elif key_type == TRANSACTION:
        if not transaction_allowed(parts, context, Operation.DESCRIBE, key):
            raise TransactionalIdAuthorizationFailed(f"Not authorized to access transactional id: {key}")
    else:
        raise InvalidRequest(f"coordinator key type {key_type} is not served")
