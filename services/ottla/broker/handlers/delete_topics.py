"""DeleteTopics (key 20), versions 1-6: topics by name, from v6 on also by id (KIP-516).

v3 has TOPIC_DELETION_DISABLED where earlier versions say INVALID_REQUEST; v5 adds error messages.
A topic is gone from the metadata of living brokers when the answer comes; its files go after file.delete.delay.ms, and
those of a broker that is away when it is back.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from ottla.broker.handlers.authorization import DENIED, topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import Deadline, side_by_side
from ottla.broker.security.authorizer import Operation
from ottla.errors import (
    NONE,
    ApiError,
    InvalidRequest,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as DeleteTopicsRequestV5
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest

FIRST_WITH_DELETION_DISABLED: Final = 3
FIRST_WITH_TOPIC_IDS: Final = 6


class Asked(NamedTuple):
    """A topic as the request names it."""

    name: str | None
    topic_id: UUID | None


@handles(ApiKey.DELETE_TOPICS, 1, 6)
async def delete_topics(request: DeleteTopicsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    if context.api_version >= FIRST_WITH_TOPIC_IDS:
        asked = [Asked(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [Asked(name, None) for name in cast("DeleteTopicsRequestV5", request).topic_names]
    times_named = Counter(asked)
    deadline = Deadline(request.timeout)
    deleted: set[str] = set()

    async def delete(each: Asked) -> Any:
        name, topic_id = each
        error_code, error_message = NONE, None
        try:
            name, topic_id = _resolve(each, context, parts)
            if name in deleted or times_named[each] > 1:
                raise InvalidRequest(f"Duplicate topic {name}")
            deleted.add(name)
            # By its id: another topic of that name may have been made since this broker, or the client, has heard of it.
            await deadline.wait(parts.controller.delete_topic(name, deadline.seconds_left(), topic_id), f"deleting {name}")
        except UnknownTopicOrPartition as error:
            error_code, error_message = UnknownTopicId.code if each.topic_id is not None else error.code, error.message
        except ApiError as error:
            error_code, error_message = error.code, error.message
        return schema("DeletableTopicResult", name=name, topic_id=topic_id, error_code=error_code, error_message=error_message)

    responses = await side_by_side(delete, dict.fromkeys(asked))
    return schema("DeleteTopicsResponse", throttle_time=0, responses=responses)


def _resolve(asked: Asked, context: RequestContext, parts: BrokerParts) -> tuple[str, UUID]:
    """The name and id of a topic that is there and may be deleted."""
    if not parts.settings.delete_topic_enable:
        if context.api_version < FIRST_WITH_DELETION_DISABLED:
            raise InvalidRequest("delete.topic.enable is false")
        raise TopicDeletionDisabled("delete.topic.enable is false")
    if (asked.name is None) == (asked.topic_id is None):
        raise InvalidRequest("a topic is given by its name or by its id, and not by both")
    name = asked.name
    if asked.topic_id is not None:
        name = parts.metadata.topic_name(asked.topic_id)
        # The id alone does not entitle to learn the name, so the answer has none.
        if name is None:
            raise UnknownTopicId(f"no topic has id {asked.topic_id}")
        if not topic_allowed(parts, context, Operation.DESCRIBE, name):
            raise TopicAuthorizationFailed(DENIED)
    assert name is not None
    if not topic_allowed(parts, context, Operation.DELETE, name):
        raise TopicAuthorizationFailed(DENIED)
    description = parts.metadata.topic(name)
    if description is None:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    return name, description.topic_id
