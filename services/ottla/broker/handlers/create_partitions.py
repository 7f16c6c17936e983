"""CreatePartitions (key 37), versions 0-3: a topic gets more partitions (KIP-195). v2 is flexible.

`count` is the new total. Records stay where they are, so a key may move to another partition from then on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import DENIED, topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import Deadline, in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidRequest, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import BrokerId
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
async def create_partitions(request: CreatePartitionsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    times_named = Counter(topic.name for topic in request.topics)
    deadline = Deadline(request.timeout)
    results = []
    async for name, asked in in_slices({topic.name: topic for topic in request.topics}.items()):
        error_code, error_message = NONE, None
        try:
            if times_named[name] > 1:
                raise InvalidRequest("Duplicate topic in request.")
            if not topic_allowed(parts, context, Operation.ALTER, name):
                raise TopicAuthorizationFailed(DENIED)
            topic = parts.metadata.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            given = asked.assignments
            assignments = None if given is None else [tuple(map(BrokerId, assignment.broker_ids)) for assignment in given]
            creation = parts.controller.create_partitions(
                name, asked.count, assignments, request.validate_only, deadline.seconds_left(), topic.topic_id
            )
            extended = await (deadline.answer if request.validate_only else deadline.wait)(creation, f"adding partitions to {name}")
            if not request.validate_only:
                await parts.metadata.wait_for(extended, deadline.seconds_left())
        except ApiError as error:
            error_code, error_message = error.code, error.message
        results.append(schema("CreatePartitionsTopicResult", name=name, error_code=error_code, error_message=error_message))
    return schema("CreatePartitionsResponse", throttle_time=0, results=results)
